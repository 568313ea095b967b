//! Many at once: each block is fetched once, nobody waits for ever, nothing is held when readers go away.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{Limits, PathPolicy, Span};
use forebay_io::{Disk, DiskConfig, OpenHow, Purpose, RangeLock};
use forebay_store::cache::{CacheConfig, Mode};
use forebay_store::{Context, ReadOptions, Store};
use futures::future::join_all;

use crate::support::*;

async fn slow_origin(sizes: &[usize]) -> Arc<Origin> {
    let mut origin = Origin::new();
    origin.pause = Duration::from_millis(5);
    origin.fill(sizes).await;
    Arc::new(origin)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_readers_fetch_each_block_once() {
    let size = 9 * BLOCK as usize + 17;
    for mode in [Mode::Whole, Mode::Blocks] {
        let dir = tempfile::tempdir().unwrap();
        let origin = slow_origin(&[size]).await;
        let config = CacheConfig {
            mode,
            ..config(dir.path())
        };
        let cache = Arc::new(open(&origin, config).await);
        let readers = (0..64u64).map(|reader| {
            let cache = Arc::clone(&cache);
            tokio::spawn(async move {
                let start = reader * 1000 % BLOCK;
                read_part(&*cache, 0, size, span(start, size as u64)).await
            })
        });
        for reader in join_all(readers).await {
            reader.unwrap();
        }
        cache.settle().await;
        assert_eq!((origin.reads(), origin.reads_max()), (10, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn caches_with_the_same_directory_fetch_each_block_once() {
    let size = 9 * BLOCK as usize + 17;
    let dir = tempfile::tempdir().unwrap();
    let origin = slow_origin(&[size, size]).await;
    let mut readers = Vec::new();
    let mut caches = Vec::new();
    for _ in 0..4 {
        let cache = Arc::new(open(&origin, config(dir.path())).await);
        caches.push(Arc::clone(&cache));
        for reader in 0..8u64 {
            let cache = Arc::clone(&cache);
            readers.push(tokio::spawn(async move {
                read_whole(&*cache, reader % 2, size).await
            }));
        }
    }
    for reader in join_all(readers).await {
        reader.unwrap();
    }
    for cache in caches {
        cache.settle().await;
    }
    assert_eq!((origin.reads(), origin.reads_max()), (20, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_never_let_go_of_is_waited_for_once() {
    let size = BLOCK as usize;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size, 10]).await;
    let disk = DiskConfig {
        limits: Limits {
            stall_ms_max: 100,
            ..limits()
        },
        ..DiskConfig::default()
    };
    let context = Context::new(Disk::open(disk).unwrap());
    let cache = open_in(&origin, config(dir.path()), &context).await;
    // Make the entry without filling it, and hold the lock of its block as a stopped process would.
    let version = cache.head(&key("0")).await.unwrap().version;
    let pinned = ReadOptions {
        version,
        ..ReadOptions::default()
    };
    origin.down.store(true, Ordering::SeqCst);
    try_read(&cache, "0", Span::first(1), &pinned).await.unwrap_err();
    origin.down.store(false, Ordering::SeqCst);
    let how = OpenHow {
        purpose: Purpose::Update,
        ..OpenHow::READ
    };
    let index = files(dir.path(), "index").remove(0);
    let opened = context.disk().open_file(index, how, PathPolicy::Fastest).await;
    let file = opened.unwrap();
    let held = RangeLock::try_exclusive(&file, Span::first(1)).unwrap().unwrap();
    for _ in 0..3 {
        let ledger = read_whole(&cache, 0, size).await;
        let reason = &ledger.downgrades[0].reason;
        assert!(reason.contains("another process"), "{reason}");
    }
    drop(held);
    // On a busy machine a filler may take longer than a lock is waited for.
    for tries in 1.. {
        let reads = origin.reads();
        let ledger = read_whole(&cache, 0, size).await;
        cache.settle().await;
        if origin.reads() == reads {
            assert!(ledger.downgrades.is_empty());
            break;
        }
        assert!(tries < 20, "never cached although the lock was free");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn readers_that_go_away_hold_nothing_up() {
    let size = 32 * BLOCK as usize;
    let dir = tempfile::tempdir().unwrap();
    let origin = slow_origin(&[size, size]).await;
    let config = CacheConfig {
        fill_bytes_max: 2 * BLOCK,
        ..config(dir.path())
    };
    let cache = Arc::new(open(&origin, config).await);
    for round in 0..20 {
        let cache = Arc::clone(&cache);
        let reader = tokio::spawn(async move { read_whole(&*cache, 0, size).await });
        tokio::time::sleep(Duration::from_millis(round % 7)).await;
        reader.abort();
    }
    read_whole(&*cache, 1, size).await;
    read_whole(&*cache, 0, size).await;
    cache.settle().await;
    assert_eq!(
        origin.reads_max(),
        1,
        "what was begun for a reader that left is kept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn little_memory_is_slow_and_never_stuck() {
    let size = 16 * BLOCK as usize + 5;
    let dir = tempfile::tempdir().unwrap();
    let origin = slow_origin(&[size, size, size, size]).await;
    let config = CacheConfig {
        fill_bytes_max: 1,
        mode: Mode::Whole,
        ..config(dir.path())
    };
    let context = context();
    let cache = Arc::new(open_in(&origin, config, &context).await);
    // Readers that hold all of the pool their buffers come from, reading parts and wholes at once.
    let readers = (0..24u64).map(|reader| {
        let (cache, pool) = (Arc::clone(&cache), context.pool().clone());
        tokio::spawn(async move {
            let part = span(reader * 777, size as u64 - reader);
            let buf = pool.lease(part.len() as usize).await.unwrap().unwrap();
            let name = (reader % 4).to_string();
            let options = ReadOptions::default();
            let done = cache.read_into(&key(&name), part, buf, &options).await.unwrap();
            assert!(done.buf[..] == content(reader % 4, size)[part.relative_to(0)]);
        })
    });
    for reader in join_all(readers).await {
        reader.unwrap();
    }
    cache.settle().await;
    assert_eq!((origin.reads(), origin.reads_max()), (68, 1));
}

/// Descriptors of this process that are of files below `dir`.
fn descriptors_below(dir: &std::path::Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    links
        .filter_map(|link| std::fs::read_link(link.unwrap().path()).ok())
        .filter(|path| path.starts_with(dir))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn objects_that_wait_to_be_filled_whole_do_not_pile_up() {
    const OBJECTS: usize = 400;
    let size = 2 * BLOCK as usize;
    let dir = tempfile::tempdir().unwrap();
    let mut origin = Origin::new();
    origin.hold = Some(tokio::sync::Semaphore::new(0));
    origin.fill(&[size; OBJECTS]).await;
    let origin = Arc::new(origin);
    let config = CacheConfig {
        mode: Mode::Whole,
        ..config(dir.path())
    };
    let cache = open(&origin, config).await;
    for index in 0..OBJECTS {
        read_part(&cache, index as u64, size, Span::first(10)).await;
    }
    // Those kept open for the next read, those being filled, and the marker; two files each.
    let open = descriptors_below(dir.path());
    assert!(open <= 2 * (128 + 32 + 8), "{open}");
    origin.hold.as_ref().unwrap().add_permits(OBJECTS);
    cache.settle().await;
    let filled = origin.reads();
    assert!(
        filled < 2 * OBJECTS as u64,
        "not all of them had a place: {filled}"
    );

    // Whoever found no place is filled when a block is next missed.
    let last = OBJECTS as u64 - 1;
    read_part(&cache, last, size, span(size as u64 - 10, size as u64)).await;
    cache.settle().await;
    let reads = origin.reads();
    read_whole(&cache, last, size).await;
    assert_eq!((origin.reads(), reads), (reads, filled + 1));
}
