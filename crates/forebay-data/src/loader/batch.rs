//! A batch: the samples of one step, collated into one buffer.
//!
//! ```text
//! buffer: | field 0: values of B samples | field 1: offsets (B + 1 x i64) | field 1: bytes | ...    each part aligned to 64 bytes
//! ```
//!
//! A field of fixed size is one array `[B, ...]`; the others are ragged: `offsets[i]..offsets[i + 1]` of the bytes is sample `i`.

use std::ops::Range;

use forebay_core::Key;
use forebay_io::Buf;

use crate::schema::Field;

/// Parts of a batch begin at multiples of this: a cache line, and what vector instructions like.
pub(super) const PART_ALIGN: usize = 64;

/// The samples of one step.
#[derive(Debug, Clone)]
pub struct Batch {
    pub(super) epoch: u64,
    pub(super) index: u64,
    pub(super) samples: usize,
    pub(super) fields: Vec<BatchField>,
    pub(super) keys: Vec<SampleKey>,
    pub(super) data: Buf,
}

/// One field of a batch.
#[derive(Debug, Clone)]
pub struct BatchField {
    /// Its name and what its bytes mean.
    pub field: Field,
    pub(super) part: Part,
}

/// Where a field lies in the buffer.
#[derive(Debug, Clone)]
pub(super) enum Part {
    Fixed(Range<usize>),
    Ragged {
        offsets: Range<usize>,
        bytes: Range<usize>,
    },
}

/// The values of a field.
#[derive(Debug, Clone)]
pub enum Values {
    /// One after the other, all of one size.
    Fixed(Buf),
    /// Sample `i` lies between offsets `i` and `i + 1`, which are 64-bit integers.
    Ragged {
        /// One more than there are samples.
        offsets: Buf,
        /// The bytes.
        bytes: Buf,
    },
}

/// What a sample is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleKey {
    /// Its key.
    Named(Box<str>),
    /// The format has none: its shard and its number there.
    Numbered {
        /// Number of the shard in the data set.
        shard: u32,
        /// Number of the sample in the shard.
        index: u64,
    },
}

impl SampleKey {
    /// As text, where the shards are called so.
    pub fn text(&self, shard_key: impl FnOnce(u32) -> Option<Key>) -> String {
        match self {
            Self::Named(key) => key.to_string(),
            Self::Numbered { shard, index } => match shard_key(*shard) {
                Some(key) => format!("{key}:{index}"),
                None => format!("{shard}:{index}"),
            },
        }
    }
}

impl Batch {
    /// The epoch it belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Its number in the epoch.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// How many samples.
    pub fn len(&self) -> usize {
        self.samples
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Bytes of all fields.
    pub fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    /// Its fields.
    pub fn fields(&self) -> &[BatchField] {
        &self.fields
    }

    /// What the samples are called.
    pub fn keys(&self) -> &[SampleKey] {
        &self.keys
    }

    /// The values of a field, without copying.
    pub fn values(&self, field: &BatchField) -> Values {
        match &field.part {
            Part::Fixed(range) => Values::Fixed(self.data.slice(range.clone())),
            Part::Ragged { offsets, bytes } => Values::Ragged {
                offsets: self.data.slice(offsets.clone()),
                bytes: self.data.slice(bytes.clone()),
            },
        }
    }

    /// The bytes of a field of one sample.
    pub fn value(&self, field: &BatchField, sample: usize) -> Option<&[u8]> {
        if sample >= self.samples {
            return None;
        }
        match &field.part {
            Part::Fixed(range) => {
                let width = range.len() / self.samples;
                let start = range.start + sample * width;
                self.data.get(start..start + width)
            }
            Part::Ragged { offsets, bytes } => {
                let at = |index: usize| {
                    let start = offsets.start + 8 * index;
                    let word = self.data.get(start..start + 8)?.try_into().ok()?;
                    usize::try_from(i64::from_le_bytes(word)).ok()
                };
                self.data
                    .get(bytes.start + at(sample)?..bytes.start + at(sample + 1)?)
            }
        }
    }
}
