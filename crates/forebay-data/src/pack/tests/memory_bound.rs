//! What is held at once: reading waits for whoever takes what was read, and never for itself.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::ErrorKind;

use super::*;

/// Longer than any of these takes: a run that waits for itself fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bytes that are read while nobody takes a chunk.
async fn read_ahead(from: &Arc<dyn Store>, spec: &PackSpec) -> u64 {
    let moved = Arc::new(Moved::default());
    let spec = PackSpec {
        progress: Arc::clone(&moved) as Arc<dyn Progress>,
        ..spec.clone()
    };
    let context = context();
    let input = Input::open(place(from), &context, &OpenOptions::default(), &spec)
        .await
        .unwrap();
    let shaper = Arc::new(Shaper::new(input.schema(), input.source(), &spec).unwrap());
    let shares = Shares::new(&spec, input.reads()).unwrap();
    let reading = Reading::new(shaper, &context, &spec, &shares).unwrap();
    let mut chunks = input.chunks(0..input.samples(), &reading);
    // Long enough for all of it to be read, if it were.
    for _ in 0..40 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let ahead = moved.0.load(Ordering::Relaxed);
    let mut samples = 0;
    while let Some(chunk) = chunks.next().await {
        samples += chunk.unwrap().0.len() as u64;
    }
    assert_eq!(samples, input.samples(), "and all of it comes");
    ahead
}

/// As little as these shards can be packed with.
fn tight(to: PackFormat) -> PackSpec {
    PackSpec {
        shard_bytes: 30_000,
        memory_bytes_max: 1 << 20,
        threads: 2,
        ..PackSpec::new(to)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_are_read_ahead_by_their_bytes() {
    let from = memory_store();
    for index in 0..12 {
        put(&*from, &format!("{index:02}.dat"), &bytes_of(index, 200_000)).await;
    }
    let ahead = read_ahead(&from, &tight(PackFormat::Wds)).await;
    assert!(ahead <= 2 * 200_000, "{ahead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn compressed_shards_are_read_ahead_by_their_bytes() {
    let (folder, from) = (memory_store(), memory_store());
    for index in 0..24 {
        put(&*folder, &format!("{index:02}.dat"), &vec![index; 60_000]).await;
    }
    let spec = PackSpec {
        samples_per_shard: Some(1),
        compression: Some("gz".to_owned()),
        ..small(PackFormat::Wds)
    };
    assert_eq!(run(&folder, &from, &spec).await.unwrap().shards, 24);
    let ahead = read_ahead(&from, &tight(PackFormat::Wds)).await;
    assert!(ahead <= 4 * 71_680, "{ahead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_read_ahead_by_their_bytes() {
    let (folder, from) = (memory_store(), memory_store());
    for index in 0..24 {
        put(&*folder, &format!("{index:02}.dat"), &vec![index; 60_000]).await;
    }
    let spec = PackSpec {
        samples_per_shard: Some(1),
        compression: Some("zstd".to_owned()),
        ..small(PackFormat::Parquet)
    };
    run(&folder, &from, &spec).await.unwrap();
    let ahead = read_ahead(&from, &tight(PackFormat::Wds)).await;
    assert!(ahead <= 5 * 60_000, "{ahead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn shards_too_large_for_the_memory_are_refused() {
    let from = memory_store();
    folder(&*from, 3).await;
    for shuffle in [None, Some(1)] {
        let to = memory_store();
        let spec = PackSpec {
            shard_bytes: 256 << 20,
            memory_bytes_max: 512 << 20,
            shuffle,
            ..PackSpec::new(PackFormat::Wds)
        };
        let error = run(&from, &to, &spec).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.hint().unwrap().contains("--memory"), "{error}");
        assert!(contents(&*to).await.is_empty());
    }
}

/// Windows hold more than all buffers of the stores, and the manifest is read through those: blocks in them could leave it none.
#[tokio::test(flavor = "multi_thread")]
async fn a_shuffle_takes_no_buffers_of_the_stores() {
    let (dir, folder, to) = (tempfile::tempdir().unwrap(), memory_store(), memory_store());
    let from = local_at(dir.path(), &context());
    for index in 0..100 {
        put(&*folder, &format!("{index:03}.dat"), &bytes_of(index, 130_560)).await;
    }
    let spec = PackSpec {
        samples_per_shard: Some(1),
        shard_bytes: 200_000,
        ..small(PackFormat::Wds)
    };
    assert_eq!(run(&folder, &from, &spec).await.unwrap().shards, 100);
    let config = DiskConfig {
        limits: Limits {
            part_bytes: 64 << 10,
            // Whole numbers of blocks: nothing is left beside them.
            buffer_bytes_max: 1 << 20,
            ..Limits::default()
        },
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    let context = Context::open(config).unwrap().with_state_dir(None);
    let from = local_at(dir.path(), &context);
    let spec = PackSpec {
        shuffle: Some(3),
        memory_bytes_max: 32 << 20,
        shard_bytes: 1 << 20,
        threads: 2,
        ..PackSpec::new(PackFormat::Wds)
    };
    let options = OpenOptions::default();
    let packing = pack(place(&from), Arc::clone(&to), &context, &options, &spec);
    let report = tokio::time::timeout(PATIENCE, packing).await;

    assert_eq!(report.expect("it waits for itself").unwrap().samples, 100);
    // Not one block was read into the memory of the stores.
    let stats = context.pool().stats();
    assert!(stats.leased_bytes_peak < 130_560, "{stats:?}");
}
