//! A data set of shards as input, by its tables: blocks of samples are read ahead, compared with their checksums and taken apart.
//!
//! The order is that of the data set, or that of [`order`](crate::order) with one lane: the order of shards, then windows over blocks of samples. A window
//! takes at most [`WINDOW_SHARE`] of the memory; a data set that fits into one is shuffled as a whole.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, Seed};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::PackSpec;
use super::chunk::{Chunk, ChunkBuilder};
use super::input::{Chunks, Reading};
use super::shape::Taken;
use crate::dataset::{Dataset, FILES, Task};
use crate::loader::cpu::Cpu;
use crate::loader::order_of;
use crate::loader::read::{Loaded, Reader};
use crate::order::{BlockRef, Last, Order, OrderSpec, Window};
use crate::schema::Schema;

/// About how much is read at once.
const BLOCK_BYTES: u64 = 8 << 20;

/// Blocks read at the same time.
const BLOCKS_AT_ONCE_MAX: usize = 8;

/// Windows of the order read ahead: without shuffling each is one block; with it, one is enough.
const WINDOWS_AHEAD: (usize, usize) = (8, 1);

/// Chunks taken apart ahead of the cut.
const CHUNKS_AHEAD_MAX: usize = 4;

/// Part of the memory that one window of a shuffled order takes: two are there at a time, beside the shards being built.
const WINDOW_SHARE: u64 = 4;

/// Bytes of one chunk.
const CHUNK_BYTES: u64 = 8 << 20;

/// A data set.
#[derive(Debug)]
pub(super) struct ShardsInput {
    dataset: Dataset,
    order: Order,
    is_shuffled: bool,
    /// Number in the data set of the first sample of each shard.
    starts: Arc<[u64]>,
}

impl ShardsInput {
    pub(super) fn new(dataset: Dataset, spec: &PackSpec) -> Result<Self> {
        let order = OrderSpec {
            seed: Seed(spec.shuffle.unwrap_or_default()),
            shuffle: spec.shuffle.is_some(),
            lanes: 1,
            batch_size: 1,
            block_bytes: BLOCK_BYTES,
            window_bytes: (spec.memory_bytes_max / WINDOW_SHARE).max(BLOCK_BYTES),
            last: Last::Short,
            ..OrderSpec::default()
        };
        let starts = dataset.shards().iter().scan(0, |start, shard| {
            let own = *start;
            *start += shard.samples;
            Some(own)
        });
        Ok(Self {
            order: order_of(&dataset, order)?,
            is_shuffled: spec.shuffle.is_some(),
            starts: starts.collect(),
            dataset,
        })
    }

    pub(super) fn schema(&self) -> &Schema {
        self.dataset.schema()
    }

    pub(super) fn is_named(&self) -> bool {
        ["wds", FILES].contains(&self.dataset.manifest().spec().name.as_str())
    }

    pub(super) fn samples(&self) -> u64 {
        self.dataset.samples()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.dataset.shards().iter().map(|shard| shard.raw_bytes).sum()
    }

    pub(super) fn identity(&self) -> [u8; 32] {
        self.dataset.manifest().fingerprint()
    }

    /// Read the samples at these positions.
    pub(super) fn chunks(&self, positions: Range<u64>, reading: &Reading) -> Chunks {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD_MAX);
        let feeder = Feeder {
            reader: Reader {
                dataset: self.dataset.clone(),
                shard_first: 0,
                schema: self.schema().fields().into(),
                fields: reading.shaper.sources().into(),
                groups: Arc::default(),
                pool: reading.context.pool().clone(),
                cpu: Cpu::new(reading.threads),
            },
            starts: Arc::clone(&self.starts),
            reading: reading.clone(),
        };
        let order = self.order.clone();
        let ahead = if self.is_shuffled {
            WINDOWS_AHEAD.1
        } else {
            WINDOWS_AHEAD.0
        };
        let feeding = Task::spawn(async move {
            if let Err(error) = feeder.feed(&order, positions, ahead, &sender).await {
                drop(sender.send(Err(error)).await);
            }
            Ok(())
        });
        Chunks::new(receiver, feeding)
    }
}

/// Reads windows and takes them apart.
#[derive(Debug, Clone)]
struct Feeder {
    reader: Reader,
    starts: Arc<[u64]>,
    reading: Reading,
}

/// A window in memory.
type Blocks = Arc<Vec<Loaded>>;

impl Feeder {
    async fn feed(
        &self,
        order: &Order,
        positions: Range<u64>,
        ahead: usize,
        sender: &mpsc::Sender<Result<Task<Chunk>>>,
    ) -> Result<()> {
        let mut windows = order.epoch(0).lane(0)?.windows_from(positions.start);
        let mut loading: VecDeque<(Window, Task<Blocks>)> = VecDeque::new();
        loop {
            while loading.len() <= ahead {
                let Some(window) = windows.next().filter(|window| window.start < positions.end) else {
                    break;
                };
                let (feeder, blocks) = (self.clone(), window.blocks.clone());
                let task = Task::spawn(async move { feeder.load(blocks).await });
                loading.push_back((window, task));
            }
            let Some((window, task)) = loading.pop_front() else {
                return Ok(());
            };
            let blocks = task.await?;
            for chunk in self.take_apart(&window, &blocks, &positions) {
                if sender.send(Ok(chunk)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Read all blocks of a window.
    async fn load(&self, blocks: Vec<BlockRef>) -> Result<Blocks> {
        let loads = blocks.into_iter().map(|block| {
            let feeder = self.clone();
            Task::spawn(async move { feeder.load_block(block).await })
        });
        let blocks = stream::iter(loads).buffered(BLOCKS_AT_ONCE_MAX).try_collect();
        blocks.await.map(Arc::new)
    }

    async fn load_block(&self, block: BlockRef) -> Result<Loaded> {
        let bytes = self.reader.bytes_of(&block).await?;
        // Room is not counted here: how many windows there are bounds it.
        let loaded = self.reader.load(block, None).await?;
        self.reading.tally.read(bytes, &loaded.ledger);
        Ok(loaded)
    }

    /// The samples of a window in chunks, each made by a task.
    fn take_apart<'a>(
        &'a self,
        window: &Window,
        blocks: &'a Blocks,
        positions: &Range<u64>,
    ) -> impl Iterator<Item = Task<Chunk>> + use<'a> {
        let order = window.order();
        let skipped = positions.start.saturating_sub(window.start) as usize;
        let end = positions.end.saturating_sub(window.start).min(order.len() as u64) as usize;
        let picks = order.get(skipped.min(end)..end).unwrap_or_default().to_vec();
        let bytes: u64 = blocks.iter().map(|block| block.ledger.bytes()).sum();
        let samples: u64 = window.blocks.iter().map(BlockRef::len).sum();
        let count = (CHUNK_BYTES * samples.max(1) / bytes.max(1)).clamp(1, CHUNK_BYTES) as usize;
        let first = window.start + skipped as u64;
        let chunks: Vec<(u64, Vec<(u32, u32)>)> = picks
            .chunks(count)
            .zip(0..)
            .map(|(picks, index)| (first + index * count as u64, picks.to_vec()))
            .collect();
        chunks.into_iter().map(move |(first, picks)| {
            let (feeder, blocks) = (self.clone(), Arc::clone(blocks));
            Task::spawn(async move {
                let cpu = feeder.reader.cpu.clone();
                cpu.run(move || feeder.gather(&blocks, first, &picks)).await?
            })
        })
    }

    fn gather(&self, blocks: &[Loaded], first: u64, picks: &[(u32, u32)]) -> Result<Chunk> {
        let mut builder = ChunkBuilder::default();
        for ((block, sample), position) in picks.iter().zip(first..) {
            let Some(block) = blocks.get(*block as usize) else {
                return Err(internal("a block that its window does not have"));
            };
            if let Some(reason) = block.why_bad(*sample) {
                return Err(self.bad(block, *sample, reason));
            }
            let start = self.starts.get(block.shard as usize).copied().unwrap_or_default();
            let value = |field: usize| block.field(*sample, field);
            let taken = Taken {
                position,
                number: start + block.index(*sample),
                key: block.key(*sample),
                value: &value,
            };
            self.reading.shaper.add(&taken, &mut builder)?;
        }
        Ok(builder.finish())
    }

    fn bad(&self, block: &Loaded, sample: u32, reason: &str) -> Error {
        let dataset = &self.reader.dataset;
        let name = block.key(sample).map_or_else(
            || format!("number {}", block.index(sample)),
            |key| format!("'{}'", key.escape_debug()),
        );
        let message = format!("sample {name} cannot be packed: {reason}");
        let error = Error::new(ErrorKind::Corrupt, "pack", message);
        let error = match dataset.shards().get(block.shard as usize) {
            Some(shard) => error.at(dataset.store().location().join(&shard.key)),
            None => error,
        };
        error.with_hint("forebay verify names every damage")
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "pack", message)
}
