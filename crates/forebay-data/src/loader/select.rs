//! Filtering: which samples of a data set a filter keeps, found out once, before the order is made.
//!
//! ```text
//! shards -> tables -> pieces (runs of samples, groups of rows) --pruned by statistics--> Reader (fields of the filter only) -> kept numbers -> Selection
//! ```
//!
//! A [`Sieve`] is a filter that is bound to a data set; it knows what judging will read (`cost.rs`) before it reads it.
//!
//! Pieces are read and compared side by side and put together in order, so memory is that of a few pieces and of one bit per sample. Samples of other
//! formats than Parquet are read whole, because their checksum is one of the whole; where a filter looks at nothing but keys, nothing is read.
//!
//! What was found is remembered in the state folder (`remembered.rs`): the next start with the same filter over the same data set reads no samples for it.
//!
//! A damaged sample cannot be judged. It is kept: whoever streams it meets the damage, and the policy for bad samples.

mod cost;
mod remembered;

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{ByteSize, Error, ErrorKind, Ledger, Result};
use forebay_io::{BufPool, PoolConfig};
use futures::stream::{self, StreamExt, TryStreamExt};

#[cfg(fuzzing)]
pub(crate) use remembered::fuzz;
use remembered::{Finding, Remembered, WORTH_BYTES_MIN};

use super::cpu::Cpu;
use super::feed::Room;
use super::read::{Reader, Share};
use super::whole;
use crate::codec::Codec;
use crate::dataset::{Dataset, Progress};
use crate::filter::{Bound, Filter, Outline};
use crate::format::GroupDecoder;
use crate::order::{BlockRef, Selection};
use crate::table::{Groups, Keys, Layout, Samples, Table};

/// Samples are read in runs of about so much: a few of them, one per thread, are what filtering takes of memory.
const PIECE_BYTES: u64 = 8 << 20;

/// Shards whose tables and footers are looked at ahead.
const SHARDS_AHEAD: usize = 8;

/// Values of a column that a shard does not have.
const ABSENT: Outline<'static> = Outline {
    low: None,
    high: None,
    may_have_nulls: true,
    may_have_values: false,
};

impl Dataset {
    /// A filter over this data set that has not read any sample yet. They are compared `threads` pieces at a time, as far as they fit into the memory: a shard
    /// that is compressed as a whole is one piece.
    pub async fn sieve(&self, filter: &Filter, threads: usize, memory_bytes_max: u64) -> Result<Sieve> {
        let judge = Judge::new(self, filter, threads, memory_bytes_max).await?;
        let remembered = Remembered::new(self, filter);
        let known = match &remembered {
            Some(remembered) => remembered.load(self.shards()).await,
            None => None,
        };
        let bytes_about = match known {
            Some(_) => 0,
            None => judge.bytes_about().await?,
        };
        Ok(Sieve {
            judge: Arc::new(judge),
            threads,
            bytes_about,
            remembered,
            known,
        })
    }

    /// The part of the data set that a filter keeps, as a [`sieve`](Self::sieve) finds it.
    pub async fn keep(
        &self,
        filter: &Filter,
        threads: usize,
        memory_bytes_max: u64,
        progress: &Arc<dyn Progress>,
    ) -> Result<Self> {
        let sieve = self.sieve(filter, threads, memory_bytes_max).await?;
        sieve.keep(progress).await
    }
}

/// A filter over a data set, before it has read any sample.
#[derive(Debug)]
pub struct Sieve {
    judge: Arc<Judge>,
    threads: usize,
    bytes_about: u64,
    /// Where what it keeps is for the next start.
    remembered: Option<Remembered>,
    /// What it keeps, where an earlier start has found that out.
    known: Option<Finding>,
}

impl Sieve {
    /// About how many bytes [`keep`](Self::keep) reads, of shards that are compressed as a whole as they are stored: none where an earlier start has found out what is
    /// kept.
    pub fn bytes_about(&self) -> u64 {
        self.bytes_about
    }

    /// The part of the data set that the filter keeps, compared sample by sample.
    pub async fn keep(self, progress: &Arc<dyn Progress>) -> Result<Dataset> {
        let judge = self.judge;
        let dataset = &judge.dataset;
        if let Some(known) = self.known {
            return told(dataset, known, Ledger::default(), progress);
        }
        let bytes = dataset.shards().iter().map(|shard| shard.stored_bytes).sum();
        progress.planned(dataset.shards().len() as u64, bytes);
        let looking = Arc::clone(&judge);
        let looks = stream::iter(0..dataset.shards().len()).map(move |shard| {
            let judge = Arc::clone(&looking);
            async move { judge.pieces(shard).await }
        });
        let pieces = looks
            .buffered(SHARDS_AHEAD)
            .map_ok(|pieces| stream::iter(pieces.into_iter().map(Ok)))
            .try_flatten();
        let mut judged = std::pin::pin!(
            pieces
                .map_ok(|piece| {
                    let judge = Arc::clone(&judge);
                    async move { judge.judge(piece).await }
                })
                .try_buffered(self.threads.max(1))
        );
        let (mut gathered, mut ledger) = (Gathered::new(dataset, progress), Ledger::default());
        let mut is_whole = true;
        while let Some(judged) = judged.try_next().await? {
            ledger.merge(&judged.ledger);
            is_whole &= judged.is_whole;
            gathered.add(&judged);
        }
        let found = Finding {
            selections: gathered.finish(),
            note: judge.filter.note_unmet(),
        };
        // What is damaged may be mended, and none is an error.
        let is_final = is_whole && found.selections.iter().any(|kept| kept.count() > 0);
        let is_worth = is_final && ledger.bytes() >= WORTH_BYTES_MIN;
        if let Some(remembered) = self.remembered.filter(|_| is_worth) {
            remembered.save(&found).await;
        }
        told(dataset, found, ledger, progress)
    }
}

/// The part of a data set that is kept, once people know what is to be told of that.
fn told(dataset: &Dataset, found: Finding, ledger: Ledger, progress: &Arc<dyn Progress>) -> Result<Dataset> {
    let kept = dataset.with_selection(found.selections, ledger);
    if kept.samples_kept() == 0 {
        let message = format!("the filter keeps none of {} samples", dataset.samples_kept());
        let error = Error::new(ErrorKind::InvalidInput, "filter", message).with_field("filter");
        return Err(match found.note {
            Some(note) => error.with_hint(note),
            None => error,
        });
    }
    if let Some(note) = found.note {
        progress.noted(&note);
    }
    Ok(kept)
}

/// Samples of a shard that are judged together.
#[derive(Debug)]
struct Piece {
    shard: usize,
    samples: Range<u64>,
}

/// What was found of a piece.
#[derive(Debug)]
struct Judged {
    piece: Piece,
    /// A bit for each sample that is kept, from the word on that has the piece's first.
    words: Vec<u64>,
    /// No sample of it is damaged.
    is_whole: bool,
    ledger: Ledger,
}

/// Tells which samples are kept.
#[derive(Debug)]
struct Judge {
    filter: Arc<Bound>,
    /// Number of the field that stands for the key.
    key: Option<usize>,
    /// What may be kept at most.
    dataset: Dataset,
    reader: Reader,
    cpu: Cpu,
    room: Room,
    /// Most bytes of a shard that is compressed as a whole.
    whole_bytes_max: u64,
}

impl Judge {
    async fn new(dataset: &Dataset, filter: &Filter, threads: usize, memory_bytes_max: u64) -> Result<Self> {
        let (filter, key) = filter.bind_keyed(dataset.schema().fields(), has_keys(dataset).await?)?;
        let filter = Arc::new(filter);
        let columns = filter.columns().iter().copied();
        let cpu = Cpu::new(threads);
        let pool = PoolConfig {
            bytes_max: PIECE_BYTES * 2 * threads.max(1) as u64,
            ..PoolConfig::default()
        };
        Ok(Self {
            key,
            dataset: dataset.clone(),
            reader: Reader {
                dataset: dataset.without_selection(),
                shard_first: 0,
                schema: dataset.schema().fields().into(),
                fields: columns.filter(|column| Some(*column) != key).collect(),
                has_keys: false,
                pool: BufPool::new(&pool)?,
                cpu: cpu.clone(),
                groups: Arc::default(),
                holds: Arc::default(),
                joint_bytes_max: 0,
            },
            filter,
            cpu,
            room: Room::shared(memory_bytes_max),
            whole_bytes_max: whole::bytes_max(memory_bytes_max),
        })
    }

    /// The pieces of a shard that may hold a sample that is kept.
    async fn pieces(&self, shard: usize) -> Result<Vec<Piece>> {
        let table = self.dataset.table(shard).await?;
        let is_whole = self
            .dataset
            .shards()
            .get(shard)
            .is_some_and(|row| row.codec != Codec::None);
        let all = 0..table.samples();
        let ranges = match &table.layout {
            Layout::Samples(_) if is_whole || self.reader.fields.is_empty() => Vec::from([all]),
            Layout::Samples(samples) => runs_of(samples),
            Layout::Groups(groups) => {
                let decoder = self.dataset.decoder(shard).await?;
                let groups = self.groups(&table, groups, &*decoder);
                groups.into_iter().map(|(_, rows)| rows).collect()
            }
        };
        let ranges = ranges.into_iter().filter(|range| !range.is_empty());
        Ok(ranges.map(|samples| Piece { shard, samples }).collect())
    }

    /// The groups of a shard that may hold a row that is kept, by their numbers, with their rows.
    fn groups(&self, table: &Table, groups: &Groups, decoder: &dyn GroupDecoder) -> Vec<(usize, Range<u64>)> {
        let columns = self.reader.columns(table);
        let mut end = 0;
        let groups = groups.list.iter().enumerate().map(|(number, group)| {
            end += group.samples;
            let may_keep = self.filter.may_keep(&|column| match columns.get(column) {
                Some(Some(own)) => decoder.outline(number, *own),
                _ => ABSENT,
            });
            (may_keep, number, end - group.samples..end)
        });
        let groups = groups.filter_map(|(may_keep, number, rows)| may_keep.then_some((number, rows)));
        groups.collect()
    }

    async fn judge(&self, piece: Piece) -> Result<Judged> {
        let (filter, key) = (Arc::clone(&self.filter), self.key);
        let allowed = self.dataset.selection(piece.shard);
        let samples = piece.samples.clone();
        let is_allowed = move |index: u64| allowed.as_ref().is_none_or(|allowed| allowed.contains(index));
        let table = self.dataset.table(piece.shard).await?;
        let (words, is_whole, ledger) = match &table.layout {
            Layout::Samples(_) if self.reader.fields.is_empty() => {
                let judge = move || {
                    bits(&samples, |index| {
                        is_allowed(index) && filter.keeps(&|_| key_of(&table, index))
                    })
                };
                (self.cpu.run(judge).await?, true, Ledger::default())
            }
            _ => {
                let block = BlockRef {
                    shard: u32::try_from(piece.shard).unwrap_or(u32::MAX),
                    samples: samples.clone(),
                };
                let hold = self.reader.hold(block.shard, None).await?;
                let bytes = self.reader.bytes_of(&block, &hold).await?;
                if hold.is_whole() && bytes > self.whole_bytes_max {
                    return Err(self.too_large(piece.shard, bytes));
                }
                let room = self.room.take(bytes).await?;
                let mut loaded = self.reader.load(block, hold, Share::own(Some(room))).await?;
                let ledger = std::mem::take(&mut loaded.ledger);
                let judge = move || {
                    let mut is_whole = true;
                    let words = bits(&samples, |index| {
                        let sample = (index - samples.start) as u32;
                        let value = |column: usize| match key {
                            Some(key) if key == column => loaded.key(sample).map(str::as_bytes),
                            _ => loaded.field(sample, column),
                        };
                        let is_bad = loaded.why_bad(sample).is_some();
                        is_whole &= !is_bad;
                        is_allowed(index) && (is_bad || filter.keeps(&value))
                    });
                    (words, is_whole)
                };
                let (words, is_whole) = self.cpu.run(judge).await?;
                (words, is_whole, ledger)
            }
        };
        Ok(Judged {
            piece,
            words,
            is_whole,
            ledger,
        })
    }
}

impl Judge {
    fn too_large(&self, shard: usize, bytes: u64) -> Error {
        let message = format!(
            "a shard takes {} when it is decompressed, more than the memory allows",
            ByteSize(bytes)
        );
        let error = Error::new(ErrorKind::LimitExceeded, "filter", message).with_field("memory");
        let shard = self.dataset.shards().get(shard);
        let error = match shard {
            Some(shard) => error.at(self.dataset.store().location().join(&shard.key)),
            None => error,
        };
        let memory = whole::memory_for(bytes);
        error.with_hint(format!(
            "give it memory={memory}, or pack it into smaller shards: forebay pack"
        ))
    }
}

/// True when the samples of the data set have keys.
async fn has_keys(dataset: &Dataset) -> Result<bool> {
    let Some(shard) = dataset.shards().iter().position(|shard| shard.samples > 0) else {
        return Ok(false);
    };
    let table = dataset.table(shard).await?;
    Ok(matches!(&table.layout, Layout::Samples(samples) if samples.keys != Keys::Numbered))
}

fn key_of(table: &Table, index: u64) -> Option<&[u8]> {
    match &table.layout {
        Layout::Samples(samples) => samples.keys.get(index as usize).map(str::as_bytes),
        Layout::Groups(_) => None,
    }
}

/// Samples in runs of about [`PIECE_BYTES`].
fn runs_of(samples: &Samples) -> Vec<Range<u64>> {
    let (mut runs, mut start, mut from) = (Vec::new(), 0, 0);
    for (index, extent) in (0..samples.len()).filter_map(|index| Some((index as u64, samples.extent(index)?)))
    {
        if index == start {
            from = extent.start();
        }
        if extent.end().saturating_sub(from) >= PIECE_BYTES || index + 1 == samples.len() as u64 {
            runs.push(start..index + 1);
            start = index + 1;
        }
    }
    runs
}

/// A bit for each sample that `keep` keeps, from the word on that has the first.
fn bits(samples: &Range<u64>, mut keep: impl FnMut(u64) -> bool) -> Vec<u64> {
    let first = samples.start / 64;
    let mut words = vec![0u64; (samples.end.div_ceil(64) - first) as usize];
    for index in samples.clone().filter(|index| keep(*index)) {
        if let Some(word) = words.get_mut((index / 64 - first) as usize) {
            *word |= 1 << (index % 64);
        }
    }
    words
}

/// Puts pieces together, shard by shard.
#[derive(Debug)]
struct Gathered<'a> {
    dataset: &'a Dataset,
    progress: &'a Arc<dyn Progress>,
    done: Vec<Selection>,
    /// Of the shard after those that are done.
    words: Vec<u64>,
}

impl<'a> Gathered<'a> {
    fn new(dataset: &'a Dataset, progress: &'a Arc<dyn Progress>) -> Self {
        Self {
            dataset,
            progress,
            done: Vec::with_capacity(dataset.shards().len()),
            words: Vec::new(),
        }
    }

    fn add(&mut self, judged: &Judged) {
        self.finish_before(judged.piece.shard);
        let first = (judged.piece.samples.start / 64) as usize;
        let end = first + judged.words.len();
        if self.words.len() < end {
            self.words.resize(end, 0);
        }
        for (word, more) in self.words.iter_mut().skip(first).zip(&judged.words) {
            *word |= more;
        }
    }

    fn finish_before(&mut self, end: usize) {
        let shards = self.dataset.shards().iter().take(end).skip(self.done.len());
        for shard in shards {
            let mut words = std::mem::take(&mut self.words);
            words.resize(shard.samples.div_ceil(64) as usize, 0);
            self.done.push(Selection::from_words(shard.samples, words));
            self.progress.moved(shard.stored_bytes);
            self.progress.shard_done(&shard.key, shard.samples);
        }
    }

    fn finish(mut self) -> Vec<Selection> {
        self.finish_before(usize::MAX);
        self.done
    }
}
