//! `forebay ckpt ls`.

use forebay_ckpt::{Listed, Manifest, list};
use forebay_core::ByteSize;
use serde::Serialize;

use super::value::{one_line, to_json};
use crate::Exit;
use crate::app::App;
use crate::args::CkptLsArgs;
use crate::printer::{ErrorBody, Printed, visible};
use crate::table::utc;

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    step: u64,
    /// `whole` as far as the manifest tells, or `damaged`.
    state: &'static str,
    #[serde(flatten)]
    of: Option<Of>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorBody<'a>>,
}

/// What a manifest says.
#[derive(Debug, Serialize)]
struct Of {
    attempt: String,
    /// Seconds since 1970.
    committed: f64,
    ranks: u32,
    entries: u64,
    bytes: u64,
    bytes_written: u64,
    hash: &'static str,
    published: &'static str,
    base_step: Option<u64>,
    chain: u32,
    metadata: serde_json::Value,
}

impl Of {
    fn new(manifest: &Manifest) -> Self {
        Self {
            attempt: manifest.attempt.to_string(),
            committed: manifest.committed.as_secs_f64(),
            ranks: manifest.world(),
            entries: manifest.entries,
            bytes: manifest.raw_bytes,
            bytes_written: manifest.written_bytes,
            hash: manifest.hash.name(),
            published: manifest.publish.name(),
            base_step: manifest.base.map(|base| base.step),
            chain: manifest.base.map_or(0, |base| base.chain),
            metadata: to_json(&manifest.metadata),
        }
    }
}

/// List.
pub(super) async fn run(args: &CkptLsArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let store = super::store(&args.url, &context).await?;
    let listed = list(store, &context).await?;
    let printer = app.printer();
    if !printer.is_json() && !listed.is_empty() {
        let head = format!(
            "{:>12}  {:<20}  {:>11}  {:>11}  {:>6}  {:>9}  note",
            "step", "time", "size", "written", "ranks", "entries"
        );
        printer.data(head)?;
    }
    let mut exit = Exit::Success;
    for row in &listed {
        if row.manifest.is_err() {
            exit = Exit::No;
        }
        print(row, app)?;
    }
    if listed.is_empty() {
        printer.say("there is no checkpoint here");
    }
    Ok(exit)
}

fn print(Listed { step, manifest }: &Listed, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(&Row {
            step: *step,
            state: if manifest.is_ok() { "whole" } else { "damaged" },
            of: manifest.as_ref().ok().map(Of::new),
            error: manifest.as_ref().err().map(ErrorBody::of),
        });
    }
    let manifest = match manifest {
        Ok(manifest) => manifest,
        Err(error) => {
            return printer.data(format_args!(
                "{step:>12}  damaged: {}",
                visible(&error.to_string())
            ));
        }
    };
    let base = manifest
        .base
        .map(|base| format!("on {} ", base.step))
        .unwrap_or_default();
    printer.data(format_args!(
        "{step:>12}  {:<20}  {:>11}  {:>11}  {:>6}  {:>9}  {base}{}",
        utc(manifest.committed),
        ByteSize(manifest.raw_bytes).to_string(),
        ByteSize(manifest.written_bytes).to_string(),
        manifest.world(),
        manifest.entries,
        visible(&one_line(&manifest.metadata))
    ))
}
