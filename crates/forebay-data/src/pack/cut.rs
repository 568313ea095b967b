//! Where shards end: a function of the samples and the settings, in one cheap pass over their sizes.
//!
//! Whoever reads, and however many build shards, the samples pass here in the order of the input; so the same samples make the same shards.

use std::ops::Range;
use std::sync::Arc;

use super::chunk::Chunk;
use super::output::Output;

/// A shard to be built.
#[derive(Debug)]
pub(super) struct Job {
    /// Its number.
    pub(super) number: u64,
    /// Positions of the input that it covers; samples that a filter left out among them.
    pub(super) positions: Range<u64>,
    /// Its samples.
    pub(super) parts: Vec<(Arc<Chunk>, Range<usize>)>,
    pub(super) samples: u64,
    /// About as long as it will be before compression.
    pub(super) bytes: u64,
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
    parts: Vec<(Arc<Chunk>, Range<usize>)>,
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
            parts: Vec::new(),
        }
    }

    /// True when no more samples are wanted.
    pub(super) fn is_full(&self) -> bool {
        self.left == 0
    }

    /// Take the next samples; the shards that are complete with them.
    pub(super) fn push(&mut self, chunk: Chunk) -> Vec<Job> {
        let (chunk, mut jobs) = (Arc::new(chunk), Vec::new());
        for index in 0..chunk.len() {
            if self.left == 0 {
                break;
            }
            let cost = self.cost.saturating_add(chunk.cost(index));
            let is_full = self.samples >= self.samples_max || !self.output.fits(cost);
            if is_full && self.samples > 0 {
                jobs.extend(self.cut());
            }
            self.take(&chunk, index);
        }
        jobs
    }

    /// There are no more samples.
    pub(super) fn finish(mut self) -> Option<Job> {
        self.cut()
    }

    fn take(&mut self, chunk: &Arc<Chunk>, index: usize) {
        match self.parts.last_mut() {
            Some((last, range)) if Arc::ptr_eq(last, chunk) => range.end = index + 1,
            _ => self.parts.push((Arc::clone(chunk), index..index + 1)),
        }
        self.cost = self.cost.saturating_add(chunk.cost(index));
        self.samples += 1;
        self.left -= 1;
        self.end = chunk.position(index) + 1;
    }

    fn cut(&mut self) -> Option<Job> {
        if self.samples == 0 {
            return None;
        }
        let job = Job {
            number: self.number,
            positions: self.start..self.end,
            parts: std::mem::take(&mut self.parts),
            samples: self.samples,
            bytes: self.output.bytes(self.cost),
        };
        self.number += 1;
        self.start = self.end;
        (self.cost, self.samples) = (0, 0);
        Some(job)
    }
}
