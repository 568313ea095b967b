//! What the parts of one cache share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay_core::{Clock, Limits, Result, Scheme, Seed, metric};
use forebay_io::{BufPool, Disk, PoolConfig};
use tokio::sync::{Notify, Semaphore};

use super::config::CacheConfig;
use super::known::Known;
use super::room::Room;
use super::table::Table;
use crate::context::Context;
use crate::store::Store;

/// How often, at most, reads look whether other processes have removed entries.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Objects filled as a whole at the same time: each holds two descriptors while it waits its turn. Others are when a block of them is next
/// missed.
const WHOLES_MAX: usize = 32;

/// Blocks read from disk at once, however large they are.
const HITS_MIN: u64 = 2;

/// Blocks read from disk at once, however small they are.
const HITS_MAX: u64 = 256;

/// Everything behind a cache that works.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) origin: Arc<dyn Store>,
    /// Which store the origin is, as it stands in headers.
    pub(super) location: String,
    pub(super) config: CacheConfig,
    pub(super) disk: Disk,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) room: Room,
    pub(super) table: Table,
    pub(super) known: Known,
    /// Blocks on their way from the origin to the disk.
    pub(super) fill_pool: BufPool,
    /// Blocks of which only a part is wanted. Apart from the others, so that a slow origin does not hold up hits.
    pub(super) part_pool: BufPool,
    /// Blocks being read from the cache's disk.
    pub(super) hits: Semaphore,
    /// Fills nobody waits for: at most half of what may be in flight.
    pub(super) background: Arc<Semaphore>,
    /// Objects being filled as a whole.
    pub(super) wholes: Arc<Semaphore>,
    /// Blocks in flight at once.
    pub(super) slots: u64,
    /// How long a lock is waited for.
    pub(super) patience: Duration,
    pub(super) tasks: Tasks,
    pub(super) counts: Counts,
    trouble: Mutex<Option<String>>,
    looked: Mutex<Option<Duration>>,
    closing: AtomicBool,
}

/// Blocks read from disk at once: what keeps it busy. All blocks of a shard at once would be done at once too, and be checked when nothing is left to
/// read beside it.
fn hits_in_flight(limits: &Limits, block_bytes: u64) -> usize {
    let window_bytes = u64::from(limits.disk_depth) * limits.disk_request_bytes;
    (window_bytes / block_bytes).clamp(HITS_MIN, HITS_MAX) as usize
}

impl Shared {
    /// Open the directory, remove leftovers, make the pools.
    pub(super) async fn open(origin: Arc<dyn Store>, config: CacheConfig, context: &Context) -> Result<Self> {
        let disk = context.disk().clone();
        let slots = config.slots(disk.limits().store_requests_max);
        let pool = || {
            BufPool::new(&PoolConfig {
                bytes_max: slots * config.block_bytes.next_power_of_two(),
                ..PoolConfig::default()
            })
        };
        let (fill_pool, part_pool) = (pool()?, pool()?);
        let room = Room::open(&disk, PathBuf::from(&config.root), config.bytes_max).await?;
        let table = Table::default();
        room.take_stock(&table).await?;
        let mut location = origin.identity();
        if origin.location().scheme() == Scheme::Mem {
            // Memory ends with its process, and the next one gives out the same versions again for other bytes.
            location = format!("{location}#{:016x}", Seed::fresh().0);
        }
        Ok(Self {
            location,
            origin,
            room,
            table,
            known: Known::default(),
            fill_pool,
            part_pool,
            hits: Semaphore::new(hits_in_flight(disk.limits(), config.block_bytes)),
            background: Arc::new(Semaphore::new((slots / 2).max(1) as usize)),
            wholes: Arc::new(Semaphore::new(WHOLES_MAX)),
            slots,
            patience: Duration::from_millis(disk.limits().stall_ms_max),
            clock: Arc::clone(context.clock()),
            disk,
            config,
            tasks: Tasks::default(),
            counts: Counts::default(),
            trouble: Mutex::default(),
            looked: Mutex::default(),
            closing: AtomicBool::new(false),
        })
    }

    /// Nanoseconds since 1970.
    pub(super) fn now_ns(&self) -> i64 {
        self.clock.unix().as_nanos() as i64
    }

    /// Now and then, look whether other processes have removed entries, and close those.
    pub(super) async fn look_around(&self) {
        let now = self.clock.now();
        {
            let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
            if looked.is_some_and(|last| now.saturating_sub(last) < LOOK_PERIOD) {
                return;
            }
            *looked = Some(now);
        }
        self.room.follow(&self.table).await;
    }

    /// Why the last block could not be kept, if so.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set_trouble(&self, trouble: Option<String>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// The cache is gone: background work may stop.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }
}

/// Tasks under way.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    running: AtomicUsize,
    idle: Notify,
}

impl Tasks {
    pub(super) fn start(&self) {
        self.running.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn end(&self) {
        if self.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.idle.notify_waiters();
        }
    }

    /// Wait until none is under way.
    pub(super) async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            idle.as_mut().enable();
            if self.running.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// What a cache has done so far, in blocks.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) corrupt: AtomicU64,
}

impl Counts {
    pub(super) fn hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(metric::CACHE_HITS_TOTAL).increment(1);
    }

    pub(super) fn miss(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(metric::CACHE_MISSES_TOTAL).increment(1);
    }

    pub(super) fn corrupt(&self) {
        self.corrupt.fetch_add(1, Ordering::Relaxed);
        metrics::counter!(metric::CACHE_CORRUPT_TOTAL).increment(1);
    }
}
