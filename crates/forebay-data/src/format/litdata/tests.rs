//! Chunks of our own making: cuts, truncation, damage, an index that lies, frames, compressed items.

use bytes::Bytes;
use forebay_core::ErrorKind;
use serde_json::{Value as Json, json};

use super::*;
use crate::codec::Decoder;
use crate::format::scan_bytes;
use crate::schema::Dtype;
use crate::table::Layout;

const FRAMES: &[u8] = include_bytes!("../../../../../fixtures/litdata/frames/chunk-0-0.bin");
const ITEMS: &[u8] = include_bytes!("../../../../../fixtures/litdata/sample/chunk-0-0.bin");

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
    scan_bytes(scan, &Bytes::copy_from_slice(bytes), step)
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

/// A chunk of documents of so many 16-bit tokens, counted from 0 on, with its index.
fn documents(lens: &[u16]) -> (Json, Vec<u8>) {
    let total: u16 = lens.iter().sum();
    let mut bytes = (lens.len() as u32).to_le_bytes().to_vec();
    let mut offset = 4 * (lens.len() as u32 + 2);
    bytes.extend(offset.to_le_bytes());
    for len in lens {
        offset += 2 * u32::from(*len);
        bytes.extend(offset.to_le_bytes());
    }
    bytes.extend((0..total).flat_map(u16::to_le_bytes));
    let mut index = index(&["no_header_tensor:14"], lens.len() as u64, bytes.len());
    index["config"]["item_loader"] = "TokensLoader".into();
    index["chunks"][0]["dim"] = total.into();
    (index, bytes)
}

fn blocks(index: &Json, bytes: &[u8], block: u64, step: usize) -> Result<Table> {
    let index = Index::parse(index.to_string().as_bytes())?;
    let key = index.chunks[0].key.clone();
    let format = LitData::new(&Key::ROOT, index).with_block(block)?;
    scan_bytes(
        format.scan_file(&key, bytes.len() as u64)?,
        &Bytes::copy_from_slice(bytes),
        step,
    )
}

#[test]
fn tokens_are_cut_across_documents_where_that_is_asked_for() {
    let (index, bytes) = documents(&[3, 0, 6, 2]);
    let whole = blocks(&index, &bytes, 4, usize::MAX).unwrap();
    whole.check(bytes.len() as u64).unwrap();
    let shape = vec![4];
    let dtype = Dtype::Int16;
    assert_eq!(whole.fields[0].kind, Kind::Array { dtype, shape });
    let Layout::Samples(samples) = &whole.layout else {
        unreachable!()
    };
    // Three tokens at the end are too few.
    let tokens = samples.starts.iter().map(|start| {
        let at = *start as usize;
        bytes[at..at + 8].chunks_exact(2).map(|token| token[0]).collect()
    });
    assert_eq!(tokens.collect::<Vec<Vec<u8>>>(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    for step in 1..bytes.len() {
        assert_eq!(blocks(&index, &bytes, 4, step).unwrap(), whole, "{step}");
    }
    assert_eq!(blocks(&index, &bytes, 11, 7).unwrap().samples(), 1);
    assert_eq!(blocks(&index, &bytes, 12, 7).unwrap().samples(), 0);
    for len in 0..bytes.len() {
        let mut index = index.clone();
        index["chunks"][0]["chunk_bytes"] = len.into();
        let error = blocks(&index, &bytes[..len], 4, 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len} {error}");
    }
    for block in [0, 1 << 40, u64::MAX] {
        let error = blocks(&index, &bytes, block, 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{block}");
    }
    let (leaves, bytes) = small();
    let error = blocks(&leaves, &bytes, 4, 7).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
}

#[test]
fn tokens_that_are_compressed_one_by_one_are_refused() {
    let index = |level: &str| {
        json!({
            "chunks": [{"chunk_bytes": 16, "chunk_size": 1, "dim": 4, "filename": "chunk-0-0.bin"}],
            "config": {
                "item_loader": "TokensLoader", "data_format": ["no_header_tensor:16"],
                "compression": "zstd", "compression_level": level,
            },
        })
    };
    Index::parse(index("chunk").to_string().as_bytes()).unwrap();
    let error = Index::parse(index("sample").to_string().as_bytes()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("one by one"), "{error}");
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
fn a_compression_that_is_not_known_is_refused_by_name() {
    let (mut index, bytes) = small();
    index["config"]["compression"] = json!("zstd");
    index["config"]["compression_level"] = json!("column");
    let error = scan(&index, &bytes, 9).unwrap_err();
    assert!(error.to_string().contains("'column'"), "{error}");
}

#[test]
fn bytes_behind_the_items_are_refused() {
    let mut bytes = chunk(&[&[&[1; 8]], &[&[2; 8]]]);
    bytes.extend(b"and so on");
    let index = index(&["int"], 2, bytes.len());
    let error = scan(&index, &bytes, 9).unwrap_err();
    assert!(
        error.to_string().contains("9 bytes behind the last item"),
        "{error}"
    );
}

#[test]
fn rows_of_arrow_behind_leaves_are_told() {
    let plain = chunk(&[&[&[1; 8]], &[&[2; 8]]]);
    let both = [&plain[..], b"an Arrow file", &13u32.to_le_bytes(), b"LDARW01\0"].concat();
    let index = index(&["int"], 2, both.len());
    for step in 1..=both.len() {
        let error = scan(&index, &both, step).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{step} {error}");
        assert!(error.message().contains("rows kept as Arrow"), "{error}");
    }
    // Only where there is something behind the items does the end say anything.
    let leaf = chunk(&[&[b"LDARW01\0"]]);
    scan(&self::index(&["int"], 1, leaf.len()), &leaf, 7).unwrap();
}

/// What a chunk of compressed items becomes, and its table.
fn items(index: &Json, stored: &[u8], step: usize) -> Result<(Vec<u8>, Table)> {
    let raw = decoded(Codec::LitdataItems, stored, step)?;
    let index = Index::parse(index.to_string().as_bytes())?;
    let key = index.chunks[0].key.clone();
    let scan = LitData::new(&Key::ROOT, index).scan_file(&key, stored.len() as u64)?;
    let table = scan_bytes(scan, &Bytes::copy_from_slice(&raw), step)?;
    Ok((raw, table))
}

fn items_index() -> Json {
    let mut index = index(&["no_header_tensor:18", "int", "str"], 6, ITEMS.len());
    index["config"]["compression"] = json!("zstd");
    index["config"]["compression_level"] = json!("sample");
    index
}

#[test]
fn compressed_items_are_found_however_they_are_cut() {
    let index = items_index();
    let (raw, table) = items(&index, ITEMS, usize::MAX).unwrap();
    table.check(raw.len() as u64).unwrap();
    assert_eq!(table.samples(), 6);
    for step in 1..ITEMS.len() {
        let (cut, again) = items(&index, ITEMS, step).unwrap();
        assert!(cut == raw && again == table, "{step}");
    }
}

#[test]
fn compressed_items_that_do_not_hold_together_are_refused() {
    let index = items_index();
    for len in 1..ITEMS.len() {
        let error = decoded(Codec::LitdataItems, &ITEMS[..len], 11).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
    }
    let error = decoded(Codec::LitdataItems, &[ITEMS, b"x"].concat(), 11).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // Every bit of the number of items and of the offsets.
    for at in 0..4 * 8 {
        for bit in 0..8 {
            let mut stored = ITEMS.to_vec();
            stored[at] ^= 1 << bit;
            assert!(items(&index, &stored, 50).is_err(), "{at} {bit}");
        }
    }
    // What comes out of the codec, cut off, longer, or with another length of a leaf, of an item, or another number.
    let raw = decoded(Codec::LitdataItems, ITEMS, usize::MAX).unwrap();
    let pass = |raw: &[u8]| {
        let index = Index::parse(index.to_string().as_bytes()).unwrap();
        let key = index.chunks[0].key.clone();
        let scan = LitData::new(&Key::ROOT, index).scan_file(&key, ITEMS.len() as u64);
        scan_bytes(scan.unwrap(), &Bytes::copy_from_slice(raw), 7)
    };
    pass(&raw).unwrap();
    for len in 0..raw.len() {
        assert_eq!(pass(&raw[..len]).unwrap_err().kind(), ErrorKind::Corrupt, "{len}");
    }
    assert_eq!(
        pass(&[&raw[..], b"x"].concat()).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    // Number, lengths of the leaves of the first item, which is 8 bytes long, and its length.
    for at in (0..16).chain(24..28) {
        let mut raw = raw.clone();
        raw[at] ^= 1;
        assert!(pass(&raw).is_err(), "{at}");
    }
}

fn unframed(stored: &[u8], step: usize) -> Result<Vec<u8>> {
    decoded(Codec::LitdataFrames, stored, step)
}

fn decoded(codec: Codec, stored: &[u8], step: usize) -> Result<Vec<u8>> {
    let mut raw = Vec::new();
    let mut sink = |bytes: &[u8]| {
        raw.extend_from_slice(bytes);
        Ok(())
    };
    let mut decoder = Decoder::new(codec);
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
