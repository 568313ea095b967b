//! Answers held back and let go in a random order, which the seed decides.
//!
//! Requests take effect when they are submitted; only the answers are reordered. No thread does it: those who wait for an
//! answer drive the others, so a run on one thread is the same for the same seed, and nothing can hang that would not hang otherwise.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Rng, Seed};
use tokio::sync::oneshot;

use crate::completion::{Completion, Holder};

/// Answers held at once: enough for every order of the requests that one transfer keeps in flight.
const HELD_MAX: usize = 32;

/// The answers held back.
pub(crate) struct Held(Mutex<State>);

struct State {
    answers: Vec<(u64, Box<dyn FnOnce() + Send>)>,
    next_ticket: u64,
    rng: Rng,
}

impl Held {
    pub(crate) fn new(seed: Seed) -> Self {
        Self(Mutex::new(State {
            answers: Vec::new(),
            next_ticket: 0,
            rng: seed.rng(),
        }))
    }

    /// Hold `value` back; `told` runs when it is let go.
    pub(crate) fn hold<T: Send + 'static>(
        self: &Arc<Self>,
        value: T,
        told: impl FnOnce() + Send + 'static,
    ) -> Completion<T> {
        let (sender, receiver) = oneshot::channel();
        let answer = Box::new(move || {
            told();
            drop(sender.send(value));
        });
        let (ticket, full) = {
            let mut state = self.lock();
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.answers.push((ticket, answer));
            (ticket, state.answers.len() > HELD_MAX)
        };
        if full {
            self.let_one_go();
        }
        Completion::held(receiver, Arc::clone(self) as Arc<dyn Holder>, ticket)
    }

    fn let_one_go(&self) {
        let answer = {
            let mut state = self.lock();
            let count = state.answers.len() as u64;
            let index = state.rng.below(count) as usize;
            (count > 0).then(|| state.answers.swap_remove(index))
        };
        // Outside the lock: letting go wakes tasks and frees buffers.
        if let Some((_, let_go)) = answer {
            let_go();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder for Held {
    fn step(&self) {
        let go = self.lock().rng.one_in(2);
        if go {
            self.let_one_go();
        }
    }

    fn release(&self, ticket: u64) {
        let answer = {
            let mut state = self.lock();
            let index = state.answers.iter().position(|(held, _)| *held == ticket);
            index.map(|index| state.answers.swap_remove(index))
        };
        if let Some((_, let_go)) = answer {
            let_go();
        }
    }
}
