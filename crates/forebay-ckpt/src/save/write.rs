//! Writes a payload: segments of memory one after the other, as an upload of large parts.
//!
//! A part that lies within one segment, at an aligned address, goes out from the caller's memory; any other is gathered into leased memory, and the ledger
//! says so. Whoever writes a part also hashes the chunks that begin in it: their bytes are in the caches then, and are read from memory once for both.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{Crc64Nvme, DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf, BufPool, PAGE};
use forebay_store::{PartBody, PutOptions, Upload};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use super::hash;
use crate::hash::{ChunkHasher, Digest, IdKind, Place};
use crate::pages::Source;

/// Parts in flight: enough for the fastest disk and for an object store, and 128 MiB of gathered memory at most with parts of 8 MiB.
const PARTS_IN_FLIGHT: usize = 16;

/// Copied, summed up and hashed together, while they are in the caches of a core.
const PIECE_BYTES: usize = 128 << 10;

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

    /// Copy the span into memory of its length, with a look at each piece that is there.
    fn gather(&self, span: Span, mut memory: AlignedBuf, mut look: impl FnMut(&[u8])) -> Buf {
        let mut at = 0;
        for segment in self.within(span) {
            for piece in segment.chunks(PIECE_BYTES) {
                if let Some(place) = memory.get_mut(at..at + piece.len()) {
                    place.copy_from_slice(piece);
                    look(place);
                }
                at += piece.len();
            }
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

impl Chunk {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
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
    /// Hashes of the chunks that begin in a span, to be made as its bytes come.
    fn hashes(&self, span: Span) -> Hashes<'_> {
        let before = |offset: u64| self.chunks.partition_point(|chunk| chunk.offset < offset);
        let here = self.chunks.get(before(span.start())..before(span.end()));
        Hashes {
            kind: self.ids.as_ref(),
            left: here.unwrap_or_default(),
            begun: None,
            at: span.start(),
            done: Vec::new(),
        }
    }

    /// Hashes of all chunks.
    fn hash_all(&self) -> Vec<(usize, Digest)> {
        let Some(kind) = &self.ids else { return Vec::new() };
        let hash = |chunk: &Chunk| (chunk.number, kind.of(&chunk.place, &chunk.bytes));
        self.chunks.iter().map(hash).collect()
    }
}

/// Hashes of consecutive chunks, made of the bytes of the file as they pass.
struct Hashes<'a> {
    kind: Option<&'a IdKind>,
    left: &'a [Chunk],
    /// Of the first of those.
    begun: Option<ChunkHasher>,
    /// Where the next bytes are in the file.
    at: u64,
    done: Vec<(usize, Digest)>,
}

impl Hashes<'_> {
    /// The next bytes of the file.
    fn pass(&mut self, mut bytes: &[u8]) {
        let Some(kind) = self.kind else { return };
        let end = self.at + bytes.len() as u64;
        while let Some((chunk, left)) = self.left.split_first()
            && chunk.offset < end
        {
            // What lies before it is a header, or of a chunk that began before the span.
            let start = chunk.offset.max(self.at);
            let here = chunk.end().min(end);
            let (skipped, len) = ((start - self.at) as usize, (here - start) as usize);
            let hasher = self.begun.get_or_insert_with(|| kind.hasher(&chunk.place));
            hasher.update(bytes.get(skipped..skipped + len).unwrap_or_default());
            bytes = bytes.get(skipped + len..).unwrap_or_default();
            self.at = here;
            if here < chunk.end() {
                break;
            }
            let hash = self.begun.take().map(ChunkHasher::finish);
            self.done.extend(hash.map(|hash| (chunk.number, hash)));
            self.left = left;
        }
        self.at = end;
    }

    /// What is left of the last chunk lies behind the span.
    fn finish(mut self) -> Vec<(usize, Digest)> {
        if let Some(chunk) = self.left.first() {
            let passed = self.at.saturating_sub(chunk.offset) as usize;
            self.pass(chunk.bytes.get(passed..).unwrap_or_default());
        }
        self.done
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
        let hash = tokio::task::spawn_blocking(move || content.hash_all());
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
    let work = Arc::new(Work {
        content,
        pool: pool.clone(),
        upload: Arc::clone(upload),
        room: Arc::new(Semaphore::new(PARTS_IN_FLIGHT)),
        next: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
    });
    let _over = OverOnDrop(&work);
    let mut threads = JoinSet::new();
    for _ in 0..hash::threads() {
        let work = Arc::clone(&work);
        threads.spawn_blocking(move || work.run(&Handle::current()));
    }
    // All of them are waited for: nobody may write any more when the upload is given up, nor read the caller's memory behind its back.
    let mut sent = Ok(Sent::default());
    while let Some(done) = threads.join_next().await {
        match (landed(done), &mut sent) {
            (Ok(more), Ok(sent)) => sent.merge(more),
            (Err(error), Ok(_)) => sent = Err(error),
            (_, Err(_)) => {}
        }
    }
    sent
}

/// Has threads stop when nobody waits for them any more.
struct OverOnDrop<'a>(&'a Work);

impl Drop for OverOnDrop<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// What came of a part that a task wrote.
pub(super) fn landed<T>(part: Result<Result<T>, JoinError>) -> Result<T> {
    part.map_err(|error| {
        Error::new(ErrorKind::Internal, "save", "writing a part was broken off").with_source(error)
    })?
}

/// A part that is ready to be sent.
struct Prepared {
    body: PartBody,
    is_copied: bool,
    /// Hashes of the chunks that begin in it.
    ids: Vec<(usize, Digest)>,
}

/// What the threads of one file share.
#[derive(Debug)]
struct Work {
    content: Content,
    pool: BufPool,
    upload: Arc<dyn Upload>,
    /// For parts in flight.
    room: Arc<Semaphore>,
    /// The part that nobody has taken yet.
    next: AtomicU64,
    /// One has failed, who tells why, or nobody waits any more.
    is_over: AtomicBool,
}

impl Work {
    /// Prepare one part after the other and send it off, until there are none. On a thread of its own: those that hand requests to disks and wires must not be
    /// kept from it, or these run dry.
    fn run(&self, runtime: &Handle) -> Result<Sent> {
        let mut flight = JoinSet::new();
        let sent = self.send_parts(runtime, &mut flight);
        if sent.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        runtime.block_on(flight.shutdown());
        sent
    }

    fn send_parts(&self, runtime: &Handle, flight: &mut JoinSet<Result<Ledger>>) -> Result<Sent> {
        let mut sent = Sent::default();
        while let Some((index, span)) = self.take()? {
            while let Some(done) = flight.try_join_next() {
                sent.ledger.merge(&landed(done)?);
            }
            let room = runtime.block_on(Arc::clone(&self.room).acquire_owned());
            let Prepared { body, is_copied, ids } = self.prepare(runtime, span)?;
            sent.ids.extend(ids);
            let upload = Arc::clone(&self.upload);
            let put = async move {
                let _room = room;
                let mut ledger = upload.put_part(index, body).await?;
                if is_copied {
                    let path = ledger.paths.keys().next().copied();
                    ledger.record_copy(path.unwrap_or(DataPath::Memory), span.len());
                }
                Ok(ledger)
            };
            flight.spawn_on(put, runtime);
        }
        while let Some(done) = runtime.block_on(flight.join_next()) {
            sent.ledger.merge(&landed(done)?);
        }
        Ok(sent)
    }

    /// The next part: its number and what it has of the file.
    fn take(&self) -> Result<Option<(u32, Span)>> {
        if self.is_over.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (part_bytes, size) = (self.upload.part_bytes(), self.content.segments.end);
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let start = index.saturating_mul(part_bytes);
        if start >= size {
            return Ok(None);
        }
        let index = u32::try_from(index).map_err(|_| {
            let message = "a file has more parts than can be counted";
            Error::new(ErrorKind::LimitExceeded, "save", message)
        })?;
        Ok(Some((index, Span::new(start, size.min(start + part_bytes))?)))
    }

    /// A part is copied, summed up and hashed piece by piece, each while it is in the caches of a core.
    fn prepare(&self, runtime: &Handle, span: Span) -> Result<Prepared> {
        let (mut crc, mut hashes) = (Crc64Nvme::default(), self.content.hashes(span));
        let pass = |piece: &[u8]| {
            crc.update(piece);
            hashes.pass(piece);
        };
        let segments = &self.content.segments;
        let alone = segments.alone(span);
        let is_copied = alone.is_none();
        let bytes = match alone {
            Some(bytes) => {
                bytes.chunks(PIECE_BYTES).for_each(pass);
                bytes
            }
            None => {
                let memory = runtime.block_on(self.pool.lease(span.len() as usize))??;
                segments.gather(span, memory, pass)
            }
        };
        Ok(Prepared {
            ids: hashes.finish(),
            body: PartBody::summed(bytes, crc.value()),
            is_copied,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash::HashKind;

    /// A file of a header and chunks one behind the other, cut into segments elsewhere.
    fn content(header: usize, chunks: &[usize], segment: usize) -> (Content, Vec<u8>) {
        let size = header + chunks.iter().sum::<usize>();
        let file: Vec<u8> = (0..size).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut segments = Segments::default();
        for piece in file.chunks(segment) {
            segments.push(Buf::copy_of(piece).unwrap());
        }
        let mut offset = header;
        let chunks = chunks.iter().enumerate().map(|(number, len)| {
            let bytes = Buf::copy_of(&file[offset..offset + len]).unwrap();
            let place = Place::new(&[3; 16], number as u64, *len as u32);
            let chunk = Chunk {
                number,
                offset: offset as u64,
                place,
                bytes,
            };
            offset += len;
            chunk
        });
        let content = Content {
            chunks: chunks.collect(),
            segments,
            ids: Some(IdKind::Hash(HashKind::Xxh3)),
        };
        (content, file)
    }

    proptest! {
        #[test]
        fn hashes_do_not_depend_on_how_the_file_is_cut(
            header in 0usize..50,
            chunks in prop::collection::vec(1usize..100, 0..12),
            segment in 1usize..90,
            part in 1u64..300,
        ) {
            let (content, file) = content(header, &chunks, segment);
            let mut ids = Vec::new();
            let mut copy = Vec::new();
            for span in Span::first(file.len() as u64).pieces(part) {
                let mut hashes = content.hashes(span);
                let memory = AlignedBuf::alloc(span.len() as usize, forebay_io::Pages::default()).unwrap();
                copy.extend_from_slice(&content.segments.gather(span, memory, |piece| hashes.pass(piece)));
                ids.extend(hashes.finish());
            }
            prop_assert_eq!(ids, content.hash_all());
            prop_assert_eq!(copy, file);
        }
    }

    #[test]
    fn nothing_is_hashed_where_nobody_asks_for_it() {
        let (mut content, file) = content(8, &[16, 16], 64);
        content.ids = None;
        let mut hashes = content.hashes(Span::first(20));
        hashes.pass(&file[..20]);
        assert_eq!(hashes.finish(), []);
        assert_eq!(content.hash_all(), []);
    }
}
