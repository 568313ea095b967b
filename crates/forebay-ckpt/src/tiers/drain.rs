//! Copies whole checkpoints from one store to another: payloads, parts, index, and the manifest last.
//!
//! ```text
//! steps there and here, rules of the destination --> which steps go, newest first
//! each: hold its attempts (pin) -> what is there already? -> send what is not, checked -> pin still ours? -> manifest: the commit
//! ```
//!
//! Objects are named by attempts and never change, so what is there with its length is whole, whoever brought it: a drain that was killed goes on with the
//! next object. Nothing of a checkpoint is visible before its manifest, which is the same, byte for byte, in every tier.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Retry};
use forebay_io::{Buf, Class};
use forebay_store::wrap::{Throttle, Throttled};
use forebay_store::{Context, Entry as Row, ListOptions, PutMode, PutOptions, Store};
use futures::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;

use super::lease::{Lease, STALE_AFTER};
use super::objects::{self, Owners};
use super::seal::Sealed;
use super::send::{Sent, Way};
use crate::list::{self, gone_of_step};
use crate::manifest::{Manifest, Publish};
use crate::names::{Attempt, Piece, attempt_key, manifest_key, piece_key};
use crate::open::{Checkpoint, read_manifest};
use crate::pages::Source;
use crate::retention::{Retention, StepState, Verdict};

/// Objects on their way at once, each in several parts.
const OBJECTS_AT_ONCE: usize = 4;

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
    /// Read back everything that was sent, not only where nobody else has compared it.
    pub reads_back: bool,
    /// When the pin of another drain did not change for so long, it is taken over.
    pub stale_after: Duration,
}

impl Default for DrainOptions {
    fn default() -> Self {
        Self {
            steps: None,
            retention: Retention::default(),
            publish: Publish::default(),
            class: Class::Background,
            bytes_per_second_max: None,
            reads_back: false,
            stale_after: STALE_AFTER,
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
    pub unsealed_bytes: u64,
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
/// Damage of one checkpoint is in the report and does not keep others from being brought; a store that fails ends the drain, and the next one goes on.
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
    let to = &throttled(to, options);
    let mut report = DrainReport::default();
    let wanted = pick(from, to, options, &mut report).await?;
    if wanted.is_empty() {
        return Ok(report);
    }
    let mode = file_mode(to, options.publish).await?;
    let lease = Lease::take(from, to, options.stale_after).await?;
    let job = Job {
        from,
        to,
        options,
        lease: &lease,
        mode,
        tell,
    };
    let done = job.run(wanted, &mut report).await;
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
    to: &Source,
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
    let far = list::list_with(to).await?.into_iter();
    let far: HashMap<u64, Manifest> = far
        .filter_map(|listed| Some((listed.step, listed.manifest.ok()?)))
        .collect();
    if let Some(steps) = &options.steps
        && let Some(missing) = steps.iter().find(|step| !near.contains_key(step))
    {
        let message = format!("there is no checkpoint of step {missing}");
        return Err(Error::new(ErrorKind::NotFound, "drain", message).at(from.store.location()));
    }
    let only_far = far.values().filter(|manifest| !near.contains_key(&manifest.step));
    let states: Vec<StepState> = near.values().chain(only_far).map(StepState::of).collect();
    let verdicts = options
        .retention
        .plan(&states, from.context.clock().unix());
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
            Some(there) if there.attempt == manifest.attempt => report.there.push(step),
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

impl DrainReport {
    fn pass(&mut self, step: u64, why: String, is_trouble: bool) {
        self.passed.push(Passed {
            step,
            why,
            is_trouble,
        });
    }
}

/// Objects at the destination, with their sizes.
type There = HashMap<Key, u64>;

struct Job<'a> {
    from: &'a Source,
    to: &'a Source,
    options: &'a DrainOptions,
    lease: &'a Lease,
    mode: PutMode,
    tell: &'a (dyn Fn(DrainEvent) + Send + Sync),
}

impl Job<'_> {
    async fn run(&self, wanted: Vec<Manifest>, report: &mut DrainReport) -> Result<()> {
        for manifest in wanted {
            let step = manifest.step;
            if let Some(gone) = gone_of_step(self.to, step).await? {
                let why = format!("attempt {gone} at this step is being removed there; run gc to its end");
                report.pass(step, why, true);
                continue;
            }
            match self.bring(manifest).await {
                Ok((drained, ledger)) => {
                    report.ledger.merge(&ledger);
                    report.drained.push(drained);
                    (self.tell)(DrainEvent::Done(step));
                }
                Err(error) if self.is_removed(step, &error).await => {
                    report.pass(step, "it was removed meanwhile".to_owned(), false);
                }
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    report.pass(step, error.to_string(), true);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A gc at the source does not ask drains: what it removes while it is being read is not missed.
    async fn is_removed(&self, step: u64, error: &Error) -> bool {
        let may_be = matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt);
        may_be
            && matches!(
                Checkpoint::open_with(self.from.clone(), step).await,
                Err(error) if error.kind() == ErrorKind::NotFound
            )
    }

    async fn bring(&self, manifest: Manifest) -> Result<(Drained, Ledger)> {
        let own = (manifest.step, manifest.attempt);
        let attempts: BTreeSet<(u64, Attempt)> = manifest
            .payloads
            .iter()
            .map(|row| (row.step, row.attempt))
            .chain([own])
            .collect();
        self.lease.hold(own, attempts.iter().copied().collect()).await?;
        // After the pin: what is there now stays.
        let mut there = There::new();
        for (step, attempt) in attempts {
            self.list_attempt(step, attempt, &mut there).await?;
        }
        let checkpoint = Checkpoint::with_manifest(self.from.clone(), manifest, Ledger::default());
        let mut drained = Drained {
            step: own.0,
            ..Drained::default()
        };
        let mut ledger = Ledger::default();
        let to_send = self.missing(&checkpoint, &there, &mut drained);
        (self.tell)(DrainEvent::Begun {
            step: own.0,
            bytes: to_send,
        });
        self.send_payloads(&checkpoint, &there, &mut drained, &mut ledger)
            .await?;
        self.send_parts(&checkpoint, &there, &mut drained, &mut ledger)
            .await?;
        self.lease.check().await?;
        ledger.merge(&checkpoint.ledger());
        let (bytes, put) = self.publish(checkpoint.manifest()).await?;
        ledger.merge(&put);
        drained.objects += 1;
        drained.bytes += bytes;
        Ok((drained, ledger))
    }

    async fn list_attempt(&self, step: u64, attempt: Attempt, there: &mut There) -> Result<()> {
        let folder = attempt_key(step, attempt);
        let mut rows = self.to.store.list(&folder, ListOptions { recursive: false });
        while let Some(row) = rows.next().await {
            match row {
                Ok(Row::Object(meta)) => drop(there.insert(meta.key, meta.size)),
                Ok(Row::Prefix(_)) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Count what is there, and give the bytes of what is not.
    fn missing(&self, checkpoint: &Checkpoint, there: &There, drained: &mut Drained) -> u64 {
        let manifest = checkpoint.manifest();
        let piece = |piece| piece_key(manifest.step, manifest.attempt, piece);
        let payloads = manifest.payloads.iter().map(|row| (row.key(), row.bytes));
        let parts = (0..).zip(&manifest.parts);
        let parts = parts.map(|(rank, row)| (piece(Piece::Part(rank)), row.bytes));
        let index = manifest.index.iter().map(|row| (piece(Piece::Index), row.bytes));
        let mut missing = 0;
        for (key, bytes) in payloads.chain(parts).chain(index) {
            if there.get(&key) == Some(&bytes) {
                drained.objects_there += 1;
                drained.bytes_there += bytes;
            } else {
                missing += bytes;
            }
        }
        missing
    }

    async fn send_payloads(
        &self,
        checkpoint: &Checkpoint,
        there: &There,
        drained: &mut Drained,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let rows = checkpoint.manifest().payloads.iter();
        let rows: Vec<_> = rows
            .filter(|row| there.get(&row.key()) != Some(&row.bytes))
            .copied()
            .collect();
        // Some at a time: the seals of all payloads of a large world would take gigabytes.
        let mut owners = Owners::default();
        for rows in rows.chunks(OBJECTS_AT_ONCE) {
            let sealed = objects::payloads(checkpoint, rows, &mut owners).await?;
            self.send_all(sealed, there, drained, ledger).await?;
        }
        Ok(())
    }

    async fn send_parts(
        &self,
        checkpoint: &Checkpoint,
        there: &There,
        drained: &mut Drained,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let manifest = checkpoint.manifest();
        let mut sealed = Vec::new();
        for (rank, row) in (0..).zip(&manifest.parts) {
            let key = piece_key(manifest.step, manifest.attempt, Piece::Part(rank));
            if there.get(&key) != Some(&row.bytes) {
                sealed.push(objects::part(checkpoint, rank, row).await?);
            }
            if sealed.len() == OBJECTS_AT_ONCE {
                self.send_all(std::mem::take(&mut sealed), there, drained, ledger)
                    .await?;
            }
        }
        if let Some(row) = &manifest.index {
            let key = piece_key(manifest.step, manifest.attempt, Piece::Index);
            if there.get(&key) != Some(&row.bytes) {
                sealed.extend(objects::index(checkpoint, row).await?);
            }
        }
        self.send_all(sealed, there, drained, ledger).await
    }

    async fn send_all(
        &self,
        sealed: Vec<Sealed>,
        there: &There,
        drained: &mut Drained,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let tell = |bytes| (self.tell)(DrainEvent::Sent(bytes));
        let way = Way {
            from: self.from,
            to: self.to,
            class: self.options.class,
            reads_back: self.options.reads_back,
            tell: &tell,
        };
        let way = &way;
        let sends = sealed.into_iter().map(|object| {
            // What has another length is not what its name says, whoever put it there.
            let mode = match there.contains_key(&object.key) {
                true => PutMode::Replace,
                false => self.mode,
            };
            let bytes = object.bytes;
            async move { Ok::<_, Error>((bytes, way.send(object, mode).await?)) }
        });
        let mut sends = stream::iter(sends).buffer_unordered(OBJECTS_AT_ONCE);
        while let Some((bytes, sent)) = sends.try_next().await? {
            let Sent {
                unsealed_bytes,
                ledger: moved,
            } = sent;
            drained.objects += 1;
            drained.bytes += bytes;
            drained.unsealed_bytes += unsealed_bytes;
            ledger.merge(&moved);
        }
        Ok(())
    }

    /// The commit at the destination.
    async fn publish(&self, manifest: &Manifest) -> Result<(u64, Ledger)> {
        let bytes = manifest.encode()?;
        let key = manifest_key(manifest.step);
        let read_back = || async {
            let found = read_manifest(self.to, manifest.step).await?;
            Ok::<_, Error>(found.map(|(there, _)| there))
        };
        let lost = || {
            let message = format!("another attempt has published step {} there first", manifest.step);
            Error::new(ErrorKind::AlreadyExists, "drain", message).at(self.to.store.location())
        };
        let mode = match self.options.publish {
            Publish::IfAbsent => PutMode::IfAbsent,
            Publish::Replace => PutMode::Replace,
            Publish::SingleWriter if read_back().await?.is_some() => return Err(lost()),
            Publish::SingleWriter => PutMode::Replace,
        };
        let options = PutOptions {
            mode,
            class: self.options.class,
            ..PutOptions::default()
        };
        let put = self.to.store.put(&key, Buf::copy_of(&bytes)?.into(), &options).await;
        let must_look = match &put {
            Ok(_) => self.options.publish == Publish::SingleWriter,
            // The reply may have been lost while the manifest arrived. Errors of a disk are not asked about: what is visible may not be durable.
            Err(error) => error.kind() == ErrorKind::AlreadyExists || error.retry() != Retry::Never,
        };
        let ledger = match (put, must_look) {
            (put, false) => put?.ledger,
            (put, true) => match (put, read_back().await?) {
                (put, Some(there)) if there == *manifest => put.map(|put| put.ledger).unwrap_or_default(),
                (Err(error), _) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                _ => return Err(lost()),
            },
        };
        Ok((bytes.len() as u64, ledger))
    }
}
