//! What a file says of itself: its version, its permissions, and what is said when it is not there.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

use forebay_core::{ErrorKind, Span};
use forebay_store::{PutOptions, ReadOptions, Store, StoreExt};

use super::*;

#[tokio::test]
async fn a_change_shows_even_when_the_time_is_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    put(&store, "k", b"before").await;
    let before = store.head(&key("k")).await.unwrap().version;
    let file = fs::OpenOptions::new()
        .write(true)
        .open(dir.path().join("k"))
        .unwrap();
    let times = file.metadata().unwrap();
    // The clock of a file system may stand still for some milliseconds; the change has to fall into another tick.
    loop {
        file.write_all_at(b"after!", 0).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(times.modified().unwrap()))
            .unwrap();
        let now = file.metadata().unwrap();
        assert_eq!((now.mtime_nsec(), now.len()), (times.mtime_nsec(), times.len()));
        if (now.ctime(), now.ctime_nsec()) != (times.ctime(), times.ctime_nsec()) {
            break;
        }
    }
    let after = store.head(&key("k")).await.unwrap().version;
    assert_ne!(before, after);
    let options = ReadOptions {
        version: before,
        ..ReadOptions::default()
    };
    let buf = AlignedBuf::alloc(6, Pages::Small).unwrap();
    let error = store
        .read_into(&key("k"), Span::first(6), buf, &options)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
    assert_eq!(read(&store, "k", Span::first(6)).await.unwrap(), b"after!");
}

#[tokio::test]
async fn writes_tell_the_version_that_readers_see() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    for name in ["a", "b", "a"] {
        let done = put(&store, name, b"content").await;
        assert_eq!(store.head(&key(name)).await.unwrap().version, done.version);
    }
    let upload = store.upload(&key("c"), &PutOptions::default()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"part").unwrap().into())
        .await
        .unwrap();
    let done = upload.complete().await.unwrap();
    assert_eq!(store.head(&key("c")).await.unwrap().version, done.version);
}

#[tokio::test]
async fn a_link_made_while_a_file_is_read_does_not_disturb() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    let once = AtomicU64::new(0);
    let hooked = Hooked::new().before_read(move || {
        if once.fetch_add(1, Ordering::SeqCst) == 0 {
            fs::hard_link(&path, path.with_extension("link")).unwrap();
        }
    });
    let (store, _) = hooked_at(dir.path(), hooked);
    put(&store, "k", b"content").await;
    assert_eq!(read(&store, "k", Span::first(7)).await.unwrap(), b"content");
}

#[tokio::test]
async fn permissions_are_told_and_asked_for_and_never_wider() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    let mode_of = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
    for (asked, made) in [
        (0o600, 0o600),
        (0o700, 0o700),
        (0o640, 0o640),
        (0o400, 0o600),
        (0o4755, 0o755),
    ] {
        let options = PutOptions {
            permissions: Some(asked),
            ..PutOptions::default()
        };
        store.put_bytes(&key("k"), b"x", &options).await.unwrap();
        assert_eq!(mode_of("k") & !made, 0, "{asked:o}: {:o}", mode_of("k"));
        assert_eq!(mode_of("k") & 0o700, made & 0o700, "{asked:o}");
        assert_eq!(
            store.head(&key("k")).await.unwrap().permissions,
            Some(mode_of("k"))
        );
    }
    put(&store, "usual", b"x").await;
    assert_eq!(mode_of("usual") & !0o644, 0);
}

#[tokio::test]
async fn errors_say_everything_once() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = store_at(dir.path());
    put(&store, "file", b"x").await;
    let path = dir.path().join("nope");
    let system = "No such file or directory (os error 2)";
    let error = read(&store, "nope", Span::first(1)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("not found: read {}: {system}", path.display())
    );
    let error = store.head(&key("nope")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("not found: head {}: {system}", path.display())
    );
    let error = store
        .put_bytes(&key("file/below"), b"x", &PutOptions::default())
        .await
        .unwrap_err();
    let text = error.to_string();
    assert_eq!(text.matches("os error").count(), 1, "{text}");
    assert_eq!(text.matches("below").count(), 1, "{text}");
}
