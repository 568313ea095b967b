//! Blocks and windows: what is read at once, and what is in memory together.

use std::ops::Range;

use forebay_core::Seed;

use super::{Cut, ShardSize, share_start};

/// Samples that are read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockRef {
    /// Number of the shard in the data set.
    pub shard: u32,
    /// Samples of it.
    pub samples: Range<u64>,
}

impl BlockRef {
    /// How many samples.
    pub fn len(&self) -> u64 {
        self.samples.end - self.samples.start
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }
}

/// Blocks of a lane that are in memory together, and the order in which their samples are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Position in the lane of the first sample.
    pub start: u64,
    /// What to read.
    pub blocks: Vec<BlockRef>,
    /// Positions that it covers: all its samples, or fewer where the order ends before.
    len: u64,
    picks: Picks,
}

/// How the samples of the blocks are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Picks {
    Shuffled(Seed),
    /// Runs, one after the other: block, first sample in it, samples.
    Runs(Vec<(u32, u32, u32)>),
}

impl Window {
    pub(super) fn shuffled(start: u64, blocks: Vec<BlockRef>, len: u64, seed: Seed) -> Self {
        Self {
            start,
            blocks,
            len,
            picks: Picks::Shuffled(seed),
        }
    }

    pub(super) fn in_order(start: u64, blocks: Vec<BlockRef>, runs: Vec<(u32, u32, u32)>) -> Self {
        Self {
            start,
            len: runs.iter().map(|(_, _, samples)| u64::from(*samples)).sum(),
            blocks,
            picks: Picks::Runs(runs),
        }
    }

    /// Positions that it covers.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when it covers none; no plan has such a window.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The position after its last.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// For each position from `start` on: which block, and which sample of it, both counted from 0.
    pub fn order(&self) -> Vec<(u32, u32)> {
        let runs = match &self.picks {
            Picks::Runs(runs) => runs.clone(),
            Picks::Shuffled(_) => {
                let blocks = self.blocks.iter().zip(0..);
                blocks
                    .map(|(block, index)| (index, 0, block.len() as u32))
                    .collect()
            }
        };
        let mut order: Vec<_> = runs
            .into_iter()
            .flat_map(|(block, first, samples)| (first..first + samples).map(move |sample| (block, sample)))
            .collect();
        if let Picks::Shuffled(seed) = self.picks {
            seed.rng().shuffle(&mut order);
        }
        order.truncate(self.len as usize);
        order
    }
}

/// Cut samples `range` of a shard into blocks of up to about `block_bytes`.
pub(super) fn cut_blocks(
    shard: u32,
    size: &ShardSize,
    range: Range<u64>,
    block_bytes: u64,
    blocks: &mut Vec<BlockRef>,
) {
    let mut push = |samples: Range<u64>| {
        if !samples.is_empty() {
            blocks.push(BlockRef { shard, samples });
        }
    };
    match &size.cut {
        Cut::Anywhere => {
            let len = range.end - range.start;
            let parts = len.div_ceil(size.samples_of(block_bytes));
            for part in 0..parts {
                let start = range.start + share_start(len, parts, part);
                push(start..range.start + share_start(len, parts, part + 1));
            }
        }
        Cut::Whole => push(range),
        Cut::Groups(groups) => {
            for samples in join_groups(groups, size.samples_of(block_bytes)) {
                push(samples.start.max(range.start)..samples.end.min(range.end));
            }
        }
    }
}

/// Groups joined to runs of up to `samples_max` samples, of one group at least.
fn join_groups(groups: &[u64], samples_max: u64) -> impl Iterator<Item = Range<u64>> {
    let mut groups = groups.iter().peekable();
    let mut start = 0;
    std::iter::from_fn(move || {
        let mut end = start + *groups.next()?;
        while let Some(group) = groups.next_if(|group| end + **group - start <= samples_max) {
            end += group;
        }
        let run = start..end;
        start = end;
        Some(run)
    })
}

/// The block of a whole shard that holds sample `sample`, which is below its samples.
pub(super) fn block_around(size: &ShardSize, sample: u64, block_bytes: u64) -> Range<u64> {
    match &size.cut {
        Cut::Anywhere => {
            let parts = size.samples.div_ceil(size.samples_of(block_bytes));
            // The last part that begins at or before the sample.
            let part = ((u128::from(sample) + 1) * u128::from(parts) - 1) / u128::from(size.samples);
            let part = part as u64;
            share_start(size.samples, parts, part)..share_start(size.samples, parts, part + 1)
        }
        Cut::Whole => 0..size.samples,
        Cut::Groups(groups) => join_groups(groups, size.samples_of(block_bytes))
            .find(|run| run.contains(&sample))
            .unwrap_or(0..size.samples),
    }
}
