//! Brings one checkpoint: payloads, parts, index, and the manifest last.
//!
//! ```text
//! hold its attempts (pin) -> what is there already? -> send what is not, checked -> pin still ours? -> manifest: the commit
//! ```
//!
//! Objects are named by attempts and never change, so what is there with its length is whole, whoever brought it: a drain that was killed goes on with the
//! next object. Nothing of a checkpoint is visible before its manifest, which is the same, byte for byte, in every tier.

use std::collections::{BTreeSet, HashMap, HashSet};

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Retry};
use forebay_io::Buf;
use forebay_store::{Entry as Row, ListOptions, PutMode, PutOptions, StoreExt};
use futures::stream::{self, StreamExt};

use super::drain::{DrainEvent, DrainOptions, DrainReport, Drained};
use super::lease::Lease;
use super::objects::{self, Owners};
use super::seal::Sealed;
use super::send::{Sent, Way, is_of_disk, unreadable};
use crate::access_log::AccessOp;
use crate::list::gone_of_step;
use crate::manifest::{Manifest, Publish};
use crate::names::{Attempt, Piece, attempt_key, manifest_key, note_keys, piece_key};
use crate::open::{Checkpoint, read_manifest};
use crate::pages::Source;

/// Objects on their way at once, each in several parts.
const OBJECTS_AT_ONCE: usize = 4;

/// Objects at the destination, with their sizes.
type There = HashMap<Key, u64>;

/// What bringing needs.
pub(super) struct Job<'a> {
    pub(super) from: &'a Source,
    pub(super) to: &'a Source,
    pub(super) options: &'a DrainOptions,
    pub(super) lease: &'a Lease,
    pub(super) mode: PutMode,
    /// Payloads that checkpoints at the destination name.
    pub(super) vouched: &'a HashSet<(u64, Attempt, u32)>,
    pub(super) tell: &'a (dyn Fn(DrainEvent) + Send + Sync),
}

impl Job<'_> {
    /// Bring one after the other. What is wrong with one of them goes into the report, and the next is brought; a destination that fails ends it.
    ///
    /// `far` is what the destination has.
    pub(super) async fn run(
        &self,
        wanted: Vec<Manifest>,
        mut far: HashMap<u64, Manifest>,
        report: &mut DrainReport,
    ) -> Result<()> {
        for manifest in wanted {
            let step = manifest.step;
            if let Some(why) = self.refusal(&manifest) {
                report.pass(step, why, true);
                continue;
            }
            if let Some(gone) = gone_of_step(self.to, step).await? {
                let why = format!("attempt {gone} at this step is being removed there; run gc to its end");
                report.pass(step, why, true);
                continue;
            }
            // Boxed: whatever awaits this would be as large.
            let brought = if self.recodes(&manifest) {
                Box::pin(self.recode(manifest, &far)).await
            } else {
                Box::pin(self.bring(manifest)).await
            };
            match brought {
                Ok((drained, ledger, manifest)) => {
                    far.insert(step, manifest);
                    report.ledger.merge(&ledger);
                    report.drained.push(drained);
                    (self.tell)(DrainEvent::Done(step));
                }
                Err(error) if self.is_removed(step, &error).await => {
                    report.pass(step, "it was removed meanwhile".to_owned(), false);
                }
                Err(error) if is_of_step(&error) => {
                    tracing::warn!(%error, step, "a checkpoint is not brought");
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

    async fn bring(&self, manifest: Manifest) -> Result<(Drained, Ledger, Manifest)> {
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
        self.note(own).await?;
        let checkpoint = Checkpoint::with_manifest(self.from.clone(), manifest, Ledger::default());
        let mut drained = Drained {
            step: own.0,
            ..Drained::default()
        };
        let mut ledger = Ledger::default();
        let to_send = missing(&checkpoint, &there, &mut drained);
        (self.tell)(DrainEvent::Begun {
            step: own.0,
            bytes: to_send,
        });
        self.send_payloads(&checkpoint, &there, &mut drained, &mut ledger)
            .await?;
        self.send_parts(&checkpoint, &there, &mut drained, &mut ledger)
            .await?;
        ledger.merge(&checkpoint.ledger());
        let manifest = checkpoint.manifest().clone();
        self.commit(&manifest, &mut drained, &mut ledger).await?;
        Ok((drained, ledger, manifest))
    }

    /// Once all that it names is there.
    pub(super) async fn commit(
        &self,
        manifest: &Manifest,
        drained: &mut Drained,
        ledger: &mut Ledger,
    ) -> Result<()> {
        self.settle(manifest).await?;
        self.lease.check().await?;
        let (bytes, put) = self.publish(manifest).await?;
        ledger.merge(&put);
        drained.objects += 1;
        drained.bytes += bytes;
        Ok(())
    }

    /// Say in the log that a checkpoint is copied, where there is to be one.
    pub(super) async fn note(&self, (step, attempt): (u64, Attempt)) -> Result<()> {
        let Some(log) = &self.options.access_log else {
            return Ok(());
        };
        let Source { store, context, .. } = self.from;
        log.note(context, &**store, AccessOp::Copy, (step, Some(attempt)))
            .await
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
        let mut owners = Owners::default();
        let spoken = objects::sort(checkpoint, rows, &mut owners).await;
        let spoken = spoken.map_err(unreadable)?;
        for rows in &spoken.orphans {
            let sealed = objects::orphans(checkpoint, rows).await;
            self.send_all(sealed.map_err(unreadable)?, there, drained, ledger)
                .await?;
        }
        // Some at a time: the seals of all payloads of a large world would take gigabytes.
        for rows in spoken.owned.chunks(OBJECTS_AT_ONCE) {
            let sealed = objects::owned(checkpoint, rows, &mut owners).await;
            self.send_all(sealed.map_err(unreadable)?, there, drained, ledger)
                .await?;
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
                let part = objects::part(checkpoint, rank, row).await;
                sealed.push(part.map_err(unreadable)?);
            }
            if sealed.len() == OBJECTS_AT_ONCE {
                self.send_all(std::mem::take(&mut sealed), there, drained, ledger)
                    .await?;
            }
        }
        if let Some(row) = &manifest.index {
            let key = piece_key(manifest.step, manifest.attempt, Piece::Index);
            if there.get(&key) != Some(&row.bytes) {
                let index = objects::index(checkpoint, row).await;
                sealed.extend(index.map_err(unreadable)?);
            }
        }
        self.send_all(sealed, there, drained, ledger).await
    }

    pub(super) fn way<'a>(&'a self, tell: &'a (dyn Fn(u64) + Send + Sync)) -> Way<'a> {
        Way {
            from: self.from,
            to: self.to,
            class: self.options.class,
            reads_back: self.options.reads_back,
            tell,
        }
    }

    async fn send_all(
        &self,
        sealed: Vec<Sealed>,
        there: &There,
        drained: &mut Drained,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let tell = |bytes| (self.tell)(DrainEvent::Sent(bytes));
        let way = &self.way(&tell);
        let sends = sealed.into_iter().map(|object| {
            // What has another length is not what its name says, whoever put it there.
            let is_wrong = there.contains_key(&object.key);
            let mode = if is_wrong { PutMode::Replace } else { self.mode };
            let bytes = object.bytes;
            async move { Ok::<_, Error>((bytes, way.send(object, mode).await?)) }
        });
        let mut sends = stream::iter(sends).buffer_unordered(OBJECTS_AT_ONCE);
        let mut failed = None;
        while let Some(sent) = sends.next().await {
            match sent {
                Ok((bytes, sent)) => {
                    let Sent {
                        unreferenced_bytes,
                        ledger: moved,
                    } = sent;
                    drained.objects += 1;
                    drained.bytes += bytes;
                    drained.unreferenced_bytes += unreferenced_bytes;
                    ledger.merge(&moved);
                }
                // A sync that failed has failed for all who shared it: each must learn that, and take back what it made visible.
                Err(error) if is_of_disk(&error) => failed = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Where names are files, make durable what others made and may have been killed before they did so: objects that were found, and the folders on the way to
    /// all of them. Putting a name syncs its folder. What checkpoints there name is durable already.
    async fn settle(&self, manifest: &Manifest) -> Result<()> {
        if self.to.store.location().to_path().is_none() {
            return Ok(());
        }
        let rows = manifest.payloads.iter();
        let found = rows.filter(|row| !self.vouched.contains(&row.order()));
        let own = (manifest.step, manifest.attempt);
        let attempts: BTreeSet<(u64, Attempt)> =
            found.map(|row| (row.step, row.attempt)).chain([own]).collect();
        // From the leaves up, and the root last.
        for note in note_keys(attempts.iter().copied()) {
            let options = PutOptions::default();
            self.to.store.put_bytes(&note, b"", &options).await?;
            self.to.store.delete(&note).await?;
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
            Publish::SingleWriter if read_back().await?.is_some() => return Err(lost()),
            Publish::Replace | Publish::SingleWriter => PutMode::Replace,
        };
        let options = PutOptions {
            mode,
            class: self.options.class,
            ..PutOptions::default()
        };
        let put = self
            .to
            .store
            .put(&key, Buf::copy_of(&bytes)?.into(), &options)
            .await;
        if let Err(error) = &put
            && is_of_disk(error)
            && let Err(error) = self.to.store.delete(&key).await
        {
            // Visible, and perhaps not durable: the next drain must not take it for there.
            tracing::warn!(%error, "cannot remove what a disk failed to keep");
        }
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

/// True for what is wrong with one checkpoint: the others can be brought all the same, and trying this one again and again must not keep them from it.
/// [`unreadable`] has made of it what the source cannot read.
fn is_of_step(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::LimitExceeded)
}

/// Count what is there, and give the bytes of what is not.
fn missing(checkpoint: &Checkpoint, there: &There, drained: &mut Drained) -> u64 {
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
