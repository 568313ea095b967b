//! Retries are paid for by requests: each request earns a share of one, each retry costs one.

use std::sync::{Mutex, PoisonError};

/// Retries a store begins with, so that its first requests may be tried again too.
const TOKENS_START: f64 = 10.0;

/// Retries that can be saved up: enough for a short outage under full load, not for a long one.
const TOKENS_MAX: f64 = 100.0;

/// A bucket of retries.
#[derive(Debug)]
pub(super) struct Budget {
    earned: f64,
    tokens: Mutex<f64>,
}

impl Budget {
    /// `percent` retries for each 100 requests.
    pub(super) fn new(percent: u32) -> Self {
        Self {
            earned: f64::from(percent) / 100.0,
            tokens: Mutex::new(TOKENS_START),
        }
    }

    /// A request was made.
    pub(super) fn earn(&self) {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        *tokens = (*tokens + self.earned).min(TOKENS_MAX);
    }

    /// Pay for a retry; false when there is nothing left.
    pub(super) fn spend(&self) -> bool {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_stay_a_share_of_requests() {
        let budget = Budget::new(20);
        let spent = (0..1000)
            .filter(|_| {
                budget.earn();
                budget.spend()
            })
            .count();
        assert!((200..=211).contains(&spent), "{spent} retries for 1000 requests");
    }
}
