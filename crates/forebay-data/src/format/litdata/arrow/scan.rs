//! The one pass over a chunk that makes its table: a CRC-32C of each record batch and of the footer, and the rows of each batch, as the bytes pass.

use forebay_core::{Crc32c, Error, ErrorKind, Result, Span};

use super::super::{Chunk, FIRST_BYTES, OP, are_items_empty, corrupt};
use super::{ArrowChunk, Batch, batch, in_group};
use crate::format::{ROWS_MAX, Scan};
use crate::table::{Group, Groups, Layout, Table};

impl ArrowChunk {
    /// A pass over the bytes of the chunk, of which index.json says that.
    pub(in super::super) fn scan(self, known: &Chunk) -> Box<dyn Scan> {
        Box::new(Pass {
            items: known.items,
            chunk: self,
            at: 0,
            first: Vec::new(),
            message: Vec::new(),
            crc: Crc32c::default(),
            groups: Vec::new(),
            crcs: Vec::new(),
        })
    }
}

struct Pass {
    chunk: ArrowChunk,
    /// What index.json says.
    items: u64,
    /// Bytes that have passed.
    at: u64,
    /// The first bytes of the chunk: how many items it has, and where the first of them lies.
    first: Vec<u8>,
    /// The message of the batch that passes.
    message: Vec<u8>,
    /// Of that batch, or of the footer.
    crc: Crc32c,
    /// Those that have passed.
    groups: Vec<Group>,
    crcs: Vec<u32>,
}

impl Pass {
    /// A batch has passed.
    fn end_batch(&mut self, extent: Span) -> Result<()> {
        let samples = batch::rows(&self.message).map_err(|error| in_group(error, self.groups.len()))?;
        self.message.clear();
        self.groups.push(Group { extent, samples });
        let crc = std::mem::take(&mut self.crc).value();
        // The first field stands for all bytes of the group.
        for field in 0..self.chunk.fields.len() {
            self.crcs.push(if field == 0 { crc } else { 0 });
        }
        Ok(())
    }

    fn take_batch(&mut self, batch: Batch, fed: Span, bytes: &[u8]) -> Result<bool> {
        let Batch {
            extent,
            message_bytes,
        } = batch;
        if let Some(part) = extent.intersect(fed) {
            let part = bytes.get(part.relative_to(fed.start())).unwrap_or_default();
            self.crc.update(part);
            let missing = (message_bytes as usize).saturating_sub(self.message.len());
            let message = part.get(..missing.min(part.len())).unwrap_or_default();
            self.message.extend_from_slice(message);
        }
        if extent.end() > fed.end() {
            return Ok(false);
        }
        self.end_batch(extent)?;
        Ok(true)
    }
}

impl Scan for Pass {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let missing = FIRST_BYTES.saturating_sub(self.first.len()).min(bytes.len());
        self.first
            .extend_from_slice(bytes.get(..missing).unwrap_or_default());
        let fed = Span::at(self.at, bytes.len() as u64)?;
        self.at = fed.end();
        while let Some(batch) = self.chunk.batches.get(self.groups.len()).copied() {
            if !self.take_batch(batch, fed, bytes)? {
                return Ok(());
            }
        }
        if let Some(part) = self.chunk.footer.extent.intersect(fed) {
            self.crc
                .update(bytes.get(part.relative_to(fed.start())).unwrap_or_default());
        }
        Ok(())
    }

    /// litdata lets pyarrow look at the values of each chunk.
    fn are_types_inferred(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        let footer = self.chunk.footer;
        if self.at != footer.extent.end() || self.crc.value() != footer.crc {
            return Err(corrupt("the footer of its rows changed while it was read"));
        }
        let count = self.first.first_chunk().copied().map_or(0, u32::from_le_bytes);
        if !are_items_empty(&self.first) || self.chunk.start != 4 * (u64::from(count) + 2) {
            return Err(corrupt("its rows do not begin where its items end"));
        }
        let rows = self
            .groups
            .iter()
            .fold(0u64, |rows, group| rows.saturating_add(group.samples));
        for (has, found) in [("has", u64::from(count)), ("has rows for", rows)] {
            if found != self.items {
                let message = format!(
                    "the chunk {has} {found} items, but index.json says {}",
                    self.items
                );
                return Err(corrupt(&message));
            }
        }
        if rows > u64::from(ROWS_MAX) {
            let message = format!("the chunk has {rows} items, more than {ROWS_MAX}");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        Ok(Table {
            fields: self.chunk.fields,
            layout: Layout::Groups(Groups {
                footer,
                list: self.groups,
                chunk_crcs: self.crcs,
            }),
        })
    }
}
