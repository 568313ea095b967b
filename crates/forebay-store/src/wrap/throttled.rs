//! At most so many requests at once, and so many bytes a second.
//!
//! Bytes are paid for before they move: each request sleeps until it and everything before it are paid at the given rate. An idle
//! store saves up a little, so that a short burst goes at full speed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Clock, Error, ErrorKind, Key, Ledger, Location, Result, Span};
use forebay_io::AlignedBuf;
use futures::stream::{self, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PartBody, PutDone, PutOptions,
    ReadDone, ReadOptions, Store, Upload,
};

/// What an idle store saves up: a tenth of a second's bytes.
const SAVED_UP_MAX: Duration = Duration::from_millis(100);

/// The bounds of a [`Throttled`] store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// Requests in flight; at least 1.
    pub requests_max: usize,
    /// Bytes of content a second, read and written together; no bound when `None`.
    pub bytes_per_second: Option<u64>,
}

/// A store with bounds; clones share them.
#[derive(Debug, Clone)]
pub struct Throttled {
    inner: Arc<dyn Store>,
    valve: Arc<Valve>,
}

#[derive(Debug)]
struct Valve {
    requests: Arc<Semaphore>,
    bytes_per_second: Option<u64>,
    clock: Arc<dyn Clock>,
    /// When everything that was let through so far has been paid for.
    paid_until: Mutex<Duration>,
}

impl Valve {
    /// Wait for a place and for the bytes to be paid.
    async fn pass(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.requests)
            .acquire_owned()
            .await
            .map_err(|error| {
                Error::new(ErrorKind::Internal, "throttle", "the store was closed").with_source(error)
            })?;
        let wait = self.pay(bytes);
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        Ok(permit)
    }

    /// Time until these bytes and all before them are paid for.
    fn pay(&self, bytes: u64) -> Duration {
        let Some(rate) = self.bytes_per_second.filter(|_| bytes > 0) else {
            return Duration::ZERO;
        };
        let now = self.clock.now();
        let price = Duration::from_secs_f64(bytes as f64 / rate.max(1) as f64);
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let start = (*paid_until).max(now.saturating_sub(SAVED_UP_MAX));
        *paid_until = start + price;
        paid_until.saturating_sub(now)
    }
}

impl Throttled {
    /// Bound what is asked of `inner`.
    pub fn new(inner: Arc<dyn Store>, throttle: Throttle, clock: Arc<dyn Clock>) -> Self {
        let valve = Valve {
            requests: Arc::new(Semaphore::new(throttle.requests_max.max(1))),
            bytes_per_second: throttle.bytes_per_second,
            paid_until: Mutex::new(clock.now().saturating_sub(SAVED_UP_MAX)),
            clock,
        };
        Self {
            inner,
            valve: Arc::new(valve),
        }
    }

    fn wrap(&self, inner: Box<dyn Upload>) -> Box<dyn Upload> {
        let valve = Arc::clone(&self.valve);
        Box::new(ThrottledUpload { inner, valve })
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Throttled {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let _permit = self.valve.pass(0).await?;
        self.inner.head(key).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let _permit = self.valve.pass(span.len()).await?;
        self.inner.read_into(key, span, buf, options).await
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
        let _permit = self.valve.pass(body.len()).await?;
        self.inner.put(key, body, options).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let _permit = self.valve.pass(0).await?;
        Ok(self.wrap(self.inner.upload(key, options).await?))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let _permit = self.valve.pass(0).await?;
        Ok(self.wrap(self.inner.resume_upload(key, state, options).await?))
    }

    /// A listing takes its place only to begin: holding it while its consumer asks for more would stop both for ever.
    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let (inner, valve, prefix) = (Arc::clone(&self.inner), Arc::clone(&self.valve), prefix.clone());
        stream::once(async move {
            match valve.pass(0).await {
                Ok(_permit) => inner.list(&prefix, options),
                Err(error) => stream::iter([Err(error)]).boxed(),
            }
        })
        .flatten()
        .boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let _permit = self.valve.pass(0).await?;
        self.inner.delete(key).await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        let _permit = self.valve.pass(0).await?;
        self.inner.open_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        let _permit = self.valve.pass(0).await?;
        self.inner.abort_upload(upload).await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let _permit = self.valve.pass(0).await?;
        self.inner.capabilities().await
    }
}

#[derive(Debug)]
struct ThrottledUpload {
    inner: Box<dyn Upload>,
    valve: Arc<Valve>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for ThrottledUpload {
    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        let _permit = self.valve.pass(body.size()).await?;
        self.inner.put_part(index, body).await
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        self.inner.checkpoint()
    }

    async fn complete(&self) -> Result<PutDone> {
        let _permit = self.valve.pass(0).await?;
        self.inner.complete().await
    }

    async fn abort(&self) -> Result<()> {
        let _permit = self.valve.pass(0).await?;
        self.inner.abort().await
    }
}
