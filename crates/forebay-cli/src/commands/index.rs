//! `forebay index`: one pass over a data set, and its manifest.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ByteSize, Clock, Key, Ledger, Rate, Result, SystemClock};
use forebay_data::Dataset;
use forebay_data::dataset::{OpenOptions, Progress, Save, UseManifest};
use forebay_data::manifest::{FormatSpec, MANIFEST_NAME, Sums, sums_key};
use forebay_store::Context;
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::IndexArgs;
use crate::data::{count, find, hex, manifest_at};
use crate::printer::Printed;
use crate::progress::DataBar;

/// `--json`: what was written.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    manifest: String,
    fingerprint: String,
    format: &'a FormatSpec,
    shards: usize,
    samples: u64,
    /// Files of a plain folder that are part of no sample.
    files_left_out: u64,
    stored_bytes: u64,
    /// What became of `_SHA256SUMS`.
    sums: &'static str,
    seconds: f64,
    ledger: &'a Ledger,
}

/// Index.
pub(super) async fn run(args: &IndexArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let bar = DataBar::new(app.printer(), "indexing");
    let begun = SystemClock.now();
    let progress = Arc::clone(&bar) as Arc<dyn Progress>;
    let indexed = app.unless_cancelled(index(args, &context, progress)).await;
    bar.bar().finish();
    let (dataset, written) = indexed?;
    conclude(&dataset, written, SystemClock.now().saturating_sub(begun), app)
}

/// What was written.
struct Written {
    /// The URL of the manifest.
    manifest: String,
    /// The name of the sums beside it.
    sums: String,
}

async fn index(
    args: &IndexArgs,
    context: &Context,
    progress: Arc<dyn Progress>,
) -> Result<(Dataset, Written)> {
    let place = find(&args.url, context).await?;
    let manifest_at = manifest_at(args.output.as_deref(), context).await?;
    let (to, key) = match &manifest_at {
        Some((store, key)) => (store, key.clone()),
        None => (&place.store, Key::parse(MANIFEST_NAME)?),
    };
    let written = Written {
        manifest: to.location().join(&key).to_string(),
        sums: sums_key(&key)?.file_name().to_owned(),
    };
    let options = OpenOptions {
        format: args.format.spec()?,
        shards: place.shards,
        manifest: UseManifest::Never,
        manifest_at,
        save: if args.force { Save::Replace } else { Save::IfAbsent },
        progress,
        ..OpenOptions::default()
    };
    let dataset = Dataset::open(place.store, context, &options).await?;
    Ok((dataset, written))
}

fn conclude(dataset: &Dataset, written: Written, time: Duration, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    let shards = dataset.shards();
    let stored_bytes = shards.iter().map(|shard| shard.stored_bytes).sum();
    if printer.is_json() {
        printer.json(&Summary {
            manifest: written.manifest,
            fingerprint: hex(&dataset.manifest().fingerprint()),
            format: dataset.manifest().spec(),
            shards: shards.len(),
            samples: dataset.samples(),
            files_left_out: dataset.files_left_out(),
            stored_bytes,
            sums: dataset.manifest().sums().name(),
            seconds: time.as_secs_f64(),
            ledger: dataset.ledger(),
        })?;
        return Ok(Exit::Success);
    }
    printer.say(format_args!(
        "indexed {} of format {} with {}, {} in {:.1} s ({})",
        count(shards.len() as u64, "shard"),
        dataset.manifest().spec().name,
        count(dataset.samples(), "sample"),
        ByteSize(stored_bytes),
        time.as_secs_f64(),
        Rate::of(stored_bytes, time)
    ));
    printer.say(format_args!(
        "manifest: {}",
        crate::printer::visible(&written.manifest)
    ));
    let sums = crate::printer::visible(&written.sums);
    match dataset.manifest().sums() {
        Sums::Theirs => printer.say(format_args!(
            "{sums}: left as it was, it does not list these shards; remove it and add --force to have it written"
        )),
        Sums::Missing(error) => printer.say(format_args!("{sums}: not written, {error}")),
        Sums::Unasked | Sums::Written => {}
    }
    printer.detail(dataset.ledger());
    Ok(Exit::Success)
}
