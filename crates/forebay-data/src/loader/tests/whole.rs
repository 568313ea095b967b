//! Shards that are compressed as a whole: shared by lanes, within the memory, damaged, and too large for it.

use std::io::Write;

use forebay_store::wrap::{Counted, Op};

use super::*;
use crate::dataset::{Progress, Silent};
use crate::filter::Filter;

fn pack(codec: Codec, bytes: &[u8]) -> Vec<u8> {
    match codec {
        Codec::Zstd => zstd::encode_all(bytes, 3).unwrap(),
        _ => {
            let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap()
        }
    }
}

/// The same samples in compressed shards; `raw_bytes` of the manifest, where they are not those of the shards.
async fn compressed(codec: Codec, sizes: &[u32], raw_bytes: Option<u64>) -> (Dataset, Arc<dyn Store>) {
    let (plain, from) = data_set(sizes).await;
    let context = plain.context().clone();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut writer = ManifestWriter::in_memory(FormatSpec::new("wds"), &store.identity());
    for (number, shard) in plain.shards().iter().enumerate() {
        let span = forebay_core::Span::first(shard.raw_bytes);
        let options = forebay_store::ReadOptions::default();
        let (bytes, _) = from.read(&shard.key, span, &options, &context).await.unwrap();
        let packed = pack(codec, &bytes);
        let put = store.put_bytes(&shard.key, &packed, &PutOptions::default()).await;
        put.unwrap();
        let tabulated = Tabulated {
            has_sums: false,
            are_types_inferred: false,
            table: (*plain.table(number).await.unwrap()).clone(),
            sha256: [0; 32],
            raw_bytes: raw_bytes.unwrap_or(bytes.len() as u64),
            codec,
            ledger: Ledger::default(),
        };
        let meta = store.head(&shard.key).await.unwrap();
        writer.add(&meta, &tabulated).await.unwrap();
    }
    let manifest = writer.finish().await.unwrap();
    let options = OpenOptions::default();
    let opened = Dataset::open_indexed(Arc::clone(&store), &context, manifest, &options).await;
    (opened.unwrap(), store)
}

async fn counted(dataset: &Dataset, store: &Arc<dyn Store>) -> (Dataset, Counted) {
    let counted = Counted::new(Arc::clone(store));
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let opened =
        Dataset::open_indexed(Arc::new(counted.clone()), dataset.context(), manifest, &options).await;
    (opened.unwrap(), counted)
}

#[tokio::test(flavor = "multi_thread")]
async fn lanes_share_what_is_decompressed() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let (dataset, store) = compressed(codec, &[480, 480], None).await;
        let (dataset, counted) = counted(&dataset, &store).await;
        let raw: u64 = dataset.shards().iter().map(|shard| shard.raw_bytes).sum();
        let mut one = spec(1, 0);
        one.epochs = Some(1);
        // Both shards and their tables, and not a copy for each of the eight lanes.
        one.memory_bytes_max = raw + raw / 2 + (64 << 10);
        let mut loader = Loader::new(dataset.clone(), &one).unwrap();
        let batches = drain(&mut loader).await;
        let mut all = batches.concat();
        all.sort_unstable();
        assert_eq!(all, (0..960).collect::<Vec<_>>());
        let report = loader.report();
        assert_eq!(report.memory_grown_bytes, 0, "{codec:?}");
        let reads = counted.counts().of(Op::Read).requests;
        assert_eq!(reads, 2, "each shard was read once, {codec:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_shards_stream_shuffled_resumed_and_filtered() {
    let (plain, _) = data_set(&SIZES).await;
    for codec in [Codec::Gzip, Codec::Zstd] {
        let (dataset, _) = compressed(codec, &SIZES, None).await;
        let whole = run(&dataset, spec(1, 0)).await;
        let mut loader = Loader::new(dataset.clone(), &spec(1, 0)).unwrap();
        for done in 0..whole.len() {
            if done % 7 == 0 {
                let mut again = Loader::resume(dataset.clone(), &spec(1, 0), &loader.position()).unwrap();
                assert_eq!(drain(&mut again).await, whole[done..], "after {done}");
            }
            loader.next_batch().await.unwrap().unwrap();
        }
        let progress: Arc<dyn Progress> = Arc::new(Silent);
        let filter = Filter::parse("number >= 50 and number < 300").unwrap();
        // Less than any of the shards: they come one after the other.
        let kept = dataset.keep(&filter, 4, 4096, &progress).await.unwrap();
        assert_eq!(kept.samples_kept(), 250);
        let same = plain.keep(&filter, 4, 1 << 20, &progress).await.unwrap();
        assert_eq!(same.samples_kept(), 250);
        let mut numbers = run(&kept, spec(1, 0)).await.concat();
        numbers.sort_unstable();
        assert!(numbers.iter().all(|number| (50..300).contains(number)));
        assert_eq!(numbers.len(), 2 * (250 / 24 * 24));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_does_not_decompress_is_bad_samples() {
    for codec in [Codec::Gzip, Codec::Zstd] {
        let (dataset, store) = compressed(codec, &SIZES, None).await;
        let key = &dataset.shards()[4].key;
        let size = dataset.shards()[4].stored_bytes as usize;
        store
            .put_bytes(key, &vec![0; size], &PutOptions::default())
            .await
            .unwrap();
        let (damaged, _) = counted(&dataset, &store).await;
        let mut going_on = spec(1, 0);
        going_on.bad = BadPolicy::Skip { max: 33 };
        let mut loader = Loader::new(damaged.clone(), &going_on).unwrap();
        let batches = drain(&mut loader).await;
        assert_eq!(batches.len(), 2 * loader.batches() as usize);
        let is_damaged = |number: &u32| (347..380).contains(number);
        assert!(!batches.concat().iter().any(is_damaged));
        let bad = loader.report().bad_samples;
        assert!((1..=33).contains(&bad), "{bad}");
        let mut stopping = Loader::new(damaged, &spec(1, 0)).unwrap();
        let error = loop {
            match stopping.next_batch().await.unwrap() {
                Ok(batch) => drop(numbers(&batch)),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("004"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_the_memory_is_refused_with_advice() {
    let (dataset, _) = compressed(Codec::Gzip, &[40; 16], Some(200 << 20)).await;
    let error = Loader::new(dataset.clone(), &spec(1, 0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    let hint = error.hint().unwrap().to_owned();
    assert!(
        hint.contains("lanes=5") && hint.contains("memory=1600MiB"),
        "{hint}"
    );
    assert!(Outlook::new(&dataset.clone().into(), &spec(1, 0), None).is_err());
    let mut fewer = spec(1, 0);
    fewer.order.lanes = 5;
    Outlook::new(&dataset.clone().into(), &fewer, None).unwrap();
    let mut more = spec(1, 0);
    more.memory_bytes_max = 800 << 20;
    Outlook::new(&dataset.clone().into(), &more, None).unwrap();
    // A rank that has some of the lanes holds less.
    Outlook::new(&dataset.into(), &spec(2, 0), None).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_manifest_says_is_not_believed_before_it_is_seen() {
    let (dataset, _) = compressed(Codec::Gzip, &[40], Some(200 << 20)).await;
    let mut in_order = spec(1, 0);
    in_order.order.shuffle = false;
    in_order.bad = BadPolicy::Stop;
    let mut loader = Loader::new(dataset.clone(), &in_order).unwrap();
    let error = loader.next_batch().await.unwrap().unwrap_err();
    assert!(error.to_string().contains("fewer bytes"), "{error}");
}
