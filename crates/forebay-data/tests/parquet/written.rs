//! What Forebay writes: read back the same, repeatable to the byte, with page checksums.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::ErrorKind;
use forebay_data::format::parquet::{File, ParquetOptions, ParquetWriter};
use forebay_data::format::{SampleRef, ShardWriter, scan_bytes};
use forebay_data::{Dtype, Field, Kind};
use parquet::file::metadata::ParquetMetaDataReader;
use proptest::prelude::*;

use crate::common::{file_bytes, folder};

type Sample = Vec<Option<Vec<u8>>>;

fn write(fields: &[Field], samples: &[Sample], options: ParquetOptions) -> Bytes {
    let mut writer = Box::new(ParquetWriter::new(fields, options).unwrap());
    for (index, sample) in samples.iter().enumerate() {
        let key = format!("k{index}");
        let pairs = fields.iter().zip(sample);
        let pairs: Vec<(&Field, &[u8])> = pairs
            .filter_map(|(field, value)| Some((field, value.as_deref()?)))
            .collect();
        let sample = SampleRef {
            key: &key,
            fields: &pairs,
        };
        let before = writer.bytes_with(sample);
        writer.add(sample).unwrap();
        assert!(writer.bytes_with(sample) > before);
    }
    writer.finish().unwrap().into_bytes()
}

fn read(bytes: &Bytes) -> (Vec<Field>, Vec<Sample>, usize) {
    let file = File::from_bytes(bytes, None).unwrap();
    let table = Arc::new(scan_bytes(file.clone().scan(), bytes, 1 << 16).unwrap());
    let mut samples = Vec::new();
    for (index, group) in file.groups().iter().enumerate() {
        let extent = bytes.slice(group.extent.start() as usize..group.extent.end() as usize);
        let block = file
            .decode_bytes(&extent, &table, index, None, None)
            .unwrap()
            .block;
        for row in 0..block.len() {
            let columns = 0..table.fields.len();
            samples.push(
                columns
                    .map(|column| block.field(row, column).map(<[u8]>::to_vec))
                    .collect(),
            );
        }
    }
    (table.fields.clone(), samples, file.groups().len())
}

fn kind() -> impl Strategy<Value = Kind> {
    let dtype = || prop::sample::select(Dtype::ALL.to_vec());
    prop_oneof![
        Just(Kind::Bytes),
        Just(Kind::Text),
        Just(Kind::Json),
        Just(Kind::Decimal),
        Just(Kind::Image),
        Just(Kind::Varints),
        Just(Kind::Encoded {
            encoding: "npy".to_owned()
        }),
        (dtype(), prop::collection::vec(1..4u64, 0..3))
            .prop_map(|(dtype, shape)| Kind::Array { dtype, shape }),
        dtype().prop_map(|dtype| Kind::List { dtype }),
    ]
}

/// A value of a kind from arbitrary bytes.
fn value(kind: &Kind, bytes: &[u8]) -> Vec<u8> {
    let cycled = |len: usize| {
        bytes
            .iter()
            .chain([&7])
            .copied()
            .cycle()
            .take(len)
            .collect::<Vec<u8>>()
    };
    match kind {
        Kind::Array {
            dtype: Dtype::Bool,
            shape,
        } if shape.is_empty() => vec![bytes.len() as u8 % 2],
        Kind::Array { .. } => cycled(kind.fixed_bytes().unwrap() as usize),
        Kind::List { dtype: Dtype::Bool } => bytes.iter().map(|byte| byte % 2).collect(),
        Kind::List { dtype } => cycled(bytes.len() / 4 * dtype.bytes() as usize),
        Kind::Text | Kind::Json | Kind::Decimal => bytes.iter().map(|byte| byte % 128).collect(),
        _ => bytes.to_vec(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_written_is_read(
        kinds in prop::collection::vec(kind(), 1..6),
        rows in prop::collection::vec(prop::collection::vec(prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..40)), 6), 0..40),
        zstd_level in prop::option::of(1..4i32),
        group_bytes in 1..2000u64,
        has_keys in any::<bool>(),
    ) {
        let fields: Vec<Field> = kinds.iter().enumerate().map(|(index, kind)| Field::new(format!("f{index}"), kind.clone())).collect();
        let samples: Vec<Sample> = rows.iter().map(|row| {
            fields.iter().zip(row).map(|(field, bytes)| bytes.as_ref().map(|bytes| value(&field.kind, bytes))).collect()
        }).collect();
        let options = ParquetOptions { zstd_level, group_bytes, has_keys };
        let bytes = write(&fields, &samples, options);
        prop_assert_eq!(&bytes, &write(&fields, &samples, options));
        let (mut read_fields, mut read_samples, groups) = read(&bytes);
        prop_assert_eq!(groups == 0, samples.is_empty());
        if has_keys {
            prop_assert_eq!(read_fields.remove(0), Field::new("__key__", Kind::Text));
            for (index, sample) in read_samples.iter_mut().enumerate() {
                prop_assert_eq!(sample.remove(0), Some(format!("k{index}").into_bytes()));
            }
        }
        prop_assert_eq!(read_fields, fields);
        prop_assert_eq!(read_samples, samples);
    }
}

/// Dates, times and decimals of files that pyarrow wrote are what they were when they are written anew, for us and, by their types, for everybody.
#[test]
fn what_integers_count_is_kept() {
    for name in ["times", "decimals", "decimals-int", "int96"] {
        let (fields, samples, _) = read(&file_bytes(name));
        assert!(fields.iter().any(|field| field.unit.is_some()), "{name}");
        let bytes = write(
            &fields,
            &samples,
            ParquetOptions {
                has_keys: false,
                ..ParquetOptions::default()
            },
        );
        let (again, same, _) = read(&bytes);
        assert_eq!((again, same), (fields.clone(), samples), "{name}");
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
        let columns = metadata.file_metadata().schema_descr().columns();
        for (field, column) in fields.iter().zip(columns) {
            // Parquet has no type for durations.
            let is_typed = column.logical_type_ref().is_some();
            assert_eq!(is_typed, field.name != "duration", "{}", field.name);
        }
    }
    let wide = Field::new(
        "wide",
        Kind::Encoded {
            encoding: "decimal128:38,10".to_owned(),
        },
    );
    let mut writer = ParquetWriter::new(std::slice::from_ref(&wide), ParquetOptions::default()).unwrap();
    let fields = [(&wide, &[0; 15][..])];
    let error = writer
        .add(SampleRef {
            key: "k",
            fields: &fields,
        })
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// One of each kind, in several row groups.
fn ours() -> Bytes {
    let scalar = |dtype| Kind::Array { dtype, shape: vec![] };
    let mut fields: Vec<Field> = Dtype::ALL
        .iter()
        .map(|dtype| Field::new(dtype.name(), scalar(*dtype)))
        .collect();
    fields.extend([
        Field::new(
            "tokens",
            Kind::Array {
                dtype: Dtype::Uint16,
                shape: vec![2, 3],
            },
        ),
        Field::new("list", Kind::List { dtype: Dtype::Int32 }),
        Field::new("text", Kind::Text),
        Field::new("json", Kind::Json),
        Field::new("image", Kind::Image),
    ]);
    let samples: Vec<Sample> = (0..20u8)
        .map(|row| {
            let bytes: Vec<u8> = (0..row).map(|index| index * 3 + row).collect();
            let mut sample: Sample = fields
                .iter()
                .map(|field| Some(value(&field.kind, &bytes)))
                .collect();
            let missing = usize::from(row) % fields.len();
            sample[missing] = None;
            sample
        })
        .collect();
    let options = ParquetOptions {
        zstd_level: Some(3),
        group_bytes: 1000,
        ..ParquetOptions::default()
    };
    write(&fields, &samples, options)
}

#[test]
fn the_bytes_are_those_that_pyarrow_has_read() {
    let kept = std::fs::read(folder().join("ours.parquet")).unwrap();
    assert!(
        ours() == kept,
        "the writer writes other bytes: read them by pyarrow (fixtures/parquet/check.py) and keep them"
    );
}

/// What earlier versions wrote is read for ever.
#[test]
fn files_of_earlier_versions_are_read() {
    let (kept, now) = (read(&file_bytes("ours-v1")), read(&ours()));
    assert_eq!(kept, now);
}

#[test]
#[ignore = "writes the fixture that the test above compares with"]
fn keep_our_bytes() {
    std::fs::write(folder().join("ours.parquet"), ours()).unwrap();
}

#[test]
fn samples_that_do_not_fit_are_refused_and_leave_no_trace() {
    let number = Field::new(
        "n",
        Kind::Array {
            dtype: Dtype::Int32,
            shape: vec![],
        },
    );
    let text = Field::new("t", Kind::Text);
    let mut writer =
        Box::new(ParquetWriter::new(&[number.clone(), text.clone()], ParquetOptions::default()).unwrap());
    let other = Field::new("n", Kind::Text);
    let unknown = Field::new("u", Kind::Text);
    let bad: [&[(&Field, &[u8])]; 5] = [
        &[(&number, b"abc")],
        &[(&text, b"\xff")],
        &[(&other, b"abcd")],
        &[(&text, b"a"), (&unknown, b"b")],
        &[(&number, b"abcd"), (&number, b"abcd")],
    ];
    for fields in bad {
        let error = writer.add(SampleRef { key: "k", fields }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    writer
        .add(SampleRef {
            key: "k",
            fields: &[(&text, b"a"), (&number, b"abcd")],
        })
        .unwrap();
    let (_, samples, _) = read(&writer.finish().unwrap().into_bytes());
    assert_eq!(
        samples,
        [vec![
            Some(b"k".to_vec()),
            Some(b"abcd".to_vec()),
            Some(b"a".to_vec())
        ]]
    );
    let twice = ParquetWriter::new(&[text.clone(), text], ParquetOptions::default());
    assert_eq!(twice.unwrap_err().kind(), ErrorKind::InvalidInput);
}
