//! TFRecord: records with two checksums each, of `tf.train.Example`s or of anything.
//!
//! Specified in `docs/formats/tfrecord.md`. A pass ([`scan`]) checks every length before it is believed and every record's data, and reads
//! Examples with a protobuf reader of its own ([`wire`], [`example`]) that does nothing but find ranges: a feature becomes a field of the table,
//! and streaming slices it. Kinds that are more than bytes are decoded on demand ([`decode`]). [`write`] goes the other way.

mod columns;
pub mod decode;
mod example;
mod scan;
#[cfg(test)]
mod tests;
mod wire;
mod write;

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Key, Result, crc32c};

use crate::codec::Codec;
use crate::format::{Format, Scan};
use crate::source::ShardSource;
use crate::table::SAMPLE_BYTES_MAX;

pub use write::TfRecordWriter;

/// Bytes before the data of a record: its length and the checksum of that.
const HEAD_BYTES: usize = 12;

/// Bytes behind the data: its checksum.
const TAIL_BYTES: usize = 4;

/// Longest data of a record: with what is around it, it must be a sample.
const DATA_BYTES_MAX: u64 = SAMPLE_BYTES_MAX - (HEAD_BYTES + TAIL_BYTES) as u64;

/// Field of a sample that is a whole record.
pub const RECORD_FIELD: &str = "record";

/// What is made of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Records {
    /// Features where every record of a shard is an Example, else whole records.
    #[default]
    Auto,
    /// Features; a record that is no Example is an error.
    Examples,
    /// Whole records, in one field.
    Raw,
}

/// Features that are given as the message of their list in every shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Lists {
    /// None: only where a record of the shard needs it.
    #[default]
    None,
    /// These.
    Named(Arc<[String]>),
    All,
}

impl Lists {
    fn has(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::Named(names) => names.iter().any(|own| own == name),
            Self::All => true,
        }
    }
}

/// The format.
#[derive(Debug, Clone, Default)]
pub struct TfRecord {
    records: Records,
    lists: Lists,
}

impl TfRecord {
    /// With that reading of records.
    pub fn new(records: Records) -> Self {
        Self {
            records,
            lists: Lists::None,
        }
    }

    /// Give every feature as the message of its list, so that a field has the same kind in shards where features have one value and in shards
    /// where they have several.
    #[must_use]
    pub fn with_lists(self) -> Self {
        Self {
            lists: Lists::All,
            ..self
        }
    }

    /// The same for the features of these names alone.
    #[must_use]
    pub fn with_lists_of(self, names: Vec<String>) -> Self {
        Self {
            lists: Lists::Named(names.into()),
            ..self
        }
    }

    /// A pass over a shard of which nothing need be known.
    pub fn start(&self) -> Box<dyn Scan> {
        Box::new(scan::RecordScan::new(self.records, self.lists.clone()))
    }
}

#[async_trait]
impl Format for TfRecord {
    fn name(&self) -> &'static str {
        "tfrecord"
    }

    async fn scan(&self, _source: &ShardSource) -> Result<Box<dyn Scan>> {
        Ok(self.start())
    }

    fn codec(&self, _key: &Key, first: &[u8]) -> Codec {
        codec_of(first)
    }
}

/// The compression of a file that begins like that. Names say nothing: TensorFlow takes the compression from an option.
fn codec_of(first: &[u8]) -> Codec {
    if length_of(first).is_some() {
        return Codec::None;
    }
    match first {
        [0x1f, 0x8b, 8, ..] => Codec::Gzip,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Codec::Zstd,
        [cmf, flags, ..] if is_zlib(*cmf, *flags) && first.get(4..8) != Some(&[0; 4]) => Codec::Zlib,
        _ => Codec::None,
    }
}

/// The two bytes of RFC 1950: deflate, a window of at most 32 KiB, check bits right, no preset dictionary.
fn is_zlib(cmf: u8, flags: u8) -> bool {
    let check = u16::from(cmf) << 8 | u16::from(flags);
    cmf & 0x0f == 8 && cmf >> 4 <= 7 && check.is_multiple_of(31) && flags & 0x20 == 0
}

/// The length a record begins with, where its checksum holds.
fn length_of(head: &[u8]) -> Option<u64> {
    let (length, rest) = head.split_first_chunk::<8>()?;
    let (crc, _) = rest.split_first_chunk::<4>()?;
    (mask(crc32c(length)) == u32::from_le_bytes(*crc)).then(|| u64::from_le_bytes(*length))
}

/// What is stored of a CRC.
fn mask(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}
