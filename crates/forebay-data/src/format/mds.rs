//! MosaicML Streaming's MDS, version 2: read and written.
//!
//! ```text
//! index.json --> Index --------------.
//!                                     v  compared: samples, columns, sizes, checksums
//! shard.00000.mds[.zstd] --codec--> rows.rs: count, offsets --> config.rs: columns --> samples --> Table
//!
//! samples --> Settings::writer() --> MdsWriter --> Settings::seal() --> Sealed { bytes, entry } --> Index::to_json()
//! ```
//!
//! A shard can be read by itself, since its header says what its columns are. With [`Mds::with_index`] it is also held to what index.json says
//! of it. The bytes are described in `docs/formats/mds.md`.
//!
//! - [`Encoding`]: the encodings of columns, and the [`Kind`](crate::Kind)s they become;
//! - [`Index`], [`ShardEntry`], [`FileEntry`]: index.json;
//! - [`Settings`], [`MdsWriter`], [`Sealed`]: writing;
//! - [`Compression`], [`HashName`], [`Hasher`]: what index.json can name.

mod compression;
mod config;
mod encoding;
mod hash;
mod index;
mod json;
mod writer;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Key, Result};

pub use self::compression::Compression;
pub use self::config::Column;
pub use self::encoding::{Encoding, ListOf};
pub use self::hash::{HashName, Hasher};
pub use self::index::{FileEntry, INDEX_BYTES_MAX, Index, ShardEntry};
pub use self::writer::{MdsWriter, SIZE_LIMIT_BYTES, Sealed, Settings};
pub(crate) use self::writer::{ShardHashes, shard_name};

use self::config::{Config, OP, corrupt};
use self::hash::Checks;
use crate::codec::Codec;
use crate::format::rows::{Header, Plan, Rows};
use crate::format::value::Value;
use crate::format::{Format, Scan};
use crate::source::ShardSource;
use crate::table::Table;

/// The format `mds`.
#[derive(Debug, Clone, Default)]
pub struct Mds {
    listed: Option<Arc<Listed>>,
    allow_pickle: bool,
}

/// An index, with its shards found by the names of their files.
#[derive(Debug)]
struct Listed {
    index: Index,
    /// Number of the shard, and true for its compressed file.
    files: HashMap<Key, (usize, bool)>,
}

/// Which file of a shard is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stored {
    Raw,
    Zip(Compression),
}

impl Mds {
    /// For shards that are read without index.json.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hold shards to `index`, the index.json of `directory`.
    pub fn with_index(mut self, directory: &Key, index: Index) -> Self {
        let mut files = HashMap::new();
        for (number, entry) in index.shards.iter().enumerate() {
            // Their cache keeps shards without compression beside index.json, so that either file may be there.
            files.insert(directory.join(&entry.raw.key), (number, false));
            if let Some(zip) = &entry.zip {
                files.insert(directory.join(&zip.key), (number, true));
            }
        }
        self.listed = Some(Arc::new(Listed { index, files }));
        self
    }

    /// Give the bytes of pickles. Nothing here opens them: what does, runs their code.
    pub fn allow_pickle(mut self) -> Self {
        self.allow_pickle = true;
        self
    }

    /// What index.json says of a file, and which of its shard's two files it is.
    fn entry(&self, key: &Key) -> Result<Option<(ShardEntry, Stored)>> {
        let Some(listed) = &self.listed else {
            return Ok(None);
        };
        let found = listed.files.get(key).copied();
        let found = found.and_then(|(number, is_zip)| Some((listed.index.shards.get(number)?, is_zip)));
        let Some((entry, is_zip)) = found else {
            return Err(corrupt("index.json does not list this shard")
                .with_hint("read the shards of index.json only, or read without it"));
        };
        let stored = match entry.compression {
            Some(compression) if is_zip => Stored::Zip(compression),
            _ => Stored::Raw,
        };
        Ok(Some((entry.clone(), stored)))
    }

    /// A pass over the file of that name and size.
    pub(crate) fn scan_file(&self, key: &Key, stored_bytes: u64) -> Result<MdsScan> {
        let entry = self.entry(key)?;
        let mut stored_checks = Checks::default();
        let mut raw_checks = Checks::default();
        let mut raw_bytes = None;
        if let Some((entry, stored)) = &entry {
            let file = match (stored, &entry.zip) {
                (Stored::Zip(_), Some(zip)) => zip,
                _ => &entry.raw,
            };
            if file.bytes != stored_bytes {
                let message = format!(
                    "the shard has {stored_bytes} bytes, but index.json says {}",
                    file.bytes
                );
                return Err(corrupt(&message));
            }
            raw_bytes = Some((entry.raw.bytes, "index.json says"));
            raw_checks = Checks::new(&entry.raw.hashes);
            if let Stored::Zip(_) = stored {
                stored_checks = Checks::new(&file.hashes);
            }
        } else if self.codec(key, &[]) == Codec::None {
            raw_bytes = Some((stored_bytes, "the object has"));
        }
        let expected = Expected {
            entry: entry.map(|(entry, _)| entry),
            raw_bytes,
            allow_pickle: self.allow_pickle,
        };
        Ok(MdsScan {
            rows: Rows::new(OP, Box::new(|header| expected.plan(header))),
            raw_checks,
            stored_checks,
        })
    }
}

#[async_trait]
impl Format for Mds {
    fn name(&self) -> &'static str {
        "mds"
    }

    /// By index.json or by name alone: the first bytes are the number of samples and may look like anything.
    fn codec(&self, key: &Key, _first: &[u8]) -> Codec {
        match self.entry(key) {
            Ok(Some((_, Stored::Zip(compression)))) => compression.codec(),
            Ok(Some((_, Stored::Raw))) => Codec::None,
            _ => Codec::of(key, &[]),
        }
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let scan = self.scan_file(&source.meta().key, source.size())?;
        Ok(Box::new(scan))
    }
}

/// What the header of a shard is held to.
struct Expected {
    entry: Option<ShardEntry>,
    /// Size without compression, and who says so.
    raw_bytes: Option<(u64, &'static str)>,
    allow_pickle: bool,
}

impl Expected {
    fn plan(self, header: Header<'_>) -> Result<Plan> {
        if let Some((bytes, who)) = self.raw_bytes
            && bytes != u64::from(header.end)
        {
            let message = format!(
                "the offsets of the shard end at byte {}, but {who} {bytes} bytes",
                header.end
            );
            return Err(corrupt(&message));
        }
        let columns = Config::parse(header.bytes)?.columns()?;
        if let Some(entry) = &self.entry {
            if entry.samples != u64::from(header.rows) {
                let message = format!(
                    "the shard has {} samples, but index.json says {}",
                    header.rows, entry.samples
                );
                return Err(corrupt(&message));
            }
            if entry.columns[..] != columns[..] {
                return Err(corrupt("the shard has other columns than index.json says"));
            }
        }
        config::plan(&columns, self.allow_pickle)
    }
}

/// A pass over one shard.
pub(crate) struct MdsScan {
    rows: Rows,
    raw_checks: Checks,
    stored_checks: Checks,
}

impl Scan for MdsScan {
    fn has_sums(&self) -> bool {
        !self.raw_checks.is_empty() || !self.stored_checks.is_empty()
    }

    fn stored(&mut self, bytes: &[u8]) -> Result<()> {
        self.stored_checks.update(bytes);
        Ok(())
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.raw_checks.update(bytes);
        self.rows.feed(bytes)
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        let table = self.rows.finish()?;
        self.stored_checks.finish("compressed")?;
        self.raw_checks.finish("raw")?;
        Ok(table)
    }
}

/// Open a value of the encoding of that name; `None` where it is not one that says itself what it is.
pub(crate) fn open_value<'a>(encoding: &str, bytes: &'a [u8]) -> Option<Result<Value<'a>>> {
    Encoding::parse(encoding).ok()?.open(bytes)
}

/// What a fuzzer may feed: a shard with and without an index, cut in two ways, and index.json.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    fuzz::run(bytes);
}

#[cfg(fuzzing)]
pub(crate) use self::fuzz::decode as decode_fuzzed;

#[cfg(fuzzing)]
mod fuzz;

#[cfg(test)]
mod tests;
