//! What engines do with names, lengths and errors.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_core::ErrorKind;
use forebay_io::{Access, Direct, FileKind, NameDone, NameOp, Purpose, Renamed};

use crate::bench::{Bench, pattern};

pub(crate) fn files_are_opened_and_created_as_asked(bench: &Bench) {
    let kind = |name: &str, purpose| bench.open(name, purpose).unwrap_err().kind();
    assert_eq!(kind("f", Purpose::Read), ErrorKind::NotFound);
    let bytes = pattern(11, 4096);
    bench
        .write(&bench.open("f", Purpose::Update).unwrap(), 0, &bytes)
        .unwrap();
    assert_eq!(kind("f", Purpose::Create), ErrorKind::AlreadyExists);
    let file = bench.open("f", Purpose::Read).unwrap();
    assert_eq!(file.size(), 4096);
    assert!(
        bench.read(&file, 0, 4096).buf[..] == bytes,
        "update keeps the content"
    );
    let error = bench.write(&file, 0, &bytes).unwrap_err();
    assert_eq!(
        (error.kind(), error.location()),
        (ErrorKind::Io, file.path().to_str())
    );
    assert_eq!(kind("", Purpose::Read), ErrorKind::InvalidInput);
    assert_eq!(kind("f/below", Purpose::Update), ErrorKind::InvalidInput);
    assert_eq!(kind("nowhere/f", Purpose::Create), ErrorKind::NotFound);
    match (bench.direct, file.access()) {
        (Direct::Never, Access::Buffered { reason }) => assert!(!reason.is_empty()),
        (_, access) => assert!(matches!(access, Access::Direct { align } if align.is_power_of_two())),
    }
}

pub(crate) fn a_rename_tells_what_it_renamed(bench: &Bench) {
    bench.file_of("a", &pattern(12, 4096));
    let rename = |size| {
        let (from, to) = (bench.path("a"), bench.path("b"));
        bench.run(NameOp::Rename {
            from,
            to,
            replace: true,
            size: Some(size),
        })
    };
    assert_eq!(rename(4095).unwrap_err().kind(), ErrorKind::Corrupt);
    let NameDone::Renamed(Renamed { before, after }) = rename(4096).unwrap() else {
        panic!("not told");
    };
    assert_eq!(before.size, 4096);
    assert_eq!(after.unwrap(), bench.stat(&bench.path("b")).unwrap());
    assert_eq!(before.identity, after.unwrap().identity);
}

pub(crate) fn names_are_renamed_listed_and_removed(bench: &Bench) {
    let path = |name: &str| bench.path(name);
    let rename = |from: &str, to: &str, replace| {
        let (from, to) = (path(from), path(to));
        bench.run(NameOp::Rename {
            from,
            to,
            replace,
            size: None,
        })
    };
    bench.run(NameOp::CreateDirs { path: path("d/e/x") }).unwrap();
    bench.run(NameOp::CreateDirs { path: path("d/e/x") }).unwrap();
    let open = bench.file_of("d/a", &pattern(12, 4096));
    bench.file_of("d/b", &pattern(13, 8192));
    assert_eq!(
        rename("d/a", "d/b", false).unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(
        bench.stat(&path("d/b")).unwrap().size,
        8192,
        "nothing was replaced"
    );
    rename("d/a", "d/e/c", false).unwrap();
    rename("d/e/c", "d/b", true).unwrap();
    assert_eq!(bench.stat(&path("d/b")).unwrap().size, 4096, "replaced");
    assert_eq!(
        rename("d/a", "d/z", true).unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let entries = || match bench.run(NameOp::List { path: path("d") }).unwrap() {
        NameDone::Entries(entries) => entries,
        other => panic!("{other:?}"),
    };
    let found: Vec<_> = entries()
        .into_iter()
        .map(|entry| (entry.name, entry.kind))
        .collect();
    let expected = [("b", FileKind::File), ("e", FileKind::Dir)];
    assert_eq!(
        found,
        expected.map(|(name, kind)| (OsStr::new(name).to_owned(), kind))
    );
    let remove_dir = |name: &str| bench.run(NameOp::RemoveDir { path: path(name) });
    let unlink = |name: &str| bench.run(NameOp::Unlink { path: path(name) });
    assert_eq!(
        remove_dir("d").unwrap_err().kind(),
        ErrorKind::AlreadyExists,
        "not empty"
    );
    assert_eq!(remove_dir("d/b").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(unlink("d/e").is_err());
    unlink("d/b").unwrap();
    assert_eq!(unlink("d/b").unwrap_err().kind(), ErrorKind::NotFound);
    assert!(
        bench.read(&open, 0, 4096).buf[..] == pattern(12, 4096),
        "open files outlive names"
    );
    for name in ["d/e/x", "d/e", "d"] {
        remove_dir(name).unwrap();
    }
    assert_eq!(bench.stat(&path("d")).unwrap_err().kind(), ErrorKind::NotFound);
}

pub(crate) fn sizes_and_times_are_told_and_set(bench: &Bench) {
    let file = bench.file_of("f", &pattern(14, 10_000));
    let stat = || bench.stat(file.path()).unwrap();
    let before = stat();
    assert_eq!((before.kind, before.size), (FileKind::File, 10_000));
    assert_eq!(bench.stat(&bench.root).unwrap().kind, FileKind::Dir);
    assert_ne!(before.identity, bench.stat(&bench.root).unwrap().identity);
    let set_len = |len| {
        let file = Arc::clone(&file);
        bench.run(NameOp::SetLen { file, len })
    };
    set_len(5).unwrap();
    assert_eq!(stat().size, 5);
    set_len(20_000).unwrap();
    let done = bench.read(&file, 0, 20_480);
    assert_eq!(done.result.unwrap(), 20_000);
    assert!(done.buf[..5] == pattern(14, 5) && done.buf[5..20_000].iter().all(|byte| *byte == 0));
    let reserve = |len| {
        let file = Arc::clone(&file);
        bench.run(NameOp::Reserve { file, len })
    };
    reserve(1 << 20).unwrap();
    reserve(100).unwrap();
    assert_eq!(stat().size, 1 << 20, "reserving grows and never cuts");
    assert!(stat().stored_bytes >= 1 << 20, "{:?}", stat());
    assert!(bench.read(&file, 0, 4096).buf[..5] == pattern(14, 5));
    // Read long ago, where there is a real file: clocks of machines are set back now and then, and a touch that does nothing is to be seen.
    if let Ok(real) = std::fs::OpenOptions::new().write(true).open(file.path()) {
        let long_ago = std::time::UNIX_EPOCH + std::time::Duration::from_secs(86_400);
        real.set_times(std::fs::FileTimes::new().set_accessed(long_ago))
            .unwrap();
    }
    let earlier = stat();
    bench
        .run(NameOp::Touch {
            path: file.path().to_owned(),
        })
        .unwrap();
    let touched = stat();
    assert!(
        touched.accessed_ns >= earlier.accessed_ns,
        "{touched:?}, {earlier:?}"
    );
    assert_eq!(touched.modified_ns, earlier.modified_ns);
}

pub(crate) fn errors_name_the_place_and_the_kind(bench: &Bench) {
    let missing = bench.path("missing");
    let place = || missing.clone();
    let ops = [
        NameOp::Stat { path: place() },
        NameOp::List { path: place() },
        NameOp::Unlink { path: place() },
        NameOp::RemoveDir { path: place() },
        NameOp::SyncDir { path: place() },
        NameOp::Touch { path: place() },
    ];
    for op in ops {
        let error = bench.run(op.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{op:?}: {error}");
        assert_eq!(error.location(), missing.to_str(), "{op:?}: {error}");
    }
    let error = bench.open("missing", Purpose::Read).unwrap_err();
    assert_eq!((error.op(), error.location()), ("open", missing.to_str()));
    let file = bench.file_of("file", b"x");
    let list = bench.run(NameOp::List {
        path: file.path().to_owned(),
    });
    assert_eq!(list.unwrap_err().kind(), ErrorKind::InvalidInput);
    let below = bench.path("file/dir");
    assert_eq!(
        bench.run(NameOp::CreateDirs { path: below }).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}
