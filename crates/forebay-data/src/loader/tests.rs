//! The loader over data sets in memory, against the plan it is made from.

mod bad;
mod cached;
mod decode;
mod far;
mod lent;
mod mixture;
mod numbers;
mod remembered;
mod resumed;
mod shared;
mod tables;
mod whole;

use std::collections::BTreeMap;

use forebay_core::{ErrorKind, Key, Ledger, Limits, Seed};
use forebay_io::{AlignedBuf, DiskConfig, EngineChoice};
use forebay_store::{Context, MemoryStore, PutOptions, Store, StoreExt};

use super::*;
use crate::codec::Codec;
use crate::dataset::{Dataset, OpenOptions};
use crate::format::Tabulated;
use crate::manifest::{FormatSpec, ManifestWriter};
use crate::schema::{Dtype, Kind};
use crate::table::{Layout, TableBuilder};

/// What a batch was made of: the number of each sample, read back from its bytes.
type Numbers = Vec<u32>;

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

/// The variable field of a sample: its length and its bytes follow from its number.
fn text_of(number: u32) -> Vec<u8> {
    let mut bytes = vec![0; (number % 97) as usize];
    Seed(u64::from(number)).rng().fill(&mut bytes);
    bytes
}

/// Shards of samples with a number and a text, `sizes[i]` of them in shard `i`; returns the store too, for damaging it.
async fn data_set(sizes: &[u32]) -> (Dataset, Arc<dyn Store>) {
    data_set_from(0, sizes).await
}

/// The same with other numbers.
async fn data_set_from(first: u32, sizes: &[u32]) -> (Dataset, Arc<dyn Store>) {
    made(first, sizes, true).await
}

/// The same without the text as a field, and with a field before the number that no sample has.
async fn numbered_only(sizes: &[u32]) -> (Dataset, Arc<dyn Store>) {
    made(10_000, sizes, false).await
}

async fn made(first: u32, sizes: &[u32], has_text: bool) -> (Dataset, Arc<dyn Store>) {
    let context = context();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut writer = ManifestWriter::in_memory(FormatSpec::new("wds"), &store.identity());
    let mut number = first;
    for (shard, size) in sizes.iter().enumerate() {
        let scalar = Kind::Array {
            dtype: Dtype::Uint32,
            shape: Vec::new(),
        };
        let number_field = Field::new("number", scalar);
        let mut builder = TableBuilder::new(if has_text {
            vec![number_field, Field::new("text", Kind::Bytes)]
        } else {
            vec![Field::new("more", Kind::Bytes), number_field]
        });
        let mut bytes = vec![b'#'; 100];
        for _ in 0..*size {
            let start = bytes.len() as u64;
            let text = text_of(number);
            let sample = [&number.to_le_bytes()[..], &text].concat();
            builder.begin(start, Some(&format!("k{number}"))).unwrap();
            builder.absorb(&sample);
            builder.field(usize::from(!has_text), start, 4).unwrap();
            if has_text {
                builder.field(1, start + 4, text.len() as u64).unwrap();
            }
            builder.end().unwrap();
            bytes.extend(sample);
            number += 1;
        }
        add(&mut writer, &store, &format!("{shard:03}"), (&bytes, builder)).await;
    }
    let manifest = writer.finish().await.unwrap();
    let options = OpenOptions::default();
    let opened = Dataset::open_indexed(Arc::clone(&store), &context, manifest, &options).await;
    (opened.unwrap(), store)
}

/// Put a shard into the store and the manifest.
async fn add(
    writer: &mut ManifestWriter,
    store: &Arc<dyn Store>,
    name: &str,
    (bytes, builder): (&[u8], TableBuilder),
) {
    let key = Key::parse(name).unwrap();
    let put = store.put_bytes(&key, bytes, &PutOptions::default()).await;
    put.unwrap();
    let tabulated = Tabulated {
        has_sums: false,
        are_types_inferred: false,
        table: builder.finish().unwrap(),
        sha256: [0; 32],
        raw_bytes: bytes.len() as u64,
        codec: Codec::None,
        ledger: Ledger::default(),
    };
    let meta = store.head(&key).await.unwrap();
    writer.add(&meta, &tabulated).await.unwrap();
}

/// One shard of samples that are nothing but lists of numbers of a type, each of which has these bytes.
async fn lists(dtype: Dtype, samples: &[&[u8]]) -> Dataset {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut writer = ManifestWriter::in_memory(FormatSpec::new("wds"), &store.identity());
    let mut builder = TableBuilder::new(vec![Field::new("ids", Kind::List { dtype })]);
    let mut bytes = vec![b'#'; 8];
    for (number, sample) in samples.iter().enumerate() {
        let start = bytes.len() as u64;
        builder.begin(start, Some(&format!("k{number}"))).unwrap();
        builder.absorb(sample);
        builder.absorb(b"#");
        builder.field(0, start, sample.len() as u64).unwrap();
        builder.end().unwrap();
        bytes.extend_from_slice(sample);
        bytes.push(b'#');
    }
    add(&mut writer, &store, "000", (&bytes, builder)).await;
    let manifest = writer.finish().await.unwrap();
    let opened = Dataset::open_indexed(store, &context(), manifest, &OpenOptions::default()).await;
    opened.unwrap()
}

fn spec(world: u32, rank: u32) -> StreamSpec {
    StreamSpec {
        order: OrderSpec {
            seed: Seed(7),
            shuffle: true,
            lanes: 8,
            batch_size: 24 / u64::from(world),
            world,
            rank,
            block_bytes: 600,
            window_bytes: 16_000,
            ..OrderSpec::default()
        },
        epochs: Some(2),
        memory_bytes_max: 8 << 20,
        // Two batches at a time and several threads for each: tests copy by pieces of a few bytes.
        ready_bytes_max: 1,
        threads: 6,
        ..StreamSpec::default()
    }
}

/// The numbers of a batch, after everything in it was compared with what it should be.
fn numbers(batch: &Batch) -> Numbers {
    let [number, text] = batch.fields() else {
        unreachable!()
    };
    let read = (0..batch.len()).map(|row| {
        let value = batch.value(number, row).unwrap();
        let value = u32::from_le_bytes(value.try_into().unwrap());
        assert_eq!(batch.value(text, row).unwrap(), text_of(value));
        assert_eq!(batch.keys()[row], SampleKey::Named(format!("k{value}").into()));
        value
    });
    read.collect()
}

async fn drain(loader: &mut Loader) -> Vec<Numbers> {
    let mut batches = Vec::new();
    while let Some(batch) = loader.next_batch().await {
        batches.push(numbers(&batch.unwrap()));
    }
    batches
}

async fn run(dataset: &Dataset, spec: StreamSpec) -> Vec<Numbers> {
    drain(&mut Loader::new(dataset.clone(), &spec).unwrap()).await
}

const SIZES: [u32; 6] = [100, 7, 240, 0, 33, 121];

#[tokio::test(flavor = "multi_thread")]
async fn an_epoch_has_every_sample_once_and_the_next_another_order() {
    let (dataset, _) = data_set(&SIZES).await;
    let mut loader = Loader::new(dataset.clone(), &spec(1, 0)).unwrap();
    let per_epoch = loader.batches() as usize;
    let batches = drain(&mut loader).await;
    assert_eq!(batches.len(), 2 * per_epoch);
    let mut epochs = Vec::new();
    for epoch in batches.chunks(per_epoch) {
        let mut seen = BTreeMap::new();
        for number in epoch.iter().flatten() {
            *seen.entry(*number).or_insert(0) += 1;
        }
        assert!(seen.values().all(|count| *count == 1));
        assert_eq!(seen.len(), per_epoch * 24);
        epochs.push(epoch.concat());
    }
    assert_ne!(epochs[0], epochs[1]);
    let report = loader.report();
    assert_eq!(
        (report.samples, report.bad_samples),
        (2 * 24 * per_epoch as u64, 0)
    );
    assert!(report.ledger.bytes() > 0 && report.stalls.batches == batches.len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn exact_order_without_shuffling() {
    let (dataset, _) = data_set(&SIZES).await;
    let mut spec = spec(1, 0);
    spec.order.shuffle = false;
    spec.epochs = Some(1);
    let all = run(&dataset, spec).await.concat();
    assert_eq!(all, (0..all.len() as u32).collect::<Vec<_>>());
    assert_eq!(all.len(), 501 / 24 * 24);
}

#[tokio::test(flavor = "multi_thread")]
async fn global_batches_are_the_same_at_every_world_size() {
    let (dataset, _) = data_set(&SIZES).await;
    let alone = run(&dataset, spec(1, 0)).await;
    for world in [2, 4, 8] {
        let mut joined: Vec<Numbers> = vec![Vec::new(); alone.len()];
        for rank in 0..world {
            let batches = run(&dataset, spec(world, rank)).await;
            assert_eq!(batches.len(), alone.len());
            for (all, own) in joined.iter_mut().zip(batches) {
                all.extend(own);
            }
        }
        assert_eq!(joined, alone, "world {world}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_exactly_where_it_stood() {
    let (dataset, _) = data_set(&SIZES).await;
    let whole = run(&dataset, spec(1, 0)).await;
    let mut loader = Loader::new(dataset.clone(), &spec(1, 0)).unwrap();
    for done in 0..whole.len() {
        if done % 5 == 0 || done + 3 > whole.len() {
            let position = loader.position();
            let mut again = Loader::resume(dataset.clone(), &spec(1, 0), &position).unwrap();
            assert_eq!(drain(&mut again).await, whole[done..], "after {done}");
            let mut half = Loader::resume(dataset.clone(), &spec(2, 1), &position).unwrap();
            let second = drain(&mut half).await;
            assert!(
                second
                    .iter()
                    .zip(&whole[done..])
                    .all(|(half, all)| half[..] == all[12..])
            );
        }
        loader.next_batch().await.unwrap().unwrap();
    }
    assert!(loader.next_batch().await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_never_reaches_a_batch() {
    let (dataset, store) = data_set(&SIZES).await;
    let whole = run(&dataset, spec(1, 0)).await;
    let key = Key::parse("002").unwrap();
    let size = store.head(&key).await.unwrap().size;
    let span = forebay_core::Span::first(size);
    let (bytes, _) = store
        .read(
            &key,
            span,
            &forebay_store::ReadOptions::default(),
            dataset.context(),
        )
        .await
        .unwrap();
    let mut bytes = bytes.to_vec();
    bytes[5000] ^= 1;
    store
        .put_bytes(&key, &bytes, &PutOptions::default())
        .await
        .unwrap();
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let opened = Dataset::open_indexed(store, dataset.context(), manifest, &options).await;
    let damaged = opened.unwrap();

    let mut stopping = Loader::new(damaged.clone(), &spec(1, 0)).unwrap();
    let error = loop {
        match stopping.next_batch().await.unwrap() {
            Ok(batch) => drop(numbers(&batch)),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("002") && error.to_string().contains("checksum"),
        "{error}"
    );
    assert!(stopping.next_batch().await.is_none(), "nothing after an error");

    let mut going_on = spec(1, 0);
    going_on.bad = BadPolicy::Skip { max: 1 };
    let mut loader = Loader::new(damaged.clone(), &going_on).unwrap();
    let replaced = drain(&mut loader).await;
    let report = loader.report();
    assert_eq!((report.bad_samples, report.bad.len()), (1, 1), "in both epochs");
    let differing = whole
        .concat()
        .iter()
        .zip(replaced.concat())
        .filter(|(a, b)| **a != *b)
        .count();
    assert_eq!(differing, 2);

    going_on.bad = BadPolicy::Skip { max: 0 };
    let mut limited = Loader::new(damaged, &going_on).unwrap();
    let mut last = Ok(());
    while let Some(batch) = limited.next_batch().await {
        last = batch.map(drop);
    }
    assert!(last.unwrap_err().to_string().contains("more than the 0 allowed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn too_little_memory_is_told_and_is_no_hang() {
    let (dataset, _) = data_set(&SIZES).await;
    let plenty = run(&dataset, spec(1, 0)).await;
    let mut poor = spec(1, 0);
    poor.memory_bytes_max = 4096;
    let mut loader = Loader::new(dataset, &poor).unwrap();
    assert_eq!(drain(&mut loader).await, plenty);
    assert!(loader.report().memory_grown_bytes > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_fields_asked_for_and_clear_words_for_others() {
    let (dataset, _) = data_set(&SIZES).await;
    let mut some = spec(1, 0);
    some.fields = Some(vec!["text".to_owned()]);
    let batch = Loader::new(dataset.clone(), &some)
        .unwrap()
        .next_batch()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(batch.fields().len(), 1);
    assert!(matches!(batch.values(&batch.fields()[0]), Values::Ragged { .. }));
    some.fields = Some(vec!["txt".to_owned()]);
    let error = Loader::new(dataset, &some).unwrap_err();
    assert!(error.hint().unwrap().contains("number, text"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_shard_is_an_error_that_names_it() {
    let (dataset, store) = data_set(&SIZES).await;
    store.delete(&Key::parse("002").unwrap()).await.unwrap();
    let mut loader = Loader::new(dataset, &spec(1, 0)).unwrap();
    let error = loop {
        match loader.next_batch().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => break error,
            None => panic!("an epoch without its shards"),
        }
    };
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("002"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_given_up_loses_nothing() {
    let (dataset, _) = data_set(&SIZES).await;
    let whole = run(&dataset, spec(1, 0)).await;
    // On a busy machine batches may all be ready before they are waited for.
    for _ in 0..1000 {
        let mut loader = Loader::new(dataset.clone(), &spec(1, 0)).unwrap();
        let (mut batches, mut given_up) = (Vec::new(), 0);
        loop {
            let next = loader.next_batch();
            let Ok(next) = tokio::time::timeout(std::time::Duration::ZERO, next).await else {
                given_up += 1;
                tokio::task::yield_now().await;
                continue;
            };
            match next {
                Some(batch) => batches.push(numbers(&batch.unwrap())),
                None => break,
            }
        }
        assert_eq!(batches, whole);
        if given_up > 0 {
            return;
        }
    }
    panic!("nobody had to wait");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_held_stays_as_it_is_whoever_streams_after_its_loader() {
    let (dataset, _) = data_set(&SIZES).await;
    let mut loader = Loader::new(dataset.clone(), &spec(1, 0)).unwrap();
    let batch = loader.next_batch().await.unwrap().unwrap();
    let before = numbers(&batch);
    drop(loader);
    let whole = run(&dataset, spec(1, 0)).await;
    // In memory that the last one has left.
    for _ in 0..3 {
        assert_eq!(run(&dataset, spec(1, 0)).await, whole);
    }
    assert_eq!((numbers(&batch), &before), (before.clone(), &whole[0]));
}

/// As a stream has them: most blocks are of one size, those at the ends of shards and lanes shorter, and they go about in the order in which they came.
#[test]
fn blocks_of_many_sizes_find_a_place_as_long_as_there_is_room() {
    let bytes_max: u64 = 48 << 20;
    let pool = blocks(bytes_max).unwrap();
    let (mut held, mut held_bytes, mut state) = (Vec::new(), 0, 7u64);
    let mut draw = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        let pages = if draw(4) == 0 { 50 + draw(15) } else { 65 };
        let bytes = pages * 4096;
        while held_bytes + bytes > bytes_max {
            let oldest = (held.len() as u64 / 4).max(1);
            let gone: AlignedBuf = held.remove(draw(oldest) as usize);
            held_bytes -= gone.len() as u64;
        }
        held.push(pool.try_lease(bytes as usize).unwrap());
        held_bytes += bytes;
    }
}
