//! The progress of a pass over the shards of a data set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Key;
use forebay_data::dataset::Progress;

use super::{Bar, WITH_TOTAL};
use crate::printer::{Printer, visible};

/// A bar over all shards.
#[derive(Debug)]
pub(crate) struct DataBar {
    bar: Bar,
    shards_planned: AtomicU64,
    shards_done: AtomicU64,
}

impl DataBar {
    /// Labelled with a short verb.
    pub(crate) fn new(printer: &Arc<Printer>, label: &str) -> Arc<Self> {
        Arc::new(Self {
            bar: Bar::new(printer, label, None),
            shards_planned: AtomicU64::new(0),
            shards_done: AtomicU64::new(0),
        })
    }

    /// The bar itself.
    pub(crate) fn bar(&self) -> &Bar {
        &self.bar
    }
}

impl Progress for DataBar {
    fn noted(&self, note: &str) {
        self.bar.suspend(|printer| printer.say(note));
    }

    fn planned(&self, shards: u64, bytes: u64) {
        self.shards_planned.store(shards, Ordering::Relaxed);
        self.bar.bar.set_length(bytes);
        self.bar.style(WITH_TOTAL);
    }

    fn moved(&self, bytes: u64) {
        self.bar.add(bytes);
    }

    fn shard_done(&self, key: &Key, samples: u64) {
        let done = self.shards_done.fetch_add(1, Ordering::Relaxed) + 1;
        let planned = self.shards_planned.load(Ordering::Relaxed);
        if planned > 1 {
            self.bar.bar.set_prefix(format!("  {done} of {planned} shards"));
        }
        if self.bar.is_verbose() {
            let line = format!("{}: {samples} samples", visible(key.as_str()));
            self.bar.suspend(|printer| printer.detail(line));
        }
    }
}
