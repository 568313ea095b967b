//! Reading one block: the bytes of a run of samples, checked, as a [`Loaded`].
//!
//! How depends on what the shard is: a range of the object (read with its edges aligned, so that it goes straight into our memory), the whole
//! object decompressed, or groups of rows decoded. Nothing leaves here without having been compared with the manifest; samples that do not
//! hold their checksum are marked, and what becomes of them is the loader's policy.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, ErrorKind, Ledger, Result, Span, crc32c};
use forebay_io::{AlignedBuf, BufPool, Pages};
use futures::TryStreamExt;
use tokio::sync::OwnedSemaphorePermit;

use super::cpu::Cpu;
use crate::block::Block;
use crate::codec::{Codec, Decoder};
use crate::dataset::Dataset;
use crate::order::BlockRef;
use crate::source::ShardSource;
use crate::table::{Group, Layout, Samples, Table};

/// What direct I/O asks for on every device met so far; a range that is read is widened to it.
const ALIGN: u64 = 4096;

/// A block in memory, with the memory it was promised.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Number of the shard.
    pub(super) shard: u32,
    parts: Vec<Part>,
    /// Number in the shard of the first sample.
    first: u64,
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

/// Samples that lie in memory together: all of the block, or those of one group of rows.
#[derive(Debug)]
struct Part {
    /// Number in the block of the first of them.
    start: u32,
    /// Number in `block` of the same.
    skipped: usize,
    block: Block,
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
        let (block, sample) = self.find(sample)?;
        block.field(sample, column)
    }

    /// The key of a sample, where the format has keys.
    pub(super) fn key(&self, sample: u32) -> Option<&str> {
        let (block, sample) = self.find(sample)?;
        block.key(sample)
    }

    /// Number of a sample in its shard.
    pub(super) fn index(&self, sample: u32) -> u64 {
        self.first + u64::from(sample)
    }

    fn find(&self, sample: u32) -> Option<(&Block, usize)> {
        let after = self.parts.partition_point(|part| part.start <= sample);
        let part = self.parts.get(after.checked_sub(1)?)?;
        Some((&part.block, (sample - part.start) as usize + part.skipped))
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
        let source = self.dataset.source(block.shard as usize).await?;
        let table = self.dataset.table(block.shard as usize).await?;
        let columns = self.columns(&table).into();
        let (parts, bad, ledger) = match &table.layout {
            Layout::Samples(_) => {
                let (read, ledger) = self
                    .bytes(&source, &table, &block)
                    .await
                    .map_err(|error| source.name_in(error))?;
                times.arrived = clock.now();
                let (read, bad) = self
                    .cpu
                    .run(move || {
                        let bad = (0..read.len()).filter(|sample| !read.is_whole(*sample));
                        let bad = bad.map(|sample| sample as u32).collect();
                        (read, bad)
                    })
                    .await?;
                (
                    vec![Part {
                        start: 0,
                        skipped: 0,
                        block: read,
                    }],
                    bad,
                    ledger,
                )
            }
            Layout::Groups(groups) => {
                let rows = self.rows(&source, &table, groups, &block);
                let (parts, ledger) = rows.await.map_err(|error| source.name_in(error))?;
                times.arrived = clock.now();
                (parts, Vec::new(), ledger)
            }
        };
        times.checked = clock.now();
        Ok(Loaded {
            shard: block.shard,
            parts,
            first: block.samples.start,
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
    fn columns(&self, table: &Table) -> Vec<Option<usize>> {
        let fields = self.dataset.schema().fields().iter();
        fields
            .map(|field| table.fields.iter().position(|own| own.name == field.name))
            .collect()
    }

    /// Samples that are ranges of the shard.
    async fn bytes(
        &self,
        source: &ShardSource,
        table: &Arc<Table>,
        block: &BlockRef,
    ) -> Result<(Block, Ledger)> {
        let shard = self.shard(block)?;
        let (bytes, base, ledger) = if shard.codec == Codec::None {
            let Layout::Samples(samples) = &table.layout else {
                return Err(internal("rows of groups are no ranges"));
            };
            let span = span_of(samples, &block.samples)?
                .align_out(ALIGN)
                .clamp_to(source.size());
            let buf = self.memory(span.len() as usize)?;
            let (bytes, ledger) = source.read_into(span, buf).await?;
            (bytes, span.start(), ledger)
        } else {
            let (bytes, ledger) = unpack(source, shard.codec, shard.raw_bytes).await?;
            (bytes, 0, ledger)
        };
        let block = Block::from_bytes(Arc::clone(table), block.samples.clone(), bytes, base)?;
        Ok((block, ledger))
    }

    /// Samples that are rows of groups: each group is read whole, compared with its checksum, and decoded.
    async fn rows(
        &self,
        source: &ShardSource,
        table: &Arc<Table>,
        groups: &[Group],
        block: &BlockRef,
    ) -> Result<(Vec<Part>, Ledger)> {
        let decoder = self.dataset.format().await?.decoder(source).await?;
        let (mut parts, mut ledger) = (Vec::new(), Ledger::default());
        let mut first = 0;
        for (number, group) in groups.iter().enumerate() {
            let rows = first..first + group.samples;
            first = rows.end;
            let start = rows.start.max(block.samples.start);
            if start >= rows.end.min(block.samples.end) {
                continue;
            }
            let span = group.extent.align_out(ALIGN).clamp_to(source.size());
            let (bytes, read) = source.read_into(span, self.memory(span.len() as usize)?).await?;
            ledger.merge(&read);
            let (decoder, table, group) = (Arc::clone(&decoder), Arc::clone(table), *group);
            let decoded = self.cpu.run(move || {
                let extent = bytes.slice(group.extent.relative_to(span.start()));
                if crc32c(&extent) != group.crc {
                    let message = format!("row group {number} does not have the checksum of the manifest");
                    return Err(Error::new(ErrorKind::Corrupt, "read block", message)
                        .with_hint("forebay verify names every damage"));
                }
                decoder.decode(&extent, &table, number)
            });
            parts.push(Part {
                start: (start - block.samples.start) as u32,
                skipped: (start - rows.start) as usize,
                block: decoded.await??,
            });
        }
        Ok((parts, ledger))
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

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "read block", message)
}
