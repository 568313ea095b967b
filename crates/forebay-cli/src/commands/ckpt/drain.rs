//! `forebay ckpt drain` and `forebay ckpt restore`: a line for each checkpoint that was brought; what is damaged or in the way is "no".

use std::sync::Arc;
use std::time::Duration;

use forebay_ckpt::{AccessLog, DrainEvent, DrainOptions, DrainReport, Publish, drain};
use forebay_core::{ByteSize, Clock, ErrorKind, Rate, SystemClock};
use forebay_store::{Context, Store};

use crate::Exit;
use crate::app::App;
use crate::args::{BringArgs, CkptDrainArgs, CkptRestoreArgs};
use crate::data::count;
use crate::printer::{Printed, Stop, visible};
use crate::progress::Bar;

/// After a failure, a watcher waits this much longer each time, up to so many times its usual pause.
const PAUSES_MAX: u32 = 32;

/// Drain once, or for ever.
pub(super) async fn run(args: &CkptDrainArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let options = DrainOptions {
        steps: (!args.step.is_empty()).then(|| args.step.clone()),
        retention: args.keep.retention(),
        compress: args.compress,
        ..options(&args.bring)
    };
    if !args.watch {
        let work = async {
            let from = super::store(&args.from, &context).await?;
            let to = super::destination(&args.to, &context).await?;
            bring(&from, &to, &context, &options, app).await
        };
        return app.unless_cancelled(work).await;
    }
    app.unless_cancelled(watch(args, &options, &context, app)).await
}

async fn watch(args: &CkptDrainArgs, options: &DrainOptions, context: &Context, app: &App) -> Printed<Exit> {
    let pause = Duration::from_secs(args.every);
    let mut pauses = 1;
    loop {
        match pass(args, options, context, app).await {
            Ok(()) => pauses = 1,
            // Whoever watches does so because things fail and come back.
            Err(Stop::Error(error)) if may_pass(error.kind()) => {
                app.printer().object_error(&error, None);
                pauses = (pauses * 2).min(PAUSES_MAX);
            }
            Err(stop) => return Err(stop),
        }
        tokio::time::sleep(pause * pauses).await;
    }
}

/// False for what waiting does not put right.
fn may_pass(kind: ErrorKind) -> bool {
    !matches!(
        kind,
        ErrorKind::InvalidInput | ErrorKind::Unsupported | ErrorKind::Internal
    )
}

async fn pass(args: &CkptDrainArgs, options: &DrainOptions, context: &Context, app: &App) -> Printed<()> {
    let from = match super::store(&args.from, context).await {
        // The run may not have begun yet.
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        from => from?,
    };
    let to = super::destination(&args.to, context).await?;
    let bar = Progress::new(app);
    let report = drain(from, to, context, options, &|event| bar.tell(event)).await;
    let time = bar.finish();
    let report = report?;
    if report.drained.is_empty() && report.is_whole() {
        return Ok(());
    }
    print(&report, time, app)
}

/// Bring one checkpoint back.
pub(super) async fn restore(args: &CkptRestoreArgs, app: &App) -> Printed<Exit> {
    let context = app.context()?;
    let work = async {
        let from = super::store(&args.from, &context).await?;
        let step = match args.step {
            Some(step) => step,
            None => super::open(&args.from, None, &context, app.printer())
                .await?
                .step(),
        };
        let to = super::destination(&args.to, &context).await?;
        let options = DrainOptions {
            steps: Some(vec![step]),
            ..options(&args.bring)
        };
        bring(&from, &to, &context, &options, app).await
    };
    app.unless_cancelled(work).await
}

fn options(args: &BringArgs) -> DrainOptions {
    DrainOptions {
        publish: match args {
            BringArgs { replace: true, .. } => Publish::Replace,
            BringArgs {
                single_writer: true, ..
            } => Publish::SingleWriter,
            _ => Publish::IfAbsent,
        },
        bytes_per_second_max: args.bytes_per_second.map(|size| size.0),
        reads_back: args.read_back,
        access_log: args.access_log.as_ref().map(AccessLog::new),
        ..DrainOptions::default()
    }
}

async fn bring(
    from: &Arc<dyn Store>,
    to: &Arc<dyn Store>,
    context: &Context,
    options: &DrainOptions,
    app: &App,
) -> Printed<Exit> {
    let bar = Progress::new(app);
    let tell = |event| bar.tell(event);
    let report = drain(Arc::clone(from), Arc::clone(to), context, options, &tell).await;
    let time = bar.finish();
    let report = report?;
    print(&report, time, app)?;
    Ok(if report.is_whole() {
        Exit::Success
    } else {
        Exit::No
    })
}

/// A bar whose end moves as checkpoints are begun.
struct Progress {
    bar: Bar,
    begun: Duration,
}

impl Progress {
    fn new(app: &App) -> Self {
        Self {
            bar: Bar::new(app.printer(), "draining", None),
            begun: SystemClock.now(),
        }
    }

    fn tell(&self, event: DrainEvent) {
        if let DrainEvent::Sent(bytes) = event {
            self.bar.add(bytes);
        }
    }

    fn finish(&self) -> Duration {
        self.bar.finish();
        SystemClock.now().saturating_sub(self.begun)
    }
}

fn print(report: &DrainReport, time: Duration, app: &App) -> Printed<()> {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    for drained in &report.drained {
        printer.data(drained.step)?;
    }
    for passed in &report.passed {
        printer.say(format_args!("step {}: {}", passed.step, visible(&passed.why)));
    }
    let sum = |of: fn(&forebay_ckpt::Drained) -> u64| report.drained.iter().map(of).sum::<u64>();
    let bytes = sum(|drained| drained.bytes);
    printer.say(format_args!(
        "brought {}, {} of {} in {:.1} s ({}); {} of {} were there, and so were {}",
        count(report.drained.len() as u64, "checkpoint"),
        count(sum(|drained| drained.objects), "object"),
        ByteSize(bytes),
        time.as_secs_f64(),
        Rate::of(bytes, time),
        count(sum(|drained| drained.objects_there), "object"),
        ByteSize(sum(|drained| drained.bytes_there)),
        count(report.there.len() as u64, "checkpoint"),
    ));
    let recoded = sum(|drained| drained.recoded_bytes);
    if recoded > 0 {
        printer.say(format_args!(
            "{} of chunks were compressed on the way",
            ByteSize(recoded)
        ));
    }
    printer.detail(&report.ledger);
    Ok(())
}
