//! Reads and writes of any length and alignment, in bounded pieces, through the gate, accounted.
//!
//! [`Disk`] is what stores use. A request is cut into operations of at most [`OPERATION_BYTES`]; each of them asks the
//! gate, goes to the engine, and lands in its own piece of the caller's buffer. On direct files, pieces that are not aligned (heads,
//! tails, odd addresses) go through a small bounce pool of the disk's own and are copied; the ledger counts them.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::{DataPath, Error, ErrorKind, Ledger, Limits, PathPolicy, Result, Span, metric};
use futures::stream::{StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use crate::buf::{AlignedBuf, Buf};
use crate::engine::{Engine, EngineChoice, EngineKind, EngineReport, ReadDone, open_engine};
use crate::file::{Access, Direct, File, OpenHow};
use crate::gate::{Class, Gate};
use crate::map::{PAGE, Pages};
use crate::names::{DirEntry, FileStat, NameDone, NameOp, Renamed};
use crate::pool::{BufPool, PinHook, PoolConfig};

/// Bytes of one operation handed to the engine, which cuts it into requests: large enough that waking threads costs nothing, small enough
/// for the gate to tell classes apart.
pub(crate) const OPERATION_BYTES: u64 = 8 << 20;

/// Memory for pieces that must be copied because they are not aligned. Separate from the pool that callers lease from: they may hold all of
/// that while they wait for a bounce buffer.
const BOUNCE_POOL_BYTES: u64 = 16 << 20;

/// Size of one bounced piece.
const BOUNCE_PIECE_BYTES: u64 = 1 << 20;

/// How a disk is opened.
#[derive(Debug, Clone, Default)]
pub struct DiskConfig {
    /// Bounds.
    pub limits: Limits,
    /// Which engine.
    pub engine: EngineChoice,
    /// Which pages for the buffer pool.
    pub pages: Pages,
    /// Pins the buffer pool for a device.
    pub pin: Option<Arc<dyn PinHook>>,
    /// Classes of service.
    pub gate: Gate,
}

/// An engine, the gate before it, and the buffers around it; clones share them.
#[derive(Clone)]
pub struct Disk(Arc<Inner>);

struct Inner {
    engine: Arc<dyn Engine>,
    kind: EngineKind,
    /// Why bytes do not go through io_uring, when they do not.
    engine_reason: Option<String>,
    gate: Gate,
    pool: BufPool,
    bounce: BufPool,
    /// Places in the engine's queue for operations on names: waiting here is asynchronous, waiting there would block a thread.
    names: Semaphore,
    limits: Limits,
}

impl Disk {
    /// Open an engine and make the pools.
    pub fn open(config: DiskConfig) -> Result<Self> {
        let engine = open_engine(config.engine, &config.limits)?;
        Self::with_engine(engine, config)
    }

    /// Use an engine that is there already, such as a simulation.
    pub fn with_engine(engine: Arc<dyn Engine>, config: DiskConfig) -> Result<Self> {
        let DiskConfig {
            limits,
            pages,
            pin,
            gate,
            engine: _,
        } = config;
        let pool = BufPool::new(&PoolConfig {
            bytes_max: limits.buffer_bytes_max,
            pages,
            pin,
            ..PoolConfig::default()
        })?;
        let bounce = BufPool::new(&PoolConfig {
            bytes_max: BOUNCE_POOL_BYTES,
            ..PoolConfig::default()
        })?;
        // The queue of an engine is shared: half for data, half for names.
        let places = (limits.queue_requests_max / 2).max(1);
        gate.limit_requests(places);
        let report = engine.report();
        let inner = Inner {
            kind: report.kind,
            engine_reason: report.fallback_reason,
            engine,
            gate,
            pool,
            bounce,
            names: Semaphore::new(places as usize),
            limits,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// Which engine runs, with what, and why not better.
    pub fn report(&self) -> EngineReport {
        self.0.engine.report()
    }

    /// The pool callers lease buffers from.
    pub fn pool(&self) -> &BufPool {
        &self.0.pool
    }

    /// The bounds.
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// The gate.
    pub fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// Open a file; under a required path, an error says why the file or the engine cannot offer it.
    pub async fn open_file(
        &self,
        path: impl Into<PathBuf>,
        how: OpenHow,
        policy: PathPolicy,
    ) -> Result<Arc<File>> {
        let path = path.into();
        let reason = self
            .0
            .engine_reason
            .as_deref()
            .unwrap_or("this engine does not offer it");
        // Before a file is made that would have to be removed again.
        if let PathPolicy::Require(required) = policy
            && required.is_direct()
        {
            let offered = self.0.kind.path(&Access::Direct { align: PAGE as u32 });
            policy
                .admit(offered, "open", reason)
                .map_err(|error| error.at(path.display()))?;
        }
        let how = match policy {
            PathPolicy::Require(required) => how.with_direct(if required.is_direct() {
                Direct::Require
            } else {
                Direct::Never
            }),
            PathPolicy::Fastest => how,
        };
        let NameDone::File(file) = self.name(NameOp::Open { path, how }).await? else {
            return Err(wrong_answer("open"));
        };
        policy
            .admit(self.path_of(&file), "open", reason)
            .map_err(|error| error.at(file.path().display()))?;
        Ok(file)
    }

    /// The path bytes of this file take.
    pub fn path_of(&self, file: &File) -> DataPath {
        self.0.kind.path(file.access())
    }

    /// Read `span` into the front of `buf`, whose length must be at least that of the span.
    ///
    /// `Precondition` when the file ends before the span does: it was shorter than believed, or shrank meanwhile.
    pub async fn read_into(
        &self,
        file: &Arc<File>,
        span: Span,
        buf: AlignedBuf,
        class: Class,
    ) -> Result<(AlignedBuf, Ledger)> {
        let (buf, result) = self.try_read_into(file, span, buf, class).await?;
        result.map(|ledger| (buf, ledger))
    }

    /// Like [`read_into`](Self::read_into), but the buffer comes back whole when the read fails, so that it can be filled from elsewhere.
    /// Only when the engine itself is gone is the buffer lost with it.
    pub async fn try_read_into(
        &self,
        file: &Arc<File>,
        span: Span,
        buf: AlignedBuf,
        class: Class,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        if (buf.len() as u64) < span.len() {
            let message = format!("buffer of {} bytes for {} bytes", buf.len(), span.len());
            let error = Error::new(ErrorKind::InvalidInput, "read", message).at(file.path().display());
            return Ok((buf, Err(error)));
        }
        if span.is_empty() {
            return Ok((buf, Ok(self.ledger_of(file))));
        }
        let depth = self.depth();
        let pieces = cut(span, buf, file);
        let failed = AtomicBool::new(false);
        let mut done = futures::stream::iter(pieces)
            .map(|(span, piece)| self.read_piece(file, span, piece, class, &failed))
            .buffered(depth);
        let mut result = Ok(self.ledger_of(file));
        let mut whole: Option<AlignedBuf> = None;
        while let Some((piece, part)) = done.try_next().await? {
            match (&mut result, part) {
                (Ok(ledger), Ok(part)) => ledger.merge(&part),
                (Ok(_), Err(error)) => result = Err(error),
                (Err(_), _) => {}
            }
            match &mut whole {
                None => whole = Some(piece),
                Some(whole) => whole.unsplit(piece).map_err(|_| wrong_answer("read"))?,
            }
        }
        drop(done);
        if let Ok(ledger) = &result {
            count("read", ledger);
        }
        whole
            .map(|whole| (whole, result))
            .ok_or_else(|| wrong_answer("read"))
    }

    /// Read `span` into a buffer leased from the pool; unaligned ends cost no copy, since the aligned range around the span is read.
    pub async fn read(&self, file: &Arc<File>, span: Span, class: Class) -> Result<(Buf, Ledger)> {
        let align = match *file.access() {
            Access::Direct { align } => u64::from(align),
            Access::Buffered { .. } => 1,
        };
        let around = if span.is_empty() {
            span
        } else {
            Span::new(span.start() - span.start() % align, span.end())?
        };
        let buf = self.0.pool.lease(around.len() as usize).await??;
        let (buf, mut ledger) = self.read_into(file, around, buf, class).await?;
        // What was read beside the span was delivered to nobody.
        if let Some(totals) = ledger.paths.get_mut(&self.path_of(file)) {
            totals.bytes = span.len();
        }
        Ok((buf.freeze().slice(span.relative_to(around.start())), ledger))
    }

    /// Write all of `buf` at `offset`.
    ///
    /// On a direct file the offset must be aligned. A tail off the alignment is written as a whole block together with what the file
    /// holds behind it; at the end of the file that is padding, and [`set_len`](Self::set_len) must follow. No write may go on beside it in the
    /// same block. When one piece fails, those under way are waited for before the error is returned.
    pub async fn write_at(&self, file: &Arc<File>, offset: u64, buf: Buf, class: Class) -> Result<Ledger> {
        let span = Span::at(offset, buf.len() as u64)?;
        let align = match *file.access() {
            Access::Direct { align } => u64::from(align),
            Access::Buffered { .. } => 1,
        };
        if !offset.is_multiple_of(align) && !span.is_empty() {
            // Before any piece is written: those in the middle would be aligned.
            let message = format!("offset {offset} is not a multiple of {align}");
            return Err(Error::new(ErrorKind::InvalidInput, "write", message).at(file.path().display()));
        }
        let body_end = span.end() - span.end() % align;
        let in_place = buf.is_aligned(align as usize);
        let step = if in_place {
            OPERATION_BYTES
        } else {
            BOUNCE_PIECE_BYTES
        };
        let body = Span::new(offset, body_end.max(offset))?.pieces(step);
        let tail = Span::new(body_end.max(offset), span.end())?.pieces(step);
        let failed = AtomicBool::new(false);
        let pieces = body.chain(tail).take_while(|_| !failed.load(Ordering::Relaxed));
        let mut done = futures::stream::iter(pieces)
            .map(|piece| {
                self.write_piece(
                    file,
                    piece,
                    buf.slice(piece.relative_to(offset)),
                    align as usize,
                    class,
                )
            })
            .buffer_unordered(self.depth());
        let mut result = Ok(self.ledger_of(file));
        while let Some(part) = done.next().await {
            match (&mut result, part) {
                (Ok(ledger), Ok(part)) => ledger.merge(&part),
                (Ok(_), Err(error)) => {
                    failed.store(true, Ordering::Relaxed);
                    result = Err(error);
                }
                (Err(_), _) => {}
            }
        }
        drop(done);
        if let Ok(ledger) = &result {
            count("write", ledger);
        }
        result
    }

    /// Make the content of `file` durable.
    pub async fn sync(&self, file: &Arc<File>) -> Result<()> {
        self.0.engine.sync(file).await?
    }

    /// Work on names.
    pub async fn name(&self, op: NameOp) -> Result<NameDone> {
        let _place = self.0.names.acquire().await.map_err(|_| wrong_answer("name"))?;
        self.0.engine.name(op).await?
    }

    /// Size, kind and times of a path.
    pub async fn stat(&self, path: &Path) -> Result<FileStat> {
        match self
            .name(NameOp::Stat {
                path: path.to_owned(),
            })
            .await?
        {
            NameDone::Stat(stat) => Ok(stat),
            _ => Err(wrong_answer("stat")),
        }
    }

    /// The same for many names of one directory, in their order.
    pub async fn stat_many(&self, dir: &Path, names: Vec<OsString>) -> Result<Vec<Result<FileStat>>> {
        let dir = dir.to_owned();
        match self.name(NameOp::StatMany { dir, names }).await? {
            NameDone::Stats(stats) => Ok(stats),
            _ => Err(wrong_answer("stat")),
        }
    }

    /// Read small files whole, one after the other into the front of `buf`; see [`Engine::read_files`].
    pub async fn read_files(
        &self,
        files: Vec<(PathBuf, u64)>,
        buf: AlignedBuf,
        class: Class,
    ) -> Result<(AlignedBuf, Ledger)> {
        let (bytes, requests) = (files.iter().map(|(_, size)| size).sum(), files.len() as u64);
        let permit = self.0.gate.acquire(class, bytes).await?;
        let _place = self.0.names.acquire().await.map_err(|_| wrong_answer("read"))?;
        let buf = self.0.engine.read_files(files, buf, Some(permit)).await??;
        let path = self.0.kind.path(&Access::Buffered {
            reason: String::new(),
        });
        let ledger = Ledger::of(path, bytes, requests);
        count("read", &ledger);
        Ok((buf, ledger))
    }

    /// Give a file of `size` bytes another name; see [`NameOp::Rename`].
    pub async fn rename(&self, from: PathBuf, to: PathBuf, replace: bool, size: u64) -> Result<Renamed> {
        let size = Some(size);
        let op = NameOp::Rename {
            from,
            to,
            replace,
            size,
        };
        match self.name(op).await? {
            NameDone::Renamed(renamed) => Ok(renamed),
            _ => Err(wrong_answer("rename")),
        }
    }

    /// Entries of a directory, sorted.
    pub async fn list(&self, path: &Path) -> Result<Vec<DirEntry>> {
        match self
            .name(NameOp::List {
                path: path.to_owned(),
            })
            .await?
        {
            NameDone::Entries(entries) => Ok(entries),
            _ => Err(wrong_answer("list")),
        }
    }

    /// Set the length of an open file.
    pub async fn set_len(&self, file: &Arc<File>, len: u64) -> Result<()> {
        self.name(NameOp::SetLen {
            file: Arc::clone(file),
            len,
        })
        .await
        .map(drop)
    }

    fn depth(&self) -> usize {
        (u64::from(self.0.limits.disk_depth) * self.0.limits.disk_request_bytes)
            .div_ceil(OPERATION_BYTES)
            .max(2) as usize
    }

    /// Read one piece; its buffer comes back in every case. Once a piece has failed, those that follow are not read any more.
    async fn read_piece(
        &self,
        file: &Arc<File>,
        span: Span,
        piece: AlignedBuf,
        class: Class,
        failed: &AtomicBool,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        if failed.load(Ordering::Relaxed) {
            return Ok((piece, Ok(Ledger::default())));
        }
        let asked = asked_bytes(file, span.len() as usize);
        let in_place = match *file.access() {
            Access::Buffered { .. } => true,
            Access::Direct { align } => {
                span.start().is_multiple_of(align.into())
                    && piece.is_aligned(align as usize)
                    && piece.capacity() >= asked
                    && (asked == span.len() as usize || piece.len() == span.len() as usize)
            }
        };
        let done = if in_place {
            self.read_in_place(file, span, piece, asked, class).await
        } else {
            self.read_bounced(file, span, piece, class).await
        };
        if !matches!(done, Ok((_, Ok(_)))) {
            failed.store(true, Ordering::Relaxed);
        }
        done
    }

    async fn read_in_place(
        &self,
        file: &Arc<File>,
        span: Span,
        piece: AlignedBuf,
        asked: usize,
        class: Class,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        let keep = piece.len();
        let done = self.submit_read(file, span.start(), piece, asked, class).await?;
        let (mut piece, requests) = (done.buf, done.requests);
        piece.set_len(keep);
        let checked = done.result.and_then(|count| check_count(file, span, count));
        let ledger = checked.map(|()| Ledger::of(self.path_of(file), span.len(), requests.into()));
        Ok((piece, ledger))
    }

    async fn read_bounced(
        &self,
        file: &Arc<File>,
        span: Span,
        mut piece: AlignedBuf,
        class: Class,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        let around = span.align_out(direct_align(file));
        // The permit first: a bounce buffer in hand means that its request is on its way, so no class holds them up for another.
        let permit = self.0.gate.acquire(class, around.len()).await?;
        let bounce = self.0.bounce.lease(around.len() as usize).await??;
        let done = self
            .0
            .engine
            .read(file, around.start(), bounce, around.len() as usize, Some(permit))
            .await?;
        let needed = Span::new(around.start(), span.end())?;
        if let Err(error) = done.result.and_then(|count| check_count(file, needed, count)) {
            return Ok((piece, Err(error)));
        }
        piece[..span.len() as usize].copy_from_slice(&done.buf[span.relative_to(around.start())]);
        let path = self.path_of(file);
        let mut ledger = Ledger::of(path, span.len(), done.requests.into());
        ledger.record_copy(path, span.len());
        Ok((piece, Ok(ledger)))
    }

    async fn submit_read(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
        class: Class,
    ) -> Result<ReadDone> {
        let permit = self.0.gate.acquire(class, len as u64).await?;
        self.0.engine.read(file, offset, buf, len, Some(permit)).await
    }

    async fn write_piece(
        &self,
        file: &Arc<File>,
        span: Span,
        buf: Buf,
        align: usize,
        class: Class,
    ) -> Result<Ledger> {
        let path = self.path_of(file);
        let mut ledger = Ledger::default();
        let permit = self.0.gate.acquire(class, buf.len() as u64).await?;
        let buf = if buf.is_aligned(align) && buf.len().is_multiple_of(align) {
            buf
        } else {
            ledger.record_copy(path, span.len());
            self.bounce(file, span, &buf, align).await?
        };
        let done = self.0.engine.write(file, span.start(), buf, Some(permit)).await?;
        done.result?;
        ledger.record(path, span.len(), done.requests.into());
        Ok(ledger)
    }

    /// An aligned copy of `buf`, in whole blocks: what does not fill the last one is taken from the file.
    async fn bounce(&self, file: &Arc<File>, span: Span, buf: &Buf, align: usize) -> Result<Buf> {
        let padded = buf.len().next_multiple_of(align);
        let mut bounce = self.0.bounce.lease(padded).await??;
        if padded > buf.len() {
            let done = self
                .0
                .engine
                .read(file, span.start(), bounce, padded, None)
                .await?;
            let there = done.result?;
            bounce = done.buf;
            bounce[there..].fill(0);
        }
        bounce[..buf.len()].copy_from_slice(buf);
        Ok(bounce.freeze())
    }

    /// An empty ledger with the reasons why this file does not take the fastest path.
    fn ledger_of(&self, file: &File) -> Ledger {
        let mut ledger = Ledger::default();
        let path = self.path_of(file);
        match (file.access(), &self.0.engine_reason) {
            (Access::Buffered { reason }, _) => ledger.record_downgrade(DataPath::DirectUring, path, reason),
            (Access::Direct { .. }, Some(reason)) => {
                ledger.record_downgrade(DataPath::DirectUring, path, reason);
            }
            (Access::Direct { .. }, None) => {}
        }
        ledger
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("engine", &self.0.kind)
            .field("pool", &self.0.pool)
            .finish_non_exhaustive()
    }
}

fn count(op: &'static str, ledger: &Ledger) {
    for (path, totals) in &ledger.paths {
        metrics::counter!(metric::IO_BYTES_TOTAL, "path" => path.name(), "op" => op).increment(totals.bytes);
        metrics::counter!(metric::IO_REQUESTS_TOTAL, "path" => path.name(), "op" => op)
            .increment(totals.requests);
    }
}

fn direct_align(file: &File) -> u64 {
    match *file.access() {
        Access::Direct { align } => align.into(),
        Access::Buffered { .. } => 1,
    }
}

/// Direct reads are asked for in whole alignments; the end of the file cuts them.
fn asked_bytes(file: &File, len: usize) -> usize {
    len.next_multiple_of(direct_align(file) as usize)
}

fn check_count(file: &File, span: Span, count: usize) -> Result<()> {
    if count as u64 >= span.len() {
        return Ok(());
    }
    let message = format!(
        "file ends at {}, but bytes up to {} were asked for",
        span.start() + count as u64,
        span.end()
    );
    Err(Error::new(ErrorKind::Precondition, "read", message)
        .at(file.path().display())
        .with_hint("the file is shorter than expected, or was cut while it was read"))
}

/// Cut a read into pieces, each with its part of the buffer. Cuts fall on multiples of the operation size and, on direct files, around an
/// unaligned head and around a tail for which the buffer has no spare room.
fn cut(span: Span, mut buf: AlignedBuf, file: &File) -> Vec<(Span, AlignedBuf)> {
    let align = direct_align(file);
    let head = ((align - span.start() % align) % align).min(span.len());
    // Only when the buffer lies on its pages as the span lies in the file can anything but the ends land in place.
    let lies_alike = (buf.as_ptr() as u64 + head).is_multiple_of(align) || head == span.len();
    let step = if lies_alike {
        OPERATION_BYTES
    } else {
        BOUNCE_PIECE_BYTES
    };
    let mut cuts: Vec<u64> = span.pieces(step).map(Span::end).collect();
    if lies_alike {
        cuts.push(span.start() + head);
        // Bytes of the caller behind the span are none of this read's business.
        let has_room = buf.len() as u64 == span.len()
            && buf.capacity() >= head as usize + asked_bytes(file, (span.len() - head) as usize);
        if !has_room {
            cuts.push(span.end() - span.end() % align);
        }
    }
    cuts.retain(|cut| span.start() < *cut && *cut < span.end());
    cuts.sort_unstable();
    cuts.dedup();
    let mut pieces = Vec::with_capacity(cuts.len() + 1);
    let mut start = span.start();
    for end in cuts.into_iter().chain([span.end()]) {
        let rest = if end == span.end() {
            None
        } else {
            Some(buf.split_off((end - start) as usize))
        };
        let piece = Span::new(start, end).unwrap_or(Span::first(0));
        match rest {
            Some(rest) => pieces.push((piece, std::mem::replace(&mut buf, rest))),
            None => {
                pieces.push((piece, buf));
                break;
            }
        }
        start = end;
    }
    pieces
}

fn wrong_answer(op: &'static str) -> Error {
    Error::new(
        ErrorKind::Internal,
        op,
        "the engine gave an answer of another kind",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caller's buffer survives a file that is too short, in one piece and still its own, so that it can be filled from elsewhere.
    #[tokio::test]
    async fn a_failed_read_gives_the_buffer_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("short");
        std::fs::write(&path, vec![7; 100_000]).unwrap();
        let disk = Disk::open(DiskConfig::default()).unwrap();
        let file = disk
            .open_file(&path, OpenHow::READ, PathPolicy::Fastest)
            .await
            .unwrap();
        for start in [0, 1] {
            let buf = disk.pool().lease(20 << 20).await.unwrap().unwrap();
            let address = buf.as_ptr();
            let span = Span::at(start, 20 << 20).unwrap();
            let (buf, result) = disk.try_read_into(&file, span, buf, Class::Data).await.unwrap();
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Precondition);
            assert_eq!((buf.as_ptr(), buf.len()), (address, 20 << 20));
        }
    }
}
