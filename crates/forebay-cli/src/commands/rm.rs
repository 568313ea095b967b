//! `forebay rm`: objects one by one, prefixes only when asked, whole stores only when asked twice.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Context, Entry, ListOptions, Store};
use futures::StreamExt;
use serde::Serialize;

use super::cp::objects;
use crate::Exit;
use crate::app::App;
use crate::args::RmArgs;
use crate::printer::{ErrorBody, Printed};
use crate::target::{Found, Target};

/// Errors kept for `--json`; beyond them only the number is kept.
const ERRORS_KEPT_MAX: usize = 100;

/// What was removed, and what was not.
#[derive(Debug, Default)]
struct Tally {
    removed: u64,
    failed: u64,
    errors: Vec<Error>,
}

/// `--json`.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    objects_removed: u64,
    objects_failed: u64,
    failures: Vec<ErrorBody<'a>>,
}

/// Remove.
pub(super) async fn run(args: &RmArgs, app: &App) -> Printed<Exit> {
    let targets: Vec<Target> = args
        .urls
        .iter()
        .map(|text| Target::parse(text))
        .collect::<Result<_>>()?;
    // Refused before anything is removed.
    for target in &targets {
        if target.is_whole_store() && !args.all {
            let message = "this is a whole store; removing it is refused";
            return Err(Error::new(ErrorKind::InvalidInput, "remove", message)
                .at(&target.location)
                .with_hint("name a prefix, or add -r --all to remove everything in it")
                .into());
        }
    }
    let context = app.context()?;
    let mut tally = Tally::default();
    for target in &targets {
        if let Err(error) = remove(target, args, &context, &mut tally, app).await {
            tally.fail(error, app);
        }
    }
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&Summary {
            objects_removed: tally.removed,
            objects_failed: tally.failed,
            failures: tally.errors.iter().map(ErrorBody::of).collect(),
        })?;
    } else {
        printer.say(format_args!("removed {}", objects(tally.removed)));
    }
    Ok(if tally.failed == 0 {
        Exit::Success
    } else {
        Exit::Failed
    })
}

impl Tally {
    fn fail(&mut self, error: Error, app: &App) {
        app.printer().object_error(&error, None);
        self.failed += 1;
        if self.errors.len() < ERRORS_KEPT_MAX {
            self.errors.push(error);
        }
    }
}

async fn remove(
    target: &Target,
    args: &RmArgs,
    context: &Context,
    tally: &mut Tally,
    app: &App,
) -> Result<()> {
    // A link is removed itself, wherever it leads.
    if let Some(path) = target.location.to_path()
        && !target.has_slash
        && path.is_symlink()
    {
        let (store, key) = forebay_store::open_object(&target.location, context).await?;
        store.delete(&key).await?;
        tally.removed += 1;
        return Ok(());
    }
    match target.look(context).await? {
        Found::Object { store, key, .. } => {
            store.delete(&key).await?;
            app.printer().detail(format_args!("removed {}", target.location));
            tally.removed += 1;
            Ok(())
        }
        Found::Prefix { .. } if !args.recursive => {
            let what = if target.is_local() {
                "a directory"
            } else {
                "a prefix"
            };
            Err(Error::new(
                ErrorKind::InvalidInput,
                "remove",
                format!("this is {what}, not an object"),
            )
            .at(&target.location)
            .with_hint("add -r to remove everything below it"))
        }
        Found::Prefix { store } => match target.location.to_path() {
            Some(path) => remove_dir(&path, tally).await,
            None => {
                remove_below(&store, context, tally, app).await;
                Ok(())
            }
        },
    }
}

/// Everything below a prefix, as the listing goes.
async fn remove_below(store: &Arc<dyn Store>, context: &Context, tally: &mut Tally, app: &App) {
    let in_flight = context.limits().store_requests_max.max(1) as usize;
    let rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    let mut removals = rows
        .map(|row| async move {
            match row? {
                Entry::Object(meta) => store.delete(&meta.key).await.map(|()| Some(meta.key)),
                Entry::Prefix(_) => Ok(None),
            }
        })
        .buffer_unordered(in_flight);
    while let Some(result) = removals.next().await {
        match result {
            Ok(Some(key)) => {
                app.printer()
                    .detail(format_args!("removed {}", store.location().join(&key)));
                tally.removed += 1;
            }
            Ok(None) => {}
            Err(error) => tally.fail(error, app),
        }
    }
}

/// A directory, without following links out of it.
async fn remove_dir(path: &Path, tally: &mut Tally) -> Result<()> {
    let path = path.to_owned();
    let place = path.clone();
    let work = tokio::task::spawn_blocking(move || {
        let count = count_files(&path);
        std::fs::remove_dir_all(&path).map(|()| count)
    });
    let result = work.await.map_err(|error| {
        Error::new(ErrorKind::Internal, "remove", "the removing thread ended").with_source(error)
    })?;
    tally.removed += result.map_err(|error| Error::from_io("remove", error).at(place.display()))?;
    Ok(())
}

fn count_files(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => count_files(&entry.path()),
            _ => 1,
        })
        .sum()
}
