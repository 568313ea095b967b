//! `forebay ls`: objects and prefixes, as they stream out of the store.

use std::time::Duration;

use forebay_core::{Key, Location};
use forebay_store::{Context, Entry, ListOptions, ObjectMeta, is_special_file};
use futures::StreamExt;
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::LsArgs;
use crate::outlet::Outlet;
use crate::printer::{Printed, visible};
use crate::progress::Bar;
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
    let mut outlet = Outlet::open(app)?;
    let bar = Bar::counter_of_data(app.printer(), "listing");
    let listed = list(args, &target, &context, &mut outlet, &bar).await;
    let listed = outlet.close(listed).await;
    bar.finish();
    listed
}

async fn list(
    args: &LsArgs,
    target: &Target,
    context: &Context,
    outlet: &mut Outlet,
    bar: &Bar,
) -> Printed<Exit> {
    let style = Style {
        json: bar.printer().is_json(),
        long: args.long,
    };
    let store = match target.look(context).await? {
        Found::Object { store, key, meta } => {
            print_object(outlet, store.location(), &key, &meta, style).await?;
            return Ok(Exit::Success);
        }
        Found::Prefix { store } => store,
    };
    let options = ListOptions {
        recursive: args.recursive,
    };
    let mut rows = store.list(&Key::ROOT, options);
    let mut exit = Exit::Success;
    while let Some(row) = rows.next().await {
        match row {
            Ok(Entry::Object(meta)) => {
                print_object(outlet, store.location(), &meta.key, &meta, style).await?;
            }
            Ok(Entry::Prefix(key)) => print_prefix(outlet, store.location(), &key, style).await?,
            // Sockets, FIFOs and devices are no objects; they are no failures either.
            Err(error) if is_special_file(&error) => {
                bar.suspend(|printer| printer.detail(visible(&error.to_string())));
            }
            // A name that cannot be shown does not hide the others.
            Err(error) => {
                outlet.flush().await?;
                bar.suspend(|printer| printer.error(&error));
                exit = Exit::Failed;
            }
        }
        bar.add(1);
    }
    Ok(exit)
}

/// How rows are written.
#[derive(Debug, Clone, Copy)]
struct Style {
    json: bool,
    long: bool,
}

async fn print_object(
    outlet: &mut Outlet,
    place: &Location,
    key: &Key,
    meta: &ObjectMeta,
    style: Style,
) -> Printed {
    if style.json {
        let row = Row {
            kind: "object",
            name: key.as_str(),
            url: place.join(key).to_string(),
            size: Some(meta.size),
            modified: meta.modified.map(|time| time.as_secs_f64()),
            version: meta.version.as_deref(),
        };
        outlet.json(&row).await
    } else if style.long {
        let time = time(meta.modified);
        outlet
            .data(format_args!("{:>14}  {time:<20}  {key}", meta.size))
            .await
    } else {
        outlet.data(key).await
    }
}

async fn print_prefix(outlet: &mut Outlet, place: &Location, key: &Key, style: Style) -> Printed {
    if style.json {
        let row = Row {
            kind: "prefix",
            name: key.as_str(),
            url: format!("{}/", place.join(key)),
            size: None,
            modified: None,
            version: None,
        };
        outlet.json(&row).await
    } else if style.long {
        outlet
            .data(format_args!("{:>14}  {:<20}  {key}/", "-", "-"))
            .await
    } else {
        outlet.data(format_args!("{key}/")).await
    }
}

fn time(modified: Option<Duration>) -> String {
    modified.map_or_else(|| "-".to_owned(), utc)
}
