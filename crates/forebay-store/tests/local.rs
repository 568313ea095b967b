//! What only files have: directories, links, odd names, faults of the file system, leftovers of dead writers.

mod hooked;
#[path = "local/kept.rs"]
mod kept;
#[path = "local/stamps.rs"]
mod stamps;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Limits, Location, PathPolicy, Seed, Span};
use forebay_io::sim::{SimConfig, SimFs};
use forebay_io::{
    AlignedBuf, Buf, Direct, Disk, DiskConfig, EngineChoice, NameOp, OpenHow, Pages, Purpose, RangeLock,
    SimEngine,
};
use forebay_store::{
    Context, Entry, ListOptions, LocalStore, PutMode, PutOptions, ReadOptions, Store, StoreExt,
};
use futures::{FutureExt, StreamExt};
use hooked::Hooked;

fn config() -> DiskConfig {
    let limits = Limits {
        part_bytes: 64 << 10,
        buffer_bytes_max: 64 << 20,
        ..Limits::default()
    };
    DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    }
}

fn context() -> Context {
    Context::open(config()).unwrap().with_state_dir(None)
}

fn store_at(path: &Path) -> (LocalStore, Context) {
    let context = context();
    (store_in(path, &context), context)
}

fn store_in(path: &Path, context: &Context) -> LocalStore {
    let location = Location::from_path(path, Path::new("/")).unwrap();
    LocalStore::open(&location, context).unwrap()
}

/// A store whose engine is hooked.
fn hooked_at(path: &Path, hooked: Hooked) -> (LocalStore, Context) {
    let disk = Disk::with_engine(Arc::new(hooked), config()).unwrap();
    let context = Context::new(disk).with_state_dir(None);
    (store_in(path, &context), context)
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

async fn put(store: &LocalStore, name: &str, bytes: &[u8]) -> forebay_store::PutDone {
    store
        .put_bytes(&key(name), bytes, &PutOptions::default())
        .await
        .unwrap()
}

async fn read(store: &LocalStore, name: &str, span: Span) -> Result<Vec<u8>, Error> {
    let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small).unwrap();
    let done = store
        .read_into(&key(name), span, buf, &ReadOptions::default())
        .await?;
    Ok(done.buf[..span.len() as usize].to_vec())
}

async fn names(store: &dyn Store, prefix: &str, recursive: bool) -> Vec<String> {
    store
        .list(&key(prefix), ListOptions { recursive })
        .map(|row| match row {
            Ok(Entry::Object(meta)) => meta.key.to_string(),
            Ok(Entry::Prefix(key)) => format!("{key}/"),
            Err(error) => format!("error: {error}"),
        })
        .collect()
        .await
}

fn temps(dir: &Path) -> Vec<PathBuf> {
    let is_temp = |path: &PathBuf| path.to_string_lossy().contains(".forebay-tmp-");
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(is_temp).collect()
}

#[tokio::test]
async fn what_is_put_is_a_file_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, context) = store_at(&dir.path().join("new/root"));
    let bytes: Vec<u8> = (0..300_001u32).map(|index| (index % 251) as u8).collect();
    let done = put(&store, "a/b", &bytes).await;
    assert_eq!(done.crc64nvme, forebay_core::crc64nvme(&bytes));
    assert_eq!(fs::read(dir.path().join("new/root/a/b")).unwrap(), bytes);
    let span = Span::first(300_001);
    let (read, ledger) = store
        .read(&key("a/b"), span, &ReadOptions::default(), &context)
        .await
        .unwrap();
    assert_eq!(&read[..], &bytes[..]);
    assert_eq!(ledger.bytes(), 300_001);
    assert_eq!(store.head(&key("a/b")).await.unwrap().version, done.version);
    assert_eq!(names(&store, "", true).await, ["a/b"]);
}

#[tokio::test]
async fn a_missing_root_is_named_and_writing_makes_it() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("not/there");
    let (store, _) = store_at(&root);
    let shown = root.display().to_string();
    for error in [
        store.head(&key("a")).await.unwrap_err(),
        read(&store, "a/b", Span::first(1)).await.unwrap_err(),
        store
            .list(&Key::ROOT, ListOptions::default())
            .next()
            .await
            .unwrap()
            .unwrap_err(),
        store
            .list(&key("x"), ListOptions::default())
            .next()
            .await
            .unwrap()
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error.to_string().contains(&format!("{shown} does not exist")),
            "{error}"
        );
    }
    assert!(store.delete(&key("a")).await.is_ok());
    assert!(!store.capabilities().await.unwrap().range.is_shown());
    put(&store, "a", b"x").await;
    assert!(
        store.capabilities().await.unwrap().range.is_shown(),
        "an answer that may change is not kept"
    );
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1, "the probe cleans up");
}

#[tokio::test]
async fn directories_are_no_objects() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    put(&store, "d/e/f", b"x").await;
    for error in [
        store.head(&key("d")).await.unwrap_err(),
        read(&store, "d/e", Span::first(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(
            error.to_string().contains("is a directory") && error.hint().is_some(),
            "{error}"
        );
    }
    for mode in [PutMode::Replace, PutMode::IfAbsent] {
        let options = PutOptions {
            mode,
            ..PutOptions::default()
        };
        let error = store.put_bytes(&key("d"), b"x", &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = store.upload(&key("d/e"), &options).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let error = store.delete(&key("d")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(fs::read(dir.path().join("d/e/f")).unwrap(), b"x");
    // And a file is no directory.
    let error = store
        .put_bytes(&key("d/e/f/g"), b"x", &PutOptions::default())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(
        error
            .hint()
            .unwrap()
            .contains("a file stands where a directory is needed"),
        "{:?}",
        error.hint()
    );
    assert_eq!(
        error.location(),
        Some(dir.path().join("d/e/f/g").to_str().unwrap())
    );
    let (file_store, _) = store_at(&dir.path().join("d/e/f"));
    let row = file_store
        .list(&Key::ROOT, ListOptions::default())
        .next()
        .await
        .unwrap();
    assert_eq!(row.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn names_of_files_in_the_making_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    for name in [".forebay-tmp-1-2", "a/.forebay-tmp-x/b"] {
        let error = store
            .put_bytes(&key(name), b"x", &PutOptions::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(store.head(&key(name)).await.is_err());
        assert!(names(&store, name, true).await.is_empty());
    }
}

#[tokio::test]
async fn links_are_followed_and_loops_are_told() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("x"), "outside").unwrap();
    let root = dir.path();
    fs::create_dir_all(root.join("d/empty")).unwrap();
    fs::write(root.join("d/file"), "1").unwrap();
    fs::write(root.join("d.file"), "1").unwrap();
    symlink(outside.path(), root.join("d-link")).unwrap();
    symlink(root.join("d/file"), root.join("e")).unwrap();
    symlink(root, root.join("d/up")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink("self", root.join("self")).unwrap();
    let (store, _) = store_at(root);
    let rows = names(&store, "", true).await;
    let objects: Vec<&String> = rows.iter().filter(|row| !row.starts_with("error")).collect();
    assert_eq!(objects, ["d-link/x", "d.file", "d/file", "e"]);
    let errors: Vec<&String> = rows.iter().filter(|row| row.starts_with("error")).collect();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert!(
        errors[0].contains("d/up") && errors[0].contains("leads back to"),
        "{errors:?}"
    );
    assert!(
        errors[1].contains("dangling") && errors[1].contains("points nowhere"),
        "{errors:?}"
    );
    assert!(
        errors[2].contains("self") && errors[2].contains("symbolic links"),
        "{errors:?}"
    );
    assert_eq!(
        read(&store, "d-link/x", Span::first(7)).await.unwrap(),
        b"outside"
    );
    assert_eq!(
        read(&store, "self", Span::first(1)).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        names(&store, "", false)
            .await
            .iter()
            .filter(|row| row.ends_with('/'))
            .count(),
        2
    );
}

#[tokio::test]
async fn directories_read_ahead_keep_their_own_names() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let mut files = Vec::new();
    // More neighbours than are read ahead, and among them one with more names than are looked at ahead, an empty one and ones with neighbours inside.
    for number in 0..30 {
        let name = format!("d{number:02}");
        fs::create_dir_all(root.join(&name)).unwrap();
        let count = match number {
            7 => 0,
            11 => 1100,
            _ => number % 4 + 1,
        };
        files.extend((0..count).map(|file| format!("{name}/f{file:04}")));
        for inner in 0..number % 3 {
            fs::create_dir_all(root.join(&name).join(format!("e{inner}"))).unwrap();
            files.push(format!("{name}/e{inner}/{number}"));
        }
    }
    for file in &files {
        fs::write(root.join(file), file).unwrap();
    }
    symlink(root, root.join("d05/up")).unwrap();
    let (store, _) = store_at(root);
    let rows = names(&store, "", true).await;
    let (errors, found): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.starts_with("error"));
    assert!(errors.len() == 1 && errors[0].contains("d05/up"), "{errors:?}");
    files.sort();
    assert_eq!(found, files);
}

#[tokio::test]
async fn names_that_are_not_utf8_are_told_and_the_walk_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    for name in [&b"a"[..], b"bad-\xff-name", b"z"] {
        fs::write(dir.path().join(std::ffi::OsStr::from_bytes(name)), "x").unwrap();
    }
    let long = dir
        .path()
        .join(["d".repeat(250), "e".repeat(250), "f".repeat(250), "g".repeat(250)].join("/"));
    fs::create_dir_all(&long).unwrap();
    fs::write(long.join("h".repeat(100)), "x").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
    let (store, _) = store_at(dir.path());
    let rows = names(&store, "", true).await;
    assert_eq!(rows.len(), 5, "{rows:?}");
    assert_eq!((rows[0].as_str(), rows[4].as_str()), ("a", "z"));
    assert!(rows[3].contains("a socket, a FIFO or a device"), "{}", rows[3]);
    assert_eq!(
        names(&store, "", false).await.len(),
        4,
        "a look into one directory"
    );
    assert!(rows[1].contains(r"bad-\xff-name"), "{}", rows[1]);
    assert!(rows[2].contains("longer than 1024 bytes"), "{}", rows[2]);
}

#[tokio::test]
async fn leftovers_of_dead_writers_are_removed_and_those_of_living_ones_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let (store, context) = store_at(dir.path());
    put(&store, "a", b"x").await;
    let living = dir.path().join(".forebay-tmp-1-living");
    let how = OpenHow {
        purpose: Purpose::Update,
        direct: Direct::Never,
        ..OpenHow::READ
    };
    let file = context
        .disk()
        .open_file(&living, how, PathPolicy::Fastest)
        .await
        .unwrap();
    let lock = RangeLock::try_exclusive(&file, Span::first(1)).unwrap().unwrap();
    fs::write(dir.path().join(".forebay-tmp-1-dead"), "x").unwrap();
    assert_eq!(names(&store, "", true).await, ["a"]);
    assert_eq!(temps(dir.path()), [living.as_path()]);
    drop(lock);
    // An upload sweeps before it begins, once per directory.
    let upload = store.upload(&key("b"), &PutOptions::default()).await.unwrap();
    assert!(!living.exists());
    let temp = temps(dir.path());
    assert_eq!(temp.len(), 1, "the upload's own");
    // Another store, as another process would be, leaves it alone.
    let (other, _) = store_at(dir.path());
    assert_eq!(names(&other, "", true).await, ["a"]);
    assert_eq!(temps(dir.path()), temp);
    upload
        .put_part(0, Buf::copy_of(b"y").unwrap().into())
        .await
        .unwrap();
    upload.complete().await.unwrap();
    assert_eq!(names(&store, "", true).await, ["a", "b"]);
    assert!(temps(dir.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_and_dropped_writes_leave_no_file_behind() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    let options = PutOptions {
        policy: PathPolicy::Require(DataPath::DirectUring),
        ..PutOptions::default()
    };
    let error = store
        .put_bytes(&key("a"), &vec![1; 100_000], &options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    for polls in 1..40 {
        let options = PutOptions::default();
        let name = key("dropped");
        let bytes = vec![1; 100_000];
        let mut future = store.put_bytes(&name, &bytes, &options);
        for _ in 0..polls {
            if (&mut future).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(future);
    }
    drop(
        store
            .upload(&key("dropped"), &PutOptions::default())
            .await
            .unwrap(),
    );
    // What was handed to the engine runs to its end behind our back, including the removal.
    for _ in 0..500 {
        if temps(dir.path()).is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    assert_eq!(temps(dir.path()), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let cut = path.clone();
    let hooked = Hooked::new().before_read(move || {
        let file = fs::OpenOptions::new().write(true).open(&cut).unwrap();
        file.set_len(1000).unwrap();
    });
    let (store, _) = hooked_at(dir.path(), hooked);
    fs::write(&path, vec![1; 200_000]).unwrap();
    let error = read(&store, "a", Span::first(200_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    let error = read(&store, "a", Span::first(200_000)).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::InvalidInput,
        "the next read knows its size: {error}"
    );
}

#[tokio::test]
async fn a_file_that_changes_in_place_while_it_is_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    let changed = path.clone();
    let hooked = Hooked::new().before_read(move || {
        let file = fs::OpenOptions::new().write(true).open(&changed).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"y", 150_000).unwrap();
        file.set_modified(std::time::UNIX_EPOCH).unwrap();
    });
    let (store, _) = hooked_at(dir.path(), hooked);
    fs::write(&path, vec![1; 200_000]).unwrap();
    let error = read(&store, "a", Span::first(200_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
}

#[tokio::test]
async fn a_file_that_is_replaced_while_it_is_read_gives_the_old_content() {
    let dir = tempfile::tempdir().unwrap();
    let (path, new) = (dir.path().join("a"), dir.path().join("new"));
    let to = path.clone();
    let hooked = Hooked::new().before_read(move || drop(fs::rename(&new, &to)));
    let (store, _) = hooked_at(dir.path(), hooked);
    fs::write(&path, vec![1; 200_000]).unwrap();
    fs::write(dir.path().join("new"), vec![2; 200_000]).unwrap();
    assert_eq!(
        read(&store, "a", Span::first(200_000)).await.unwrap(),
        vec![1; 200_000]
    );
    assert_eq!(
        read(&store, "a", Span::first(200_000)).await.unwrap(),
        vec![2; 200_000]
    );
}

#[tokio::test]
async fn a_file_that_is_replaced_between_stat_and_open_is_of_one_version() {
    for pinned in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (path, new) = (dir.path().join("a"), dir.path().join("new"));
        let to = path.clone();
        let hooked = Hooked::new().before_name(move |op| {
            if matches!(op, NameOp::Open { .. }) {
                drop(fs::rename(&new, &to));
            }
            None
        });
        let (store, _) = hooked_at(dir.path(), hooked);
        fs::write(&path, vec![1; 1000]).unwrap();
        fs::write(dir.path().join("new"), vec![2; 1000]).unwrap();
        let version = store.head(&key("a")).await.unwrap().version.filter(|_| pinned);
        let options = ReadOptions {
            version,
            ..ReadOptions::default()
        };
        let buf = AlignedBuf::alloc(1000, Pages::Small).unwrap();
        let read = store.read_into(&key("a"), Span::first(1000), buf, &options).await;
        if pinned {
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Precondition);
        } else {
            assert_eq!(read.unwrap().buf[..], [2; 1000]);
        }
    }
}

#[tokio::test]
async fn a_draft_that_was_swept_away_is_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let swept = AtomicU64::new(0);
    let hooked = Hooked::new().before_name(move |op| {
        if let NameOp::Rename { from, .. } = op
            && swept.fetch_add(1, Ordering::SeqCst) == 0
        {
            fs::remove_file(from).unwrap();
        }
        None
    });
    let (store, _) = hooked_at(dir.path(), hooked);
    put(&store, "a", b"content").await;
    assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"content");
    assert!(temps(dir.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_the_page_cache_is_copied_from_there_when_the_caller_takes_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, context) = store_at(dir.path());
    let bytes: Vec<u8> = (0..1u32 << 18).flat_map(u32::to_le_bytes).collect();
    fs::write(dir.path().join("hot"), &bytes).unwrap();
    let read = async |from_page_cache, policy| {
        let options = ReadOptions {
            from_page_cache,
            policy,
            ..ReadOptions::default()
        };
        let span = Span::new(5_000, 900_000).unwrap();
        let done = store.read(&key("hot"), span, &options, &context).await;
        done.map(|(buf, ledger)| {
            assert_eq!(buf[..], bytes[5_000..900_000]);
            ledger
        })
    };
    let around = read(false, PathPolicy::Fastest).await.unwrap();
    let is_copied = |ledger: &Ledger| {
        ledger
            .downgrades
            .iter()
            .any(|step| step.reason.contains("already"))
    };
    assert!(!is_copied(&around));
    if around.path(DataPath::DirectPsync).bytes == 0 {
        // The folder for temporary files offers no direct I/O: everything is in the page cache.
        return;
    }
    for _ in 0..3 {
        let copied = read(true, PathPolicy::Fastest).await.unwrap();
        assert_eq!(copied.path(DataPath::Buffered).bytes, 895_000);
        assert!(is_copied(&copied));
    }
    let required = PathPolicy::Require(DataPath::DirectPsync);
    let required = read(true, required).await.unwrap();
    assert_eq!(required.path(DataPath::Buffered).bytes, 0);
    // What was written around the page cache is not in it.
    put(&store, "hot", &bytes).await;
    let cold = read(true, PathPolicy::Fastest).await.unwrap();
    assert_eq!(cold.path(DataPath::Buffered).bytes, 0);
}

#[tokio::test]
async fn faults_of_the_file_system_have_kind_place_and_hint() {
    for (errno, kind, hint) in [
        (libc_errno::EROFS, ErrorKind::ReadOnly, "read-only"),
        (libc_errno::EACCES, ErrorKind::PermissionDenied, "owner and mode"),
        (libc_errno::EDQUOT, ErrorKind::OutOfSpace, "quota"),
        (libc_errno::EIO, ErrorKind::Io, "kernel's log"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let hooked = Hooked::new().before_name(move |op| match op {
            NameOp::Open { path, how } if how.purpose == Purpose::Create => {
                let error = std::io::Error::from_raw_os_error(errno);
                Some(Error::from_io("open", error).at(path.display()))
            }
            _ => None,
        });
        let (store, _) = hooked_at(dir.path(), hooked);
        fs::write(dir.path().join("a"), "old").unwrap();
        for result in [
            store
                .put_bytes(&key("a"), b"new", &PutOptions::default())
                .await
                .map(drop),
            store.upload(&key("a"), &PutOptions::default()).await.map(drop),
        ] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), kind);
            assert_eq!(error.location(), Some(dir.path().join("a").to_str().unwrap()));
            assert!(error.hint().unwrap().contains(hint), "{:?}", error.hint());
        }
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"old");
    }
}

/// Error numbers of Linux, which has the same on every machine we run on.
mod libc_errno {
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EACCES: i32 = 13;
    pub(crate) const EROFS: i32 = 30;
    pub(crate) const EDQUOT: i32 = 122;
}

#[tokio::test]
async fn a_full_disk_is_told_and_the_old_content_stays() {
    let fs = SimFs::new();
    let sim = SimConfig {
        capacity_bytes: Some(3 << 20),
        seed: Seed(1),
        ..SimConfig::default()
    };
    let disk = Disk::with_engine(Arc::new(SimEngine::new(&fs, sim)), config()).unwrap();
    let context = Context::new(disk).with_state_dir(None);
    let store = store_in(Path::new("/data"), &context);
    put(&store, "a", &[1; 1000]).await;
    let too_much = Buf::copy_of(&vec![2; 4 << 20]).unwrap();
    let result = store
        .put(&key("a"), too_much.into(), &PutOptions::default())
        .await;
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
    assert!(error.hint().unwrap().contains("free some space"));
    let upload = store.upload(&key("a"), &PutOptions::default()).await.unwrap();
    let part = Buf::copy_of(&vec![3; upload.part_bytes() as usize]).unwrap();
    let mut failed = None;
    for index in 0..100 {
        if let Err(error) = upload.put_part(index, part.clone().into()).await {
            failed = Some(error.kind());
            break;
        }
    }
    assert_eq!(failed, Some(ErrorKind::OutOfSpace));
    drop(upload);
    assert_eq!(fs.files(), [Path::new("/data/a")]);
    assert_eq!(fs.content("/data/a").unwrap(), [1; 1000]);
    put(&store, "b", &vec![4; 2 << 20]).await;
}

/// What the engine was asked for, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Event {
    Renamed,
    SyncBegins,
    SyncEnds,
}

/// Sixteen writers into one directory; the first directory sync is held up until all of them have renamed.
async fn write_together(sync_that_fails: Option<u64>) -> (Vec<Event>, Vec<Result<(), Error>>) {
    const WRITERS: usize = 16;
    let dir = tempfile::tempdir().unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&events);
    let hooked = Hooked::new().around_name(move |op, run| {
        let push = |event| log.lock().unwrap().push(event);
        match op {
            NameOp::Rename { .. } => {
                let done = run();
                push(Event::Renamed);
                done
            }
            NameOp::SyncDir { .. } => {
                push(Event::SyncBegins);
                let count = |event: &Event| log.lock().unwrap().iter().filter(|seen| *seen == event).count();
                let number = count(&Event::SyncBegins);
                while number == 1 && count(&Event::Renamed) < WRITERS {
                    std::thread::yield_now();
                }
                let done = run();
                push(Event::SyncEnds);
                if sync_that_fails == Some(number as u64) {
                    return Err(Error::from_io(
                        "sync directory",
                        std::io::Error::from_raw_os_error(5),
                    ));
                }
                done
            }
            _ => run(),
        }
    });
    let (store, _) = hooked_at(dir.path(), hooked);
    let writes = (0..WRITERS).map(|index| {
        let store = store.clone();
        async move {
            let name = key(&format!("f{index}"));
            store
                .put_bytes(&name, b"x", &PutOptions::default())
                .await
                .map(drop)
        }
    });
    let results = futures::future::join_all(writes).await;
    let events = events.lock().unwrap().clone();
    (events, results)
}

#[tokio::test]
async fn writers_into_one_directory_share_its_syncs() {
    let (events, results) = write_together(None).await;
    assert!(results.iter().all(Result::is_ok));
    let first = events
        .iter()
        .position(|event| *event == Event::SyncBegins)
        .unwrap();
    let second = events
        .iter()
        .skip(first + 1)
        .position(|event| *event == Event::SyncBegins)
        .unwrap()
        + first
        + 1;
    assert!(
        events[..second]
            .iter()
            .filter(|event| **event == Event::Renamed)
            .count()
            == 16
    );
    // Two, and one more for each group that hears of its own rename only when the sync before has begun.
    let syncs = events.iter().filter(|event| **event == Event::SyncBegins).count();
    assert!((2..8).contains(&syncs), "{events:?}");
}

#[tokio::test]
async fn a_failed_directory_sync_has_failed_for_all_it_covered() {
    // The second sync covers the writers that renamed after the first began: all but one, and fewer only when several were as quick. The
    // first covers those alone, but when it ends all have renamed: what it lost may be theirs.
    for (sync_that_fails, syncs) in [(2, 2), (1, 1)] {
        let (events, results) = write_together(Some(sync_that_fails)).await;
        let begun = events.iter().filter(|event| **event == Event::SyncBegins).count();
        assert_eq!(begun, syncs, "no second try: {events:?}");
        let failed: Vec<&Error> = results
            .iter()
            .filter_map(|result| result.as_ref().err())
            .collect();
        let quick = events
            .iter()
            .take_while(|event| **event == Event::Renamed)
            .count();
        match sync_that_fails {
            1 => assert_eq!(failed.len(), 16),
            _ => assert!(
                (16 - quick..16).contains(&failed.len()),
                "{} of {events:?}",
                failed.len()
            ),
        }
        assert!(
            failed
                .iter()
                .all(|error| error.kind() == ErrorKind::Io && error.hint().is_some())
        );
    }
}
