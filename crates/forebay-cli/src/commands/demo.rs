//! `forebay demo`: the main job on a local directory, without server, GPU or Python.
//!
//! Data is written through the engine, read back and compared with the checksums made while writing, copied to a second store and verified there;
//! then a data set of tars is made, indexed and streamed in shuffled order, and a state is checkpointed, restored, checkpointed again after a change, and loaded as weights are.
//! What runs use again and again is done twice: the first time touches new memory, which on some machines takes longer than the disk.
//! What plain blocking calls reach is measured in between, by code that shares nothing with the engine, so that each row of the table can be
//! compared with it.

mod checkpoint;
mod streaming;

use std::path::Path;
use std::sync::Arc;

use forebay_core::{
    ByteSize, Crc64Nvme, Error, ErrorKind, Key, Ledger, Location, Rate, Result, Seed, Span, crc64nvme,
};
use forebay_io::{Buf, memory_peak_bytes};
use forebay_store::copy::Copier;
use forebay_store::{Context, PutDone, PutOptions, ReadOptions, Store, StoreExt, open};
use futures::{StreamExt, TryStreamExt};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::DemoArgs;
use crate::bench::meter::{Meter, Sample};
use crate::bench::raw::{self, Order, Shape};
use crate::bench::scratch::Scratch;
use crate::printer::Printed;
use crate::progress::Bar;
use crate::table::Table;
use crate::target::Target;

/// Objects the data is divided into.
const OBJECTS: u64 = 8;

/// Sizes are rounded up to this: a whole number of blocks per object.
const SIZE_STEP: u64 = OBJECTS << 20;

/// Room on the disk, in sizes: two stores, tars of half, two checkpoints of a quarter and what changed, and two files of half for the limit.
const SCRATCH_TIMES: u64 = 5;

/// How the limit is measured: block size and calls in flight, past the knee of every disk measured.
const LIMIT_BLOCK: u64 = 4 << 20;
const LIMIT_DEPTH: u64 = 4;

/// One step, with its cost.
#[derive(Debug, Serialize)]
struct Step {
    name: &'static str,
    bytes: u64,
    seconds: f64,
    bytes_per_s: f64,
    /// What the disk could have done by plain blocking calls, in the same run.
    limit_bytes_per_s: f64,
    share: f64,
    cpu_s_per_gb: f64,
    checked: &'static str,
}

/// `--json`.
#[derive(Debug, Serialize)]
struct Report {
    dir: String,
    size: u64,
    objects: u64,
    steps: Vec<Step>,
    memory_peak_bytes: u64,
    buffer_peak_bytes: u64,
    ledger: Ledger,
}

/// What plain calls reach.
#[derive(Debug, Clone, Copy)]
struct Limit {
    read: Rate,
    write: Rate,
    /// Reading, writing and reading back.
    copy: Rate,
}

/// Run it.
pub(super) async fn run(args: &DemoArgs, app: &App) -> Printed<Exit> {
    let target = Target::parse(&args.dir)?;
    let Some(dir) = target.location.to_path() else {
        let message = "the demo works on a local directory";
        return Err(Error::new(ErrorKind::InvalidInput, "demo", message)
            .at(&target.location)
            .into());
    };
    let size = args.size.0.max(1).next_multiple_of(SIZE_STEP);
    let scratch = Scratch::new(&dir, size.saturating_mul(SCRATCH_TIMES))?;
    let context = app.context()?.with_state_dir(None);
    app.printer().say(format_args!(
        "{} in {OBJECTS} objects, in a folder of its own in {}",
        ByteSize(size),
        dir.display()
    ));
    let bar = Bar::new(app.printer(), "writing", Some(size));
    let demo = Demo {
        size,
        context: &context,
        scratch: &scratch,
        bar: &bar,
        app,
    };
    let result = app.unless_cancelled(demo.steps()).await;
    bar.finish();
    let (steps, ledger) = result?;
    drop(scratch);
    let report = Report {
        dir: dir.display().to_string(),
        size,
        objects: OBJECTS,
        steps,
        memory_peak_bytes: memory_peak_bytes(),
        buffer_peak_bytes: context.pool().stats().leased_bytes_peak,
        ledger,
    };
    print(&report, app)?;
    Ok(Exit::Success)
}

struct Demo<'a> {
    size: u64,
    context: &'a Context,
    scratch: &'a Scratch,
    bar: &'a Bar,
    app: &'a App,
}

impl Demo<'_> {
    async fn steps(&self) -> Result<(Vec<Step>, Ledger)> {
        let first = self.store("first").await?;
        let second = self.store("second").await?;
        let limit_before = self.limit()?;
        self.bar.stage("writing", self.size);
        let (written, wrote, mut ledger) = self.write(&first).await?;
        self.bar.stage("reading", 2 * self.size);
        let (read_first, account) = self.read_back(&first, &written).await?;
        ledger.merge(&account);
        let (read_next, account) = self.read_back(&first, &written).await?;
        ledger.merge(&account);
        self.bar.stage("copying", self.size);
        let (copied, account) = self.copy(&first, &second).await?;
        ledger.merge(&account);
        let third = self.store("third").await?;
        let stream = streaming::run(&third, self.size / 2, self.context, self.bar).await?;
        ledger.merge(&stream.ledger);
        let fourth = self.store("fourth").await?;
        let state = checkpoint::run(&fourth, self.size / 4, self.context, self.bar).await?;
        ledger.merge(&state.ledger);
        // The disk is measured before and after, and given the better of the two.
        let Limit { read, write, copy } = limit_before.better(self.limit()?);
        let (crc64, crc32, xxh3) = (
            "crc64nvme of each object",
            "crc32c of each sample",
            "xxh3 of each chunk",
        );
        let makes_xxh3 = "synced; makes xxh3 of each chunk";
        let steps = vec![
            step("write, durable", wrote, write, "synced"),
            step("read back, first", read_first, read, crc64),
            step("read back, next", read_next, read, crc64),
            step("copy to a second store", copied, copy, "read back, crc64nvme"),
            step("write tars of samples", stream.written, write, "synced"),
            step("index them", stream.indexed, read, "makes sha256 and crc32c"),
            step("stream shuffled, first", stream.first, read, crc32),
            step("stream shuffled, next", stream.next, read, crc32),
            step("checkpoint, first", state.first, write, makes_xxh3),
            step("checkpoint, next", state.next, write, makes_xxh3),
            step("restore", state.restored, read, xxh3),
            step(
                "checkpoint, 5 % changed",
                state.changed,
                write,
                "the rest is referenced",
            ),
            step("load weights", state.loaded, read, "header"),
        ];
        Ok((steps, ledger))
    }

    async fn store(&self, name: &str) -> Result<Arc<dyn Store>> {
        let location = Location::from_path(&self.scratch.path().join(name), Path::new("/"))?;
        open(&location, self.context).await
    }

    /// What plain blocking calls reach on files of half the size, which is enough for a rate.
    fn limit(&self) -> Result<Limit> {
        let (path, copied) = (
            self.scratch.path().join("limit"),
            self.scratch.path().join("limit-copy"),
        );
        let shape = Shape {
            file_bytes: self.size / 2,
            block_bytes: LIMIT_BLOCK,
            depth: LIMIT_DEPTH,
            order: Order::Sequential,
        };
        let stop = self.app.cancel();
        self.bar.stage("plain calls", 3 * shape.file_bytes);
        let limit = tokio::task::block_in_place(|| {
            let write = raw::write(&path, &shape, stop)?;
            self.bar.add(shape.file_bytes);
            let read = raw::read(&path, &shape, stop)?;
            self.bar.add(shape.file_bytes);
            let copy = raw::copy(&path, &copied, &shape, stop)?;
            Ok(Limit {
                read: read.rate(),
                write: write.rate(),
                copy: Rate::of(shape.file_bytes, copy.time + read.time),
            })
        });
        drop(std::fs::remove_file(&path));
        drop(std::fs::remove_file(&copied));
        limit
    }

    fn keys() -> Result<Vec<Key>> {
        (0..OBJECTS)
            .map(|index| Key::parse(&format!("object-{index}.bin")))
            .collect()
    }

    /// Write all objects in parts; what they are made of was made before the clock starts.
    async fn write(&self, store: &Arc<dyn Store>) -> Result<(Vec<PutDone>, Sample, Ledger)> {
        let size = self.size / OBJECTS;
        let mut content = self
            .context
            .pool()
            .lease(self.context.limits().part_bytes as usize)
            .await??;
        Seed(4).rng().fill(&mut content);
        let content = content.freeze();
        let keys = Self::keys()?;
        let meter = Meter::start();
        let mut written = Vec::new();
        let mut ledger = Ledger::default();
        // One after the other: each of them keeps the disk busy by itself.
        for key in &keys {
            let options = PutOptions {
                size_hint: Some(size),
                ..PutOptions::default()
            };
            let parts = |part: u64| self.parts(&content, size, part);
            let done = store
                .upload_all(key, &options, self.context, Box::new(parts))
                .await?;
            ledger.merge(&done.ledger);
            written.push(done);
        }
        Ok((written, meter.stop(self.size), ledger))
    }

    fn parts(&self, content: &Buf, size: u64, part: u64) -> futures::stream::BoxStream<'static, Result<Buf>> {
        let (content, bar) = (content.clone(), self.bar.clone());
        let parts = Span::first(size)
            .pieces(part.min(content.len() as u64))
            .map(move |span| {
                bar.add(span.len());
                Ok(content.slice(..span.len() as usize))
            });
        futures::stream::iter(parts).boxed()
    }

    /// Read every object in ranges side by side, and compare its checksum with the one made while writing.
    async fn read_back(&self, store: &Arc<dyn Store>, written: &[PutDone]) -> Result<(Sample, Ledger)> {
        let size = self.size / OBJECTS;
        let step = self.context.limits().part_bytes;
        let in_flight = self.context.limits().store_requests_max.max(1) as usize;
        let meter = Meter::start();
        let mut ledger = Ledger::default();
        for (key, written) in Self::keys()?.iter().zip(written) {
            let options = ReadOptions {
                version: written.version.clone(),
                ..ReadOptions::default()
            };
            let mut ranges = futures::stream::iter(Span::first(size).pieces(step))
                .map(|span| {
                    let (store, context, key, options) = (
                        Arc::clone(store),
                        self.context.clone(),
                        key.clone(),
                        options.clone(),
                    );
                    let read = tokio::spawn(async move {
                        let buf = context.pool().lease(span.len() as usize).await??;
                        let done = store.read_into(&key, span, buf, &options).await?;
                        Ok((
                            crc64nvme(&done.buf[..span.len() as usize]),
                            span.len(),
                            done.ledger,
                        ))
                    });
                    async move {
                        read.await.unwrap_or_else(|error| {
                            Err(Error::new(ErrorKind::Internal, "demo", "a reading task ended")
                                .with_source(error))
                        })
                    }
                })
                .buffered(in_flight);
            let mut sum = crc64nvme(b"");
            while let Some((crc, len, part)) = ranges.try_next().await? {
                sum = Crc64Nvme::combine(sum, crc, len);
                self.bar.add(len);
                ledger.merge(&part);
            }
            if sum != written.crc64nvme {
                let message = "what was read is not what was written";
                return Err(Error::new(ErrorKind::Corrupt, "demo", message).at(store.location().join(key)));
            }
            ledger.verified_bytes += size;
        }
        Ok((meter.stop(self.size), ledger))
    }

    async fn copy(&self, first: &Arc<dyn Store>, second: &Arc<dyn Store>) -> Result<(Sample, Ledger)> {
        let meter = Meter::start();
        let copier = Copier::new(Arc::clone(first), Arc::clone(second), self.context);
        let report = copier.tree(&Key::ROOT, &Key::ROOT).await?;
        let sample = meter.stop(self.size);
        if let Some(failure) = report.failures.into_iter().next() {
            return Err(failure.error);
        }
        Ok((sample, report.ledger))
    }
}

impl Limit {
    fn better(self, other: Self) -> Self {
        Self {
            read: Rate(self.read.0.max(other.read.0)),
            write: Rate(self.write.0.max(other.write.0)),
            copy: Rate(self.copy.0.max(other.copy.0)),
        }
    }
}

fn step(name: &'static str, sample: Sample, limit: Rate, checked: &'static str) -> Step {
    let rate = sample.rate();
    Step {
        name,
        bytes: sample.bytes,
        seconds: sample.time.as_secs_f64(),
        bytes_per_s: rate.0,
        limit_bytes_per_s: limit.0,
        share: if limit.0 > 0.0 { rate.0 / limit.0 } else { 0.0 },
        cpu_s_per_gb: sample.cpu_s_per_gb(),
        checked,
    }
}

fn print(report: &Report, app: &App) -> Printed {
    let printer = app.printer();
    if printer.is_json() {
        return printer.json(report);
    }
    let mut table = Table::new(&["step", ">rate", ">plain calls", ">ratio", ">CPU s/GB", "checked"]);
    for step in &report.steps {
        table.row([
            step.name.to_owned(),
            Rate(step.bytes_per_s).to_string(),
            Rate(step.limit_bytes_per_s).to_string(),
            format!("{:.2}", step.share),
            format!("{:.3}", step.cpu_s_per_gb),
            step.checked.to_owned(),
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
