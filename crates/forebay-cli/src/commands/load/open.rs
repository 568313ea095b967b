//! What `forebay load` loads from: files of weights, or checkpoints that are shown as such.

use std::sync::Arc;

use forebay_ckpt::{CheckpointView, ViewOptions, Viewed};
use forebay_core::{Location, Result};
use forebay_store::Context;
use forebay_weights::source::OpenOptions;
use forebay_weights::{CheckedFile, Edges, Source};

use crate::app::App;
use crate::args::{LoadArgs, keys};
use crate::data::count;
use crate::printer::{Printer, visible};
use crate::target::Target;

/// Names that are told one by one; more are counted.
const LEFT_OUT_SHOWN_MAX: usize = 10;

/// Everything that was named.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) source: Source,
    /// Tensors of checkpoints that cannot be loaded so.
    pub(super) left_out: Vec<String>,
    /// Newer steps that cannot be read.
    pub(super) damaged: Vec<String>,
}

pub(super) async fn open(args: &LoadArgs, app: &App, context: &Context) -> Result<Opened> {
    let locations = args
        .urls
        .iter()
        .map(|url| Ok(Target::parse(url)?.location))
        .collect::<Result<Vec<Location>>>()?;
    let options = OpenOptions {
        verify: args.verify.parse()?,
        cache: app.config().cache()?,
    };
    let view_options = ViewOptions {
        step: args.step,
        keys: keys(&args.key, context)?,
        trusted: args.trust.trusted()?,
        cache: options.cache.clone(),
    };
    let (mut sources, mut left_out, mut damaged) = (Vec::new(), Vec::new(), Vec::new());
    for location in locations {
        let Some(viewed) = CheckpointView::find(&location, &view_options, context).await? else {
            sources.push(Source::open(&[location], &options, context).await?);
            continue;
        };
        let Viewed { view, damaged: newer } = viewed;
        for (step, error) in newer {
            app.printer().object_error(&error, Some(format!("step {step}")));
            damaged.push(format!("step {step}: {error}"));
        }
        left_out.extend_from_slice(view.left_out());
        sources.push(shown(view).await?);
    }
    tell(&left_out, app.printer());
    Ok(Opened {
        source: Source::joined(sources)?,
        left_out,
        damaged,
    })
}

/// A checkpoint as a file.
async fn shown(view: CheckpointView) -> Result<Source> {
    Source::of_checked(CheckedFile {
        location: view.origin(),
        key: view.key().clone(),
        edges: Edges::new(view.cuts())?,
        store: Arc::new(view),
    })
    .await
}

fn tell(left_out: &[String], printer: &Printer) {
    for name in left_out.iter().take(LEFT_OUT_SHOWN_MAX) {
        let name = visible(name);
        printer.say(format_args!("left out, no safetensors file can hold it: {name}"));
    }
    let more = left_out.len().saturating_sub(LEFT_OUT_SHOWN_MAX);
    if more > 0 {
        printer.say(format_args!("left out, too: {}", count(more as u64, "tensor")));
    }
}
