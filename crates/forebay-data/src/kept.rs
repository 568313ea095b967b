//! What was read of shards (tables, footers), kept within a bound of memory; what was used longest ago goes first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

/// A value, or the reading of one that others can wait for.
pub(crate) type Cell<T> = Arc<OnceCell<Arc<T>>>;

/// Values by the number of their shard.
#[derive(Debug)]
pub(crate) struct Kept<T: ?Sized> {
    state: Mutex<State<T>>,
    bytes_max: u64,
}

#[derive(Debug)]
struct State<T: ?Sized> {
    slots: HashMap<usize, Slot<T>>,
    /// Counts uses, to tell which was first.
    clock: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Slot<T: ?Sized> {
    cell: Cell<T>,
    /// 0 while the value is being read.
    bytes: u64,
    used: u64,
}

impl<T: ?Sized> Kept<T> {
    /// Nothing yet, and never more than that many bytes.
    pub(crate) fn within(bytes_max: u64) -> Self {
        let state = State {
            slots: HashMap::new(),
            clock: 0,
            bytes: 0,
        };
        Self {
            state: Mutex::new(state),
            bytes_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a shard's value; several who ask at once share one reading.
    pub(crate) fn cell(&self, shard: usize) -> Cell<T> {
        let mut state = self.lock();
        state.clock += 1;
        let used = state.clock;
        let slot = state.slots.entry(shard).or_insert_with(|| Slot {
            cell: Cell::default(),
            bytes: 0,
            used,
        });
        slot.used = used;
        Arc::clone(&slot.cell)
    }

    /// A value that takes so many bytes was handed out: count it, and let others go when there are too many.
    pub(crate) fn used(&self, shard: usize, bytes: u64) {
        let bytes = bytes.max(1);
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(&shard).filter(|slot| slot.bytes == 0) else {
            return;
        };
        slot.bytes = bytes;
        state.bytes += bytes;
        while state.bytes > self.bytes_max {
            let others = state
                .slots
                .iter()
                .filter(|(other, slot)| **other != shard && slot.bytes > 0);
            let Some(oldest) = others.min_by_key(|(_, slot)| slot.used).map(|(other, _)| *other) else {
                break;
            };
            if let Some(slot) = state.slots.remove(&oldest) {
                state.bytes -= slot.bytes;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.lock().bytes
    }
}
