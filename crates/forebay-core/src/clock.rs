//! The only source of time.
//!
//! Code that measures or waits takes a [`Clock`]; tests give it a [`ManualClock`] and decide what time it is.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Monotonic time since an arbitrary start, and wall time for stamps that people read.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Time since an arbitrary start that never goes back.
    fn now(&self) -> Duration;

    /// Time since 1970 in UTC; may jump.
    fn unix(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the home of time")]
    fn now(&self) -> Duration {
        use std::sync::OnceLock;
        use std::time::Instant;
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the home of time")]
    fn unix(&self) -> Duration {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
    }
}

/// A clock that stands still until it is moved.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Move time forward.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn unix(&self) -> Duration {
        self.now()
    }
}
