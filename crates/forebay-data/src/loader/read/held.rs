//! What the blocks of a shard have in common while somebody holds one of them: the table, and all bytes where the shard is compressed as a whole.
//!
//! ```text
//! Reader::hold --> table (manifest), room for it once --> Hold --> bytes_of, load --> Loaded keeps it
//!              \-> compressed: room for all bytes once, decompressed by whoever comes first, in turns of the processor
//! ```
//!
//! Lanes end where they end, not where shards do, so many may have a part in one shard: each would decompress it and keep a copy of its own. Here, the first makes it and
//! the others share it, and it goes with the last block of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Ledger, Result};
use futures::stream::TryStreamExt;
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::{Origin, Reader};
use crate::codec::{Codec, Decoder};
use crate::loader::feed::Room;
use crate::manifest::{Shard, memory_bytes};
use crate::source::ShardSource;
use crate::table::Table;

/// Entries of shards that nobody holds any more are swept out when there are more than these.
const ENTRIES_MIN: usize = 1024;

/// Tables that were used last stay for the blocks to come, as long as they take less than one part in so many of the memory: a lane goes through the blocks of some shards
/// in turn, and would read their tables again and again.
const TABLES_SHARE: u64 = 4;

/// Memory that is asked for before a byte is decompressed. Larger shards show that they are larger first.
const FIRST_BYTES_MAX: usize = 64 << 20;

/// What is asked for then is so many times as much as is there.
const GROWTH: usize = 4;

/// What is held of a shard; cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    table: Arc<Tabled>,
    whole: Option<Arc<Whole>>,
}

/// A table with the room that it takes.
#[derive(Debug)]
struct Tabled {
    table: Arc<Table>,
    bytes: u64,
    _room: Option<OwnedSemaphorePermit>,
}

/// A shard that is compressed as a whole, decompressed when its first block is needed.
#[derive(Debug)]
struct Whole {
    content: OnceCell<Unpacked>,
    _room: Option<OwnedSemaphorePermit>,
}

/// What decompressing gave.
#[derive(Debug, Clone)]
pub(super) struct Unpacked {
    /// The bytes, or what is wrong with them.
    pub(super) bytes: std::result::Result<Bytes, Arc<str>>,
    pub(super) origin: Origin,
    /// When the bytes would have been there, had nobody to decompress them.
    pub(super) arrived: Duration,
}

impl Hold {
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table.table
    }

    /// True when all bytes of the shard are held, and the room for them.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }
}

/// What is held of one shard. Locked while it is made, so that others wait instead of making it again.
type Entry = Arc<tokio::sync::Mutex<(Weak<Tabled>, Weak<Whole>)>>;

/// What is held of the shards of a data set.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    entries: Mutex<HashMap<usize, Entry>>,
    recent: Mutex<Recent>,
}

/// Tables that were used last.
#[derive(Debug, Default)]
struct Recent {
    tables: HashMap<usize, (Arc<Tabled>, u64)>,
    /// Counts uses, to tell which was first.
    clock: u64,
    bytes: u64,
    bytes_max: u64,
}

impl Holds {
    /// For a loader with so much memory.
    pub(crate) fn within(memory_bytes_max: u64) -> Self {
        let recent = Recent {
            bytes_max: memory_bytes_max / TABLES_SHARE,
            ..Recent::default()
        };
        Self {
            recent: Mutex::new(recent),
            ..Self::default()
        }
    }

    fn entry(&self, shard: usize) -> Entry {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= ENTRIES_MIN && !entries.contains_key(&shard) {
            let is_held = |entry: &Entry| {
                entry
                    .try_lock()
                    .is_ok_and(|held| held.0.strong_count() + held.1.strong_count() > 0)
            };
            entries.retain(|_, entry| Arc::strong_count(entry) > 1 || is_held(entry));
        }
        Arc::clone(entries.entry(shard).or_default())
    }

    /// A table is used: it stays, and others go where there are too many.
    fn used(&self, shard: usize, table: &Arc<Tabled>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.clock += 1;
        let used = recent.clock;
        let before = recent.tables.insert(shard, (Arc::clone(table), used));
        recent.bytes += table.bytes;
        recent.bytes -= before.map_or(0, |(table, _)| table.bytes);
        while recent.bytes > recent.bytes_max {
            let oldest = recent.tables.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(shard, _)| *shard) else {
                break;
            };
            if let Some((table, _)) = recent.tables.remove(&oldest) {
                recent.bytes -= table.bytes;
            }
        }
    }
}

impl Reader {
    /// What the blocks of a shard have in common. Room is taken for what nobody holds yet.
    pub(crate) async fn hold(&self, shard: u32, room: Option<&Room>) -> Result<Hold> {
        let (number, row) = (shard as usize, self.shard(shard)?);
        let entry = self.holds.entry(number);
        let mut held = entry.lock().await;
        let take = async |bytes: u64| match room {
            Some(room) => room.take(bytes).await.map(Some),
            None => Ok(None),
        };
        let table = match held.0.upgrade() {
            Some(table) => table,
            None => {
                let table = self.dataset.table(number).await?;
                let bytes = memory_bytes(&table);
                let room = take(bytes).await?;
                Arc::new(Tabled {
                    table,
                    bytes,
                    _room: room,
                })
            }
        };
        held.0 = Arc::downgrade(&table);
        if room.is_some() {
            self.holds.used(number, &table);
        }
        let whole = match held.1.upgrade() {
            _ if row.codec == Codec::None => None,
            Some(whole) => Some(whole),
            None => Some(Arc::new(Whole {
                content: OnceCell::new(),
                _room: take(row.raw_bytes).await?,
            })),
        };
        held.1 = whole.as_ref().map_or_else(Weak::new, Arc::downgrade);
        Ok(Hold { table, whole })
    }

    /// All bytes of a shard that is compressed as a whole; the ledger is that of whoever decompressed it.
    pub(super) async fn unpacked(
        &self,
        source: &ShardSource,
        shard: &Shard,
        hold: &Hold,
    ) -> Result<(Unpacked, Ledger)> {
        let whole = hold.whole.as_ref();
        let whole = whole.ok_or_else(|| super::internal("a compressed shard that nobody holds"))?;
        let mut own = Ledger::default();
        let unpack = async {
            let (unpacked, ledger) = self.unpack(source, shard).await?;
            own = ledger;
            Ok::<_, Error>(unpacked)
        };
        let unpacked = whole.content.get_or_try_init(|| unpack).await?.clone();
        Ok((unpacked, own))
    }

    /// Read a shard and decompress it, piece by piece, on working threads.
    async fn unpack(&self, source: &ShardSource, shard: &Shard) -> Result<(Unpacked, Ledger)> {
        let clock = Arc::clone(self.dataset.context().clock());
        let (mut ledger, mut decoding) = (Ledger::default(), Duration::ZERO);
        let mut work = Unpacking::new(shard);
        let mut pieces = source.pieces();
        let done = loop {
            let piece = pieces.try_next().await?;
            let begun = clock.now();
            let step = match piece {
                Some((piece, read)) => {
                    ledger.merge(&read);
                    self.cpu.run(move || work.feed(&piece)).await?.map(Ok)
                }
                None => self.cpu.run(move || work.finish()).await?.map(Err),
            };
            decoding += clock.now().saturating_sub(begun);
            match step {
                Ok(Ok(going_on)) => work = going_on,
                Ok(Err(bytes)) => break Ok(bytes),
                // Damage is for the policy to judge; everything else would be the same for any other shard.
                Err(error) if error.kind() == ErrorKind::Corrupt => break Err(error.message().into()),
                Err(error) => return Err(error),
            }
        };
        let unpacked = Unpacked {
            bytes: done,
            origin: Origin::of(&self.dataset, &ledger),
            arrived: clock.now().saturating_sub(decoding),
        };
        Ok((unpacked, ledger))
    }
}

/// A shard that is being decompressed.
#[derive(Debug)]
struct Unpacking {
    decoder: Decoder,
    raw: Vec<u8>,
    raw_bytes: u64,
}

impl Unpacking {
    fn new(shard: &Shard) -> Self {
        Self {
            decoder: Decoder::new(shard.codec),
            raw: Vec::new(),
            raw_bytes: shard.raw_bytes,
        }
    }

    fn feed(mut self, piece: &[u8]) -> Result<Self> {
        let (raw, raw_bytes) = (&mut self.raw, self.raw_bytes);
        self.decoder
            .feed(piece, &mut |bytes| put(raw, raw_bytes, bytes))?;
        Ok(self)
    }

    fn finish(mut self) -> Result<Bytes> {
        let (raw, raw_bytes) = (&mut self.raw, self.raw_bytes);
        self.decoder.finish(&mut |bytes| put(raw, raw_bytes, bytes))?;
        if self.raw.len() as u64 != self.raw_bytes {
            return Err(corrupt("it has fewer bytes than its manifest says"));
        }
        Ok(self.raw.into())
    }
}

/// Add bytes to a shard of at most `raw_bytes`, in memory that grows with what is there.
fn put(raw: &mut Vec<u8>, raw_bytes: u64, bytes: &[u8]) -> Result<()> {
    let len = raw.len() + bytes.len();
    if len as u64 > raw_bytes {
        return Err(corrupt("it has more bytes than its manifest says"));
    }
    if len > raw.capacity() {
        let most = usize::try_from(raw_bytes).unwrap_or(usize::MAX);
        let wanted = len.saturating_mul(GROWTH).max(FIRST_BYTES_MAX).min(most);
        let more = wanted.max(len) - raw.len();
        raw.try_reserve_exact(more).map_err(|error| {
            let message = format!("there is no memory for {wanted} bytes of a shard");
            Error::new(ErrorKind::LimitExceeded, "decompress", message).with_source(error)
        })?;
    }
    raw.extend_from_slice(bytes);
    Ok(())
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "decompress", message)
}
