//! Removes what nobody needs: steps beyond what is to be kept, and what attempts without a commit left.
//!
//! ```text
//! own pin -> list all objects and open uploads -> .gone for each step that goes -> read pins -> delete their manifests, durably -> read the manifests that are left
//!         -> delete candidates that nothing names, and uploads of the dead -> delete .gone -> own pin goes
//! ```
//!
//! The order is what makes it safe beside running saves and across power failures; `docs/formats/checkpoint.md` says why.

mod lease;
mod uploads;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Context, Entry as Row, ListOptions, PutOptions, Store, StoreExt};
use futures::StreamExt;
use serde::Serialize;

use self::lease::GcLease;
use crate::access_log::{AccessLog, AccessOp};
use crate::list::{self, Names};
use crate::manifest::Manifest;
use crate::names::{Attempt, LAST_GC, Piece, STEPS, gone_key, manifest_key, parse_piece_key};
use crate::pages::Source;
use crate::pin::{self, Found, PIN_AGE_MAX};
use crate::retention::{Retention, StepState, Verdict};

/// What is to be kept.
#[derive(Debug, Clone)]
pub struct GcOptions {
    /// Keep that many of those committed last; all when there is no number.
    pub keep_last: Option<usize>,
    /// Beside them, keep every step that is a multiple of this.
    pub keep_every: Option<u64>,
    /// Beside them, keep what is younger than this; without `keep_last`, all that is older goes.
    pub age_max: Option<Duration>,
    /// Remove these steps, whatever else is said.
    pub remove: Vec<u64>,
    /// Remove these attempts at steps, whatever else is said; not another that has replaced one meanwhile.
    pub remove_attempts: Vec<(u64, Attempt)>,
    /// Pins older than this are of processes that died.
    pub pin_age_max: Duration,
    /// Only say what would go.
    pub is_dry_run: bool,
    /// Each checkpoint that goes is noted there first.
    pub access_log: Option<AccessLog>,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            keep_last: None,
            keep_every: None,
            age_max: None,
            remove: Vec::new(),
            remove_attempts: Vec::new(),
            pin_age_max: PIN_AGE_MAX,
            is_dry_run: false,
            access_log: None,
        }
    }
}

/// What went, or would.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// Steps that are no longer checkpoints.
    pub steps: Vec<u64>,
    /// Steps that stay.
    pub kept: Vec<u64>,
    /// Objects removed.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Attempts being saved, whose objects were left alone.
    pub pinned: Vec<String>,
    /// Objects whose uploads in parts were begun by writers that died, and given up: nobody saw them, but a bucket keeps their parts.
    pub uploads: Vec<Key>,
    /// Why nobody knows of such uploads, where the store does not tell, or why some of them are still there.
    pub uploads_trouble: Option<String>,
}

/// An object under `steps/`.
#[derive(Debug)]
struct Candidate {
    key: Key,
    bytes: u64,
    step: u64,
    attempt: Attempt,
    piece: Piece,
}

/// Collect.
pub async fn gc(store: Arc<dyn Store>, context: &Context, options: &GcOptions) -> Result<Collected> {
    if options.keep_last == Some(0) {
        let message = "keeping none of the newest would remove every checkpoint";
        return Err(Error::new(ErrorKind::InvalidInput, "gc", message).with_hint("name the steps to remove"));
    }
    let checks = true;
    let context = context.clone();
    let source = Source {
        store,
        context,
        checks,
    };
    let mut job = Gc {
        source: &source,
        options,
        lease: None,
    };
    if options.is_dry_run {
        return job.run().await;
    }
    let lease = GcLease::take(&source, options.pin_age_max).await?;
    job.lease = Some(&lease);
    let done = job.run().await;
    lease.release().await?;
    done
}

struct Gc<'a> {
    source: &'a Source,
    options: &'a GcOptions,
    /// None for a dry run.
    lease: Option<&'a GcLease>,
}

/// What pins say.
#[derive(Debug, Default)]
struct Pinned {
    /// Attempts that must be left alone: those being saved, and the bases of these.
    attempts: HashSet<Attempt>,
    /// Steps that are being saved.
    steps: HashSet<u64>,
    /// Pins of dead processes.
    expired: Vec<Found>,
    shown: Vec<String>,
}

impl Gc<'_> {
    /// Fail when others may take this gc for dead by now.
    fn check(&self) -> Result<()> {
        self.lease.map_or(Ok(()), GcLease::check)
    }

    /// Say in the log that a checkpoint goes, where there is to be one.
    async fn note(&self, step: u64, attempt: Attempt) -> Result<()> {
        let Some(log) = &self.options.access_log else {
            return Ok(());
        };
        let Source { store, context, .. } = self.source;
        log.note(context, &**store, AccessOp::Gc, (step, Some(attempt)))
            .await
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.check()?;
        self.source.store.delete(key).await
    }

    async fn run(&self) -> Result<Collected> {
        let store = &*self.source.store;
        let candidates = self.candidates().await?;
        let uploads = self.open_uploads().await;
        let names = list::names(self.source).await?;
        let manifests = self.readable(&names).await?;
        let going = self.going(&names, &manifests);
        let mut done = Collected::default();
        for (step, attempt) in &going {
            if !self.options.is_dry_run {
                self.note(*step, *attempt).await?;
                self.check()?;
                store
                    .put_bytes(&gone_key(*step, *attempt), b"", &PutOptions::default())
                    .await?;
            }
            done.steps.push(*step);
        }
        // From here on nobody new takes one of these for a base; whoever did before has a pin.
        let pinned = self.pinned().await?;
        done.pinned.clone_from(&pinned.shown);
        let gone: BTreeSet<(u64, Attempt)> = names.gone.iter().copied().chain(going).collect();
        self.delete_manifests(&gone, &manifests, &pinned).await?;
        let left = self.left(&gone, &pinned, &manifests, &mut done).await?;
        for candidate in &candidates {
            if pinned.attempts.contains(&candidate.attempt) || is_named(candidate, &left) {
                continue;
            }
            done.objects += 1;
            done.bytes += candidate.bytes;
            if !self.options.is_dry_run {
                self.delete(&candidate.key).await?;
            }
        }
        self.give_up(uploads, &pinned, &mut done).await?;
        if !self.options.is_dry_run {
            self.tidy_up(&gone, &left, &pinned).await?;
        }
        done.steps.sort_unstable();
        Ok(done)
    }

    async fn candidates(&self) -> Result<Vec<Candidate>> {
        let prefix = Key::parse(STEPS)?;
        let mut rows = self.source.store.list(&prefix, ListOptions { recursive: true });
        let mut found = Vec::new();
        while let Some(row) = rows.next().await {
            let meta = match row {
                Ok(Row::Object(meta)) => meta,
                Ok(Row::Prefix(_)) => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => break,
                Err(error) if forebay_store::is_special_file(&error) => continue,
                Err(error) => return Err(error),
            };
            if let Some((step, attempt, piece)) = parse_piece_key(&meta.key) {
                found.push(Candidate {
                    key: meta.key,
                    bytes: meta.size,
                    step,
                    attempt,
                    piece,
                });
            }
        }
        Ok(found)
    }

    /// All manifests. One that cannot be read may name anything, so nothing is removed beside it, unless it is to go itself.
    async fn readable(&self, names: &Names) -> Result<BTreeMap<u64, Option<Manifest>>> {
        let mut readable = BTreeMap::new();
        for (step, read) in list::manifests(self.source, names).await? {
            match read {
                Ok((manifest, _)) => drop(readable.insert(step, Some(manifest))),
                Err(_) if self.options.remove.contains(&step) => drop(readable.insert(step, None)),
                Err(error) => {
                    let message =
                        format!("the manifest of step {step} cannot be read, so nobody knows what it needs");
                    return Err(Error::new(error.kind(), "gc", message)
                        .with_source(error)
                        .with_hint("restore it, or remove that step by name"));
                }
            }
        }
        Ok(readable)
    }

    /// Checkpoints that are to go.
    fn going(&self, names: &Names, manifests: &BTreeMap<u64, Option<Manifest>>) -> Vec<(u64, Attempt)> {
        let visible: Vec<&Manifest> = manifests
            .values()
            .flatten()
            .filter(|manifest| !names.gone.contains(&(manifest.step, manifest.attempt)))
            .collect();
        let states: Vec<StepState> = visible.iter().map(|manifest| StepState::of(manifest)).collect();
        let retention = Retention {
            keep_last: self.options.keep_last,
            keep_every: self.options.keep_every,
            age_max: self.options.age_max,
        };
        let verdicts = retention.plan(&states, self.source.context.clock().unix());
        let GcOptions {
            remove,
            remove_attempts,
            ..
        } = self.options;
        let is_going = |verdict: Verdict, which: (u64, Attempt)| {
            verdict == Verdict::Remove || remove.contains(&which.0) || remove_attempts.contains(&which)
        };
        let going = visible.iter().zip(verdicts);
        let going = going.map(|(manifest, verdict)| ((manifest.step, manifest.attempt), verdict));
        let going = going.filter(|(which, verdict)| is_going(*verdict, *which));
        going.map(|(which, _)| which).collect()
    }

    async fn pinned(&self) -> Result<Pinned> {
        let now = self.source.context.clock().unix();
        let mut pinned = Pinned::default();
        for found in pin::list(&self.source.store, &self.source.context).await? {
            // Whoever saved is dead: nobody else commits that attempt.
            if found.pin.is_expired(now, self.options.pin_age_max) || found.pin.is_of_the_dead() {
                pinned.expired.push(found);
                continue;
            }
            if let Some((step, attempt)) = found.pin.save {
                pinned.attempts.insert(attempt);
                pinned.steps.insert(step);
                pinned
                    .shown
                    .push(format!("step {step}, attempt {attempt}, on {:?}", found.pin.host));
            }
            pinned.attempts.extend(found.pin.base.map(|(_, attempt)| attempt));
            for (step, attempt) in found.pin.holds {
                pinned.attempts.insert(attempt);
                pinned.steps.insert(step);
            }
        }
        Ok(pinned)
    }

    /// Delete the manifests of what is gone, and make that durable. Each is looked at again, after pins were read: a save that has replaced it since it was read
    /// first had its pin then, or was through before; one that begins later sees the mark and fails.
    async fn delete_manifests(
        &self,
        gone: &BTreeSet<(u64, Attempt)>,
        manifests: &BTreeMap<u64, Option<Manifest>>,
        pinned: &Pinned,
    ) -> Result<()> {
        if self.options.is_dry_run {
            return Ok(());
        }
        let mut any = false;
        for (step, manifest) in manifests {
            let is_gone = match manifest {
                Some(manifest) => {
                    let is_base = pinned.attempts.contains(&manifest.attempt);
                    gone.contains(&(*step, manifest.attempt)) && !is_base
                }
                None => true,
            };
            // A save of the same step may be about to replace it.
            if is_gone && !pinned.steps.contains(step) && self.is_unchanged(*step, manifest.as_ref()).await? {
                self.delete(&manifest_key(*step)).await?;
                any = true;
            }
        }
        if any || !gone.is_empty() {
            // Where names are files, putting one syncs their folder: after this, what was deleted stays deleted.
            let note = format!(
                "{{\"collected_ns\":{}}}\n",
                self.source.context.clock().unix().as_nanos()
            );
            let key = Key::parse(LAST_GC)?;
            self.source
                .store
                .put_bytes(&key, note.as_bytes(), &PutOptions::default())
                .await?;
        }
        Ok(())
    }

    /// Whether the manifest of a step is the one that was read before, or still none that can be read.
    async fn is_unchanged(&self, step: u64, before: Option<&Manifest>) -> Result<bool> {
        let attempt_of = |manifest: &Manifest| manifest.attempt;
        match crate::open::read_manifest(self.source, step).await {
            Ok(Some((now, _))) => Ok(before.map(attempt_of) == Some(now.attempt)),
            Ok(None) => Ok(false),
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                Ok(before.is_none())
            }
            Err(error) => Err(error),
        }
    }

    /// Manifests that are left, those that were published meanwhile included.
    async fn left(
        &self,
        gone: &BTreeSet<(u64, Attempt)>,
        pinned: &Pinned,
        before: &BTreeMap<u64, Option<Manifest>>,
        done: &mut Collected,
    ) -> Result<Vec<Manifest>> {
        let names = list::names(self.source).await?;
        let mut left = Vec::new();
        for (step, read) in list::manifests(self.source, &names).await? {
            let manifest = match read {
                Ok((manifest, _)) => manifest,
                Err(_) if self.options.remove.contains(&step) && before.contains_key(&step) => continue,
                Err(error) => return Err(error),
            };
            let is_gone = gone.contains(&(step, manifest.attempt));
            if !is_gone {
                done.kept.push(step);
            }
            if !is_gone || pinned.attempts.contains(&manifest.attempt) {
                left.push(manifest);
            }
        }
        Ok(left)
    }

    /// Marks of what is gone for good, and pins of the dead.
    async fn tidy_up(
        &self,
        gone: &BTreeSet<(u64, Attempt)>,
        left: &[Manifest],
        pinned: &Pinned,
    ) -> Result<()> {
        for (step, attempt) in gone {
            let is_left = left.iter().any(|manifest| manifest.attempt == *attempt);
            // While its manifest is there, the mark is what hides it.
            let is_there = match crate::open::read_manifest(self.source, *step).await {
                Ok(found) => found.is_some_and(|(manifest, _)| manifest.attempt == *attempt),
                Err(_) => true,
            };
            if !is_left && !is_there {
                self.delete(&gone_key(*step, *attempt)).await?;
            }
        }
        for Found { key, pin } in &pinned.expired {
            // A drain has one name for its pin, and another may have taken it over.
            let there = pin::read(&self.source.store, &self.source.context, key).await?;
            if there.as_ref() == Some(pin) {
                self.delete(key).await?;
            }
        }
        Ok(())
    }
}

/// Whether a checkpoint that is left needs an object: as its own, or as a payload that it names.
fn is_named(candidate: &Candidate, left: &[Manifest]) -> bool {
    left.iter().any(|manifest| {
        let is_own = (manifest.step, manifest.attempt) == (candidate.step, candidate.attempt);
        match candidate.piece {
            Piece::Payload(rank, form) => {
                let order = (candidate.step, candidate.attempt, rank);
                let found = manifest.payloads.binary_search_by(|row| row.order().cmp(&order));
                found.is_ok_and(|at| manifest.payloads.get(at).is_some_and(|row| row.form == form))
            }
            Piece::Part(rank) => is_own && rank < manifest.world(),
            Piece::Index => is_own && manifest.index.is_some(),
            Piece::Failed(_) => false,
        }
    })
}
