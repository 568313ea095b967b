//! How the memory of a run is shared out, and what keeps reading within its share.
//!
//! ```text
//! memory = windows, in use and read ahead  (shards as input: half of it with a shuffle, else an eighth)
//!        + chunks, read or taken apart ahead of the cut, or on their way to a builder
//!        + shards being built, with samples that wait for them: as many at once as fit
//! ```
//!
//! A shard is built while its samples come, and takes no more than some parts where it can be stored in parts. Those of the next one only come when all of its own are there: where there
//! are cores to build several at once, the samples of a whole shard may wait for each of them.
//!
//! Sizes are those in memory, after decompression. One window, chunk or shard is always possible, so what is larger than its share is there alone.

use std::sync::Arc;

use forebay_core::{ByteSize, Error, ErrorKind, Result};
use forebay_io::{AlignedBuf, BufPool, Pages, PoolConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{PackFormat, PackSpec};

/// What a shard being built holds, in times its size: samples that wait for it, its bytes, and those once more where they are compressed or put together at its end.
const SHARD_COPIES: u64 = 3;

/// The same where parts are stored while it grows.
const GROWING_COPIES: u64 = 2;

/// Building a shard keeps one thread busy, and reading for it another one.
const THREADS_PER_SHARD: usize = 2;

/// Most shards built at once.
const SHARDS_AT_ONCE_MAX: usize = 64;

/// Part of the memory that one window of a shuffled order takes: two are there at a time, beside the shards being built.
const WINDOW_SHARE: u64 = 4;

/// Part of the memory for reading ahead where nothing is shuffled, ...
const AHEAD_SHARE: u64 = 8;

/// ... and the most that makes reading faster.
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// Part of the memory for what was taken apart ahead of the cut, and the most that is of use.
const CHUNKS_SHARE: u64 = 32;
const CHUNKS_BYTES_MAX: u64 = 32 << 20;

/// Memory that is used again instead of asking for it anew; the rest of what is held is asked for.
const POOL_BYTES_MAX: u64 = 512 << 20;

/// Room is counted in pages.
const ROOM_UNIT_BYTES: u64 = 4 << 10;

/// What is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Files, straight into chunks.
    Files,
    /// Blocks of shards, in order.
    Blocks,
    /// Blocks of shards, in windows that are shuffled.
    Windows,
}

/// Who gets how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    /// Shards built at once.
    pub(super) shards_at_once: usize,
    /// For blocks of shards that were read.
    pub(super) windows_bytes: u64,
    /// For chunks ahead of the cut.
    pub(super) chunks_bytes: u64,
    /// For chunks on their way to the builders of their shards, besides.
    pub(super) waiting_bytes: u64,
}

impl Shares {
    /// Share out the memory, or say how much it would take.
    pub(super) fn new(spec: &PackSpec, reads: Reads) -> Result<Self> {
        let shares = Self::of(spec.memory_bytes_max, spec, reads);
        if shares.shards_at_once > 0 {
            return Ok(shares);
        }
        let (memory, shard) = (spec.memory_bytes_max, spec.shard_bytes);
        let ahead = shares.windows_bytes + shares.chunks_bytes;
        let message = format!(
            "building shards of {} takes more than {} of memory: {} times their size, and {} for what is read ahead",
            ByteSize(shard),
            ByteSize(memory),
            copies(spec) + 1,
            ByteSize(ahead)
        );
        let smaller = memory.saturating_sub(ahead) / (copies(spec) + 1);
        // Twice the shards and one more: a shuffle takes half of the memory.
        let mut enough = (1..=2 * (copies(spec) + 2)).map(|count| {
            shard
                .saturating_mul(count)
                .saturating_add(AHEAD_BYTES_MAX + CHUNKS_BYTES_MAX)
        });
        let enough = enough.find(|memory| Self::of(*memory, spec, reads).shards_at_once > 0);
        let hint = match enough {
            Some(enough) => format!(
                "give it --memory {} or more, or --shard-size {} or less",
                ByteSize(enough),
                ByteSize(smaller)
            ),
            None => format!("give it --shard-size {} or less", ByteSize(smaller)),
        };
        Err(Error::new(ErrorKind::InvalidInput, "pack", message)
            .with_field("memory")
            .with_hint(hint))
    }

    fn of(memory: u64, spec: &PackSpec, reads: Reads) -> Self {
        let ahead = (memory / AHEAD_SHARE).min(AHEAD_BYTES_MAX);
        let apart = (memory / CHUNKS_SHARE).min(CHUNKS_BYTES_MAX);
        let (windows_bytes, chunks_bytes) = match reads {
            Reads::Files => (0, ahead),
            Reads::Blocks => (ahead, apart),
            Reads::Windows => (2 * window_bytes(memory), apart),
        };
        let building = memory.saturating_sub(windows_bytes + chunks_bytes + spec.shard_bytes.min(memory));
        let room = building / spec.shard_bytes.saturating_mul(copies(spec)).max(1);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let shards_at_once = spec.threads.min(room).min(SHARDS_AT_ONCE_MAX);
        let waiting = shards_at_once.min(spec.threads / THREADS_PER_SHARD);
        Self {
            shards_at_once,
            windows_bytes,
            chunks_bytes,
            waiting_bytes: spec.shard_bytes.saturating_mul(waiting.saturating_sub(1) as u64),
        }
    }
}

/// What a shard being built holds, in times its size.
fn copies(spec: &PackSpec) -> u64 {
    if spec.to == PackFormat::Wds && spec.compression.is_none() {
        GROWING_COPIES
    } else {
        SHARD_COPIES
    }
}

/// Bytes of one window of a shuffled order.
pub(super) fn window_bytes(memory: u64) -> u64 {
    memory / WINDOW_SHARE
}

/// Memory to read into, apart from that of the stores: what is read is held for long, and a store that waited for it would wait for ever.
#[derive(Debug, Clone)]
pub(super) struct Memory(BufPool);

impl Memory {
    pub(super) fn new(spec: &PackSpec) -> Result<Self> {
        let config = PoolConfig {
            bytes_max: spec.memory_bytes_max.min(POOL_BYTES_MAX),
            ..PoolConfig::default()
        };
        BufPool::new(&config).map(Self)
    }

    pub(super) fn pool(&self) -> &BufPool {
        &self.0
    }

    /// Of the pool, or of the machine where that is in use: how much there may be is counted by [`Room`] and by the shards being built.
    pub(super) fn take(&self, len: usize) -> Result<AlignedBuf> {
        match self.0.try_lease(len) {
            Some(buf) => Ok(buf),
            None => AlignedBuf::alloc(len, Pages::default()),
        }
    }
}

/// Counts bytes that are held, up to a limit.
#[derive(Debug, Clone)]
pub(super) struct Room {
    left: Arc<Semaphore>,
    units: u32,
}

/// Bytes that are counted until this is dropped.
pub(super) type Held = OwnedSemaphorePermit;

impl Room {
    pub(super) fn new(bytes: u64) -> Self {
        let units = u32::try_from(bytes / ROOM_UNIT_BYTES).unwrap_or(u32::MAX).max(1);
        let left = Arc::new(Semaphore::new(units as usize));
        Self { left, units }
    }

    /// Wait until so many bytes may be held; all there is for what is larger.
    pub(super) async fn take(&self, bytes: u64) -> Result<Held> {
        let held = Arc::clone(&self.left)
            .acquire_many_owned(self.units_of(bytes))
            .await;
        held.map_err(|_| Error::new(ErrorKind::Internal, "pack", "the memory is gone"))
    }

    /// So many bytes, where there is room for them now.
    pub(super) fn try_take(&self, bytes: u64) -> Option<Held> {
        let held = Arc::clone(&self.left).try_acquire_many_owned(self.units_of(bytes));
        held.ok()
    }

    fn units_of(&self, bytes: u64) -> u32 {
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT_BYTES)).unwrap_or(u32::MAX);
        units.clamp(1, self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(memory: u64, shard: u64, to: PackFormat) -> PackSpec {
        PackSpec {
            memory_bytes_max: memory,
            shard_bytes: shard,
            threads: 100,
            ..PackSpec::new(to)
        }
    }

    #[test]
    fn everything_that_is_held_fits_into_the_memory() {
        for reads in [Reads::Files, Reads::Blocks, Reads::Windows] {
            for (memory, shard) in [
                (4u64 << 30, 256u64 << 20),
                (1 << 30, 20 << 20),
                (64 << 20, 1 << 20),
            ] {
                for (to, copies) in [(PackFormat::Wds, 2), (PackFormat::Mds, 3)] {
                    let shares = Shares::new(&spec(memory, shard, to), reads).unwrap();
                    let at_once = shares.shards_at_once as u64;
                    let shards = shard * (1 + copies * at_once);
                    let held = shares.windows_bytes + shares.chunks_bytes + shards;
                    assert!(held <= memory, "{reads:?} {memory} {shard}: {held}");
                    assert!(held + copies * shard > memory || at_once == SHARDS_AT_ONCE_MAX as u64);
                    assert_eq!(shares.waiting_bytes, shard * (at_once.min(50) - 1));
                }
            }
        }
    }

    #[test]
    fn shards_that_do_not_fit_are_refused_with_what_would() {
        for reads in [Reads::Files, Reads::Blocks, Reads::Windows] {
            for (memory, shard) in [(1u64 << 30, 1u64 << 30), (512 << 20, 256 << 20), (1, 1 << 20)] {
                let error = Shares::new(&spec(memory, shard, PackFormat::Wds), reads).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidInput);
                let hint = error.hint().unwrap().to_owned();
                assert!(hint.contains("--shard-size"), "{hint}");
                let asked = hint.split("--memory ").nth(1).unwrap();
                let asked = asked.split(" or more").next().unwrap();
                let asked: ByteSize = asked.parse().unwrap();
                assert!(
                    Shares::new(&spec(asked.0, shard, PackFormat::Wds), reads).is_ok(),
                    "{hint}"
                );
            }
        }
    }

    #[tokio::test]
    async fn what_is_larger_than_all_room_is_there_alone() {
        let room = Room::new(8 * ROOM_UNIT_BYTES);
        let small = room.take(1).await.unwrap();
        assert!(room.try_take(u64::MAX).is_none());
        drop(small);
        let large = room.take(u64::MAX).await.unwrap();
        assert!(room.try_take(1).is_none());
        drop(large);
        assert!(room.try_take(8 * ROOM_UNIT_BYTES).is_some());
    }
}
