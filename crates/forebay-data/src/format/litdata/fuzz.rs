//! What the fuzzer feeds: chunks of leaves and of tokens, index.json, encoded values, chunks of frames.

use bytes::Bytes;
use forebay_core::Key;

use super::{Chunk, Index, LitData, Loader};
use crate::codec::Codec;
use crate::format::litdata::index::Granularity;
use crate::format::litdata::leaf::Leaf;
use crate::format::value::Value;
use crate::format::{mds, scan_bytes};

pub(super) fn run(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let step = usize::from(*first) + 1;
    for loader in [Loader::PyTree, Loader::Tokens] {
        scan(loader, rest, step);
        scan(loader, &with_offsets(rest), step);
    }
    if let Ok(index) = Index::parse(rest) {
        let chunk = index.chunks.first().map(|chunk| (chunk.key.clone(), chunk.bytes));
        if let Some((key, bytes)) = chunk {
            let _ = LitData::new(&Key::ROOT, index).scan_file(&key, bytes);
        }
    }
    for name in ["tensor", "numpy", "pil", "jpeg_array"] {
        if let Ok(Value::Array(array)) = Value::open(&format!("litdata:{name}"), rest) {
            let elements: u64 = array.shape.iter().product();
            assert_eq!(elements * array.dtype.bytes(), array.values.len() as u64);
        }
    }
    if let Ok(text) = std::str::from_utf8(rest) {
        let names = super::spec::names(Some(text), 3);
        assert_eq!(names.len(), 3);
    }
    mds::decode_fuzzed(Codec::LitdataFrames, rest, step);
}

/// What a scan accepts holds together, and does not depend on how the bytes are cut.
fn scan(loader: Loader, bytes: &[u8], step: usize) {
    let key = Key::parse("chunk-0-0.bin").expect("a name");
    let items = bytes.first_chunk().copied().map_or(0, u32::from_le_bytes);
    let chunk = Chunk {
        key: key.clone(),
        bytes: bytes.len() as u64,
        items: u64::from(items),
        tokens: None,
    };
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
    let pass = |step| {
        let scan = format.scan_file(&key, bytes.len() as u64).expect("it is listed");
        scan_bytes(scan, &Bytes::copy_from_slice(bytes), step)
    };
    let (whole, cut) = (pass(usize::MAX), pass(step));
    assert_eq!(whole.is_ok(), cut.is_ok());
    if let (Ok(whole), Ok(cut)) = (whole, cut) {
        whole
            .check(bytes.len() as u64)
            .expect("a table that holds together");
        assert_eq!(whole, cut);
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
