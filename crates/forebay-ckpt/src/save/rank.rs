//! What one rank saves: from items to a payload and a part.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{Error, ErrorKind, Ledger, Result, Span};
use forebay_io::Buf;
use forebay_store::StoreExt;

use super::hash::{self, Job};
use super::prepare::{Other, Prepared, Slice, prepare};
use super::write::{self, Segments};
use super::{Item, Save};
use crate::entry::{ChunkRecord, Codec, Content, Entry, SliceSpec};
use crate::hash::{Digest, sha256};
use crate::index::Found;
use crate::layout::{Stored, lay_out};
use crate::names::{Attempt, Form, Piece, piece_key};
use crate::part::{FORMAT, PartBuilder, PartHead, PayloadRow};
use crate::tree::Root;

/// What a rank has saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankSaved {
    /// Bytes of all slices.
    pub raw_bytes: u64,
    /// Bytes of the payload that was written.
    pub written_bytes: u64,
    /// Bytes that the base has, which were referenced.
    pub referenced_bytes: u64,
    /// Chunks of all slices.
    pub chunks: u64,
    /// Those that were referenced.
    pub chunks_referenced: u64,
    /// Which way the bytes went.
    pub ledger: Ledger,
}

/// A chunk that is there already.
#[derive(Debug, Clone, Copy)]
struct Known {
    record: ChunkRecord,
    payload: PayloadRow,
}

pub(super) async fn save(save: &Save, rank: u32, items: Vec<Item>) -> Result<RankSaved> {
    let chunk_bytes = save.options.chunk_bytes;
    let Prepared { slices, others } = prepare(items, chunk_bytes)?;
    let hashing = hash::start(save.options.hash, jobs(&slices, chunk_bytes));
    let (hashes, known, hashing) = match &save.base {
        // What the base has decides what is written, so all hashes are needed first.
        Some(_) => {
            let hashes = hashing.finish().await?;
            let known = find_known(save, rank, &slices, &hashes).await?;
            (hashes, known, None)
        }
        None => (Vec::new(), HashMap::new(), Some(hashing)),
    };
    let written = write_payload(save, rank, &slices, &known).await;
    let hashes = match hashing {
        // Also after a failed write: threads must not go on behind the caller's back.
        Some(hashing) => hashing.finish().await?,
        None => hashes,
    };
    let written = written?;
    let mut ledger = written.ledger.clone();
    let mut done = RankSaved {
        raw_bytes: slices.iter().map(|slice| slice.spec.bytes()).sum(),
        written_bytes: written.row.map_or(0, |row| row.bytes),
        referenced_bytes: known
            .values()
            .map(|known| u64::from(known.record.raw_bytes))
            .sum(),
        chunks: hashes.len() as u64,
        chunks_referenced: known.len() as u64,
        ledger: Ledger::default(),
    };
    let mut builder = builder(save, rank, &done);
    push_slices(&mut builder, save, &slices, &hashes, &known, &written)?;
    push_others(&mut builder, others)?;
    let part = builder.finish()?;
    let key = piece_key(save.options.step, save.options.attempt, Piece::Part(rank));
    let how = save.put_options();
    let put = save.source.store.put_bytes(&key, &part, &how);
    ledger.merge(&put.await?.ledger);
    ledger.merge(&save.base_ledger());
    done.ledger = ledger;
    Ok(done)
}

fn jobs(slices: &[Slice], chunk_bytes: u32) -> Vec<Job> {
    let mut jobs = Vec::new();
    for slice in slices {
        let id = slice.spec.id(&slice.name);
        for number in 0..slice.chunks {
            let span = slice.spec.chunk_span(number, chunk_bytes);
            jobs.push(Job {
                place: slice.spec.place(&id, number, chunk_bytes),
                bytes: slice.bytes.slice(span.relative_to(0)),
            });
        }
    }
    jobs
}

/// The same slice in the base, by name and offsets.
async fn slices_of_base(save: &Save, rank: u32, slices: &[Slice]) -> Result<HashMap<usize, (u32, u64)>> {
    let mut found = HashMap::new();
    let Some(base) = &save.base else { return Ok(found) };
    let mut wanted: HashMap<(&str, &SliceSpec), usize> = HashMap::new();
    for (index, slice) in slices.iter().enumerate() {
        wanted.insert((&slice.name, &slice.spec), index);
    }
    // Most often the ranks are the same, and one's own part has it all.
    if rank < base.manifest().world() {
        let part = base.part(rank).await?;
        let mut keep = |entry: Entry| {
            if let Content::Slice { spec, first_chunk } = &entry.content
                && let Some(index) = wanted.get(&(entry.name.as_str(), spec))
            {
                found.insert(*index, (rank, *first_chunk));
            }
            Ok(())
        };
        part.file.scan(&part.head.entries, &mut keep).await?;
    }
    if base.manifest().index.is_some() {
        for (index, slice) in slices.iter().enumerate() {
            if found.contains_key(&index) {
                continue;
            }
            for Found { rank, entry } in base.find(&slice.name).await? {
                if let Content::Slice { spec, first_chunk } = entry.content
                    && spec == slice.spec
                {
                    found.insert(index, (rank, first_chunk));
                }
            }
        }
    }
    Ok(found)
}

/// Chunks of the base with the same hash at the same place, by their number here.
async fn find_known(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    hashes: &[Digest],
) -> Result<HashMap<usize, Known>> {
    let mut known = HashMap::new();
    let Some(base) = &save.base else { return Ok(known) };
    for (index, (rank, first_chunk)) in slices_of_base(save, rank, slices).await? {
        let Some(slice) = slices.get(index) else { continue };
        let part = base.part(rank).await?;
        let records = part.chunks(first_chunk, slice.chunks).await?;
        for (number, record) in (slice.first_chunk..).zip(records) {
            let is_plain = record.codec == Codec::Raw && !record.is_sealed;
            if is_plain && hashes.get(number) == Some(&record.hash) {
                let payload = *part.payload(&record)?;
                known.insert(number, Known { record, payload });
            }
        }
    }
    Ok(known)
}

/// A payload that was written, and where each run of chunks lies in it.
#[derive(Debug, Default)]
struct Written {
    row: Option<PayloadRow>,
    /// By the number of a chunk.
    offsets: HashMap<usize, u64>,
    ledger: Ledger,
}

/// Runs of neighbouring chunks of a slice that are not known: slice, first chunk in it, chunks.
fn unknown_runs(slices: &[Slice], known: &HashMap<usize, Known>) -> Vec<(usize, u64, u64)> {
    let mut runs: Vec<(usize, u64, u64)> = Vec::new();
    for (index, slice) in slices.iter().enumerate() {
        if slice.chunks == 0 {
            // Without bytes, but in the file all the same, for those who read it as it is.
            runs.push((index, 0, 0));
        }
        for number in 0..slice.chunks {
            if known.contains_key(&(slice.first_chunk + number as usize)) {
                continue;
            }
            match runs.last_mut() {
                Some((of, first, count)) if *of == index && *first + *count == number => *count += 1,
                _ => runs.push((index, number, 1)),
            }
        }
    }
    runs
}

async fn write_payload(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    known: &HashMap<usize, Known>,
) -> Result<Written> {
    let chunk_bytes = save.options.chunk_bytes;
    let runs = unknown_runs(slices, known);
    if runs.iter().all(|(_, _, count)| *count == 0) && (runs.is_empty() || save.base.is_some()) {
        return Ok(Written::default());
    }
    let mut stored = Vec::with_capacity(runs.len());
    for (index, first, count) in &runs {
        if let Some(slice) = slices.get(*index) {
            let start = first * u64::from(chunk_bytes);
            let end = (start + count * u64::from(chunk_bytes)).min(slice.spec.bytes());
            let span = Span::new(start, end)?;
            stored.push(Stored {
                name: &slice.name,
                spec: &slice.spec,
                span,
            });
        }
    }
    let (step, attempt) = (save.options.step, save.options.attempt);
    let layout = lay_out(&stored, file_metadata(step, attempt, rank))?;
    let mut segments = Segments::default();
    let mut offsets = HashMap::new();
    segments.push(Buf::copy_of(&layout.header)?);
    for (at, place) in &layout.placed {
        let (Some((index, first, count)), Some(run)) = (runs.get(*at), stored.get(*at)) else {
            continue;
        };
        let Some(slice) = slices.get(*index) else { continue };
        segments.push(slice.bytes.slice(run.span.relative_to(0)));
        for number in 0..*count {
            let offset = place.start() + number * u64::from(chunk_bytes);
            offsets.insert(slice.first_chunk + (first + number) as usize, offset);
        }
    }
    let row = PayloadRow {
        step,
        attempt,
        rank,
        form: Form::Safetensors,
        bytes: layout.bytes,
        head_bytes: layout.header.len() as u64,
        head_hash: sha256(&[&layout.header]),
    };
    let ledger = write::write(&save.source, &row.key(), &segments, &save.put_options()).await?;
    let row = Some(row);
    Ok(Written { row, offsets, ledger })
}

fn file_metadata(step: u64, attempt: Attempt, rank: u32) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("forebay.format".to_owned(), FORMAT.to_string()),
        ("forebay.step".to_owned(), step.to_string()),
        ("forebay.attempt".to_owned(), attempt.to_string()),
        ("forebay.rank".to_owned(), rank.to_string()),
    ])
}

fn builder(save: &Save, rank: u32, done: &RankSaved) -> PartBuilder {
    let options = &save.options;
    PartBuilder::new(PartHead {
        step: options.step,
        attempt: options.attempt,
        rank,
        world: options.world,
        hash: options.hash,
        chunk_bytes: options.chunk_bytes,
        raw_bytes: done.raw_bytes,
        written_bytes: done.written_bytes,
        features: Vec::new(),
        payloads: Vec::new(),
        entries: Root::default(),
        chunks: Root::default(),
        values: Root::default(),
        content_ids: Root::default(),
    })
}

fn push_slices(
    builder: &mut PartBuilder,
    save: &Save,
    slices: &[Slice],
    hashes: &[Digest],
    known: &HashMap<usize, Known>,
    written: &Written,
) -> Result<()> {
    let mut payloads: HashMap<(u64, Attempt, u32), u32> = HashMap::new();
    let mut number_of = |builder: &mut PartBuilder, row: PayloadRow| {
        *payloads.entry(row.order()).or_insert_with(|| {
            builder.head.payloads.push(row);
            builder.head.payloads.len() as u32 - 1
        })
    };
    if let Some(row) = written.row {
        number_of(builder, row);
    }
    let lost = || {
        Error::new(
            ErrorKind::Internal,
            "save",
            "a chunk was neither written nor referenced",
        )
    };
    for slice in slices {
        let first_chunk = builder.next_chunk();
        for number in 0..slice.chunks {
            let at = slice.first_chunk + number as usize;
            let record = if let Some(known) = known.get(&at) {
                ChunkRecord {
                    payload: number_of(builder, known.payload),
                    ..known.record
                }
            } else {
                let bytes = slice.spec.chunk_span(number, save.options.chunk_bytes).len() as u32;
                let row = written.row.ok_or_else(lost)?;
                ChunkRecord {
                    payload: number_of(builder, row),
                    codec: Codec::Raw,
                    is_sealed: false,
                    parameter: 0,
                    offset: written.offsets.get(&at).copied().ok_or_else(lost)?,
                    stored_bytes: bytes,
                    raw_bytes: bytes,
                    number: 0,
                    hash: hashes.get(at).copied().ok_or_else(lost)?,
                }
            };
            builder.push_chunk(&record);
        }
        builder.push_entry(Entry {
            name: slice.name.clone(),
            content: Content::Slice {
                spec: slice.spec.clone(),
                first_chunk,
            },
        });
    }
    Ok(())
}

fn push_others(builder: &mut PartBuilder, others: Vec<(String, Other)>) -> Result<()> {
    for (name, other) in others {
        let content = match other {
            Other::Value(bytes) => Content::Value(builder.push_value(&bytes)?),
            Other::Opaque(bytes) => Content::Opaque(builder.push_value(&bytes)?),
            Other::Alias(alias) => Content::Alias(alias),
        };
        builder.push_entry(Entry { name, content });
    }
    Ok(())
}
