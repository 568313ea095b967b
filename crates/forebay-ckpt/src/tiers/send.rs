//! Brings one object from one store to another, checked on the way.
//!
//! ```text
//! ranges of the source, some ahead --> checker, in order --> parts of an upload, some at once --> [all seals held] --> complete
//! ```
//!
//! An upload becomes visible by its completion alone, and that comes after the last seal has held: what is damaged at the source never appears at the
//! destination. Where nobody there compared what arrived, it is read back by the same seals.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf, Class};
use forebay_store::{PutDone, PutMode, PutOptions, ReadOptions, Upload, WriteCheck};
use futures::stream::{self, Stream, StreamExt, TryStreamExt};

use super::seal::{Checker, Sealed};
use crate::pages::Source;

/// Ranges read ahead of the check: hides the latency of a disk or an object store.
const READS_AHEAD: usize = 4;

/// Parts on their way to the destination at once, for each object: with several objects side by side, past the knee of the servers measured.
const PARTS_AT_ONCE: usize = 8;

/// Bytes of one range where the destination does not say: of a check that sends nothing.
const CHECK_BYTES: u64 = 8 << 20;

/// From where to where, and how.
pub(super) struct Way<'a> {
    pub(super) from: &'a Source,
    pub(super) to: &'a Source,
    pub(super) class: Class,
    /// Read everything back that was sent.
    pub(super) reads_back: bool,
    /// Given bytes as they pass.
    pub(super) tell: &'a (dyn Fn(u64) + Send + Sync),
}

/// An object that was sent.
#[derive(Debug, Default)]
pub(super) struct Sent {
    /// Bytes for which no chunk speaks any more.
    pub(super) unreferenced_bytes: u64,
    pub(super) ledger: Ledger,
}

impl Way<'_> {
    /// Bring an object. `Corrupt` when it is not what the checkpoint says; then nothing is there of it.
    pub(super) async fn send(&self, object: Sealed, mode: PutMode) -> Result<Sent> {
        let object = Arc::new(object);
        let version = self.look(&object).await?;
        let options = PutOptions {
            mode,
            class: self.class,
            size_hint: Some(object.bytes),
            ..PutOptions::default()
        };
        let mut sent = Sent::default();
        let put = if object.bytes <= self.from.context.limits().part_bytes {
            self.send_whole(&object, version, &options, &mut sent).await
        } else {
            self.send_parts(&object, version, &options, &mut sent).await
        };
        let put = match put {
            // By its name it is the same object, and objects are put whole: somebody was faster.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && mode == PutMode::IfAbsent => None,
            // A disk that could not make it durable may show it all the same, and the next drain must not take it for whole.
            Err(error) if is_of_disk(&error) => {
                if let Err(error) = self.to.store.delete(&object.key).await {
                    tracing::warn!(%error, "cannot remove what a disk failed to keep");
                }
                return Err(error);
            }
            put => Some(put?),
        };
        if let Some(put) = &put {
            sent.ledger.merge(&put.ledger);
        }
        sent.ledger.verified_bytes -= sent.unreferenced_bytes.min(sent.ledger.verified_bytes);
        let is_unchecked = put.is_none_or(|put| put.check == WriteCheck::Unchecked);
        if is_unchecked || self.reads_back {
            self.read_back(&object, &mut sent.ledger).await?;
        }
        Ok(sent)
    }

    /// The version that all ranges are read of; refuses an object of another length.
    async fn look(&self, object: &Sealed) -> Result<Option<String>> {
        let place = self.from.store.location().join(&object.key);
        let meta = self.from.store.head(&object.key).await.map_err(unreadable)?;
        if meta.size != object.bytes {
            let message = format!("it has {} bytes, but {} were written", meta.size, object.bytes);
            return Err(Error::new(ErrorKind::Corrupt, "drain", message).at(place));
        }
        Ok(meta.version)
    }

    async fn send_whole(
        &self,
        object: &Arc<Sealed>,
        version: Option<String>,
        options: &PutOptions,
        sent: &mut Sent,
    ) -> Result<PutDone> {
        let checker = shared(object);
        let reads = checked_source(
            self.from,
            object,
            version,
            self.class,
            object.bytes.max(1),
            &checker,
        );
        let parts: Vec<(Buf, Ledger)> = reads.try_collect().await?;
        let mut bufs = Vec::new();
        for (buf, read) in parts {
            (self.tell)(buf.len() as u64);
            sent.ledger.merge(&read);
            bufs.push(buf);
        }
        sent.unreferenced_bytes = finish(self.from, &checker)?;
        self.to.store.put(&object.key, bufs.into(), options).await
    }

    async fn send_parts(
        &self,
        object: &Arc<Sealed>,
        version: Option<String>,
        options: &PutOptions,
        sent: &mut Sent,
    ) -> Result<PutDone> {
        let upload: Arc<dyn Upload> = self.to.store.upload(&object.key, options).await?.into();
        let checker = shared(object);
        let done = self.pass(object, version, &upload, &checker).await;
        match done.and_then(|ledger| Ok((ledger, finish(self.from, &checker)?))) {
            Ok((ledger, unreferenced_bytes)) => {
                sent.ledger.merge(&ledger);
                sent.unreferenced_bytes = unreferenced_bytes;
                upload.complete().await
            }
            Err(error) => {
                if let Err(abort) = upload.abort().await {
                    tracing::warn!(error = %abort, "cannot give up an upload");
                }
                Err(error)
            }
        }
    }

    async fn pass(
        &self,
        object: &Arc<Sealed>,
        version: Option<String>,
        upload: &Arc<dyn Upload>,
        checker: &Shared,
    ) -> Result<Ledger> {
        let parts = checked_source(
            self.from,
            object,
            version,
            self.class,
            upload.part_bytes(),
            checker,
        );
        let sends = stream::iter(0u32..).zip(parts).map(|(index, part)| async move {
            let (buf, mut ledger) = part?;
            let bytes = buf.len() as u64;
            ledger.merge(&upload.put_part(index, buf.into()).await?);
            (self.tell)(bytes);
            Ok::<_, Error>(ledger)
        });
        let mut sends = std::pin::pin!(sends.buffer_unordered(PARTS_AT_ONCE));
        let mut ledger = Ledger::default();
        while let Some(sent) = sends.try_next().await? {
            ledger.merge(&sent);
        }
        Ok(ledger)
    }

    /// Check what lies at the destination; what is not right is removed.
    pub(super) async fn read_back(&self, object: &Arc<Sealed>, ledger: &mut Ledger) -> Result<()> {
        let checker = shared(object);
        let read = async {
            let parts = checked(self.to, object, None, self.class, CHECK_BYTES, &checker);
            let mut parts = std::pin::pin!(parts);
            while let Some((_, read)) = parts.try_next().await? {
                ledger.merge(&read);
            }
            finish(self.to, &checker)
        };
        let Err(error) = read.await else { return Ok(()) };
        if error.kind() == ErrorKind::Corrupt {
            self.to.store.delete(&object.key).await?;
        }
        let message = format!("what arrived as {} is not what was sent", object.key);
        Err(Error::new(error.kind(), "drain", message)
            .at(self.to.store.location())
            .with_source(error))
    }
}

/// True when a disk failed: what it shows now may not be what it has after a power failure.
pub(super) fn is_of_disk(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::OutOfSpace)
}

/// Of a failure at the source: what is missing there, or lies where the disk cannot read, is damage of that checkpoint and of no other. A source that is away is not.
pub(super) fn unreadable(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::Io => {
            let message = "what the checkpoint names cannot be read";
            Error::new(ErrorKind::Corrupt, "drain", message).with_source(error)
        }
        _ => error,
    }
}

/// A checker that passes from one blocking task to the next.
type Shared = Arc<Mutex<Checker>>;

fn shared(object: &Arc<Sealed>) -> Shared {
    Arc::new(Mutex::new(Arc::clone(object).checker()))
}

fn finish(source: &Source, checker: &Shared) -> Result<u64> {
    if !source.checks {
        return Ok(0);
    }
    let finished = checker.lock().unwrap_or_else(PoisonError::into_inner).finish();
    finished.map_err(|error| error.at(source.store.location()))
}

/// [`checked`], of the source.
fn checked_source<'a>(
    source: &'a Source,
    object: &'a Arc<Sealed>,
    version: Option<String>,
    class: Class,
    piece_bytes: u64,
    checker: &Shared,
) -> impl Stream<Item = Result<(Buf, Ledger)>> + Send + use<'a> {
    checked(source, object, version, class, piece_bytes, checker).map_err(unreadable)
}

/// The object in pieces of `piece_bytes`, in order, each checked as far as its bytes allow.
fn checked<'a>(
    source: &'a Source,
    object: &'a Arc<Sealed>,
    version: Option<String>,
    class: Class,
    piece_bytes: u64,
    checker: &Shared,
) -> impl Stream<Item = Result<(Buf, Ledger)>> + Send + use<'a> {
    let options = Arc::new(ReadOptions {
        version,
        class,
        ..ReadOptions::default()
    });
    let checker = Arc::clone(checker);
    let spans: Vec<Span> = Span::first(object.bytes).pieces(piece_bytes).collect();
    stream::iter(spans)
        // Leased in order: were a later read to hold the last memory, the one before would wait for ever.
        .then(move |span| async move {
            let memory = source.memory(span.len() as usize).await?;
            Ok::<_, Error>((span, memory))
        })
        .map(move |leased| {
            let options = Arc::clone(&options);
            async move {
                let (span, memory) = leased?;
                read(source, object, span, memory, &options).await
            }
        })
        .buffered(READS_AHEAD)
        .then(move |read| {
            let checker = Arc::clone(&checker);
            async move {
                let (buf, ledger) = read?;
                let buf = check(source, buf, checker).await?;
                Ok((buf, ledger))
            }
        })
}

async fn read(
    source: &Source,
    object: &Sealed,
    span: Span,
    memory: AlignedBuf,
    options: &ReadOptions,
) -> Result<(Buf, Ledger)> {
    let done = source.store.read_into(&object.key, span, memory, options).await;
    let done = done.map_err(|error| match error.kind() {
        ErrorKind::InvalidInput => {
            let message = "it is shorter than the checkpoint says";
            Error::new(ErrorKind::Corrupt, "drain", message)
                .at(source.store.location().join(&object.key))
                .with_source(error)
        }
        _ => error,
    })?;
    let mut ledger = done.ledger;
    ledger.verified_bytes += span.len();
    Ok((done.buf.freeze().slice(..span.len() as usize), ledger))
}

async fn check(source: &Source, buf: Buf, checker: Shared) -> Result<Buf> {
    if !source.checks {
        return Ok(buf);
    }
    let checking = tokio::task::spawn_blocking(move || {
        let fed = checker.lock().unwrap_or_else(PoisonError::into_inner).feed(&buf);
        fed.map(|()| buf)
    });
    let checked = checking.await.map_err(|error| {
        Error::new(ErrorKind::Internal, "drain", "hashing was broken off").with_source(error)
    })?;
    checked.map_err(|error| error.at(source.store.location()))
}
