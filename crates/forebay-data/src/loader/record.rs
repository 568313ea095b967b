//! What goes with a stream from one loader to the next.
//!
//! A stream that begins elsewhere (a state that is loaded, an epoch that is left early) makes a new loader. What it reports, how many bad samples it puts up with, those that are kept, and its trace
//! are of the whole stream all the same.

use std::sync::Arc;

use forebay_core::Result;

use super::StreamSpec;
use super::quarantine::Quarantine;
use super::sources::Sources;
use super::totals::{Report, Totals};
use super::trace::Tracer;
use crate::dataset::Dataset;

/// What was done so far, over all loaders of a stream.
#[derive(Debug, Clone)]
pub struct Record {
    sources: Sources,
    pub(super) totals: Arc<Totals>,
    /// Where bad samples are kept.
    pub(super) quarantine: Option<Arc<Quarantine>>,
}

impl Record {
    /// Of a stream that has not begun.
    pub fn new(sources: &Sources, spec: &StreamSpec) -> Result<Self> {
        let tracer = spec.trace.as_deref();
        let tracer = tracer.map(|path| Tracer::create(path, &spec.order));
        Ok(Self {
            sources: sources.clone(),
            totals: Arc::new(Totals::new(tracer.transpose()?)),
            quarantine: Quarantine::of(spec)?,
        })
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        let unverified = self.sources.datasets().iter().find_map(Dataset::why_unproven);
        self.totals
            .report(self.sources.opening_ledger(), unverified.map(str::to_owned))
    }

    /// What is to be said of a damaged sample beside its damage.
    pub(super) fn why_damaged(&self, shard: u32) -> &'static str {
        if self.sources.is_touched(shard) {
            "; its shard was written again or touched since it was indexed"
        } else {
            ""
        }
    }

    /// What a shard is called: its key, in a mixture behind the number of its data set.
    pub(super) fn shard_name(&self, number: u32) -> String {
        self.sources.shard_name(number)
    }
}
