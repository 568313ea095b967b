//! Brings one checkpoint and compresses it on the way: raw where it is saved, compressed where it stays.
//!
//! ```text
//! hold its name there (pin) -> ranks that are there already stay -> others: read, checked, packed (save::again) -> index -> read back -> manifest: the commit
//! ```
//!
//! The copy is a checkpoint of its own: other payloads, parts and root, but the same step, time, entries, places and content ids. Its attempt follows from that of
//! the original and from where it came, so a drain that was killed finds what it left, and no other drain writes there; the end of it, which both have in common,
//! tells that they hold the same. A signature is over the root and cannot come along, and sealed chunks do not shrink: such are refused, unless they were compressed when
//! they were saved, and so go as they are.
//!
//! References are found anew: what the original references, the copy references of what the destination has.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{ErrorKind, Ledger, Result};
use forebay_store::PutMode;

use super::bring::Job;
use super::drain::{DrainEvent, Drained};
use super::objects::{self, Owners};
use super::send::{is_of_disk, unreadable};
use crate::codec::Compress;
use crate::commit::Committed;
use crate::list::{self, Pieces};
use crate::manifest::Manifest;
use crate::names::{Attempt, Form, Piece, piece_key};
use crate::open::{Checkpoint, Part};
use crate::part::PayloadRow;
use crate::save::{Again, Save, SaveOptions};

/// How often a drain tells how far it is.
const TELL_EVERY: Duration = Duration::from_millis(200);

impl Job<'_> {
    /// True when a checkpoint is to be stored in another way than it is.
    pub(super) fn recodes(&self, manifest: &Manifest) -> bool {
        let is_coded = |feature: &String| matches!(feature.as_str(), "zstd" | "lz4");
        let is_packed = manifest.payloads.iter().all(|row| row.form == Form::Chunks);
        // Sealed ones are of that form, too, compressed or not.
        let is_done = is_packed && (!manifest.is_sealed() || manifest.features.iter().any(is_coded));
        self.options.compress != Compress::Off && !is_done
    }

    /// Why a checkpoint that is to be stored in another way cannot be.
    pub(super) fn refusal(&self, manifest: &Manifest) -> Option<String> {
        if !self.recodes(manifest) {
            return None;
        }
        let why = if manifest.is_sealed() {
            "it is sealed, and what is sealed does not shrink"
        } else if !manifest.signatures.is_empty() {
            "it is signed, and the signature would not hold for what is compressed"
        } else {
            return None;
        };
        Some(format!(
            "{why}; compress when saving, or drain without compression"
        ))
    }

    /// Bring a checkpoint, compressed; `far` is what the destination has.
    pub(super) async fn recode(
        &self,
        manifest: Manifest,
        far: &HashMap<u64, Manifest>,
    ) -> Result<(Drained, Ledger, Manifest)> {
        let original = (manifest.step, manifest.attempt);
        let own = (manifest.step, self.copy_of(manifest.attempt));
        let base = base_of(&manifest, far);
        let rows = base.iter().flat_map(|base| &base.payloads);
        let mut holds: BTreeSet<(u64, Attempt)> = rows.map(|row| (row.step, row.attempt)).collect();
        let base = base.map(|base| (base.step, base.attempt));
        holds.extend(base.into_iter().chain([own]));
        self.lease.hold(own, holds.into_iter().collect()).await?;
        self.note(original).await?;
        let options = SaveOptions {
            hash: manifest.hash,
            chunk_bytes: manifest.chunk_bytes,
            base_step: base.map(|(step, _)| step),
            publish: self.options.publish,
            with_index: manifest.index.is_some(),
            class: self.options.class,
            compress: self.options.compress,
            ..SaveOptions::new(own.0, own.1, manifest.world())
        };
        // After the pin: what is there now stays.
        let save = Save::again(self.to.clone(), options, base, self.mode).await?;
        let made = self.save_again(&save, manifest).await;
        if let Err(error) = &made
            && is_of_disk(error)
            && let Err(error) = self.remove_all(own).await
        {
            // A disk that could not make it durable may show it all the same, and the next drain must not take it for whole.
            tracing::warn!(%error, "cannot remove what a disk failed to keep");
        }
        let (mut drained, mut ledger, manifest) = made?;
        self.commit(&manifest, &mut drained, &mut ledger).await?;
        Ok((drained, ledger, manifest))
    }

    /// What the copy of an attempt is called. Where a drain that slept could replace what the one after it has put, no two of them share a name.
    fn copy_of(&self, attempt: Attempt) -> Attempt {
        let source = self.from.store.identity();
        match self.mode {
            PutMode::IfAbsent => attempt.recoded(&source),
            PutMode::Replace => attempt.recoded(&format!("{source}\0{}", self.lease.owner())),
        }
    }

    /// All that the copy consists of, but for the publication of its manifest.
    async fn save_again(&self, save: &Save, original: Manifest) -> Result<(Drained, Ledger, Manifest)> {
        let own = (original.step, save.options.attempt);
        let (metadata, committed) = (original.metadata.clone(), original.committed);
        (self.tell)(DrainEvent::Begun {
            step: original.step,
            bytes: original.raw_bytes,
        });
        let from = Checkpoint::with_manifest(self.from.clone(), original, Ledger::default());
        let mut ledger = Ledger::default();
        let mut drained = Drained {
            step: own.0,
            ..Drained::default()
        };
        let is_unchecked = self.save_ranks(save, &from, &mut drained, &mut ledger).await?;
        ledger.merge(&from.ledger());
        let Committed {
            mut manifest,
            ledger: made,
        } = save.assemble(metadata, Duration::ZERO).await?;
        ledger.merge(&made);
        // Rules about what is kept count by the time of the save.
        manifest.committed = committed;
        if is_unchecked || self.options.reads_back {
            self.read_back(&manifest, &mut ledger).await?;
        }
        let files = manifest.parts.iter().chain(&manifest.index).map(|row| row.bytes);
        let sizes: Vec<u64> = own_payloads(&manifest)
            .map(|row| row.bytes)
            .chain(files)
            .collect();
        drained.objects = sizes.len() as u64 - drained.objects_there;
        drained.bytes = sizes.iter().sum::<u64>() - drained.bytes_there;
        Ok((drained, ledger, manifest))
    }

    /// Payloads and parts of all ranks that are not there yet. True when nobody compared what arrived.
    async fn save_ranks(
        &self,
        save: &Save,
        from: &Checkpoint,
        drained: &mut Drained,
        ledger: &mut Ledger,
    ) -> Result<bool> {
        let own = (from.step(), save.options.attempt);
        let there = list::pieces(self.to, own.0, own.1).await?;
        self.remove(own, &there, |piece| piece == Piece::Index).await?;
        let mut is_unchecked = false;
        for rank in 0..from.manifest().world() {
            if let Some((objects, bytes)) = self.rank_there(save, rank, &there).await? {
                drained.objects_there += objects;
                drained.bytes_there += bytes;
                continue;
            }
            self.lease.check().await?;
            self.remove(own, &there, |piece| rank_of(piece) == Some(rank))
                .await?;
            let again = Again {
                from,
                class: self.options.class,
                explain: unreadable,
                taken: Arc::default(),
            };
            let saving = save.rank_again(rank, &again);
            let done = self.telling(&again.taken, saving).await?;
            is_unchecked |= done.is_unchecked;
            drained.recoded_bytes += done.saved.raw_bytes - done.saved.referenced_bytes;
            ledger.merge(&done.saved.ledger);
        }
        Ok(is_unchecked)
    }

    /// Objects and bytes of a rank that a drain before this one has put, where they can be used: the part comes after the payload, and both are put whole.
    async fn rank_there(&self, save: &Save, rank: u32, there: &Pieces) -> Result<Option<(u64, u64)>> {
        let Some(bytes) = there.get(&Piece::Part(rank)).copied() else {
            return Ok(None);
        };
        let options = &save.options;
        let own = (options.step, options.attempt);
        let part = match Part::open(self.to, (own.0, own.1, rank), bytes, None).await {
            Ok(part) => part.head,
            Err(error) if error.kind() == ErrorKind::Corrupt => return Ok(None),
            Err(error) => return Err(error),
        };
        let base = save.base.as_ref().map(|base| base.checkpoint.manifest());
        // What it references must still be there, and held.
        let has = |row: &PayloadRow| {
            let is_own = (row.step, row.attempt) == own;
            let is_there = there.get(&Piece::Payload(row.rank, row.form)) == Some(&row.bytes);
            (is_own && is_there) || base.is_some_and(|base| base.names(row))
        };
        let is_alike =
            (part.world, part.hash, part.chunk_bytes) == (options.world, options.hash, options.chunk_bytes);
        if !is_alike || !part.payloads.iter().all(has) {
            return Ok(None);
        }
        let rows = part.payloads.iter().filter(|row| (row.step, row.attempt) == own);
        let sizes: Vec<u64> = rows.map(|row| row.bytes).chain([bytes]).collect();
        Ok(Some((sizes.len() as u64, sizes.iter().sum())))
    }

    /// Tell how much was taken while something is done.
    async fn telling<T>(&self, taken: &AtomicU64, work: impl Future<Output = Result<T>>) -> Result<T> {
        let tell = || match taken.swap(0, Ordering::Relaxed) {
            0 => {}
            bytes => (self.tell)(DrainEvent::Sent(bytes)),
        };
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => {
                    tell();
                    return done;
                }
                () = tokio::time::sleep(TELL_EVERY) => tell(),
            }
        }
    }

    /// Check all that was written, as it lies there; what is not right is removed.
    async fn read_back(&self, manifest: &Manifest, ledger: &mut Ledger) -> Result<()> {
        let copy = Checkpoint::with_manifest(self.to.clone(), manifest.clone(), Ledger::default());
        let way = self.way(&|_| {});
        let mut owners = Owners::default();
        let rows: Vec<PayloadRow> = own_payloads(manifest).copied().collect();
        for row in &rows {
            for sealed in objects::owned(&copy, std::slice::from_ref(row), &mut owners).await? {
                way.read_back(&Arc::new(sealed), ledger).await?;
            }
        }
        for (rank, row) in (0..).zip(&manifest.parts) {
            let sealed = objects::part(&copy, rank, row).await?;
            way.read_back(&Arc::new(sealed), ledger).await?;
        }
        if let Some(row) = &manifest.index
            && let Some(sealed) = objects::index(&copy, row).await?
        {
            way.read_back(&Arc::new(sealed), ledger).await?;
        }
        ledger.merge(&copy.ledger());
        Ok(())
    }

    async fn remove_all(&self, own: (u64, Attempt)) -> Result<()> {
        let there = list::pieces(self.to, own.0, own.1).await?;
        self.remove(own, &there, |_| true).await
    }

    /// Remove pieces of the copy, which nobody sees.
    async fn remove(
        &self,
        (step, attempt): (u64, Attempt),
        there: &Pieces,
        goes: impl Fn(Piece) -> bool,
    ) -> Result<()> {
        for piece in there.keys().copied().filter(|piece| goes(*piece)) {
            self.to.store.delete(&piece_key(step, attempt, piece)).await?;
        }
        Ok(())
    }
}

/// Payloads that the copy has written itself.
fn own_payloads(manifest: &Manifest) -> impl Iterator<Item = &PayloadRow> {
    let own = (manifest.step, manifest.attempt);
    manifest
        .payloads
        .iter()
        .filter(move |row| (row.step, row.attempt) == own)
}

fn rank_of(piece: Piece) -> Option<u32> {
    match piece {
        Piece::Payload(rank, _) | Piece::Part(rank) | Piece::Failed(rank) => Some(rank),
        Piece::Index => None,
    }
}

/// The checkpoint there whose chunks a copy may reference: where the original references any, that of the step it was compared with, else the nearest. It need not be
/// an earlier one, since the newest are brought first.
fn base_of<'a>(manifest: &Manifest, far: &'a HashMap<u64, Manifest>) -> Option<&'a Manifest> {
    let base = manifest.base?;
    let fits = |there: &&Manifest| {
        (there.hash, there.chunk_bytes) == (manifest.hash, manifest.chunk_bytes)
            && !there.is_sealed()
            && there.step != manifest.step
    };
    let same = far.get(&base.step).filter(fits);
    let same = same.filter(|there| there.attempt.is_same_save(base.attempt));
    let nearest = || {
        let others = far.values().filter(fits);
        others.min_by_key(|there| there.step.abs_diff(manifest.step))
    };
    same.or_else(nearest)
}
