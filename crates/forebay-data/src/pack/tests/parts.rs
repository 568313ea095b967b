//! Shards that are stored while they grow: the same bytes whatever the parts are, nothing of a shard that was given up, and no more read than the store takes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::ErrorKind;
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};

use super::*;

/// Files of which a shard is many parts of the context.
async fn large_files(store: &dyn Store, count: u64) {
    for index in 0..count {
        put(
            store,
            &format!("{index:03}.dat"),
            &bytes_of(index, 90_001 + index as usize),
        )
        .await;
    }
}

/// About eight parts each.
fn parts(to: PackFormat) -> PackSpec {
    PackSpec {
        shard_bytes: 600_000,
        threads: 2,
        ..PackSpec::new(to)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_any_size_make_the_same_shards() {
    let from = memory_store();
    large_files(&*from, 25).await;
    for format in [PackFormat::Wds, PackFormat::TfRecord] {
        // In memory, parts are longer than a shard; on disk, each shard has many.
        let (dir, memory) = (tempfile::tempdir().unwrap(), memory_store());
        let local = local_at(dir.path(), &context());
        run(&from, &memory, &parts(format)).await.unwrap();
        let report = run(&from, &local, &parts(format)).await.unwrap();
        assert!(report.shards > 3, "{report:?}");
        let found = written(&*local).await;
        assert!(written(&*memory).await == found, "{format:?}");
        let whole = PackSpec {
            shard_bytes: 40_000,
            ..parts(format)
        };
        let single = memory_store();
        run(&from, &single, &whole).await.unwrap();
        assert_eq!(samples(&single).await, samples(&local).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_fails_leaves_nothing_of_its_shard() {
    let from = memory_store();
    large_files(&*from, 25).await;
    let expected = memory_store();
    run(&from, &expected, &parts(PackFormat::Wds)).await.unwrap();
    let expected = written(&*expected).await;
    for nth in [1, 2, 9, 17] {
        let dir = tempfile::tempdir().unwrap();
        let to = local_at(dir.path(), &context());
        let plan = FaultPlan::new(Seed(0)).with(Op::Part, When::Nth(nth), Fault::Fail(ErrorKind::OutOfSpace));
        let faulty: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&to), plan));
        let error = run(&from, &faulty, &parts(PackFormat::Wds)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfSpace, "{error}");
        let found = contents(&*to).await;
        let mut shards = found.iter().filter(|(name, _)| name.starts_with("shard-"));
        assert!(
            shards.all(|(name, bytes)| expected.get(name) == Some(bytes)),
            "{nth}"
        );
        run(&from, &to, &parts(PackFormat::Wds)).await.unwrap();
        assert!(written(&*to).await == expected, "{nth}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_stands_still_holds_reading_back() {
    let (from, dir) = (memory_store(), tempfile::tempdir().unwrap());
    large_files(&*from, 200).await;
    let plan = FaultPlan::new(Seed(0)).with(Op::Part, When::Always, Fault::Delay(Duration::from_secs(3600)));
    let local = local_at(dir.path(), &context());
    let to: Arc<dyn Store> = Arc::new(Faulty::new(local, plan));
    let moved = Arc::new(Moved::default());
    let spec = PackSpec {
        memory_bytes_max: 8 << 20,
        progress: Arc::clone(&moved) as Arc<dyn Progress>,
        ..parts(PackFormat::Wds)
    };
    let packing = tokio::spawn(async move { run(&from, &to, &spec).await });
    let mut before = u64::MAX;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = moved.0.load(Ordering::Relaxed);
        if now == before {
            break;
        }
        before = now;
    }
    packing.abort();
    // 18 MB are there: an eighth of the memory is read ahead, and 20 parts and a shard are under way.
    assert!((1..5 << 20).contains(&before), "{before}");
}
