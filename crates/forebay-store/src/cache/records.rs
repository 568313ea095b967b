//! The records of an open entry that this process has seen.
//!
//! A record says which bytes a block has, and an entry is of one version of one object: once seen, it is true for as long as the entry lives,
//! and a hit costs no read of the index. Should it not be true any more, the block does not hold its checksum, and is looked up again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::format::{Present, RECORD_BYTES};

/// Records remembered of an entry, a quarter of a terabyte in blocks of the usual size. When there are more, all are forgotten and read
/// again.
const RECORDS_MAX: usize = 1 << 16;

/// Records read together with the header when an entry is opened: those of most objects.
const OPENING_RECORDS_MAX: u64 = 4096;

/// Records by block.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<HashMap<u64, Present>>);

impl Records {
    /// Bytes behind the header that are worth reading with it.
    pub(super) fn opening_bytes(blocks: u64) -> u64 {
        blocks.min(OPENING_RECORDS_MAX) * RECORD_BYTES
    }

    /// The records of the blocks from `first` to `last`, when all are known.
    pub(super) fn get(&self, first: u64, last: u64) -> Option<Vec<Option<Present>>> {
        let known = self.lock();
        (first..=last)
            .map(|block| known.get(&block).copied().map(Some))
            .collect()
    }

    /// A block is present.
    pub(super) fn remember(&self, block: u64, present: Present) {
        let mut known = self.lock();
        if known.len() >= RECORDS_MAX {
            known.clear();
        }
        known.insert(block, present);
    }

    /// The bytes of a block are not what its record says.
    pub(super) fn forget(&self, block: u64) {
        self.lock().remove(&block);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Present>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
