//! The loader: batches of a data set, in the order of the plan, read ahead within bounds.
//!
//! ```text
//! order (pure) --windows, nearest need first--> feed.rs --block, room--> read.rs: store -> bytes -> checked against the manifest
//!                                                   |                                           |
//!                                             assemble.rs <-------- blocks as they arrive ------+
//!                                                   | picks: (block, sample) of each place of a batch
//!                                             collate.rs on working threads -> Batch -> ready queue -> Loader::next_batch
//! ```
//!
//! - What is read ahead is bounded by bytes ([`StreamSpec::memory_bytes_max`]), what is ready by [`StreamSpec::ready_bytes_max`].
//! - Threads do the work: no processes, no shared memory names, nothing to clean up after a kill. Dropping the loader stops everything.
//! - [`Loader::position`] is where the run stands: enough to go on exactly there, at another world size too.
//! - [`Loader::report`] tells which way the bytes came, how long the consumer waited, and whose fault it was.

mod assemble;
mod batch;
mod collate;
mod cpu;
mod decode;
mod feed;
mod policy;
mod quarantine;
mod read;
mod select;
mod stalls;
mod task;
#[cfg(test)]
mod tests;
mod totals;
mod trace;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Clock, Error, ErrorKind, Result};
use forebay_io::{BufPool, PinHook, PoolConfig};
use tokio::sync::mpsc;

pub use batch::{Batch, BatchField, SampleKey, Values};
pub use collate::BadSample;
pub use decode::Decode;
pub use policy::BAD_DEFAULT_MAX;
pub use stalls::{Blame, StallReport};
pub use totals::{BadPolicy, Report};

use assemble::{Assembler, Made};
use cpu::Cpu;
use decode::Wanted;
use feed::{FED_WINDOWS_MAX, Feeder, Room};
use quarantine::Quarantine;
use read::Reader;
use task::Task;
use totals::Totals;
use trace::Tracer;

use crate::codec::Codec;
use crate::dataset::Dataset;
use crate::manifest::Shard;
use crate::order::{Cut, EpochPlan, Order, OrderSpec, Position, ShardSize, Shards};
use crate::schema::Field;

/// Batches that are ready or being made, at least: one in the consumer's hands, one on its way.
const READY_MIN: usize = 2;

/// Batches that are ready or being made, at most, however small they are.
const READY_MAX: usize = 64;

/// How to stream.
#[derive(Debug, Clone)]
pub struct StreamSpec {
    /// Which samples, when, on which rank.
    pub order: OrderSpec,
    /// Passes over the data set; `None` goes on for ever.
    pub epochs: Option<u64>,
    /// Only these fields; all of them otherwise.
    pub fields: Option<Vec<String>>,
    /// Fields that are decoded, and how. The others are given as they are stored.
    pub decode: Vec<(String, Decode)>,
    /// Memory for blocks, in use and read ahead. At least what one batch needs at the same time is taken, and the report tells when that is more.
    pub memory_bytes_max: u64,
    /// Memory for batches that are ready before they are asked for.
    pub ready_bytes_max: u64,
    /// Threads that check and collate.
    pub threads: usize,
    /// What becomes of damaged samples.
    pub bad: BadPolicy,
    /// Write a trace of the pipeline to this file, for Chrome or Perfetto.
    pub trace: Option<PathBuf>,
    /// Pins the memory of batches for a device.
    pub pin: Option<Arc<dyn PinHook>>,
}

impl Default for StreamSpec {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self {
            order: OrderSpec::default(),
            epochs: Some(1),
            fields: None,
            decode: Vec::new(),
            memory_bytes_max: 512 << 20,
            ready_bytes_max: 64 << 20,
            threads: threads.min(16),
            bad: BadPolicy::default(),
            trace: None,
            pin: None,
        }
    }
}

/// Streams batches. Must be made and used inside a tokio runtime.
#[derive(Debug)]
pub struct Loader {
    dataset: Dataset,
    clock: Arc<dyn Clock>,
    bad: BadPolicy,
    room: Arc<Room>,
    totals: Arc<Totals>,
    ready: mpsc::Receiver<Result<Made>>,
    /// The batch that was being waited for when the wait was given up.
    pending: Option<Made>,
    /// The plan of the last batch handed over, and how many of its batches are done.
    at: (EpochPlan, u64),
    is_over: bool,
    _feeding: Task<()>,
    _assembling: Task<()>,
}

/// The fields that batches have, as they are there.
pub fn fields_of(dataset: &Dataset, spec: &StreamSpec) -> Result<Vec<Field>> {
    let wanted = wanted(dataset, spec)?;
    Ok(wanted.iter().map(|wanted| wanted.field.clone()).collect())
}

/// The order of a data set's samples.
pub fn order_of(dataset: &Dataset, spec: OrderSpec) -> Result<Order> {
    let sizes = dataset.shards().iter().map(size_of).collect();
    let identity = dataset.manifest().fingerprint();
    let identity = identity.first_chunk().copied().map_or(0, u64::from_le_bytes);
    let shards = Shards::new(sizes)?.with_identity(identity);
    let selections: Option<Vec<_>> = (0..dataset.shards().len())
        .map(|shard| dataset.selection(shard))
        .collect();
    match selections.filter(|selections| !selections.is_empty()) {
        Some(selections) => Order::new(shards.select(&selections)?, spec),
        None => Order::new(shards, spec),
    }
}

fn size_of(shard: &Shard) -> ShardSize {
    let cut = if shard.codec != Codec::None {
        Cut::Whole
    } else if shard.groups.is_empty() {
        Cut::Anywhere
    } else {
        Cut::Groups(shard.groups.clone())
    };
    ShardSize {
        samples: shard.samples,
        bytes: shard.raw_bytes,
        cut,
    }
}

impl Loader {
    /// From the beginning.
    pub fn new(dataset: Dataset, spec: &StreamSpec) -> Result<Self> {
        let order = order_of(&dataset, spec.order.clone())?;
        let plan = order.epoch(0);
        Self::start(dataset, spec, order, plan, 0)
    }

    /// From where an earlier run stood.
    pub fn resume(dataset: Dataset, spec: &StreamSpec, position: &Position) -> Result<Self> {
        let order = order_of(&dataset, spec.order.clone())?;
        let (plan, batch) = order.resume(position)?;
        Self::start(dataset, spec, order, plan, batch)
    }

    fn start(dataset: Dataset, spec: &StreamSpec, order: Order, plan: EpochPlan, batch: u64) -> Result<Self> {
        let fields = wanted(&dataset, spec)?;
        let batch_bytes = batch_bytes(&dataset, &fields, spec.order.batch_size);
        let ready_max = ((spec.ready_bytes_max / batch_bytes.max(1)) as usize).clamp(READY_MIN, READY_MAX);
        let blocks = pool(spec.memory_bytes_max, None)?;
        // Those that are ready, one more in the consumer's hands, and room to fit them side by side.
        let batches = pool(
            (ready_max as u64 + 2) * (batch_bytes + batch_bytes / 4),
            spec.pin.clone(),
        )?;
        let tracer = spec.trace.as_deref();
        let tracer = tracer
            .map(|path| Tracer::create(path, spec.order.rank))
            .transpose()?;
        let cpu = Cpu::new(spec.threads);
        let room = Arc::new(Room::new(spec.memory_bytes_max));
        let totals = Arc::new(Totals::new(tracer));
        let clock = Arc::clone(dataset.context().clock());
        let epochs_end = spec.epochs.unwrap_or(u64::MAX);
        let (fed, feeding) = mpsc::channel(FED_WINDOWS_MAX);
        let (made, ready) = mpsc::channel(ready_max);
        let feeder = Feeder {
            order: order.clone(),
            reader: Reader {
                dataset: dataset.clone(),
                shard_first: 0,
                fields: fields.iter().map(|wanted| wanted.source).collect(),
                pool: blocks,
                cpu: cpu.clone(),
                groups: Arc::default(),
            },
            room: Arc::clone(&room),
            fed,
            epochs_end,
        };
        let assembler = Assembler::new(
            order,
            fields,
            Quarantine::of(spec, &dataset)?,
            batches,
            cpu,
            Arc::clone(&clock),
            Arc::clone(&room),
            Arc::clone(&totals),
            feeding,
            made,
            epochs_end,
        );
        Ok(Self {
            dataset,
            clock,
            bad: spec.bad.clone(),
            room,
            totals,
            ready,
            pending: None,
            at: (plan.clone(), batch),
            is_over: false,
            _feeding: Task::spawn(feeder.run(plan.clone(), batch)),
            _assembling: Task::spawn(assembler.run(plan, batch)),
        })
    }

    /// The next batch; `None` after the last epoch. After an error there are no more. A wait that is given up loses nothing.
    pub async fn next_batch(&mut self) -> Option<Result<Batch>> {
        if self.is_over {
            return None;
        }
        let next = self.take().await;
        self.is_over = !matches!(next, Some(Ok(_)));
        match self.is_over.then(|| self.totals.finish()) {
            Some(Err(error)) if next.is_none() => Some(Err(error)),
            _ => next,
        }
    }

    async fn take(&mut self) -> Option<Result<Batch>> {
        let asked = self.clock.now();
        if self.pending.is_none() {
            match self.ready.recv().await? {
                Ok(made) => self.pending = Some(made),
                Err(error) => return Some(Err(error)),
            }
        }
        let done = self.pending.as_mut()?.collating.done().await;
        let made = self.pending.take()?;
        let (collated, stations) = match done {
            Ok(Ok(collated)) => collated,
            Ok(Err(error)) | Err(error) => return Some(Err(error)),
        };
        self.totals
            .waited(&collated.batch, (asked, self.clock.now()), &stations);
        let shards = self.dataset.shards();
        let name = |shard: u32| {
            let key = shards.get(shard as usize).map(|shard| &shard.key);
            key.map_or_else(
                || shard.to_string(),
                |key| self.dataset.store().location().join(key).to_string(),
            )
        };
        if let Err(error) = self.totals.bad(collated.bad, &self.bad, name) {
            return Some(Err(error));
        }
        self.totals
            .given(collated.batch.len() as u64, collated.batch.bytes());
        self.at = (made.plan, made.index + 1);
        Some(Ok(collated.batch))
    }

    /// Where the run stands after the last batch handed over.
    pub fn position(&self) -> Position {
        self.at.0.position(self.at.1)
    }

    /// Batches of one epoch, the same on every rank.
    pub fn batches(&self) -> u64 {
        self.at.0.batches()
    }

    /// The data set.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        self.totals.report(self.room.grown_bytes())
    }
}

fn pool(bytes_max: u64, pin: Option<Arc<dyn PinHook>>) -> Result<BufPool> {
    BufPool::new(&PoolConfig {
        bytes_max,
        pin,
        ..PoolConfig::default()
    })
}

/// The fields that are wanted, and what becomes of them.
fn wanted(dataset: &Dataset, spec: &StreamSpec) -> Result<Arc<[Wanted]>> {
    let schema = dataset.schema();
    let unknown = |argument: &'static str, name: &str, known: Vec<&str>| {
        let message = format!("there is no field '{}'", name.escape_debug());
        Error::new(ErrorKind::InvalidInput, "stream", message)
            .with_field(argument)
            .with_hint(format!("there are: {}", known.join(", ")))
    };
    let names = || schema.fields().iter().map(|field| field.name.as_str());
    let indices = match &spec.fields {
        None => (0..schema.fields().len()).collect(),
        Some(wanted) => {
            let indices = wanted.iter().map(|name| {
                let index = schema.index_of(name);
                index.ok_or_else(|| unknown("fields", name, names().collect()))
            });
            indices.collect::<Result<Vec<usize>>>()?
        }
    };
    let fields: Vec<(usize, &Field)> = indices
        .into_iter()
        .filter_map(|index| Some((index, schema.fields().get(index)?)))
        .collect();
    if let Some((name, _)) = spec
        .decode
        .iter()
        .find(|(name, _)| !fields.iter().any(|(_, field)| field.name == *name))
    {
        let known = fields.iter().map(|(_, field)| field.name.as_str());
        return Err(unknown("decode", name, known.collect()));
    }
    let wanted = fields.into_iter().map(|(index, field)| {
        let decode = spec.decode.iter().find(|(name, _)| field.name == *name);
        Wanted::new(index, field, decode.map(|(_, decode)| decode), spec.order.seed)
    });
    Ok(wanted.collect())
}

/// Bytes that a batch has on average.
fn batch_bytes(dataset: &Dataset, fields: &[Wanted], batch_size: u64) -> u64 {
    let stored: u64 = dataset.shards().iter().map(|shard| shard.raw_bytes).sum();
    let decoded = fields.iter().filter(|wanted| wanted.tool.is_some());
    let decoded: u64 = decoded.filter_map(|wanted| wanted.field.kind.fixed_bytes()).sum();
    let mean = u128::from(stored) * u128::from(batch_size) / u128::from(dataset.samples().max(1));
    u64::try_from(mean)
        .unwrap_or(u64::MAX)
        .saturating_add(decoded.saturating_mul(batch_size))
        .clamp(4096, 1 << 40)
}
