//! An origin that counts what it is asked, and the surroundings the tests share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Ledger, Limits, Location, PathPolicy, Result, Seed, Span};
use forebay_io::{AlignedBuf, Buf, Disk, DiskConfig, OpenHow, Pages, Purpose, RangeLock};
use forebay_store::cache::{Cache, CacheConfig, Mode};
use tokio::sync::Semaphore;

use forebay_store::{
    Body, Capabilities, Context, ListOptions, Listing, MemoryStore, ObjectMeta, PutDone, PutOptions,
    ReadDone, ReadOptions, Store, Upload,
};

/// Small blocks keep the tests fast; still several of them per object, and direct I/O.
pub(crate) const BLOCK: u64 = 64 << 10;

/// Memory that counts its reads, can be slow, can fail, and can keep its versions to itself.
#[derive(Debug)]
pub(crate) struct Origin {
    inner: MemoryStore,
    location: Location,
    reads: Mutex<BTreeMap<(String, Span), u64>>,
    heads: AtomicU64,
    pub(crate) pause: Duration,
    pub(crate) versions: bool,
    pub(crate) down: AtomicBool,
    /// Reads count as verified.
    pub(crate) verifies: AtomicBool,
    /// Which store this claims to be.
    pub(crate) identity: Option<String>,
    /// Reads that do not begin at 0 wait for permits.
    pub(crate) hold: Option<Semaphore>,
    /// Writes are done at once, and then never return.
    pub(crate) mute: AtomicBool,
}

impl Origin {
    pub(crate) fn new() -> Self {
        Self {
            inner: MemoryStore::new(),
            location: Location::parse("s3://origin", Path::new("/")).unwrap(),
            reads: Mutex::default(),
            heads: AtomicU64::new(0),
            pause: Duration::ZERO,
            versions: true,
            down: AtomicBool::new(false),
            verifies: AtomicBool::new(false),
            identity: None,
            hold: None,
            mute: AtomicBool::new(false),
        }
    }

    /// With objects of these sizes, named `0`, `1`, ...
    pub(crate) async fn with(sizes: &[usize]) -> Arc<Self> {
        let origin = Arc::new(Self::new());
        origin.fill(sizes).await;
        origin
    }

    pub(crate) async fn fill(&self, sizes: &[usize]) {
        for (index, size) in sizes.iter().enumerate() {
            self.write(&index.to_string(), &content(index as u64, *size))
                .await;
        }
    }

    /// Behind the back of any cache.
    pub(crate) async fn write(&self, name: &str, bytes: &[u8]) {
        let body = Buf::copy_of(bytes).unwrap().into();
        self.inner
            .put(&key(name), body, &PutOptions::default())
            .await
            .unwrap();
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.lock().unwrap().values().sum()
    }

    /// Most times any one range was read.
    pub(crate) fn reads_max(&self) -> u64 {
        self.reads.lock().unwrap().values().copied().max().unwrap_or(0)
    }

    pub(crate) fn heads(&self) -> u64 {
        self.heads.load(Ordering::SeqCst)
    }

    async fn reply(&self) {
        if self.mute.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    fn check_up(&self) -> Result<()> {
        if self.down.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "read", "the origin is down"));
        }
        Ok(())
    }
}

#[async_trait]
impl Store for Origin {
    fn location(&self) -> &Location {
        &self.location
    }

    fn identity(&self) -> String {
        self.identity.clone().unwrap_or_else(|| self.location.to_string())
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.heads.fetch_add(1, Ordering::SeqCst);
        self.check_up()?;
        let mut meta = self.inner.head(key).await?;
        if !self.versions {
            meta.version = None;
        }
        Ok(meta)
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        *self
            .reads
            .lock()
            .unwrap()
            .entry((key.to_string(), span))
            .or_default() += 1;
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        if let Some(hold) = self.hold.as_ref().filter(|_| span.start() > 0) {
            hold.acquire().await.unwrap().forget();
        }
        self.check_up()?;
        let mut done = self.inner.read_into(key, span, buf, options).await?;
        if self.verifies.load(Ordering::SeqCst) {
            done.ledger.verified_bytes = span.len();
        }
        Ok(done)
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        let done = self.inner.put(key, body, options).await;
        self.reply().await;
        done
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.inner.upload(key, options).await
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        self.inner.list(prefix, options)
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let done = self.inner.delete(key).await;
        self.reply().await;
        done
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        self.inner.capabilities().await
    }
}

/// Bytes that differ everywhere and between objects.
pub(crate) fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    Seed(seed).derive(size as u64).rng().fill(&mut bytes);
    bytes
}

pub(crate) fn key(name: &str) -> Key {
    Key::parse(name).unwrap()
}

pub(crate) fn limits() -> Limits {
    Limits {
        buffer_bytes_max: 32 << 20,
        ..Limits::default()
    }
}

pub(crate) fn context() -> Context {
    let config = DiskConfig {
        limits: limits(),
        ..DiskConfig::default()
    };
    Context::new(Disk::open(config).unwrap()).with_state_dir(None)
}

/// A megabyte of small blocks below `dir`, filled as they are asked for.
pub(crate) fn config(dir: &Path) -> CacheConfig {
    CacheConfig {
        block_bytes: BLOCK,
        mode: Mode::Blocks,
        ..CacheConfig::new(dir.join("cache"), 64 << 20)
    }
}

pub(crate) async fn open(origin: &Arc<Origin>, config: CacheConfig) -> Cache {
    open_in(origin, config, &context()).await
}

pub(crate) async fn open_in(origin: &Arc<Origin>, config: CacheConfig, context: &Context) -> Cache {
    Cache::open(Arc::clone(origin) as Arc<dyn Store>, config, context)
        .await
        .unwrap()
}

pub(crate) async fn try_read(
    store: &dyn Store,
    name: &str,
    span: Span,
    options: &ReadOptions,
) -> Result<ReadDone> {
    let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small).unwrap();
    store.read_into(&key(name), span, buf, options).await
}

/// Read and check all of an object that [`Origin::with`] made.
pub(crate) async fn read_whole(store: &dyn Store, index: u64, size: usize) -> Ledger {
    read_part(store, index, size, Span::first(size as u64)).await
}

/// Read and check a part of an object that [`Origin::with`] made.
pub(crate) async fn read_part(store: &dyn Store, index: u64, size: usize, span: Span) -> Ledger {
    let done = try_read(store, &index.to_string(), span, &ReadOptions::default())
        .await
        .unwrap();
    assert_eq!(done.ledger.bytes(), span.len());
    assert!(
        done.buf[..span.len() as usize] == content(index, size)[span.relative_to(0)],
        "wrong bytes in {span} of object {index}"
    );
    done.ledger
}

pub(crate) fn span(start: u64, end: u64) -> Span {
    Span::new(start, end).unwrap()
}

/// Files of the cache below `dir`, with what they take on the device.
pub(crate) fn files(dir: &Path, suffix: &str) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for sub in std::fs::read_dir(dir.join("cache")).unwrap() {
        let Ok(inside) = std::fs::read_dir(sub.unwrap().path()) else {
            continue;
        };
        let paths = inside.map(|file| file.unwrap().path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|found| found == suffix)));
    }
    found.sort();
    found
}

/// Bytes all entries below `dir` take on the device.
pub(crate) fn stored_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let paths = files(dir, "data").into_iter().chain(files(dir, "index"));
    paths
        .filter_map(|path| std::fs::metadata(path).ok())
        .map(|meta| meta.blocks() * 512)
        .sum()
}

/// Bytes all entries take, counted while nobody can make or remove any: with the marker's lock held, as another process would.
pub(crate) async fn stored_bytes_locked(dir: &Path, context: &Context) -> u64 {
    let how = OpenHow {
        purpose: Purpose::Update,
        ..OpenHow::READ
    };
    let marker = dir.join("cache/forebay-cache");
    let opened = context.disk().open_file(marker, how, PathPolicy::Fastest).await;
    let file = opened.unwrap();
    loop {
        if let Some(_held) = RangeLock::try_exclusive(&file, Span::first(1)).unwrap() {
            return stored_bytes(dir);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
