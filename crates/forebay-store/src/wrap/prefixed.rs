//! The part of a store below a key, as a store of its own.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Location, Result, Span};
use forebay_io::AlignedBuf;
use futures::stream::StreamExt;

use crate::store::{
    Body, Capabilities, Entry, ListOptions, Listing, ObjectMeta, OpenUpload, PutDone, PutOptions, ReadDone,
    ReadOptions, Store, Upload, identity_below,
};

/// The part of a store below a prefix. Keys go in and come out relative to it.
#[derive(Debug, Clone)]
pub struct Prefixed {
    inner: Arc<dyn Store>,
    prefix: Key,
    location: Location,
}

impl Prefixed {
    /// What is below `prefix` in `inner`.
    pub fn new(inner: Arc<dyn Store>, prefix: Key) -> Self {
        let location = inner.location().join(&prefix);
        Self {
            inner,
            prefix,
            location,
        }
    }

    /// The key inside. The prefix itself may be an object there, but it is none here.
    fn inside(&self, op: &'static str, key: &Key) -> Result<Key> {
        if key.is_root() {
            let message = "an object is needed, but this names the whole store";
            return Err(Error::new(ErrorKind::InvalidInput, op, message).at(&self.location));
        }
        let joined = self.prefix.join(key);
        // Each was short enough alone; together they may not be.
        Key::parse(joined.as_str()).map_err(|error| error.at(self.location.join(key)))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Prefixed {
    fn location(&self) -> &Location {
        &self.location
    }

    fn identity(&self) -> String {
        identity_below(&self.inner.identity(), &self.prefix)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let meta = self.inner.head(&self.inside("head", key)?).await?;
        Ok(ObjectMeta {
            key: key.clone(),
            ..meta
        })
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let key = self.inside("read", key)?;
        self.inner.read_into(&key, span, buf, options).await
    }

    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let inside = objects
            .iter()
            .map(|(key, size)| Ok((self.inside("read", key)?, *size)));
        let inside = inside.collect::<Result<Vec<_>>>()?;
        self.inner.read_small(&inside, buf, options).await
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        self.inner.put(&self.inside("put", key)?, body, options).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.inner.upload(&self.inside("upload", key)?, options).await
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let key = self.inside("upload", key)?;
        self.inner.resume_upload(&key, state, options).await
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let base = self.prefix.clone();
        let rows = self.inner.list(&base.join(prefix), options);
        rows.filter_map(move |row| {
            let row = match row {
                Ok(Entry::Object(meta)) => {
                    below(&meta.key, &base).map(|key| Ok(Entry::Object(ObjectMeta { key, ..meta })))
                }
                Ok(Entry::Prefix(key)) => below(&key, &base).map(|key| Ok(Entry::Prefix(key))),
                Err(error) => Some(Err(error)),
            };
            async move { row }
        })
        .boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(&self.inside("delete", key)?).await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        let found = self.inner.open_uploads(&self.prefix.join(prefix)).await?;
        let inside = found.into_iter().filter_map(|upload| {
            let key = below(&upload.key, &self.prefix)?;
            Some(OpenUpload { key, ..upload })
        });
        Ok(inside.collect())
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        let upload = OpenUpload {
            key: self.inside("abort", &upload.key)?,
            ..upload.clone()
        };
        self.inner.abort_upload(&upload).await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
}

/// The key relative to the prefix; `None` for the prefix itself, which is outside.
fn below(key: &Key, base: &Key) -> Option<Key> {
    key.below(base).filter(|key| !key.is_root())
}
