//! Progress bars on stderr: only on a terminal, and only for what takes longer than a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use forebay_store::ObjectMeta;
use forebay_store::copy::{Copied, DestinationCheck, Failure, ObjectCopied, Progress, SourceCheck};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::printer::{Printer, Verbosity};

/// What is over by then needs no bar.
const SHOW_AFTER: Duration = Duration::from_secs(1);

/// Redraws per second while nothing else happens.
const TICK: Duration = Duration::from_millis(200);

/// Bar, rate and time left once the total is known.
const WITH_TOTAL: &str =
    "{msg:<12} {bar:24} {bytes:>11} of {total_bytes:<11} {binary_bytes_per_sec:>13}  {eta} left{prefix}";

/// While a listing still runs, nobody knows how long it takes.
const WITHOUT_TOTAL: &str = "{msg:<12} {spinner} {bytes:>11} {binary_bytes_per_sec:>13}{prefix}";

/// A bar that counts bytes; hidden where bars make no sense.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    bar: ProgressBar,
    printer: Arc<Printer>,
}

impl Bar {
    /// A bar for `bytes`, labelled with a short verb. Inside a runtime only.
    pub(crate) fn new(printer: &Arc<Printer>, label: &str, bytes: Option<u64>) -> Self {
        let bar =
            ProgressBar::with_draw_target(bytes, ProgressDrawTarget::hidden()).with_message(label.to_owned());
        let bar = Self {
            bar,
            printer: Arc::clone(printer),
        };
        bar.style(bytes.is_some());
        if printer.shows_progress() {
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

    fn style(&self, has_total: bool) {
        let template = if has_total { WITH_TOTAL } else { WITHOUT_TOTAL };
        // The templates are constants; a broken one would show in the first test that draws it.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
    }

    /// So many more bytes are done.
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
    fn suspend(&self, print: impl FnOnce(&Printer)) {
        self.bar.suspend(|| print(&self.printer));
    }
}

/// Whatever ends the work, the bar goes off the screen.
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
        self.bar.printer.verbosity() == Verbosity::Verbose
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
            self.bar.style(true);
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
            let line = format!("{}: there already", object.key);
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
        object.from, object.to
    )
}
