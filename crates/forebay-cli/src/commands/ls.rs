//! `forebay ls`: objects and prefixes, as they stream out of the store.

use std::time::Duration;

use forebay_core::{Key, Location};
use forebay_store::{Entry, ListOptions, ObjectMeta};
use futures::StreamExt;
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::LsArgs;
use crate::printer::{Printed, Printer};
use crate::table::utc;
use crate::target::{Found, Target};

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Row<'a> {
    /// `object` or `prefix`.
    kind: &'static str,
    /// Name below the URL that was listed.
    name: &'a str,
    /// The whole place.
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    modified: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<&'a str>,
}

/// List.
pub(super) async fn run(args: &LsArgs, app: &App) -> Printed<Exit> {
    let target = Target::parse(&args.url)?;
    let context = app.context()?;
    let printer = app.printer();
    let store = match target.look(&context).await? {
        Found::Object { store, key, meta } => {
            print_object(printer, store.location(), &key, &meta, args.long)?;
            return Ok(Exit::Success);
        }
        Found::Prefix { store } => store,
    };
    let mut rows = store.list(
        &Key::ROOT,
        ListOptions {
            recursive: args.recursive,
        },
    );
    let mut exit = Exit::Success;
    while let Some(row) = rows.next().await {
        match row {
            Ok(Entry::Object(meta)) => print_object(printer, store.location(), &meta.key, &meta, args.long)?,
            Ok(Entry::Prefix(key)) => print_prefix(printer, store.location(), &key, args.long)?,
            // A name that cannot be shown does not hide the others.
            Err(error) => {
                printer.flush()?;
                printer.error(&error);
                exit = Exit::Failed;
            }
        }
    }
    Ok(exit)
}

fn print_object(printer: &Printer, place: &Location, key: &Key, meta: &ObjectMeta, long: bool) -> Printed {
    if printer.is_json() {
        return printer.json(&Row {
            kind: "object",
            name: key.as_str(),
            url: place.join(key).to_string(),
            size: Some(meta.size),
            modified: meta.modified.map(|time| time.as_secs_f64()),
            version: meta.version.as_deref(),
        });
    }
    if long {
        printer.data(format_args!(
            "{:>14}  {:<20}  {key}",
            meta.size,
            time(meta.modified)
        ))
    } else {
        printer.data(key)
    }
}

fn print_prefix(printer: &Printer, place: &Location, key: &Key, long: bool) -> Printed {
    if printer.is_json() {
        return printer.json(&Row {
            kind: "prefix",
            name: key.as_str(),
            url: format!("{}/", place.join(key)),
            size: None,
            modified: None,
            version: None,
        });
    }
    if long {
        printer.data(format_args!("{:>14}  {:<20}  {key}/", "-", "-"))
    } else {
        printer.data(format_args!("{key}/"))
    }
}

fn time(modified: Option<Duration>) -> String {
    modified.map_or_else(|| "-".to_owned(), utc)
}
