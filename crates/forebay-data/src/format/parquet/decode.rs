//! Decoding row groups: the chunks that are needed, checked, column by column.
//!
//! ```text
//! filter? --outline of the footer--> cannot hold a row: nothing is read
//!    | else: chunks of the filter's columns --decode--> rows that remain --none: done
//!    v
//! chunks of the other columns --merged ranges--> Chunks --checksums of the table--> pages walked --> lent as they are, or library --> Column, ... --> Block
//! ```
//!
//! Each leaf column is decoded by itself: an error names it, and the memory of its pages is given back before the next one.

use std::sync::Arc;

use arrow_schema::DataType;
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Ledger, Result, Span, crc32c};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReader};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::basic::Type;
use parquet::file::metadata::ColumnChunkMetaData;

use super::OP;
use super::footer::{File, RowGroup, in_group};
use super::held::{Held, HeldGroup};
use super::lent;
use super::pages::{self, Pages};
use super::partitions::Constant;
use crate::block::{Block, Column};
use crate::codec::{RATIO_FREE_BYTES, RATIO_MAX};
use crate::filter::{Bound, Outline};
use crate::format::arrow::{Joined, Leaf, absent, contained, innermost, too_large, unreadable};
use crate::format::petastorm::unpack;
use crate::format::{Chunks, GroupDecoder};
use crate::source::ShardSource;
use crate::table::{Groups, Layout, Table};

/// Chunks that are not further apart are read together: a request costs more than these bytes.
const GAP_BYTES_MAX: u64 = 256 << 10;

/// Rows decoded at once where one row can become much larger than its bytes (dictionaries, deltas): what is refused has not grown far.
const BATCH_ROWS: usize = 1024;

/// The same for deltas, where the library itself makes the copies.
const DELTA_BATCH_ROWS: usize = 64;

/// Rows of a group, decoded.
#[derive(Debug)]
pub struct Decoded {
    /// All rows of the group, with the fields that were asked for.
    pub block: Block,
    /// Which rows remain, ascending; `None` where there is no filter.
    pub rows: Option<Vec<u32>>,
    /// Which way their bytes came.
    pub ledger: Ledger,
}

impl File {
    /// False when the statistics of a row group rule out that it holds a row that remains.
    pub fn may_keep(&self, group: usize, filter: &Bound) -> bool {
        filter.may_keep(&|column| self.outline_of(group, column))
    }

    /// Read and decode a row group from its shard: the fields `projection` (all without), and which rows remain after `filter`.
    pub async fn decode_group(
        &self,
        source: &ShardSource,
        table: &Arc<Table>,
        group: usize,
        projection: Option<&[usize]>,
        filter: Option<&Bound>,
    ) -> Result<Decoded> {
        let decoded = async {
            let mut work = Work::new(self, table, group, projection, filter)?;
            let mut ledger = Ledger::default();
            while let Some(columns) = work.next_columns() {
                let (chunks, read) = self.fetch(source, group, &columns).await?;
                ledger.merge(&read);
                work.add(&columns, &chunks)?;
            }
            Ok(work.finish(ledger))
        };
        let decoded: Result<Decoded> = decoded.await;
        decoded.map_err(|error| source.name_in(error))
    }

    /// Decode a row group from the bytes of its extent.
    pub fn decode_bytes(
        &self,
        extent: &Bytes,
        table: &Arc<Table>,
        group: usize,
        projection: Option<&[usize]>,
        filter: Option<&Bound>,
    ) -> Result<Decoded> {
        let start = self.groups.get(group).map_or(0, |group| group.extent.start());
        let chunks = Chunks::whole(start, extent.clone());
        self.decode_chunks(&chunks, table, group, projection, filter)
    }

    /// Decode a row group from the bytes of its extent, or from those of the columns that are needed.
    pub fn decode_chunks(
        &self,
        chunks: &Chunks,
        table: &Arc<Table>,
        group: usize,
        projection: Option<&[usize]>,
        filter: Option<&Bound>,
    ) -> Result<Decoded> {
        let mut work = Work::new(self, table, group, projection, filter)?;
        while let Some(columns) = work.next_columns() {
            work.add(&columns, chunks)?;
        }
        Ok(work.finish(Ledger::default()))
    }

    /// Read the chunks of some columns of a row group.
    pub async fn fetch(
        &self,
        source: &ShardSource,
        group: usize,
        columns: &[usize],
    ) -> Result<(Chunks, Ledger)> {
        let spans = self.spans(group, columns)?;
        let step = source.context().pool().lease_bytes_max() as u64;
        let mut chunks = Chunks::default();
        let mut ledger = Ledger::default();
        for span in &spans {
            // Memory of the pool is leased once at a time: who holds some of it and waits for more may wait for ever, and values may be lent from
            // what is given here. So pieces are copied out of it.
            let mut joined = Vec::new();
            for piece in span.pieces(step) {
                let (bytes, read) = source.read(piece).await?;
                ledger.merge(&read);
                if let Some(path) = read.paths.keys().next() {
                    ledger.record_copy(*path, bytes.len() as u64);
                }
                joined.extend_from_slice(&bytes);
            }
            chunks.add(span.start(), Bytes::from(joined));
        }
        Ok((chunks, ledger))
    }

    /// Decode one field of a row group, from a chunk that was compared.
    fn decode_column(&self, chunks: &Chunks, group: usize, column: usize) -> Result<Column> {
        let missing = || Error::new(ErrorKind::InvalidInput, OP, "there is no such column");
        let leaf = self.leaves.get(column).ok_or_else(missing)?;
        let rows = self.groups.get(group).ok_or_else(missing)?.rows;
        let decoded = self.decode_leaf(chunks, group, leaf, rows).and_then(|decoded| {
            match (leaf.packing, self.fields().get(column)) {
                (Some(packing), Some(field)) => unpack(&decoded, rows as usize, &field.kind, packing),
                _ => Ok(decoded),
            }
        });
        decoded.map_err(|error| {
            let name = leaf.field.name.escape_debug();
            error.within(format_args!("row group {group}, column '{name}'"))
        })
    }

    /// Compare the chunk of a field with its checksum in the table; returns its bytes.
    fn compare(&self, chunks: &Chunks, groups: &Groups, group: usize, column: usize) -> Result<u64> {
        let span = self.span(group, column)?;
        let found = match chunks.get(span) {
            Some(chunk) => Some(crc32c(&chunk)),
            None if span.is_empty() => Some(crc32c(b"")),
            None => None,
        };
        if found.is_some() && found == groups.chunk_crc(group, column) {
            return Ok(span.len());
        }
        let what = match found {
            Some(_) => "does not have the checksum of the manifest",
            None => "is not among the bytes that were read",
        };
        let name = self
            .leaves
            .get(column)
            .map_or("", |leaf| leaf.field.name.as_str());
        let message = format!(
            "row group {group}, column '{}': its chunk at byte {} {what}",
            name.escape_debug(),
            span.start()
        );
        Err(corrupt(&message).with_hint("forebay verify names every damage"))
    }

    fn decode_leaf(&self, chunks: &Chunks, group: usize, leaf: &Leaf, rows: u64) -> Result<Column> {
        if rows == 0 {
            return Ok(absent());
        }
        if let DataType::Interval(_) = leaf.data_type {
            return Err(unreadable(&leaf.data_type));
        }
        let span = self.span_of(group, leaf)?;
        let chunk = chunks
            .get(span)
            .ok_or_else(|| corrupt("its bytes are not among those that were read"))?;
        let schema = self.metadata.file_metadata().schema_descr();
        let mut looked = Pages::default();
        for index in leaf.index..leaf.index + leaf.count {
            let mut pages = self.look(&chunk, span, (group, index), leaf, rows)?;
            if schema.column(index).physical_type() != Type::BYTE_ARRAY {
                pages.repeated_bytes_max = 0;
            }
            if leaf.count == 1 {
                looked = pages;
            } else {
                looked.merge(&pages);
            }
        }
        if let Some(column) = lent::lend(&chunk, &looked, leaf, &schema.column(leaf.index)) {
            return Ok(column);
        }
        let bytes_max = span.len().saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES);
        // A list may have any number of values in one row: here, rows at a time are no bound.
        if leaf.is_json && looked.repeated_bytes_max > bytes_max {
            return Err(
                too_large(bytes_max).with_hint("leave the column out, or write it without DELTA_BYTE_ARRAY")
            );
        }
        let (batch_rows, reader) = self.plan(leaf, &looked, rows);
        let mask = ProjectionMask::leaves(schema, leaf.index..leaf.index + leaf.count);
        contained(OP, "it", move || {
            let held = Held {
                start: span.start(),
                bytes: chunk,
            };
            let group = HeldGroup {
                held: Arc::new(held),
                metadata: &self.metadata,
                group: self.metadata.row_group(group),
                rows: usize::try_from(rows).unwrap_or(usize::MAX),
            };
            let levels = parquet_to_arrow_field_levels(schema, mask, Some(reader.schema().fields()))?;
            // The library makes room for that many rows, however few there are.
            let batch_rows = batch_rows.min(group.rows);
            let batches =
                ParquetRecordBatchReader::try_new_with_row_groups(&levels, &group, batch_rows, None)?;
            let mut joined = if leaf.is_json {
                Joined::json(bytes_max)
            } else {
                Joined::new(bytes_max)
            };
            for batch in batches {
                let (array, nulls) = innermost(&batch?.into())?;
                joined.add(&array, nulls)?;
            }
            Ok(joined.finish(rows)?)
        })
    }

    /// What the pages of one chunk of a field, which lies in `bytes`, say of themselves, where that is what the footer says and within all limits.
    fn look(
        &self,
        bytes: &Bytes,
        held: Span,
        (group, index): (usize, usize),
        leaf: &Leaf,
        rows: u64,
    ) -> Result<Pages> {
        let (meta, span) = self.chunk(group, index)?;
        let chunk = bytes
            .get(span.relative_to(held.start()))
            .ok_or_else(|| corrupt("its bytes are not among those that were read"))?;
        let pages = pages::walk(chunk, meta.compression())?;
        let values = u64::try_from(meta.num_values()).unwrap_or(u64::MAX);
        if pages.values != values
            || (!leaf.is_repeated && values != rows)
            || (leaf.is_repeated && values < rows)
        {
            let message = format!(
                "its pages hold {} values, the footer says {values} for {rows} rows",
                pages.values
            );
            return Err(corrupt(&message));
        }
        let has_small_offsets = matches!(leaf.data_type, DataType::List(_)) || leaf.is_json;
        if has_small_offsets && values > i32::MAX as u64 {
            let message = "its lists have more than 2^31 - 1 elements";
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let decoded = decoded_max(leaf, meta, values, rows).saturating_add(pages.raw_bytes);
        pages::check_decoded(decoded, span.len())?;
        Ok(pages)
    }

    /// How many rows to decode at once, and to which Arrow types.
    fn plan(&self, leaf: &Leaf, pages: &Pages, rows: u64) -> (usize, &ArrowReaderMetadata) {
        let all = usize::try_from(rows).unwrap_or(usize::MAX);
        let is_bytes = leaf_width(leaf) == VARIABLE_WIDTH && !leaf.is_repeated;
        match pages {
            // A value of a dictionary may stand in it any number of times.
            _ if leaf.is_json => (BATCH_ROWS, &self.views),
            _ if !is_bytes => (all, &self.plain),
            Pages { has_deltas: true, .. } => (DELTA_BATCH_ROWS, &self.plain),
            Pages {
                has_dictionary: true, ..
            } => (BATCH_ROWS, &self.views),
            _ => (all, &self.plain),
        }
    }
}

/// Bytes that a value of variable size takes besides its own: an offset or a view.
const VARIABLE_WIDTH: u64 = 16;

/// Bytes that a value of a nested column is reckoned with: what it is, with the names, quotes and commas around it.
const JSON_WIDTH: u64 = 40;

/// Bytes that each value of a leaf takes when it is decoded.
fn leaf_width(leaf: &Leaf) -> u64 {
    match &leaf.data_type {
        // A view and its offset, or whatever else there is at the bottom of it.
        _ if leaf.is_json => VARIABLE_WIDTH + 8,
        DataType::FixedSizeList(item, _) | DataType::List(item) | DataType::LargeList(item) => {
            item.data_type().primitive_width().unwrap_or(1) as u64 + 8
        }
        DataType::FixedSizeBinary(len) => u64::try_from(*len).unwrap_or(0),
        DataType::LargeBinary | DataType::LargeUtf8 => VARIABLE_WIDTH,
        other => other.primitive_width().unwrap_or(1) as u64,
    }
}

/// Most bytes that a chunk of so many values becomes in the library, which pads nulls: those of one size take it without having it.
fn decoded_max(leaf: &Leaf, chunk: &ColumnChunkMetaData, values: u64, rows: u64) -> u64 {
    let (mut count, mut width) = (values.max(rows), leaf_width(leaf));
    if let DataType::FixedSizeList(_, len) = leaf.data_type {
        count = count.max(rows.saturating_mul(u64::try_from(len).unwrap_or(0)));
    }
    if leaf.is_json && chunk.column_type() == Type::FIXED_LEN_BYTE_ARRAY {
        // Room for a batch is made before there are values.
        count = count.max(BATCH_ROWS as u64);
        width = width.max(
            u64::try_from(chunk.column_descr().type_length())
                .unwrap_or(0)
                .saturating_add(8),
        );
    }
    // Levels take 2 bytes each, for definition and repetition.
    count.saturating_mul(width.saturating_add(4))
}

/// One call of `decode_group`: first what the filter needs, then the rest.
struct Work<'a> {
    file: &'a File,
    table: &'a Arc<Table>,
    groups: &'a Groups,
    group: RowGroup,
    number: usize,
    filter: Option<&'a Bound>,
    /// What is still to be decoded, in up to two steps.
    steps: Vec<Vec<usize>>,
    columns: Vec<Column>,
    rows: Option<Vec<u32>>,
    /// Bytes of chunks that had their checksum.
    verified_bytes: u64,
}

impl<'a> Work<'a> {
    fn new(
        file: &'a File,
        table: &'a Arc<Table>,
        number: usize,
        projection: Option<&[usize]>,
        filter: Option<&'a Bound>,
    ) -> Result<Self> {
        let (groups, group) = file
            .check(table, number)
            .map_err(|error| in_group(error, number))?;
        let count = file.fields().len();
        let mut wanted: Vec<usize> = match projection {
            Some(columns) => columns.to_vec(),
            None => (0..count).collect(),
        };
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.last().is_some_and(|column| *column >= count) {
            let message = "a column is asked for that the shard does not have";
            return Err(Error::new(ErrorKind::InvalidInput, OP, message));
        }
        let mut steps = Vec::new();
        let mut rows = None;
        match filter {
            None => steps.push(wanted),
            Some(filter) if file.may_keep(number, filter) => {
                wanted.retain(|column| !filter.columns().contains(column));
                steps.extend([wanted, filter.columns().to_vec()]);
            }
            Some(_) => rows = Some(Vec::new()),
        }
        Ok(Self {
            file,
            table,
            groups,
            group,
            number,
            filter,
            steps,
            columns: (0..count).map(|_| absent()).collect(),
            rows,
            verified_bytes: 0,
        })
    }

    fn next_columns(&mut self) -> Option<Vec<usize>> {
        self.steps.pop().filter(|columns| !columns.is_empty())
    }

    fn add(&mut self, columns: &[usize], chunks: &Chunks) -> Result<()> {
        for column in columns {
            let decoded = match self.file.constant(*column) {
                Some(constant) => constant.column(),
                None => {
                    self.verified_bytes += self.file.compare(chunks, self.groups, self.number, *column)?;
                    self.file.decode_column(chunks, self.number, *column)?
                }
            };
            if let Some(slot) = self.columns.get_mut(*column) {
                *slot = decoded;
            }
        }
        if let (Some(filter), None) = (self.filter, &self.rows) {
            let rows: Vec<u32> = (0..self.group.rows as u32)
                .filter(|row| {
                    filter.keeps(&|column| {
                        self.columns
                            .get(column)
                            .and_then(|column| column.get(*row as usize))
                    })
                })
                .collect();
            if rows.is_empty() {
                self.steps.clear();
            }
            self.rows = Some(rows);
        }
        Ok(())
    }

    fn finish(self, mut ledger: Ledger) -> Decoded {
        ledger.verified_bytes += self.verified_bytes;
        let range = self.group.first..self.group.first + self.group.rows;
        Decoded {
            block: Block::from_columns(Arc::clone(self.table), range, self.columns),
            rows: self.rows,
            ledger,
        }
    }
}

impl File {
    /// The field of that number, where it has one value in all rows.
    pub(super) fn constant(&self, column: usize) -> Option<&Constant> {
        self.constants.get(column.checked_sub(self.leaves.len())?)
    }

    /// The row group of that number, where the table says the same of it as the file does.
    fn check<'a>(&self, table: &'a Table, group: usize) -> Result<(&'a Groups, RowGroup)> {
        let Layout::Groups(groups) = &table.layout else {
            return Err(Error::new(
                ErrorKind::Internal,
                OP,
                "its table is not one of groups",
            ));
        };
        let (Some(known), Some(found)) = (groups.list.get(group), self.groups.get(group)) else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                OP,
                "there is no such row group",
            ));
        };
        if known.extent != found.extent || known.samples != found.rows || table.fields != self.fields() {
            return Err(Error::new(
                ErrorKind::Precondition,
                OP,
                "the file is not the one that its table was made of",
            )
            .with_hint("index the data set again"));
        }
        Ok((groups, *found))
    }
}

impl GroupDecoder for File {
    fn span(&self, group: usize, column: usize) -> Result<Span> {
        if let (Some(_), Some(group)) = (self.constant(column), self.groups.get(group)) {
            return Span::at(group.extent.start(), 0);
        }
        let leaf = self.leaves.get(column).ok_or_else(|| {
            let message = "there is no such column";
            Error::new(ErrorKind::InvalidInput, OP, message)
        })?;
        self.span_of(group, leaf)
    }

    fn spans(&self, group: usize, columns: &[usize]) -> Result<Vec<Span>> {
        let mut spans = Vec::with_capacity(columns.len());
        for leaf in columns.iter().filter_map(|column| self.leaves.get(*column)) {
            spans.push(self.span_of(group, leaf)?);
        }
        merge(spans)
    }

    fn decoded_bytes(&self, group: usize, columns: &[usize]) -> u64 {
        let rows = self.groups.get(group).map_or(0, |group| group.rows);
        let leaves = columns.iter().filter_map(|column| self.leaves.get(*column));
        let (mut read, mut decoded, mut is_lent) = (0u64, 0u64, false);
        for leaf in leaves {
            for index in leaf.index..leaf.index + leaf.count {
                let Ok((chunk, span)) = self.chunk(group, index) else {
                    continue;
                };
                read = read.saturating_add(span.len());
                if lent::may_lend(leaf, chunk) {
                    is_lent = true;
                    continue;
                }
                // A dictionary makes pages smaller than what they become.
                let raw = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
                let values = u64::try_from(chunk.num_values()).unwrap_or(0).max(rows);
                let width = if leaf.is_json {
                    JSON_WIDTH
                } else {
                    leaf_width(leaf)
                };
                decoded = decoded.saturating_add(raw.max(values.saturating_mul(width)));
            }
        }
        // Columns are read together: one that is lent keeps the bytes of all, beside what the others become.
        decoded.saturating_add(if is_lent { read } else { 0 })
    }

    fn decode(&self, chunks: &Chunks, table: &Arc<Table>, group: usize, columns: &[usize]) -> Result<Block> {
        Ok(self
            .decode_chunks(chunks, table, group, Some(columns), None)?
            .block)
    }

    fn outline(&self, group: usize, column: usize) -> Outline<'_> {
        self.outline_of(group, column)
    }

    fn memory_bytes(&self) -> u64 {
        self.metadata.memory_size() as u64
    }
}

/// Spans in order, with those joined that lie close together.
fn merge(mut spans: Vec<Span>) -> Result<Vec<Span>> {
    spans.sort_unstable_by_key(|span| (span.start(), span.end()));
    let mut merged: Vec<Span> = Vec::new();
    for span in spans {
        match merged.last_mut() {
            Some(last) if span.start() <= last.end().saturating_add(GAP_BYTES_MAX) => {
                *last = Span::new(last.start(), last.end().max(span.end()))?;
            }
            _ => merged.push(span),
        }
    }
    Ok(merged)
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_spans_are_read_together() {
        let span = |start, len| Span::at(start, len).unwrap();
        let far = 10 + GAP_BYTES_MAX;
        let merged = merge(vec![span(far, 5), span(0, 10), span(2, 3), span(far * 3, 1)]).unwrap();
        assert_eq!(merged, [span(0, far + 5), span(far * 3, 1)]);
        assert_eq!(merge(vec![span(0, 10), span(far + 1, 1)]).unwrap().len(), 2);
    }
}
