//! `forebay ckpt verify`: damage goes to stdout, a line each; its presence is "no".

use std::time::Duration;

use forebay_ckpt::{Checkpoint, Damage, Verified, list, verify};
use forebay_core::{ByteSize, Clock, Ledger, Rate, Span, SystemClock};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::{CkptVerifyArgs, keys};
use crate::data::count;
use crate::printer::{ErrorBody, Printed, visible};
use crate::progress::Bar;

/// One line of `--json`: a step.
#[derive(Debug, Serialize)]
struct Row<'a> {
    step: u64,
    whole: bool,
    parts: u64,
    entries: u64,
    chunks: u64,
    bytes: u64,
    damages: &'a [Damage],
    damages_count: u64,
    seconds: f64,
    ledger: &'a Ledger,
}

/// A step whose manifest cannot be read.
#[derive(Debug, Serialize)]
struct Unreadable<'a> {
    step: u64,
    whole: bool,
    error: ErrorBody<'a>,
}

/// Verify.
pub(super) async fn run(args: &CkptVerifyArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let printer = app.printer();
    let (keys, trusted) = (keys(&args.key, &context)?, args.trust.trusted()?);
    if !args.all {
        let mut checkpoint = super::open(&args.url, args.step, &context, printer).await?;
        if let Some(trusted) = &trusted {
            checkpoint = checkpoint.require_signature(trusted)?;
        }
        return verify_one(&checkpoint.with_keys(keys), app).await;
    }
    let store = super::store(&args.url, &context).await?;
    let mut exit = Exit::Success;
    for listed in list(std::sync::Arc::clone(&store), &context).await? {
        let checked = listed.manifest.and_then(|manifest| match &trusted {
            Some(trusted) => manifest.check_signature(trusted).map(drop),
            None => Ok(()),
        });
        if let Err(error) = &checked {
            exit = Exit::No;
            if printer.is_json() {
                printer.json(&Unreadable {
                    step: listed.step,
                    whole: false,
                    error: ErrorBody::of(error),
                })?;
            } else {
                printer.data(format_args!(
                    "step {}: {}",
                    listed.step,
                    visible(&error.to_string())
                ))?;
            }
            continue;
        }
        let checkpoint = Checkpoint::open(std::sync::Arc::clone(&store), &context, listed.step).await?;
        if verify_one(&checkpoint.with_keys(keys.clone()), app).await? == Exit::No {
            exit = Exit::No;
        }
    }
    Ok(exit)
}

async fn verify_one(checkpoint: &Checkpoint, app: &App) -> Printed<Exit> {
    let bar = Bar::new(app.printer(), "verifying", Some(checkpoint.manifest().raw_bytes));
    let begun = SystemClock.now();
    let tell = |bytes: u64| bar.add(bytes);
    let report = verify(checkpoint, &tell).await;
    bar.finish();
    conclude(
        checkpoint.step(),
        &report?,
        SystemClock.now().saturating_sub(begun),
        app,
    )
}

fn conclude(step: u64, report: &Verified, time: Duration, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    let damages_count = report.damages.len() as u64 + report.damages_more;
    if printer.is_json() {
        printer.json(&Row {
            step,
            whole: report.is_whole(),
            parts: report.parts,
            entries: report.entries,
            chunks: report.chunks,
            bytes: report.bytes,
            damages: &report.damages,
            damages_count,
            seconds: time.as_secs_f64(),
            ledger: &report.ledger,
        })?;
    } else {
        for damage in &report.damages {
            printer.data(format_args!("step {step}: {}", line(damage)))?;
        }
        let state = if report.is_whole() {
            "whole".to_owned()
        } else {
            format!("{} found", count(damages_count, "damage"))
        };
        printer.say(format_args!(
            "step {step}: {state}; {} of {} compared, {} in {:.1} s ({})",
            count(report.chunks, "chunk"),
            count(report.parts, "part"),
            ByteSize(report.bytes),
            time.as_secs_f64(),
            Rate::of(report.bytes, time)
        ));
        printer.detail(&report.ledger);
    }
    Ok(if report.is_whole() {
        Exit::Success
    } else {
        Exit::No
    })
}

/// One damage, for people.
fn line(damage: &Damage) -> String {
    let bytes = |span: Option<Span>| span.map(|span| format!(" bytes {span}")).unwrap_or_default();
    let object = format!("{}{}", damage.object, bytes(damage.object_bytes));
    let message = visible(&damage.message);
    match &damage.name {
        Some(name) => format!(
            "{}{}: {object}: {message}",
            visible(name),
            bytes(damage.slice_bytes)
        ),
        None => format!("{object}: {message}"),
    }
}
