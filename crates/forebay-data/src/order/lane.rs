//! The order within a lane: segments, mixed blocks, windows.
//!
//! A shuffled lane is a list of segments in the epoch's order, in groups of `spread`; only where the groups begin is kept. A group is cut into blocks, permuted and cut into windows
//! when somebody looks at it ([`Mixed`]), and nothing of it depends on what came before: going to a position is a binary search and one group.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Rng, Seed};

use super::stripe::Stripe;
use super::window::{BlockRef, Window, cut_blocks};
use super::{Cut, Inner, share_start, stream};

/// One lane in one epoch: its windows. Without shuffling, what one rank reads.
#[derive(Debug, Clone)]
pub struct LanePlan {
    kind: Arc<Kind>,
}

#[derive(Debug)]
enum Kind {
    Shuffled(Shuffled),
    Striped(Stripe),
}

#[derive(Debug)]
struct Shuffled {
    order: Arc<Inner>,
    seed: Seed,
    segments: Vec<Segment>,
    groups: Vec<Group>,
    /// Samples that the epoch may take of the lane before it begins again.
    len: u64,
    /// Positions that the epoch takes.
    used: u64,
}

/// The samples of one shard that belong to the lane.
#[derive(Debug, Clone, Copy)]
struct Segment {
    shard: u32,
    start: u32,
    end: u32,
}

impl Segment {
    fn len(self) -> u64 {
        u64::from(self.end - self.start)
    }
}

/// Segments whose blocks are mixed.
#[derive(Debug, Clone, Copy)]
struct Group {
    /// Position of its first sample.
    start: u64,
    /// Its first segment; it ends where the next begins.
    segment: u32,
}

/// The blocks of a group in their order, and where windows begin in them.
#[derive(Debug)]
struct Mixed {
    group: usize,
    blocks: Vec<BlockRef>,
    /// Position of the first sample and index of the first block of each window.
    windows: Vec<(u64, usize)>,
}

impl LanePlan {
    pub(super) fn striped(stripe: Stripe) -> Self {
        Self {
            kind: Arc::new(Kind::Striped(stripe)),
        }
    }

    /// `len` and `used` as the epoch's turns have them.
    pub(super) fn shuffled(order: Arc<Inner>, epoch: u64, lane: u64, len: u64, used: u64) -> Self {
        let seed = order.root.derive(stream::LANES).derive(epoch).derive(lane);
        let mut segments = segments_of(&order, lane);
        let mut rng = seed.derive(stream::SEGMENTS).rng();
        rng.shuffle(&mut segments);
        let lead = split_lead(&order, lane, &mut rng, &mut segments);
        let groups = group(&segments, lead, order.spec.spread as usize);
        Self {
            kind: Arc::new(Kind::Shuffled(Shuffled {
                order,
                seed,
                segments,
                groups,
                len,
                used,
            })),
        }
    }

    /// Positions that the epoch takes of this lane.
    pub fn len(&self) -> u64 {
        match &*self.kind {
            Kind::Shuffled(lane) => lane.used,
            Kind::Striped(stripe) => stripe.len(),
        }
    }

    /// True when the epoch takes none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The window that holds a position; `None` after the last.
    pub fn window_at(&self, position: u64) -> Option<Window> {
        self.windows_from(position).next()
    }

    /// The window that holds a position, and all after it.
    pub fn windows_from(&self, position: u64) -> Windows {
        Windows {
            lane: self.clone(),
            position,
            mixed: None,
        }
    }

    /// Entries of lists that are kept for this lane.
    #[cfg(test)]
    pub(super) fn items(&self) -> usize {
        match &*self.kind {
            Kind::Shuffled(lane) => lane.segments.len() + lane.groups.len(),
            Kind::Striped(_) => 0,
        }
    }
}

/// Windows of a lane, one after the other.
#[derive(Debug)]
pub struct Windows {
    lane: LanePlan,
    position: u64,
    mixed: Option<Mixed>,
}

impl Windows {
    /// Entries of lists that are kept for the group at hand.
    #[cfg(test)]
    pub(super) fn items(&self) -> usize {
        let mixed = self.mixed.as_ref();
        mixed.map_or(0, |mixed| mixed.blocks.len() + mixed.windows.len())
    }
}

impl Iterator for Windows {
    type Item = Window;

    fn next(&mut self) -> Option<Window> {
        if self.position >= self.lane.len() {
            return None;
        }
        let window = match &*self.lane.kind {
            Kind::Striped(stripe) => stripe.window_at(self.position),
            Kind::Shuffled(lane) => lane.window_at(self.position, &mut self.mixed),
        };
        self.position = window.end();
        Some(window)
    }
}

impl Shuffled {
    fn window_at(&self, position: u64, kept: &mut Option<Mixed>) -> Window {
        let (turn, rest) = (position / self.len, position % self.len);
        let group = self.groups.partition_point(|group| group.start <= rest) - 1;
        let mixed = match kept.take() {
            Some(mixed) if mixed.group == group => kept.insert(mixed),
            _ => kept.insert(self.mix(group)),
        };
        let index = mixed.windows.partition_point(|(start, _)| *start <= rest) - 1;
        let (start, first) = mixed.windows[index];
        let last = mixed
            .windows
            .get(index + 1)
            .map_or(mixed.blocks.len(), |(_, block)| *block);
        let blocks = mixed.blocks[first..last].to_vec();
        let samples: u64 = blocks.iter().map(BlockRef::len).sum();
        let seed = self.seed.derive(stream::WINDOWS).derive(start);
        Window::shuffled(
            turn * self.len + start,
            blocks,
            samples.min(self.len - start),
            seed,
        )
    }

    /// Cut a group into blocks, permute these, and cut them into windows.
    fn mix(&self, index: usize) -> Mixed {
        let group = self.groups[index];
        let next = self.groups.get(index + 1);
        let last = next.map_or(self.segments.len(), |next| next.segment as usize);
        let (block_bytes, window_bytes) = sizes(&self.order);
        let shards = self.order.shards.sizes();
        let mut blocks = Vec::new();
        for segment in &self.segments[group.segment as usize..last] {
            let samples = u64::from(segment.start)..u64::from(segment.end);
            let size = &shards[segment.shard as usize];
            cut_blocks(segment.shard, size, samples, block_bytes, &mut blocks);
        }
        let mut rng = self.seed.derive(stream::BLOCKS).derive(index as u64).rng();
        rng.shuffle(&mut blocks);
        let mut windows: Vec<(u64, usize)> = Vec::new();
        let (mut start, mut filled) = (group.start, 0_u64);
        for (index, block) in blocks.iter().enumerate() {
            let bytes = shards[block.shard as usize].bytes_of(block.len());
            if windows.is_empty() || filled.saturating_add(bytes) > window_bytes {
                windows.push((start, index));
                filled = 0;
            }
            filled = filled.saturating_add(bytes);
            start += block.len();
        }
        Mixed {
            group: index,
            blocks,
            windows,
        }
    }
}

/// Bytes of a block and of the window of a lane. A block is no larger than the window, lest memory be more than asked for.
fn sizes(order: &Inner) -> (u64, u64) {
    let window = (order.spec.window_bytes / u64::from(order.spec.lanes)).max(1);
    (order.spec.block_bytes.min(window), window)
}

/// The part of the row that is a lane.
fn segments_of(order: &Inner, lane: u64) -> Vec<Segment> {
    let lanes = u64::from(order.spec.lanes);
    let all = order.shards.samples();
    let part = share_start(all, lanes, lane)..share_start(all, lanes, lane + 1);
    let first = order
        .starts
        .partition_point(|start| *start <= part.start)
        .saturating_sub(1);
    let entries = order.row[first..].iter().zip(&order.starts[first..]);
    entries
        .take_while(|(_, start)| **start < part.end)
        .map(|(shard, start)| {
            let samples = order.shards.sizes()[*shard as usize].samples;
            Segment {
                shard: *shard,
                start: part.start.saturating_sub(*start) as u32,
                end: samples.min(part.end - start) as u32,
            }
        })
        .collect()
}

/// Take the first, short window of a lane out of its first segment; the number of segments that this window is.
///
/// Its length is a share of a full window: multiples of the golden ratio, which are spread evenly over any run of neighbouring lanes. Where it begins in the
/// segment is drawn, and it goes on at the segment's beginning when it reaches the end: so all samples come early in the epoch equally often.
fn split_lead(order: &Inner, lane: u64, rng: &mut Rng, segments: &mut Vec<Segment>) -> usize {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let Some(first) = segments.first().copied() else {
        return 0;
    };
    let size = &order.shards.sizes()[first.shard as usize];
    if size.cut != Cut::Anywhere {
        return 0;
    }
    let window = u128::from(size.samples_of(sizes(order).1));
    let lead = (window * u128::from(lane.wrapping_mul(GOLDEN))) >> 64;
    let lead = lead.min(u128::from(first.len())) as u64;
    if lead == 0 {
        return 0;
    }
    let start = rng.below(first.len());
    let end = (start + lead).min(first.len());
    let again = start + lead - end;
    let piece = |start: u64, end: u64| Segment {
        start: first.start + start as u32,
        end: first.start + end as u32,
        ..first
    };
    let pieces = [
        piece(start, end),
        piece(0, again),
        piece(again, start),
        piece(end, first.len()),
    ];
    segments.splice(..1, pieces.into_iter().filter(|piece| piece.len() > 0));
    1 + usize::from(again > 0)
}

/// Where groups begin: after the lead, every `spread` segments.
fn group(segments: &[Segment], lead: usize, spread: usize) -> Vec<Group> {
    let mut groups = Vec::with_capacity(segments.len() / spread + 2);
    let mut start = 0;
    for (index, segment) in segments.iter().enumerate() {
        let begins = index == 0 || (index >= lead && (index - lead).is_multiple_of(spread));
        if begins {
            groups.push(Group {
                start,
                segment: index as u32,
            });
        }
        start += segment.len();
    }
    groups
}

/// A range of positions as it is used in lists of runs.
pub(super) fn len_u32(range: &Range<u64>) -> u32 {
    u32::try_from(range.end - range.start).unwrap_or(u32::MAX)
}
