//! Power is lost after every single operation of a fill, with what was not synced lost, torn or reordered: reads still give the origin's
//! bytes, and the next start is not blocked. A full device never fails a read.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ManualClock, Seed};
use forebay_io::sim::{SimConfig, SimEngine, SimFault, SimFs};
use forebay_io::{Disk, DiskConfig};
use forebay_store::Context;
use forebay_store::cache::{Cache, CacheConfig, Mode};

use crate::support::*;

const SIZES: [usize; 2] = [2 * BLOCK as usize + 4321, 9000];

/// Seeds tried for each point in time: which of the unsynced writes survive.
const SEEDS: u64 = 4;

fn engine(fs: &SimFs, config: SimConfig) -> Arc<SimEngine> {
    Arc::new(SimEngine::new(fs, config))
}

fn context(engine: Arc<SimEngine>) -> Context {
    let config = DiskConfig {
        limits: limits(),
        ..DiskConfig::default()
    };
    let clock = Arc::new(ManualClock::default());
    clock.advance(Duration::from_secs(1));
    Context::new(Disk::with_engine(engine, config).unwrap())
        .with_state_dir(None)
        .with_time(clock, Seed(3))
}

fn sim_config() -> CacheConfig {
    CacheConfig {
        block_bytes: BLOCK,
        mode: Mode::Blocks,
        ..CacheConfig::new("/cache", 64 << 20)
    }
}

async fn cache_on(engine: &Arc<SimEngine>, origin: &Arc<Origin>, config: CacheConfig) -> Cache {
    open_in(origin, config, &context(Arc::clone(engine))).await
}

async fn read_all(cache: &Cache) {
    for (index, size) in SIZES.iter().enumerate() {
        read_whole(cache, index as u64, *size).await;
        cache.settle().await;
    }
}

/// The work a sweep stops after every operation of: two fills, a warm read, a mending.
async fn work(cache: &Cache) {
    read_all(cache).await;
    read_all(cache).await;
}

async fn ops_of_all_work(origin: &Arc<Origin>, align: Option<u32>) -> u64 {
    let engine = engine(
        &SimFs::new(),
        SimConfig {
            direct_align: align,
            ..SimConfig::default()
        },
    );
    work(&cache_on(&engine, origin, sim_config()).await).await;
    engine.ops()
}

#[tokio::test]
async fn power_lost_after_any_operation_of_a_fill_costs_a_fetch_at_most() {
    for align in [None, Some(4096)] {
        let origin = Origin::with(&SIZES).await;
        let ops = ops_of_all_work(&origin, align).await;
        assert!(ops > 30, "{ops} operations");
        for stop in 0..=ops {
            let fs = SimFs::new();
            let faulty = SimConfig {
                seed: Seed(stop),
                stop_after_ops: Some(stop),
                direct_align: align,
                short_one_in: 5,
                ..SimConfig::default()
            };
            // The reads go on when the disk is gone, from the origin.
            work(&cache_on(&engine(&fs, faulty), &origin, sim_config()).await).await;
            for seed in 0..SEEDS {
                let after = fs.crash(Seed(seed));
                let healthy = SimConfig {
                    direct_align: align,
                    ..SimConfig::default()
                };
                let next = engine(&after, healthy);
                let cache = cache_on(&next, &origin, sim_config()).await;
                work(&cache).await;
                let reads = origin.reads();
                work(&cache).await;
                assert_eq!(
                    origin.reads(),
                    reads,
                    "cached after stop {stop}, seed {seed}: {:?}",
                    next.trace()
                );
            }
        }
    }
}

#[tokio::test]
async fn a_fault_in_any_operation_never_fails_a_read() {
    let origin = Origin::with(&SIZES).await;
    let ops = ops_of_all_work(&origin, Some(4096)).await;
    for fault in SimFault::ALL {
        for op in 1..=ops {
            let config = SimConfig {
                fail_op: Some((op, fault)),
                direct_align: Some(4096),
                reorder: op % 2 == 0,
                seed: Seed(op),
                ..SimConfig::default()
            };
            let engine = engine(&SimFs::new(), config);
            let cache = cache_on(&engine, &origin, sim_config()).await;
            work(&cache).await;
            read_all(&cache).await;
        }
    }
}

#[tokio::test]
async fn a_full_device_is_answered_by_eviction_and_then_by_the_origin() {
    let sizes = [4 * BLOCK as usize; 6];
    let origin = Origin::with(&sizes).await;
    // Room for two objects, though the cap would allow for all.
    let config = SimConfig {
        capacity_bytes: Some(9 * BLOCK),
        ..SimConfig::default()
    };
    let cache = cache_on(&engine(&SimFs::new(), config), &origin, sim_config()).await;
    for round in 0..2 {
        for (index, size) in sizes.iter().enumerate() {
            read_whole(&cache, index as u64, *size).await;
            cache.settle().await;
            let reads = origin.reads();
            read_whole(&cache, index as u64, *size).await;
            assert_eq!(
                origin.reads(),
                reads,
                "round {round}: object {index} was given room"
            );
        }
    }
    // Room for nothing: served all the same, and said so.
    let config = SimConfig {
        capacity_bytes: Some(BLOCK),
        ..SimConfig::default()
    };
    let cache = cache_on(&engine(&SimFs::new(), config), &origin, sim_config()).await;
    for _ in 0..2 {
        let ledger = read_whole(&cache, 0, sizes[0]).await;
        cache.settle().await;
        assert!(
            ledger.downgrades.iter().any(|step| step.reason.contains("space")),
            "{:?}",
            ledger.downgrades
        );
    }
}

/// The device is full in the middle of a fill: the other object is removed, the write is tried again, and nobody notices.
#[tokio::test]
async fn a_write_that_finds_no_space_is_tried_again_after_eviction() {
    let origin = Origin::with(&SIZES).await;
    let fill_after_other = |config: SimConfig| {
        let origin = &origin;
        async move {
            let fs = SimFs::new();
            let other = cache_on(&engine(&fs, SimConfig::default()), origin, sim_config()).await;
            read_whole(&other, 1, SIZES[1]).await;
            other.settle().await;
            let engine = engine(&fs, config);
            let cache = cache_on(&engine, origin, sim_config()).await;
            read_whole(&cache, 0, SIZES[0]).await;
            cache.settle().await;
            (engine, cache)
        }
    };
    let (healthy, _) = fill_after_other(SimConfig::default()).await;
    let is_write =
        |line: &&String| line.contains("write") && (line.contains(".data") || line.contains(".index"));
    let number = |line: &String| line[1..].split(' ').next().unwrap().parse::<u64>().unwrap();
    let writes: Vec<u64> = healthy.trace().iter().filter(is_write).map(number).collect();
    assert!(
        writes.len() >= 7,
        "header, three blocks and three records: {writes:?}"
    );
    for write in writes {
        let config = SimConfig {
            fail_op: Some((write, SimFault::Enospc)),
            ..SimConfig::default()
        };
        let (engine, cache) = fill_after_other(config).await;
        let reads = origin.reads();
        read_whole(&cache, 0, SIZES[0]).await;
        assert_eq!(origin.reads(), reads, "not cached: {:?}", engine.trace());
        let data = engine.fs().files().into_iter();
        let data: Vec<_> = data
            .filter(|path| path.to_string_lossy().ends_with(".data"))
            .collect();
        assert_eq!(data.len(), 1, "the other object made room: {:?}", engine.trace());
    }
}
