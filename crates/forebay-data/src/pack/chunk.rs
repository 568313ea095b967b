//! Samples on their way from the input to a shard: a run of them in memory, as they will be written.

use bytes::Bytes;

use crate::format::SampleRef;
use crate::schema::Field;

/// Some samples, one after the other.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// What values lie in.
    data: Bytes,
    keys: String,
    rows: Vec<Row>,
    values: Vec<Placed>,
}

/// A sample.
#[derive(Debug, Clone, Copy)]
struct Row {
    position: u64,
    cost: u64,
    key_end: usize,
    values_end: usize,
}

/// Where a value lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed {
    /// Number of the field that it is of, among those that are written.
    pub(super) field: usize,
    pub(super) start: usize,
    pub(super) len: usize,
}

/// Puts a chunk together.
#[derive(Debug, Default)]
pub(super) struct ChunkBuilder {
    chunk: Chunk,
    /// Values that had to be copied or made.
    copied: Vec<u8>,
    /// Values of the sample that is being made.
    open: Vec<Placed>,
}

impl ChunkBuilder {
    /// Copy a value of the sample that is being made.
    pub(super) fn copy(&mut self, field: usize, value: &[u8]) {
        let start = self.copied.len();
        self.copied.extend_from_slice(value);
        self.open.push(Placed {
            field,
            start,
            len: value.len(),
        });
    }

    /// Note a value of the sample that is being made, which lies in what [`finish_in`](Self::finish_in) is given.
    pub(super) fn place(&mut self, value: Placed) {
        self.open.push(value);
    }

    /// The values of the sample that is being made, in what was copied.
    pub(super) fn open(&self) -> (&[Placed], &[u8]) {
        (&self.open, &self.copied)
    }

    /// Drop the sample that is being made.
    pub(super) fn cancel(&mut self) {
        let start = self.open.first().map(|value| value.start);
        self.copied.truncate(start.unwrap_or(self.copied.len()));
        self.open.clear();
    }

    /// The sample is complete.
    pub(super) fn end(&mut self, position: u64, key: &str, cost: u64) {
        let chunk = &mut self.chunk;
        chunk.values.append(&mut self.open);
        chunk.keys.push_str(key);
        chunk.rows.push(Row {
            position,
            cost,
            key_end: chunk.keys.len(),
            values_end: chunk.values.len(),
        });
    }

    /// The chunk, of values that were copied.
    pub(super) fn finish(self) -> Chunk {
        let data = Bytes::from(self.copied);
        Chunk { data, ..self.chunk }
    }

    /// The chunk, of values that were placed in `data`.
    pub(super) fn finish_in(self, data: Bytes) -> Chunk {
        Chunk { data, ..self.chunk }
    }
}

impl Chunk {
    /// How many samples.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Position of a sample in the order of the input.
    pub(super) fn position(&self, index: usize) -> u64 {
        self.rows.get(index).map_or(0, |row| row.position)
    }

    /// Bytes that a sample adds to a shard.
    pub(super) fn cost(&self, index: usize) -> u64 {
        self.rows.get(index).map_or(0, |row| row.cost)
    }

    /// The key of a sample.
    pub(super) fn key(&self, index: usize) -> &str {
        let start = index.checked_sub(1).and_then(|before| self.rows.get(before));
        let start = start.map_or(0, |row| row.key_end);
        let end = self.rows.get(index).map_or(start, |row| row.key_end);
        self.keys.get(start..end).unwrap_or_default()
    }

    /// The values of a sample.
    fn values(&self, index: usize) -> &[Placed] {
        let start = index.checked_sub(1).and_then(|before| self.rows.get(before));
        let start = start.map_or(0, |row| row.values_end);
        let end = self.rows.get(index).map_or(start, |row| row.values_end);
        self.values.get(start..end).unwrap_or_default()
    }

    /// The values of a sample, with the numbers of their fields.
    pub(super) fn slices(&self, index: usize) -> impl Iterator<Item = (usize, Bytes)> {
        let placed = self.values(index).iter();
        placed.map(|value| (value.field, self.data.slice(value.start..value.start + value.len)))
    }

    /// Hand a sample to `take`, with its fields among `fields`.
    pub(super) fn with<T>(
        &self,
        index: usize,
        fields: &[Field],
        has_key_field: bool,
        take: impl FnOnce(SampleRef<'_>) -> T,
    ) -> T {
        let key = self.key(index);
        let values = refs(self.values(index), &self.data, fields, has_key_field, key);
        take(SampleRef { key, fields: &values })
    }
}

/// The fields of a sample with their bytes; the key first, where it is a field of its own.
pub(super) fn refs<'a>(
    values: &[Placed],
    data: &'a [u8],
    fields: &'a [Field],
    has_key_field: bool,
    key: &'a str,
) -> Vec<(&'a Field, &'a [u8])> {
    let key = fields
        .first()
        .filter(|_| has_key_field)
        .map(|field| (field, key.as_bytes()));
    let values = values.iter().filter_map(|value| {
        let bytes = data.get(value.start..value.start + value.len)?;
        Some((fields.get(value.field)?, bytes))
    });
    key.into_iter().chain(values).collect()
}
