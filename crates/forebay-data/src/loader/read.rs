//! Reading one block: the bytes of some samples of a shard, checked, as a [`Loaded`].
//!
//! How depends on what the shard is: ranges of the object (read with their edges aligned, so that they go straight into our memory), the whole
//! object decompressed, or groups of rows decoded. Nothing leaves here without having been compared with the manifest; samples that do not
//! hold their checksum are marked, and what becomes of them is the loader's policy.
//!
//! - `loaded.rs`: a block in memory; `held.rs`: tables and decompressed shards, `rows.rs`: groups of rows, all shared by the lanes that need them;
//! - `joint.rs`: blocks of a far store that come by one request.

mod held;
mod joint;
mod loaded;
mod rows;

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result, Span};
use forebay_io::{AlignedBuf, BufPool, Pages};
use futures::stream::{self, StreamExt, TryStreamExt};

pub(crate) use held::{Hold, Holds};
pub(crate) use joint::{Joint, Share};
pub(crate) use loaded::{Loaded, Origin, Times, is_far};
pub(crate) use rows::Groups;

use super::cpu::Cpu;
use crate::block::Block;
use crate::dataset::{ALIGN, Dataset};
use crate::manifest::Shard;
use crate::order::{BlockRef, Selection};
use crate::schema::Field;
use crate::source::ShardSource;
use crate::table::{Layout, Samples, Table};
use held::Unpacked;
use loaded::{Bad, Contents};
use rows::groups_in;

/// Kept samples that are not further apart are read together: a request costs more than these bytes.
const GAP_BYTES_MAX: u64 = 128 << 10;

/// Runs of one block that are asked for at once.
const RUNS_AT_ONCE_MAX: usize = 8;

/// Who compares bytes with checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Only we, with those of the manifest.
    Here,
    /// A cache before us, with its own, as well.
    OnTheWay,
}

/// How samples are compared with the manifest.
#[derive(Debug, Clone)]
struct Comparison {
    /// Only these.
    selection: Option<Arc<Selection>>,
    /// Those that fit it are what was written: it was not made of the same bytes a moment ago.
    is_proof: bool,
}

/// Why a sample is bad whose bytes are not those that were indexed.
const BAD_CHECKSUM: &str = "its bytes do not have the checksum of the manifest";

/// Everything that reading blocks of one data set takes.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    pub(crate) dataset: Dataset,
    /// Number of its first shard, over all data sets that are streamed together.
    pub(crate) shard_first: u32,
    /// The fields that batches are made of: those of the data set, or of the first of several.
    pub(crate) schema: Arc<[Field]>,
    /// Those that are wanted, by their numbers there.
    pub(crate) fields: Arc<[usize]>,
    /// Columns that are keys of rows are read, too, where they are not among the fields.
    pub(crate) has_keys: bool,
    pub(crate) pool: BufPool,
    pub(crate) cpu: Cpu,
    pub(crate) groups: Arc<Groups>,
    pub(crate) holds: Arc<Holds>,
    /// Most bytes that blocks are read by one request together; 0 where each is read on its own.
    pub(crate) joint_bytes_max: u64,
}

impl Reader {
    /// Memory that a block will take; of a shard that is compressed as a whole, all blocks take it together.
    pub(crate) async fn bytes_of(&self, block: &BlockRef, hold: &Hold) -> Result<u64> {
        if hold.is_whole() {
            return Ok(self.shard(block.shard)?.raw_bytes);
        }
        let number = block.shard as usize;
        let table = hold.table();
        let selection = self.dataset.selection(number);
        match &table.layout {
            Layout::Samples(samples) => {
                let runs = runs_of(samples, &block.samples, selection.as_deref())?;
                let spans = runs.iter().map(|run| span_of(samples, run));
                spans.map(|span| Ok(span?.align_out(ALIGN).len())).sum()
            }
            Layout::Groups(groups) => {
                let decoder = self.dataset.decoder(number).await?;
                let columns = self.own_columns(table);
                let range = range_of(&block.samples, selection.as_deref())?;
                let shares = groups_in(&groups.list, &range).map(|(number, group, rows)| {
                    let part = rows.end.min(range.end) - rows.start.max(range.start);
                    let stored = decoder.spans(number, &columns).unwrap_or_default();
                    let stored = stored
                        .iter()
                        .fold(0, |bytes: u64, span| bytes.saturating_add(span.len()));
                    let bytes = decoder.decoded_bytes(number, &columns).max(stored);
                    let share = u128::from(bytes) * u128::from(part) / u128::from(group.samples.max(1));
                    u64::try_from(share).unwrap_or(u64::MAX)
                });
                Ok(shares.fold(0, u64::saturating_add))
            }
        }
    }

    /// About how many bytes a block has, without looking at its table.
    pub(super) fn bytes_about(&self, block: &BlockRef) -> u64 {
        self.shard(block.shard).map_or(0, |shard| {
            let bytes = u128::from(shard.raw_bytes) * u128::from(block.len());
            u64::try_from(bytes / u128::from(shard.samples.max(1))).unwrap_or(u64::MAX)
        })
    }

    /// Read what blocks of a shard need beside their bytes, so that nobody waits for it later. Errors come again when a block is read.
    pub(super) async fn warm(&self, shard: u32) {
        let shard = shard as usize;
        let is_grouped = |table: &Table| matches!(table.layout, Layout::Groups(_));
        if self
            .dataset
            .table(shard)
            .await
            .is_ok_and(|table| is_grouped(&table))
        {
            drop(self.dataset.decoder(shard).await);
        }
    }

    /// Read and check a block.
    pub(crate) async fn load(&self, block: BlockRef, hold: Hold, share: Share) -> Result<Loaded> {
        let clock = Arc::clone(self.dataset.context().clock());
        let mut times = Times {
            asked: clock.now(),
            ..Times::default()
        };
        let number = block.shard as usize;
        let source = self.dataset.source(number).await?;
        let table = Arc::clone(hold.table());
        let selection = self.dataset.selection(number);
        let comparison = Comparison {
            selection: selection.clone(),
            is_proof: self.dataset.is_proven(number),
        };
        let mut origin = None;
        let read = async {
            match &table.layout {
                Layout::Samples(samples) => {
                    let runs = runs_of(samples, &block.samples, selection.as_deref())?;
                    if hold.is_whole() {
                        let shard = self.shard(block.shard)?;
                        let (unpacked, ledger) = self.unpacked(&source, shard, &hold).await?;
                        (times.arrived, origin) = (unpacked.arrived, Some(unpacked.origin));
                        return self
                            .unpacked_runs(&table, unpacked, runs, (comparison, ledger))
                            .await;
                    }
                    let shard = (&source, &table);
                    self.ranges(shard, runs, comparison, &share, (&mut times, &mut origin))
                        .await
                }
                Layout::Groups(groups) => {
                    let range = range_of(&block.samples, selection.as_deref())?;
                    let is_wanted = |rows: &Range<u64>| match &selection {
                        Some(selection) => selection.rank(rows.end) > selection.rank(rows.start),
                        None => true,
                    };
                    let shard = (number, &table);
                    self.rows(&source, shard, &groups.list, &range, &is_wanted, &mut times)
                        .await
                }
            }
        };
        let (contents, ledger) = read.await.map_err(|error| source.name_in(error))?;
        times.checked = clock.now();
        times.origin = origin.unwrap_or_else(|| Origin::of(&self.dataset, &ledger));
        Ok(Loaded {
            shard: self.shard_first + block.shard,
            first: block.samples.start,
            selection,
            columns: self.columns(&table).into(),
            contents,
            ledger,
            times,
            _hold: hold,
            _share: share,
        })
    }

    /// Runs of samples that are ranges of the shard, checked.
    async fn ranges(
        &self,
        (source, table): (&ShardSource, &Arc<Table>),
        runs: Vec<Range<u64>>,
        comparison: Comparison,
        share: &Share,
        (times, origin): (&mut Times, &mut Option<Origin>),
    ) -> Result<(Contents, Ledger)> {
        let (blocks, ledger) = match share {
            Share::Joint(joint) => {
                let (fetched, ledger) = self.fetched(source, joint).await?;
                *origin = Some(fetched.origin);
                (fetched.blocks(table, runs.clone())?, ledger)
            }
            Share::Own { .. } => self.bytes(source, table, runs.clone(), Check::Here).await?,
        };
        times.arrived = self.dataset.context().clock().now();
        let (contents, ledger) = self.check(blocks, comparison.clone(), ledger).await?;
        if contents.bad.is_empty() {
            return Ok((contents, ledger));
        }
        // Once more, with every check on the way: what is damaged may be a cache's copy.
        let (blocks, mut again) = self.bytes(source, table, runs, Check::OnTheWay).await?;
        again.merge(&ledger);
        self.check(blocks, comparison, again).await
    }

    /// Runs of samples of a shard that is decompressed, checked.
    async fn unpacked_runs(
        &self,
        table: &Arc<Table>,
        unpacked: Unpacked,
        runs: Vec<Range<u64>>,
        (comparison, ledger): (Comparison, Ledger),
    ) -> Result<(Contents, Ledger)> {
        match unpacked.bytes {
            Ok(bytes) => {
                let runs = runs.into_iter();
                let blocks = runs.map(|run| Block::from_bytes(Arc::clone(table), run, bytes.clone(), 0));
                let blocks = blocks.collect::<Result<_>>()?;
                self.check(blocks, comparison, ledger).await
            }
            Err(reason) => Ok((Contents::all_bad(table.samples(), reason), ledger)),
        }
    }

    fn shard(&self, shard: u32) -> Result<&Shard> {
        let shard = self.dataset.shards().get(shard as usize);
        shard.ok_or_else(|| internal("a shard that the data set does not have"))
    }

    /// For each field of the schema, where the shard has it.
    pub(super) fn columns(&self, table: &Table) -> Vec<Option<usize>> {
        let fields = self.schema.iter();
        fields
            .map(|field| table.fields.iter().position(|own| own.name == field.name))
            .collect()
    }

    /// Runs of samples that are ranges of the shard.
    async fn bytes(
        &self,
        source: &ShardSource,
        table: &Arc<Table>,
        runs: Vec<Range<u64>>,
        check: Check,
    ) -> Result<(Vec<Block>, Ledger)> {
        let Layout::Samples(samples) = &table.layout else {
            return Err(internal("rows of groups are no ranges"));
        };
        let (mut blocks, mut total) = (Vec::with_capacity(runs.len()), Ledger::default());
        let mut reads = Vec::with_capacity(runs.len());
        for run in runs {
            let span = span_of(samples, &run)?.align_out(ALIGN).clamp_to(source.size());
            let (reader, source) = (self.clone(), source.clone());
            reads.push(async move {
                let buf = reader.memory(span.len() as usize)?;
                let (bytes, ledger) = match check {
                    Check::Here => source.read_to_check(span, buf).await?,
                    Check::OnTheWay => source.read_into(span, buf).await?,
                };
                Ok::<_, Error>((run, span, bytes, ledger))
            });
        }
        let mut reads = stream::iter(reads).buffered(RUNS_AT_ONCE_MAX);
        while let Some((run, span, bytes, ledger)) = reads.try_next().await? {
            total.merge(&ledger);
            blocks.push(Block::from_bytes(Arc::clone(table), run, bytes, span.start())?);
        }
        Ok((blocks, total))
    }

    /// Compare every sample that is kept with its checksum.
    async fn check(
        &self,
        blocks: Vec<Block>,
        comparison: Comparison,
        mut ledger: Ledger,
    ) -> Result<(Contents, Ledger)> {
        let is_proof = comparison.is_proof;
        let check = move || {
            let (mut contents, mut verified_bytes) = (Contents::default(), 0);
            for block in blocks {
                for (sample, index) in (block.first()..).take(block.len()).enumerate() {
                    let selection = comparison.selection.as_ref();
                    if selection.is_some_and(|selection| !selection.contains(index)) {
                        continue;
                    }
                    verified_bytes += block.extent(sample).map_or(0, Span::len);
                    if !block.is_whole(sample) {
                        contents.bad.push(Bad {
                            samples: index..index + 1,
                            reason: BAD_CHECKSUM.into(),
                        });
                    }
                }
                contents.blocks.push(Arc::new(block));
            }
            (contents, verified_bytes)
        };
        let (contents, verified_bytes) = self.cpu.run(check).await?;
        if is_proof {
            ledger.verified_bytes += verified_bytes;
        }
        Ok((contents, ledger))
    }

    /// Memory of the pool; of the machine where the pool is too cut up, for the room was promised.
    fn memory(&self, len: usize) -> Result<AlignedBuf> {
        match self.pool.try_lease(len) {
            Some(buf) => Ok(buf),
            None => AlignedBuf::alloc(len, Pages::default()),
        }
    }
}

/// From the first sample of a block to the last, by their numbers in the shard.
fn range_of(ordinals: &Range<u64>, selection: Option<&Selection>) -> Result<Range<u64>> {
    let Some(selection) = selection else {
        return Ok(ordinals.clone());
    };
    let last = ordinals.end.checked_sub(1);
    match (
        selection.get(ordinals.start),
        last.and_then(|last| selection.get(last)),
    ) {
        (Some(first), Some(last)) => Ok(first..last + 1),
        _ => Err(internal("a block of samples that are not kept")),
    }
}

/// The samples of a block as runs that are read at once: those that are kept, and what lies between them where that is little.
fn runs_of(
    samples: &Samples,
    ordinals: &Range<u64>,
    selection: Option<&Selection>,
) -> Result<Vec<Range<u64>>> {
    let Some(selection) = selection else {
        return Ok(vec![ordinals.clone()]);
    };
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut end = 0;
    for ordinal in ordinals.clone() {
        let index = selection.get(ordinal);
        let index = index.ok_or_else(|| internal("a block of samples that are not kept"))?;
        let extent = samples.extent(index as usize).ok_or_else(too_few)?;
        match runs.last_mut() {
            Some(run) if extent.start().saturating_sub(end) <= GAP_BYTES_MAX => run.end = index + 1,
            _ => runs.push(index..index + 1),
        }
        end = extent.end();
    }
    Ok(runs)
}

/// From the first byte of the first sample to the last of the last.
fn span_of(samples: &Samples, range: &Range<u64>) -> Result<Span> {
    let extent = |index: u64| samples.extent(index as usize);
    match (extent(range.start), extent(range.end.saturating_sub(1))) {
        (Some(first), Some(last)) if !range.is_empty() => Span::new(first.start(), last.end()),
        _ => Err(too_few()),
    }
}

fn too_few() -> Error {
    let message = "the table of the shard has fewer samples than its manifest says";
    Error::new(ErrorKind::Corrupt, "read block", message)
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "read block", message)
}
