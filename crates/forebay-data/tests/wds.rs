//! WebDataset shards made by others and by us: what is in them, through every layer above the parser.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ErrorKind, Key, Limits};
use forebay_data::codec::Codec;
use forebay_data::format::wds::{Wds, WdsScan, WdsWriter};
use forebay_data::format::{SampleRef, ShardWriter, scan_bytes, tabulate};
use forebay_data::{Block, Field, Kind, ShardSource, Table};
use forebay_io::{DiskConfig, EngineChoice};
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};
use proptest::prelude::*;

/// Key, and fields with their bytes.
type Plain = (String, BTreeMap<String, Vec<u8>>);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/wds")
}

/// The samples of a table, through the block that hands them out.
fn plain(table: Table, bytes: &Bytes) -> Vec<Plain> {
    table.check(bytes.len() as u64).unwrap();
    let count = table.samples();
    let block = Block::from_bytes(Arc::new(table), 0..count, bytes.clone(), 0).unwrap();
    let sample = |index: usize| {
        assert!(block.is_whole(index));
        let fields = block.fields().iter().enumerate();
        let fields = fields.filter_map(|(column, field)| {
            let data = block.field(index, column)?;
            Some((field.name.clone(), data.to_vec()))
        });
        (block.key(index).unwrap().to_owned(), fields.collect())
    };
    (0..block.len()).map(sample).collect()
}

fn read(bytes: &Bytes, step: usize) -> Vec<Plain> {
    let table = scan_bytes(Box::<WdsScan>::default(), bytes, step).unwrap();
    plain(table, bytes)
}

fn unhex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// What WebDataset itself read in each archive.
fn expected() -> BTreeMap<String, Vec<Plain>> {
    type Hex = Vec<(String, BTreeMap<String, String>)>;
    let text = fs::read_to_string(fixtures().join("expected.json")).unwrap();
    let archives: BTreeMap<String, Hex> = serde_json::from_str(&text).unwrap();
    let row = |(key, fields): (String, BTreeMap<String, String>)| {
        let fields = fields.into_iter().map(|(name, data)| (name, unhex(&data)));
        (key, fields.collect())
    };
    let rows = |(name, rows): (String, Hex)| (name, rows.into_iter().map(row).collect());
    archives.into_iter().map(rows).collect()
}

#[test]
fn what_others_write_is_read_as_webdataset_reads_it() {
    let archives = expected();
    assert_eq!(archives.len(), 10);
    for (name, samples) in archives.iter().filter(|(name, _)| !name.contains(".gz")) {
        let bytes = Bytes::from(fs::read(fixtures().join(name)).unwrap());
        assert!(samples.len() > 3, "{name}");
        for step in [1, 100, 512, 4096, usize::MAX] {
            assert_eq!(read(&bytes, step), *samples, "{name}, step {step}");
        }
    }
}

fn context() -> Context {
    let config = DiskConfig {
        limits: Limits {
            buffer_bytes_max: 64 << 20,
            ..Limits::default()
        },
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    Context::open(config).unwrap().with_state_dir(None)
}

async fn source(name: &str, bytes: &[u8]) -> ShardSource {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let key = Key::parse(name).unwrap();
    store
        .put_bytes(&key, bytes, &PutOptions::default())
        .await
        .unwrap();
    ShardSource::open(store, &key, &context()).await.unwrap()
}

#[tokio::test]
async fn a_compressed_shard_is_tabulated_as_if_it_were_not() {
    let name = "webdataset-now.tar.gz";
    let stored = fs::read(fixtures().join(name)).unwrap();
    let mut raw = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&stored[..]), &mut raw).unwrap();
    let raw = Bytes::from(raw);
    for name in [name, "shard-without-a-name-for-it"] {
        let done = tabulate(&Wds, &source(name, &stored).await).await.unwrap();
        assert_eq!((done.codec, done.raw_bytes), (Codec::Gzip, raw.len() as u64));
        assert_eq!(plain(done.table, &raw), expected()["webdataset-now.tar.gz"]);
    }
    let cut = &stored[..stored.len() / 2];
    let error = tabulate(&Wds, &source(name, cut).await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(name), "{error}");
}

#[tokio::test]
async fn an_error_names_the_shard_the_member_and_the_place() {
    let bytes = write(&[sample("a/b", &[("txt", &[7; 700])])]);
    let error = tabulate(&Wds, &source("train/0.tar", &bytes[..1000]).await)
        .await
        .unwrap_err();
    let text = error.to_string();
    for part in ["train/0.tar", "a/b.txt", "byte 1000"] {
        assert!(text.contains(part), "{text}");
    }
    let error = tabulate(&Wds, &source("empty.tar", b"").await).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

fn sample(key: &str, fields: &[(&str, &[u8])]) -> Plain {
    let fields = fields
        .iter()
        .map(|(name, data)| ((*name).to_owned(), data.to_vec()));
    (key.to_owned(), fields.collect())
}

/// The shard that our writer makes of these; its forecast of the size must hold after each.
fn write(samples: &[Plain]) -> Vec<u8> {
    let mut writer = Box::<WdsWriter>::default();
    let mut forecast = 10_240;
    for (key, fields) in samples {
        // Against their order: the writer sorts.
        let named = fields.iter().rev();
        let named: Vec<_> = named
            .map(|(name, data)| (Field::new(name, Kind::Bytes), data))
            .collect();
        let fields: Vec<_> = named.iter().map(|(field, data)| (field, &data[..])).collect();
        let sample = SampleRef { key, fields: &fields };
        forecast = writer.bytes_with(sample);
        writer.add(sample).unwrap();
    }
    let bytes = writer.finish().unwrap().to_vec();
    assert_eq!(bytes.len() as u64, forecast);
    bytes
}

#[test]
fn we_write_what_webdataset_writes_byte_for_byte() {
    let theirs = fs::read(fixtures().join("webdataset.tar")).unwrap();
    let ours = write(&expected()["webdataset.tar"]);
    let differs = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs);
    assert_eq!((ours.len(), differs), (theirs.len(), None));
}

/// Names of all lengths that matter, plain, in folders, and in other alphabets.
fn odd_samples() -> Vec<Plain> {
    let mut samples = Vec::new();
    for (index, len) in [1, 90, 95, 96, 97, 150, 156, 200, 255, 300]
        .into_iter()
        .enumerate()
    {
        let body = "x".repeat(len);
        let key = match index % 3 {
            0 => body,
            1 => format!("{}/{body}", "folder".repeat(len / 6)),
            _ => format!("caf\u{e9}/{body}"),
        };
        let data = vec![index as u8; 100 * index];
        samples.push(sample(&key, &[("bin", &data), ("seg.png", b""), ("txt", b"t")]));
    }
    samples
}

#[test]
fn gnu_tar_reads_what_we_write() {
    let Ok(version) = Command::new("tar").arg("--version").output() else {
        return;
    };
    if !String::from_utf8_lossy(&version.stdout).contains("GNU tar") {
        return;
    }
    let samples = odd_samples();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ours.tar");
    fs::write(&path, write(&samples)).unwrap();
    let members = samples.iter().flat_map(|(key, fields)| {
        let name = move |(field, data): (&String, &Vec<u8>)| (format!("{key}.{field}"), data.clone());
        fields.iter().map(name)
    });
    let (names, data): (Vec<_>, Vec<_>) = members.unzip();
    let tar = |args: &[&str]| {
        let mut command = Command::new("tar");
        command.args(args).arg("-f").arg(&path).env("LC_ALL", "C.UTF-8");
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && talk.is_empty(), "{talk}");
        output.stdout
    };
    let listed = String::from_utf8(tar(&["-t", "--quoting-style=literal"])).unwrap();
    assert_eq!(listed.lines().collect::<Vec<_>>(), names);
    assert!(tar(&["-x", "-O"]) == data.concat());
}

prop_compose! {
    /// Keys with what is special in names; those the writer refuses are left out.
    fn key()(key in "[a_.\u{e9}/ ]{1,12}|[a/]{90,110}|[a/]{200,270}|[ab]{1,3}") -> String {
        key
    }
}

fn accepted(key: &str) -> bool {
    let field = Field::new("x", Kind::Bytes);
    let fields = [(&field, &b""[..])];
    WdsWriter::default()
        .add(SampleRef { key, fields: &fields })
        .is_ok()
}

fn samples() -> impl Strategy<Value = Vec<Plain>> {
    let data = prop::collection::vec(any::<u8>(), 0..1200);
    let fields = prop::collection::btree_map("|x|[a-c]{1,2}|seg[.]png|\u{e9}", data, 1..5);
    let samples = prop::collection::vec((key().prop_filter("refused", |key| accepted(key)), fields), 0..12);
    samples.prop_map(|mut samples| {
        samples.dedup_by(|(one, _), (other, _)| one == other);
        samples
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_we_write_we_read_however_it_is_cut(samples in samples(), step in 1usize..3000) {
        let bytes = Bytes::from(write(&samples));
        prop_assert_eq!(bytes.len() % 10_240, 0);
        prop_assert_eq!(&read(&bytes, step), &samples);
        prop_assert_eq!(&write(&samples), &bytes);
    }

    #[test]
    fn damage_gives_an_error_or_whole_samples(
        samples in samples(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        step in 1usize..3000,
    ) {
        let mut bytes = write(&samples);
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        let bytes = Bytes::from(bytes);
        let whole = scan_bytes(Box::<WdsScan>::default(), &bytes, usize::MAX);
        match scan_bytes(Box::<WdsScan>::default(), &bytes, step) {
            Ok(table) => {
                prop_assert_eq!(&table, &whole.unwrap());
                plain(table, &bytes);
            }
            Err(error) => prop_assert_eq!(error.to_string(), whole.unwrap_err().to_string()),
        }
    }
}
