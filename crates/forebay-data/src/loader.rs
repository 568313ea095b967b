//! The loader: batches of a data set, in the order of the plan, read ahead within bounds.
//!
//! ```text
//! order (pure) --course.rs: windows; ahead.rs: nearest need first--> feed.rs --block, room--> read.rs: store -> bytes -> checked against the manifest
//!                                                   |                                           |
//!                                             assemble.rs <-------- blocks as they arrive ------+
//!                                                   | picks: (block, sample) of each place of a batch
//!                                             collate.rs on working threads -> Batch -> ready queue -> Loader::next_batch
//! ```
//!
//! - What is read ahead is bounded by bytes ([`StreamSpec::memory_bytes_max`]), what is ready by [`StreamSpec::ready_bytes_max`].
//! - Threads do the work: no processes, no shared memory names, nothing to clean up after a kill. Dropping the loader stops everything.
//! - [`Sources`] are one data set or several by weight; a data set may be the part of one that a filter keeps ([`Dataset::keep`](crate::Dataset::keep)).
//! - [`Loader::position`] is where the run stands: enough to go on exactly there, at another world size too.
//! - [`Loader::report`] tells which way the bytes came, how long the consumer waited, and whose fault it was.

mod ahead;
mod assemble;
mod batch;
mod collate;
mod course;
pub(crate) mod cpu;
mod decode;
mod feed;
mod numbers;
mod policy;
mod quarantine;
pub(crate) mod read;
mod record;
mod select;
mod sources;
mod spare;
mod stalls;
mod task;
#[cfg(test)]
mod tests;
mod totals;
mod trace;
mod whole;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Clock, Error, ErrorKind, Result};
use forebay_io::{BufPool, PinHook, PoolConfig};
use tokio::sync::mpsc;

pub use batch::{Batch, BatchField, SampleKey, Values};
pub use collate::BadSample;
pub use decode::Decode;
pub use policy::BAD_DEFAULT_MAX;
pub use record::Record;
pub use select::Sieve;
#[cfg(fuzzing)]
pub(crate) use select::fuzz as fuzz_selection;
pub use sources::{Sources, order_of};
pub use stalls::{Blame, StallReport};
pub use totals::{BadPolicy, Report};

use assemble::{Assembler, Made, Means};
use course::{Course, Leg};
use cpu::Cpu;
use decode::Wanted;
use feed::{FED_WINDOWS_MAX, Feeder, Room};
use read::{Holds, Reader, is_far};
use task::Task;

use crate::dataset::Dataset;
use crate::order::{OrderSpec, Position};
use crate::schema::Field;

/// Batches that are ready or being made, at least: one in the consumer's hands, one on its way.
const READY_MIN: usize = 2;

/// Batches that are ready or being made, at most, however small they are.
const READY_MAX: usize = 64;

/// Blocks that a far store gives by one request have no more than one part in so many of the memory: they are in memory until the last of them is
/// used, and a stream with little memory has better use for it.
const JOINT_SHARE: u64 = 16;

/// The arena of blocks is larger than what may be in it by one part in so many: blocks are of many sizes, and would not find a place in one that others have
/// cut up, though there is room for them. Those places are only used then.
const SPARE_SHARE: u64 = 8;

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
    /// Memory for blocks, in use and read ahead. At least what one batch needs at the same time is taken, and the report tells when that is more. Blocks of many sizes
    /// leave gaps between them; at most one part in eight is for those, on top.
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
            memory_bytes_max: 384 << 20,
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
    clock: Arc<dyn Clock>,
    bad: BadPolicy,
    room: Arc<Room>,
    record: Record,
    ready: mpsc::Receiver<Result<Made>>,
    course: Course,
    /// The batch that was being waited for when the wait was given up.
    pending: Option<Made>,
    /// Behind the last batch handed over.
    at: At,
    is_over: bool,
    _feeding: Task<()>,
    _assembling: Task<()>,
}

/// Where a stream stands: so many batches of a leg are done.
#[derive(Debug, Clone)]
struct At {
    leg: Leg,
    batch: u64,
}

/// What a stream will be, known before anything is read.
#[derive(Debug, Clone)]
pub struct Outlook {
    /// Where it begins.
    pub position: Position,
    /// Batches of the epoch that it begins in, the same on every rank.
    pub batches: u64,
    /// The fields of its batches, as they are there.
    pub fields: Vec<Field>,
    /// Nothing is left: it begins at the end of its last epoch.
    pub is_over: bool,
}

impl Outlook {
    /// Of a stream from the beginning, or from where an earlier run stood.
    pub fn new(sources: &Sources, spec: &StreamSpec, position: Option<&Position>) -> Result<Self> {
        let course = Course::new(sources, spec)?;
        let (leg, batch) = match position {
            Some(position) => course.resume(position)?,
            None => (course.first(), 0),
        };
        whole::check(sources, spec, &course, &leg, batch)?;
        let fields = sources.wanted(spec)?;
        Ok(Self {
            is_over: course.is_over(&leg, batch),
            position: leg.position(batch),
            batches: course.epoch_batches_at(&leg, batch),
            fields: fields.iter().map(|wanted| wanted.field.clone()).collect(),
        })
    }
}

impl Loader {
    /// From the beginning: one data set, or [`Sources`] that are mixed.
    pub fn new(sources: impl Into<Sources>, spec: &StreamSpec) -> Result<Self> {
        let sources = sources.into();
        let course = Course::new(&sources, spec)?;
        let leg = course.first();
        let record = Record::new(&sources);
        Self::start(spec, course, At { leg, batch: 0 }, record)
    }

    /// From where an earlier run stood.
    pub fn resume(sources: impl Into<Sources>, spec: &StreamSpec, position: &Position) -> Result<Self> {
        Self::go_on(spec, position, Record::new(&sources.into()))
    }

    /// The stream of a record from elsewhere: what it did before counts.
    pub fn go_on(spec: &StreamSpec, position: &Position, record: Record) -> Result<Self> {
        let course = Course::new(record.sources(), spec)?;
        let (leg, batch) = course.resume(position)?;
        Self::start(spec, course, At { leg, batch }, record)
    }

    fn start(spec: &StreamSpec, course: Course, at: At, record: Record) -> Result<Self> {
        let sources = record.sources();
        whole::check(sources, spec, &course, &at.leg, at.batch)?;
        let fields = sources.wanted(spec)?;
        let batch_bytes = sources.batch_bytes(&fields, spec.order.batch_size);
        let ready_max = ((spec.ready_bytes_max / batch_bytes.max(1)) as usize).clamp(READY_MIN, READY_MAX);
        let blocks = blocks(spec.memory_bytes_max)?;
        // Those that are ready, one more in the consumer's hands, and room to fit them side by side.
        let batches = pool(
            (ready_max as u64 + 2) * (batch_bytes + batch_bytes / 4),
            spec.pin.clone(),
        )?;
        let cpu = Cpu::new(spec.threads);
        let room = Arc::new(Room::new(spec.memory_bytes_max));
        let clock = Arc::clone(sources.context()?.clock());
        let (fed, feeding) = mpsc::channel(FED_WINDOWS_MAX);
        let (made, ready) = mpsc::channel(ready_max);
        let readers: Arc<[Reader]> = readers(sources, spec, &fields, &blocks, &cpu).into();
        // Nothing refuses the stream any more.
        record.begin(spec)?;
        let feeder = Feeder {
            course: course.clone(),
            readers: Arc::clone(&readers),
            room: Arc::clone(&room),
            fed,
        };
        let means = Means {
            course: course.clone(),
            readers,
            fields,
            record: record.clone(),
            borrows: spec.bad != BadPolicy::Stop,
            pool: batches,
            cpu,
            at_once: ready_max,
            clock: Arc::clone(&clock),
            room: Arc::clone(&room),
        };
        let assembler = Assembler::new(means, feeding, made);
        let At { leg, batch } = at.clone();
        Ok(Self {
            clock,
            bad: spec.bad.clone(),
            room,
            record,
            ready,
            course,
            pending: None,
            at,
            is_over: false,
            _feeding: Task::spawn(feeder.run(leg.clone(), batch)),
            _assembling: Task::spawn(assembler.run(leg, batch)),
        })
    }

    /// The next batch; `None` after the last epoch. After an error there are no more. A wait that is given up loses nothing.
    pub async fn next_batch(&mut self) -> Option<Result<Batch>> {
        if self.is_over {
            return None;
        }
        let next = self.take().await;
        self.is_over = !matches!(next, Some(Ok(_)));
        match self.is_over.then(|| self.record.totals().finish()) {
            Some(Err(error)) if next.is_none() => Some(Err(error)),
            _ => next,
        }
    }

    async fn take(&mut self) -> Option<Result<Batch>> {
        let asked = self.clock.now();
        if self.pending.is_none() {
            match self.ready.recv().await {
                Some(Ok(made)) => self.pending = Some(made),
                Some(Err(error)) => return Some(Err(error)),
                None if self.is_at_end() => return None,
                None => return Some(Err(internal("batches ended before the last one"))),
            }
        }
        let done = self.pending.as_mut()?.collating.done().await;
        let made = self.pending.take()?;
        let (collated, stations) = match done {
            Ok(Ok(collated)) => collated,
            Ok(Err(error)) | Err(error) => return Some(Err(error)),
        };
        if let Some(batch) = &collated.batch {
            self.record
                .totals()
                .waited(batch, (asked, self.clock.now()), &stations);
        }
        let name = |number: u32| {
            let shard = self.record.sources().shard(number);
            shard.map_or_else(
                || number.to_string(),
                |(dataset, shard)| dataset.store().location().join(&shard.key).to_string(),
            )
        };
        let first = collated.bad.first().cloned();
        if let Err(error) = self.record.totals().bad(collated.bad, &self.bad, name) {
            return Some(Err(error));
        }
        let Some(batch) = collated.batch else {
            return Some(Err(none_whole(first, name)));
        };
        self.record.totals().given(&batch, collated.missing);
        self.at = At {
            leg: made.leg,
            batch: made.index + 1,
        };
        Some(Ok(batch))
    }

    /// Take no more batches before the last one; tells whether all of the trace could be written.
    pub fn end(&mut self) -> Result<()> {
        self.is_over = true;
        self.record.totals().finish()
    }

    /// Where the run stands after the last batch handed over.
    pub fn position(&self) -> Position {
        self.at.leg.position(self.at.batch)
    }

    /// Batches of the epoch that the next batch is in, the same on every rank: one that a run with other ranks began may have fewer than those behind it. An epoch of a
    /// mixture is as long as all its data sets together.
    pub fn batches(&self) -> u64 {
        self.course.epoch_batches_at(&self.at.leg, self.at.batch)
    }

    /// Whether nothing is left behind the last batch handed over.
    pub fn is_at_end(&self) -> bool {
        self.course.is_over(&self.at.leg, self.at.batch)
    }

    /// Whether the last batch handed over was that of its epoch.
    pub fn is_between_epochs(&self) -> bool {
        let At { leg, batch } = &self.at;
        *batch > 0 && batch.is_multiple_of(leg.epoch_batches().max(1))
    }

    /// What is streamed.
    pub fn sources(&self) -> &Sources {
        self.record.sources()
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        self.record.totals().grew(self.room.grown_bytes());
        self.record.report()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.record.totals().grew(self.room.grown_bytes());
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "stream", message)
}

/// A batch without a whole sample, of which there is none before it that could take their places.
fn none_whole(first: Option<BadSample>, name: impl Fn(u32) -> String) -> Error {
    let message = "no sample of a batch is whole";
    let is_damaged = first.as_ref().is_none_or(|bad| bad.is_damaged);
    let error = match first {
        Some(bad) => {
            let message = format!("{message}; sample {}: {}", bad.index, bad.reason);
            Error::new(ErrorKind::Corrupt, "collate", message).at(name(bad.shard_number))
        }
        None => Error::new(ErrorKind::Corrupt, "collate", message),
    };
    error.with_hint(if is_damaged {
        "forebay verify tells what is damaged"
    } else {
        "the samples are as they were written: is this what decode and fields were meant to ask for? a filter such as \"x is not null\" leaves samples out that lack a value"
    })
}

/// What reads each of the data sets.
fn readers(
    sources: &Sources,
    spec: &StreamSpec,
    fields: &[Wanted],
    pool: &BufPool,
    cpu: &Cpu,
) -> Vec<Reader> {
    let mut shard_first = 0;
    let schema: Option<Arc<[Field]>> = sources
        .datasets()
        .first()
        .map(|dataset| dataset.schema().fields().into());
    let readers = sources.datasets().iter().map(|dataset| {
        let first = shard_first;
        shard_first += dataset.shards().len() as u32;
        Reader {
            dataset: dataset.clone(),
            shard_first: first,
            schema: schema.clone().unwrap_or_default(),
            fields: fields.iter().map(|wanted| wanted.source).collect(),
            has_keys: spec.fields.is_none(),
            pool: pool.clone(),
            cpu: cpu.clone(),
            groups: Arc::default(),
            holds: Arc::new(Holds::within(spec.memory_bytes_max)),
            joint_bytes_max: joint_bytes_max(dataset, spec.memory_bytes_max),
        }
    });
    readers.collect()
}

/// Most bytes of blocks that one request brings. A disk of this machine is as fast with blocks as they are.
fn joint_bytes_max(dataset: &Dataset, memory_bytes_max: u64) -> u64 {
    if !is_far(dataset) {
        return 0;
    }
    let limits = dataset.context().limits();
    limits.part_bytes.min(memory_bytes_max / JOINT_SHARE)
}

/// Memory for that many bytes of blocks, whatever sizes they have.
fn blocks(bytes_max: u64) -> Result<BufPool> {
    pool(bytes_max + bytes_max / SPARE_SHARE, None)
}

fn pool(bytes_max: u64, pin: Option<Arc<dyn PinHook>>) -> Result<BufPool> {
    BufPool::new(&PoolConfig {
        bytes_max,
        pin,
        is_kept: true,
        ..PoolConfig::default()
    })
}
