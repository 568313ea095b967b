//! The way through what is streamed: which windows are needed when, and where each sample of a batch is.
//!
//! One data set goes epoch by epoch, a mixture goes on without an end. Both are *legs* of a [`Course`], whose batches are numbered from 0: an epoch is a leg, and a
//! mixture is one leg. Feeder and assembler go through the same legs, one ahead of the other, and neither knows which kind it is.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_core::{Error, ErrorKind, Result};

use super::StreamSpec;
use super::sources::{Sources, order_of};
use crate::order::{EpochPlan, MixLane, Mixture, Order, Position, Window, Windows};

/// All legs.
#[derive(Debug, Clone)]
pub(super) struct Course {
    kind: Kind,
    /// Epochs end before this one.
    epochs_end: u64,
}

#[derive(Debug, Clone)]
enum Kind {
    One(Order),
    Mixed(Mixed),
}

/// A mixture.
#[derive(Debug, Clone)]
pub(super) struct Mixed {
    mixture: Mixture,
    /// Batches of what counts as an epoch: as many samples as there are in all data sets, or as the limit says.
    epoch_batches: u64,
}

/// A part of the way with batches numbered from 0.
#[derive(Debug, Clone)]
pub(super) enum Leg {
    /// An epoch of one data set.
    Epoch(EpochPlan),
    /// All of a mixture.
    Mixed(Mixed),
}

/// Where a sample of a batch is: in a lane of a data set, in one of its epochs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot {
    pub(super) source: u32,
    pub(super) epoch: u64,
    pub(super) lane: u32,
    pub(super) position: u64,
}

/// A window of a lane of a data set, and when it is needed.
#[derive(Debug)]
pub(super) struct Need {
    pub(super) source: u32,
    pub(super) epoch: u64,
    pub(super) lane: u32,
    /// The batch before which it must be there.
    pub(super) batch: u64,
    pub(super) window: Window,
    /// First position of it that is needed.
    pub(super) begin: u64,
}

/// Where the lanes of a mixture stand.
#[derive(Debug, Default)]
pub(super) struct Draws(BTreeMap<u32, MixLane>);

impl Course {
    pub(super) fn new(sources: &Sources, spec: &StreamSpec) -> Result<Self> {
        let kind = match (sources.mixture(&spec.order)?, sources.datasets()) {
            (None, [dataset, ..]) => Kind::One(order_of(dataset, spec.order.clone())?),
            (Some(mixture), _) => {
                let samples = sources.samples_kept();
                let samples = spec.order.limit.map_or(samples, |limit| limit.min(samples));
                Kind::Mixed(Mixed {
                    mixture,
                    epoch_batches: (samples / spec.order.batch_global()).max(1),
                })
            }
            (None, []) => return Err(super::sources::internal("a stream without a data set")),
        };
        Ok(Self {
            kind,
            epochs_end: spec.epochs.unwrap_or(u64::MAX),
        })
    }

    pub(super) fn first(&self) -> Leg {
        match &self.kind {
            Kind::One(order) => Leg::Epoch(order.epoch(0)),
            Kind::Mixed(mixed) => Leg::Mixed(mixed.clone()),
        }
    }

    /// The leg that a position is in, and the batch of it that comes next. A position behind the last epoch is refused; one at its end is fine.
    pub(super) fn resume(&self, position: &Position) -> Result<(Leg, u64)> {
        let (leg, batch) = self.find(position)?;
        let (epoch, within) = leg.number(batch);
        if epoch > self.epochs_end || (epoch == self.epochs_end && within > 0) {
            return Err(behind(epoch, self.epochs_end));
        }
        Ok((leg, batch))
    }

    /// True when nothing is left from a batch of a leg on.
    pub(super) fn is_over(&self, leg: &Leg, batch: u64) -> bool {
        batch >= self.batches(leg) && self.after(leg).is_none()
    }

    /// Batches of the epoch that a batch of a leg is in; behind the last one, of the epoch after that.
    pub(super) fn epoch_batches_at(&self, leg: &Leg, batch: u64) -> u64 {
        let after = (batch >= self.batches(leg)).then(|| self.after(leg));
        after.flatten().as_ref().unwrap_or(leg).epoch_batches()
    }

    fn find(&self, position: &Position) -> Result<(Leg, u64)> {
        match &self.kind {
            Kind::One(order) => {
                let (plan, batch) = order.resume(position)?;
                Ok((Leg::Epoch(plan), batch))
            }
            Kind::Mixed(mixed) => {
                let (mixture, batch) = mixed.mixture.resume(position)?;
                let leg = Mixed {
                    mixture,
                    epoch_batches: mixed.epoch_batches,
                };
                Ok((Leg::Mixed(leg), batch))
            }
        }
    }

    /// Batches of a leg, as far as it is gone.
    pub(super) fn batches(&self, leg: &Leg) -> u64 {
        match leg {
            Leg::Epoch(plan) if plan.epoch() >= self.epochs_end => 0,
            Leg::Epoch(plan) => plan.batches(),
            Leg::Mixed(mixed) => mixed.epoch_batches.saturating_mul(self.epochs_end),
        }
    }

    /// The leg after one.
    pub(super) fn after(&self, leg: &Leg) -> Option<Leg> {
        match (&self.kind, leg) {
            (Kind::One(order), Leg::Epoch(plan)) => {
                let epoch = plan.epoch().saturating_add(1);
                (epoch < self.epochs_end).then(|| Leg::Epoch(order.epoch(epoch)))
            }
            _ => None,
        }
    }

    /// The windows of a lane of a leg, from a batch on.
    pub(super) fn needs(&self, leg: &Leg, lane: u32, batch: u64) -> Result<Needs> {
        let batches_end = self.batches(leg);
        if batches_end == 0 {
            return Ok(Needs::None);
        }
        Ok(match leg {
            Leg::Epoch(plan) => {
                let begin = plan.position_at(lane, batch);
                Needs::Epoch {
                    windows: plan.lane(lane)?.windows_from(begin),
                    plan: plan.clone(),
                    lane,
                    begin,
                }
            }
            Leg::Mixed(Mixed { mixture, .. }) => Needs::Mixed(MixedNeeds {
                draws: mixture.lane(lane, mixture.position_at(lane, batch))?,
                open: mixture.orders().iter().map(|_| None).collect(),
                mixture: mixture.clone(),
                lane,
                batches_end,
            }),
        })
    }
}

impl Leg {
    /// The lanes of this rank.
    pub(super) fn lanes(&self) -> Range<u32> {
        match self {
            Self::Epoch(plan) => plan.lanes(),
            Self::Mixed(mixed) => mixed.mixture.lanes(),
        }
    }

    /// Batches of one epoch.
    pub(super) fn epoch_batches(&self) -> u64 {
        match self {
            Self::Epoch(plan) => plan.batches(),
            Self::Mixed(mixed) => mixed.epoch_batches,
        }
    }

    /// Epoch of a batch, and its number there.
    pub(super) fn number(&self, batch: u64) -> (u64, u64) {
        match self {
            Self::Epoch(plan) => (plan.epoch(), batch),
            Self::Mixed(mixed) => (batch / mixed.epoch_batches, batch % mixed.epoch_batches),
        }
    }

    /// Where the run stands when so many batches are done.
    pub(super) fn position(&self, batches: u64) -> Position {
        match self {
            Self::Epoch(plan) => plan.position(batches),
            Self::Mixed(mixed) => mixed.mixture.position(batches),
        }
    }

    /// The window that holds a spot.
    pub(super) fn window(&self, spot: Spot) -> Result<Option<Window>> {
        let lane = match self {
            Self::Epoch(plan) => plan.lane(spot.lane)?,
            Self::Mixed(mixed) => mixed.mixture.lane_of(spot.source, spot.epoch, spot.lane)?,
        };
        Ok(lane.window_at(spot.position))
    }

    /// Where the samples of a batch are. Batches are asked for one after the other.
    pub(super) fn spots(&self, batch: u64, draws: &mut Draws) -> Result<Vec<Spot>> {
        match self {
            Self::Epoch(plan) => {
                let spots = plan.batch(batch).map(|slot| Spot {
                    source: 0,
                    epoch: plan.epoch(),
                    lane: slot.lane,
                    position: slot.position,
                });
                Ok(spots.collect())
            }
            Self::Mixed(Mixed { mixture, .. }) => {
                let mut spots = Vec::new();
                for slot in mixture.batch(batch) {
                    let lane = match draws.0.remove(&slot.lane) {
                        Some(lane) if lane.next_position() == slot.position => lane,
                        _ => mixture.lane(slot.lane, slot.position)?,
                    };
                    let lane = draws.0.entry(slot.lane).or_insert(lane);
                    spots.extend(lane.next().map(|draw| Spot {
                        source: draw.source,
                        epoch: draw.epoch,
                        lane: slot.lane,
                        position: draw.position,
                    }));
                }
                Ok(spots)
            }
        }
    }
}

/// A position in an epoch, counted from 0, that a run of fewer epochs never comes to.
fn behind(epoch: u64, epochs: u64) -> Error {
    let message = format!(
        "the saved position is in epoch {}, and the run ends after epoch {epochs}",
        epoch + 1
    );
    Error::new(ErrorKind::InvalidInput, "resume", message)
        .with_field("epochs")
        .with_hint(format!(
            "epochs counts from the beginning of the run, not from the position: set it to {} or more",
            epoch + 1
        ))
}

/// The windows of one lane, nearest need first.
#[derive(Debug)]
pub(super) enum Needs {
    /// Nothing more is streamed.
    None,
    Epoch {
        plan: EpochPlan,
        lane: u32,
        windows: Windows,
        begin: u64,
    },
    Mixed(MixedNeeds),
}

/// The windows of one lane of a mixture: one is needed whenever a sample is drawn that the window before did not hold.
#[derive(Debug)]
pub(super) struct MixedNeeds {
    mixture: Mixture,
    lane: u32,
    draws: MixLane,
    /// For each data set, the epoch it is in, where its last window ends, and those after it.
    open: Vec<Option<(u64, u64, Windows)>>,
    batches_end: u64,
}

impl Iterator for Needs {
    type Item = Need;

    fn next(&mut self) -> Option<Need> {
        match self {
            Self::None => None,
            Self::Epoch {
                plan,
                lane,
                windows,
                begin,
            } => {
                let window = windows.next()?;
                Some(Need {
                    source: 0,
                    epoch: plan.epoch(),
                    lane: *lane,
                    batch: plan.batch_of(*lane, window.start),
                    begin: *begin,
                    window,
                })
            }
            Self::Mixed(mixed) => mixed.next(),
        }
    }
}

impl MixedNeeds {
    fn next(&mut self) -> Option<Need> {
        loop {
            let batch = self.mixture.batch_of(self.lane, self.draws.next_position());
            if batch >= self.batches_end {
                return None;
            }
            let draw = self.draws.next()?;
            let open = self.open.get_mut(draw.source as usize)?;
            let mut windows = match open.take() {
                Some((epoch, end, windows)) if epoch == draw.epoch && draw.position < end => {
                    *open = Some((epoch, end, windows));
                    continue;
                }
                Some((epoch, _, windows)) if epoch == draw.epoch => windows,
                _ => {
                    let plan = self.mixture.lane_of(draw.source, draw.epoch, self.lane);
                    plan.ok()?.windows_from(draw.position)
                }
            };
            let window = windows.next()?;
            *open = Some((draw.epoch, window.end(), windows));
            return Some(Need {
                source: draw.source,
                epoch: draw.epoch,
                lane: self.lane,
                batch,
                window,
                begin: draw.position,
            });
        }
    }
}
