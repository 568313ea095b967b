//! The cap, held by all processes together: the marker file, its usage slot and the lock on it.
//!
//! A block is reserved before it is fetched: under the marker's lock, usage is read, raised and written back. Where it would pass the cap, the
//! directory is counted anew and the entries used longest ago are removed first. Counting anew also forgets what killed processes had
//! reserved. What *this* process has reserved and not yet written is added to every count; what other processes have is not known to it,
//! so the cap can be passed by the blocks that other processes have in flight at that moment, and by no more.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{ByteSize, Error, ErrorKind, Result, Span, metric};
use forebay_io::{Disk, File, NameOp, RangeLock};
use tokio::sync::{Mutex, MutexGuard};

use super::entry::Entry;
use super::files;
use super::format::{self, MARKER_BYTES, MARKER_NAME, Marker, Name, SLOT_BYTES, Usage};
use super::scan::{self, Row};
use super::table::Table;

/// Eviction goes this share of the cap below it, so that the directory is not counted again for every block.
const HEADROOM_DIVISOR: u64 = 32;

/// Room below a root, shared with other processes.
#[derive(Debug)]
pub(super) struct Room {
    disk: Disk,
    root: PathBuf,
    marker: Arc<File>,
    bytes_max: u64,
    patience: Duration,
    /// Locks of one open file do not exclude its own threads; this does.
    turn: Mutex<()>,
    /// Reserved by this process and not yet written.
    in_flight: Arc<AtomicU64>,
    /// Usage when it was last seen, for people to look at.
    seen_bytes: AtomicU64,
}

/// The right to write some bytes, held until they are written or given up. Those given up stay part of usage until the directory is next
/// counted: only a count tells how much of them had reached the disk.
#[derive(Debug)]
pub(super) struct Reservation {
    in_flight: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

/// The marker's lock, against threads and processes.
pub(super) struct Held<'a> {
    _lock: RangeLock,
    _turn: MutexGuard<'a, ()>,
}

impl Room {
    /// Open the marker below `root`, making both where they are missing. `Unsupported` when a later version has made them.
    pub(super) async fn open(disk: &Disk, root: PathBuf, bytes_max: u64) -> Result<Self> {
        disk.name(NameOp::CreateDirs { path: root.clone() }).await?;
        let marker = files::open_small(disk, root.join(MARKER_NAME)).await?;
        let room = Self {
            disk: disk.clone(),
            root,
            marker,
            bytes_max,
            patience: Duration::from_millis(disk.limits().stall_ms_max),
            turn: Mutex::default(),
            in_flight: Arc::default(),
            seen_bytes: AtomicU64::new(0),
        };
        let held = room.lock().await?;
        room.check_marker().await?;
        drop(held);
        Ok(room)
    }

    async fn check_marker(&self) -> Result<()> {
        let fixed = Span::first(MARKER_BYTES as u64);
        let found = match files::read_bytes(&self.disk, &self.marker, fixed).await {
            Ok(bytes) => format::parse_marker(&bytes),
            Err(error) if error.kind() == ErrorKind::Precondition => Marker::Broken,
            Err(error) => return Err(error),
        };
        match found {
            Marker::Ours => Ok(()),
            Marker::Broken => {
                files::write_bytes(&self.disk, &self.marker, 0, &format::marker()).await?;
                self.write(Usage::default()).await
            }
            Marker::Foreign(format) => {
                let message = format!(
                    "the directory is a cache of format {format}, and this version of Forebay knows format 1"
                );
                Err(Error::new(ErrorKind::Unsupported, "open cache", message)
                    .at(self.root.display())
                    .with_hint("use another directory, or remove this one"))
            }
        }
    }

    /// Take the marker's lock; `Timeout` when others hold it for longer than a store may stall.
    pub(super) async fn lock(&self) -> Result<Held<'_>> {
        let turn = self.turn.lock().await;
        match files::wait_lock(&self.marker, 0, self.patience).await? {
            Some(lock) => Ok(Held {
                _lock: lock,
                _turn: turn,
            }),
            None => Err(Error::new(
                ErrorKind::Timeout,
                "lock",
                "another process holds the cache's lock",
            )
            .at(self.marker.path().display())),
        }
    }

    /// Usage as all processes know it; `None` when the slot is not valid. Needs no lock.
    async fn usage(&self) -> Option<Usage> {
        let slot = Span::at(MARKER_BYTES as u64, SLOT_BYTES as u64).ok()?;
        let bytes = files::read_bytes(&self.disk, &self.marker, slot).await.ok()?;
        Usage::parse(&bytes)
    }

    /// Usage, with what others have removed closed in `table`.
    pub(super) async fn follow(&self, table: &Table) -> Option<Usage> {
        let usage = self.usage().await?;
        table.follow(&self.disk, &self.root, usage.generation).await;
        Some(usage)
    }

    async fn write(&self, usage: Usage) -> Result<()> {
        self.seen_bytes.store(usage.bytes, Ordering::Relaxed);
        metrics::gauge!(metric::CACHE_BYTES).set(usage.bytes as f64);
        files::write_bytes(&self.disk, &self.marker, MARKER_BYTES as u64, &usage.encode()).await
    }

    /// The directory.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Usage when it was last seen.
    pub(super) fn seen_bytes(&self) -> u64 {
        self.seen_bytes.load(Ordering::Relaxed)
    }

    /// Count the directory, remove leftovers, and tell `table` what there is.
    pub(super) async fn take_stock(&self, table: &Table) -> Result<()> {
        let _held = self.lock().await?;
        let generation = self.usage().await.unwrap_or_default().generation;
        let mut rows = scan::scan(&self.disk, &self.root).await?;
        let removed = scan::sweep(&self.disk, &self.root, &mut rows).await;
        let bytes = rows.values().map(|row| row.bytes).sum();
        table.learn(&rows);
        let generation = generation.wrapping_add(u64::from(removed));
        table.set_generation(generation);
        self.write(Usage { bytes, generation }).await
    }

    /// Reserve `bytes` for `entry`, removing others where needed. `OutOfSpace` says why there is no room.
    pub(super) async fn reserve(&self, table: &Table, entry: &Entry, bytes: u64) -> Result<Reservation> {
        let held = self.lock().await?;
        self.reserve_with(&held, table, Some(entry), bytes).await
    }

    /// The same with the lock held already; without an entry, for one that is about to be made.
    pub(super) async fn reserve_with(
        &self,
        _held: &Held<'_>,
        table: &Table,
        entry: Option<&Entry>,
        bytes: u64,
    ) -> Result<Reservation> {
        if bytes > self.bytes_max {
            return Err(self.no_room("a block is larger than the whole cache"));
        }
        let usage = self.follow(table).await;
        if entry.is_some_and(Entry::is_dead) {
            return Err(self.no_room("the object was removed from it meanwhile"));
        }
        if let Some(usage) = usage {
            let raised = usage.bytes.saturating_add(bytes);
            if raised <= self.bytes_max {
                let usage = Usage {
                    bytes: raised,
                    ..usage
                };
                self.write(usage).await?;
                return Ok(self.grant(bytes));
            }
        }
        let generation = usage.map_or_else(|| table.generation(), |usage| usage.generation);
        self.evict(table, entry, bytes, generation).await?;
        Ok(self.grant(bytes))
    }

    /// Remove entries until `bytes` more would fit even so: the device is fuller than the cap allows for.
    pub(super) async fn shrink(&self, table: &Table, name: Name, bytes: u64) -> Result<()> {
        let _held = self.lock().await?;
        let generation = self.follow(table).await.unwrap_or_default().generation;
        let in_flight = self.in_flight();
        let mut rows = scan::scan(&self.disk, &self.root).await?;
        let own = rows.remove(&name).map_or(0, |row| row.bytes);
        let stored: u64 = rows.values().map(|row| row.bytes).sum();
        if stored == 0 {
            return Err(self.no_room("the device is full, and there is nothing left to remove"));
        }
        let goal = stored.saturating_sub(bytes.max(self.bytes_max / HEADROOM_DIVISOR));
        let kept = self.remove_oldest(table, rows, &[], goal, goal).await;
        let bytes = kept.saturating_add(own).saturating_add(in_flight);
        self.next_generation(table, bytes, generation).await
    }

    /// Remove these entries.
    pub(super) async fn remove_all(&self, table: &Table, names: &[Name]) -> Result<()> {
        let _held = self.lock().await?;
        let usage = self.follow(table).await.unwrap_or_default();
        for name in names {
            scan::remove(&self.disk, &self.root, *name).await?;
            table.forget(name);
        }
        // What they took is found out when the directory is next counted.
        self.next_generation(table, usage.bytes, usage.generation).await
    }

    /// Count the directory and bring it below the cap with `bytes` more. The lock is held.
    async fn evict(&self, table: &Table, entry: Option<&Entry>, bytes: u64, generation: u64) -> Result<()> {
        let in_flight = self.in_flight();
        let rows = scan::scan(&self.disk, &self.root).await?;
        let stored: u64 = rows.values().map(|row| row.bytes).sum();
        let most = self.bytes_max.saturating_sub(in_flight.saturating_add(bytes));
        let taken = |stored: u64| stored.saturating_add(in_flight);
        if stored <= most {
            let usage = Usage {
                bytes: taken(stored).saturating_add(bytes),
                generation,
            };
            return self.write(usage).await;
        }
        let goal = most.min(self.bytes_max - self.bytes_max / HEADROOM_DIVISOR);
        let mut spared = table.busy();
        spared.extend(entry.map(|entry| entry.name));
        let kept = self.remove_oldest(table, rows, &spared, goal, most).await;
        let fits = kept <= most && !entry.is_some_and(Entry::is_dead);
        let granted = if fits { bytes } else { 0 };
        self.next_generation(table, taken(kept).saturating_add(granted), generation)
            .await?;
        if fits {
            Ok(())
        } else {
            Err(self.no_room("what is being filled right now takes all of it"))
        }
    }

    /// Remove entries, used longest ago first, until at most `goal` bytes are kept; `spared` ones only while more than `most` are. Gives the
    /// bytes kept.
    async fn remove_oldest(
        &self,
        table: &Table,
        rows: BTreeMap<Name, Row>,
        spared: &[Name],
        goal: u64,
        most: u64,
    ) -> u64 {
        let mut kept: u64 = rows.values().map(|row| row.bytes).sum();
        let mut order: Vec<(bool, Reverse<i64>, Name, u64)> = rows
            .into_iter()
            .map(|(name, row)| {
                let used = row.used_ns.max(table.used_ns(&name));
                (!spared.contains(&name), Reverse(used), name, row.bytes)
            })
            .collect();
        // Best victims last: not spared, then longest unused.
        order.sort_unstable();
        while let Some((is_free, _, name, bytes)) = order.pop() {
            if kept <= if is_free { goal } else { most } {
                break;
            }
            match scan::remove(&self.disk, &self.root, name).await {
                Ok(()) => {
                    table.forget(&name);
                    kept = kept.saturating_sub(bytes);
                }
                Err(error) => tracing::warn!(%error, "cannot remove an entry of the cache"),
            }
        }
        kept
    }

    async fn next_generation(&self, table: &Table, bytes: u64, generation: u64) -> Result<()> {
        let generation = generation.wrapping_add(1);
        table.set_generation(generation);
        self.write(Usage { bytes, generation }).await
    }

    /// Bytes reserved by this process and not yet written. Taken *before* the directory is counted: a block that is written meanwhile is then
    /// counted twice, which costs a little room; taken after, it could be counted not at all, and the cap be passed.
    fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::SeqCst)
    }

    fn grant(&self, bytes: u64) -> Reservation {
        self.in_flight.fetch_add(bytes, Ordering::SeqCst);
        Reservation {
            in_flight: Arc::clone(&self.in_flight),
            bytes,
        }
    }

    fn no_room(&self, why: &str) -> Error {
        let message = format!("no room in the cache of {}: {why}", ByteSize(self.bytes_max));
        Error::new(ErrorKind::OutOfSpace, "reserve", message).at(self.root.display())
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Limits;
    use forebay_io::DiskConfig;

    use super::super::format::Part;
    use super::*;

    #[tokio::test]
    async fn the_entry_that_is_spared_still_counts() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(DiskConfig {
            limits: Limits::default(),
            ..DiskConfig::default()
        })
        .unwrap();
        let room = Room::open(&disk, dir.path().to_owned(), 1 << 20).await.unwrap();
        let table = Table::default();
        let name_of = |key: &str| Name::of("s3://b", key, None, 4096);
        for key in ["mine", "other"] {
            for part in [Part::Index, Part::Data] {
                let path = name_of(key).path(dir.path(), part);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, [1; 8192]).unwrap();
            }
        }
        let reserved = room.grant(4096);
        room.shrink(&table, name_of("mine"), 4096).await.unwrap();
        let rows = scan::scan(&disk, dir.path()).await.unwrap();
        assert_eq!(rows.keys().collect::<Vec<_>>(), [&name_of("mine")]);
        let stored: u64 = rows.values().map(|row| row.bytes).sum();
        assert!(stored > 0);
        assert_eq!(room.usage().await.unwrap().bytes, stored + 4096);
        drop(reserved);
    }
}
