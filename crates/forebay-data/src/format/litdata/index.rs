//! index.json: which chunks a data set has, and what their items are made of.

use std::collections::HashSet;

use forebay_core::{Error, ErrorKind, Key, Result};
use serde::Deserialize;
use serde_json::Value as Json;

use super::leaf::Leaf;
use super::{OP, corrupt, spec};
use crate::schema::Field;
use crate::table::FIELDS_MAX;

/// Longest index.json that is read: several million chunks.
pub const INDEX_BYTES_MAX: usize = 1 << 30;

/// Most chunks of one data set.
const CHUNKS_MAX: usize = 1 << 22;

/// The chunks of a data set.
#[derive(Debug, Clone)]
pub struct Index {
    /// The chunks, in the order of their items.
    pub chunks: Vec<Chunk>,
    /// How items are made.
    pub loader: Loader,
    /// Names and kinds of the leaves of an item.
    pub leaves: Vec<(String, Leaf)>,
    /// How chunks are compressed.
    pub(super) granularity: Granularity,
}

/// One chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// Its file, relative to the directory of index.json; it cannot lead out of there.
    pub key: Key,
    /// Its size: that of the file, but before compression where the chunk is compressed as a whole.
    pub bytes: u64,
    /// Number of its items.
    pub items: u64,
    /// Number of its tokens, where it holds tokens.
    pub tokens: Option<u64>,
}

/// How items are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loader {
    /// Of leaves, each with its length in front.
    PyTree,
    /// Of tokens and nothing else.
    Tokens,
}

/// What is compressed by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Granularity {
    None,
    Chunk,
    Batch,
    Item,
}

#[derive(Deserialize)]
struct RawIndex {
    chunks: Vec<RawChunk>,
    config: RawConfig,
}

#[derive(Deserialize)]
struct RawChunk {
    chunk_bytes: u64,
    chunk_size: u64,
    filename: String,
    #[serde(default)]
    dim: Option<u64>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    compression: Option<String>,
    #[serde(default)]
    compression_level: Option<String>,
    #[serde(default)]
    data_format: Option<Vec<String>>,
    #[serde(default)]
    data_spec: Option<String>,
    #[serde(default)]
    encryption: Option<Json>,
    #[serde(default)]
    item_loader: Option<String>,
}

impl Index {
    /// Parse index.json.
    pub fn parse(text: &[u8]) -> Result<Self> {
        if text.len() > INDEX_BYTES_MAX {
            let message = format!("index.json has more than {INDEX_BYTES_MAX} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let raw: RawIndex = serde_json::from_slice(text)
            .map_err(|error| corrupt("index.json does not list chunks of litdata").with_source(error))?;
        if raw.chunks.len() > CHUNKS_MAX {
            let message = format!("more than {CHUNKS_MAX} chunks");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let loader = raw.config.loader()?;
        let granularity = raw.config.granularity()?;
        if loader == Loader::Tokens && granularity == Granularity::Item {
            let message = "index.json tells of tokens in items that are compressed one by one".to_owned();
            return Err(unsupported(message).with_hint(
                "write the data set again without compression_level, which compresses whole chunks",
            ));
        }
        let leaves = raw.config.leaves()?;
        let chunks = raw.chunks.into_iter().map(RawChunk::check);
        let chunks = chunks.collect::<Result<Vec<_>>>()?;
        let mut keys = HashSet::new();
        if let Some(chunk) = chunks.iter().find(|chunk| !keys.insert(&chunk.key)) {
            return Err(corrupt(&format!("index.json lists '{}' twice", chunk.key)));
        }
        Ok(Self {
            chunks,
            loader,
            leaves,
            granularity,
        })
    }

    /// The fields of an item of leaves.
    pub(super) fn fields(&self) -> Vec<Field> {
        let fields = self.leaves.iter();
        fields
            .map(|(name, leaf)| Field::new(name.clone(), leaf.kind()))
            .collect()
    }

    /// Refuse pickles where they are not allowed.
    pub(super) fn check_pickle(&self, is_allowed: bool) -> Result<()> {
        let pickle = self.leaves.iter().find(|(_, leaf)| *leaf == Leaf::Pickle);
        let (Some((name, _)), false) = (pickle, is_allowed) else {
            return Ok(());
        };
        let message = format!("'{}' holds pickles", name.escape_debug());
        Err(unsupported(message).with_hint(
            "a pickle runs code when it is opened; its bytes, unopened, are given with --format litdata --allow-pickle, \
             in Python with format={'name': 'litdata', 'pickle': True}",
        ))
    }

    /// All items.
    pub fn items(&self) -> u64 {
        self.chunks
            .iter()
            .fold(0, |items, chunk| items.saturating_add(chunk.items))
    }
}

impl RawChunk {
    fn check(self) -> Result<Chunk> {
        let key = Key::parse(&self.filename)
            .ok()
            .filter(|key| !key.is_root() && key.as_str() == self.filename);
        let Some(key) = key else {
            let message = format!(
                "index.json names a chunk '{}', which is no place in its directory",
                self.filename.escape_debug()
            );
            return Err(corrupt(&message));
        };
        Ok(Chunk {
            key,
            bytes: self.chunk_bytes,
            items: self.chunk_size,
            tokens: self.dim,
        })
    }
}

impl RawConfig {
    fn loader(&self) -> Result<Loader> {
        if let Some(encryption) = &self.encryption
            && !encryption.is_null()
        {
            let algorithm = encryption
                .get("algorithm")
                .and_then(Json::as_str)
                .unwrap_or("a key");
            let message = format!("the chunks are encrypted with {}", algorithm.escape_debug());
            return Err(unsupported(message).with_hint("decrypt the data set with litdata first"));
        }
        match self.item_loader.as_deref() {
            None | Some("PyTreeLoader") => Ok(Loader::PyTree),
            Some("TokensLoader") => Ok(Loader::Tokens),
            Some("ParquetLoader") => {
                Err(unsupported("the chunks are parquet files".to_owned()).with_hint("read them as parquet"))
            }
            Some(other) => Err(unsupported(format!(
                "chunks of the loader '{}' are not known",
                other.escape_debug()
            ))),
        }
    }

    fn granularity(&self) -> Result<Granularity> {
        let Some(compression) = self.compression.as_deref().filter(|name| !name.is_empty()) else {
            return Ok(Granularity::None);
        };
        if compression != "zstd" && !compression.starts_with("zstd:") {
            let message = format!("the compression '{}' is not known", compression.escape_debug());
            return Err(unsupported(message));
        }
        match self.compression_level.as_deref() {
            None | Some("" | "chunk") => Ok(Granularity::Chunk),
            Some("batch") => Ok(Granularity::Batch),
            Some("sample") => Ok(Granularity::Item),
            Some(other) => Err(unsupported(format!(
                "the compression level '{}' is not known",
                other.escape_debug()
            ))),
        }
    }

    fn leaves(&self) -> Result<Vec<(String, Leaf)>> {
        let serializers = self.data_format.as_deref().unwrap_or_default();
        if serializers.is_empty() {
            return Err(corrupt("index.json does not say what items are made of"));
        }
        if serializers.len() > FIELDS_MAX {
            let message = format!("{} leaves are more than {FIELDS_MAX}", serializers.len());
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let names = spec::names(self.data_spec.as_deref(), serializers.len());
        let leaves = serializers.iter().map(|serializer| Leaf::parse(serializer));
        Ok(names.into_iter().zip(leaves).collect())
    }
}

fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, OP, message)
}
