//! Streaming shards whose samples are rows of groups: files of pyarrow's, of Petastorm's, and of our own writer.

#[path = "parquet/common.rs"]
#[expect(dead_code, reason = "shared with the tests of Parquet")]
mod common;
#[path = "row_stream/damaged.rs"]
mod damaged;
#[path = "row_stream/filtered.rs"]
mod filtered;
#[path = "row_stream/nulls.rs"]
mod nulls;
#[path = "row_stream/partitions.rs"]
mod partitions;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{expected, hex};
use forebay_core::{ErrorKind, Key, Seed, Span};
use forebay_data::dataset::{OpenOptions, Save, Touched, UseManifest};
use forebay_data::format::parquet::{File, ParquetOptions, ParquetWriter};
use forebay_data::format::{GroupDecoder, SampleRef, ShardWriter};
use forebay_data::loader::{BadPolicy, Batch, SampleKey};
use forebay_data::manifest::FormatSpec;
use forebay_data::order::{Last, OrderSpec};
use forebay_data::{Dataset, Dtype, Field, Kind, Layout, Loader, StreamSpec};
use forebay_store::{MemoryStore, PutOptions, ReadOptions, Store, StoreExt};

async fn put(store: &Arc<dyn Store>, name: &str, bytes: &[u8]) {
    let key = Key::parse(name).unwrap();
    store
        .put_bytes(&key, bytes, &PutOptions::default())
        .await
        .unwrap();
}

/// The bytes of a file that `written` wrote.
async fn bytes_of(dataset: &Dataset, store: &Arc<dyn Store>, shard: usize) -> Vec<u8> {
    let meta = store.head(&dataset.shards()[shard].key).await.unwrap();
    let (span, options) = (Span::first(meta.size), ReadOptions::default());
    let read = store.read(&meta.key, span, &options, dataset.context()).await;
    read.unwrap().0.to_vec()
}

/// Where a file has a field.
fn column_of(file: &File, name: &str) -> usize {
    let mut fields = file.fields().iter();
    fields.position(|field| field.name == name).unwrap()
}

/// Bytes of the chunks of a column, over all files.
async fn chunk_bytes(dataset: &Dataset, store: &Arc<dyn Store>, name: &str) -> u64 {
    let mut sum = 0;
    for shard in 0..dataset.shards().len() {
        let bytes = bytes_of(dataset, store, shard).await.into();
        let file = File::from_bytes(&bytes, None).unwrap();
        let column = column_of(&file, name);
        let groups = 0..file.groups().len();
        sum += groups
            .map(|group| file.span(group, column).unwrap().len())
            .sum::<u64>();
    }
    sum
}

/// The data set in a copy of its store where one bit of one file is another; its manifest is the same.
async fn with_flip(dataset: &Dataset, store: &Arc<dyn Store>, shard: usize, at: u64) -> Dataset {
    let copy: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for (number, row) in dataset.shards().iter().enumerate() {
        let mut bytes = bytes_of(dataset, store, number).await;
        if number == shard {
            bytes[usize::try_from(at).unwrap()] ^= 1;
        }
        put(&copy, row.key.as_str(), &bytes).await;
    }
    let options = OpenOptions {
        touched: Touched::Accept,
        ..OpenOptions::default()
    };
    let manifest = dataset.manifest().clone();
    let opened = Dataset::open_indexed(copy, dataset.context(), manifest, &options).await;
    opened.unwrap()
}

async fn open(store: &Arc<dyn Store>, format: Option<FormatSpec>) -> Dataset {
    let options = OpenOptions {
        format,
        ..OpenOptions::default()
    };
    Dataset::open(Arc::clone(store), &common::context(), &options)
        .await
        .unwrap()
}

fn spec(shuffle: bool) -> StreamSpec {
    StreamSpec {
        order: OrderSpec {
            seed: Seed(3),
            shuffle,
            lanes: 4,
            batch_size: 8,
            last: Last::Short,
            ..OrderSpec::default()
        },
        threads: 2,
        memory_bytes_max: 16 << 20,
        ..StreamSpec::default()
    }
}

/// Number in its shard of each sample, with the fields as hexadecimal digits.
fn rows(batch: &Batch) -> Vec<(u64, Vec<String>)> {
    let row = |row: usize| {
        let SampleKey::Numbered { index, .. } = batch.keys()[row] else {
            panic!("rows have no keys")
        };
        let fields = batch.fields().iter();
        (
            index,
            fields
                .map(|field| hex(batch.value(field, row).unwrap()))
                .collect(),
        )
    };
    (0..batch.len()).map(row).collect()
}

async fn drain(loader: &mut Loader) -> Vec<(u64, Vec<String>)> {
    let mut all = Vec::new();
    while let Some(batch) = loader.next_batch().await {
        all.extend(rows(&batch.unwrap()));
    }
    all
}

/// What a null is in a batch, where it can stand in one: a value of no bytes, or floats that are no numbers.
fn shown(fields: &[Field], row: &[Option<String>]) -> Vec<String> {
    let values = fields.iter().zip(row).map(|(field, value)| match value {
        Some(value) => value.clone(),
        None => hex(&nan_of(field).unwrap_or_default()),
    });
    values.collect()
}

/// What a null of floats becomes.
fn nan_of(field: &Field) -> Option<Vec<u8>> {
    match &field.kind {
        Kind::Array { dtype, shape } if shape.is_empty() => match dtype {
            Dtype::Float16 => Some(0x7e00u16.to_le_bytes().to_vec()),
            Dtype::Float32 => Some(f32::NAN.to_le_bytes().to_vec()),
            Dtype::Float64 => Some(f64::NAN.to_le_bytes().to_vec()),
            _ => None,
        },
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_pyarrow_are_streamed_row_by_row() {
    let (mut streamed, mut with_nulls) = (0, 0);
    for name in common::names() {
        let expected = expected(&name);
        if expected.rows.is_empty() {
            continue;
        }
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        put(&store, "x.parquet", &common::file_bytes(&name)).await;
        let format = (name == "nested").then(|| {
            let columns: Vec<_> = ["list", "large", "fixed", "s", "map"].map(str::to_owned).to_vec();
            FormatSpec::new("parquet").with("columns", columns)
        });
        let dataset = open(&store, format).await;
        // A null in a field of fixed size has no place in an array, but for floats.
        let is_fixed = |field: &Field| field.kind.fixed_bytes().is_some() && nan_of(field).is_none();
        let has_null = |column: usize| expected.rows.iter().any(|row| row[column].is_none());
        let (mut wanted, mut nulls) = (Vec::new(), Vec::new());
        for (column, field) in expected.fields.iter().enumerate() {
            if is_fixed(field) && has_null(column) {
                nulls.push(field.name.clone());
            } else {
                wanted.push((column, field.name.clone()));
            }
        }
        for shuffle in [false, true] {
            let mut spec = spec(shuffle);
            spec.order.lanes = 2;
            spec.fields = Some(wanted.iter().map(|(_, name)| name.clone()).collect());
            let mut all = drain(&mut Loader::new(dataset.clone(), &spec).unwrap()).await;
            let order: Vec<u64> = all.iter().map(|(index, _)| *index).collect();
            assert!(shuffle || order.is_sorted(), "{name}");
            all.sort();
            assert_eq!(all.len(), expected.rows.len(), "{name}");
            for ((index, fields), (number, row)) in all.iter().zip((0..).zip(&expected.rows)) {
                let row = shown(&expected.fields, row);
                let row: Vec<String> = wanted.iter().map(|(column, _)| row[*column].clone()).collect();
                assert_eq!((*index, fields), (number, &row), "{name}");
            }
            streamed += 1;
        }
        if let Some(field) = nulls.first() {
            let mut loader = Loader::new(dataset, &spec(false)).unwrap();
            let error = loop {
                if let Err(error) = loader.next_batch().await.unwrap() {
                    break error;
                }
            };
            assert!(
                error.to_string().contains("is missing"),
                "{name} {field}: {error}"
            );
            with_nulls += 1;
        }
    }
    assert!(streamed > 30 && with_nulls > 0, "{streamed} {with_nulls}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn petastorm_is_streamed_with_its_arrays() {
    let folder = common::folder().join("../petastorm");
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for name in ["_common_metadata", "part-00000.parquet"] {
        put(&store, name, &std::fs::read(folder.join(name)).unwrap()).await;
    }
    let dataset = open(&store, None).await;
    assert_eq!(dataset.manifest().spec().name, "petastorm");
    let text = std::fs::read(folder.join("dataset.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let expected: Vec<Vec<Option<String>>> = serde_json::from_value(expected["rows"].clone()).unwrap();
    let names = ["id", "label", "ragged", "packed"];
    let columns = [0, 2, 5, 7];
    for shuffle in [false, true] {
        let mut spec = spec(shuffle);
        spec.order.lanes = 1;
        spec.fields = Some(names.map(str::to_owned).to_vec());
        let mut all = drain(&mut Loader::new(dataset.clone(), &spec).unwrap()).await;
        all.sort();
        let wanted = expected.iter().map(|row| {
            let row: Vec<String> = row
                .iter()
                .map(|value| value.clone().unwrap_or_default())
                .collect();
            columns.map(|column| row[column].clone()).to_vec()
        });
        let fields: Vec<Vec<String>> = all.into_iter().map(|(_, fields)| fields).collect();
        assert_eq!(fields, wanted.collect::<Vec<_>>());
    }
}

/// Bytes of the large field of a row.
const LARGE: usize = 3000;

fn large(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; LARGE + (number % 7) as usize];
    Seed(u64::from(number)).rng().fill(&mut bytes);
    bytes
}

fn fields() -> [Field; 2] {
    let scalar = Kind::Array {
        dtype: Dtype::Uint32,
        shape: Vec::new(),
    };
    [Field::new("number", scalar), Field::new("large", Kind::Bytes)]
}

/// Files with `sizes[i]` rows each, in groups of about ten rows; rows are numbered over all files.
async fn written(sizes: &[u32]) -> (Dataset, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let fields = fields();
    let mut number = 0u32;
    for (shard, size) in sizes.iter().enumerate() {
        let options = ParquetOptions {
            group_bytes: 30_000,
            ..ParquetOptions::default()
        };
        let mut writer = Box::new(ParquetWriter::new(&fields, options).unwrap());
        for _ in 0..*size {
            let (small, large) = (number.to_le_bytes(), large(number));
            let fields = [(&fields[0], &small[..]), (&fields[1], &large[..])];
            let sample = SampleRef {
                key: &format!("k{number}"),
                fields: &fields,
            };
            writer.add(sample).unwrap();
            number += 1;
        }
        put(&store, &format!("{shard:03}.parquet"), &writer.finish().unwrap()).await;
    }
    index(&store).await;
    (open(&store, None).await, store)
}

/// Make the manifest, so that what opens the data set later has something to compare with.
async fn index(store: &Arc<dyn Store>) {
    let options = OpenOptions {
        save: Save::IfAbsent,
        ..OpenOptions::default()
    };
    let made = Dataset::open(Arc::clone(store), &common::context(), &options).await;
    assert!(made.unwrap().why_unproven().is_some(), "of the same bytes");
}

/// The numbers of the rows of each batch, after the rest of them was compared.
async fn numbers(loader: &mut Loader) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    while let Some(batch) = loader.next_batch().await {
        let batch = batch.unwrap();
        let field = |name: &str| batch.fields().iter().find(|field| field.field.name == name);
        let small = field("number").unwrap();
        let row = |row: usize| {
            let number = u32::from_le_bytes(batch.value(small, row).unwrap().try_into().unwrap());
            if let Some(field) = field("large") {
                assert_eq!(batch.value(field, row).unwrap(), large(number));
            }
            if let Some(field) = field("__key__") {
                assert_eq!(batch.value(field, row).unwrap(), format!("k{number}").as_bytes());
            }
            number
        };
        all.push((0..batch.len()).map(row).collect());
    }
    all
}

const SIZES: [u32; 4] = [57, 1, 130, 33];

fn several() -> StreamSpec {
    let mut several = spec(true);
    several.epochs = Some(2);
    several.order.block_bytes = 40_000;
    several.order.window_bytes = 200_000;
    several
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_comes_once_in_an_epoch_and_resuming_is_exact() {
    let (dataset, _) = written(&SIZES).await;
    let total = SIZES.iter().sum::<u32>() as usize;
    let mut loader = Loader::new(dataset.clone(), &several()).unwrap();
    let per_epoch = loader.batches() as usize;
    let whole = numbers(&mut loader).await;
    for epoch in whole.chunks(per_epoch) {
        let mut seen = BTreeMap::new();
        for number in epoch.iter().flatten() {
            *seen.entry(*number).or_insert(0) += 1;
        }
        assert!(seen.len() == total && seen.values().all(|count| *count == 1));
    }
    assert_ne!(whole[..per_epoch], whole[per_epoch..]);
    let mut loader = Loader::new(dataset.clone(), &several()).unwrap();
    for done in 0..whole.len() {
        if done % 7 == 3 || done == per_epoch {
            let position = loader.position();
            let mut again = Loader::resume(dataset.clone(), &several(), &position).unwrap();
            assert_eq!(numbers(&mut again).await, whole[done..], "after {done}");
            let mut half = several();
            (half.order.world, half.order.rank, half.order.batch_size) = (2, 1, 4);
            let mut half = Loader::resume(dataset.clone(), &half, &position).unwrap();
            for (half, all) in numbers(&mut half).await.iter().zip(&whole[done..]) {
                assert!(all.ends_with(half), "after {done}: {half:?} of {all:?}");
            }
        }
        loader.next_batch().await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_columns_are_read_alone_and_everything_is_verified() {
    let (dataset, store) = written(&SIZES).await;
    let stored: u64 = dataset.shards().iter().map(|shard| shard.stored_bytes).sum();
    let mut all = several();
    all.epochs = Some(1);
    // Lanes share a group that one of them still holds, and else read it again: one lane reads each exactly once.
    all.order.lanes = 1;
    let mut loader = Loader::new(dataset.clone(), &all).unwrap();
    let whole = numbers(&mut loader).await;
    let ledger = loader.report().ledger;
    assert!(
        ledger.verified_bytes > stored * 9 / 10 && ledger.verified_bytes <= ledger.bytes(),
        "{ledger}"
    );
    all.fields = Some(vec!["number".to_owned()]);
    let mut loader = Loader::new(dataset.clone(), &all).unwrap();
    assert_eq!(numbers(&mut loader).await, whole);
    let ledger = loader.report().ledger;
    let chunks = chunk_bytes(&dataset, &store, "number").await;
    assert_eq!(ledger.verified_bytes, chunks, "every chunk that was read");
    assert!(ledger.bytes() < stored / 2, "{ledger}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_manifest_nothing_is_verified() {
    let (_, store) = written(&SIZES).await;
    let options = OpenOptions {
        manifest: UseManifest::Never,
        ..OpenOptions::default()
    };
    let dataset = Dataset::open(Arc::clone(&store), &common::context(), &options)
        .await
        .unwrap();
    let mut loader = Loader::new(dataset, &spec(false)).unwrap();
    numbers(&mut loader).await;
    let report = loader.report();
    assert_eq!(
        (report.ledger.verified_bytes, report.opening.verified_bytes),
        (0, 0)
    );
    assert!(report.unverified.unwrap().contains("forebay index"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_share_a_group_instead_of_decoding_it_again() {
    let (dataset, _) = written(&[8]).await;
    let mut shared = spec(true);
    (shared.order.lanes, shared.order.batch_size) = (8, 8);
    let mut loader = Loader::new(dataset.clone(), &shared).unwrap();
    assert_eq!(numbers(&mut loader).await.concat().len(), 8);
    let table = dataset.table(0).await.unwrap();
    let Layout::Groups(groups) = &table.layout else {
        panic!("{table:?}")
    };
    assert_eq!(groups.list.len(), 1);
    let verified = loader.report().ledger.verified_bytes;
    assert_eq!(verified, groups.list[0].extent.len(), "read once for eight lanes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_group_is_for_the_policy_to_judge() {
    let (dataset, store) = written(&SIZES).await;
    let table = dataset.table(2).await.unwrap();
    let Layout::Groups(groups) = &table.layout else {
        panic!("{table:?}")
    };
    let groups = &groups.list;
    let damaged = with_flip(&dataset, &store, 2, groups[3].extent.end() - 900).await;

    let mut stopping = Loader::new(damaged.clone(), &several()).unwrap();
    let error = loop {
        if let Err(error) = stopping.next_batch().await.unwrap() {
            break error;
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(
        text.contains("002.parquet") && text.contains("row group 3"),
        "{text}"
    );

    let mut going_on = several();
    going_on.bad = BadPolicy::Skip { max: 100 };
    let mut loader = Loader::new(damaged, &going_on).unwrap();
    let replaced = numbers(&mut loader).await.concat();
    let report = loader.report();
    assert_eq!(report.bad_samples, groups[3].samples, "in both epochs");
    let before: u64 = groups[..3].iter().map(|group| group.samples).sum();
    let rows = before..before + groups[3].samples;
    assert!(
        report
            .bad
            .iter()
            .all(|bad| bad.shard_number == 2 && rows.contains(&bad.index))
    );
    let first = u64::from(SIZES[0] + SIZES[1]);
    let is_damaged = |number: &u32| rows.contains(&(u64::from(*number)).wrapping_sub(first));
    assert!(!replaced.iter().any(is_damaged));
    assert_eq!(replaced.len(), 2 * SIZES.iter().sum::<u32>() as usize);
}
