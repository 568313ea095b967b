//! Verifies a checkpoint: every page, every chunk, every header, and that what one level says agrees with the next. Damage is named, not only found.
//!
//! ```text
//! some ranks at once: part -> entries, values -> what must lie where -> [payload]: some reads at once, hashed by other threads
//! then the [index]:   its entries, counted, against those of all parts
//! ```

mod index;
mod payload;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use self::index::Tally;
use self::payload::{Expected, PayloadJob};
use crate::entry::{Content, Entry, SliceSpec};
use crate::names::{Piece, piece_key};
use crate::open::{Checkpoint, Part};
use crate::tree::Kind;
use crate::value::Value;

/// Ranks verified at once: hides the latency of an object store where each has little.
const RANKS_AT_ONCE: usize = 4;

/// Damages that a report names one by one: enough to see a pattern; more are counted.
pub const DAMAGES_KEPT_MAX: usize = 1000;

/// Something that is not as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The object.
    pub object: Key,
    /// The tensor or value that cannot be read for it, where it is one.
    pub name: Option<String>,
    /// Which bytes of the slice.
    pub slice_bytes: Option<Span>,
    /// Which bytes of the object.
    pub object_bytes: Option<Span>,
    /// In words.
    pub message: String,
}

/// What verifying found.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Verified {
    /// Parts that were opened.
    pub parts: u64,
    /// Entries that were read.
    pub entries: u64,
    /// Chunks that were compared with their hash.
    pub chunks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// What is damaged.
    pub damages: Vec<Damage>,
    /// Damages beyond those named.
    pub damages_more: u64,
    /// Which way the bytes came.
    pub ledger: Ledger,
}

impl Verified {
    /// True when nothing is damaged.
    pub fn is_whole(&self) -> bool {
        self.damages.is_empty()
    }

    /// Add what was found elsewhere.
    fn add(&mut self, other: Self) {
        self.parts += other.parts;
        self.entries += other.entries;
        self.chunks += other.chunks;
        self.bytes += other.bytes;
        self.damages_more += other.damages_more;
        self.ledger.merge(&other.ledger);
        for damage in other.damages {
            self.damage(damage);
        }
    }

    fn damage(&mut self, damage: Damage) {
        if self.damages.len() < DAMAGES_KEPT_MAX {
            self.damages.push(damage);
        } else {
            self.damages_more += 1;
        }
    }

    fn damaged(&mut self, object: Key, name: Option<String>, message: String) {
        self.damage(Damage {
            object,
            name,
            slice_bytes: None,
            object_bytes: None,
            message,
        });
    }
}

/// A slice of the part that is verified: its name, what it is, and its first chunk.
type Slice = (String, SliceSpec, u64);

/// Verify everything that a checkpoint needs. Errors are failures to look; damage is in the report. `tell` is given bytes as they are compared.
pub async fn verify(checkpoint: &Checkpoint, tell: &(dyn Fn(u64) + Send + Sync)) -> Result<Verified> {
    let ranks = stream::iter(0..checkpoint.manifest().world());
    let ranks = ranks.map(|rank| verify_rank(checkpoint, rank, tell).boxed());
    let mut ranks = ranks.buffered(RANKS_AT_ONCE);
    let mut report = Verified::default();
    let mut tally = Some(Tally::default());
    while let Some((of_rank, counted)) = ranks.try_next().await? {
        report.add(of_rank);
        tally = tally.zip(counted).map(|(all, counted)| all + counted);
    }
    index::verify(checkpoint, tally, &mut report).await?;
    report.ledger.merge(&checkpoint.ledger());
    Ok(report)
}

/// What is damage, in words; what only says that nobody could look, as the error it is. A disk that cannot read a range has lost it.
fn damage_or_fail(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Corrupt
        | ErrorKind::NotFound
        | ErrorKind::InvalidInput
        | ErrorKind::Precondition
        | ErrorKind::Io => Ok(error.to_string()),
        _ => Err(error),
    }
}

/// What one rank saved, and its entries counted; not those of a part that cannot be read.
async fn verify_rank(
    checkpoint: &Checkpoint,
    rank: u32,
    tell: &(dyn Fn(u64) + Send + Sync),
) -> Result<(Verified, Option<Tally>)> {
    let mut report = Verified::default();
    let manifest = checkpoint.manifest();
    let key = piece_key(manifest.step, manifest.attempt, Piece::Part(rank));
    // Not kept open: there may be thousands.
    let part = match checkpoint.open_part(rank).await {
        Ok(part) => part,
        Err(error) => {
            report.damaged(key, None, damage_or_fail(error)?);
            return Ok((report, None));
        }
    };
    report.parts += 1;
    let verified = verify_part(checkpoint, &part, &key, &mut report, tell).await;
    report.ledger.merge(&part.file.ledger());
    match verified {
        Ok(tally) => {
            if let Some(row) = manifest.parts.get(rank as usize) {
                verify_size(checkpoint, &key, row.bytes, &mut report).await?;
            }
            Ok((report, Some(tally)))
        }
        Err(error) => {
            report.damaged(key, None, damage_or_fail(error)?);
            Ok((report, None))
        }
    }
}

/// What lies behind the end of an object is read by nobody, and is damage all the same: it is not what was written.
async fn verify_size(checkpoint: &Checkpoint, key: &Key, bytes: u64, report: &mut Verified) -> Result<()> {
    let message = match checkpoint.source().store.head(key).await {
        Ok(meta) if meta.size == bytes => return Ok(()),
        Ok(meta) => format!("it has {} bytes, but {bytes} were written", meta.size),
        Err(error) => damage_or_fail(error)?,
    };
    report.damaged(key.clone(), None, message);
    Ok(())
}

async fn verify_part(
    checkpoint: &Checkpoint,
    part: &Part,
    key: &Key,
    report: &mut Verified,
    tell: &(dyn Fn(u64) + Send + Sync),
) -> Result<Tally> {
    let mut entries = Vec::new();
    let mut tally = Tally::default();
    let mut keep = |entry: Entry| {
        tally.count(part.head.rank, &entry);
        entries.push(entry);
        Ok(())
    };
    part.file.scan(&part.head.entries, &mut keep).await?;
    report.entries += entries.len() as u64;
    let mut slices = Vec::new();
    for entry in entries {
        match entry.content {
            Content::Slice { spec, first_chunk } => slices.push((entry.name, spec, first_chunk)),
            Content::Value(span) => {
                let value = part.value(span).await.and_then(|bytes| Value::decode(&bytes));
                if let Err(error) = value {
                    report.damaged(key.clone(), Some(entry.name), damage_or_fail(error)?);
                }
            }
            Content::Opaque(span) => {
                if let Err(error) = part.value(span).await {
                    report.damaged(key.clone(), Some(entry.name), damage_or_fail(error)?);
                }
            }
            Content::Alias(_) => {}
        }
    }
    // Loading does not need them, but the next incremental save does.
    let ids = &part.head.content_ids;
    part.file.numbered(Kind::ContentIds, ids, 0, ids.records).await?;
    let expected = expected_chunks(checkpoint, part, key, &slices, report).await?;
    let slices = Arc::new(slices);
    for (payload, mut chunks) in expected {
        let Some(row) = part.head.payloads.get(payload as usize) else {
            continue;
        };
        chunks.sort_by_key(|chunk| chunk.record.offset);
        let job = PayloadJob::new(checkpoint, part, row, &slices, &chunks).await?;
        job.verify(chunks, report, tell).await?;
    }
    Ok(tally)
}

/// What must lie where, by payload.
async fn expected_chunks(
    checkpoint: &Checkpoint,
    part: &Part,
    key: &Key,
    slices: &[Slice],
    report: &mut Verified,
) -> Result<BTreeMap<u32, Vec<Expected>>> {
    let chunk_bytes = checkpoint.manifest().chunk_bytes;
    // Each payload that the part names, also one in which nothing is left.
    let payloads = 0..part.head.payloads.len() as u32;
    let mut expected: BTreeMap<u32, Vec<Expected>> = payloads.map(|payload| (payload, Vec::new())).collect();
    let mut counted = 0;
    for (index, (name, spec, first_chunk)) in slices.iter().enumerate() {
        let count = spec.chunks(chunk_bytes);
        counted += count;
        let records = match part.chunks(*first_chunk, count).await {
            Ok(records) => records,
            Err(error) => {
                report.damaged(key.clone(), Some(name.clone()), damage_or_fail(error)?);
                continue;
            }
        };
        let id = spec.id(name);
        for (number, record) in (0..).zip(records) {
            let span = spec.chunk_span(number, chunk_bytes);
            if u64::from(record.raw_bytes) != span.len() {
                let message = "a chunk has another length than its place".to_owned();
                report.damaged(key.clone(), Some(name.clone()), message);
            }
            expected.entry(record.payload).or_default().push(Expected {
                place: spec.place(&id, number, chunk_bytes),
                record,
                slice: index,
                span,
            });
        }
    }
    if counted != part.head.chunks.records {
        let message = format!(
            "slices have {counted} chunks, but the part has {}",
            part.head.chunks.records
        );
        report.damaged(key.clone(), None, message);
    }
    Ok(expected)
}
