//! What one rank saves: from items to a payload and a part.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_store::{StoreExt, WriteCheck};

use super::hash::{self, Job};
use super::known::{Known, find_known};
use super::pack::{self, Body, Written};
use super::payload::Payload;
use super::prepare::{Other, Prepared, Slice, prepare};
use super::supply::{Fill, Supply};
use super::{Item, Save};
use crate::entry::{ChunkRecord, Content, Entry};
use crate::hash::Digest;
use crate::names::{Attempt, Piece, piece_key};
use crate::part::{PartBuilder, PartHead, PayloadRow};
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
    /// Rounds in which bytes were filled that were not in memory; 0 where all were.
    pub rounds: u64,
    /// Which way the bytes went.
    pub ledger: Ledger,
}

pub(super) async fn save(
    save: &Save,
    rank: u32,
    items: Vec<Item>,
    fill: Option<Arc<dyn Fill>>,
) -> Result<RankSaved> {
    let prepared = prepare(items, save.options.chunk_bytes, fill.is_some())?;
    let (saved, _) = save_prepared(save, rank, prepared, fill, None).await?;
    Ok(saved)
}

/// Save what is prepared. Where the ids of all chunks are `given`, what is written must have them. Gives how far what arrived was checked, too.
pub(super) async fn save_prepared(
    save: &Save,
    rank: u32,
    Prepared { slices, others }: Prepared,
    fill: Option<Arc<dyn Fill>>,
    given: Option<&[Digest]>,
) -> Result<(RankSaved, [Option<WriteCheck>; 2])> {
    let supply = Supply::new(fill);
    let (mut ids, mut known, mut base_trouble) = (None, HashMap::new(), None);
    if save.base.is_some() {
        // What the base has decides what is written, so all ids are needed first.
        let found = match given {
            Some(given) => given.to_vec(),
            None => {
                let all = jobs(&slices, save.options.chunk_bytes)?;
                hash::all(&supply, save.base_id_kind(), all).await?
            }
        };
        (known, base_trouble) = find_known(save, rank, &slices, &found).await?;
        if let Some(why) = &base_trouble {
            tracing::warn!(
                why,
                rank,
                "the checkpoint before is damaged, and nothing is built upon it"
            );
        }
        ids = Some(own_ids(save, &supply, &slices, &known, found).await?);
    }
    let payload = |known| Payload::plan(save, rank, &slices, known);
    let (written, ids) = if save.packs() {
        let body = Body::of_chunks(save, rank, &slices, |number| known.contains_key(&number))?;
        store_packed(save, &supply, body, &slices, ids).await?
    } else if supply.is_streamed() {
        let body = payload(&known)?.map(Payload::into_body).transpose()?;
        store_packed(save, &supply, body, &slices, ids).await?
    } else {
        store_raw(save, payload(&known)?, &slices, ids).await?
    };
    if let Some(given) = given {
        check_ids(given, &written)?;
    }
    let rounds = supply.rounds();
    // Whoever fills need not wait for the part to be written.
    drop(supply);
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
        rounds,
        ledger: Ledger::default(),
    };
    let mut builder = builder(save, rank, &done);
    push_slices(&mut builder, &slices, &ids, &known, &written)?;
    push_others(&mut builder, others)?;
    let part = builder.finish()?;
    let key = piece_key(save.options.step, save.options.attempt, Piece::Part(rank));
    let how = save.put_options();
    let put = save.source.store.put_bytes(&key, &part, &how).await?;
    ledger.merge(&put.ledger);
    ledger.merge(&save.base_ledger());
    done.ledger = ledger;
    Ok((done, [written.check, Some(put.check)]))
}

/// What was read and written is what its ids say.
fn check_ids(given: &[Digest], written: &Written) -> Result<()> {
    let is_same = |(number, id): (&usize, &Digest)| given.get(*number) == Some(id);
    if written.ids.iter().all(is_same) {
        return Ok(());
    }
    let message = "a chunk holds its hash, but its bytes are not those that were saved";
    Err(Error::new(ErrorKind::Corrupt, "save", message))
}

/// Ids of the known chunks as this checkpoint has them, from those of the base: sealed ones have keys of their own.
async fn own_ids(
    save: &Save,
    supply: &Supply,
    slices: &[Slice],
    known: &HashMap<usize, Known>,
    mut ids: Vec<Digest>,
) -> Result<Vec<Digest>> {
    if !save.is_sealed() {
        return Ok(ids);
    }
    let all = jobs(slices, save.options.chunk_bytes)?.into_iter().enumerate();
    let (numbers, again): (Vec<usize>, Vec<Job>) =
        all.filter(|(number, _)| known.contains_key(number)).unzip();
    let found = hash::all(supply, save.id_kind(), again).await?;
    for (number, id) in numbers.into_iter().zip(found) {
        if let Some(place) = ids.get_mut(number) {
            *place = id;
        }
    }
    Ok(ids)
}

/// Write chunk after chunk; gives the ids of all, of those that were written as they were then.
async fn store_packed(
    save: &Save,
    supply: &Supply,
    body: Option<Body>,
    slices: &[Slice],
    ids: Option<Vec<Digest>>,
) -> Result<(Written, Vec<Digest>)> {
    let written = match body {
        Some(body) => pack::write(save, supply, body).await?,
        None => Written::default(),
    };
    let ids = with_written(slices, ids, &written);
    Ok((written, ids))
}

/// Write what is in memory as it is, hashing it on the way where that was not done before.
async fn store_raw(
    save: &Save,
    payload: Option<Payload<'_>>,
    slices: &[Slice],
    ids: Option<Vec<Digest>>,
) -> Result<(Written, Vec<Digest>)> {
    let kind = ids.is_none().then(|| save.id_kind());
    let mut written = match payload {
        Some(payload) => payload.write(save, kind).await?,
        None => Written::default(),
    };
    if ids.is_none() && written.ids.len() != written.records.len() {
        return Err(lost());
    }
    let ids = with_written(slices, ids, &written);
    for (number, record) in &mut written.records {
        record.hash = ids.get(*number).copied().ok_or_else(lost)?;
    }
    Ok((written, ids))
}

/// The ids of all chunks: those that were known before, and those that were made while writing.
fn with_written(slices: &[Slice], ids: Option<Vec<Digest>>, written: &Written) -> Vec<Digest> {
    let count = slices.iter().map(|slice| slice.chunks as usize).sum();
    let mut ids = ids.unwrap_or_else(|| vec![Digest::default(); count]);
    for (number, id) in &written.ids {
        if let Some(place) = ids.get_mut(*number) {
            *place = *id;
        }
    }
    ids
}

fn lost() -> Error {
    let message = "a chunk was not written and hashed, nor referenced";
    Error::new(ErrorKind::Internal, "save", message)
}

fn jobs(slices: &[Slice], chunk_bytes: u32) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for slice in slices {
        for number in 0..slice.chunks {
            let bytes = slice.bytes.slice(slice.spec.chunk_span(number, chunk_bytes))?;
            jobs.push((slice.spec.place(&slice.id, number, chunk_bytes), bytes));
        }
    }
    Ok(jobs)
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
