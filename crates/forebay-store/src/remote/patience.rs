//! Pauses between tries: doubling, jittered, bounded, and never shorter than the server asks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Limits, Seed};

/// The source of pauses of one store.
#[derive(Debug)]
pub(crate) struct Patience {
    pause_ms: u64,
    pause_ms_max: u64,
    seed: Seed,
    drawn: AtomicU64,
}

impl Patience {
    pub(crate) fn new(limits: &Limits, seed: Seed) -> Self {
        Self {
            pause_ms: limits.retry_pause_ms,
            pause_ms_max: limits.retry_pause_ms_max,
            seed,
            drawn: AtomicU64::new(0),
        }
    }

    /// Wait before try number `tries + 1`; `asked` is what the server wants, honoured up to the longest pause.
    pub(crate) async fn pause(&self, tries: u32, asked: Option<Duration>) {
        let doubled = self.pause_ms.saturating_mul(1 << tries.saturating_sub(1).min(20));
        let full = doubled.min(self.pause_ms_max);
        let jitter = self.seed.derive(self.draw()).rng().below(full / 2 + 1);
        let pause = Duration::from_millis(full - jitter);
        let asked = asked
            .unwrap_or_default()
            .min(Duration::from_millis(self.pause_ms_max));
        tokio::time::sleep(pause.max(asked)).await;
    }

    /// A name that no other writer has.
    pub(crate) fn unique(&self) -> String {
        let own = self.seed.derive(self.draw()).0;
        format!("{own:016x}{:016x}", Seed::fresh().0)
    }

    fn draw(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed)
    }
}
