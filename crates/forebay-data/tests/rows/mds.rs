//! MDS as mosaicml-streaming writes it, read; and the same samples, written byte for byte the same.

use std::collections::BTreeMap;
use std::fs;

use forebay_core::{ErrorKind, Key};
use forebay_data::format::mds::{Encoding, HashName, Index, Mds, MdsWriter, Settings, ShardEntry};
use forebay_data::format::{SampleRef, ShardWriter};
use forebay_data::{Field, Kind};
use serde_json::Value as Json;

use crate::{block, check_value, fixture, json, key, tabulated, unhex};

const DATA_SETS: [&str; 8] = [
    "every",
    "plain",
    "hashed",
    "compressed/br",
    "compressed/bz2-1",
    "compressed/gz",
    "compressed/snappy",
    "compressed/zstd-7",
];

fn index(name: &str) -> Index {
    let text = fs::read(fixture(&format!("mds/{name}/index.json"))).unwrap();
    Index::parse(&text).unwrap()
}

fn stored(name: &str, entry: &ShardEntry) -> Vec<u8> {
    fs::read(fixture(&format!("mds/{name}/{}", entry.stored().key))).unwrap()
}

/// What they wrote into it.
fn expected(name: &str) -> Vec<Json> {
    let name = if name.starts_with("compressed") {
        "plain"
    } else {
        name
    };
    let samples = json(&fixture(&format!("mds/{name}/expected.json")));
    samples.as_array().unwrap().clone()
}

#[tokio::test]
async fn every_value_they_write_is_read() {
    for name in DATA_SETS {
        let (index, mut expected) = (index(name), expected(name).into_iter());
        assert_eq!(index.samples(), expected.len() as u64);
        let directory = key("some/where");
        for format in [Mds::new().with_index(&directory, index.clone()), Mds::new()] {
            let mut expected = expected.clone();
            for entry in &index.shards {
                let file = directory.join(&entry.stored().key);
                let block = block(&format, &file, &stored(name, entry)).await;
                assert_eq!(block.len() as u64, entry.samples);
                for sample in 0..block.len() {
                    let expected = expected.next().unwrap();
                    assert_eq!(block.fields().len(), expected.as_object().unwrap().len());
                    for (column, field) in block.fields().iter().enumerate() {
                        let bytes = block.field(sample, column).unwrap();
                        let value = &expected[&field.name];
                        assert_eq!(bytes, unhex(&value["hex"]), "{name} {}", field.name);
                        check_value(&field.kind, bytes, &value["value"]);
                    }
                }
            }
            assert!(expected.next().is_none());
        }
        assert!(expected.next().is_some());
    }
}

/// Their settings, from their index.json.
fn settings(index: &Index) -> Settings {
    let entry = &index.shards[0];
    let columns = entry
        .columns
        .iter()
        .map(|column| (column.name.clone(), column.encoding.clone()));
    Settings::new(columns)
        .unwrap()
        .with_hashes(entry.hashes.iter().copied())
        .with_compression(entry.compression)
        .with_size_limit(entry.size_limit)
        .unwrap()
}

/// Write samples as a data set: shards of the size they would have, each with its bytes, and index.json.
fn written(settings: &Settings, samples: &[Json], limit: Option<u64>) -> (Vec<Vec<u8>>, Index) {
    let (mut shards, mut index) = (Vec::new(), Index::default());
    let fields: Vec<Field> = settings
        .columns()
        .iter()
        .map(|column| Field::new(column.name.clone(), column.encoding.kind()))
        .collect();
    let mut writer = settings.writer().unwrap();
    let mut is_empty = true;
    let mut seal = |writer: MdsWriter| {
        let raw = Box::new(writer).finish().unwrap();
        let sealed = settings.seal(shards.len() as u64, raw.to_vec()).unwrap();
        index.shards.push(sealed.entry);
        shards.push(sealed.bytes);
    };
    for sample in samples {
        let values: Vec<Vec<u8>> = fields
            .iter()
            .map(|field| unhex(&sample[&field.name]["hex"]))
            .collect();
        let pairs: Vec<(&Field, &[u8])> = fields.iter().zip(values.iter().map(Vec::as_slice)).collect();
        let sample = SampleRef {
            key: "",
            fields: &pairs,
        };
        if !is_empty && limit.is_some_and(|limit| writer.bytes_with(sample) > limit) {
            seal(std::mem::replace(&mut writer, settings.writer().unwrap()));
        }
        let bytes = writer.bytes_with(sample);
        writer.add(sample).unwrap();
        is_empty = false;
        assert!(bytes > 0);
    }
    seal(writer);
    (shards, index)
}

#[test]
fn what_we_write_is_what_they_write_byte_for_byte() {
    for name in ["every", "plain", "hashed"] {
        let theirs = index(name);
        let entry = &theirs.shards[0];
        // `jpegarray` is their other word for `jpeg_array`; we write the first one only.
        let is_alias = |text: &[u8]| String::from_utf8_lossy(text).replace("jpegarray", "jpeg_array");
        let (shards, ours) = written(&settings(&theirs), &expected(name), entry.size_limit);
        assert_eq!(shards.len(), theirs.shards.len());
        let text = fs::read(fixture(&format!("mds/{name}/index.json"))).unwrap();
        if name != "every" {
            for (shard, entry) in shards.iter().zip(&theirs.shards) {
                assert!(*shard == stored(name, entry), "{name} {}", entry.raw.key);
            }
            assert_eq!(ours.to_json().unwrap(), text, "{name}");
            continue;
        }
        // With the alias, the shard is one letter longer, and its offsets and hashes differ: compare what does not depend on them.
        let (ours_text, theirs_text) = (ours.to_json().unwrap(), is_alias(&text));
        assert_eq!(shards[0].len(), stored(name, entry).len() + 1);
        let columns = |text: &str| text[..text.find("\"compression\"").unwrap()].to_owned();
        assert_eq!(
            columns(&String::from_utf8(ours_text).unwrap()),
            columns(&theirs_text)
        );
        let body = |shard: &[u8], samples: usize| {
            let at = 4 + 4 * samples;
            let end = u32::from_le_bytes(shard[at..at + 4].try_into().unwrap());
            assert_eq!(end as usize, shard.len());
            let start = u32::from_le_bytes(shard[4..8].try_into().unwrap());
            shard[start as usize..].to_vec()
        };
        let samples = entry.samples as usize;
        assert!(body(&shards[0], samples) == body(&stored(name, entry), samples));
    }
}

#[tokio::test]
async fn compressed_shards_of_ours_are_read_back_and_listed_as_theirs() {
    for name in &DATA_SETS[3..] {
        let theirs = index(name);
        let (shards, ours) = written(&settings(&theirs), &expected(name), theirs.shards[0].size_limit);
        assert_eq!(ours.shards.len(), theirs.shards.len());
        // Nothing but the compressor's own work may differ.
        let mut alike = ours.clone();
        for (ours, theirs) in alike.shards.iter_mut().zip(&theirs.shards) {
            let (zip, known) = (ours.zip.as_mut().unwrap(), theirs.zip.as_ref().unwrap());
            zip.bytes = known.bytes;
            zip.hashes.clone_from(&known.hashes);
        }
        assert_eq!(alike, theirs, "{name}");
        let format = Mds::new().with_index(&Key::ROOT, ours.clone());
        for (shard, entry) in shards.iter().zip(&ours.shards) {
            let block = block(&format, &entry.stored().key, shard).await;
            assert_eq!(block.len() as u64, entry.samples);
        }
    }
}

#[tokio::test]
async fn a_shard_that_is_not_what_the_index_says_is_refused() {
    let index = index("compressed/zstd-7");
    let entry = &index.shards[1];
    let name = entry.stored().key.clone();
    let bytes = stored("compressed/zstd-7", entry);
    let refused = async |index: Index, name: &Key, bytes: &[u8], words: &str| {
        let format = Mds::new().with_index(&Key::ROOT, index);
        let error = tabulated(&format, name, bytes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().contains(name.as_str()), "{error}");
    };
    let changed = |change: fn(&mut ShardEntry)| {
        let mut index = index.clone();
        change(&mut index.shards[1]);
        index
    };
    refused(index.clone(), &key("other.mds"), &bytes, "does not list").await;
    refused(index.clone(), &name, &bytes[..9], "index.json says").await;
    let index = changed(|entry| entry.samples += 1);
    refused(index, &name, &bytes, "samples").await;
    let index = changed(|entry| entry.raw.bytes += 1);
    refused(index, &name, &bytes, "offsets of the shard end").await;
    let index = changed(|entry| entry.columns = entry.columns[1..].into());
    refused(index, &name, &bytes, "columns").await;
    let index = changed(|entry| entry.raw.hashes[1].1.replace_range(..1, "g"));
    refused(index, &name, &bytes, "xxh3_64 of the raw shard").await;
    let index = changed(|entry| entry.zip.as_mut().unwrap().hashes[0].1.replace_range(..1, "g"));
    refused(index, &name, &bytes, "md5 of the compressed shard").await;
}

#[tokio::test]
async fn every_checksum_they_know_is_compared() {
    let index = index("hashed");
    let bytes = stored("hashed", &index.shards[0]);
    assert_eq!(index.shards[0].hashes, HashName::ALL);
    for number in 0..HashName::ALL.len() {
        let mut index = index.clone();
        let hashes = &mut index.shards[0].raw.hashes;
        hashes[number].1.pop();
        let format = Mds::new().with_index(&Key::ROOT, index.clone());
        let error = tabulated(&format, &index.shards[0].raw.key, &bytes)
            .await
            .unwrap_err();
        let name = HashName::ALL[number].name();
        assert!(error.to_string().contains(&format!("the {name} of")), "{error}");
    }
}

#[tokio::test]
async fn pickles_are_refused_unless_asked_for() {
    let index = index("pickle");
    let entry = &index.shards[0];
    let (file, bytes) = (entry.raw.key.clone(), stored("pickle", entry));
    let error = tabulated(&Mds::new(), &file, &bytes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("'thing'"), "{error}");
    let block = block(&Mds::new().allow_pickle(), &file, &bytes).await;
    assert_eq!(block.fields()[1], Field::new("thing", Kind::Bytes));
    let expected = unhex(&expected("pickle")[0]["thing"]["hex"]);
    assert_eq!(block.field(0, 1), Some(&expected[..]));
}

#[tokio::test]
async fn the_cache_of_theirs_keeps_raw_files_beside_a_compressed_index() {
    let index = index("compressed/gz");
    let plain = crate::mds::index("plain");
    // The same samples with the same settings but for compression would have another header; make the raw file from the stored one.
    let entry = &index.shards[0];
    let mut decoder = forebay_data::codec::Decoder::new(forebay_data::codec::Codec::Gzip);
    let mut raw = Vec::new();
    let mut sink = |bytes: &[u8]| {
        raw.extend_from_slice(bytes);
        Ok(())
    };
    decoder.feed(&stored("compressed/gz", entry), &mut sink).unwrap();
    decoder.finish(&mut sink).unwrap();
    let format = Mds::new().with_index(&Key::ROOT, index.clone());
    let block = block(&format, &entry.raw.key, &raw).await;
    assert_eq!(block.len() as u64, entry.samples);
    assert_ne!(plain.shards[0].size_limit, entry.size_limit);
}

#[test]
fn encodings_are_found_for_every_column_of_theirs() {
    let columns = &index("every").shards[0].columns;
    let names: BTreeMap<&str, &Encoding> = columns
        .iter()
        .map(|column| (column.name.as_str(), &column.encoding))
        .collect();
    assert_eq!(names["jb"], names["ja"]);
    assert_eq!(names["i"], &Encoding::Int);
}
