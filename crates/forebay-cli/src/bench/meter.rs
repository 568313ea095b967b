//! Wall time and CPU time of one run, and the median of several.

use std::time::Duration;

use forebay_core::{Clock, Rate, SystemClock};
use forebay_io::cpu_time;
use serde::Serialize;

/// What one run moved, and what it cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sample {
    /// Bytes moved.
    pub(crate) bytes: u64,
    /// Wall time.
    pub(crate) time: Duration,
    /// CPU time of all threads, user and system.
    pub(crate) cpu: Duration,
}

impl Sample {
    /// Bytes per second.
    pub(crate) fn rate(&self) -> Rate {
        Rate::of(self.bytes, self.time)
    }

    /// CPU seconds per 10^9 bytes.
    pub(crate) fn cpu_s_per_gb(&self) -> f64 {
        if self.bytes == 0 {
            0.0
        } else {
            self.cpu.as_secs_f64() / (self.bytes as f64 / 1e9)
        }
    }
}

/// Measures from its making to [`Meter::stop`]. CPU time is that of the whole process, so only one thing may run meanwhile.
#[derive(Debug)]
pub(crate) struct Meter {
    time: Duration,
    cpu: Duration,
}

impl Meter {
    /// Begin.
    pub(crate) fn start() -> Self {
        Self {
            time: SystemClock.now(),
            cpu: cpu_time(),
        }
    }

    /// End, having moved `bytes`.
    pub(crate) fn stop(self, bytes: u64) -> Sample {
        Sample {
            bytes,
            time: SystemClock.now().saturating_sub(self.time),
            cpu: cpu_time().saturating_sub(self.cpu),
        }
    }
}

/// The median of several runs, in the shape of `--json`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Median {
    /// Bytes per second, median.
    pub(crate) bytes_per_s: f64,
    /// Slowest and fastest run.
    pub(crate) bytes_per_s_min: f64,
    /// Fastest run.
    pub(crate) bytes_per_s_max: f64,
    /// CPU seconds per 10^9 bytes, median.
    pub(crate) cpu_s_per_gb: f64,
}

impl Median {
    /// `None` for no runs.
    pub(crate) fn of(samples: &[Sample]) -> Option<Self> {
        let rates = sorted(samples.iter().map(|sample| sample.rate().0));
        let cpu = sorted(samples.iter().map(Sample::cpu_s_per_gb));
        Some(Self {
            bytes_per_s: middle(&rates)?,
            bytes_per_s_min: *rates.first()?,
            bytes_per_s_max: *rates.last()?,
            cpu_s_per_gb: middle(&cpu)?,
        })
    }

    /// The median rate.
    pub(crate) fn rate(&self) -> Rate {
        Rate(self.bytes_per_s)
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The middle value; of an even number, the mean of the two in the middle.
fn middle(sorted: &[f64]) -> Option<f64> {
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        len if len.is_multiple_of(2) => Some(f64::midpoint(sorted[half - 1], sorted[half])),
        _ => Some(sorted[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_not_the_mean() {
        let sample = |ms| Sample {
            bytes: 1_000_000_000,
            time: Duration::from_millis(ms),
            cpu: Duration::from_millis(ms / 10),
        };
        let median = Median::of(&[sample(1000), sample(500), sample(10_000)]).unwrap();
        assert!((median.bytes_per_s - 1e9).abs() < 1.0);
        assert!((median.cpu_s_per_gb - 0.1).abs() < 1e-9);
        assert!(Median::of(&[]).is_none());
        assert!((Median::of(&[sample(1000), sample(500)]).unwrap().bytes_per_s - 1.5e9).abs() < 1.0);
    }
}
