//! One record batch: its message looked through, then its columns.

use std::iter;
use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_buffer::{Buffer, NullBuffer};
use arrow_ipc::reader::FileDecoder;
use arrow_ipc::{Block as IpcBlock, CompressionType, Message, RecordBatch, root_as_message_with_opts};
use arrow_schema::{DataType, Fields};
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result};

use super::super::{OP, corrupt};
use super::{ArrowChunk, unreadable, verifier};
use crate::block::Column;
use crate::codec::{RATIO_FREE_BYTES, RATIO_MAX};
use crate::format::arrow::{Joined, Leaf, absent, contained};

/// What stands before the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Bytes in front of a compressed buffer that say what it becomes.
const RAW_LENGTH_BYTES: usize = 8;

/// What that says of a buffer that is not compressed after all.
const NOT_COMPRESSED: i64 = -1;

/// What each value of a batch, of those in lists too, is reckoned with where its type does not say: an offset, or `null` and a comma in JSON.
const VALUE_BYTES: u64 = 8;

/// Most bytes that a batch becomes, unless it is stored in as many: writers make batches of 256 rows.
const BATCH_BYTES_MAX: u64 = 1 << 30;

/// LZ4 gives at most that many bytes for each it reads.
const LZ4_RATIO_MAX: u64 = 255;

/// Most tables in a message: it has one for its header, and what a writer notes down beside that.
pub(super) const MESSAGE_TABLES_MAX: usize = 1 << 10;

impl ArrowChunk {
    /// The fields `columns` of a batch, from its bytes; the others have no values.
    pub(super) fn decode(
        &self,
        group: usize,
        bytes: &Bytes,
        rows: u64,
        columns: &[usize],
    ) -> Result<Vec<Column>> {
        let batch = self.batch(group)?;
        let message_bytes = batch.message_bytes as usize;
        let (message, body) = bytes
            .split_at_checked(message_bytes)
            .ok_or_else(|| corrupt("they are shorter than their message"))?;
        let bytes_max = bytes_max(body.len() as u64);
        check(self.schema.fields(), message, body, rows, bytes_max)?;
        let mut is_wanted = vec![false; self.leaves.len()];
        for field in columns {
            if let Some(is_wanted) = is_wanted.get_mut(*field) {
                *is_wanted = true;
            }
        }
        let has_wanted =
            |fields: &Range<usize>| is_wanted.get(fields.clone()).unwrap_or_default().contains(&true);
        let projection: Vec<usize> = (0..)
            .zip(&self.columns)
            .filter(|(_, fields)| has_wanted(fields))
            .map(|(column, _)| column)
            .collect();
        let block = IpcBlock::new(0, message_bytes as i32, body.len() as i64);
        let buffer = Buffer::from(bytes.clone());
        let decoded = contained(OP, "the batch", || {
            let mut decoder = FileDecoder::new(self.schema.clone(), self.version);
            if projection.len() < self.columns.len() {
                decoder = decoder.with_projection(projection.clone());
            }
            let batch = decoder.read_record_batch(&block, &buffer)?;
            Ok(batch.ok_or_else(|| corrupt("there is no batch of rows"))?)
        })?;
        let mut made: Vec<Column> = self.leaves.iter().map(|_| absent()).collect();
        // JSON puts names, quotes and commas around values: what columns become is counted as they do, all of them together.
        let mut made_bytes = 0u64;
        for (array, column) in decoded.columns().iter().zip(&projection) {
            let mut arrays = Vec::new();
            flatten(array, None, &mut arrays);
            let fields = self.columns.get(*column).cloned().unwrap_or_default();
            if arrays.len() != fields.len() {
                return Err(corrupt("they have other columns than their schema says"));
            }
            for (field, (array, nulls)) in fields.zip(arrays) {
                if let (Some(leaf), Some(true)) = (self.leaves.get(field), is_wanted.get(field))
                    && let Some(slot) = made.get_mut(field)
                {
                    let room = bytes_max.saturating_sub(made_bytes);
                    *slot = contained(OP, "the batch", || {
                        Ok(column_of(leaf, &array, nulls, rows, room)?)
                    })?;
                    made_bytes = made_bytes.saturating_add(slot.data.len() as u64);
                }
            }
        }
        Ok(made)
    }
}

fn column_of(
    leaf: &Leaf,
    array: &ArrayRef,
    nulls: Option<NullBuffer>,
    rows: u64,
    bytes_max: u64,
) -> Result<Column> {
    let mut joined = if leaf.is_json {
        Joined::json(bytes_max)
    } else {
        Joined::new(bytes_max)
    };
    let added = joined.add(array, nulls).and_then(|()| joined.finish(rows));
    added.map_err(|error| {
        let name = leaf.field.name.escape_debug();
        error.within(format_args!("column '{name}'"))
    })
}

/// The columns that a column is made of, as the fields were: members of structs, and no columns of nulls. A null struct has no members.
fn flatten(array: &ArrayRef, outer: Option<&NullBuffer>, out: &mut Vec<(ArrayRef, Option<NullBuffer>)>) {
    let nulls = NullBuffer::union(outer, array.logical_nulls().as_ref());
    match array.data_type() {
        DataType::Struct(_) => {
            for member in array.as_struct().columns() {
                flatten(member, nulls.as_ref(), out);
            }
        }
        DataType::Null => {}
        _ => out.push((array.clone(), nulls)),
    }
}

/// How many rows the batch of a message has.
pub(super) fn rows(message: &[u8]) -> Result<u64> {
    with_batch(message, |batch| {
        u64::try_from(batch.length()).map_err(|_| corrupt("there are fewer than no rows"))
    })
}

/// Most bytes that a batch may become. JSON is a few times what it is made of.
pub(super) fn bytes_max(stored_bytes: u64) -> u64 {
    let by_ratio = stored_bytes.saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES);
    by_ratio.min(BATCH_BYTES_MAX.max(stored_bytes.saturating_mul(4)))
}

/// Compare the buffers of a batch with what is there of them, and what buffers and values say they become with what is possible.
pub(super) fn check(fields: &Fields, message: &[u8], body: &[u8], rows: u64, bytes_max: u64) -> Result<()> {
    with_batch(message, |batch| {
        if u64::try_from(batch.length()) != Ok(rows) {
            return Err(corrupt(&format!(
                "there are {} rows instead of {rows}",
                batch.length()
            )));
        }
        let compression = batch.compression().map(|compression| compression.codec());
        let value_bytes = values_of(fields, batch)?;
        let mut raw_bytes = 0u64;
        let mut end = 0;
        for buffer in batch.buffers().into_iter().flatten() {
            let range = usize::try_from(buffer.offset())
                .ok()
                .zip(usize::try_from(buffer.length()).ok())
                .and_then(|(start, len)| Some(start..start.checked_add(len)?));
            let bytes = range
                .clone()
                .and_then(|range| body.get(range))
                .ok_or_else(|| corrupt("a buffer lies outside of them"))?;
            if let Some(range) = range.filter(|range| !range.is_empty()) {
                // What one buffer holds, several columns could become.
                if range.start < end {
                    return Err(corrupt("a buffer lies over another"));
                }
                end = range.end;
            }
            let raw = match bytes.first_chunk::<RAW_LENGTH_BYTES>() {
                _ if compression.is_none() || bytes.is_empty() => bytes.len() as u64,
                None => return Err(corrupt("a compressed buffer does not say what it becomes")),
                Some(len) => match i64::from_le_bytes(*len) {
                    NOT_COMPRESSED => (bytes.len() - RAW_LENGTH_BYTES) as u64,
                    len => u64::try_from(len).map_err(|_| corrupt("a buffer of fewer than no bytes"))?,
                },
            };
            // Room for it is made before the first byte is there.
            let is_lz4 = compression == Some(CompressionType::LZ4_FRAME);
            if is_lz4 && raw > (bytes.len() as u64).saturating_mul(LZ4_RATIO_MAX) {
                return Err(too_much(bytes.len(), raw));
            }
            raw_bytes = raw_bytes.saturating_add(raw);
        }
        match raw_bytes.max(value_bytes) {
            most if most > bytes_max => Err(too_much(body.len(), most)),
            _ => Ok(()),
        }
    })
}

/// What all values of a batch are reckoned with. Nulls take no buffer, so that a list of them says how many they are, and nothing else does.
fn values_of(fields: &Fields, batch: RecordBatch<'_>) -> Result<u64> {
    let mut widths = Vec::new();
    for field in fields {
        push_widths(field.data_type(), &mut widths);
    }
    let widths = widths.into_iter().chain(iter::repeat(VALUE_BYTES));
    let mut bytes = 0u64;
    for (node, width) in batch.nodes().into_iter().flatten().zip(widths) {
        let values =
            u64::try_from(node.length()).map_err(|_| corrupt("a column has fewer than no values"))?;
        bytes = bytes.saturating_add(values.saturating_mul(width));
    }
    Ok(bytes)
}

/// What each value takes of the columns that a batch has for a field: its own, then those of its items or members.
fn push_widths(data_type: &DataType, widths: &mut Vec<u64>) {
    let width = match data_type {
        DataType::Boolean => 1,
        other => other.primitive_width().map_or(VALUE_BYTES, |width| width as u64),
    };
    widths.push(width);
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => push_widths(item.data_type(), widths),
        DataType::Struct(members) => members
            .iter()
            .for_each(|member| push_widths(member.data_type(), widths)),
        _ => {}
    }
}

fn too_much(stored_bytes: usize, bytes: u64) -> Error {
    let message = format!("{stored_bytes} bytes of them would become {bytes}");
    Error::new(ErrorKind::LimitExceeded, OP, message)
        .with_hint("no ordinary data shrinks that much; look at where the chunk comes from")
}

fn with_batch<T>(message: &[u8], look: impl FnOnce(RecordBatch<'_>) -> Result<T>) -> Result<T> {
    contained(OP, "the message", || {
        let message = parse(message)?;
        let batch = message
            .header_as_record_batch()
            .ok_or_else(|| corrupt("their message is of another kind"))?;
        Ok(look(batch)?)
    })
}

fn parse(message: &[u8]) -> Result<Message<'_>> {
    let message = message.strip_prefix(&CONTINUATION).unwrap_or(message);
    let message = message.get(4..).unwrap_or_default();
    let options = verifier(message, MESSAGE_TABLES_MAX);
    root_as_message_with_opts(&options, message).map_err(|error| unreadable("the message", &error))
}
