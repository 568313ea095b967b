//! Every engine on a place of its own, and short forms of its calls.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Limits, Result, Seed};
use forebay_io::sim::{SimConfig, SimFs};
use forebay_io::{
    AlignedBuf, Buf, Direct, Engine, File, FileStat, NameDone, NameOp, OpenHow, Pages, Psync, Purpose,
    ReadDone, SimEngine, Uring,
};
use tempfile::TempDir;

/// Alignment of simulated direct files.
pub(crate) const SIM_ALIGN: u32 = 512;

/// An engine, a directory for it, and how files are opened there.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) root: PathBuf,
    pub(crate) direct: Direct,
    _dir: Option<TempDir>,
}

impl Bench {
    pub(crate) fn psync(direct: Direct) -> Option<Self> {
        let engine = Psync::new(&limits(), Some("a test".to_owned())).unwrap();
        Self::on_disk(Arc::new(engine), direct)
    }

    pub(crate) fn uring(direct: Direct) -> Option<Self> {
        match Uring::new(&limits()) {
            Ok(engine) => Self::on_disk(Arc::new(engine), direct),
            Err(error) => skip(&error),
        }
    }

    /// A simulation; direct where the configuration has an alignment.
    pub(crate) fn sim(config: SimConfig) -> Self {
        let direct = match config.direct_align {
            Some(_) => Direct::Require,
            None => Direct::Never,
        };
        let bench = Self {
            engine: Arc::new(SimEngine::new(&SimFs::new(), config)),
            root: PathBuf::from("/bench"),
            direct,
            _dir: None,
        };
        let path = bench.root.clone();
        bench.run(NameOp::CreateDirs { path }).unwrap();
        bench
    }

    /// A simulation whose kernel is in a bad mood: short counts, interruptions, answers out of order.
    pub(crate) fn moody_sim(direct_align: Option<u32>) -> Self {
        Self::sim(SimConfig {
            seed: Seed(0x5eed),
            short_one_in: 3,
            reorder: true,
            direct_align,
            ..SimConfig::default()
        })
    }

    fn on_disk(engine: Arc<dyn Engine>, direct: Direct) -> Option<Self> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let bench = Self {
            engine,
            root: dir.path().to_owned(),
            direct,
            _dir: Some(dir),
        };
        match bench.open("probe", Purpose::Create) {
            Ok(_) => Some(bench),
            Err(error) => skip(&error),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn run(&self, op: NameOp) -> Result<NameDone> {
        self.engine.name(op).wait()?
    }

    pub(crate) fn open(&self, name: &str, purpose: Purpose) -> Result<Arc<File>> {
        let how = OpenHow {
            purpose,
            direct: self.direct,
            ..OpenHow::READ
        };
        let path = self.path(name);
        match self.run(NameOp::Open { path, how })? {
            NameDone::File(file) => Ok(file),
            other => panic!("open gave {other:?}"),
        }
    }

    pub(crate) fn create(&self, name: &str) -> Arc<File> {
        self.open(name, Purpose::Create).unwrap()
    }

    pub(crate) fn write(&self, file: &Arc<File>, offset: u64, bytes: &[u8]) -> Result<()> {
        self.engine
            .write(file, offset, Buf::copy_of(bytes)?, None)
            .wait()?
            .result
    }

    pub(crate) fn read(&self, file: &Arc<File>, offset: u64, len: usize) -> ReadDone {
        let buf = AlignedBuf::alloc(len, Pages::Small).unwrap();
        self.engine.read(file, offset, buf, len, None).wait().unwrap()
    }

    /// A file with that content, written in whole alignments and cut.
    pub(crate) fn file_of(&self, name: &str, bytes: &[u8]) -> Arc<File> {
        let file = self.create(name);
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(4096), 0);
        self.write(&file, 0, &padded).unwrap();
        let len = bytes.len() as u64;
        let file_again = Arc::clone(&file);
        self.run(NameOp::SetLen {
            file: file_again,
            len,
        })
        .unwrap();
        file
    }

    pub(crate) fn stat(&self, path: &Path) -> Result<FileStat> {
        let path = path.to_owned();
        match self.run(NameOp::Stat { path })? {
            NameDone::Stat(stat) => Ok(stat),
            other => panic!("stat gave {other:?}"),
        }
    }
}

/// Requests of 1 MiB, as the simulation makes them.
fn limits() -> Limits {
    Limits {
        disk_request_bytes: 1 << 20,
        ..Limits::default()
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(seed).rng().fill(&mut bytes);
    bytes
}

#[expect(clippy::print_stderr, reason = "a skipped test must say why")]
fn skip<T>(why: &dyn std::fmt::Display) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}
