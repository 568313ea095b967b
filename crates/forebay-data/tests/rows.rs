//! MDS shards and LitData chunks made by their own libraries: what is in them, through every layer above the parsers.

#[path = "rows/litdata.rs"]
mod litdata;
#[path = "rows/mds.rs"]
mod mds;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Key, Limits, Result};
use forebay_data::codec::Decoder;
use forebay_data::format::value::Value;
use forebay_data::format::{Format, Tabulated, tabulate};
use forebay_data::{Block, Kind, ShardSource};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};
use serde_json::Value as Json;

/// Pieces small enough that every fixture is read in several.
const PIECE_BYTES: u64 = 4096;

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fixtures")
        .join(path)
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

/// Put `stored` into a store under that name, and make its table.
async fn tabulated(format: &dyn Format, name: &Key, stored: &[u8]) -> Result<Tabulated> {
    tabulate(format, &source(name, stored).await).await
}

/// Put `stored` into a store under that name.
async fn source(name: &Key, stored: &[u8]) -> ShardSource {
    let limits = Limits {
        part_bytes: PIECE_BYTES,
        ..Limits::default()
    };
    let config = DiskConfig {
        limits,
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    let context = Context::open(config).unwrap().with_state_dir(None);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    store
        .put_bytes(name, stored, &PutOptions::default())
        .await
        .unwrap();
    ShardSource::open(store, name, &context).await.unwrap()
}

/// Samples of a shard, by the table that its pass made.
async fn block(format: &dyn Format, name: &Key, stored: &[u8]) -> Block {
    let tabulated = tabulated(format, name, stored).await.unwrap();
    let mut raw = Vec::new();
    let mut sink = |bytes: &[u8]| {
        raw.extend_from_slice(bytes);
        Ok(())
    };
    let mut decoder = Decoder::new(tabulated.codec);
    decoder.feed(stored, &mut sink).unwrap();
    decoder.finish(&mut sink).unwrap();
    assert_eq!(tabulated.raw_bytes, raw.len() as u64);
    tabulated.table.check(raw.len() as u64).unwrap();
    let count = tabulated.table.samples();
    let block = Block::from_bytes(Arc::new(tabulated.table), 0..count, Bytes::from(raw), 0).unwrap();
    assert!((0..block.len()).all(|sample| block.is_whole(sample)));
    block
}

fn json(path: &Path) -> Json {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn unhex(text: &Json) -> Vec<u8> {
    let text = text.as_str().unwrap();
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// Compare a field with what its library said of the value.
fn check_value(kind: &Kind, bytes: &[u8], expected: &Json) {
    if let Some(dtype) = expected.get("dtype") {
        let shape: Vec<u64> = serde_json::from_value(expected["shape"].clone()).unwrap();
        let values = unhex(&expected["values"]);
        match kind {
            Kind::Array {
                dtype: known,
                shape: fixed,
            } => {
                assert_eq!(
                    (known.name(), fixed, bytes),
                    (dtype.as_str().unwrap(), &shape, &values[..])
                );
            }
            Kind::List { dtype: known } => {
                assert_eq!((known.name(), bytes), (dtype.as_str().unwrap(), &values[..]));
            }
            _ => {
                let Value::Array(array) = open(kind, bytes) else {
                    panic!()
                };
                assert_eq!(array.dtype.name(), dtype.as_str().unwrap());
                assert_eq!((array.shape, array.values), (shape, &values[..]));
            }
        }
    } else if let Some(size) = expected.get("size") {
        let Value::Image(image) = open(kind, bytes) else {
            panic!()
        };
        assert_eq!(serde_json::json!([image.width, image.height]), *size);
        assert_eq!(image.mode, expected["mode"].as_str().unwrap());
        assert_eq!(image.pixels, unhex(&expected["pixels"]));
    } else if let Some(lens) = expected.get("files") {
        let Value::List(files) = open(kind, bytes) else {
            panic!()
        };
        let found: Vec<usize> = files.iter().map(|file| file.len()).collect();
        assert_eq!(serde_json::json!(found), *lens);
        assert!(bytes.ends_with(&files.concat()));
    }
}

fn open<'a>(kind: &Kind, bytes: &'a [u8]) -> Value<'a> {
    let Kind::Encoded { encoding } = kind else {
        panic!("{kind:?} does not say what it is")
    };
    Value::open(encoding, bytes).unwrap()
}
