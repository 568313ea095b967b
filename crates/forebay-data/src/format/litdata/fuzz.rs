//! What the fuzzer feeds: chunks of leaves and of tokens, index.json, encoded values, chunks of frames, of compressed items and of rows of Arrow.

use bytes::Bytes;
use forebay_core::Key;

use super::{ArrowChunk, Chunk, Index, Items, LitData, Loader};
use crate::codec::Codec;
use crate::format::litdata::index::Granularity;
use crate::format::litdata::leaf::Leaf;
use crate::format::value::Value;
use crate::format::{Scan, mds, scan_bytes};
use crate::schema::{Field, Kind};
use crate::table::Table;

const ROWS: &[u8] = include_bytes!("../../../../../fixtures/litdata/arrow/chunk-0-1.bin");
const ROWS_ZSTD: &[u8] = include_bytes!("../../../../../fixtures/litdata/arrow-zstd/chunk-0-0.bin");

pub(super) fn run(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let step = usize::from(*first) + 1;
    // What others wrote, with which a fuzzer begins, says nothing of steps.
    for bytes in [bytes, rest] {
        run_cut(bytes, step);
    }
    for good in [ROWS, ROWS_ZSTD] {
        arrow(&damaged(good, rest), step);
    }
}

/// The bytes, and the same in pieces of `step`.
fn run_cut(bytes: &[u8], step: usize) {
    for loader in [Loader::PyTree, Loader::Tokens] {
        scan(loader, bytes, step);
        scan(loader, &with_offsets(bytes), step);
    }
    if let Ok(index) = Index::parse(bytes) {
        let chunk = index.chunks.first().map(|chunk| (chunk.key.clone(), chunk.bytes));
        if let Some((key, bytes)) = chunk {
            let _ = LitData::new(&Key::ROOT, index).scan_file(&key, bytes);
        }
    }
    for name in ["tensor", "numpy", "pil", "jpeg_array"] {
        if let Ok(Value::Array(array)) = Value::open(&format!("litdata:{name}"), bytes) {
            let elements: u64 = array.shape.iter().product();
            assert_eq!(elements * array.dtype.bytes(), array.values.len() as u64);
        }
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        let names = super::spec::names(Some(text), 3);
        assert_eq!(names.len(), 3);
    }
    mds::decode_fuzzed(Codec::LitdataFrames, bytes, step);
    mds::decode_fuzzed(Codec::LitdataItems, bytes, step);
    same_when_cut(
        || Box::new(Items::new(2, leaves(), vec![Some(8), None])),
        bytes,
        step,
    );
    arrow(bytes, step);
}

/// A good chunk with some bytes changed: two bytes say which, one says how. Nobody writes a chunk of Arrow by chance.
fn damaged(good: &[u8], changes: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    for change in changes.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    bytes
}

fn leaves() -> Vec<Field> {
    ["a", "b"].map(|name| Field::new(name, Kind::Bytes)).to_vec()
}

/// A chunk with rows of Arrow: what is accepted can be decoded or is refused.
fn arrow(bytes: &[u8], step: usize) {
    let bytes = Bytes::copy_from_slice(bytes);
    let Ok(Some(rows)) = ArrowChunk::of_bytes(&bytes) else {
        return;
    };
    let chunk = chunk(&bytes);
    let Some(table) = same_when_cut(|| rows.clone().scan(&chunk), &bytes, step) else {
        return;
    };
    rows.decode_fuzzed(&bytes, table);
}

/// A pass whose result does not depend on how the bytes are cut, and holds together.
fn same_when_cut(scan: impl Fn() -> Box<dyn Scan>, bytes: &[u8], step: usize) -> Option<Table> {
    let pass = |step| scan_bytes(scan(), &Bytes::copy_from_slice(bytes), step);
    let (whole, cut) = (pass(usize::MAX), pass(step));
    assert_eq!(whole.is_ok(), cut.is_ok());
    let (whole, cut) = (whole.ok()?, cut.ok()?);
    whole
        .check(bytes.len() as u64)
        .expect("a table that holds together");
    assert_eq!(whole, cut);
    Some(whole)
}

/// What index.json would say of it.
fn chunk(bytes: &[u8]) -> Chunk {
    let items = bytes.first_chunk().copied().map_or(0, u32::from_le_bytes);
    Chunk {
        key: Key::parse("chunk-0-0.bin").expect("a name"),
        bytes: bytes.len() as u64,
        items: u64::from(items),
        tokens: None,
    }
}

/// What a scan accepts holds together, and does not depend on how the bytes are cut.
fn scan(loader: Loader, bytes: &[u8], step: usize) {
    let chunk = chunk(bytes);
    let key = chunk.key.clone();
    let serializers: &[&str] = match loader {
        Loader::PyTree => &["int", "str", "tensor"],
        Loader::Tokens => &["no_header_tensor:16"],
    };
    let leaves = serializers
        .iter()
        .map(|name| ((*name).to_owned(), Leaf::parse(name)));
    let format = LitData::new(
        &Key::ROOT,
        Index {
            chunks: vec![chunk],
            loader,
            leaves: leaves.collect(),
            granularity: Granularity::None,
        },
    );
    let pass = |format: &LitData| format.scan_file(&key, bytes.len() as u64).expect("it is listed");
    same_when_cut(|| pass(&format), bytes, step);
    if loader == Loader::Tokens {
        let format = format.with_block(step as u64).expect("these are tokens");
        same_when_cut(|| pass(&format), bytes, step);
    }
}

/// A chunk whose items have the lengths that the first bytes say, and whose content is the rest.
fn with_offsets(bytes: &[u8]) -> Vec<u8> {
    let (count, rest) = bytes
        .split_first()
        .map_or((0, bytes), |(first, rest)| (first & 15, rest));
    let (lens, body) = rest.split_at(usize::from(count).min(rest.len()));
    let mut chunk = (lens.len() as u32).to_le_bytes().to_vec();
    let mut offset = 4 * (lens.len() as u32 + 2);
    chunk.extend(offset.to_le_bytes());
    for len in lens {
        offset += u32::from(*len);
        chunk.extend(offset.to_le_bytes());
    }
    chunk.extend_from_slice(body);
    chunk
}
