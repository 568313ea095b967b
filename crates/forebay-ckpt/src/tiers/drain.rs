//! Copies whole checkpoints from one store to another: which of them, how, and what came of it. `bring` does it for each, and `recode` for those that are compressed on the way.
//!
//! ```text
//! steps there and here, rules of the destination --> which steps go --> pin (lease) --> each, newest first: bring, or recode
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::Class;
use forebay_store::wrap::{Throttle, Throttled};
use forebay_store::{Context, PutMode, PutOptions, Store, StoreExt};
use serde::Serialize;

use super::bring::Job;
use super::lease::Lease;
use crate::access_log::AccessLog;
use crate::codec::Compress;
use crate::list;
use crate::manifest::{Manifest, Publish};
use crate::names::manifests_note_key;
use crate::pages::Source;
use crate::part::PayloadRow;
use crate::pin::STALE_AFTER;
use crate::retention::{Retention, StepState, Verdict};

/// Least bytes a second that a cap may ask for: below, a pin would be stale before a part has arrived.
pub const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Checkpoints that the report of a drainer names, the latest: one that runs for months must not grow.
const DRAINED_KEPT_MAX: usize = 1000;

/// How to drain.
#[derive(Debug, Clone)]
pub struct DrainOptions {
    /// Only these steps; all that the destination is to have, without them.
    pub steps: Option<Vec<u64>>,
    /// What the destination keeps: what it would remove at once is not brought.
    pub retention: Retention,
    /// How a checkpoint is published at the destination.
    pub publish: Publish,
    /// Class of service for local I/O.
    pub class: Class,
    /// Most bytes a second that are written to the destination.
    pub bytes_per_second_max: Option<u64>,
    /// How chunks are compressed on the way; `Off` brings every object as it is. What was compressed when it was saved stays as it is, too.
    pub compress: Compress,
    /// Read back everything that was sent, not only where nobody else has compared it.
    pub reads_back: bool,
    /// When the pin of another drain did not change for so long, it is taken over.
    pub stale_after: Duration,
    /// Each checkpoint that is brought is noted there first.
    pub access_log: Option<AccessLog>,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            steps: None,
            retention: Retention::default(),
            publish: Publish::default(),
            class: Class::Background,
            bytes_per_second_max: None,
            compress: Compress::Off,
            reads_back: false,
            stale_after: STALE_AFTER,
            access_log: None,
        }
    }
}

/// A checkpoint that was brought.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Drained {
    /// Its step.
    pub step: u64,
    /// Objects that were sent, the manifest included.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were there already.
    pub objects_there: u64,
    /// Their bytes.
    pub bytes_there: u64,
    /// Of the bytes sent, those that no checkpoint refers to any more, so that nothing speaks for them.
    pub unreferenced_bytes: u64,
    /// Bytes of chunks, as they are, that were stored anew on the way: compressed where that gained something. 0 where objects were sent as they are.
    pub recoded_bytes: u64,
}

/// A checkpoint that was not brought, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Passed {
    /// Its step.
    pub step: u64,
    /// In words.
    pub why: String,
    /// It is damaged, or in the way: somebody should look.
    pub is_trouble: bool,
}

/// What a drain did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DrainReport {
    /// Checkpoints that are there now and were not before.
    pub drained: Vec<Drained>,
    /// Steps that were there before.
    pub there: Vec<u64>,
    /// Checkpoints that were not brought.
    pub passed: Vec<Passed>,
    /// Which way the bytes went, there and back.
    pub ledger: Ledger,
}

impl DrainReport {
    /// True when everything that was to be brought is there.
    pub fn is_whole(&self) -> bool {
        !self.passed.iter().any(|passed| passed.is_trouble)
    }

    /// Add a later pass: what was there and what was in the way count as they are now, not again and again.
    pub(super) fn add(&mut self, later: Self) {
        (self.there, self.passed) = (later.there, later.passed);
        self.drained.extend(later.drained);
        let more = self.drained.len().saturating_sub(DRAINED_KEPT_MAX);
        self.drained.drain(..more);
        self.ledger.merge(&later.ledger);
    }

    pub(super) fn pass(&mut self, step: u64, why: String, is_trouble: bool) {
        self.passed.push(Passed {
            step,
            why,
            is_trouble,
        });
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.drained.extend(other.drained);
        self.there.extend(other.there);
        self.passed.extend(other.passed);
        self.ledger.merge(&other.ledger);
    }
}

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainEvent {
    /// A checkpoint is being brought, of which so many bytes have to be sent.
    Begun {
        /// Its step.
        step: u64,
        /// To be sent.
        bytes: u64,
    },
    /// Bytes were sent.
    Sent(u64),
    /// The checkpoint is there.
    Done(u64),
}

/// Bring the checkpoints of one store to another, newest first. Each is visible there once it is whole.
///
/// What is wrong with one checkpoint (damage, an object that is missing or cannot be read) is in the report and does not keep others from being brought; a
/// destination that fails, or a source that is away, ends the drain, and the next one goes on.
pub async fn drain(
    from: Arc<dyn Store>,
    to: Arc<dyn Store>,
    context: &Context,
    options: &DrainOptions,
    tell: &(dyn Fn(DrainEvent) + Send + Sync),
) -> Result<DrainReport> {
    let source = |store| Source {
        store,
        context: context.clone(),
        checks: true,
    };
    drain_with(&source(from), &source(to), options, tell).await
}

pub(crate) async fn drain_with(
    from: &Source,
    to: &Source,
    options: &DrainOptions,
    tell: &(dyn Fn(DrainEvent) + Send + Sync),
) -> Result<DrainReport> {
    if from.store.identity() == to.store.identity() {
        let message = "source and destination are the same";
        return Err(Error::new(ErrorKind::InvalidInput, "drain", message).at(to.store.location()));
    }
    options.compress.check()?;
    let to = &throttled(to, options);
    let mut report = DrainReport::default();
    let far = list::list_with(to).await?.into_iter();
    let far: HashMap<u64, Manifest> = far
        .filter_map(|listed| Some((listed.step, listed.manifest.ok()?)))
        .collect();
    let wanted = pick(from, &far, options, &mut report).await?;
    if !report.there.is_empty() && to.store.location().to_path().is_some() {
        // Whoever brought them may have been killed before their names were durable, and what is told to be there may go elsewhere.
        let note = manifests_note_key();
        to.store.put_bytes(&note, b"", &PutOptions::default()).await?;
        to.store.delete(&note).await?;
    }
    if wanted.is_empty() {
        return Ok(report);
    }
    let rows = far.values().flat_map(|manifest| &manifest.payloads);
    let vouched: HashSet<_> = rows.map(PayloadRow::order).collect();
    let lease = Lease::take(from, to, options.stale_after).await?;
    let done = async {
        let job = Job {
            from,
            to,
            options,
            lease: &lease,
            // After the pin: an empty place shows what it can do once something is there.
            mode: file_mode(to, options.publish).await?,
            vouched: &vouched,
            tell,
        };
        job.run(wanted, far, &mut report).await
    };
    let done = done.await;
    lease.release().await;
    done.map(|()| report)
}

fn throttled(to: &Source, options: &DrainOptions) -> Source {
    let Some(rate) = options.bytes_per_second_max else {
        return to.clone();
    };
    let throttle = Throttle {
        requests_max: to.context.limits().store_requests_max.max(1) as usize,
        bytes_per_second: Some(rate.max(BYTES_PER_SECOND_MIN)),
    };
    let clock = Arc::clone(to.context.clock());
    Source {
        store: Arc::new(Throttled::new(Arc::clone(&to.store), throttle, clock)),
        ..to.clone()
    }
}

/// Mode for objects named by attempts; refuses a way of publishing that the store cannot hold.
async fn file_mode(to: &Source, publish: Publish) -> Result<PutMode> {
    let abilities = to.store.capabilities().await?;
    if publish == Publish::IfAbsent && !abilities.put_if_absent.is_shown() {
        let message = format!(
            "this store does not show put-if-absent: {:?}",
            abilities.put_if_absent
        );
        return Err(Error::new(ErrorKind::Unsupported, "drain", message)
            .at(to.store.location())
            .with_hint("if nobody else writes there, ask for the single-writer way of publishing"));
    }
    let can = abilities.put_if_absent.is_shown() && abilities.upload_if_absent.is_shown();
    Ok(if can { PutMode::IfAbsent } else { PutMode::Replace })
}

/// Which checkpoints are to be brought, newest first.
async fn pick(
    from: &Source,
    far: &HashMap<u64, Manifest>,
    options: &DrainOptions,
    report: &mut DrainReport,
) -> Result<Vec<Manifest>> {
    let mut near = HashMap::new();
    for listed in list::list_with(from).await? {
        match listed.manifest {
            Ok(manifest) => drop(near.insert(listed.step, manifest)),
            Err(error) => report.pass(listed.step, error.to_string(), true),
        }
    }
    if let Some(steps) = &options.steps
        && let Some(missing) = steps.iter().find(|step| !near.contains_key(step))
    {
        let message = format!("there is no checkpoint of step {missing}");
        return Err(Error::new(ErrorKind::NotFound, "drain", message).at(from.store.location()));
    }
    let only_far = far.values().filter(|manifest| !near.contains_key(&manifest.step));
    let states: Vec<StepState> = near.values().chain(only_far).map(StepState::of).collect();
    let verdicts = options.retention.plan(&states, from.context.clock().unix());
    let kept: BTreeSet<u64> = states
        .iter()
        .zip(verdicts)
        .filter(|(_, verdict)| *verdict != Verdict::Remove)
        .map(|(state, _)| state.step)
        .collect();
    let mut wanted = Vec::new();
    for (step, manifest) in near {
        let is_asked_for = options
            .steps
            .as_ref()
            .map_or(kept.contains(&step), |steps| steps.contains(&step));
        match far.get(&step) {
            _ if !is_asked_for => {}
            Some(there) if there.attempt.is_same_save(manifest.attempt) => report.there.push(step),
            Some(_) if options.publish != Publish::Replace => {
                let why = "another attempt at this step is there; replace it explicitly".to_owned();
                report.pass(step, why, true);
            }
            _ => wanted.push(manifest),
        }
    }
    report.there.sort_unstable();
    wanted.sort_by_key(|manifest| std::cmp::Reverse(manifest.step));
    Ok(wanted)
}
