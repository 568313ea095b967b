//! LitData's chunks as litdata writes them, read.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ErrorKind, Key, Result};
use forebay_data::codec::Codec;
use forebay_data::format::litdata::{Index, LitData};
use forebay_data::format::{Chunks, Format};
use forebay_data::{Dtype, Kind, Layout};
use serde_json::Value as Json;

use crate::{block, check_value, fixture, json, key, source, tabulated, unhex};

fn index(name: &str) -> Result<Index> {
    Index::parse(&fs::read(fixture(&format!("litdata/{name}/index.json"))).unwrap())
}

fn stored(name: &str, file: &Key) -> Vec<u8> {
    fs::read(fixture(&format!("litdata/{name}/{file}"))).unwrap()
}

#[tokio::test]
async fn every_leaf_they_write_is_read() {
    for name in ["every", "whole", "frames", "sample", "leaf", "tokens"] {
        let index = index(name).unwrap();
        let expected = json(&fixture(&format!("litdata/{name}/expected.json")));
        let mut expected = expected.as_array().unwrap().iter();
        assert_eq!(index.items(), expected.len() as u64, "{name}");
        let directory = key("train");
        let format = LitData::new(&directory, index.clone());
        for chunk in &index.chunks {
            let bytes = stored(name, &chunk.key);
            let block = block(&format, &directory.join(&chunk.key), &bytes).await;
            assert_eq!(block.len() as u64, chunk.items);
            for sample in 0..block.len() {
                let expected = expected.next().unwrap();
                let names: Vec<&str> = block.fields().iter().map(|field| field.name.as_str()).collect();
                let known: Vec<&String> = expected.as_object().unwrap().keys().collect();
                assert_eq!(names.len(), known.len(), "{names:?} {known:?}");
                for (column, field) in block.fields().iter().enumerate() {
                    check_leaf(
                        &field.kind,
                        block.field(sample, column).unwrap(),
                        &expected[&field.name],
                    );
                }
            }
        }
        assert!(expected.next().is_none(), "{name}");
    }
}

/// What a field of a row is, as the value it was written as.
fn row_value(kind: &Kind, bytes: Option<&[u8]>) -> Json {
    let Some(bytes) = bytes else {
        return Json::Null;
    };
    let number = || i64::from_le_bytes(bytes.try_into().unwrap());
    match kind {
        Kind::Text => std::str::from_utf8(bytes).unwrap().into(),
        Kind::Bytes => {
            let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            let hex: String = digits
                .filter_map(|digit| char::from_digit(digit.into(), 16))
                .collect();
            serde_json::json!({"hex": hex})
        }
        Kind::Json => serde_json::from_slice(bytes).unwrap(),
        Kind::Array {
            dtype: Dtype::Bool, ..
        } => (bytes == [1]).into(),
        Kind::Array {
            dtype: Dtype::Int64, ..
        } => number().into(),
        Kind::Array {
            dtype: Dtype::Float64,
            ..
        } => f64::from_bits(number() as u64).into(),
        Kind::List { dtype: Dtype::Int64 } => bytes
            .chunks(8)
            .map(|value| i64::from_le_bytes(value.try_into().unwrap()))
            .collect(),
        other => panic!("{other:?}"),
    }
}

/// The value that a field of a row came from: fields of structs have the way to them as a name.
fn way<'a>(row: &'a Json, name: &str) -> &'a Json {
    name.split('.').fold(row, |value, part| &value[part])
}

#[tokio::test]
async fn rows_they_keep_as_arrow_are_read() {
    for (name, groups) in [("arrow", [2, 1]), ("arrow-zstd", [1, 1])] {
        let index = index(name).unwrap();
        let expected = json(&fixture(&format!("litdata/{name}/expected.json")));
        let mut expected = expected.as_array().unwrap().iter();
        let format = LitData::new(&Key::ROOT, index.clone());
        for (chunk, groups) in index.chunks.iter().zip(groups) {
            let stored = Bytes::from(stored(name, &chunk.key));
            let table = Arc::new(tabulated(&format, &chunk.key, &stored).await.unwrap().table);
            table.check(stored.len() as u64).unwrap();
            let names: Vec<&str> = table.fields.iter().map(|field| field.name.as_str()).collect();
            let known = [
                "text",
                "number",
                "share",
                "is_odd",
                "raw",
                "list",
                "talk",
                "inner.left",
                "inner.right",
            ];
            assert_eq!(names, known);
            let Layout::Groups(layout) = &table.layout else {
                panic!("{name}")
            };
            assert_eq!(layout.list.len(), groups);
            let source = source(&chunk.key, &stored).await;
            let decoder = format.decoder(&source, layout).await.unwrap();
            let chunks = Chunks::whole(0, stored.clone());
            let all: Vec<usize> = (0..known.len()).collect();
            for group in 0..groups {
                let block = decoder.decode(&chunks, &table, group, &all).unwrap();
                assert_eq!(block.len() as u64, layout.list[group].samples);
                for sample in 0..block.len() {
                    let expected = expected.next().unwrap();
                    for (column, field) in table.fields.iter().enumerate() {
                        let value = row_value(&field.kind, block.field(sample, column));
                        assert_eq!(
                            value,
                            *way(expected, &field.name),
                            "{name} {sample} {}",
                            field.name
                        );
                    }
                }
                // Some columns are what they are among all.
                let some = decoder.decode(&chunks, &table, group, &[8, 1]).unwrap();
                for sample in 0..block.len() {
                    for column in 0..known.len() {
                        let whole = block.field(sample, column).filter(|_| [1, 8].contains(&column));
                        assert_eq!(some.field(sample, column), whole);
                    }
                }
            }
        }
        assert!(expected.next().is_none(), "{name}");
    }
}

#[tokio::test]
async fn rows_of_arrow_that_changed_are_not_decoded() {
    let index = index("arrow-zstd").unwrap();
    let file = index.chunks[0].key.clone();
    let good = stored("arrow-zstd", &file);
    let format = LitData::new(&Key::ROOT, index);
    let table = Arc::new(tabulated(&format, &file, &good).await.unwrap().table);
    let Layout::Groups(groups) = &table.layout else {
        unreachable!()
    };
    let (rows, footer) = (groups.list[0].extent, groups.footer.extent);
    let opened = async |stored: &[u8]| {
        let source = source(&file, stored).await;
        format.decoder(&source, groups).await
    };
    let decoder = opened(&good).await.unwrap();
    for at in 0..good.len() {
        let mut stored = good.clone();
        stored[at] ^= 0x20;
        let place = at as u64;
        if (rows.start()..rows.end()).contains(&place) {
            let error = decoder
                .decode(&Chunks::whole(0, stored.into()), &table, 0, &[3])
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}");
        } else if (footer.start()..footer.end()).contains(&place) {
            let error = opened(&stored).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{at}");
        }
    }
    let error = opened(&good[..good.len() - 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

fn check_leaf(kind: &Kind, bytes: &[u8], expected: &Json) {
    match (expected.get("hex"), expected.get("magic")) {
        (Some(hex), _) => assert_eq!(bytes, unhex(hex)),
        (_, Some(magic)) => {
            assert!(bytes.starts_with(&unhex(magic)));
            assert_eq!(*kind, Kind::Image);
        }
        _ => check_value(kind, bytes, expected),
    }
}

#[tokio::test]
async fn the_index_says_how_chunks_are_compressed() {
    for (name, codec) in [
        ("every", Codec::None),
        ("whole", Codec::Zstd),
        ("frames", Codec::LitdataFrames),
        ("sample", Codec::LitdataItems),
        ("arrow-zstd", Codec::None),
    ] {
        let index = index(name).unwrap();
        let file = index.chunks[0].key.clone();
        let bytes = stored(name, &file);
        let tabulated = tabulated(&LitData::new(&Key::ROOT, index), &file, &bytes)
            .await
            .unwrap();
        assert_eq!(tabulated.codec, codec, "{name}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_by_name() {
    let error = index("encrypted").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("encrypted with fernet"), "{error}");
    let index = index("pickle").unwrap();
    let file = index.chunks[0].key.clone();
    let bytes = stored("pickle", &file);
    let format = LitData::new(&Key::ROOT, index);
    let error = tabulated(&format, &file, &bytes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("'thing'"), "{error}");
    let block = block(&format.allow_pickle(), &file, &bytes).await;
    assert_eq!(block.fields()[0].kind, Kind::Bytes);
}

#[tokio::test]
async fn a_chunk_that_is_not_what_the_index_says_is_refused() {
    let refused = async |name: &str, change: fn(&mut Index), words: &str| {
        let mut index = index(name).unwrap();
        let file = index.chunks[0].key.clone();
        let bytes = stored(name, &file);
        change(&mut index);
        let error = tabulated(&LitData::new(&Key::ROOT, index), &file, &bytes)
            .await
            .unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported),
            "{error}"
        );
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(error.to_string().contains(file.as_str()), "{error}");
    };
    refused("every", |index| index.chunks[0].items += 1, "items").await;
    refused("every", |index| index.chunks[0].bytes -= 1, "index.json says").await;
    refused("frames", |index| index.chunks[0].bytes -= 1, "index.json says").await;
    refused(
        "whole",
        |index| index.chunks[0].bytes -= 1,
        "offsets of the chunk end",
    )
    .await;
    refused(
        "whole",
        |index| index.chunks[0].bytes += 1,
        "behind the last item",
    )
    .await;
    refused("tokens", |index| index.chunks[0].tokens = Some(3), "tokens").await;
    refused("every", |index| index.chunks.clear(), "does not list").await;
    refused("sample", |index| index.chunks[0].items += 1, "6 items").await;
    refused("sample", |index| index.chunks[0].bytes += 1, "index.json says").await;
    refused("sample", |index| index.leaves.truncate(2), "the item has").await;
    refused("arrow", |index| index.chunks[0].items += 1, "260 items").await;
    refused("arrow", |index| index.chunks[0].bytes += 1, "index.json says").await;
    refused("every", |index| index.leaves.truncate(2), "columns of sample 0").await;
}
