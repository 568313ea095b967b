//! `forebay ckpt gc`.

use forebay_ckpt::{AccessLog, GcOptions, gc};
use forebay_core::ByteSize;

use crate::Exit;
use crate::app::App;
use crate::args::CkptGcArgs;
use crate::data::count;
use crate::printer::{Printed, visible};
use crate::progress::Bar;

/// Collect.
pub(super) async fn run(args: &CkptGcArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let store = super::store(&args.url, &context).await?;
    let options = GcOptions {
        keep_last: args.keep.keep_last,
        keep_every: args.keep.keep_every,
        age_max: args.keep.older_than,
        remove: args.remove.clone(),
        pin_age_max: args.dead_age(),
        is_dry_run: args.dry_run,
        access_log: args.access_log.as_ref().map(AccessLog::new),
        ..GcOptions::default()
    };
    let bar = Bar::waiting(app.printer(), "collecting");
    let collected = gc(store, &context, &options).await;
    bar.finish();
    let collected = collected?;
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&collected)?;
        return Ok(Exit::Success);
    }
    for step in &collected.steps {
        printer.data(step)?;
    }
    for pinned in &collected.pinned {
        printer.say(format_args!("left alone, being saved: {pinned}"));
    }
    let verb = if args.dry_run { "would give up" } else { "gave up" };
    for key in &collected.uploads {
        let name = key.as_str();
        printer.say(format_args!(
            "{verb} an upload that was never ended: {}",
            visible(name)
        ));
    }
    if let Some(why) = &collected.uploads_trouble {
        printer.say(format_args!(
            "uploads that were never ended may be there: {}",
            visible(why)
        ));
    }
    let verb = if args.dry_run { "would remove" } else { "removed" };
    printer.say(format_args!(
        "{verb} {} and {} of {}; {} left",
        count(collected.steps.len() as u64, "checkpoint"),
        count(collected.objects, "object"),
        ByteSize(collected.bytes),
        count(collected.kept.len() as u64, "checkpoint")
    ));
    Ok(Exit::Success)
}
