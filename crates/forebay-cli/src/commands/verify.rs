//! `forebay verify`: a data set against its manifest. Damage goes to stdout, a line each; its presence is "no".

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ByteSize, Clock, Ledger, Rate, Result, SystemClock};
use forebay_data::Dataset;
use forebay_data::dataset::{Check, OpenOptions, Progress, UseManifest};
use forebay_data::verify::{Damage, VerifyReport, verify};
use forebay_store::Context;
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::VerifyArgs;
use crate::data::{count, find, manifest_at};
use crate::printer::{Printed, visible};
use crate::progress::DataBar;

/// `--json`: what was found.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    shards: u64,
    shards_whole: u64,
    samples_whole: u64,
    bytes: u64,
    damages_count: u64,
    damages: &'a [Damage],
    /// Damages of samples and chunks beyond those of each shard that are named.
    damages_unnamed: u64,
    /// Whether shards that the manifest does not know were looked for.
    unlisted_sought: bool,
    seconds: f64,
    ledger: &'a Ledger,
}

/// Verify.
pub(super) async fn run(args: &VerifyArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let dataset = app.unless_cancelled(open(args, &context)).await?;
    let bar = DataBar::new(app.printer(), "verifying");
    let begun = SystemClock.now();
    let progress = Arc::clone(&bar) as Arc<dyn Progress>;
    let mut printed: Printed = Ok(());
    let tell = |damage: &Damage| {
        bar.bar().suspend(|printer| {
            if !printer.is_json() && printed.is_ok() {
                printed = printer.data(line(damage));
            }
        });
    };
    let report = app.unless_cancelled(verify(&dataset, &progress, tell)).await;
    bar.bar().finish();
    let report = report?;
    printed?;
    conclude(&report, SystemClock.now().saturating_sub(begun), app)
}

async fn open(args: &VerifyArgs, context: &Context) -> Result<Dataset> {
    let place = find(&args.url, context).await?;
    let options = OpenOptions {
        shards: place.shards,
        manifest: UseManifest::Always,
        manifest_at: manifest_at(args.manifest.as_deref(), context).await?,
        // A missing shard is one damage among others, and stops nothing.
        check: Check::WhenRead,
        ..OpenOptions::default()
    };
    Dataset::open(place.store, context, &options).await
}

/// One damage, for people.
fn line(damage: &Damage) -> String {
    let key = damage
        .key
        .as_ref()
        .map_or(String::new(), |key| format!(" (key {})", visible(key)));
    format!(
        "{}: {}: {}{key}",
        visible(damage.file.as_ref().unwrap_or(&damage.shard).as_str()),
        damage.kind.name(),
        damage.message
    )
}

fn conclude(report: &VerifyReport, time: Duration, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&Summary {
            shards: report.shards,
            shards_whole: report.shards_whole,
            samples_whole: report.samples_whole,
            bytes: report.bytes,
            damages_count: report.damages_count,
            damages: &report.damages,
            damages_unnamed: report.damages_unnamed(),
            unlisted_sought: report.unlisted_sought,
            seconds: time.as_secs_f64(),
            ledger: &report.ledger,
        })?;
    } else {
        say(report, time, app);
    }
    Ok(if report.is_whole() {
        Exit::Success
    } else {
        Exit::No
    })
}

fn say(report: &VerifyReport, time: Duration, app: &App) {
    let printer = app.printer();
    printer.say(format_args!(
        "{} of {} whole, {} with their checksum, {} in {:.1} s ({})",
        report.shards_whole,
        count(report.shards, "shard"),
        count(report.samples_whole, "sample"),
        ByteSize(report.bytes),
        time.as_secs_f64(),
        Rate::of(report.bytes, time)
    ));
    if !report.is_whole() {
        let unnamed = match report.damages_unnamed() {
            0 => String::new(),
            more => format!(", {more} more than are named"),
        };
        printer.say(format_args!(
            "{} found{unnamed}",
            count(report.damages_count, "damage")
        ));
    }
    printer.detail(&report.ledger);
}
