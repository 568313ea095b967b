//! Writes a payload: segments of memory one after the other, as an upload of large parts.
//!
//! A part that lies within one segment, at an aligned address, goes out from the caller's memory; any other is gathered into leased memory, and the ledger
//! says so.

use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{Buf, BufPool, PAGE};
use forebay_store::{PutOptions, Upload};
use tokio::task::{JoinError, JoinSet};

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
}

/// Write the segments as one object.
pub(super) async fn write(
    source: &Source,
    key: &Key,
    segments: &Segments,
    options: &PutOptions,
) -> Result<Ledger> {
    let part_bytes = source.context.limits().part_bytes;
    if segments.end <= part_bytes {
        let body: Vec<Buf> = segments.list.iter().map(|(_, buf)| buf.clone()).collect();
        return Ok(source.store.put(key, body.into(), options).await?.ledger);
    }
    let options = PutOptions {
        size_hint: Some(segments.end),
        ..options.clone()
    };
    let upload: Arc<dyn Upload> = Arc::from(source.store.upload(key, &options).await?);
    match send(source.context.pool(), &upload, segments).await {
        Ok(mut ledger) => {
            ledger.merge(&upload.complete().await?.ledger);
            Ok(ledger)
        }
        Err(error) => {
            if let Err(error) = upload.abort().await {
                tracing::warn!(%error, "cannot give up an upload");
            }
            Err(error)
        }
    }
}

/// Send all parts off, several at once. Each is a task of its own: gathering one is a copy, and one thread copies slower than a disk writes.
async fn send(pool: &BufPool, upload: &Arc<dyn Upload>, segments: &Segments) -> Result<Ledger> {
    let segments = Arc::new(segments.clone());
    let mut flight = JoinSet::new();
    let sent = send_each(&mut flight, pool, upload, &segments).await;
    // Nobody may write any more when the upload is given up.
    flight.shutdown().await;
    sent
}

async fn send_each(
    flight: &mut JoinSet<Result<Ledger>>,
    pool: &BufPool,
    upload: &Arc<dyn Upload>,
    segments: &Arc<Segments>,
) -> Result<Ledger> {
    let spans = Span::first(segments.end).pieces(upload.part_bytes());
    let mut ledger = Ledger::default();
    for (index, span) in (0u32..).zip(spans) {
        while flight.len() >= PARTS_IN_FLIGHT
            && let Some(part) = flight.join_next().await
        {
            ledger.merge(&landed(part)?);
        }
        let (pool, upload, segments) = (pool.clone(), Arc::clone(upload), Arc::clone(segments));
        flight.spawn(async move { send_part(&pool, &*upload, &segments, index, span).await });
    }
    while let Some(part) = flight.join_next().await {
        ledger.merge(&landed(part)?);
    }
    Ok(ledger)
}

/// What came of a part that a task wrote.
pub(super) fn landed(part: Result<Result<Ledger>, JoinError>) -> Result<Ledger> {
    part.map_err(|error| {
        Error::new(ErrorKind::Internal, "save", "writing a part was broken off").with_source(error)
    })?
}

async fn send_part(
    pool: &BufPool,
    upload: &dyn Upload,
    segments: &Segments,
    index: u32,
    span: Span,
) -> Result<Ledger> {
    let (part, is_copy) = gather(pool, segments, span).await?;
    let mut ledger = upload.put_part(index, part).await?;
    if is_copy {
        let path = ledger.paths.keys().next().copied();
        ledger.record_copy(path.unwrap_or(DataPath::Memory), span.len());
    }
    Ok(ledger)
}

/// One part as one buffer, and whether that took a copy.
async fn gather(pool: &BufPool, segments: &Segments, span: Span) -> Result<(Buf, bool)> {
    let mut pieces = segments.within(span);
    let first = pieces.next();
    if let Some(first) = first
        && first.len() as u64 == span.len()
        && first.is_aligned(PAGE)
    {
        return Ok((first, false));
    }
    let mut part = pool.lease(span.len() as usize).await??;
    let mut at = 0;
    for piece in segments.within(span) {
        if let Some(place) = part.get_mut(at..at + piece.len()) {
            place.copy_from_slice(&piece);
        }
        at += piece.len();
    }
    Ok((part.freeze().slice(..span.len() as usize), true))
}
