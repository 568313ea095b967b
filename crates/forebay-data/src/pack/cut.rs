//! Where shards end: a function of the samples and the settings, in one cheap pass over their sizes.
//!
//! Whoever reads, and however many build shards, the samples pass here in the order of the input; so the same samples make the same shards.

use std::ops::Range;
use std::sync::Arc;

use super::chunk::Chunk;
use super::memory::Held;
use super::output::Output;

/// The next of a shard.
#[derive(Debug)]
pub(super) struct Piece {
    /// Number of the shard.
    pub(super) number: u64,
    pub(super) what: What,
}

#[derive(Debug)]
pub(super) enum What {
    /// Some samples of a chunk.
    Samples(Arc<Taken>, Range<usize>),
    /// It is complete: the positions of the input that it covers, samples that a filter left out among them.
    End(Range<u64>),
}

/// A chunk, with the room that is kept for it until the last shard has its samples.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) chunk: Chunk,
    pub(super) _room: Held,
}

/// Cuts samples into shards.
#[derive(Debug)]
pub(super) struct Cutter {
    output: Arc<Output>,
    samples_max: u64,
    /// Samples that may still come.
    left: u64,
    number: u64,
    start: u64,
    /// Position behind the last sample taken.
    end: u64,
    cost: u64,
    samples: u64,
}

impl Cutter {
    /// From shard `number` on, which begins at position `start`; `left` samples are wanted at most.
    pub(super) fn new(
        output: Arc<Output>,
        samples_max: Option<u64>,
        left: u64,
        number: u64,
        start: u64,
    ) -> Self {
        Self {
            output,
            samples_max: samples_max.unwrap_or(u64::MAX),
            left,
            number,
            start,
            end: start,
            cost: 0,
            samples: 0,
        }
    }

    /// True when no more samples are wanted.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Take the next samples; the pieces of shards that they make.
    pub(super) fn push(&mut self, taken: Taken) -> Vec<Piece> {
        let (taken, mut pieces) = (Arc::new(taken), Vec::new());
        let chunk = &taken.chunk;
        let mut first = 0;
        for index in 0..chunk.len() {
            if self.left == 0 {
                pieces.extend(self.samples(&taken, first..index));
                return pieces;
            }
            let cost = self.cost.saturating_add(chunk.cost(index));
            let is_full = self.samples >= self.samples_max || !self.output.fits(cost);
            if is_full && self.samples > 0 {
                pieces.extend(self.samples(&taken, first..index));
                pieces.extend(self.cut());
                first = index;
            }
            self.cost = self.cost.saturating_add(chunk.cost(index));
            self.samples += 1;
            self.left -= 1;
            self.end = chunk.position(index) + 1;
        }
        pieces.extend(self.samples(&taken, first..chunk.len()));
        pieces
    }

    /// There are no more samples.
    pub(super) fn finish(mut self) -> Option<Piece> {
        self.cut()
    }

    fn samples(&self, taken: &Arc<Taken>, range: Range<usize>) -> Option<Piece> {
        (!range.is_empty()).then(|| Piece {
            number: self.number,
            what: What::Samples(Arc::clone(taken), range),
        })
    }

    fn cut(&mut self) -> Option<Piece> {
        if self.samples == 0 {
            return None;
        }
        let end = Piece {
            number: self.number,
            what: What::End(self.start..self.end),
        };
        self.number += 1;
        self.start = self.end;
        (self.cost, self.samples) = (0, 0);
        Some(end)
    }
}
