//! A block in memory: its samples by their numbers, whole or with the reason why not.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{DataPath, Ledger, Scheme};

use super::held::Hold;
use super::joint::Share;
use crate::block::Block;
use crate::dataset::Dataset;
use crate::filter::key_field;
use crate::order::Selection;

/// A block in memory, with the memory it was promised.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Number of the shard, over all data sets.
    pub(crate) shard: u32,
    /// Number of the first sample in the shard, among those that are kept.
    pub(super) first: u64,
    /// Which samples of the shard are kept; `None` for all.
    pub(super) selection: Option<Arc<Selection>>,
    /// For each field of the data set, its column in this shard.
    pub(super) columns: Arc<[Option<usize>]>,
    pub(super) contents: Contents,
    /// Which way the bytes came.
    pub(crate) ledger: Ledger,
    /// When reading began, when the bytes were there, when they were checked.
    pub(crate) times: Times,
    /// What it shares with other blocks of its shard.
    pub(super) _hold: Hold,
    /// The room that it takes.
    pub(super) _share: Share,
}

/// The samples of a block.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Runs of samples that lie in memory together, ascending. Groups of rows are shared by the lanes that have a part in them.
    pub(super) blocks: Vec<Arc<Block>>,
    /// Samples that cannot be used, by their numbers in the shard, ascending.
    pub(super) bad: Vec<Bad>,
}

impl Contents {
    /// A shard of so many samples, none of which can be used.
    pub(super) fn all_bad(samples: u64, reason: Arc<str>) -> Self {
        let samples = 0..samples;
        Self {
            blocks: Vec::new(),
            bad: vec![Bad { samples, reason }],
        }
    }
}

/// Samples that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bad {
    pub(super) samples: Range<u64>,
    pub(super) reason: Arc<str>,
}

/// Where the bytes of a block came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Origin {
    /// A file system of this machine.
    #[default]
    Disk,
    /// A remote store.
    Store,
    /// What the local cache keeps of a remote store.
    Cache,
}

/// True when the shards are on another machine: a request costs a round trip, and often money.
pub(crate) fn is_far(dataset: &Dataset) -> bool {
    !matches!(dataset.store().location().scheme(), Scheme::File | Scheme::Mem)
}

impl Origin {
    pub(crate) fn of(dataset: &Dataset, ledger: &Ledger) -> Self {
        match (is_far(dataset), ledger.path(DataPath::Http).bytes) {
            (false, _) => Self::Disk,
            (true, 0) => Self::Cache,
            (true, _) => Self::Store,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Store => "store",
            Self::Cache => "cache",
        }
    }
}

/// When a block passed which station.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) origin: Origin,
    pub(crate) asked: Duration,
    pub(crate) arrived: Duration,
    pub(crate) checked: Duration,
}

impl Loaded {
    /// A field of a sample, both counted from 0.
    pub(crate) fn field(&self, sample: u32, field: usize) -> Option<&[u8]> {
        let column = (*self.columns.get(field)?)?;
        let (block, sample) = self.find(sample)?;
        block.field(sample, column)
    }

    /// Whether the shard has a field: else no sample of it can.
    pub(crate) fn has_field(&self, field: usize) -> bool {
        self.columns.get(field).is_some_and(Option::is_some)
    }

    /// The key of a sample, where the format has keys, or a text of that name among the fields that were read. Text of a damaged sample is none.
    pub(crate) fn key(&self, sample: u32) -> Option<&str> {
        let is_bad = self.why_bad(sample).is_some();
        let (block, sample) = self.find(sample)?;
        let in_field = || {
            let column = key_field(block.fields()).filter(|_| !is_bad)?;
            std::str::from_utf8(block.field(sample, column)?).ok()
        };
        block.key(sample).or_else(in_field)
    }

    /// Where the bytes of a sample begin in its shard; rows of groups have no such place.
    pub(crate) fn offset(&self, sample: u32) -> Option<u64> {
        let (block, sample) = self.find(sample)?;
        Some(block.extent(sample)?.start())
    }

    /// Number in its shard of the first sample.
    pub(crate) fn first(&self) -> u64 {
        self.index(0)
    }

    /// Number of a sample in its shard.
    pub(crate) fn index(&self, sample: u32) -> u64 {
        let ordinal = self.first + u64::from(sample);
        let selection = self.selection.as_ref();
        selection
            .and_then(|selection| selection.get(ordinal))
            .unwrap_or(ordinal)
    }

    fn find(&self, sample: u32) -> Option<(&Block, usize)> {
        let index = self.index(sample);
        let after = self
            .contents
            .blocks
            .partition_point(|block| block.first() <= index);
        let block = self.contents.blocks.get(after.checked_sub(1)?)?;
        Some((block, (index - block.first()) as usize))
    }

    /// Why a sample cannot be used, where it cannot.
    pub(crate) fn why_bad(&self, sample: u32) -> Option<&str> {
        if self.contents.bad.is_empty() {
            return None;
        }
        let index = self.index(sample);
        let after = self
            .contents
            .bad
            .partition_point(|bad| bad.samples.start <= index);
        let bad = self.contents.bad.get(after.checked_sub(1)?)?;
        bad.samples.contains(&index).then_some(&*bad.reason)
    }
}
