//! Power losses after every single operation of a save and of a gc, on a simulated disk that loses, tears and reorders what was not synced.
//!
//! After each, a new process looks: every checkpoint it sees loads whole, the one before is there, and one whose commit returned is there. To show
//! that the sweep would see a store that forgets to sync, it is run on an engine that forgets for it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Location, ManualClock, Result, Seed};
use forebay_io::sim::{SimConfig, SimFault, SimFs};
use forebay_io::{
    AlignedBuf, Buf, Completion, Disk, DiskConfig, Engine, EngineReport, File, NameDone, NameOp, Permit,
    ReadDone, SimEngine, WriteDone,
};
use forebay_store::{Context, LocalStore, Proof, Store};

use super::support::*;
use crate::seal::tests::keys;
use crate::*;

/// Crashes of each half-done run: every seed draws another subset of what was not synced.
pub(super) const CRASHES: u64 = 4;

/// The same on a disk that forgets: what must be found there takes several losses at once.
const FORGETFUL_CRASHES: u64 = 64;

/// Work that needs more operations than this goes round in circles.
pub(super) const OPS_MAX: u64 = 3000;

/// What the engine forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Forgets {
    Nothing,
    Sync,
    SyncDir,
}

pub(super) struct Forgetful {
    pub(super) inner: Arc<SimEngine>,
    pub(super) forgets: Forgets,
}

impl Engine for Forgetful {
    fn report(&self) -> EngineReport {
        self.inner.report()
    }

    fn read(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
        permit: Option<Permit>,
    ) -> Completion<ReadDone> {
        self.inner.read(file, offset, buf, len, permit)
    }

    fn write(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: Buf,
        permit: Option<Permit>,
    ) -> Completion<WriteDone> {
        self.inner.write(file, offset, buf, permit)
    }

    fn sync(&self, file: &Arc<File>) -> Completion<Result<()>> {
        match self.forgets {
            Forgets::Sync => Completion::ready(Ok(())),
            _ => self.inner.sync(file),
        }
    }

    fn name(&self, op: NameOp) -> Completion<Result<NameDone>> {
        match (self.forgets, &op) {
            (Forgets::SyncDir, NameOp::SyncDir { .. }) => Completion::ready(Ok(NameDone::Nothing)),
            _ => self.inner.name(op),
        }
    }

    fn read_files(
        &self,
        files: Vec<(PathBuf, u64)>,
        buf: AlignedBuf,
        permit: Option<Permit>,
    ) -> Completion<Result<AlignedBuf>> {
        self.inner.read_files(files, buf, permit)
    }
}

impl fmt::Debug for Forgetful {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A new process: its names of temporary things are its own.
pub(super) fn store_on(engine: Arc<dyn Engine>) -> (Arc<dyn Store>, Context) {
    store_at(engine, Duration::ZERO)
}

/// The same, some time later.
pub(super) fn store_at(engine: Arc<dyn Engine>, now: Duration) -> (Arc<dyn Store>, Context) {
    static PROCESSES: AtomicU64 = AtomicU64::new(0);
    let seed = Seed(PROCESSES.fetch_add(1, Ordering::Relaxed));
    let config = DiskConfig {
        limits: limits(),
        ..DiskConfig::default()
    };
    let clock = ManualClock::default();
    clock.advance(now);
    let context = Context::new(Disk::with_engine(engine, config).unwrap())
        .with_time(Arc::new(clock), seed)
        .with_state_dir(None);
    let location = Location::from_path(Path::new("/data/run"), Path::new("/")).unwrap();
    let store = Abilities {
        inner: Arc::new(LocalStore::open(&location, &context).unwrap()),
        put_if_absent: Proof::Shown,
    };
    (Arc::new(store), context)
}

/// What is done while power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Step 3, full, by two ranks.
    Save,
    /// Step 3, referencing step 2.
    Incremental,
    /// Step 2 again, explicitly replacing it.
    Replace,
    /// Step 1 goes.
    Gc,
    /// Steps 1 and 2 go, while 3 references 2.
    GcBase,
    /// Step 2, compressed and sealed, gets another key.
    Rewrap,
    /// Step 3, compressed and sealed, referencing step 2.
    Sealed,
}

const WORKS: [Work; 7] = [
    Work::Save,
    Work::Incremental,
    Work::Replace,
    Work::Gc,
    Work::GcBase,
    Work::Rewrap,
    Work::Sealed,
];

pub(super) fn state_of(step: u64) -> State {
    let mut state = state(1);
    let seed = step as u8;
    state.get_mut("embed").unwrap().bytes[0] = seed;
    state.get_mut("layer.0.weight").unwrap().bytes[9000] = seed;
    state
}

/// Of the other attempt at step 2.
fn other_state() -> State {
    state(77)
}

/// What must be found, by step: one of these states; `None` where there may be nothing.
pub(super) type Expected = BTreeMap<u64, Vec<Option<State>>>;

impl Work {
    fn expected(self, is_done: bool) -> Expected {
        let must = |step: u64| vec![Some(state_of(step))];
        let may_be_gone = |step: u64| {
            if is_done {
                vec![None]
            } else {
                vec![Some(state_of(step)), None]
            }
        };
        let mut expected = BTreeMap::from([(1, must(1)), (2, must(2))]);
        match self {
            Self::Rewrap => {}
            Self::Save | Self::Incremental | Self::Sealed => {
                let third = if is_done {
                    must(3)
                } else {
                    vec![Some(state_of(3)), None]
                };
                expected.insert(3, third);
            }
            Self::Replace => {
                let replaced = Some(other_state());
                expected.insert(
                    2,
                    if is_done {
                        vec![replaced]
                    } else {
                        vec![Some(state_of(2)), replaced]
                    },
                );
            }
            Self::Gc => drop(expected.insert(1, may_be_gone(1))),
            Self::GcBase => {
                expected.insert(1, may_be_gone(1));
                expected.insert(2, may_be_gone(2));
                expected.insert(3, must(3));
            }
        }
        expected
    }

    /// How the checkpoints that are there before were saved.
    fn options(self, step: u64) -> SaveOptions {
        let options = options(step, 1, 2);
        match self {
            Self::Rewrap | Self::Sealed => SaveOptions {
                compress: Compress::Auto,
                seal: keys(&[1]),
                ..options
            },
            _ => options,
        }
    }

    async fn run(self, store: &Arc<dyn Store>, context: &Context) -> Result<()> {
        match self {
            Self::Save => save_with(store, context, options(3, 1, 2), &state_of(3), 0)
                .await
                .map(drop),
            Self::Incremental => save_on_base(store, context).await,
            Self::Sealed => {
                let how = SaveOptions {
                    base_step: Some(2),
                    ..self.options(3)
                };
                save_with(store, context, how, &state_of(3), 0).await.map(drop)
            }
            Self::Rewrap => rewrap(Arc::clone(store), context, 2, &keys(&[1]), &keys(&[2]))
                .await
                .map(drop),
            Self::Replace => {
                let how = SaveOptions {
                    publish: Publish::Replace,
                    ..options(2, 9, 1)
                };
                save_with(store, context, how, &other_state(), 0).await.map(drop)
            }
            Self::Gc | Self::GcBase => {
                let keep = GcOptions {
                    keep_last: Some(1),
                    ..GcOptions::default()
                };
                gc(Arc::clone(store), context, &keep).await.map(drop)
            }
        }
    }
}

async fn save_on_base(store: &Arc<dyn Store>, context: &Context) -> Result<()> {
    let how = SaveOptions {
        base_step: Some(2),
        ..options(3, 1, 2)
    };
    save_with(store, context, how, &state_of(3), 0).await.map(drop)
}

/// A disk with two checkpoints on it, durable; a third one where the work needs it.
async fn prepared(work: Work) -> SimFs {
    let fs = SimFs::new();
    let (store, context) = store_on(Arc::new(SimEngine::new(&fs, SimConfig::default())));
    for step in [1, 2] {
        save_with(&store, &context, work.options(step), &state_of(step), 0)
            .await
            .unwrap();
    }
    if work == Work::GcBase {
        save_on_base(&store, &context).await.unwrap();
    }
    fs.settle();
    fs
}

/// Look as a new process does.
pub(super) async fn look(fs: &SimFs, expected: &Expected) -> Result<(), String> {
    let (store, context) = store_on(Arc::new(SimEngine::new(fs, SimConfig::default())));
    let listed = list(Arc::clone(&store), &context)
        .await
        .map_err(|error| error.to_string())?;
    let mut found: BTreeMap<u64, Checkpoint> = BTreeMap::new();
    for listed in listed {
        listed
            .manifest
            .map_err(|error| format!("step {} is visible and damaged: {error}", listed.step))?;
        let checkpoint = Checkpoint::open(Arc::clone(&store), &context, listed.step).await;
        let checkpoint = checkpoint.map_err(|error| error.to_string())?;
        // By the key before or by the one after.
        let opener = checkpoint.with_keys(keys(&[1]));
        let is_old = !checkpoint.manifest().is_sealed() || opener.opener().await.is_ok();
        let opener = if is_old {
            opener
        } else {
            checkpoint.with_keys(keys(&[2]))
        };
        found.insert(listed.step, opener);
    }
    for (step, states) in expected {
        let is_as_expected = match found.remove(step) {
            None => states.contains(&None),
            Some(checkpoint) => {
                let mut is_one = false;
                let mut why = String::new();
                for state in states.iter().flatten() {
                    match load_all(&checkpoint, state).await {
                        Ok(()) => is_one = true,
                        Err(error) => why = error,
                    }
                }
                if !is_one {
                    return Err(format!("step {step} is visible and torn: {why}"));
                }
                let report = verify(&checkpoint, &|_| {})
                    .await
                    .map_err(|error| error.to_string())?;
                if !report.is_whole() {
                    return Err(format!(
                        "step {step} is visible and damaged: {:?}",
                        report.damages
                    ));
                }
                true
            }
        };
        if !is_as_expected {
            return Err(format!("step {step} is lost"));
        }
    }
    match found.keys().next() {
        Some(step) => Err(format!("step {step} should not be there")),
        None => Ok(()),
    }
}

/// After the crash, what was begun can be done again, and gc leaves a tidy place.
async fn recover(fs: &SimFs, work: Work) -> Result<(), String> {
    // The next day: pins of the dead have expired.
    let later = PIN_AGE_MAX * 2;
    let (store, context) = store_at(Arc::new(SimEngine::new(fs, SimConfig::default())), later);
    let told = |error: forebay_core::Error| format!("recovering: {error}");
    gc(Arc::clone(&store), &context, &GcOptions::default())
        .await
        .map_err(told)?;
    let how = SaveOptions {
        publish: Publish::Replace,
        ..options(3, 5, 1)
    };
    save_with(&store, &context, how, &state_of(3), 0)
        .await
        .map_err(told)?;
    let mut expected = work.expected(false);
    expected.insert(3, vec![Some(state_of(3))]);
    look(fs, &expected).await
}

struct Ran {
    fs: SimFs,
    engine: Arc<SimEngine>,
    result: Result<()>,
}

async fn run(base: &SimFs, work: Work, forgets: Forgets, config: SimConfig) -> Ran {
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
    let result = work.run(&store, &context).await;
    Ran { fs, engine, result }
}

/// Lose power after every operation; gives how many there were and how many states were looked at.
async fn sweep(work: Work, align: Option<u32>) -> Result<(u64, u64), String> {
    let base = prepared(work).await;
    look(&base, &{
        let mut expected = work.expected(false);
        expected.entry(3).or_insert_with(|| vec![None]);
        expected
    })
    .await?;
    let mut looked = 0;
    for stop in 0..OPS_MAX {
        let config = SimConfig {
            seed: Seed(stop),
            stop_after_ops: Some(stop),
            direct_align: align,
            reorder: align.is_some(),
            ..SimConfig::default()
        };
        let ran = run(&base, work, Forgets::Nothing, config).await;
        let expected = work.expected(ran.result.is_ok());
        for seed in 0..CRASHES {
            let crashed = ran.fs.crash(Seed(seed));
            let told = |wrong| {
                let trace = ran.engine.trace().join("\n");
                format!(
                    "{work:?} stopped after {stop}, seed {seed}: {wrong}\n{:?}\n{trace}",
                    ran.result
                )
            };
            look(&crashed, &expected).await.map_err(told)?;
            looked += 1;
            if seed == 0 && stop % 7 == 0 {
                recover(&crashed, work).await.map_err(told)?;
            }
        }
        if ran.engine.ops() <= stop {
            ran.result.map_err(|error| error.to_string())?;
            return Ok((stop, looked));
        }
    }
    Err(format!("{work:?} needs more than {OPS_MAX} operations"))
}

async fn swept(work: Work) {
    let mut states = 0;
    for align in [None, Some(4096)] {
        let (ops, looked) = sweep(work, align).await.unwrap();
        println!("{work:?}, alignment {align:?}: {ops} operations, {looked} crash states, 0 torn");
        states += looked;
    }
    assert!(states > 200, "{states}");
}

#[tokio::test]
async fn power_may_fail_during_a_save() {
    swept(Work::Save).await;
}

#[tokio::test]
async fn power_may_fail_during_an_incremental_save() {
    swept(Work::Incremental).await;
}

#[tokio::test]
async fn power_may_fail_during_a_replacement() {
    swept(Work::Replace).await;
}

#[tokio::test]
async fn power_may_fail_during_a_gc() {
    swept(Work::Gc).await;
}

#[tokio::test]
async fn power_may_fail_while_gc_removes_a_base() {
    swept(Work::GcBase).await;
}

#[tokio::test]
async fn power_may_fail_during_a_rewrap() {
    swept(Work::Rewrap).await;
}

#[tokio::test]
async fn power_may_fail_during_a_sealed_save() {
    swept(Work::Sealed).await;
}

#[tokio::test]
async fn a_disk_that_forgets_is_found_out() {
    for (work, forgets) in [
        (Work::Save, Forgets::Sync),
        (Work::Save, Forgets::SyncDir),
        (Work::Incremental, Forgets::Sync),
        (Work::Gc, Forgets::SyncDir),
    ] {
        let base = prepared(work).await;
        let ran = run(&base, work, forgets, SimConfig::default()).await;
        ran.result.unwrap();
        let mut found = 0;
        for seed in 0..FORGETFUL_CRASHES {
            found += u64::from(
                look(&ran.fs.crash(Seed(seed)), &work.expected(true))
                    .await
                    .is_err(),
            );
        }
        println!("{work:?} {forgets:?}: found in {found} of {FORGETFUL_CRASHES} crashes");
        assert!(found > 0, "{work:?} {forgets:?} goes unnoticed");
    }
}

/// Whether the fault of an operation came to pass: some are of writes or syncs alone, and with others everything went well.
pub(super) fn suits(engine: &SimEngine, at: u64, fault: SimFault) -> bool {
    let start = format!("#{at} ");
    let trace = engine.trace();
    // Of long runs, only the end is traced.
    let Some(op) = trace.iter().find_map(|line| line.strip_prefix(&start)) else {
        return true;
    };
    match fault {
        SimFault::FsyncEio => op.starts_with("sync"),
        SimFault::TornWrite => op.starts_with("write"),
        _ => true,
    }
}

/// One fault at every operation of a save: the caller is told, or the checkpoint is good; what was there stays.
#[tokio::test]
async fn every_operation_of_a_save_may_fail() {
    let mut faults = 0;
    for work in WORKS {
        let base = prepared(work).await;
        for fault in [
            SimFault::Eio,
            SimFault::Enospc,
            SimFault::FsyncEio,
            SimFault::TornWrite,
        ] {
            for at in 1..OPS_MAX {
                let config = SimConfig {
                    seed: Seed(at),
                    fail_op: Some((at, fault)),
                    ..SimConfig::default()
                };
                let ran = run(&base, work, Forgets::Nothing, config).await;
                if ran.engine.ops() < at {
                    break;
                }
                if !suits(&ran.engine, at, fault) {
                    continue;
                }
                let told = |wrong| format!("{work:?} {fault:?} at {at}: {wrong}\n{:?}", ran.result);
                let expected = work.expected(ran.result.is_ok());
                look(&ran.fs.crash(Seed(at)), &expected)
                    .await
                    .map_err(told)
                    .unwrap();
                faults += 1;
            }
        }
    }
    println!("{faults} faults");
    assert!(faults > 500);
}
