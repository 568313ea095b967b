//! One payload: its header, and every chunk that a part has in it. Some ranges are read at once, and compared by other threads.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Class};
use forebay_store::ReadOptions;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::{Damage, Slice, Verified, damage_or_fail};
use crate::codec::Decoder;
use crate::entry::ChunkRecord;
use crate::hash::{HashKind, Place};
use crate::layout::ALIGN;
use crate::names::Form;
use crate::open::{Checkpoint, Part, header_holds};
use crate::part::PayloadRow;
use crate::seal::{Bound, Opener};

/// Bytes of one read of a payload.
const READ_BYTES: u64 = 16 << 20;

/// Reads of one payload in flight: one is on its way while others are compared.
const READS_IN_FLIGHT: usize = 4;

/// A chunk as it is expected in a payload.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) record: ChunkRecord,
    pub(super) place: Place,
    /// Which slice of the part.
    pub(super) slice: usize,
    /// Its bytes in the slice.
    pub(super) span: Span,
}

/// Chunks, where they lie, and memory for that.
type Leased = (Vec<Expected>, Span, AlignedBuf);

#[derive(Debug, Clone)]
pub(super) struct PayloadJob {
    checkpoint: Checkpoint,
    /// It is the payload of the very part that is verified.
    is_own: bool,
    shared: Arc<Shared>,
}

/// What threads that compare share.
#[derive(Debug)]
struct Shared {
    key: Key,
    row: PayloadRow,
    slices: Arc<Vec<Slice>>,
    hash: HashKind,
    checks: bool,
    chunk_bytes: u32,
    /// Where something is sealed and there are keys.
    opener: Option<Arc<Opener>>,
}

impl PayloadJob {
    pub(super) async fn new(
        checkpoint: &Checkpoint,
        part: &Part,
        row: &PayloadRow,
        slices: &Arc<Vec<Slice>>,
        chunks: &[Expected],
    ) -> Result<Self> {
        let is_sealed = chunks.iter().any(|chunk| chunk.record.is_sealed);
        let opener = if is_sealed && checkpoint.has_keys() {
            Some(checkpoint.opener().await?)
        } else {
            None
        };
        let shared = Arc::new(Shared {
            key: row.key(),
            row: *row,
            slices: Arc::clone(slices),
            hash: checkpoint.manifest().hash,
            checks: checkpoint.source().checks,
            chunk_bytes: checkpoint.manifest().chunk_bytes,
            opener,
        });
        let head = &part.head;
        Ok(Self {
            checkpoint: checkpoint.clone(),
            is_own: (row.step, row.attempt, row.rank) == (head.step, head.attempt, head.rank),
            shared,
        })
    }

    /// Verify chunks in the order of their offsets.
    pub(super) async fn verify(
        &self,
        chunks: Vec<Expected>,
        report: &mut Verified,
        tell: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<()> {
        let Shared { key, row, .. } = &*self.shared;
        let size = match self.checkpoint.source().store.head(key).await {
            Ok(meta) => meta.size,
            Err(error) => {
                self.shared.lost(&chunks, &damage_or_fail(error)?, report);
                return Ok(());
            }
        };
        if size != row.bytes {
            let message = format!("it has {size} bytes, but {} were written", row.bytes);
            report.damaged(key.clone(), None, message);
        }
        self.verify_header(report).await?;
        self.verify_cover(&chunks, report);
        let (leasing, reading) = (self.clone(), self.clone());
        let groups = stream::iter(grouped(chunks))
            // Leased in order: were a later read to hold the last memory, the one before would wait for ever.
            .then(move |group| leasing.clone().lease(group))
            .map(move |leased| reading.clone().verify_group(leased));
        let mut groups = std::pin::pin!(groups.buffered(READS_IN_FLIGHT));
        while let Some((found, bytes)) = groups.try_next().await? {
            report.add(found);
            tell(bytes);
        }
        Ok(())
    }

    async fn read(&self, span: Span, memory: AlignedBuf) -> Result<(AlignedBuf, Ledger)> {
        let options = ReadOptions {
            class: Class::Background,
            ..ReadOptions::default()
        };
        let store = &self.checkpoint.source().store;
        let done = store.read_into(&self.shared.key, span, memory, &options).await?;
        Ok((done.buf, done.ledger))
    }

    async fn verify_header(&self, report: &mut Verified) -> Result<()> {
        let Shared { key, row, .. } = &*self.shared;
        if row.head_bytes == 0 {
            return Ok(());
        }
        let span = Span::first(row.head_bytes);
        let memory = self.checkpoint.source().memory(span.len() as usize).await?;
        let message = match self.read(span, memory).await {
            Ok((header, ledger)) => {
                report.ledger.merge(&ledger);
                if header_holds(row, header.get(span.relative_to(0)).unwrap_or_default()) {
                    return Ok(());
                }
                "the header is not what was written: other readers would be misled by it".to_owned()
            }
            Err(error) => damage_or_fail(error)?,
        };
        report.damage(Damage {
            object: key.clone(),
            name: None,
            slice_bytes: None,
            object_bytes: Some(span),
            message,
        });
        Ok(())
    }

    /// In the payload of this very part, header and chunks are all there is, and none lies over another.
    fn verify_cover(&self, chunks: &[Expected], report: &mut Verified) {
        let Shared { key, row, .. } = &*self.shared;
        if !self.is_own {
            return;
        }
        let align = if row.form == Form::Chunks { ALIGN } else { 1 };
        let mut at = row.head_bytes;
        for chunk in chunks {
            let span = chunk.record.span();
            at = at.checked_next_multiple_of(align).unwrap_or(at);
            if span.start() != at {
                let what = if span.start() > at {
                    "no chunk has"
                } else {
                    "more than one chunk has"
                };
                let between = Span::new(at.min(span.start()), at.max(span.start()));
                report.damage(Damage {
                    slice_bytes: None,
                    object_bytes: between.ok(),
                    ..self.shared.describe(chunk, format!("{what} these bytes"))
                });
            }
            at = at.max(span.end());
        }
        if at != row.bytes {
            let message = format!("no chunk has the bytes from {at} to the end at {}", row.bytes);
            report.damaged(key.clone(), None, message);
        }
    }

    async fn lease(self, group: Vec<Expected>) -> Result<Leased> {
        let span = self.shared.span(&group)?;
        let memory = self.checkpoint.source().memory(span.len() as usize).await?;
        Ok((group, span, memory))
    }

    /// Compare chunks that lie near each other, read at once; gives their stored bytes beside what was found.
    async fn verify_group(self, leased: Result<Leased>) -> Result<(Verified, u64)> {
        let (group, span, memory) = leased?;
        let bytes = group
            .iter()
            .map(|chunk| u64::from(chunk.record.stored_bytes))
            .sum();
        match self.read(span, memory).await {
            Ok((buf, ledger)) => {
                let mut found = self.compare(group, span, buf).await?;
                found.ledger.merge(&ledger);
                Ok((found, bytes))
            }
            // Some range of it: which, is found by reading its chunks one by one.
            Err(error) if error.kind() == ErrorKind::Io && group.len() > 1 => {
                let mut found = Verified::default();
                for chunk in group {
                    found.add(self.verify_alone(chunk).await?);
                }
                Ok((found, bytes))
            }
            Err(error) => {
                let mut found = Verified::default();
                self.shared.lost(&group, &damage_or_fail(error)?, &mut found);
                Ok((found, bytes))
            }
        }
    }

    async fn verify_alone(&self, chunk: Expected) -> Result<Verified> {
        let alone = vec![chunk];
        let span = self.shared.span(&alone)?;
        // Not of the pool: others of this payload may hold it all and wait for this one.
        let memory = AlignedBuf::alloc(span.len() as usize, forebay_io::Pages::default())?;
        match self.read(span, memory).await {
            Ok((buf, ledger)) => {
                let mut found = self.compare(alone, span, buf).await?;
                found.ledger.merge(&ledger);
                Ok(found)
            }
            Err(error) => {
                let mut found = Verified::default();
                self.shared.lost(&alone, &damage_or_fail(error)?, &mut found);
                Ok(found)
            }
        }
    }

    async fn compare(&self, group: Vec<Expected>, span: Span, buf: AlignedBuf) -> Result<Verified> {
        let shared = Arc::clone(&self.shared);
        let comparing = tokio::task::spawn_blocking(move || {
            let bytes = buf.get(span.relative_to(span.start())).unwrap_or_default();
            shared.compare(&group, span.start(), bytes)
        });
        comparing.await.map_err(|error| {
            Error::new(ErrorKind::Internal, "verify", "hashing was broken off").with_source(error)
        })
    }
}

/// Chunks that are read at once: as many as fit into one read, and at least one, however long it is.
fn grouped(chunks: Vec<Expected>) -> Vec<Vec<Expected>> {
    let mut groups: Vec<Vec<Expected>> = Vec::new();
    for chunk in chunks {
        let end = chunk.record.span().end();
        let fits = |first: &Expected| end <= first.record.offset.saturating_add(READ_BYTES);
        match groups.last_mut() {
            Some(group) if group.first().is_some_and(fits) => group.push(chunk),
            _ => groups.push(vec![chunk]),
        }
    }
    groups
}

impl Shared {
    /// What is read for a group: up to where the next chunk may begin, since what lies between is zero.
    fn span(&self, group: &[Expected]) -> Result<Span> {
        let start = group.first().map_or(0, |chunk| chunk.record.offset);
        let ends = group.iter().map(|chunk| chunk.record.span().end());
        let end = ends.max().unwrap_or(start);
        Span::new(start, end.max(self.padding(end).end()))
    }

    fn compare(&self, group: &[Expected], start: u64, buf: &[u8]) -> Verified {
        let mut found = Verified::default();
        for chunk in group {
            let stored = buf
                .get(chunk.record.span().relative_to(start))
                .unwrap_or_default();
            found.chunks += 1;
            found.bytes += stored.len() as u64;
            if self.checks && !chunk.record.holds(self.hash, &chunk.place, stored) {
                let is_hole = stored.iter().all(|byte| *byte == 0);
                let hole = if is_hole { ": there are only zeros" } else { "" };
                found.damage(self.describe(chunk, format!("its hash does not hold{hole}")));
                continue;
            }
            found.ledger.verified_bytes += stored.len() as u64;
            if let Some(opener) = &self.opener
                && let Err(why) = self.open(opener, chunk, stored)
            {
                found.damage(self.describe(chunk, why.to_owned()));
            }
            let padding = self.padding(chunk.record.span().end());
            let between = buf.get(padding.relative_to(start)).unwrap_or_default();
            if self.checks && between.iter().any(|byte| *byte != 0) {
                let message = "what lies behind a chunk is not zero".to_owned();
                found.damage(Damage {
                    object_bytes: Some(padding),
                    ..self.describe(chunk, message)
                });
            }
        }
        found
    }

    /// Open a chunk and decode it, as loading would.
    fn open(&self, opener: &Opener, chunk: &Expected, stored: &[u8]) -> Result<(), &'static str> {
        let slice = self.slices.get(chunk.slice);
        let chunks = slice.map_or(0, |(_, spec, _)| spec.chunks(self.chunk_bytes));
        let record = &chunk.record;
        let bound = Bound::of(record, self.row.attempt, self.row.rank, chunk.place, chunks);
        let mut sealed = stored.to_vec();
        let coded = if record.is_sealed {
            &*opener.open(&bound, &mut sealed)?
        } else {
            stored
        };
        let mut raw = vec![0; record.raw_bytes as usize];
        Decoder::new().decode((record.codec, record.parameter), coded, &mut raw)
    }

    /// What lies between the end of a chunk and where the next may begin.
    fn padding(&self, end: u64) -> Span {
        let next = match self.row.form {
            Form::Chunks => end
                .checked_next_multiple_of(ALIGN)
                .map_or(end, |next| next.min(self.row.bytes)),
            Form::Safetensors => end,
        };
        Span::new(end, next.max(end)).unwrap_or(Span::first(0))
    }

    fn describe(&self, chunk: &Expected, message: String) -> Damage {
        Damage {
            object: self.key.clone(),
            name: self.slices.get(chunk.slice).map(|(name, ..)| name.clone()),
            slice_bytes: Some(chunk.span),
            object_bytes: Some(chunk.record.span()),
            message,
        }
    }

    fn lost(&self, chunks: &[Expected], message: &str, report: &mut Verified) {
        if chunks.is_empty() {
            report.damaged(self.key.clone(), None, message.to_owned());
        }
        for chunk in chunks {
            report.damage(self.describe(chunk, message.to_owned()));
        }
    }
}
