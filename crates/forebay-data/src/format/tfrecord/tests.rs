//! Tests of reading and writing with bytes of our own making: cutting, truncation, damage, absurd lengths, hostile messages, round trips.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ErrorKind, crc32c};
use proptest::prelude::*;

use super::*;
use crate::block::Block;
use crate::format::{SampleRef, ShardWriter, scan_bytes};
use crate::schema::{Dtype, Field, Kind};
use crate::table::Table;

fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut bytes = length.to_vec();
    bytes.extend_from_slice(&mask(crc32c(&length)).to_le_bytes());
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(&mask(crc32c(data)).to_le_bytes());
    bytes
}

fn shard(records: &[&[u8]]) -> Bytes {
    records
        .iter()
        .flat_map(|data| record(data))
        .collect::<Vec<u8>>()
        .into()
}

fn scan(format: &TfRecord, bytes: &Bytes, step: usize) -> Result<Table> {
    let table = scan_bytes(format.start(), bytes, step)?;
    table.check(bytes.len() as u64)?;
    Ok(table)
}

fn block(bytes: &Bytes, table: Table) -> Block {
    let samples = table.samples();
    Block::from_bytes(Arc::new(table), 0..samples, bytes.clone(), 0).unwrap()
}

/// A message of wire type 2.
fn message(number: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::put_head(&mut bytes, number, body.len() as u64);
    bytes.extend_from_slice(body);
    bytes
}

/// An Example from entries, each a name and the fields of its feature.
fn example(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let entries = entries.iter().flat_map(|(name, feature)| {
        let entry = [message(1, name.as_bytes()), message(2, feature)].concat();
        message(1, &entry)
    });
    message(1, &entries.collect::<Vec<u8>>())
}

fn bytes_list(values: &[&[u8]]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| message(1, value)).collect();
    message(1, &values)
}

fn kinds(table: &Table) -> Vec<(&str, &Kind)> {
    table
        .fields
        .iter()
        .map(|field| (field.name.as_str(), &field.kind))
        .collect()
}

fn encoded(encoding: &str) -> Kind {
    let encoding = encoding.to_owned();
    Kind::Encoded { encoding }
}

#[test]
fn extents_are_whole_records_and_fields_are_slices() {
    let one = example(&[
        ("a", &bytes_list(&[b"hello"])),
        ("n", &message(3, &message(1, &[5, 0x80, 1]))),
    ]);
    let bytes = shard(&[&one, &example(&[])]);
    let table = scan(&TfRecord::default(), &bytes, 3).unwrap();
    assert_eq!(kinds(&table), [("a", &Kind::Bytes), ("n", &Kind::Varints)]);
    let block = block(&bytes, table);
    assert!(block.is_whole(0) && block.is_whole(1));
    assert_eq!(block.field(0, 0), Some(&b"hello"[..]));
    let mut numbers = vec![9];
    decode::varints(block.field(0, 1).unwrap(), &mut numbers).unwrap();
    assert_eq!(numbers, [9, 5, 128]);
    assert_eq!((block.field(1, 0), block.field(1, 1)), (None, None));
}

#[test]
fn a_column_becomes_messages_when_one_record_needs_it() {
    let first = example(&[("a", &bytes_list(&[b"x".repeat(200).as_slice()]))]);
    let second = example(&[("a", &bytes_list(&[b"y", b"z"]))]);
    let third = example(&[("a", &bytes_list(&[b""]))]);
    let none = example(&[("a", &bytes_list(&[])), ("b", b"")]);
    let bytes = shard(&[&none, &first, &second, &third]);
    let table = scan(&TfRecord::default(), &bytes, 1).unwrap();
    assert_eq!(kinds(&table), [("a", &encoded("tf:bytes_list"))]);
    let block = block(&bytes, table);
    let values = |row| {
        let mut values = Vec::new();
        decode::bytes_list(block.field(row, 0).unwrap(), &mut values).unwrap();
        values
    };
    assert_eq!(block.field(0, 0), None);
    assert_eq!(values(1), [b"x".repeat(200).as_slice()]);
    assert_eq!(values(2), [b"y", b"z"]);
    assert_eq!(values(3), [b""]);
}

#[test]
fn lists_are_messages_from_the_beginning_when_asked_for() {
    let one = example(&[
        ("a", &bytes_list(&[b"v"])),
        ("f", &message(2, &message(1, &1f32.to_le_bytes()))),
        ("i", &message(3, &[])),
    ]);
    let bytes = shard(&[&one]);
    let table = scan(&TfRecord::default().with_lists(), &bytes, 7).unwrap();
    let expected = [
        ("a", &encoded("tf:bytes_list")),
        ("f", &encoded("tf:float_list")),
        ("i", &encoded("tf:int64_list")),
    ];
    assert_eq!(kinds(&table), expected);
    let block = block(&bytes, table);
    assert_eq!(block.field(0, 0), Some(&message(1, b"v")[..]));
    let mut floats = Vec::new();
    decode::float_list(block.field(0, 1).unwrap(), &mut floats).unwrap();
    assert_eq!(floats, [1.0]);
    let mut numbers = Vec::new();
    decode::int64_list(block.field(0, 2).unwrap(), &mut numbers).unwrap();
    assert!(numbers.is_empty());
}

#[test]
fn what_is_no_example_is_a_record() {
    let good = example(&[("a", &bytes_list(&[b"v"]))]);
    let twice = [&good[..], &good].concat();
    let two_lists = example(&[("a", &[bytes_list(&[b"v"]), message(2, b"")].concat())]);
    let same_name = example(&[("a", &bytes_list(&[b"v"])), ("a", &bytes_list(&[b"w"]))]);
    let wrong_value = example(&[("a", &message(2, &message(1, b"abc")))]);
    let bad_varint = example(&[("a", &message(3, &message(1, &[0x80])))]);
    let bad_name = message(1, &message(1, &[message(1, b"\xff"), message(2, b"")].concat()));
    let group = [&good[..], &[0x1b, 0x1c]].concat();
    let others: [&[u8]; 9] = [
        b"hello",
        &twice,
        &two_lists,
        &same_name,
        &wrong_value,
        &bad_varint,
        &bad_name,
        &group,
        b"\x18\x01",
    ];
    for other in others {
        let bytes = shard(&[&good, other, b""]);
        let table = scan(&TfRecord::default(), &bytes, 5).unwrap();
        assert_eq!(kinds(&table), [("record", &Kind::Bytes)], "{other:x?}");
        let block = block(&bytes, table);
        let rows: Vec<_> = (0..3).map(|row| block.field(row, 0)).collect();
        assert_eq!(rows, [Some(&good[..]), Some(other), Some(b"")]);
        let error = scan(&TfRecord::new(Records::Examples), &bytes, 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = format!("record 1 at offset {}", good.len() + 16);
        assert!(error.to_string().contains(&place), "{error}");
    }
    let table = scan(&TfRecord::new(Records::Raw), &shard(&[&good]), 5).unwrap();
    assert_eq!(kinds(&table), [("record", &Kind::Bytes)]);
}

#[test]
fn unknown_fields_are_skipped_and_deep_messages_are_only_bytes() {
    let mut feature = bytes_list(&[b"v"]);
    feature.extend_from_slice(b"\x78\x05\x7d----\x79--------");
    let mut bytes = example(&[("a", &feature)]);
    let mut deep = Vec::new();
    for _ in 0..1000 {
        deep = message(9, &deep);
    }
    bytes.extend_from_slice(&deep);
    let bytes = shard(&[&bytes]);
    let table = scan(&TfRecord::new(Records::Examples), &bytes, 64).unwrap();
    assert_eq!(block(&bytes, table).field(0, 0), Some(&b"v"[..]));
    // A length that is written longer than it need be cannot be found again from the value: the message is kept.
    let long = message(1, b"\x0a\x81\x00v");
    let bytes = shard(&[&example(&[("a", &long)])]);
    let table = scan(&TfRecord::default(), &bytes, 64).unwrap();
    assert_eq!(kinds(&table), [("a", &encoded("tf:bytes_list"))]);
    let mut values = Vec::new();
    let block = block(&bytes, table);
    decode::bytes_list(block.field(0, 0).unwrap(), &mut values).unwrap();
    assert_eq!(values, [b"v"]);
}

#[test]
fn a_feature_of_two_types_is_an_error_that_names_both_records() {
    let one = example(&[("a", &bytes_list(&[b"v"]))]);
    let two = example(&[("a", &message(3, &message(1, &[1])))]);
    let error = scan(&TfRecord::default(), &shard(&[&one, &two]), 9).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("'a'") && text.contains("record 1") && text.contains("record 0"),
        "{text}"
    );
    assert!(error.hint().is_some());
}

#[test]
fn a_table_that_would_be_mostly_empty_is_refused() {
    let names: Vec<String> = (0..4096).map(|index| format!("{index}")).collect();
    let value = bytes_list(&[b""]);
    let entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &value[..])).collect();
    let wide = record(&example(&entries));
    let empty = record(&example(&[]));
    let mut scan = TfRecord::default().start();
    scan.feed(&wide).unwrap();
    let error = (0..10_000).find_map(|_| scan.feed(&empty).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    // Records that turn out to be something else take no such place.
    let mut scan = TfRecord::default().start();
    scan.feed(&wide).unwrap();
    scan.feed(&record(b"hello")).unwrap();
    for _ in 0..10_000 {
        scan.feed(&empty).unwrap();
    }
    assert_eq!(scan.finish().unwrap().samples(), 10_002);
    let one_more: Vec<u8> = record(&example(&[("more", &value)]));
    let mut scan = TfRecord::default().start();
    scan.feed(&wide).unwrap();
    assert_eq!(scan.feed(&one_more).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn every_truncation_and_every_flipped_bit_is_seen() {
    let one = example(&[("a", &bytes_list(&[b"value"]))]);
    let bytes = shard(&[&one, &one]);
    let half = bytes.len() / 2;
    for len in 0..bytes.len() {
        let cut = bytes.slice(..len);
        let scanned = scan(&TfRecord::default(), &cut, 4);
        if len == 0 || len == half {
            assert_eq!(scanned.unwrap().samples(), (len / half) as u64);
        } else {
            let error = scanned.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{len}");
            let offset = format!("offset {}", if len < half { 0 } else { half });
            assert!(error.to_string().contains(&offset), "{len}: {error}");
        }
    }
    for bit in 0..8 * bytes.len() {
        let mut damaged = bytes.to_vec();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let error = scan(&TfRecord::default(), &damaged.into(), 11).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "bit {bit}");
        let is_head = bit / 8 % half < HEAD_BYTES;
        assert_eq!(
            error.to_string().contains("length"),
            is_head,
            "bit {bit}: {error}"
        );
    }
}

#[test]
fn absurd_lengths_are_refused_and_nothing_is_allocated_for_large_ones() {
    for length in [u64::MAX, 1 << 63, DATA_BYTES_MAX + 1] {
        let head = length.to_le_bytes();
        let bytes = [&head[..], &mask(crc32c(&head)).to_le_bytes()].concat();
        let error = scan(&TfRecord::default(), &bytes.into(), 5).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{length}");
    }
    // The largest that is allowed: nothing but the bytes that came is kept.
    let head = DATA_BYTES_MAX.to_le_bytes();
    let bytes = [&head[..], &mask(crc32c(&head)).to_le_bytes(), b"abc"].concat();
    let error = scan(&TfRecord::default(), &bytes.into(), 5).unwrap_err();
    assert!(error.to_string().contains("ends within a record"), "{error}");
}

#[test]
fn decoding_refuses_what_is_no_such_list_and_takes_back_what_it_gave() {
    let mut numbers = vec![1];
    for bytes in [&[5, 0x80][..], &[5, 0x80, 0x80], &[0xff; 11]] {
        assert!(decode::varints(bytes, &mut numbers).is_err(), "{bytes:x?}");
    }
    assert!(decode::int64_list(&[8, 5, 0x0d, 0, 0, 0, 0], &mut numbers).is_err());
    assert_eq!(numbers, [1]);
    let mut floats = vec![1.0];
    assert!(decode::float_list(&[0x0a, 3, 0, 0, 0], &mut floats).is_err());
    assert!(decode::float_list(&[0x08, 3], &mut floats).is_err());
    assert_eq!(floats, [1.0]);
    assert!(decode::bytes_list(&[0x08, 3], &mut Vec::new()).is_err());
    assert!(decode::feature_list(&[0x08, 3]).is_err());
    assert!(decode::feature_list(b"\x0a\x02\x0a\x05").is_err());
}

#[test]
fn compression_is_told_from_content_alone() {
    use std::io::Write as _;
    let plain = record(b"data");
    assert_eq!(codec_of(&plain), Codec::None);
    assert_eq!(codec_of(b""), Codec::None);
    for level in 0..=9 {
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
        zlib.write_all(&plain.repeat(level as usize)).unwrap();
        assert_eq!(codec_of(&zlib.finish().unwrap()), Codec::Zlib, "{level}");
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
        gzip.write_all(&plain).unwrap();
        assert_eq!(codec_of(&gzip.finish().unwrap()), Codec::Gzip);
    }
    // A record of 0x9c78 bytes begins like zlib; its checksum says what it is, and damaged it is still no zlib.
    let mut long = record(&vec![0; 0x9c78]);
    assert_eq!((long[0], long[1]), (0x78, 0x9c));
    assert_eq!(codec_of(&long), Codec::None);
    long[9] ^= 1;
    assert_eq!(codec_of(&long), Codec::None);
    // Preset dictionary, wrong check bits, wrong method.
    for head in [[0x78, 0xbb], [0x78, 0x9d], [0x79, 0x9c], [0x88, 0x1c]] {
        assert_eq!(
            codec_of(&[&head[..], b"abcdefghijk"].concat()),
            Codec::None,
            "{head:x?}"
        );
    }
}

#[test]
fn one_shard_is_of_raw_records_or_of_examples() {
    let raw = Field::new("record", Kind::Bytes);
    let other = Field::new("x", Kind::Bytes);
    let mut writer = Box::new(TfRecordWriter::new());
    let fields: [(&Field, &[u8]); 2] = [(&raw, b"abc"), (&other, b"abc")];
    let [raw, other] = [&fields[..1], &fields[1..]].map(|fields| SampleRef { key: "", fields });
    assert_eq!(writer.bytes_with(raw), 19);
    writer.add(raw).unwrap();
    assert!(writer.add(other).is_err());
    assert_eq!(writer.finish().unwrap()[..], record(b"abc")[..]);
}

#[test]
fn values_that_do_not_fit_their_kind_are_refused() {
    let cases = [
        Field::new(
            "x",
            Kind::List {
                dtype: Dtype::Float32,
            },
        ),
        Field::new("x", Kind::List { dtype: Dtype::Uint16 }),
        Field::new("x", encoded("tf:bytes_list")),
        Field::new("x", encoded("tf:float_list")),
        Field::new("x", encoded("tf:int64_list")),
        Field::new("x", encoded("tf:feature_list")),
        Field::new("x", Kind::Varints),
    ];
    for field in cases {
        let mut writer = TfRecordWriter::new();
        let fields: &[(&Field, &[u8])] = &[(&field, &[0x0a, 0x85, 0x80])];
        assert!(writer.add(SampleRef { key: "", fields }).is_err(), "{field:?}");
    }
}

/// A field and bytes that fit it, and the kind it has when it is read again.
fn any_value() -> impl Strategy<Value = (Kind, Vec<u8>, Kind)> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..300);
    let floats = Kind::List {
        dtype: Dtype::Float32,
    };
    let ints = prop::collection::vec(any::<i64>(), 0..40);
    prop_oneof![
        bytes().prop_map(|bytes| (Kind::Bytes, bytes, Kind::Bytes)),
        bytes().prop_map(|bytes| (Kind::Image, bytes, Kind::Bytes)),
        bytes().prop_map(|mut bytes| {
            bytes.truncate(bytes.len() / 8 * 8);
            (
                Kind::List {
                    dtype: Dtype::Float64,
                },
                bytes,
                Kind::Bytes,
            )
        }),
        bytes().prop_map(move |mut bytes| {
            bytes.truncate(bytes.len() / 4 * 4);
            (floats.clone(), bytes, floats.clone())
        }),
        ints.prop_map(|ints| {
            let mut bytes = Vec::new();
            for value in ints {
                wire::put_varint(&mut bytes, value.cast_unsigned());
            }
            (Kind::Varints, bytes, Kind::Varints)
        }),
    ]
}

proptest! {
    #[test]
    fn what_is_written_reads_back_however_it_is_cut(
        columns in prop::collection::vec(any_value(), 1..5),
        rows in prop::collection::vec(prop::collection::vec(any::<bool>(), 5), 1..6),
        step in 1usize..600,
    ) {
        let fields: Vec<Field> = columns
            .iter()
            .enumerate()
            .map(|(index, (kind, ..))| Field::new(format!("f{index}"), kind.clone()))
            .collect();
        let mut writer = Box::new(TfRecordWriter::new());
        for row in &rows {
            let values: Vec<(&Field, &[u8])> = fields
                .iter()
                .zip(&columns)
                .zip(row)
                .filter(|(_, is_there)| **is_there)
                .map(|((field, (_, bytes, _)), _)| (field, bytes.as_slice()))
                .collect();
            let sample = SampleRef { key: "", fields: &values };
            let expected = writer.bytes_with(sample);
            writer.add(sample).unwrap();
            prop_assert_eq!(writer.shard_len(), expected);
        }
        let bytes = writer.finish().unwrap().into_bytes();
        let table = scan(&TfRecord::new(Records::Examples), &bytes, step).unwrap();
        prop_assert_eq!(&table, &scan(&TfRecord::default(), &bytes, usize::MAX).unwrap());
        let read = table.fields.clone();
        let block = block(&bytes, table);
        prop_assert_eq!(block.len(), rows.len());
        for (index, row) in rows.iter().enumerate() {
            for (column, field) in read.iter().enumerate() {
                let from = fields.iter().position(|known| known.name == field.name);
                if let Some(from) = from {
                    let (_, bytes, kind) = &columns[from];
                    prop_assert_eq!(&field.kind, kind);
                    let expected = row[from].then_some(bytes.as_slice());
                    prop_assert_eq!(block.field(index, column), expected);
                } else {
                    // Nobody has a feature: whole records.
                    prop_assert_eq!(&field.name, RECORD_FIELD);
                }
            }
        }
    }

    #[test]
    fn hostile_data_neither_panics_nor_escapes_its_record(data in prop::collection::vec(any::<u8>(), 0..200), step in 1usize..50) {
        let bytes = shard(&[&data, &example(&[("a", &data)])]);
        let whole = scan(&TfRecord::default(), &bytes, usize::MAX).map_err(|error| error.to_string());
        let cut = scan(&TfRecord::default(), &bytes, step).map_err(|error| error.to_string());
        prop_assert_eq!(whole, cut);
        let raw = Bytes::from(data);
        let _ = scan(&TfRecord::default(), &raw, step);
    }
}
