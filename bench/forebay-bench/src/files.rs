//! Shards on local disk, one whole shard at a time: plainly through the disk, through the local store, and as hits of the cache.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Result, ensure};
use forebay_core::{Key, Location, PathPolicy, Span};
use forebay_io::{Class, DiskConfig, OpenHow};
use forebay_store::cache::{Cache, CacheConfig, Freshness};
use forebay_store::{Context, ReadOptions, Store, StoreExt as _};

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// Shards and the way to them.
pub(crate) struct Files {
    context: Context,
    folder: String,
    keys: Vec<String>,
    shard_bytes: u64,
    way: Way,
}

enum Way {
    Disk,
    Store(Arc<dyn Store>),
    Cache(Arc<Cache>),
}

impl Files {
    async fn new(job: &Job) -> Result<Self> {
        let config = DiskConfig {
            limits: job.limits(),
            ..DiskConfig::default()
        };
        Ok(Self {
            context: Context::open(config)?.with_state_dir(None),
            folder: job.text("folder")?.to_owned(),
            keys: job.keys()?,
            shard_bytes: job.number("object_bytes")?,
            way: Way::Disk,
        })
    }

    /// Through the disk alone.
    pub(crate) async fn disk(job: &Job) -> Result<Self> {
        Self::new(job).await
    }

    /// Through the store over a directory.
    pub(crate) async fn local(job: &Job) -> Result<Self> {
        let mut files = Self::new(job).await?;
        files.way = Way::Store(files.origin().await?);
        Ok(files)
    }

    /// As hits of a cache over that store, filled here.
    pub(crate) async fn cache(job: &Job) -> Result<Self> {
        let mut files = Self::new(job).await?;
        let bytes_max = 2 * files.shard_bytes * files.keys.len() as u64;
        let mut config = CacheConfig::new(job.text("cache")?, bytes_max);
        config.freshness = Freshness::Immutable;
        let cache = Arc::new(Cache::open(files.origin().await?, config, &files.context).await?);
        files.way = Way::Cache(Arc::clone(&cache));
        files.read_all().await?;
        cache.settle().await;
        Ok(files)
    }

    async fn origin(&self) -> Result<Arc<dyn Store>> {
        let location = Location::parse(&format!("file://{}/", self.folder), Path::new("/"))?;
        Ok(forebay_store::open(&location, &self.context).await?)
    }

    async fn read_all(&self) -> Result<u64> {
        let mut moved = 0;
        for key in &self.keys {
            moved += self.read(key).await?;
        }
        Ok(moved)
    }

    async fn read(&self, key: &str) -> Result<u64> {
        let span = Span::first(self.shard_bytes);
        let store: &dyn Store = match &self.way {
            Way::Disk => {
                let disk = self.context.disk();
                let path = format!("{}/{key}", self.folder);
                let file = disk.open_file(path, OpenHow::READ, PathPolicy::Fastest).await?;
                return Ok(disk.read(&file, span, Class::Data).await?.0.len() as u64);
            }
            Way::Store(store) => &**store,
            Way::Cache(cache) => &**cache,
        };
        let (buf, _) = store
            .read(&Key::parse(key)?, span, &ReadOptions::default(), &self.context)
            .await?;
        Ok(buf.len() as u64)
    }
}

impl Contender for Files {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            let misses = || match &self.way {
                Way::Cache(cache) => cache.stats().misses,
                _ => 0,
            };
            let misses_before = misses();
            let meter = Meter::start();
            let done = meter.done(self.read_all().await?);
            ensure!(misses() == misses_before, "not everything was a hit");
            Ok(done)
        })
    }
}
