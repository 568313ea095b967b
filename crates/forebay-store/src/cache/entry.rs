//! One open entry: its two files, its records, and the fills that are under way in this process.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{DataPath, Error, ErrorKind, PathPolicy, Result, Span};
use forebay_io::{Access, Direct, Disk, File, NameOp, OpenHow, Purpose, RangeLock};

use super::files;
use super::fill::Waiter;
use super::format::{self, HEADER_LOCK, Identity, Name, Part, RECORD_BYTES, Seal};

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
    /// Device and inode behind the two names when they were opened.
    stamp: [(u64, u64); 2],
    /// Bytes of a new index that no reservation has covered yet.
    unpaid_bytes: AtomicU64,
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
    /// Open the entry below `root`, making or mending its files.
    pub(super) async fn open(
        disk: &Disk,
        root: &std::path::Path,
        identity: Identity,
        patience: Duration,
    ) -> Result<Self> {
        let Some(header) = identity.header() else {
            let message = "location, key and version are too long for a header";
            return Err(Error::new(ErrorKind::LimitExceeded, "open", message).at(&identity.key));
        };
        let name = identity.name();
        let paths = [name.path(root, Part::Index), name.path(root, Part::Data)];
        let index = match files::open_small(disk, paths[0].clone()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let path = root.join(name.dir());
                disk.name(NameOp::CreateDirs { path }).await?;
                files::open_small(disk, paths[0].clone()).await?
            }
            opened => opened?,
        };
        let data = open_data(disk, paths[1].clone(), &identity).await?;
        let index_bytes = header.len() as u64 + RECORD_BYTES * identity.blocks();
        let mut unpaid_bytes = 0;
        let whole = data.size() == identity.size && index.size() >= index_bytes;
        if !whole || !has_header(disk, &index, &header).await {
            let lock = files::wait_lock(&index, HEADER_LOCK, patience).await?;
            if lock.is_none() {
                let message = "another process holds the lock of the header";
                return Err(Error::new(ErrorKind::Timeout, "open", message).at(paths[0].display()));
            }
            disk.set_len(&data, identity.size).await?;
            disk.set_len(&index, index_bytes).await?;
            if !has_header(disk, &index, &header).await {
                files::write_bytes(disk, &index, 0, &header).await?;
                unpaid_bytes = index_bytes.next_multiple_of(STORED_STEP);
            }
        }
        let stamp = [
            disk.stat(&paths[0]).await?.identity,
            disk.stat(&paths[1]).await?.identity,
        ];
        Ok(Self {
            seal: identity.seal(),
            name,
            header_bytes: header.len() as u64,
            identity,
            data,
            index,
            stamp,
            unpaid_bytes: AtomicU64::new(unpaid_bytes),
            dead: AtomicBool::new(false),
            whole: AtomicBool::new(false),
            touched_ns: AtomicI64::new(0),
            flights: Mutex::default(),
            stalled: Mutex::default(),
        })
    }

    /// The path bytes take out of it.
    pub(super) fn path(&self, disk: &Disk) -> DataPath {
        disk.path_of(&self.data)
    }

    /// Checksums of the blocks from `first` to `last` that are present. A record that cannot be read is one that is not there.
    pub(super) async fn records(&self, disk: &Disk, first: u64, last: u64) -> Vec<Option<u32>> {
        let count = last - first + 1;
        let bytes = match Span::at(self.header_bytes + first * RECORD_BYTES, count * RECORD_BYTES) {
            Ok(span) => files::read_bytes(disk, &self.index, span).await,
            Err(error) => Err(error),
        };
        let Ok(bytes) = bytes else {
            return vec![None; count as usize];
        };
        let record = |(block, bytes): (u64, &[u8])| {
            let len = self.identity.block_span(block).len() as u32;
            format::parse_record(&self.seal, block, len, bytes)
        };
        (first..=last)
            .zip(bytes.chunks_exact(RECORD_BYTES as usize))
            .map(record)
            .collect()
    }

    /// Say that block `block` is present with that checksum. Its data must have been written.
    pub(super) async fn write_record(&self, disk: &Disk, block: u64, crc: u32) -> Result<()> {
        let len = self.identity.block_span(block).len() as u32;
        let record = format::record(&self.seal, block, len, crc);
        let at = self.header_bytes + block * RECORD_BYTES;
        files::write_bytes(disk, &self.index, at, &record).await
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

    /// Bytes to reserve for block `block`, with those of the index when they are due.
    pub(super) fn bytes_due(&self, block: u64) -> u64 {
        let block = self.identity.block_span(block).len();
        block.next_multiple_of(STORED_STEP) + self.unpaid_bytes.swap(0, Ordering::Relaxed)
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
    pub(super) async fn is_current(&self, disk: &Disk, root: &std::path::Path) -> bool {
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

async fn open_data(disk: &Disk, path: std::path::PathBuf, identity: &Identity) -> Result<Arc<File>> {
    let how = OpenHow {
        purpose: Purpose::Update,
        direct: Direct::Auto,
        size_hint: Some(identity.size),
    };
    let file = disk.open_file(path.clone(), how, PathPolicy::Fastest).await?;
    match *file.access() {
        // A device that wants more alignment than our blocks have.
        Access::Direct { align } if !identity.block_bytes.is_multiple_of(align.into()) => {
            disk.open_file(path, how.with_direct(Direct::Never), PathPolicy::Fastest)
                .await
        }
        _ => Ok(file),
    }
}

async fn has_header(disk: &Disk, index: &Arc<File>, header: &[u8]) -> bool {
    match files::read_bytes(disk, index, Span::first(header.len() as u64)).await {
        Ok(found) => found[..] == *header,
        Err(_) => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Maps of fills stay usable whatever happened while one was changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
