//! An open store and what calls do with it, as futures.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Location, Result, Scheme, Span};
use forebay_io::{AlignedBuf, Buf};
use forebay_store::cache::Cache;
use forebay_store::{
    BeginParts, Body, Capabilities, Context, ListOptions, Listing, ObjectMeta, PutDone, PutMode, PutOptions,
    ReadDone, ReadOptions, Store, StoreExt, Upload, open, open_object,
};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::OnceCell;

use super::choices::Choices;
use super::{record_copy, steps};
use crate::process::Process;
use crate::view::Pinned;

/// Parts from which on an object is written in parts side by side: below, the two requests more that it takes do not pay.
const PARTS_MIN: u64 = 3;

/// One read: all from `offset` on where there is no `length`.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) key: Key,
    pub(crate) offset: u64,
    pub(crate) length: Option<u64>,
    /// Only this version of the object.
    pub(crate) version: Option<String>,
}

/// A store with the process it belongs to.
#[derive(Debug)]
pub(crate) struct Opened {
    process: &'static Process,
    context: Context,
    location: Location,
    choices: Choices,
    store: Arc<dyn Store>,
    /// The object that the location itself names, for the empty key.
    object: OnceCell<(Arc<dyn Store>, Key)>,
}

impl Opened {
    /// Open the store at `location`.
    pub(crate) async fn open(
        process: &'static Process,
        location: &Location,
        choices: &Choices,
    ) -> Result<Self> {
        if location.scheme() == Scheme::Mem && process.is_forked() {
            // Its locks may have been held by threads that the fork did not copy.
            let message = "objects in memory cannot be used after a fork";
            return Err(Error::new(ErrorKind::Unsupported, "open", message)
                .at(location)
                .with_hint("use a directory, or start workers by spawn"));
        }
        let context = choices.context(process.context());
        let store = open(location, &context).await?;
        Ok(Self {
            process,
            location: location.clone(),
            choices: choices.clone(),
            store: cached(store, choices, &context).await?,
            context,
            object: OnceCell::new(),
        })
    }

    /// The process it belongs to.
    pub(crate) fn process(&self) -> &'static Process {
        self.process
    }

    /// The store and the key in it; the empty key is the object the location names.
    async fn locate(&self, key: Key) -> Result<(Arc<dyn Store>, Key)> {
        if !key.is_root() {
            return Ok((Arc::clone(&self.store), key));
        }
        let open = || async {
            let (store, key) = open_object(&self.location, &self.context).await?;
            Ok::<_, Error>((cached(store, &self.choices, &self.context).await?, key))
        };
        Ok(self.object.get_or_try_init(open).await?.clone())
    }

    fn read_options(&self, version: Option<String>) -> ReadOptions {
        ReadOptions {
            version,
            class: self.choices.class,
            policy: self.choices.policy,
            ..ReadOptions::default()
        }
    }

    fn put_options(&self, mode: PutMode, size_hint: Option<u64>) -> PutOptions {
        PutOptions {
            mode,
            class: self.choices.class,
            policy: self.choices.policy,
            size_hint,
            ..PutOptions::default()
        }
    }

    pub(crate) async fn head(&self, key: Key) -> Result<ObjectMeta> {
        let (store, key) = self.locate(key).await?;
        store.head(&key).await
    }

    /// Read into memory of our own.
    pub(crate) async fn read(&self, request: Request) -> Result<(Buf, Ledger)> {
        let (store, key) = self.locate(request.key).await?;
        let (span, version) = match request.length {
            Some(length) if length > 0 => (Span::at(request.offset, length)?, request.version),
            length => {
                let meta = store.head(&key).await?;
                let end = length.map_or(meta.size, |_| request.offset);
                let span = span_within(&store, &key, request.offset, end, meta.size)?;
                (span, request.version.or(meta.version))
            }
        };
        let buf = self.process.result_buf(span.len() as usize)?;
        if span.is_empty() {
            return Ok((buf.freeze(), Ledger::default()));
        }
        let options = self.read_options(version);
        let done = store
            .read_parallel(&key, span, buf, &options, &self.context)
            .await?;
        let mut buf = done.buf;
        buf.set_len(span.len() as usize);
        Ok((buf.freeze(), done.ledger))
    }

    /// Read into the caller's memory, as many bytes as the request says.
    pub(crate) async fn read_into(&self, request: Request, buf: AlignedBuf) -> Result<ReadDone> {
        let (store, key) = self.locate(request.key).await?;
        let length = request.length.unwrap_or(buf.len() as u64);
        let span = Span::at(request.offset, length)?;
        if span.is_empty() {
            let ledger = Ledger::default();
            return Ok(ReadDone { buf, ledger });
        }
        let options = self.read_options(request.version);
        store
            .read_parallel(&key, span, buf, &options, &self.context)
            .await
    }

    /// Read into memory of others, as many bytes as it has.
    pub(crate) async fn fill(&self, request: Request, into: Pinned<'_>) -> Result<Ledger> {
        let (store, key) = self.locate(request.key).await?;
        let span = Span::at(request.offset, into.len() as u64)?;
        let options = self.read_options(request.version);
        steps::fill(&*store, &key, span, into, options, self.process).await
    }

    /// Read side by side, within the bound of requests to one store.
    pub(crate) async fn read_many(&self, requests: Vec<Request>) -> Result<Vec<(Buf, Ledger)>> {
        let at_once = self.context.limits().store_requests_max as usize;
        stream::iter(requests)
            .map(|request| Box::pin(self.read(request)))
            .buffered(at_once.max(1))
            .try_collect()
            .await
    }

    pub(crate) async fn write(&self, key: Key, buf: Buf, mode: PutMode) -> Result<PutDone> {
        let (store, key) = self.locate(key).await?;
        let options = self.put_options(mode, Some(buf.len() as u64));
        let is_remote = !matches!(self.location.scheme(), Scheme::File | Scheme::Mem);
        if is_remote && self.is_large(buf.len()) {
            return store
                .upload_all(&key, &options, &self.context, parts_of(buf))
                .await;
        }
        store.put(&key, Body::from(buf), &options).await
    }

    /// Write an object from memory of others.
    pub(crate) async fn write_from(&self, key: Key, from: Pinned<'_>, mode: PutMode) -> Result<PutDone> {
        let (store, key) = self.locate(key).await?;
        let len = from.len();
        let options = self.put_options(mode, Some(len as u64));
        // Objects in memory keep what they are made of, so that must not be the pool's, and cannot be less than all of it.
        let is_memory = self.location.scheme() == Scheme::Mem;
        if self.is_large(len) && !is_memory {
            return steps::send(&*store, &key, from, &options, self.process).await;
        }
        let buf = if is_memory {
            self.process.own_buf(len)?
        } else {
            self.process.result_buf(len)?
        };
        let copy = steps::copied(from, 0, len, buf)?;
        let mut done = store.put(&key, Body::from(copy), &options).await?;
        record_copy(&mut done.ledger, len as u64);
        Ok(done)
    }

    /// True where writing in parts pays.
    fn is_large(&self, len: usize) -> bool {
        len as u64 >= PARTS_MIN.saturating_mul(self.context.limits().part_bytes)
    }

    pub(crate) async fn upload(
        &self,
        key: Key,
        mode: PutMode,
        size_hint: Option<u64>,
    ) -> Result<Box<dyn Upload>> {
        let (store, key) = self.locate(key).await?;
        store.upload(&key, &self.put_options(mode, size_hint)).await
    }

    pub(crate) fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        self.store.list(prefix, options)
    }

    pub(crate) async fn delete(&self, key: Key) -> Result<()> {
        let (store, key) = self.locate(key).await?;
        store.delete(&key).await
    }

    pub(crate) async fn capabilities(&self) -> Result<Capabilities> {
        self.store.capabilities().await
    }
}

/// Put the cache before a store, where one is wanted.
pub(crate) async fn cached(
    store: Arc<dyn Store>,
    choices: &Choices,
    context: &Context,
) -> Result<Arc<dyn Store>> {
    match &choices.cache {
        Some(config) => Ok(Arc::new(Cache::open(store, config.clone(), context).await?)),
        None => Ok(store),
    }
}

/// The slices of `buf` that become parts.
fn parts_of(buf: Buf) -> BeginParts<'static> {
    Box::new(move |part_bytes| {
        let len = buf.len();
        let part_bytes = (part_bytes as usize).max(1);
        let starts = (0..len).step_by(part_bytes);
        stream::iter(starts.map(move |start| Ok(buf.slice(start..start + part_bytes)))).boxed()
    })
}

/// The span, or an error when it begins beyond the object.
fn span_within(store: &Arc<dyn Store>, key: &Key, start: u64, end: u64, size: u64) -> Result<Span> {
    if start > size {
        let message = format!("offset {start} is beyond the object of {size} bytes");
        return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(store.location().join(key)));
    }
    Span::new(start, end)
}
