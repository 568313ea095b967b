//! Every kind of disk on a place of its own, and short forms of its calls.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Ledger, Limits, PathPolicy, Result, Seed, Span};
use forebay_io::sim::{SimConfig, SimFs};
use forebay_io::{
    Access, AlignedBuf, Buf, Class, Direct, Disk, DiskConfig, Engine, File, FixedCaps, Gate, OpenHow, Pages,
    Psync, Purpose, SimEngine, Uring,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

pub(crate) const MIB: u64 = 1 << 20;

/// A disk with a place for its files.
pub(crate) struct Rig {
    pub(crate) disk: Disk,
    pub(crate) root: PathBuf,
    pub(crate) direct: Direct,
    pub(crate) runtime: Runtime,
    _dir: Option<TempDir>,
}

impl Rig {
    pub(crate) fn new(engine: Arc<dyn Engine>, direct: Direct, dir: Option<TempDir>, limits: Limits) -> Self {
        let config = DiskConfig {
            limits,
            gate: Gate::new(FixedCaps([4 * MIB; 4])),
            ..DiskConfig::default()
        };
        Self {
            disk: Disk::with_engine(engine, config).unwrap(),
            root: dir
                .as_ref()
                .map_or(PathBuf::from("/"), |dir| dir.path().to_owned()),
            direct,
            runtime: tokio::runtime::Builder::new_current_thread().build().unwrap(),
            _dir: dir,
        }
    }

    pub(crate) fn psync(direct: Direct) -> Self {
        let engine = Psync::new(&limits(), Some("a test wants threads".to_owned())).unwrap();
        Self::new(Arc::new(engine), direct, Some(temp_dir()), limits())
    }

    pub(crate) fn uring(direct: Direct) -> Option<Self> {
        match Uring::new(&limits()) {
            Ok(engine) => Some(Self::new(Arc::new(engine), direct, Some(temp_dir()), limits())),
            Err(error) => skip(&error),
        }
    }

    pub(crate) fn sim(config: SimConfig) -> Self {
        Self::new(
            Arc::new(SimEngine::new(&SimFs::new(), config)),
            Direct::Auto,
            None,
            limits(),
        )
    }

    /// Every kind of disk there is.
    pub(crate) fn all() -> Vec<Self> {
        let moody = |direct_align| {
            Self::sim(SimConfig {
                seed: Seed(7),
                short_one_in: 3,
                reorder: true,
                direct_align,
                request_bytes: 64 << 10,
                ..SimConfig::default()
            })
        };
        let mut rigs = vec![moody(None), moody(Some(512)), moody(Some(4096))];
        for direct in [Direct::Never, Direct::Require] {
            rigs.push(Self::psync(direct));
            rigs.extend(Self::uring(direct));
        }
        rigs
    }

    pub(crate) fn open(&self, name: &str, purpose: Purpose) -> Result<Arc<File>> {
        let how = OpenHow {
            purpose,
            direct: self.direct,
            ..OpenHow::READ
        };
        let path = self.root.join(name);
        self.runtime
            .block_on(self.disk.open_file(path, how, PathPolicy::Fastest))
    }

    pub(crate) fn file_of(&self, name: &str, bytes: &[u8]) -> Arc<File> {
        let file = self.open(name, Purpose::Create).unwrap();
        self.write(&file, 0, Buf::copy_of(bytes).unwrap()).unwrap();
        self.set_len(&file, bytes.len() as u64);
        file
    }

    pub(crate) fn write(&self, file: &Arc<File>, offset: u64, buf: Buf) -> Result<Ledger> {
        self.runtime
            .block_on(self.disk.write_at(file, offset, buf, Class::Checkpoint))
    }

    pub(crate) fn read(&self, file: &Arc<File>, span: Span) -> Result<(Buf, Ledger)> {
        self.runtime.block_on(self.disk.read(file, span, Class::Data))
    }

    pub(crate) fn read_into(
        &self,
        file: &Arc<File>,
        span: Span,
        buf: AlignedBuf,
    ) -> Result<(AlignedBuf, Ledger)> {
        self.runtime
            .block_on(self.disk.read_into(file, span, buf, Class::Data))
    }

    pub(crate) fn set_len(&self, file: &Arc<File>, len: u64) {
        self.runtime.block_on(self.disk.set_len(file, len)).unwrap();
    }
}

pub(crate) fn limits() -> Limits {
    Limits {
        buffer_bytes_max: 64 * MIB,
        disk_request_bytes: MIB,
        ..Limits::default()
    }
}

pub(crate) fn temp_dir() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

#[expect(clippy::print_stderr, reason = "a skipped test must say why")]
pub(crate) fn skip<T>(why: &dyn std::fmt::Display) -> Option<T> {
    eprintln!("skipped: {why}");
    None
}

pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(seed).rng().fill(&mut bytes);
    bytes
}

pub(crate) fn align_of(file: &File) -> u64 {
    match *file.access() {
        Access::Direct { align } => align.into(),
        Access::Buffered { .. } => 1,
    }
}

/// A buffer of `len` bytes whose address is `shift` bytes off a page.
pub(crate) fn shifted(len: usize, shift: usize) -> AlignedBuf {
    AlignedBuf::alloc(len + shift, Pages::Small)
        .unwrap()
        .split_off(shift)
}
