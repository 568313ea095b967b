//! The objects that a checkpoint consists of, in the order in which they are brought to another place, each with what its bytes must be.
//!
//! ```text
//! payload: header (hash in its row) + chunks (hashes in the part of the rank that wrote it)
//! part, index: pages (hashes in the pointers to them) + head (hash in the manifest) + trailer (follows from the head)
//! ```
//!
//! A payload of an earlier attempt is checked by that attempt's own part as long as the attempt is a checkpoint. After that, only the chunks that are still
//! referenced can be checked, and only these can ever be read.

use std::collections::HashMap;

use forebay_core::{ErrorKind, Result, Span};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::seal::{Check, Gaps, Seal, Sealed};
use crate::entry::{Content, Entry};
use crate::hash::sha256;
use crate::manifest::FileRow;
use crate::names::{Attempt, Piece, piece_key};
use crate::open::Checkpoint;
use crate::pages::PageFile;
use crate::part::{PayloadRow, trailer};
use crate::tree::{Kind, Root};

/// Parts that are gone through at once: hides the latency of an object store.
const PARTS_AT_ONCE: usize = 8;

/// Chunks of orphans that are looked for in one pass over all parts, about a hundred bytes each.
const ORPHAN_CHUNKS_MAX: u64 = 1 << 20;

/// A payload's place among others.
type Order = (u64, Attempt, u32);

/// Payloads in which chunks are looked for.
type Wanted = HashMap<Order, PayloadRow>;

/// Checkpoints whose own payloads others reference, as they are met; none where they are no checkpoints any more.
#[derive(Debug, Default)]
pub(super) struct Owners(HashMap<(u64, Attempt), Option<Checkpoint>>);

/// Payloads by who speaks for them.
#[derive(Debug, Default)]
pub(super) struct Spoken {
    /// The checkpoint that wrote them.
    pub(super) owned: Vec<PayloadRow>,
    /// Nobody but those that reference them: in groups, each of which takes a pass over all parts.
    pub(super) orphans: Vec<Vec<PayloadRow>>,
}

/// Sort payloads that the checkpoint names.
pub(super) async fn sort(
    checkpoint: &Checkpoint,
    rows: Vec<PayloadRow>,
    owners: &mut Owners,
) -> Result<Spoken> {
    let mut spoken = Spoken::default();
    let chunk_bytes = u64::from(checkpoint.manifest().chunk_bytes);
    let mut chunks = ORPHAN_CHUNKS_MAX;
    for row in rows {
        if owners.of(checkpoint, &row).await?.is_some() {
            spoken.owned.push(row);
            continue;
        }
        chunks += row.bytes / chunk_bytes + 1;
        match spoken.orphans.last_mut().filter(|_| chunks <= ORPHAN_CHUNKS_MAX) {
            Some(group) => group.push(row),
            None => {
                chunks = row.bytes / chunk_bytes + 1;
                spoken.orphans.push(vec![row]);
            }
        }
    }
    Ok(spoken)
}

/// What payloads must be whose own checkpoints are there.
pub(super) async fn owned(
    checkpoint: &Checkpoint,
    rows: &[PayloadRow],
    owners: &mut Owners,
) -> Result<Vec<Sealed>> {
    let mut sealed = Vec::with_capacity(rows.len());
    for row in rows {
        let owner = owners.of(checkpoint, row).await?;
        let owner = owner.as_ref().unwrap_or(checkpoint);
        let found = collect(owner, row.rank, &Wanted::from([(row.order(), *row)])).await?;
        let seals = found.into_iter().map(|(_, seal)| seal).collect();
        sealed.push(seal_payload(row, seals, Gaps::Zeros)?);
    }
    Ok(sealed)
}

/// What payloads must be that only references speak for: found in one pass over all parts of the checkpoint.
pub(super) async fn orphans(checkpoint: &Checkpoint, rows: &[PayloadRow]) -> Result<Vec<Sealed>> {
    let wanted: Wanted = rows.iter().map(|row| (row.order(), *row)).collect();
    let mut found: HashMap<Order, Vec<Seal>> = HashMap::new();
    let ranks = stream::iter(0..checkpoint.manifest().world());
    let mut parts = ranks
        .map(|rank| collect(checkpoint, rank, &wanted))
        .buffered(PARTS_AT_ONCE);
    while let Some(seals) = parts.try_next().await? {
        for (order, seal) in seals {
            found.entry(order).or_default().push(seal);
        }
    }
    let rows = rows.iter();
    let sealed = rows.map(|row| seal_payload(row, found.remove(&row.order()).unwrap_or_default(), Gaps::Any));
    sealed.collect()
}

fn seal_payload(row: &PayloadRow, mut seals: Vec<Seal>, gaps: Gaps) -> Result<Sealed> {
    seals.push(Seal {
        span: Span::first(row.head_bytes),
        check: Check::Bytes(row.head_hash),
    });
    Sealed::new(row.key(), row.bytes, seals, gaps)
}

impl Owners {
    /// The checkpoint whose own payload it is, while that is one.
    async fn of(&mut self, checkpoint: &Checkpoint, row: &PayloadRow) -> Result<Option<Checkpoint>> {
        let id = (row.step, row.attempt);
        let manifest = checkpoint.manifest();
        if (manifest.step, manifest.attempt) == id {
            return Ok(Some(checkpoint.clone()));
        }
        let known = self.0.get(&id).cloned();
        let owner = match known {
            Some(owner) => owner,
            None => find_owner(checkpoint, row).await?,
        };
        self.0.insert(id, owner.clone());
        Ok(owner.filter(|owner| owner.manifest().names(row)))
    }
}

async fn find_owner(checkpoint: &Checkpoint, row: &PayloadRow) -> Result<Option<Checkpoint>> {
    match Checkpoint::open_with(checkpoint.source().clone(), row.step).await {
        Ok(owner) => Ok(Some(owner).filter(|owner| owner.manifest().attempt == row.attempt)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Chunks that the part of a rank has in these payloads.
async fn collect(checkpoint: &Checkpoint, rank: u32, wanted: &Wanted) -> Result<Vec<(Order, Seal)>> {
    let part = checkpoint.open_part(rank).await?;
    let mut rows = part.head.payloads.iter();
    if !rows.any(|row| wanted.contains_key(&row.order())) {
        return Ok(Vec::new());
    }
    let mut slices = Vec::new();
    let mut keep = |entry: Entry| {
        if let Content::Slice { spec, first_chunk } = entry.content {
            slices.push((entry.name, spec, first_chunk));
        }
        Ok(())
    };
    part.file.scan(&part.head.entries, &mut keep).await?;
    let manifest = checkpoint.manifest();
    let mut seals = Vec::new();
    for (name, spec, first_chunk) in slices {
        let id = spec.id(&name);
        let records = part
            .chunks(first_chunk, spec.chunks(manifest.chunk_bytes))
            .await?;
        for (number, record) in (0..).zip(records) {
            let order = part.payload(&record)?.order();
            if wanted.contains_key(&order) {
                let place = spec.place(&id, number, manifest.chunk_bytes);
                let check = Check::Chunk(manifest.hash, place, record.hash);
                let span = record.span();
                seals.push((order, Seal { span, check }));
            }
        }
    }
    Ok(seals)
}

/// What the part of a rank must be.
pub(super) async fn part(checkpoint: &Checkpoint, rank: u32, row: &FileRow) -> Result<Sealed> {
    let part = checkpoint.open_part(rank).await?;
    let manifest = checkpoint.manifest();
    let mut head = Vec::new();
    part.head.put(&mut head);
    let trees = [
        (Kind::Entries, &part.head.entries),
        (Kind::Chunks, &part.head.chunks),
        (Kind::Values, &part.head.values),
        (Kind::ContentIds, &part.head.content_ids),
    ];
    let key = piece_key(manifest.step, manifest.attempt, Piece::Part(rank));
    seal_pages(key, row, &part.file, &trees, &head).await
}

/// What the index must be.
pub(super) async fn index(checkpoint: &Checkpoint, row: &FileRow) -> Result<Option<Sealed>> {
    let manifest = checkpoint.manifest();
    let Some((file, index)) = checkpoint.index_file().await? else {
        return Ok(None);
    };
    let mut head = Vec::new();
    index.put(&mut head);
    let key = piece_key(manifest.step, manifest.attempt, Piece::Index);
    let trees = [(Kind::Index, &index.entries)];
    Ok(Some(seal_pages(key, row, file, &trees, &head).await?))
}

async fn seal_pages(
    key: forebay_core::Key,
    row: &FileRow,
    file: &PageFile,
    trees: &[(Kind, &Root)],
    head: &[u8],
) -> Result<Sealed> {
    let mut seals = Vec::new();
    for (kind, root) in trees {
        for pointer in file.pointers(*kind, root).await? {
            seals.push(Seal {
                span: Span::at(pointer.offset, pointer.len.into())?,
                check: Check::Bytes(pointer.hash),
            });
        }
    }
    // Head and trailer are the end of the file, and the trailer follows from the head and the length.
    let trailer = trailer(row.bytes, head);
    let trailer_start = row.bytes.saturating_sub(trailer.len() as u64);
    let head_start = trailer_start.saturating_sub(row.head_bytes.into());
    seals.push(Seal {
        span: Span::new(head_start, trailer_start)?,
        check: Check::Bytes(row.hash),
    });
    seals.push(Seal {
        span: Span::new(trailer_start, row.bytes)?,
        check: Check::Bytes(sha256(&[&trailer])),
    });
    Sealed::new(key, row.bytes, seals, Gaps::Zeros)
}
