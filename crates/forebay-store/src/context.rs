//! What every store shares: the disk, the bounds, the clock and the folder for small state.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_core::{Clock, Limits, Result, Seed, SystemClock, env};
use forebay_io::{BufPool, Disk, DiskConfig, EngineChoice, FixedCaps, Gate};

use crate::remote::{Environment, Transports};

/// Most threads that copy out of the page cache: memory is the limit long before.
const COPYING_THREADS_MAX: usize = 32;

/// Bytes that a class may have with the copying threads: more than they can work on.
const COPYING_BYTES_MAX: u64 = 1 << 30;

/// Buffers of its own that the copying disk may lend; nobody asks for any.
const COPYING_POOL_BYTES: u64 = 1 << 20;

/// Shared surroundings of stores; cheap to clone. Must be used inside a tokio runtime.
#[derive(Debug, Clone)]
pub struct Context {
    disk: Disk,
    clock: Arc<dyn Clock>,
    seed: Seed,
    state_dir: Option<PathBuf>,
    transports: Arc<Transports>,
    environment: Environment,
    copying: Arc<OnceLock<Disk>>,
}

impl Context {
    /// Open a disk with that configuration and use the machine's clock.
    pub fn open(config: DiskConfig) -> Result<Self> {
        Ok(Self::new(Disk::open(config)?))
    }

    /// Around a disk that is open already.
    pub fn new(disk: Disk) -> Self {
        Self {
            disk,
            clock: Arc::new(SystemClock),
            seed: Seed::fresh(),
            state_dir: default_state_dir(),
            transports: Arc::default(),
            environment: Environment::process(),
            copying: Arc::default(),
        }
    }

    /// With another clock and seed, for tests that must repeat.
    pub fn with_time(self, clock: Arc<dyn Clock>, seed: Seed) -> Self {
        Self { clock, seed, ..self }
    }

    /// With another folder for small state; `None` keeps nothing between runs.
    pub fn with_state_dir(self, state_dir: Option<PathBuf>) -> Self {
        Self { state_dir, ..self }
    }

    /// With another source of the variables and files that say how remote stores are reached.
    pub fn with_environment(self, environment: Environment) -> Self {
        Self { environment, ..self }
    }

    /// Where remote stores learn how they are reached.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// A disk of threads that copy out of the page cache, made when it is first asked for: io_uring would copy on the one thread that submits.
    pub fn copying_disk(&self) -> Result<&Disk> {
        if let Some(disk) = self.copying.get() {
            return Ok(disk);
        }
        let limits = Limits {
            worker_threads: Self::copying_threads() as u32,
            buffer_bytes_max: COPYING_POOL_BYTES,
            ..self.limits().clone()
        };
        let config = DiskConfig {
            limits,
            engine: EngineChoice::Psync,
            gate: Gate::new(FixedCaps([COPYING_BYTES_MAX; 4])),
            ..DiskConfig::default()
        };
        let disk = Disk::open(config)?;
        Ok(self.copying.get_or_init(|| disk))
    }

    /// Threads of [`copying_disk`](Self::copying_disk).
    pub fn copying_threads() -> usize {
        std::thread::available_parallelism()
            .map_or(2, NonZero::get)
            .min(COPYING_THREADS_MAX)
    }

    /// The pool buffers are leased from.
    pub fn pool(&self) -> &BufPool {
        self.disk.pool()
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        self.disk.limits()
    }

    /// The clock.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The seed for jitter and temporary names.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// The HTTP clients that remote stores of this context share.
    pub(crate) fn transports(&self) -> &Transports {
        &self.transports
    }

    /// Folder for probes and transfers in progress.
    pub fn state_dir(&self) -> Option<&PathBuf> {
        self.state_dir.as_ref()
    }
}

/// `FOREBAY_STATE_DIR`, else `forebay` in the user's cache folder.
fn default_state_dir() -> Option<PathBuf> {
    let user_cache = || {
        env::XDG_CACHE_HOME
            .get_os()
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(env::HOME.get_os()?).join(".cache")))
    };
    env::STATE_DIR
        .get_os()
        .map(PathBuf::from)
        .or_else(|| Some(user_cache()?.join("forebay")))
}
