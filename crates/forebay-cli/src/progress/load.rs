//! The progress of a load.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_weights::loader::Progress;

use super::{Bar, WITH_TOTAL};
use crate::printer::Printer;

/// Time between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(200);

/// A bar over the bytes of one load after the other.
#[derive(Debug)]
pub(crate) struct LoadBar {
    bar: Bar,
}

impl LoadBar {
    /// Empty.
    pub(crate) fn new(printer: &Arc<Printer>) -> Self {
        Self {
            bar: Bar::new(printer, "loading", None),
        }
    }

    /// Take it off the screen.
    pub(crate) fn finish(&self) {
        self.bar.finish();
    }

    /// Show how far a load is until `work` is over.
    pub(crate) async fn follow<T>(&self, progress: &Progress, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(LOOK) => self.show(progress),
            }
        }
    }

    fn show(&self, progress: &Progress) {
        let total = progress.total_bytes.load(Ordering::Relaxed);
        if total > 0 {
            self.bar.bar.set_length(total);
            self.bar.style(WITH_TOTAL);
            self.bar
                .bar
                .set_position(progress.done_bytes.load(Ordering::Relaxed));
        }
    }
}
