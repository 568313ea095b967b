//! LitData's chunks: read only.
//!
//! ```text
//! index.json --> Index: chunks, loader, serializers of the leaves, names from the pytree --.
//!                                                                                          v
//! chunk-0-0.bin[.zstd | LDFZ01] --codec--> rows.rs: count, offsets, items --> leaves --> Table
//! ```
//!
//! A chunk does not say what it holds, so nothing is read without index.json. The bytes are described in `docs/formats/litdata.md`.
//!
//! - [`Index`], [`Chunk`]: index.json;
//! - [`Leaf`]: what a leaf of a sample is, and the [`Kind`] it becomes.

mod index;
mod leaf;
mod spec;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Result};

pub use self::index::{Chunk, INDEX_BYTES_MAX, Index, Loader};
pub use self::leaf::Leaf;
pub(crate) use self::leaf::open_value;

use self::index::Granularity;
use crate::codec::Codec;
use crate::format::rows::{ColumnSize, Header, Plan, Row, Rows};
use crate::format::{Format, Scan};
use crate::schema::{Field, Kind};
use crate::source::ShardSource;
use crate::table::Table;

const OP: &str = "read litdata";

/// Name of the only field of a chunk of tokens.
const TOKENS_FIELD: &str = "tokens";

/// The format `litdata`.
#[derive(Debug, Clone)]
pub struct LitData {
    index: Arc<Index>,
    /// Number of each chunk, by the key of its file.
    files: Arc<HashMap<Key, usize>>,
    allow_pickle: bool,
}

impl LitData {
    /// For the chunks that `index`, the index.json of `directory`, lists.
    pub fn new(directory: &Key, index: Index) -> Self {
        let chunks = index.chunks.iter().enumerate();
        let files = chunks.map(|(number, chunk)| (directory.join(&chunk.key), number));
        Self {
            files: Arc::new(files.collect()),
            index: Arc::new(index),
            allow_pickle: false,
        }
    }

    /// Give the bytes of pickles. Nothing here opens them: what does, runs their code.
    pub fn allow_pickle(mut self) -> Self {
        self.allow_pickle = true;
        self
    }

    /// A pass over the file of that name and size.
    pub(crate) fn scan_file(&self, key: &Key, stored_bytes: u64) -> Result<ChunkScan> {
        let number = self.files.get(key).copied();
        let Some(chunk) = number.and_then(|number| self.index.chunks.get(number)).cloned() else {
            return Err(corrupt("index.json does not list this chunk")
                .with_hint("a chunk cannot be read without its index.json"));
        };
        if self.index.granularity != Granularity::Chunk && chunk.bytes != stored_bytes {
            let message = format!(
                "the chunk has {stored_bytes} bytes, but index.json says {}",
                chunk.bytes
            );
            return Err(corrupt(&message));
        }
        let (index, allow_pickle) = (Arc::clone(&self.index), self.allow_pickle);
        let reader = move |header: Header<'_>| plan(&index, &chunk, allow_pickle, header);
        Ok(ChunkScan(Rows::new(OP, Box::new(reader))))
    }
}

#[async_trait]
impl Format for LitData {
    fn name(&self) -> &'static str {
        "litdata"
    }

    /// By index.json alone: all chunks are called `.bin`, and their first bytes are the number of their items.
    fn codec(&self, _key: &Key, _first: &[u8]) -> Codec {
        match self.index.granularity {
            Granularity::None => Codec::None,
            Granularity::Chunk => Codec::Zstd,
            Granularity::Batch => Codec::LitdataFrames,
        }
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let scan = self.scan_file(&source.meta().key, source.size())?;
        Ok(Box::new(scan))
    }
}

/// Compare a chunk with what index.json says of it, and say how its items are made.
fn plan(index: &Index, chunk: &Chunk, allow_pickle: bool, header: Header<'_>) -> Result<Plan> {
    if !header.bytes.is_empty() {
        return Err(corrupt(
            "there are bytes between the offsets of a chunk and its items",
        ));
    }
    if chunk.items != u64::from(header.rows) {
        let message = format!(
            "the chunk has {} items, but index.json says {}",
            header.rows, chunk.items
        );
        return Err(corrupt(&message));
    }
    if index.granularity != Granularity::Batch {
        check_end(chunk.bytes, u64::from(header.end))?;
    }
    let pickle = index.leaves.iter().find(|(_, leaf)| *leaf == Leaf::Pickle);
    if let (Some((name, _)), false) = (pickle, allow_pickle) {
        let message = format!("'{}' holds pickles", name.escape_debug());
        return Err(Error::new(ErrorKind::Unsupported, OP, message)
            .with_hint(
            "a pickle runs code when it is opened; its bytes, unopened, are given with --format litdata --allow-pickle, \
             in Python with format={'name': 'litdata', 'pickle': True}",
        ));
    }
    match index.loader {
        Loader::Tokens => tokens_plan(index, chunk, header),
        Loader::PyTree => {
            let leaves = index.leaves.iter();
            let fields = leaves
                .clone()
                .map(|(name, leaf)| Field::new(name.clone(), leaf.kind()));
            let sizes = leaves.map(|(_, leaf)| leaf.size().map_or(ColumnSize::Said, ColumnSize::SaidAs));
            Ok(Plan {
                fields: fields.collect(),
                row: Row::Columns(sizes.collect()),
            })
        }
    }
}

/// A plain chunk is as long as index.json says.
fn check_end(bytes: u64, end: u64) -> Result<()> {
    if bytes > end {
        let message = format!("there are {} bytes behind the last item", bytes - end);
        return Err(Error::new(ErrorKind::Unsupported, OP, message)
            .with_hint("typed data sets of nested rows keep them there as arrow, which is not read"));
    }
    if bytes < end {
        let message =
            format!("the offsets of the chunk end at byte {end}, but index.json says {bytes} bytes");
        return Err(corrupt(&message));
    }
    Ok(())
}

fn tokens_plan(index: &Index, chunk: &Chunk, header: Header<'_>) -> Result<Plan> {
    let kind = match index.leaves.as_slice() {
        [(_, leaf)] => leaf.kind(),
        _ => Kind::Bytes,
    };
    if let (Some(tokens), Kind::List { dtype }) = (chunk.tokens, &kind) {
        let table_bytes = 4 * (u64::from(header.rows) + 2);
        let bytes = u64::from(header.end).saturating_sub(table_bytes);
        if tokens.checked_mul(dtype.bytes()) != Some(bytes) {
            let message =
                format!("the chunk has {bytes} bytes of tokens, but index.json says {tokens} of {dtype}");
            return Err(corrupt(&message));
        }
    }
    Ok(Plan {
        fields: vec![Field::new(TOKENS_FIELD, kind)],
        row: Row::Whole,
    })
}

/// A pass over one chunk.
pub(crate) struct ChunkScan(Rows);

impl Scan for ChunkScan {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.feed(bytes)
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        self.0.finish()
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

/// What a fuzzer may feed: an index.json and a chunk behind it.
#[cfg(fuzzing)]
pub fn fuzz(bytes: &[u8]) {
    fuzz::run(bytes);
}

#[cfg(fuzzing)]
mod fuzz;

#[cfg(test)]
mod tests;
