//! TFRecord files that TensorFlow wrote, read by us and compared with the values that `fixtures/tfrecord/make.py` wrote beside them; and what we write,
//! compared with TensorFlow's bytes.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::Key;
use forebay_data::codec::Codec;
use forebay_data::format::tfrecord::decode::{self, FeatureValue};
use forebay_data::format::tfrecord::{Records, TfRecord, TfRecordWriter};
use forebay_data::format::{Format, SampleRef, ShardWriter, scan_bytes, tabulate};
use forebay_data::{Block, Dtype, Field, Kind, ShardSource};
use forebay_io::DiskConfig;
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};
use serde_json::{Value, json};

fn fixture(name: &str) -> Bytes {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tfrecord");
    std::fs::read(folder.join(name)).unwrap().into()
}

fn expected(name: &str) -> Value {
    let all: Value = serde_json::from_slice(&fixture("expected.json")).unwrap();
    all[name].clone()
}

fn read(format: &TfRecord, name: &str) -> Block {
    let bytes = fixture(&format!("{name}.tfrecord"));
    let table = scan_bytes(format.start(), &bytes, 13).unwrap();
    table.check(bytes.len() as u64).unwrap();
    let samples = table.samples();
    Block::from_bytes(Arc::new(table), 0..samples, bytes, 0).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    let digits = |byte: &u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16).unwrap());
    bytes.iter().flat_map(digits).collect()
}

fn shown(value: &FeatureValue<'_>) -> Value {
    match value {
        FeatureValue::None => Value::Null,
        FeatureValue::Bytes(values) => {
            json!({ "bytes_list": values.iter().map(|value| hex(value)).collect::<Vec<_>>() })
        }
        FeatureValue::Floats(values) => json!({ "float_list": values }),
        FeatureValue::Ints(values) => json!({ "int64_list": values }),
    }
}

/// A field as TensorFlow would show its feature.
fn feature(kind: &Kind, bytes: &[u8]) -> Value {
    let (mut floats, mut ints, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let encoding = match kind {
        Kind::Encoded { encoding } => encoding.as_str(),
        _ => "",
    };
    let value = match (kind, encoding) {
        (Kind::Bytes, _) => FeatureValue::Bytes(vec![bytes]),
        (Kind::Varints, _) => {
            decode::varints(bytes, &mut ints).unwrap();
            FeatureValue::Ints(ints)
        }
        (
            Kind::List {
                dtype: Dtype::Float32,
            },
            _,
        ) => {
            floats.extend(
                bytes
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|word| f32::from_le_bytes(*word)),
            );
            FeatureValue::Floats(floats)
        }
        (_, "tf:bytes_list") => {
            decode::bytes_list(bytes, &mut values).unwrap();
            FeatureValue::Bytes(values)
        }
        (_, "tf:float_list") => {
            decode::float_list(bytes, &mut floats).unwrap();
            FeatureValue::Floats(floats)
        }
        (_, "tf:int64_list") => {
            decode::int64_list(bytes, &mut ints).unwrap();
            FeatureValue::Ints(ints)
        }
        (_, "tf:feature_list") => {
            let features = decode::feature_list(bytes).unwrap();
            return features.iter().map(shown).collect();
        }
        _ => panic!("{kind:?}"),
    };
    shown(&value)
}

fn rows(block: &Block) -> Vec<Vec<(String, Value)>> {
    (0..block.len())
        .map(|row| {
            assert!(block.is_whole(row));
            let fields = block.fields().iter().enumerate();
            fields
                .filter_map(|(column, field)| {
                    let bytes = block.field(row, column)?;
                    Some((field.name.clone(), feature(&field.kind, bytes)))
                })
                .collect()
        })
        .collect()
}

fn compare(block: &Block, expected: &Value) {
    let expected = expected.as_array().unwrap();
    assert_eq!(block.len(), expected.len());
    for (row, features) in rows(block).into_iter().zip(expected) {
        let features = features.as_object().unwrap();
        let there = features.iter().filter(|(_, value)| !value.is_null());
        assert_eq!(row.len(), there.count(), "{row:?}");
        for (name, value) in row {
            assert_eq!(value, features[&name], "{name}");
        }
    }
}

#[test]
fn plain_examples_have_the_values_tensorflow_wrote() {
    let block = read(&TfRecord::default(), "plain");
    compare(&block, &expected("plain"));
    let float_list = Kind::List {
        dtype: Dtype::Float32,
    };
    let kinds: Vec<_> = block.fields().iter().map(|field| &field.kind).collect();
    assert_eq!(kinds, [&Kind::Bytes, &Kind::Varints, &float_list, &Kind::Varints]);
    compare(
        &read(&TfRecord::new(Records::Examples).with_lists(), "plain"),
        &expected("plain"),
    );
}

#[test]
fn lists_of_any_length_and_unpacked_numbers_are_read() {
    compare(&read(&TfRecord::default(), "varying"), &expected("varying"));
    compare(&read(&TfRecord::default(), "unpacked"), &expected("unpacked"));
}

#[test]
fn sequence_examples_have_context_and_lists() {
    let block = read(&TfRecord::default(), "sequence");
    let expected = expected("sequence");
    for (row, expected) in rows(&block).into_iter().zip(expected.as_array().unwrap()) {
        let (context, lists) = (&expected["context"], &expected["feature_lists"]);
        let count = [context, lists].map(|map| map.as_object().unwrap().len());
        assert_eq!(row.len(), count[0] + count[1]);
        for (name, value) in row {
            let expected = context.get(&name).unwrap_or_else(|| &lists[&name]);
            assert_eq!(&value, expected, "{name}");
        }
    }
}

#[test]
fn raw_records_are_whole() {
    let block = read(&TfRecord::default(), "raw");
    assert_eq!(block.fields(), [Field::new("record", Kind::Bytes)]);
    let records: Vec<String> = (0..block.len())
        .map(|row| hex(block.field(row, 0).unwrap()))
        .collect();
    assert_eq!(json!(records), expected("raw"));
}

fn write(block: &Block) -> Vec<u8> {
    let mut writer = Box::new(TfRecordWriter::new());
    for row in 0..block.len() {
        let fields: Vec<(&Field, &[u8])> = block
            .fields()
            .iter()
            .enumerate()
            .filter_map(|(column, field)| Some((field, block.field(row, column)?)))
            .collect();
        writer
            .add(SampleRef {
                key: "",
                fields: &fields,
            })
            .unwrap();
    }
    writer.finish().unwrap().to_vec()
}

#[test]
fn what_we_write_is_byte_for_byte_what_tensorflow_writes() {
    for name in ["plain", "raw", "unpacked"] {
        let written = write(&read(&TfRecord::default(), name));
        assert!(written == fixture(&format!("{name}.tfrecord")), "{name}");
    }
    // From arrays instead of features.
    let plain = read(&TfRecord::default(), "plain");
    let label = Field::new(
        "label",
        Kind::Array {
            dtype: Dtype::Int8,
            shape: vec![],
        },
    );
    let half = Field::new(
        "pixels",
        Kind::List {
            dtype: Dtype::Float16,
        },
    );
    let tokens = Field::new("tokens", Kind::List { dtype: Dtype::Int64 });
    let image = Field::new("image", Kind::Image);
    let int64 = |values: &[i64]| {
        values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let halves = [0x00, 0x38, 0x00, 0xbd, 0x00, 0x42];
    let mut writer = Box::new(TfRecordWriter::new());
    let fields: &[(&Field, &[u8])] = &[
        (&image, plain.field(0, 0).unwrap()),
        (&label, &[7]),
        (&half, &halves),
        (&tokens, &int64(&[0, 127, 128, 300, 1 << 62])),
    ];
    writer.add(SampleRef { key: "k", fields }).unwrap();
    let written = writer.finish().unwrap().to_vec();
    assert!(written == fixture("plain.tfrecord")[..written.len()]);
}

#[test]
fn a_sequence_example_survives_writing() {
    let block = read(&TfRecord::default(), "sequence");
    let bytes = Bytes::from(write(&block));
    let table = scan_bytes(TfRecord::default().start(), &bytes, 1000).unwrap();
    let again = Block::from_bytes(Arc::new(table), 0..block.len() as u64, bytes, 0).unwrap();
    assert_eq!(rows(&again), rows(&block));
}

#[tokio::test]
async fn compressed_files_are_told_by_their_bytes() {
    let context = Context::open(DiskConfig::default()).unwrap().with_state_dir(None);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let codecs = [
        ("plain", Codec::None),
        ("gzip", Codec::Gzip),
        ("zlib", Codec::Zlib),
    ];
    let mut tables = Vec::new();
    for (name, codec) in codecs {
        // The ending lies for two of them.
        let key = Key::parse(&format!("{name}.tfrecord.gz")).unwrap();
        let bytes = fixture(&format!("{name}.tfrecord"));
        store
            .put_bytes(&key, &bytes, &PutOptions::default())
            .await
            .unwrap();
        let source = ShardSource::open(Arc::clone(&store), &key, &context)
            .await
            .unwrap();
        let format: &dyn Format = &TfRecord::default();
        let tabulated = tabulate(format, &source).await.unwrap();
        assert_eq!(tabulated.codec, codec);
        assert_eq!(tabulated.raw_bytes, fixture("plain.tfrecord").len() as u64);
        tables.push(tabulated.table);
    }
    assert!(tables[0] == tables[1] && tables[0] == tables[2]);
}
