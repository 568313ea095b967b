//! Conveniences over [`Store`] that no implementation needs to know: parallel ranged reads, whole objects, small puts, uploads from a
//! stream.
//!
//! A parallel read of more than `limits.part_bytes` cuts the span at multiples of it and the caller's buffer with it; each range lands in its own
//! piece of the buffer, and the pieces are joined again without copying. What fits into one request is one, wherever it begins.

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::context::Context;
use crate::store::{PutDone, PutOptions, ReadDone, ReadOptions, Store, Upload};

/// Conveniences over [`Store`].
#[async_trait]
pub trait StoreExt: Store {
    /// Read `span` into the front of `buf` by ranges side by side, all of the same version; by one range where the store knows no versions.
    async fn read_parallel(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
        context: &Context,
    ) -> Result<ReadDone>;

    /// Read `span` into memory leased from the context's pool.
    async fn read(
        &self,
        key: &Key,
        span: Span,
        options: &ReadOptions,
        context: &Context,
    ) -> Result<(Buf, Ledger)>;

    /// Write a copy of `bytes`.
    async fn put_bytes(&self, key: &Key, bytes: &[u8], options: &PutOptions) -> Result<PutDone>;

    /// Write an object in parts from a stream of buffers, several parts side by side. Each buffer but the last must have the part size
    /// that `begin` is given; a stream that fails gives the upload up.
    async fn upload_all(
        &self,
        key: &Key,
        options: &PutOptions,
        context: &Context,
        begin: BeginParts<'_>,
    ) -> Result<PutDone>;
}

/// Makes the stream of parts once the part size is known.
pub type BeginParts<'a> = Box<dyn FnOnce(u64) -> BoxStream<'a, Result<Buf>> + Send + 'a>;

#[async_trait]
impl<S: Store + ?Sized> StoreExt for S {
    async fn read_parallel(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
        context: &Context,
    ) -> Result<ReadDone> {
        let limits = context.limits();
        if span.len() <= limits.part_bytes || (buf.len() as u64) < span.len() {
            return self.read_into(key, span, buf, options).await;
        }
        let pieces: Vec<Span> = span.pieces(limits.part_bytes).collect();
        let mut options = options.clone();
        if options.version.is_none() {
            options.version = self.head(key).await?.version;
        }
        if options.version.is_none() {
            // Nothing would tell ranges of two versions apart.
            return self.read_into(key, span, buf, &options).await;
        }
        let options = &options;
        let reads = split(buf, &pieces)
            .into_iter()
            .zip(pieces)
            .map(|(piece, span)| self.read_into(key, span, piece, options));
        let mut reads = stream::iter(reads).buffered(limits.store_requests_max.max(1) as usize);
        let mut joined = Joined::default();
        while let Some(done) = reads.try_next().await? {
            joined.add(done);
        }
        joined.finish(context)
    }

    async fn read(
        &self,
        key: &Key,
        span: Span,
        options: &ReadOptions,
        context: &Context,
    ) -> Result<(Buf, Ledger)> {
        let buf = context.pool().lease(span.len() as usize).await??;
        let done = self.read_parallel(key, span, buf, options, context).await?;
        Ok((done.buf.freeze().slice(..span.len() as usize), done.ledger))
    }

    async fn put_bytes(&self, key: &Key, bytes: &[u8], options: &PutOptions) -> Result<PutDone> {
        self.put(key, Buf::copy_of(bytes)?.into(), options).await
    }

    async fn upload_all(
        &self,
        key: &Key,
        options: &PutOptions,
        context: &Context,
        begin: BeginParts<'_>,
    ) -> Result<PutDone> {
        let upload: Arc<dyn Upload> = self.upload(key, options).await?.into();
        let depth = context.limits().store_requests_max.max(1) as usize;
        match send_parts(&upload, begin(upload.part_bytes()), depth).await {
            Ok(ledger) => {
                let mut done = upload.complete().await?;
                done.ledger.merge(&ledger);
                Ok(done)
            }
            Err(error) => {
                if let Err(abort) = upload.abort().await {
                    tracing::warn!(error = %abort, "cannot give up an upload");
                }
                Err(error)
            }
        }
    }
}

async fn send_parts(
    upload: &Arc<dyn Upload>,
    parts: BoxStream<'_, Result<Buf>>,
    depth: usize,
) -> Result<Ledger> {
    let sends = parts.enumerate().map(|(index, part)| {
        let upload = Arc::clone(upload);
        async move {
            let index = u32::try_from(index).map_err(|_| {
                Error::new(
                    ErrorKind::LimitExceeded,
                    "upload",
                    "more parts than can be numbered",
                )
            })?;
            upload.put_part(index, part?.into()).await
        }
    });
    let mut sends = sends.buffer_unordered(depth);
    let mut ledger = Ledger::default();
    while let Some(part) = sends.try_next().await? {
        ledger.merge(&part);
    }
    Ok(ledger)
}

/// Cut a buffer along consecutive spans; the last piece keeps what is beyond them.
fn split(mut buf: AlignedBuf, spans: &[Span]) -> Vec<AlignedBuf> {
    let mut pieces = Vec::with_capacity(spans.len());
    for span in &spans[..spans.len().saturating_sub(1)] {
        let rest = buf.split_off(span.len() as usize);
        pieces.push(std::mem::replace(&mut buf, rest));
    }
    pieces.push(buf);
    pieces
}

/// Pieces of a buffer, joined in order.
#[derive(Debug, Default)]
struct Joined {
    pieces: Vec<AlignedBuf>,
    ledger: Ledger,
}

impl Joined {
    fn add(&mut self, done: ReadDone) {
        self.ledger.merge(&done.ledger);
        let alone = match self.pieces.last_mut() {
            Some(last) => last.unsplit(done.buf).err(),
            None => Some(done.buf),
        };
        self.pieces.extend(alone);
    }

    /// One buffer. A read that was tried again comes back in other memory than the caller's; only then everything is copied together.
    fn finish(mut self, context: &Context) -> Result<ReadDone> {
        if self.pieces.len() == 1
            && let Some(buf) = self.pieces.pop()
        {
            let ledger = self.ledger;
            return Ok(ReadDone { buf, ledger });
        }
        let len = self.pieces.iter().map(|piece| piece.len()).sum();
        let mut buf = match context.pool().try_lease(len) {
            Some(buf) => buf,
            None => AlignedBuf::alloc(len, Pages::default())?,
        };
        let mut at = 0;
        for piece in &self.pieces {
            buf[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        let path = self.ledger.paths.keys().next().copied();
        self.ledger
            .record_copy(path.unwrap_or(DataPath::Memory), len as u64);
        let ledger = self.ledger;
        Ok(ReadDone { buf, ledger })
    }
}

/// Small objects in flight at once for one caller.
const SMALL_AT_ONCE: usize = 32;

/// [`Store::read_small`] by reading one object after the other, some of them side by side.
pub(crate) async fn read_each<S: Store + ?Sized>(
    store: &S,
    objects: &[(Key, u64)],
    mut buf: AlignedBuf,
    options: &ReadOptions,
) -> Result<ReadDone> {
    let bytes: u64 = objects.iter().map(|(_, size)| size).sum();
    if (buf.len() as u64) < bytes {
        let message = format!("buffer of {} bytes for {bytes} bytes", buf.len());
        return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(store.location()));
    }
    let mut pieces = Vec::with_capacity(objects.len());
    for (_, size) in objects {
        let rest = buf.split_off(*size as usize);
        pieces.push(std::mem::replace(&mut buf, rest));
    }
    let mut reads: Vec<BoxFuture<'_, Result<ReadDone>>> = Vec::with_capacity(pieces.len());
    for ((key, size), piece) in objects.iter().zip(pieces) {
        reads.push(Box::pin(read_one(store, key, *size, piece, options)));
    }
    let mut reads = stream::iter(reads).buffered(SMALL_AT_ONCE);
    let mut whole: Vec<AlignedBuf> = Vec::new();
    let mut ledger = Ledger::default();
    let mut push = |piece: AlignedBuf| {
        let alone = match whole.last_mut() {
            Some(last) => last.unsplit(piece).err(),
            None => Some(piece),
        };
        whole.extend(alone);
    };
    while let Some(done) = reads.try_next().await? {
        ledger.merge(&done.ledger);
        push(done.buf);
    }
    push(buf);
    let buf = match whole.len() {
        1 => whole.pop(),
        _ => None,
    };
    let buf = match buf {
        Some(buf) => buf,
        // A read that was tried again comes back in other memory.
        None => AlignedBuf::copy_of(&whole.iter().map(|piece| &piece[..]).collect::<Vec<_>>().concat())?,
    };
    Ok(ReadDone { buf, ledger })
}

async fn read_one<S: Store + ?Sized>(
    store: &S,
    key: &Key,
    size: u64,
    buf: AlignedBuf,
    options: &ReadOptions,
) -> Result<ReadDone> {
    if size == 0 {
        let ledger = Ledger::default();
        return Ok(ReadDone { buf, ledger });
    }
    let read = store.read_into(key, Span::first(size), buf, options).await;
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => shorter(error, size).at(store.location().join(key)),
        _ => error,
    })
}

fn shorter(error: Error, size: u64) -> Error {
    let message = format!("it is shorter than the {size} bytes it was listed with");
    Error::new(ErrorKind::Precondition, "read", message)
        .with_source(error)
        .with_hint("it changed meanwhile; list again")
}
