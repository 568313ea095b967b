//! What a loader has done so far.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
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

/// Bad samples that are known apart, which takes some 30 MiB; whoever allows more has those beyond counted each time they are met.
const BAD_KNOWN_MAX: usize = 1 << 20;

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
    tracer: OnceLock<Tracer>,
}

#[derive(Debug, Default)]
struct Counts {
    ledger: Ledger,
    stalls: Stalls,
    samples: u64,
    bytes: u64,
    /// Bad samples, by shard and number: each is counted once, however many epochs meet it.
    bad_known: HashSet<(u32, u64)>,
    /// Those of them that were too many when they were met. The others were put up with, and are again by a stream that begins elsewhere.
    bad_refused: HashSet<(u32, u64)>,
    /// Encounters beyond those that are remembered.
    bad_more: u64,
    bad_kept: Vec<BadSample>,
    /// Of the loader that needed most.
    memory_grown_bytes: u64,
    missing: BTreeMap<String, u64>,
}

impl Totals {
    /// From now on, what happens goes into this trace; the first one stays.
    pub(super) fn trace(&self, tracer: Tracer) {
        self.tracer.get_or_init(|| tracer);
    }

    /// The stream begins elsewhere.
    pub(super) fn go_on(&self) {
        self.counts().stalls.go_on();
        if let Some(tracer) = self.tracer.get() {
            tracer.go_on();
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block was read.
    pub(super) fn read(&self, loaded: &Loaded) {
        self.counts().ledger.merge(&loaded.ledger);
        if let Some(tracer) = self.tracer.get() {
            tracer.block(loaded.shard, loaded.first(), loaded.ledger.bytes(), &loaded.times);
        }
    }

    /// A batch was handed over, in which some samples did not have a value of some fields.
    pub(super) fn given(&self, batch: &Batch, missing: Vec<(String, u64)>) {
        let mut counts = self.counts();
        counts.samples += batch.len() as u64;
        counts.bytes += batch.bytes();
        for (field, values) in missing {
            *counts.missing.entry(field).or_default() += values;
        }
    }

    /// The consumer waited for a batch.
    pub(super) fn waited(&self, batch: &Batch, wait: (Duration, Duration), stations: &Stations) {
        self.counts().stalls.waited(wait.0, wait.1, stations);
        if let Some(tracer) = self.tracer.get() {
            tracer.batch(batch.epoch(), batch.index(), wait, stations);
        }
    }

    /// There is nothing more to come.
    pub(super) fn finish(&self) -> Result<()> {
        self.tracer.get().map_or(Ok(()), Tracer::finish)
    }

    /// Samples of a batch were bad: whether that ends the stream is what `policy` says.
    pub(super) fn bad(
        &self,
        bad: Vec<BadSample>,
        policy: &BadPolicy,
        name: impl Fn(u32) -> String,
    ) -> Result<()> {
        let mut counts = self.counts();
        let mut one_too_many = None;
        for sample in bad {
            let place = (sample.shard_number, sample.index);
            let is_new = counts.meet(place);
            if is_new && counts.bad_samples() > policy.max() {
                counts.bad_refused.insert(place);
            }
            if counts.bad_refused.contains(&place) && one_too_many.is_none() {
                one_too_many = Some(sample.clone());
            }
            if is_new && counts.bad_kept.len() < BAD_KEPT_MAX {
                counts.bad_kept.push(sample);
            }
        }
        let seen = counts.bad_samples();
        one_too_many.map_or(Ok(()), |last| {
            Err(refuse(&last, seen, policy, &name(last.shard_number)))
        })
    }

    /// A loader took so much memory beyond its ceiling.
    pub(super) fn grew(&self, bytes: u64) {
        let mut counts = self.counts();
        counts.memory_grown_bytes = counts.memory_grown_bytes.max(bytes);
    }

    pub(super) fn report(&self, opening: Ledger, unverified: Option<String>) -> Report {
        let counts = self.counts();
        Report {
            samples: counts.samples,
            bytes: counts.bytes,
            bad_samples: counts.bad_samples(),
            bad: counts.bad_kept.clone(),
            missing_values: counts.missing.clone(),
            memory_grown_bytes: counts.memory_grown_bytes,
            stalls: counts.stalls.report(),
            ledger: counts.ledger.clone(),
            unverified,
            opening,
        }
    }
}

impl Counts {
    /// A bad sample was met: true when it was not known.
    fn meet(&mut self, sample: (u32, u64)) -> bool {
        if self.bad_known.contains(&sample) {
            return false;
        }
        if self.bad_known.len() < BAD_KNOWN_MAX {
            return self.bad_known.insert(sample);
        }
        self.bad_more += 1;
        true
    }

    fn bad_samples(&self) -> u64 {
        self.bad_known.len() as u64 + self.bad_more
    }
}

fn refuse(last: &BadSample, seen: u64, policy: &BadPolicy, shard: &str) -> Error {
    let key = last
        .key
        .as_deref()
        .map_or(String::new(), |key| format!(" '{}'", key.escape_debug()));
    let mut message = format!("sample {}{key}: {}", last.index, last.reason);
    if *policy != BadPolicy::Stop {
        let max = policy.max();
        message = format!("{seen} bad samples are more than the {max} allowed; the last: {message}");
    }
    Error::new(ErrorKind::Corrupt, "stream", message)
        .at(shard)
        .with_hint(hint_for(last))
}

/// What to do about bad samples. That the shard is not damaged is nothing to look for.
fn hint_for(bad: &BadSample) -> &'static str {
    if bad.is_damaged {
        "forebay verify names every damage; bad=\"skip:N\" (--bad skip:N) goes on without up to N bad samples"
    } else if bad.lacks_number {
        "the sample is as it was written; bad=\"skip:N\" (--bad skip:N) goes on without up to N such samples; where a number is missing, decode={\"x\": \"int:-1\"} (--decode x=int:-1) says what stands for it"
    } else {
        "the sample is as it was written; bad=\"skip:N\" (--bad skip:N) goes on without up to N such samples"
    }
}

/// What a loader has done so far.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Samples handed over.
    pub samples: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Samples that could not be used, each counted once.
    pub bad_samples: u64,
    /// The first of them, by name.
    pub bad: Vec<BadSample>,
    /// Values that samples did not have, by field: they are empty in their batches.
    pub missing_values: BTreeMap<String, u64>,
    /// Memory beyond the configured ceiling that one batch needed at the same time.
    pub memory_grown_bytes: u64,
    /// Waits of the consumer.
    pub stalls: StallReport,
    /// Which way the bytes of the samples came.
    pub ledger: Ledger,
    /// Why bytes that were compared with checksums do not count as verified, where that is so.
    pub unverified: Option<String>,
    /// Which way the bytes came that were read beside the samples that are streamed: to make the index or of it, and to filter.
    pub opening: Ledger,
}
