//! The commit: waits for all parts of an attempt, and publishes the manifest that names them.
//!
//! Nothing before the publication is visible to anybody, and nothing after it matters: a process that dies leaves the checkpoint or none.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Ledger, Result, Retry};
use forebay_io::Buf;
use forebay_store::{PutMode, PutOptions, StoreExt};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::access_log::AccessOp;
use crate::entry::Entry;
use crate::failed;
use crate::index::{self, IndexHead, PartEntries};
use crate::list;
use crate::manifest::{BaseRow, FileRow, Manifest, Publish};
use crate::names::{Attempt, Piece, manifest_key, piece_key};
use crate::open::{Part, read_manifest};
use crate::part::PayloadRow;
use crate::pin;
use crate::save::{Save, remove_pin, tell, wait_for};
use crate::tree::Root;
use crate::value::Value;

/// Parts whose heads are read at once.
const PARTS_AT_ONCE: usize = 32;

/// A checkpoint that was just made.
#[derive(Debug)]
pub struct Committed {
    /// What makes it one.
    pub manifest: Manifest,
    /// Which way the bytes of parts, index and manifest went.
    pub ledger: Ledger,
}

/// What lies in the folder of an attempt, with sizes.
type There = list::Pieces;

impl Save {
    /// Publish the checkpoint once all ranks have saved; waits for them that long.
    ///
    /// `Timeout` names ranks that did not save; one that has noted why it cannot ends the wait with its error. `AlreadyExists` says that another attempt was faster. Then nothing was published.
    pub async fn commit(self, metadata: Value, wait: Duration) -> Result<Committed> {
        let made = self.publish(metadata, wait).await;
        if let Err(error) = &made {
            tell(&self.source, &self.options, 0, error).await;
        }
        // Also after a failure: whoever tries again takes another attempt.
        remove_pin(&self.source, self.options.attempt).await;
        made
    }

    /// Wait, as another rank than the coordinator, until it has published this attempt.
    ///
    /// It gave up when its pin is gone and there is no checkpoint of this attempt: then this is the error that a rank has noted, or `Precondition` where none has.
    /// `Timeout` says that nothing is known of it.
    pub async fn published(&self, wait: Duration) -> Result<Manifest> {
        let (step, attempt) = (self.options.step, self.options.attempt);
        let refuse = |kind, what: &str| {
            let message = format!("rank 0 {what} attempt {attempt} at step {step}");
            Error::new(kind, "commit", message).at(self.source.store.location())
        };
        let look = || async {
            // The pin first: it goes after the commit, so without it the manifest is there or never will be.
            let pin = pin::of_attempt(&self.source.store, &self.source.context, attempt).await?;
            let found = self.read_back().await?;
            let found = found.filter(|manifest| manifest.attempt == attempt);
            if found.is_none() && pin.is_none() {
                let noted = self.failure(&self.list_attempt().await?).await?;
                return Err(noted.unwrap_or_else(|| refuse(ErrorKind::Precondition, "gave up")));
            }
            Ok(found)
        };
        let found = wait_for(wait, look).await?;
        found.ok_or_else(|| refuse(ErrorKind::Timeout, "did not publish"))
    }

    /// The manifest of what all ranks have saved, once they have; with the index, where there is to be one. Nothing is published.
    pub(crate) async fn assemble(&self, metadata: Value, wait: Duration) -> Result<Committed> {
        let there = self.wait_for_parts(wait).await?;
        let parts = self.open_parts(&there).await?;
        let payloads = self.check_payloads(&parts, &there).await?;
        let mut ledger = Ledger::default();
        let index = self.put_index(&parts, &mut ledger).await?;
        for part in &parts {
            ledger.merge(&part.file.ledger());
        }
        let mut manifest = self.manifest(&parts, &there, payloads, index, metadata);
        manifest.slots = self.slots(&manifest.payloads).await?;
        Ok(Committed { manifest, ledger })
    }

    async fn publish(&self, metadata: Value, wait: Duration) -> Result<Committed> {
        let Committed {
            mut manifest,
            mut ledger,
        } = self.assemble(metadata, wait).await?;
        if let Some(key) = &self.options.sign {
            manifest.sign(key)?;
        }
        let bytes = manifest.encode()?;
        // Without its pin, gc may have taken the attempt for a dead one's.
        let pinned = pin::of_attempt(&self.source.store, &self.source.context, self.options.attempt).await?;
        if pinned.is_none() {
            let message = format!(
                "the pin of attempt {} was removed meanwhile",
                self.options.attempt
            );
            return Err(
                Error::new(ErrorKind::Precondition, "commit", message).at(self.source.store.location())
            );
        }
        if let Some(log) = &self.options.access_log {
            let which = (self.options.step, Some(self.options.attempt));
            log.note(&self.source.context, &*self.source.store, AccessOp::Save, which)
                .await?;
        }
        ledger.merge(&self.put_manifest(&manifest, &bytes).await?);
        Ok(Committed { manifest, ledger })
    }

    /// The objects of this attempt, once every part is among them.
    async fn wait_for_parts(&self, wait: Duration) -> Result<There> {
        let world = self.options.world;
        let found = wait_for(wait, || async {
            let there = self.list_attempt().await?;
            if let Some(error) = self.failure(&there).await? {
                return Err(error);
            }
            let parts = there.keys().filter(|piece| matches!(piece, Piece::Part(_)));
            Ok((parts.count() as u32 >= world).then_some(there))
        });
        if let Some(there) = found.await? {
            return Ok(there);
        }
        let there = self.list_attempt().await?;
        let missing: Vec<String> = (0..world)
            .filter(|rank| !there.contains_key(&Piece::Part(*rank)))
            .map(|rank| rank.to_string())
            .collect();
        let shown = missing.iter().take(8).cloned().collect::<Vec<_>>().join(", ");
        let message = format!(
            "{} of {world} ranks did not save, among them {shown}",
            missing.len()
        );
        Err(Error::new(ErrorKind::Timeout, "commit", message).at(self.source.store.location()))
    }

    /// What the first rank has noted that cannot save.
    async fn failure(&self, there: &There) -> Result<Option<Error>> {
        let which = (self.options.step, self.options.attempt);
        failed::first(&self.source.store, &self.source.context, which, there.keys()).await
    }

    async fn list_attempt(&self) -> Result<There> {
        self.list_folder(self.options.step, self.options.attempt).await
    }

    async fn list_folder(&self, step: u64, attempt: Attempt) -> Result<There> {
        list::pieces(&self.source, step, attempt).await
    }

    async fn open_parts(&self, there: &There) -> Result<Vec<Part>> {
        let options = &self.options;
        let ranks = stream::iter(0..options.world);
        let parts = ranks.map(|rank| async move {
            let bytes = there.get(&Piece::Part(rank)).copied().unwrap_or(0);
            let part = Part::open(&self.source, (options.step, options.attempt, rank), bytes, None).await?;
            let head = &part.head;
            let is_alike = (head.world, head.hash, head.chunk_bytes)
                == (options.world, options.hash, options.chunk_bytes);
            if is_alike {
                return Ok(part);
            }
            let message = format!(
                "rank {rank} saved with {} ranks, {} and chunks of {} bytes; rank 0 with {}, {} and {}",
                head.world, head.hash, head.chunk_bytes, options.world, options.hash, options.chunk_bytes
            );
            Err(part
                .file
                .name_in(Error::new(ErrorKind::InvalidInput, "commit", message)))
        });
        parts.buffered(PARTS_AT_ONCE).try_collect().await
    }

    /// Every payload that parts name: each is there with its length, and those of other attempts are among those of the base.
    async fn check_payloads(&self, parts: &[Part], there: &There) -> Result<Vec<PayloadRow>> {
        let mut payloads = BTreeMap::new();
        for part in parts {
            for row in &part.head.payloads {
                payloads.insert(row.order(), (*row, part.head.rank));
            }
        }
        let own = (self.options.step, self.options.attempt);
        let attempts: BTreeSet<_> = payloads
            .keys()
            .map(|(step, attempt, _)| (*step, *attempt))
            .collect();
        let mut folders = HashMap::new();
        for (step, attempt) in attempts.into_iter().filter(|which| *which != own) {
            folders.insert((step, attempt), self.list_folder(step, attempt).await?);
        }
        let base = self.base.as_ref().map(|base| base.checkpoint.manifest());
        for (row, rank) in payloads.values() {
            let which = (row.step, row.attempt);
            let folder = if which == own {
                Some(there)
            } else {
                folders.get(&which)
            };
            let found = folder.and_then(|folder| folder.get(&Piece::Payload(row.rank, row.form)));
            let is_known = which == own || base.is_some_and(|base| base.names(row));
            if found != Some(&row.bytes) || !is_known {
                let message = format!(
                    "rank {rank} names {}, which is not there or has another length",
                    row.key()
                );
                return Err(
                    Error::new(ErrorKind::Corrupt, "commit", message).at(self.source.store.location())
                );
            }
        }
        Ok(payloads.into_values().map(|(row, _)| row).collect())
    }

    async fn put_index(&self, parts: &[Part], ledger: &mut Ledger) -> Result<Option<FileRow>> {
        if !self.options.with_index {
            return Ok(None);
        }
        let scans: Vec<_> = parts.iter().map(|part| entries_of(part).boxed()).collect();
        let scans = stream::iter(scans).buffered(PARTS_AT_ONCE);
        let entries: Vec<PartEntries> = scans.try_collect().await?;
        let options = &self.options;
        let head = IndexHead {
            step: options.step,
            attempt: options.attempt,
            world: options.world,
            chunk_bytes: options.chunk_bytes,
            entries: Root::default(),
        };
        let encoding = tokio::task::spawn_blocking(move || index::encode(head, &entries));
        let index = encoding.await.map_err(|error| {
            Error::new(ErrorKind::Internal, "commit", "making the index was broken off").with_source(error)
        })??;
        let key = piece_key(options.step, options.attempt, Piece::Index);
        let how = self.put_options();
        let put = self.source.store.put_bytes(&key, &index.bytes, &how);
        ledger.merge(&put.await?.ledger);
        Ok(Some(FileRow {
            bytes: index.bytes.len() as u64,
            head_bytes: index.head_bytes,
            hash: index.hash,
        }))
    }

    fn manifest(
        &self,
        parts: &[Part],
        there: &There,
        payloads: Vec<PayloadRow>,
        index: Option<FileRow>,
        metadata: Value,
    ) -> Manifest {
        let options = &self.options;
        let mut features: Vec<String> = parts.iter().flat_map(|part| part.head.features.clone()).collect();
        features.sort();
        features.dedup();
        let own = (options.step, options.attempt);
        let references = payloads.iter().any(|row| (row.step, row.attempt) != own);
        let base = self.base.as_ref().filter(|_| references).map(|base| {
            let manifest = base.checkpoint.manifest();
            BaseRow {
                step: manifest.step,
                attempt: manifest.attempt,
                chain: manifest.base.map_or(0, |base| base.chain).saturating_add(1),
            }
        });
        let sum = |of: fn(&Part) -> u64| parts.iter().map(of).sum();
        let rows = parts.iter().map(|part| {
            let bytes = there.get(&Piece::Part(part.head.rank)).copied().unwrap_or(0);
            let mut head = Vec::new();
            part.head.put(&mut head);
            FileRow {
                bytes,
                head_bytes: head.len() as u32,
                hash: crate::hash::sha256(&[&head]),
            }
        });
        Manifest {
            features,
            step: options.step,
            attempt: options.attempt,
            committed: self.source.context.clock().unix(),
            hash: options.hash,
            publish: options.publish,
            chunk_bytes: options.chunk_bytes,
            entries: sum(|part| part.head.entries.records),
            chunks: sum(|part| part.head.chunks.records),
            raw_bytes: sum(|part| part.head.raw_bytes),
            written_bytes: sum(|part| part.head.written_bytes),
            base,
            metadata,
            parts: rows.collect(),
            index,
            payloads,
            slots: Vec::new(),
            signatures: Vec::new(),
        }
    }

    /// The commit.
    async fn put_manifest(&self, manifest: &Manifest, bytes: &[u8]) -> Result<Ledger> {
        let key = manifest_key(manifest.step);
        let mode = match self.options.publish {
            Publish::IfAbsent => PutMode::IfAbsent,
            Publish::Replace => PutMode::Replace,
            Publish::SingleWriter => {
                if self.read_back().await?.is_some() {
                    return Err(self.lost_race());
                }
                PutMode::Replace
            }
        };
        let options = PutOptions {
            mode,
            class: self.options.class,
            ..PutOptions::default()
        };
        let put = self
            .source
            .store
            .put(&key, Buf::copy_of(bytes)?.into(), &options)
            .await;
        let must_look = match &put {
            Ok(_) => self.options.publish == Publish::SingleWriter,
            // The reply may have been lost while the manifest arrived. Errors of a disk are not asked about: what is visible may not be durable.
            Err(error) => error.kind() == ErrorKind::AlreadyExists || error.retry() != Retry::Never,
        };
        if !must_look {
            return Ok(put?.ledger);
        }
        let there = self.read_back().await;
        match (put, there) {
            (Ok(done), Ok(Some(there))) if there == *manifest => Ok(done.ledger),
            (Err(_), Ok(Some(there))) if there == *manifest => Ok(Ledger::default()),
            (Ok(_), Ok(_)) => Err(self.lost_race()),
            (Err(error), Ok(_)) if error.kind() == ErrorKind::AlreadyExists => Err(self.lost_race()),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        }
    }

    async fn read_back(&self) -> Result<Option<Manifest>> {
        let found = read_manifest(&self.source, self.options.step).await?;
        Ok(found.map(|(manifest, _)| manifest))
    }

    fn lost_race(&self) -> Error {
        let message = format!("another attempt has published step {} first", self.options.step);
        Error::new(ErrorKind::AlreadyExists, "commit", message).at(self.source.store.location())
    }
}

async fn entries_of(part: &Part) -> Result<PartEntries> {
    let mut entries = PartEntries::new(part.head.rank);
    let mut keep = |entry: Entry| {
        entries.push(&entry);
        Ok(())
    };
    part.file.scan(&part.head.entries, &mut keep).await?;
    Ok(entries)
}
