//! What a cache may believe: which store an object is of, for how long, and how far its bytes were verified.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{ErrorKind, Span};
use forebay_io::Buf;
use forebay_store::cache::{Cache, CacheConfig, Freshness, Mode};
use forebay_store::{PutOptions, ReadOptions, Store};

use crate::support::*;

const SIZE: usize = BLOCK as usize + 100;

fn believing(dir: &std::path::Path, freshness: Freshness) -> CacheConfig {
    CacheConfig {
        freshness,
        ..config(dir)
    }
}

/// An object as this cache gives it now.
async fn read(cache: &Cache, size: usize) -> Vec<u8> {
    let span = Span::first(size as u64);
    let done = try_read(cache, "0", span, &ReadOptions::default()).await.unwrap();
    done.buf[..size].to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn clusters_with_a_bucket_of_one_name_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    for (seed, endpoint) in [(1, "http://127.0.0.1:1/b"), (2, "http://127.0.0.1:2/b")] {
        let mut origin = Origin::new();
        origin.identity = Some(endpoint.to_owned());
        origin.write("0", &content(seed, SIZE)).await;
        let cache = open(&Arc::new(origin), believing(dir.path(), Freshness::Immutable)).await;
        assert!(read(&cache, SIZE).await == content(seed, SIZE), "{endpoint}");
        cache.settle().await;
    }
    assert_eq!(files(dir.path(), "data").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_object_is_read_around_the_cache() {
    for freshness in [Freshness::For(Duration::from_secs(3600)), Freshness::Immutable] {
        let dir = tempfile::tempdir().unwrap();
        let origin = Origin::with(&[SIZE]).await;
        // Too small for the object, so that every read goes around.
        let config = CacheConfig {
            mode: Mode::Whole,
            bytes_max: BLOCK,
            ..believing(dir.path(), freshness)
        };
        let cache = open(&origin, config).await;
        read_whole(&cache, 0, SIZE).await;
        origin.write("0", &content(7, SIZE)).await;
        assert!(read(&cache, SIZE).await == content(7, SIZE), "{freshness:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_that_is_asked_for_is_not_replaced_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let origin = Origin::with(&[SIZE]).await;
    let config = CacheConfig {
        mode: Mode::Whole,
        bytes_max: BLOCK,
        ..believing(dir.path(), Freshness::Immutable)
    };
    let cache = open(&origin, config).await;
    let options = ReadOptions {
        version: cache.head(&key("0")).await.unwrap().version,
        ..ReadOptions::default()
    };
    let whole = Span::first(SIZE as u64);
    try_read(&cache, "0", whole, &options).await.unwrap();
    origin.write("0", &content(7, SIZE)).await;
    let error = try_read(&cache, "0", whole, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_dropped_half_way_leaves_nothing_old() {
    for freshness in [Freshness::For(Duration::from_secs(3600)), Freshness::Immutable] {
        for with_versions in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let mut origin = Origin::new();
            origin.versions = with_versions;
            origin.fill(&[SIZE]).await;
            let origin = Arc::new(origin);
            let cache = open(&origin, believing(dir.path(), freshness)).await;
            read_whole(&cache, 0, SIZE).await;
            cache.settle().await;
            origin.mute.store(true, Ordering::SeqCst);
            let (name, options) = (key("0"), PutOptions::default());
            let body = Buf::copy_of(&content(7, SIZE)).unwrap().into();
            let mut put = cache.put(&name, body, &options);
            // The origin has it, and the caller loses patience.
            assert!(futures::poll!(&mut put).is_pending());
            drop(put);
            cache.settle().await;
            assert!(
                read(&cache, SIZE).await == content(7, SIZE),
                "{freshness:?} {with_versions}"
            );

            let mut delete = cache.delete(&name);
            assert!(futures::poll!(&mut delete).is_pending());
            drop(delete);
            cache.settle().await;
            let error = try_read(&cache, "0", Span::first(1), &ReadOptions::default()).await;
            assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hit_is_as_verified_as_its_fill() {
    for verifies in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let origin = Origin::with(&[SIZE]).await;
        origin.verifies.store(verifies, Ordering::SeqCst);
        let cache = open(&origin, config(dir.path())).await;
        let part = span(BLOCK - 5, BLOCK + 7);
        for _ in 0..2 {
            let expected = |len: u64| if verifies { len } else { 0 };
            let whole = read_whole(&cache, 0, SIZE).await;
            assert_eq!(whole.verified_bytes, expected(SIZE as u64));
            let part = read_part(&cache, 0, SIZE, part).await;
            assert_eq!(part.verified_bytes, expected(12));
            cache.settle().await;
        }
        assert!(cache.stats().hits > 0);
    }
}
