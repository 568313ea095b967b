//! The formats, behind one seam.
//!
//! Reading: a [`Format`] makes a [`Scan`] for a shard; the bytes of the shard go through it once, in order and in pieces of any size, and
//! what comes out is the shard's [`Table`]. [`tabulate`] drives that, undoing a whole-shard compression on the way and computing the SHA-256
//! of the bytes as they are stored. Streaming itself never parses a format again: it slices by the table. Only where samples are rows of column groups is
//! there something to decode, and a [`GroupDecoder`] does.
//!
//! Writing: a [`ShardWriter`] takes samples and gives the bytes of a shard.

mod arrow;
pub mod files;
pub mod litdata;
pub mod mds;
pub mod parquet;
pub mod petastorm;
mod rows;
mod shard_bytes;
pub mod tfrecord;
pub mod tokens;
pub mod value;
pub mod wds;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::Buf;
use futures::TryStreamExt;
use ring::digest;

pub(crate) use self::rows::ROWS_MAX;

use crate::block::Block;
use crate::codec::{Codec, Decoder};
use crate::filter::Outline;
use crate::schema::Field;
use crate::source::ShardSource;
use crate::table::{Groups, Table};

/// A format of shards.
#[async_trait]
pub trait Format: fmt::Debug + Send + Sync {
    /// Its name in manifests and on the command line.
    fn name(&self) -> &'static str;

    /// Begin a pass over a shard. May look at parts of it first (a footer).
    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>>;

    /// What decodes the groups of a shard, for formats whose samples are rows of groups. What the shard says of them is compared with the table before it
    /// is believed.
    async fn decoder(&self, source: &ShardSource, groups: &Groups) -> Result<Arc<dyn GroupDecoder>> {
        let _ = groups;
        let message = format!("samples of format {} are no rows of groups", self.name());
        let error = Error::new(ErrorKind::Unsupported, "open shard", message);
        Err(source.name_in(error))
    }

    /// Compression of the whole shard, from its name and its first bytes. Formats whose own first bytes say more than that override it.
    fn codec(&self, key: &Key, first: &[u8]) -> Codec {
        Codec::of(key, first)
    }
}

/// A pass over the bytes of one shard.
///
/// Bytes are hostile: a scan never panics, never allocates by what a length field claims, and says `Corrupt` with the offset where
/// something does not follow the format.
pub trait Scan: Send {
    /// The next bytes as they are stored, before they are decompressed and fed: for formats that keep checksums of them.
    fn stored(&mut self, bytes: &[u8]) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// The next bytes, decompressed, in pieces of any size.
    fn feed(&mut self, bytes: &[u8]) -> Result<()>;

    /// True when the format has checksums of its own, made by whoever wrote the shard, and the pass compares all samples with them.
    fn has_sums(&self) -> bool {
        false
    }

    /// True when the types of numbers are none that somebody chose, but what the values of this shard happened to be: whole numbers are integers, and floats elsewhere.
    fn are_types_inferred(&self) -> bool {
        false
    }

    /// There are no more bytes.
    fn finish(self: Box<Self>) -> Result<Table>;
}

/// Decodes groups of rows of one shard. Made once for a shard and kept: it holds what the shard says of its groups.
pub trait GroupDecoder: fmt::Debug + Send + Sync {
    /// Where the chunk of a column of a group lies. Chunks lie in the extent of their group, and not over each other.
    fn span(&self, group: usize, column: usize) -> Result<Span>;

    /// Where the chunks of some columns of a group lie, ascending, with those together that are close to each other.
    fn spans(&self, group: usize, columns: &[usize]) -> Result<Vec<Span>>;

    /// Bytes that [`decode`](Self::decode) compares with checksums, for some columns of a group that are named once each.
    fn verified_bytes(&self, group: usize, columns: &[usize]) -> Result<u64> {
        columns.iter().try_fold(0u64, |bytes, column| {
            Ok(bytes.saturating_add(self.span(group, *column)?.len()))
        })
    }

    /// Memory that some columns of a group will take, as far as the shard tells.
    fn decoded_bytes(&self, group: usize, columns: &[usize]) -> u64;

    /// Some columns of a group, from their bytes; the others have no values. Each chunk is compared with its checksum in the table before it is decoded.
    fn decode(&self, chunks: &Chunks, table: &Arc<Table>, group: usize, columns: &[usize]) -> Result<Block>;

    /// What is known of the values of a column in a group without looking at them.
    fn outline(&self, group: usize, column: usize) -> Outline<'_>;

    /// Memory that it takes itself.
    fn memory_bytes(&self) -> u64;
}

/// Bytes of a group: its extent, or the parts of it that hold some chunks.
#[derive(Debug, Clone, Default)]
pub struct Chunks {
    parts: Vec<(u64, Bytes)>,
}

impl Chunks {
    /// The whole extent, which begins at that offset of the shard.
    pub fn whole(start: u64, bytes: Bytes) -> Self {
        Self {
            parts: vec![(start, bytes)],
        }
    }

    /// Add bytes that begin at that offset of the shard.
    pub fn add(&mut self, start: u64, bytes: Bytes) {
        self.parts.push((start, bytes));
    }

    /// A range of the shard, where it is among them as a whole.
    pub fn get(&self, span: Span) -> Option<Bytes> {
        self.parts.iter().find_map(|(start, bytes)| {
            let held = Span::at(*start, bytes.len() as u64).ok()?;
            held.contains(span).then(|| bytes.slice(span.relative_to(*start)))
        })
    }
}

/// A sample to be written.
#[derive(Debug, Clone, Copy)]
pub struct SampleRef<'a> {
    /// What it is called.
    pub key: &'a str,
    /// Its fields with their bytes, in the encoding that the field's kind says.
    pub fields: &'a [(&'a Field, &'a [u8])],
}

/// Makes one shard.
pub trait ShardWriter: fmt::Debug + Send {
    /// Bytes the shard would have with this sample in it, before compression.
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64;

    /// Add a sample.
    fn add(&mut self, sample: SampleRef<'_>) -> Result<()>;

    /// Files that belong beside the shard, each by the ending that stands in place of the shard's own (`idx`): asked for once, after
    /// the last sample and before [`finish`](Self::finish). They must be written before the shard.
    fn sides(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(Vec::new())
    }

    /// The first parts of the shard, before compression, that will not change any more and were not taken before, in order. None where a format has to know
    /// all samples before its first byte.
    fn take_parts(&mut self) -> Vec<Buf> {
        Vec::new()
    }

    /// The shard, before compression; what is left of it, where parts were taken.
    fn finish(self: Box<Self>) -> Result<Buf>;
}

/// What a pass over a shard found out.
#[derive(Debug)]
pub struct Tabulated {
    /// Where its samples are.
    pub table: Table,
    /// SHA-256 of the object as it is stored.
    pub sha256: [u8; 32],
    /// Bytes before compression; the size of the object where there is none.
    pub raw_bytes: u64,
    /// Compression of the whole shard.
    pub codec: Codec,
    /// The bytes had checksums that were made when they were written, and were compared with them.
    pub has_sums: bool,
    /// The types of its numbers are what its values happened to be.
    pub are_types_inferred: bool,
    /// Which way the bytes came.
    pub ledger: Ledger,
}

/// Read a shard once, from the first byte to the last, and make its table.
pub async fn tabulate(format: &dyn Format, source: &ShardSource) -> Result<Tabulated> {
    let tabulated = pass(format, source).await;
    tabulated.map_err(|error| source.name_in(error))
}

async fn pass(format: &dyn Format, source: &ShardSource) -> Result<Tabulated> {
    let mut scan = format.scan(source).await?;
    let mut sha256 = digest::Context::new(&digest::SHA256);
    let mut ledger = Ledger::default();
    let mut decoder: Option<Decoder> = None;
    let mut pieces = source.pieces();
    while let Some((piece, read)) = pieces.try_next().await? {
        ledger.merge(&read);
        let decoder = decoder.get_or_insert_with(|| Decoder::new(format.codec(&source.meta().key, &piece)));
        sha256.update(&piece);
        scan.stored(&piece)?;
        decoder.feed(&piece, &mut |raw| scan.feed(raw))?;
    }
    let (codec, raw_bytes) = match decoder {
        Some(decoder) => (decoder.codec(), decoder.finish(&mut |raw| scan.feed(raw))?),
        None => (Codec::None, 0),
    };
    Ok(Tabulated {
        has_sums: scan.has_sums() || codec.has_sums(),
        are_types_inferred: scan.are_types_inferred(),
        table: scan.finish()?,
        sha256: sha256_of(sha256)?,
        raw_bytes,
        codec,
        ledger,
    })
}

pub(crate) fn sha256_of(context: digest::Context) -> Result<[u8; 32]> {
    let digest = context.finish();
    digest
        .as_ref()
        .try_into()
        .map_err(|_| Error::new(ErrorKind::Internal, "hash", "a SHA-256 that is not of 32 bytes"))
}

/// Feed `bytes` to a scan in pieces of `step`, for tests: the result must not depend on how the bytes are cut.
#[doc(hidden)]
pub fn scan_bytes(mut scan: Box<dyn Scan>, bytes: &Bytes, step: usize) -> Result<Table> {
    for piece in bytes.chunks(step.max(1)) {
        scan.feed(piece)?;
    }
    scan.finish()
}
