//! `forebay rm`: objects one by one, prefixes only when asked, whole stores only when asked twice.

mod tree;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Context, Entry, ListOptions, Store};
use futures::StreamExt;
use serde::Serialize;

use super::cp::objects;
use crate::Exit;
use crate::app::{App, interrupted};
use crate::args::RmArgs;
use crate::printer::{ErrorBody, Printed, Stop, visible};
use crate::progress::Bar;
use crate::target::{Found, Target};

/// Errors kept for `--json`; beyond them only the number is kept.
const ERRORS_KEPT_MAX: usize = 100;

/// What was removed, and what was not, counted and told as it happens.
#[derive(Debug)]
struct Tally {
    removed: u64,
    failed: u64,
    errors: Vec<Error>,
    bar: Bar,
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
        refuse_too_much(target, args)?;
    }
    let context = app.context()?;
    let mut tally = Tally {
        removed: 0,
        failed: 0,
        errors: Vec::new(),
        bar: Bar::counter(app.printer(), "removing"),
    };
    for target in &targets {
        let result = remove(target, args, &context, &mut tally, app).await;
        // What stops at Ctrl-C is no failure, and what was removed until then is told.
        if app.cancel().is_cancelled() {
            break;
        }
        if let Err(error) = result {
            tally.fail(error);
        }
    }
    tally.bar.finish();
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&Summary {
            objects_removed: tally.removed,
            objects_failed: tally.failed,
            failures: tally.errors.iter().map(ErrorBody::of).collect(),
        })?;
    } else {
        printer.say(format_args!("removed {}", objects(tally.removed)));
        if tally.failed > 0 {
            printer.say(format_args!("{} not removed", objects(tally.failed)));
        }
    }
    if app.cancel().is_cancelled() {
        return Err(Stop::Error(interrupted()));
    }
    Ok(if tally.failed == 0 {
        Exit::Success
    } else {
        Exit::Failed
    })
}

impl Tally {
    fn remove(&mut self, name: impl Display) {
        self.removed += 1;
        self.bar.add(1);
        if self.bar.is_verbose() {
            let line = format!("removed {}", visible(&name.to_string()));
            self.bar.suspend(|printer| printer.detail(line));
        }
    }

    fn fail(&mut self, error: Error) {
        self.bar.suspend(|printer| printer.object_error(&error, None));
        self.failed += 1;
        if self.errors.len() < ERRORS_KEPT_MAX {
            self.errors.push(error);
        }
    }
}

/// What is hardly ever meant: a whole store, or the ground the user stands on.
fn refuse_too_much(target: &Target, args: &RmArgs) -> Result<()> {
    let refuse = |message: &'static str, hint: &'static str| {
        let error = Error::new(ErrorKind::InvalidInput, "remove", message);
        Err(error.at(&target.location).with_hint(hint))
    };
    if target.is_whole_store() {
        if args.all {
            return Ok(());
        }
        return refuse(
            "this is a whole store; removing it is refused",
            "name a prefix, or add -r --all to remove everything in it",
        );
    }
    let here =
        std::env::current_dir().map_err(|error| Error::from_io("start", error).at("current directory"))?;
    match target.location.to_path() {
        Some(path) if here.starts_with(&path) => refuse(
            "this is the current directory, or holds it; removing it is refused",
            "name what is in it, or go elsewhere first",
        ),
        _ => Ok(()),
    }
}

async fn remove(
    target: &Target,
    args: &RmArgs,
    context: &Context,
    tally: &mut Tally,
    app: &App,
) -> Result<()> {
    if let Some(path) = target.location.to_path()
        && path.is_symlink()
    {
        return app.unless_cancelled(remove_link(target, context, tally)).await;
    }
    match app.unless_cancelled(target.look(context)).await? {
        Found::Object { store, key, .. } => {
            app.unless_cancelled(store.delete(&key)).await?;
            tally.remove(&target.location);
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
            // The walk looks at Ctrl-C itself, so that everything it removed is counted.
            Some(path) => {
                remove_dir(&path, tally, app).await;
                Ok(())
            }
            None => {
                let work = async {
                    remove_below(&store, context, tally).await;
                    Ok(())
                };
                app.unless_cancelled(work).await
            }
        },
    }
}

/// A link is removed itself, wherever it leads; with a slash behind it, it is not clear which of the two is meant.
async fn remove_link(target: &Target, context: &Context, tally: &mut Tally) -> Result<()> {
    if target.has_slash {
        let message = "this is a link, not a directory";
        return Err(Error::new(ErrorKind::InvalidInput, "remove", message)
            .at(&target.location)
            .with_hint(
                "leave the slash at the end away to remove the link, or name the directory it leads to",
            ));
    }
    let (store, key) = forebay_store::open_object(&target.location, context).await?;
    store.delete(&key).await?;
    tally.remove(&target.location);
    Ok(())
}

/// Everything below a prefix, as the listing goes.
async fn remove_below(store: &Arc<dyn Store>, context: &Context, tally: &mut Tally) {
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
            Ok(Some(key)) => tally.remove(store.location().join(&key)),
            Ok(None) => {}
            Err(error) => tally.fail(error),
        }
    }
}

/// A directory, without following links out of it.
async fn remove_dir(path: &Path, tally: &mut Tally, app: &App) {
    let mut messages = tree::remove(path.to_owned(), app.cancel().clone());
    while let Some(message) = messages.recv().await {
        match message {
            Ok(path) => tally.remove(path.display()),
            Err(error) => tally.fail(error),
        }
    }
}
