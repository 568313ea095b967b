//! `forebay ckpt ls`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsStr;
use std::time::Duration;

use forebay_ckpt::{Listed, Manifest, list};
use forebay_core::{ByteSize, Clock, Result, SystemClock};
use forebay_store::Context;
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
    places: &'a [Place],
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
    age_seconds: f64,
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
    fn new(manifest: &Manifest, now: Duration) -> Self {
        Self {
            attempt: manifest.attempt.to_string(),
            committed: manifest.committed.as_secs_f64(),
            age_seconds: now.saturating_sub(manifest.committed).as_secs_f64(),
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

/// A step, with the manifest of the first place where it can be read.
struct Step {
    manifest: Result<Manifest>,
    places: Vec<Place>,
}

/// A place that has a step.
#[derive(Debug, Serialize)]
struct Place {
    url: String,
    /// As far as the manifest tells.
    is_whole: bool,
    /// Another attempt at the step than the first place has: other content, whatever its number.
    is_other: bool,
}

/// List.
pub(super) async fn run(args: &CkptLsArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let printer = app.printer();
    let (mut steps, mut exit) = (BTreeMap::new(), Exit::Success);
    for (number, url) in args.urls.iter().enumerate() {
        match look(url, &context, &mut steps).await {
            Ok(()) => {}
            Err(error) if number == 0 => return Err(error.into()),
            // What the nearer ones have is told all the same.
            Err(error) => {
                printer.object_error(&error, None);
                exit = Exit::No;
            }
        }
    }
    let has_places = args.urls.len() > 1;
    if !printer.is_json() && !steps.is_empty() {
        let places = if has_places { "  in" } else { "" };
        let head = format!(
            "{:>12}  {:<20}  {:>9}  {:>11}  {:>11}  {:>6}  {:>9}  note{places}",
            "step", "time", "age", "size", "written", "ranks", "entries"
        );
        printer.data(head)?;
    }
    let now = SystemClock.unix();
    for (number, step) in &steps {
        if step.manifest.is_err() || step.places.iter().any(|place| !place.is_whole || place.is_other) {
            exit = Exit::No;
        }
        print(*number, step, (now, has_places), app)?;
    }
    if steps.is_empty() {
        printer.say("there is no checkpoint here");
    }
    Ok(exit)
}

/// Add what a place has.
async fn look(url: &OsStr, context: &Context, steps: &mut BTreeMap<u64, Step>) -> Result<()> {
    let store = super::store(url, context).await?;
    let name = store.location().to_string();
    for Listed { step, manifest } in list(store, context).await? {
        let mut place = Place {
            url: name.clone(),
            is_whole: manifest.is_ok(),
            is_other: false,
        };
        match steps.entry(step) {
            Entry::Vacant(vacant) => {
                let places = vec![place];
                vacant.insert(Step { manifest, places });
            }
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                if let (Ok(first), Ok(own)) = (&known.manifest, &manifest) {
                    place.is_other = !own.attempt.is_same_save(first.attempt);
                }
                if known.manifest.is_err() {
                    known.manifest = manifest;
                }
                known.places.push(place);
            }
        }
    }
    Ok(())
}

fn print(number: u64, step: &Step, (now, has_places): (Duration, bool), app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(&Row {
            step: number,
            state: if step.manifest.is_ok() { "whole" } else { "damaged" },
            places: &step.places,
            of: step.manifest.as_ref().ok().map(|manifest| Of::new(manifest, now)),
            error: step.manifest.as_ref().err().map(ErrorBody::of),
        });
    }
    let places = step.places.iter().map(|place| {
        let note = match place {
            Place { is_whole: false, .. } => " (damaged)",
            Place { is_other: true, .. } => " (another save of this step)",
            Place { .. } => "",
        };
        format!("{}{note}", visible(&place.url))
    });
    let places = if has_places {
        format!("  {}", places.collect::<Vec<_>>().join(", "))
    } else {
        String::new()
    };
    let manifest = match &step.manifest {
        Ok(manifest) => manifest,
        Err(error) => {
            let error = visible(&error.to_string());
            return printer.data(format_args!("{number:>12}  damaged: {error}{places}"));
        }
    };
    let base = manifest
        .base
        .map(|base| format!("on {} ", base.step))
        .unwrap_or_default();
    printer.data(format_args!(
        "{number:>12}  {:<20}  {:>9}  {:>11}  {:>11}  {:>6}  {:>9}  {base}{}{places}",
        utc(manifest.committed),
        age(now.saturating_sub(manifest.committed)),
        ByteSize(manifest.raw_bytes).to_string(),
        ByteSize(manifest.written_bytes).to_string(),
        manifest.world(),
        manifest.entries,
        visible(&one_line(&manifest.metadata))
    ))
}

/// In the largest unit of which there is more than one.
fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "d"), (3600, "h"), (60, "min")];
    let unit = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    unit.map_or(format!("{seconds} s"), |(unit, name)| {
        format!("{} {name}", seconds / unit)
    })
}
