//! Petastorm: the schema out of pickles of every protocol, and the values that its own codecs encoded.

#[path = "parquet/common.rs"]
#[expect(dead_code, reason = "shared with the tests of Parquet")]
mod common;

use std::path::PathBuf;
use std::sync::Arc;

use common::hex;
use forebay_core::ErrorKind;
use forebay_data::Field;
use forebay_data::filter::Filter;
use forebay_data::format::parquet::Parquet;
use forebay_data::format::petastorm::{COMMON_METADATA, Petastorm, Unischema, UnischemaCodec};
use forebay_data::format::tabulate;
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    fields: Vec<Field>,
    rows: Vec<Vec<Option<String>>>,
}

fn bytes(name: &str) -> Vec<u8> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/petastorm"));
    std::fs::read(folder.join(name)).unwrap()
}

/// Name, type, shape, codec, nullable.
type Described = (String, String, Vec<Option<u64>>, String, bool);

fn described(schema: &Unischema) -> Vec<Described> {
    let codec = |name: &str, codec| match codec {
        UnischemaCodec::Scalar if name == "label" => "NoneType",
        UnischemaCodec::Scalar => "ScalarCodec",
        UnischemaCodec::Ndarray => "NdarrayCodec",
        UnischemaCodec::CompressedNdarray => "CompressedNdarrayCodec",
        UnischemaCodec::CompressedImage => "CompressedImageCodec",
    };
    let fields = schema.fields.iter().map(|field| {
        let codec = codec(&field.name, field.codec).to_owned();
        (
            field.name.clone(),
            field.dtype.clone(),
            field.shape.clone(),
            codec,
            field.is_nullable,
        )
    });
    fields.collect()
}

#[test]
fn schemas_of_every_protocol_are_read() {
    let expected: Vec<Described> = serde_json::from_slice(&bytes("schema.json")).unwrap();
    assert_eq!(expected.len(), 8);
    let protocols = (0..6).map(|protocol| format!("protocol-{protocol}.pkl"));
    for name in protocols.chain(["restored.pkl".to_owned()]) {
        let schema = Unischema::from_pickle(&bytes(&name)).unwrap();
        assert_eq!(schema.name, "Sample", "{name}");
        assert_eq!(described(&schema), expected, "{name}");
    }
}

#[test]
fn damaged_schemas_are_errors() {
    for name in [
        "protocol-0.pkl",
        "protocol-2.pkl",
        "protocol-4.pkl",
        "restored.pkl",
    ] {
        let whole = bytes(name);
        for len in 0..whole.len() {
            assert!(Unischema::from_pickle(&whole[..len]).is_err(), "{name} {len}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x21;
            let _ = Unischema::from_pickle(&damaged);
        }
    }
    let other = Unischema::from_pickle(b"\x80\x04K\x01.").unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Unsupported, "{other}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_its_codecs_encode_is_decoded() {
    let expected: Expected = serde_json::from_slice(&bytes("dataset.json")).unwrap();
    let metadata = common::stored(&bytes(COMMON_METADATA)).await;
    let (format, _) = Petastorm::open(&metadata, Parquet::default()).await.unwrap();
    let source = common::stored(&bytes("part-00000.parquet")).await;
    let table = Arc::new(tabulate(&format, &source).await.unwrap().table);
    assert_eq!(table.fields, expected.fields);
    let (file, _) = format.open_file(&source).await.unwrap();
    let filter = Filter::parse("label >= 0 and matrix is not null")
        .unwrap()
        .bind(file.fields())
        .unwrap();
    let mut kept = Vec::new();
    for group in 0..file.groups().len() {
        let decoded = file
            .decode_group(&source, &table, group, None, Some(&filter))
            .await
            .unwrap();
        let block = decoded.block;
        kept.extend(
            decoded
                .rows
                .unwrap()
                .iter()
                .map(|row| block.first() + u64::from(*row)),
        );
        for row in 0..block.len() {
            for (column, wanted) in expected.rows[block.first() as usize + row].iter().enumerate() {
                // A group without a row that remains is not decoded beyond the filter.
                assert_eq!(
                    block.field(row, column).map(hex),
                    *wanted,
                    "row {row}, column {column}"
                );
            }
        }
    }
    assert_eq!(kept, [1, 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_set_without_a_schema_says_so() {
    let metadata = common::stored(&bytes("part-00000.parquet")).await;
    let error = Petastorm::open(&metadata, Parquet::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.message().contains("dataset-toolkit.unischema.v1"),
        "{error}"
    );
}
