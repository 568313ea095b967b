//! A shuffled epoch of a data set, drained: what a training loop would be handed. Opening the data set is part of the epoch.
//!
//! From a local folder, from a store, or from a store through a cache: then either an empty one that the epoch fills (`fill`), or one that was
//! filled by an epoch nobody measured.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Result, ensure};
use forebay_core::Seed;
use forebay_data::dataset::{Dataset, OpenOptions, Place, Save};
use forebay_data::loader::{Loader, StreamSpec};
use forebay_data::order::{Last, OrderSpec};
use forebay_io::DiskConfig;
use forebay_store::cache::{Cache, CacheConfig, Mode};
use forebay_store::{Context, Store};
use serde_json::Value;

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// Room of a cache: more than any data set here has, so that nothing is ever evicted.
const CACHE_BYTES_MAX: u64 = 64 << 30;

/// Where a data set is, and how it is streamed.
pub(crate) struct Stream {
    context: Context,
    store: Arc<dyn Store>,
    cache: Option<Arc<Cache>>,
    /// Directory of caches that are filled, one for every round.
    fill: Option<String>,
    spec: StreamSpec,
    round: u64,
}

impl Stream {
    /// Find the data set, and fill the cache where there is one.
    pub(crate) async fn new(job: &Job) -> Result<Self> {
        let config = DiskConfig {
            limits: job.limits(),
            ..DiskConfig::default()
        };
        let context = Context::open(config)?.with_state_dir(None);
        let place = Place::find(job.text("url")?, Path::new("/"), &context).await?;
        let cache = job.text("cache").ok().map(ToOwned::to_owned);
        let is_filled = job.number("fill").unwrap_or(0) == 0;
        let mut stream = Self {
            context,
            store: place.store,
            cache: None,
            fill: None,
            spec: spec_of(job),
            round: 0,
        };
        match cache {
            Some(root) if is_filled => {
                let cache = stream.cache_at(&root).await?;
                stream.cache = Some(Arc::clone(&cache));
                stream.round().await?;
                cache.settle().await;
            }
            root => stream.fill = root,
        }
        Ok(stream)
    }

    async fn cache_at(&self, root: &str) -> Result<Arc<Cache>> {
        let mut config = CacheConfig::new(root, CACHE_BYTES_MAX);
        config.mode = Mode::Blocks;
        let cache = Cache::open(Arc::clone(&self.store), config, &self.context).await?;
        Ok(Arc::new(cache))
    }

    async fn epoch(&mut self, source: Arc<dyn Store>) -> Result<Done> {
        self.spec.order.seed = Seed(self.round);
        let meter = Meter::start();
        let options = OpenOptions {
            // Only the first round of all has to read everything for that.
            save: Save::IfAbsent,
            ..OpenOptions::default()
        };
        let dataset = Dataset::open(source, &self.context, &options).await?;
        let mut loader = Loader::new(dataset, &self.spec)?;
        let mut bytes = 0;
        let mut first_batch_s = None;
        while let Some(batch) = loader.next_batch().await {
            bytes += batch?.bytes();
            first_batch_s.get_or_insert_with(|| meter.elapsed_s());
        }
        let mut done = meter.done(bytes);
        let report = loader.report();
        let extra = [
            ("samples", Value::from(report.samples)),
            ("first_batch_s", Value::from(first_batch_s)),
            ("stalls", serde_json::to_value(report.stalls)?),
        ];
        done.extra
            .extend(extra.map(|(name, value)| (name.to_owned(), value)));
        Ok(done)
    }
}

fn spec_of(job: &Job) -> StreamSpec {
    let defaults = OrderSpec::default();
    let number = |name: &str, default: u64| job.number(name).unwrap_or(default);
    let order = OrderSpec {
        shuffle: number("shuffle", 1) != 0,
        batch_size: number("batch_size", 32),
        lanes: number("lanes", u64::from(defaults.lanes)) as u32,
        block_bytes: number("block_bytes", defaults.block_bytes),
        window_bytes: number("window_bytes", defaults.window_bytes),
        // Every sample is counted by the harness.
        last: Last::Short,
        ..defaults
    };
    let usual = StreamSpec::default();
    StreamSpec {
        order,
        memory_bytes_max: number("memory_bytes_max", usual.memory_bytes_max),
        threads: number("threads", usual.threads as u64) as usize,
        ..usual
    }
}

impl Contender for Stream {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            self.round += 1;
            if let Some(root) = &self.fill {
                let root = format!("{root}/{}", self.round);
                let cache = self.cache_at(&root).await?;
                let done = self.epoch(Arc::clone(&cache) as Arc<dyn Store>).await;
                cache.settle().await;
                drop(cache);
                std::fs::remove_dir_all(&root)?;
                return done;
            }
            let Some(cache) = self.cache.clone() else {
                return self.epoch(Arc::clone(&self.store)).await;
            };
            let misses = cache.stats().misses;
            let done = self.epoch(Arc::clone(&cache) as Arc<dyn Store>).await;
            // The round that fills it is the first.
            ensure!(
                self.round == 1 || cache.stats().misses == misses,
                "not everything was a hit"
            );
            done
        })
    }
}
