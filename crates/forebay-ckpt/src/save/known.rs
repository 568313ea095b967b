//! What the base has already: chunks with the same content at the same place, in payloads that are there.
//!
//! A base that is damaged is not built upon: where its parts cannot be read, nothing is known, and what lies in a payload that is missing or has another length
//! is written anew.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{ErrorKind, Result};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::base::is_of_base;
use super::prepare::Slice;
use super::{Base, Save};
use crate::entry::{ChunkRecord, Content, Entry, SliceSpec};
use crate::hash::Digest;
use crate::index::Found;
use crate::names::Attempt;
use crate::part::PayloadRow;

/// Payloads looked for at once: hides the latency of an object store.
const HEADS_AT_ONCE: usize = 16;

/// A chunk that is there already.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) record: ChunkRecord,
    pub(super) payload: PayloadRow,
}

/// The same slice in the base, by name and offsets.
async fn slices_of_base(save: &Save, rank: u32, slices: &[Slice]) -> Result<HashMap<usize, (u32, u64)>> {
    let mut found = HashMap::new();
    let Some(Base { checkpoint: base, .. }) = &save.base else {
        return Ok(found);
    };
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

/// Chunks of the base with the same content id at the same place, by their number here; and what is wrong with the base, where something is.
pub(super) async fn find_known(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    ids: &[Digest],
) -> Result<(HashMap<usize, Known>, Option<String>)> {
    let mut known = match find_in_parts(save, rank, slices, ids).await {
        Ok(known) => known,
        Err(error) if is_of_base(&error) => return Ok((HashMap::new(), Some(error.to_string()))),
        Err(error) => return Err(error),
    };
    let lost = find_lost(save, &known).await?;
    known.retain(|_, known| !lost.contains_key(&known.payload.order()));
    let why = lost
        .into_values()
        .next()
        .map(|row| format!("{} of the base is not there, or has another length", row.key()));
    Ok((known, why))
}

/// Payloads that are not there as their rows say.
async fn find_lost(
    save: &Save,
    known: &HashMap<usize, Known>,
) -> Result<BTreeMap<(u64, Attempt, u32), PayloadRow>> {
    let rows = known.values().map(|known| (known.payload.order(), known.payload));
    let rows: BTreeMap<_, _> = rows.collect();
    let looks = stream::iter(rows).map(|(order, row)| async move {
        match save.source.store.head(&row.key()).await {
            Ok(meta) if meta.size == row.bytes => Ok(None),
            Ok(_) => Ok(Some((order, row))),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io) => {
                Ok(Some((order, row)))
            }
            Err(error) => Err(error),
        }
    });
    let lost: Vec<_> = looks.buffered(HEADS_AT_ONCE).try_collect().await?;
    Ok(lost.into_iter().flatten().collect())
}

async fn find_in_parts(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    ids: &[Digest],
) -> Result<HashMap<usize, Known>> {
    let mut known = HashMap::new();
    let Some(Base { checkpoint: base, .. }) = &save.base else {
        return Ok(known);
    };
    for (index, (rank, first_chunk)) in slices_of_base(save, rank, slices).await? {
        let Some(slice) = slices.get(index) else { continue };
        let part = base.part(rank).await?;
        let records = part.chunks(first_chunk, slice.chunks).await?;
        let ids_there = part.content_ids(first_chunk, &records).await?;
        for (number, (record, id)) in (slice.first_chunk..).zip(records.into_iter().zip(ids_there)) {
            if ids.get(number) == Some(&id) {
                let payload = *part.payload(&record)?;
                known.insert(number, Known { record, payload });
            }
        }
    }
    Ok(known)
}
