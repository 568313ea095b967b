//! Small reads, small writes and locks on the cache's own files.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, PathPolicy, Result, Span};
use forebay_io::{AlignedBuf, Buf, Class, Direct, Disk, File, NameOp, OpenHow, Pages, Purpose, RangeLock};

/// First pause between two tries to get a lock, and the resolution of the timer.
const LOCK_PAUSE_MIN: Duration = Duration::from_millis(1);

/// Longest pause: what a waiter may sleep too long after the lock is free.
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(20);

/// Open a small file of ours through the page cache, which all processes share; made when missing.
pub(super) async fn open_small(disk: &Disk, path: PathBuf) -> Result<Arc<File>> {
    let how = OpenHow {
        purpose: Purpose::Update,
        direct: Direct::Never,
        ..OpenHow::READ
    };
    disk.open_file(path, how, PathPolicy::Fastest).await
}

/// The bytes of `span`; `Precondition` when the file ends before.
pub(super) async fn read_bytes(disk: &Disk, file: &Arc<File>, span: Span) -> Result<AlignedBuf> {
    let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small)?;
    let (buf, _) = disk.read_into(file, span, buf, Class::Latency).await?;
    Ok(buf)
}

/// Write `bytes` at `offset`.
pub(super) async fn write_bytes(disk: &Disk, file: &Arc<File>, offset: u64, bytes: &[u8]) -> Result<()> {
    let buf = Buf::copy_of(bytes)?;
    disk.write_at(file, offset, buf, Class::Latency).await.map(drop)
}

/// Remove a file; one that is gone already is fine.
pub(super) async fn unlink(disk: &Disk, path: PathBuf) -> Result<()> {
    match disk.name(NameOp::Unlink { path }).await {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Wait for the lock on one byte of a file, with pauses, at most `patience`; `None` when somebody else kept it all the time.
pub(super) async fn wait_lock(file: &Arc<File>, byte: u64, patience: Duration) -> Result<Option<RangeLock>> {
    let span = Span::at(byte, 1)?;
    let (mut waited, mut pause) = (Duration::ZERO, LOCK_PAUSE_MIN);
    loop {
        if let Some(lock) = RangeLock::try_exclusive(file, span)? {
            return Ok(Some(lock));
        }
        if waited >= patience {
            return Ok(None);
        }
        tokio::time::sleep(pause).await;
        waited += pause;
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}

/// The same error once more, for another one who waits for the same thing.
pub(super) fn copy_error(error: &Error) -> Error {
    let mut message = error.message().to_owned();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        if !message.is_empty() {
            message.push_str(": ");
        }
        message.push_str(&inner.to_string());
        cause = inner.source();
    }
    let mut copy = Error::new(error.kind(), error.op(), message);
    if let Some(location) = error.location() {
        copy = copy.at(location);
    }
    match error.hint() {
        Some(hint) => copy.with_hint(hint),
        None => copy,
    }
}
