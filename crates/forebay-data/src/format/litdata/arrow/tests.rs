//! Damage to rows of Arrow that were never compared with a checksum: no panic, no memory by what bytes claim.

use forebay_core::Key;

use super::super::{Chunk, corrupt};
use super::*;
use crate::format::scan_bytes;

const PLAIN: &[u8] = include_bytes!("../../../../../../fixtures/litdata/arrow/chunk-0-1.bin");
const ZSTD: &[u8] = include_bytes!("../../../../../../fixtures/litdata/arrow-zstd/chunk-0-0.bin");

fn known(items: u64, bytes: &[u8]) -> Chunk {
    Chunk {
        key: Key::parse("chunk-0-0.bin").unwrap(),
        bytes: bytes.len() as u64,
        items,
        tokens: None,
    }
}

/// All of a chunk, as it says itself that it is.
fn read(bytes: &[u8], items: u64) -> Result<Vec<Block>> {
    let bytes = Bytes::copy_from_slice(bytes);
    let chunk = ArrowChunk::of_bytes(&bytes)?.ok_or_else(|| corrupt("no rows"))?;
    let table = Arc::new(scan_bytes(
        chunk.clone().scan(&known(items, &bytes)),
        &bytes,
        1000,
    )?);
    let Layout::Groups(groups) = &table.layout else {
        unreachable!()
    };
    let decoder = Decoder::new(chunk, groups);
    let columns: Vec<usize> = (0..table.fields.len()).collect();
    let chunks = Chunks::whole(0, bytes);
    (0..groups.list.len())
        .map(|group| decoder.decode(&chunks, &table, group, &columns))
        .collect()
}

#[test]
fn a_table_does_not_depend_on_how_the_chunk_is_cut() {
    let bytes = Bytes::from_static(ZSTD);
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let pass = |step| scan_bytes(chunk.clone().scan(&known(12, ZSTD)), &bytes, step).unwrap();
    let whole = pass(usize::MAX);
    whole.check(ZSTD.len() as u64).unwrap();
    for step in 1..ZSTD.len() {
        assert_eq!(pass(step), whole, "{step}");
    }
}

#[test]
fn damage_that_nobody_has_a_checksum_of_is_an_error_or_another_value() {
    for (bytes, items) in [(PLAIN, 40), (ZSTD, 12)] {
        assert!(read(bytes, items).is_ok());
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len], items).is_err(), "{len}");
        }
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= change;
                let _ = read(&bytes, items);
            }
        }
    }
}

#[test]
fn a_buffer_that_says_it_becomes_too_much_is_refused() {
    let bytes = Bytes::from_static(ZSTD);
    let chunk = ArrowChunk::of_bytes(&bytes).unwrap().unwrap();
    let batch = chunk.batches[0];
    let whole = bytes.slice(batch.extent.relative_to(0));
    chunk.decode(0, &whole, 12, &[0]).unwrap();
    // Wherever a compressed buffer begins, its first bytes are what it becomes, and a frame is behind them.
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let mut seen = 0;
    for at in batch.message_bytes as usize..whole.len() - 12 {
        if whole[at + 8..at + 12] == magic {
            let mut bomb = whole.to_vec();
            bomb[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
            let error = chunk.decode(0, &bomb.into(), 12, &[0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
            seen += 1;
        }
    }
    assert!(seen > 0);
    let error = chunk.decode(0, &whole, 13, &[0]).unwrap_err();
    assert!(error.to_string().contains("12 rows instead of 13"), "{error}");
}

#[test]
fn types_that_rows_of_json_do_not_have_are_refused() {
    for data_type in [
        DataType::Utf8View,
        DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        DataType::FixedSizeBinary(i32::MAX),
    ] {
        let item = arrow_schema::Field::new("item", data_type, true);
        let error = check_type("x", &DataType::List(Arc::new(item))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("'x'"), "{error}");
    }
}
