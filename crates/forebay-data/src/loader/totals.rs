//! What a loader has done so far.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, ErrorKind, Ledger, Result};
use serde::Serialize;

use super::collate::BadSample;
use super::stalls::{StallReport, Stalls, Stations};

/// Bad samples that are kept by name; more are only counted.
const BAD_KEPT_MAX: usize = 1000;

/// What becomes of samples that are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BadPolicy {
    /// The stream ends with an error that names the first of them.
    #[default]
    Stop,
    /// Another sample of the batch takes the place of each; more than so many end the stream.
    Replace {
        /// Most of them.
        max: u64,
    },
}

/// Counters of a loader.
#[derive(Debug, Default)]
pub(super) struct Totals(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    ledger: Ledger,
    stalls: Stalls,
    samples: u64,
    bytes: u64,
    bad: u64,
    bad_kept: Vec<BadSample>,
}

impl Totals {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block was read.
    pub(super) fn read(&self, ledger: &Ledger) {
        self.lock().ledger.merge(ledger);
    }

    /// A batch was handed over.
    pub(super) fn given(&self, samples: u64, bytes: u64) {
        let mut counts = self.lock();
        counts.samples += samples;
        counts.bytes += bytes;
    }

    /// The consumer waited.
    pub(super) fn waited(&self, from: std::time::Duration, to: std::time::Duration, stations: &Stations) {
        self.lock().stalls.waited(from, to, stations);
    }

    /// Samples of a batch were bad: whether that ends the stream is what `policy` says.
    pub(super) fn bad(
        &self,
        bad: Vec<BadSample>,
        policy: BadPolicy,
        name: impl Fn(u32) -> String,
    ) -> Result<()> {
        let Some(first) = bad.first() else { return Ok(()) };
        let max = match policy {
            BadPolicy::Stop => 0,
            BadPolicy::Replace { max } => max,
        };
        let mut counts = self.lock();
        let seen = counts.bad + bad.len() as u64;
        let error = (seen > max).then(|| refuse(first, seen, policy, &name(first.shard)));
        counts.bad = seen;
        let room = BAD_KEPT_MAX.saturating_sub(counts.bad_kept.len());
        counts.bad_kept.extend(bad.into_iter().take(room));
        error.map_or(Ok(()), Err)
    }

    pub(super) fn report(&self, grown_bytes: u64) -> Report {
        let counts = self.lock();
        Report {
            samples: counts.samples,
            bytes: counts.bytes,
            bad_samples: counts.bad,
            bad: counts.bad_kept.clone(),
            memory_grown_bytes: grown_bytes,
            stalls: counts.stalls.report(),
            ledger: counts.ledger.clone(),
        }
    }
}

fn refuse(first: &BadSample, seen: u64, policy: BadPolicy, shard: &str) -> Error {
    let key = first
        .key
        .as_deref()
        .map_or(String::new(), |key| format!(" '{}'", key.escape_debug()));
    let mut message = format!("sample {}{key}: {}", first.index, first.reason);
    if let BadPolicy::Replace { max } = policy {
        message = format!("{seen} bad samples are more than the {max} allowed; the last: {message}");
    }
    Error::new(ErrorKind::Corrupt, "stream", message)
        .at(shard)
        .with_hint("forebay verify names every damage; a policy can replace bad samples")
}

/// What a loader has done so far.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Samples handed over.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples that could not be used.
    pub bad_samples: u64,
    /// The first of them, by name.
    pub bad: Vec<BadSample>,
    /// Memory beyond the configured ceiling that one batch needed at the same time.
    pub memory_grown_bytes: u64,
    /// Waits of the consumer.
    pub stalls: StallReport,
    /// Which way the bytes came.
    pub ledger: Ledger,
}
