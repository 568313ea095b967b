//! Several data sets, drawn from by weight, without an end.
//!
//! A *pattern* says which source gives sample `n`, for one period of samples: Tijdeman's rule keeps every source within one sample of its share after every `n`. Round `p`
//! is samples `p x lanes` to `(p + 1) x lanes` of it; lanes take the samples of a round in an order that is rotated by a random amount in each
//! round, and by one more in each period. After `lanes` periods each lane has taken each place of the pattern exactly once, so how much a lane has drawn from which source follows
//! from its position: whole cycles by multiplication, the rest by counting, at most [`PERIOD_MIN`] steps or twice that.
//!
//! A lane draws from the same lane of its sources, and goes through their epochs by itself. So ranks need nothing of each other here either.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Result, Seed};

use super::lane::LanePlan;
use super::plan::Slot;
use super::position::{self, Position, Settings};
use super::turns::Turns;
use super::{Last, ORDER_VERSION, Order, SAMPLES_MAX, invalid, limit, stream};

/// Samples of a period, at least; a weight is a whole number of them. It is rounded up to a multiple of the lanes.
pub const PERIOD_MIN: u64 = 1 << 16;

/// Most sources: their fingerprints have to find room in a position.
pub const SOURCES_MAX: usize = 128;

/// A data set of a mixture.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its order; shuffled, with the lanes, batch size, rank and world of all others.
    pub order: Order,
    /// Its share, in proportion to the others'.
    pub weight: f64,
}

/// Data sets drawn from by weight.
#[derive(Debug, Clone)]
pub struct Mixture {
    inner: Arc<Inner>,
    turns: Turns,
    base: u64,
}

#[derive(Debug)]
struct Inner {
    orders: Vec<Order>,
    /// Samples of each source in a period.
    shares: Vec<u64>,
    /// Source of each sample of a period.
    pattern: Vec<u8>,
    seed: Seed,
}

/// A sample of a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Number of the source.
    pub source: u32,
    /// Epoch of this source in this lane.
    pub epoch: u64,
    /// Position in the lane of the source.
    pub position: u64,
}

impl Mixture {
    /// Check that the sources fit each other, and lay out the pattern.
    pub fn new(sources: Vec<Source>, seed: Seed) -> Result<Self> {
        let Some(first) = sources.first() else {
            return Err(invalid("a mixture needs at least one data set"));
        };
        if sources.len() > SOURCES_MAX {
            return Err(limit(format!("a mixture has at most {SOURCES_MAX} data sets")));
        }
        let spec = first.order.spec().clone();
        let fits = |order: &Order| {
            let other = order.spec();
            (other.lanes, other.batch_size, other.rank, other.world)
                == (spec.lanes, spec.batch_size, spec.rank, spec.world)
        };
        for (index, source) in sources.iter().enumerate() {
            if !source.order.spec().shuffle {
                let hint = "shuffle all data sets of a mixture, or read this one by itself";
                return Err(invalid(format!("data set {index} is not shuffled")).with_hint(hint));
            }
            if !fits(&source.order) {
                let message = format!(
                    "data set {index} has other lanes, another batch size, rank or world than the first"
                );
                return Err(invalid(message));
            }
            if !(source.weight.is_finite() && source.weight > 0.0) {
                let message = format!("the weight of data set {index} is {}", source.weight);
                return Err(invalid(message).with_hint("a weight is a number above 0"));
            }
        }
        let lanes = u64::from(spec.lanes);
        let period = PERIOD_MIN.div_ceil(lanes) * lanes;
        let weights: Vec<f64> = sources.iter().map(|source| source.weight).collect();
        let shares = apportion(&weights, period);
        let inner = Inner {
            pattern: lay_out(&shares),
            shares,
            orders: sources.into_iter().map(|source| source.order).collect(),
            seed: seed.derive(u64::from(ORDER_VERSION)).derive(stream::MIXTURE),
        };
        Ok(Self::at(Arc::new(inner), 0))
    }

    fn at(inner: Arc<Inner>, base: u64) -> Self {
        let spec = inner.orders[0].spec();
        let rounds = SAMPLES_MAX / u64::from(spec.lanes);
        let samples = rounds * u64::from(spec.lanes);
        let turns = Turns::new(spec.lanes, spec.batch_global(), samples, base, Last::Drop);
        Self { inner, turns, base }
    }

    /// The data sets.
    pub fn orders(&self) -> &[Order] {
        &self.inner.orders
    }

    /// The share of each, as it was rounded; together 1.
    pub fn weights(&self) -> Vec<f64> {
        let period = self.inner.pattern.len() as f64;
        self.inner
            .shares
            .iter()
            .map(|share| *share as f64 / period)
            .collect()
    }

    /// The lanes of this rank.
    pub fn lanes(&self) -> Range<u32> {
        self.inner.orders[0].epoch(0).lanes()
    }

    /// Where the samples of a batch of this rank come from: positions of lanes of the mixture.
    pub fn batch(&self, batch: u64) -> impl Iterator<Item = Slot> + use<> {
        let spec = self.inner.orders[0].spec();
        let turns = self.turns;
        turns.groups_of(spec.rank, spec.world).flat_map(move |group| {
            turns.counts(group, batch).map(move |count| {
                let (lane, position) = turns.slot(group, count);
                Slot {
                    lane: lane as u32,
                    position,
                }
            })
        })
    }

    /// The batch that takes a position of a lane.
    pub fn batch_of(&self, lane: u32, position: u64) -> u64 {
        self.turns.batch_of(u64::from(lane), position)
    }

    /// The position at which a lane stands when a batch begins.
    pub fn position_at(&self, lane: u32, batch: u64) -> u64 {
        self.turns.position_at(u64::from(lane), batch)
    }

    /// What a lane draws, from a position on.
    pub fn lane(&self, lane: u32, position: u64) -> Result<MixLane> {
        self.check_lane(lane)?;
        let inner = self.inner.clone();
        let len = |order: &Order| u64::max(1, order.epoch(0).lane_len(lane));
        Ok(MixLane {
            lens: inner.orders.iter().map(len).collect(),
            taken: inner.taken(u64::from(lane), position),
            inner,
            lane: u64::from(lane),
            position,
        })
    }

    /// The windows of a lane of a source in one of its epochs.
    pub fn lane_of(&self, source: u32, epoch: u64, lane: u32) -> Result<LanePlan> {
        self.check_lane(lane)?;
        let order = self.inner.orders.get(source as usize);
        let order = order.ok_or_else(|| invalid(format!("there is no data set {source}")))?;
        let len = order.epoch(0).lane_len(lane);
        Ok(LanePlan::shuffled(
            order.inner.clone(),
            epoch,
            u64::from(lane),
            len,
            len,
        ))
    }

    #[cfg(test)]
    pub(super) fn pattern(&self) -> &[u8] {
        &self.inner.pattern
    }

    fn check_lane(&self, lane: u32) -> Result<()> {
        if self.lanes().contains(&lane) {
            return Ok(());
        }
        let lanes = self.lanes();
        Err(invalid(format!(
            "lane {lane} is not one of {lanes:?}, which this rank has"
        )))
    }

    /// Where the run stands when `batches` batches are done.
    pub fn position(&self, batches: u64) -> Position {
        let inner = &self.inner;
        let batch = inner.orders[0].spec().batch_global();
        let prints = inner.prints();
        let mut sources = String::with_capacity(4 * prints.len());
        for print in &prints {
            let _ = write!(sources, "{:04x}", print.0 as u16);
        }
        let samples = batches.saturating_mul(batch).saturating_add(self.base);
        Position {
            sources: Some(sources),
            data: prints
                .iter()
                .fold(inner.seed, |data, print| data.derive(print.0))
                .0,
            selection: None,
            ..Position::new(&inner.orders[0].inner, 0, samples)
        }
    }

    /// Go on from a position: a mixture whose batches are numbered so that `mixture.position(batch)` is the position again, and the next batch.
    pub fn resume(&self, position: &Position) -> Result<(Self, u64)> {
        let now = self.position(0);
        let (Some(were), Some(are)) = (&position.sources, &now.sources) else {
            return Err(position::differs("it is of one data set, and this is a mixture"));
        };
        if were.len() != are.len() {
            return Err(position::differs("the mixture has another number of data sets"));
        }
        position::check(position, &Settings::of(&self.inner.orders[0].inner))?;
        if position.data != now.data {
            let mut pairs = were.as_bytes().chunks(4).zip(are.as_bytes().chunks(4));
            return Err(position::differs(&match pairs.position(|(was, is)| was != is) {
                Some(source) => {
                    format!("data set {source}, its filter, its weight or its settings are others")
                }
                None => "the seed of the mixture is another one".to_owned(),
            }));
        }
        if position.samples > SAMPLES_MAX || position.epoch > 0 {
            return Err(position::corrupt("numbers that no mixture has"));
        }
        let spec = self.inner.orders[0].spec();
        let batch = spec.batch_global();
        position::check_lanes(position, spec.lanes, batch)?;
        let (base, done) = (position.samples % batch, position.samples / batch);
        Ok((Self::at(self.inner.clone(), base), done))
    }
}

impl Inner {
    fn period(&self) -> u64 {
        self.pattern.len() as u64
    }

    /// Source of a position of a lane.
    fn source(&self, lane: u64, position: u64) -> usize {
        let lanes = u64::from(self.orders[0].spec().lanes);
        let rounds = self.period() / lanes;
        let (round, cycle) = (position % rounds, position / rounds % lanes);
        let turned = self.seed.derive(round).rng().below(lanes);
        let place = round * lanes + (lane + turned + cycle) % lanes;
        usize::from(self.pattern[place as usize])
    }

    /// Samples of each source that a lane has drawn before a position.
    fn taken(&self, lane: u64, position: u64) -> Vec<u64> {
        // `lanes` periods take as many rounds as a period has samples.
        let whole = position / self.period();
        let mut taken: Vec<u64> = self.shares.iter().map(|share| share * whole).collect();
        for rest in whole * self.period()..position {
            taken[self.source(lane, rest)] += 1;
        }
        taken
    }

    /// A fingerprint of each source with its share and settings.
    fn prints(&self) -> Vec<Seed> {
        let sources = self.orders.iter().zip(&self.shares);
        sources
            .map(|(order, share)| {
                let spec = order.spec();
                let numbers = [
                    *share,
                    spec.seed.0,
                    spec.block_bytes,
                    spec.window_bytes,
                    u64::from(spec.spread),
                    u64::from(spec.limit.is_some()),
                    spec.limit.unwrap_or(0),
                ];
                let data = Seed(order.shards().fingerprint());
                let selection = order.shards().selection();
                let numbers = numbers.iter().copied().chain(selection);
                numbers.fold(data, Seed::derive)
            })
            .collect()
    }
}

/// What one lane draws, one sample after the other.
#[derive(Debug, Clone)]
pub struct MixLane {
    inner: Arc<Inner>,
    lane: u64,
    position: u64,
    taken: Vec<u64>,
    lens: Vec<u64>,
}

impl MixLane {
    /// The position that comes next.
    pub fn next_position(&self) -> u64 {
        self.position
    }

    /// Samples drawn from each source so far.
    pub fn taken(&self) -> &[u64] {
        &self.taken
    }
}

impl Iterator for MixLane {
    type Item = Draw;

    fn next(&mut self) -> Option<Draw> {
        let source = self.inner.source(self.lane, self.position);
        let (taken, len) = (self.taken[source], self.lens[source]);
        self.taken[source] += 1;
        self.position += 1;
        Some(Draw {
            source: source as u32,
            epoch: taken / len,
            position: taken % len,
        })
    }
}

/// Share `period` out by weight, at least one to each: what rounding leaves over goes to the largest remainders, what is given too much is
/// taken from the largest shares.
fn apportion(weights: &[f64], period: u64) -> Vec<u64> {
    // Divided first, so that no sum of large weights is infinite.
    let largest = weights.iter().copied().fold(0.0, f64::max);
    let total: f64 = weights.iter().map(|weight| weight / largest).sum();
    let exact: Vec<f64> = weights
        .iter()
        .map(|weight| weight / largest / total * period as f64)
        .collect();
    let mut shares: Vec<u64> = exact.iter().map(|share| (*share as u64).max(1)).collect();
    let mut by_remainder: Vec<usize> = (0..shares.len()).collect();
    let remainder = |index: &usize| exact[*index] - exact[*index].floor();
    by_remainder.sort_by(|a, b| remainder(b).total_cmp(&remainder(a)));
    let mut given: u64 = shares.iter().sum();
    for index in by_remainder.iter().cycle() {
        if given >= period {
            break;
        }
        shares[*index] += 1;
        given += 1;
    }
    while given > period {
        let largest = (0..shares.len()).max_by_key(|index| shares[*index]).unwrap_or(0);
        shares[largest] -= 1;
        given -= 1;
    }
    shares
}

/// The source of each sample of a period: of those that have fallen behind their share, the one that would be first to fall behind by one.
///
/// R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): with k sources no share is ever missed by more than 1 - 1/(2k - 2).
fn lay_out(shares: &[u64]) -> Vec<u8> {
    let period: u64 = shares.iter().sum();
    let scale = (2 * shares.len() as i128 - 2).max(1);
    let mut taken = vec![0_i128; shares.len()];
    let mut pattern = Vec::with_capacity(period as usize);
    for n in 1..=i128::from(period) {
        // How far each source is behind after this sample if it does not get it, times period and scale.
        let behind = |index: usize, taken: &[i128]| {
            scale * (n * i128::from(shares[index]) - taken[index] * i128::from(period))
        };
        let bound = (scale - 1) * i128::from(period);
        let eligible = (0..shares.len()).filter(|index| behind(*index, &taken) >= i128::from(period));
        let next = eligible.min_by(|a, b| {
            let slack = |index: usize| bound - behind(index, &taken);
            (slack(*a) * i128::from(shares[*b])).cmp(&(slack(*b) * i128::from(shares[*a])))
        });
        let next = next.unwrap_or(0);
        taken[next] += 1;
        pattern.push(next as u8);
    }
    pattern
}
