//! Trees of pages: how parts and indexes are made findable and checkable piece by piece.
//!
//! A page holds records (a leaf) or pointers to pages (an inner page), and a pointer holds the hash of its page. So the root's hash covers all, and reading one
//! record takes one page of each level, each checked by the pointer it was found by.
//!
//! ```text
//! numbered: [p p p] -> [r r r r][r r r r][r r]          page of record n: by division
//! named:    [a.. m..] -> [a b c][m m n o]               page of a name: by comparison
//! ```
//!
//! This file is pure: bytes in, bytes out. `pages.rs` fetches pages from stores.

use forebay_core::{Error, ErrorKind, Result};

use crate::hash::{Digest, sha256};
use crate::wire::{Cursor, Wire, cursor};

#[cfg(test)]
mod tests;

/// Most bytes of a page. Small enough that looking up one tensor reads kilobytes, large enough that a million slices take three levels.
pub(crate) const PAGE_BYTES: usize = 16 << 10;

/// Bytes before the records of a page.
pub(crate) const PAGE_HEAD_BYTES: usize = 16;

/// Bytes of a pointer.
pub(crate) const POINTER_BYTES: usize = 44;

/// Most levels of a tree: with at least two children per page, more than any count of pages needs.
pub(crate) const LEVELS_MAX: u8 = 16;

const MAGIC: &[u8; 4] = b"FBPG";

/// Pointers in an inner page of a numbered tree.
const FANOUT: u64 = ((PAGE_BYTES - PAGE_HEAD_BYTES) / POINTER_BYTES) as u64;

/// Which tree a page is of: a good page of another tree is not taken for one of this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Entries,
    Chunks,
    Values,
    ContentIds,
    Index,
}

impl Kind {
    const fn number(self) -> u8 {
        match self {
            Self::Entries => 1,
            Self::Chunks => 2,
            Self::Values => 3,
            Self::ContentIds => 4,
            Self::Index => 5,
        }
    }

    /// Bytes of a record, for numbered trees.
    pub(crate) const fn record_bytes(self) -> Option<usize> {
        match self {
            Self::Chunks => Some(64),
            Self::Values => Some(1),
            Self::ContentIds => Some(32),
            Self::Entries | Self::Index => None,
        }
    }
}

/// Where a page is and what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pointer {
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) hash: Digest,
}

impl Pointer {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.offset);
        out.put_u32(self.len);
        out.extend_from_slice(&self.hash);
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let pointer = Self {
            offset: cursor.u64()?,
            len: cursor.u32()?,
            hash: cursor.array()?,
        };
        let fits = (PAGE_HEAD_BYTES..=PAGE_BYTES).contains(&(pointer.len as usize));
        if !fits || pointer.offset.checked_add(pointer.len.into()).is_none() {
            return Err(cursor.corrupt("a pointer names no page"));
        }
        Ok(pointer)
    }
}

/// The top of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Root {
    pub(crate) records: u64,
    /// Level of the top page plus one; 0 for a tree without records.
    pub(crate) levels: u8,
    pub(crate) top: Option<Pointer>,
}

impl Root {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.records);
        out.push(self.levels);
        if let Some(top) = &self.top {
            top.put(out);
        }
    }

    pub(crate) fn take(cursor: &mut Cursor<'_>, kind: Kind, records_max: u64) -> Result<Self> {
        let (records, levels) = (cursor.u64()?, cursor.u8()?);
        if records > records_max || levels > LEVELS_MAX || (records == 0) != (levels == 0) {
            return Err(cursor.corrupt("a tree has an impossible number of records or levels"));
        }
        let expected = kind
            .record_bytes()
            .map(|bytes| pages_by_level(records, bytes).len());
        if expected.is_some_and(|expected| expected != usize::from(levels)) {
            return Err(cursor.corrupt("a tree has other levels than its records need"));
        }
        let top = if levels > 0 {
            Some(Pointer::take(cursor)?)
        } else {
            None
        };
        Ok(Self { records, levels, top })
    }
}

/// Records of a full leaf of a numbered tree.
pub(crate) const fn leaf_records(record_bytes: usize) -> u64 {
    ((PAGE_BYTES - PAGE_HEAD_BYTES) / record_bytes) as u64
}

/// Pages of each level of a numbered tree, leaves first.
pub(crate) fn pages_by_level(records: u64, record_bytes: usize) -> Vec<u64> {
    let mut levels = Vec::new();
    let mut pages = records.div_ceil(leaf_records(record_bytes));
    while pages > 0 {
        levels.push(pages);
        if pages == 1 {
            break;
        }
        pages = pages.div_ceil(FANOUT);
    }
    levels
}

/// Puts a page behind what is in `out`, whose byte 0 is that of the file.
fn put_page(out: &mut Vec<u8>, kind: Kind, level: u8, records: u32, content: &[u8]) -> Pointer {
    let offset = out.len() as u64;
    let len = (PAGE_HEAD_BYTES + content.len()) as u32;
    let start = out.len();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[kind.number(), level, 0, 0]);
    out.put_u32(records);
    out.put_u32(len);
    out.extend_from_slice(content);
    let hash = sha256(&[out.get(start..).unwrap_or_default()]);
    Pointer { offset, len, hash }
}

/// Write a numbered tree of `records`, one after the other.
pub(crate) fn put_numbered(out: &mut Vec<u8>, kind: Kind, records: &[u8]) -> Root {
    let record_bytes = kind.record_bytes().unwrap_or(1);
    let page_bytes = leaf_records(record_bytes) as usize * record_bytes;
    let mut pointers: Vec<Pointer> = records
        .chunks(page_bytes)
        .map(|content| put_page(out, kind, 0, (content.len() / record_bytes) as u32, content))
        .collect();
    let mut levels = u8::from(!pointers.is_empty());
    while pointers.len() > 1 {
        pointers = pointers
            .chunks(FANOUT as usize)
            .map(|children| {
                let mut content = Vec::with_capacity(children.len() * POINTER_BYTES);
                for child in children {
                    child.put(&mut content);
                }
                put_page(out, kind, levels, children.len() as u32, &content)
            })
            .collect();
        levels += 1;
    }
    Root {
        records: (records.len() / record_bytes) as u64,
        levels,
        top: pointers.first().copied(),
    }
}

/// Writes a named tree from records in order.
#[derive(Debug)]
pub(crate) struct NamedBuilder<'a> {
    out: &'a mut Vec<u8>,
    kind: Kind,
    records: u64,
    page: Vec<u8>,
    page_records: u32,
    page_first: String,
    done: Vec<(Pointer, String)>,
}

impl<'a> NamedBuilder<'a> {
    pub(crate) fn new(out: &'a mut Vec<u8>, kind: Kind) -> Self {
        Self {
            out,
            kind,
            records: 0,
            page: Vec::new(),
            page_records: 0,
            page_first: String::new(),
            done: Vec::new(),
        }
    }

    /// Add the next record, which is about `name`.
    pub(crate) fn push(&mut self, name: &str, record: &[u8]) {
        if PAGE_HEAD_BYTES + self.page.len() + record.len() > PAGE_BYTES {
            self.close(0);
        }
        if self.page_records == 0 {
            name.clone_into(&mut self.page_first);
        }
        self.page.extend_from_slice(record);
        self.page_records += 1;
        self.records += 1;
    }

    fn close(&mut self, level: u8) {
        if self.page_records > 0 {
            let pointer = put_page(self.out, self.kind, level, self.page_records, &self.page);
            self.done.push((pointer, std::mem::take(&mut self.page_first)));
            self.page.clear();
            self.page_records = 0;
        }
    }

    pub(crate) fn finish(mut self) -> Root {
        self.close(0);
        let mut levels = u8::from(!self.done.is_empty());
        while self.done.len() > 1 {
            for (pointer, first) in std::mem::take(&mut self.done) {
                let mut record = Vec::with_capacity(POINTER_BYTES + first.len() + 2);
                pointer.put(&mut record);
                record.put_text(&first);
                if PAGE_HEAD_BYTES + self.page.len() + record.len() > PAGE_BYTES {
                    self.close(levels);
                }
                if self.page_records == 0 {
                    self.page_first = first;
                }
                self.page.extend_from_slice(&record);
                self.page_records += 1;
            }
            self.close(levels);
            levels += 1;
        }
        Root {
            records: self.records,
            levels,
            top: self.done.first().map(|(pointer, _)| *pointer),
        }
    }
}

/// A page that holds its hash: its records, and how many there are.
pub(crate) fn open_page(bytes: &[u8], kind: Kind, level: u8) -> Result<(Cursor<'_>, u32)> {
    let mut cursor = cursor(bytes, "page");
    if cursor.array::<4>()? != *MAGIC {
        return Err(cursor.corrupt("this is no page"));
    }
    let is_expected = cursor.u8()? == kind.number() && cursor.u8()? == level;
    if !is_expected {
        return Err(cursor.corrupt("this is a page of another tree or level"));
    }
    cursor.zeros(2)?;
    let (records, len) = (cursor.u32()?, cursor.u32()?);
    if len as usize != bytes.len() || records == 0 {
        return Err(cursor.corrupt("a page is empty, or of another length than it says"));
    }
    Ok((cursor, records))
}

/// Compare a page with the hash in its pointer.
pub(crate) fn check_page(bytes: &[u8], pointer: &Pointer) -> Result<()> {
    if bytes.len() == pointer.len as usize && sha256(&[bytes]) == pointer.hash {
        return Ok(());
    }
    let (start, end) = (pointer.offset, pointer.offset + u64::from(pointer.len));
    let message = format!("bytes {start}..{end} are not what was written there: their hash does not hold");
    Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message))
}

/// The pointers of an inner page of a numbered tree, of which `expected` must be there.
pub(crate) fn numbered_children(bytes: &[u8], kind: Kind, level: u8, expected: u64) -> Result<Vec<Pointer>> {
    let (mut cursor, records) = open_page(bytes, kind, level)?;
    if u64::from(records) != expected {
        return Err(cursor.corrupt("an inner page has other children than its place needs"));
    }
    let children = (0..records)
        .map(|_| Pointer::take(&mut cursor))
        .collect::<Result<_>>()?;
    cursor.finish()?;
    Ok(children)
}

/// Pages of level `level` that lie below page `page` of the level above.
pub(crate) fn children_of(page: u64, pages_below: u64) -> u64 {
    pages_below
        .saturating_sub(page.saturating_mul(FANOUT))
        .min(FANOUT)
}

/// The number of the first page below page `page`.
pub(crate) fn first_child(page: u64) -> u64 {
    page.saturating_mul(FANOUT)
}

/// The number of the page of `level` that leads to leaf `leaf`.
pub(crate) fn page_above(leaf: u64, level: u8) -> u64 {
    (0..level).fold(leaf, |page, _| page / FANOUT)
}

/// A child of an inner page of a named tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedChild {
    pub(crate) pointer: Pointer,
    /// Name of the first record below it.
    pub(crate) first: String,
}

/// The children of an inner page of a named tree.
pub(crate) fn named_children(
    bytes: &[u8],
    kind: Kind,
    level: u8,
    name_bytes_max: usize,
) -> Result<Vec<NamedChild>> {
    let (mut cursor, records) = open_page(bytes, kind, level)?;
    let mut children: Vec<NamedChild> = Vec::new();
    for _ in 0..records {
        let pointer = Pointer::take(&mut cursor)?;
        let first = cursor.text(name_bytes_max)?.to_owned();
        if children.last().is_some_and(|last| last.first > first) {
            return Err(cursor.corrupt("names in an inner page do not ascend"));
        }
        children.push(NamedChild { pointer, first });
    }
    cursor.finish()?;
    Ok(children)
}

/// Which of the children may have records of that name.
pub(crate) fn children_with(children: &[NamedChild], name: &str) -> std::ops::Range<usize> {
    let before = children.partition_point(|child| child.first.as_str() < name);
    let until = children.partition_point(|child| child.first.as_str() <= name);
    // The last child that begins before the name may end with it.
    before.saturating_sub(1)..until
}
