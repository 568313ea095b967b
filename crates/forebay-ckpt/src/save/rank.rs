//! What one rank saves: from items to a payload and a part.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{Error, ErrorKind, Ledger, Result, Span};
use forebay_io::Buf;
use forebay_store::StoreExt;

use super::hash::{self, Job};
use super::known::{Known, find_known};
use super::pack::{self, Written};
use super::prepare::{Other, Prepared, Slice, prepare};
use super::write::{self, Segments};
use super::{Item, Save};
use crate::entry::{ChunkRecord, Codec, Content, Entry};
use crate::hash::{Digest, sha256};
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
    /// What is wrong with the checkpoint that it was compared with, so that it was written although nothing may have changed.
    pub base_trouble: Option<String>,
    /// Which way the bytes went.
    pub ledger: Ledger,
}

pub(super) async fn save(save: &Save, rank: u32, items: Vec<Item>) -> Result<RankSaved> {
    let chunk_bytes = save.options.chunk_bytes;
    let Prepared { slices, others } = prepare(items, chunk_bytes)?;
    let (mut ids, mut known, mut base_trouble) = (None, HashMap::new(), None);
    if save.base.is_some() {
        // What the base has decides what is written, so all ids are needed first.
        let all = jobs(&slices, chunk_bytes);
        let found = hash::start(&save.base_id_kind(), all).finish().await?;
        (known, base_trouble) = find_known(save, rank, &slices, &found).await?;
        if let Some(why) = &base_trouble {
            tracing::warn!(
                why,
                rank,
                "the checkpoint before is damaged, and nothing is built upon it"
            );
        }
        ids = Some(own_ids(save, &slices, &known, found).await?);
    }
    let (written, ids) = if save.packs() {
        store_packed(save, rank, &slices, &known, ids).await?
    } else {
        store_raw(save, rank, &slices, &known, ids).await?
    };
    let mut ledger = written.ledger.clone();
    let mut done = RankSaved {
        raw_bytes: slices.iter().map(|slice| slice.spec.bytes()).sum(),
        written_bytes: written.row.map_or(0, |row| row.bytes),
        referenced_bytes: known
            .values()
            .map(|known| u64::from(known.record.raw_bytes))
            .sum(),
        chunks: ids.len() as u64,
        chunks_referenced: known.len() as u64,
        base_trouble,
        ledger: Ledger::default(),
    };
    let mut builder = builder(save, rank, &done);
    push_slices(&mut builder, &slices, &ids, &known, &written)?;
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

/// Ids of the known chunks as this checkpoint has them, from those of the base: sealed ones have keys of their own.
async fn own_ids(
    save: &Save,
    slices: &[Slice],
    known: &HashMap<usize, Known>,
    mut ids: Vec<Digest>,
) -> Result<Vec<Digest>> {
    if !save.is_sealed() {
        return Ok(ids);
    }
    let all = jobs(slices, save.options.chunk_bytes).into_iter().enumerate();
    let (numbers, again): (Vec<usize>, Vec<Job>) =
        all.filter(|(number, _)| known.contains_key(number)).unzip();
    let found = hash::start(&save.id_kind(), again).finish().await?;
    for (number, id) in numbers.into_iter().zip(found) {
        if let Some(place) = ids.get_mut(number) {
            *place = id;
        }
    }
    Ok(ids)
}

/// Compress and write what is not known; gives the ids of all chunks.
async fn store_packed(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    known: &HashMap<usize, Known>,
    ids: Option<Vec<Digest>>,
) -> Result<(Written, Vec<Digest>)> {
    let written = pack::write(save, rank, slices, |number| known.contains_key(&number)).await?;
    let count = slices.iter().map(|slice| slice.chunks as usize).sum();
    let mut ids = ids.unwrap_or_else(|| vec![Digest::default(); count]);
    for (number, id) in &written.ids {
        if let Some(place) = ids.get_mut(*number) {
            *place = *id;
        }
    }
    Ok((written, ids))
}

/// Write what is not known as it is, hashing it beside where that was not done before.
async fn store_raw(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    known: &HashMap<usize, Known>,
    ids: Option<Vec<Digest>>,
) -> Result<(Written, Vec<Digest>)> {
    let start = || hash::start(&save.id_kind(), jobs(slices, save.options.chunk_bytes));
    let hashing = if ids.is_none() { Some(start()) } else { None };
    let written = write_payload(save, rank, slices, known).await;
    let ids = match hashing {
        // Also after a failed write: threads must not go on behind the caller's back.
        Some(hashing) => hashing.finish().await?,
        None => ids.unwrap_or_default(),
    };
    let mut written = written?;
    for (number, record) in &mut written.records {
        record.hash = ids.get(*number).copied().ok_or_else(lost)?;
    }
    Ok((written, ids))
}

fn lost() -> Error {
    let message = "a chunk was neither written nor referenced";
    Error::new(ErrorKind::Internal, "save", message)
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
    let mut records = HashMap::new();
    segments.push(Buf::copy_of(&layout.header)?);
    for (at, place) in &layout.placed {
        let (Some((index, first, count)), Some(run)) = (runs.get(*at), stored.get(*at)) else {
            continue;
        };
        let Some(slice) = slices.get(*index) else { continue };
        segments.push(slice.bytes.slice(run.span.relative_to(0)));
        for number in 0..*count {
            let bytes = slice.spec.chunk_span(first + number, chunk_bytes).len() as u32;
            let record = ChunkRecord {
                payload: 0,
                codec: Codec::Raw,
                is_sealed: false,
                parameter: 0,
                offset: place.start() + number * u64::from(chunk_bytes),
                stored_bytes: bytes,
                raw_bytes: bytes,
                number: 0,
                hash: Digest::default(),
            };
            records.insert(slice.first_chunk + (first + number) as usize, record);
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
    Ok(Written {
        row: Some(row),
        records,
        ledger,
        ..Written::default()
    })
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
    slices: &[Slice],
    ids: &[Digest],
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
    for slice in slices {
        let first_chunk = builder.next_chunk();
        for number in 0..slice.chunks {
            let at = slice.first_chunk + number as usize;
            let (record, row) = match known.get(&at) {
                Some(known) => (known.record, known.payload),
                None => {
                    let record = written.records.get(&at).copied().ok_or_else(lost)?;
                    (record, written.row.ok_or_else(lost)?)
                }
            };
            let payload = number_of(builder, row);
            let id = ids.get(at).ok_or_else(lost)?;
            builder.push_chunk(&ChunkRecord { payload, ..record }, id);
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
