//! `forebay ckpt rewrap`.

use std::sync::Arc;

use forebay_ckpt::{AccessLog, AccessOp, list, rewrap};
use forebay_core::{ByteSize, Error, ErrorKind};

use crate::Exit;
use crate::app::App;
use crate::args::{CkptRewrapArgs, keys};
use crate::data::count;
use crate::printer::Printed;

/// Rewrap one step, the newest, or all.
pub(super) async fn run(args: &CkptRewrapArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let (old, new) = (keys(&args.key, &context)?, keys(&args.new_key, &context)?);
    let store = super::store(&args.url, &context).await?;
    let steps = match args.step {
        Some(step) => vec![step],
        None => {
            let mut steps = Vec::new();
            for listed in list(Arc::clone(&store), &context).await? {
                // One that cannot be read may be sealed: better told now than found locked later.
                if listed.manifest?.is_sealed() {
                    steps.push(listed.step);
                }
            }
            let last = steps.len().saturating_sub(1);
            if args.all { steps } else { steps.split_off(last) }
        }
    };
    if steps.is_empty() {
        let message = "there is no sealed checkpoint here";
        return Err(Error::new(ErrorKind::NotFound, "rewrap", message)
            .at(store.location())
            .into());
    }
    let printer = app.printer();
    for step in steps {
        if let Some(log) = &args.access_log {
            let log = AccessLog::new(log);
            log.note(&context, &*store, AccessOp::Rewrap, (step, None))
                .await?;
        }
        let done = rewrap(Arc::clone(&store), &context, step, &old, &new).await?;
        if printer.is_json() {
            printer.json(&done)?;
            continue;
        }
        printer.data(format_args!(
            "step {step}: {} in {}, {} written",
            count(done.keys as u64, "data key"),
            count(done.slots as u64, "slot"),
            ByteSize(done.bytes)
        ))?;
    }
    Ok(Exit::Success)
}
