//! The disk against a plain vector of bytes, on every engine, and what it says about its paths, its limits and its faults.

#[path = "disk/model.rs"]
mod model;
#[path = "disk/rig.rs"]
mod rig;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{DataPath, ErrorKind, Limits, PathPolicy, Span};
use forebay_io::sim::{SimConfig, SimFault};
use forebay_io::{Buf, Class, Direct, Engine, NameOp, OpenHow, Psync, Purpose, Uring};
use model::{Model, ops};
use proptest::test_runner::{Config, TestRunner};
use rig::{MIB, Rig, align_of, limits, pattern, shifted, skip, temp_dir};

fn agrees_with_the_model(rig: &Rig) {
    let config = Config {
        cases: 48,
        failure_persistence: None,
        ..Config::default()
    };
    let number = std::cell::Cell::new(0);
    TestRunner::new(config)
        .run(&ops(), |ops| {
            number.set(number.get() + 1);
            let name = format!("f{}", number.get());
            let mut model = Model {
                rig,
                file: rig.open(&name, Purpose::Create).unwrap(),
                bytes: Vec::new(),
                writes: 0,
            };
            for op in &ops {
                model.apply(op);
            }
            let whole = Span::first(model.bytes.len() as u64);
            model.read(whole);
            let stats = rig.disk.pool().stats();
            assert_eq!((stats.leased_bytes, rig.disk.gate().in_flight().0), (0, [0; 4]));
            let path = rig.root.join(&name);
            rig.runtime
                .block_on(rig.disk.name(NameOp::Unlink { path }))
                .unwrap();
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_thread_pool_agrees_with_a_vector_of_bytes() {
    agrees_with_the_model(&Rig::psync(Direct::Never));
    agrees_with_the_model(&Rig::psync(Direct::Require));
}

#[test]
fn io_uring_agrees_with_a_vector_of_bytes() {
    for direct in [Direct::Never, Direct::Require] {
        if let Some(rig) = Rig::uring(direct) {
            agrees_with_the_model(&rig);
        }
    }
}

#[test]
fn a_moody_simulation_agrees_with_a_vector_of_bytes() {
    for rig in Rig::all().into_iter().take(3) {
        agrees_with_the_model(&rig);
    }
}

#[test]
fn large_transfers_are_cut_by_the_disk_too() {
    for rig in Rig::all() {
        let bytes = pattern(1, 20 << 20);
        let file = rig.file_of("f", &bytes);
        let mut model = Model {
            rig: &rig,
            file,
            bytes,
            writes: 10,
        };
        // In place, bounced whole, and bounced at the ends, over several operations each.
        for (start, len, shift) in [
            (0, 20 << 20, 0),
            (100, 19 << 20, 0),
            (4096, 17 << 20, 8),
            (5000, 18 << 20, 5000 % 4096),
        ] {
            let span = Span::at(start, len).unwrap();
            model.read(span);
            model.read_into(span, shift, 0);
        }
        model.write(4096, 18 << 20, 0);
        model.write(8192, (9 << 20) + 4096, 40);
        model.read(Span::first(20 << 20));
    }
}

#[test]
fn a_file_that_shrinks_is_told_not_filled_up() {
    for rig in Rig::all() {
        let bytes = pattern(2, 3 << 20);
        let file = rig.file_of("f", &bytes);
        let believed = Span::first(file.size().max(3 << 20));
        rig.set_len(&file, 1_500_000);
        let error = rig.read(&file, believed).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
        assert!(error.message().contains("1500000"), "says where it ends: {error}");
        assert_eq!(error.location(), file.path().to_str());
        // The caller's buffer comes back whole, to be filled from elsewhere.
        for shift in [0, 8] {
            let buf = shifted(3 << 20, shift);
            let address = buf.as_ptr();
            let reading = rig.disk.try_read_into(&file, believed, buf, Class::Data);
            let (buf, result) = rig.runtime.block_on(reading).unwrap();
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Precondition);
            assert_eq!((buf.as_ptr(), buf.len()), (address, 3 << 20));
        }
        assert_eq!(rig.disk.pool().stats().leased_bytes, 0);
        assert!(rig.read(&file, Span::first(1_500_000)).unwrap().0[..] == bytes[..1_500_000]);
    }
}

#[test]
fn a_file_that_shrinks_and_grows_meanwhile_never_gives_other_bytes() {
    for direct in [Direct::Never, Direct::Require] {
        let rig = Rig::psync(direct);
        let bytes = vec![7; 2 << 20];
        let file = rig.file_of("f", &bytes);
        std::thread::scope(|scope| {
            let cut_file = std::fs::OpenOptions::new().write(true).open(file.path()).unwrap();
            let cutter = scope.spawn(move || {
                for round in 0..200 {
                    cut_file
                        .set_len(if round % 2 == 0 { 1 << 20 } else { 2 << 20 })
                        .unwrap();
                }
            });
            while !cutter.is_finished() {
                match rig.read(&file, Span::first(2 << 20)) {
                    Ok((buf, _)) => assert!(buf.iter().all(|byte| matches!(byte, 0 | 7))),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Precondition, "{error}"),
                }
            }
        });
    }
}

#[test]
fn a_full_disk_is_an_error_with_its_place() {
    for direct_align in [None, Some(4096)] {
        let rig = Rig::sim(SimConfig {
            capacity_bytes: Some(MIB),
            direct_align,
            ..SimConfig::default()
        });
        let file = rig.open("f", Purpose::Create).unwrap();
        let error = rig
            .write(&file, 0, Buf::copy_of(&pattern(3, 2 << 20)).unwrap())
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.location()),
            (ErrorKind::OutOfSpace, Some("/f"))
        );
    }
}

#[test]
fn errors_of_the_kernel_come_through_with_nothing_left_behind() {
    for (fault, kind) in [
        (SimFault::Eio, ErrorKind::Io),
        (SimFault::Enospc, ErrorKind::OutOfSpace),
        (SimFault::TornWrite, ErrorKind::Io),
    ] {
        // The open, then the third of four requests.
        let rig = Rig::sim(SimConfig {
            fail_op: Some((4, fault)),
            ..SimConfig::default()
        });
        let file = rig.open("f", Purpose::Create).unwrap();
        let error = rig
            .write(&file, 0, Buf::copy_of(&pattern(4, 4 << 20)).unwrap())
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(rig.disk.gate().in_flight().0, [0; 4]);
    }
    let rig = Rig::sim(SimConfig {
        fail_op: Some((8, SimFault::Eio)),
        ..SimConfig::default()
    });
    let file = rig.file_of("f", &pattern(5, 4 << 20));
    let error = rig.read(&file, Span::first(4 << 20)).unwrap_err();
    assert_eq!((error.kind(), error.op()), (ErrorKind::Io, "read"));
    assert_eq!(
        (
            rig.disk.pool().stats().leased_bytes,
            rig.disk.gate().in_flight().0
        ),
        (0, [0; 4])
    );
}

#[test]
fn buffers_that_are_too_short_and_offsets_that_are_not_aligned_are_refused() {
    for rig in Rig::all() {
        let bytes = pattern(6, 3 << 20);
        let file = rig.file_of("f", &bytes);
        let error = rig
            .read_into(&file, Span::first(4097), shifted(4096, 0))
            .unwrap_err();
        assert_eq!(
            (error.kind(), error.location()),
            (ErrorKind::InvalidInput, file.path().to_str())
        );
        if align_of(&file) > 1 {
            let error = rig
                .write(&file, 100, Buf::copy_of(&pattern(7, 2 << 20)).unwrap())
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert!(
                rig.read(&file, Span::first(3 << 20)).unwrap().0[..] == bytes,
                "nothing was written"
            );
        }
    }
}

/// Leave the mounts of the other threads and mount a file system of one's own; threads started later see it.
fn mount_own(target: &Path, data: &std::ffi::CStr, flags: libc::c_ulong) -> std::io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let target = std::ffi::CString::new(target.as_os_str().as_bytes())?;
    let check = |result: libc::c_int| match result {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    };
    let nothing = std::ptr::null();
    let tmpfs = c"tmpfs".as_ptr();
    // SAFETY: a plain system call.
    check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
    // SAFETY: a plain system call on strings that live until it returns; the others likewise.
    check(unsafe {
        libc::mount(
            nothing,
            c"/".as_ptr(),
            nothing,
            libc::MS_REC | libc::MS_PRIVATE,
            nothing.cast(),
        )
    })?;
    // SAFETY: as above.
    check(unsafe { libc::mount(tmpfs, target.as_ptr(), tmpfs, flags, data.as_ptr().cast()) })
}

#[test]
fn a_full_and_a_read_only_file_system_are_told_apart() {
    for (flags, kind) in [(0, ErrorKind::OutOfSpace), (libc::MS_RDONLY, ErrorKind::ReadOnly)] {
        let dir = temp_dir();
        let target = dir.path().to_owned();
        // Of its own, because what it mounts is seen by this thread and those it starts.
        let test = std::thread::spawn(move || {
            if let Err(error) = mount_own(&target, c"size=1m", flags) {
                return skip(&format!("cannot mount a small tmpfs: {error}"));
            }
            let engines: [Option<Arc<dyn Engine>>; 2] = [
                Some(Arc::new(Psync::new(&limits(), None).unwrap())),
                Uring::new(&limits())
                    .ok()
                    .map(|engine| Arc::new(engine) as Arc<dyn Engine>),
            ];
            for engine in engines.into_iter().flatten() {
                let mut rig = Rig::new(engine, Direct::Auto, None, limits());
                rig.root.clone_from(&target);
                let written = rig
                    .open("f", Purpose::Update)
                    .and_then(|file| rig.write(&file, 0, Buf::copy_of(&pattern(8, 2 << 20))?));
                let error = written.unwrap_err();
                assert_eq!(error.kind(), kind, "{error}");
                assert_eq!(error.location(), target.join("f").to_str());
            }
            Some(())
        });
        test.join().unwrap();
    }
}

#[test]
fn a_required_path_that_memory_cannot_offer_is_an_error_with_the_reason() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
        return;
    };
    let path = dir.path().join("f");
    std::fs::write(&path, pattern(9, 1 << 20)).unwrap();
    let open = |rig: &Rig, policy| {
        let opening = rig.disk.open_file(path.clone(), OpenHow::READ, policy);
        rig.runtime.block_on(opening)
    };
    for rig in [Some(Rig::psync(Direct::Auto)), Rig::uring(Direct::Auto)]
        .into_iter()
        .flatten()
    {
        let error = open(&rig, PathPolicy::Require(DataPath::DirectUring)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let reason = if rig.disk.report().fallback_reason.is_some() {
            "threads"
        } else {
            "tmpfs"
        };
        assert!(error.message().contains(reason), "{error}");
        assert_eq!(error.location(), path.to_str());
        assert!(error.hint().is_some());
        let file = open(&rig, PathPolicy::Require(DataPath::Buffered)).unwrap();
        assert_eq!(rig.disk.path_of(&file), DataPath::Buffered);
        let file = open(&rig, PathPolicy::Fastest).unwrap();
        let (_, ledger) = rig.read(&file, Span::first(1 << 20)).unwrap();
        assert!(ledger.downgrades[0].reason.contains("tmpfs"), "{ledger:?}");
        assert_eq!(ledger.downgrades[0].wanted, DataPath::DirectUring);
    }
}

#[test]
fn a_required_path_of_another_engine_is_an_error_with_the_reason() {
    let rig = Rig::psync(Direct::Auto);
    let file = rig.file_of("f", &pattern(10, 1 << 20));
    let opening = rig.disk.open_file(
        file.path(),
        OpenHow::READ,
        PathPolicy::Require(DataPath::DirectUring),
    );
    let error = rig.runtime.block_on(opening).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("a test wants threads"), "{error}");
}

#[test]
fn a_slow_consumer_holds_the_ceiling_of_memory() {
    const PIECE: u64 = MIB;
    const PIECES: u64 = 64;
    let limits = Limits {
        buffer_bytes_max: 4 * MIB,
        ..limits()
    };
    let engines: [Option<Arc<dyn Engine>>; 2] = [
        Some(Arc::new(Psync::new(&limits, None).unwrap())),
        Uring::new(&limits)
            .ok()
            .map(|engine| Arc::new(engine) as Arc<dyn Engine>),
    ];
    for engine in engines.into_iter().flatten() {
        let rig = Rig::new(engine, Direct::Auto, Some(temp_dir()), limits.clone());
        let bytes = pattern(11, (PIECES * PIECE) as usize);
        let file = rig.file_of("f", &bytes);
        let mut seen = BTreeSet::new();
        rig.runtime.block_on(async {
            let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
            let mut readers = tokio::task::JoinSet::new();
            for index in 0..PIECES {
                let (disk, file, sender) = (rig.disk.clone(), Arc::clone(&file), sender.clone());
                readers.spawn_on(
                    async move {
                        let span = Span::at(index * PIECE, PIECE).unwrap();
                        let (buf, _) = disk.read(&file, span, Class::Data).await.unwrap();
                        sender.send((index, buf)).await.unwrap();
                    },
                    rig.runtime.handle(),
                );
            }
            drop(sender);
            while let Some((index, buf)) = receiver.recv().await {
                // All the others get their turn, and fill what they can, before the consumer goes on.
                for _ in 0..100 {
                    tokio::task::yield_now().await;
                }
                let start = (index * PIECE) as usize;
                assert!(buf[..] == bytes[start..start + PIECE as usize]);
                seen.insert(index);
                let stats = rig.disk.pool().stats();
                assert!(stats.leased_bytes <= 4 * MIB, "{stats:?}");
            }
            while readers.join_next().await.is_some() {}
        });
        let stats = rig.disk.pool().stats();
        assert_eq!(seen.len() as u64, PIECES);
        assert_eq!((stats.bytes_max, stats.leased_bytes), (4 * MIB, 0));
        assert_eq!(stats.leased_bytes_peak, 4 * MIB, "used up, never passed");
        assert!(stats.waits > 0);
    }
}
