//! index.json: which shards a data set has, and what they ought to be.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::compression::Compression;
use super::config::{self, Columns, FORMAT, OP, VERSION, corrupt};
use super::hash::HashName;
use super::json;

/// Longest index.json that is read: a million shards with two checksums each.
pub const INDEX_BYTES_MAX: usize = 1 << 30;

/// Most shards of one data set.
const SHARDS_MAX: usize = 1 << 22;

/// Most bytes of a checksum's text: those of 512 bits.
const HASH_HEX_MAX: usize = 128;

/// The list of a data set's shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Index {
    /// The shards, in the order of their samples.
    pub shards: Vec<ShardEntry>,
}

/// What index.json says of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardEntry {
    /// Its columns; shared by shards that have the same.
    pub columns: Arc<[config::Column]>,
    /// How it is compressed.
    pub compression: Option<Compression>,
    /// Names of the checksums, as the writer was told them.
    pub hashes: Vec<HashName>,
    /// Where the writer began a new shard.
    pub size_limit: Option<u64>,
    /// Number of its samples.
    pub samples: u64,
    /// The file without compression; there is one only where there is no `zip`.
    pub raw: FileEntry,
    /// The compressed file.
    pub zip: Option<FileEntry>,
}

impl ShardEntry {
    /// The file that is stored.
    pub fn stored(&self) -> &FileEntry {
        self.zip.as_ref().unwrap_or(&self.raw)
    }
}

/// What index.json says of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Its name, relative to the directory of index.json; it cannot lead out of there.
    pub key: Key,
    /// Its size.
    pub bytes: u64,
    /// Its checksums.
    pub hashes: Vec<(HashName, String)>,
}

impl Index {
    /// Parse index.json.
    pub fn parse(text: &[u8]) -> Result<Self> {
        if text.len() > INDEX_BYTES_MAX {
            let message = format!("index.json has more than {INDEX_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let raw: RawIndex = serde_json::from_slice(text)
            .map_err(|error| corrupt("index.json does not list mds shards").with_source(error))?;
        if raw.version != VERSION {
            let message = format!(
                "version {} of index.json is not known, only {VERSION}",
                raw.version
            );
            return Err(Error::new(ErrorKind::Unsupported, OP, message).with_hint(config::OTHER_VERSION));
        }
        let shards = raw.shards.0?;
        let mut keys = HashSet::new();
        for entry in &shards {
            if !keys.insert(&entry.stored().key) {
                return Err(corrupt(&format!(
                    "index.json lists '{}' twice",
                    entry.stored().key
                )));
            }
        }
        Ok(Self { shards })
    }

    /// index.json, byte for byte as mosaicml-streaming writes it for these shards.
    pub fn to_json(&self) -> Result<Vec<u8>> {
        let shards = self.shards.iter().map(RawShard::of);
        json::to_vec(&WrittenIndex {
            shards: shards.collect(),
            version: VERSION,
        })
    }

    /// All samples.
    pub fn samples(&self) -> u64 {
        self.shards.iter().map(|shard| shard.samples).sum()
    }
}

#[derive(Deserialize)]
struct RawIndex {
    shards: Shards,
    version: u64,
}

#[derive(Serialize)]
struct WrittenIndex {
    shards: Vec<RawShard>,
    version: u64,
}

/// A shard in index.json; the order of the fields is that of Python's sorted keys.
#[derive(Serialize, Deserialize)]
struct RawShard {
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u64>>,
    #[serde(default)]
    compression: Option<String>,
    format: String,
    #[serde(default)]
    hashes: Vec<String>,
    raw_data: RawFile,
    samples: u64,
    #[serde(default)]
    size_limit: Option<u64>,
    version: u64,
    #[serde(default)]
    zip_data: Option<RawFile>,
}

#[derive(Serialize, Deserialize)]
struct RawFile {
    basename: String,
    bytes: u64,
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
}

/// Shards as they are parsed: one after the other, so that the lists of columns, the same in each, are kept once. What is wrong with a
/// shard is kept as it is, because serde's errors have no kind.
struct Shards(Result<Vec<ShardEntry>>);

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_seq(ShardVisitor)
    }
}

struct ShardVisitor;

impl<'de> Visitor<'de> for ShardVisitor {
    type Value = Shards;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of shards")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<Shards, A::Error> {
        let mut shards: Vec<ShardEntry> = Vec::new();
        let mut wrong = None;
        while let Some(raw) = list.next_element::<RawShard>()? {
            if shards.len() >= SHARDS_MAX {
                return Err(A::Error::custom("more shards than a data set may have"));
            }
            if wrong.is_some() {
                continue;
            }
            match raw.entry(shards.last()) {
                Ok(entry) => shards.push(entry),
                Err(error) => wrong = Some(error),
            }
        }
        Ok(Shards(wrong.map_or(Ok(shards), Err)))
    }
}

impl RawShard {
    fn of(entry: &ShardEntry) -> Self {
        let columns = entry.columns.iter();
        Self {
            column_encodings: columns
                .clone()
                .map(|column| column.encoding_name.clone())
                .collect(),
            column_names: columns.clone().map(|column| column.name.clone()).collect(),
            column_sizes: columns
                .map(|column| column.encoding.size().map(u64::from))
                .collect(),
            compression: entry.compression.map(|compression| compression.to_string()),
            format: FORMAT.to_owned(),
            hashes: entry.hashes.iter().map(ToString::to_string).collect(),
            raw_data: RawFile::of(&entry.raw),
            samples: entry.samples,
            size_limit: entry.size_limit,
            version: VERSION,
            zip_data: entry.zip.as_ref().map(RawFile::of),
        }
    }

    /// The entry, checked; its columns are those of the entry before where they are the same.
    fn entry(self, before: Option<&ShardEntry>) -> Result<ShardEntry> {
        let raw = self.raw_data.entry()?;
        let name_in = |error: Error| error.at(&raw.key);
        let columns = config::columns(
            self.version,
            &self.format,
            &self.column_names,
            &self.column_encodings,
            &self.column_sizes,
        );
        let columns: Columns = columns.map_err(name_in)?.into();
        let shared = before
            .map(|entry| &entry.columns)
            .filter(|known| **known == columns);
        let compression = match &self.compression {
            Some(name) => Some(Compression::parse(name).map_err(name_in)?),
            None => None,
        };
        if compression.is_some() != self.zip_data.is_some() {
            let message = "a compressed file and the name of its compression do not go together";
            return Err(name_in(corrupt(message)));
        }
        if raw.bytes > u64::from(u32::MAX) {
            return Err(name_in(corrupt(
                "no shard can have 4 GiB: its offsets have 32 bits",
            )));
        }
        let hashes = self.hashes.iter().map(|name| HashName::parse(name));
        Ok(ShardEntry {
            columns: shared.unwrap_or(&columns).clone(),
            compression,
            hashes: hashes.collect::<Result<_>>().map_err(name_in)?,
            size_limit: self.size_limit,
            samples: self.samples,
            zip: self.zip_data.map(RawFile::entry).transpose()?,
            raw,
        })
    }
}

impl RawFile {
    fn of(entry: &FileEntry) -> Self {
        let hashes = entry.hashes.iter();
        Self {
            basename: entry.key.as_str().to_owned(),
            bytes: entry.bytes,
            hashes: hashes
                .map(|(name, hex)| (name.to_string(), hex.clone()))
                .collect(),
        }
    }

    fn entry(self) -> Result<FileEntry> {
        let key = Key::parse(&self.basename)
            .ok()
            .filter(|key| !key.is_root() && key.as_str() == self.basename);
        let Some(key) = key else {
            let message = format!(
                "index.json names a shard '{}', which is no place in its directory",
                self.basename.escape_debug()
            );
            return Err(corrupt(&message));
        };
        let hashes = self.hashes.into_iter().map(|(name, hex)| {
            let is_hex = hex.len() <= HASH_HEX_MAX && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !is_hex {
                return Err(corrupt(&format!(
                    "the {} of '{key}' is no number",
                    name.escape_debug()
                )));
            }
            Ok((HashName::parse(&name)?, hex.to_ascii_lowercase()))
        });
        let hashes = hashes
            .collect::<Result<Vec<_>>>()
            .map_err(|error| error.at(&key))?;
        Ok(FileEntry {
            key,
            bytes: self.bytes,
            hashes,
        })
    }
}
