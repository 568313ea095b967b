//! What goes with a stream from one loader to the next.
//!
//! A stream that begins elsewhere (a state that is loaded, an epoch that is left early) makes a new loader. What it reports, how many bad samples it puts up with, those that are kept, and its trace
//! are of the whole stream all the same.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use forebay_core::Result;

use super::StreamSpec;
use super::quarantine::Quarantine;
use super::sources::Sources;
use super::totals::{Report, Totals};
use super::trace::Tracer;
use crate::dataset::Dataset;

/// What was done so far, over all loaders of a stream; cheap to clone.
#[derive(Debug, Clone)]
pub struct Record(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sources: Sources,
    totals: Totals,
    /// Whether its files were made: by the first loader that could begin, for a stream that is refused is to leave nothing and to write over nothing.
    has_begun: Mutex<bool>,
    /// Where bad samples are kept.
    quarantine: OnceLock<Quarantine>,
}

impl Record {
    /// Of a stream that has not begun.
    pub fn new(sources: &Sources) -> Self {
        Self(Arc::new(Inner {
            sources: sources.clone(),
            totals: Totals::default(),
            has_begun: Mutex::default(),
            quarantine: OnceLock::new(),
        }))
    }

    /// A loader begins: make the files that are written while it goes on, where none before it has made them.
    pub(super) fn begin(&self, spec: &StreamSpec) -> Result<()> {
        let mut has_begun = self.0.has_begun.lock().unwrap_or_else(PoisonError::into_inner);
        if *has_begun {
            self.0.totals.go_on();
            return Ok(());
        }
        let quarantine = Quarantine::of(spec)?;
        if let Some(path) = &spec.trace {
            self.0.totals.trace(Tracer::create(path, &spec.order)?);
        }
        if let Some(quarantine) = quarantine {
            self.0.quarantine.get_or_init(|| quarantine);
        }
        *has_begun = true;
        Ok(())
    }

    /// What is streamed.
    pub(super) fn sources(&self) -> &Sources {
        &self.0.sources
    }

    /// The counters.
    pub(super) fn totals(&self) -> &Totals {
        &self.0.totals
    }

    /// Where bad samples are kept, if they are.
    pub(super) fn quarantine(&self) -> Option<&Quarantine> {
        self.0.quarantine.get()
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        let sources = &self.0.sources;
        let unverified = sources.datasets().iter().find_map(Dataset::why_unproven);
        let unverified = unverified.map(str::to_owned);
        self.0.totals.report(sources.opening_ledger(), unverified)
    }

    /// What is to be said of a damaged sample beside its damage.
    pub(super) fn why_damaged(&self, shard: u32) -> &'static str {
        if self.0.sources.is_touched(shard) {
            "; its shard was written again or touched since it was indexed"
        } else {
            ""
        }
    }

    /// What a shard is called: its key, in a mixture behind the number of its data set.
    pub(super) fn shard_name(&self, number: u32) -> String {
        self.0.sources.shard_name(number)
    }
}
