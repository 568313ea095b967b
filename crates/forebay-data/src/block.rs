//! Samples in memory: a range of a shard's samples, read together, checked, and handed out as slices.
//!
//! A block of a shard with a [`Samples`](crate::Samples) layout is the bytes it was read as; fields are found through the shared table.
//! A block of rows that had to be decoded (Parquet) holds its columns.

mod cast;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result, Span, crc32c};

pub(crate) use cast::exact_float;

use crate::schema::Field;
use crate::table::{Layout, Table};

/// A run of samples of one shard.
#[derive(Debug, Clone)]
pub struct Block {
    table: Arc<Table>,
    first: u64,
    samples: usize,
    rows: Rows,
    /// Those of the data set, where values became what it calls them.
    cast_fields: Option<Arc<[Field]>>,
}

#[derive(Debug, Clone)]
enum Rows {
    /// The bytes of the samples, from offset `base` of the shard on.
    Bytes { data: Bytes, base: u64 },
    /// One column for each field of the table.
    Columns(Vec<Column>),
}

/// A decoded field of a run of samples.
#[derive(Debug, Clone)]
pub struct Column {
    /// The values, one after the other.
    pub data: Bytes,
    /// Where they are.
    pub shape: Shape,
    /// Which samples have a value; `None` for all.
    pub present: Option<Vec<bool>>,
}

/// How values lie in a column.
#[derive(Debug, Clone)]
pub enum Shape {
    /// Each takes that many bytes.
    Fixed(usize),
    /// Value `i` lies between ends `i` and `i + 1`.
    Ends(Vec<u64>),
    /// Each has a place of its own; what lies between them is none of it.
    Places(Vec<Range<usize>>),
    /// There is one value, and every row has it.
    Same,
}

impl Column {
    /// Memory that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let places = match &self.shape {
            Shape::Fixed(_) | Shape::Same => 0,
            Shape::Ends(ends) => size_of_val(&ends[..]),
            Shape::Places(places) => size_of_val(&places[..]),
        };
        let present = self.present.as_ref().map_or(0, Vec::len);
        (self.data.len() + places + present) as u64
    }

    /// The value of row `index`; `None` where the row does not have one.
    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.data.get(self.range(index)?)
    }

    /// Where that lies.
    fn range(&self, index: usize) -> Option<Range<usize>> {
        if self
            .present
            .as_ref()
            .is_some_and(|present| !present.get(index).copied().unwrap_or(false))
        {
            return None;
        }
        Some(match &self.shape {
            Shape::Fixed(width) => index.checked_mul(*width)?..index.checked_add(1)?.checked_mul(*width)?,
            Shape::Ends(ends) => *ends.get(index)? as usize..*ends.get(index + 1)? as usize,
            Shape::Places(places) => places.get(index)?.clone(),
            Shape::Same => 0..self.data.len(),
        })
    }
}

impl Block {
    /// Samples `range` of a shard, from `data`, which holds the shard's bytes from offset `base` on and at least those of the samples.
    pub fn from_bytes(table: Arc<Table>, range: Range<u64>, data: Bytes, base: u64) -> Result<Self> {
        let Layout::Samples(samples) = &table.layout else {
            return Err(internal("rows of a group cannot be sliced"));
        };
        let held = Span::at(base, data.len() as u64)?;
        for index in [range.start, range.end.saturating_sub(1)] {
            let extent = samples.extent(index as usize);
            if !range.is_empty()
                && !extent.is_some_and(|extent| held.intersect(extent) == Some(extent) || extent.is_empty())
            {
                return Err(internal("a block does not hold its samples"));
            }
        }
        Ok(Self {
            first: range.start,
            samples: (range.end - range.start) as usize,
            rows: Rows::Bytes { data, base },
            cast_fields: None,
            table,
        })
    }

    /// Samples `range` of a shard, decoded: one column for each field of its table.
    pub fn from_columns(table: Arc<Table>, range: Range<u64>, columns: Vec<Column>) -> Self {
        Self {
            first: range.start,
            samples: (range.end - range.start) as usize,
            rows: Rows::Columns(columns),
            cast_fields: None,
            table,
        }
    }

    /// How many samples.
    pub fn len(&self) -> usize {
        self.samples
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Number in the shard of the first of them.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The fields of its shard.
    pub fn fields(&self) -> &[Field] {
        self.cast_fields.as_deref().unwrap_or(&self.table.fields)
    }

    /// The key of a sample, counted within the block.
    pub fn key(&self, sample: usize) -> Option<&str> {
        match &self.table.layout {
            Layout::Samples(samples) => samples.keys.get(self.first as usize + sample),
            Layout::Groups(_) => None,
        }
    }

    /// A field of a sample, both counted from 0; `None` where the sample does not have it.
    pub fn field(&self, sample: usize, column: usize) -> Option<&[u8]> {
        if sample >= self.samples {
            return None;
        }
        match (&self.rows, &self.table.layout) {
            (Rows::Bytes { data, base }, Layout::Samples(samples)) => {
                let index = self.first as usize + sample;
                let span = samples.columns.get(column)?.get(index)?;
                let at = (*samples.starts.get(index)? - base) as usize;
                data.get(at + span.start..at + span.end)
            }
            (Rows::Columns(columns), _) => columns.get(column)?.get(sample),
            (Rows::Bytes { .. }, Layout::Groups(_)) => None,
        }
    }

    /// The bytes of a sample in the shard; decoded rows have none of their own.
    pub(crate) fn extent(&self, sample: usize) -> Option<Span> {
        match &self.table.layout {
            Layout::Samples(samples) => samples.extent(self.first as usize + sample),
            Layout::Groups(_) => None,
        }
    }

    /// True when the bytes of a sample have the checksum of the table. Decoded rows were checked before decoding.
    pub fn is_whole(&self, sample: usize) -> bool {
        let (Rows::Bytes { data, base }, Layout::Samples(samples)) = (&self.rows, &self.table.layout) else {
            return true;
        };
        let index = self.first as usize + sample;
        let Some(extent) = samples.extent(index) else {
            return false;
        };
        let at = (extent.start() - base) as usize;
        data.get(at..at + extent.len() as usize)
            .is_some_and(|bytes| crc32c(bytes) == samples.crcs[index])
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "read block", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{Field, Kind};
    use crate::table::TableBuilder;

    fn table() -> Arc<Table> {
        let mut builder = TableBuilder::new(vec![Field::new("a", Kind::Bytes)]);
        for (index, text) in [b"xaaa", b"xbbb", b"xccc"].iter().enumerate() {
            let start = 100 + 4 * index as u64;
            builder.begin(start, None).unwrap();
            builder.absorb(*text);
            builder.field(0, start + 1, 3).unwrap();
            builder.end().unwrap();
        }
        Arc::new(builder.finish().unwrap())
    }

    #[test]
    fn fields_are_slices_and_damage_is_seen() {
        let data = Bytes::from_static(b"..xbbbxccX");
        let block = Block::from_bytes(table(), 1..3, data, 102).unwrap();
        assert_eq!((block.len(), block.first()), (2, 1));
        assert_eq!(block.field(0, 0), Some(&b"bbb"[..]));
        assert_eq!((block.field(2, 0), block.field(0, 1)), (None, None));
        assert!(block.is_whole(0) && !block.is_whole(1));
    }

    #[test]
    fn a_block_must_hold_its_samples() {
        let data = || Bytes::from_static(b"xbbbxccc");
        assert!(Block::from_bytes(table(), 1..3, data(), 104).is_ok());
        assert!(Block::from_bytes(table(), 0..3, data(), 104).is_err());
        assert!(Block::from_bytes(table(), 1..3, data().slice(..7), 104).is_err());
        assert!(Block::from_bytes(table(), 1..4, data(), 104).is_err());
    }

    #[test]
    fn decoded_columns_know_what_is_absent() {
        let column = Column {
            data: Bytes::from_static(b"abc"),
            shape: Shape::Ends(vec![0, 2, 2, 3]),
            present: Some(vec![true, false, true]),
        };
        let values: Vec<_> = (0..4).map(|index| column.get(index)).collect();
        assert_eq!(values, [Some(&b"ab"[..]), None, Some(b"c"), None]);
    }
}
