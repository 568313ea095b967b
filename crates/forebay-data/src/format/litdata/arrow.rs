//! Rows kept as Arrow: an Arrow file behind a chunk of empty items.
//!
//! ```text
//! u32 N | u32 offsets[N+1], all at the end of the table | Arrow file | u32 its length | "LDARW01\0"
//!
//! Arrow file: "ARROW1\0\0" | schema | record batches: message, buffers | end | footer | u32 its length | "ARROW1"
//! ```
//!
//! A record batch is a group. It is read, compared and decoded as a whole: where its columns are says the message in front of them, which nobody
//! has seen when reads are planned. So the first field of a group stands for all its bytes, and the others for none.
//!
//! What the library trusts is checked before: types (those of JSON, which is what the writer takes for a row), places of batches and buffers, what
//! compressed buffers say they become. What is left is contained.

mod batch;
mod scan;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::{Endianness, MetadataVersion, root_as_footer_with_opts};
use arrow_schema::{DataType, Schema};
use bytes::Bytes;
use flatbuffers::{InvalidFlatbuffer, VerifierOptions};
use forebay_core::{Error, ErrorKind, Result, Span, crc32c};

use super::{OP, corrupt};
use crate::block::{Block, Column};
use crate::filter::Outline;
use crate::format::arrow::{Leaf, absent, contained, leaves};
use crate::format::{Chunks, GroupDecoder};
use crate::schema::Field;
use crate::source::ShardSource;
use crate::table::{FIELDS_MAX, Footer, Groups, Layout, Table, chunks};

/// How a chunk ends that has rows of Arrow.
pub(super) const ROWS_MAGIC: &[u8; 8] = b"LDARW01\0";

/// How an Arrow file begins and ends.
const FILE_MAGIC: &[u8; 6] = b"ARROW1";

/// Length and magic, of the chunk and of the Arrow file.
const END_BYTES: u64 = 12;
const FILE_END_BYTES: u64 = 10;

/// Read at once from the end: most footers fit.
const TAIL_BYTES: u64 = 16 << 10;

/// Longest footer: 24 bytes for each record batch, of 256 rows where LitData wrote them, and the schema.
const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// Longest message in front of a batch: 16 bytes for each buffer, of which a column has a few.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;

/// Most tables in a footer: a column is a few, its type and its children among them.
const FOOTER_TABLES_MAX: usize = 16 * FIELDS_MAX;

/// Most bytes of a footer or message that are looked at, as a multiple of those it has: parts may be shared, and what is made of them is not.
const SHARED_MAX: usize = 8;

/// The same for those that are small.
const SHARED_FREE_BYTES: usize = 64 << 10;

/// What a batch is reckoned to become, as a multiple of its stored bytes, until some of the chunk were decoded: nobody knows before its message is read, and text
/// shrinks to a third or a fourth.
const DECODED_RATIO: u64 = 4;

/// What to do about rows that litdata itself would not have written.
const WRITE_AGAIN: &str = "write the data set again with litdata, which knows none of that";

/// What the footer of such a chunk says.
#[derive(Debug, Clone)]
pub(super) struct ArrowChunk {
    schema: Arc<Schema>,
    version: MetadataVersion,
    leaves: Vec<Leaf>,
    fields: Vec<Field>,
    /// For each column of the schema, the fields it becomes.
    columns: Vec<Range<usize>>,
    batches: Vec<Batch>,
    /// Where the Arrow file begins.
    start: u64,
    /// From the footer of the Arrow file to the end of the chunk.
    footer: Footer,
}

/// A record batch.
#[derive(Debug, Clone, Copy)]
struct Batch {
    /// Its message and its buffers.
    extent: Span,
    message_bytes: u32,
}

impl ArrowChunk {
    /// Look at the end of a chunk; `None` where it has no rows of Arrow.
    pub(super) async fn open(source: &ShardSource) -> Result<Option<Self>> {
        let size = source.size();
        let tail = Span::new(size.saturating_sub(TAIL_BYTES), size)?;
        let (bytes, _) = source.read(tail).await?;
        let Some(span) = footer_span(&bytes, size)? else {
            return Ok(None);
        };
        let footer = if span.start() >= tail.start() {
            bytes.slice(span.relative_to(tail.start()))
        } else {
            source.read(span).await?.0
        };
        Self::parse(&footer, span).map(Some)
    }

    /// The footer that a table was made of: it must be the same.
    pub(super) async fn open_known(source: &ShardSource, groups: &Groups) -> Result<Decoder> {
        let (extent, size) = (groups.footer.extent, source.size());
        let changed = || {
            let message = format!(
                "the footer of its rows at byte {} does not have the checksum of the manifest",
                extent.start()
            );
            corrupt(&message).with_hint(
                "forebay verify names every damage; a chunk that was written anew is to be indexed again",
            )
        };
        if extent.len() > FOOTER_BYTES_MAX + END_BYTES + FILE_END_BYTES || extent.end() != size {
            return Err(changed());
        }
        let (footer, _) = source.read(extent).await?;
        if crc32c(&footer) != groups.footer.crc {
            return Err(changed());
        }
        Ok(Decoder::new(Self::parse(&footer, extent)?, groups))
    }

    /// The same of a chunk in memory.
    #[cfg(any(test, fuzzing))]
    pub(super) fn of_bytes(bytes: &Bytes) -> Result<Option<Self>> {
        let Some(span) = footer_span(bytes, bytes.len() as u64)? else {
            return Ok(None);
        };
        Self::parse(&bytes.slice(span.relative_to(0)), span).map(Some)
    }

    /// From the bytes of `span`: the footer, and all behind it. Whoever calls has compared their lengths, or a checksum of them.
    fn parse(bytes: &Bytes, span: Span) -> Result<Self> {
        let ends = (END_BYTES + FILE_END_BYTES) as usize;
        let Some((footer, ends)) = bytes.len().checked_sub(ends).map(|len| bytes.split_at(len)) else {
            return Err(corrupt("the footer of its rows is cut off"));
        };
        let file_bytes = ends
            .get(FILE_END_BYTES as usize..)
            .and_then(|rest| rest.first_chunk().copied())
            .map_or(0, u32::from_le_bytes);
        let file = (span.end() - END_BYTES)
            .checked_sub(u64::from(file_bytes))
            .filter(|start| *start < span.start())
            .ok_or_else(|| corrupt("its rows are longer than the chunk"))?;
        // Batches lie behind the magic of the file, and before its footer.
        let room = Span::new(file, span.start())?;
        contained(OP, "the footer of its rows", || {
            let options = verifier(footer, FOOTER_TABLES_MAX);
            let footer = root_as_footer_with_opts(&options, footer);
            let footer = footer.map_err(|error| unreadable("the footer of its rows", &error))?;
            let schema = footer
                .schema()
                .ok_or_else(|| corrupt("its rows have no schema"))?;
            if schema.endianness() != Endianness::Little {
                let error = unsupported("its rows have the most significant byte first".to_owned());
                return Err(error.with_hint(WRITE_AGAIN).into());
            }
            if footer.dictionaries().is_some_and(|list| !list.is_empty()) {
                let error = unsupported("its rows have dictionaries".to_owned());
                return Err(error.with_hint(WRITE_AGAIN).into());
            }
            let blocks = footer.recordBatches().into_iter().flatten();
            let blocks = blocks.map(|block| (block.offset(), block.metaDataLength(), block.bodyLength()));
            let batches = batches(blocks, room)?;
            let schema = try_fb_to_schema(schema)?;
            Ok(Self::of_schema(
                &schema,
                footer.version(),
                (file, batches),
                Footer {
                    extent: span,
                    crc: crc32c(bytes),
                },
            )?)
        })
    }

    fn of_schema(
        schema: &Schema,
        version: MetadataVersion,
        (start, batches): (u64, Vec<Batch>),
        footer: Footer,
    ) -> Result<Self> {
        // Names first: types that are refused are told with theirs.
        let (leaves, _) = leaves(schema, None, &|_| false)?;
        for field in schema.fields() {
            check_type(field.name(), field.data_type())?;
        }
        chunks(batches.len(), leaves.len())?;
        let mut columns: Vec<Range<usize>> = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let start = columns.last().map_or(0, |column| column.end);
            columns.push(start..start + fields_of(field.data_type()));
        }
        Ok(Self {
            fields: leaves.iter().map(|leaf| leaf.field.clone()).collect(),
            // What else a writer had to say of its rows is not kept.
            schema: Arc::new(Schema::new(schema.fields().clone())),
            version,
            leaves,
            columns,
            batches,
            start,
            footer,
        })
    }

    /// Decode all that a table of this chunk says is there.
    #[cfg(fuzzing)]
    pub(super) fn decode_fuzzed(self, bytes: &Bytes, table: Table) {
        let Layout::Groups(groups) = &table.layout else {
            return;
        };
        let decoder = Decoder::new(self, groups);
        let columns: Vec<usize> = (0..table.fields.len()).collect();
        let (count, table) = (groups.list.len(), Arc::new(table));
        let chunks = Chunks::whole(0, bytes.clone());
        // Limits are for chunks of gigabytes; here they would only be slow.
        for group in (0..count).take_while(|_| table.samples() <= 1 << 16) {
            let Ok(block) = decoder.decode(&chunks, &table, group, &columns) else {
                continue;
            };
            for (row, field) in
                (0..block.len()).flat_map(|row| columns.iter().map(move |field| (row, *field)))
            {
                let _ = block.field(row, field);
            }
        }
    }

    fn batch(&self, group: usize) -> Result<Batch> {
        let batch = self.batches.get(group).copied();
        batch.ok_or_else(|| Error::new(ErrorKind::InvalidInput, OP, "there is no such group of rows"))
    }
}

/// Decodes the batches of a chunk.
#[derive(Debug)]
pub(super) struct Decoder {
    chunk: ArrowChunk,
    /// Number in the chunk of the first row of each batch.
    firsts: Vec<u64>,
    seen: Mutex<Seen>,
}

/// What batches became of which so many columns were decoded: the most that anybody asked for so far.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    columns: usize,
    /// Bytes of these batches.
    stored: u64,
    became: u64,
}

impl Seen {
    fn add(&mut self, columns: usize, stored: u64, became: u64) {
        if columns > self.columns {
            *self = Self {
                columns,
                ..Self::default()
            };
        }
        if columns == self.columns {
            self.stored = self.stored.saturating_add(stored);
            self.became = self.became.saturating_add(became);
        }
    }
}

impl Decoder {
    fn new(chunk: ArrowChunk, groups: &Groups) -> Self {
        let mut next = 0u64;
        let firsts = groups.list.iter().map(|group| {
            let first = next;
            next = next.saturating_add(group.samples);
            first
        });
        Self {
            firsts: firsts.collect(),
            chunk,
            seen: Mutex::default(),
        }
    }

    /// A batch, what the table says of it, and how many rows it has.
    fn known<'a>(&self, table: &'a Table, group: usize) -> Result<(Batch, &'a Groups, u64)> {
        let Layout::Groups(groups) = &table.layout else {
            return Err(Error::new(
                ErrorKind::Internal,
                OP,
                "its table is not one of groups",
            ));
        };
        let batch = self.chunk.batch(group)?;
        let known = groups
            .list
            .get(group)
            .filter(|known| known.extent == batch.extent);
        let (Some(known), true) = (known, table.fields == self.chunk.fields) else {
            let message = "the chunk is not the one that its table was made of";
            return Err(
                Error::new(ErrorKind::Precondition, OP, message).with_hint("index the data set again")
            );
        };
        Ok((batch, groups, known.samples))
    }

    /// The bytes of a batch, where they are what the table says.
    fn compare(chunks: &Chunks, groups: &Groups, group: usize, batch: Batch) -> Result<Bytes> {
        let what = match chunks.get(batch.extent) {
            Some(bytes) if groups.chunk_crc(group, 0) == Some(crc32c(&bytes)) => {
                return Ok(bytes);
            }
            Some(_) => "do not have the checksum of the manifest",
            None => "are not among the bytes that were read",
        };
        let message = format!("rows of group {group} at byte {} {what}", batch.extent.start());
        Err(corrupt(&message).with_hint("forebay verify names every damage"))
    }
}

impl GroupDecoder for Decoder {
    fn span(&self, group: usize, column: usize) -> Result<Span> {
        let extent = self.chunk.batch(group)?.extent;
        match column {
            0 => Ok(extent),
            _ => Span::at(extent.end(), 0),
        }
    }

    fn spans(&self, group: usize, columns: &[usize]) -> Result<Vec<Span>> {
        match columns {
            [] => Ok(Vec::new()),
            _ => Ok(vec![self.chunk.batch(group)?.extent]),
        }
    }

    fn verified_bytes(&self, group: usize, columns: &[usize]) -> Result<u64> {
        let spans = self.spans(group, columns)?;
        Ok(spans.iter().map(|span| span.len()).sum())
    }

    fn decoded_bytes(&self, group: usize, columns: &[usize]) -> u64 {
        let Some(batch) = self.chunk.batches.get(group).filter(|_| !columns.is_empty()) else {
            return 0;
        };
        let seen = *self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (stored, became) = match seen.stored {
            0 => (1, DECODED_RATIO),
            _ if columns.len() > seen.columns => (1, DECODED_RATIO),
            stored => (stored, seen.became),
        };
        let bytes = u128::from(batch.extent.len()) * u128::from(became) / u128::from(stored);
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        bytes.min(batch::bytes_max(batch.extent.len()))
    }

    fn decode(&self, chunks: &Chunks, table: &Arc<Table>, group: usize, columns: &[usize]) -> Result<Block> {
        let (batch, groups, rows) = self.known(table, group)?;
        let wanted = columns.len();
        let columns = if columns.is_empty() {
            // Nothing was read, for nothing of it is wanted.
            self.chunk.leaves.iter().map(|_| absent()).collect()
        } else {
            let bytes = Self::compare(chunks, groups, group, batch)?;
            let decoded = self.chunk.decode(group, &bytes, rows, columns);
            let columns = decoded.map_err(|error| in_group(error, group))?;
            let became: u64 = columns.iter().map(Column::memory_bytes).sum();
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            // What is not compressed stays as it was read.
            seen.add(wanted, batch.extent.len(), became.max(batch.extent.len()));
            columns
        };
        let first = self.firsts.get(group).copied().unwrap_or_default();
        Ok(Block::from_columns(
            Arc::clone(table),
            first..first + rows,
            columns,
        ))
    }

    fn outline(&self, _group: usize, _column: usize) -> Outline<'_> {
        Outline::UNKNOWN
    }

    fn memory_bytes(&self) -> u64 {
        let chunk = &self.chunk;
        let batches = size_of_val(&chunk.batches[..]) + size_of_val(&self.firsts[..]);
        let names: usize = chunk.leaves.iter().map(|leaf| leaf.field.name.len()).sum();
        let leaves = size_of_val(&chunk.leaves[..]) + size_of_val(&chunk.fields[..]) + 2 * names;
        (batches + leaves + chunk.schema.fields().size()) as u64
    }
}

/// Where the footer begins, up to the end of the chunk, from its last bytes; `None` where it does not end like one with rows of Arrow.
fn footer_span(tail: &[u8], size: u64) -> Result<Option<Span>> {
    let Some((rest, len)) = tail
        .split_last_chunk::<8>()
        .filter(|(_, magic)| *magic == ROWS_MAGIC)
        .and_then(|(rest, _)| rest.split_last_chunk::<4>())
    else {
        return Ok(None);
    };
    let file_bytes = u64::from(u32::from_le_bytes(*len));
    let footer_bytes = rest
        .split_last_chunk::<6>()
        .filter(|(_, magic)| *magic == FILE_MAGIC)
        .and_then(|(rest, _)| rest.last_chunk::<4>())
        .map(|len| u64::from(u32::from_le_bytes(*len)));
    let Some(footer_bytes) = footer_bytes else {
        return Err(
            unsupported("the rows behind its items are no Arrow file".to_owned())
                .with_hint("development versions of litdata wrote streams there; write the data set again"),
        );
    };
    if footer_bytes > FOOTER_BYTES_MAX {
        let message = format!("the footer of its rows would have {footer_bytes} bytes");
        return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
    }
    let footer = size.checked_sub(END_BYTES + FILE_END_BYTES + footer_bytes);
    let start = size.checked_sub(END_BYTES + file_bytes);
    match (start, footer) {
        (Some(start), Some(footer)) if start < footer => Span::new(footer, size).map(Some),
        _ => Err(corrupt("its rows are longer than the chunk")),
    }
}

/// How flatbuffers of so many tables are looked through.
fn verifier(bytes: &[u8], max_tables: usize) -> VerifierOptions {
    VerifierOptions {
        max_tables,
        max_apparent_size: (bytes.len() * SHARED_MAX).max(SHARED_FREE_BYTES),
        ..VerifierOptions::default()
    }
}

/// Why `what`, a flatbuffer, is refused: damage, or a limit of ours.
fn unreadable(what: &str, error: &InvalidFlatbuffer) -> Error {
    let line = error.to_string();
    let line = line.lines().next().unwrap_or_default().trim_end_matches('.');
    match error {
        InvalidFlatbuffer::TooManyTables
        | InvalidFlatbuffer::ApparentSizeTooLarge
        | InvalidFlatbuffer::DepthLimitReached => {
            let message = format!("{what} says more than it may: {}", line.escape_debug());
            Error::new(ErrorKind::LimitExceeded, OP, message)
                .with_hint("write the data set with fewer columns")
        }
        _ => corrupt(&format!("{what} cannot be read: {}", line.escape_debug())),
    }
}

/// The record batches, where they lie behind each other in `room`, the file before its footer.
fn batches(blocks: impl Iterator<Item = (i64, i32, i64)>, room: Span) -> Result<Vec<Batch>> {
    let mut batches: Vec<Batch> = Vec::new();
    for (number, (offset, message, body)) in blocks.enumerate() {
        let misplaced = || corrupt(&format!("group {number} of its rows does not lie where rows do"));
        let sizes = (u64::try_from(offset), u32::try_from(message), u64::try_from(body));
        let (Ok(offset), Ok(message_bytes), Ok(body)) = sizes else {
            return Err(misplaced());
        };
        if u64::from(message_bytes) > MESSAGE_BYTES_MAX {
            let message = format!("the message of group {number} of its rows has {message_bytes} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let start = room.start().checked_add(offset).ok_or_else(misplaced)?;
        let len = body.checked_add(u64::from(message_bytes)).ok_or_else(misplaced)?;
        let extent = Span::at(start, len).map_err(|_| misplaced())?;
        let earliest = batches.last().map_or(room.start(), |before| before.extent.end());
        if extent.is_empty() || extent.start() < earliest || extent.end() > room.end() {
            return Err(misplaced());
        }
        batches.push(Batch {
            extent,
            message_bytes,
        });
    }
    Ok(batches)
}

/// Refuse types that rows of JSON do not have: no writer is known to write them, and some of them would have to be looked at twice.
fn check_type(name: &str, data_type: &DataType) -> Result<()> {
    match data_type {
        DataType::Null
        | DataType::Boolean
        | DataType::Int64
        | DataType::Float64
        | DataType::Utf8
        | DataType::LargeUtf8
        | DataType::Binary
        | DataType::LargeBinary
        | DataType::Int8
        | DataType::Int16
        | DataType::Int32
        | DataType::UInt8
        | DataType::UInt16
        | DataType::UInt32
        | DataType::UInt64
        | DataType::Float16
        | DataType::Float32 => Ok(()),
        DataType::List(item) | DataType::LargeList(item) => check_type(name, item.data_type()),
        DataType::Struct(members) => members
            .iter()
            .try_for_each(|member| check_type(name, member.data_type())),
        other => Err(unsupported(format!(
            "column '{}' of its rows is of the type {other}",
            name.escape_debug()
        ))
        .with_hint(WRITE_AGAIN)),
    }
}

/// How many fields a column becomes.
fn fields_of(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(members) => members.iter().map(|member| fields_of(member.data_type())).sum(),
        DataType::Null => 0,
        _ => 1,
    }
}

fn in_group(error: Error, group: usize) -> Error {
    error.within(format_args!("group {group} of its rows"))
}

fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, OP, message)
}

#[cfg(test)]
mod tests;
