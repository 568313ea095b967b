//! Tests of reading and writing tokens with bytes of our own making.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::ErrorKind;
use proptest::prelude::*;

use super::megatron::{Index, IndexParser};
use super::*;
use crate::block::Block;
use crate::format::{SampleRef, ShardWriter, scan_bytes};
use crate::schema::{Field, Kind};
use crate::table::Table;

fn windows(dtype: Dtype, tokens: u64) -> Tokens {
    Tokens::new(Some(dtype), Cut::Windows(tokens)).unwrap()
}

fn documents() -> Tokens {
    Tokens::new(None, Cut::Documents).unwrap()
}

fn scan(scan: Result<Box<dyn Scan>>, bytes: &Bytes, step: usize) -> Result<Table> {
    let table = scan_bytes(scan?, bytes, step)?;
    table.check(bytes.len() as u64)?;
    Ok(table)
}

fn samples(bytes: &Bytes, table: Table) -> Vec<Vec<u8>> {
    let count = table.samples();
    let block = Block::from_bytes(Arc::new(table), 0..count, bytes.clone(), 0).unwrap();
    (0..block.len())
        .map(|sample| {
            assert!(block.is_whole(sample));
            block.field(sample, 0).unwrap().to_vec()
        })
        .collect()
}

fn npy(header: &str, major: u8, body: &[u8]) -> Bytes {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend_from_slice(&[major, 0]);
    match major {
        1 => bytes.extend_from_slice(&(header.len() as u16).to_le_bytes()),
        _ => bytes.extend_from_slice(&(header.len() as u32).to_le_bytes()),
    }
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    bytes.into()
}

/// An index of sequences in documents, as the layout is specified.
fn index(code: u8, width: i64, lens: &[i32], documents: &[i64]) -> Vec<u8> {
    let mut bytes = b"MMIDIDX\0\0".to_vec();
    bytes.extend_from_slice(&1u64.to_le_bytes());
    bytes.push(code);
    bytes.extend_from_slice(&(lens.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&(documents.len() as u64).to_le_bytes());
    bytes.extend(lens.iter().flat_map(|len| len.to_le_bytes()));
    let mut offset = 0i64;
    for len in lens {
        bytes.extend_from_slice(&offset.to_le_bytes());
        offset += i64::from(*len) * width;
    }
    bytes.extend(documents.iter().flat_map(|entry| entry.to_le_bytes()));
    bytes
}

fn parse(idx: &[u8], bin_bytes: u64, step: usize) -> Result<Index> {
    let mut parser = IndexParser::new(idx.len() as u64);
    for piece in idx.chunks(step) {
        parser.feed(piece)?;
    }
    parser.finish(bin_bytes)
}

#[test]
fn windows_follow_each_other_and_the_tail_is_told() {
    let bytes = Bytes::from_static(b"aabbccddeeff");
    let format = windows(Dtype::Uint16, 4);
    let table = scan(format.start_raw(), &bytes, 5).unwrap();
    assert_eq!(
        table.fields,
        [Field::new(
            "tokens",
            Kind::Array {
                dtype: Dtype::Uint16,
                shape: vec![4]
            }
        )]
    );
    assert_eq!(samples(&bytes, table), [b"aabbccdd"]);
    assert_eq!(format.tail_tokens(Dtype::Uint16, 12), 2);
    assert_eq!(scan(format.start_raw(), &Bytes::new(), 1).unwrap().samples(), 0);
    let odd = bytes.slice(..11);
    let error = scan(format.start_raw(), &odd, 3).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("offset 11"), "{error}");
}

#[test]
fn what_cannot_be_meant_is_refused_before_reading() {
    assert!(Tokens::new(None, Cut::Windows(0)).is_err());
    let unnamed = Tokens::new(None, Cut::Windows(4)).unwrap();
    assert!(unnamed.start_raw().err().unwrap().hint().is_some());
    assert!(documents().start_raw().is_err());
    assert!(documents().start_npy().is_err());
    for tokens in [u64::MAX, SAMPLE_BYTES_MAX / 2 + 1] {
        assert!(windows(Dtype::Uint16, tokens).start_raw().is_err());
    }
    let idx = index(8, 2, &[1], &[0, 1]);
    let error = windows(Dtype::Uint32, 1).start_megatron(&idx, 2).err().unwrap();
    assert!(error.to_string().contains("uint16"), "{error}");
}

#[test]
fn npy_files_begin_behind_their_header_and_end_with_their_shape() {
    let header = "{'descr': '<u2', 'fortran_order': False, 'shape': (5,), }\n";
    for major in [1, 2, 3] {
        let bytes = npy(header, major, b"aabbccddee");
        for step in [1, 7, 1000] {
            let table = scan(windows(Dtype::Uint16, 2).start_npy(), &bytes, step).unwrap();
            assert_eq!(samples(&bytes, table), [b"aabb", b"ccdd"]);
        }
        for len in 0..bytes.len() {
            let error = scan(windows(Dtype::Uint16, 2).start_npy(), &bytes.slice(..len), 9).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
        }
        let longer = Bytes::from([&bytes[..], b"x"].concat());
        let error = scan(windows(Dtype::Uint16, 2).start_npy(), &longer, 9).unwrap_err();
        assert!(error.to_string().contains("where its array ends"), "{error}");
        assert!(
            scan(windows(Dtype::Uint32, 2).start_npy(), &bytes, 9).is_err(),
            "another type"
        );
    }
    let absurd = header.replace("5,", "9223372036854775807,");
    assert!(scan(windows(Dtype::Uint16, 2).start_npy(), &npy(&absurd, 1, b""), 9).is_err());
    let mut long = npy(header, 2, b"").to_vec();
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let error = scan(windows(Dtype::Uint16, 2).start_npy(), &long.into(), 9).unwrap_err();
    assert!(error.to_string().contains("longer than any"), "{error}");
    assert!(scan(windows(Dtype::Uint16, 2).start_npy(), &npy(header, 4, b""), 9).is_err());
}

#[test]
fn documents_are_runs_of_sequences() {
    let idx = index(8, 2, &[2, 0, 3, 1], &[0, 2, 2, 3, 4]);
    let bytes = Bytes::from_static(b"aabbccddeeff");
    for step in [1, 5, 100] {
        let table = scan(documents().start_megatron(&idx, 12), &bytes, step).unwrap();
        assert_eq!(
            table.fields,
            [Field::new("tokens", Kind::List { dtype: Dtype::Uint16 })]
        );
        assert_eq!(samples(&bytes, table), [&b"aabb"[..], b"", b"ccddee", b"ff"]);
        let table = scan(windows(Dtype::Uint16, 4).start_megatron(&idx, 12), &bytes, step).unwrap();
        assert_eq!(samples(&bytes, table), [b"aabbccdd"]);
        assert_eq!(parse(&idx, 12, step).unwrap().documents, [4, 0, 6, 2]);
    }
    let empty = index(8, 2, &[], &[]);
    assert!(parse(&empty, 0, 3).unwrap().documents.is_empty());
    for cut in [&bytes[..11], b"aabbccddeeffg"] {
        let cut = Bytes::copy_from_slice(cut);
        assert!(
            scan(documents().start_megatron(&idx, 12), &cut, 4).is_err(),
            "changed after the look"
        );
    }
}

#[test]
fn every_truncated_index_is_refused() {
    let idx = index(8, 2, &[2, 0, 3, 1], &[0, 2, 2, 3, 4]);
    for len in 0..idx.len() {
        // By a size that agrees with what is there, and by one that does not.
        assert!(parse(&idx[..len], 12, 7).is_err(), "{len}");
        let mut parser = IndexParser::new(idx.len() as u64);
        let fed = parser.feed(&idx[..len]);
        assert!(fed.and_then(|()| parser.finish(12).map(|_| ())).is_err(), "{len}");
    }
}

#[test]
fn an_index_that_does_not_fit_is_refused() {
    let good = || index(8, 2, &[2, 0, 3, 1], &[0, 2, 2, 3, 4]);
    assert!(parse(&good(), 12, 99).is_ok());
    assert!(parse(&good(), 11, 99).is_err() && parse(&good(), 14, 99).is_err());
    let spoil = |at: usize, bytes: &[u8]| {
        let mut idx = good();
        idx[at..at + bytes.len()].copy_from_slice(bytes);
        parse(&idx, 12, 99).unwrap_err()
    };
    spoil(0, b"X");
    assert_eq!(spoil(9, &[2]).kind(), ErrorKind::Unsupported);
    spoil(17, &[0]);
    spoil(17, &[9]);
    spoil(17, &[4]);
    for count in [0u64, 3, 5, u64::MAX, u64::MAX / 12] {
        spoil(18, &count.to_le_bytes());
        spoil(26, &count.to_le_bytes().map(|byte| byte ^ 0x40));
    }
    let (lens, offsets, entries) = (34, 34 + 16, 34 + 48);
    spoil(lens, &(-1i32).to_le_bytes());
    spoil(lens, &3i32.to_le_bytes());
    spoil(offsets + 8, &5u64.to_le_bytes());
    spoil(offsets, &u64::MAX.to_le_bytes());
    spoil(entries, &1u64.to_le_bytes());
    spoil(entries + 8, &5u64.to_le_bytes());
    spoil(entries + 16, &1u64.to_le_bytes());
    spoil(entries + 32, &3u64.to_le_bytes());
    spoil(entries + 8, &u64::MAX.to_le_bytes());
    // Modes are as many bytes as there are sequences, or none.
    let more = |count: usize| [good(), vec![1; count]].concat();
    assert!(parse(&more(4), 12, 99).is_ok());
    assert!(parse(&more(3), 12, 99).is_err() && parse(&more(5), 12, 99).is_err());
}

fn write(mut writer: Box<dyn ShardWriter>, field: &Field, samples: &[Vec<u8>]) -> Result<(Vec<u8>, Vec<u8>)> {
    for bytes in samples {
        let fields: &[(&Field, &[u8])] = &[(field, bytes)];
        writer.add(SampleRef { key: "", fields })?;
    }
    let side = writer.sides()?.pop().map_or_else(Vec::new, |(_, bytes)| bytes);
    Ok((writer.finish()?.to_vec(), side))
}

#[test]
fn numbers_of_another_type_are_converted_or_refused() {
    let list = |dtype| Field::new("x", Kind::List { dtype });
    let to = |dtype, field: &Field, bytes: &[u8]| {
        write(Box::new(TokensWriter::new(dtype)), field, &[bytes.to_vec()]).map(|(bytes, _)| bytes)
    };
    let varints = Field::new("x", Kind::Varints);
    assert_eq!(
        to(Dtype::Uint16, &varints, &[5, 0x80, 1]).unwrap(),
        [5, 0, 128, 0]
    );
    assert!(to(Dtype::Uint8, &varints, &[0x80, 2]).is_err(), "256");
    assert!(to(Dtype::Uint16, &varints, &[0x80]).is_err());
    assert_eq!(to(Dtype::Int64, &list(Dtype::Int8), &[0xff]).unwrap(), [0xff; 8]);
    assert!(to(Dtype::Uint64, &list(Dtype::Int8), &[0xff]).is_err(), "-1");
    assert_eq!(
        to(Dtype::Uint16, &list(Dtype::Uint32), &[1, 2, 0, 0]).unwrap(),
        [1, 2]
    );
    assert!(to(Dtype::Uint16, &list(Dtype::Uint32), &[0, 0, 1, 0]).is_err());
    assert!(
        to(Dtype::Uint16, &list(Dtype::Uint16), &[1]).is_err(),
        "half a token"
    );
    assert!(to(Dtype::Uint16, &list(Dtype::Float32), &[0; 4]).is_err());
    assert!(to(Dtype::Uint16, &Field::new("x", Kind::Text), b"ab").is_err());
    let two = (list(Dtype::Uint16), list(Dtype::Uint16));
    let fields: &[(&Field, &[u8])] = &[(&two.0, b"ab"), (&two.1, b"ab")];
    assert!(
        TokensWriter::new(Dtype::Uint16)
            .add(SampleRef { key: "", fields })
            .is_err()
    );
    assert!(MegatronWriter::new(Dtype::Uint32).is_err());
}

proptest! {
    #[test]
    fn a_pair_that_is_written_reads_back(lens in prop::collection::vec(0usize..20, 0..12), step in 1usize..40) {
        let samples_in: Vec<Vec<u8>> = lens.iter().map(|len| (0..4 * *len).map(|at| (at * 7) as u8).collect()).collect();
        let field = Field::new("tokens", Kind::List { dtype: Dtype::Int32 });
        let writer = MegatronWriter::new(Dtype::Int32).unwrap();
        let (bin, idx) = write(Box::new(writer), &field, &samples_in).unwrap();
        let bin = Bytes::from(bin);
        let lens: Vec<i32> = lens.iter().map(|len| *len as i32).collect();
        let entries: Vec<i64> = (0..=lens.len() as i64).collect();
        prop_assert_eq!(&idx, &index(4, 4, &lens, &entries));
        let table = scan(documents().start_megatron(&idx, bin.len() as u64), &bin, step).unwrap();
        prop_assert_eq!(samples(&bin, table), samples_in);
    }

    #[test]
    fn hostile_indexes_neither_panic_nor_depend_on_the_cutting(mut bytes in prop::collection::vec(any::<u8>(), 0..160), step in 1usize..40, sequences in 0u64..4, entries in 0u64..4) {
        let head = index(8, 2, &[], &[]);
        for (to, from) in bytes.iter_mut().zip(head) {
            *to = from;
        }
        if bytes.len() >= 34 {
            bytes[18..26].copy_from_slice(&sequences.to_le_bytes());
            bytes[26..34].copy_from_slice(&entries.to_le_bytes());
        }
        let told = |result: Result<Index>| result.map_err(|error| error.to_string());
        prop_assert_eq!(told(parse(&bytes, 12, step)), told(parse(&bytes, 12, 1000)));
    }

    #[test]
    fn hostile_npy_files_neither_panic_nor_depend_on_the_cutting(header in "[{}'a-z:,() <0-9]{0,60}", body in prop::collection::vec(any::<u8>(), 0..40), step in 1usize..40) {
        let bytes = npy(&header, 1, &body);
        let told = |step| scan(windows(Dtype::Uint16, 2).start_npy(), &bytes, step).map_err(|error| error.to_string());
        prop_assert_eq!(told(step), told(1000));
    }
}
