//! Memory of others, moved in bounded steps.
//!
//! Stores read into and write from page-aligned memory of ours, so memory of others costs a copy. It is made piece by piece, several pieces on
//! their way at a time: a tensor of any size needs no more than a part of the pool besides itself.

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf};
use forebay_store::{PutDone, PutOptions, ReadOptions, Store, Upload};
use futures::stream::{FuturesUnordered, StreamExt};

use super::record_copy;
use crate::process::Process;
use crate::view::Pinned;

/// Read `span` to the front of `into`, all of one version.
pub(super) async fn fill(
    store: &dyn Store,
    key: &Key,
    span: Span,
    into: Pinned<'_>,
    mut options: ReadOptions,
    process: &Process,
) -> Result<Ledger> {
    let limits = process.context().limits();
    let mut pieces = span.pieces(limits.part_bytes).peekable();
    if options.version.is_none() && span.len() > pieces.peek().map_or(0, |first| first.len()) {
        options.version = store.head(key).await?.version;
    }
    let options = &options;
    let mut reads = FuturesUnordered::new();
    let mut ledger = Ledger::default();
    loop {
        while reads.len() < limits.store_requests_max as usize
            && let Some(piece) = pieces.peek().copied()
            && let Some(buf) = step_buf(process, piece.len() as usize, reads.is_empty())?
        {
            pieces.next();
            reads.push(async move { (piece, store.read_into(key, piece, buf, options).await) });
        }
        let Some((piece, done)) = reads.next().await else {
            break;
        };
        let done = done?;
        let bytes = done.buf.get(..piece.len() as usize).ok_or_else(too_short)?;
        into.copy_in((piece.start() - span.start()) as usize, bytes)?;
        ledger.merge(&done.ledger);
    }
    record_copy(&mut ledger, span.len());
    Ok(ledger)
}

/// Write an object from memory of others, in parts.
pub(super) async fn send(
    store: &dyn Store,
    key: &Key,
    from: Pinned<'_>,
    options: &PutOptions,
    process: &Process,
) -> Result<PutDone> {
    let upload = store.upload(key, options).await?;
    match send_parts(&*upload, from, process).await {
        Ok(ledger) => {
            let mut done = upload.complete().await?;
            done.ledger.merge(&ledger);
            Ok(done)
        }
        Err(error) => {
            // The caller learns what went wrong first; what stays behind is what any upload leaves that nobody finishes.
            let _ = upload.abort().await;
            Err(error)
        }
    }
}

async fn send_parts(upload: &dyn Upload, from: Pinned<'_>, process: &Process) -> Result<Ledger> {
    let at_once = process.context().limits().store_requests_max as usize;
    let part_bytes = (upload.part_bytes() as usize).max(1);
    let mut starts = (0..from.len()).step_by(part_bytes).zip(0_u32..).peekable();
    let mut sends = FuturesUnordered::new();
    let mut ledger = Ledger::default();
    loop {
        while sends.len() < at_once
            && let Some((start, index)) = starts.peek().copied()
            && let len = part_bytes.min(from.len() - start)
            && let Some(buf) = step_buf(process, len, sends.is_empty())?
        {
            starts.next();
            let part = copied(from, start, len, buf)?;
            sends.push(upload.put_part(index, part.into()));
        }
        let Some(sent) = sends.next().await else {
            break;
        };
        ledger.merge(&sent?);
    }
    record_copy(&mut ledger, from.len() as u64);
    Ok(ledger)
}

/// A copy of `len` bytes from `start` on, in `buf`.
pub(super) fn copied(from: Pinned<'_>, start: usize, len: usize, mut buf: AlignedBuf) -> Result<Buf> {
    from.copy_out(start, buf.get_mut(..len).ok_or_else(too_short)?)?;
    Ok(buf.freeze().slice(..len))
}

/// Memory for one step: from the pool while it has some. When the caller holds all of it, waiting for it would never end, so the first step has
/// memory of its own and the others wait for that one.
fn step_buf(process: &Process, len: usize, is_first: bool) -> Result<Option<AlignedBuf>> {
    match process.context().pool().try_lease(len) {
        None if is_first => process.own_buf(len).map(Some),
        lease => Ok(lease),
    }
}

fn too_short() -> Error {
    Error::new(
        ErrorKind::Internal,
        "copy",
        "a buffer is shorter than what it was made for",
    )
}
