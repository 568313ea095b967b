//! The part of the demo that streams: a data set of tars is made, indexed, and streamed in shuffled order, twice: the first time memory is touched that the
//! second one finds.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Seed};
use forebay_data::dataset::{OpenOptions, Progress, Save};
use forebay_data::format::wds::WdsWriter;
use forebay_data::format::{SampleRef, ShardWriter};
use forebay_data::loader::{Loader, StreamSpec};
use forebay_data::order::OrderSpec;
use forebay_data::{Dataset, Field, Kind};
use forebay_store::{Context, PutOptions, Store, StoreExt};

use crate::bench::meter::{Meter, Sample};
use crate::progress::Bar;

/// Bytes of a sample: an image as usual data sets have them.
const SAMPLE_BYTES: usize = 100_000;

/// Samples of a shard, so that it has some 64 MiB: one at a time is made in memory.
const SHARD_SAMPLES: u64 = 640;

/// Samples of a batch.
const BATCH_SIZE: u64 = 256;

/// What the steps took.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) written: Sample,
    pub(super) indexed: Sample,
    pub(super) first: Sample,
    pub(super) next: Sample,
    pub(super) ledger: Ledger,
}

/// Make a data set of about `size` bytes in `store`, index it and stream it twice.
pub(super) async fn run(store: &Arc<dyn Store>, size: u64, context: &Context, bar: &Bar) -> Result<Steps> {
    let samples = (size / SAMPLE_BYTES as u64).max(BATCH_SIZE);
    bar.stage("making tars", samples * SAMPLE_BYTES as u64);
    let (written, mut ledger) = write(store, samples, bar).await?;
    bar.stage("indexing", written.bytes);
    let meter = Meter::start();
    let options = OpenOptions {
        save: Save::Replace,
        progress: Arc::new(IndexBar(bar.clone())),
        ..OpenOptions::default()
    };
    let dataset = Dataset::open(Arc::clone(store), context, &options).await?;
    let indexed = meter.stop(written.bytes);
    ledger.merge(dataset.ledger());
    let (first, account) = stream(store, samples, context, bar).await?;
    ledger.merge(&account);
    let (next, account) = stream(store, samples, context, bar).await?;
    ledger.merge(&account);
    Ok(Steps {
        written,
        indexed,
        first,
        next,
        ledger,
    })
}

/// An epoch as a run of its own has it: with a manifest that is there, what is streamed can be compared with what was indexed.
async fn stream(
    store: &Arc<dyn Store>,
    samples: u64,
    context: &Context,
    bar: &Bar,
) -> Result<(Sample, Ledger)> {
    bar.stage("streaming", samples * SAMPLE_BYTES as u64);
    let meter = Meter::start();
    let dataset = Dataset::open(Arc::clone(store), context, &OpenOptions::default()).await?;
    let mut loader = Loader::new(dataset, &spec())?;
    let mut seen = 0;
    while let Some(batch) = loader.next_batch().await {
        let batch = batch?;
        seen += batch.len() as u64;
        bar.add(batch.bytes());
    }
    let report = loader.report();
    let streamed = meter.stop(report.bytes);
    if seen != samples {
        let message = format!("{seen} of {samples} samples came out of the stream");
        return Err(Error::new(ErrorKind::Corrupt, "demo", message).at(store.location()));
    }
    Ok((streamed, report.ledger))
}

fn spec() -> StreamSpec {
    StreamSpec {
        order: OrderSpec {
            seed: Seed(7),
            shuffle: true,
            batch_size: BATCH_SIZE,
            last: forebay_data::order::Last::Short,
            ..OrderSpec::default()
        },
        ..StreamSpec::default()
    }
}

/// Write the shards one after the other; each of them keeps the disk busy by itself.
async fn write(store: &Arc<dyn Store>, samples: u64, bar: &Bar) -> Result<(Sample, Ledger)> {
    let fields = [Field::new("bin", Kind::Bytes), Field::new("cls", Kind::Decimal)];
    let mut content = vec![0; 2 * SAMPLE_BYTES];
    Seed(4).rng().fill(&mut content);
    let meter = Meter::start();
    let (mut bytes, mut ledger) = (0, Ledger::default());
    for shard in 0..samples.div_ceil(SHARD_SAMPLES) {
        let mut writer = WdsWriter::default();
        for number in shard * SHARD_SAMPLES..samples.min((shard + 1) * SHARD_SAMPLES) {
            // Every sample begins at another place of the same noise.
            let start = (number as usize * 61) % SAMPLE_BYTES;
            let value = content.get(start..start + SAMPLE_BYTES).unwrap_or_default();
            let label = (number % 1000).to_string();
            writer.add(SampleRef {
                key: &format!("{number:08}"),
                fields: &[(&fields[0], value), (&fields[1], label.as_bytes())],
            })?;
            bar.add(SAMPLE_BYTES as u64);
        }
        let tar = Box::new(writer).finish()?;
        let key = Key::parse(&format!("train-{shard:06}.tar"))?;
        let done = store.put_bytes(&key, &tar, &PutOptions::default()).await?;
        ledger.merge(&done.ledger);
        bytes += tar.len() as u64;
    }
    Ok((meter.stop(bytes), ledger))
}

/// How far making the index is.
#[derive(Debug)]
struct IndexBar(Bar);

impl Progress for IndexBar {
    fn moved(&self, bytes: u64) {
        self.0.add(bytes);
    }
}
