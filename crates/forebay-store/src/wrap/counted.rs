//! Counts what is asked of a store: requests, errors and bytes, by operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use forebay_core::{Key, Ledger, Location, Result, Span};
use forebay_io::AlignedBuf;
use futures::stream::StreamExt;

use super::Op;
use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PartBody, PutDone, PutOptions,
    ReadDone, ReadOptions, Store, Upload,
};

/// A store whose requests are counted; clones share the count.
#[derive(Debug, Clone)]
pub struct Counted {
    inner: Arc<dyn Store>,
    counters: Arc<Counters>,
}

/// What was counted so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts([OpCounts; Op::ALL.len()]);

/// What was counted of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpCounts {
    /// Times it was asked for.
    pub requests: u64,
    /// Times it failed; for listings, rows that were errors.
    pub errors: u64,
    /// Bytes of content that it moved; of failed ones, none.
    pub bytes: u64,
}

impl Counts {
    /// Of one operation.
    pub fn of(&self, op: Op) -> OpCounts {
        self.0[op.index()]
    }

    /// Over all operations.
    pub fn total(&self) -> OpCounts {
        self.0.iter().fold(OpCounts::default(), |sum, counts| OpCounts {
            requests: sum.requests + counts.requests,
            errors: sum.errors + counts.errors,
            bytes: sum.bytes + counts.bytes,
        })
    }
}

#[derive(Debug, Default)]
struct Counters([Counter; Op::ALL.len()]);

#[derive(Debug, Default)]
struct Counter {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    fn asked(&self, op: Op) {
        self.0[op.index()].requests.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, op: Op) {
        self.0[op.index()].errors.fetch_add(1, Ordering::Relaxed);
    }

    fn done<T>(&self, op: Op, result: Result<T>, bytes: u64) -> Result<T> {
        match &result {
            Ok(_) => drop(self.0[op.index()].bytes.fetch_add(bytes, Ordering::Relaxed)),
            Err(_) => self.failed(op),
        }
        result
    }
}

impl Counted {
    /// Count what is asked of `inner` from now on.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            counters: Arc::default(),
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &Counter| OpCounts {
            requests: counter.requests.load(Ordering::Relaxed),
            errors: counter.errors.load(Ordering::Relaxed),
            bytes: counter.bytes.load(Ordering::Relaxed),
        };
        Counts(self.counters.0.each_ref().map(read))
    }

    fn wrap(&self, upload: Result<Box<dyn Upload>>) -> Result<Box<dyn Upload>> {
        let inner = self.counters.done(Op::Upload, upload, 0)?;
        let counters = Arc::clone(&self.counters);
        Ok(Box::new(CountedUpload { inner, counters }))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Counted {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.counters.asked(Op::Head);
        self.counters.done(Op::Head, self.inner.head(key).await, 0)
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.counters.asked(Op::Read);
        let result = self.inner.read_into(key, span, buf, options).await;
        self.counters.done(Op::Read, result, span.len())
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
        self.counters.asked(Op::Put);
        let size = body.len();
        let result = self.inner.put(key, body, options).await;
        self.counters.done(Op::Put, result, size)
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.counters.asked(Op::Upload);
        self.wrap(self.inner.upload(key, options).await)
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        self.counters.asked(Op::Upload);
        self.wrap(self.inner.resume_upload(key, state, options).await)
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        self.counters.asked(Op::List);
        let counters = Arc::clone(&self.counters);
        let rows = self.inner.list(prefix, options);
        rows.inspect(move |row| {
            if row.is_err() {
                counters.failed(Op::List);
            }
        })
        .boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.counters.asked(Op::Delete);
        self.counters.done(Op::Delete, self.inner.delete(key).await, 0)
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        self.counters.asked(Op::List);
        let found = self.inner.open_uploads(prefix).await;
        self.counters.done(Op::List, found, 0)
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        self.counters.asked(Op::Abort);
        self.counters
            .done(Op::Abort, self.inner.abort_upload(upload).await, 0)
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.counters.asked(Op::Capabilities);
        self.counters
            .done(Op::Capabilities, self.inner.capabilities().await, 0)
    }
}

#[derive(Debug)]
struct CountedUpload {
    inner: Box<dyn Upload>,
    counters: Arc<Counters>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for CountedUpload {
    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        self.counters.asked(Op::Part);
        let size = body.size();
        let result = self.inner.put_part(index, body).await;
        self.counters.done(Op::Part, result, size)
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        self.inner.checkpoint()
    }

    async fn complete(&self) -> Result<PutDone> {
        self.counters.asked(Op::Complete);
        self.counters.done(Op::Complete, self.inner.complete().await, 0)
    }

    async fn abort(&self) -> Result<()> {
        self.counters.asked(Op::Abort);
        self.counters.done(Op::Abort, self.inner.abort().await, 0)
    }
}
