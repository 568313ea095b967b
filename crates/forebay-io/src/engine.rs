//! The seam to the operating system.
//!
//! An [`Engine`] moves bytes between open files and buffers, makes them durable, and works on names. Requests own what they
//! touch: the buffer goes in with the request and comes back with the result, the file stays open until its last request is done,
//! and a caller that goes away leaves nothing dangling.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Limits, Result};
use serde::Serialize;

use crate::buf::{AlignedBuf, Buf};
use crate::completion::Completion;
use crate::file::{Access, File};
use crate::gate::Permit;
use crate::names::{NameDone, NameOp};
use crate::psync::Psync;
use crate::uring::Uring;

/// Which engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineKind {
    /// io_uring.
    Uring,
    /// Blocking calls on a thread pool.
    Psync,
    /// Simulated files in memory.
    Sim,
}

/// Which engine runs, with what, and why not better.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineReport {
    /// Which engine.
    pub kind: EngineKind,
    /// What it uses (ring flags, registered memory) and what it could not get, in words.
    pub notes: Vec<String>,
    /// Why io_uring does not run, when it does not.
    pub fallback_reason: Option<String>,
}

/// A finished read: the buffer comes back in every case.
#[derive(Debug)]
pub struct ReadDone {
    /// Bytes read from the start of the buffer; fewer than asked only at the end of the file.
    pub result: Result<usize>,
    /// The buffer.
    pub buf: AlignedBuf,
    /// Requests made to the kernel.
    pub requests: u32,
}

/// A finished write: everything was written, or an error.
#[derive(Debug)]
pub struct WriteDone {
    /// Outcome.
    pub result: Result<()>,
    /// Requests made to the kernel.
    pub requests: u32,
}

/// Moves bytes, makes them durable, works on names.
///
/// Contract, held by the conformance suite in `tests/engine.rs`:
/// - `read` fills `buf[..len]` from `offset`; it loops over short counts, `EINTR` and `EAGAIN`, and stops early only at the end of the file;
/// - `write` writes all of `buf` at `offset` or fails; after a failure any part of it may have reached the file;
/// - on a file with [`Access::Direct`], offset, length and address must be multiples of its alignment, or the request fails
///   with `InvalidInput` without touching the file (a read may extend past the end of the file);
/// - `sync` returns once everything written before it was called is durable; a failed sync is never repeated as success;
/// - buffers and files stay alive until the kernel is done with them, whether or not anybody waits;
/// - the permit is released when the request is done.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Which engine this is and what it uses.
    fn report(&self) -> EngineReport;

    /// Read `len` bytes at `offset` into the front of `buf` (`len` is cut to its capacity).
    fn read(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
        permit: Option<Permit>,
    ) -> Completion<ReadDone>;

    /// Write all of `buf` at `offset`.
    fn write(&self, file: &Arc<File>, offset: u64, buf: Buf, permit: Option<Permit>)
    -> Completion<WriteDone>;

    /// Make the content of `file` durable.
    fn sync(&self, file: &Arc<File>) -> Completion<Result<()>>;

    /// Work on names.
    fn name(&self, op: NameOp) -> Completion<Result<NameDone>>;

    /// Read small files whole, one after the other into the front of `buf`, in one turn of a thread. A file that does not have the size it is named
    /// with is `Precondition`. They go through the page cache: opening each for direct I/O would cost more than it saves.
    fn read_files(
        &self,
        files: Vec<(PathBuf, u64)>,
        buf: AlignedBuf,
        permit: Option<Permit>,
    ) -> Completion<Result<AlignedBuf>>;
}

impl EngineKind {
    /// The path bytes take through this engine to a file with that access.
    pub fn path(self, access: &Access) -> DataPath {
        match (self, access) {
            (Self::Uring, Access::Direct { .. }) => DataPath::DirectUring,
            (Self::Psync, Access::Direct { .. }) => DataPath::DirectPsync,
            (Self::Uring | Self::Psync, Access::Buffered { .. }) => DataPath::Buffered,
            (Self::Sim, _) => DataPath::Memory,
        }
    }
}

/// Which engine to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineChoice {
    /// io_uring where it works, else the thread pool; the report says which and why.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// The thread pool.
    Psync,
}

impl std::str::FromStr for EngineChoice {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "psync" => Ok(Self::Psync),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                "engine",
                format!("unknown engine '{}'", text.escape_debug()),
            )
            .with_hint("one of: auto, uring, psync")),
        }
    }
}

/// Open the engine of that choice.
pub fn open_engine(choice: EngineChoice, limits: &Limits) -> Result<Arc<dyn Engine>> {
    match choice {
        EngineChoice::Psync => Ok(Arc::new(Psync::new(
            limits,
            Some("the thread pool was asked for".to_owned()),
        )?)),
        EngineChoice::Uring => Ok(Arc::new(Uring::new(limits)?)),
        EngineChoice::Auto => match Uring::new(limits) {
            Ok(uring) => Ok(Arc::new(uring)),
            Err(error) => {
                tracing::warn!(%error, "io_uring is not available, using the thread pool");
                Ok(Arc::new(Psync::new(limits, Some(error.to_string()))?))
            }
        },
    }
}

/// Check a request against the alignment of a direct file and the largest offset there is; `len` is what the kernel will be asked for.
pub(crate) fn check_alignment(
    op: &'static str,
    file: &File,
    offset: u64,
    address: usize,
    len: usize,
) -> Result<()> {
    // The kernel's offsets are signed, and io_uring takes -1 for "where the file stands".
    if i64::try_from(offset)
        .ok()
        .and_then(|start| start.checked_add_unsigned(len as u64))
        .is_none()
    {
        let message = format!("{len} bytes at {offset} lie beyond the largest offset");
        return Err(Error::new(ErrorKind::InvalidInput, op, message).at(file.path().display()));
    }
    let Access::Direct { align } = *file.access() else {
        return Ok(());
    };
    let align = u64::from(align);
    if offset.is_multiple_of(align)
        && (address as u64).is_multiple_of(align)
        && (len as u64).is_multiple_of(align)
    {
        return Ok(());
    }
    let message = format!("offset {offset}, length {len} or address is not a multiple of {align}");
    Err(Error::new(ErrorKind::InvalidInput, op, message).at(file.path().display()))
}
