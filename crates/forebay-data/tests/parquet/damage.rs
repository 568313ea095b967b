//! Damaged and hostile files: always an error that says where, never a panic.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ErrorKind, Result};
use forebay_data::format::parquet::File;
use forebay_data::format::scan_bytes;
use proptest::prelude::*;

use crate::common::file_bytes;

/// Open, scan and decode everything.
fn read(bytes: &Bytes) -> Result<u64> {
    let file = File::from_bytes(bytes, None)?;
    let table = Arc::new(scan_bytes(file.clone().scan(), bytes, 1000)?);
    table.check(bytes.len() as u64)?;
    let mut rows = 0;
    for (index, group) in file.groups().iter().enumerate() {
        let extent = bytes.slice(group.extent.start() as usize..group.extent.end() as usize);
        rows += file.decode_bytes(&extent, &table, index, None, None)?.block.len() as u64;
    }
    Ok(rows)
}

#[test]
fn a_flipped_bit_in_a_page_names_row_group_and_column() {
    let bytes = file_bytes("ranges");
    let groups = File::from_bytes(&bytes, None).unwrap().groups().to_vec();
    assert_eq!(read(&bytes).unwrap(), 30);
    let mut named = std::collections::BTreeSet::new();
    for at in groups[1].extent.start()..groups[1].extent.end() {
        let mut damaged = bytes.to_vec();
        damaged[at as usize] ^= 0x10;
        let Err(error) = read(&damaged.into()) else {
            // A few bits of headers say nothing that anybody reads.
            continue;
        };
        assert!(
            matches!(
                error.kind(),
                ErrorKind::Corrupt | ErrorKind::LimitExceeded | ErrorKind::Unsupported
            ),
            "byte {at}: {error}"
        );
        assert!(
            error.message().starts_with("row group 1, column '"),
            "byte {at}: {error}"
        );
        named.insert(error.message().split('\'').nth(1).unwrap().to_owned());
    }
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["n", "s", "x"]);
}

#[test]
fn page_checksums_are_compared() {
    let bytes = file_bytes("codec-none-v1");
    let group = File::from_bytes(&bytes, None).unwrap().groups()[0];
    // The last bytes of a row group are values of its last column, which is not compressed: only the checksum can tell.
    let mut damaged = bytes.to_vec();
    damaged[group.extent.end() as usize - 1] ^= 1;
    let error = read(&damaged.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(
        error.message(),
        "row group 0, column 'blob': it cannot be read: Page CRC checksum mismatch"
    );
}

#[test]
fn a_table_of_another_file_is_refused_with_what_to_do() {
    let file = |name| {
        let bytes = file_bytes(name);
        (File::from_bytes(&bytes, None).unwrap(), bytes)
    };
    let ((known, bytes), (other, _)) = (file("numbers"), file("ranges"));
    let table = Arc::new(scan_bytes(known.scan(), &bytes, 1000).unwrap());
    let error = other
        .decode_bytes(&Bytes::new(), &table, 0, None, None)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
    assert!(error.message().starts_with("row group 0: "), "{error}");
    assert_eq!(error.hint(), Some("index the data set again"));
}

#[test]
fn a_file_that_was_cut_off_is_seen() {
    let bytes = file_bytes("numbers");
    for len in 0..bytes.len() {
        let error = read(&bytes.slice(..len)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}: {error}");
    }
}

#[test]
fn wrong_footers_are_refused() {
    let bytes = file_bytes("numbers");
    let end = bytes.len() - 8;
    let with = |patch: &[u8], at: usize| {
        let mut bytes = bytes.to_vec();
        bytes[at..at + patch.len()].copy_from_slice(patch);
        File::from_bytes(&bytes.into(), None).unwrap_err()
    };
    let error = with(b"PARE", end + 4);
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("encrypted"), "{error}");
    assert!(with(b"PAR2", end + 4).message().contains("PAR1"));
    assert_eq!(
        with(&u32::MAX.to_le_bytes(), end).kind(),
        ErrorKind::LimitExceeded
    );
    assert_eq!(with(&(60u32 << 20).to_le_bytes(), end).kind(), ErrorKind::Corrupt);
    assert_eq!(with(&1u32.to_le_bytes(), end).kind(), ErrorKind::Corrupt);
}

#[test]
fn schemas_without_end_are_refused() {
    // FileMetaData { 1: version, 2: [SchemaElement { 4: name, 5: num_children }, ...] }
    let file = |count: usize, children: u8| {
        let mut footer = vec![0x15, 2, 0x19, 0xfc];
        let mut left = count;
        while left >= 0x80 {
            footer.push(left as u8 | 0x80);
            left >>= 7;
        }
        footer.push(left as u8);
        for _ in 0..count {
            footer.extend([0x48, 1, b'a', 0x15, children, 0]);
        }
        footer.push(0);
        let len = footer.len() as u32;
        let bytes = [
            b"PAR1".to_vec(),
            footer,
            len.to_le_bytes().to_vec(),
            b"PAR1".to_vec(),
        ]
        .concat();
        File::from_bytes(&bytes.into(), None).unwrap_err()
    };
    let deep = file(100_000, 2);
    assert_eq!(deep.kind(), ErrorKind::LimitExceeded, "{deep}");
    let wide = file(20, 126);
    assert_eq!(wide.kind(), ErrorKind::Corrupt, "{wide}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn damage_anywhere_is_an_error_or_nothing(
        name in prop::sample::select(vec!["numbers", "numbers-plain", "decimals", "deltas", "codec-zstd-v2", "codec-gzip-v1", "codec-lz4-v1", "spark", "views"]),
        patches in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let mut bytes = file_bytes(name).to_vec();
        for (at, patch) in patches {
            let at = at.index(bytes.len());
            bytes[at] = patch;
        }
        let _ = read(&bytes.into());
    }
}
