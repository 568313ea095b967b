//! Bringing a block in, once, for everybody who waits for it.
//!
//! The first who misses a block starts a flight, a task of its own; whoever misses the same block meanwhile joins it. All of them hand over the
//! piece of their buffer that the block belongs in, and get it back filled: a reader that goes away or is slow holds nothing up. The
//! flight takes the lock of the block against other processes, looks whether one of them was faster, makes room, fetches, hands out, and
//! only then writes data and record: nobody waits for the disk. Whatever goes wrong with caching, the bytes are still handed out, with the
//! reason in the ledger.
//!
//! Memory: a flight leases one block from a pool of the cache's own, after it has the lock and before anything else that takes long, and waits
//! for nothing that another flight of this process could be holding. Readers hold their own buffers while they wait, which come from
//! elsewhere. So no ring of waiting can close.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{DataPath, Error, ErrorKind, Ledger, PathPolicy, Result, Span, crc32c};
use forebay_io::{Access, AlignedBuf, Buf, Class, RangeLock};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::entry::Entry;
use super::files::copy_error;
use super::format::Present;
use super::room::Reservation;
use super::shared::Shared;
use crate::store::ReadOptions;

/// A part of a block that somebody waits for.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Where it belongs; the front of this piece is filled.
    pub(super) piece: AlignedBuf,
    /// Which bytes of the object.
    pub(super) want: Span,
    /// The waiter wants the block on disk, to read it from there by itself: its piece comes back as it is, once the flight is over.
    pub(super) stored: bool,
    /// Where it goes back to.
    pub(super) reply: oneshot::Sender<Served>,
}

/// A piece that comes back, filled or with the reason why not.
#[derive(Debug)]
pub(super) struct Served {
    /// The piece, in every case.
    pub(super) piece: AlignedBuf,
    /// Which way the bytes came.
    pub(super) result: Result<Ledger>,
}

/// A block in memory.
struct Block {
    bytes: Buf,
    span: Span,
    /// How it came.
    path: DataPath,
    /// The origin's read counted it as verified, now or when it was filled.
    verified: bool,
    /// What the fetch cost, for the first who is served.
    costs: Option<Ledger>,
    /// Why it is not kept.
    note: Option<String>,
}

/// Join the flight of `block`, or start it. `permit` belongs to a fill nobody waits for.
pub(super) fn join(
    shared: &Arc<Shared>,
    entry: &Arc<Entry>,
    block: u64,
    waiter: Option<Waiter>,
    class: Class,
    permit: Option<OwnedSemaphorePermit>,
) {
    let mut flights = entry.flights();
    if let Some(waiters) = flights.get_mut(&block) {
        waiters.extend(waiter);
        return;
    }
    flights.insert(block, waiter.into_iter().collect());
    drop(flights);
    let flight = Flight {
        shared: Arc::clone(shared),
        entry: Arc::clone(entry),
        block,
        class,
        over: false,
    };
    shared.tasks.start();
    drop(tokio::spawn(async move {
        flight.run().await;
        drop(permit);
    }));
}

/// One block on its way. Dropping it, however that comes about, ends the flight and sends everybody home.
struct Flight {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    block: u64,
    class: Class,
    /// Nobody can join any more.
    over: bool,
}

impl Flight {
    async fn run(mut self) {
        let outcome = {
            let (lock, note) = self.lock().await;
            self.bring(lock.is_some(), note).await
            // The lock is let go of before the flight is over, and after the record was written: the next flight of the same block, in
            // whichever process, finds either the lock or the record.
        };
        match outcome {
            Ok(block) => self.land(block),
            Err(error) => self.fail(&error),
        }
    }

    /// Get the block, hand it out, keep it. `None` when nobody wants it and it cannot be kept.
    async fn bring(&self, locked: bool, mut note: Option<String>) -> Result<Option<Block>> {
        let span = self.entry.identity.block_span(self.block);
        let mut buf = self.lease(span).await?;
        let mut room = None;
        if locked {
            match self.recheck(buf, span).await? {
                Recheck::Good(block) => {
                    self.shared.counts.hit();
                    return Ok(Some(block));
                }
                // A block that is corrupt may well be a hole, so it needs room like any other.
                Recheck::Absent(back) => {
                    buf = back;
                    match self.reserve().await {
                        Ok(reserved) => room = Some(reserved),
                        Err(error) => note = Some(error.to_string()),
                    }
                }
            }
        }
        if room.is_none() && self.is_alone() {
            // No use fetching it, nor those after it.
            self.entry.whole.store(false, Ordering::Relaxed);
            return Ok(None);
        }
        let mut block = self.fetch(buf, span, note).await?;
        self.serve(&mut block);
        if let Some(room) = room {
            self.store(&block, room).await;
        }
        Ok(Some(block))
    }

    /// The lock of the block, or why there is none.
    async fn lock(&self) -> (Option<RangeLock>, Option<String>) {
        match self.entry.lock_block(self.block, self.shared.patience).await {
            Ok(Some(lock)) => (Some(lock), None),
            Ok(None) => (
                None,
                Some("another process has been filling the block for too long".to_owned()),
            ),
            Err(error) => (None, Some(error.to_string())),
        }
    }

    async fn lease(&self, span: Span) -> Result<AlignedBuf> {
        self.shared.fill_pool.lease(span.len() as usize).await?
    }

    /// With the lock held: is it there by now?
    async fn recheck(&self, buf: AlignedBuf, span: Span) -> Result<Recheck> {
        let disk = &self.shared.disk;
        let record = self.entry.records(disk, self.block, self.block).await;
        let Some(Some(present)) = record.first().copied() else {
            return Ok(Recheck::Absent(buf));
        };
        let (buf, read) = disk
            .try_read_into(&self.entry.data, span, buf, self.class)
            .await?;
        if let Ok(ledger) = read
            && crc32c(&buf) == present.crc
        {
            return Ok(Recheck::Good(Block {
                bytes: buf.freeze(),
                span,
                path: self.entry.path(disk),
                verified: present.verified,
                costs: Some(ledger),
                note: None,
            }));
        }
        self.shared.counts.corrupt();
        tracing::warn!(
            key = self.entry.identity.key,
            block = self.block,
            "a cached block does not hold its checksum, fetching it again"
        );
        Ok(Recheck::Absent(buf))
    }

    async fn reserve(&self) -> Result<Reservation> {
        let bytes = self.entry.stored_bytes(self.block);
        let shared = &self.shared;
        shared.room.reserve(&shared.table, &self.entry, bytes).await
    }

    async fn fetch(&self, buf: AlignedBuf, span: Span, note: Option<String>) -> Result<Block> {
        self.shared.counts.miss();
        let identity = &self.entry.identity;
        let options = ReadOptions {
            version: identity.version.clone(),
            class: self.class,
            policy: PathPolicy::Fastest,
            ..ReadOptions::default()
        };
        let key = forebay_core::Key::parse(&identity.key)?;
        let done = self.shared.origin.read_into(&key, span, buf, &options).await?;
        Ok(Block {
            bytes: done.buf.freeze().slice(..span.len() as usize),
            span,
            path: main_path(&done.ledger),
            verified: done.ledger.verified_bytes >= span.len(),
            costs: Some(done.ledger),
            note,
        })
    }

    /// Write data, then record. A full device is answered once by removing entries; anything else is left at that, and said with later misses.
    async fn store(&self, block: &Block, _room: Reservation) {
        let shared = &self.shared;
        let mut stored = self.write(block).await;
        if let Err(error) = &stored
            && error.kind() == ErrorKind::OutOfSpace
        {
            let (name, bytes) = (self.entry.name, block.span.len());
            stored = match shared.room.shrink(&shared.table, name, bytes).await {
                Ok(()) => self.write(block).await,
                Err(error) => Err(error),
            };
        }
        match stored {
            Ok(()) => shared.set_trouble(None),
            Err(error) => {
                tracing::warn!(%error, "cannot keep a block in the cache");
                shared.set_trouble(Some(error.to_string()));
            }
        }
    }

    async fn write(&self, block: &Block) -> Result<()> {
        let (disk, entry) = (&self.shared.disk, &self.entry);
        disk.write_at(&entry.data, block.span.start(), block.bytes.clone(), self.class)
            .await?;
        let padded = match *entry.data.access() {
            Access::Direct { align } => !block.span.end().is_multiple_of(align.into()),
            Access::Buffered { .. } => false,
        };
        if padded {
            disk.set_len(&entry.data, entry.identity.size).await?;
        }
        let present = Present {
            crc: crc32c(&block.bytes),
            verified: block.verified,
        };
        entry.write_record(disk, self.block, present).await
    }

    /// Hand the block to those who wait for its bytes now.
    fn serve(&self, block: &mut Block) {
        let waiters: Vec<Waiter> = match self.entry.flights().get_mut(&self.block) {
            Some(waiters) => waiters.extract_if(.., |waiter| !waiter.stored).collect(),
            None => return,
        };
        for waiter in waiters {
            serve_one(block, waiter);
        }
    }

    fn is_alone(&self) -> bool {
        self.entry.flights().get(&self.block).is_none_or(Vec::is_empty)
    }

    /// Nobody can join any more; gives those who wait still.
    fn end(&mut self) -> Vec<Waiter> {
        self.over = true;
        self.entry.flights().remove(&self.block).unwrap_or_default()
    }

    /// The flight is over, and everybody left is served.
    fn land(mut self, block: Option<Block>) {
        let waiters = self.end();
        match block {
            Some(mut block) => waiters
                .into_iter()
                .for_each(|waiter| serve_one(&mut block, waiter)),
            // Whoever came after it was found out that nobody was there starts another one.
            None => waiters.into_iter().for_each(|waiter| {
                join(
                    &self.shared,
                    &self.entry,
                    self.block,
                    Some(waiter),
                    self.class,
                    None,
                );
            }),
        }
    }

    fn fail(&mut self, error: &Error) {
        for waiter in self.end() {
            drop(waiter.reply.send(Served {
                piece: waiter.piece,
                result: Err(copy_error(error)),
            }));
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if !self.over {
            let message = "the fill was stopped before it was done";
            self.fail(&Error::new(ErrorKind::Cancelled, "fill", message));
        }
        self.shared.tasks.end();
    }
}

enum Recheck {
    /// Somebody else was faster.
    Good(Block),
    /// To be fetched: nothing is there, or nothing that holds its checksum.
    Absent(AlignedBuf),
}

/// Fill the piece of one who waits and send it back.
fn serve_one(block: &mut Block, waiter: Waiter) {
    let Waiter {
        mut piece,
        want,
        stored,
        reply,
    } = waiter;
    let mut ledger = Ledger::default();
    if !stored {
        piece[..want.len() as usize].copy_from_slice(&block.bytes[want.relative_to(block.span.start())]);
        if let Some(costs) = block.costs.take() {
            let totals = costs.path(block.path);
            ledger.record(block.path, 0, totals.requests);
            ledger.record_retries(block.path, totals.retries);
            for downgrade in costs.downgrades {
                ledger.record_downgrade(downgrade.wanted, downgrade.taken, downgrade.reason);
            }
        }
        ledger.record(block.path, want.len(), 0);
        ledger.record_copy(block.path, want.len());
        ledger.verified_bytes += if block.verified { want.len() } else { 0 };
        if let Some(note) = &block.note {
            ledger.record_downgrade(DataPath::DirectUring, block.path, format!("not cached: {note}"));
        }
    }
    // A reader that went away drops its piece here.
    drop(reply.send(Served {
        piece,
        result: Ok(ledger),
    }));
}

/// The path most bytes took.
pub(super) fn main_path(ledger: &Ledger) -> DataPath {
    let most = ledger.paths.iter().max_by_key(|(_, totals)| totals.bytes);
    most.map_or(DataPath::Memory, |(path, _)| *path)
}

/// Fill all of an entry in the background, from block `from` on and then around; once at a time, and not too many entries at once.
pub(super) fn fill_whole(shared: &Arc<Shared>, entry: &Arc<Entry>, from: u64, class: Class) {
    if entry.whole.swap(true, Ordering::Relaxed) {
        return;
    }
    let Ok(place) = Arc::clone(&shared.wholes).try_acquire_owned() else {
        // A later miss starts it again.
        entry.whole.store(false, Ordering::Relaxed);
        return;
    };
    let (shared, entry) = (Arc::clone(shared), Arc::clone(entry));
    shared.tasks.start();
    drop(tokio::spawn(async move {
        let _place = place;
        let _ended = Ended(Arc::clone(&shared), Arc::clone(&entry));
        let blocks = entry.identity.blocks();
        for run in [(from, blocks), (0, from)] {
            let mut first = run.0;
            while first < run.1 {
                let last = (first + WHOLE_RECORDS_MAX).min(run.1) - 1;
                if !fill_run(&shared, &entry, first, last, class).await {
                    return;
                }
                first = last + 1;
            }
        }
    }));
}

/// Records looked at in one read when filling a whole object.
const WHOLE_RECORDS_MAX: u64 = 256;

/// Start the fills of absent blocks from `first` to `last`, each when there is a permit; false when it is time to stop.
async fn fill_run(shared: &Arc<Shared>, entry: &Arc<Entry>, first: u64, last: u64, class: Class) -> bool {
    let records = entry.records(&shared.disk, first, last).await;
    for (block, record) in (first..=last).zip(records) {
        if record.is_some() {
            continue;
        }
        let Ok(permit) = Arc::clone(&shared.background).acquire_owned().await else {
            return false;
        };
        if shared.is_closing() || entry.is_dead() || !entry.whole.load(Ordering::Relaxed) {
            return false;
        }
        join(shared, entry, block, None, class, Some(permit));
    }
    true
}

/// Ends a whole fill, however it ends.
struct Ended(Arc<Shared>, Arc<Entry>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.1.whole.store(false, Ordering::Relaxed);
        self.0.tasks.end();
    }
}
