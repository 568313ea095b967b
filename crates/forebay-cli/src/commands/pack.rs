//! `forebay pack`: a data set, written anew in another format.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ByteSize, Clock, Error, ErrorKind, Rate, Result, SystemClock};
use forebay_data::dataset::{OpenOptions, Progress};
use forebay_data::format::mds::HashName;
use forebay_data::manifest::{SUMS_NAME, Sums};
use forebay_data::pack::{PackFormat, PackReport, PackSpec, pack};
use forebay_store::{Context, open};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::PackArgs;
use crate::data::{count, dtype_of, find, manifest_at};
use crate::printer::{Printed, visible};
use crate::progress::DataBar;
use crate::target::Target;

/// `--json`: what was written.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    target: String,
    #[serde(flatten)]
    report: &'a PackReport,
    seconds: f64,
}

/// Pack.
pub(super) async fn run(args: &PackArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let indexing = DataBar::new(app.printer(), "indexing");
    let packing = DataBar::new(app.printer(), "packing");
    let begun = SystemClock.now();
    let spec = spec(args, Arc::clone(&packing) as Arc<dyn Progress>)?;
    let progress = Arc::clone(&indexing) as Arc<dyn Progress>;
    let packed = app.unless_cancelled(work(args, &spec, &context, progress)).await;
    indexing.bar().finish();
    packing.bar().finish();
    let (report, target) = packed.map_err(|error| hint_resume(error, args))?;
    conclude(&report, target, SystemClock.now().saturating_sub(begun), app)
}

async fn work(
    args: &PackArgs,
    spec: &PackSpec,
    context: &Context,
    progress: Arc<dyn Progress>,
) -> Result<(PackReport, String)> {
    let place = find(&args.source, context).await?;
    let target = Target::parse(&args.target)?.location;
    let store = open(&target, context).await?;
    let options = OpenOptions {
        format: args.format.spec()?,
        progress,
        ..OpenOptions::default()
    };
    let options = options.with_manifest_at(manifest_at(args.manifest.as_deref(), context).await?);
    let report = pack(place, store, context, &options, spec).await?;
    Ok((report, target.to_string()))
}

fn spec(args: &PackArgs, progress: Arc<dyn Progress>) -> Result<PackSpec> {
    let to = PackFormat::parse(&args.to).ok_or_else(|| {
        let message = format!("format {} cannot be written", args.to.escape_debug());
        Error::new(ErrorKind::InvalidInput, "arguments", message)
    })?;
    let usual = PackSpec::new(to);
    Ok(PackSpec {
        shard_bytes: args.shard_size.0,
        samples_per_shard: args.samples_per_shard,
        compression: args.compression.clone(),
        hashes: hashes(&args.hashes)?,
        shuffle: args.shuffle.then_some(args.seed),
        filter: args.filter.clone(),
        limit: args.limit,
        fields: args.fields.clone(),
        drop_keys: args.drop_keys,
        dtype: args.token_dtype.as_deref().map(dtype_of).transpose()?,
        threads: args.threads.map_or(usual.threads, |threads| threads as usize),
        memory_bytes_max: args.memory.0,
        overwrite: args.overwrite,
        progress,
        ..usual
    })
}

/// Checksums by name.
fn hashes(names: &[String]) -> Result<Vec<HashName>> {
    let found = names.iter().map(|name| {
        HashName::find(name).ok_or_else(|| {
            let known: Vec<&str> = HashName::ALL.iter().map(|known| known.name()).collect();
            let message = format!("the checksum '{}' is not known", name.escape_debug());
            Error::new(ErrorKind::InvalidInput, "arguments", message)
                .with_field("hashes")
                .with_hint(format!("there are {}", known.join(", ")))
        })
    });
    found.collect()
}

/// What was written stays: the same command goes on from there.
fn hint_resume(error: Error, args: &PackArgs) -> Error {
    if error.kind() == ErrorKind::Cancelled && error.hint().is_none() {
        let target = args.target.to_string_lossy();
        return error.with_hint(format!(
            "the same command goes on where this one stopped; {} is not complete yet",
            visible(&target)
        ));
    }
    error
}

fn conclude(report: &PackReport, target: String, time: Duration, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&Summary {
            target,
            report,
            seconds: time.as_secs_f64(),
        })?;
        return Ok(Exit::Success);
    }
    let kept = match report.shards_kept {
        0 => String::new(),
        kept => format!(", {kept} of them from an earlier run"),
    };
    let left_out = match report.files_left_out {
        0 => String::new(),
        files => format!(", {} left out", count(files, "file")),
    };
    printer.say(format_args!(
        "packed {} into {} of format {}{kept}{left_out}; {} in {:.1} s ({})",
        count(report.samples, "sample"),
        count(report.shards, "shard"),
        report.format.name,
        ByteSize(report.bytes_written),
        time.as_secs_f64(),
        Rate::of(report.bytes_written, time)
    ));
    printer.say(format_args!("target: {}", visible(&target)));
    if report.sums == Sums::Theirs.name() {
        printer.say(format_args!(
            "{SUMS_NAME}: left as it was, it does not list these shards"
        ));
    }
    printer.detail(&report.read);
    printer.detail(&report.written);
    Ok(Exit::Success)
}
