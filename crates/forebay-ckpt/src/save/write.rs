//! Writes a payload: segments of memory one after the other, as an upload of large parts.
//!
//! A part that lies within one segment, at an aligned address, goes out from the caller's memory; any other is gathered into leased memory, and the ledger
//! says so. Whoever writes a part also hashes the chunks that begin in it: their bytes are in the caches then, and are read from memory once for both.

use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf, BufPool, PAGE};
use forebay_store::{PutOptions, Upload};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use super::hash::threads;

use crate::hash::{Digest, IdKind, Place};
use crate::pages::Source;

/// Parts in flight: enough for the fastest disk and for an object store, and 128 MiB of gathered memory at most with parts of 8 MiB.
const PARTS_IN_FLIGHT: usize = 16;

/// What a file consists of, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Segments {
    list: Vec<(u64, Buf)>,
    end: u64,
}

impl Segments {
    /// Memory right behind that of the segment before continues it, so that what was staged in the order of the file goes out ungathered.
    pub(super) fn push(&mut self, buf: Buf) {
        if buf.is_empty() {
            return;
        }
        let start = self.end;
        self.end += buf.len() as u64;
        let alone = match self.list.last_mut() {
            Some((_, last)) => last.unsplit(buf).err(),
            None => Some(buf),
        };
        self.list.extend(alone.map(|buf| (start, buf)));
    }

    /// The segments that a span meets, and which bytes of them.
    fn within(&self, span: Span) -> impl Iterator<Item = Buf> + '_ {
        let first = self
            .list
            .partition_point(|(start, buf)| start + buf.len() as u64 <= span.start());
        let rest = self.list.get(first..).unwrap_or_default();
        rest.iter().map_while(move |(start, buf)| {
            let own = Span::at(*start, buf.len() as u64).ok()?;
            let here = own.intersect(span)?;
            Some(buf.slice(here.relative_to(*start)))
        })
    }

    /// The span as it is in memory, where that can be written as it is.
    fn alone(&self, span: Span) -> Option<Buf> {
        let first = self.within(span).next()?;
        (first.len() as u64 == span.len() && first.is_aligned(PAGE)).then_some(first)
    }

    /// Copy the span into memory of its length.
    fn gather(&self, span: Span, mut memory: AlignedBuf) -> Buf {
        let mut at = 0;
        for piece in self.within(span) {
            if let Some(place) = memory.get_mut(at..at + piece.len()) {
                place.copy_from_slice(&piece);
            }
            at += piece.len();
        }
        memory.freeze().slice(..span.len() as usize)
    }
}

/// A chunk to be hashed.
#[derive(Debug)]
pub(super) struct Chunk {
    /// Its number among all chunks.
    pub(super) number: usize,
    /// Where it begins in the file.
    pub(super) offset: u64,
    pub(super) place: Place,
    pub(super) bytes: Buf,
}

/// A file to be written.
#[derive(Debug)]
pub(super) struct Content {
    pub(super) segments: Segments,
    /// How chunks are hashed, where they are to be.
    pub(super) ids: Option<IdKind>,
    /// In the order of the file.
    pub(super) chunks: Vec<Chunk>,
}

/// What was written.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Hashes by the number of a chunk.
    pub(super) ids: Vec<(usize, Digest)>,
    pub(super) ledger: Ledger,
}

impl Sent {
    fn merge(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.ledger.merge(&other.ledger);
    }
}

impl Content {
    /// Hashes of the chunks that begin in a span.
    fn hash(&self, span: Span) -> Vec<(usize, Digest)> {
        let Some(kind) = &self.ids else { return Vec::new() };
        let before = |offset: u64| self.chunks.partition_point(|chunk| chunk.offset < offset);
        let here = self.chunks.get(before(span.start())..before(span.end()));
        let hash = |chunk: &Chunk| (chunk.number, kind.of(&chunk.place, &chunk.bytes));
        here.unwrap_or_default().iter().map(hash).collect()
    }
}

/// Write a file as one object.
pub(super) async fn write(
    source: &Source,
    key: &Key,
    content: Content,
    options: &PutOptions,
) -> Result<Sent> {
    let (part_bytes, size) = (source.context.limits().part_bytes, content.segments.end);
    if size <= part_bytes {
        let body: Vec<Buf> = content.segments.list.iter().map(|(_, buf)| buf.clone()).collect();
        let put = source.store.put(key, body.into(), options);
        let hash = tokio::task::spawn_blocking(move || content.hash(Span::first(size)));
        let (put, ids) = tokio::join!(put, hash);
        return Ok(Sent {
            ids: landed(ids.map(Ok))?,
            ledger: put?.ledger,
        });
    }
    let options = PutOptions {
        size_hint: Some(size),
        ..options.clone()
    };
    let upload: Arc<dyn Upload> = Arc::from(source.store.upload(key, &options).await?);
    match send(source.context.pool(), &upload, content).await {
        Ok(mut sent) => {
            sent.ledger.merge(&upload.complete().await?.ledger);
            Ok(sent)
        }
        Err(error) => {
            if let Err(error) = upload.abort().await {
                tracing::warn!(%error, "cannot give up an upload");
            }
            Err(error)
        }
    }
}

/// Send all parts off, several at once.
async fn send(pool: &BufPool, upload: &Arc<dyn Upload>, content: Content) -> Result<Sent> {
    // Asked for once: who may run where can change meanwhile.
    let threads = threads();
    let work = Arc::new(Work {
        content,
        pool: pool.clone(),
        upload: Arc::clone(upload),
        turns: Arc::new(Semaphore::new(threads)),
    });
    let mut flight = JoinSet::new();
    let sent = send_each(&mut flight, &work).await;
    // Nobody may write any more when the upload is given up, nor read the caller's memory behind its back.
    flight.shutdown().await;
    let all = work.turns.acquire_many(threads as u32).await;
    drop(all);
    sent
}

async fn send_each(flight: &mut JoinSet<Result<Sent>>, work: &Arc<Work>) -> Result<Sent> {
    let spans = Span::first(work.content.segments.end).pieces(work.upload.part_bytes());
    let mut sent = Sent::default();
    for (index, span) in (0u32..).zip(spans) {
        while flight.len() >= PARTS_IN_FLIGHT
            && let Some(part) = flight.join_next().await
        {
            sent.merge(landed(part)?);
        }
        flight.spawn(Arc::clone(work).send_part(index, span));
    }
    while let Some(part) = flight.join_next().await {
        sent.merge(landed(part)?);
    }
    Ok(sent)
}

/// What came of a part that a task wrote.
pub(super) fn landed<T>(part: Result<Result<T>, JoinError>) -> Result<T> {
    part.map_err(|error| {
        Error::new(ErrorKind::Internal, "save", "writing a part was broken off").with_source(error)
    })?
}

/// What the tasks of one file share.
#[derive(Debug)]
struct Work {
    content: Content,
    pool: BufPool,
    upload: Arc<dyn Upload>,
    /// Turns of threads that prepare parts.
    turns: Arc<Semaphore>,
}

impl Work {
    async fn send_part(self: Arc<Self>, index: u32, span: Span) -> Result<Sent> {
        if let Some(part) = self.content.segments.alone(span) {
            let (put, done) = tokio::join!(
                self.upload.put_part(index, part.into()),
                self.prepare(move |content| content.hash(span))
            );
            return Ok(Sent {
                ids: done?,
                ledger: put?,
            });
        }
        let memory = self.pool.lease(span.len() as usize).await??;
        let prepared =
            self.prepare(move |content| (content.segments.gather(span, memory), content.hash(span)));
        let (part, ids) = prepared.await?;
        let mut ledger = self.upload.put_part(index, part.into()).await?;
        let path = ledger.paths.keys().next().copied();
        ledger.record_copy(path.unwrap_or(DataPath::Memory), span.len());
        Ok(Sent { ids, ledger })
    }

    /// Have a thread of its own work on the bytes: those that hand requests to disks and wires must not be kept from it, or these run dry.
    async fn prepare<T: Send + 'static>(
        self: &Arc<Self>,
        prepare: impl FnOnce(&Content) -> T + Send + 'static,
    ) -> Result<T> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let work = Arc::clone(self);
        let prepared = tokio::task::spawn_blocking(move || {
            // The turn is over when nothing of the caller's is held any more.
            let (_turn, work) = (turn, work);
            prepare(&work.content)
        });
        landed(prepared.await.map(Ok))
    }
}
