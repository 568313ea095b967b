//! What a loader has done so far.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use serde::Serialize;

use super::batch::Batch;
use super::collate::BadSample;
use super::read::Loaded;
use super::stalls::{StallReport, Stalls, Stations};
use super::trace::Tracer;

/// Bad samples that are kept by name; more are only counted.
const BAD_KEPT_MAX: usize = 1000;

/// What becomes of samples that are damaged.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BadPolicy {
    /// The stream ends with an error that names the first of them.
    #[default]
    Stop,
    /// Another sample of the batch takes the place of each; more than so many end the stream.
    Skip {
        /// Most of them.
        max: u64,
    },
    /// The same, and each is kept in a directory.
    Quarantine {
        /// Most of them.
        max: u64,
        /// The directory.
        folder: PathBuf,
    },
}

impl BadPolicy {
    /// How many are put up with.
    pub fn max(&self) -> u64 {
        match self {
            Self::Stop => 0,
            Self::Skip { max } | Self::Quarantine { max, .. } => *max,
        }
    }
}

/// Counters of a loader.
#[derive(Debug, Default)]
pub(super) struct Totals {
    counts: Mutex<Counts>,
    tracer: Option<Tracer>,
}

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
    pub(super) fn new(tracer: Option<Tracer>) -> Self {
        Self {
            tracer,
            ..Self::default()
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block was read.
    pub(super) fn read(&self, loaded: &Loaded) {
        self.counts().ledger.merge(&loaded.ledger);
        if let Some(tracer) = &self.tracer {
            tracer.block(loaded.shard, loaded.first(), loaded.ledger.bytes(), &loaded.times);
        }
    }

    /// A batch was handed over.
    pub(super) fn given(&self, samples: u64, bytes: u64) {
        let mut counts = self.counts();
        counts.samples += samples;
        counts.bytes += bytes;
    }

    /// The consumer waited for a batch.
    pub(super) fn waited(&self, batch: &Batch, wait: (Duration, Duration), stations: &Stations) {
        self.counts().stalls.waited(wait.0, wait.1, stations);
        if let Some(tracer) = &self.tracer {
            tracer.batch(batch.epoch(), batch.index(), wait, stations);
        }
    }

    /// There is nothing more to come.
    pub(super) fn finish(&self) -> Result<()> {
        self.tracer.as_ref().map_or(Ok(()), Tracer::finish)
    }

    /// Samples of a batch were bad: whether that ends the stream is what `policy` says.
    pub(super) fn bad(
        &self,
        bad: Vec<BadSample>,
        policy: &BadPolicy,
        name: impl Fn(u32) -> String,
    ) -> Result<()> {
        let Some(first) = bad.first() else { return Ok(()) };
        let max = policy.max();
        let mut counts = self.counts();
        let seen = counts.bad + bad.len() as u64;
        let error = (seen > max).then(|| refuse(first, seen, policy, &name(first.shard)));
        counts.bad = seen;
        let room = BAD_KEPT_MAX.saturating_sub(counts.bad_kept.len());
        counts.bad_kept.extend(bad.into_iter().take(room));
        error.map_or(Ok(()), Err)
    }

    pub(super) fn report(&self, grown_bytes: u64) -> Report {
        let counts = self.counts();
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

fn refuse(first: &BadSample, seen: u64, policy: &BadPolicy, shard: &str) -> Error {
    let key = first
        .key
        .as_deref()
        .map_or(String::new(), |key| format!(" '{}'", key.escape_debug()));
    let mut message = format!("sample {}{key}: {}", first.index, first.reason);
    if *policy != BadPolicy::Stop {
        let max = policy.max();
        message = format!("{seen} bad samples are more than the {max} allowed; the last: {message}");
    }
    Error::new(ErrorKind::Corrupt, "stream", message)
        .at(shard)
        .with_hint("forebay verify names every damage; a policy can skip bad samples")
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
