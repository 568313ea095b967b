//! Streams from far stores: fewer requests, the same batches, no more memory, and the same words for what is wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{DataPath, Location, Span};
use forebay_store::wrap::{Counted, Fault, FaultPlan, Faulty, Op, Retried, When};
use forebay_store::{LocalStore, ReadOptions};

use super::read::Origin;
use super::*;

/// Samples of shards that are many blocks long: about 210 KB each.
const LONG: [u32; 3] = [4000, 4100, 3900];

/// Size of one request.
const PART_BYTES: u64 = 64 << 10;

/// The objects of a store, in one that is elsewhere by its name.
async fn moved(dataset: &Dataset, store: &Arc<dyn Store>) -> Arc<dyn Store> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("s3://far-{}/", COUNT.fetch_add(1, Ordering::Relaxed));
    let far = MemoryStore::named(&Location::parse(&name, std::path::Path::new("/")).unwrap());
    for shard in dataset.shards() {
        let bytes = content(dataset, store, &shard.key).await;
        far.put_bytes(&shard.key, &bytes, &PutOptions::default())
            .await
            .unwrap();
    }
    far
}

async fn content(dataset: &Dataset, store: &Arc<dyn Store>, key: &Key) -> Vec<u8> {
    let span = Span::first(store.head(key).await.unwrap().size);
    let options = ReadOptions::default();
    let read = store.read(key, span, &options, dataset.context()).await;
    read.unwrap().0.to_vec()
}

/// The same data set from another store, which is asked for at most [`PART_BYTES`] at once.
async fn from(dataset: &Dataset, store: Arc<dyn Store>) -> Dataset {
    let config = DiskConfig {
        limits: Limits {
            part_bytes: PART_BYTES,
            ..dataset.context().limits().clone()
        },
        engine: EngineChoice::Psync,
        ..DiskConfig::default()
    };
    let context = Context::open(config).unwrap().with_state_dir(None);
    let (options, manifest) = (OpenOptions::default(), dataset.manifest().clone());
    let opened = Dataset::open_indexed(store, &context, manifest, &options).await;
    opened.unwrap()
}

/// In memory, and far away with its requests counted.
async fn near_and_far(sizes: &[u32]) -> (Dataset, Dataset, Counted) {
    let (near, store) = data_set(sizes).await;
    let counted = Counted::new(moved(&near, &store).await);
    let far = from(&near, Arc::new(counted.clone())).await;
    (near, far, counted)
}

/// In order, one epoch, blocks of 4 KiB.
fn in_order() -> StreamSpec {
    let mut spec = spec(1, 0);
    spec.order.shuffle = false;
    spec.order.block_bytes = 4096;
    spec.epochs = Some(1);
    spec.memory_bytes_max = 2 * JOINT_SHARE * PART_BYTES;
    spec
}

/// Shuffled by windows of many blocks: two lanes with a window of 128 KiB each.
fn in_wide_windows() -> StreamSpec {
    let mut spec = spec(1, 0);
    spec.order.lanes = 2;
    spec.order.block_bytes = 4096;
    spec.order.window_bytes = 256 << 10;
    spec
}

/// Requests of an epoch, were all blocks known beforehand: from the first block on, as many as lie beside each other and fit.
async fn requests_of(dataset: &Dataset, spec: &StreamSpec, bytes_max: u64) -> u64 {
    let plan = order_of(dataset, spec.order.clone()).unwrap().epoch(0);
    let (mut requests, mut open): (u64, Option<(u32, u64, Span)>) = (0, None);
    for block in plan
        .lane(0)
        .unwrap()
        .windows_from(0)
        .flat_map(|window| window.blocks)
    {
        let table = dataset.table(block.shard as usize).await.unwrap();
        let crate::table::Layout::Samples(samples) = &table.layout else {
            unreachable!()
        };
        let first = samples.extent(block.samples.start as usize).unwrap();
        let last = samples.extent(block.samples.end as usize - 1).unwrap();
        let start = match open {
            Some((shard, end, span)) if (shard, end) == (block.shard, block.samples.start) => span.start(),
            _ => u64::MAX,
        };
        let joined = Span::new(start.min(first.start()), last.end())
            .unwrap()
            .align_out(4096);
        let fits = start != u64::MAX && joined.len() <= bytes_max;
        requests += u64::from(!fits);
        let span = if fits {
            joined
        } else {
            Span::new(first.start(), last.end()).unwrap()
        };
        open = Some((block.shard, block.samples.end, span));
    }
    requests
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_come_by_one_request_of_a_far_store() {
    let (near, far, counted) = near_and_far(&LONG).await;
    let spec = in_order();
    let whole = run(&near, spec.clone()).await;
    let before = counted.counts().of(Op::Read);
    assert_eq!(run(&far, spec.clone()).await, whole);
    let after = counted.counts().of(Op::Read);
    let requests = after.requests - before.requests;
    let wanted = requests_of(&far, &spec, PART_BYTES).await;
    let blocks = requests_of(&far, &spec, 0).await;
    assert!(
        requests >= wanted && requests <= wanted + LONG.len() as u64,
        "{requests}, and {wanted} would do"
    );
    assert!(requests * 8 < blocks, "{requests} for {blocks} blocks");
    let all: u64 = far.shards().iter().map(|shard| shard.stored_bytes).sum();
    let edges = requests * 2 * 4096;
    assert!(
        after.bytes - before.bytes <= all + edges,
        "hardly anything is read twice"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_one_window_come_together_whatever_their_order() {
    let (near, far, counted) = near_and_far(&LONG).await;
    let mut spec = in_wide_windows();
    spec.epochs = Some(1);
    let whole = run(&near, spec.clone()).await;
    assert_eq!(run(&far, spec.clone()).await, whole);
    let plan = order_of(&far, spec.order.clone()).unwrap().epoch(0);
    let lanes = plan.lanes().map(|lane| plan.lane(lane).unwrap());
    let blocks = lanes.flat_map(|lane| lane.windows_from(0).map(|window| window.blocks.len() as u64));
    let (blocks, requests): (u64, u64) = (blocks.sum(), counted.counts().of(Op::Read).requests);
    assert!(requests * 3 < blocks * 2, "{requests} for {blocks} blocks");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_this_machine_is_read_block_by_block() {
    let (near, store) = data_set(&LONG).await;
    let counted = Counted::new(store);
    let counting = from(&near, Arc::new(counted.clone())).await;
    let spec = in_order();
    run(&counting, spec.clone()).await;
    let blocks = requests_of(&near, &spec, 0).await;
    assert_eq!(counted.counts().of(Op::Read).requests, blocks);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_order_is_the_same_from_far_and_near_at_every_world_size_and_position() {
    let (near, far, _) = near_and_far(&SIZES).await;
    for world in [1, 2, 4] {
        for rank in 0..world {
            let mut wrapping = spec(world, rank);
            wrapping.order.last = crate::order::Last::Wrap;
            let mut straight = wrapping.clone();
            straight.order.shuffle = false;
            for spec in [spec(world, rank), wrapping, straight] {
                let batches = run(&near, spec.clone()).await;
                assert_eq!(run(&far, spec).await, batches, "rank {rank} of {world}");
            }
        }
    }
    for spec in [in_order(), in_wide_windows()] {
        let whole = run(&near, spec.clone()).await;
        let mut loader = Loader::new(far.clone(), &spec).unwrap();
        for done in 0..whole.len() {
            if done % 5 == 0 {
                let mut again = Loader::resume(far.clone(), &spec, &loader.position()).unwrap();
                assert_eq!(drain(&mut again).await, whole[done..], "after {done}");
            }
            loader.next_batch().await.unwrap().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn far_stores_stay_within_the_memory_and_do_without_where_there_is_little() {
    let (near, far, _) = near_and_far(&LONG).await;
    for spec in [in_order(), in_wide_windows()] {
        let whole = run(&near, spec.clone()).await;
        for memory_bytes_max in [4096, 128 << 10, 512 << 10, 4 << 20, 8 << 20] {
            let spec = StreamSpec {
                memory_bytes_max,
                ..spec.clone()
            };
            let mut loader = Loader::new(far.clone(), &spec).unwrap();
            assert_eq!(drain(&mut loader).await, whole, "{memory_bytes_max}");
            let grown = loader.report().memory_grown_bytes;
            assert!(
                grown == 0 || memory_bytes_max < 4 << 20,
                "{grown} at {memory_bytes_max}"
            );
        }
    }
}

#[tokio::test]
async fn what_can_do_with_less_does_not_make_the_budget_grow() {
    let room = Room::new(64 << 10);
    let all = room.take_unless_starving(64 << 10).await.unwrap();
    assert!(all.is_some());
    room.starve(true);
    assert!(room.take_unless_starving(4096).await.unwrap().is_none());
    assert_eq!((room.grown_bytes(), room.left_bytes()), (0, 0));
    drop(all);
    assert!(room.take_unless_starving(4096).await.unwrap().is_some());
    assert_eq!(room.left_bytes(), 64 << 10, "given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_what_came_together_is_named_by_sample() {
    let (near, store) = data_set(&LONG).await;
    let far = moved(&near, &store).await;
    let key = Key::parse("001").unwrap();
    let mut bytes = content(&near, &store, &key).await;
    bytes[50_000] ^= 1;
    for store in [&store, &far] {
        store
            .put_bytes(&key, &bytes, &PutOptions::default())
            .await
            .unwrap();
    }
    let mut spec = in_order();
    spec.bad = BadPolicy::Skip { max: 1 };
    let mut found = Vec::new();
    for store in [store, far] {
        let mut loader = Loader::new(from(&near, store).await, &spec).unwrap();
        let batches = drain(&mut loader).await;
        let report = loader.report();
        assert_eq!(report.bad_samples, 1);
        found.push((batches, report.bad[0].shard_number, report.bad[0].index));
    }
    assert_eq!(found[0], found[1]);
}

async fn error_of(dataset: Dataset, spec: &StreamSpec) -> Error {
    let mut loader = Loader::new(dataset, spec).unwrap();
    loop {
        match loader.next_batch().await {
            Some(Ok(_)) => {}
            Some(Err(error)) => return error,
            None => panic!("a stream that should have failed"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_changes_meanwhile_or_is_cut_short_is_named() {
    let (near, store) = data_set(&LONG).await;
    let far = moved(&near, &store).await;
    let key = Key::parse("002").unwrap();
    let bytes = content(&near, &store, &key).await;
    // Looked at, and replaced before it is read.
    let looked = from(&near, Arc::clone(&far)).await;
    looked.source(2).await.unwrap();
    far.put_bytes(&key, &bytes, &PutOptions::default()).await.unwrap();
    let error = error_of(looked, &in_order()).await;
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(error.to_string().contains("002"), "{error}");

    let shorter = from(&near, Arc::clone(&far)).await;
    far.put_bytes(&key, &bytes[..bytes.len() / 2], &PutOptions::default())
        .await
        .unwrap();
    let error = error_of(shorter, &in_order()).await;
    assert!(error.to_string().contains("002"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_do_not_arrive_are_asked_for_again_block_by_block() {
    let (near, store) = data_set(&LONG).await;
    let whole = run(&near, in_order()).await;
    let far = moved(&near, &store).await;
    let plan = FaultPlan::new(Seed(1)).with(Op::Read, When::Nth(3), Fault::Truncate);
    let faulty = Faulty::new(far, plan);
    let far = from(&near, Arc::new(faulty.clone())).await;
    assert_eq!(run(&far, in_order()).await, whole);
    assert_eq!(faulty.hits(), 1);
    let plan = FaultPlan::new(Seed(1)).with(Op::Read, When::Always, Fault::Truncate);
    let far = from(&near, Arc::new(Faulty::new(moved(&near, &store).await, plan))).await;
    let error = error_of(far, &in_order()).await;
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let words = error.to_string();
    assert!(words.contains("sample") && words.contains("checksum"), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_asks_for_less_gets_less_and_gives_everything() {
    let (near, store) = data_set(&LONG).await;
    let whole = run(&near, in_order()).await;
    let plan = FaultPlan::new(Seed(3)).with(Op::Read, When::First(2), Fault::Fail(ErrorKind::Throttled));
    let faulty = Faulty::new(moved(&near, &store).await, plan);
    let retried = Retried::new(Arc::new(faulty.clone()), near.context());
    let far = from(&near, Arc::new(retried.clone())).await;
    assert_eq!(run(&far, in_order()).await, whole);
    assert_eq!((faulty.hits(), retried.retries()), (2, 2));
    // Nobody tries again: the error is the store's, and names the shard.
    let plan = FaultPlan::new(Seed(3)).with(Op::Read, When::Always, Fault::Fail(ErrorKind::Throttled));
    let far = from(&near, Arc::new(Faulty::new(moved(&near, &store).await, plan))).await;
    let error = error_of(far, &in_order()).await;
    assert_eq!(error.kind(), ErrorKind::Throttled);
    assert!(error.to_string().contains("/00"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_blamed_on_the_place_they_came_from() {
    let (near, far, _) = near_and_far(&[10]).await;
    let folder = tempfile::tempdir().unwrap();
    let location = Location::from_path(folder.path(), std::path::Path::new("/")).unwrap();
    let store = LocalStore::open(&location, near.context()).unwrap();
    for shard in near.shards() {
        let bytes = content(&far, far.store(), &shard.key).await;
        std::fs::write(folder.path().join(shard.key.as_str()), bytes).unwrap();
    }
    let local = from(&near, Arc::new(store)).await;
    let by = |path: DataPath| Ledger::of(path, 4096, 1);
    let mut mixed = by(DataPath::DirectUring);
    mixed.merge(&by(DataPath::Http));
    for (dataset, ledger, origin) in [
        (&near, by(DataPath::Memory), Origin::Disk),
        (&local, by(DataPath::DirectUring), Origin::Disk),
        (&local, by(DataPath::Buffered), Origin::Disk),
        (&far, by(DataPath::Http), Origin::Store),
        // A part of it was not in the cache, and that is what took the time.
        (&far, mixed, Origin::Store),
        (&far, by(DataPath::DirectUring), Origin::Cache),
        (&far, by(DataPath::Buffered), Origin::Cache),
    ] {
        assert_eq!(Origin::of(dataset, &ledger), origin, "{ledger:?}");
    }
}
