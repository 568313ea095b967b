//! An open checkpoint: its manifest, and whatever of its parts and index was needed so far.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_store::{Context, ReadOptions, Store, StoreExt};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use crate::access_log::{AccessLog, AccessOp};
use crate::entry::{ChunkRecord, Content, Entry};
use crate::hash::{Digest, sha256};
use crate::index::{Found, IndexHead};
use crate::list::find_gone;
use crate::manifest::{FileRow, MANIFEST_BYTES_MAX, Manifest};
use crate::names::{Attempt, Piece, manifest_key, piece_key};
use crate::pages::{PageFile, Source};
use crate::part::{PartHead, PayloadRow};
use crate::seal::slots;
use crate::seal::{Keys, Opener};
use crate::sign::PublicKey;
use crate::tree::Kind;
use crate::value::Value;

/// Parts opened at once: hides the latency of an object store and keeps memory small.
const PARTS_AT_ONCE: usize = 32;

/// Parts that are looked into before the index: with more, the index is as near.
const NEARBY_MAX: u64 = 16;

/// Read a small object whole.
pub(crate) async fn read_small(
    store: &Arc<dyn Store>,
    context: &Context,
    key: &Key,
    bytes_max: u64,
) -> Result<(Bytes, Ledger)> {
    let meta = store.head(key).await?;
    if meta.size > bytes_max {
        let message = format!("it has {} bytes, and at most {bytes_max} are expected", meta.size);
        return Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message).at(store.location().join(key)));
    }
    if meta.size == 0 {
        return Ok((Bytes::new(), Ledger::default()));
    }
    let options = ReadOptions {
        version: meta.version,
        ..ReadOptions::default()
    };
    let span = Span::first(meta.size);
    let (buf, ledger) = store.read(key, span, &options, context).await?;
    Ok((Bytes::copy_from_slice(&buf), ledger))
}

/// An open part.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) head: PartHead,
    pub(crate) file: PageFile,
}

impl Part {
    /// Open the part of a rank, of `bytes` bytes; compared with what the manifest says where there is one.
    pub(crate) async fn open(
        source: &Source,
        (step, attempt, rank): (u64, Attempt, u32),
        bytes: u64,
        row: Option<&FileRow>,
    ) -> Result<Self> {
        let key = piece_key(step, attempt, Piece::Part(rank));
        let (file, head) = PageFile::open(source, key, bytes, row.map(|row| &row.hash)).await?;
        let head = PartHead::parse(&head).map_err(|error| file.name_in(error))?;
        if (head.step, head.attempt, head.rank) != (step, attempt, rank) {
            let message = format!(
                "this is the part of rank {} of attempt {} at step {}",
                head.rank, head.attempt, head.step
            );
            return Err(file.name_in(Error::new(ErrorKind::Corrupt, "read checkpoint", message)));
        }
        Ok(Self { head, file })
    }

    /// Entries of a name.
    pub(crate) async fn find(&self, name: &str) -> Result<Vec<Entry>> {
        self.file.find(&self.head.entries, name).await
    }

    /// Chunk records.
    pub(crate) async fn chunks(&self, first: u64, count: u64) -> Result<Vec<ChunkRecord>> {
        let chunks = self.file.chunks(&self.head.chunks, first, count).await?;
        for chunk in &chunks {
            self.payload(chunk)?;
        }
        Ok(chunks)
    }

    /// What tells the contents of these chunks apart, which begin with number `first`: content ids, or hashes where all of the part are stored as they are.
    pub(crate) async fn content_ids(&self, first: u64, chunks: &[ChunkRecord]) -> Result<Vec<Digest>> {
        let root = &self.head.content_ids;
        if root.records == 0 {
            return Ok(chunks.iter().map(|chunk| chunk.hash).collect());
        }
        let count = chunks.len() as u64;
        let bytes = self.file.numbered(Kind::ContentIds, root, first, count).await?;
        let (ids, _) = bytes.as_chunks();
        Ok(ids.to_vec())
    }

    /// The payload that a chunk lies in; refuses a chunk that does not lie in it.
    pub(crate) fn payload(&self, chunk: &ChunkRecord) -> Result<&PayloadRow> {
        let row = self.head.payloads.get(chunk.payload as usize);
        let fits = row.filter(|row| chunk.offset >= row.head_bytes && chunk.span().end() <= row.bytes);
        fits.ok_or_else(|| {
            let message = "a chunk does not lie within any payload of its part";
            self.file
                .name_in(Error::new(ErrorKind::Corrupt, "read checkpoint", message))
        })
    }

    /// Bytes among the values.
    pub(crate) async fn value(&self, span: Span) -> Result<Vec<u8>> {
        let root = &self.head.values;
        self.file
            .numbered(Kind::Values, root, span.start(), span.len())
            .await
    }
}

#[derive(Debug)]
struct Index {
    head: IndexHead,
    file: PageFile,
}

/// A committed checkpoint; cheap to clone.
#[derive(Debug, Clone)]
pub struct Checkpoint(Arc<Inner>, Arc<Access>);

/// Who reads a checkpoint, and with which keys.
#[derive(Debug, Clone, Default)]
struct Access {
    keys: Keys,
    /// What the keys opened.
    opener: OnceCell<Arc<Opener>>,
    log: Option<AccessLog>,
    /// Set once the log has it.
    noted: Arc<OnceCell<()>>,
    /// Ranks whose parts probably have what is wanted.
    nearby: Range<u32>,
}

#[derive(Debug)]
struct Inner {
    source: Source,
    manifest: Manifest,
    parts: Vec<OnceCell<Arc<Part>>>,
    index: OnceCell<Option<Index>>,
    /// Why the index is not used any more: parts say the same.
    index_lost: OnceLock<String>,
    ledger: Ledger,
}

impl Checkpoint {
    /// Open the checkpoint of a step: reads its manifest and nothing else.
    pub async fn open(store: Arc<dyn Store>, context: &Context, step: u64) -> Result<Self> {
        let checks = true;
        let context = context.clone();
        Self::open_with(
            Source {
                store,
                context,
                checks,
            },
            step,
        )
        .await
    }

    pub(crate) async fn open_with(source: Source, step: u64) -> Result<Self> {
        let found = read_manifest(&source, step).await?;
        let (manifest, ledger) = found.ok_or_else(|| no_checkpoint(&source, step))?;
        // After the manifest was read: a gc that declares it gone does so before it removes anything.
        if find_gone(&source, step, manifest.attempt).await? {
            return Err(no_checkpoint(&source, step).with_hint("it was removed by gc"));
        }
        Ok(Self::with_manifest(source, manifest, ledger))
    }

    pub(crate) fn with_manifest(source: Source, manifest: Manifest, ledger: Ledger) -> Self {
        let parts = manifest.parts.iter().map(|_| OnceCell::new()).collect();
        let inner = Inner {
            source,
            manifest,
            parts,
            index: OnceCell::new(),
            index_lost: OnceLock::new(),
            ledger,
        };
        Self(Arc::new(inner), Arc::default())
    }

    /// The same checkpoint, read with these keys: one that opens one of its key slots is enough.
    pub fn with_keys(&self, keys: Keys) -> Self {
        self.with_access(|access| {
            access.keys = keys;
            access.opener = OnceCell::new();
        })
    }

    fn with_access(&self, change: impl FnOnce(&mut Access)) -> Self {
        let mut access = Access::clone(&self.1);
        change(&mut access);
        Self(Arc::clone(&self.0), Arc::new(access))
    }

    /// The same checkpoint, read by one rank of so many: what it wants is looked for in the parts of the ranks that were in its place before it is looked for
    /// everywhere. Of a checkpoint of a thousand ranks that is one part instead of all.
    pub fn for_rank(&self, rank: u32, world: u32) -> Self {
        let ranks = u64::from(self.0.manifest.world());
        let (rank, world) = (u64::from(rank), u64::from(world.max(1)));
        let first = (rank * ranks / world).min(ranks);
        let end = ((rank + 1) * ranks).div_ceil(world).min(ranks);
        let nearby = if end - first <= NEARBY_MAX {
            first as u32..end as u32
        } else {
            0..0
        };
        self.with_access(|access| access.nearby = nearby)
    }

    /// The same checkpoint, which notes there that it is loaded before the first tensor is read through it: once, in however many pieces it is read.
    pub fn with_access_log(&self, log: AccessLog) -> Self {
        self.with_access(|access| {
            access.log = Some(log);
            access.noted = Arc::default();
        })
    }

    /// Note a load, where that is asked for.
    pub(crate) async fn note_load(&self) -> Result<()> {
        let Some(log) = &self.1.log else {
            return Ok(());
        };
        let Inner { source, manifest, .. } = &*self.0;
        let which = (manifest.step, Some(manifest.attempt));
        let note = || log.note(&source.context, &*source.store, AccessOp::Load, which);
        self.1.noted.get_or_try_init(note).await.copied()
    }

    /// The same checkpoint, if one of these keys has signed it; `PermissionDenied` otherwise, also where it is not signed at all.
    pub fn require_signature(&self, trusted: &[PublicKey]) -> Result<Self> {
        let checked = self.0.manifest.check_signature(trusted);
        let place = self.0.source.store.location();
        checked.map(|_| self.clone()).map_err(|error| error.at(place))
    }

    /// The data keys of a sealed checkpoint; `PermissionDenied` names its slots where no key opens one.
    pub(crate) async fn opener(&self) -> Result<Arc<Opener>> {
        let open = || async {
            let slots = slots::decode(&self.0.manifest.slots)?;
            Opener::new(&self.1.keys, &slots).await.map(Arc::new)
        };
        let opened = self.1.opener.get_or_try_init(open).await;
        let place = self.0.source.store.location();
        opened.cloned().map_err(|error| error.at(place))
    }

    /// What makes it a checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Its step.
    pub fn step(&self) -> u64 {
        self.0.manifest.step
    }

    pub(crate) fn source(&self) -> &Source {
        &self.0.source
    }

    /// Which way manifest, parts and index came so far.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.0.ledger.clone();
        for part in self.0.parts.iter().filter_map(OnceCell::get) {
            ledger.merge(&part.file.ledger());
        }
        if let Some(Some(index)) = self.0.index.get() {
            ledger.merge(&index.file.ledger());
        }
        if let Some(why) = self.0.index_lost.get() {
            let path = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
            let reason = format!("parts were gone through, since the index cannot be read: {why}");
            ledger.record_downgrade(path, path, reason);
        }
        ledger
    }

    /// The part of a rank, kept open.
    pub(crate) async fn part(&self, rank: u32) -> Result<Arc<Part>> {
        let Some(cell) = self.0.parts.get(rank as usize) else {
            return self.open_part(rank).await.map(Arc::new);
        };
        let open = || async { self.open_part(rank).await.map(Arc::new) };
        cell.get_or_try_init(open).await.cloned()
    }

    /// The part of a rank, for one use: whoever goes through all of a large world keeps none of them.
    pub(crate) async fn open_part(&self, rank: u32) -> Result<Part> {
        let manifest = &self.0.manifest;
        let Some(row) = manifest.parts.get(rank as usize) else {
            let message = format!("an entry is of rank {rank}, but there are {}", manifest.world());
            return Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message));
        };
        let id = (manifest.step, manifest.attempt, rank);
        let part = Part::open(&self.0.source, id, row.bytes, Some(row)).await?;
        let (head, file) = (&part.head, &part.file);
        let is_of_this = head.world == manifest.world()
            && head.hash == manifest.hash
            && head.chunk_bytes == manifest.chunk_bytes
            && head
                .features
                .iter()
                .all(|feature| manifest.features.contains(feature))
            && head.payloads.iter().all(|payload| manifest.names(payload));
        if is_of_this {
            return Ok(part);
        }
        let message = "this part says other things than its manifest";
        Err(file.name_in(Error::new(ErrorKind::Corrupt, "read checkpoint", message)))
    }

    async fn index(&self) -> Result<Option<&Index>> {
        let manifest = &self.0.manifest;
        let Some(row) = &manifest.index else {
            return Ok(None);
        };
        let open = || async {
            let key = piece_key(manifest.step, manifest.attempt, Piece::Index);
            let (file, head) = PageFile::open(&self.0.source, key, row.bytes, Some(&row.hash)).await?;
            let head = IndexHead::parse(&head).map_err(|error| file.name_in(error))?;
            let is_of_this = head.step == manifest.step
                && head.attempt == manifest.attempt
                && head.world == manifest.world()
                && head.chunk_bytes == manifest.chunk_bytes;
            if is_of_this {
                return Ok(Some(Index { head, file }));
            }
            let message = "this index says other things than its manifest";
            Err(file.name_in(Error::new(ErrorKind::Corrupt, "read checkpoint", message)))
        };
        Ok(self.0.index.get_or_try_init(open).await?.as_ref())
    }

    /// The index, unless there is none or it cannot be read: a checkpoint without it is as good.
    async fn sound_index(&self) -> Result<Option<&Index>> {
        if self.0.index_lost.get().is_some() {
            return Ok(None);
        }
        Ok(self.unless_lost(self.index().await)?.flatten())
    }

    /// What was read by the index; none where that is damaged, which is noted, and nobody asks it again.
    fn unless_lost<T>(&self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Io) => {
                tracing::warn!(%error, "the index of a checkpoint cannot be read, and its parts are gone through");
                self.0.index_lost.get_or_init(|| error.to_string());
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// The index as it lies in its object.
    pub(crate) async fn index_file(&self) -> Result<Option<(&PageFile, &IndexHead)>> {
        let index = self.index().await?;
        Ok(index.map(|index| (&index.file, &index.head)))
    }

    /// All entries of a name, over all ranks: by the index where there is one, else part by part.
    pub async fn find(&self, name: &str) -> Result<Vec<Found>> {
        if let Some(index) = self.sound_index().await?
            && let Some(found) = self.unless_lost(index.file.find(&index.head.entries, name).await)?
        {
            return Ok(found);
        }
        self.find_in(0..self.0.manifest.world(), name).await
    }

    /// Entries of a name in the parts of ranks that probably have them; none where nothing is known of that.
    pub(crate) async fn find_nearby(&self, name: &str) -> Result<Vec<Found>> {
        self.find_in(self.1.nearby.clone(), name).await
    }

    async fn find_in(&self, ranks: Range<u32>, name: &str) -> Result<Vec<Found>> {
        let found = stream::iter(ranks).map(|rank| async move {
            let entries = self.part(rank).await?.find(name).await?;
            let found = entries.into_iter().map(|entry| Found { rank, entry });
            Ok::<_, Error>(found.collect::<Vec<_>>())
        });
        let mut found = found.buffered(PARTS_AT_ONCE);
        let mut all = Vec::new();
        while let Some(more) = found.try_next().await? {
            all.extend(more);
        }
        all.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(all)
    }

    /// Every entry, by name, offsets and rank.
    pub async fn entries(&self) -> Result<Vec<Found>> {
        if let Some(index) = self.sound_index().await? {
            let mut all = Vec::new();
            let mut keep = |found: Found| {
                all.push(found);
                Ok(())
            };
            let scanned = index.file.scan(&index.head.entries, &mut keep).await;
            if self.unless_lost(scanned)?.is_some() {
                return Ok(all);
            }
        }
        self.entries_of_parts().await
    }

    /// Every entry as the parts have it, without the index.
    pub(crate) async fn entries_of_parts(&self) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        let ranks = stream::iter(0..self.0.manifest.world());
        let mut parts = ranks.map(|rank| self.part(rank)).buffered(PARTS_AT_ONCE);
        while let Some(part) = parts.try_next().await? {
            let rank = part.head.rank;
            let mut keep = |entry: Entry| {
                all.push(Found { rank, entry });
                Ok(())
            };
            part.file.scan(&part.head.entries, &mut keep).await?;
        }
        all.sort_by(|a, b| a.order().cmp(&b.order()));
        Ok(all)
    }

    /// Chunks of an entry, and bytes that they are stored in; none where it is no slice.
    pub async fn stored(&self, found: &Found) -> Result<(u64, u64)> {
        let Content::Slice { spec, first_chunk } = &found.entry.content else {
            return Ok((0, 0));
        };
        let count = spec.chunks(self.0.manifest.chunk_bytes);
        let chunks = self.part(found.rank).await?.chunks(*first_chunk, count).await?;
        let stored = chunks.iter().map(|chunk| u64::from(chunk.stored_bytes)).sum();
        Ok((count, stored))
    }

    /// True when keys were given to read it with.
    pub(crate) fn has_keys(&self) -> bool {
        !self.1.keys.is_empty()
    }

    /// A typed value by its name, of the first rank that has it.
    pub async fn value(&self, name: &str) -> Result<Option<Value>> {
        for Found { rank, entry } in self.find(name).await? {
            if let Content::Value(span) = entry.content {
                let bytes = self.part(rank).await?.value(span).await?;
                return Ok(Some(Value::decode(&bytes)?));
            }
        }
        Ok(None)
    }

    /// A typed value that a rank has saved under a name; ranks may have saved different ones.
    pub async fn value_of(&self, name: &str, rank: u32) -> Result<Option<Value>> {
        let part = self.part(rank).await?;
        for entry in part.find(name).await? {
            if let Content::Value(span) = entry.content {
                return Ok(Some(Value::decode(&part.value(span).await?)?));
            }
        }
        Ok(None)
    }

    /// The bytes that a rank has saved under a name, which only their writer understands; ranks may have saved different ones.
    pub async fn opaque_of(&self, name: &str, rank: u32) -> Result<Option<Vec<u8>>> {
        let part = self.part(rank).await?;
        for entry in part.find(name).await? {
            if let Content::Opaque(span) = entry.content {
                return Ok(Some(part.value(span).await?));
            }
        }
        Ok(None)
    }

    /// The bytes of an opaque entry, which only their writer understands, of the first rank that has it.
    pub async fn opaque(&self, name: &str) -> Result<Option<Vec<u8>>> {
        for Found { rank, entry } in self.find(name).await? {
            if let Content::Opaque(span) = entry.content {
                return Ok(Some(self.part(rank).await?.value(span).await?));
            }
        }
        Ok(None)
    }
}

/// The manifest of a step, when it is there.
pub(crate) async fn read_manifest(source: &Source, step: u64) -> Result<Option<(Manifest, Ledger)>> {
    let key = manifest_key(step);
    let Source {
        store,
        context,
        checks,
    } = source;
    let (bytes, ledger) = match read_small(store, context, &key, MANIFEST_BYTES_MAX).await {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let place = store.location().join(&key);
    let manifest = Manifest::decode(&bytes).map_err(|error| error.at(&place))?;
    if *checks && manifest.step != step {
        let message = format!("this is the manifest of step {}", manifest.step);
        return Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message).at(&place));
    }
    Ok(Some((manifest, ledger)))
}

fn no_checkpoint(source: &Source, step: u64) -> Error {
    let message = format!("there is no checkpoint of step {step}");
    Error::new(ErrorKind::NotFound, "open checkpoint", message).at(source.store.location())
}

/// Compare the header of a payload, which no chunk covers, with its hash.
pub(crate) fn header_holds(row: &PayloadRow, header: &[u8]) -> bool {
    header.len() as u64 == row.head_bytes && sha256(&[header]) == row.head_hash
}
