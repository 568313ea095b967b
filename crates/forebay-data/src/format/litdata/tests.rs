//! Chunks of our own making: cuts, truncation, damage, an index that lies, frames.

use bytes::Bytes;
use forebay_core::ErrorKind;
use serde_json::{Value as Json, json};

use super::*;
use crate::codec::Decoder;
use crate::format::scan_bytes;
use crate::table::Layout;

const FRAMES: &[u8] = include_bytes!("../../../../../fixtures/litdata/frames/chunk-0-0.bin");

fn index(serializers: &[&str], items: u64, bytes: usize) -> Json {
    json!({
        "chunks": [{"chunk_bytes": bytes, "chunk_size": items, "filename": "chunk-0-0.bin", "dim": null}],
        "config": {"compression": null, "data_format": serializers, "data_spec": null, "encryption": null, "item_loader": "PyTreeLoader"},
    })
}

/// A chunk of items of leaves.
fn chunk(items: &[&[&[u8]]]) -> Vec<u8> {
    let mut bytes = (items.len() as u32).to_le_bytes().to_vec();
    let mut offset = 4 * (items.len() + 2);
    bytes.extend((offset as u32).to_le_bytes());
    for item in items {
        offset += item.iter().map(|leaf| 4 + leaf.len()).sum::<usize>();
        bytes.extend((offset as u32).to_le_bytes());
    }
    for item in items {
        for leaf in *item {
            bytes.extend((leaf.len() as u32).to_le_bytes());
        }
        bytes.extend(item.concat());
    }
    bytes
}

fn scan(index: &Json, bytes: &[u8], step: usize) -> Result<Table> {
    let index = Index::parse(index.to_string().as_bytes())?;
    let key = index.chunks[0].key.clone();
    let scan = LitData::new(&Key::ROOT, index).scan_file(&key, bytes.len() as u64)?;
    scan_bytes(Box::new(scan), &Bytes::copy_from_slice(bytes), step)
}

fn small() -> (Json, Vec<u8>) {
    let bytes = chunk(&[&[&[1; 8], b"one"], &[&[2; 8], b""], &[&[3; 8], b"three"]]);
    (index(&["int", "str"], 3, bytes.len()), bytes)
}

#[test]
fn leaves_are_found_however_the_chunk_is_cut() {
    let (index, bytes) = small();
    let whole = scan(&index, &bytes, usize::MAX).unwrap();
    whole.check(bytes.len() as u64).unwrap();
    for step in 1..bytes.len() {
        assert_eq!(scan(&index, &bytes, step).unwrap(), whole, "{step}");
    }
    let Layout::Samples(samples) = &whole.layout else {
        unreachable!()
    };
    let at = samples.starts[2] as usize + samples.columns[1].get(2).unwrap().start;
    assert_eq!(&bytes[at..at + 5], b"three");
}

#[test]
fn truncation_and_damage_are_seen() {
    let (mut index, bytes) = small();
    for len in 0..bytes.len() {
        index["chunks"][0]["chunk_bytes"] = len.into();
        let error = scan(&index, &bytes[..len], 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len} {error}");
    }
    let (index, bytes) = small();
    // Count, offsets, and the lengths of the first item.
    for at in (0..20).chain(20..28) {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1 << bit;
            assert!(scan(&index, &bytes, 5).is_err(), "{at} {bit}");
        }
    }
    // A number of another size, although the sum is right.
    let bytes = chunk(&[&[&[1; 7], b"onex"]]);
    let index = self::index(&["int", "str"], 1, bytes.len());
    let error = scan(&index, &bytes, 7).unwrap_err();
    assert!(error.to_string().contains("has 7 bytes, not 8"), "{error}");
}

#[test]
fn an_index_that_says_too_little_or_too_much_is_refused() {
    let (good, bytes) = small();
    for (pointer, value, kind, says) in [
        (
            "/config/item_loader",
            json!("ParquetLoader"),
            ErrorKind::Unsupported,
            "parquet",
        ),
        (
            "/config/item_loader",
            json!("MyLoader"),
            ErrorKind::Unsupported,
            "MyLoader",
        ),
        (
            "/config/encryption",
            json!({"algorithm": "rsa"}),
            ErrorKind::Unsupported,
            "rsa",
        ),
        ("/config/compression", json!("lz4"), ErrorKind::Unsupported, "lz4"),
        ("/config/data_format", json!([]), ErrorKind::Corrupt, "made of"),
        ("/config/data_format", json!(null), ErrorKind::Corrupt, "made of"),
        (
            "/config/data_format",
            json!(vec!["int"; 5000]),
            ErrorKind::LimitExceeded,
            "5000",
        ),
        (
            "/chunks/0/filename",
            json!("../chunk-0-0.bin"),
            ErrorKind::Corrupt,
            "no place",
        ),
        (
            "/chunks/0/filename",
            json!("/chunk-0-0.bin"),
            ErrorKind::Corrupt,
            "no place",
        ),
        (
            "/chunks/0/filename",
            json!("a\0b"),
            ErrorKind::Corrupt,
            "no place",
        ),
        (
            "/chunks/0/chunk_size",
            json!(-1),
            ErrorKind::Corrupt,
            "index.json",
        ),
        (
            "/chunks",
            json!([good["chunks"][0], good["chunks"][0]]),
            ErrorKind::Corrupt,
            "twice",
        ),
    ] {
        let mut index = good.clone();
        *index.pointer_mut(pointer).unwrap() = value;
        let error = scan(&index, &bytes, 9).unwrap_err();
        assert_eq!(error.kind(), kind, "{pointer} {error}");
        assert!(error.to_string().contains(says), "{pointer} {error}");
    }
}

#[test]
fn compressed_items_are_refused_by_name() {
    let (mut index, bytes) = small();
    index["config"]["compression"] = json!("zstd");
    for (level, says) in [("sample", "every item"), ("column", "'column'")] {
        index["config"]["compression_level"] = json!(level);
        let error = scan(&index, &bytes, 9).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[test]
fn rows_kept_as_arrow_are_refused_by_name() {
    // No bytes in any item, and something behind them.
    let mut bytes = chunk(&[&[], &[]]);
    bytes.extend(b"ARROW1 and so on");
    let index = index(&["int"], 2, bytes.len());
    let error = scan(&index, &bytes, 9).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("behind the last item"), "{error}");
}

fn unframed(stored: &[u8], step: usize) -> Result<Vec<u8>> {
    let mut raw = Vec::new();
    let mut sink = |bytes: &[u8]| {
        raw.extend_from_slice(bytes);
        Ok(())
    };
    let mut decoder = Decoder::new(Codec::LitdataFrames);
    for piece in stored.chunks(step) {
        decoder.feed(piece, &mut sink)?;
    }
    decoder.finish(&mut sink)?;
    Ok(raw)
}

#[test]
fn frames_become_a_plain_chunk_however_they_are_cut() {
    let whole = unframed(FRAMES, usize::MAX).unwrap();
    assert_eq!(whole[..8], [6, 0, 0, 0, 32, 0, 0, 0]);
    let end = u32::from_le_bytes(whole[28..32].try_into().unwrap());
    assert_eq!(end as usize, whole.len());
    for step in 1..FRAMES.len() {
        assert!(unframed(FRAMES, step).unwrap() == whole, "{step}");
    }
}

#[test]
fn frames_that_do_not_hold_together_are_refused() {
    for len in 1..FRAMES.len() {
        let error = unframed(&FRAMES[..len], 11).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
    }
    let error = unframed(&[FRAMES, b"x"].concat(), 11).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // Every bit of the prefix but the items of a frame, of the offsets and of the table.
    for at in (0..16).chain(20..24 + 4 * 7 + 24 * 3) {
        for bit in 0..8 {
            let mut stored = FRAMES.to_vec();
            stored[at] ^= 1 << bit;
            // An offset within a frame only moves the border of two items, which the chunk itself does not know.
            let is_inner = (24..52).contains(&at) && (at - 24) / 4 % 2 == 1;
            assert!(is_inner || unframed(&stored, 50).is_err(), "{at} {bit}");
        }
    }
}
