//! One shard: its samples go through the writer, its bytes through the scan that makes its table and through SHA-256, and then to the store.
//!
//! ```text
//! make: samples as they come --writer--> parts that are full --> digest: SHA-256, scan --> store: parts side by side
//!       end of the samples --> what is left, side files first --^
//! ```
//!
//! The three go on side by side. Formats that have to know all samples before their first byte, and shards that are compressed, are cut into parts at their end. Everything is
//! made of the bytes in memory, so nothing is read back. The note that the shard is done is written behind it.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use forebay_io::{AlignedBuf, Buf, BufPool, Pages};
use forebay_store::{Body, ObjectMeta, PutOptions, StoreExt};
use futures::stream::{self, BoxStream, StreamExt};
use ring::digest;
use tokio::sync::mpsc;

use super::cut::{Taken, What};
use super::jobs::Job;
use super::output::{Output, Sealed};
use super::target::{Note, Target, hex};
use crate::codec::Codec;
use crate::format::mds::ShardHashes;
use crate::format::{Scan, ShardWriter, Tabulated, sha256_of};
use crate::table::Table;

/// Parts that are made and wait to be stored: one more is being filled meanwhile.
const PARTS_READY_MAX: usize = 2;

/// Parts that an upload to an object store can have.
const PARTS_MAX: u64 = 10_000;

/// A shard that is stored.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) meta: ObjectMeta,
    pub(super) tabulated: Tabulated,
    /// What its list of shards says of it.
    pub(super) hashes: ShardHashes,
    /// Which way its bytes went.
    pub(super) ledger: Ledger,
}

/// Builds shards.
#[derive(Debug, Clone)]
pub(super) struct Builder {
    pub(super) output: Arc<Output>,
    pub(super) target: Target,
    /// Where parts lie.
    pub(super) memory: BufPool,
}

/// A part of a shard.
struct Part {
    bytes: Buf,
    is_last: bool,
    /// Bytes of the whole shard, where they are known.
    size: Option<u64>,
}

/// A shard of which all parts are made.
struct Made {
    positions: Range<u64>,
    /// What the end of it told, of a shard that was put together there: its table, its bytes before compression, and how it is compressed.
    whole: Option<(Table, u64, Codec)>,
    hashes: ShardHashes,
}

/// What its parts told.
struct Digested {
    sha256: [u8; 32],
    bytes: u64,
    /// Of a shard whose parts were taken while it grew.
    table: Option<Table>,
}

impl Builder {
    pub(super) async fn build(&self, job: Job) -> Result<Built> {
        let number = job.number;
        let key = self.output.key(number)?;
        let (parts, coming) = mpsc::channel(PARTS_READY_MAX);
        let (digests, ready) = mpsc::channel(PARTS_READY_MAX);
        let (made, digested, stored) = tokio::join!(
            self.make(job, parts),
            self.digest(coming, digests),
            self.store(&key, ready)
        );
        // Where one fails the others end, too: the first that says why knows.
        let (made, digested, (meta, ledger)) = (made?, digested?, stored?);
        let (Some(made), Some(digested)) = (made, digested) else {
            return Err(given_up(&key));
        };
        if meta.size != digested.bytes {
            return Err(internal("a shard was stored with another size than it has"));
        }
        let (table, raw_bytes, codec) = match (made.whole, digested.table) {
            (Some(whole), _) => whole,
            (None, Some(table)) => (table, digested.bytes, Codec::None),
            (None, None) => return Err(internal("a shard without a table")),
        };
        let note = Note {
            number,
            key,
            size: meta.size,
            sha256: hex(&digested.sha256),
            samples: table.samples(),
            start: made.positions.start,
            end: made.positions.end,
            hashes: made.hashes.clone(),
        };
        self.target.note(&note).await?;
        Ok(Built {
            meta,
            hashes: made.hashes,
            tabulated: Tabulated {
                has_sums: false,
                are_types_inferred: false,
                table,
                sha256: digested.sha256,
                raw_bytes,
                codec,
                ledger: Ledger::default(),
            },
            ledger,
        })
    }

    /// Make the parts of a shard; `None` when nobody takes them.
    async fn make(&self, mut job: Job, parts: mpsc::Sender<Part>) -> Result<Option<Made>> {
        let part_bytes = self.part_bytes();
        let mut making = Making::new(Arc::clone(&self.output), job.number, part_bytes, &self.memory)?;
        let positions = loop {
            let piece = job.pieces.recv().await;
            match piece.ok_or_else(|| internal("the samples of a shard ended early"))?? {
                What::Samples(taken, range) => {
                    let full;
                    (making, full) = blocking(move || making.add(&taken, range)).await??;
                    for bytes in full {
                        let (is_last, size) = (false, self.growing_size());
                        if parts.send(Part { bytes, is_last, size }).await.is_err() {
                            return Ok(None);
                        }
                    }
                }
                What::End(positions) => break positions,
            }
        };
        let sealed = blocking(move || making.finish()).await??;
        for (key, bytes) in &sealed.sides {
            let store = self.target.store();
            store.put_bytes(key, bytes, &PutOptions::default()).await?;
        }
        let len = sealed.stored.len();
        for start in (0..len.max(1)).step_by(part_bytes) {
            let end = start.saturating_add(part_bytes).min(len);
            let part = Part {
                bytes: sealed.stored.slice(start..end),
                is_last: end == len,
                size: Some(len as u64),
            };
            if parts.send(part).await.is_err() {
                return Ok(None);
            }
        }
        let (whole, hashes) = (sealed.whole, sealed.hashes);
        Ok(Some(Made {
            positions,
            whole,
            hashes,
        }))
    }

    /// Look at all parts on their way; `None` where they end early, or nobody takes them.
    async fn digest(
        &self,
        mut parts: mpsc::Receiver<Part>,
        ready: mpsc::Sender<Part>,
    ) -> Result<Option<Digested>> {
        let mut sha256 = digest::Context::new(&digest::SHA256);
        let (mut scan, mut bytes) = (self.output.scan_parts(), 0);
        while let Some(part) = parts.recv().await {
            bytes += part.bytes.len() as u64;
            let (is_last, content) = (part.is_last, part.bytes.clone());
            let fed = blocking(move || {
                sha256.update(&content);
                let fed = scan.as_mut().map_or(Ok(()), |scan| scan.feed(&content));
                fed.map(|()| (sha256, scan))
            });
            (sha256, scan) = fed.await??;
            if is_last {
                // Before the last part goes out: what has no table does not become visible.
                let table = scan.map(Scan::finish).transpose()?;
                let sha256 = sha256_of(sha256)?;
                let digested = Digested { sha256, bytes, table };
                return Ok(ready.send(part).await.is_ok().then_some(digested));
            }
            if ready.send(part).await.is_err() {
                break;
            }
        }
        Ok(None)
    }

    fn part_bytes(&self) -> usize {
        let bytes = self.target.context().limits().part_bytes;
        usize::try_from(bytes).unwrap_or(usize::MAX).max(1)
    }

    /// What a store is told of the size of a shard that grows: the most it can be, where stores would run out of numbers for its parts, and else nothing, for room
    /// that is not needed in the end may not be there.
    fn growing_size(&self) -> Option<u64> {
        let most = self.output.shard_bytes();
        (most.div_ceil(self.part_bytes() as u64) > PARTS_MAX).then_some(most)
    }

    /// Store a shard as its parts come; at once, where there is only one.
    async fn store(&self, key: &Key, mut parts: mpsc::Receiver<Part>) -> Result<(ObjectMeta, Ledger)> {
        let first = parts.recv().await.ok_or_else(|| given_up(key))?;
        let store = self.target.store();
        let options = PutOptions {
            size_hint: first.size,
            ..PutOptions::default()
        };
        let done = if first.is_last {
            store.put(key, Body::from(first.bytes), &options).await?
        } else {
            let here = self.part_bytes();
            let begin = move |there: u64| {
                let parts = in_order(first, parts, key.clone());
                if there == here as u64 {
                    parts
                } else {
                    recut(parts, there)
                }
            };
            let context = self.target.context();
            store.upload_all(key, &options, context, Box::new(begin)).await?
        };
        let meta = ObjectMeta {
            key: key.clone(),
            size: done.size,
            version: done.version,
            modified: None,
            checksum: None,
            permissions: None,
        };
        Ok((meta, done.ledger))
    }
}

/// Parts up to the last. A queue that ends before it is an error, so that what is there is not taken for a shard.
fn in_order(first: Part, parts: mpsc::Receiver<Part>, key: Key) -> BoxStream<'static, Result<Buf>> {
    let rest = stream::unfold(Some((parts, key)), |state| async {
        let (mut parts, key) = state?;
        match parts.recv().await {
            Some(part) => Some((Ok(part.bytes), (!part.is_last).then_some((parts, key)))),
            None => Some((Err(given_up(&key)), None)),
        }
    });
    stream::iter([Ok(first.bytes)]).chain(rest).boxed()
}

/// The same bytes in parts of another size, for stores that insist on one.
fn recut(parts: BoxStream<'_, Result<Buf>>, bytes: u64) -> BoxStream<'_, Result<Buf>> {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX).max(1);
    let state = (parts.fuse(), None::<Buf>);
    let recut = stream::try_unfold(state, move |(mut parts, mut rest)| async move {
        let mut part = AlignedBuf::alloc(bytes, Pages::default())?;
        let mut filled = 0;
        while filled < bytes {
            let next = match rest.take() {
                Some(rest) => rest,
                None => match parts.next().await {
                    Some(next) => next?,
                    None => break,
                },
            };
            let count = next.len().min(bytes - filled);
            if let Some(place) = part.get_mut(filled..filled + count) {
                place.copy_from_slice(&next[..count]);
            }
            rest = (count < next.len()).then(|| next.slice(count..next.len()));
            filled += count;
        }
        part.set_len(filled);
        Ok((filled > 0).then(|| (part.freeze(), (parts, rest))))
    });
    recut.boxed()
}

/// A shard that is being made. All of it takes a while.
struct Making {
    output: Arc<Output>,
    number: u64,
    writer: Box<dyn ShardWriter>,
    keys: Keys,
}

impl Making {
    fn new(output: Arc<Output>, number: u64, part_bytes: usize, memory: &BufPool) -> Result<Self> {
        Ok(Self {
            writer: output.writer(part_bytes, memory)?,
            output,
            number,
            keys: Keys::default(),
        })
    }

    /// Add samples; gives the parts that are full.
    fn add(mut self, taken: &Taken, range: Range<usize>) -> Result<(Self, Vec<Buf>)> {
        let (chunk, output) = (&taken.chunk, &self.output);
        for index in range {
            let key = chunk.key(index);
            if output.has_keys() {
                self.keys.add(key);
            }
            let added = chunk.with(index, output.fields(), output.has_key_field(), |sample| {
                self.writer.add(sample)
            });
            added.map_err(|error| name_sample(error, key))?;
        }
        let full = self.writer.take_parts();
        Ok((self, full))
    }

    /// Close the shard.
    fn finish(mut self) -> Result<Sealed> {
        if let Some(key) = self.keys.twice() {
            return Err(twice(key));
        }
        let sides = self.writer.sides()?;
        let rest = self.writer.finish()?;
        self.output.seal(self.number, rest, sides)
    }
}

/// The keys of a shard, to tell whether two are the same. Most come in order, and then a look at the one before is enough.
#[derive(Debug)]
struct Keys {
    text: String,
    ends: Vec<usize>,
    is_ascending: bool,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            text: String::new(),
            ends: Vec::new(),
            is_ascending: true,
        }
    }
}

impl Keys {
    fn add(&mut self, key: &str) {
        let is_first = self.ends.is_empty();
        self.is_ascending &= is_first || self.get(self.ends.len() - 1) < key;
        self.text.push_str(key);
        self.ends.push(self.text.len());
    }

    fn get(&self, index: usize) -> &str {
        let start = index.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(index).copied().unwrap_or_default();
        self.text
            .get(start.copied().unwrap_or(0)..end)
            .unwrap_or_default()
    }

    /// A key that is there twice.
    fn twice(&self) -> Option<&str> {
        if self.is_ascending {
            return None;
        }
        let mut seen = HashSet::with_capacity(self.ends.len());
        let mut keys = (0..self.ends.len()).map(|index| self.get(index));
        keys.find(|key| !seen.insert(*key))
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|error| internal("a thread that built a shard ended").with_source(error))
}

/// Two samples of one key in a shard: a reader would take them for one, or find the wrong one.
fn twice(key: &str) -> Error {
    let message = format!("two samples have the key '{}'", key.escape_debug());
    Error::new(ErrorKind::InvalidInput, "pack", message)
        .with_field("key")
        .with_hint("give each sample a key of its own, or number them anew: --drop-keys")
}

/// Say which sample an error is about, where it does not.
fn name_sample(error: Error, key: &str) -> Error {
    let shown = key.escape_debug().to_string();
    if error.to_string().contains(&shown) {
        return error;
    }
    let message = format!("sample '{shown}' cannot be written");
    let named = Error::new(error.kind(), "pack", message);
    let named = match error.hint() {
        Some(hint) => named.with_hint(hint.to_owned()),
        None => named,
    };
    named.with_source(error)
}

fn given_up(key: &Key) -> Error {
    let message = "a shard was given up before its end";
    Error::new(ErrorKind::Cancelled, "pack", message).at(key)
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "pack", message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_key_that_is_there_twice_is_found(list in proptest::collection::vec("[a-c]{0,2}", 0..9), is_sorted in any::<bool>()) {
            let mut list = list;
            if is_sorted {
                list.sort();
            }
            let mut keys = Keys::default();
            for key in &list {
                keys.add(key);
            }
            let distinct: HashSet<&String> = list.iter().collect();
            prop_assert_eq!(keys.twice().is_some(), distinct.len() < list.len());
        }
    }
}
