//! Streams through a cache, whose copy may be damaged while the shards are whole.

use forebay_store::cache::{Cache, CacheConfig, Freshness};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_copy_in_the_cache_is_fetched_again() {
    let (dataset, store) = data_set(&SIZES).await;
    let whole = run(&dataset, spec(1, 0)).await;
    let folder = tempfile::tempdir().unwrap();
    let context = dataset.context();
    let config = CacheConfig {
        block_bytes: 8192,
        freshness: Freshness::Immutable,
        ..CacheConfig::new(folder.path(), 64 << 20)
    };
    let cache = Cache::open(Arc::clone(&store), config, context).await.unwrap();
    let cache = Arc::new(cache);
    let from: Arc<dyn Store> = Arc::clone(&cache) as _;
    let options = OpenOptions::default();
    let opened = Dataset::open_indexed(from, context, dataset.manifest().clone(), &options).await;
    let cached = opened.unwrap();
    assert_eq!(run(&cached, spec(1, 0)).await, whole);
    cache.settle().await;
    let misses = cache.stats().misses;

    let mut damaged = 0;
    for entry in walk(folder.path()) {
        if entry.extension().is_some_and(|ending| ending == "data") {
            let mut bytes = std::fs::read(&entry).unwrap();
            for byte in bytes.iter_mut().skip(500).step_by(3000) {
                *byte ^= 0x10;
                damaged += 1;
            }
            std::fs::write(&entry, bytes).unwrap();
        }
    }
    assert!(damaged > 5);
    assert_eq!(
        run(&cached, spec(1, 0)).await,
        whole,
        "no bad sample, none replaced"
    );
    let stats = cache.stats();
    assert!(stats.corrupt > 0 && stats.misses > misses, "{stats:?}");
}

fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path);
        }
    }
    found
}
