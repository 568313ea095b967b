//! Power losses and faults at every single step of a durable write: old content or new content, never a mixture.
//!
//! Each scenario writes to a local store on a simulated file system. The sweep runs it again and again, losing power after the first
//! operation, after the second, and so on to the last; each time the file system is crashed with many seeds, opened anew and looked
//! at. To show that the sweep would see a store that forgets to sync, it is run on engines that forget for it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Limits, Location, Result, Seed, Span};
use forebay_io::sim::{SimConfig, SimFault, SimFs};
use forebay_io::{
    AlignedBuf, Buf, Completion, Disk, DiskConfig, Engine, EngineReport, File, NameDone, NameOp, Pages,
    Permit, ReadDone, SimEngine, WriteDone,
};
use forebay_store::{
    Context, Entry, ListOptions, LocalStore, PutMode, PutOptions, ReadOptions, Store, StoreExt,
};
use futures::StreamExt;
use futures::future::join_all;

/// Crashes of each half-done write: every seed draws another subset of what was not synced.
const CRASHES: u64 = 8;

/// A write that needs more operations than this goes round in circles.
const OPS_MAX: u64 = 400;

/// How a simulated disk differs from the default.
#[derive(Debug, Clone, Copy)]
struct Machine {
    direct_align: Option<u32>,
    reorder: bool,
    short_one_in: u64,
}

const MACHINES: [Machine; 4] = [
    Machine {
        direct_align: None,
        reorder: false,
        short_one_in: 0,
    },
    Machine {
        direct_align: Some(512),
        reorder: false,
        short_one_in: 0,
    },
    Machine {
        direct_align: Some(4096),
        reorder: true,
        short_one_in: 0,
    },
    Machine {
        direct_align: None,
        reorder: true,
        short_one_in: 3,
    },
];

/// What the engine forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Forgets {
    Nothing,
    Sync,
    SyncDir,
}

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Put(PutMode),
    Upload,
    /// Two writers at once, who share the sync of the directory.
    Pair,
}

#[derive(Debug, Clone, Copy)]
struct Scenario {
    work: Work,
    /// Bytes of what is there before.
    old_bytes: Option<usize>,
    new_bytes: usize,
}

const fn scenario(work: Work, old_bytes: Option<usize>, new_bytes: usize) -> Scenario {
    Scenario {
        work,
        old_bytes,
        new_bytes,
    }
}

const SCENARIOS: [Scenario; 9] = [
    scenario(Work::Put(PutMode::Replace), Some(70_001), 90_003),
    scenario(Work::Put(PutMode::Replace), Some(90_003), 5),
    scenario(Work::Put(PutMode::Replace), Some(100), 0),
    scenario(Work::Put(PutMode::Replace), None, 70_001),
    scenario(Work::Put(PutMode::IfAbsent), None, 70_001),
    scenario(Work::Put(PutMode::IfAbsent), Some(3000), 70_001),
    scenario(Work::Upload, Some(70_001), 70_001),
    scenario(Work::Upload, None, 40_007),
    scenario(Work::Pair, Some(9_001), 20_001),
];

const ROOT: &str = "/data/root";

/// In a directory that is there before, and in one that is not.
const NAMES: [&str; 2] = ["dir/object", "dir/other"];

impl Scenario {
    fn names(&self) -> &'static [&'static str] {
        match self.work {
            Work::Pair => &NAMES,
            _ => &NAMES[..1],
        }
    }

    fn old(&self) -> Option<Vec<u8>> {
        self.old_bytes.map(|len| content(1, len))
    }

    fn fresh(&self) -> Vec<u8> {
        content(2, self.new_bytes)
    }
}

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(seed).rng().fill(&mut bytes);
    bytes
}

fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

/// An engine that forgets what it is told to make durable.
struct Forgetful {
    inner: Arc<SimEngine>,
    forgets: Forgets,
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

fn store_on(engine: Arc<dyn Engine>) -> (LocalStore, Context) {
    let limits = Limits {
        part_bytes: 16 << 10,
        buffer_bytes_max: 4 << 20,
        ..Limits::default()
    };
    let config = DiskConfig {
        limits,
        ..DiskConfig::default()
    };
    let context = Context::new(Disk::with_engine(engine, config).unwrap()).with_state_dir(None);
    let location = Location::from_path(Path::new(ROOT), Path::new("/")).unwrap();
    (LocalStore::open(&location, &context).unwrap(), context)
}

/// A file system with the old content on it, durable.
async fn prepared(scenario: &Scenario) -> SimFs {
    let fs = SimFs::new();
    let engine = Arc::new(SimEngine::new(&fs, SimConfig::default()));
    let (store, _) = store_on(engine);
    if let Some(old) = scenario.old() {
        for name in scenario.names() {
            store
                .put_bytes(&key(name), &old, &PutOptions::default())
                .await
                .unwrap();
        }
    }
    fs.settle();
    fs
}

/// Do the writes of a scenario; gives the outcome for each name.
async fn work(store: &LocalStore, scenario: &Scenario) -> Vec<Result<()>> {
    let new = scenario.fresh();
    match scenario.work {
        Work::Put(mode) => {
            let options = PutOptions {
                mode,
                ..PutOptions::default()
            };
            vec![store.put_bytes(&key(NAMES[0]), &new, &options).await.map(drop)]
        }
        Work::Upload => vec![upload(store, &new).await],
        Work::Pair => {
            let puts = NAMES.map(|name| {
                let new = new.clone();
                async move {
                    store
                        .put_bytes(&key(name), &new, &PutOptions::default())
                        .await
                        .map(drop)
                }
            });
            join_all(puts).await
        }
    }
}

async fn upload(store: &LocalStore, bytes: &[u8]) -> Result<()> {
    let upload = store.upload(&key(NAMES[0]), &PutOptions::default()).await?;
    let parts = bytes.chunks(upload.part_bytes() as usize).enumerate().rev();
    let puts = parts.map(|(index, part)| upload.put_part(index as u32, Buf::copy_of(part).unwrap().into()));
    for result in join_all(puts).await {
        result?;
    }
    upload.complete().await.map(drop)
}

/// What a run gave: where it was stopped, and what it told its caller.
struct Ran {
    fs: SimFs,
    engine: Arc<SimEngine>,
    results: Vec<Result<()>>,
}

async fn run(
    base: &SimFs,
    scenario: &Scenario,
    machine: Machine,
    forgets: Forgets,
    config: SimConfig,
) -> Ran {
    // Crashing a file system that is durable throughout copies it.
    let fs = base.crash(Seed(0));
    let config = SimConfig {
        direct_align: machine.direct_align,
        reorder: machine.reorder,
        short_one_in: machine.short_one_in,
        request_bytes: 16 << 10,
        ..config
    };
    let engine = Arc::new(SimEngine::new(&fs, config));
    let (store, _) = store_on(Arc::new(Forgetful {
        inner: Arc::clone(&engine),
        forgets,
    }));
    let results = work(&store, scenario).await;
    Ran { fs, engine, results }
}

/// Open a file system anew and look: each name has its old or its new content, new where the writer was told so, and nothing is left over.
async fn look(fs: &SimFs, scenario: &Scenario, results: &[Result<()>]) -> Result<(), String> {
    let engine = Arc::new(SimEngine::new(fs, SimConfig::default()));
    let (store, context) = store_on(engine);
    let mut there = Vec::new();
    for (name, result) in scenario.names().iter().zip(results) {
        let found = found(&store, name, &context).await?;
        let (old, new) = (scenario.old(), scenario.fresh());
        let is_new = found.as_ref() == Some(&new);
        if !is_new && found != old {
            let len = found.map(|found| found.len());
            return Err(format!(
                "{name} has neither its old nor its new content, but {len:?} bytes"
            ));
        }
        if result.is_ok() && !is_new {
            return Err(format!(
                "{name}: the writer was told it is durable, but the old content is back"
            ));
        }
        if found.is_some() {
            there.push((*name).to_owned());
        }
    }
    let mut listed = Vec::new();
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    while let Some(row) = rows.next().await {
        match row {
            Ok(Entry::Object(meta)) => listed.push(meta.key.to_string()),
            // The root itself may have been lost with everything in it.
            Err(error) if error.kind() == ErrorKind::NotFound && there.is_empty() => {}
            row => return Err(format!("listing gave {row:?}")),
        }
    }
    if listed != there {
        return Err(format!("listed {listed:?}, but {there:?} can be read"));
    }
    let files: Vec<_> = fs.files();
    if files.len() != there.len() {
        return Err(format!("leftovers were not removed by listing: {files:?}"));
    }
    Ok(())
}

async fn found(store: &LocalStore, name: &str, context: &Context) -> Result<Option<Vec<u8>>, String> {
    let read = async {
        let size = store.head(&key(name)).await?.size;
        let span = Span::first(size);
        if size == 0 {
            let buf = AlignedBuf::alloc(0, Pages::Small)?;
            store
                .read_into(&key(name), span, buf, &ReadOptions::default())
                .await?;
            return Ok::<_, Error>(Vec::new());
        }
        let (bytes, _) = store
            .read(&key(name), span, &ReadOptions::default(), context)
            .await?;
        Ok(bytes.to_vec())
    };
    match read.await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::to_string(&error)),
    }
}

/// Lose power after every operation; gives how many there were, or the first thing that went wrong.
async fn sweep(scenario: &Scenario, machine: Machine, forgets: Forgets) -> Result<u64, String> {
    let base = prepared(scenario).await;
    for stop in 0..OPS_MAX {
        let config = SimConfig {
            seed: Seed(stop),
            stop_after_ops: Some(stop),
            ..SimConfig::default()
        };
        let ran = run(&base, scenario, machine, forgets, config).await;
        for seed in 0..CRASHES {
            let crashed = ran.fs.crash(Seed(seed));
            look(&crashed, scenario, &ran.results).await.map_err(|wrong| {
                let trace = ran.engine.trace().join("\n");
                format!("{scenario:?} {machine:?} stopped after {stop}, seed {seed}: {wrong}\n{trace}")
            })?;
        }
        if ran.engine.ops() <= stop {
            return Ok(stop);
        }
    }
    Err(format!("{scenario:?} needs more than {OPS_MAX} operations"))
}

#[tokio::test]
async fn power_may_fail_after_every_operation_of_a_write() {
    for scenario in &SCENARIOS {
        for machine in MACHINES {
            let ops = sweep(scenario, machine, Forgets::Nothing).await.unwrap();
            let refused = scenario.work == Work::Put(PutMode::IfAbsent) && scenario.old_bytes.is_some();
            assert!(
                refused || ops >= 4,
                "{scenario:?}: only {ops} operations were swept"
            );
        }
    }
}

#[tokio::test]
async fn a_write_without_sync_is_found_out() {
    let scenario = &SCENARIOS[0];
    for machine in MACHINES {
        let wrong = sweep(scenario, machine, Forgets::Sync).await.unwrap_err();
        assert!(
            wrong.contains("neither its old nor its new") || wrong.contains("told it is durable"),
            "{wrong}"
        );
    }
}

#[tokio::test]
async fn a_write_without_sync_of_the_directory_is_found_out() {
    for scenario in [&SCENARIOS[0], &SCENARIOS[6], &SCENARIOS[8]] {
        let wrong = sweep(scenario, MACHINES[0], Forgets::SyncDir).await.unwrap_err();
        assert!(wrong.contains("told it is durable"), "{wrong}");
    }
}

/// One fault at every single operation: the caller is told, or the write is good; and nothing is left over either way.
#[tokio::test]
async fn every_operation_of_a_write_may_fail() {
    for scenario in &SCENARIOS {
        let base = prepared(scenario).await;
        for (machine, fault) in [MACHINES[0], MACHINES[2]]
            .iter()
            .flat_map(|machine| SimFault::ALL.map(|fault| (*machine, fault)))
        {
            let mut last = OPS_MAX;
            for at in 1..OPS_MAX {
                let config = SimConfig {
                    seed: Seed(at),
                    fail_op: Some((at, fault)),
                    ..SimConfig::default()
                };
                let ran = run(&base, scenario, machine, Forgets::Nothing, config).await;
                let told = |wrong| {
                    format!(
                        "{scenario:?} {machine:?} {fault:?} at {at}: {wrong}\n{}",
                        ran.engine.trace().join("\n")
                    )
                };
                for seed in 0..3 {
                    let crashed = ran.fs.crash(Seed(seed));
                    look(&crashed, scenario, &ran.results)
                        .await
                        .map_err(told)
                        .unwrap();
                }
                look(&ran.fs, scenario, &ran.results).await.map_err(told).unwrap();
                if ran.engine.ops() < at {
                    last = at;
                    break;
                }
            }
            assert!(last < OPS_MAX, "{scenario:?} never ends");
        }
    }
}
