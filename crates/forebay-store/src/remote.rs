//! Stores behind HTTP: S3 and what speaks it, Google Cloud Storage, Azure Blob Storage, plain HTTP servers.
//!
//! Requests are built and signed by the `object_store` crate, none of whose types leave this module; everything around a request is ours:
//!
//! - [`config`]: endpoint, region and addressing, resolved in one place; [`environment`] and [`profile`] are what it reads;
//! - [`credentials`]: the whole ordinary chain of AWS; [`kms`]: secrets that a key of AWS KMS wraps;
//! - [`transport`]: one shared HTTP client that judges replies, with [`direct`] for bodies that go past its buffers; [`failure`]: what they mean in our words;
//! - [`read`], [`write`], [`upload`], [`list`], [`left`]: the operations; [`backend`]: the clients they use;
//! - what the store can be relied on for comes from [`probe`], and conditional writes refuse to work without it.
//!
//! ```text
//! read:  caller's buffer <--no copy of ours-- socket; the request comes from object_store, the reply is judged by the transport
//! write: caller's pieces --no copy--> object_store (checksum, signature) -> transport -> socket
//! ```

mod backend;
pub(crate) mod config;
mod credentials;
mod direct;
mod environment;
mod failure;
mod kms;
mod left;
mod list;
mod patience;
mod profile;
mod read;
mod tls;
mod transport;
mod upload;
mod write;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forebay_core::{Error, ErrorKind, KEY_BYTES_MAX, Key, Limits, Location, Result, Scheme, Span, metric};
use forebay_io::AlignedBuf;
use futures::stream::{self, StreamExt};
use object_store::path::Path;
use object_store::{GetOptions, ObjectStoreExt as _};
use tokio::sync::OnceCell;

pub use config::{Addressing, RemoteConfig};
pub use environment::Environment;
pub use kms::Kms;
pub(crate) use tls::Transports;

use crate::context::Context;
use crate::probe;
use crate::store::{
    Body, Capabilities, Checksum, Entry, ListOptions, Listing, ObjectMeta, OpenUpload, Proof, PutDone,
    PutOptions, ReadDone, ReadOptions, Store, Upload, identity_below,
};
use crate::wrap::Retried;
use backend::Backend;
use list::Lister;
use patience::Patience;
use transport::ReplyHeaders;

/// Open the store at `location` with settings from the context's environment.
pub(crate) async fn open(location: &Location, context: &Context) -> Result<Arc<dyn Store>> {
    let config = RemoteConfig::resolve(location, context.environment().clone()).await?;
    open_with(location, context, &config)
}

/// Open the store at `location` with these settings and with retries. Nothing is sent before the first operation.
pub fn open_with(location: &Location, context: &Context, config: &RemoteConfig) -> Result<Arc<dyn Store>> {
    let store = RemoteStore::new(location, context, config)?;
    Ok(Arc::new(Retried::new(Arc::new(store), context)))
}

/// A bucket, a container or a server, from some prefix on; clones share it.
#[derive(Clone)]
pub(crate) struct RemoteStore(Arc<Inner>);

struct Inner {
    location: Location,
    context: Context,
    limits: Limits,
    backend: Backend,
    patience: Patience,
    capabilities: OnceCell<Capabilities>,
    /// Something in the bucket answered, so that "not found" means the object.
    bucket_seen: AtomicBool,
}

impl RemoteStore {
    pub(crate) fn new(location: &Location, context: &Context, config: &RemoteConfig) -> Result<Self> {
        let limits = context.limits().clone();
        let transport = context.transports().get(&limits, config.ca_bundle.as_ref())?;
        let backend = Backend::build(location, config, &transport, context.clock())?;
        Ok(Self(Arc::new(Inner {
            location: location.clone(),
            context: context.clone(),
            patience: Patience::new(&limits, context.seed()),
            limits,
            backend,
            capabilities: OnceCell::new(),
            bucket_seen: AtomicBool::new(false),
        })))
    }

    /// The full name of `key`, exactly as it is: nothing is encoded twice.
    pub(crate) fn path(&self, op: &'static str, key: &Key) -> Result<Path> {
        let full = self.0.location.key().join(key);
        let refuse = |what: &str| Err(Error::new(ErrorKind::InvalidInput, op, what));
        if key.is_root() {
            return refuse("an object is needed, but this names a whole store");
        }
        if full.as_str().len() > KEY_BYTES_MAX {
            return refuse("name with its prefix is longer than 1024 bytes");
        }
        match Path::parse(full.as_str()) {
            Ok(path) => Ok(path),
            Err(_) => refuse("name has control characters, which object stores do not take"),
        }
    }

    pub(crate) fn backend(&self) -> &Backend {
        &self.0.backend
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn unique(&self) -> String {
        self.0.patience.unique()
    }

    /// Wait before try number `tries + 1` of something that is not one request.
    pub(crate) async fn pause(&self, tries: u32) {
        self.0.patience.pause(tries, None).await;
    }

    fn scheme(&self) -> &'static str {
        self.0.location.scheme().as_str()
    }

    fn count(&self, op: &'static str) {
        metrics::counter!(metric::STORE_REQUESTS_TOTAL, "scheme" => self.scheme(), "op" => op).increment(1);
    }

    async fn head_object(&self, key: &Key) -> Result<ObjectMeta> {
        let path = self.path("head", key)?;
        self.count("head");
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        let reply = self
            .0
            .backend
            .heads
            .get_opts(&path, options)
            .await
            .map_err(|error| self.explain("head", error))?;
        let headers = reply.extensions.get::<ReplyHeaders>();
        Ok(ObjectMeta {
            key: key.clone(),
            size: reply.meta.size,
            version: reply.meta.e_tag,
            modified: list::since_1970(reply.meta.last_modified.timestamp_millis()),
            checksum: headers.and_then(checksum),
            permissions: None,
        })
    }

    async fn delete_object(&self, key: &Key) -> Result<()> {
        let path = self.path("delete", key)?;
        self.count("delete");
        match self.0.backend.objects.delete(&path).await {
            Ok(()) => Ok(()),
            Err(error) => match self.explain("delete", error) {
                error if error.kind() == ErrorKind::NotFound && !is_bucket(&error) => Ok(()),
                error => Err(error),
            },
        }
    }

    /// Name the place of an error. A reply to HEAD has no body that could say what is wrong, so until something in the bucket has
    /// answered, a listing is asked as well: it tells a missing bucket, a wrong region or wrong keys.
    async fn settle<T>(&self, key: &Key, result: Result<T>) -> Result<T> {
        let error = match result {
            Ok(value) => {
                self.0.bucket_seen.store(true, Ordering::Relaxed);
                return Ok(value);
            }
            Err(error) => error.at(self.0.location.join(key)),
        };
        let asked = match &self.0.backend.lister {
            Lister::S3(lister) if is_mute(&error) && !self.0.bucket_seen.load(Ordering::Relaxed) => {
                lister.exists().await
            }
            _ => Ok(()),
        };
        match asked {
            Err(bucket) if is_bucket(&bucket) => Err(self.at_bucket(&bucket)),
            Err(told) if matches!(told.kind(), ErrorKind::InvalidInput | ErrorKind::Unauthenticated) => {
                Err(told.at(self.0.location.join(key)))
            }
            Ok(()) if error.kind() == ErrorKind::NotFound && !is_bucket(&error) => {
                self.0.bucket_seen.store(true, Ordering::Relaxed);
                Err(error)
            }
            _ if is_bucket(&error) => Err(self.at_bucket(&error)),
            _ => Err(error),
        }
    }

    /// Name the bucket and not the object: that is what is missing.
    fn at_bucket(&self, error: &Error) -> Error {
        let bucket = self.0.location.authority();
        Error::new(
            error.kind(),
            error.op(),
            format!("bucket '{bucket}' does not exist"),
        )
        .at(&self.0.location)
        .with_hint("check the name of the bucket and the endpoint")
    }

    async fn require_put_if_absent(&self) -> Result<()> {
        let capabilities = self.probed().await?;
        require("put", &capabilities.put_if_absent)
    }

    async fn require_upload_if_absent(&self) -> Result<()> {
        let capabilities = self.probed().await?;
        require("upload", &capabilities.upload_if_absent)
    }

    async fn probed(&self) -> Result<Capabilities> {
        let capabilities = self.0.capabilities.get_or_try_init(|| probe::capabilities(self));
        Ok(Box::pin(capabilities).await?.clone())
    }
}

/// A conditional write only where the probe showed that it holds.
fn require(op: &'static str, proof: &Proof) -> Result<()> {
    let why = match proof {
        Proof::Shown => return Ok(()),
        Proof::Refuted(why) => format!("this store does not keep one writer from replacing another: {why}"),
        Proof::Untried(why) => {
            format!("whether this store keeps one writer from replacing another is not known: {why}")
        }
    };
    Err(Error::new(ErrorKind::Unsupported, op, why)
        .with_hint("write under a name that no other writer uses, or use a store whose probe shows it"))
}

/// `NoSuchBucket` and its like, told from a missing object.
fn is_bucket(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound && error.message().starts_with("bucket ")
}

/// The server gave a status and not a word.
fn is_mute(error: &Error) -> bool {
    let refused = matches!(
        error.kind(),
        ErrorKind::NotFound
            | ErrorKind::InvalidInput
            | ErrorKind::PermissionDenied
            | ErrorKind::Unauthenticated
    );
    refused && error.message().starts_with(failure::MUTE) && !error.message().contains('(')
}

/// A checksum of the whole object, where the reply has one; those of single parts (`value-N`) do not count.
fn checksum(ReplyHeaders(headers): &ReplyHeaders) -> Option<Checksum> {
    let value = |name: &str| {
        let bytes = BASE64_STANDARD.decode(headers.get(name)?.as_bytes()).ok()?;
        Some(bytes)
    };
    if headers
        .get("x-amz-checksum-type")
        .is_some_and(|kind| kind == "COMPOSITE")
    {
        return None;
    }
    if let Some(bytes) = value("x-amz-checksum-crc64nvme") {
        // Written most significant byte first.
        let mut word: [u8; 8] = bytes.try_into().ok()?;
        word.reverse();
        return Some(Checksum::Crc64Nvme(u64::from_le_bytes(word)));
    }
    let mut word: [u8; 4] = value("x-amz-checksum-crc32c")?.try_into().ok()?;
    word.reverse();
    Some(Checksum::Crc32c(u32::from_le_bytes(word)))
}

impl fmt::Debug for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RemoteStore").field(&self.0.location).finish()
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for RemoteStore {
    fn location(&self) -> &Location {
        &self.0.location
    }

    fn identity(&self) -> String {
        identity_below(&self.0.backend.identity, self.0.location.key())
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.settle(key, self.head_object(key).await).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.settle(key, self.read_span(key, span, buf, options).await)
            .await
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
        self.settle(key, self.put_object(key, body, options).await).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let upload = self.settle(key, self.begin_upload(key, options).await).await?;
        Ok(Box::new(upload))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let upload = self
            .settle(key, self.continue_upload(key, state, options).await)
            .await?;
        Ok(Box::new(upload))
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let store = self.clone();
        let prefix = prefix.clone();
        // The object of that very name comes first, if there is one; a bucket has no such object.
        let own = {
            let (store, prefix) = (store.clone(), prefix.clone());
            stream::once(async move {
                if store.0.location.key().join(&prefix).is_root() || prefix.is_root() {
                    return None;
                }
                match store.head(&prefix).await {
                    Ok(meta) => Some(Ok(Entry::Object(meta))),
                    Err(error) if error.kind() == ErrorKind::NotFound => None,
                    Err(error) => Some(Err(error)),
                }
            })
        };
        let below = stream::unfold(Some(None), move |token| {
            let (store, prefix) = (store.clone(), prefix.clone());
            async move {
                let (rows, next) = store.page(&prefix, options, token?).await;
                Some((stream::iter(rows), next))
            }
        });
        own.filter_map(std::future::ready).chain(below.flatten()).boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.settle(key, self.delete_object(key).await).await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        self.find_open_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        self.settle(&upload.key, self.give_up_upload(upload).await).await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.probed().await.map_err(|error| error.at(&self.0.location))
    }
}

impl RemoteStore {
    /// The rows of one page and the token of the next; the last page, or one that failed, has none.
    async fn page(
        &self,
        prefix: &Key,
        options: ListOptions,
        token: Option<String>,
    ) -> (Vec<Result<Entry>>, Option<Option<String>>) {
        let base = self.0.location.key();
        let dir = base.join(prefix);
        let mut tries = 0;
        loop {
            tries += 1;
            self.count("list");
            let page = self
                .0
                .backend
                .lister
                .page(&dir, options.recursive, token.clone())
                .await;
            let pause = match page {
                Ok(page) => {
                    self.0.bucket_seen.store(true, Ordering::Relaxed);
                    let rows = page.rows.into_iter().filter(|row| !row.is_probe(&dir));
                    let rows = rows.filter_map(|row| row.into_entry(base));
                    let rows = rows.map(|row| row.map_err(|error| error.at(&self.0.location)));
                    return (rows.collect(), page.next.map(Some));
                }
                Err(error) => {
                    // In the middle of a long listing, going on is better than the wrapper's way of beginning again.
                    let again = token.is_some()
                        && error.retry() != forebay_core::Retry::Never
                        && tries < self.0.limits.tries_max;
                    if !again {
                        let error = if is_bucket(&error) {
                            self.at_bucket(&error)
                        } else {
                            error
                        };
                        return (vec![Err(error.at(self.0.location.join(prefix)))], None);
                    }
                    error.retry_after()
                }
            };
            self.0.patience.pause(tries, pause).await;
        }
    }

    /// Plain HTTP servers are read, not probed.
    pub(crate) fn is_plain_http(&self) -> bool {
        matches!(self.0.location.scheme(), Scheme::Http | Scheme::Https)
    }
}

/// For the fuzz targets.
#[cfg(fuzzing)]
pub(crate) mod fuzz {
    use super::{credentials, direct, failure, list, profile, transport};

    /// Profile and credentials files of AWS.
    pub(crate) fn profile(text: &str) {
        drop(profile::parse(text));
    }

    /// What a server may send.
    pub(crate) fn reply(bytes: &[u8]) {
        if let Ok(Some((parts, len))) = direct::parse_head(bytes) {
            assert!(len <= bytes.len() && parts.status.as_u16() >= 100);
        }
        assert!(direct::unchunk(bytes).len() <= bytes.len());
        list::fuzz(bytes);
        drop(credentials::parse_document(bytes, "fuzz"));
        if let Ok(text) = std::str::from_utf8(bytes) {
            failure::xml_texts(text, ["Code", "Message", "Region"]);
            assert!(
                failure::tidy(text, &["secretsecret".to_owned()], 200)
                    .chars()
                    .count()
                    <= 203
            );
            credentials::parse_time(text);
            transport::parse_range(text);
            transport::parse_content_range(text);
        }
    }
}
