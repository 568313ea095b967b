//! What one rank reads without shuffling: a stripe of every batch.
//!
//! Samples stand in one row, which begins again at its end when the last batch wraps around: a *place* in the row only ever grows. Rank `r` takes places
//! `r x own` to `(r + 1) x own` of every batch; its own places, counted, are its positions. A window is a block of a shard, or what the rank takes of it.

use std::ops::Range;
use std::sync::Arc;

use super::lane::len_u32;
use super::window::{BlockRef, Window, block_around};
use super::{Cut, Inner, Last, share_start};

/// The stripe of one rank in one epoch.
#[derive(Debug, Clone)]
pub(super) struct Stripe {
    order: Arc<Inner>,
    base: u64,
    /// Full batches.
    full: u64,
    /// Samples of a shorter last batch over all ranks.
    tail: u64,
}

impl Stripe {
    pub(super) fn new(order: Arc<Inner>, base: u64) -> Self {
        let left = order.samples.saturating_sub(base);
        let batch = order.spec.batch_global();
        let (full, tail) = match order.spec.last {
            Last::Drop => (left / batch, 0),
            Last::Short => (left / batch, left % batch),
            Last::Wrap => (left.div_ceil(batch), 0),
        };
        Self {
            order,
            base,
            full,
            tail,
        }
    }

    pub(super) fn batches(&self) -> u64 {
        self.full + u64::from(self.tail > 0)
    }

    /// Samples of all ranks.
    pub(super) fn samples_given(&self) -> u64 {
        self.full * self.order.spec.batch_global() + self.tail
    }

    /// Positions of this rank.
    pub(super) fn len(&self) -> u64 {
        self.full * self.order.spec.batch_size + len(&self.tail_share())
    }

    /// Positions that a batch takes.
    pub(super) fn positions(&self, batch: u64) -> Range<u64> {
        let own = self.order.spec.batch_size;
        let at = |batch: u64| {
            if batch <= self.full {
                batch * own
            } else {
                self.len()
            }
        };
        at(batch)..at(batch.saturating_add(1))
    }

    /// The batch that takes a position.
    pub(super) fn batch_of(&self, position: u64) -> u64 {
        (position / self.order.spec.batch_size).min(self.full)
    }

    /// What this rank takes of the shorter batch, counted from its beginning.
    fn tail_share(&self) -> Range<u64> {
        let (rank, world) = (u64::from(self.order.spec.rank), u64::from(self.order.spec.world));
        share_start(self.tail, world, rank)..share_start(self.tail, world, rank + 1)
    }

    /// Places that the rank takes of a batch.
    fn places(&self, batch: u64) -> Range<u64> {
        let spec = &self.order.spec;
        let begin = self.base + batch * spec.batch_global();
        let share = if batch < self.full {
            let start = u64::from(spec.rank) * spec.batch_size;
            start..start + spec.batch_size
        } else {
            self.tail_share()
        };
        begin + share.start..begin + share.end
    }

    /// How many of its places are below `place`.
    fn positions_below(&self, place: u64) -> u64 {
        let batch = place.saturating_sub(self.base) / self.order.spec.batch_global();
        let batch = batch.min(self.full);
        let places = self.places(batch);
        let within = place.clamp(places.start, places.end) - places.start;
        self.positions(batch).start + within
    }

    /// The window that holds a position, which is below [`len`](Self::len).
    pub(super) fn window_at(&self, position: u64) -> Window {
        let order = &self.order;
        let batch = self.batch_of(position);
        let place = self.places(batch).start + position - self.positions(batch).start;
        let (turn, sample) = (place / order.samples, place % order.samples);
        let entry = order.starts.partition_point(|start| *start <= sample) - 1;
        let (shard, shard_start) = (order.row[entry], order.starts[entry]);
        let size = &order.shards.sizes()[shard as usize];
        // The more ranks share a block, the larger it may be.
        let bytes = order.spec.block_bytes.saturating_mul(u64::from(order.spec.world));
        let mut block = block_around(size, sample - shard_start, bytes);
        block.end = block.end.min(order.samples - shard_start);
        // Place of the shard's first sample in this turn.
        let origin = turn * order.samples + shard_start;
        let positions = self.positions_below(origin + block.start)..self.positions_below(origin + block.end);
        let runs = self.runs(&positions, origin, &block);
        window(shard, &size.cut, block, &runs, positions.start)
    }

    /// Positions as runs of samples of a block, neighbours joined.
    fn runs(&self, positions: &Range<u64>, origin: u64, block: &Range<u64>) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut position = positions.start;
        while position < positions.end {
            let batch = self.batch_of(position);
            let skipped = position - self.positions(batch).start;
            let places = self.places(batch);
            let start = places.start + skipped - origin;
            let run = start..(places.end - origin).min(block.end);
            position += len(&run);
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        runs
    }
}

/// A window of one block, or of the runs of it that are needed where it can be cut there.
fn window(shard: u32, cut: &Cut, block: Range<u64>, runs: &[Range<u64>], start: u64) -> Window {
    let block_ref = |samples: Range<u64>| BlockRef { shard, samples };
    if *cut == Cut::Anywhere {
        let picks = runs.iter().zip(0..).map(|(run, index)| (index, 0, len_u32(run)));
        return Window::in_order(
            start,
            runs.iter().cloned().map(block_ref).collect(),
            picks.collect(),
        );
    }
    let picks = runs
        .iter()
        .map(|run| (0, (run.start - block.start) as u32, len_u32(run)));
    let picks = picks.collect();
    Window::in_order(start, vec![block_ref(block)], picks)
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}
