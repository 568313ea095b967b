//! Verifies a checkpoint: every page, every chunk, every header, and that what one level says agrees with the next. Damage is named, not only found.

use std::collections::BTreeMap;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::Class;
use forebay_store::ReadOptions;
use serde::Serialize;

use crate::codec::Decoder;
use crate::entry::{ChunkRecord, Content, Entry, SliceSpec};
use crate::hash::Place;
use crate::layout::ALIGN;
use crate::names::Form;
use crate::open::{Checkpoint, Part, header_holds};
use crate::part::PayloadRow;
use crate::seal::{Bound, Opener};
use crate::tree::Kind;
use crate::value::Value;

/// Bytes of one read of a payload.
const READ_BYTES: u64 = 16 << 20;

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

/// A chunk as it is expected in a payload.
#[derive(Debug)]
struct Expected {
    record: ChunkRecord,
    place: Place,
    /// Which slice of the part.
    slice: usize,
    /// Its bytes in the slice.
    span: Span,
}

/// Verify everything that a checkpoint needs. Errors are failures to look; damage is in the report. `tell` is given bytes as they are compared.
pub async fn verify(checkpoint: &Checkpoint, tell: &(dyn Fn(u64) + Send + Sync)) -> Result<Verified> {
    let mut report = Verified::default();
    for rank in 0..checkpoint.manifest().world() {
        let key = crate::names::piece_key(
            checkpoint.step(),
            checkpoint.manifest().attempt,
            crate::names::Piece::Part(rank),
        );
        let part = match checkpoint.part(rank).await {
            Ok(part) => part,
            Err(error) => {
                report.damaged(key, None, damage_or_fail(error)?);
                continue;
            }
        };
        report.parts += 1;
        if let Err(error) = verify_part(checkpoint, &part, &key, &mut report, tell).await {
            report.damaged(key, None, damage_or_fail(error)?);
        }
    }
    verify_index(checkpoint, &mut report).await?;
    report.ledger.merge(&checkpoint.ledger());
    Ok(report)
}

/// What is damage, in words; what only says that nobody could look, as the error it is.
fn damage_or_fail(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::InvalidInput | ErrorKind::Precondition => {
            Ok(error.to_string())
        }
        _ => Err(error),
    }
}

async fn verify_part(
    checkpoint: &Checkpoint,
    part: &Part,
    key: &Key,
    report: &mut Verified,
    tell: &(dyn Fn(u64) + Send + Sync),
) -> Result<()> {
    let mut entries = Vec::new();
    let mut keep = |entry: Entry| {
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
    for (payload, mut chunks) in expected {
        let Some(row) = part.head.payloads.get(payload as usize) else {
            continue;
        };
        chunks.sort_by_key(|chunk| chunk.record.offset);
        let job = PayloadJob {
            checkpoint,
            part,
            row,
            slices: &slices,
        };
        job.verify(&chunks, report, tell).await?;
    }
    Ok(())
}

/// What must lie where, by payload.
async fn expected_chunks(
    checkpoint: &Checkpoint,
    part: &Part,
    key: &Key,
    slices: &[(String, SliceSpec, u64)],
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

struct PayloadJob<'a> {
    checkpoint: &'a Checkpoint,
    part: &'a Part,
    row: &'a PayloadRow,
    slices: &'a [(String, SliceSpec, u64)],
}

impl PayloadJob<'_> {
    async fn verify(
        &self,
        chunks: &[Expected],
        report: &mut Verified,
        tell: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<()> {
        let key = self.row.key();
        let size = match self.checkpoint.source().store.head(&key).await {
            Ok(meta) => meta.size,
            Err(error) => {
                self.lost(&key, chunks, &damage_or_fail(error)?, report);
                return Ok(());
            }
        };
        if size != self.row.bytes {
            let message = format!("it has {size} bytes, but {} were written", self.row.bytes);
            report.damaged(key.clone(), None, message);
        }
        self.verify_header(&key, report).await?;
        self.verify_cover(&key, chunks, report);
        let mut rest = chunks;
        while let Some(first) = rest.first() {
            let start = first.record.offset;
            let near = |chunk: &Expected| chunk.record.span().end() <= start.saturating_add(READ_BYTES);
            // At least one, however long it is.
            let count = rest.iter().take_while(|chunk| near(chunk)).count().max(1);
            let (group, more) = rest.split_at(count);
            rest = more;
            self.verify_group(&key, group, report).await?;
            tell(
                group
                    .iter()
                    .map(|chunk| u64::from(chunk.record.stored_bytes))
                    .sum(),
            );
        }
        Ok(())
    }

    async fn read(&self, key: &Key, span: Span, report: &mut Verified) -> Result<forebay_io::Buf> {
        let options = ReadOptions {
            class: Class::Background,
            ..ReadOptions::default()
        };
        let source = self.checkpoint.source();
        let memory = source.memory(span.len() as usize).await?;
        let done = source.store.read_into(key, span, memory, &options).await?;
        report.ledger.merge(&done.ledger);
        Ok(done.buf.freeze().slice(..span.len() as usize))
    }

    async fn verify_header(&self, key: &Key, report: &mut Verified) -> Result<()> {
        if self.row.head_bytes == 0 {
            return Ok(());
        }
        let span = Span::first(self.row.head_bytes);
        let message = match self.read(key, span, report).await {
            Ok(header) if header_holds(self.row, &header) => return Ok(()),
            Ok(_) => "the header is not what was written: other readers would be misled by it".to_owned(),
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
    fn verify_cover(&self, key: &Key, chunks: &[Expected], report: &mut Verified) {
        let head = &self.part.head;
        let is_own = (self.row.step, self.row.attempt, self.row.rank) == (head.step, head.attempt, head.rank);
        if !is_own {
            return;
        }
        let align = if self.row.form == Form::Chunks { ALIGN } else { 1 };
        let mut at = self.row.head_bytes;
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
                let message = format!("{what} these bytes");
                report.damage(Damage {
                    object: key.clone(),
                    name: self.slices.get(chunk.slice).map(|(name, ..)| name.clone()),
                    slice_bytes: None,
                    object_bytes: between.ok(),
                    message,
                });
            }
            at = at.max(span.end());
        }
        if at != self.row.bytes {
            let message = format!(
                "no chunk has the bytes from {at} to the end at {}",
                self.row.bytes
            );
            report.damaged(key.clone(), None, message);
        }
    }

    /// Compare chunks that lie near each other, read at once.
    async fn verify_group(&self, key: &Key, group: &[Expected], report: &mut Verified) -> Result<()> {
        let start = group.first().map_or(0, |chunk| chunk.record.offset);
        let end = group
            .iter()
            .map(|chunk| chunk.record.span().end())
            .max()
            .unwrap_or(start);
        // Up to where the next chunk may begin: what lies between is zero.
        let end = end.max(self.padding(end).end());
        let buf = match self.read(key, Span::new(start, end)?, report).await {
            Ok(buf) => buf,
            Err(error) => {
                self.lost(key, group, &damage_or_fail(error)?, report);
                return Ok(());
            }
        };
        let hash = self.checkpoint.manifest().hash;
        let checks = self.checkpoint.source().checks;
        let is_sealed = group.iter().any(|chunk| chunk.record.is_sealed);
        let opener = if is_sealed && self.checkpoint.has_keys() {
            Some(self.checkpoint.opener().await?)
        } else {
            None
        };
        for chunk in group {
            let stored = buf
                .get(chunk.record.span().relative_to(start))
                .unwrap_or_default();
            report.chunks += 1;
            report.bytes += stored.len() as u64;
            if checks && !chunk.record.holds(hash, &chunk.place, stored) {
                let is_hole = stored.iter().all(|byte| *byte == 0);
                let hole = if is_hole { ": there are only zeros" } else { "" };
                report.damage(self.describe(key, chunk, format!("its hash does not hold{hole}")));
                continue;
            }
            report.ledger.verified_bytes += stored.len() as u64;
            if let Some(opener) = &opener
                && let Err(why) = self.open(opener, chunk, stored)
            {
                report.damage(self.describe(key, chunk, why.to_owned()));
            }
            let padding = self.padding(chunk.record.span().end());
            let between = buf.get(padding.relative_to(start)).unwrap_or_default();
            if checks && between.iter().any(|byte| *byte != 0) {
                let message = "what lies behind a chunk is not zero".to_owned();
                report.damage(Damage {
                    object_bytes: Some(padding),
                    ..self.describe(key, chunk, message)
                });
            }
        }
        Ok(())
    }

    /// Open a chunk and decode it, as loading would.
    fn open(&self, opener: &Opener, chunk: &Expected, stored: &[u8]) -> Result<(), &'static str> {
        let slice = self.slices.get(chunk.slice);
        let chunks = slice.map_or(0, |(_, spec, _)| {
            spec.chunks(self.checkpoint.manifest().chunk_bytes)
        });
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

    fn describe(&self, key: &Key, chunk: &Expected, message: String) -> Damage {
        Damage {
            object: key.clone(),
            name: self.slices.get(chunk.slice).map(|(name, ..)| name.clone()),
            slice_bytes: Some(chunk.span),
            object_bytes: Some(chunk.record.span()),
            message,
        }
    }

    fn lost(&self, key: &Key, chunks: &[Expected], message: &str, report: &mut Verified) {
        if chunks.is_empty() {
            report.damaged(key.clone(), None, message.to_owned());
        }
        for chunk in chunks {
            report.damage(self.describe(key, chunk, message.to_owned()));
        }
    }
}

/// The index says what the parts say.
async fn verify_index(checkpoint: &Checkpoint, report: &mut Verified) -> Result<()> {
    let manifest = checkpoint.manifest();
    if manifest.index.is_none() {
        return Ok(());
    }
    let key = crate::names::piece_key(manifest.step, manifest.attempt, crate::names::Piece::Index);
    let message = match (checkpoint.entries().await, checkpoint.entries_of_parts().await) {
        (Ok(of_index), Ok(of_parts)) if of_index == of_parts => return Ok(()),
        (Ok(_), Ok(_)) => "the index has other entries than the parts".to_owned(),
        (Err(error), _) => damage_or_fail(error)?,
        // Told before.
        (Ok(_), Err(error)) => return damage_or_fail(error).map(drop),
    };
    report.damaged(key, None, message);
    Ok(())
}
