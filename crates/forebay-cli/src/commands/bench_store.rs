//! `forebay bench store`: what a store gives through Forebay.
//!
//! Large objects are uploaded in parts and read in parallel ranges, small ones put, listed, read and deleted many at a time, each in rounds of
//! which the median counts. Everything happens below a prefix of our own, which is emptied afterwards, also after an error or Ctrl-C.

use std::sync::Arc;

use forebay_core::{ByteSize, Clock, Error, ErrorKind, Key, Ledger, Result, Seed, Span, SystemClock};
use forebay_io::{Buf, memory_peak_bytes};
use forebay_store::{Body, Context, Entry, ListOptions, PutOptions, ReadOptions, Store, StoreExt, open};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::BenchStoreArgs;
use crate::bench::meter::{Median, Meter, Sample};
use crate::printer::Printed;
use crate::progress::Bar;
use crate::table::Table;
use crate::target::Target;

/// Size of a small object.
const SMALL_BYTES: u64 = 4 << 10;

/// Large objects on their way at once; their parts share the bound of requests.
const LARGE_IN_FLIGHT: usize = 4;

/// `--json`.
#[derive(Debug, Serialize)]
struct Report {
    url: String,
    size: u64,
    object_size: u64,
    small_objects: u32,
    runs: u32,
    tests: Vec<TestReport>,
    memory_peak_bytes: u64,
    buffer_peak_bytes: u64,
    ledger: Ledger,
}

/// One test in `--json`.
#[derive(Debug, Serialize)]
struct TestReport {
    name: &'static str,
    #[serde(flatten)]
    median: Median,
    /// Objects per second, median.
    objects_per_s: f64,
}

/// A store with our prefix, and what was measured on it.
struct Bench<'a> {
    store: Arc<dyn Store>,
    context: &'a Context,
    args: &'a BenchStoreArgs,
    prefix: Key,
    /// What parts are made of; random, so that nothing on the way can compress it.
    content: Buf,
    ledger: Ledger,
    samples: [(&'static str, u64, Vec<Sample>); 4],
    bar: Bar,
}

/// Measure.
pub(super) async fn run(args: &BenchStoreArgs, app: &App) -> Printed<Exit> {
    let target = Target::parse(&args.url)?;
    let context = app.context()?;
    let store = open(&target.location, &context).await?;
    let mut bench = Bench::new(Arc::clone(&store), args, &context, app).await?;
    let measured = app.unless_cancelled(bench.rounds()).await;
    bench.bar.finish();
    let cleaned = bench.clean_up().await;
    measured?;
    cleaned?;
    let report = Report {
        url: target.location.to_string(),
        size: args.size.0,
        object_size: args.object_size.0,
        small_objects: args.small_objects,
        runs: args.runs,
        tests: bench.reports(),
        memory_peak_bytes: memory_peak_bytes(),
        buffer_peak_bytes: context.pool().stats().leased_bytes_peak,
        ledger: bench.ledger,
    };
    print(&report, app)?;
    Ok(Exit::Success)
}

impl<'a> Bench<'a> {
    async fn new(
        store: Arc<dyn Store>,
        args: &'a BenchStoreArgs,
        context: &'a Context,
        app: &App,
    ) -> Result<Self> {
        if args.object_size.0 == 0 || args.size.0 < args.object_size.0 {
            let message = "--size must be at least --object-size, and neither may be 0";
            return Err(Error::new(ErrorKind::InvalidInput, "bench", message));
        }
        let part = context.limits().part_bytes.max(SMALL_BYTES);
        let mut content = context.pool().lease(part as usize).await??;
        Seed(3).rng().fill(&mut content);
        let large = args.size.0 / args.object_size.0;
        let round = 2 * large * args.object_size.0 + 2 * u64::from(args.small_objects) * SMALL_BYTES;
        let name = format!("forebay-bench-{:016x}", Seed::fresh().0);
        Ok(Self {
            store,
            context,
            args,
            prefix: Key::parse(&name)?,
            content: content.freeze(),
            ledger: Ledger::default(),
            samples: [
                ("put in parts", large, Vec::new()),
                ("get in ranges", large, Vec::new()),
                ("put 4 KiB", args.small_objects.into(), Vec::new()),
                ("get 4 KiB", args.small_objects.into(), Vec::new()),
            ],
            bar: Bar::new(app.printer(), "measuring", Some(round * u64::from(args.runs))),
        })
    }

    async fn rounds(&mut self) -> Result<()> {
        for _ in 0..self.args.runs {
            for test in 0..self.samples.len() {
                let (_, count, _) = self.samples[test];
                let size = if test < 2 {
                    self.args.object_size.0
                } else {
                    SMALL_BYTES
                };
                let meter = Meter::start();
                let ledger = match test {
                    0 => self.put_large(count).await,
                    1 => self.get_large(count).await,
                    2 => self.put_small(count).await,
                    _ => self.get_small(count).await,
                }?;
                self.samples[test].2.push(meter.stop(count * size));
                self.ledger.merge(&ledger);
            }
        }
        Ok(())
    }

    fn key(&self, kind: &str, index: u64) -> Result<Key> {
        Ok(self.prefix.join(&Key::parse(&format!("{kind}/{index:08}"))?))
    }

    async fn put_large(&self, count: u64) -> Result<Ledger> {
        let size = self.args.object_size.0;
        let puts = futures::stream::iter(0..count).map(|index| async move {
            let options = PutOptions {
                size_hint: Some(size),
                ..PutOptions::default()
            };
            let key = self.key("large", index)?;
            let done = self
                .store
                .upload_all(
                    &key,
                    &options,
                    self.context,
                    Box::new(move |part| self.parts(size, part)),
                )
                .await?;
            Ok(done.ledger)
        });
        total(puts.buffer_unordered(LARGE_IN_FLIGHT)).await
    }

    /// Parts of an object, all made of the same bytes.
    fn parts(&self, size: u64, part: u64) -> futures::stream::BoxStream<'_, Result<Buf>> {
        let parts = Span::first(size).pieces(part).map(move |span| {
            self.bar.add(span.len());
            let len = span.len() as usize;
            if len <= self.content.len() {
                Ok(self.content.slice(..len))
            } else {
                // The store wants larger parts than the setting; make one.
                let mut buf = forebay_io::AlignedBuf::alloc(len, forebay_io::Pages::Small)?;
                Seed(span.start()).rng().fill(&mut buf);
                Ok(buf.freeze())
            }
        });
        futures::stream::iter(parts).boxed()
    }

    async fn get_large(&self, count: u64) -> Result<Ledger> {
        let size = self.args.object_size.0;
        let step = size.min(self.context.limits().part_bytes).max(1);
        let in_flight = self.context.limits().store_requests_max.max(1) as usize;
        let mut ranges = Vec::new();
        for index in 0..count {
            let key = Arc::new(self.key("large", index)?);
            let version = self.store.head(&key).await?.version;
            let options = Arc::new(ReadOptions {
                version,
                ..ReadOptions::default()
            });
            let spans = Span::first(size).pieces(step);
            ranges.extend(spans.map(|span| (Arc::clone(&key), Arc::clone(&options), span)));
        }
        let reads =
            futures::stream::iter(ranges).map(|(key, options, span)| self.spawn_read(key, options, span));
        total(reads.buffer_unordered(in_flight)).await
    }

    /// As a task of its own, so that all cores take part.
    fn spawn_read(
        &self,
        key: Arc<Key>,
        options: Arc<ReadOptions>,
        span: Span,
    ) -> impl Future<Output = Result<Ledger>> + use<> {
        let (store, context, bar) = (Arc::clone(&self.store), self.context.clone(), self.bar.clone());
        let task = tokio::spawn(async move {
            let buf = context.pool().lease(span.len() as usize).await??;
            let done = store.read_into(&key, span, buf, &options).await?;
            bar.add(span.len());
            Ok(done.ledger)
        });
        async move {
            task.await.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Internal, "bench", "a reading task ended").with_source(error))
            })
        }
    }

    async fn put_small(&self, count: u64) -> Result<Ledger> {
        let in_flight = self.context.limits().store_requests_max.max(1) as usize;
        let puts = futures::stream::iter(0..count).map(|index| async move {
            let body = Body::from(self.content.slice(..SMALL_BYTES as usize));
            let done = self
                .store
                .put(&self.key("small", index)?, body, &PutOptions::default())
                .await?;
            self.bar.add(SMALL_BYTES);
            Ok(done.ledger)
        });
        total(puts.buffer_unordered(in_flight)).await
    }

    /// Listed and read: what an unknown data set costs.
    async fn get_small(&self, count: u64) -> Result<Ledger> {
        let in_flight = self.context.limits().store_requests_max.max(1) as usize;
        let small = self.prefix.join(&Key::parse("small")?);
        let reads = self
            .store
            .list(&small, ListOptions { recursive: true })
            .map(|row| async move {
                let Entry::Object(meta) = row? else {
                    return Ok(Ledger::default());
                };
                let options = Arc::new(ReadOptions {
                    version: meta.version,
                    ..ReadOptions::default()
                });
                self.spawn_read(Arc::new(meta.key), options, Span::first(meta.size))
                    .await
            });
        let ledger = total(reads.buffer_unordered(in_flight)).await?;
        if ledger.bytes() < count * SMALL_BYTES {
            let message = format!("{count} objects were put, but the listing has fewer");
            return Err(
                Error::new(ErrorKind::Corrupt, "bench", message).at(self.store.location().join(&small))
            );
        }
        Ok(ledger)
    }

    /// Remove everything below our prefix.
    async fn clean_up(&self) -> Result<()> {
        let in_flight = self.context.limits().store_requests_max.max(1) as usize;
        let rows = self.store.list(&self.prefix, ListOptions { recursive: true });
        rows.map(|row| async move {
            match row? {
                Entry::Object(meta) => self.store.delete(&meta.key).await,
                Entry::Prefix(_) => Ok(()),
            }
        })
        .buffer_unordered(in_flight)
        .try_for_each(|()| async { Ok(()) })
        .await?;
        if let Some(path) = self.store.location().join(&self.prefix).to_path() {
            // Only empty directories are left; a fault here is none of the measurement's.
            drop(std::fs::remove_dir_all(path));
        }
        Ok(())
    }

    fn reports(&self) -> Vec<TestReport> {
        let reports = self.samples.iter().filter_map(|(name, count, samples)| {
            let median = Median::of(samples)?;
            let bytes = samples.first()?.bytes as f64;
            Some(TestReport {
                name,
                median,
                objects_per_s: median.bytes_per_s / bytes * *count as f64,
            })
        });
        reports.collect()
    }
}

async fn total(mut ledgers: impl futures::Stream<Item = Result<Ledger>> + Unpin) -> Result<Ledger> {
    let mut total = Ledger::default();
    while let Some(ledger) = ledgers.try_next().await? {
        total.merge(&ledger);
    }
    Ok(total)
}

fn print(report: &Report, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    printer.say(format_args!(
        "{}: {} in objects of {}, {} small ones, median of {}, at {}",
        report.url,
        ByteSize(report.size),
        ByteSize(report.object_size),
        report.small_objects,
        report.runs,
        crate::table::utc(SystemClock.unix())
    ));
    let mut table = Table::new(&["test", ">rate", ">slowest", ">fastest", ">objects/s", ">CPU s/GB"]);
    for test in &report.tests {
        table.row([
            test.name.to_owned(),
            test.median.rate().to_string(),
            forebay_core::Rate(test.median.bytes_per_s_min).to_string(),
            forebay_core::Rate(test.median.bytes_per_s_max).to_string(),
            format!("{:.0}", test.objects_per_s),
            format!("{:.3}", test.median.cpu_s_per_gb),
        ]);
    }
    for line in table.lines() {
        printer.data(line)?;
    }
    printer.data(format_args!(
        "memory: {} at most, of it {} buffers",
        ByteSize(report.memory_peak_bytes),
        ByteSize(report.buffer_peak_bytes)
    ))?;
    printer.data("")?;
    for line in report.ledger.to_string().lines() {
        printer.data(line)?;
    }
    Ok(())
}
