//! Loaders beside each other, and epochs behind each other.

use forebay_core::Location;
use forebay_store::LocalStore;
use forebay_store::cache::{Cache, CacheConfig, Freshness};
use forebay_store::wrap::{Counted, Op};

use super::*;

/// One loader with a runtime and a cache object of its own, as another process has them.
fn through_cache(folder: &std::path::Path, store: Arc<dyn Store>, dataset: &Dataset) -> Vec<Numbers> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let manifest = dataset.manifest().clone();
    runtime.block_on(async {
        let context = context();
        let config = CacheConfig {
            block_bytes: 8192,
            freshness: Freshness::Immutable,
            ..CacheConfig::new(folder, 64 << 20)
        };
        let cache = Cache::open(store, config, &context).await.unwrap();
        let cache = Arc::new(cache);
        let options = OpenOptions::default();
        let opened = Dataset::open_indexed(Arc::clone(&cache) as _, &context, manifest, &options).await;
        let batches = run(&opened.unwrap(), spec(1, 0)).await;
        cache.settle().await;
        batches
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn two_loaders_share_one_cache_directory_at_the_same_time() {
    let (dataset, store) = data_set(&SIZES).await;
    let whole = run(&dataset, spec(1, 0)).await;
    let (folder, origin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // A store in memory is another one in every process; files are the same.
    for shard in dataset.shards() {
        let span = forebay_core::Span::first(shard.stored_bytes);
        let options = forebay_store::ReadOptions::default();
        let read = store.read(&shard.key, span, &options, dataset.context()).await;
        std::fs::write(origin.path().join(shard.key.as_str()), read.unwrap().0).unwrap();
    }
    let location = Location::from_path(origin.path(), std::path::Path::new("/")).unwrap();
    let local = LocalStore::open(&location, dataset.context()).unwrap();
    let counted = Counted::new(Arc::new(local));
    let begin = Arc::new(std::sync::Barrier::new(2));
    let loaders: Vec<_> = (0..2)
        .map(|_| {
            let (folder, dataset) = (folder.path().to_owned(), dataset.clone());
            let (store, begin) = (Arc::new(counted.clone()), Arc::clone(&begin));
            std::thread::spawn(move || {
                begin.wait();
                through_cache(&folder, store, &dataset)
            })
        })
        .collect();
    for loader in loaders {
        assert_eq!(loader.join().unwrap(), whole);
    }
    let fetched = counted.counts().of(Op::Read).bytes;
    let with_samples = dataset.shards().iter().filter(|shard| shard.samples > 0);
    let all: u64 = with_samples.map(|shard| shard.stored_bytes).sum();
    assert_eq!(fetched, all, "one fetched what the other had or was fetching");
    // A third finds everything there.
    let (folder, third) = (folder.path().to_owned(), Arc::new(counted.clone()));
    let again = std::thread::spawn(move || through_cache(&folder, third, &dataset));
    assert_eq!(again.join().unwrap(), whole);
    assert_eq!(counted.counts().of(Op::Read).bytes, fetched);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_epoch_is_asked_for_before_this_one_is_over() {
    let (dataset, store) = data_set(&SIZES).await;
    let reads = async |epochs: u64, left: u64| {
        let counted = Counted::new(Arc::clone(&store));
        let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
        let counting = Arc::new(counted.clone());
        let opened = Dataset::open_indexed(counting, dataset.context(), manifest, &options).await;
        let mut spec = spec(1, 0);
        spec.epochs = Some(epochs);
        // Few batches are ready ahead: those of the next epoch are not why it is read.
        spec.ready_bytes_max = 1;
        let mut loader = Loader::new(opened.unwrap(), &spec).unwrap();
        for _ in left..loader.batches() {
            loader.next_batch().await.unwrap().unwrap();
        }
        (loader, counted)
    };
    let (mut loader, counted) = reads(1, 1).await;
    while loader.next_batch().await.is_some() {}
    let one_epoch = counted.counts().of(Op::Read).requests;
    // Three batches are not taken: more than are made ahead.
    let (loader, counted) = reads(2, 3).await;
    let next = async {
        while counted.counts().of(Op::Read).requests <= one_epoch {
            tokio::task::yield_now().await;
        }
    };
    let hang = std::time::Duration::from_secs(30);
    let asked = tokio::time::timeout(hang, next).await;
    assert!(asked.is_ok(), "nothing of the next epoch was read");
    assert_eq!(loader.position().epoch, 0);
}
