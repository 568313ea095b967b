//! `forebay ckpt diff`: what changed; "no" when anything did.

use forebay_ckpt::{Change, Checkpoint, diff};
use forebay_core::ByteSize;

use crate::Exit;
use crate::app::App;
use crate::args::CkptDiffArgs;
use crate::data::count;
use crate::printer::{Printed, visible};

/// Compare.
pub(super) async fn run(args: &CkptDiffArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let store = super::store(&args.url, &context).await?;
    let old = Checkpoint::open(std::sync::Arc::clone(&store), &context, args.old).await?;
    let new = Checkpoint::open(store, &context, args.new).await?;
    let diff = diff(&old, &new).await?;
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&diff)?;
    } else {
        for difference in &diff.differences {
            let what = match &difference.change {
                Change::Added => "added".to_owned(),
                Change::Removed => "removed".to_owned(),
                Change::Shape => "other dtype, shape or kind".to_owned(),
                Change::Resharded => "cut in another way".to_owned(),
                Change::Sealed { bytes } => format!("{} sealed by another data key", ByteSize(*bytes)),
                Change::Content { bytes } => format!("{} in chunks that differ", ByteSize(*bytes)),
            };
            printer.data(format_args!("{}: {what}", visible(&difference.name)))?;
        }
        printer.say(format_args!(
            "{} the same, {} not; {} unchanged, {} in changed chunks",
            count(diff.same, "name"),
            diff.differences.len(),
            ByteSize(diff.bytes_same),
            ByteSize(diff.bytes_changed)
        ));
    }
    Ok(if diff.differences.is_empty() {
        Exit::Success
    } else {
        Exit::No
    })
}
