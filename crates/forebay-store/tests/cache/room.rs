//! The cap: held under any load, by removing what was used longest ago, and nothing but our own files.

use std::collections::VecDeque;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::Seed;
use forebay_store::cache::{CacheConfig, Mode};
use futures::future::join_all;
use proptest::prelude::*;

use crate::support::*;

/// What an entry's index takes.
const INDEX: u64 = 4096;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a model that keeps the objects used last, in order, as far as they fit.
    #[test]
    fn the_cap_holds_and_the_last_used_stay(
        sizes in prop::collection::vec(1u64..5, 4..10),
        cap in 8u64..20,
        uses in prop::collection::vec(0usize..100, 20..60),
    ) {
        let sizes: Vec<usize> = sizes.iter().map(|blocks| (*blocks * BLOCK) as usize).collect();
        let cap = cap * (BLOCK + INDEX);
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let origin = Origin::with(&sizes).await;
            let cache = open(&origin, CacheConfig { bytes_max: cap, mode: Mode::Whole, ..config(dir.path()) }).await;
            // Most recent first. An object is still there as long as it and all that were used since fit well below the cap: eviction may go
            // a 32nd lower, and counts blocks that are being written twice.
            let slack = cap / 32 + 4 * BLOCK;
            let mut recent: VecDeque<usize> = VecDeque::new();
            for pick in uses {
                let index = pick % sizes.len();
                let reads = origin.reads();
                let mut before: Vec<usize> = recent.iter().copied().take_while(|other| *other != index).collect();
                before.push(index);
                let needed: u64 = before.iter().map(|other| sizes[*other] as u64 + INDEX).sum();
                let must_hit = recent.contains(&index) && needed + slack <= cap;
                read_whole(&cache, index as u64, sizes[index]).await;
                cache.settle().await;
                if must_hit {
                    assert_eq!(origin.reads(), reads, "object {index} of {recent:?} was used lately, and fits");
                }
                recent.retain(|other| *other != index);
                recent.push_front(index);
                let stored = stored_bytes(dir.path());
                assert!(stored <= cap, "{stored} stored, {cap} allowed");
                assert_eq!(files(dir.path(), "data").len(), files(dir.path(), "index").len());
            }
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_cap_holds_at_every_moment_of_a_busy_time() {
    let sizes = [4 * BLOCK as usize; 24];
    let cap = 20 * (BLOCK + INDEX);
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&sizes).await;
    let cache = Arc::new(
        open(
            &origin,
            CacheConfig {
                bytes_max: cap,
                mode: Mode::Whole,
                ..config(dir.path())
            },
        )
        .await,
    );
    let over = Arc::new(AtomicBool::new(false));
    let context = context();
    let readers = (0..8u64).map(|reader| {
        let (cache, dir, over) = (Arc::clone(&cache), dir.path().to_owned(), Arc::clone(&over));
        let context = context.clone();
        tokio::spawn(async move {
            let mut rng = Seed(reader).rng();
            for _ in 0..40 {
                let index = rng.below(sizes.len() as u64);
                read_whole(&*cache, index, sizes[0]).await;
                over.fetch_or(stored_bytes_locked(&dir, &context).await > cap, Ordering::SeqCst);
            }
        })
    });
    for reader in join_all(readers).await {
        reader.unwrap();
    }
    cache.settle().await;
    assert!(!over.load(Ordering::SeqCst));
    assert!(stored_bytes(dir.path()) <= cap);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn caches_that_share_a_directory_pass_the_cap_by_blocks_in_flight_at_most() {
    let sizes = [4 * BLOCK as usize; 24];
    let cap = 20 * (BLOCK + INDEX);
    let slots = 2;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&sizes).await;
    let config = CacheConfig {
        bytes_max: cap,
        fill_bytes_max: slots * BLOCK,
        ..config(dir.path())
    };
    let mut readers = Vec::new();
    for reader in 0..3u64 {
        let context = context();
        let cache = open_in(&origin, config.clone(), &context).await;
        let dir = dir.path().to_owned();
        readers.push(tokio::spawn(async move {
            let mut rng = Seed(reader).rng();
            let mut most = 0;
            for _ in 0..60 {
                read_whole(&cache, rng.below(sizes.len() as u64), sizes[0]).await;
                most = most.max(stored_bytes_locked(&dir, &context).await);
            }
            cache.settle().await;
            most
        }));
    }
    for most in join_all(readers).await {
        let (most, allowed) = (most.unwrap(), cap + 2 * slots * (BLOCK + INDEX));
        assert!(most <= allowed, "{most} stored, {allowed} allowed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn eviction_removes_only_what_the_cache_has_made() {
    let sizes = [4 * BLOCK as usize; 12];
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&sizes).await;
    let cache = open(
        &origin,
        CacheConfig {
            bytes_max: 9 * (BLOCK + INDEX),
            ..config(dir.path())
        },
    )
    .await;
    read_whole(&cache, 0, sizes[0]).await;
    cache.settle().await;
    let sub = files(dir.path(), "data")[0].parent().unwrap().to_owned();
    let mine = [
        dir.path().join("cache/mine"),
        sub.join("mine.data"),
        sub.join("mine.index"),
    ];
    for path in &mine {
        fs::write(path, vec![1; 100_000]).unwrap();
    }
    for (index, size) in sizes.iter().enumerate() {
        read_whole(&cache, index as u64, *size).await;
        cache.settle().await;
    }
    for path in &mine {
        assert_eq!(fs::read(path).unwrap(), vec![1; 100_000], "{}", path.display());
    }
    let objects = forebay_store::Store::list(
        &*origin,
        &forebay_core::Key::ROOT,
        forebay_store::ListOptions { recursive: true },
    );
    assert_eq!(
        futures::StreamExt::count(objects).await,
        sizes.len(),
        "originals stay"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_larger_than_the_cache_is_cached_in_part() {
    let size = 40 * BLOCK as usize;
    let cap = 10 * BLOCK;
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[size]).await;
    let cache = open(
        &origin,
        CacheConfig {
            bytes_max: cap,
            ..config(dir.path())
        },
    )
    .await;
    for block in 0..40 {
        let part = span(block * BLOCK, (block + 1) * BLOCK);
        read_part(&cache, 0, size, part).await;
        cache.settle().await;
        assert!(stored_bytes(dir.path()) <= cap);
    }
    // The block that made the cache start anew was not kept itself.
    let last = span(39 * BLOCK, 40 * BLOCK);
    read_part(&cache, 0, size, last).await;
    cache.settle().await;
    let reads = origin.reads();
    read_part(&cache, 0, size, last).await;
    assert_eq!(
        origin.reads(),
        reads,
        "the cache follows the reader through a large object"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_removed_by_another_cache_are_let_go_of() {
    let sizes = [4 * BLOCK as usize; 3];
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&sizes).await;
    let first = open(&origin, config(dir.path())).await;
    read_whole(&first, 0, sizes[0]).await;
    first.settle().await;
    let second = open(
        &origin,
        CacheConfig {
            bytes_max: 5 * (BLOCK + INDEX),
            ..config(dir.path())
        },
    )
    .await;
    read_whole(&second, 1, sizes[1]).await;
    second.settle().await;
    assert_eq!(files(dir.path(), "data").len(), 1, "the smaller cap made room");
    // The first cache still has the removed entry open. A fill makes it look, and what it reads next is cached by name again.
    read_whole(&first, 2, sizes[2]).await;
    first.settle().await;
    read_whole(&first, 0, sizes[0]).await;
    first.settle().await;
    assert_eq!(files(dir.path(), "data").len(), 3);
}
