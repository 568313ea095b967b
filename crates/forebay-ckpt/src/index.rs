//! The index of a checkpoint: entries of all parts in one tree, so that a tensor is found without opening every part. Pure bytes.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use forebay_core::{Error, ErrorKind, Result};

use crate::entry::{Content, Entry};
use crate::hash::Digest;
use crate::names::{Attempt, WORLD_MAX};
use crate::part::{ENTRIES_MAX, FORMAT, check_chunk_bytes, put_trailer, take_format};
use crate::tree::{Kind, NamedBuilder, Root};
use crate::wire::{Cursor, Wire, cursor};

const MAGIC: &[u8; 8] = b"FBAYINDX";

/// What an index says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexHead {
    pub(crate) step: u64,
    pub(crate) attempt: Attempt,
    pub(crate) world: u32,
    pub(crate) chunk_bytes: u32,
    pub(crate) entries: Root,
}

impl IndexHead {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        out.put_u32(FORMAT);
        out.put_u64(self.step);
        out.extend_from_slice(&self.attempt.0);
        out.put_u32(self.world);
        out.put_u32(self.chunk_bytes);
        self.entries.put(out);
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = cursor(bytes, "head of the index");
        if cursor.array::<8>()? != *MAGIC {
            return Err(cursor.corrupt("this is no index of a checkpoint"));
        }
        take_format(&mut cursor)?;
        let (step, attempt) = (cursor.u64()?, Attempt(cursor.array()?));
        let (world, chunk_bytes) = (cursor.u32()?, cursor.u32()?);
        if world == 0 || world > WORLD_MAX {
            return Err(cursor.corrupt("it has an impossible number of ranks"));
        }
        check_chunk_bytes(chunk_bytes).map_err(|why| cursor.corrupt(why))?;
        let entries = Root::take(&mut cursor, Kind::Index, ENTRIES_MAX * u64::from(WORLD_MAX))?;
        cursor.finish()?;
        Ok(Self {
            step,
            attempt,
            world,
            chunk_bytes,
            entries,
        })
    }
}

/// An entry of the part of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Whose part it is in.
    pub rank: u32,
    /// The entry.
    pub entry: Entry,
}

impl Found {
    /// What they are sorted by.
    pub(crate) fn order(&self) -> (&str, &[u64], u32) {
        let (name, offsets) = self.entry.order();
        (name, offsets, self.rank)
    }

    pub(crate) fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let rank = cursor.varint()?;
        let Some(rank) = u32::try_from(rank).ok().filter(|rank| *rank < WORLD_MAX) else {
            return Err(cursor.corrupt("an entry is of a rank that cannot be"));
        };
        let entry = Entry::take(cursor)?;
        Ok(Self { rank, entry })
    }
}

/// An index as it is stored.
#[derive(Debug)]
pub(crate) struct IndexBytes {
    pub(crate) bytes: Vec<u8>,
    pub(crate) hash: Digest,
    pub(crate) head_bytes: u32,
}

/// Entries of a part as they lie in it, in their order, one after the other: a tenth of the memory that they take as entries.
#[derive(Debug, Default)]
pub(crate) struct PartEntries {
    rank: u32,
    entries: u64,
    bytes: Vec<u8>,
}

impl PartEntries {
    pub(crate) fn new(rank: u32) -> Self {
        Self {
            rank,
            ..Self::default()
        }
    }

    /// Add the next one.
    pub(crate) fn push(&mut self, entry: &Entry) {
        entry.put(&mut self.bytes);
        self.entries += 1;
    }
}

/// The next entry of a part that is merged with others; those that come first are greater, as heaps want it.
struct Head<'a> {
    found: Found,
    left: u64,
    rest: Cursor<'a>,
}

impl<'a> Head<'a> {
    fn of(rank: u32, left: u64, mut rest: Cursor<'a>) -> Result<Option<Self>> {
        let Some(left) = left.checked_sub(1) else {
            return Ok(None);
        };
        let entry = Entry::take(&mut rest)?;
        let found = Found { rank, entry };
        Ok(Some(Self { found, left, rest }))
    }
}

impl Ord for Head<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.found.order().cmp(&self.found.order())
    }
}

impl PartialOrd for Head<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head<'_> {}

/// Neighbours in the order of the index are of one tensor, or have different names.
fn check_alike(before: &Found, found: &Found) -> Result<()> {
    let (Content::Slice { spec: a, .. }, Content::Slice { spec: b, .. }) =
        (&before.entry.content, &found.entry.content)
    else {
        return Ok(());
    };
    if before.entry.name != found.entry.name || (a.dtype, &a.shape) == (b.dtype, &b.shape) {
        return Ok(());
    }
    let message = format!(
        "tensor {:?} is {} {:?} on rank {} and {} {:?} on rank {}",
        found.entry.name, a.dtype, a.shape, before.rank, b.dtype, b.shape, found.rank
    );
    Err(Error::new(ErrorKind::InvalidInput, "commit", message)
        .with_hint("give what each rank has for itself a name of its own"))
}

/// Write the index of the entries of all parts, merging them. `head.entries` is filled in. Slices of one name that are not of one tensor are refused: it could
/// be loaded by nobody.
pub(crate) fn encode(mut head: IndexHead, parts: &[PartEntries]) -> Result<IndexBytes> {
    let mut heads = BinaryHeap::new();
    for part in parts {
        let rest = cursor(&part.bytes, "entries");
        heads.extend(Head::of(part.rank, part.entries, rest)?);
    }
    let mut bytes = Vec::new();
    let mut tree = NamedBuilder::new(&mut bytes, Kind::Index);
    let mut record = Vec::new();
    let mut before: Option<Found> = None;
    while let Some(Head { found, left, rest }) = heads.pop() {
        if let Some(before) = &before {
            check_alike(before, &found)?;
        }
        record.clear();
        record.put_varint(u64::from(found.rank));
        found.entry.put(&mut record);
        tree.push(&found.entry.name, &record);
        heads.extend(Head::of(found.rank, left, rest)?);
        before = Some(found);
    }
    head.entries = tree.finish();
    let mut head_bytes = Vec::new();
    head.put(&mut head_bytes);
    let (hash, head_bytes) = put_trailer(&mut bytes, &head_bytes);
    Ok(IndexBytes {
        bytes,
        hash,
        head_bytes,
    })
}
