//! Values that stand in a column chunk as they are, lent from it instead of copied: bytes in pages that are neither encoded nor compressed, as
//! pictures and tokens mostly are.
//!
//! Whatever is not just that (a null, another encoding, a page that does not add up) is left to the library, which knows better, and says
//! better what is wrong.

use std::ops::Range;

use arrow_schema::DataType;
use bytes::Bytes;
use parquet::basic::{Compression, Encoding, Type};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::schema::types::ColumnDescriptor;

use super::pages::{Levels, Pages, PlainPage};
use crate::block::{Column, Shape};
use crate::format::arrow::Leaf;

/// Shorter values are copied: a place takes more than it saves.
const VALUE_BYTES_MIN: u64 = 64;

/// Most bits of a definition level: structs in structs, and more of them than anybody has.
const LEVEL_BITS_MAX: u32 = 8;

/// Whether values of a chunk may be lent, as far as the footer tells.
pub(super) fn may_lend(leaf: &Leaf, chunk: &ColumnChunkMetaData) -> bool {
    use Encoding::{
        BYTE_STREAM_SPLIT, DELTA_BINARY_PACKED, DELTA_BYTE_ARRAY, DELTA_LENGTH_BYTE_ARRAY, PLAIN_DICTIONARY,
        RLE_DICTIONARY,
    };
    // The others are of levels.
    let is_encoded = |encoding| {
        matches!(
            encoding,
            PLAIN_DICTIONARY
                | RLE_DICTIONARY
                | DELTA_BINARY_PACKED
                | DELTA_LENGTH_BYTE_ARRAY
                | DELTA_BYTE_ARRAY
                | BYTE_STREAM_SPLIT
        )
    };
    chunk.compression() == Compression::UNCOMPRESSED
        && !chunk.encodings().any(is_encoded)
        && Values::of(leaf, chunk.column_descr()).is_some()
}

/// The column, where all its values can be lent from its chunk.
pub(super) fn lend(
    chunk: &Bytes,
    pages: &Pages,
    leaf: &Leaf,
    descriptor: &ColumnDescriptor,
) -> Option<Column> {
    let kind = Values::of(leaf, descriptor)?;
    let values = pages.plain.iter().map(|page| page.values).sum::<u64>();
    // A dictionary page, or one of another encoding, has values that are not among these.
    if pages.has_dictionary || values != pages.values || descriptor.max_rep_level() > 0 {
        return None;
    }
    if (chunk.len() as u64) < values.saturating_mul(VALUE_BYTES_MIN) {
        return None;
    }
    let mut places = Vec::with_capacity(usize::try_from(values).ok()?);
    for page in &pages.plain {
        let body = chunk.get(page.body.clone())?;
        if page.crc.is_some_and(|crc| crc32fast::hash(body) != crc) {
            return None;
        }
        let at = skip_levels(body, page, descriptor.max_def_level())?;
        kind.place(
            chunk,
            page.body.start + at..page.body.end,
            page.values,
            &mut places,
        )?;
    }
    Some(Column {
        data: chunk.clone(),
        shape: Shape::Places(places),
        present: None,
    })
}

/// How values lie in a page.
#[derive(Debug, Clone, Copy)]
enum Values {
    /// Each behind its length.
    Prefixed { is_text: bool },
    /// One after the other, of this many bytes.
    Fixed(usize),
}

impl Values {
    fn of(leaf: &Leaf, descriptor: &ColumnDescriptor) -> Option<Self> {
        match (&leaf.data_type, descriptor.physical_type()) {
            (DataType::LargeBinary, Type::BYTE_ARRAY) => Some(Self::Prefixed { is_text: false }),
            (DataType::LargeUtf8, Type::BYTE_ARRAY) => Some(Self::Prefixed { is_text: true }),
            (DataType::FixedSizeBinary(len), Type::FIXED_LEN_BYTE_ARRAY)
                if *len == descriptor.type_length() =>
            {
                usize::try_from(*len).ok().filter(|len| *len > 0).map(Self::Fixed)
            }
            _ => None,
        }
    }

    /// Add the places of the values in a range of a chunk, which they must fill.
    fn place(
        self,
        chunk: &[u8],
        range: Range<usize>,
        values: u64,
        places: &mut Vec<Range<usize>>,
    ) -> Option<()> {
        let mut at = range.start;
        match self {
            Self::Fixed(len) => {
                let all = usize::try_from(values).ok()?.checked_mul(len)?;
                (all == range.len()).then_some(())?;
                places.extend(
                    (range.start..range.end)
                        .step_by(len)
                        .map(|start| start..start + len),
                );
            }
            Self::Prefixed { is_text } => {
                for _ in 0..values {
                    let start = at + 4;
                    let len = u32::from_le_bytes(chunk.get(at..start)?.try_into().ok()?) as usize;
                    at = start.checked_add(len).filter(|end| *end <= range.end)?;
                    let value = chunk.get(start..at)?;
                    if is_text && std::str::from_utf8(value).is_err() {
                        return None;
                    }
                    places.push(start..at);
                }
                (at == range.end).then_some(())?;
            }
        }
        Some(())
    }
}

/// Where the values of a page begin, in its body; `None` unless every one of them is there.
fn skip_levels(body: &[u8], page: &PlainPage, max: i16) -> Option<usize> {
    let (levels, values) = match page.levels {
        Levels::Sized {
            repetition: 0,
            definition,
        } => (0..definition, definition),
        Levels::Prefixed if max == 0 => (0..0, 0),
        Levels::Prefixed => {
            let len = u32::from_le_bytes(body.get(..4)?.try_into().ok()?) as usize;
            let end = len.checked_add(4)?;
            (4..end, end)
        }
        Levels::Sized { .. } => return None,
    };
    let is_whole = max == 0 || are_all(body.get(levels)?, page.values, u16::try_from(max).ok()?);
    is_whole.then_some(values)
}

/// True when levels are so many times the same one, in runs: packed bits are left to the library.
fn are_all(mut levels: &[u8], count: u64, level: u16) -> bool {
    if u16::BITS - level.leading_zeros() > LEVEL_BITS_MAX {
        return false;
    }
    let mut left = count;
    while left > 0 {
        let Some((run, rest)) = varint(levels) else {
            return false;
        };
        let [found, rest @ ..] = rest else {
            return false;
        };
        let len = run >> 1;
        if run & 1 == 1 || u16::from(*found) != level || len == 0 || len > left {
            return false;
        }
        left -= len;
        levels = rest;
    }
    true
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, bytes.get(index + 1..)?));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_runs_of_present_values_count() {
        // 1,000 values in one run, then 24 in another.
        let levels = [0xd0, 0x0f, 1, 48, 1];
        assert!(are_all(&levels, 1024, 1) && are_all(&levels, 1000, 1));
        assert!(!are_all(&levels, 1025, 1) && !are_all(&levels, 1010, 1));
        assert!(!are_all(&levels, 1024, 2) && !are_all(&levels[..4], 1024, 1));
        assert!(!are_all(&[0xd0, 0x0f, 1, 48, 0], 1024, 1));
        // Eight bits that are packed, and a run of nothing.
        assert!(!are_all(&[3, 0xff], 8, 1) && !are_all(&[0, 1, 0, 1], 8, 1));
        assert!(!are_all(&[0xff; 9], 8, 1) && !are_all(&[], 1, 1) && are_all(&[], 0, 1));
    }

    #[test]
    fn values_must_fill_their_page() {
        let places = |kind: Values, chunk: &[u8], values| {
            let mut places = Vec::new();
            kind.place(chunk, 1..chunk.len(), values, &mut places)
                .map(|()| places)
        };
        let bytes = Values::Prefixed { is_text: false };
        let chunk = b".\x02\0\0\0ab\0\0\0\0\x01\0\0\0c";
        assert_eq!(places(bytes, chunk, 3).unwrap(), [5..7, 11..11, 15..16]);
        assert_eq!((places(bytes, chunk, 2), places(bytes, chunk, 4)), (None, None));
        assert_eq!(places(bytes, b".\xff\xff\xff\xffa", 1), None);
        assert_eq!(places(Values::Fixed(2), b".abcd", 2).unwrap(), [1..3, 3..5]);
        assert_eq!(places(Values::Fixed(2), b".abcd", 3), None);
        assert_eq!(
            places(Values::Prefixed { is_text: true }, b".\x01\0\0\0\xff", 1),
            None
        );
    }
}
