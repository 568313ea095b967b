//! A store before whose calls something else happens: what another process does just then, or a failure of one object.

use std::fmt;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use forebay_core::{Key, Location, Result, Span};
use forebay_io::AlignedBuf;
use forebay_store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PutDone, PutOptions, ReadDone,
    ReadOptions, Store, Upload,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::StreamExt;

/// Which call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Head,
    Read(Span),
    Put,
    Upload,
    List,
    Delete,
    OpenUploads,
    Abort,
}

type Hook = dyn Fn(Call, Key) -> BoxFuture<'static, Result<()>> + Send + Sync;

/// The store with the hook; the call fails with what the hook fails with.
pub(crate) struct Hooked {
    inner: Arc<dyn Store>,
    hook: Arc<Hook>,
    /// Uploads that others have left.
    uploads: Mutex<Vec<OpenUpload>>,
}

impl Hooked {
    pub(crate) fn over<F>(
        inner: &Arc<dyn Store>,
        hook: impl Fn(Call, Key) -> F + Send + Sync + 'static,
    ) -> Arc<dyn Store>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Self::with_uploads(inner, Vec::new(), hook)
    }

    /// The same, with uploads that others have left.
    pub(crate) fn with_uploads<F>(
        inner: &Arc<dyn Store>,
        uploads: Vec<OpenUpload>,
        hook: impl Fn(Call, Key) -> F + Send + Sync + 'static,
    ) -> Arc<dyn Store>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        Arc::new(Self {
            inner: Arc::clone(inner),
            hook: Arc::new(move |call, key| hook(call, key).boxed()),
            uploads: Mutex::new(uploads),
        })
    }

    async fn before(&self, call: Call, key: &Key) -> Result<()> {
        (self.hook)(call, key.clone()).await
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[async_trait]
impl Store for Hooked {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.before(Call::Head, key).await?;
        self.inner.head(key).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.before(Call::Read(span), key).await?;
        self.inner.read_into(key, span, buf, options).await
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        self.before(Call::Put, key).await?;
        self.inner.put(key, body, options).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.before(Call::Upload, key).await?;
        self.inner.upload(key, options).await
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let (hook, inner, prefix) = (Arc::clone(&self.hook), Arc::clone(&self.inner), prefix.clone());
        let begun = async move {
            match hook(Call::List, prefix.clone()).await {
                Ok(()) => inner.list(&prefix, options),
                Err(error) => futures::stream::iter([Err(error)]).boxed(),
            }
        };
        begun.flatten_stream().boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.before(Call::Delete, key).await?;
        self.inner.delete(key).await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        self.before(Call::OpenUploads, prefix).await?;
        let uploads = self.uploads.lock().unwrap();
        let below = uploads.iter().filter(|upload| upload.key.below(prefix).is_some());
        Ok(below.cloned().collect())
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        self.before(Call::Abort, &upload.key).await?;
        self.uploads.lock().unwrap().retain(|open| open.id != upload.id);
        Ok(())
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
}
