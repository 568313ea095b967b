//! Items that were compressed one by one: what their chunk becomes when that is undone.
//!
//! ```text
//! u32 N | N x ( u32 length for each leaf | leaves | u32 length of all that )
//! ```
//!
//! A plain chunk says where items are before the first one; here each says how long it was, behind it, and has to be as long as its leaves.

use forebay_core::Result;

use super::corrupt;
use crate::format::Scan;
use crate::schema::Field;
use crate::table::{Table, TableBuilder};

const WORD_BYTES: usize = 4;

/// A pass over such a chunk.
pub(super) struct Items {
    builder: TableBuilder,
    /// Bytes of each leaf, where all its values have the same.
    sizes: Vec<Option<u32>>,
    /// What index.json says.
    count_known: u64,
    phase: Phase,
    /// What came of the numbers that are not complete yet.
    partial: Vec<u8>,
    /// Offset of the next byte.
    at: u64,
    /// Item that is read now, where it begins, and where it ends.
    item: u64,
    start: u64,
    end: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Count,
    Lengths,
    Leaves,
    Length,
    End,
}

impl Items {
    /// For a chunk of that many items of those leaves.
    pub(super) fn new(items: u64, fields: Vec<Field>, sizes: Vec<Option<u32>>) -> Self {
        Self {
            builder: TableBuilder::new(fields),
            sizes,
            count_known: items,
            phase: Phase::Count,
            partial: Vec::new(),
            at: 0,
            item: 0,
            start: 0,
            end: 0,
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<usize> {
        let wanted = match self.phase {
            Phase::Count | Phase::Length => WORD_BYTES,
            Phase::Lengths => WORD_BYTES * self.sizes.len(),
            Phase::Leaves => return self.leaves(bytes),
            Phase::End => {
                let message = format!("there are bytes after byte {}, where the last item ends", self.at);
                return Err(corrupt(&message));
            }
        };
        let taken = bytes.len().min(wanted - self.partial.len());
        let bytes = bytes.get(..taken).unwrap_or_default();
        self.partial.extend_from_slice(bytes);
        self.at += taken as u64;
        if self.phase == Phase::Lengths {
            self.builder.absorb(bytes);
        }
        if self.partial.len() == wanted {
            self.complete()?;
            self.partial.clear();
        }
        Ok(taken)
    }

    /// The numbers that were awaited are here.
    fn complete(&mut self) -> Result<()> {
        let first = words(&self.partial).next().unwrap_or_default();
        match self.phase {
            Phase::Count if u64::from(first) != self.count_known => {
                let message = format!(
                    "the chunk has {first} items, but index.json says {}",
                    self.count_known
                );
                return Err(corrupt(&message));
            }
            Phase::Count => self.begin()?,
            Phase::Lengths => self.place()?,
            Phase::Length => {
                let len = self.end - self.start;
                if u64::from(first) != len {
                    let message = format!(
                        "the leaves of item {} take {len} bytes, the item has {first}",
                        self.item
                    );
                    return Err(corrupt(&message));
                }
                self.item += 1;
                self.begin()?;
            }
            Phase::Leaves | Phase::End => {}
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<()> {
        if self.item == self.count_known {
            self.phase = Phase::End;
            return Ok(());
        }
        self.start = self.at;
        self.phase = Phase::Lengths;
        self.builder.begin(self.start, None)
    }

    /// Say where the leaves of the open item are.
    fn place(&mut self) -> Result<()> {
        let mut at = self.at;
        for (leaf, (len, size)) in words(&self.partial).zip(&self.sizes).enumerate() {
            if let Some(size) = size.filter(|size| *size != len) {
                let message = format!("value {leaf} of item {} has {len} bytes, not {size}", self.item);
                return Err(corrupt(&message));
            }
            self.builder.field(leaf, at, u64::from(len))?;
            at += u64::from(len);
        }
        self.end = at;
        self.phase = Phase::Leaves;
        self.end_leaves()
    }

    fn leaves(&mut self, bytes: &[u8]) -> Result<usize> {
        let taken = bytes.len().min((self.end - self.at) as usize);
        self.builder.absorb(bytes.get(..taken).unwrap_or_default());
        self.at += taken as u64;
        self.end_leaves()?;
        Ok(taken)
    }

    fn end_leaves(&mut self) -> Result<()> {
        if self.at == self.end {
            self.phase = Phase::Length;
            self.builder.end()?;
        }
        Ok(())
    }
}

impl Scan for Items {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = self.take(bytes)?;
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        if self.phase == Phase::End {
            return self.builder.finish();
        }
        let message = format!("the chunk ends in item {} of {}", self.item, self.count_known);
        Err(corrupt(&message))
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let words = bytes.chunks_exact(WORD_BYTES);
    words.filter_map(|word| word.try_into().ok().map(u32::from_le_bytes))
}
