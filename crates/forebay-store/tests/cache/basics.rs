//! The contract, hits and misses, versions.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{DataPath, ErrorKind, Location, ManualClock, PathPolicy, Seed, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use forebay_store::cache::{Cache, CacheConfig, Freshness, Mode};
use forebay_store::{MemoryStore, PutOptions, ReadOptions, Store, conformance};

use crate::support::*;

async fn conforms(config: CacheConfig) {
    let context = context();
    let cache = Cache::open(Arc::new(MemoryStore::new()), config, &context)
        .await
        .unwrap();
    let report = conformance::run_all(Arc::new(cache), &context).await;
    assert!(report.is_ok(), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance_of_whole_objects() {
    let dir = tempfile::tempdir().unwrap();
    conforms(CacheConfig::new(dir.path(), 64 << 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance_of_small_blocks() {
    let dir = tempfile::tempdir().unwrap();
    conforms(CacheConfig {
        block_bytes: 16 << 10,
        mode: Mode::Blocks,
        ..CacheConfig::new(dir.path(), 64 << 20)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance_of_objects_believed_immutable() {
    let dir = tempfile::tempdir().unwrap();
    conforms(CacheConfig {
        freshness: Freshness::Immutable,
        block_bytes: BLOCK,
        ..CacheConfig::new(dir.path(), 2 << 20)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conformance_of_a_cache_without_a_directory() {
    conforms(CacheConfig::new("/proc/forebay-test-cache", 64 << 20)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_cannot_be_used_is_said_in_the_ledger() {
    let origin = Origin::with(&[100_000]).await;
    let cache = open(&origin, CacheConfig::new("/proc/forebay-test-cache", 64 << 20)).await;
    let ledger = read_whole(&cache, 0, 100_000).await;
    assert!(
        ledger.downgrades[0].reason.contains("not cached"),
        "{:?}",
        ledger.downgrades
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn misses_come_from_the_origin_and_hits_from_disk_without_a_copy() {
    let size = 5 * BLOCK as usize + 12_345;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let cache = open(&origin, config(dir.path())).await;
    let cold = read_whole(&cache, 0, size).await;
    assert_eq!(cold.path(DataPath::Memory).bytes, size as u64);
    assert_eq!(origin.reads(), 6);
    cache.settle().await;
    let warm = read_whole(&cache, 0, size).await;
    assert_eq!(origin.reads(), 6, "a warm read does not touch the origin's data");
    assert_eq!(warm.path(DataPath::Memory).bytes, 0);
    assert_eq!(warm.verified_bytes, 0, "the origin verified nothing");
    let copied: u64 = warm.paths.values().map(|totals| totals.copied_bytes).sum();
    assert_eq!(copied, 0, "{warm}");
    assert_eq!((cache.stats().hits, cache.stats().misses), (6, 6));
    // The data file of a whole object is the object.
    let data = std::fs::read(&files(dir.path(), "data")[0]).unwrap();
    assert!(data == content(0, size));
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_blocks_are_checked_with_the_whole_block() {
    let size = 3 * BLOCK as usize + 1;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let cache = open(&origin, config(dir.path())).await;
    let part = span(BLOCK - 5, BLOCK + 7);
    read_part(&cache, 0, size, part).await;
    assert_eq!(origin.reads(), 2, "only the blocks asked for");
    cache.settle().await;
    let warm = read_part(&cache, 0, size, part).await;
    assert_eq!(origin.reads(), 2);
    let local = warm.paths.values().next().unwrap();
    assert_eq!((local.bytes, local.copied_bytes), (12, 12));
    for at in [0, 1, 4095, 4096, BLOCK - 1, BLOCK, 3 * BLOCK - 1, 3 * BLOCK] {
        for len in [1, 2, 4096, BLOCK, BLOCK + 1] {
            let part = span(at, (at + len).min(size as u64));
            read_part(&cache, 0, size, part).await;
        }
    }
    read_part(&cache, 0, size, Span::first(0)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn longer_buffers_keep_their_length_and_their_end() {
    let size = 2 * BLOCK as usize + 100;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let cache = open(&origin, config(dir.path())).await;
    for _ in 0..2 {
        let mut buf = AlignedBuf::alloc(4 * BLOCK as usize, Pages::Small).unwrap();
        buf[3 * BLOCK as usize..].fill(7);
        let address = buf.as_ptr();
        let done = cache
            .read_into(&key("0"), Span::first(size as u64), buf, &ReadOptions::default())
            .await
            .unwrap();
        assert_eq!((done.buf.as_ptr(), done.buf.len()), (address, 4 * BLOCK as usize));
        assert!(done.buf[..size] == content(0, size));
        assert!(done.buf[3 * BLOCK as usize..].iter().all(|byte| *byte == 7));
        cache.settle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_read_brings_in_the_whole_object() {
    let size = 40 * BLOCK as usize + 3;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let config = CacheConfig {
        mode: Mode::Whole,
        ..config(dir.path())
    };
    let cache = open(&origin, config).await;
    read_part(&cache, 0, size, span(20 * BLOCK, 20 * BLOCK + 1)).await;
    cache.settle().await;
    assert_eq!((origin.reads(), origin.reads_max()), (41, 1));
    origin.down.store(true, Ordering::SeqCst);
    let version = origin_version(&cache, &origin).await;
    let options = ReadOptions {
        version,
        ..ReadOptions::default()
    };
    let done = try_read(&cache, "0", Span::first(size as u64), &options)
        .await
        .unwrap();
    assert!(done.buf[..] == content(0, size));
}

async fn origin_version(cache: &Cache, origin: &Origin) -> Option<String> {
    origin.down.store(false, Ordering::SeqCst);
    let version = cache.head(&key("0")).await.unwrap().version;
    origin.down.store(true, Ordering::SeqCst);
    version
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_objects_are_seen_at_once_unless_told_otherwise() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[200_000]).await;
    let clock = Arc::new(ManualClock::default());
    let context = context().with_time(clock.clone(), Seed(1));
    let ask = open_in(&origin, config(dir.path()), &context).await;
    let believing = |freshness| CacheConfig {
        freshness,
        ..config(dir.path())
    };
    let hour = Duration::from_secs(3600);
    let hourly = open_in(&origin, believing(Freshness::For(hour)), &context).await;
    let never = open_in(&origin, believing(Freshness::Immutable), &context).await;
    for cache in [&ask, &hourly, &never] {
        read_whole(cache, 0, 200_000).await;
        cache.settle().await;
    }
    let new = content(99, 150_000);
    origin.write("0", &new).await;
    let newest = |cache| async move {
        let done = try_read(cache, "0", Span::first(150_000), &ReadOptions::default()).await;
        done.unwrap().buf[..] == content(99, 150_000)
    };
    assert!(newest(&ask).await);
    assert!(!newest(&hourly).await && !newest(&never).await);
    clock.advance(hour);
    assert!(newest(&hourly).await && !newest(&never).await);
    let done = try_read(&ask, "0", Span::first(200_000), &ReadOptions::default()).await;
    assert_eq!(done.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test(flavor = "multi_thread")]
async fn warm_reads_of_immutable_objects_do_not_touch_the_origin_even_after_a_restart() {
    let size = 2 * BLOCK as usize;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size, size]).await;
    let config = CacheConfig {
        freshness: Freshness::Immutable,
        ..config(dir.path())
    };
    let cache = open(&origin, config.clone()).await;
    read_whole(&cache, 0, size).await;
    read_whole(&cache, 0, size).await;
    assert_eq!(origin.heads(), 1);
    cache.settle().await;
    drop(cache);
    origin.down.store(true, Ordering::SeqCst);
    let cache = open(&origin, config).await;
    read_whole(&cache, 0, size).await;
    let error = try_read(&cache, "1", Span::first(1), &ReadOptions::default()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_version_that_is_cached_needs_no_origin() {
    let size = 2 * BLOCK as usize;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let cache = open(&origin, config(dir.path())).await;
    let version = cache.head(&key("0")).await.unwrap().version;
    read_whole(&cache, 0, size).await;
    cache.settle().await;
    drop(cache);
    let cache = open(&origin, config(dir.path())).await;
    origin.down.store(true, Ordering::SeqCst);
    let pinned = |version: &str| ReadOptions {
        version: Some(version.to_owned()),
        ..ReadOptions::default()
    };
    let options = pinned(version.as_deref().unwrap());
    let done = try_read(&cache, "0", Span::first(size as u64), &options).await;
    assert!(done.unwrap().buf[..] == content(0, size));
    origin.down.store(false, Ordering::SeqCst);
    let error = try_read(&cache, "0", Span::first(1), &pinned("another")).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Precondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_through_the_cache_removes_what_it_had() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[100_000, 100_000]).await;
    let config = CacheConfig {
        freshness: Freshness::Immutable,
        ..config(dir.path())
    };
    let cache = open(&origin, config).await;
    read_whole(&cache, 0, 100_000).await;
    read_whole(&cache, 1, 100_000).await;
    cache.settle().await;
    assert_eq!(files(dir.path(), "data").len(), 2);
    let body = Buf::copy_of(b"new").unwrap().into();
    cache.put(&key("0"), body, &PutOptions::default()).await.unwrap();
    assert_eq!(files(dir.path(), "data").len(), 1);
    assert_eq!(files(dir.path(), "index").len(), 1);
    let done = try_read(&cache, "0", Span::first(3), &ReadOptions::default()).await;
    assert_eq!(done.unwrap().buf[..], *b"new");
    cache.delete(&key("1")).await.unwrap();
    let error = try_read(&cache, "1", Span::first(3), &ReadOptions::default()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn origins_without_versions_are_cached_only_when_immutable() {
    let dir = tempfile::tempdir().unwrap();
    let mut origin = Origin::new();
    origin.versions = false;
    origin.fill(&[100_000]).await;
    let origin = Arc::new(origin);
    let cache = open(&origin, config(dir.path())).await;
    for _ in 0..2 {
        let ledger = read_whole(&cache, 0, 100_000).await;
        assert!(
            ledger.downgrades[0].reason.contains("no version"),
            "{:?}",
            ledger.downgrades
        );
    }
    let config = CacheConfig {
        freshness: Freshness::Immutable,
        ..config(dir.path())
    };
    let cache = open(&origin, config).await;
    read_whole(&cache, 0, 100_000).await;
    cache.settle().await;
    let reads = origin.reads();
    read_whole(&cache, 0, 100_000).await;
    assert_eq!(origin.reads(), reads);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_required_path_is_taken_or_refused() {
    let size = 2 * BLOCK as usize;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size, size]).await;
    let cache = open(&origin, config(dir.path())).await;
    read_whole(&cache, 0, size).await;
    cache.settle().await;
    let local = *read_whole(&cache, 0, size).await.paths.keys().next().unwrap();
    let require = |path| ReadOptions {
        policy: PathPolicy::Require(path),
        ..ReadOptions::default()
    };
    // Not cached yet: it is brought in first, and then read from there.
    let span = Span::first(size as u64);
    let done = try_read(&cache, "1", span, &require(local)).await.unwrap();
    assert!(done.buf[..] == content(1, size));
    assert_eq!(done.ledger.path(local).bytes, size as u64);
    assert_eq!(done.ledger.bytes(), size as u64);
    // The origin's own path goes to the origin.
    let reads = origin.reads();
    let done = try_read(&cache, "1", span, &require(DataPath::Memory))
        .await
        .unwrap();
    assert!(done.buf[..] == content(1, size));
    assert_eq!(origin.reads(), reads + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_larger_than_the_cache_are_read_around_it() {
    let size = 4 << 20;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let config = CacheConfig {
        mode: Mode::Whole,
        bytes_max: 1 << 20,
        ..config(dir.path())
    };
    let cache = open(&origin, config).await;
    let ledger = read_whole(&cache, 0, size).await;
    assert!(
        ledger.downgrades[0].reason.contains("larger than the cache"),
        "{:?}",
        ledger.downgrades
    );
    assert_eq!(stored_bytes(dir.path()), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_cannot_be_meant_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let context = context();
    let local = Location::from_path(dir.path(), dir.path()).unwrap();
    let store: Arc<dyn Store> = Arc::new(forebay_store::LocalStore::open(&local, &context).unwrap());
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let with_block = |block_bytes| CacheConfig {
        block_bytes,
        ..CacheConfig::new(dir.path(), 1 << 30)
    };
    std::fs::write(dir.path().join("file"), b"x").unwrap();
    for (origin, config) in [
        (&memory, with_block(0)),
        (&memory, with_block(1000)),
        (&memory, with_block(2 << 30)),
        (&memory, CacheConfig::new(dir.path(), 100)),
        (&memory, CacheConfig::new(dir.path().join("file"), 1 << 30)),
        (&store, CacheConfig::new(dir.path(), 1 << 30)),
        (&store, CacheConfig::new(dir.path().join("inside"), 1 << 30)),
        (&store, CacheConfig::new(dir.path().parent().unwrap(), 1 << 30)),
    ] {
        let error = Cache::open(Arc::clone(origin), config.clone(), &context).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::InvalidInput, "{config:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_origins_errors_come_through_and_are_not_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[100_000]).await;
    let cache = open(&origin, config(dir.path())).await;
    let version = cache.head(&key("0")).await.unwrap().version;
    origin.down.store(true, Ordering::SeqCst);
    let pinned = ReadOptions {
        version,
        ..ReadOptions::default()
    };
    let error = try_read(&cache, "0", Span::first(100_000), &pinned)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(error.location(), Some("s3://origin/0"));
    origin.down.store(false, Ordering::SeqCst);
    read_whole(&cache, 0, 100_000).await;
}
