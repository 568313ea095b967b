//! Is what arrived what was sent? By the store's own word where its probe backs it, by reading back otherwise.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{Error, ErrorKind, Key, Ledger, PathPolicy, Result, Scheme, Span, crc64nvme};
use forebay_io::Access;
use tokio::task::JoinSet;

use super::object::Sums;
use super::report::DestinationCheck;
use super::{Shared, Verify, stopped};
use crate::store::{PutDone, ReadDone, ReadOptions, WriteCheck};

/// Have the destination's probe done before the first write, so that its word counts: one probe in a week spares reading everything back.
/// Directories compare nothing by themselves, so there is nothing to find out.
pub(super) async fn prepare(shared: &Shared) {
    let is_local = shared.destination.location().scheme() == Scheme::File;
    if shared.options.verify == Verify::Auto
        && !is_local
        && let Err(error) = shared.destination.capabilities().await
    {
        tracing::debug!(%error, "the destination cannot be probed; what is written will be read back");
    }
}

/// Check a finished write against the sums of its pieces, in order. A wrong object does not stay.
pub(super) async fn destination(
    shared: &Arc<Shared>,
    to: &Key,
    done: &PutDone,
    sums: &[Sums],
    ledger: &mut Ledger,
) -> Result<DestinationCheck> {
    let whole = Sums::join(sums.iter().copied());
    let written_as_read =
        whole.is_some_and(|whole| whole.crc64nvme == done.crc64nvme && whole.len == done.size);
    if !written_as_read {
        let error = wrong(shared, to, "the store took other bytes than it was given");
        return Err(remove(shared, to, done, error).await);
    }
    let check = match (shared.options.verify, done.check) {
        (Verify::None | Verify::Auto, WriteCheck::ByStore) => DestinationCheck::ByStore,
        (Verify::None, _) => DestinationCheck::NotCompared,
        (Verify::Auto | Verify::ReadBack, _) => match read_back(shared, to, done, sums).await {
            Ok(read) => {
                ledger.merge(&Ledger {
                    verified_bytes: 0,
                    ..read
                });
                DestinationCheck::ReadBack
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Err(remove(shared, to, done, error).await);
            }
            Err(error) => return Err(error),
        },
    };
    if check != DestinationCheck::NotCompared {
        ledger.verified_bytes += done.size;
    }
    Ok(check)
}

/// Read all pieces side by side and compare each with its sum. A single piece uses the permit its task holds already.
async fn read_back(shared: &Arc<Shared>, to: &Key, done: &PutDone, sums: &[Sums]) -> Result<Ledger> {
    if let [only] = sums {
        return read_piece(shared, to, done.version.as_ref(), 0, *only).await;
    }
    let window = shared.context.limits().store_requests_max.max(1) as usize;
    let mut ledger = Ledger::default();
    let mut tasks = JoinSet::new();
    let mut pieces = sums.iter().scan(0, |start, sums| {
        let at = *start;
        *start += sums.len;
        Some((at, *sums))
    });
    loop {
        while tasks.len() < window
            && let Some((start, sums)) = pieces.next()
        {
            let (shared, to, version) = (Arc::clone(shared), to.clone(), done.version.clone());
            tasks.spawn(async move {
                let _permit = shared.requests.acquire().await.map_err(|_| stopped())?;
                read_piece(&shared, &to, version.as_ref(), start, sums).await
            });
        }
        let joined = tokio::select! {
            biased;
            () = shared.cancel.cancelled() => return Err(stopped()),
            joined = tasks.join_next() => joined,
        };
        match joined {
            None => return Ok(ledger),
            Some(Ok(result)) => ledger.merge(&result?),
            Some(Err(error)) => {
                let message = "a task of the copy panicked";
                return Err(Error::new(ErrorKind::Internal, "verify", message).with_source(error));
            }
        }
    }
}

async fn read_piece(
    shared: &Shared,
    to: &Key,
    version: Option<&String>,
    start: u64,
    sums: Sums,
) -> Result<Ledger> {
    if sums.len == 0 {
        return Ok(Ledger::default());
    }
    let span = Span::at(start, sums.len)?;
    let done = read_around_cache(shared, to, version, span).await?;
    if crc64nvme(&done.buf[..span.len() as usize]) == sums.crc64nvme {
        return Ok(done.ledger);
    }
    let message = format!("bytes {span} read back are not those that were written");
    Err(wrong(shared, to, &message))
}

/// Read from the device where it can be done: the page cache would only show what was given to it.
async fn read_around_cache(
    shared: &Shared,
    to: &Key,
    version: Option<&String>,
    span: Span,
) -> Result<ReadDone> {
    let read = async |policy: PathPolicy| {
        let buf = shared.context.pool().lease(span.len() as usize).await??;
        let options = ReadOptions {
            version: version.cloned(),
            class: shared.options.class,
            policy,
            ..ReadOptions::default()
        };
        shared.destination.read_into(to, span, buf, &options).await
    };
    let is_local = shared.destination.location().scheme() == Scheme::File;
    if is_local && !shared.readback_buffered.load(Ordering::Relaxed) {
        let engine = shared.context.disk().report().kind;
        let direct = engine.path(&Access::Direct { align: 1 });
        match read(PathPolicy::Require(direct)).await {
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                shared.readback_buffered.store(true, Ordering::Relaxed);
                tracing::debug!(%error, "reading back through the page cache");
            }
            result => return result,
        }
    }
    read(PathPolicy::Fastest).await
}

/// Remove an object that is wrong, if it is still the one we wrote.
async fn remove(shared: &Shared, to: &Key, done: &PutDone, error: Error) -> Error {
    let is_ours = match (shared.destination.head(to).await, &done.version) {
        (Ok(meta), Some(version)) => meta.version.as_ref() == Some(version),
        // Without versions there is nothing better to go by than its size.
        (Ok(meta), None) => meta.size == done.size,
        (Err(_), _) => false,
    };
    if !is_ours {
        return error;
    }
    match shared.destination.delete(to).await {
        Ok(()) => error.with_hint(
            "the wrong object was removed; copy again, and check the destination's device or memory",
        ),
        Err(failed) => error.with_hint(format!("the wrong object could not be removed: {failed}")),
    }
}

fn wrong(shared: &Shared, to: &Key, message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "verify", message).at(shared.destination.location().join(to))
}
