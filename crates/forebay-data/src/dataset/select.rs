//! A part of a data set: which samples of each shard are kept.

use std::sync::Arc;

use forebay_core::Ledger;

use super::Dataset;
use crate::order::Selection;

/// Which samples of each shard are kept.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) shards: Vec<Arc<Selection>>,
    samples: u64,
    /// Which way the bytes came that were read to find out.
    ledger: Ledger,
}

impl Dataset {
    /// The same data set with nothing but the samples that are kept, one selection for each shard.
    pub(crate) fn with_selection(&self, shards: Vec<Selection>, ledger: Ledger) -> Self {
        let selected = Selected {
            samples: shards.iter().map(Selection::count).sum(),
            shards: shards.into_iter().map(Arc::new).collect(),
            ledger,
        };
        Self(Arc::clone(&self.0), Some(Arc::new(selected)))
    }

    /// All of it.
    pub(crate) fn without_selection(&self) -> Self {
        Self(Arc::clone(&self.0), None)
    }

    /// Which samples of a shard are kept; `None` for all.
    pub(crate) fn selection(&self, shard: usize) -> Option<Arc<Selection>> {
        let selected = self.1.as_ref()?;
        selected.shards.get(shard).cloned()
    }

    /// Samples that are kept, over all shards: all of them where nobody filtered.
    pub fn samples_kept(&self) -> u64 {
        match &self.1 {
            Some(selected) => selected.samples,
            None => self.samples(),
        }
    }

    /// Which way the bytes came that filtering read.
    pub fn filter_ledger(&self) -> Option<&Ledger> {
        self.1.as_ref().map(|selected| &selected.ledger)
    }
}
