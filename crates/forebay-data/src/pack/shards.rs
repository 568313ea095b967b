//! A data set of shards as input, by its tables: blocks of samples are read ahead, compared with their checksums and taken apart.
//!
//! The order is that of the data set, or that of [`order`](crate::order) with one lane: the order of shards, then windows over blocks of samples. A window
//! takes a quarter of the memory; a data set that fits into one is shuffled as a whole.
//!
//! Windows are read ahead as far as their bytes in memory have room: a compressed shard is one block, a group of rows may be much larger than what is
//! stored. Room is taken in the order of the windows, so that none waits for one behind it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, Seed};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use super::PackSpec;
use super::chunk::{Chunk, ChunkBuilder};
use super::input::{Chunks, Coming, Reading};
use super::memory::{Held, Reads, window_bytes};
use super::shape::{Source, Taken};
use crate::dataset::{Dataset, FILES, Task};
use crate::loader::cpu::Cpu;
use crate::loader::order_of;
use crate::loader::read::{Loaded, Reader, Share};
use crate::order::{BlockRef, Last, Order, OrderSpec, Window};
use crate::schema::Schema;

/// About how much is read at once.
const BLOCK_BYTES: u64 = 8 << 20;

/// Blocks read at the same time.
const BLOCKS_AT_ONCE_MAX: usize = 8;

/// Windows of the order read ahead: without shuffling each is one block; with it, one is enough.
const WINDOWS_AHEAD: (usize, usize) = (8, 1);

/// Chunks taken apart ahead of the cut, as far as there is room.
const CHUNKS_AHEAD_MAX: usize = 4;

/// Most bytes of one chunk, unless a sample is longer.
const CHUNK_BYTES_MAX: u64 = 8 << 20;

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
            window_bytes: window_bytes(spec.memory_bytes_max).max(BLOCK_BYTES),
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

    pub(super) fn source(&self) -> Source {
        let spec = self.dataset.manifest().spec();
        let layout = spec.params.get("layout").and_then(|layout| layout.as_str());
        Source {
            is_named: ["wds", FILES].contains(&spec.name.as_str()),
            is_image_folder: spec.name == FILES && layout == Some("images"),
        }
    }

    pub(super) fn reads(&self) -> Reads {
        if self.is_shuffled {
            Reads::Windows
        } else {
            Reads::Blocks
        }
    }

    pub(super) fn samples(&self) -> u64 {
        self.dataset.samples()
    }

    pub(super) fn files_left_out(&self) -> u64 {
        self.dataset.files_left_out()
    }

    pub(super) fn note(&self) -> Option<String> {
        self.dataset.note()
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
                has_keys: false,
                groups: Arc::default(),
                holds: Arc::default(),
                joint_bytes_max: 0,
                pool: reading.memory.pool().clone(),
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
#[derive(Debug)]
struct Blocks {
    loaded: Vec<Loaded>,
    bytes: u64,
    _room: Held,
}

/// Some samples of a window: the position of the first, and their blocks and numbers in there.
type Picks = (u64, Vec<(u32, u32)>);

impl Feeder {
    async fn feed(
        &self,
        order: &Order,
        positions: Range<u64>,
        ahead: usize,
        sender: &mpsc::Sender<Result<Coming>>,
    ) -> Result<()> {
        let mut windows = order.epoch(0).lane(0)?.windows_from(positions.start);
        let mut windows = std::iter::from_fn(|| windows.next().filter(|window| window.start < positions.end));
        // Measured, but there was no room for it yet.
        let mut waiting: Option<(Window, Vec<u64>)> = None;
        let mut loading: VecDeque<(Window, Task<Arc<Blocks>>)> = VecDeque::new();
        loop {
            while loading.len() <= ahead {
                let (window, sizes) = match waiting.take() {
                    Some(waiting) => waiting,
                    None => match windows.next() {
                        Some(window) => {
                            let sizes = self.sizes(&window).await?;
                            (window, sizes)
                        }
                        None => break,
                    },
                };
                let bytes = sizes.iter().copied().fold(0, u64::saturating_add);
                let room = match self.reading.windows.try_take(bytes) {
                    Some(room) => room,
                    // What still has room is being taken apart, and waits for nobody.
                    None if loading.is_empty() => self.reading.windows.take(bytes).await?,
                    None => {
                        waiting = Some((window, sizes));
                        break;
                    }
                };
                let (feeder, blocks) = (self.clone(), window.blocks.clone());
                let task = Task::spawn(async move { feeder.load(blocks, &sizes, room).await });
                loading.push_back((window, task));
            }
            let Some((window, task)) = loading.pop_front() else {
                return Ok(());
            };
            let blocks = task.await?;
            for (picks, bytes) in self.cut(&window, &blocks, &positions) {
                let room = self.reading.chunks.take(bytes).await?;
                let chunk = self.take_apart(&blocks, picks);
                if sender.send(Ok(Coming { chunk, room })).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Bytes that the blocks of a window take in memory.
    async fn sizes(&self, window: &Window) -> Result<Vec<u64>> {
        let sizes = window.blocks.clone().into_iter().map(|block| {
            let reader = self.reader.clone();
            async move {
                let hold = reader.hold(block.shard, None).await?;
                reader.bytes_of(&block, &hold).await
            }
        });
        stream::iter(sizes)
            .buffered(BLOCKS_AT_ONCE_MAX)
            .try_collect()
            .await
    }

    /// Read all blocks of a window.
    async fn load(&self, blocks: Vec<BlockRef>, sizes: &[u64], room: Held) -> Result<Arc<Blocks>> {
        let loads = blocks.into_iter().zip(sizes.to_vec()).map(|(block, bytes)| {
            let feeder = self.clone();
            Task::spawn(async move { feeder.load_block(block, bytes).await })
        });
        let blocks = stream::iter(loads).buffered(BLOCKS_AT_ONCE_MAX).try_collect();
        Ok(Arc::new(Blocks {
            loaded: blocks.await?,
            bytes: sizes.iter().copied().fold(0, u64::saturating_add),
            _room: room,
        }))
    }

    async fn load_block(&self, block: BlockRef, bytes: u64) -> Result<Loaded> {
        let hold = self.reader.hold(block.shard, None).await?;
        let loaded = self.reader.load(block, hold, Share::own(None)).await?;
        self.reading.tally.read(bytes, &loaded.ledger);
        Ok(loaded)
    }

    /// The samples of a window in runs, each of about as many bytes as a chunk has.
    fn cut(&self, window: &Window, blocks: &Blocks, positions: &Range<u64>) -> Vec<(Picks, u64)> {
        let order = window.order();
        let skipped = positions.start.saturating_sub(window.start) as usize;
        let end = positions.end.saturating_sub(window.start).min(order.len() as u64) as usize;
        let picks = order.get(skipped.min(end)..end).unwrap_or_default();
        let samples: u64 = window.blocks.iter().map(BlockRef::len).sum();
        let chunk_bytes = (self.reading.chunks_bytes / CHUNKS_AHEAD_MAX as u64).clamp(1, CHUNK_BYTES_MAX);
        let sample_bytes = (blocks.bytes / samples.max(1)).max(1);
        let count = (chunk_bytes / sample_bytes).max(1);
        let first = window.start + skipped as u64;
        let runs = picks
            .chunks(count as usize)
            .zip((first..).step_by(count as usize));
        runs.map(|(picks, first)| {
            let bytes = sample_bytes.saturating_mul(picks.len() as u64);
            ((first, picks.to_vec()), bytes)
        })
        .collect()
    }

    /// A chunk, made by a task.
    fn take_apart(&self, blocks: &Arc<Blocks>, (first, picks): Picks) -> Task<Chunk> {
        let (feeder, blocks) = (self.clone(), Arc::clone(blocks));
        Task::spawn(async move {
            let cpu = feeder.reader.cpu.clone();
            cpu.run(move || feeder.gather(&blocks.loaded, first, &picks))
                .await?
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
