//! What changed between two checkpoints, by names and chunk hashes: no payload is read.

use std::collections::BTreeMap;

use forebay_core::Result;
use serde::Serialize;

use crate::entry::{Content, SliceSpec};
use crate::hash::Digest;
use crate::open::Checkpoint;
use crate::part::PayloadRow;

/// How a name differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "change")]
pub enum Change {
    /// Only the second has it.
    Added,
    /// Only the first has it.
    Removed,
    /// Another dtype, shape or kind.
    Shape,
    /// Other slices: what changed in them cannot be told from hashes.
    Resharded,
    /// Sealed by other data keys, so that only chunks that both share are known to be the same.
    Sealed {
        /// Bytes of the chunks that are not shared.
        bytes: u64,
    },
    /// Some chunks differ.
    Content {
        /// Bytes of the chunks that differ.
        bytes: u64,
    },
}

/// A name that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The name.
    pub name: String,
    /// How.
    #[serde(flatten)]
    pub change: Change,
}

/// What changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// Names that differ, in order.
    pub differences: Vec<Difference>,
    /// Names that do not.
    pub same: u64,
    /// Bytes of slices that are the same.
    pub bytes_same: u64,
    /// Bytes of chunks that differ.
    pub bytes_changed: u64,
}

/// What stands under a name: slices with where their chunks are, or something else as its bytes.
#[derive(Debug, Default, PartialEq, Eq)]
struct Named {
    slices: Vec<(SliceSpec, u32, u64)>,
    others: Vec<Vec<u8>>,
}

/// Compare two checkpoints.
pub async fn diff(old: &Checkpoint, new: &Checkpoint) -> Result<Diff> {
    let (before, after) = (named(old).await?, named(new).await?);
    let mut diff = Diff::default();
    let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let change = match (before.get(name), after.get(name)) {
            (None, _) => Some(Change::Added),
            (_, None) => Some(Change::Removed),
            (Some(before), Some(after)) => compare(old, new, before, after, &mut diff).await?,
        };
        match change {
            None => diff.same += 1,
            Some(change) => {
                if let Change::Content { bytes } | Change::Sealed { bytes } = &change {
                    diff.bytes_changed += bytes;
                }
                diff.differences.push(Difference {
                    name: name.clone(),
                    change,
                });
            }
        }
    }
    Ok(diff)
}

async fn named(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Named>> {
    let mut all: BTreeMap<String, Named> = BTreeMap::new();
    for found in checkpoint.entries().await? {
        let named = all.entry(found.entry.name.clone()).or_default();
        match found.entry.content {
            Content::Slice { spec, first_chunk } => named.slices.push((spec, found.rank, first_chunk)),
            Content::Value(span) | Content::Opaque(span) => {
                let part = checkpoint.part(found.rank).await?;
                named.others.push(part.value(span).await?);
            }
            Content::Alias(_) => {
                let mut bytes = Vec::new();
                found.entry.put(&mut bytes);
                named.others.push(bytes);
            }
        }
    }
    Ok(all)
}

async fn compare(
    old: &Checkpoint,
    new: &Checkpoint,
    before: &Named,
    after: &Named,
    diff: &mut Diff,
) -> Result<Option<Change>> {
    let kind = |named: &Named| {
        let first = named.slices.first();
        first.map(|(spec, ..)| (spec.dtype, spec.shape.clone()))
    };
    if kind(before) != kind(after) {
        return Ok(Some(Change::Shape));
    }
    if before.slices.is_empty() {
        let bytes = after.others.iter().map(|bytes| bytes.len() as u64).sum();
        return Ok((before.others != after.others).then_some(Change::Content { bytes }));
    }
    let specs = |named: &Named| {
        named
            .slices
            .iter()
            .map(|(spec, ..)| spec.clone())
            .collect::<Vec<_>>()
    };
    let is_comparable = specs(before) == specs(after)
        && old.manifest().chunk_bytes == new.manifest().chunk_bytes
        && old.manifest().hash == new.manifest().hash;
    if !is_comparable {
        return Ok(Some(Change::Resharded));
    }
    let chunk_bytes = new.manifest().chunk_bytes;
    let is_sealed = old.manifest().is_sealed() || new.manifest().is_sealed();
    let has_one_key = old.manifest().attempt == new.manifest().attempt;
    let mut changed = 0;
    for ((spec, rank, first), (_, new_rank, new_first)) in before.slices.iter().zip(&after.slices) {
        let count = spec.chunks(chunk_bytes);
        let was = contents(old, *rank, *first, count).await?;
        let is = contents(new, *new_rank, *new_first, count).await?;
        let is_same = |was: &Chunk, is: &Chunk| {
            // Ids under two keys say nothing; lying at one place says all.
            was.lies == is.lies || was.id == is.id && (!is_sealed || has_one_key)
        };
        let differ = was.iter().zip(&is).filter(|(was, is)| !is_same(was, is));
        let bytes: u64 = differ.map(|(_, is)| is.bytes).sum();
        changed += bytes;
        diff.bytes_same += spec.bytes() - bytes;
    }
    Ok(match changed {
        0 => None,
        bytes if is_sealed && !has_one_key => Some(Change::Sealed { bytes }),
        bytes => Some(Change::Content { bytes }),
    })
}

/// A chunk as far as contents are told apart.
#[derive(Debug)]
struct Chunk {
    bytes: u64,
    id: Digest,
    /// Payload and offset in it.
    lies: (PayloadRow, u64),
}

async fn contents(checkpoint: &Checkpoint, rank: u32, first: u64, count: u64) -> Result<Vec<Chunk>> {
    let part = checkpoint.part(rank).await?;
    let chunks = part.chunks(first, count).await?;
    let ids = part.content_ids(first, &chunks).await?;
    let contents = chunks.iter().zip(ids).map(|(chunk, id)| {
        Ok(Chunk {
            bytes: u64::from(chunk.raw_bytes),
            id,
            lies: (*part.payload(chunk)?, chunk.offset),
        })
    });
    contents.collect()
}
