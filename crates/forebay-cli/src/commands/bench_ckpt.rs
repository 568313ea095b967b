//! `forebay bench ckpt`: what a durable, hashed save and a verified load cost beside a plain direct write and read of as many bytes.
//!
//! Rounds are interleaved and their order turns, so that a disk that warms up or throttles favours nobody; the median counts. The state is staged memory
//! that is used again in every round, as a training loop has it.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_ckpt::{
    Attempt, Checkpoint, Compress, Dtype, Item, ItemData, KeyWrap, Keys, Save, SaveOptions, SliceSpec, Value,
    Want,
};
use forebay_core::{ByteSize, Error, ErrorKind, Ledger, Location, Rate, Result, Seed};
use forebay_io::{AlignedBuf, Buf, Pages, memory_peak_bytes};
use forebay_store::{Context, LocalStore, Store};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::BenchCkptArgs;
use crate::bench::meter::{Median, Meter, Sample};
use crate::bench::raw::{self, Order, Shape};
use crate::bench::scratch::Scratch;
use crate::printer::Printed;
use crate::progress::Bar;
use crate::table::Table;
use crate::target::Target;

/// Bytes of a large tensor: a square of bf16 as models of some billion parameters have it.
const TENSOR_BYTES: u64 = 32 << 20;

/// Blocks of the plain write and read, and how many are in flight: past the knee of every disk measured.
const BLOCK_BYTES: u64 = 4 << 20;
const DEPTH: u64 = 4;

/// One in so many tensors changes between two saves: 5 % of the bytes.
const CHANGED_ONE_IN: usize = 20;

/// `--json`.
#[derive(Debug, Serialize)]
struct Report {
    dir: String,
    size: u64,
    runs: u32,
    rows: Vec<Row>,
    compress: String,
    sealed: bool,
    /// Bytes that a full save wrote.
    saved_bytes: u64,
    /// Bytes that an incremental save wrote when one tensor in twenty had changed.
    incremental_bytes: u64,
    /// Most memory the process ever had, the state included.
    memory_peak_bytes: u64,
    save_ledger: Ledger,
    load_ledger: Ledger,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    #[serde(flatten)]
    median: Median,
    /// Rate over that of the plain way.
    share: Option<f64>,
}

/// What is measured.
#[derive(Debug, Default)]
struct Samples {
    write: Vec<Sample>,
    save: Vec<Sample>,
    incremental: Vec<Sample>,
    read: Vec<Sample>,
    load: Vec<Sample>,
}

/// Measure.
pub(super) async fn run(args: &BenchCkptArgs, app: &App) -> Printed<Exit> {
    let target = Target::parse(&args.dir)?;
    let Some(dir) = target.location.to_path() else {
        let message = "a local directory is needed";
        return Err(Error::new(ErrorKind::InvalidInput, "bench", message)
            .at(&target.location)
            .into());
    };
    let size = args.size.0.max(1).next_multiple_of(TENSOR_BYTES);
    let scratch = Scratch::new(&dir, size.saturating_mul(3))?;
    let mut bench = Bench::new(scratch.path(), size, &app.context()?, args)?;
    let measured = bench.measure(args.runs, app).await;
    drop(scratch);
    measured?;
    let report = bench.report(dir.display().to_string(), args.runs);
    print(&report, app)?;
    Ok(Exit::Success)
}

struct Bench {
    context: Context,
    store: Arc<dyn Store>,
    plain: std::path::PathBuf,
    root: std::path::PathBuf,
    size: u64,
    compress: Compress,
    keys: Keys,
    /// The state, one buffer for each tensor.
    staged: Vec<Buf>,
    /// What is loaded into, again and again.
    targets: Vec<AlignedBuf>,
    samples: Samples,
    saved_bytes: u64,
    incremental_bytes: u64,
    save_ledger: Ledger,
    load_ledger: Ledger,
}

impl Bench {
    fn new(scratch: &Path, size: u64, context: &Context, args: &BenchCkptArgs) -> Result<Self> {
        let root = scratch.join("run");
        let location = Location::from_path(&root, &root)?;
        let tensors = (size / TENSOR_BYTES) as usize;
        let (mut staged, mut targets) = (Vec::new(), Vec::new());
        for number in 0..tensors {
            let mut buf = AlignedBuf::alloc(TENSOR_BYTES as usize, Pages::default())?;
            fill(&mut buf, Seed(number as u64), args.compress);
            staged.push(buf.freeze());
            let mut target = AlignedBuf::alloc(TENSOR_BYTES as usize, Pages::default())?;
            // First touches are dear, and a training loop has them behind it.
            target.fill(1);
            targets.push(target);
        }
        Ok(Self {
            context: context.clone(),
            store: Arc::new(LocalStore::open(&location, context)?),
            plain: scratch.join("plain"),
            root,
            size,
            compress: args.compress,
            keys: if args.seal {
                Keys::new([KeyWrap::generate()?.0])
            } else {
                Keys::default()
            },
            staged,
            targets,
            samples: Samples::default(),
            saved_bytes: 0,
            incremental_bytes: 0,
            save_ledger: Ledger::default(),
            load_ledger: Ledger::default(),
        })
    }

    async fn measure(&mut self, runs: u32, app: &App) -> Result<()> {
        let bar = Bar::new(app.printer(), "measuring", Some(self.size * 4 * u64::from(runs)));
        for run in 0..runs {
            if run % 2 == 0 {
                self.plain_write(app)?;
                self.save(run, app).await?;
                self.plain_read(app)?;
                self.load(run, app).await?;
            } else {
                self.save(run, app).await?;
                self.plain_write(app)?;
                self.load(run, app).await?;
                self.plain_read(app)?;
            }
            self.incremental(run, app).await?;
            bar.add(self.size * 4);
            let remove = |path: &Path, error| Error::from_io("remove", error).at(path.display());
            std::fs::remove_file(&self.plain).map_err(|error| remove(&self.plain, error))?;
            std::fs::remove_dir_all(&self.root).map_err(|error| remove(&self.root, error))?;
        }
        bar.finish();
        Ok(())
    }

    fn shape(&self) -> Shape {
        Shape {
            file_bytes: self.size,
            block_bytes: BLOCK_BYTES,
            depth: DEPTH,
            order: Order::Sequential,
        }
    }

    fn plain_write(&mut self, app: &App) -> Result<()> {
        let shape = self.shape();
        let sample = tokio::task::block_in_place(|| raw::write(&self.plain, &shape, app.cancel()))?;
        self.samples.write.push(sample);
        Ok(())
    }

    fn plain_read(&mut self, app: &App) -> Result<()> {
        let shape = self.shape();
        let sample = tokio::task::block_in_place(|| raw::read(&self.plain, &shape, app.cancel()))?;
        self.samples.read.push(sample);
        Ok(())
    }

    fn options(&self, step: u64) -> SaveOptions {
        SaveOptions {
            compress: self.compress,
            seal: self.keys.clone(),
            ..SaveOptions::new(step, Attempt::draw(&self.context), 1)
        }
    }

    async fn save(&mut self, run: u32, app: &App) -> Result<()> {
        let options = self.options(u64::from(run) * 2);
        let items = items(&self.staged);
        let meter = Meter::start();
        let (written, ledger) = app
            .unless_cancelled(save(&self.store, &self.context, options, items))
            .await?;
        self.samples.save.push(meter.stop(self.size));
        self.saved_bytes = written;
        self.save_ledger.merge(&ledger);
        Ok(())
    }

    /// With one tensor in twenty changed since the save before.
    async fn incremental(&mut self, run: u32, app: &App) -> Result<()> {
        for (number, buf) in self.staged.iter_mut().enumerate().step_by(CHANGED_ONE_IN) {
            let mut changed = AlignedBuf::alloc(buf.len(), Pages::default())?;
            let seed = Seed(u64::from(run) << 32 | number as u64 | 1 << 63);
            fill(&mut changed, seed, self.compress);
            *buf = changed.freeze();
        }
        let options = SaveOptions {
            base_step: Some(u64::from(run) * 2),
            ..self.options(u64::from(run) * 2 + 1)
        };
        let items = items(&self.staged);
        let meter = Meter::start();
        let written = app
            .unless_cancelled(save(&self.store, &self.context, options, items))
            .await?
            .0;
        self.samples.incremental.push(meter.stop(self.size));
        self.incremental_bytes = written;
        Ok(())
    }

    async fn load(&mut self, run: u32, app: &App) -> Result<()> {
        let wants = std::mem::take(&mut self.targets).into_iter().enumerate();
        let wants = wants.map(|(number, memory)| {
            let spec = spec();
            Want {
                name: name(number),
                offsets: spec.offsets,
                lengths: spec.lengths,
                memory,
            }
        });
        let wants = wants.collect();
        let meter = Meter::start();
        let work = async {
            let step = u64::from(run) * 2;
            let checkpoint = Checkpoint::open(Arc::clone(&self.store), &self.context, step).await?;
            checkpoint.with_keys(self.keys.clone()).load(wants).await
        };
        let loaded = app.unless_cancelled(work).await?;
        self.samples.load.push(meter.stop(self.size));
        self.load_ledger.merge(&loaded.ledger);
        self.targets = loaded.memory;
        Ok(())
    }

    fn report(&self, dir: String, runs: u32) -> Report {
        let mut rows = Vec::new();
        let mut add = |name, samples: &[Sample], plain: &[Sample]| {
            let plain = Median::of(plain).map(|plain| plain.bytes_per_s);
            if let Some(median) = Median::of(samples) {
                let share = plain
                    .filter(|plain| *plain > 0.0)
                    .map(|plain| median.bytes_per_s / plain);
                rows.push(Row { name, median, share });
            }
        };
        let samples = &self.samples;
        add("plain direct write + fsync", &samples.write, &[]);
        add("save", &samples.save, &samples.write);
        add(
            "incremental save, 5 % changed",
            &samples.incremental,
            &samples.write,
        );
        add("plain direct read", &samples.read, &[]);
        add("verified load", &samples.load, &samples.read);
        Report {
            dir,
            size: self.size,
            runs,
            rows,
            compress: self.compress.to_string(),
            sealed: !self.keys.is_empty(),
            saved_bytes: self.saved_bytes,
            incremental_bytes: self.incremental_bytes,
            memory_peak_bytes: memory_peak_bytes(),
            save_ledger: self.save_ledger.clone(),
            load_ledger: self.load_ledger.clone(),
        }
    }
}

/// Noise, or, where it is to be compressed, numbers as the weights of a model have: normally distributed.
fn fill(buf: &mut [u8], seed: Seed, compress: Compress) {
    seed.rng().fill(buf);
    if compress == Compress::Off {
        return;
    }
    let weights = NORMAL.get_or_init(normal);
    let (elements, _) = buf.as_chunks_mut::<2>();
    for element in elements {
        let at = usize::from(u16::from_le_bytes(*element));
        *element = weights.get(at).copied().unwrap_or_default();
    }
}

/// One of these for each number of 16 bits: bf16 numbers, their frequencies those of a normal distribution.
static NORMAL: OnceLock<Vec<[u8; 2]>> = OnceLock::new();

fn normal() -> Vec<[u8; 2]> {
    let mut rng = Seed(0).rng();
    let mut uniform = || (rng.below(1 << 24) as f32 + 0.5) / (1 << 24) as f32;
    let mut draw = || {
        let normal = (-2.0 * uniform().ln()).sqrt() * (std::f32::consts::TAU * uniform()).cos();
        let [_, _, low, high] = (normal * 0.02).to_le_bytes();
        [low, high]
    };
    (0..=u16::MAX).map(|_| draw()).collect()
}

fn name(number: usize) -> String {
    format!("model.layers.{number:04}.weight")
}

fn spec() -> SliceSpec {
    SliceSpec::whole(Dtype::Bf16, &[4096, TENSOR_BYTES / 2 / 4096])
}

fn items(staged: &[Buf]) -> Vec<Item> {
    let items = staged.iter().enumerate().map(|(number, buf)| Item {
        name: name(number),
        data: ItemData::Slice(spec(), buf.clone()),
    });
    items.collect()
}

/// Save and commit; gives the bytes written.
async fn save(
    store: &Arc<dyn Store>,
    context: &Context,
    options: SaveOptions,
    items: Vec<Item>,
) -> Result<(u64, Ledger)> {
    let save = Save::begin(Arc::clone(store), context, options).await?;
    let saved = save.rank(0, items).await?;
    save.commit(Value::Dict(Vec::new()), Duration::ZERO).await?;
    Ok((saved.written_bytes, saved.ledger))
}

fn print(report: &Report, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    printer.say(format_args!(
        "{}: state of {}, median of {}",
        report.dir,
        ByteSize(report.size),
        report.runs
    ));
    let mut table = Table::new(&[
        "",
        ">rate",
        ">slowest",
        ">fastest",
        ">share of plain",
        ">CPU s/GB",
    ]);
    for row in &report.rows {
        table.row([
            row.name.to_owned(),
            row.median.rate().to_string(),
            Rate(row.median.bytes_per_s_min).to_string(),
            Rate(row.median.bytes_per_s_max).to_string(),
            row.share.map(|share| format!("{share:.2}")).unwrap_or_default(),
            format!("{:.3}", row.median.cpu_s_per_gb),
        ]);
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    if report.saved_bytes < report.size {
        let ratio = report.size as f64 / report.saved_bytes.max(1) as f64;
        printer.data(format_args!(
            "save wrote {}: {ratio:.2} times smaller by {}",
            ByteSize(report.saved_bytes),
            report.compress
        ))?;
    }
    printer.data(format_args!(
        "incremental save wrote {} of {}; memory: {} at most, the state and its copy included",
        ByteSize(report.incremental_bytes),
        ByteSize(report.size),
        ByteSize(report.memory_peak_bytes)
    ))?;
    printer.detail(&report.save_ledger);
    printer.detail(&report.load_ledger);
    Ok(())
}
