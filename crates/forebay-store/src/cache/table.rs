//! Entries this process knows of: which exist, when they were used, and the few that are open.
//!
//! What exists is learnt by counting the directory and from use; other processes change it all the time, so it is a hint and never
//! decides what is read. Open entries are kept for the next read, the least recently used closed first. When the generation in the
//! marker has changed, somebody removed entries: those among the open ones are closed.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::Result;
use forebay_io::Disk;
use tokio::sync::OnceCell;

use super::entry::Entry;
use super::format::{Identity, Name};
use super::room::Room;
use super::scan::Row;

/// Entries kept open: two descriptors each, well below the usual limit of 1024. An idle process holds the space of at most this many
/// removed entries until its next read.
const OPEN_ENTRIES_MAX: usize = 128;

/// Known and open entries.
#[derive(Debug, Default)]
pub(super) struct Table {
    known: Mutex<BTreeMap<Name, i64>>,
    open: Mutex<HashMap<Name, Slot>>,
    tick: AtomicU64,
    generation: AtomicU64,
}

#[derive(Debug)]
struct Slot {
    cell: Arc<OnceCell<Arc<Entry>>>,
    tick: u64,
}

impl Slot {
    /// Nobody opens it and nobody uses it.
    fn is_idle(&self) -> bool {
        Arc::strong_count(&self.cell) == 1
            && self.cell.get().is_none_or(|entry| Arc::strong_count(entry) == 1)
    }
}

impl Table {
    /// The open entry of `identity`, opened by one task for all who ask.
    pub(super) async fn get(&self, disk: &Disk, room: &Room, identity: &Identity) -> Result<Arc<Entry>> {
        let name = identity.name();
        let cell = self.slot(name);
        let open = || async {
            Entry::open(disk, room, self, identity.clone())
                .await
                .map(Arc::new)
        };
        let entry = Arc::clone(cell.get_or_try_init(open).await?);
        if entry.identity == *identity && !entry.is_dead() {
            return Ok(entry);
        }
        // Another object of the same name, or an entry removed just now: the newcomer takes its place.
        self.forget(&name);
        let cell = self.slot(name);
        cell.get_or_try_init(open).await.map(Arc::clone)
    }

    fn slot(&self, name: Name) -> Arc<OnceCell<Arc<Entry>>> {
        let tick = self.tick.fetch_add(1, Ordering::Relaxed);
        let mut open = lock(&self.open);
        if open.len() >= OPEN_ENTRIES_MAX && !open.contains_key(&name) {
            let idle = open.iter().filter(|(_, slot)| slot.is_idle());
            if let Some(oldest) = idle.min_by_key(|(_, slot)| slot.tick).map(|(name, _)| *name) {
                open.remove(&oldest);
            }
        }
        let slot = open.entry(name).or_insert_with(|| Slot {
            cell: Arc::default(),
            tick,
        });
        slot.tick = tick;
        Arc::clone(&slot.cell)
    }

    /// An entry was removed from the directory.
    pub(super) fn forget(&self, name: &Name) {
        lock(&self.known).remove(name);
        let slot = lock(&self.open).remove(name);
        if let Some(entry) = slot.as_ref().and_then(|slot| slot.cell.get()) {
            entry.set_dead();
        }
    }

    /// Take what a count of the directory found as what exists.
    pub(super) fn learn(&self, rows: &BTreeMap<Name, Row>) {
        let mut known = lock(&self.known);
        let used = |name: &Name, row: &Row| row.used_ns.max(known.get(name).copied().unwrap_or(0));
        let learnt = rows.iter().map(|(name, row)| (*name, used(name, row))).collect();
        *known = learnt;
    }

    /// An entry is used now.
    pub(super) fn use_now(&self, name: Name, now_ns: i64) {
        lock(&self.known).insert(name, now_ns);
    }

    /// When this process last used an entry, or learnt that somebody did; 0 for never.
    pub(super) fn used_ns(&self, name: &Name) -> i64 {
        lock(&self.known).get(name).copied().unwrap_or(0)
    }

    /// Known entries between two names.
    pub(super) fn between(&self, (first, last): (Name, Name)) -> Vec<Name> {
        lock(&self.known)
            .range(first..=last)
            .map(|(name, _)| *name)
            .collect()
    }

    /// Entries being filled by this process.
    pub(super) fn busy(&self) -> Vec<Name> {
        self.entries()
            .iter()
            .filter(|entry| !entry.flights().is_empty())
            .map(|entry| entry.name)
            .collect()
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        lock(&self.open)
            .values()
            .filter_map(|slot| slot.cell.get().cloned())
            .collect()
    }

    /// The generation that what is open is known to belong to.
    pub(super) fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// The generation last seen.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// When somebody has removed entries since, close those that are gone.
    pub(super) async fn follow(&self, disk: &Disk, root: &Path, generation: u64) {
        if self.generation.swap(generation, Ordering::SeqCst) == generation {
            return;
        }
        for entry in self.entries() {
            if !entry.is_current(disk, root).await {
                self.forget(&entry.name);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Hints and handles stay usable whatever happened while they were changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
