//! `forebay stream`: drain a data set as a training run would, and tell how fast it came and what it waited for.
//!
//! ```text
//! URL, URL... --open.rs--> Dataset (its index is read, or made; filtered) -> Loader -> batches, counted and dropped
//!                                                                              |
//!                                             report.rs: the table or --json <-+-> state.rs: where the run stands, for --resume
//! ```
//!
//! Ctrl-C ends the run after the batch in hand: what was done is told, and with `--state-out` the next run goes on from there.

mod open;
mod report;
mod state;

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::{Clock, Error, ErrorKind, Result, Seed, SystemClock};
use forebay_data::Dataset;
use forebay_data::filter::Filter;
use forebay_data::loader::{Batch, Decode, Loader, Sources, StreamSpec};
use forebay_data::order::{Last, OrderSpec};
use serde::Serialize;

use crate::Exit;
use crate::app::{App, interrupted};
use crate::args::{LastArg, StreamArgs};
use crate::bench::meter::Meter;
use crate::outlet::Outlet;
use crate::printer::Printed;
use crate::progress::Bar;
use open::Opening;
use report::Report;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// After the last batch.
    Over,
    /// After as many batches as were asked for.
    Enough,
    /// By Ctrl-C.
    Interrupted,
}

impl End {
    /// In `--json`.
    fn name(self) -> &'static str {
        match self {
            Self::Over => "over",
            Self::Enough => "enough",
            Self::Interrupted => "interrupted",
        }
    }
}

/// Stream.
pub(super) async fn run(args: &StreamArgs, app: &App) -> Printed<Exit> {
    let spec = spec_of(args)?;
    let filter = args.filter.as_deref().map(Filter::parse).transpose()?;
    let context = app.context()?;
    let resumed = match &args.resume {
        Some(text) => Some(app.unless_cancelled(state::load(text, &context)).await?),
        None => None,
    };
    let bar = Bar::new(app.printer(), "opening", Some(0));
    let begun = SystemClock.now();
    let opened = app
        .unless_cancelled(Opening::new(args, &context, app, &bar).open(filter.as_ref(), &spec))
        .await;
    let (sources, stores) = opened.inspect_err(|_| bar.finish())?;
    let open_time = SystemClock.now().saturating_sub(begun);
    let meter = Meter::start();
    let loader = match &resumed {
        Some(position) => Loader::resume(sources.clone(), &spec, position),
        None => Loader::new(sources.clone(), &spec),
    };
    let mut run = Run {
        loader: loader.inspect_err(|_| bar.finish())?,
        sink: args.keys.then(|| Outlet::open(app)).transpose()?,
        epoch: EpochBar::new(bar, &sources, &spec),
        begun: SystemClock.now(),
        first_batch: None,
        batches: 0,
    };
    let drained = run.drain(args.batches, app).await;
    let measured = meter.stop(run.loader.report().bytes);
    run.epoch.bar.finish();
    let drained = match run.sink.take() {
        // After Ctrl-C nobody waits for a reader of stdout.
        Some(sink) if !matches!(drained, Ok(End::Interrupted)) => sink.close(drained).await,
        _ => drained,
    };
    if let Some(path) = &args.state_out {
        state::save(path, &run.loader.position(), &context).await?;
    }
    let end = drained?;
    Report::new(args, &spec, &run, end, open_time, &measured).print(args, app)?;
    for store in stores {
        store.finish(app.printer()).await;
    }
    if end == End::Interrupted {
        // Before the error: what was done so far is the data of this run.
        app.printer().flush()?;
        return Err(interrupted().into());
    }
    if resumed.is_some() && run.batches == 0 && end == End::Over {
        app.printer().say(format_args!(
            "nothing was left: the position is at the end of the run; --epochs counts from its beginning, so --epochs {} gives one more",
            args.epochs.saturating_add(1)
        ));
        return Ok(Exit::No);
    }
    Ok(Exit::Success)
}

/// The settings of the loader.
fn spec_of(args: &StreamArgs) -> Result<StreamSpec> {
    let defaults = StreamSpec::default();
    let order = OrderSpec {
        seed: Seed(args.seed),
        shuffle: args.shuffle,
        lanes: args.lanes,
        batch_size: args.batch_size,
        rank: args.rank,
        world: args.world,
        block_bytes: args.block_size.0,
        window_bytes: args.window.0,
        last: match args.last {
            LastArg::Wrap => Last::Wrap,
            LastArg::Short if !args.drop_last => Last::Short,
            LastArg::Short | LastArg::Drop => Last::Drop,
        },
        limit: args.limit,
        ..OrderSpec::default()
    };
    Ok(StreamSpec {
        order,
        epochs: Some(args.epochs),
        fields: (!args.fields.is_empty()).then(|| args.fields.clone()),
        memory_bytes_max: args.memory.0,
        threads: args.threads.map_or(defaults.threads, |threads| threads as usize),
        bad: args.bad.parse()?,
        decode: args
            .decode
            .iter()
            .map(|text| decode_of(text))
            .collect::<Result<_>>()?,
        trace: args.trace.as_ref().map(PathBuf::from),
        ..defaults
    })
}

/// `FIELD=HOW`.
fn decode_of(text: &str) -> Result<(String, Decode)> {
    match text.split_once('=') {
        Some((field, how)) if !field.is_empty() => Ok((field.to_owned(), how.parse()?)),
        _ => {
            let message = format!("'{}' does not say what to decode", text.escape_debug());
            Err(Error::new(ErrorKind::InvalidInput, "arguments", message)
                .with_hint("write --decode FIELD=HOW, such as --decode jpg=image:rrc:224,flip"))
        }
    }
}

/// How far the epoch is, in bytes of the shards.
struct EpochBar {
    bar: Bar,
    sample_bytes: f64,
    epoch_bytes: u64,
    epochs: u64,
    /// The one that the bar shows.
    shown: Option<u64>,
}

impl EpochBar {
    fn new(bar: Bar, sources: &Sources, spec: &StreamSpec) -> Self {
        let shards = || sources.datasets().iter().flat_map(Dataset::shards);
        let bytes: u64 = shards().map(|shard| shard.raw_bytes).sum();
        let samples: u64 = shards().map(|shard| shard.samples).sum();
        let sample_bytes = bytes as f64 / samples.max(1) as f64;
        let samples = spec
            .order
            .limit
            .map_or(sources.samples_kept(), |limit| limit.min(sources.samples_kept()));
        Self {
            bar,
            sample_bytes,
            epoch_bytes: (samples as f64 * sample_bytes / f64::from(spec.order.world)) as u64,
            epochs: spec.epochs.unwrap_or(u64::MAX),
            shown: None,
        }
    }

    fn show(&mut self, batch: &Batch) {
        let bytes = |samples: u64| (samples as f64 * self.sample_bytes) as u64;
        let len = batch.len() as u64;
        if self.shown.replace(batch.epoch()) != Some(batch.epoch()) {
            let label = match self.epochs {
                1 => "streaming".to_owned(),
                epochs => format!("epoch {} of {epochs}", batch.epoch() + 1),
            };
            self.bar.stage(&label, self.epoch_bytes);
            // A run that was resumed is in the middle.
            self.bar.add(bytes(batch.index() * len));
        }
        self.bar.add(bytes(len));
    }
}

/// A run under way.
struct Run {
    loader: Loader,
    /// Where keys go, when they were asked for.
    sink: Option<Outlet>,
    epoch: EpochBar,
    begun: Duration,
    first_batch: Option<Duration>,
    batches: u64,
}

/// A sample in `--json --keys`.
#[derive(Debug, Serialize)]
struct KeyRow<'a> {
    key: &'a str,
    epoch: u64,
    batch: u64,
}

impl Run {
    async fn drain(&mut self, batches_max: Option<u64>, app: &App) -> Printed<End> {
        while batches_max.is_none_or(|max| self.batches < max) {
            let next = tokio::select! {
                biased;
                () = app.cancel().cancelled() => return Ok(End::Interrupted),
                next = self.loader.next_batch() => next,
            };
            let Some(batch) = next.transpose()? else {
                return Ok(End::Over);
            };
            if self.first_batch.is_none() {
                self.first_batch = Some(SystemClock.now().saturating_sub(self.begun));
            }
            self.batches += 1;
            self.epoch.show(&batch);
            match self.write_keys(&batch, app).await {
                // The thread that writes them may have seen Ctrl-C first.
                Err(_) if app.cancel().is_cancelled() => return Ok(End::Interrupted),
                written => written?,
            }
        }
        self.loader.end()?;
        Ok(End::Enough)
    }

    async fn write_keys(&mut self, batch: &Batch, app: &App) -> Printed {
        let Some(sink) = &mut self.sink else {
            return Ok(());
        };
        let sources = self.loader.sources();
        for key in batch.keys() {
            let key = key.text(|shard| Some(sources.shard(shard)?.1.key.clone()));
            if app.printer().is_json() {
                let row = KeyRow {
                    key: &key,
                    epoch: batch.epoch(),
                    batch: batch.index(),
                };
                sink.json(&row).await?;
            } else {
                sink.data(&key).await?;
            }
        }
        Ok(())
    }
}
