//! `forebay cp`: what goes where, like `cp`; the work itself is [`forebay_store::copy`]'s.
//!
//! A destination with a trailing slash, a whole store or a local directory that exists is copied *into*, under the source's own last name;
//! anything else is the new name. Sources in the same directory are copied side by side as one batch.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ByteSize, Clock, Error, ErrorKind, Key, Ledger, Location, Rate, Result, SystemClock};
use forebay_store::cache::Mode;
use forebay_store::copy::{Copier, CopyOptions, CopyReport, Failure, Progress, Verify, is_tree_unfinished};
use forebay_store::{Context, ObjectMeta, PutMode, Store, open};
use futures::StreamExt;
use serde::Serialize;

use crate::Exit;
use crate::app::{App, interrupted};
use crate::args::{CpArgs, VerifyArg};
use crate::printer::{ErrorBody, Printed, Stop};
use crate::progress::CopyBar;
use crate::target::{Found, Target};

/// Sources looked at side by side before copying begins.
const LOOKS_MAX: usize = 32;

/// Fewer bytes than this say nothing about a rate.
const RATE_BYTES_MIN: u64 = 1 << 20;

/// Things of the same kind from the same place, copied together.
enum Batch {
    Objects(Arc<dyn Store>, Pairs),
    Tree(Arc<dyn Store>, Key),
}

/// Objects with their new names.
type Pairs = Vec<(ObjectMeta, Key)>;

/// What is to be done, and what could not be found.
struct Plan {
    batches: Vec<Batch>,
    destination: Arc<dyn Store>,
    missing: Vec<Error>,
}

/// Copy.
pub(super) async fn run(args: &CpArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let plan = app.unless_cancelled(plan(args, &context)).await?;
    let mut report = CopyReport::default();
    for error in plan.missing {
        app.printer().object_error(&error, None);
        report.fail(Failure { key: None, error });
    }
    let begun = SystemClock.now();
    for batch in plan.batches {
        report.merge(copy(batch, &plan.destination, args, &context, app).await?);
        if report.cancelled {
            break;
        }
    }
    conclude(&report, SystemClock.now().saturating_sub(begun), app)
}

async fn plan(args: &CpArgs, context: &Context) -> Result<Plan> {
    let (destination, sources) = match args.urls.split_last() {
        Some((last, rest)) if !rest.is_empty() => (Target::parse(last)?, rest),
        _ => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "copy",
                "a source and a destination are needed",
            ));
        }
    };
    let sources: Vec<Target> = sources
        .iter()
        .map(|text| Target::parse(text))
        .collect::<Result<_>>()?;
    let is_container =
        destination.is_container(context).await? && !is_going_on(args, &sources, &destination, context).await;
    if sources.len() > 1 && !is_container {
        let message = "several sources need a directory or prefix to go into";
        return Err(Error::new(ErrorKind::InvalidInput, "copy", message)
            .at(&destination.location)
            .with_hint("end the destination with a slash"));
    }
    refuse_same_names(&sources)?;
    let found: Vec<_> = futures::stream::iter(&sources)
        .map(|source| source.look(context))
        .buffered(LOOKS_MAX)
        .collect()
        .await;
    let mut missing = Vec::new();
    let mut objects: BTreeMap<Location, (Arc<dyn Store>, Pairs)> = BTreeMap::new();
    let mut trees = Vec::new();
    for (source, found) in sources.iter().zip(found) {
        match found {
            Err(error) => missing.push(error),
            Ok(Found::Object { store, meta, .. }) => {
                let name = name_of(source)?;
                let batch = objects
                    .entry(store.location().clone())
                    .or_insert((store, Vec::new()));
                batch.1.push((meta, name));
            }
            Ok(Found::Prefix { .. }) if !args.recursive => missing.push(is_prefix(source)),
            Ok(Found::Prefix { store }) => trees.push((store, name_of(source).unwrap_or(Key::ROOT))),
        }
    }
    // A new name for an object stands in its parent; a tree becomes the destination itself.
    let (store, rename) = match destination.location.split_last() {
        Some((parent, name)) if !is_container && trees.is_empty() => (parent, Some(name)),
        _ => (destination.location.clone(), None),
    };
    let destination = open(&store, context).await?;
    let batches = objects.into_values().map(|(store, mut pairs)| {
        if let Some(name) = &rename {
            for pair in &mut pairs {
                pair.1 = name.clone();
            }
        }
        Batch::Objects(store, pairs)
    });
    let trees = trees
        .into_iter()
        .map(|(store, name)| Batch::Tree(store, if is_container { name } else { Key::ROOT }));
    Ok(Plan {
        batches: batches.chain(trees).collect(),
        destination,
        missing,
    })
}

/// The first run of `cp -r FROM TO` makes the directory TO. When it was interrupted, the second one goes on with it, instead of copying into
/// TO as `cp` does with directories that exist.
async fn is_going_on(args: &CpArgs, sources: &[Target], destination: &Target, context: &Context) -> bool {
    match sources {
        [source] if args.recursive && !args.no_resume && !destination.has_slash => {
            is_tree_unfinished(&source.location, &destination.location, context).await
        }
        _ => false,
    }
}

/// Two sources of one name would become one object, and the second would silently replace the first; a whole store has no name, so
/// what is in it could meet anything.
fn refuse_same_names(sources: &[Target]) -> Result<()> {
    let mut taken: BTreeMap<Key, &Target> = BTreeMap::new();
    for source in sources {
        let name = name_of(source).unwrap_or(Key::ROOT);
        let other = if name == Key::ROOT {
            taken.values().next().copied()
        } else {
            taken.get(&Key::ROOT).or_else(|| taken.get(&name)).copied()
        };
        if let Some(other) = other {
            let message = format!("this and {} would get the same name", other.location);
            return Err(Error::new(ErrorKind::InvalidInput, "copy", message)
                .at(&source.location)
                .with_hint("copy them one by one, each to a name of its own"));
        }
        taken.insert(name, source);
    }
    Ok(())
}

/// The name a source has inside a destination.
fn name_of(source: &Target) -> Result<Key> {
    source.location.split_last().map(|(_, name)| name).ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "copy", "this has no name of its own").at(&source.location)
    })
}

fn is_prefix(source: &Target) -> Error {
    let what = if source.is_local() {
        "a directory"
    } else {
        "a prefix"
    };
    Error::new(
        ErrorKind::InvalidInput,
        "copy",
        format!("this is {what}, not an object"),
    )
    .at(&source.location)
    .with_hint("add -r to copy everything below it")
}

async fn copy(
    batch: Batch,
    destination: &Arc<dyn Store>,
    args: &CpArgs,
    context: &Context,
    app: &App,
) -> Result<CopyReport> {
    let options = CopyOptions {
        verify: match args.verify {
            VerifyArg::Auto => Verify::Auto,
            VerifyArg::ReadBack => Verify::ReadBack,
            VerifyArg::None => Verify::None,
        },
        resume: !args.no_resume,
        mode: if args.if_absent {
            PutMode::IfAbsent
        } else {
            PutMode::Replace
        },
        ..CopyOptions::default()
    };
    let store = match &batch {
        Batch::Objects(store, _) | Batch::Tree(store, _) => Arc::clone(store),
    };
    let source = app.source(store, Mode::Whole, context).await?;
    let bar = CopyBar::new(app.printer(), source.store().location());
    let copier = Copier::new(source.store(), Arc::clone(destination), context)
        .with_options(options)
        .with_progress(Arc::clone(&bar) as Arc<dyn Progress>)
        .with_cancel(app.cancel().clone());
    let report = match batch {
        Batch::Objects(_, pairs) => copier.known(pairs).await,
        Batch::Tree(_, to) => copier.tree(&Key::ROOT, &to).await,
    };
    bar.finish();
    source.finish(app.printer()).await;
    report
}

/// `--json`: what was done.
#[derive(Debug, Serialize)]
struct Summary<'a> {
    objects_copied: u64,
    bytes_copied: u64,
    bytes_resumed: u64,
    objects_skipped: u64,
    bytes_skipped: u64,
    skipped_special: u64,
    objects_failed: u64,
    source_matched: u64,
    checked_by_store: u64,
    checked_by_read_back: u64,
    seconds: f64,
    failures: Vec<FailureBody<'a>>,
    ledger: &'a Ledger,
}

/// An object that was not copied.
#[derive(Debug, Serialize)]
struct FailureBody<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a Key>,
    #[serde(flatten)]
    error: ErrorBody<'a>,
}

fn conclude(report: &CopyReport, time: Duration, app: &App) -> Printed<Exit> {
    let printer = app.printer();
    if printer.is_json() {
        let failures = report.failures.iter().map(|failure| FailureBody {
            key: failure.key.as_ref(),
            error: ErrorBody::of(&failure.error),
        });
        printer.json(&Summary {
            objects_copied: report.objects_copied,
            bytes_copied: report.bytes_copied,
            bytes_resumed: report.bytes_resumed,
            objects_skipped: report.objects_skipped,
            bytes_skipped: report.bytes_skipped,
            skipped_special: report.skipped_special,
            objects_failed: report.objects_failed,
            source_matched: report.source_matched,
            checked_by_store: report.checked_by_store,
            checked_by_read_back: report.checked_by_read_back,
            seconds: time.as_secs_f64(),
            failures: failures.collect(),
            ledger: &report.ledger,
        })?;
    } else {
        say(report, time, app);
    }
    if report.cancelled {
        return Err(Stop::Error(interrupted().with_hint(
            "nothing half-made is visible; the same command goes on where it stopped",
        )));
    }
    Ok(match report.exit_code_worst {
        0 => Exit::Success,
        1 => Exit::No,
        _ => Exit::Failed,
    })
}

fn say(report: &CopyReport, time: Duration, app: &App) {
    let printer = app.printer();
    let moved = report.bytes_copied - report.bytes_resumed;
    let mut line = format!(
        "copied {}, {} in {:.1} s",
        objects(report.objects_copied),
        ByteSize(report.bytes_copied),
        time.as_secs_f64(),
    );
    if moved >= RATE_BYTES_MIN {
        let _ = write!(line, " ({})", Rate::of(moved, time));
    }
    if report.bytes_resumed > 0 {
        let _ = write!(
            line,
            ", {} of them by an earlier run",
            ByteSize(report.bytes_resumed)
        );
    }
    if report.objects_skipped > 0 {
        let _ = write!(line, "; {} were there already", objects(report.objects_skipped));
    }
    match report.skipped_special {
        0 => {}
        1 => line += "; 1 special file left out",
        count => {
            let _ = write!(line, "; {count} special files left out");
        }
    }
    printer.say(line);
    let unchecked = report.objects_copied - report.checked_by_store - report.checked_by_read_back;
    let checks = [
        (report.checked_by_store, "checked by the store"),
        (report.checked_by_read_back, "read back"),
        (unchecked, "not compared"),
        (report.source_matched, "with the source's checksum"),
    ];
    let checks: Vec<String> = checks
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if !checks.is_empty() {
        printer.say(format_args!("verified: {}", checks.join(", ")));
    }
    printer.detail(&report.ledger);
    if report.objects_failed > 0 {
        printer.say(format_args!("{} not copied", objects(report.objects_failed)));
    }
}

/// `1 object`, `2 objects`.
pub(super) fn objects(count: u64) -> String {
    if count == 1 {
        "1 object".to_owned()
    } else {
        format!("{count} objects")
    }
}
