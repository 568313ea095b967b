//! One open entry: its two files, its records, and the fills that are under way in this process.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{DataPath, Error, ErrorKind, PathPolicy, Result, Span};
use forebay_io::{Access, Direct, Disk, File, NameOp, OpenHow, Purpose, RangeLock};

use super::files;
use super::fill::Waiter;
use super::format::{self, Identity, Name, Part, Present, RECORD_BYTES, Seal};
use super::records::Records;
use super::room::Room;
use super::table::Table;

/// How often the time of last use is written to the file system, for other processes and the next run to see.
const TOUCH_PERIOD_NS: i64 = 60_000_000_000;

/// Space is given out in units of this by every file system met so far.
const STORED_STEP: u64 = 4096;

/// An entry with its files open. Removing it from the directory does not disturb those who have it.
pub(super) struct Entry {
    pub(super) identity: Identity,
    pub(super) name: Name,
    pub(super) data: Arc<File>,
    index: Arc<File>,
    seal: Seal,
    header_bytes: u64,
    records: Records,
    /// Device and inode behind the two names when they were opened.
    stamp: [(u64, u64); 2],
    /// Removed from the directory: nothing more is to be filled in.
    dead: AtomicBool,
    /// A task is filling all of it.
    pub(super) whole: AtomicBool,
    touched_ns: AtomicI64,
    /// Fills under way, with those who wait for them.
    flights: Mutex<HashMap<u64, Vec<Waiter>>>,
    /// Blocks whose lock was waited for in vain: not waited for again.
    stalled: Mutex<HashSet<u64>>,
}

impl Entry {
    /// Open the entry of `identity`, making or mending its files where needed.
    pub(super) async fn open(disk: &Disk, room: &Room, table: &Table, identity: Identity) -> Result<Self> {
        let Some(header) = identity.header() else {
            let message = "location, key and version are too long for a header";
            return Err(Error::new(ErrorKind::LimitExceeded, "open", message).at(&identity.key));
        };
        let name = identity.name();
        let opening = Opening {
            disk,
            identity: &identity,
            header: &header,
            index_bytes: header.len() as u64 + RECORD_BYTES * identity.blocks(),
            paths: [
                name.path(room.root(), Part::Index),
                name.path(room.root(), Part::Data),
            ],
        };
        let opened = match opening.as_it_is().await {
            Some(opened) => opened,
            None => {
                let held = room.lock().await?;
                let bytes = opening.index_bytes.next_multiple_of(STORED_STEP);
                let _reserved = room.reserve_with(&held, table, None, bytes).await?;
                opening.make().await?
            }
        };
        let entry = Self {
            seal: identity.seal(),
            name,
            header_bytes: header.len() as u64,
            identity,
            records: Records::default(),
            data: opened.data,
            index: opened.index,
            stamp: opened.stamp,
            dead: AtomicBool::new(false),
            whole: AtomicBool::new(false),
            touched_ns: AtomicI64::new(0),
            flights: Mutex::default(),
            stalled: Mutex::default(),
        };
        entry.learn(0, &opened.records);
        Ok(entry)
    }

    /// The path bytes take out of it.
    pub(super) fn path(&self, disk: &Disk) -> DataPath {
        disk.path_of(&self.data)
    }

    /// What is known of the blocks from `first` to `last` that are present. A record that cannot be read is one that is not there.
    pub(super) async fn records(&self, disk: &Disk, first: u64, last: u64) -> Vec<Option<Present>> {
        if let Some(known) = self.records.get(first, last) {
            return known;
        }
        let count = last - first + 1;
        let bytes = match Span::at(self.header_bytes + first * RECORD_BYTES, count * RECORD_BYTES) {
            Ok(span) => files::read_bytes(disk, &self.index, span).await,
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => self.learn(first, &bytes),
            Err(_) => vec![None; count as usize],
        }
    }

    /// Look at records as they are in the index, `first` and those behind it, and remember those of blocks that are present.
    fn learn(&self, first: u64, bytes: &[u8]) -> Vec<Option<Present>> {
        let record = |(block, bytes): (u64, &[u8])| {
            let len = self.identity.block_span(block).len() as u32;
            let present = format::parse_record(&self.seal, block, len, bytes)?;
            self.records.remember(block, present);
            Some(present)
        };
        (first..)
            .zip(bytes.chunks_exact(RECORD_BYTES as usize))
            .map(record)
            .collect()
    }

    /// The bytes of block `block` were not those of its record: the next look goes to the index.
    pub(super) fn disbelieve(&self, block: u64) {
        self.records.forget(block);
    }

    /// Say that block `block` is present. Its data must have been written.
    pub(super) async fn write_record(&self, disk: &Disk, block: u64, present: Present) -> Result<()> {
        let len = self.identity.block_span(block).len() as u32;
        let record = format::record(&self.seal, block, len, present);
        let at = self.header_bytes + block * RECORD_BYTES;
        files::write_bytes(disk, &self.index, at, &record).await?;
        self.records.remember(block, present);
        Ok(())
    }

    /// The right to fill block `block`, against other processes; `None` when another one did not let go of it in time. A process that was stopped,
    /// or a forked child that inherited the file, can hold it for as long as it lives: the same block is not waited for twice.
    pub(super) async fn lock_block(&self, block: u64, patience: Duration) -> Result<Option<RangeLock>> {
        let patience = if lock(&self.stalled).contains(&block) {
            Duration::ZERO
        } else {
            patience
        };
        let held = files::wait_lock(&self.index, block, patience).await?;
        let mut stalled = lock(&self.stalled);
        match held {
            Some(_) => stalled.remove(&block),
            None => stalled.insert(block),
        };
        Ok(held)
    }

    /// Bytes block `block` takes on the device.
    pub(super) fn stored_bytes(&self, block: u64) -> u64 {
        let block = self.identity.block_span(block);
        block.len().next_multiple_of(STORED_STEP)
    }

    /// Fills under way.
    pub(super) fn flights(&self) -> MutexGuard<'_, HashMap<u64, Vec<Waiter>>> {
        lock(&self.flights)
    }

    /// Removed from the directory?
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// It was removed from the directory.
    pub(super) fn set_dead(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Do its names still lead to the files that are open?
    pub(super) async fn is_current(&self, disk: &Disk, root: &Path) -> bool {
        for (part, stamp) in [Part::Index, Part::Data].into_iter().zip(self.stamp) {
            match disk.stat(&self.name.path(root, part)).await {
                Ok(stat) if stat.identity == stamp => {}
                _ => return false,
            }
        }
        true
    }

    /// Write the time of last use to the file system, now and then.
    pub(super) async fn touch(&self, disk: &Disk, now_ns: i64) {
        let last = self.touched_ns.load(Ordering::Relaxed);
        if now_ns.saturating_sub(last) < TOUCH_PERIOD_NS && last != 0 {
            return;
        }
        self.touched_ns.store(now_ns, Ordering::Relaxed);
        let path = self.data.path().to_owned();
        // Recency is a hint; a file that is gone or read-only needs none.
        drop(disk.name(NameOp::Touch { path }).await);
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// How the files of an entry are opened.
struct Opening<'a> {
    disk: &'a Disk,
    identity: &'a Identity,
    header: &'a [u8],
    index_bytes: u64,
    paths: [PathBuf; 2],
}

struct Opened {
    index: Arc<File>,
    data: Arc<File>,
    stamp: [(u64, u64); 2],
    /// The first records, as they are in the index.
    records: Vec<u8>,
}

impl Opening<'_> {
    /// The files, when they are there and in order. Needs no lock.
    async fn as_it_is(&self) -> Option<Opened> {
        let [index, data] = &self.paths;
        let stats = [
            self.disk.stat(index).await.ok()?,
            self.disk.stat(data).await.ok()?,
        ];
        if stats[0].size < self.index_bytes || stats[1].size != self.identity.size {
            return None;
        }
        let index = files::open_small(self.disk, index.clone()).await.ok()?;
        Some(Opened {
            records: self.records_behind_header(&index).await?,
            index,
            data: self.open_data().await.ok()?,
            // Of before they were opened: when they are not the same files any more, that is found out later, and harms nothing.
            stamp: stats.map(|stat| stat.identity),
        })
    }

    /// The files, made or mended. The marker's lock is held, so that nobody takes them for leftovers meanwhile.
    async fn make(&self) -> Result<Opened> {
        let disk = self.disk;
        if let Some(dir) = self.paths[0].parent() {
            disk.name(NameOp::CreateDirs { path: dir.to_owned() }).await?;
        }
        let index = files::open_small(disk, self.paths[0].clone()).await?;
        let data = self.open_data().await?;
        disk.set_len(&data, self.identity.size).await?;
        disk.set_len(&index, self.index_bytes).await?;
        let records = match self.records_behind_header(&index).await {
            Some(records) => records,
            None => {
                files::write_bytes(disk, &index, 0, self.header).await?;
                Vec::new()
            }
        };
        let stamp = [
            disk.stat(&self.paths[0]).await?.identity,
            disk.stat(&self.paths[1]).await?.identity,
        ];
        Ok(Opened {
            index,
            data,
            stamp,
            records,
        })
    }

    async fn open_data(&self) -> Result<Arc<File>> {
        let how = OpenHow {
            purpose: Purpose::Update,
            direct: Direct::Auto,
            size_hint: Some(self.identity.size),
            ..OpenHow::READ
        };
        let open = |how| self.disk.open_file(&self.paths[1], how, PathPolicy::Fastest);
        let file = open(how).await?;
        match *file.access() {
            // A device that wants more alignment than our blocks have.
            Access::Direct { align } if !self.identity.block_bytes.is_multiple_of(align.into()) => {
                open(how.with_direct(Direct::Never)).await
            }
            _ => Ok(file),
        }
    }

    /// The first records, when the header is there before them.
    async fn records_behind_header(&self, index: &Arc<File>) -> Option<Vec<u8>> {
        let header_bytes = self.header.len() as u64;
        let span = Span::first(header_bytes + Records::opening_bytes(self.identity.blocks()));
        let found = files::read_bytes(self.disk, index, span).await.ok()?;
        let (header, records) = found.split_at(self.header.len());
        (header == self.header).then(|| records.to_vec())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Maps of fills stay usable whatever happened while one was changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
