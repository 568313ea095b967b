//! Stall accounting: how long the consumer waited for batches, and for each wait the stage to blame.
//!
//! A batch passes stations, each with its time: its blocks arrive, are checked, its samples are put together, it gets a working thread, it is
//! collated. A wait is laid over these: the part of it before the last block had arrived is blamed on reading, the part before it was checked on checking, and so
//! on. Time between a batch and the next request for one belongs to the consumer.

use std::time::Duration;

use serde::Serialize;

use super::read::{Origin, Times};

/// When a batch passed which station.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stations {
    /// Of its blocks, the last to pass each station.
    pub(super) blocks: Times,
    /// All its samples were found.
    pub(super) assembled: Duration,
    /// A thread began to collate it.
    pub(super) begun: Duration,
    /// It was collated.
    pub(super) done: Duration,
}

/// Waits by the stage to blame, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Blame {
    /// Bytes were on their way from a remote store.
    pub store_s: f64,
    /// Bytes were on their way from the local cache of a remote store.
    pub cache_s: f64,
    /// Bytes were on their way from a file system.
    pub disk_s: f64,
    /// Bytes were there, and were being parsed and compared with the manifest.
    pub parse_s: f64,
    /// Samples were there, and their batch had no working thread yet.
    pub queue_s: f64,
    /// The batch was being decoded and collated.
    pub collate_s: f64,
    /// The batch was ready, and on its way to the consumer.
    pub hand_over_s: f64,
}

impl Blame {
    fn add(&mut self, from: Duration, to: Duration, stations: &Stations) {
        let mut at = from;
        let mut until = |station: Duration| {
            let end = station.clamp(at, to);
            let part = end.saturating_sub(at).as_secs_f64();
            at = end;
            part
        };
        let read = match stations.blocks.origin {
            Origin::Store => &mut self.store_s,
            Origin::Cache => &mut self.cache_s,
            Origin::Disk => &mut self.disk_s,
        };
        *read += until(stations.blocks.arrived);
        self.parse_s += until(stations.blocks.checked);
        self.queue_s += until(stations.begun.max(stations.assembled));
        self.collate_s += until(stations.done);
        self.hand_over_s += until(to);
    }
}

/// Parts of each doubling in the distribution of waits, which is what its quantiles are right to: a sixteenth.
const PARTS: u64 = 16;

/// Buckets of the distribution, from a microsecond on: 40 doublings are twelve days.
const BUCKETS: usize = 40 * PARTS as usize;

/// What the consumer has seen so far.
#[derive(Debug, Clone)]
pub(super) struct Stalls {
    waited: Duration,
    consumer: Duration,
    first: Option<Duration>,
    longest: Duration,
    blame: Blame,
    waits: Vec<u64>,
    count: u64,
    left: Option<Duration>,
}

impl Default for Stalls {
    fn default() -> Self {
        Self {
            waited: Duration::ZERO,
            consumer: Duration::ZERO,
            first: None,
            longest: Duration::ZERO,
            blame: Blame::default(),
            waits: vec![0; BUCKETS],
            count: 0,
            left: None,
        }
    }
}

impl Stalls {
    /// The stream begins elsewhere: until its first batch is asked for, nothing was streamed.
    pub(super) fn go_on(&mut self) {
        self.left = None;
    }

    /// The consumer asked for a batch at `from` and had it at `to`.
    pub(super) fn waited(&mut self, from: Duration, to: Duration, stations: &Stations) {
        let wait = to.saturating_sub(from);
        if let Some(left) = self.left {
            self.consumer += from.saturating_sub(left);
        }
        self.left = Some(to);
        self.waited += wait;
        self.count += 1;
        self.blame.add(from, to, stations);
        self.first.get_or_insert(wait);
        self.longest = self.longest.max(wait);
        self.waits[bucket(wait)] += 1;
    }

    /// What there is to tell.
    pub(super) fn report(&self) -> StallReport {
        let (waited_s, consumer_s) = (self.waited.as_secs_f64(), self.consumer.as_secs_f64());
        let all = waited_s + consumer_s;
        StallReport {
            batches: self.count,
            waited_s,
            consumer_s,
            waited_share: if all > 0.0 { waited_s / all } else { 0.0 },
            first_batch_s: self.first.unwrap_or_default().as_secs_f64(),
            wait_p50_s: self.quantile(0.50),
            wait_p99_s: self.quantile(0.99),
            wait_max_s: self.longest.as_secs_f64(),
            blame: self.blame,
        }
    }

    /// Upper end of the bucket that holds the quantile, which is beyond no wait that there was.
    fn quantile(&self, share: f64) -> f64 {
        let wanted = (share * self.count as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (index, count) in self.waits.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return (end_micros(index) as f64 * 1e-6).min(self.longest.as_secs_f64());
            }
        }
        0.0
    }
}

/// Below [`PARTS`] microseconds each has a bucket; from there on each doubling has so many of one width.
fn bucket(wait: Duration) -> usize {
    let micros = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
    if micros < PARTS {
        return micros as usize;
    }
    let doubling = u64::from(micros.ilog2() - PARTS.ilog2());
    let part = (micros >> doubling) - PARTS;
    ((doubling + 1) * PARTS + part).min(BUCKETS as u64 - 1) as usize
}

/// Where a bucket ends.
fn end_micros(bucket: usize) -> u64 {
    let (doublings, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    match doublings.checked_sub(1) {
        None => part + 1,
        Some(doubling) => (PARTS + part + 1) << doubling,
    }
}

/// Waits of the consumer.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct StallReport {
    /// Batches handed over.
    pub batches: u64,
    /// Time the consumer waited for them.
    pub waited_s: f64,
    /// Time it spent with them.
    pub consumer_s: f64,
    /// Its share of waiting.
    pub waited_share: f64,
    /// Time to the first batch.
    pub first_batch_s: f64,
    /// Half of the waits were shorter, to a sixteenth.
    pub wait_p50_s: f64,
    /// 99 of 100 waits were shorter, to a sixteenth.
    pub wait_p99_s: f64,
    /// No wait was longer.
    pub wait_max_s: f64,
    /// What the waits were for.
    pub blame: Blame,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn every_waited_millisecond_has_one_stage_to_blame() {
        let stations = Stations {
            blocks: Times {
                origin: Origin::Cache,
                asked: ms(1),
                arrived: ms(30),
                checked: ms(35),
            },
            assembled: ms(36),
            begun: ms(40),
            done: ms(60),
        };
        let mut stalls = Stalls::default();
        stalls.waited(ms(10), ms(61), &stations);
        stalls.waited(ms(161), ms(162), &stations);
        let report = stalls.report();
        let blame = report.blame;
        assert_eq!((blame.store_s, blame.disk_s), (0.0, 0.0));
        let parts = [
            blame.cache_s,
            blame.parse_s,
            blame.queue_s,
            blame.collate_s,
            blame.hand_over_s,
        ];
        for (part, wanted) in parts.into_iter().zip([0.020, 0.005, 0.005, 0.020, 0.002]) {
            assert!((part - wanted).abs() < 1e-9, "{blame:?}");
        }
        assert!((report.waited_s - 0.052).abs() < 1e-9 && (report.consumer_s - 0.1).abs() < 1e-9);
        assert!((report.waited_share - 0.052 / 0.152).abs() < 1e-9);
        assert_eq!(report.batches, 2);
    }

    #[test]
    fn the_time_in_which_nothing_was_streamed_is_nobodys() {
        let mut stalls = Stalls::default();
        stalls.waited(ms(0), ms(10), &Stations::default());
        stalls.go_on();
        stalls.waited(ms(5000), ms(5010), &Stations::default());
        stalls.waited(ms(5110), ms(5110), &Stations::default());
        let report = stalls.report();
        assert!((report.consumer_s - 0.1).abs() < 1e-9, "{report:?}");
        assert!((report.waited_share - 0.02 / 0.12).abs() < 1e-9, "{report:?}");
    }

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        let mut stalls = Stalls::default();
        for wait in 1..=100 {
            stalls.waited(ms(0), ms(wait), &Stations::default());
        }
        let report = stalls.report();
        assert!((0.050..=0.0532).contains(&report.wait_p50_s), "{report:?}");
        assert!((0.099..=0.100).contains(&report.wait_p99_s), "{report:?}");
        assert!((report.wait_max_s - 0.1).abs() < 1e-9, "{report:?}");
    }

    #[test]
    fn every_wait_is_in_the_bucket_that_ends_behind_it() {
        let beyond = Duration::from_secs(1 << 30);
        assert_eq!(bucket(beyond), BUCKETS - 1);
        let micros = (0..5000).chain((0..39).flat_map(|power| [(1u64 << power) - 1, 1 << power]));
        for micros in micros {
            let bucket = bucket(Duration::from_micros(micros));
            assert!(micros < end_micros(bucket), "{micros}");
            assert!(bucket == 0 || end_micros(bucket - 1) <= micros, "{micros}");
        }
    }
}
