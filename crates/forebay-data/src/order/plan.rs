//! One epoch of one rank: how many batches, and where each takes its samples.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::Result;

use super::lane::LanePlan;
use super::position::Position;
use super::stripe::Stripe;
use super::turns::Turns;
use super::{Inner, invalid};

/// Where a sample of a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// The lane.
    pub lane: u32,
    /// Its position there.
    pub position: u64,
}

/// The order of one epoch, as one rank sees it.
#[derive(Debug, Clone)]
pub struct EpochPlan {
    order: Arc<Inner>,
    epoch: u64,
    base: u64,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Shuffled(Turns),
    Striped(Stripe),
}

impl EpochPlan {
    pub(super) fn new(order: Arc<Inner>, epoch: u64, base: u64) -> Self {
        let spec = &order.spec;
        let kind = if spec.shuffle {
            Kind::Shuffled(Turns::new(
                spec.lanes,
                spec.batch_global(),
                order.samples,
                base,
                spec.last,
            ))
        } else {
            Kind::Striped(Stripe::new(order.clone(), base))
        };
        Self {
            order,
            epoch,
            base,
            kind,
        }
    }

    /// Its number.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Batches, the same number on every rank.
    pub fn batches(&self) -> u64 {
        match &self.kind {
            Kind::Shuffled(turns) => turns.batches(),
            Kind::Striped(stripe) => stripe.batches(),
        }
    }

    /// Samples of all batches of all ranks.
    pub fn samples(&self) -> u64 {
        match &self.kind {
            Kind::Shuffled(turns) => turns.samples_given(),
            Kind::Striped(stripe) => stripe.samples_given(),
        }
    }

    /// The lanes of this rank. Without shuffling it has one, of its own number.
    pub fn lanes(&self) -> Range<u32> {
        let (rank, world) = (self.order.spec.rank, self.order.spec.world);
        match &self.kind {
            Kind::Shuffled(_) => {
                let each = self.order.spec.lanes / world;
                rank * each..(rank + 1) * each
            }
            Kind::Striped(_) => rank..rank + 1,
        }
    }

    /// The windows of a lane of this rank.
    pub fn lane(&self, lane: u32) -> Result<LanePlan> {
        if !self.lanes().contains(&lane) {
            return Err(invalid(format!(
                "lane {lane} is not one of {:?}, which this rank has",
                self.lanes()
            )));
        }
        Ok(match &self.kind {
            Kind::Striped(stripe) => LanePlan::striped(stripe.clone()),
            Kind::Shuffled(turns) => {
                let lane = u64::from(lane);
                let used = turns.position_at(lane, turns.batches());
                LanePlan::shuffled(self.order.clone(), self.epoch, lane, turns.lane_len(lane), used)
            }
        })
    }

    /// Where the samples of a batch of this rank come from; nothing after the last batch.
    pub fn batch(&self, batch: u64) -> impl Iterator<Item = Slot> + use<> {
        let (shuffled, striped) = match &self.kind {
            Kind::Shuffled(turns) => (Some((*turns, self.groups())), None),
            Kind::Striped(stripe) => (None, Some(stripe.positions(batch))),
        };
        let rank = self.order.spec.rank;
        let dealt = shuffled.into_iter().flat_map(move |(turns, groups)| {
            groups.flat_map(move |group| {
                turns.counts(group, batch).map(move |count| {
                    let (lane, position) = turns.slot(group, count);
                    Slot {
                        lane: lane as u32,
                        position,
                    }
                })
            })
        });
        let lined = striped
            .into_iter()
            .flatten()
            .map(move |position| Slot { lane: rank, position });
        dealt.chain(lined)
    }

    /// Samples of a batch of this rank: the batch size, except where the last batch is short.
    pub fn batch_len(&self, batch: u64) -> u64 {
        let len = |range: Range<u64>| range.end - range.start;
        match &self.kind {
            Kind::Shuffled(turns) => self.groups().map(|group| len(turns.counts(group, batch))).sum(),
            Kind::Striped(stripe) => len(stripe.positions(batch)),
        }
    }

    /// The batch that takes a position of a lane: for the first position of a window, the batch before which it must be there.
    pub fn batch_of(&self, lane: u32, position: u64) -> u64 {
        match &self.kind {
            Kind::Shuffled(turns) => turns.batch_of(u64::from(lane), position),
            Kind::Striped(stripe) => stripe.batch_of(position),
        }
    }

    /// The position at which a lane stands when a batch begins: where reading starts after resuming there.
    pub fn position_at(&self, lane: u32, batch: u64) -> u64 {
        match &self.kind {
            Kind::Shuffled(turns) => turns.position_at(u64::from(lane), batch),
            Kind::Striped(stripe) => stripe.positions(batch).start,
        }
    }

    /// Where the run stands when `batches` batches of this plan are done: the beginning of the next epoch after the last.
    pub fn position(&self, batches: u64) -> Position {
        if batches >= self.batches() {
            return Position::new(&self.order, self.epoch.saturating_add(1), 0);
        }
        let samples = self.base + batches * self.order.spec.batch_global();
        Position::new(&self.order, self.epoch, samples)
    }

    /// Samples that an epoch may take of a lane before it begins again.
    pub(super) fn lane_len(&self, lane: u32) -> u64 {
        match &self.kind {
            Kind::Shuffled(turns) => turns.lane_len(u64::from(lane)),
            Kind::Striped(stripe) => stripe.len(),
        }
    }

    fn groups(&self) -> Range<u64> {
        match &self.kind {
            Kind::Shuffled(turns) => turns.groups_of(self.order.spec.rank, self.order.spec.world),
            Kind::Striped(_) => 0..0,
        }
    }
}
