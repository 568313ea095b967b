//! A store around another one that counts, fails, lies, waits, and whose uploads outlive it.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Ledger, Location, Result, Span};
use forebay_io::{AlignedBuf, Buf};
use futures::StreamExt;

use forebay_store::{
    Body, Capabilities, Entry, ListOptions, Listing, ObjectMeta, OpenUpload, PartBody, PutDone, PutOptions,
    ReadDone, ReadOptions, Store, Upload, WriteCheck,
};
use tokio::sync::Semaphore;

/// What is odd about a store, and what was asked of it.
#[derive(Debug, Default)]
pub(crate) struct Oddity {
    /// Flip a bit of what is written, and tell the checksum of what should have been.
    pub(crate) tamper_puts: AtomicBool,
    /// Flip a bit of what is read.
    pub(crate) tamper_reads: AtomicBool,
    /// Writes (puts and parts) that still succeed; negative: all.
    pub(crate) writes_left: AtomicI64,
    /// Fail reads and writes of keys that contain this.
    pub(crate) bad_key: Mutex<Option<String>>,
    /// With this kind, when it is not an i/o error.
    pub(crate) bad_kind: Mutex<Option<ErrorKind>>,
    /// Claim that the store checks what is written.
    pub(crate) claims_check: AtomicBool,
    /// Hold every write until permits are added.
    pub(crate) hold: Mutex<Option<Arc<Semaphore>>>,
    pub(crate) heads: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) read_bytes: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) parts: AtomicU64,
    pub(crate) writes_in_flight: AtomicU64,
    pub(crate) writes_in_flight_peak: AtomicU64,
    /// Uploads that outlive the process that began them.
    pub(crate) uploads: Mutex<HashMap<u64, Arc<Kept>>>,
    pub(crate) aborts: AtomicU64,
    /// Uploads that were begun before this one are forgotten: resuming them succeeds, as nothing is asked, and their parts are not found.
    pub(crate) forgotten_below: AtomicU64,
    /// Like a bucket: its listing tells no checksums.
    pub(crate) is_bucket: AtomicBool,
    /// Which store this claims to be.
    pub(crate) identity: Mutex<Option<String>>,
}

#[derive(Debug)]
pub(crate) struct Kept {
    id: u64,
    inner: Box<dyn Upload>,
}

#[derive(Debug)]
pub(crate) struct Odd {
    inner: Arc<dyn Store>,
    oddity: Arc<Oddity>,
}

impl Odd {
    pub(crate) fn around(inner: Arc<dyn Store>, oddity: Arc<Oddity>) -> Self {
        Self { inner, oddity }
    }
}

pub(crate) fn odd(inner: Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Oddity>) {
    let oddity = Arc::new(Oddity {
        writes_left: AtomicI64::new(-1),
        ..Oddity::default()
    });
    let store = Odd {
        inner,
        oddity: Arc::clone(&oddity),
    };
    (Arc::new(store), oddity)
}

pub(crate) fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::SeqCst)
}

impl Oddity {
    fn check_key(&self, op: &'static str, key: &Key) -> Result<()> {
        match &*self.bad_key.lock().unwrap() {
            Some(bad) if key.as_str().contains(bad.as_str()) => {
                let kind = self.bad_kind.lock().unwrap().unwrap_or(ErrorKind::Io);
                Err(Error::new(kind, op, "a bad object").at(key))
            }
            _ => Ok(()),
        }
    }

    async fn write(&self) -> Result<()> {
        let now = self.writes_in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.writes_in_flight_peak.fetch_max(now, Ordering::SeqCst);
        let _guard = scopeguard(self);
        let hold = self.hold.lock().unwrap().clone();
        if let Some(hold) = hold {
            hold.acquire().await.unwrap().forget();
        }
        if self.writes_left.load(Ordering::SeqCst) >= 0
            && self.writes_left.fetch_sub(1, Ordering::SeqCst) <= 0
        {
            self.writes_left.store(0, Ordering::SeqCst);
            return Err(Error::new(ErrorKind::Unavailable, "put", "the store went away"));
        }
        Ok(())
    }

    fn tampered(&self, buf: &Buf) -> Buf {
        if buf.is_empty() || !self.tamper_puts.load(Ordering::SeqCst) {
            return buf.clone();
        }
        let mut bytes = buf.to_vec();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        Buf::copy_of(&bytes).unwrap()
    }
}

fn scopeguard(oddity: &Oddity) -> impl Drop + '_ {
    struct Guard<'a>(&'a Oddity);
    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            self.0.writes_in_flight.fetch_sub(1, Ordering::SeqCst);
        }
    }
    Guard(oddity)
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Odd {
    fn location(&self) -> &Location {
        static BUCKET: LazyLock<Location> =
            LazyLock::new(|| Location::parse("s3://bucket", Path::new("/")).unwrap());
        if self.oddity.is_bucket.load(Ordering::SeqCst) {
            return &BUCKET;
        }
        self.inner.location()
    }

    fn identity(&self) -> String {
        let claimed = self.oddity.identity.lock().unwrap().clone();
        claimed.unwrap_or_else(|| self.inner.identity())
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.oddity.heads.fetch_add(1, Ordering::SeqCst);
        self.inner.head(key).await
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.oddity.check_key("read", key)?;
        self.oddity.reads.fetch_add(1, Ordering::SeqCst);
        self.oddity.read_bytes.fetch_add(span.len(), Ordering::SeqCst);
        let mut done = self.inner.read_into(key, span, buf, options).await?;
        if self.oddity.tamper_reads.load(Ordering::SeqCst) {
            done.buf[0] ^= 0x80;
        }
        Ok(done)
    }

    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.inner.read_small(objects, buf, options).await
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        self.oddity.check_key("put", key)?;
        self.oddity.write().await?;
        self.oddity.puts.fetch_add(1, Ordering::SeqCst);
        let whole: Vec<u8> = body.pieces().iter().flat_map(|piece| piece.to_vec()).collect();
        let tampered = self.oddity.tampered(&Buf::copy_of(&whole)?);
        let mut done = self.inner.put(key, Body::from(tampered), options).await?;
        done.crc64nvme = forebay_core::crc64nvme(&whole);
        if self.oddity.claims_check.load(Ordering::SeqCst) {
            done.check = WriteCheck::ByStore;
        }
        Ok(done)
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let inner = self.inner.upload(key, options).await?;
        let mut uploads = self.oddity.uploads.lock().unwrap();
        let id = uploads.len() as u64 + load(&self.oddity.aborts);
        let kept = Arc::new(Kept { id, inner });
        uploads.insert(id, Arc::clone(&kept));
        Ok(Box::new(OddUpload {
            kept,
            oddity: Arc::clone(&self.oddity),
            sent: Mutex::default(),
        }))
    }

    async fn resume_upload(
        &self,
        _: &Key,
        state: serde_json::Value,
        _: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let uploads = self.oddity.uploads.lock().unwrap();
        let kept = state.as_u64().and_then(|id| uploads.get(&id));
        match kept {
            Some(kept) => Ok(Box::new(OddUpload {
                kept: Arc::clone(kept),
                oddity: Arc::clone(&self.oddity),
                sent: Mutex::default(),
            })),
            None => Err(Error::new(ErrorKind::NotFound, "resume", "no such upload")),
        }
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let hides = self.oddity.is_bucket.load(Ordering::SeqCst);
        let rows = self.inner.list(prefix, options).map(move |row| match row {
            Ok(Entry::Object(meta)) if hides => Ok(Entry::Object(ObjectMeta {
                checksum: None,
                ..meta
            })),
            row => row,
        });
        rows.boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.inner.delete(key).await
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        self.inner.open_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        self.inner.abort_upload(upload).await
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
}

#[derive(Debug)]
struct OddUpload {
    kept: Arc<Kept>,
    oddity: Arc<Oddity>,
    sent: Mutex<Vec<u32>>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for OddUpload {
    fn part_bytes(&self) -> u64 {
        self.kept.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        if self.kept.id < load(&self.oddity.forgotten_below) {
            return Err(Error::new(ErrorKind::NotFound, "upload", "no such upload"));
        }
        self.oddity.write().await?;
        self.oddity.parts.fetch_add(1, Ordering::SeqCst);
        self.sent.lock().unwrap().push(index);
        self.kept
            .inner
            .put_part(index, self.oddity.tampered(body.bytes()).into())
            .await
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        Some(self.kept.id.into())
    }

    async fn complete(&self) -> Result<PutDone> {
        self.kept.inner.complete().await
    }

    async fn abort(&self) -> Result<()> {
        self.oddity.aborts.fetch_add(1, Ordering::SeqCst);
        self.oddity.uploads.lock().unwrap().remove(&self.kept.id);
        self.kept.inner.abort().await
    }
}
