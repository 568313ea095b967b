//! What only files have: directories, links, odd names, faults of the file system, leftovers of dead writers.

use std::path::Path;

use forebay_core::{Key, Limits, Location, Span};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::{Context, Entry, ListOptions, LocalStore, PutOptions, ReadOptions, Store, StoreExt};
use futures::StreamExt;

fn context() -> Context {
    let limits = Limits {
        part_bytes: 64 << 10,
        buffer_bytes_max: 64 << 20,
        ..Limits::default()
    };
    let config = DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

fn store_at(path: &Path) -> (LocalStore, Context) {
    let context = context();
    let location = Location::from_path(path, Path::new("/")).unwrap();
    (LocalStore::open(&location, &context).unwrap(), context)
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
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

#[tokio::test]
async fn what_is_put_is_a_file_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (store, context) = store_at(&dir.path().join("new/root"));
    let bytes: Vec<u8> = (0..300_001u32).map(|index| (index % 251) as u8).collect();
    let done = store
        .put_bytes(&key("a/b"), &bytes, &PutOptions::default())
        .await
        .unwrap();
    assert_eq!(done.crc64nvme, forebay_core::crc64nvme(&bytes));
    assert_eq!(std::fs::read(dir.path().join("new/root/a/b")).unwrap(), bytes);
    let (read, ledger) = store
        .read(
            &key("a/b"),
            Span::first(300_001),
            &ReadOptions::default(),
            &context,
        )
        .await
        .unwrap();
    assert_eq!(&read[..], &bytes[..]);
    assert_eq!(ledger.bytes(), 300_001);
    assert_eq!(store.head(&key("a/b")).await.unwrap().version, done.version);
    assert_eq!(names(&store, "", true).await, ["a/b"]);
}
