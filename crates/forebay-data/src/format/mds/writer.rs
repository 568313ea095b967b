//! Writing MDS: shards, and the index.json that lists them.
//!
//! [`Settings`] are those of a data set. They make one [`MdsWriter`] for each shard; the bytes it gives are [sealed](Settings::seal), which means hashed,
//! compressed and hashed again; what that yields is stored, and goes into the [`Index`](super::Index) that is written last. For the same samples
//! and settings, shards and index.json are byte for byte those of mosaicml-streaming. Compressed files differ from theirs where the compressor
//! does; gzip has no time in its header.

use std::borrow::Cow;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_io::Buf;
use serde::{Deserialize, Serialize};

use super::compression::Compression;
use super::config::{Column, Columns, Config, FORMAT, VERSION};
use super::encoding::{self, Encoding};
use super::hash::{HashName, Hasher};
use super::index::{FileEntry, ShardEntry};
use super::json;
use crate::format::rows::ROWS_MAX;
use crate::format::shard_bytes::ShardBytes;
use crate::format::value::Value;
use crate::format::{SampleRef, ShardWriter};
use crate::schema::{Dtype, Field, Kind};
use crate::table::FIELDS_MAX;

/// Where a shard ends when nothing else is asked for: their default.
pub const SIZE_LIMIT_BYTES: u64 = 1 << 26;

/// Offsets have 32 bits.
const SHARD_BYTES_MAX: u64 = u32::MAX as u64;

/// Bytes of a number in front of a shard or a sample.
const WORD_BYTES: u64 = 4;

/// How a data set is written.
#[derive(Debug, Clone)]
pub struct Settings {
    columns: Columns,
    compression: Option<Compression>,
    hashes: Vec<HashName>,
    size_limit: Option<u64>,
}

/// A shard ready to be stored.
#[derive(Debug)]
pub struct Sealed {
    /// Its bytes, compressed where the settings ask for it.
    pub bytes: Vec<u8>,
    /// What index.json says of it; its [`stored`](ShardEntry::stored) file has the name to store it under.
    pub entry: ShardEntry,
}

/// Checksums of the two files a shard can be: without compression, and with it where there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardHashes {
    raw: Vec<(HashName, String)>,
    zip: Vec<(HashName, String)>,
}

impl Settings {
    /// For samples of these columns, in any order.
    pub fn new(columns: impl IntoIterator<Item = (String, Encoding)>) -> Result<Self> {
        let columns = columns
            .into_iter()
            .map(|(name, encoding)| Column::new(name, encoding));
        let mut columns: Vec<Column> = columns.collect();
        columns.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let twin = columns
            .iter()
            .zip(columns.iter().skip(1))
            .find(|(a, b)| a.name == b.name);
        if let Some((column, _)) = twin {
            let message = format!("column '{}' is there twice", column.name.escape_debug());
            return Err(refused(message));
        }
        if columns.is_empty() || columns.len() > FIELDS_MAX {
            let message = format!("{} columns, where 1 to {FIELDS_MAX} are possible", columns.len());
            return Err(refused(message));
        }
        // Readers take a fixed size of 0 for a variable one.
        if let Some(column) = columns.iter().find(|column| column.encoding.size() == Some(0)) {
            let message = format!("values of column '{}' have no bytes", column.name.escape_debug());
            return Err(refused(message));
        }
        Ok(Self {
            columns: columns.into(),
            compression: None,
            hashes: Vec::new(),
            size_limit: Some(SIZE_LIMIT_BYTES),
        })
    }

    /// For samples of these fields, each in the encoding that says most of it.
    pub fn for_fields(fields: &[Field]) -> Result<Self> {
        Self::new(
            fields
                .iter()
                .map(|field| (field.name.clone(), Encoding::for_kind(&field.kind))),
        )
    }

    /// Compress shards.
    pub fn with_compression(mut self, compression: Option<Compression>) -> Self {
        self.compression = compression;
        self
    }

    /// Put these checksums into index.json.
    pub fn with_hashes(mut self, hashes: impl IntoIterator<Item = HashName>) -> Self {
        self.hashes = hashes.into_iter().collect();
        self.hashes.sort_unstable_by_key(|hash| hash.name());
        self.hashes.dedup();
        self
    }

    /// Where a new shard begins; `None` puts everything into one. The writer of a shard does not mind it: who feeds it asks
    /// [`bytes_with`](ShardWriter::bytes_with) and begins a new one when the answer is larger.
    pub fn with_size_limit(mut self, size_limit: Option<u64>) -> Result<Self> {
        if let Some(bytes) = size_limit.filter(|bytes| !(1..=SHARD_BYTES_MAX).contains(bytes)) {
            let message = format!("mds shards of {bytes} bytes are not possible: their offsets have 32 bits");
            return Err(refused(message).with_hint("ask for less than 4 GiB"));
        }
        self.size_limit = size_limit;
        Ok(self)
    }

    /// The columns, sorted by name.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// A shard to be filled.
    pub fn writer(&self) -> Result<MdsWriter> {
        let config = json::to_vec(&self.config())?;
        Ok(MdsWriter {
            columns: self.columns.clone(),
            shard_bytes: 2 * WORD_BYTES + config.len() as u64,
            config,
            lens: Vec::new(),
            samples: Vec::new(),
        })
    }

    /// Hash, compress and name shard `number` of the data set.
    pub fn seal(&self, number: u64, raw: Vec<u8>) -> Result<Sealed> {
        let samples = raw.first_chunk().copied().map(u32::from_le_bytes);
        let Some(samples) = samples else {
            return Err(Error::new(ErrorKind::Internal, OP, "a shard without a header"));
        };
        let (samples, raw_bytes) = (u64::from(samples), raw.len() as u64);
        let zip = self
            .compression
            .map(|compression| compression.compress(&raw))
            .transpose()?;
        let hashes = self.hashes_of(&raw, zip.as_deref());
        let bytes = zip.unwrap_or(raw);
        let entry = self.entry(number, samples, raw_bytes, bytes.len() as u64, hashes)?;
        Ok(Sealed { bytes, entry })
    }

    /// The checksums that are asked for, of a shard and of what it is compressed to.
    pub(crate) fn hashes_of(&self, raw: &[u8], zip: Option<&[u8]>) -> ShardHashes {
        let of = |bytes: &[u8]| {
            let hashes = self.hashes.iter().map(|name| {
                let mut hasher = Hasher::new(*name);
                hasher.update(bytes);
                (*name, hasher.finish())
            });
            hashes.collect()
        };
        ShardHashes {
            raw: of(raw),
            zip: zip.map(of).unwrap_or_default(),
        }
    }

    /// What index.json says of shard `number`, of so many bytes before and after compression.
    pub(crate) fn entry(
        &self,
        number: u64,
        samples: u64,
        raw_bytes: u64,
        stored_bytes: u64,
        hashes: ShardHashes,
    ) -> Result<ShardEntry> {
        let name = shard_name(number);
        let file = |name: &str, bytes, hashes| {
            let key = Key::parse(name)?;
            Ok(FileEntry { key, bytes, hashes })
        };
        let zip = self.compression.map(|compression| {
            let name = format!("{name}.{}", compression.extension());
            file(&name, stored_bytes, hashes.zip)
        });
        Ok(ShardEntry {
            columns: Arc::clone(&self.columns),
            compression: self.compression,
            hashes: self.hashes.clone(),
            size_limit: self.size_limit,
            samples,
            raw: file(&name, raw_bytes, hashes.raw)?,
            zip: zip.transpose()?,
        })
    }

    fn config(&self) -> Config {
        let columns = self.columns.iter();
        Config {
            column_encodings: columns
                .clone()
                .map(|column| column.encoding_name.clone())
                .collect(),
            column_names: columns.clone().map(|column| column.name.clone()).collect(),
            column_sizes: columns
                .map(|column| column.encoding.size().map(u64::from))
                .collect(),
            compression: self.compression.map(|compression| compression.to_string()),
            format: FORMAT.to_owned(),
            hashes: self.hashes.iter().map(ToString::to_string).collect(),
            size_limit: self.size_limit,
            version: VERSION,
        }
    }
}

/// Makes one MDS shard. Keys of samples have no place in it.
#[derive(Debug, Clone)]
pub struct MdsWriter {
    columns: Columns,
    config: Vec<u8>,
    /// Bytes of each sample.
    lens: Vec<u32>,
    samples: Vec<u8>,
    /// What the shard has so far: exactly the size it gets.
    shard_bytes: u64,
}

/// What shard `number` of a data set is called before compression.
pub(crate) fn shard_name(number: u64) -> String {
    format!("shard.{number:05}.{FORMAT}")
}

impl MdsWriter {
    /// Bytes of the shard as it stands.
    pub(crate) fn shard_bytes(&self) -> u64 {
        self.shard_bytes
    }

    /// The field of a column, and its bytes as they are written.
    fn value<'a>(column: &Column, sample: SampleRef<'a>) -> Result<Cow<'a, [u8]>> {
        let found = sample.fields.iter().find(|(field, _)| field.name == column.name);
        let Some((field, bytes)) = found else {
            let message = format!(
                "sample '{}' has no field '{}', but mds needs all of them in each",
                sample.key.escape_debug(),
                column.name.escape_debug()
            );
            return Err(refused(message));
        };
        let value = encode(&column.encoding, &field.kind, bytes).map_err(|why| {
            refused(format!(
                "field '{}' of sample '{}' {why}",
                column.name.escape_debug(),
                sample.key.escape_debug()
            ))
        })?;
        let size = column.encoding.size();
        if size.is_some_and(|size| size as usize != value.len()) {
            let message = format!(
                "field '{}' of sample '{}' has {} bytes, which is no {}",
                column.name.escape_debug(),
                sample.key.escape_debug(),
                value.len(),
                column.encoding
            );
            return Err(refused(message));
        }
        Ok(value)
    }
}

impl ShardWriter for MdsWriter {
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64 {
        let values = sample.fields.iter().map(|(field, bytes)| {
            let column = self
                .columns
                .binary_search_by(|column| column.name.cmp(&field.name));
            let column = column.ok().and_then(|index| self.columns.get(index));
            column.map_or(0, |column| {
                let value = encode(&column.encoding, &field.kind, bytes);
                let head = if column.encoding.size().is_none() {
                    WORD_BYTES
                } else {
                    0
                };
                head + value.map_or(0, |value| value.len() as u64)
            })
        });
        self.shard_bytes + WORD_BYTES + values.sum::<u64>()
    }

    fn add(&mut self, sample: SampleRef<'_>) -> Result<()> {
        if let Some((field, _)) = sample.fields.iter().find(|(field, _)| {
            self.columns
                .binary_search_by(|column| column.name.cmp(&field.name))
                .is_err()
        }) {
            let message = format!("there is no column for the field '{}'", field.name.escape_debug());
            return Err(refused(message));
        }
        let values = self.columns.iter().map(|column| Self::value(column, sample));
        let values = values.collect::<Result<Vec<_>>>()?;
        let heads = self
            .columns
            .iter()
            .filter(|column| column.encoding.size().is_none());
        let body: u64 = values.iter().map(|value| value.len() as u64).sum();
        let len = WORD_BYTES * heads.count() as u64 + body;
        let shard_bytes = self.shard_bytes + WORD_BYTES + len;
        if shard_bytes > SHARD_BYTES_MAX || self.lens.len() >= ROWS_MAX as usize {
            let message = format!(
                "sample '{}' does not fit into the shard: it would have {shard_bytes} bytes and {} samples",
                sample.key.escape_debug(),
                self.lens.len() + 1
            );
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message)
                .with_hint("a shard of mds has less than 4 GiB; write smaller ones"));
        }
        for (column, value) in self.columns.iter().zip(&values) {
            if column.encoding.size().is_none() {
                self.samples.extend((value.len() as u32).to_le_bytes());
            }
        }
        for value in &values {
            self.samples.extend_from_slice(value);
        }
        self.lens.push(len as u32);
        self.shard_bytes = shard_bytes;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Buf> {
        let mut shard = ShardBytes::with_capacity(self.shard_bytes as usize)?;
        shard.extend(&(self.lens.len() as u32).to_le_bytes())?;
        let table_bytes = WORD_BYTES * (self.lens.len() as u64 + 2);
        let mut offset = table_bytes as u32 + self.config.len() as u32;
        shard.extend(&offset.to_le_bytes())?;
        for len in &self.lens {
            offset += len;
            shard.extend(&offset.to_le_bytes())?;
        }
        shard.extend(&self.config)?;
        shard.extend(&self.samples)?;
        shard.freeze()
    }
}

const OP: &str = "write mds";

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, OP, message)
}

/// The bytes of a value of that kind in that encoding. Only arrays of a shape or type that changes get something in front of them; all
/// other values are written as they are. In words, why it is not possible.
fn encode<'a>(
    encoding: &Encoding,
    kind: &Kind,
    bytes: &'a [u8],
) -> std::result::Result<Cow<'a, [u8]>, &'static str> {
    if let (Encoding::Ndarray { dtype: None, .. }, Kind::Encoded { encoding }) = (encoding, kind) {
        return array_of(encoding, bytes);
    }
    let Encoding::Ndarray {
        dtype: Some(dtype),
        shape: None,
    } = encoding
    else {
        return Ok(Cow::Borrowed(bytes));
    };
    let (shape, values) = match kind {
        Kind::List { .. } => (vec![elements(*dtype, bytes)?], Cow::Borrowed(bytes)),
        Kind::Array { shape, .. } => (shape.clone(), Cow::Borrowed(bytes)),
        Kind::Varints => {
            let values = varints(bytes)?;
            (vec![values.len() as u64 / 8], Cow::Owned(values))
        }
        _ => return Ok(Cow::Borrowed(bytes)),
    };
    let head = encoding::array_head(&shape).ok_or("has a shape that mds cannot say")?;
    Ok(Cow::Owned([&head[..], &values].concat()))
}

/// An array of another library with the head that MDS gives it; its own are what they are.
fn array_of<'a>(name: &str, bytes: &'a [u8]) -> std::result::Result<Cow<'a, [u8]>, &'static str> {
    if name.starts_with("mds:") {
        return Ok(Cow::Borrowed(bytes));
    }
    let Ok(Value::Array(array)) = Value::open(name, bytes) else {
        return Err("is no array");
    };
    let code = encoding::code_of_dtype(array.dtype).ok_or("is an array of a type that mds does not have")?;
    // MDS has no arrays without dimensions.
    let shape = if array.shape.is_empty() {
        vec![1]
    } else {
        array.shape
    };
    let head = encoding::array_head(&shape).ok_or("has a shape that mds cannot say")?;
    Ok(Cow::Owned([&[code], &head[..], array.values].concat()))
}

fn elements(dtype: Dtype, bytes: &[u8]) -> std::result::Result<u64, &'static str> {
    let len = bytes.len() as u64;
    if len.is_multiple_of(dtype.bytes()) {
        return Ok(len / dtype.bytes());
    }
    Err("does not end with a whole number")
}

/// Packed varints as 64-bit integers.
fn varints(bytes: &[u8]) -> std::result::Result<Vec<u8>, &'static str> {
    let mut values = Vec::new();
    let (mut value, mut shift) = (0u64, 0u32);
    for byte in bytes {
        let bits = u64::from(byte & 0x7f);
        // Ten bytes hold 70 bits; the last six of them are of no use.
        value |= bits
            .checked_shl(shift)
            .ok_or("holds a number of more than 64 bits")?;
        shift += 7;
        if byte & 0x80 == 0 {
            values.extend(value.to_le_bytes());
            (value, shift) = (0, 0);
        }
    }
    if shift != 0 {
        return Err("ends within a number");
    }
    Ok(values)
}

#[cfg(test)]
mod tests;
