//! Whose turn it is: which lane gives which of its positions to which batch.
//!
//! Numbers only. Lanes form `groups = gcd(batch, lanes)` groups of `members` neighbours; each group gives `step` samples to each batch. A *count* is the number
//! of a sample among those of its group: in whole rounds, count `c` is position `c div members` of member `c mod members`. Where samples do not divide by lanes, a
//! last round has the longer lanes only; these are spread evenly, so that totals of groups, and of ranks, differ by at most one.
//!
//! With [`Last::Wrap`], counts go on beyond the total of the group: the second *turn* begins with its count 0 again. Positions go on in the same way, beyond the length of the
//! lane, so that they only ever grow.

use super::{Last, share_start};

/// The rules of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turns {
    lanes: u64,
    groups: u64,
    members: u64,
    step: u64,
    batch: u64,
    samples: u64,
    /// Samples consumed before batch 0: less than a batch, and not 0 only after a change of the batch size.
    base: u64,
    last: Last,
}

impl Turns {
    /// `samples` is at least `lanes`; `base` is a multiple of the groups.
    pub(super) fn new(lanes: u32, batch: u64, samples: u64, base: u64, last: Last) -> Self {
        let lanes = u64::from(lanes);
        let groups = gcd(batch, lanes);
        Self {
            lanes,
            groups,
            members: lanes / groups,
            step: batch / groups,
            batch,
            samples,
            base,
            last,
        }
    }

    /// Positions that every lane has.
    fn rounds(&self) -> u64 {
        self.samples / self.lanes
    }

    /// Lanes before `lane` that have one position more.
    fn longer_before(&self, lane: u64) -> u64 {
        share_start(self.samples % self.lanes, self.lanes, lane)
    }

    /// Samples of a lane.
    pub(super) fn lane_len(&self, lane: u64) -> u64 {
        self.rounds() + self.longer_before(lane + 1) - self.longer_before(lane)
    }

    fn group_len(&self, group: u64) -> u64 {
        share_start(self.samples, self.groups, group + 1) - share_start(self.samples, self.groups, group)
    }

    /// Batches of the epoch.
    pub(super) fn batches(&self) -> u64 {
        match self.last {
            Last::Drop => (self.rounds() * self.lanes).saturating_sub(self.base) / self.batch,
            Last::Short | Last::Wrap => {
                let longest = self.samples.div_ceil(self.groups);
                longest
                    .saturating_sub(self.base / self.groups)
                    .div_ceil(self.step)
            }
        }
    }

    /// Samples that all ranks get from batch 0 on.
    pub(super) fn samples_given(&self) -> u64 {
        match self.last {
            Last::Drop | Last::Wrap => self.batches() * self.batch,
            Last::Short => self.samples.saturating_sub(self.base),
        }
    }

    /// Count at which a group stands when batch `batch` begins.
    fn count_at(&self, group: u64, batch: u64) -> u64 {
        let count = self.base / self.groups + batch.min(self.batches()) * self.step;
        match self.last {
            Last::Short => count.min(self.group_len(group)),
            Last::Drop | Last::Wrap => count,
        }
    }

    /// The groups of a rank.
    pub(super) fn groups_of(&self, rank: u32, world: u32) -> std::ops::Range<u64> {
        let each = self.groups / u64::from(world);
        u64::from(rank) * each..(u64::from(rank) + 1) * each
    }

    /// The counts that a group gives to a batch.
    pub(super) fn counts(&self, group: u64, batch: u64) -> std::ops::Range<u64> {
        self.count_at(group, batch)..self.count_at(group, batch.saturating_add(1))
    }

    /// Lane and position of a count.
    pub(super) fn slot(&self, group: u64, count: u64) -> (u64, u64) {
        let total = self.group_len(group);
        let (turn, rest) = (count / total, count % total);
        let first = group * self.members;
        let whole = self.rounds() * self.members;
        let (lane, position) = if rest < whole {
            (first + rest % self.members, rest / self.members)
        } else {
            // The lane that is longer as number `index` of all that are.
            let index = self.longer_before(first) + rest - whole;
            let remainder = u128::from(self.samples % self.lanes);
            let lane = (u128::from(index + 1) * u128::from(self.lanes)).div_ceil(remainder) - 1;
            (lane as u64, self.rounds())
        };
        (lane, turn * self.lane_len(lane) + position)
    }

    /// The count of a position of a lane.
    fn count(&self, lane: u64, position: u64) -> u64 {
        let len = self.lane_len(lane);
        let (turn, rest) = (position / len, position % len);
        let group = lane / self.members;
        let first = group * self.members;
        let count = if rest < self.rounds() {
            rest * self.members + lane - first
        } else {
            self.rounds() * self.members + self.longer_before(lane) - self.longer_before(first)
        };
        turn * self.group_len(group) + count
    }

    /// The batch that takes a position of a lane; 0 for what was taken before batch 0.
    pub(super) fn batch_of(&self, lane: u64, position: u64) -> u64 {
        let count = self.count(lane, position);
        count.saturating_sub(self.base / self.groups) / self.step
    }

    /// The position at which a lane stands when batch `batch` begins.
    pub(super) fn position_at(&self, lane: u64, batch: u64) -> u64 {
        let group = lane / self.members;
        let total = self.group_len(group);
        let count = self.count_at(group, batch);
        let (turn, rest) = (count / total, count % total);
        let first = group * self.members;
        let whole = self.rounds() * self.members;
        let position = if rest <= whole {
            (rest + self.members - 1 - (lane - first)) / self.members
        } else {
            let longer = self
                .longer_before(lane + 1)
                .min(self.longer_before(first) + rest - whole);
            self.rounds() + longer.saturating_sub(self.longer_before(lane))
        };
        turn * self.lane_len(lane) + position
    }
}

/// Greatest common divisor; both are at least 1.
pub(super) fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
