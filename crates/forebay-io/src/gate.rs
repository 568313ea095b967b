//! Who may go first: classes of service in front of the engine.
//!
//! Every local read and write asks the [`Gate`] for a [`Permit`] of its bytes before it is submitted, and the permit travels
//! with the request until the kernel is done. A [`GatePolicy`] decides how many bytes each class may have in flight; bounding
//! bytes in flight, not rates, is what keeps a checkpoint from ruining the latency of training reads. Within a class, requests go in the
//! order they came; between classes, the higher one is asked first.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::metric;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::completion::Completion;

/// Class of service, highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Somebody waits for it: weights, inference.
    Latency,
    /// Training reads.
    #[default]
    Data,
    /// Checkpoint writes.
    Checkpoint,
    /// Scrubbing, tiering, copies nobody waits for.
    Background,
}

impl Class {
    /// All classes, highest first.
    pub const ALL: [Self; 4] = [Self::Latency, Self::Data, Self::Checkpoint, Self::Background];

    const fn index(self) -> usize {
        self as usize
    }

    /// Name in metrics and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Data => "data",
            Self::Checkpoint => "checkpoint",
            Self::Background => "background",
        }
    }
}

/// Bytes in flight by class, as a policy sees them.
pub type InFlight = [u64; 4];

/// Decides whether a request may go now.
pub trait GatePolicy: fmt::Debug + Send + Sync {
    /// May `bytes` more of `class` be put in flight beside `in_flight`? Asked again whenever a request ends. A request of a class with
    /// nothing in flight is let through without asking, so that no policy can stop a class for ever.
    fn admits(&self, class: Class, bytes: u64, in_flight: &InFlight) -> bool;
}

/// A fixed cap of bytes in flight per class.
#[derive(Debug, Clone, Copy)]
pub struct FixedCaps(pub InFlight);

impl Default for FixedCaps {
    /// 64 MiB for what somebody waits for, 32 MiB for checkpoints (enough to saturate a drive), 4 MiB for the background.
    fn default() -> Self {
        Self([64 << 20, 64 << 20, 32 << 20, 4 << 20])
    }
}

impl GatePolicy for FixedCaps {
    fn admits(&self, class: Class, bytes: u64, in_flight: &InFlight) -> bool {
        in_flight[class.index()].saturating_add(bytes) <= self.0[class.index()]
    }
}

/// Lets requests through by class; clones share it.
#[derive(Debug, Clone)]
pub struct Gate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    policy: Box<dyn GatePolicy>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    in_flight: InFlight,
    peak: InFlight,
    requests: u32,
    requests_max: u32,
    waiting: [VecDeque<Waiter>; 4],
}

#[derive(Debug)]
struct Waiter {
    bytes: u64,
    grant: oneshot::Sender<Permit>,
}

/// The right to have some bytes in flight; given back on drop.
#[derive(Debug)]
pub struct Permit {
    gate: Arc<Shared>,
    class: Class,
    /// `None` once it was given back.
    bytes: Option<u64>,
}

/// Requests in flight over all classes before others wait: below the bound of every engine's queue, where waiting would block a thread.
const REQUESTS_MAX: u32 = 512;

impl Gate {
    /// A gate with that policy.
    pub fn new(policy: impl GatePolicy + 'static) -> Self {
        let state = State {
            in_flight: [0; 4],
            peak: [0; 4],
            requests: 0,
            requests_max: REQUESTS_MAX,
            waiting: Default::default(),
        };
        Self(Arc::new(Shared {
            policy: Box::new(policy),
            state: Mutex::new(state),
        }))
    }

    /// Let at most that many requests be in flight; the disk sets it to what its engine's queue holds.
    pub(crate) fn limit_requests(&self, requests_max: u32) {
        self.0.lock().requests_max = requests_max.max(1);
    }

    /// Wait for the right to put `bytes` of `class` in flight.
    pub fn acquire(&self, class: Class, bytes: u64) -> Completion<Permit> {
        let mut state = self.0.lock();
        if state.waiting[class.index()].is_empty() && self.0.may_go(&state, class, bytes) {
            return Completion::ready(self.0.grant(&mut state, class, bytes));
        }
        let (grant, granted) = oneshot::channel();
        state.waiting[class.index()].push_back(Waiter { bytes, grant });
        let shared = Arc::clone(&self.0);
        Completion::queued(granted, move || shared.serve())
    }

    /// Bytes in flight by class right now, and the most there ever were.
    pub fn in_flight(&self) -> (InFlight, InFlight) {
        let state = self.0.lock();
        (state.in_flight, state.peak)
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new(FixedCaps::default())
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn may_go(&self, state: &State, class: Class, bytes: u64) -> bool {
        state.requests < state.requests_max
            && (state.in_flight[class.index()] == 0 || self.policy.admits(class, bytes, &state.in_flight))
    }

    fn grant(self: &Arc<Self>, state: &mut State, class: Class, bytes: u64) -> Permit {
        state.requests += 1;
        let in_flight = &mut state.in_flight[class.index()];
        *in_flight += bytes;
        state.peak[class.index()] = state.peak[class.index()].max(*in_flight);
        metrics::gauge!(metric::GATE_IN_FLIGHT_BYTES, "class" => class.name()).set(*in_flight as f64);
        Permit {
            gate: Arc::clone(self),
            class,
            bytes: Some(bytes),
        }
    }

    /// Give waiters their turn, highest class first, as far as the policy lets them. Those that went away are passed over.
    fn serve(self: &Arc<Self>) {
        // In rounds, not by recursion through dropped permits: any number of waiters may go away at once.
        loop {
            let mut returned = false;
            for (grant, permit) in self.grants() {
                if let Err(mut permit) = grant.send(permit) {
                    permit.give_back();
                    returned = true;
                }
            }
            if !returned {
                return;
            }
        }
    }

    fn grants(self: &Arc<Self>) -> Vec<(oneshot::Sender<Permit>, Permit)> {
        let mut grants = Vec::new();
        let mut state = self.lock();
        for class in Class::ALL {
            while let Some(waiter) = state.waiting[class.index()].pop_front() {
                if waiter.grant.is_closed() {
                    continue;
                }
                if !self.may_go(&state, class, waiter.bytes) {
                    state.waiting[class.index()].push_front(waiter);
                    break;
                }
                grants.push((waiter.grant, self.grant(&mut state, class, waiter.bytes)));
            }
        }
        grants
    }
}

impl Permit {
    /// Return the bytes without serving those who wait for them; false when that was done before.
    fn give_back(&mut self) -> bool {
        let Some(bytes) = self.bytes.take() else {
            return false;
        };
        let mut state = self.gate.lock();
        state.requests -= 1;
        state.in_flight[self.class.index()] -= bytes;
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.give_back() {
            self.gate.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::new(FixedCaps([100, 100, 10, 10]))
    }

    #[test]
    fn caps_hold_per_class_and_order_is_kept() {
        let gate = gate();
        let a = gate.acquire(Class::Checkpoint, 6).wait().unwrap();
        let second = gate.acquire(Class::Checkpoint, 6);
        let third = gate.acquire(Class::Checkpoint, 1);
        assert!(
            gate.acquire(Class::Latency, 90).wait().is_ok(),
            "other classes are not held up"
        );
        assert_eq!(gate.in_flight().0[2], 6);
        drop(a);
        assert_eq!(gate.in_flight().0[2], 7, "both waiters fit now, in order");
        drop((second.wait(), third.wait()));
        assert_eq!(gate.in_flight(), ([0; 4], [90, 0, 7, 0]));
    }

    #[test]
    fn more_than_the_cap_goes_alone_instead_of_never() {
        let gate = gate();
        let big = gate.acquire(Class::Background, 1000).wait().unwrap();
        let next = gate.acquire(Class::Background, 1);
        assert_eq!(gate.in_flight().0[3], 1000);
        drop(big);
        assert!(next.wait().is_ok());
    }

    #[test]
    fn a_waiter_that_goes_away_does_not_block_the_class() {
        let gate = gate();
        let held = gate.acquire(Class::Checkpoint, 10).wait().unwrap();
        drop(gate.acquire(Class::Checkpoint, 10));
        let next = gate.acquire(Class::Checkpoint, 10);
        drop(held);
        assert!(next.wait().is_ok());
    }

    #[test]
    fn those_behind_a_waiter_that_goes_away_need_nobody_to_move_up() {
        let gate = gate();
        let _held = gate.acquire(Class::Checkpoint, 5).wait().unwrap();
        let gone = gate.acquire(Class::Checkpoint, 10);
        let behind = gate.acquire(Class::Checkpoint, 1);
        drop(gone);
        assert!(behind.wait().is_ok());
    }

    #[test]
    fn any_number_of_waiters_may_go_away_at_once() {
        let gate = gate();
        let held = gate.acquire(Class::Checkpoint, 10).wait().unwrap();
        let gone: Vec<_> = (0..50_000).map(|_| gate.acquire(Class::Checkpoint, 10)).collect();
        drop(held);
        drop(gone);
        assert_eq!(gate.in_flight().0, [0; 4]);
    }

    #[test]
    fn the_number_of_requests_is_bounded_too() {
        let gate = gate();
        gate.limit_requests(2);
        let first = gate.acquire(Class::Latency, 1).wait().unwrap();
        let _second = gate.acquire(Class::Data, 1).wait().unwrap();
        let third = gate.acquire(Class::Background, 1);
        assert_eq!(gate.in_flight().0[3], 0);
        drop(first);
        assert!(third.wait().is_ok());
    }
}
