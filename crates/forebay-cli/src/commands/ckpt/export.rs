//! `forebay ckpt export`: the names of the files that were written go to stdout.

use std::sync::Arc;

use forebay_ckpt::{AccessLog, ExportFormat, ExportOptions, export};
use forebay_core::{ByteSize, Clock, Rate, Result, SystemClock};
use forebay_store::{Context, Store};

use crate::Exit;
use crate::app::App;
use crate::args::{CkptExportArgs, ExportTo, keys};
use crate::data::count;
use crate::printer::{Printed, visible};
use crate::progress::Bar;
use crate::target::Target;

/// Names that are told one by one; more are counted.
const LEFT_OUT_SHOWN_MAX: usize = 10;

/// The folder that is written to, and the name of the file where one was given: by its ending, since nothing is there yet.
async fn target(args: &CkptExportArgs, context: &Context) -> Result<(Arc<dyn Store>, Option<String>)> {
    let endings: &[&str] = match args.to {
        ExportTo::Safetensors => &[".safetensors"],
        ExportTo::Torch => &[".pt", ".pth", ".bin", ".ckpt"],
        ExportTo::Hf => &[],
    };
    let target = Target::parse(&args.dir)?;
    let named = target.location.split_last().filter(|_| !target.has_slash);
    let named = named.filter(|(_, name)| endings.iter().any(|ending| name.as_str().ends_with(ending)));
    let is_dir = target.location.to_path().is_some_and(|path| path.is_dir());
    match named.filter(|_| !is_dir) {
        Some((folder, name)) => {
            let store = forebay_store::open(&folder, context).await?;
            Ok((store, Some(name.as_str().to_owned())))
        }
        None => Ok((super::destination(&args.dir, context).await?, None)),
    }
}

/// Export.
pub(super) async fn run(args: &CkptExportArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let mut checkpoint = super::open(&args.url, args.step, &context, app.printer()).await?;
    if let Some(trusted) = args.trust.trusted()? {
        checkpoint = checkpoint.require_signature(&trusted)?;
    }
    let mut checkpoint = checkpoint.with_keys(keys(&args.key, &context)?);
    if let Some(log) = &args.access_log {
        checkpoint = checkpoint.with_access_log(AccessLog::new(log));
    }
    let (to, file_name) = target(args, &context).await?;
    let options = ExportOptions {
        format: match args.to {
            ExportTo::Safetensors => ExportFormat::Safetensors,
            ExportTo::Hf => ExportFormat::Hf {
                shard_bytes_max: args.shard_size.0,
            },
            ExportTo::Torch => ExportFormat::Torch,
        },
        prefix: args.prefix.clone(),
        file_name,
    };
    let bar = Bar::new(app.printer(), "exporting", Some(checkpoint.manifest().raw_bytes));
    let begun = SystemClock.now();
    let exported = export(&checkpoint, &to, &options, &|bytes| bar.add(bytes)).await;
    bar.finish();
    let (exported, time) = (exported?, SystemClock.now().saturating_sub(begun));
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&exported)?;
        return Ok(Exit::Success);
    }
    for file in &exported.files {
        printer.data(&file.name)?;
    }
    for name in exported.left_out.iter().take(LEFT_OUT_SHOWN_MAX) {
        printer.say(format_args!("left out, has no place there: {}", visible(name)));
    }
    let more = exported.left_out.len().saturating_sub(LEFT_OUT_SHOWN_MAX);
    if more > 0 {
        printer.say(format_args!("left out, too: {}", count(more as u64, "name")));
    }
    let bytes = exported.files.iter().map(|file| file.bytes).sum();
    printer.say(format_args!(
        "step {}: {} and {} in {} of {}, {:.1} s ({})",
        exported.step,
        count(exported.tensors, "tensor"),
        count(exported.values, "value"),
        count(exported.files.len() as u64, "file"),
        ByteSize(bytes),
        time.as_secs_f64(),
        Rate::of(bytes, time)
    ));
    printer.detail(&exported.ledger);
    Ok(Exit::Success)
}
