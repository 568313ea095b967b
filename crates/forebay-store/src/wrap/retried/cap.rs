//! Requests in flight, bounded by what the store bears: halved when it complains, one more per round of successes.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// A bound on requests in flight that follows the store.
#[derive(Debug, Clone)]
pub(super) struct Cap(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    freed: Notify,
    limit_max: f64,
}

#[derive(Debug)]
struct State {
    limit: f64,
    in_flight: usize,
    /// When the limit was cut last.
    cut_at: Duration,
}

/// A place in flight, given back on drop.
#[derive(Debug)]
pub(super) struct Place(Arc<Shared>);

impl Cap {
    /// At most `limit_max`, and that to begin with.
    pub(super) fn new(limit_max: u32) -> Self {
        let limit_max = f64::from(limit_max.max(1));
        let state = State {
            limit: limit_max,
            in_flight: 0,
            cut_at: Duration::ZERO,
        };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            freed: Notify::new(),
            limit_max,
        }))
    }

    /// The bound right now.
    pub(super) fn limit(&self) -> usize {
        self.0.lock().limit as usize
    }

    /// Wait for a place.
    pub(super) async fn acquire(&self) -> Place {
        loop {
            // Waiting begins before looking, so that a place freed in between is not missed.
            let mut freed = pin!(self.0.freed.notified());
            freed.as_mut().enable();
            if self.0.try_take() {
                return Place(Arc::clone(&self.0));
            }
            freed.await;
        }
    }

    /// The store complained about a request that began at `began`. All that were in flight together complain together; that is one
    /// complaint.
    pub(super) fn cut(&self, began: Duration, now: Duration) {
        let mut state = self.0.lock();
        if began >= state.cut_at {
            state.limit = (state.limit / 2.0).max(1.0);
            state.cut_at = now;
        }
    }

    /// A request went well.
    pub(super) fn grow(&self) {
        let mut state = self.0.lock();
        let before = state.limit as usize;
        state.limit = (state.limit + 1.0 / state.limit).min(self.0.limit_max);
        if state.limit as usize > before {
            self.0.freed.notify_one();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_take(&self) -> bool {
        let mut state = self.lock();
        let free = state.in_flight < state.limit as usize;
        if free {
            state.in_flight += 1;
        }
        free
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn complaints_halve_once_per_round_and_success_grows_back() {
        let cap = Cap::new(16);
        let at = Duration::from_secs;
        for _ in 0..16 {
            cap.cut(at(1), at(2));
        }
        assert_eq!(
            cap.limit(),
            8,
            "requests that were in flight together are one complaint"
        );
        cap.cut(at(3), at(4));
        assert_eq!(cap.limit(), 4);
        for _ in 0..10 {
            cap.cut(at(100), at(100));
        }
        assert_eq!(cap.limit(), 1, "never less than one");
        for _ in 0..1000 {
            cap.grow();
        }
        assert_eq!(cap.limit(), 16);
    }

    #[tokio::test]
    async fn places_are_bounded_and_waited_for() {
        let cap = Cap::new(2);
        let (a, _b) = (cap.acquire().await, cap.acquire().await);
        let third = tokio::spawn({
            let cap = cap.clone();
            async move { drop(cap.acquire().await) }
        });
        tokio::task::yield_now().await;
        assert!(!third.is_finished());
        drop(a);
        third.await.unwrap();
    }
}
