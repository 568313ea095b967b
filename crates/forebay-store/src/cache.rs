//! An NVMe cache that is itself a store, in front of any other one.
//!
//! What is read comes from the cache's directory when it is there and holds its checksum, and from the origin otherwise, after which it is there.
//! Many threads and many processes share a directory; each block is fetched once. The originals are never touched: the cache removes only
//! files it has made itself. Bytes on disk are specified in `docs/formats/cache.md`.
//!
//! ```text
//! read_into --> version? (known, pinned, or head of the origin) --> entry (table) --> read: hits from disk, checked
//!                                                                                     |
//!                                                            fill: lock, room, origin <-- misses
//! ```
//!
//! - [`CacheConfig`]: where, how much, in which pieces, how long a version is believed;
//! - `format`: bytes and names, pure; `scan`: what lies in the directory; `room`: the cap and eviction;
//! - `entry`, `records`, `table`: open files and what is in them; `version`, `known`: which version; `read`, `fill`: the two ways bytes come.
//!
//! A cache never makes a read fail that the origin can answer. When its directory cannot be used (read-only, full, broken), reads go to the
//! origin and their ledger says why.

mod config;
mod entry;
mod files;
mod fill;
mod format;
mod known;
mod read;
mod records;
mod room;
mod scan;
mod shared;
mod table;
mod version;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
pub use config::{BLOCK_BYTES_DEFAULT, CacheConfig, FILL_BYTES_DEFAULT, Freshness, Mode};
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Location, PathPolicy, Result, Span};
use forebay_io::{AlignedBuf, Pages};

use self::fill::main_path;
use self::read::Read;
use self::shared::Shared;
use crate::context::Context;
use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PartBody, PutDone, PutOptions,
    ReadDone, ReadOptions, Store, Upload,
};

/// Times a read starts again because the object changed under it; a writer faster than that gets a `Precondition`.
const CHANGES_MAX: u32 = 3;

/// A store that keeps what it reads from another one on local disk.
#[derive(Debug)]
pub struct Cache {
    origin: Arc<dyn Store>,
    state: State,
}

#[derive(Debug)]
enum State {
    On(Arc<Shared>),
    /// The directory cannot be used, and why.
    Off(String),
}

/// What a cache has done so far, in blocks, and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks served from disk.
    pub hits: u64,
    /// Blocks fetched from the origin.
    pub misses: u64,
    /// Blocks that did not hold their checksum and were fetched again.
    pub corrupt: u64,
    /// Bytes in the directory, reserved ones included, when last seen.
    pub bytes: u64,
}

impl Cache {
    /// A cache in front of `origin`. Settings that cannot be meant are errors; a directory that cannot be used is not: reads then go to the origin,
    /// and their ledger says why.
    pub async fn open(origin: Arc<dyn Store>, config: CacheConfig, context: &Context) -> Result<Self> {
        config.check(origin.location())?;
        let root = config.root.clone();
        let state = match Box::pin(Shared::open(Arc::clone(&origin), config, context)).await {
            Ok(shared) => State::On(Arc::new(shared)),
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
                return Err(error.at(root.display()));
            }
            Err(error) => {
                tracing::warn!(%error, "the cache cannot be used, reading from the origin");
                State::Off(error.to_string())
            }
        };
        Ok(Self { origin, state })
    }

    /// What it has done so far.
    pub fn stats(&self) -> CacheStats {
        match &self.state {
            State::Off(_) => CacheStats {
                hits: 0,
                misses: 0,
                corrupt: 0,
                bytes: 0,
            },
            State::On(shared) => CacheStats {
                hits: shared.counts.hits.load(Ordering::Relaxed),
                misses: shared.counts.misses.load(Ordering::Relaxed),
                corrupt: shared.counts.corrupt.load(Ordering::Relaxed),
                bytes: shared.room.seen_bytes(),
            },
        }
    }

    /// Wait until no block is on its way in this process.
    pub async fn settle(&self) {
        if let State::On(shared) = &self.state {
            shared.tasks.idle().await;
        }
    }

    /// An object is about to change.
    fn changing(&self, key: &Key) -> Changing {
        Changing::begin(
            match &self.state {
                State::Off(_) => None,
                State::On(shared) => Some(shared),
            },
            key,
        )
    }

    /// Have what is cached of `key` forgotten once `inner` is complete.
    fn watch(&self, key: &Key, inner: Box<dyn Upload>) -> Box<dyn Upload> {
        match &self.state {
            State::Off(_) => inner,
            State::On(shared) => Box::new(CacheUpload {
                inner,
                shared: Arc::clone(shared),
                key: key.clone(),
            }),
        }
    }

    /// Read from the origin, not through the cache, with the reason in the ledger.
    async fn read_origin(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
        reason: &str,
    ) -> Result<ReadDone> {
        let mut done = self.origin.read_into(key, span, buf, options).await?;
        let path = main_path(&done.ledger);
        done.ledger
            .record_downgrade(DataPath::DirectUring, path, format!("not cached: {reason}"));
        Ok(done)
    }

    /// One try of a read: the object as it is said to be now.
    async fn read_as(
        &self,
        shared: &Arc<Shared>,
        meta: &ObjectMeta,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        // With the caller's own options: the version that is believed may be an old one, which only an entry has to be of.
        let around = |buf: AlignedBuf, reason: String| async move {
            let len = buf.len();
            match self.read_origin(&meta.key, span, buf, options, &reason).await {
                Ok(done) => Ok((done.buf, Ok(done.ledger))),
                // A failed read keeps its buffer; the next try needs one.
                Err(error) if error.kind() == ErrorKind::Precondition => {
                    Ok((AlignedBuf::alloc(len, Pages::Small)?, Err(error)))
                }
                Err(error) => Err(error),
            }
        };
        if let Some(reason) = shared.why_not(meta) {
            return around(buf, reason).await;
        }
        shared.look_around().await;
        let entry = match Box::pin(shared.entry(meta)).await {
            Ok(entry) => entry,
            Err(error) => return around(buf, error.to_string()).await,
        };
        let local = entry.path(&shared.disk);
        let stored_only = match options.policy {
            PathPolicy::Require(path) if path != local => {
                return around(buf, format!("{path} is required, the cache offers {local}")).await;
            }
            policy => matches!(policy, PathPolicy::Require(_)),
        };
        let now_ns = shared.now_ns();
        shared.table.use_now(entry.name, now_ns);
        entry.touch(&shared.disk, now_ns).await;
        let read = Read {
            shared,
            entry: &entry,
            class: options.class,
            stored_only,
            caller_checks: options.caller_checks,
        };
        Box::pin(read.run(span, buf)).await
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let State::On(shared) = &self.state {
            shared.close();
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Cache {
    fn location(&self) -> &Location {
        self.origin.location()
    }

    fn identity(&self) -> String {
        self.origin.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        match &self.state {
            State::Off(_) => self.origin.head(key).await,
            State::On(shared) => shared.head(key).await,
        }
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        mut buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let place = || self.location().join(key);
        let shared = match &self.state {
            State::On(shared) => shared,
            State::Off(reason) => return self.read_origin(key, span, buf, options, reason).await,
        };
        if (buf.len() as u64) < span.len() {
            let message = format!("buffer of {} bytes for {} bytes", buf.len(), span.len());
            return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(place()));
        }
        let mut changes = 0;
        loop {
            let meta = shared.resolve(key, options.version.as_deref()).await?;
            if span.end() > meta.size {
                let message = format!("bytes {span} of an object of {} bytes", meta.size);
                return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(place()));
            }
            if span.is_empty() {
                let ledger = Ledger::default();
                return Ok(ReadDone { buf, ledger });
            }
            let (back, result) = Box::pin(self.read_as(shared, &meta, span, buf, options)).await?;
            match result {
                Ok(ledger) => return Ok(ReadDone { buf: back, ledger }),
                Err(error) if error.kind() == ErrorKind::Precondition && changes < CHANGES_MAX => {
                    // Not the version that was believed any more. Whoever asked for no version in particular gets the one there is now.
                    shared.known.forget(key);
                    if options.version.is_some() {
                        return Err(error.at(place()));
                    }
                    changes += 1;
                    buf = back;
                }
                Err(error) => return Err(error.at(place())),
            }
        }
    }

    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        crate::ext::read_each(self, objects, buf, options).await
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        let changing = self.changing(key);
        let done = self.origin.put(key, body, options).await;
        changing.over().await;
        done
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let inner = self.origin.upload(key, options).await?;
        Ok(self.watch(key, inner))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let inner = self.origin.resume_upload(key, state, options).await?;
        Ok(self.watch(key, inner))
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        self.origin.list(prefix, options)
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let changing = self.changing(key);
        let done = self.origin.delete(key).await;
        changing.over().await;
        done
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        self.origin.open_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        self.origin.abort_upload(upload).await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.origin.capabilities().await
    }
}

/// A write to the origin, from before it begins until its end is known. Nothing that was known of the object is believed after it, whether it
/// succeeds, fails or is dropped half way: it may have been done all the same.
#[derive(Debug)]
struct Changing {
    shared: Option<Arc<Shared>>,
    key: Key,
}

impl Changing {
    fn begin(shared: Option<&Arc<Shared>>, key: &Key) -> Self {
        if let Some(shared) = shared {
            shared.known.forget(key);
        }
        Self {
            shared: shared.cloned(),
            key: key.clone(),
        }
    }

    /// The write has ended: remove what is cached of the object.
    async fn over(mut self) {
        if let Some(shared) = &self.shared {
            shared.forget(&self.key).await;
        }
        self.shared = None;
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        // Dropped half way. Readers of this process do not find anything old from here on; the files go as soon as somebody runs.
        shared.disbelieve(&self.key);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let key = std::mem::replace(&mut self.key, Key::ROOT);
            shared.tasks.start();
            drop(runtime.spawn(async move {
                shared.forget(&key).await;
                shared.tasks.end();
            }));
        }
    }
}

/// An upload to the origin, after which the cache forgets what it had.
#[derive(Debug)]
struct CacheUpload {
    inner: Box<dyn Upload>,
    shared: Arc<Shared>,
    key: Key,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for CacheUpload {
    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        self.inner.put_part(index, body).await
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        self.inner.checkpoint()
    }

    async fn complete(&self) -> Result<PutDone> {
        let changing = Changing::begin(Some(&self.shared), &self.key);
        let done = self.inner.complete().await;
        changing.over().await;
        done
    }

    async fn abort(&self) -> Result<()> {
        self.inner.abort().await
    }
}

/// For the fuzz target.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    format::fuzz(bytes);
}
