//! Values that stand in a page as they are come from where they were read; all others are decoded, and both are the same values.

use std::sync::Arc;

use bytes::Bytes;
use forebay_data::Block;
use forebay_data::format::parquet::File;
use forebay_data::format::{GroupDecoder, scan_bytes};
use parquet::basic::{Compression, Encoding};
use parquet::data_type::{ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use proptest::prelude::*;

type Values = Vec<Option<Vec<u8>>>;

fn plain(version: WriterVersion) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_writer_version(version)
        .set_dictionary_enabled(false)
        .set_encoding(Encoding::PLAIN)
        .set_compression(Compression::UNCOMPRESSED)
        .set_data_page_size_limit(2000)
        .set_write_batch_size(7)
}

/// A file whose columns have the same values, all of them in one row group.
fn written(schema: &str, values: &Values, properties: WriterPropertiesBuilder) -> Bytes {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let is_optional = schema.get_fields()[0].is_optional();
    let is_fixed = schema.get_fields()[0].get_physical_type() == parquet::basic::Type::FIXED_LEN_BYTE_ARRAY;
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let levels: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let levels = is_optional.then_some(&levels[..]);
    while let Some(mut column) = group.next_column().unwrap() {
        let present = values
            .iter()
            .flatten()
            .map(|value| ByteArray::from(value.clone()));
        if is_fixed {
            let present: Vec<FixedLenByteArray> = present.map(FixedLenByteArray::from).collect();
            let typed = column.typed::<FixedLenByteArrayType>();
            typed.write_batch(&present, levels, None).unwrap();
        } else {
            let present: Vec<ByteArray> = present.collect();
            let typed = column.typed::<ByteArrayType>();
            typed.write_batch(&present, levels, None).unwrap();
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    Bytes::from(writer.into_inner().unwrap())
}

/// The values that are read, and whether all of them lie in the bytes of the file.
fn read(bytes: &Bytes) -> (Values, bool) {
    let file = File::from_bytes(bytes, None).unwrap();
    let table = Arc::new(scan_bytes(file.clone().scan(), bytes, 100).unwrap());
    let extent = file.groups()[0].extent;
    let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
    let block: Block = file.decode_bytes(&extent, &table, 0, None, None).unwrap().block;
    let held = bytes.as_ptr_range();
    let is_lent = (0..block.len()).all(|row| {
        let value = block.field(row, 0);
        value.is_some_and(|value| value.is_empty() || held.contains(&value.as_ptr()))
    });
    let values = (0..block.len()).map(|row| block.field(row, 0).map(<[u8]>::to_vec));
    (values.collect(), is_lent)
}

fn values(count: u8, len: usize) -> Values {
    (0..count)
        .map(|index| Some(vec![index; len + usize::from(index)]))
        .collect()
}

#[test]
fn plain_bytes_are_lent_and_others_decoded() {
    const REQUIRED: &str = "message m { required binary x; }";
    const OPTIONAL: &str = "message m { optional binary x; }";
    const TEXT: &str = "message m { optional binary x (STRING); }";
    for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
        let mut with_null = values(100, 100);
        with_null[57] = None;
        let cases = [
            (REQUIRED, values(100, 100), plain(version), true),
            (OPTIONAL, values(100, 100), plain(version), true),
            (TEXT, values(100, 100), plain(version), true),
            (OPTIONAL, with_null, plain(version), false),
            // Too short to be worth it.
            (REQUIRED, values(20, 1), plain(version), false),
            (
                REQUIRED,
                values(100, 100),
                plain(version).set_compression(Compression::SNAPPY),
                false,
            ),
            (
                REQUIRED,
                values(100, 100),
                plain(version).set_dictionary_enabled(true),
                false,
            ),
            (
                REQUIRED,
                values(100, 100),
                plain(version).set_encoding(Encoding::DELTA_BYTE_ARRAY),
                false,
            ),
        ];
        for (index, (schema, values, properties, is_lent)) in cases.into_iter().enumerate() {
            let found = read(&written(schema, &values, properties));
            assert!(found.0 == values, "{version:?}, case {index}");
            assert_eq!(found.1, is_lent, "{version:?}, case {index}");
        }
        let fixed: Values = (0..60).map(|index| Some(vec![index; 300])).collect();
        let schema = "message m { optional fixed_len_byte_array(300) x; }";
        assert_eq!(read(&written(schema, &fixed, plain(version))), (fixed, true));
    }
}

#[test]
fn what_a_lent_column_keeps_is_counted() {
    let encoded = ColumnPath::from("y");
    let properties =
        plain(WriterVersion::PARQUET_1_0).set_column_encoding(encoded, Encoding::DELTA_LENGTH_BYTE_ARRAY);
    let schema = "message m { required binary x; required binary y; }";
    let file = File::from_bytes(&written(schema, &values(100, 100), properties), None).unwrap();
    let read = |column| file.span(0, column).unwrap().len();
    assert!(file.decoded_bytes(0, &[0]) <= read(0));
    // The second column is decoded, and its chunk lies in what the first one keeps.
    assert!(file.decoded_bytes(0, &[0, 1]) >= read(0) + 2 * read(1));
    let alone = file.decoded_bytes(0, &[1]);
    assert!(alone >= read(1) && alone < 2 * read(1), "{alone}");
}

#[test]
fn text_that_is_none_is_still_refused() {
    let mut values = values(50, 100);
    values[31] = Some(vec![0xff; 100]);
    let text = "message m { required binary x (STRING); }";
    let bytes = written(text, &values, plain(WriterVersion::PARQUET_1_0));
    let file = File::from_bytes(&bytes, None).unwrap();
    let table = Arc::new(scan_bytes(file.clone().scan(), &bytes, 100).unwrap());
    let extent = file.groups()[0].extent;
    let extent = bytes.slice(extent.start() as usize..extent.end() as usize);
    let error = file.decode_bytes(&extent, &table, 0, None, None).unwrap_err();
    assert!(error.message().starts_with("row group 0, column 'x'"), "{error}");
}

proptest! {
    #[test]
    fn what_is_lent_is_what_was_written(
        lens in proptest::collection::vec(proptest::option::weighted(0.97, 0usize..400), 1..80),
        is_second in any::<bool>(),
        page_bytes in 100usize..4000,
    ) {
        let fill = |(index, len): (usize, &Option<usize>)| len.map(|len| vec![index as u8; len]);
        let values: Values = lens.iter().enumerate().map(fill).collect();
        let version = if is_second { WriterVersion::PARQUET_2_0 } else { WriterVersion::PARQUET_1_0 };
        let properties = plain(version).set_data_page_size_limit(page_bytes);
        let found = read(&written("message m { optional binary x; }", &values, properties)).0;
        prop_assert!(found == values);
    }
}
