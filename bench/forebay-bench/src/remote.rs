//! A remote store: ranged reads into leased buffers, every byte checked, and uploads in parts.

use std::future::Future;
use std::io::Read as _;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use forebay_core::{Crc64Nvme, Key, Location, Seed, Span, crc64nvme};
use forebay_io::{AlignedBuf, Buf, DiskConfig, Pages};
use forebay_store::{Context, PutOptions, ReadOptions, Store, StoreExt as _};
use futures::StreamExt as _;
use tokio::task::JoinSet;

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// The bucket, with limits from the job.
pub(crate) async fn open(job: &Job) -> Result<(Arc<dyn Store>, Context)> {
    let config = DiskConfig {
        limits: job.limits(),
        ..DiskConfig::default()
    };
    let context = Context::open(config)?.with_state_dir(None);
    let bucket = std::env::var("BENCH_BUCKET").context("BENCH_BUCKET is not set")?;
    let location = Location::parse(&format!("s3://{bucket}/"), Path::new("/"))?;
    Ok((forebay_store::open(&location, &context).await?, context))
}

/// How many times the objects that fill the bound are asked for at once.
const OBJECTS_AHEAD: u64 = 2;

/// How objects are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Whole objects by `read_parallel`, several at a time; the store bounds the ranges in flight.
    Objects,
    /// Range by range, as the peers do.
    Ranges,
}

/// One piece to be read, and its checksum from the file it was uploaded from.
struct Piece {
    key: Key,
    span: Span,
    crc64nvme: u64,
}

/// Parallel ranged reads.
pub(crate) struct Get {
    shared: Arc<Shared>,
    tasks: usize,
}

struct Shared {
    store: Arc<dyn Store>,
    context: Context,
    pieces: Vec<Piece>,
    next: AtomicUsize,
}

impl Get {
    pub(crate) async fn new(job: Job, way: Way) -> Result<Self> {
        let (store, context) = open(&job).await?;
        let (object_bytes, range_bytes) = (job.number("object_bytes")?, job.number("range_bytes")?);
        let in_flight = job.number("in_flight")?;
        let (piece_bytes, tasks) = match way {
            Way::Ranges => (range_bytes, in_flight),
            // The store holds the bound on requests, so objects may overlap: while one ends, the next is under way.
            Way::Objects => (
                object_bytes,
                OBJECTS_AHEAD * in_flight / object_bytes.div_ceil(range_bytes),
            ),
        };
        let is_shuffled = job.flag("shuffled")?;
        let head_bytes = if is_shuffled { piece_bytes / 3 } else { piece_bytes };
        let mut pieces = Vec::new();
        for key in job.keys()? {
            let content = std::fs::read(format!("{}/{key}", job.text("expect")?))?;
            // Objects may be longer than said: then they are read in pieces of that size.
            for span in cut(content.len() as u64, head_bytes, piece_bytes) {
                let crc64nvme = crc64nvme(&content[span.relative_to(0)]);
                pieces.push(Piece {
                    key: Key::parse(&key)?,
                    span,
                    crc64nvme,
                });
            }
        }
        if is_shuffled {
            shuffle(&mut pieces);
        }
        let shared = Arc::new(Shared {
            store,
            context,
            pieces,
            next: AtomicUsize::new(0),
        });
        Ok(Self {
            shared,
            tasks: tasks.max(1) as usize,
        })
    }
}

/// Pieces of one size behind the first, wherever that ends: counted from byte 0, all would begin where a store's chunks may.
fn cut(bytes: u64, head_bytes: u64, piece_bytes: u64) -> impl Iterator<Item = Span> {
    let ends = (0..).map(move |number| head_bytes + number * piece_bytes);
    ends.scan(0, move |start, end| {
        let span = Span::new(*start, end.min(bytes)).ok()?;
        *start = end;
        (!span.is_empty()).then_some(span)
    })
}

/// As a shuffled stream asks: in no order.
fn shuffle(pieces: &mut [Piece]) {
    let mut rng = Seed(0).rng();
    for last in (1..pieces.len()).rev() {
        pieces.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

impl Shared {
    /// Take one piece after the other until none is left.
    async fn work(&self) -> Result<u64> {
        let mut moved = 0;
        while let Some(piece) = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let options = ReadOptions::default();
            let (buf, _) = self
                .store
                .read(&piece.key, piece.span, &options, &self.context)
                .await?;
            moved += buf.len() as u64;
            // Hashing is no work for the threads that wait for sockets.
            let crc = tokio::task::spawn_blocking(move || crc64nvme(&buf)).await?;
            ensure!(
                crc == piece.crc64nvme,
                "wrong bytes in {} of {}",
                piece.span,
                piece.key
            );
        }
        Ok(moved)
    }
}

impl Contender for Get {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            self.shared.next.store(0, Ordering::Relaxed);
            let meter = Meter::start();
            let mut tasks = JoinSet::new();
            for _ in 0..self.tasks {
                let shared = Arc::clone(&self.shared);
                tasks.spawn(async move { shared.work().await });
            }
            let mut moved = 0;
            while let Some(done) = tasks.join_next().await {
                moved += done??;
            }
            Ok(meter.done(moved))
        })
    }
}

/// One object in parts, from memory that is there already.
pub(crate) struct Put {
    store: Arc<dyn Store>,
    context: Context,
    key: Key,
    parts: Vec<Buf>,
    bytes: u64,
    crc64nvme: u64,
}

impl Put {
    pub(crate) async fn new(job: Job) -> Result<Self> {
        let (store, context) = open(&job).await?;
        let mut file = std::fs::File::open(job.text("source")?)?;
        let bytes = file.metadata()?.len();
        let mut crc = Crc64Nvme::default();
        let mut parts = Vec::new();
        for span in Span::first(bytes).pieces(job.number("range_bytes")?) {
            let mut part = AlignedBuf::alloc(span.len() as usize, Pages::Small)?;
            file.read_exact(&mut part)?;
            crc.update(&part);
            parts.push(part.freeze());
        }
        let key = Key::parse(job.keys()?.first().context("no key")?)?;
        Ok(Self {
            store,
            context,
            key,
            parts,
            bytes,
            crc64nvme: crc.value(),
        })
    }
}

impl Contender for Put {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async {
            let options = PutOptions {
                size_hint: Some(self.bytes),
                ..PutOptions::default()
            };
            let meter = Meter::start();
            let parts = self.parts.clone();
            let begin = Box::new(move |_| futures::stream::iter(parts.into_iter().map(Ok)).boxed());
            let done = self
                .store
                .upload_all(&self.key, &options, &self.context, begin)
                .await?;
            let measured = meter.done(done.size);
            ensure!(
                done.crc64nvme == self.crc64nvme && done.size == self.bytes,
                "another object was written"
            );
            Ok(measured)
        })
    }
}
