//! `forebay load`: tensors from files into memory, as often as wanted, held against a plain direct read of the same files.
//!
//! ```text
//! URL... -> [open]: Source (headers checked; checkpoints shown as files) -> [plain read of the files, load] x repeat -> table or --json, and the ledger
//! ```

mod device;
mod open;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ByteSize, DataPath, Error, ErrorKind, Ledger, PathPolicy, Rate, Result};
use forebay_store::Context;
use forebay_weights::loader::Progress;
use forebay_weights::source::write_hashes;
use forebay_weights::{DeviceReport, LoadOptions, LoadReport, Selection, Shard, Source};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::LoadArgs;
use crate::bench::meter::{Median, Meter, Sample};
use crate::bench::raw;
use crate::data::count;
use crate::printer::{Printed, visible};
use crate::progress::LoadBar;
use crate::table::Table;

/// `--json`: everything.
#[derive(Debug, Serialize)]
struct Report {
    files: u64,
    files_hot: u64,
    tensors: u64,
    tensor_bytes: u64,
    read_bytes: u64,
    memory_bytes: u64,
    open_seconds: f64,
    runs: Vec<Run>,
    load: Option<Median>,
    /// Plain direct reads of the same files; null where they make no sense.
    limit: Option<Median>,
    share: Option<f64>,
    /// Plain copies of pinned memory to the GPU; null where none is loaded to.
    bus: Option<Median>,
    device: Option<DeviceReport>,
    memory_peak_bytes: u64,
    /// Tensors of checkpoints that cannot be loaded so.
    left_out: Vec<String>,
    /// Newer checkpoints that cannot be read, and why.
    damaged: Vec<String>,
    ledger: Ledger,
}

#[derive(Debug, Serialize)]
struct Run {
    seconds: f64,
    first_piece_seconds: f64,
    bytes_per_s: f64,
    cpu_s_per_gb: f64,
}

/// Load.
pub(super) async fn run(args: &LoadArgs, app: &App) -> Printed<Exit> {
    let options = options_of(args)?;
    let target = device::Target::parse(args)?;
    let context = app.context()?;
    let meter = Meter::start();
    let opened = app.unless_cancelled(open::open(args, app, &context)).await?;
    let source = &opened.source;
    let open_time = meter.stop(0).time;
    if args.list {
        return list(source, &options.selection, app);
    }
    if args.write_hashes {
        return hash_all(source, app, &context).await;
    }
    let bar = LoadBar::new(app.printer());
    let measured = measure(args, app, source, (&options, &target), &context, &bar).await;
    bar.finish();
    let mut report = report_of(measured?, open_time);
    report.left_out = opened.left_out;
    report.damaged = opened.damaged;
    print(&report, args, app)?;
    Ok(Exit::Success)
}

fn options_of(args: &LoadArgs) -> Result<LoadOptions> {
    let shard = match &args.shard {
        Some(text) => Some(shard_of(text, &args.shard_dim)?),
        None => None,
    };
    Ok(LoadOptions {
        selection: Selection::new(&args.select, shard)?,
        memory_bytes_max: args.memory.map(|size| size.0),
        policy: if args.direct {
            PathPolicy::Require(DataPath::DirectUring)
        } else {
            PathPolicy::Fastest
        },
        progress: None,
    })
}

fn shard_of(text: &str, dims: &[String]) -> Result<Shard> {
    let bad = |message: String, hint: &str| {
        Error::new(ErrorKind::InvalidInput, "arguments", message).with_hint(hint)
    };
    let ranks = text
        .split_once('/')
        .and_then(|(rank, world)| Some((rank.parse().ok()?, world.parse().ok()?)));
    let (rank, world) = ranks.ok_or_else(|| {
        bad(
            format!("--shard '{}' is not R/W", text.escape_debug()),
            "for example --shard 0/8",
        )
    })?;
    let dims = dims
        .iter()
        .map(|text| {
            let parts = text
                .rsplit_once('=')
                .and_then(|(glob, dim)| Some((glob.to_owned(), dim.parse().ok()?)));
            parts.ok_or_else(|| {
                bad(
                    format!("--shard-dim '{}' is not GLOB=DIM", text.escape_debug()),
                    "for example --shard-dim '*.q_proj.weight=0'",
                )
            })
        })
        .collect::<Result<Vec<_>>>()?;
    Shard::new(rank, world, &dims)
}

async fn hash_all(source: &Source, app: &App, context: &Context) -> Printed<Exit> {
    for file in source.files() {
        let key = app.unless_cancelled(write_hashes(file, context)).await?;
        app.printer().data(file.store.location().join(&key))?;
    }
    Ok(Exit::Success)
}

/// `--list --json`: a tensor.
#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [u64],
    offset: u64,
    bytes: u64,
    file: String,
}

fn list(source: &Source, selection: &Selection, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    let mut table = Table::new(&["tensor", "dtype", "shape", ">bytes", "file"]);
    for wanted in source.wanted(selection)? {
        let Some(file) = source.files().get(wanted.file) else {
            continue;
        };
        let Some(info) = file.header.tensors().get(wanted.tensor) else {
            continue;
        };
        let row = Row {
            name: &info.name,
            dtype: info.dtype.name(),
            shape: &info.shape,
            offset: info.span.start(),
            bytes: info.span.len(),
            file: file.location.to_string(),
        };
        if printer.is_json() {
            printer.json(&row)?;
            continue;
        }
        table.row([
            visible(row.name),
            row.dtype.to_owned(),
            format!("{:?}", row.shape),
            row.bytes.to_string(),
            visible(file.key.as_str()),
        ]);
    }
    if !printer.is_json() {
        for line in table.lines() {
            printer.data(line)?;
        }
    }
    Ok(Exit::Success)
}

/// What was measured.
struct Measured {
    report: LoadReport,
    ledger: Ledger,
    loads: Vec<(Sample, f64)>,
    plain: Vec<Sample>,
    device: Option<DeviceReport>,
    /// Plain copies of pinned memory.
    bus: Vec<Sample>,
}

async fn measure(
    args: &LoadArgs,
    app: &App,
    source: &Source,
    (options, target): (&LoadOptions, &device::Target),
    context: &Context,
    bar: &LoadBar,
) -> Result<Measured> {
    let paths: Option<Vec<PathBuf>> = source.files().iter().map(|file| file.path()).collect();
    // What is not on a disk, or is only a part, has no such limit.
    let paths = paths.filter(|_| !args.no_limit && args.select.is_empty() && args.shard.is_none());
    let mut measured = Measured {
        report: LoadReport::default(),
        ledger: source.ledger().clone(),
        loads: Vec::new(),
        plain: Vec::new(),
        device: None,
        bus: Vec::new(),
    };
    for _ in 0..args.repeat {
        let progress = Arc::new(Progress::default());
        let options = LoadOptions {
            progress: Some(Arc::clone(&progress)),
            ..options.clone()
        };
        let meter = Meter::start();
        let load = app.unless_cancelled(target.load(source, &options, context));
        let (loaded, report) = bar.follow(&progress, load).await?;
        let sample = meter.stop(report.read_bytes);
        measured.device = loaded.device();
        drop(loaded);
        measured.ledger.merge(&report.ledger);
        measured.loads.push((sample, report.first_piece_seconds));
        let is_cold = report.files_hot == 0;
        measured.report = report;
        if let Some(paths) = paths.as_ref().filter(|_| is_cold) {
            let stop = app.cancel();
            let plain = tokio::task::block_in_place(|| raw::read_files(paths, stop))?;
            measured.plain.push(plain);
        }
        if !args.no_limit {
            measured
                .bus
                .extend(tokio::task::block_in_place(|| target.bus_limit())?);
        }
    }
    Ok(measured)
}

fn report_of(measured: Measured, open_time: Duration) -> Report {
    let Measured {
        report,
        ledger,
        loads,
        plain,
        device,
        bus,
    } = measured;
    let samples: Vec<Sample> = loads.iter().map(|(sample, _)| *sample).collect();
    let (load, limit) = (Median::of(&samples), Median::of(&plain));
    let share = match (&load, &limit) {
        (Some(load), Some(limit)) if limit.bytes_per_s > 0.0 => Some(load.bytes_per_s / limit.bytes_per_s),
        _ => None,
    };
    Report {
        files: report.files,
        files_hot: report.files_hot,
        tensors: report.tensors,
        tensor_bytes: report.tensor_bytes,
        read_bytes: report.read_bytes,
        memory_bytes: report.memory_bytes,
        open_seconds: open_time.as_secs_f64(),
        runs: loads
            .iter()
            .map(|(sample, first)| Run {
                seconds: sample.time.as_secs_f64(),
                first_piece_seconds: *first,
                bytes_per_s: sample.rate().0,
                cpu_s_per_gb: sample.cpu_s_per_gb(),
            })
            .collect(),
        load,
        limit,
        share,
        bus: Median::of(&bus),
        device,
        memory_peak_bytes: forebay_io::memory_peak_bytes(),
        left_out: Vec::new(),
        damaged: Vec::new(),
        ledger,
    }
}

fn print(report: &Report, args: &LoadArgs, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    printer.say(format_args!(
        "{} of {} from {}, median of {}{}",
        count(report.tensors, "tensor"),
        ByteSize(report.tensor_bytes),
        count(report.files, "file"),
        args.repeat,
        if report.files_hot > 0 {
            ", from the page cache"
        } else {
            ""
        }
    ));
    let mut table = Table::new(&[
        "by",
        ">rate",
        ">slowest",
        ">fastest",
        ">share of limit",
        ">CPU s/GB",
    ]);
    let mut row = |by: &str, median: &Median, share: Option<f64>| {
        table.row([
            by.to_owned(),
            median.rate().to_string(),
            Rate(median.bytes_per_s_min).to_string(),
            Rate(median.bytes_per_s_max).to_string(),
            share.map_or(String::new(), |share| format!("{share:.2}")),
            format!("{:.3}", median.cpu_s_per_gb),
        ]);
    };
    if let Some(load) = &report.load {
        row("forebay", load, report.share);
    }
    if let Some(limit) = &report.limit {
        row("plain direct read", limit, None);
    }
    if let Some(bus) = &report.bus {
        row("pinned copy", bus, None);
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    printer.data(format_args!(
        "memory: {} for tensors, {} at most",
        ByteSize(report.memory_bytes),
        ByteSize(report.memory_peak_bytes)
    ))?;
    if let Some(device) = &report.device {
        device::print(device, app)?;
    }
    printer.data("")?;
    for line in report.ledger.to_string().lines() {
        printer.data(line)?;
    }
    Ok(())
}
