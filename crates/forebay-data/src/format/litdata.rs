//! LitData's chunks: read only.
//!
//! ```text
//! index.json --> Index: chunks, loader, serializers of the leaves, names from the pytree --.
//!                                                                                          v
//! chunk-0-0.bin[.zstd | LDFZ01] --codec--> rows.rs: count, offsets, items --> leaves --> Table
//!    of compressed items        --codec--> items.rs: count, items, lengths --> leaves --^
//!    ending with LDARW01 -------------> arrow.rs: an Arrow file, its batches are groups -^
//! ```
//!
//! A chunk does not say what it holds, so nothing is read without index.json. The bytes are described in `docs/formats/litdata.md`.
//!
//! - [`Index`], [`Chunk`]: index.json;
//! - [`Leaf`]: what a leaf of a sample is, and the [`Kind`] it becomes.

mod arrow;
mod index;
mod items;
mod leaf;
mod spec;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Result, Span};

pub use self::index::{Chunk, INDEX_BYTES_MAX, Index, Loader};
pub use self::leaf::Leaf;
pub(crate) use self::leaf::open_value;

use self::arrow::{ArrowChunk, ROWS_MAGIC};
use self::index::Granularity;
use self::items::Items;
use crate::codec::Codec;
use crate::format::rows::{ColumnSize, Header, Plan, Row, Rows};
use crate::format::{Format, GroupDecoder, Scan};
use crate::schema::{Field, Kind};
use crate::source::ShardSource;
use crate::table::{Groups, SAMPLE_BYTES_MAX, Table};

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
    /// Tokens of one sample; without, samples are the items as they were written.
    block: Option<u64>,
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
            block: None,
        }
    }

    /// Cut all tokens of a chunk into samples of so many, as their own loader does.
    pub fn with_block(mut self, tokens: u64) -> Result<Self> {
        if self.index.loader != Loader::Tokens {
            let message = "'tokens' says nothing about chunks that hold no tokens";
            return Err(Error::new(ErrorKind::InvalidInput, OP, message)
                .with_hint("these chunks were written for samples of leaves: leave it away"));
        }
        self.block = Some(tokens);
        Ok(self)
    }

    /// Give the bytes of pickles. Nothing here opens them: what does, runs their code.
    pub fn allow_pickle(mut self) -> Self {
        self.allow_pickle = true;
        self
    }

    /// What index.json says of the file of that name.
    fn chunk(&self, key: &Key) -> Result<&Chunk> {
        let number = self.files.get(key).copied();
        number
            .and_then(|number| self.index.chunks.get(number))
            .ok_or_else(|| {
                corrupt("index.json does not list this chunk")
                    .with_hint("a chunk cannot be read without its index.json")
            })
    }

    /// A pass over the file of that name and size.
    pub(crate) fn scan_file(&self, key: &Key, stored_bytes: u64) -> Result<Box<dyn Scan>> {
        let chunk = self.chunk(key)?.clone();
        if self.index.granularity != Granularity::Chunk {
            check_stored(&chunk, stored_bytes)?;
        }
        let (index, allow_pickle, block) = (Arc::clone(&self.index), self.allow_pickle, self.block);
        if index.granularity == Granularity::Item {
            index.check_pickle(allow_pickle)?;
            let sizes = index.leaves.iter().map(|(_, leaf)| leaf.size()).collect();
            return Ok(Box::new(Items::new(chunk.items, index.fields(), sizes)));
        }
        let bytes = (index.granularity != Granularity::Batch).then_some(chunk.bytes);
        let reader = move |header: Header<'_>| {
            index.check_pickle(allow_pickle)?;
            plan(&index, &chunk, block, header)
        };
        Ok(Box::new(ChunkScan {
            rows: Rows::new(OP, Box::new(reader)),
            bytes,
            refused: None,
            last: Vec::new(),
        }))
    }
}

#[async_trait]
impl Format for LitData {
    fn name(&self) -> &'static str {
        "litdata"
    }

    /// By index.json: all chunks are called `.bin`, and their first bytes are the number of their items. But rows of Arrow are never compressed from outside.
    fn codec(&self, _key: &Key, first: &[u8]) -> Codec {
        match self.index.granularity {
            _ if are_items_empty(first) => Codec::None,
            Granularity::None => Codec::None,
            Granularity::Chunk => Codec::Zstd,
            Granularity::Batch => Codec::LitdataFrames,
            Granularity::Item => Codec::LitdataItems,
        }
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let (key, size) = (&source.meta().key, source.size());
        let chunk = self.chunk(key)?;
        // What an item ends with says nothing: only where items are empty are there rows behind them.
        if self.index.loader == Loader::PyTree
            && are_items_empty(&source.read(Span::first(size.min(FIRST_BYTES as u64))).await?.0)
            && let Some(rows) = ArrowChunk::open(source).await?
        {
            check_stored(chunk, size)?;
            return Ok(rows.scan(chunk));
        }
        self.scan_file(key, size)
    }

    async fn decoder(&self, source: &ShardSource, groups: &Groups) -> Result<Arc<dyn GroupDecoder>> {
        let decoder = ArrowChunk::open_known(source, groups).await;
        Ok(Arc::new(decoder.map_err(|error| source.name_in(error))?))
    }
}

/// The count of the items, and the first two offsets.
const FIRST_BYTES: usize = 12;

/// True when the first item of a plain chunk has no bytes. Items of leaves have some; where they have none, their rows are behind them.
fn are_items_empty(first: &[u8]) -> bool {
    let mut words = first
        .chunks_exact(4)
        .map_while(|word| word.try_into().ok().map(u32::from_le_bytes));
    let (items, start, end) = (words.next(), words.next(), words.next());
    let table_end = items.and_then(|items| items.checked_add(2)?.checked_mul(4));
    table_end.is_some() && start == table_end && end == table_end
}

/// A chunk is stored in as many bytes as index.json says.
fn check_stored(chunk: &Chunk, stored_bytes: u64) -> Result<()> {
    if chunk.bytes == stored_bytes {
        return Ok(());
    }
    let message = format!(
        "the chunk has {stored_bytes} bytes, but index.json says {}",
        chunk.bytes
    );
    Err(corrupt(&message))
}

/// Compare a chunk with what index.json says of it, and say how its items are made.
fn plan(index: &Index, chunk: &Chunk, block: Option<u64>, header: Header<'_>) -> Result<Plan> {
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
    match index.loader {
        Loader::Tokens => tokens_plan(index, chunk, block, header),
        Loader::PyTree => {
            let sizes = index.leaves.iter().map(|(_, leaf)| leaf.size());
            let sizes = sizes.map(|size| size.map_or(ColumnSize::Said, ColumnSize::SaidAs));
            Ok(Plan {
                fields: index.fields(),
                row: Row::Columns(sizes.collect()),
            })
        }
    }
}

/// A plain chunk is as long as index.json says.
fn check_end(bytes: u64, end: u64) -> Result<()> {
    if bytes > end {
        let message = format!("there are {} bytes behind the last item", bytes - end);
        return Err(corrupt(&message));
    }
    if bytes < end {
        let message =
            format!("the offsets of the chunk end at byte {end}, but index.json says {bytes} bytes");
        return Err(corrupt(&message));
    }
    Ok(())
}

fn tokens_plan(index: &Index, chunk: &Chunk, block: Option<u64>, header: Header<'_>) -> Result<Plan> {
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
    let Some(block) = block else {
        return Ok(Plan {
            fields: vec![Field::new(TOKENS_FIELD, kind)],
            row: Row::Whole,
        });
    };
    let Kind::List { dtype } = kind else {
        let message =
            "index.json does not say of what type the tokens are, so they cannot be cut into samples";
        return Err(Error::new(ErrorKind::Unsupported, OP, message));
    };
    let bytes = block
        .checked_mul(dtype.bytes())
        .and_then(|bytes| u32::try_from(bytes).ok());
    let bytes = bytes
        .filter(|bytes| *bytes > 0 && u64::from(*bytes) <= SAMPLE_BYTES_MAX)
        .ok_or_else(|| {
            let message = format!("{block} tokens of {dtype} cannot be a sample");
            Error::new(ErrorKind::InvalidInput, OP, message).with_field("tokens")
        })?;
    let shape = vec![block];
    Ok(Plan {
        fields: vec![Field::new(TOKENS_FIELD, Kind::Array { dtype, shape })],
        row: Row::Cut(bytes),
    })
}

/// A pass over one chunk.
pub(crate) struct ChunkScan {
    rows: Rows,
    /// Its length before compression, where index.json says that.
    bytes: Option<u64>,
    /// Why a chunk is refused that goes on behind its items. What it is says its end, which is awaited.
    refused: Option<Error>,
    /// The last bytes since then.
    last: Vec<u8>,
}

impl Scan for ChunkScan {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        if self.refused.is_none()
            && let Err(error) = self.rows.feed(bytes)
        {
            if self
                .rows
                .end_known()
                .zip(self.bytes)
                .is_none_or(|(end, bytes)| bytes <= end)
            {
                return Err(error);
            }
            self.refused = Some(error);
        }
        if self.refused.is_some() {
            let count = ROWS_MAGIC.len();
            let new = bytes.len().saturating_sub(count);
            self.last.extend_from_slice(bytes.get(new..).unwrap_or_default());
            self.last.drain(..self.last.len().saturating_sub(count));
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        match self.refused {
            None => self.rows.finish(),
            Some(_) if self.last == ROWS_MAGIC => {
                let message = "behind its items are rows kept as Arrow, which say the same once more";
                Err(Error::new(ErrorKind::Unsupported, OP, message).with_hint(
                    "development versions of litdata wrote both into one chunk; write the data set again",
                ))
            }
            Some(error) => Err(error),
        }
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
