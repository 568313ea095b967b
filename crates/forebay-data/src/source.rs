//! The bytes of one shard, wherever they are.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Class};
use forebay_store::{Context, ObjectMeta, ReadOptions, Store, StoreExt};
use futures::stream::{BoxStream, StreamExt};

/// Pieces read ahead of a pass over a shard: enough to keep a disk or a store busy beside the parsing.
const PIECES_AHEAD_MAX: usize = 4;

/// Is told of bytes that a pass has read, and which way they came.
#[derive(Clone)]
struct Watcher(Arc<Watch>);

type Watch = dyn Fn(u64, &Ledger) + Send + Sync;

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watcher")
    }
}

/// An object of a store that holds samples. Everything read of it is of one version.
#[derive(Debug, Clone)]
pub struct ShardSource {
    store: Arc<dyn Store>,
    meta: ObjectMeta,
    context: Context,
    watcher: Option<Watcher>,
}

impl ShardSource {
    /// Look at the object and remember its version.
    pub async fn open(store: Arc<dyn Store>, key: &Key, context: &Context) -> Result<Self> {
        let meta = store.head(key).await?;
        Ok(Self::new(store, meta, context))
    }

    /// An object that was listed or looked at already.
    pub fn new(store: Arc<dyn Store>, meta: ObjectMeta, context: &Context) -> Self {
        Self {
            store,
            meta,
            context: context.clone(),
            watcher: None,
        }
    }

    /// Tell `watcher` how many bytes each piece of a pass had, as it is read, and which way they came.
    #[must_use]
    pub fn watched(mut self, watcher: impl Fn(u64, &Ledger) + Send + Sync + 'static) -> Self {
        self.watcher = Some(Watcher(Arc::new(watcher)));
        self
    }

    /// Another object of the same store, such as an index beside this one.
    pub async fn beside(&self, key: &Key) -> Result<Self> {
        Self::open(Arc::clone(&self.store), key, &self.context).await
    }

    /// What is known of the object.
    pub fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    /// Size in bytes, as it is stored.
    pub fn size(&self) -> u64 {
        self.meta.size
    }

    /// Surroundings.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Say in an error which object it is about.
    pub fn name_in(&self, error: Error) -> Error {
        error.at(self.store.location().join(&self.meta.key))
    }

    fn options(&self) -> ReadOptions {
        ReadOptions {
            version: self.meta.version.clone(),
            class: Class::Data,
            ..ReadOptions::default()
        }
    }

    /// Read a range.
    pub async fn read(&self, span: Span) -> Result<(Bytes, Ledger)> {
        let options = self.options();
        let read = self.store.read(&self.meta.key, span, &options, &self.context);
        let (buf, ledger) = read.await?;
        Ok((buf.into_bytes(), ledger))
    }

    /// Read a range into the front of memory of the caller's.
    pub async fn read_into(&self, span: Span, buf: AlignedBuf) -> Result<(Bytes, Ledger)> {
        self.read_with(span, buf, &self.options()).await
    }

    /// The same from the page cache, where all of it is in there.
    pub(crate) async fn read_from_memory(&self, span: Span, buf: AlignedBuf) -> Result<(Bytes, Ledger)> {
        let options = ReadOptions {
            from_page_cache: true,
            ..self.options()
        };
        self.read_with(span, buf, &options).await
    }

    /// The same for callers that compare what they read with the manifest, and read it again by [`read_into`](Self::read_into) where it does not fit: what
    /// a cache holds may be damaged while the shard is whole.
    pub async fn read_to_check(&self, span: Span, buf: AlignedBuf) -> Result<(Bytes, Ledger)> {
        let options = ReadOptions {
            caller_checks: true,
            from_page_cache: true,
            ..self.options()
        };
        self.read_with(span, buf, &options).await
    }

    async fn read_with(&self, span: Span, buf: AlignedBuf, options: &ReadOptions) -> Result<(Bytes, Ledger)> {
        let read = self
            .store
            .read_parallel(&self.meta.key, span, buf, options, &self.context);
        let done = read.await?;
        let bytes = done.buf.freeze().slice(..span.len() as usize);
        Ok((bytes.into_bytes(), done.ledger))
    }

    /// All bytes in order, in pieces, some read ahead.
    pub fn pieces(&self) -> BoxStream<'static, Result<(Bytes, Ledger)>> {
        let step = self.context.limits().part_bytes;
        let step = step.min(self.context.pool().lease_bytes_max() as u64);
        let pool = self.context.pool().clone();
        let source = self.clone();
        futures::stream::iter(Span::first(self.size()).pieces(step))
            // Leased in order: were a later piece to hold the last memory, the one that is needed first would wait for ever.
            .then(move |span| {
                let lease = pool.lease(span.len() as usize);
                async move { Ok::<_, Error>((span, lease.await??)) }
            })
            .map(move |leased| {
                let source = source.clone();
                async move {
                    let (span, buf) = leased?;
                    let options = source.options();
                    let done = source
                        .store
                        .read_into(&source.meta.key, span, buf, &options)
                        .await?;
                    if let Some(watcher) = &source.watcher {
                        (watcher.0)(span.len(), &done.ledger);
                    }
                    let bytes = done.buf.freeze().slice(..span.len() as usize);
                    Ok((bytes.into_bytes(), done.ledger))
                }
            })
            .buffered(PIECES_AHEAD_MAX)
            .boxed()
    }
}
