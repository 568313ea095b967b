//! Tables that were read, kept within a bound of memory; the ones used longest ago go first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OnceCell;

use crate::table::{Keys, Layout, Table};

/// Memory that tables may take: those of some hundred shards with images, and of one with ten million small samples. Whoever holds on to a table longer
/// accounts for it.
const TABLES_BYTES_MAX: u64 = 256 << 20;

/// A table, or the reading of one that others can wait for.
pub(super) type Cell = Arc<OnceCell<Arc<Table>>>;

/// Tables by the number of their shard.
#[derive(Debug)]
pub(super) struct Tables {
    state: Mutex<State>,
    bytes_max: u64,
}

impl Default for Tables {
    fn default() -> Self {
        Self::within(TABLES_BYTES_MAX)
    }
}

#[derive(Debug, Default)]
struct State {
    slots: HashMap<usize, Slot>,
    /// Counts uses, to tell which was first.
    clock: u64,
    bytes: u64,
}

#[derive(Debug)]
struct Slot {
    cell: Cell,
    /// 0 while the table is being read.
    bytes: u64,
    used: u64,
}

impl Tables {
    /// With another bound.
    pub(super) fn within(bytes_max: u64) -> Self {
        let state = Mutex::default();
        Self { state, bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a shard's table; several who ask at once share one reading.
    pub(super) fn cell(&self, shard: usize) -> Cell {
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

    /// A table was handed out: count it, and let others go when there are too many.
    pub(super) fn used(&self, shard: usize, table: &Table) {
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(&shard).filter(|slot| slot.bytes == 0) else {
            return;
        };
        slot.bytes = memory_bytes(table);
        state.bytes += memory_bytes(table);
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
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }
}

/// Memory of a table, counted by what it holds; never 0.
pub(super) fn memory_bytes(table: &Table) -> u64 {
    let fixed = size_of::<Table>() + table.fields.len() * 64;
    let content = match &table.layout {
        Layout::Samples(samples) => {
            let keys = match &samples.keys {
                Keys::Numbered => 0,
                Keys::Named { text, ends } => text.len() + 4 * ends.len(),
            };
            samples.len() * (16 + 8 * samples.columns.len()) + keys
        }
        Layout::Groups(groups) => groups.len() * size_of::<crate::table::Group>(),
    };
    (fixed + content) as u64
}
