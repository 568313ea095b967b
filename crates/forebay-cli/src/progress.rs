//! Progress bars on stderr: only on a terminal, and only for what takes longer than a second.

mod data;
mod load;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::Error;
use forebay_store::ObjectMeta;
use forebay_store::copy::{Copied, DestinationCheck, Failure, ObjectCopied, Progress, SourceCheck};
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

pub(crate) use data::DataBar;
pub(crate) use load::LoadBar;

use crate::printer::{Printer, Verbosity, visible};

/// What is over by then needs no bar.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// Redraws per second while nothing else happens.
const TICK: Duration = Duration::from_millis(200);

/// Bar, rate and time left once the total is known.
const WITH_TOTAL: &str = "{msg:<12} {bar:24} {bytes:>11} of {total_bytes:<11} {rate:>13}{left}{prefix}";

/// While a listing still runs, nobody knows how long it takes.
const WITHOUT_TOTAL: &str = "{msg:<12} {spinner} {bytes:>11} {rate:>13}{prefix}";

/// Objects instead of bytes.
const COUNTER: &str = "{msg:<12} {spinner} {human_pos} objects";

/// Nothing to count.
const WAITING: &str = "{msg:<12} {spinner} {elapsed}";

/// A bar that counts; hidden where bars make no sense.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    bar: ProgressBar,
    printer: Arc<Printer>,
}

impl Bar {
    /// A bar for `bytes`, labelled with a short verb. Inside a runtime only.
    pub(crate) fn new(printer: &Arc<Printer>, label: &str, bytes: Option<u64>) -> Self {
        let template = if bytes.is_some() {
            WITH_TOTAL
        } else {
            WITHOUT_TOTAL
        };
        Self::make(printer, label, bytes, template, printer.shows_progress())
    }

    /// A bar for bytes that go to stdout.
    pub(crate) fn of_data(printer: &Arc<Printer>, label: &str, bytes: u64) -> Self {
        let is_shown = printer.shows_progress_of_data();
        Self::make(printer, label, Some(bytes), WITH_TOTAL, is_shown)
    }

    /// A counter of objects whose names go to stdout.
    pub(crate) fn counter_of_data(printer: &Arc<Printer>, label: &str) -> Self {
        Self::make(printer, label, None, COUNTER, printer.shows_progress_of_data())
    }

    /// A counter of objects.
    pub(crate) fn counter(printer: &Arc<Printer>, label: &str) -> Self {
        Self::make(printer, label, None, COUNTER, printer.shows_progress())
    }

    /// A sign of life while nothing can be counted.
    pub(crate) fn waiting(printer: &Arc<Printer>, label: &str) -> Self {
        Self::make(printer, label, None, WAITING, printer.shows_progress())
    }

    fn make(printer: &Arc<Printer>, label: &str, total: Option<u64>, template: &str, is_shown: bool) -> Self {
        let bar =
            ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden()).with_message(label.to_owned());
        let bar = Self {
            bar,
            printer: Arc::clone(printer),
        };
        bar.style(template);
        if is_shown {
            let later = bar.bar.downgrade();
            tokio::spawn(async move {
                tokio::time::sleep(SHOW_AFTER).await;
                if let Some(bar) = later.upgrade().filter(|bar| !bar.is_finished()) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(TICK);
                }
            });
        }
        bar
    }

    fn style(&self, template: &str) {
        // The templates are constants; a broken one would show in the first test that draws it.
        if let Ok(style) = ProgressStyle::with_template(template) {
            let style = style.with_key("rate", write_rate).with_key("left", write_left);
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    /// The way to the terminal; while the bar is up, inside [`Self::suspend`] only.
    pub(crate) fn printer(&self) -> &Printer {
        &self.printer
    }

    /// True when each object is told.
    pub(crate) fn is_verbose(&self) -> bool {
        self.printer.verbosity() == Verbosity::Verbose
    }

    /// So many more bytes or objects are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Begin another stage of the same work.
    pub(crate) fn stage(&self, label: &str, bytes: u64) {
        self.bar.reset();
        self.bar.set_length(bytes);
        self.bar.set_message(label.to_owned());
    }

    /// Take it off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Print something without tearing the bar.
    pub(crate) fn suspend(&self, print: impl FnOnce(&Printer)) {
        self.bar.suspend(|| print(&self.printer));
    }
}

/// Before the first part has arrived there is no rate to tell.
fn write_rate(state: &ProgressState, out: &mut dyn fmt::Write) {
    if state.pos() > 0 {
        // A bar that cannot be drawn is no loss.
        let _: fmt::Result = write!(out, "{}/s", BinaryBytes(state.per_sec() as u64));
    }
}

/// Without a rate nobody knows how long it takes.
fn write_left(state: &ProgressState, out: &mut dyn fmt::Write) {
    if state.pos() > 0 && state.per_sec() >= 1.0 {
        let _: fmt::Result = write!(out, "  {:#} left", HumanDuration(state.eta()));
    }
}

/// The progress of a copy, over all its objects.
#[derive(Debug)]
pub(crate) struct CopyBar {
    bar: Bar,
    bytes_planned: AtomicU64,
    objects_planned: AtomicU64,
    objects_done: AtomicU64,
    has_total: AtomicBool,
    /// What objects are called in remarks: the place the copy comes from.
    source: forebay_core::Location,
}

impl CopyBar {
    /// A bar for a copy out of `source`.
    pub(crate) fn new(printer: &Arc<Printer>, source: &forebay_core::Location) -> Arc<Self> {
        Arc::new(Self {
            bar: Bar::new(printer, "copying", None),
            bytes_planned: AtomicU64::new(0),
            objects_planned: AtomicU64::new(0),
            objects_done: AtomicU64::new(0),
            has_total: AtomicBool::new(false),
            source: source.clone(),
        })
    }

    /// Take it off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish();
    }

    fn count_object(&self) {
        let done = self.objects_done.fetch_add(1, Ordering::Relaxed) + 1;
        let planned = self.objects_planned.load(Ordering::Relaxed).max(done);
        if planned > 1 {
            self.bar.bar.set_prefix(format!("  {done} of {planned} objects"));
        }
    }

    fn is_verbose(&self) -> bool {
        self.bar.is_verbose()
    }
}

impl Progress for CopyBar {
    fn planned(&self, objects: u64, bytes: u64) {
        self.objects_planned.fetch_add(objects, Ordering::Relaxed);
        let total = self.bytes_planned.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if self.has_total.load(Ordering::Relaxed) {
            self.bar.bar.set_length(total);
        }
    }

    fn planned_all(&self) {
        if !self.has_total.swap(true, Ordering::Relaxed) {
            self.bar
                .bar
                .set_length(self.bytes_planned.load(Ordering::Relaxed));
            self.bar.style(WITH_TOTAL);
        }
    }

    fn moved(&self, bytes: u64) {
        self.bar.add(bytes);
    }

    fn object_done(&self, object: &ObjectCopied) {
        self.count_object();
        if self.is_verbose() {
            self.bar.suspend(|printer| printer.detail(describe(object)));
        }
    }

    fn object_skipped(&self, object: &ObjectMeta) {
        if self.is_verbose() {
            let line = format!("{}: there already", visible(object.key.as_str()));
            self.bar.suspend(|printer| printer.detail(line));
        }
    }

    fn special_skipped(&self, what: &Error) {
        if self.is_verbose() {
            let line = format!("left out: {}", visible(&what.to_string()));
            self.bar.suspend(|printer| printer.detail(line));
        }
    }

    fn object_failed(&self, failure: &Failure) {
        self.count_object();
        // Each failure is told when it happens; the report at the end only counts them.
        self.bar
            .suspend(|printer| match (&failure.key, failure.error.location()) {
                (Some(key), None) => {
                    let place = self.source.join(key);
                    printer.object_error(&failure.error, Some(place.to_string()));
                }
                _ => printer.object_error(&failure.error, None),
            });
    }
}

fn describe(object: &ObjectCopied) -> String {
    let source = match object.source {
        SourceCheck::Matched => "matches the source's checksum",
        SourceCheck::NoneKept => "the source keeps no checksum",
        SourceCheck::NotAsked => "the source was not asked for a checksum",
    };
    let destination = match object.destination {
        DestinationCheck::ByStore => "checked by the store",
        DestinationCheck::ReadBack => "read back",
        DestinationCheck::NotCompared => "not compared",
    };
    let resumed = match object.copied {
        Copied::Whole => String::new(),
        Copied::Resumed { bytes_before } => {
            format!(", resumed after {}", forebay_core::ByteSize(bytes_before))
        }
    };
    format!(
        "{} -> {}: {source}, {destination}{resumed}",
        visible(object.from.as_str()),
        visible(object.to.as_str())
    )
}
