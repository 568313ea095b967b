//! `forebay bench disk`: what this disk can do, and how close Forebay gets.
//!
//! Three tests (sequential read, durable sequential write, random read), each by up to three means: a plain loop of blocking calls, fio where
//! it is installed, and Forebay. Rounds are interleaved and their order turns, so that a disk that warms up or throttles favours nobody; the
//! median counts. The limit is the better of the means that are not Forebay.

use std::path::Path;

use forebay_core::{ByteSize, Error, ErrorKind, Ledger, Result, Seed};
use forebay_io::{Disk, EngineReport, memory_peak_bytes};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::BenchDiskArgs;
use crate::bench::fio::{self, Direction};
use crate::bench::meter::{Median, Sample};
use crate::bench::ours;
use crate::bench::raw::{self, Order, Shape};
use crate::bench::scratch::Scratch;
use crate::printer::Printed;
use crate::progress::Bar;
use crate::table::Table;
use crate::target::Target;

/// Blocks of the sequential tests, and how many are in flight: past the knee of every disk measured.
const SEQUENTIAL_BLOCK: u64 = 1 << 20;
const SEQUENTIAL_DEPTH: u64 = 16;

/// Blocks of the random test, and how many are in flight.
const RANDOM_BLOCK: u64 = 128 << 10;
const RANDOM_DEPTH: u64 = 32;

/// Bytes of one random round: thousands of requests are enough for a stable rate.
const RANDOM_BYTES_MAX: u64 = 1 << 30;

/// Sizes are rounded up to this, so that every mean moves the same bytes.
const SIZE_STEP: u64 = 8 << 20;

/// By which means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    Raw,
    Fio,
    Forebay,
}

/// One test with what was measured.
#[derive(Debug)]
struct Test {
    name: &'static str,
    direction: Direction,
    shape: Shape,
    raw: Vec<Sample>,
    fio: Vec<Sample>,
    forebay: Vec<Sample>,
}

/// `--json`.
#[derive(Debug, Serialize)]
struct Report {
    dir: String,
    size: u64,
    runs: u32,
    direct: bool,
    fio: Option<String>,
    engine: EngineReport,
    tests: Vec<TestReport>,
    /// Most memory the process ever had.
    memory_peak_bytes: u64,
    /// Most buffer memory that was leased at once.
    buffer_peak_bytes: u64,
    ledger: Ledger,
}

/// One test in `--json`.
#[derive(Debug, Serialize)]
struct TestReport {
    name: &'static str,
    forebay: Median,
    raw: Median,
    fio: Option<Median>,
    limit_bytes_per_s: f64,
    /// Forebay's rate over the limit.
    share: f64,
}

/// Measure.
pub(super) async fn run(args: &BenchDiskArgs, app: &App) -> Printed<Exit> {
    let target = Target::parse(&args.dir)?;
    let Some(dir) = target.location.to_path() else {
        let message = "a local directory is needed";
        return Err(Error::new(ErrorKind::InvalidInput, "bench", message)
            .at(&target.location)
            .with_hint("forebay bench store measures object stores")
            .into());
    };
    let size = args.size.0.max(1).next_multiple_of(SIZE_STEP);
    let context = app.context()?;
    let scratch = Scratch::new(&dir, size.saturating_mul(2))?;
    let mut tests = tests(size);
    let fio = fio::version();
    let measured = measure(
        &mut tests,
        args.runs,
        fio.is_some(),
        context.disk(),
        &scratch,
        app,
    );
    let (ledger, is_direct) = app.unless_cancelled(measured).await?;
    drop(scratch);
    let reports: Option<Vec<TestReport>> = tests.iter().map(Test::report).collect();
    let report = Report {
        dir: dir.display().to_string(),
        size,
        runs: args.runs,
        direct: is_direct,
        fio,
        engine: context.disk().report(),
        tests: reports.unwrap_or_default(),
        memory_peak_bytes: memory_peak_bytes(),
        buffer_peak_bytes: context.pool().stats().leased_bytes_peak,
        ledger,
    };
    print(&report, app)?;
    Ok(Exit::Success)
}

fn tests(size: u64) -> Vec<Test> {
    let sequential = Shape {
        file_bytes: size,
        block_bytes: SEQUENTIAL_BLOCK,
        depth: SEQUENTIAL_DEPTH,
        order: Order::Sequential,
    };
    let random = Shape {
        block_bytes: RANDOM_BLOCK,
        depth: RANDOM_DEPTH,
        order: Order::Random {
            blocks: size.min(RANDOM_BYTES_MAX) / RANDOM_BLOCK,
            seed: Seed(0),
        },
        ..sequential
    };
    let test = |name, direction, shape| Test {
        name,
        direction,
        shape,
        raw: Vec::new(),
        fio: Vec::new(),
        forebay: Vec::new(),
    };
    vec![
        test("sequential read", Direction::Read, sequential),
        test("durable write", Direction::Write, sequential),
        test("random read", Direction::Read, random),
    ]
}

/// All rounds of all tests; gives Forebay's ledger, and whether the file system offers direct I/O.
async fn measure(
    tests: &mut [Test],
    runs: u32,
    has_fio: bool,
    disk: &Disk,
    scratch: &Scratch,
    app: &App,
) -> Result<(Ledger, bool)> {
    let means: &[Means] = if has_fio {
        &[Means::Raw, Means::Fio, Means::Forebay]
    } else {
        &[Means::Raw, Means::Forebay]
    };
    let round: u64 = tests.iter().map(|test| test.shape.bytes()).sum::<u64>() * means.len() as u64;
    let bar = Bar::new(
        app.printer(),
        "measuring",
        Some(round * u64::from(runs) + tests[0].shape.file_bytes),
    );
    let data = scratch.path().join("data");
    let sequential = tests[0].shape;
    tokio::task::block_in_place(|| raw::write(&data, &sequential, app.cancel()))?;
    bar.add(sequential.file_bytes);
    let is_direct = raw::is_direct(&data);
    let mut ledger = Ledger::default();
    for run in 0..runs {
        for test in &mut *tests {
            // Everybody reads other random blocks in each round, and the same ones within a round.
            if let Order::Random { seed, .. } = &mut test.shape.order {
                *seed = Seed(run.into());
            }
            for turn in 0..means.len() {
                let means = means[(turn + run as usize) % means.len()];
                let path = match test.direction {
                    Direction::Read => data.clone(),
                    Direction::Write => scratch.path().join("written"),
                };
                let (sample, account) = test.run(means, &path, is_direct, disk, app).await?;
                ledger.merge(&account);
                test.samples(means).push(sample);
                if test.direction == Direction::Write {
                    std::fs::remove_file(&path)
                        .map_err(|error| Error::from_io("remove", error).at(path.display()))?;
                }
                bar.add(test.shape.bytes());
            }
        }
    }
    bar.finish();
    Ok((ledger, is_direct))
}

impl Test {
    async fn run(
        &self,
        means: Means,
        path: &Path,
        is_direct: bool,
        disk: &Disk,
        app: &App,
    ) -> Result<(Sample, Ledger)> {
        let stop = app.cancel();
        let nothing = Ledger::default();
        match (means, self.direction) {
            (Means::Raw, Direction::Read) => {
                tokio::task::block_in_place(|| raw::read(path, &self.shape, stop))
                    .map(|sample| (sample, nothing))
            }
            (Means::Raw, Direction::Write) => {
                tokio::task::block_in_place(|| raw::write(path, &self.shape, stop))
                    .map(|sample| (sample, nothing))
            }
            (Means::Fio, direction) => {
                let run = || fio::run(path, &self.shape, direction, is_direct);
                tokio::task::block_in_place(run).map(|sample| (sample, nothing))
            }
            (Means::Forebay, Direction::Read) => ours::read(disk, path, &self.shape).await,
            (Means::Forebay, Direction::Write) => ours::write(disk, path, self.shape.file_bytes).await,
        }
    }

    fn samples(&mut self, means: Means) -> &mut Vec<Sample> {
        match means {
            Means::Raw => &mut self.raw,
            Means::Fio => &mut self.fio,
            Means::Forebay => &mut self.forebay,
        }
    }

    fn report(&self) -> Option<TestReport> {
        let (forebay, raw, fio) = (
            Median::of(&self.forebay)?,
            Median::of(&self.raw)?,
            Median::of(&self.fio),
        );
        let limit = fio.map_or(raw.bytes_per_s, |fio| fio.bytes_per_s.max(raw.bytes_per_s));
        Some(TestReport {
            name: self.name,
            forebay,
            raw,
            fio,
            limit_bytes_per_s: limit,
            share: if limit > 0.0 {
                forebay.bytes_per_s / limit
            } else {
                0.0
            },
        })
    }
}

fn print(report: &Report, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    printer.say(format_args!(
        "{}: {} file, median of {}, {}",
        report.dir,
        ByteSize(report.size),
        report.runs,
        if report.direct {
            "direct I/O"
        } else {
            "through the page cache: no direct I/O here"
        }
    ));
    let mut table = Table::new(&[
        "test",
        "by",
        ">rate",
        ">slowest",
        ">fastest",
        ">share of limit",
        ">CPU s/GB",
    ]);
    for test in &report.tests {
        let mut row = |name: &str, by: &str, median: &Median, share: String| {
            table.row([
                name.to_owned(),
                by.to_owned(),
                median.rate().to_string(),
                forebay_core::Rate(median.bytes_per_s_min).to_string(),
                forebay_core::Rate(median.bytes_per_s_max).to_string(),
                share,
                format!("{:.3}", median.cpu_s_per_gb),
            ]);
        };
        row(test.name, "forebay", &test.forebay, format!("{:.2}", test.share));
        row("", "threads", &test.raw, String::new());
        if let Some(fio) = &test.fio {
            row("", "fio", fio, String::new());
        }
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    printer.data(format_args!(
        "memory: {} at most, of it {} buffers",
        ByteSize(report.memory_peak_bytes),
        ByteSize(report.buffer_peak_bytes)
    ))?;
    printer.data("")?;
    for line in report.ledger.to_string().lines() {
        printer.data(line)?;
    }
    Ok(())
}
