//! Fails, delays, corrupts and loses on plan: what a store above must survive.
//!
//! A [`FaultPlan`] is a list of rules, each for one operation and certain calls of it. The same plan and seed give the same faults in the same
//! order of calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Ledger, Location, Result, Rng, Seed, Span};
use forebay_io::{AlignedBuf, Buf};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};

use super::Op;
use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PartBody, PutDone, PutOptions,
    ReadDone, ReadOptions, Store, Upload,
};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing is done, and an error of that kind comes back.
    Fail(ErrorKind),
    /// It is done, but the reply is lost and an error of that kind comes back.
    LoseReply(ErrorKind),
    /// It takes that much longer.
    Delay(Duration),
    /// One byte is changed, on the way in or on the way out, and nobody is told.
    Corrupt,
    /// The second half of the bytes does not arrive (read: zeros, written: missing), and nobody is told.
    Truncate,
    /// What is not there is `PermissionDenied`, as object stores have it for those who may not list.
    Conceal,
}

/// Which calls of an operation a fault hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The call of that number, from 1.
    Nth(u64),
    /// That many calls from the first.
    First(u64),
    /// One in that many on average, by the seed.
    OneIn(u64),
    /// Every call.
    Always,
}

/// Which faults hit which calls.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    seed: Seed,
    rules: Vec<(Op, When, Fault)>,
}

impl FaultPlan {
    /// No fault yet.
    pub fn new(seed: Seed) -> Self {
        Self {
            seed,
            rules: Vec::new(),
        }
    }

    /// And that one.
    pub fn with(mut self, op: Op, when: When, fault: Fault) -> Self {
        self.rules.push((op, when, fault));
        self
    }
}

/// A store with faults; clones share the plan.
#[derive(Debug, Clone)]
pub struct Faulty {
    inner: Arc<dyn Store>,
    faults: Arc<Faults>,
}

impl Faulty {
    /// Let `inner` fail by that plan.
    pub fn new(inner: Arc<dyn Store>, plan: FaultPlan) -> Self {
        let faults = Faults {
            rng: Mutex::new(plan.seed.rng()),
            rules: plan.rules,
            calls: Default::default(),
            hits: AtomicU64::new(0),
        };
        Self {
            inner,
            faults: Arc::new(faults),
        }
    }

    /// Faults so far.
    pub fn hits(&self) -> u64 {
        self.faults.hits.load(Ordering::Relaxed)
    }

    fn wrap(&self, inner: Box<dyn Upload>, place: String) -> Box<dyn Upload> {
        let faults = Arc::clone(&self.faults);
        Box::new(FaultyUpload { inner, faults, place })
    }

    fn place(&self, key: &Key) -> String {
        self.inner.location().join(key).to_string()
    }
}

#[derive(Debug)]
struct Faults {
    rng: Mutex<Rng>,
    rules: Vec<(Op, When, Fault)>,
    calls: [AtomicU64; Op::ALL.len()],
    hits: AtomicU64,
}

/// What hits one call.
#[derive(Debug, Default, Clone, Copy)]
struct Hit {
    fail: Option<ErrorKind>,
    lose: Option<ErrorKind>,
    delay: Duration,
    corrupt: bool,
    truncate: bool,
    conceal: bool,
}

impl Faults {
    fn hit(&self, op: Op) -> Hit {
        let number = self.calls[op.index()].fetch_add(1, Ordering::Relaxed) + 1;
        let mut hit = Hit::default();
        for (_, when, fault) in self.rules.iter().filter(|(of, _, _)| *of == op) {
            let hits = match *when {
                When::Nth(nth) => number == nth,
                When::First(count) => number <= count,
                When::OneIn(n) => self.draw(n) == 0,
                When::Always => true,
            };
            if !hits {
                continue;
            }
            self.hits.fetch_add(1, Ordering::Relaxed);
            match *fault {
                Fault::Fail(kind) => hit.fail = Some(kind),
                Fault::LoseReply(kind) => hit.lose = Some(kind),
                Fault::Delay(delay) => hit.delay += delay,
                Fault::Corrupt => hit.corrupt = true,
                Fault::Truncate => hit.truncate = true,
                Fault::Conceal => hit.conceal = true,
            }
        }
        hit
    }

    fn draw(&self, bound: u64) -> u64 {
        self.rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .below(bound)
    }

    /// Do a call as the hit has it.
    async fn call<T>(&self, op: Op, hit: Hit, place: &str, call: BoxFuture<'_, Result<T>>) -> Result<T> {
        let fault = |kind, message: &str| Err(Error::new(kind, op.name(), message).at(place));
        if !hit.delay.is_zero() {
            tokio::time::sleep(hit.delay).await;
        }
        if let Some(kind) = hit.fail {
            return fault(kind, "planned fault");
        }
        match (call.await, hit.lose) {
            (Err(error), _) if hit.conceal && error.kind() == ErrorKind::NotFound => {
                fault(ErrorKind::PermissionDenied, "planned refusal")
            }
            (Ok(_), Some(kind)) => fault(kind, "planned loss of the reply"),
            (done, _) => done,
        }
    }

    /// Damage bytes on their way out.
    fn damage(&self, hit: Hit, bytes: &mut [u8]) {
        if hit.truncate {
            let half = bytes.len() / 2;
            bytes[half..].fill(0);
        }
        if hit.corrupt && !bytes.is_empty() {
            let at = self.draw(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.draw(8);
        }
    }

    /// Damage bytes on their way in.
    fn damaged(&self, hit: Hit, buf: Buf) -> Result<Buf> {
        if !hit.truncate && !hit.corrupt {
            return Ok(buf);
        }
        let kept = if hit.truncate { buf.len() / 2 } else { buf.len() };
        let mut copy = AlignedBuf::copy_of(&buf[..kept])?;
        let only_corrupt = Hit {
            truncate: false,
            ..hit
        };
        self.damage(only_corrupt, &mut copy);
        Ok(copy.freeze())
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Faulty {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let hit = self.faults.hit(Op::Head);
        let call = self.inner.head(key);
        self.faults.call(Op::Head, hit, &self.place(key), call).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let hit = self.faults.hit(Op::Read);
        let call = self.inner.read_into(key, span, buf, options);
        let mut done = self.faults.call(Op::Read, hit, &self.place(key), call).await?;
        let len = span.len() as usize;
        self.faults.damage(hit, &mut done.buf[..len]);
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
        let hit = self.faults.hit(Op::Put);
        let body = if hit.corrupt || hit.truncate {
            let whole: Vec<u8> = body
                .pieces()
                .iter()
                .flat_map(|piece| piece.iter().copied())
                .collect();
            self.faults.damaged(hit, Buf::copy_of(&whole)?)?.into()
        } else {
            body
        };
        let call = self.inner.put(key, body, options);
        self.faults.call(Op::Put, hit, &self.place(key), call).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let hit = self.faults.hit(Op::Upload);
        let place = self.place(key);
        let call = self.inner.upload(key, options);
        let upload = self.faults.call(Op::Upload, hit, &place, call).await?;
        Ok(self.wrap(upload, place))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let hit = self.faults.hit(Op::Upload);
        let place = self.place(key);
        let call = self.inner.resume_upload(key, state, options);
        let upload = self.faults.call(Op::Upload, hit, &place, call).await?;
        Ok(self.wrap(upload, place))
    }

    /// A failed listing is one error row; one whose reply is lost breaks off after its first row; a truncated one ends there.
    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let hit = self.faults.hit(Op::List);
        let place = self.place(prefix);
        let fault = |kind| Err(Error::new(kind, "list", "planned fault").at(&place));
        let rows = match (hit.fail, hit.lose) {
            (Some(kind), _) => stream::iter([fault(kind)]).boxed(),
            (None, Some(kind)) => {
                let rows = self.inner.list(prefix, options).take(1);
                rows.chain(stream::iter([fault(kind)])).boxed()
            }
            (None, None) if hit.truncate => self.inner.list(prefix, options).take(1).boxed(),
            (None, None) => self.inner.list(prefix, options),
        };
        stream::once(async move {
            if !hit.delay.is_zero() {
                tokio::time::sleep(hit.delay).await;
            }
            rows
        })
        .flatten()
        .boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let hit = self.faults.hit(Op::Delete);
        let call = self.inner.delete(key);
        self.faults.call(Op::Delete, hit, &self.place(key), call).await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        let hit = self.faults.hit(Op::List);
        let call = self.inner.open_uploads(prefix);
        self.faults.call(Op::List, hit, &self.place(prefix), call).await
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        let hit = self.faults.hit(Op::Abort);
        let call = self.inner.abort_upload(upload);
        self.faults
            .call(Op::Abort, hit, &self.place(&upload.key), call)
            .await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let hit = self.faults.hit(Op::Capabilities);
        let call = self.inner.capabilities();
        let place = self.place(&Key::ROOT);
        self.faults.call(Op::Capabilities, hit, &place, call).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn Upload>,
    faults: Arc<Faults>,
    place: String,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for FaultyUpload {
    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        let hit = self.faults.hit(Op::Part);
        let body = self.faults.damaged(hit, body.bytes().clone())?;
        let call = self.inner.put_part(index, body.into());
        self.faults.call(Op::Part, hit, &self.place, call).await
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        self.inner.checkpoint()
    }

    async fn complete(&self) -> Result<PutDone> {
        let hit = self.faults.hit(Op::Complete);
        let call = self.inner.complete();
        self.faults.call(Op::Complete, hit, &self.place, call).await
    }

    async fn abort(&self) -> Result<()> {
        let hit = self.faults.hit(Op::Abort);
        let call = self.inner.abort();
        self.faults.call(Op::Abort, hit, &self.place, call).await
    }
}
