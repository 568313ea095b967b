//! Tests of the simulation: it loses what may be lost, keeps what must be kept, and finds the classic mistakes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{ErrorKind, Result, Seed};

use super::{SimConfig, SimEngine, SimFault, SimFs};
use crate::buf::{AlignedBuf, Buf};
use crate::engine::{Engine, ReadDone};
use crate::file::{File, OpenHow, Purpose};
use crate::map::Pages;
use crate::names::{NameDone, NameOp};

/// Crashes per state: rare fates have a chance of some percent each.
const CRASH_SEEDS: u64 = 200;

const UPDATE: OpenHow = OpenHow {
    purpose: Purpose::Update,
    ..OpenHow::READ
};

fn sim(config: SimConfig) -> SimEngine {
    SimEngine::new(&SimFs::new(), config)
}

impl SimEngine {
    fn run(&self, op: NameOp) -> Result<NameDone> {
        self.name(op).wait()?
    }

    fn file(&self, path: &str, how: OpenHow) -> Result<Arc<File>> {
        match self.run(NameOp::Open {
            path: path.into(),
            how,
        })? {
            NameDone::File(file) => Ok(file),
            other => panic!("{other:?}"),
        }
    }

    fn put(&self, file: &Arc<File>, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write(file, offset, Buf::copy_of(bytes)?, None)
            .wait()?
            .result
    }

    fn fsync(&self, file: &Arc<File>) -> Result<()> {
        self.sync(file).wait()?
    }

    fn get(&self, file: &Arc<File>, offset: u64, len: usize) -> ReadDone {
        let buf = AlignedBuf::alloc(len, Pages::Small).unwrap();
        self.read(file, offset, buf, len, None).wait().unwrap()
    }

    fn rename(&self, from: &str, to: &str) -> Result<NameDone> {
        self.run(NameOp::Rename {
            from: from.into(),
            to: to.into(),
            replace: true,
            size: None,
        })
    }

    fn sync_dir_of(&self, path: &str) -> Result<NameDone> {
        self.run(NameOp::SyncDir { path: path.into() })
    }

    /// The different contents that crashes leave under that name.
    fn outcomes(&self, path: &str) -> BTreeSet<Option<Vec<u8>>> {
        (0..CRASH_SEEDS)
            .map(|seed| self.fs().crash(Seed(seed)).content(path))
            .collect()
    }
}

fn old() -> Vec<u8> {
    vec![b'o'; 3000]
}

fn new() -> Vec<u8> {
    (0..5000u32).map(|i| b'A' + (i % 26) as u8).collect()
}

/// A file system with a durable old version of `/d/f`.
fn prepared() -> SimFs {
    let engine = sim(SimConfig::default());
    engine.run(NameOp::CreateDirs { path: "/d".into() }).unwrap();
    let file = engine.file("/d/f", UPDATE).unwrap();
    engine.put(&file, 0, &old()).unwrap();
    engine.fs().settle();
    engine.fs().clone()
}

#[test]
fn what_is_not_synced_may_be_lost_torn_or_kept() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    let file = engine.file("/d/f", UPDATE).unwrap();
    engine.put(&file, 0, &new()).unwrap();
    let outcomes = engine.outcomes("/d/f");
    assert!(outcomes.contains(&Some(old())), "lost");
    assert!(outcomes.contains(&Some(new())), "kept");
    assert!(outcomes.len() > 10, "torn in many ways");
    let grown_without_bytes = |content: &Option<Vec<u8>>| {
        content
            .as_ref()
            .is_some_and(|bytes| bytes.len() == 5000 && bytes[4990..].iter().all(|byte| *byte == 0))
    };
    assert!(
        outcomes.iter().any(grown_without_bytes),
        "the size survives without the bytes"
    );
}

#[test]
fn what_is_synced_is_never_lost() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    let file = engine.file("/d/f", UPDATE).unwrap();
    engine.put(&file, 0, &new()).unwrap();
    engine.fsync(&file).unwrap();
    assert_eq!(engine.outcomes("/d/f"), BTreeSet::from([Some(new())]));
    engine
        .run(NameOp::SetLen {
            file: Arc::clone(&file),
            len: 10,
        })
        .unwrap();
    assert_eq!(
        engine.outcomes("/d/f"),
        BTreeSet::from([Some(new()), Some(new()[..10].to_vec())]),
        "a length may be lost or kept"
    );
    engine.fsync(&file).unwrap();
    assert_eq!(
        engine.outcomes("/d/f"),
        BTreeSet::from([Some(new()[..10].to_vec())])
    );
}

#[test]
fn a_synced_file_has_no_durable_name_yet() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    let file = engine.file("/d/g", OpenHow::CREATE).unwrap();
    engine.put(&file, 0, b"x").unwrap();
    engine.fsync(&file).unwrap();
    let both = BTreeSet::from([None, Some(b"x".to_vec())]);
    assert_eq!(engine.outcomes("/d/g"), both);
    engine.sync_dir_of("/").unwrap();
    assert_eq!(engine.outcomes("/d/g"), both, "another directory");
    engine.sync_dir_of("/d").unwrap();
    assert_eq!(engine.outcomes("/d/g"), BTreeSet::from([Some(b"x".to_vec())]));
}

#[test]
fn a_rename_may_or_may_not_survive_until_its_directory_is_synced() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    engine.rename("/d/f", "/d/g").unwrap();
    let places = |fs: &SimFs| fs.files();
    let outcomes: BTreeSet<_> = (0..CRASH_SEEDS)
        .map(|seed| places(&engine.fs().crash(Seed(seed))))
        .collect();
    let at = |name: &str| vec![Path::new("/d").join(name)];
    assert_eq!(
        outcomes,
        BTreeSet::from([at("f"), at("g")]),
        "one of the two, always"
    );
    engine.sync_dir_of("/d").unwrap();
    assert_eq!(engine.outcomes("/d/g"), BTreeSet::from([Some(old())]));
}

#[test]
fn a_move_between_directories_never_loses_the_file() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    engine.run(NameOp::CreateDirs { path: "/e".into() }).unwrap();
    engine.rename("/d/f", "/e/f").unwrap();
    let survivors = |fs: &SimFs| -> BTreeSet<usize> {
        (0..CRASH_SEEDS)
            .map(|seed| fs.crash(Seed(seed)).files().len())
            .collect()
    };
    assert_eq!(
        survivors(engine.fs()),
        BTreeSet::from([1, 2]),
        "two names while only one end is durable"
    );
    engine.sync_dir_of("/d").unwrap();
    assert_eq!(
        engine.outcomes("/e/f"),
        BTreeSet::from([Some(old())]),
        "leaving implies arriving"
    );
    // Emptied, the directory goes, and its removal does not outrun the move.
    engine.rename("/e/f", "/d/f").unwrap();
    engine.run(NameOp::RemoveDir { path: "/e".into() }).unwrap();
    assert_eq!(survivors(engine.fs()), BTreeSet::from([1, 2]));
}

/// How a new version of a file is written, for sweeps.
#[derive(Clone, Copy)]
struct Recipe {
    sync_before_rename: bool,
    sync_again_after_failure: bool,
}

const RIGHT: Recipe = Recipe {
    sync_before_rename: true,
    sync_again_after_failure: false,
};

fn replace_file(engine: &SimEngine, recipe: Recipe) -> Result<()> {
    let file = engine.file("/d/f.tmp", OpenHow::CREATE)?;
    for (index, piece) in new().chunks(1024).enumerate() {
        engine.put(&file, index as u64 * 1024, piece)?;
    }
    if recipe.sync_before_rename {
        let synced = engine.fsync(&file);
        if recipe.sync_again_after_failure && synced.is_err() {
            engine.fsync(&file)?;
        } else {
            synced?;
        }
    }
    engine.rename("/d/f.tmp", "/d/f")?;
    engine.sync_dir_of("/d").map(drop)
}

/// Stop after every operation, crash with many seeds; gives what was found wrong first, with the trace.
fn sweep(config: &SimConfig, recipe: Recipe, crashes: u64) -> Option<String> {
    let mut stop_after_ops = 0;
    loop {
        let config = SimConfig {
            stop_after_ops: Some(stop_after_ops),
            ..config.clone()
        };
        let engine = SimEngine::new(&prepared(), config);
        let result = replace_file(&engine, recipe);
        for seed in 0..crashes {
            let found = engine.fs().crash(Seed(seed)).content("/d/f");
            let is_fine = match &found {
                Some(bytes) => *bytes == new() || (result.is_err() && *bytes == old()),
                None => false,
            };
            if !is_fine {
                let len = found.map(|bytes| bytes.len());
                return Some(format!(
                    "{result:?}, then {len:?} bytes with crash {seed}: {:#?}",
                    engine.trace()
                ));
            }
        }
        if engine.ops() <= stop_after_ops {
            return None;
        }
        stop_after_ops += 1;
    }
}

#[test]
fn the_right_recipe_gives_old_or_new_after_every_operation() {
    for seed in 0..8 {
        for reorder in [false, true] {
            let config = SimConfig {
                seed: Seed(seed),
                short_one_in: seed % 4,
                reorder,
                ..SimConfig::default()
            };
            assert_eq!(sweep(&config, RIGHT, 40), None, "{config:?}");
        }
    }
}

#[test]
fn the_right_recipe_survives_every_fault_of_every_operation() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    replace_file(&engine, RIGHT).unwrap();
    for number in 1..=engine.ops() {
        for fault in SimFault::ALL {
            let config = SimConfig {
                fail_op: Some((number, fault)),
                ..SimConfig::default()
            };
            assert_eq!(sweep(&config, RIGHT, 20), None, "{config:?}");
        }
    }
}

#[test]
fn renaming_before_syncing_is_caught() {
    let recipe = Recipe {
        sync_before_rename: false,
        ..RIGHT
    };
    let found = sweep(&SimConfig::default(), recipe, CRASH_SEEDS).unwrap();
    assert!(found.contains("rename /d/f.tmp to /d/f"), "{found}");
}

#[test]
fn syncing_again_after_a_failure_is_caught() {
    let recipe = Recipe {
        sync_again_after_failure: true,
        ..RIGHT
    };
    assert_eq!(
        sweep(&SimConfig::default(), recipe, CRASH_SEEDS),
        None,
        "nothing fails, nothing is wrong"
    );
    // Open, five writes, sync.
    let config = SimConfig {
        fail_op: Some((7, SimFault::FsyncEio)),
        ..SimConfig::default()
    };
    let found = sweep(&config, recipe, CRASH_SEEDS).unwrap();
    assert!(found.contains("#7 sync /d/f.tmp: FsyncEio"), "{found}");
}

#[test]
fn later_writes_are_durable_after_a_failed_sync_but_never_undone_by_what_it_lost() {
    let config = SimConfig {
        fail_op: Some((3, SimFault::FsyncEio)),
        ..SimConfig::default()
    };
    let engine = SimEngine::new(&prepared(), config);
    let file = engine.file("/d/f", UPDATE).unwrap();
    engine.put(&file, 0, &[1; 1024]).unwrap();
    assert_eq!(engine.fsync(&file).unwrap_err().kind(), ErrorKind::Io);
    engine.put(&file, 512, &[2; 512]).unwrap();
    engine.fsync(&file).unwrap();
    let first: BTreeSet<u8> = engine
        .outcomes("/d/f")
        .into_iter()
        .flatten()
        .map(|bytes| {
            assert_eq!(bytes[512..1024], [2; 512]);
            bytes[0]
        })
        .collect();
    assert_eq!(first, BTreeSet::from([b'o', 1]));
    assert_eq!(engine.get(&file, 0, 1).buf[0], 1, "readers see the write");
}

#[test]
fn a_failed_sync_of_a_directory_is_not_made_good_by_the_next() {
    let config = SimConfig {
        fail_op: Some((2, SimFault::FsyncEio)),
        ..SimConfig::default()
    };
    let engine = SimEngine::new(&prepared(), config);
    engine.rename("/d/f", "/d/g").unwrap();
    assert!(engine.sync_dir_of("/d").is_err());
    engine.sync_dir_of("/d").unwrap();
    assert_eq!(engine.outcomes("/d/g"), BTreeSet::from([None, Some(old())]));
}

#[test]
fn a_sync_does_not_cover_what_is_still_in_flight() {
    let config = SimConfig {
        reorder: true,
        ..SimConfig::default()
    };
    let engine = SimEngine::new(&prepared(), config);
    let file = engine.file("/d/f", UPDATE).unwrap();
    let writing = engine.write(&file, 0, Buf::copy_of(&new()).unwrap(), None);
    // Straight to the file system, so that waiting for the sync does not let the write's answer go first.
    engine.call_sync(&file).unwrap();
    assert!(engine.outcomes("/d/f").contains(&Some(old())));
    writing.wait().unwrap().result.unwrap();
    engine.fsync(&file).unwrap();
    assert_eq!(engine.outcomes("/d/f"), BTreeSet::from([Some(new())]));
}

#[test]
fn a_torn_write_fails_with_some_sectors_written() {
    let torn = |seed| {
        let engine = SimEngine::new(
            &prepared(),
            SimConfig {
                seed: Seed(seed),
                fail_op: Some((2, SimFault::TornWrite)),
                ..SimConfig::default()
            },
        );
        let file = engine.file("/d/f", UPDATE).unwrap();
        assert_eq!(
            engine.put(&file, 0, &[7; 2048]).unwrap_err().kind(),
            ErrorKind::Io
        );
        engine.fs().content("/d/f").unwrap()
    };
    let mut outcomes = BTreeSet::new();
    for seed in 0..50 {
        let bytes = torn(seed);
        for sector in bytes[..2048].chunks(512) {
            assert!(sector == [7; 512] || sector == [b'o'; 512], "sectors are whole");
        }
        assert_eq!(bytes[2048..], old()[2048..]);
        outcomes.insert(bytes);
    }
    assert!(
        outcomes.len() > 8 && !outcomes.contains(&old()[..0]),
        "{}",
        outcomes.len()
    );
    assert_eq!(torn(3), torn(3), "the seed decides");
}

#[test]
fn a_full_disk_refuses_and_keeps_what_fits() {
    for direct_align in [None, Some(512)] {
        let engine = sim(SimConfig {
            capacity_bytes: Some(4096),
            direct_align,
            ..SimConfig::default()
        });
        let file = engine.file("/f", OpenHow::CREATE).unwrap();
        let error = engine.put(&file, 0, &[1; 8192]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfSpace);
        assert_eq!(error.location(), Some("/f"));
        assert_eq!(engine.fs().content("/f").unwrap(), [1; 4096]);
        let other = engine.file("/g", OpenHow::CREATE).unwrap();
        let reserve = |len| {
            engine.run(NameOp::Reserve {
                file: Arc::clone(&other),
                len,
            })
        };
        assert_eq!(reserve(1).unwrap_err().kind(), ErrorKind::OutOfSpace);
        engine.run(NameOp::Unlink { path: "/f".into() }).unwrap();
        reserve(4096).unwrap();
        engine.put(&other, 0, &[2; 4096]).unwrap();
    }
}

#[test]
fn rename_without_replace_is_exclusive() {
    let engine = SimEngine::new(&prepared(), SimConfig::default());
    engine.file("/d/g", OpenHow::CREATE).unwrap();
    let rename = |from: &str, to: &str| {
        engine.run(NameOp::Rename {
            from: from.into(),
            to: to.into(),
            replace: false,
            size: None,
        })
    };
    assert_eq!(
        rename("/d/g", "/d/f").unwrap_err().kind(),
        ErrorKind::AlreadyExists
    );
    assert_eq!(engine.fs().content("/d/f").unwrap(), old());
    rename("/d/g", "/d/h").unwrap();
    assert_eq!(rename("/d/g", "/d/h").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn after_the_power_loss_nothing_works_and_nothing_changes() {
    let engine = SimEngine::new(
        &prepared(),
        SimConfig {
            stop_after_ops: Some(1),
            ..SimConfig::default()
        },
    );
    let file = engine.file("/d/f", UPDATE).unwrap();
    for error in [
        engine.put(&file, 0, b"x").unwrap_err(),
        engine.get(&file, 0, 1).result.unwrap_err(),
        engine.fsync(&file).unwrap_err(),
        engine.rename("/d/f", "/d/g").unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(error.message(), "simulated power loss");
        assert_eq!(error.location().map(|place| place.starts_with("/d/")), Some(true));
    }
    assert_eq!(engine.fs().content("/d/f").unwrap(), old());
    assert_eq!((engine.ops(), engine.trace().len()), (5, 5));
    let next = SimEngine::new(&engine.fs().crash(Seed(1)), SimConfig::default());
    assert_eq!(
        next.get(&file, 0, 1).result.unwrap_err().kind(),
        ErrorKind::Io,
        "files from before the crash are not open"
    );
}

#[test]
fn short_counts_and_interruptions_are_looped_over() {
    for direct_align in [None, Some(512)] {
        let mut requests = 0;
        for seed in 0..20 {
            let engine = sim(SimConfig {
                seed: Seed(seed),
                short_one_in: 1,
                direct_align,
                ..SimConfig::default()
            });
            let bytes: Vec<u8> = (0..8192u32).map(|i| (i % 251) as u8).collect();
            let file = engine.file("/f", OpenHow::CREATE).unwrap();
            engine.put(&file, 0, &bytes).unwrap();
            assert!(engine.ops() > 2, "{:#?}", engine.trace());
            engine
                .run(NameOp::SetLen {
                    file: Arc::clone(&file),
                    len: 8000,
                })
                .unwrap();
            let done = engine.get(&file, 0, 16384);
            assert_eq!(done.result.unwrap(), 8000);
            assert_eq!(done.buf[..8000], bytes[..8000]);
            requests += done.requests;
        }
        assert!(requests > 25, "reads came back short: {requests}");
    }
}

#[test]
fn answers_come_in_an_order_that_the_seed_decides() {
    let order = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let engine = sim(SimConfig {
            seed: Seed(seed),
            reorder: true,
            ..SimConfig::default()
        });
        let file = engine.file("/f", OpenHow::CREATE).unwrap();
        runtime.block_on(async {
            use futures::stream::{FuturesUnordered, StreamExt};
            let writes: FuturesUnordered<_> = (0..10u64)
                .map(|index| {
                    let write = engine.write(&file, index, Buf::copy_of(&[index as u8]).unwrap(), None);
                    async move { write.await.map(|_| index).unwrap() }
                })
                .collect();
            writes.collect::<Vec<_>>().await
        })
    };
    let orders: BTreeSet<_> = (0..10).map(order).collect();
    assert!(orders.len() > 5, "{orders:?}");
    assert_eq!(order(3), order(3));
}

#[test]
fn the_same_seed_gives_the_same_run_and_the_same_crash() {
    let run = || {
        let engine = SimEngine::new(
            &prepared(),
            SimConfig {
                seed: Seed(9),
                short_one_in: 2,
                reorder: true,
                stop_after_ops: Some(9),
                ..SimConfig::default()
            },
        );
        replace_file(&engine, RIGHT).unwrap_err();
        let crashed = engine.fs().crash(Seed(5));
        let files: Vec<_> = crashed.files().iter().map(|path| crashed.content(path)).collect();
        (engine.trace(), files)
    };
    assert_eq!(run(), run());
}
