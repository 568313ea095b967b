//! Where io_uring is filtered, the thread pool runs and says why.
//!
//! The test starts itself again under a seccomp filter that forbids `io_uring_setup`, as container runtimes do.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use forebay_core::{DataPath, ErrorKind, Limits, PathPolicy, Span};
use forebay_io::{Class, Disk, DiskConfig, EngineChoice, EngineKind, OpenHow, Uring, open_engine};

/// Name of the child process, by which it knows that it is one.
const CHILD: &str = "under-a-filter";

/// Forbid one system call to this process and its children.
fn forbid(call: libc::c_long) -> io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            jf: 1,
            ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32)
        },
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: plain system calls; `filter` and the program it points at live until they return.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) != 0
    };
    if failed {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn is_child() -> bool {
    std::env::args().next().as_deref() == Some(CHILD)
}

#[test]
fn a_filtered_io_uring_is_reported_and_replaced() {
    if is_child() {
        return under_the_filter();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.arg0(CHILD).args([
        "--exact",
        "a_filtered_io_uring_is_reported_and_replaced",
        "--nocapture",
    ]);
    // SAFETY: between fork and exec only prctl is called.
    unsafe { child.pre_exec(|| forbid(libc::SYS_io_uring_setup)) };
    let output = child.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

fn under_the_filter() {
    let error = Uring::new(&Limits::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("seccomp"), "{error}");
    assert!(
        open_engine(EngineChoice::Uring, &Limits::default()).is_err(),
        "a required engine is an error"
    );

    let disk = Disk::open(DiskConfig::default()).unwrap();
    let report = disk.report();
    assert_eq!(report.kind, EngineKind::Psync);
    assert!(report.fallback_reason.unwrap().contains("seccomp"));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![7; 300_000]).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let file = disk
            .open_file(&path, OpenHow::READ, PathPolicy::Fastest)
            .await
            .unwrap();
        let (buf, ledger) = disk.read(&file, Span::first(300_000), Class::Data).await.unwrap();
        assert!(buf.iter().all(|byte| *byte == 7));
        assert!(
            !ledger.downgrades.is_empty(),
            "the slower path has a reason: {ledger}"
        );
        assert_eq!(ledger.path(DataPath::DirectUring).bytes, 0);
        let required = disk
            .open_file(&path, OpenHow::READ, PathPolicy::Require(DataPath::DirectUring))
            .await;
        assert_eq!(required.unwrap_err().kind(), ErrorKind::Unsupported);
    });
}
