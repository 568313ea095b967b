//! What is needed soon: the windows that the feeder comes to next, and which of their blocks lie beside each other.
//!
//! Windows come out in the order of need, and exactly as the lanes have them. From far stores a few more are looked at before they are read, within
//! a bound in bytes: a block that is begun takes along its neighbours that are among them, up to what one request should bring. Blocks that are
//! needed later than that are not taken along, for they would be in memory without being of use: with the usual shuffling that is most of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Result, Span};

use super::course::{Need, Needs};
use super::read::{Joint, Reader};
use crate::order::BlockRef;

/// Windows that are looked at before they are read, however small they are.
const WINDOWS_AHEAD_MAX: usize = 64;

/// A lane's next window, for the heap: nearest need first.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) need: Need,
    rest: Needs,
}

impl Next {
    pub(super) fn of(mut rest: Needs) -> Option<Self> {
        let need = rest.next()?;
        Some(Self { need, rest })
    }

    fn rank(&self) -> (u64, u32) {
        (self.need.batch, self.need.lane)
    }
}

impl PartialEq for Next {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl Eq for Next {}

impl PartialOrd for Next {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Next {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

/// A window that is to be read.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) need: Need,
    /// For each position of the window: block and sample.
    pub(super) order: Vec<(u32, u32)>,
    /// Which of its blocks are needed; all, but for those before the first position that is.
    pub(super) needed: Vec<bool>,
    /// About how many bytes they have, where that matters.
    bytes: u64,
}

impl Planned {
    fn new(need: Need) -> Self {
        let order = need.window.order();
        let done = need.begin.saturating_sub(need.window.start) as usize;
        let mut needed = vec![false; need.window.blocks.len()];
        for (block, _) in order.iter().skip(done) {
            if let Some(needed) = needed.get_mut(*block as usize) {
                *needed = true;
            }
        }
        Self {
            need,
            order,
            needed,
            bytes: 0,
        }
    }

    fn blocks(&self) -> impl Iterator<Item = &BlockRef> {
        let blocks = self.need.window.blocks.iter().zip(&self.needed);
        blocks.filter_map(|(block, needed)| needed.then_some(block))
    }
}

/// Data set, shard, and first sample of a block.
type Place = (u32, u32, u64);

/// A block of a far store that is needed soon.
#[derive(Debug)]
enum Waiting {
    /// Nobody reads it yet; it ends before this sample.
    Alone(u64),
    /// A neighbour took it along.
    Taken(Arc<Joint>),
}

/// The windows to come, and the blocks of those that were looked at.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    readers: &'a [Reader],
    lanes: BinaryHeap<Reverse<Next>>,
    windows: VecDeque<Planned>,
    bytes: u64,
    bytes_max: u64,
    blocks: BTreeMap<Place, Waiting>,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(readers: &'a [Reader], lanes: BinaryHeap<Reverse<Next>>) -> Self {
        Self {
            readers,
            lanes,
            windows: VecDeque::new(),
            bytes: 0,
            bytes_max: readers
                .iter()
                .map(|reader| reader.joint_bytes_max)
                .max()
                .unwrap_or(0),
            blocks: BTreeMap::new(),
        }
    }

    /// The next window in the order of need.
    pub(super) fn next(&mut self) -> Option<Planned> {
        if self.windows.is_empty() {
            self.look();
        }
        let next = self.windows.pop_front()?;
        self.bytes -= next.bytes;
        while self.bytes < self.bytes_max && self.windows.len() < WINDOWS_AHEAD_MAX && self.look() {}
        Some(next)
    }

    /// Look at one window more; false when there is none.
    fn look(&mut self) -> bool {
        let Some(Reverse(next)) = self.lanes.pop() else {
            return false;
        };
        let source = next.need.source;
        let mut planned = Planned::new(next.need);
        self.lanes.extend(Next::of(next.rest).map(Reverse));
        if let Some(reader) = self.readers.get(source as usize) {
            for block in planned.blocks().filter(|_| reader.joint_bytes_max > 0) {
                let place = (source, block.shard, block.samples.start);
                self.blocks
                    .entry(place)
                    .or_insert(Waiting::Alone(block.samples.end));
            }
            planned.bytes = planned.blocks().map(|block| reader.bytes_about(block)).sum();
            self.bytes += planned.bytes;
        }
        self.windows.push_back(planned);
        true
    }

    /// A block is begun: the joint that it is in, where a neighbour took it along.
    pub(super) fn begin(&mut self, source: u32, block: &BlockRef) -> Option<Arc<Joint>> {
        match self.blocks.remove(&(source, block.shard, block.samples.start))? {
            Waiting::Taken(joint) => Some(joint),
            Waiting::Alone(_) => None,
        }
    }

    /// A block that is begun and its neighbours that are needed soon, as far as `span` says that one request may bring them; `None` where it has none.
    pub(super) fn neighbours(
        &self,
        source: u32,
        block: &BlockRef,
        span: impl Fn(&Range<u64>) -> Result<Option<Span>>,
    ) -> Result<Option<(Range<u64>, Span)>> {
        let mut found = None;
        let mut samples = block.samples.clone();
        loop {
            let wider = [
                self.end_after((source, block.shard, samples.end))
                    .map(|end| samples.start..end),
                self.start_before((source, block.shard, samples.start))
                    .map(|start| start..samples.end),
            ];
            let mut is_wider = false;
            for wider in wider.into_iter().flatten() {
                if let Some(span) = span(&wider)? {
                    samples = wider;
                    found = Some((samples.clone(), span));
                    is_wider = true;
                    break;
                }
            }
            if !is_wider {
                return Ok(found);
            }
        }
    }

    /// Where the block that begins at a place ends.
    fn end_after(&self, place: Place) -> Option<u64> {
        match self.blocks.get(&place)? {
            Waiting::Alone(end) => Some(*end),
            Waiting::Taken(_) => None,
        }
    }

    /// Where the block begins that ends at a place.
    fn start_before(&self, (source, shard, end): Place) -> Option<u64> {
        let (place, waiting) = self
            .blocks
            .range((source, shard, 0)..(source, shard, end))
            .next_back()?;
        matches!(waiting, Waiting::Alone(own) if *own == end).then_some(place.2)
    }

    /// All blocks of a range are read together.
    pub(super) fn take_along(&mut self, source: u32, shard: u32, samples: &Range<u64>, joint: &Arc<Joint>) {
        let places = (source, shard, samples.start)..(source, shard, samples.end);
        for (_, waiting) in self.blocks.range_mut(places) {
            // A batch that wraps around may want samples once more, by other blocks.
            if matches!(waiting, Waiting::Alone(end) if *end <= samples.end) {
                *waiting = Waiting::Taken(Arc::clone(joint));
            }
        }
    }
}
