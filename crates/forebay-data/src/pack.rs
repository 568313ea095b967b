//! Packing: any data set that can be read becomes shards of any format that can be written, with their manifest.
//!
//! ```text
//! input.rs: files.rs (a listing) or shards.rs (tables) --chunks, in order, read ahead--> shape.rs: filter, fields as they are written
//!     --> cut.rs: where shards end --> jobs.rs, several at once, as their samples come --> build.rs: writer -> parts -> table, SHA-256 -> store
//!     --> in order: manifest; last of all it becomes visible
//! ```
//!
//! - **Repeatable.** Where shards end is decided in one sequential pass over sizes; how many threads build them changes nothing.
//! - **Bounded.** What is read ahead, shuffled and built fits into [`PackSpec::memory_bytes_max`] ([`memory`]); what cannot is refused.
//! - **Resumable.** [`target`] keeps a plan of the run and a note of each finished shard beside the shards. A run with the same plan compares those with
//!   their notes and goes on; another plan is refused.
//! - **Atomic.** The manifest is written last. A target without one is not complete.
//!
//! Plain files are written sample by sample ([`unpack`]), and their manifest is made of what is there.

mod build;
mod chunk;
mod cut;
mod files;
mod input;
mod jobs;
mod memory;
mod npy;
mod output;
mod plan;
mod shape;
mod shards;
mod target;
#[cfg(test)]
mod tests;
mod unpack;

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result, Seed};
use forebay_store::{Context, PutMode, Store};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

pub use output::PackFormat;
#[cfg(fuzzing)]
pub(crate) use target::fuzz_notes;

use crate::dataset::{OpenOptions, Place, Progress, Silent, Task};
use crate::format::mds;
use crate::manifest::{FormatSpec, Manifest, ManifestWriter, SUMS_NAME, Sums};
use crate::schema::{Dtype, Field};
use build::{Builder, Built};
use cut::Cutter;
use input::{Input, Reading};
use jobs::Jobs;
use memory::Shares;
use plan::Plan;
use shape::Shaper;
pub(crate) use target::is_plan;
use target::{Found, Note, Target};

/// Size of shards where none is asked for.
pub const SHARD_BYTES: u64 = 256 << 20;

/// Memory where none is asked for: four shards of the usual size are built at once, two with a shuffle.
pub const MEMORY_BYTES_MAX: u64 = 4 << 30;

/// How to pack.
#[derive(Debug, Clone)]
pub struct PackSpec {
    /// The format to write.
    pub to: PackFormat,
    /// A shard ends before it gets longer than this, before compression.
    pub shard_bytes: u64,
    /// And before it has more samples than this.
    pub samples_per_shard: Option<u64>,
    /// Compression of shards (`gz`, `zstd:7`), where the format has it.
    pub compression: Option<String>,
    /// Checksums of shards for index.json, where the format has one: MDS.
    pub hashes: Vec<mds::HashName>,
    /// Shuffle, by this seed.
    pub shuffle: Option<u64>,
    /// Only samples that pass this filter.
    pub filter: Option<String>,
    /// At most so many samples.
    pub limit: Option<u64>,
    /// Only these fields.
    pub fields: Option<Vec<String>>,
    /// Leave the keys of samples behind.
    pub drop_keys: bool,
    /// Type of tokens, where they are to have another one.
    pub dtype: Option<Dtype>,
    /// Shards built at once, as far as memory allows.
    pub threads: usize,
    /// Memory for samples that are read ahead and for shards being built.
    pub memory_bytes_max: u64,
    /// Replace what was packed to the target before.
    pub overwrite: bool,
    /// Is told how it goes on.
    pub progress: Arc<dyn Progress>,
}

impl PackSpec {
    /// With the usual settings.
    pub fn new(to: PackFormat) -> Self {
        Self {
            to,
            shard_bytes: SHARD_BYTES,
            samples_per_shard: None,
            compression: None,
            hashes: Vec::new(),
            shuffle: None,
            filter: None,
            limit: None,
            fields: None,
            drop_keys: false,
            dtype: None,
            threads: std::thread::available_parallelism().map_or(2, usize::from),
            memory_bytes_max: MEMORY_BYTES_MAX,
            overwrite: false,
            progress: Arc::new(Silent),
        }
    }

    fn check(&self) -> Result<()> {
        let zeroes = [
            ("shard_size", self.shard_bytes),
            ("samples_per_shard", self.samples_per_shard.unwrap_or(1)),
            ("limit", self.limit.unwrap_or(1)),
            ("threads", self.threads as u64),
        ];
        match zeroes.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => {
                let message = format!("{name} must not be 0");
                Err(Error::new(ErrorKind::InvalidInput, "pack", message).with_field(*name))
            }
            None if self.to == PackFormat::Files && self.shuffle.is_some() => {
                let message = "plain files have no order that could be shuffled";
                Err(Error::new(ErrorKind::InvalidInput, "pack", message).with_field("shuffle"))
            }
            None => Ok(()),
        }
    }
}

/// What was packed.
#[derive(Debug, Clone, Serialize)]
pub struct PackReport {
    /// Format of the target.
    pub format: FormatSpec,
    /// Samples that were written.
    pub samples: u64,
    /// Samples of the input.
    pub samples_read: u64,
    /// Files of an input that is a plain folder which are part of no sample, and were not packed.
    pub files_left_out: u64,
    /// Shards of the target.
    pub shards: u64,
    /// Of these, those that an earlier run had written.
    pub shards_kept: u64,
    /// Bytes of the input.
    pub bytes_read: u64,
    /// Bytes of the shards.
    pub bytes_written: u64,
    /// SHA-256 that names the data set, in hexadecimal digits.
    pub fingerprint: String,
    /// Shards built at once.
    pub shards_at_once: u64,
    /// What became of `_SHA256SUMS`: `written`, or `theirs` where one that is not of these shards was left alone.
    pub sums: &'static str,
    /// Which way the bytes came.
    pub read: Ledger,
    /// Which way they went.
    pub written: Ledger,
}

impl PackReport {
    /// Of a target that is complete, where nothing had to be done.
    fn new(manifest: &Manifest, input: &Input, shares: &Shares) -> Self {
        let shards = manifest.shards();
        Self {
            format: manifest.spec().clone(),
            samples: manifest.samples(),
            samples_read: input.samples(),
            files_left_out: input.files_left_out(),
            shards: shards.len() as u64,
            shards_kept: shards.len() as u64,
            bytes_read: input.bytes(),
            bytes_written: shards.iter().map(|shard| shard.stored_bytes).sum(),
            fingerprint: target::hex(&manifest.fingerprint()),
            shards_at_once: shares.shards_at_once as u64,
            sums: manifest.sums().name(),
            read: Ledger::default(),
            written: Ledger::default(),
        }
    }
}

/// Fields named in one note.
const UNITS_NAMED_MAX: usize = 8;

/// Pack the data set at `from` into `to`. `options` say how the input is opened.
pub async fn pack(
    from: Place,
    to: Arc<dyn Store>,
    context: &Context,
    options: &OpenOptions,
    spec: &PackSpec,
) -> Result<PackReport> {
    spec.check()?;
    target::refuse_overlap(&*from.store, &*to)?;
    let input = Input::open(from, context, options, spec).await?;
    if let Some(note) = input.note() {
        options.progress.noted(&note);
    }
    let shaper = Arc::new(Shaper::new(input.schema(), input.source(), spec)?);
    if let Some(note) = note_units(input.schema().fields(), spec) {
        spec.progress.noted(&note);
    }
    let shares = Shares::new(spec, input.reads())?;
    let plan = Plan::new(&input, spec, Seed::fresh().0);
    let mut target = Target::new(to, context, &spec.progress);
    let notes = match target.prepare(&plan, spec.overwrite).await? {
        Found::Notes(notes) => notes,
        Found::Complete(manifest) => {
            let sums = told(&target.put_sums(&manifest).await?)?;
            target.forget().await?;
            let report = PackReport::new(&manifest, &input, &shares);
            return Ok(PackReport { sums, ..report });
        }
    };
    spec.progress.planned(0, input.bytes());
    let run = Run {
        reading: Reading::new(shaper, context, spec, &shares)?,
        shares,
        target,
        input,
        spec: spec.clone(),
    };
    let packed = match spec.to {
        PackFormat::Files => run.unpack().await,
        _ => run.pack(notes).await,
    };
    if let Err(error) = &packed
        && matches!(
            error.kind(),
            ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::Corrupt
        )
    {
        // Where that fails the plan stays, which costs an `--overwrite`.
        let _ = run.target.withdraw(&plan).await;
    }
    packed
}

/// What is to be said of numbers that count something, where the format has no word for what: they become the integers that they are stored as.
fn note_units(fields: &[Field], spec: &PackSpec) -> Option<String> {
    if spec.to == PackFormat::Parquet {
        return None;
    }
    let is_packed = |field: &&Field| {
        let names = spec.fields.as_ref();
        names.is_none_or(|names| names.contains(&field.name))
    };
    let counting = fields.iter().filter(is_packed).filter_map(|field| {
        let unit = field.unit?;
        Some(format!("{} ({unit})", field.name.escape_debug()))
    });
    let counting: Vec<String> = counting.take(UNITS_NAMED_MAX).collect();
    (!counting.is_empty()).then(|| {
        format!(
            "{} has no word for what these numbers count, and gets the integers that stand for them: {}; --to parquet keeps them what they are",
            spec.to.name(),
            counting.join(", ")
        )
    })
}

/// What became of the hashes. Where they could not be written the run is not over: the same command writes them.
fn told(sums: &Sums) -> Result<&'static str> {
    let Sums::Missing(error) = sums else {
        return Ok(sums.name());
    };
    let message = format!("the data set is complete, but {SUMS_NAME} could not be written");
    Err(Error::new(error.kind(), "pack", message)
        .with_source(Arc::clone(error))
        .with_hint("the same command writes it"))
}

/// A run under way.
#[derive(Debug)]
struct Run {
    input: Input,
    reading: Reading,
    target: Target,
    shares: Shares,
    spec: PackSpec,
}

/// What was written so far.
struct Written {
    manifest: ManifestWriter,
    entries: Vec<mds::ShardEntry>,
    samples: u64,
    shards: u64,
    kept: u64,
    ledger: Ledger,
}

impl Run {
    async fn pack(&self, notes: Vec<Note>) -> Result<PackReport> {
        let output = self.reading.shaper.output();
        let mut written = Written {
            manifest: self.target.manifest(output.spec(), PutMode::IfAbsent)?,
            entries: Vec::new(),
            samples: 0,
            shards: 0,
            kept: 0,
            ledger: Ledger::default(),
        };
        let mut at = 0;
        let kept = stream::iter(notes).map(|note| {
            let (target, output) = (self.target.clone(), Arc::clone(output));
            async move {
                let found = note.clone();
                let reuse = Task::spawn(async move { target.reuse(&output, &found).await });
                Ok::<_, Error>((note, reuse.await?))
            }
        });
        let mut kept = std::pin::pin!(kept.buffered(self.shares.shards_at_once));
        while let Some((note, built)) = kept.try_next().await? {
            if note.number > written.shards {
                self.fill(at..note.start, &mut written).await?;
            }
            at = note.end;
            match built {
                Some(built) => {
                    written.kept += 1;
                    self.spec.progress.moved(self.input.share(note.start..note.end));
                    self.add(built, &mut written).await?;
                }
                // Not what was written: made again.
                None => self.fill(note.start..note.end, &mut written).await?,
            }
        }
        self.fill(at..self.input.samples(), &mut written).await?;
        self.commit(written).await
    }

    /// Build the shards of these positions.
    async fn fill(&self, positions: Range<u64>, written: &mut Written) -> Result<()> {
        let left = self
            .spec
            .limit
            .unwrap_or(u64::MAX)
            .saturating_sub(written.samples);
        if positions.is_empty() || left == 0 {
            return Ok(());
        }
        let output = Arc::clone(self.reading.shaper.output());
        let cutter = Cutter::new(
            Arc::clone(&output),
            self.spec.samples_per_shard,
            left,
            written.shards,
            positions.start,
        );
        let jobs = Jobs::new(cutter, self.input.chunks(positions, &self.reading));
        let builder = Builder {
            output,
            target: self.target.clone(),
            memory: self.reading.memory.pool().clone(),
        };
        let builds = stream::unfold(jobs, |mut jobs| async move {
            let job = jobs.next().await?;
            Some((job, jobs))
        });
        let builds = builds.map(|job| {
            let builder = builder.clone();
            async move {
                let job = job?;
                Task::spawn(async move { builder.build(job).await }).await
            }
        });
        let mut builds = std::pin::pin!(builds.buffered(self.shares.shards_at_once));
        while let Some(built) = builds.next().await {
            self.add(built?, written).await?;
        }
        Ok(())
    }

    /// Note a shard in the manifest, in its turn.
    async fn add(&self, built: Built, written: &mut Written) -> Result<()> {
        let (meta, tabulated) = (&built.meta, &built.tabulated);
        let samples = tabulated.table.samples();
        written.manifest.add(meta, tabulated).await?;
        let output = self.reading.shaper.output();
        let entry = output.entry(
            written.shards,
            samples,
            tabulated.raw_bytes,
            meta.size,
            built.hashes,
        )?;
        written.entries.extend(entry);
        written.shards += 1;
        written.samples += samples;
        written.ledger.merge(&built.ledger);
        self.spec.progress.shard_done(&meta.key, samples);
        Ok(())
    }

    /// That no sample remained. There is nothing to go on with, then.
    async fn nothing_left(&self) -> Error {
        if let Err(error) = self.target.forget().await {
            return error;
        }
        let error = Error::new(ErrorKind::InvalidInput, "pack", "no sample is left to pack");
        let unmet = self.reading.shaper.note_unmet();
        match &self.spec.filter {
            Some(_) => error
                .with_field("filter")
                .with_hint(unmet.unwrap_or_else(|| "the filter keeps none of them".to_owned())),
            None => error,
        }
    }

    fn note_unmet(&self) {
        if let Some(unmet) = self.reading.shaper.note_unmet() {
            self.spec.progress.noted(&unmet);
        }
    }

    async fn commit(&self, written: Written) -> Result<PackReport> {
        if written.samples == 0 {
            return Err(self.nothing_left().await);
        }
        self.note_unmet();
        if !written.entries.is_empty() {
            let index = mds::Index {
                shards: written.entries,
            };
            self.target.put_index(&index.to_json()?).await?;
        }
        let manifest = written.manifest.finish().await?;
        let sums = told(manifest.sums())?;
        self.target.forget().await?;
        Ok(PackReport {
            sums,
            shards_kept: written.kept,
            read: self.reading.tally.ledger(),
            written: written.ledger,
            ..PackReport::new(&manifest, &self.input, &self.shares)
        })
    }
}
