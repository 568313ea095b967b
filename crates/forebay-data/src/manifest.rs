//! The manifest of a data set: one side file that says which shards there are and where their samples lie.
//!
//! ```text
//! tables, shard by shard --> build.rs --> section.rs: one section each --> file: sections, directory, trailer
//!                                                                            |
//! Manifest::open: trailer, directory (directory.rs) <-- the end of the file -+
//! Manifest::table: one section, when a shard is first needed <-- one range --+--> kept within a bound
//! ```
//!
//! Opening reads the end of the file and nothing else, so it takes as long for a billion samples as for a thousand. The bytes are described in
//! `docs/formats/manifest.md`; everything read is checked against its checksum and against what a table must be before it is used.

mod build;
mod cursor;
mod directory;
mod section;
mod sums;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_store::{Context, Store};

pub use build::{ManifestWriter, UNSAVED_BYTES_MAX};
pub(crate) use directory::digest_u64;
pub use directory::{FormatSpec, MANIFEST_FORMAT, Shard};
pub use sums::{Sums, sha256sums, sums_key};
pub(crate) use sums::{put_if_absent, read as read_small, save as save_sums};

use crate::kept::Kept;
use crate::schema::Schema;
use crate::source::ShardSource;
use crate::table::{Keys, Layout, Table};
use directory::{
    Directory, MARK_BYTES, PRELUDE_BYTES, TRAILER_BYTES, Trailer, check_prelude, corrupt, packed_mark,
};

/// Name of a manifest in the directory of its data set. It begins with an underscore, as that of [`SUMS_NAME`] does: Spark, Hive and pyarrow take every other file of a
/// directory for Parquet.
pub const MANIFEST_NAME: &str = "_forebay.fbi";

/// Name of the list of hashes beside it; see [`sums_key`] for manifests that are called otherwise.
pub const SUMS_NAME: &str = "_SHA256SUMS";

/// Bytes at the end of a manifest that are read first: the whole directory of a thousand shards, so that opening most data sets takes one request.
const TAIL_BYTES: u64 = 256 << 10;

/// Most bytes of a manifest asked for in one request; a longer piece is read in several.
const READ_BYTES_MAX: u64 = 64 << 20;

/// Memory that tables may take: those of some hundred shards with images, and of one with ten million small samples. Whoever holds on to a table longer
/// accounts for it.
const TABLES_BYTES_MAX: u64 = 256 << 20;

/// An open manifest; cheap to clone.
#[derive(Debug, Clone)]
pub struct Manifest(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: Directory,
    fingerprint: [u8; 32],
    sections: Arc<Sections>,
    tables: Kept<Table>,
    sums: Sums,
}

/// Where sections are read from.
#[derive(Debug)]
enum Sections {
    /// The file in memory, in the pieces it was made of.
    Memory(Vec<Bytes>),
    /// An object of a store, and the way its bytes came.
    Object {
        source: Box<ShardSource>,
        ledger: Mutex<Ledger>,
    },
}

impl Sections {
    async fn read(&self, span: Span) -> Result<Bytes> {
        match self {
            Self::Memory(pieces) => slice(pieces, span),
            Self::Object { source, ledger } => {
                let read = read_object(source, span).await;
                let (bytes, read) = read.map_err(|error| source.name_in(error))?;
                ledger.lock().unwrap_or_else(PoisonError::into_inner).merge(&read);
                Ok(bytes)
            }
        }
    }

    fn name_in(&self, error: Error) -> Error {
        match self {
            Self::Memory(_) => error,
            Self::Object { source, .. } => source.name_in(error),
        }
    }

    fn size(&self) -> u64 {
        match self {
            Self::Memory(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Self::Object { source, .. } => source.size(),
        }
    }
}

/// A range of bytes that lie in pieces; one that lies in a single piece is not copied.
fn slice(pieces: &[Bytes], span: Span) -> Result<Bytes> {
    let mut joined = Vec::new();
    let mut at = 0;
    for piece in pieces {
        let here = Span::at(at, piece.len() as u64)?;
        at = here.end();
        if let Some(part) = here.intersect(span) {
            let part_bytes = piece.slice(part.relative_to(here.start()));
            if part == span {
                return Ok(part_bytes);
            }
            joined.extend_from_slice(&part_bytes);
        }
    }
    if joined.len() as u64 == span.len() {
        return Ok(joined.into());
    }
    Err(corrupt("the manifest ends before what it points at"))
}

async fn read_object(source: &ShardSource, span: Span) -> Result<(Bytes, Ledger)> {
    if span.end() > source.size() {
        return Err(corrupt("the manifest ends before what it points at"));
    }
    let step = READ_BYTES_MAX.min(source.context().pool().lease_bytes_max() as u64);
    if span.len() <= step {
        return source.read(span).await;
    }
    let mut joined = Vec::new();
    let mut ledger = Ledger::default();
    for piece in span.pieces(step) {
        let (bytes, read) = source.read(piece).await?;
        joined.extend_from_slice(&bytes);
        ledger.merge(&read);
    }
    Ok((joined.into(), ledger))
}

impl Manifest {
    /// Open the manifest `key` of a store: its end is read, and its directory; no section.
    pub async fn open(store: Arc<dyn Store>, key: &Key, context: &Context) -> Result<Self> {
        let source = ShardSource::open(store, key, context).await?;
        Self::open_source(source).await
    }

    /// Open a manifest that was listed or looked at already.
    pub async fn open_source(source: ShardSource) -> Result<Self> {
        let (source, ledger) = (Box::new(source), Mutex::default());
        Self::open_sections(Sections::Object { source, ledger }).await
    }

    /// Open a manifest in memory.
    pub async fn from_bytes(bytes: Bytes) -> Result<Self> {
        Self::open_sections(Sections::Memory(vec![bytes])).await
    }

    async fn open_sections(sections: Sections) -> Result<Self> {
        let directory = read_directory(&sections).await;
        let (directory, fingerprint) = directory.map_err(|error| sections.name_in(error))?;
        Ok(Self::new(directory, fingerprint, Arc::new(sections)))
    }

    fn new(directory: Directory, fingerprint: [u8; 32], sections: Arc<Sections>) -> Self {
        Self(Arc::new(Inner {
            directory,
            fingerprint,
            sections,
            tables: Kept::within(TABLES_BYTES_MAX),
            sums: Sums::default(),
        }))
    }

    /// With what became of the hashes beside it.
    fn with_sums(mut self, sums: Sums) -> Self {
        // Whoever just opened it has the only one.
        if let Some(inner) = Arc::get_mut(&mut self.0) {
            inner.sums = sums;
        }
        self
    }

    /// True when packing wrote the data set with all its shards, and may replace it.
    pub(crate) async fn is_packed(&self) -> Result<bool> {
        let mark = self.0.sections.read(Span::at(PRELUDE_BYTES, MARK_BYTES)?).await?;
        Ok(mark == packed_mark())
    }

    /// What became of `_SHA256SUMS` when this manifest was saved.
    pub fn sums(&self) -> &Sums {
        &self.0.sums
    }

    /// The shards, in the order of the data set.
    pub fn shards(&self) -> &[Shard] {
        &self.0.directory.shards
    }

    /// The fields over all shards.
    pub fn schema(&self) -> &Schema {
        &self.0.directory.schema
    }

    /// The format of the shards.
    pub fn spec(&self) -> &FormatSpec {
        &self.0.directory.spec
    }

    /// Samples over all shards.
    pub fn samples(&self) -> u64 {
        self.0.directory.samples()
    }

    /// SHA-256 over directory and schema: names the data set wherever it lies.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.0.fingerprint
    }

    /// Digest of the store that was indexed; 0 when unknown.
    pub(crate) fn origin(&self) -> u64 {
        self.0.directory.origin
    }

    /// Which way the bytes of the manifest came so far.
    pub fn ledger(&self) -> Ledger {
        match &*self.0.sections {
            Sections::Memory(_) => Ledger::default(),
            Sections::Object { ledger, .. } => ledger.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }

    /// The same data set with only those of its shards, in that order, by their numbers here. It has a fingerprint of its own.
    pub fn select(&self, shards: &[usize]) -> Result<Self> {
        let chosen = shards.iter().map(|index| {
            let shard = self.shards().get(*index).cloned();
            shard.ok_or_else(|| no_shard(*index))
        });
        let directory = Directory {
            shards: chosen.collect::<Result<_>>()?,
            ..self.0.directory.clone()
        };
        let fingerprint = directory.fingerprint()?;
        Ok(Self::new(directory, fingerprint, Arc::clone(&self.0.sections)))
    }

    /// The table of a shard. Read and checked when it is first asked for, then kept as long as there is room.
    pub async fn table(&self, shard: usize) -> Result<Arc<Table>> {
        let row = self.shards().get(shard).ok_or_else(|| no_shard(shard))?;
        let cell = self.0.tables.cell(shard);
        let table = cell.get_or_try_init(|| self.load(row)).await.map_err(|error| {
            let message = format!("the table of shard {:?} cannot be used", row.key);
            let error = Error::new(error.kind(), "read manifest", message).with_source(error);
            self.0.sections.name_in(error)
        })?;
        self.0.tables.used(shard, memory_bytes(table));
        Ok(Arc::clone(table))
    }

    async fn load(&self, shard: &Shard) -> Result<Arc<Table>> {
        let section = shard.section;
        let stored = self.0.sections.read(section.span).await?;
        // Tables of millions of samples take a while; the threads of the runtime are for what waits.
        let decoded = tokio::task::spawn_blocking(move || section::decode(&stored, &section)).await;
        let table = decoded.map_err(|error| {
            Error::new(ErrorKind::Internal, "read manifest", "decoding panicked").with_source(error)
        })??;
        check_table(&table, shard, self.schema())?;
        Ok(Arc::new(table))
    }
}

async fn read_directory(sections: &Sections) -> Result<(Directory, [u8; 32])> {
    let size = sections.size();
    if size < PRELUDE_BYTES + TRAILER_BYTES {
        return Err(corrupt("this is no manifest, or one that was cut off"));
    }
    let tail_span = Span::new(size.saturating_sub(TAIL_BYTES), size)?;
    let tail = sections.read(tail_span).await?;
    let trailer = Trailer::parse(&tail[tail.len() - TRAILER_BYTES as usize..], size)?;
    if tail_span.start() == 0 {
        check_prelude(&tail[..PRELUDE_BYTES as usize])?;
    }
    let directory = if trailer.directory.start() >= tail_span.start() {
        tail.slice(trailer.directory.relative_to(tail_span.start()))
    } else {
        // What is missing lies right before what is there.
        let missing = Span::new(trailer.directory.start(), tail_span.start())?;
        let mut joined = Vec::from(sections.read(missing).await?);
        joined.extend_from_slice(&tail[..tail.len() - TRAILER_BYTES as usize]);
        joined.into()
    };
    Ok((Directory::parse(&directory, &trailer)?, trailer.fingerprint))
}

/// Refuse a table that does not fit what the directory says of its shard.
fn check_table(table: &Table, shard: &Shard, schema: &Schema) -> Result<()> {
    table.check(shard.raw_bytes)?;
    let groups: Vec<u64> = match &table.layout {
        Layout::Samples(_) => Vec::new(),
        Layout::Groups(groups) => groups.list.iter().map(|group| group.samples).collect(),
    };
    if table.samples() != shard.samples || groups != shard.groups {
        return Err(corrupt("it has other samples than the directory says"));
    }
    let mut fields = table.fields.iter();
    let is_known = fields.all(|field| {
        let known = schema
            .index_of(&field.name)
            .and_then(|index| schema.fields().get(index));
        // Only groups are decoded to what the data set calls their columns.
        known.is_some_and(|known| match &table.layout {
            Layout::Samples(_) => known.is_like(field),
            Layout::Groups(_) => known.covers(field) || known.widens(field),
        })
    });
    if is_known {
        return Ok(());
    }
    Err(corrupt("it has fields that are not in the schema"))
}

fn no_shard(shard: usize) -> Error {
    let message = format!("there is no shard number {shard}");
    Error::new(ErrorKind::InvalidInput, "read manifest", message)
}

/// The directory and every table of a manifest in hostile bytes, for fuzzing.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    // Sections by themselves: behind a checksum, nothing that is fuzzed would ever arrive there.
    if let Ok(table) = section::decode_raw(bytes)
        && table.check(u64::MAX).is_ok()
    {
        let (stored, section) = section::encode(&table).expect("a table that was read can be written");
        assert_eq!(section::decode(&stored, &section).ok(), Some(table));
    }
    directory::fuzz(bytes);
}

/// Memory of a table, counted by what it holds; never 0.
pub(crate) fn memory_bytes(table: &Table) -> u64 {
    let fixed = size_of::<Table>() + table.fields.len() * 64;
    let content = match &table.layout {
        Layout::Samples(samples) => {
            let keys = match &samples.keys {
                Keys::Numbered => 0,
                Keys::Named { text, ends } => text.len() + 4 * ends.len(),
            };
            samples.len() * (16 + 8 * samples.columns.len()) + keys
        }
        Layout::Groups(groups) => size_of_val(&groups.list[..]) + size_of_val(&groups.chunk_crcs[..]),
    };
    (fixed + content) as u64
}
