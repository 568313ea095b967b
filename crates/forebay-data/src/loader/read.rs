//! Reading one block: the bytes of a run of samples, checked, as a [`Loaded`].
//!
//! How depends on what the shard is: a range of the object (read with its edges aligned, so that it goes straight into our memory), the whole
//! object decompressed, or groups of rows decoded. Nothing leaves here without having been compared with the manifest; samples that do not
//! hold their checksum are marked, and what becomes of them is the loader's policy.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, ErrorKind, Ledger, Result, Span};
use forebay_io::{AlignedBuf, BufPool, Pages};
use futures::TryStreamExt;
use tokio::sync::OwnedSemaphorePermit;

use super::cpu::Cpu;
use crate::block::Block;
use crate::codec::{Codec, Decoder};
use crate::dataset::Dataset;
use crate::order::BlockRef;
use crate::source::ShardSource;
use crate::table::{Layout, Samples, Table};

/// What direct I/O asks for on every device met so far; a range that is read is widened to it.
const ALIGN: u64 = 4096;

/// A block in memory, with the memory it was promised.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Number of the shard.
    pub(super) shard: u32,
    block: Block,
    /// For each field of the data set, its column in this shard.
    columns: Arc<[Option<usize>]>,
    /// Samples that do not hold their checksum, in ascending order.
    bad: Vec<u32>,
    /// Which way the bytes came.
    pub(super) ledger: Ledger,
    /// When reading began, when the bytes were there, when they were checked.
    pub(super) times: Times,
    _room: OwnedSemaphorePermit,
}

/// When a block passed which station.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Times {
    pub(super) asked: Duration,
    pub(super) arrived: Duration,
    pub(super) checked: Duration,
}

impl Loaded {
    /// A field of a sample, both counted from 0.
    pub(super) fn field(&self, sample: u32, field: usize) -> Option<&[u8]> {
        let column = (*self.columns.get(field)?)?;
        self.block.field(sample as usize, column)
    }

    /// The key of a sample, where the format has keys.
    pub(super) fn key(&self, sample: u32) -> Option<&str> {
        self.block.key(sample as usize)
    }

    /// Number of a sample in its shard.
    pub(super) fn index(&self, sample: u32) -> u64 {
        self.block.first() + u64::from(sample)
    }

    /// True for a sample that does not hold its checksum.
    pub(super) fn is_bad(&self, sample: u32) -> bool {
        self.bad.binary_search(&sample).is_ok()
    }
}

/// Everything that reading blocks takes.
#[derive(Debug, Clone)]
pub(super) struct Reader {
    pub(super) dataset: Dataset,
    pub(super) pool: BufPool,
    pub(super) cpu: Cpu,
}

impl Reader {
    /// Memory that a block will take.
    pub(super) async fn bytes_of(&self, block: &BlockRef) -> Result<u64> {
        let shard = self.shard(block)?;
        if shard.codec != Codec::None {
            return Ok(shard.raw_bytes);
        }
        let table = self.dataset.table(block.shard as usize).await?;
        match &table.layout {
            Layout::Samples(samples) => Ok(span_of(samples, &block.samples)?.align_out(ALIGN).len()),
            Layout::Groups(_) => {
                let share =
                    u128::from(shard.raw_bytes) * u128::from(block.len()) / u128::from(shard.samples.max(1));
                Ok(share as u64)
            }
        }
    }

    /// Read and check a block.
    pub(super) async fn load(&self, block: BlockRef, room: OwnedSemaphorePermit) -> Result<Loaded> {
        let clock = Arc::clone(self.dataset.context().clock());
        let mut times = Times {
            asked: clock.now(),
            ..Times::default()
        };
        let shard = block.shard as usize;
        let source = self.dataset.source(shard).await?;
        let read = self.read(&source, &block).await;
        let (read, ledger) = read.map_err(|error| source.name_in(error))?;
        times.arrived = clock.now();
        let columns = self.columns(&read).into();
        let (read, bad) = self
            .cpu
            .run(move || {
                let bad = (0..read.len()).filter(|sample| !read.is_whole(*sample));
                let bad = bad.map(|sample| sample as u32).collect();
                (read, bad)
            })
            .await?;
        times.checked = clock.now();
        Ok(Loaded {
            shard: block.shard,
            block: read,
            columns,
            bad,
            ledger,
            times,
            _room: room,
        })
    }

    fn shard(&self, block: &BlockRef) -> Result<&crate::manifest::Shard> {
        let shard = self.dataset.shards().get(block.shard as usize);
        shard.ok_or_else(|| {
            Error::new(
                ErrorKind::Internal,
                "read block",
                "a shard that the data set does not have",
            )
        })
    }

    /// For each field of the data set, where the shard has it.
    fn columns(&self, block: &Block) -> Vec<Option<usize>> {
        let fields = self.dataset.schema().fields().iter();
        fields
            .map(|field| block.fields().iter().position(|own| own.name == field.name))
            .collect()
    }

    async fn read(&self, source: &ShardSource, block: &BlockRef) -> Result<(Block, Ledger)> {
        let table = self.dataset.table(block.shard as usize).await?;
        let shard = self.shard(block)?;
        match &table.layout {
            Layout::Samples(samples) if shard.codec == Codec::None => {
                let span = span_of(samples, &block.samples)?
                    .align_out(ALIGN)
                    .clamp_to(source.size());
                let buf = self.memory(span.len() as usize)?;
                let (bytes, ledger) = source.read_into(span, buf).await?;
                Ok((
                    Block::from_bytes(table, block.samples.clone(), bytes, span.start())?,
                    ledger,
                ))
            }
            Layout::Samples(_) => {
                let (bytes, ledger) = unpack(source, shard.codec, shard.raw_bytes).await?;
                Ok((Block::from_bytes(table, block.samples.clone(), bytes, 0)?, ledger))
            }
            Layout::Groups(_) => self.rows(source, table, block).await,
        }
    }

    async fn rows(
        &self,
        source: &ShardSource,
        table: Arc<Table>,
        block: &BlockRef,
    ) -> Result<(Block, Ledger)> {
        let _ = (source, table, block);
        Err(Error::new(
            ErrorKind::Unsupported,
            "read block",
            "rows of groups cannot be streamed yet",
        ))
    }

    /// Memory of the pool; of the machine where the pool is too cut up, for the room was promised.
    fn memory(&self, len: usize) -> Result<AlignedBuf> {
        match self.pool.try_lease(len) {
            Some(buf) => Ok(buf),
            None => AlignedBuf::alloc(len, Pages::default()),
        }
    }
}

/// From the first byte of the first sample to the last of the last.
fn span_of(samples: &Samples, range: &Range<u64>) -> Result<Span> {
    let extent = |index: u64| samples.extent(index as usize);
    match (extent(range.start), extent(range.end.saturating_sub(1))) {
        (Some(first), Some(last)) if !range.is_empty() => Span::new(first.start(), last.end()),
        _ => Err(Error::new(
            ErrorKind::Corrupt,
            "read block",
            "the table of the shard has fewer samples than its manifest says",
        )),
    }
}

/// All of a compressed shard, decompressed.
async fn unpack(source: &ShardSource, codec: Codec, raw_bytes: u64) -> Result<(Bytes, Ledger)> {
    let mut decoder = Decoder::new(codec);
    let mut raw = BytesMut::with_capacity(raw_bytes as usize);
    let mut ledger = Ledger::default();
    let mut sink = |bytes: &[u8]| {
        if raw.len() + bytes.len() > raw_bytes as usize {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "decompress",
                "it has more bytes than its manifest says",
            ));
        }
        raw.extend_from_slice(bytes);
        Ok(())
    };
    let mut pieces = source.pieces();
    while let Some((piece, read)) = pieces.try_next().await? {
        ledger.merge(&read);
        decoder.feed(&piece, &mut sink)?;
    }
    decoder.finish(&mut sink)?;
    Ok((raw.freeze(), ledger))
}
