//! Files that stay open between reads, and whether they are still what was opened.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{ErrorKind, Span};
use forebay_io::{NameOp, Purpose};
use forebay_store::{ReadOptions, Store, StoreExt};

use super::hooked::Hooked;
use super::{hooked_at, key, put, read, store_at};

#[tokio::test]
async fn many_ranges_are_one_open_and_a_bounded_number_of_files_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    let opens = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&opens);
    let hooked = Hooked::new().before_name(move |op| {
        if matches!(op, NameOp::Open { how, .. } if how.purpose == Purpose::Read) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        None
    });
    let (store, _) = hooked_at(dir.path(), hooked);
    put(&store, "a", &vec![1; 100_000]).await;
    for start in 0..50 {
        read(&store, "a", Span::at(start * 1000, 1000).unwrap())
            .await
            .unwrap();
    }
    assert_eq!(opens.load(Ordering::SeqCst), 1);
    put(&store, "a", &vec![2; 100_000]).await;
    assert_eq!(read(&store, "a", Span::first(1)).await.unwrap(), [2]);
    assert_eq!(opens.load(Ordering::SeqCst), 2);
    for index in 0..100 {
        let name = format!("f{index}");
        fs::write(dir.path().join(&name), "x").unwrap();
        read(&store, &name, Span::first(1)).await.unwrap();
    }
    let root = dir.path().canonicalize().unwrap();
    let open = fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
        .filter(|path| path.starts_with(&root))
        .count();
    assert_eq!(open, 64);
}

#[tokio::test]
async fn ranges_of_one_version_are_looked_at_once_each_or_by_the_caller() {
    let dir = tempfile::tempdir().unwrap();
    let looks = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&looks);
    let hooked = Hooked::new().before_name(move |op| {
        if matches!(op, NameOp::Stat { .. }) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        None
    });
    let (store, context) = hooked_at(dir.path(), hooked);
    put(&store, "a", &vec![1; 100_000]).await;
    let version = store.head(&key("a")).await.unwrap().version;
    let read = async |caller_looks| {
        let options = ReadOptions {
            version: version.clone(),
            caller_looks,
            ..ReadOptions::default()
        };
        looks.store(0, Ordering::SeqCst);
        let done = store
            .read(&key("a"), Span::at(500, 1000).unwrap(), &options, &context)
            .await;
        (done.map(|(buf, _)| buf.to_vec()), looks.load(Ordering::SeqCst))
    };
    // The first one opens the file.
    for (caller_looks, expected) in [(true, 2), (false, 1), (true, 0), (false, 1)] {
        let (bytes, looks) = read(caller_looks).await;
        assert_eq!((bytes.unwrap(), looks), (vec![1; 1000], expected));
    }
    // Another program gives the name to another file: what is open is still the version that was asked for, which only the caller who looks may use.
    fs::write(dir.path().join("b"), vec![2; 100_000]).unwrap();
    fs::rename(dir.path().join("b"), dir.path().join("a")).unwrap();
    assert_eq!(read(true).await.0.unwrap(), vec![1; 1000]);
    assert_ne!(store.head(&key("a")).await.unwrap().version, version);
    assert_eq!(read(false).await.0.unwrap_err().kind(), ErrorKind::Precondition);
}

/// More others are read than files are kept open: the one that is read again and again must not be the one that goes.
#[tokio::test]
async fn a_file_in_use_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    let opens = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&opens);
    let hooked = Hooked::new().before_name(move |op| {
        if matches!(op, NameOp::Open { path, how } if how.purpose == Purpose::Read && path.ends_with("a")) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        None
    });
    let (store, context) = hooked_at(dir.path(), hooked);
    put(&store, "a", &[1; 1000]).await;
    let options = ReadOptions {
        version: store.head(&key("a")).await.unwrap().version,
        ..ReadOptions::default()
    };
    for index in 0..100 {
        let name = format!("f{index}");
        fs::write(dir.path().join(&name), "x").unwrap();
        read(&store, &name, Span::first(1)).await.unwrap();
        let again = store.read(&key("a"), Span::first(10), &options, &context).await;
        assert_eq!(again.unwrap().0[..], [1; 10]);
    }
    assert_eq!(opens.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_file_written_to_in_place_is_not_the_version_that_was_opened() {
    let dir = tempfile::tempdir().unwrap();
    let (store, context) = store_at(dir.path());
    put(&store, "a", &vec![1; 100_000]).await;
    let options = ReadOptions {
        version: store.head(&key("a")).await.unwrap().version,
        ..ReadOptions::default()
    };
    let read = async || store.read(&key("a"), Span::first(10), &options, &context).await;
    read().await.unwrap();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(dir.path().join("a"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[2], 5).unwrap();
    assert_eq!(read().await.unwrap_err().kind(), ErrorKind::Precondition);
}
