//! Writes a manifest, one shard after the other, in the memory of a few parts.
//!
//! Sections go out as they come: into memory, or as parts of an upload that becomes visible when the trailer is written and not before. A small manifest is
//! one put. Dropping a [`ManifestWriter`] leaves nothing.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ByteSize, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::Buf;
use forebay_store::{Context, ObjectMeta, PutMode, PutOptions, Store, StoreExt, Upload};

use super::directory::{Directory, FormatSpec, Shard, digest_u64, packed_mark, prelude};
use super::{Manifest, Sections, section, sums};
use crate::dataset::FILES;
use crate::format::Tabulated;
use crate::schema::Schema;
use crate::table::Layout;

/// Largest manifest that is kept in memory because nobody asked to save it: some hundred million samples.
pub const UNSAVED_BYTES_MAX: u64 = 1 << 30;

/// Makes a manifest of shards that are added in order.
#[derive(Debug)]
pub struct ManifestWriter {
    directory: Directory,
    at: u64,
    sink: Sink,
    /// Shards whose types of numbers are what their values happened to be.
    shards_inferred: usize,
}

/// What to do about shards that disagree where nobody chose their types: a listed chunk cannot be put into a folder of its own.
const ONE_TYPE: &str = "the types were inferred from the values of each chunk: write those values as one type in all samples, numbers as floats where some are";

#[derive(Debug)]
enum Sink {
    Memory(Vec<Bytes>),
    Store(Box<Outgoing>),
}

/// A manifest on its way into a store.
#[derive(Debug)]
struct Outgoing {
    store: Arc<dyn Store>,
    key: Key,
    mode: PutMode,
    context: Context,
    /// What does not make a part yet.
    pending: Vec<u8>,
    upload: Option<Box<dyn Upload>>,
    parts: u32,
    ledger: Ledger,
}

impl ManifestWriter {
    /// Into memory. `identity` is that of the store that holds the shards.
    pub fn in_memory(spec: FormatSpec, identity: &str) -> Self {
        Self::new(spec, identity, Sink::Memory(Vec::new()))
    }

    /// Into an object, which is replaced or must not exist. Nothing is asked of the store yet.
    pub fn to_object(
        spec: FormatSpec,
        identity: &str,
        store: Arc<dyn Store>,
        key: Key,
        mode: PutMode,
        context: &Context,
    ) -> Self {
        let outgoing = Outgoing {
            store,
            key,
            mode,
            context: context.clone(),
            pending: prelude(),
            upload: None,
            parts: 0,
            ledger: Ledger::default(),
        };
        Self::new(spec, identity, Sink::Store(Box::new(outgoing)))
    }

    fn new(spec: FormatSpec, identity: &str, mut sink: Sink) -> Self {
        if let Sink::Memory(pieces) = &mut sink {
            pieces.push(prelude().into());
        }
        Self {
            directory: Directory {
                spec,
                schema: Schema::default(),
                shards: Vec::new(),
                origin: digest_u64(identity),
            },
            at: super::PRELUDE_BYTES,
            sink,
            shards_inferred: 0,
        }
    }

    /// Say that the shards were packed together with this manifest, before the first of them is added.
    pub(crate) fn packed(mut self) -> Self {
        let mark = packed_mark();
        self.at += mark.len() as u64;
        match &mut self.sink {
            Sink::Memory(pieces) => pieces.push(mark.into()),
            Sink::Store(outgoing) => outgoing.pending.extend(mark),
        }
        self
    }

    /// The shards so far.
    pub fn shards(&self) -> &[Shard] {
        &self.directory.shards
    }

    /// Add a shard with the table that a pass over it made.
    pub async fn add(&mut self, meta: &ObjectMeta, tabulated: &Tabulated) -> Result<()> {
        let table = &tabulated.table;
        table.check(tabulated.raw_bytes)?;
        self.merge(tabulated)?;
        let (bytes, mut section) = section::encode(table)?;
        section.span = Span::at(self.at, bytes.len() as u64)?;
        self.at = section.span.end();
        self.directory.shards.push(Shard {
            key: meta.key.clone(),
            stored_bytes: meta.size,
            raw_bytes: tabulated.raw_bytes,
            codec: tabulated.codec,
            sha256: tabulated.sha256,
            samples: table.samples(),
            groups: match &table.layout {
                Layout::Samples(_) => Vec::new(),
                Layout::Groups(groups) => groups.list.iter().map(|group| group.samples).collect(),
            },
            version: meta.version.as_deref().map_or(0, digest_u64),
            section,
        });
        match &mut self.sink {
            Sink::Memory(pieces) if self.at <= UNSAVED_BYTES_MAX => pieces.push(bytes.into()),
            Sink::Memory(_) => return Err(too_large()),
            Sink::Store(outgoing) => outgoing.write(&bytes).await?,
        }
        Ok(())
    }

    fn merge(&mut self, tabulated: &Tabulated) -> Result<()> {
        let (schema, fields) = (&mut self.directory.schema, &tabulated.table.fields);
        self.shards_inferred += usize::from(tabulated.are_types_inferred);
        if self.shards_inferred == 0 {
            return schema.merge(fields);
        }
        // Where somebody chose the types of one shard, samples may lie in it as they are given.
        let merged = if self.shards_inferred == self.directory.shards.len() + 1 {
            schema.merge_inferred(fields)
        } else {
            schema.merge(fields)
        };
        merged.map_err(|error| error.with_hint(ONE_TYPE))
    }

    /// Write the rest, and open the manifest. A saved one is there, whole and durable, when this returns; [`Manifest::sums`] tells what became of
    /// `_SHA256SUMS` beside it.
    pub async fn finish(mut self) -> Result<Manifest> {
        self.directory.schema.settle();
        let end = self.directory.encode(self.at)?;
        let fingerprint = self.directory.fingerprint()?;
        let sections = match self.sink {
            Sink::Memory(mut pieces) => {
                pieces.push(end.into());
                Sections::Memory(pieces)
            }
            Sink::Store(outgoing) => return outgoing.finish(&end, &self.directory).await,
        };
        Ok(Manifest::new(self.directory, fingerprint, Arc::new(sections)))
    }
}

impl Outgoing {
    async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.pending.extend_from_slice(bytes);
        let threshold = match &self.upload {
            Some(upload) => upload.part_bytes(),
            None => self.context.limits().part_bytes,
        };
        if (self.pending.len() as u64) < threshold {
            return Ok(());
        }
        if self.upload.is_none() {
            let upload = match self.store.upload(&self.key, &self.options()).await {
                Err(error) if self.can_replace(&error) => self.store.upload(&self.key, &self.options()).await,
                upload => upload,
            };
            self.upload = Some(upload.map_err(elsewhere)?);
        }
        self.send_parts().await
    }

    /// True when the store cannot tell whether the manifest is there: then whoever looked before it was built must do.
    fn can_replace(&mut self, error: &Error) -> bool {
        let is_refused = error.kind() == ErrorKind::Unsupported && self.mode == PutMode::IfAbsent;
        if is_refused {
            tracing::debug!(%error, "the manifest is saved without a condition");
            self.mode = PutMode::Replace;
        }
        is_refused
    }

    /// Send every part that is complete.
    async fn send_parts(&mut self) -> Result<()> {
        let Some(upload) = &self.upload else {
            return Ok(());
        };
        let part_bytes = upload.part_bytes().max(1) as usize;
        let mut sent = 0;
        while self.pending.len() - sent >= part_bytes {
            let part = Buf::copy_of(&self.pending[sent..sent + part_bytes])?;
            self.ledger
                .merge(&upload.put_part(self.parts, part.into()).await?);
            self.parts += 1;
            sent += part_bytes;
        }
        self.pending.drain(..sent);
        Ok(())
    }

    async fn finish(mut self, end: &[u8], directory: &Directory) -> Result<Manifest> {
        self.write(end).await?;
        let earlier = self.earlier_sums().await;
        match self.commit().await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return self.theirs(directory, error).await;
            }
            Err(error) => return Err(elsewhere(error)),
        }
        tracing::debug!(ledger = ?self.ledger, "manifest written");
        let manifest = Manifest::open(Arc::clone(&self.store), &self.key, &self.context).await?;
        Ok(self.put_sums(manifest, earlier.as_deref()).await)
    }

    /// The hashes that the manifest which is about to be replaced has beside it, where it wrote them.
    async fn earlier_sums(&self) -> Option<String> {
        if self.mode != PutMode::Replace {
            return None;
        }
        // One that cannot be read wrote nothing that could be known again.
        let manifest = Manifest::open(Arc::clone(&self.store), &self.key, &self.context).await;
        manifest.ok().map(|manifest| sums::sha256sums(manifest.shards()))
    }

    /// Make it visible.
    async fn commit(&mut self) -> Result<()> {
        let Some(upload) = &self.upload else {
            return match self.put().await {
                Err(error) if self.can_replace(&error) => self.put().await,
                put => put,
            };
        };
        if !self.pending.is_empty() {
            let part = Buf::copy_of(&self.pending)?;
            self.ledger
                .merge(&upload.put_part(self.parts, part.into()).await?);
        }
        upload.complete().await.map(drop)
    }

    /// Somebody else was faster: theirs is as good where it says the same.
    async fn theirs(self, directory: &Directory, error: Error) -> Result<Manifest> {
        let manifest = Manifest::open(Arc::clone(&self.store), &self.key, &self.context).await?;
        if manifest.fingerprint() == directory.fingerprint()? {
            return Ok(self.put_sums(manifest, None).await);
        }
        let message = "another manifest was saved meanwhile";
        Err(Error::new(ErrorKind::AlreadyExists, "index", message)
            .at(self.store.location().join(&self.key))
            .with_hint("the data changed between the two; add --force to write it anew")
            .with_source(error))
    }

    async fn put(&self) -> Result<()> {
        let options = self.options();
        let put = self.store.put_bytes(&self.key, &self.pending, &options);
        put.await.map(drop)
    }

    async fn put_sums(&self, manifest: Manifest, earlier: Option<&str>) -> Manifest {
        // Virtual shards have no files of their own that anybody could sum up.
        if manifest.spec().name == FILES {
            return manifest;
        }
        let sums = sums::save(&self.store, &self.key, manifest.shards(), earlier, &self.context).await;
        manifest.with_sums(sums)
    }

    fn options(&self) -> PutOptions {
        PutOptions {
            mode: self.mode,
            ..PutOptions::default()
        }
    }
}

/// A place that may only be read is no reason to go without a manifest.
fn elsewhere(error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnly) {
        return error;
    }
    let first = error.hint().map_or(String::new(), |hint| format!("{hint}; or "));
    error.with_hint(format!(
        "{first}keep it elsewhere: forebay index -o URL, and --manifest URL for whatever reads the data set"
    ))
}

fn too_large() -> Error {
    let message = format!(
        "the manifest of this data set takes more than {}, too much to keep in memory",
        ByteSize(UNSAVED_BYTES_MAX)
    );
    Error::new(ErrorKind::LimitExceeded, "index", message).with_hint("save it first: forebay index URL")
}
