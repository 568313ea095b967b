//! The disk, through [`Disk`] with Forebay's default limits: what fio does, in the way Forebay does it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use forebay_core::{DataPath, PathPolicy, Seed, Span};
use forebay_io::{Buf, Class, Disk, DiskConfig, NameOp, OpenHow};
use futures::{StreamExt as _, TryStreamExt as _};

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// One sequential request, cut into disk requests of 4 MiB below.
const SPAN_BYTES: u64 = 8 << 20;

/// Sequential requests in flight: as many bytes as fio has with 1 MiB and a depth of 16. More would not be faster on a disk that is near, and
/// would leave the processor's caches.
const SPANS_IN_FLIGHT: usize = 2;

/// One random read.
const RANDOM_BYTES: u64 = 128 << 10;

/// Random reads in flight.
const RANDOM_IN_FLIGHT: usize = 32;

/// Nothing but the direct path counts here; anything else is an error instead of a wrong row.
const DIRECT: PathPolicy = PathPolicy::Require(DataPath::DirectUring);

fn open(job: &Job) -> Result<Disk> {
    let limits = job.limits();
    Ok(Disk::open(DiskConfig {
        limits,
        ..DiskConfig::default()
    })?)
}

/// A file from the front to the end.
pub(crate) struct Read {
    disk: Disk,
    path: String,
}

impl Read {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        Ok(Self {
            disk: open(job)?,
            path: job.text("path")?.to_owned(),
        })
    }
}

impl Contender for Read {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            let meter = Meter::start();
            let file = &self.disk.open_file(&self.path, OpenHow::READ, DIRECT).await?;
            let disk = &self.disk;
            let bytes = futures::stream::iter(Span::first(file.size()).pieces(SPAN_BYTES))
                .map(|span| disk.read(file, span, Class::Data))
                .buffered(SPANS_IN_FLIGHT)
                .try_fold(0, |sum, (buf, _)| async move { Ok(sum + buf.len() as u64) })
                .await?;
            Ok(meter.done(bytes))
        })
    }
}

/// A new file, durable at the end.
pub(crate) struct Write {
    disk: Disk,
    path: String,
    bytes: u64,
    content: Buf,
}

impl Write {
    pub(crate) async fn new(job: &Job) -> Result<Self> {
        let disk = open(job)?;
        let mut content = disk.pool().lease(SPAN_BYTES as usize).await??;
        let mut rng = Seed(1).rng();
        for word in content.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.below(u64::MAX).to_le_bytes());
        }
        let content = content.freeze();
        Ok(Self {
            disk,
            path: job.text("path")?.to_owned(),
            bytes: job.number("bytes")?,
            content,
        })
    }
}

impl Contender for Write {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            let _ = std::fs::remove_file(&self.path);
            let meter = Meter::start();
            let how = OpenHow::CREATE.with_size_hint(self.bytes);
            let file = &self.disk.open_file(&self.path, how, DIRECT).await?;
            let reserve = NameOp::Reserve {
                file: Arc::clone(file),
                len: self.bytes,
            };
            self.disk.name(reserve).await?;
            let (disk, content) = (&self.disk, &self.content);
            let bytes = futures::stream::iter(Span::first(self.bytes).pieces(SPAN_BYTES))
                .map(|span| async move {
                    let piece = content.slice(..span.len() as usize);
                    disk.write_at(file, span.start(), piece, Class::Data)
                        .await
                        .map(|_| span.len())
                })
                .buffered(SPANS_IN_FLIGHT)
                .try_fold(0, |sum, len| async move { Ok(sum + len) })
                .await?;
            disk.sync(file).await?;
            Ok(meter.done(bytes))
        })
    }
}

/// Aligned places of a file in random order, other ones in every round.
pub(crate) struct Random {
    disk: Disk,
    path: String,
    count: u64,
    seed: u64,
}

impl Random {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        Ok(Self {
            disk: open(job)?,
            path: job.text("path")?.to_owned(),
            count: job.number("count")?,
            seed: 0,
        })
    }
}

impl Contender for Random {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            self.seed += 1;
            let meter = Meter::start();
            let disk = &self.disk;
            let file = &disk.open_file(&self.path, OpenHow::READ, DIRECT).await?;
            let places = file.size() / RANDOM_BYTES;
            let mut rng = Seed(self.seed).rng();
            let offsets = (0..self.count).map(|_| rng.below(places) * RANDOM_BYTES);
            let bytes = futures::stream::iter(offsets)
                .map(|offset| async move {
                    let span = Span::at(offset, RANDOM_BYTES)?;
                    disk.read(file, span, Class::Data).await
                })
                .buffer_unordered(RANDOM_IN_FLIGHT)
                .try_fold(0, |sum, (buf, _)| async move { Ok(sum + buf.len() as u64) })
                .await?;
            Ok(meter.done(bytes))
        })
    }
}
