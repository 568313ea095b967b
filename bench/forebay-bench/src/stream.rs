//! A shuffled epoch of a data set on local disk, drained: what a training loop would be handed.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;

use anyhow::Result;
use forebay_core::{Location, Seed};
use forebay_data::dataset::{Dataset, OpenOptions, Save};
use forebay_data::loader::{Loader, StreamSpec};
use forebay_data::order::OrderSpec;
use forebay_io::DiskConfig;
use forebay_store::Context;
use serde_json::Value;

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// A data set with its manifest, and how it is streamed.
pub(crate) struct Stream {
    dataset: Dataset,
    spec: StreamSpec,
    round: u64,
}

impl Stream {
    /// Open the data set; its manifest is built and saved where there is none.
    pub(crate) async fn new(job: &Job) -> Result<Self> {
        let config = DiskConfig {
            limits: job.limits(),
            ..DiskConfig::default()
        };
        let context = Context::open(config)?.with_state_dir(None);
        let location = Location::parse(&format!("file://{}/", job.text("folder")?), Path::new("/"))?;
        let store = forebay_store::open(&location, &context).await?;
        let options = OpenOptions {
            save: Save::IfAbsent,
            ..OpenOptions::default()
        };
        let dataset = Dataset::open(store, &context, &options).await?;
        let defaults = OrderSpec::default();
        let number = |name: &str, default: u64| job.number(name).unwrap_or(default);
        let order = OrderSpec {
            shuffle: number("shuffle", 1) != 0,
            batch_size: number("batch_size", 32),
            lanes: number("lanes", u64::from(defaults.lanes)) as u32,
            block_bytes: number("block_bytes", defaults.block_bytes),
            window_bytes: number("window_bytes", defaults.window_bytes),
            ..defaults
        };
        let usual = StreamSpec::default();
        let spec = StreamSpec {
            order,
            memory_bytes_max: number("memory_bytes_max", usual.memory_bytes_max),
            threads: number("threads", usual.threads as u64) as usize,
            ..usual
        };
        Ok(Self {
            dataset,
            spec,
            round: 0,
        })
    }
}

impl Contender for Stream {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            self.round += 1;
            self.spec.order.seed = Seed(self.round);
            let meter = Meter::start();
            let mut loader = Loader::new(self.dataset.clone(), &self.spec)?;
            let mut bytes = 0;
            while let Some(batch) = loader.next_batch().await {
                bytes += batch?.bytes();
            }
            let mut done = meter.done(bytes);
            let report = loader.report();
            done.extra
                .insert("samples".to_owned(), Value::from(report.samples));
            done.extra.insert(
                "first_batch_s".to_owned(),
                Value::from(report.stalls.first_batch_s),
            );
            done.extra
                .insert("stalls".to_owned(), serde_json::to_value(report.stalls)?);
            Ok(done)
        })
    }
}
