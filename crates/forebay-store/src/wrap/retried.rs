//! Tries passing faults again, within a budget, and gives a store that asks for less less.
//!
//! - **Pauses** have decorrelated jitter: each is drawn between the shortest and three times the last one, so that clients that
//!   failed together do not come back together. A store that says it is throttling gets longer ones.
//! - **The budget** ([`budget`]) bounds retries over the store's life to a share of its requests: an outage is not answered by a storm.
//! - **The cap** ([`cap`]) on requests in flight is halved when the store says it is throttling, and grows back slowly.
//!
//! - **Listings** ([`rows`]) begin again and leave out what was given already.
//!
//! What may be repeated: reading, heads, deleting, parts and replacing are the same done twice. Putting if absent is not: when a
//! reply was lost, the second try may meet our own object. So all tries of a write carry one [`PutOptions::write_id`], by which a store that
//! keeps it knows its own write again; a store that keeps none answers `AlreadyExists`, which is all that is known then. The content is no
//! answer: two writers of the same bytes would both win. Only where an upload may replace is the object that is there compared
//! (size, and CRC-64/NVME of a read back) before its completion is reported as failed.
//!
//! A read that failed has lost its buffer to the store below; the next try goes into another one of the same length. A remote store
//! that resumes reads in place makes this rare.

mod budget;
mod cap;
mod rows;
mod upload;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{
    Crc64Nvme, DataPath, Error, Key, Ledger, Location, Result, Retry, Rng, Seed, Span, metric,
};
use forebay_io::{AlignedBuf, Pages};
use futures::future::BoxFuture;

use self::budget::Budget;
use self::cap::Cap;
use self::rows::Rows;
use crate::context::Context;
use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PutDone, PutMode, PutOptions, ReadDone,
    ReadOptions, Store, Upload, WriteCheck,
};

/// How much longer the first pause is when the store says it is throttling.
const SLOW_DOWN_FACTOR: u32 = 8;

/// A store whose passing faults are tried again; clones share budget and cap.
#[derive(Debug, Clone)]
pub struct Retried(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    inner: Arc<dyn Store>,
    context: Context,
    rng: Mutex<Rng>,
    budget: Budget,
    cap: Cap,
    retries: AtomicU64,
}

impl Retried {
    /// Try passing faults of `inner` again, within the context's limits.
    pub fn new(inner: Arc<dyn Store>, context: &Context) -> Self {
        let limits = context.limits();
        Self(Arc::new(Shared {
            rng: Mutex::new(context.seed().rng()),
            budget: Budget::new(limits.retry_budget_percent),
            cap: Cap::new(limits.store_requests_max),
            retries: AtomicU64::new(0),
            context: context.clone(),
            inner,
        }))
    }

    /// Retries so far.
    pub fn retries(&self) -> u64 {
        self.0.retries.load(Ordering::Relaxed)
    }

    /// Requests that may be in flight right now.
    pub fn requests_max(&self) -> usize {
        self.0.cap.limit()
    }
}

/// How far a call has got.
#[derive(Debug, Default)]
struct Tries {
    failed: u32,
    pause: Duration,
}

impl Shared {
    /// Call until it succeeds, cannot succeed, or has been tried often enough.
    async fn run<'a, T>(
        &self,
        tries: &mut Tries,
        mut call: impl FnMut() -> BoxFuture<'a, Result<T>> + Send,
    ) -> Result<T> {
        loop {
            match self.once(call()).await {
                Ok(value) => return Ok(value),
                Err(error) => self.pause_after(tries, error).await?,
            }
        }
    }

    /// One try, within the cap.
    async fn once<T>(&self, call: BoxFuture<'_, Result<T>>) -> Result<T> {
        let permit = self.cap.acquire().await;
        let began = self.context.clock().now();
        let result = call.await;
        drop(permit);
        self.learn(began, result.as_ref().err());
        result
    }

    /// What a request that began at `began` ended in: it earns its share of a retry, and the cap follows the store.
    fn learn(&self, began: Duration, error: Option<&Error>) {
        self.budget.earn();
        match error {
            Some(error) if error.retry() == Retry::SlowDown => {
                self.cap.cut(began, self.context.clock().now());
            }
            Some(_) => {}
            None => self.cap.grow(),
        }
    }

    /// The same options with a name of the write, for all its tries.
    fn named(&self, options: &PutOptions) -> PutOptions {
        let mut options = options.clone();
        options.write_id.get_or_insert_with(|| {
            let drawn = self.rng.lock().unwrap_or_else(PoisonError::into_inner).next_u64();
            format!("{drawn:016x}{:016x}", Seed::fresh().0)
        });
        options
    }

    /// Pause before the next try, or give the error back when there is none.
    async fn pause_after(&self, tries: &mut Tries, error: Error) -> Result<()> {
        let limits = self.context.limits();
        let first = Duration::from_millis(limits.retry_pause_ms);
        let first = match error.retry() {
            Retry::Never => return Err(error),
            Retry::Backoff => first,
            Retry::SlowDown => first * SLOW_DOWN_FACTOR,
        };
        tries.failed += 1;
        if tries.failed >= limits.tries_max {
            let hint = format!("tried {} times", tries.failed);
            return Err(hinted(error, hint));
        }
        if !self.budget.spend() {
            let hint = "not tried again: too many requests to this store failed lately".to_owned();
            return Err(hinted(error, hint));
        }
        self.retries.fetch_add(1, Ordering::Relaxed);
        let scheme = self.inner.location().scheme().as_str();
        metrics::counter!(metric::STORE_RETRIES_TOTAL, "scheme" => scheme, "kind" => error.kind().name())
            .increment(1);
        tracing::debug!(%error, failed = tries.failed, "trying again");
        let longest = Duration::from_millis(limits.retry_pause_ms_max);
        tries.pause = self.draw_pause(first, tries.pause * 3).min(longest);
        let asked = error.retry_after().unwrap_or_default().min(longest);
        tokio::time::sleep(tries.pause.max(asked)).await;
        Ok(())
    }

    /// A pause between `first` and `last`, or `first` when that is longer.
    fn draw_pause(&self, first: Duration, last: Duration) -> Duration {
        let range = last.saturating_sub(first).as_micros() as u64;
        let drawn = self
            .rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .below(range + 1);
        first + Duration::from_micros(drawn)
    }

    /// Is the object what we wrote? For a second try that meets something where the first may have written.
    async fn is_ours(&self, key: &Key, size: u64, crc64nvme: u64) -> Result<Option<ObjectMeta>> {
        let meta = self.run(&mut Tries::default(), || self.inner.head(key)).await?;
        if meta.size != size {
            return Ok(None);
        }
        let options = ReadOptions {
            version: meta.version.clone(),
            ..ReadOptions::default()
        };
        let mut crc = Crc64Nvme::default();
        for span in Span::first(size).pieces(self.context.limits().part_bytes) {
            let done = self
                .run(&mut Tries::default(), || {
                    self.read_once(key, span, None, &options)
                })
                .await?;
            crc.update(&done.buf[..span.len() as usize]);
        }
        Ok((crc.value() == crc64nvme).then_some(meta))
    }

    /// Read into `buf`, or into one of our own.
    fn read_once<'a>(
        &'a self,
        key: &'a Key,
        span: Span,
        buf: Option<AlignedBuf>,
        options: &'a ReadOptions,
    ) -> BoxFuture<'a, Result<ReadDone>> {
        let buf = buf.map_or_else(|| self.spare(span.len() as usize), Ok);
        Box::pin(async move { self.inner.read_into(key, span, buf?, options).await })
    }

    /// Memory for a second try. Waiting for the pool could wait for the very caller that waits for us.
    fn spare(&self, len: usize) -> Result<AlignedBuf> {
        match self.context.pool().try_lease(len) {
            Some(buf) => Ok(buf),
            None => AlignedBuf::alloc(len, Pages::Small),
        }
    }
}

fn hinted(error: Error, hint: String) -> Error {
    if error.hint().is_some() {
        error
    } else {
        error.with_hint(hint)
    }
}

/// Add the retries to the account of what they were for.
fn account(ledger: &mut Ledger, tries: &Tries) {
    if tries.failed > 0 {
        let path = ledger.paths.keys().next().copied().unwrap_or(DataPath::Http);
        ledger.record_retries(path, tries.failed.into());
    }
}

/// The answer for a write whose reply was lost, and that was found in place.
fn found_done(meta: ObjectMeta, crc64nvme: u64) -> PutDone {
    PutDone {
        version: meta.version,
        size: meta.size,
        crc64nvme,
        check: WriteCheck::Unchecked,
        ledger: Ledger {
            verified_bytes: meta.size,
            ..Ledger::default()
        },
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Retried {
    fn location(&self) -> &Location {
        self.0.inner.location()
    }

    fn identity(&self) -> String {
        self.0.inner.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.0.run(&mut Tries::default(), || self.0.inner.head(key)).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let mut tries = Tries::default();
        let len = buf.len();
        let mut callers = Some(buf);
        let mut done = self
            .0
            .run(&mut tries, || {
                let buf = callers.take().map_or_else(|| self.0.spare(len), Ok);
                Box::pin(async move { self.0.inner.read_into(key, span, buf?, options).await })
            })
            .await?;
        account(&mut done.ledger, &tries);
        Ok(done)
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
        let mut tries = Tries::default();
        let options = &self.0.named(options);
        let mut done = self
            .0
            .run(&mut tries, || self.0.inner.put(key, body.clone(), options))
            .await?;
        account(&mut done.ledger, &tries);
        Ok(done)
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let options = &self.0.named(options);
        let inner = self
            .0
            .run(&mut Tries::default(), || self.0.inner.upload(key, options))
            .await?;
        // Only what may replace is known by its content.
        let known = options.mode == PutMode::Replace;
        Ok(Box::new(upload::RetriedUpload::new(&self.0, inner, key, known)))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let inner = self
            .0
            .run(&mut Tries::default(), || {
                self.0.inner.resume_upload(key, state.clone(), options)
            })
            .await?;
        // Another process wrote some of the parts.
        Ok(Box::new(upload::RetriedUpload::new(&self.0, inner, key, false)))
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        Rows::new(&self.0, prefix, options).into_listing()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.0
            .run(&mut Tries::default(), || self.0.inner.delete(key))
            .await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        self.0
            .run(&mut Tries::default(), || self.0.inner.open_uploads(prefix))
            .await
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        self.0
            .run(&mut Tries::default(), || self.0.inner.abort_upload(upload))
            .await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.0
            .run(&mut Tries::default(), || self.0.inner.capabilities())
            .await
    }
}
