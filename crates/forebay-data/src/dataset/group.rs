//! Groups of rows: what is read of one, and what becomes of it.
//!
//! ```text
//! columns wanted --> GroupRead: their chunks, those together that are close --fetch--> bytes --compare, decode, cast to the schema of the data set--> Block
//! ```
//!
//! The manifest has a checksum for each chunk, and one for the footer that says where chunks lie. Both are compared before they are used, so everything that is
//! decoded is verified, however few columns are asked for.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Pages};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::Dataset;
use crate::block::Block;
use crate::format::{Chunks, GroupDecoder};
use crate::kept::Kept;
use crate::schema::{Field, Schema};
use crate::source::ShardSource;
use crate::table::{Layout, Table};

/// Memory that decoders may take: footers of a thousand files with some hundred column chunks each.
const DECODERS_BYTES_MAX: u64 = 64 << 20;

/// Ranges of one group that are asked for at once.
const SPANS_AT_ONCE_MAX: usize = 8;

/// What direct I/O asks for on every device met so far; a range that is read is widened to it.
pub(crate) const ALIGN: u64 = 4096;

/// No decoders yet.
pub(super) fn decoders() -> Kept<dyn GroupDecoder> {
    Kept::within(DECODERS_BYTES_MAX)
}

impl Dataset {
    /// What decodes the groups of a shard: opened when it is first asked for, then kept as long as there is room.
    pub(crate) async fn decoder(&self, shard: usize) -> Result<Arc<dyn GroupDecoder>> {
        let open = || async {
            let (source, table) = (self.source(shard).await?, self.table(shard).await?);
            let Layout::Groups(groups) = &table.layout else {
                return Err(internal("its samples are no rows of groups"));
            };
            self.format().await?.decoder(&source, groups).await
        };
        let cell = self.0.decoders.cell(shard);
        let decoder = cell.get_or_try_init(open).await?;
        self.0.decoders.used(shard, decoder.memory_bytes());
        Ok(Arc::clone(decoder))
    }

    /// A group of rows of a shard, checked and decoded: the columns given, all of the shard's without.
    pub async fn group(&self, shard: usize, group: usize, columns: Option<&[usize]>) -> Result<Block> {
        let (source, table) = (self.source(shard).await?, self.table(shard).await?);
        let columns = match columns {
            Some(columns) => columns.into(),
            None => (0..table.fields.len()).collect(),
        };
        let read = GroupRead::plan(self.schema(), self.decoder(shard).await?, table, group, columns);
        let decoded = async {
            let read = read?;
            let memory = |len| AlignedBuf::alloc(len, Pages::default());
            let (chunks, _) = read.fetch(&source, &memory).await?;
            let decoded = tokio::task::spawn_blocking(move || read.decode(&chunks)).await;
            decoded.map_err(|error| internal("decoding ended early").with_source(error))?
        };
        decoded.await.map_err(|error: Error| source.name_in(error))
    }
}

/// How one group is read.
#[derive(Debug)]
pub(crate) struct GroupRead {
    decoder: Arc<dyn GroupDecoder>,
    table: Arc<Table>,
    number: usize,
    columns: Arc<[usize]>,
    spans: Vec<Span>,
    /// Of the chunks, without what lies between them.
    chunk_bytes: u64,
    /// Columns that the data set calls something else, and what.
    casts: Vec<(usize, Field)>,
}

impl GroupRead {
    /// Group `number` of the shard whose table it is, in a data set of that schema.
    pub(crate) fn plan(
        schema: &Schema,
        decoder: Arc<dyn GroupDecoder>,
        table: Arc<Table>,
        number: usize,
        columns: Arc<[usize]>,
    ) -> Result<Self> {
        let group = match &table.layout {
            Layout::Groups(groups) => groups.list.get(number).copied(),
            Layout::Samples(_) => None,
        };
        let group = group.ok_or_else(|| internal(&format!("there is no group {number}")))?;
        let spans = decoder.spans(number, &columns)?;
        if !spans.iter().all(|span| group.extent.contains(*span)) {
            let message = format!("columns of group {number} lie outside of it");
            return Err(Error::new(ErrorKind::Corrupt, "read group", message));
        }
        let mut wanted = columns.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let chunk_bytes = decoder.verified_bytes(number, &wanted)?;
        let casts = wanted.into_iter().filter_map(|column| {
            let own = table.fields.get(column)?;
            let field = schema.cast_of(own, column)?;
            Some((column, field.clone()))
        });
        Ok(Self {
            casts: casts.collect(),
            decoder,
            table,
            number,
            columns,
            spans,
            chunk_bytes,
        })
    }

    /// Read it, into memory that `memory` gives.
    pub(crate) async fn fetch(
        &self,
        source: &ShardSource,
        memory: &(dyn Fn(usize) -> Result<AlignedBuf> + Sync),
    ) -> Result<(Chunks, Ledger)> {
        let reads = self.spans.iter().map(|span| async move {
            let wide = span.align_out(ALIGN).clamp_to(source.size());
            if span.end() > wide.end() {
                let message = format!("the shard ends within group {}", self.number);
                return Err(Error::new(ErrorKind::Corrupt, "read group", message));
            }
            let (bytes, ledger) = source
                .read_from_memory(wide, memory(wide.len() as usize)?)
                .await?;
            Ok((span.start(), bytes.slice(span.relative_to(wide.start())), ledger))
        });
        let reads: Vec<_> = reads.collect();
        let mut reads = stream::iter(reads).buffered(SPANS_AT_ONCE_MAX);
        let (mut chunks, mut total) = (Chunks::default(), Ledger::default());
        while let Some((start, bytes, ledger)) = reads.try_next().await? {
            chunks.add(start, bytes);
            total.merge(&ledger);
        }
        Ok((chunks, total))
    }

    /// Bytes that [`decode`](Self::decode) compares with the checksums of the manifest.
    pub(crate) fn verified_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Compare what was read with the manifest, and decode it to what the data set calls it. Takes a while: not for threads that others wait for.
    pub(crate) fn decode(&self, chunks: &Chunks) -> Result<Block> {
        let block = self
            .decoder
            .decode(chunks, &self.table, self.number, &self.columns)?;
        block.cast(&self.casts)
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "read group", message)
}
