//! LitData's chunks as litdata writes them, read.

use std::fs;

use forebay_core::{ErrorKind, Key, Result};
use forebay_data::Kind;
use forebay_data::codec::Codec;
use forebay_data::format::litdata::{Index, LitData};
use serde_json::Value as Json;

use crate::{block, check_value, fixture, json, key, tabulated, unhex};

fn index(name: &str) -> Result<Index> {
    Index::parse(&fs::read(fixture(&format!("litdata/{name}/index.json"))).unwrap())
}

fn stored(name: &str, file: &Key) -> Vec<u8> {
    fs::read(fixture(&format!("litdata/{name}/{file}"))).unwrap()
}

#[tokio::test]
async fn every_leaf_they_write_is_read() {
    for name in ["every", "whole", "frames", "leaf", "tokens"] {
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
    for (name, words) in [
        ("encrypted", "encrypted with fernet"),
        ("sample", "every item is compressed"),
    ] {
        let error = index(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        assert!(error.to_string().contains(words), "{error}");
    }
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
    refused("every", |index| index.leaves.truncate(2), "columns of sample 0").await;
}
