//! How many bytes of local files are in flight.
//!
//! A sink that fills and empties the same memory again and again is fastest with little in flight: the memory stays in the caches. Storage behind a network,
//! or several drives side by side, need more before they are busy. Which of the two it is shows only in the rate, so it is tried: for
//! [`PHASE_BYTES`] the window is twice as large, then as before once more, and it is doubled for good where that came clearly faster than both: disks
//! have neighbours, and their rate changes without our doing.

use std::time::Duration;

/// Bytes by which a window is judged: a twentieth of a second of a fast drive.
const PHASE_BYTES: u64 = 256 << 20;

/// In percent of the rate with half as much, what a larger window must bring to be kept. Where what is in flight is too little, twice as much brings nearly
/// twice the rate.
const GAIN_PERCENT_MIN: u128 = 130;

/// Phases after which a larger window that did not pay is tried again.
const PATIENCE_PHASES: u32 = 16;

/// Bytes that may be in flight, and those that are.
#[derive(Debug)]
pub(super) struct Window {
    bytes: u64,
    bytes_max: u64,
    in_flight: u64,
    /// When the phase began, and what has come since.
    phase: Option<(Duration, u64)>,
    trial: Trial,
}

/// Whether more is being tried; rates are those of the phases before, in bytes per second.
#[derive(Debug, Clone, Copy)]
enum Trial {
    /// Not for so many phases.
    Not(u32),
    /// Twice as much, which had this rate with half of it.
    Larger { before: u64 },
    /// As before once more.
    Again { before: u64, larger: u64 },
}

impl Window {
    /// Begin with `bytes`, and try up to `bytes_max`.
    pub(super) fn new(bytes: u64, bytes_max: u64) -> Self {
        Self {
            bytes: bytes.min(bytes_max),
            bytes_max,
            in_flight: 0,
            phase: None,
            trial: Trial::Not(0),
        }
    }

    /// Always so many.
    pub(super) fn fixed(bytes: u64) -> Self {
        Self::new(bytes, bytes)
    }

    /// Whether so many bytes more may be on their way. A piece larger than the window goes alone.
    pub(super) fn admits(&self, bytes: u64) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(bytes) <= self.bytes
    }

    /// So many are.
    pub(super) fn take(&mut self, bytes: u64) {
        self.in_flight += bytes;
    }

    /// So many have come.
    pub(super) fn give_back(&mut self, bytes: u64, now: Duration) {
        self.in_flight -= bytes;
        // The first of them has waited for files to be opened, which says nothing.
        let (began, come) = *self.phase.get_or_insert((now, 0));
        if began == now && come == 0 {
            return;
        }
        let come = come + bytes;
        self.phase = Some((began, come));
        if come >= PHASE_BYTES {
            self.judge(rate(come, now.saturating_sub(began)));
            self.phase = Some((now, 0));
        }
    }

    /// Try more, go back, or stay, by the rate of the last phase.
    fn judge(&mut self, rate: u64) {
        self.trial = match self.trial {
            Trial::Not(0) if self.bytes <= self.bytes_max / 2 => {
                self.bytes *= 2;
                Trial::Larger { before: rate }
            }
            Trial::Not(phases) => Trial::Not(phases.saturating_sub(1)),
            Trial::Larger { before } => {
                self.bytes /= 2;
                Trial::Again { before, larger: rate }
            }
            Trial::Again { before, larger }
                if u128::from(larger) * 100 >= u128::from(before.max(rate)) * GAIN_PERCENT_MIN =>
            {
                self.bytes *= 2;
                Trial::Not(0)
            }
            Trial::Again { .. } => Trial::Not(PATIENCE_PHASES),
        };
    }
}

/// Bytes per second.
fn rate(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The windows that were used for so many bytes, of storage that gives `rate_of(window)` bytes per second.
    fn windows(mut window: Window, bytes: u64, rate_of: impl Fn(u64) -> u64) -> Vec<u64> {
        let (mut now, mut seen) = (Duration::ZERO, vec![window.bytes]);
        for _ in 0..bytes / (8 * MIB) {
            assert!(window.admits(8 * MIB));
            window.take(8 * MIB);
            now += Duration::from_nanos(8 * MIB * 1_000_000_000 / rate_of(window.bytes));
            window.give_back(8 * MIB, now);
            if seen.last() != Some(&window.bytes) {
                seen.push(window.bytes);
            }
        }
        seen
    }

    #[test]
    fn stays_small_where_more_brings_nothing() {
        let seen = windows(Window::new(16 * MIB, 128 * MIB), 4 << 30, |_| 4_000_000_000);
        assert_eq!(seen, [16 * MIB, 32 * MIB, 16 * MIB]);
    }

    #[test]
    fn grows_with_the_latency_of_storage_and_no_further() {
        // A millisecond each way: the rate is what is in flight, until the wire is full.
        let seen = windows(Window::new(16 * MIB, 128 * MIB), 4 << 30, |bytes| {
            (bytes * 1000).min(64 * MIB * 1000)
        });
        assert_eq!(seen, [16, 32, 16, 32, 64, 32, 64, 128, 64].map(|mib| mib * MIB));
        let seen = windows(Window::new(16 * MIB, 128 * MIB), 64 << 30, |bytes| bytes * 1000);
        assert_eq!(
            seen,
            [16, 32, 16, 32, 64, 32, 64, 128, 64, 128].map(|mib| mib * MIB)
        );
    }

    #[test]
    fn a_disk_that_becomes_faster_by_itself_gets_no_more() {
        let mut window = Window::new(16 * MIB, 128 * MIB);
        for gb_per_s in [2, 3, 4, 5, 6] {
            window.judge(gb_per_s * 1_000_000_000);
        }
        assert_eq!(window.bytes, 16 * MIB);
    }

    #[test]
    fn tries_again_after_a_while() {
        let seen = windows(Window::new(16 * MIB, 128 * MIB), 8 << 30, |_| 4_000_000_000);
        assert_eq!(seen, [16, 32, 16, 32, 16].map(|mib| mib * MIB));
    }

    #[test]
    fn holds_what_is_in_flight() {
        let mut window = Window::fixed(16 * MIB);
        assert!(window.admits(100 * MIB), "a large one alone");
        window.take(8 * MIB);
        assert!(window.admits(8 * MIB) && !window.admits(9 * MIB));
        window.take(8 * MIB);
        assert!(!window.admits(1));
        window.give_back(8 * MIB, Duration::from_secs(1));
        assert!(window.admits(8 * MIB));
        let seen = windows(Window::fixed(16 * MIB), 8 << 30, |bytes| bytes * 1000);
        assert_eq!(seen, [16 * MIB]);
    }
}
