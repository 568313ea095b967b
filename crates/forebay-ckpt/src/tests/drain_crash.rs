//! Power losses and kills after every single operation of a drain to a simulated disk.
//!
//! After a power loss: what is visible is whole, what was there is there, a drain that returned has brought its checkpoint, and another drain ends the work.
//! After a kill without one: another drain goes on with what it finds, and only then power fails, so that what the killed one had not made durable is missed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Result, Seed};
use forebay_io::SimEngine;
use forebay_io::sim::{SimConfig, SimFault, SimFs};
use forebay_store::{Context, Store};
use tokio::sync::OnceCell;

use super::crash::*;
use super::support::*;
use super::tiers::silent;
use crate::*;

/// Power losses after a drain that another had begun.
const LATE_CRASHES: u64 = 3;

/// What is drained: steps 1 and 2 full, 3 on 2.
async fn source() -> Arc<dyn Store> {
    static SOURCE: OnceCell<Arc<dyn Store>> = OnceCell::const_new();
    let make = || async {
        let (store, context) = (memory(), context());
        for step in [1, 2] {
            save_with(&store, &context, options(step, 1, 2), &state_of(step), 0)
                .await
                .unwrap();
        }
        let how = SaveOptions {
            base_step: Some(2),
            ..options(3, 1, 2)
        };
        save_with(&store, &context, how, &state_of(3), 0).await.unwrap();
        store
    };
    Arc::clone(SOURCE.get_or_init(make).await)
}

async fn drain_to(
    store: &Arc<dyn Store>,
    context: &Context,
    steps: &[u64],
    work: Work,
) -> Result<DrainReport> {
    let options = DrainOptions {
        steps: Some(steps.to_vec()),
        compress: work.compress(),
        stale_after: Duration::ZERO,
        ..DrainOptions::default()
    };
    drain(source().await, Arc::clone(store), context, &options, &silent).await
}

/// What is brought while something fails: a step whose base is there, and one whose base comes with it; as it is, or compressed on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    OnBase,
    WithBase,
    Packed,
    PackedAlone,
}

impl Work {
    fn has_base(self) -> bool {
        matches!(self, Self::OnBase | Self::Packed)
    }

    fn compress(self) -> Compress {
        match self {
            Self::OnBase | Self::WithBase => Compress::Off,
            Self::Packed | Self::PackedAlone => Compress::Auto,
        }
    }

    async fn prepared(self) -> SimFs {
        let fs = SimFs::new();
        let (store, context) = store_on(Arc::new(SimEngine::new(&fs, SimConfig::default())));
        let before: &[u64] = if self.has_base() { &[1, 2] } else { &[1] };
        drain_to(&store, &context, before, self).await.unwrap();
        fs.settle();
        fs
    }

    fn expected(self, is_done: bool) -> Expected {
        let must = |step: u64| vec![Some(state_of(step))];
        let mut expected = BTreeMap::from([(1, must(1))]);
        if self.has_base() {
            expected.insert(2, must(2));
        }
        let third = if is_done {
            must(3)
        } else {
            vec![Some(state_of(3)), None]
        };
        expected.insert(3, third);
        expected
    }
}

struct Ran {
    fs: SimFs,
    engine: Arc<SimEngine>,
    result: Result<()>,
}

async fn run(work: Work, base: &SimFs, forgets: Forgets, config: SimConfig) -> Ran {
    // Crashing a file system that is durable throughout copies it.
    let fs = base.crash(Seed(0));
    let engine = Arc::new(SimEngine::new(
        &fs,
        SimConfig {
            request_bytes: 16 << 10,
            ..config
        },
    ));
    let inner = Arc::clone(&engine);
    let (store, context) = store_on(Arc::new(Forgetful { inner, forgets }));
    let result = drain_to(&store, &context, &[3], work).await.map(|report| {
        assert!(report.is_whole(), "{report:?}");
    });
    Ran { fs, engine, result }
}

/// Another process goes on; gives whether it found something of the one before.
async fn go_on(work: Work, fs: &SimFs, after: Duration) -> Result<bool, String> {
    let told = |error: forebay_core::Error| format!("going on: {error}");
    let (store, context) = store_at(Arc::new(SimEngine::new(fs, SimConfig::default())), after);
    if !after.is_zero() {
        gc(Arc::clone(&store), &context, &GcOptions::default())
            .await
            .map_err(told)?;
    }
    let report = drain_to(&store, &context, &[3], work).await.map_err(told)?;
    if !report.is_whole() {
        return Err(format!("going on: {report:?}"));
    }
    Ok(report.drained.iter().any(|drained| drained.objects_there > 0))
}

async fn sweep(work: Work, align: Option<u32>) -> Result<(u64, u64, u64), String> {
    let base = work.prepared().await;
    let (mut looked, mut resumed) = (0, 0);
    for stop in 0..OPS_MAX {
        let config = SimConfig {
            seed: Seed(stop),
            stop_after_ops: Some(stop),
            direct_align: align,
            reorder: align.is_some(),
            ..SimConfig::default()
        };
        let ran = run(work, &base, Forgets::Nothing, config).await;
        let expected = work.expected(ran.result.is_ok());
        let told = |wrong: String| {
            let trace = ran.engine.trace().join("\n");
            format!(
                "{work:?} stopped after {stop}: {wrong}\n{:?}\n{trace}",
                ran.result
            )
        };
        for seed in 0..CRASHES {
            let crashed = ran.fs.crash(Seed(seed));
            look(&crashed, &expected).await.map_err(told)?;
            looked += 1;
            if seed == 0 && stop % 5 == 0 {
                // At once, and the next day after a gc.
                let after = if stop % 2 == 0 {
                    Duration::ZERO
                } else {
                    PIN_AGE_MAX * 2
                };
                go_on(work, &crashed, after).await.map_err(told)?;
                look(&crashed, &work.expected(true)).await.map_err(told)?;
            }
        }
        // The machine stays up.
        resumed += u64::from(go_on(work, &ran.fs, Duration::ZERO).await.map_err(told)?);
        for seed in 0..LATE_CRASHES {
            look(&ran.fs.crash(Seed(seed)), &work.expected(true))
                .await
                .map_err(told)?;
            looked += 1;
        }
        if ran.engine.ops() <= stop {
            ran.result.map_err(|error| error.to_string())?;
            return Ok((stop, looked, resumed));
        }
    }
    Err(format!("{work:?} needs more than {OPS_MAX} operations"))
}

async fn swept(work: Work) {
    let mut states = 0;
    for align in [None, Some(4096)] {
        let (ops, looked, resumed) = sweep(work, align).await.unwrap();
        println!(
            "drain, {work:?}, alignment {align:?}: {ops} operations, {looked} crash states, {resumed} resumed, 0 torn"
        );
        assert!(resumed > 0);
        states += looked;
    }
    assert!(states > 500, "{states}");
}

#[tokio::test]
async fn power_may_fail_during_a_drain() {
    swept(Work::OnBase).await;
}

#[tokio::test]
async fn power_may_fail_during_a_drain_that_brings_a_base_along() {
    swept(Work::WithBase).await;
}

#[tokio::test]
async fn power_may_fail_during_a_drain_that_compresses() {
    swept(Work::Packed).await;
}

#[tokio::test]
async fn power_may_fail_during_a_drain_that_compresses_all() {
    swept(Work::PackedAlone).await;
}

#[tokio::test]
async fn a_disk_that_forgets_what_was_drained_is_found_out() {
    for forgets in [Forgets::Sync, Forgets::SyncDir] {
        let work = Work::WithBase;
        let base = work.prepared().await;
        let ran = run(work, &base, forgets, SimConfig::default()).await;
        ran.result.unwrap();
        let mut found = 0;
        for seed in 0..64 {
            let crashed = ran.fs.crash(Seed(seed));
            found += u64::from(look(&crashed, &work.expected(true)).await.is_err());
        }
        println!("{forgets:?}: found in {found} of 64 crashes");
        assert!(found > 0, "{forgets:?} goes unnoticed");
    }
}

/// One fault at every operation of a drain: the caller is told, or the checkpoint is there; and the next drain does not build on what the disk failed to keep.
#[tokio::test]
async fn every_operation_of_a_drain_may_fail() {
    let mut faults = 0;
    let all = [
        SimFault::FsyncEio,
        SimFault::Eio,
        SimFault::Enospc,
        SimFault::TornWrite,
    ];
    for (work, tried) in [
        (Work::OnBase, &all[..]),
        (Work::WithBase, &all[..1]),
        (Work::Packed, &all[..]),
    ] {
        let base = work.prepared().await;
        for fault in tried.iter().copied() {
            for at in 1..OPS_MAX {
                let config = SimConfig {
                    seed: Seed(at),
                    fail_op: Some((at, fault)),
                    ..SimConfig::default()
                };
                let ran = run(work, &base, Forgets::Nothing, config).await;
                if ran.engine.ops() < at {
                    break;
                }
                if !suits(&ran.engine, at, fault) {
                    continue;
                }
                let told = |wrong: String| format!("{work:?} {fault:?} at {at}: {wrong}\n{:?}", ran.result);
                let expected = work.expected(ran.result.is_ok());
                let crashed = ran.fs.crash(Seed(at));
                look(&crashed, &expected).await.map_err(told).unwrap();
                go_on(work, &ran.fs, Duration::ZERO).await.map_err(told).unwrap();
                let crashed = ran.fs.crash(Seed(at));
                look(&crashed, &work.expected(true)).await.map_err(told).unwrap();
                faults += 1;
            }
        }
    }
    println!("{faults} faults, 0 torn");
    assert!(faults > 300, "{faults}");
}
