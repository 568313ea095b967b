//! Files that no peer here writes any more, or never would: made by hand with the Parquet library.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder};
use arrow_array::{ArrayRef, FixedSizeBinaryArray, RecordBatch, StringArray};
use bytes::Bytes;
use forebay_core::ErrorKind;
use forebay_data::format::parquet::File;
use forebay_data::format::scan_bytes;
use forebay_data::{Block, Dtype, Kind};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{
    ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray, FixedLenByteArrayType, Int32Type,
    Int64Type, Int96Type,
};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;

use crate::common::file_bytes;

fn writer(schema: &str) -> SerializedFileWriter<Vec<u8>> {
    let properties = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .build();
    let schema = Arc::new(parse_message_type(schema).unwrap());
    SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap()
}

#[test]
fn lists_of_two_levels_are_read() {
    for schema in [
        "message m { optional group x (LIST) { repeated int32 array; } }",
        "message m { optional group x (LIST) { repeated int32 x_tuple; } }",
    ] {
        let mut writer = writer(schema);
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let typed = column.typed::<Int32Type>();
        typed
            .write_batch(&[1, 2, 3], Some(&[2, 2, 0, 1, 2]), Some(&[0, 1, 0, 0, 0]))
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        let bytes = Bytes::from(writer.into_inner().unwrap());
        let file = File::from_bytes(&bytes, None).unwrap();
        assert_eq!(
            file.fields()[0].kind,
            Kind::List { dtype: Dtype::Int32 },
            "{schema}"
        );
        let table = Arc::new(scan_bytes(file.clone().scan(), &bytes, 100).unwrap());
        let extent = file.groups()[0].extent;
        let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
        let block = file.decode_bytes(&extent, &table, 0, None, None).unwrap().block;
        let values: Vec<Option<usize>> = (0..4).map(|row| block.field(row, 0).map(<[u8]>::len)).collect();
        assert_eq!(values, [Some(8), None, Some(0), Some(4)], "{schema}");
    }
}

/// One row with a list of text, written with an encoding.
fn one_list(texts: &[ByteArray], properties: WriterProperties) -> Bytes {
    let schema =
        "message m { required group x (LIST) { repeated group list { required binary element (STRING); } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let mut repetition = vec![1; texts.len()];
    repetition[0] = 0;
    column
        .typed::<ByteArrayType>()
        .write_batch(texts, Some(&vec![1; texts.len()]), Some(&repetition))
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    Bytes::from(writer.into_inner().unwrap())
}

#[test]
fn a_list_of_text_that_grows_in_one_row_is_no_bomb() {
    let plain = || WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
    let entry = ByteArray::from("a".repeat(64 << 10).into_bytes());
    let dictionary = one_list(&vec![entry; 20_000], plain().build());
    let longer = (1..30_000).map(|len| ByteArray::from("a".repeat(len).into_bytes()));
    let deltas = plain()
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::DELTA_BYTE_ARRAY)
        .set_data_page_size_limit(1 << 30)
        .build();
    let deltas = one_list(&longer.collect::<Vec<_>>(), deltas);
    for bytes in [dictionary, deltas] {
        assert!(bytes.len() < 1 << 20, "{}", bytes.len());
        let file = File::from_bytes(&bytes, None).unwrap();
        assert_eq!(file.fields()[0].kind, Kind::Json);
        let table = Arc::new(scan_bytes(file.clone().scan(), &bytes, 1 << 20).unwrap());
        let extent = file.groups()[0].extent;
        let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
        let error = file.decode_bytes(&extent, &table, 0, None, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        assert!(error.message().starts_with("row group 0, column 'x'"), "{error}");
    }
}

/// Open, scan and decode the first row group of a file.
fn decode(bytes: &Bytes) -> forebay_core::Result<Block> {
    let file = File::from_bytes(bytes, None)?;
    let table = Arc::new(scan_bytes(file.clone().scan(), bytes, 1 << 20)?);
    let extent = file.groups()[0].extent;
    let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
    Ok(file.decode_bytes(&extent, &table, 0, None, None)?.block)
}

#[test]
fn values_and_nulls_of_one_large_size_are_no_bombs() {
    const LEN: usize = 1 << 20;
    let schema = format!(
        "message m {{ required group x (LIST) {{ repeated group list {{ optional fixed_len_byte_array({LEN}) element; }} }} }}"
    );
    // One entry of a dictionary many times, and one value before many nulls.
    for (values, levels) in [
        (20_000, vec![2; 20_000]),
        (1, [vec![2], vec![1; 20_000]].concat()),
    ] {
        let mut writer = writer(&schema);
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let value: FixedLenByteArray = vec![7; LEN].into();
        let mut repetition = vec![1; levels.len()];
        repetition[0] = 0;
        column
            .typed::<FixedLenByteArrayType>()
            .write_batch(&vec![value; values], Some(&levels), Some(&repetition))
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        let bytes = Bytes::from(writer.into_inner().unwrap());
        assert!(bytes.len() < 2 << 20, "{}", bytes.len());
        assert_eq!(
            decode(&bytes).unwrap_err().kind(),
            ErrorKind::LimitExceeded,
            "{values}"
        );
    }
    let error = decode(&file_bytes("bomb-fixed")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
}

#[test]
fn deltas_of_more_values_than_a_page_has_are_refused() {
    for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        let properties = WriterProperties::builder()
            .set_statistics_enabled(EnabledStatistics::None)
            .set_dictionary_enabled(false)
            .set_encoding(encoding)
            .build();
        let schema = Arc::new(parse_message_type("message m { optional binary x; }").unwrap());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let values: Vec<ByteArray> = (0..300)
            .map(|row| ByteArray::from(format!("v{row}").as_str()))
            .collect();
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, Some(&[1; 300]), None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
        let bytes = writer.into_inner().unwrap();
        assert_eq!(
            decode(&bytes.clone().into()).unwrap().field(299, 0),
            Some(&b"v299"[..])
        );
        // 128 deltas in a block of 4, 300 values: the library would make room for as many as stand there.
        let header = [0x80, 0x01, 0x04, 0xac, 0x02];
        let found = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&header));
        let lists: Vec<usize> = found.collect();
        assert_eq!(
            lists.len(),
            if encoding == Encoding::DELTA_BYTE_ARRAY {
                2
            } else {
                1
            }
        );
        for at in lists {
            let mut bomb = bytes.clone();
            bomb[at + 4] = 0x7f;
            let error = decode(&bomb.into()).unwrap_err();
            assert!(error.to_string().contains("300 values speaks of"), "{error}");
        }
    }
}

#[test]
fn dictionaries_of_more_values_than_their_bytes_hold_are_refused() {
    fn write<T: DataType>(writer: &mut SerializedColumnWriter<'_>, value: impl Fn(i32) -> T::T) {
        let values: Vec<T::T> = (0..300).map(value).collect();
        writer.typed::<T>().write_batch(&values, None, None).unwrap();
    }
    type Write = fn(&mut SerializedColumnWriter<'_>);
    let types: [(&str, Write); 5] = [
        ("int32", |writer| write::<Int32Type>(writer, |row| row)),
        ("int64", |writer| write::<Int64Type>(writer, i64::from)),
        ("double", |writer| write::<DoubleType>(writer, f64::from)),
        ("int96", |writer| {
            write::<Int96Type>(writer, |row| vec![row as u32, 0, 0].into());
        }),
        ("binary", |writer| {
            write::<ByteArrayType>(writer, |row| ByteArray::from(format!("v{row}").as_str()));
        }),
    ];
    for (name, write) in types {
        let mut writer = writer(&format!("message m {{ required {name} x; }}"));
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        write(&mut column);
        column.close().unwrap();
        group.close().unwrap();
        let bytes = writer.into_inner().unwrap();
        assert_eq!(decode(&bytes.clone().into()).unwrap().len(), 300, "{name}");
        // The struct of a dictionary page, which begins with its 300 values: the library would make room for as many as stand there.
        let header = [0x4c, 0x15, 0xd8, 0x04];
        let found = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(&header));
        let [at] = found.collect::<Vec<_>>()[..] else {
            panic!("{name}")
        };
        let mut bomb = bytes;
        bomb[at + 3] = 0x7f;
        let error = decode(&bomb.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("speaks of 8172 values"), "{error}");
    }
}

/// Text, lists of text and bytes of one size, some of them null, by themselves and all.
fn texts() -> RecordBatch {
    let rows = 0..300usize;
    let text = |row: usize| (row % 7 != 3).then(|| format!("value {}", row / 3));
    let mut lists = ListBuilder::new(StringBuilder::new());
    for row in rows.clone() {
        (0..row % 4).for_each(|item| lists.values().append_option(text(row + item)));
        lists.append(row % 5 != 4);
    }
    let fixed = rows
        .clone()
        .map(|row| (row % 6 != 0).then(|| (row as u64 / 4).to_le_bytes()));
    let required: ArrayRef = Arc::new(StringArray::from_iter_values(
        rows.clone().map(|row| format!("r{row}")),
    ));
    let columns: [(&str, ArrayRef, bool); 5] = [
        ("required", required, false),
        (
            "optional",
            Arc::new(rows.clone().map(text).collect::<StringArray>()),
            true,
        ),
        (
            "null",
            Arc::new(rows.map(|_| None::<&str>).collect::<StringArray>()),
            true,
        ),
        ("lists", Arc::new(lists.finish()), true),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 8).unwrap()),
            true,
        ),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

#[test]
fn deltas_are_read_in_all_layouts_of_pages() {
    let batch = texts();
    let file = |encoding, version, compression| {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_encoding(encoding)
            .set_column_encoding(
                "fixed".into(),
                if encoding == Encoding::PLAIN {
                    encoding
                } else {
                    Encoding::DELTA_BYTE_ARRAY
                },
            )
            .set_writer_version(version)
            .set_compression(compression)
            .set_data_page_row_count_limit(70)
            .set_write_batch_size(10)
            .build();
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        Bytes::from(bytes)
    };
    let plain = decode(&file(
        Encoding::PLAIN,
        WriterVersion::PARQUET_1_0,
        Compression::UNCOMPRESSED,
    ))
    .unwrap();
    for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
                let found = decode(&file(encoding, version, compression)).unwrap();
                for (row, field) in (0..300).flat_map(|row| (0..5).map(move |field| (row, field))) {
                    assert_eq!(
                        found.field(row, field),
                        plain.field(row, field),
                        "{encoding} {row} {field}"
                    );
                }
            }
        }
    }
    assert_eq!(plain.field(1, 3), Some(&br#"["value 0"]"#[..]));
}

#[test]
fn a_map_with_a_null_for_a_key_is_damaged() {
    let schema = "message m { required group x (MAP) { repeated group key_value { optional binary key (STRING); required int32 value; } } }";
    for (levels, is_whole) in [([2, 2], true), ([2, 1], false)] {
        let mut writer = writer(schema);
        let mut group = writer.next_row_group().unwrap();
        let mut keys = group.next_column().unwrap().unwrap();
        let names = [ByteArray::from("a"), ByteArray::from("b")];
        let count = levels.iter().filter(|level| **level == 2).count();
        keys.typed::<ByteArrayType>()
            .write_batch(&names[..count], Some(&levels), Some(&[0, 1]))
            .unwrap();
        keys.close().unwrap();
        let mut values = group.next_column().unwrap().unwrap();
        values
            .typed::<Int32Type>()
            .write_batch(&[1, 2], Some(&[1, 1]), Some(&[0, 1]))
            .unwrap();
        values.close().unwrap();
        group.close().unwrap();
        let bytes = Bytes::from(writer.into_inner().unwrap());
        match decode(&bytes) {
            Ok(block) => assert!(is_whole && block.field(0, 0) == Some(&br#"{"a":1,"b":2}"#[..])),
            Err(error) => assert!(!is_whole && error.kind() == ErrorKind::Corrupt, "{error}"),
        }
    }
}

#[test]
fn intervals_are_an_error_only_where_they_are_asked_for() {
    let mut writer =
        writer("message m { required int32 n; required fixed_len_byte_array(12) x (INTERVAL); }");
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int32Type>().write_batch(&[5], None, None).unwrap();
    column.close().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let value: FixedLenByteArray = vec![3; 12].into();
    column
        .typed::<FixedLenByteArrayType>()
        .write_batch(&[value], None, None)
        .unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let bytes = Bytes::from(writer.into_inner().unwrap());
    let error = decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error.hint().unwrap().contains("leave the column out"),
        "{error:?}"
    );
    let file = File::from_bytes(&bytes, None).unwrap();
    let table = Arc::new(scan_bytes(file.clone().scan(), &bytes, 100).unwrap());
    let extent = file.groups()[0].extent;
    let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
    let numbers = file.decode_bytes(&extent, &table, 0, Some(&[0]), None).unwrap();
    assert_eq!(numbers.block.field(0, 0), Some(&5i32.to_le_bytes()[..]));
}

#[test]
fn a_dictionary_entry_in_many_rows_is_no_bomb() {
    let mut writer = writer("message m { required binary x (STRING); }");
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let value = ByteArray::from("a".repeat(64 << 10).into_bytes());
    for _ in 0..20 {
        let values = vec![value.clone(); 1000];
        column
            .typed::<ByteArrayType>()
            .write_batch(&values, None, None)
            .unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    let bytes = Bytes::from(writer.into_inner().unwrap());
    assert!(bytes.len() < 1 << 20);
    let file = File::from_bytes(&bytes, None).unwrap();
    let table = Arc::new(scan_bytes(file.clone().scan(), &bytes, 1 << 20).unwrap());
    let extent = file.groups()[0].extent;
    let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
    let error = file.decode_bytes(&extent, &table, 0, None, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().starts_with("row group 0, column 'x'"), "{error}");
}
