//! Fixtures, and a store to read them from.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Key, Limits};
use forebay_data::{Field, ShardSource};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};
use serde::Deserialize;

/// What must be read from a file.
#[derive(Debug, Deserialize)]
pub(crate) struct Expected {
    pub(crate) fields: Vec<Field>,
    pub(crate) groups: Vec<u64>,
    pub(crate) rows: Vec<Vec<Option<String>>>,
}

pub(crate) fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/parquet"))
}

/// Names of all files that pyarrow wrote.
pub(crate) fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap();
    let names = files.filter_map(|file| {
        file.unwrap()
            .file_name()
            .to_str()?
            .strip_suffix(".parquet")
            .map(str::to_owned)
    });
    let mut names: Vec<String> = names
        .filter(|name| !name.starts_with("ours") && !name.starts_with("bomb"))
        .collect();
    names.sort();
    names
}

pub(crate) fn file_bytes(name: &str) -> Bytes {
    std::fs::read(folder().join(format!("{name}.parquet")))
        .unwrap()
        .into()
}

pub(crate) fn expected(name: &str) -> Expected {
    let name = if name.starts_with("codec-") { "codec" } else { name };
    serde_json::from_slice(&std::fs::read(folder().join(format!("{name}.json"))).unwrap()).unwrap()
}

pub(crate) fn context() -> Context {
    let limits = Limits {
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

/// A file in a store.
pub(crate) async fn stored(bytes: &[u8]) -> ShardSource {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let key = Key::parse("shard.parquet").unwrap();
    store
        .put_bytes(&key, bytes, &PutOptions::default())
        .await
        .unwrap();
    ShardSource::open(store, &key, &context()).await.unwrap()
}

pub(crate) async fn source(name: &str) -> (ShardSource, Bytes) {
    let bytes = file_bytes(name);
    (stored(&bytes).await, bytes)
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}
