//! GPUDirect Storage: from a file straight to the memory of a GPU, or not at all.
//!
//! [`Gds`] opens cuFile strictly and reads through it; at the end [`Gds::proof`] compares cuFile's own counters, and one read that went through host
//! memory fails it. What a machine lacks for this is told by [`probe`], which reads `/proc` and `/sys` and tries.
//!
//! ```text
//! file --cuFile, whole pages--> scratch on the device --copy on the device--> where the bytes belong
//! ```
//!
//! Direct reads want file offset, length and address at pages, and tensors in files lie anywhere: the scratch takes whole pages, and the copy behind it is
//! a hundred times faster than the read.

pub mod probe;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Limits, Result, Span};

use crate::completion::Completion;
use crate::cufile::{Counters, CuFile, GDS_ALIGN, Handle, Opened};
use crate::device::{Device, DeviceBuf, Stream, Strips};
use crate::file::{File, OpenHow};
use crate::workers::Workers;

/// Reads side by side: each holds a thread and a scratch until it is done.
const READS_MAX: u32 = 16;

/// Most bytes of one read, the size of a scratch.
pub const GDS_READ_BYTES_MAX: u64 = 16 << 20;

/// Whether bytes must, may or must not go by GPUDirect Storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GdsPolicy {
    /// Every byte, or an error that says why not.
    Require,
    /// Where it is shown to work; otherwise through pinned memory, and the ledger says why.
    Prefer,
    /// Not at all.
    #[default]
    Off,
}

impl FromStr for GdsPolicy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "require" => Ok(Self::Require),
            "prefer" => Ok(Self::Prefer),
            "off" => Ok(Self::Off),
            _ => Err(Error::new(
                ErrorKind::InvalidInput,
                "gds",
                format!("unknown policy '{}'", text.escape_debug()),
            )
            .with_field("gds")
            .with_hint("one of: require, prefer, off")),
        }
    }
}

/// A device that reads files by itself.
pub struct Gds {
    library: Arc<CuFile>,
    opened: Opened,
    device: Device,
    before: Counters,
    workers: Workers,
    idle: Mutex<Vec<Lane>>,
    /// Reads that brought what they were asked for.
    reads: AtomicU64,
}

/// What one read needs at a time.
struct Lane {
    scratch: DeviceBuf,
    stream: Stream,
}

impl Gds {
    /// With the library of this machine.
    pub fn open(device: &Device) -> Result<Self> {
        Self::with_library(CuFile::system()?, device)
    }

    /// The same where the kernel offers a way at all: opening the library to hear that it does not takes longer than many a load.
    pub fn open_if_offered(device: &Device) -> Result<Self> {
        probe::offered(Path::new("/"))?;
        Self::open(device)
    }

    /// With a library; an error says why reads could not be direct, or could not be shown to be.
    pub fn with_library(library: Arc<CuFile>, device: &Device) -> Result<Self> {
        let opened = {
            let _entered = device.enter()?;
            library.open_driver(true)?
        };
        refuse(&opened)?;
        let before = library.counters()?;
        let limits = Limits {
            worker_threads: READS_MAX,
            ..Limits::default()
        };
        Ok(Self {
            library,
            opened,
            device: device.clone(),
            before,
            workers: Workers::new("forebay-gds", &limits)?,
            idle: Mutex::default(),
            reads: AtomicU64::new(0),
        })
    }

    /// Device memory that so many reads take beside the memory they fill.
    pub fn scratch_bytes(reads: usize) -> u64 {
        (reads as u64).min(READS_MAX.into()) * GDS_READ_BYTES_MAX
    }

    /// What holds for cuFile in this process.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// Make a file known.
    pub fn register(&self, path: &Path) -> Result<Arc<Handle>> {
        let file = Arc::new(File::open(path, OpenHow::READ)?);
        let _entered = self.device.enter()?;
        Ok(Arc::new(self.library.register(file)?))
    }

    /// Read `span`, which begins at a page, and copy strips of it to `target`; on a thread of its own.
    pub fn read(
        self: &Arc<Self>,
        handle: &Arc<Handle>,
        span: Span,
        target: &Arc<DeviceBuf>,
        strips: Vec<Strips>,
    ) -> Completion<Result<()>> {
        let (gds, handle, target) = (Arc::clone(self), Arc::clone(handle), Arc::clone(target));
        self.workers
            .submit(move || gds.read_now(&handle, span, &target, &strips))
    }

    fn read_now(&self, handle: &Handle, span: Span, target: &DeviceBuf, strips: &[Strips]) -> Result<()> {
        if span.len() > GDS_READ_BYTES_MAX || !span.start().is_multiple_of(GDS_ALIGN as u64) {
            let message = format!("{span:?} does not begin at a page, or is too long for one read");
            return Err(Error::new(ErrorKind::Internal, "read by gds", message));
        }
        let lane = self.lane()?;
        let wanted = span.len() as usize;
        // Whole pages also at the end of the file, where fewer bytes come.
        let asked = wanted.next_multiple_of(GDS_ALIGN);
        let got = handle.read(&lane.scratch, 0, (asked, wanted), span.start())?;
        self.reads.fetch_add(1, Ordering::Relaxed);
        if got < wanted {
            let message = format!(
                "the file ends {} bytes early: it was cut while it was read",
                wanted - got
            );
            return Err(Error::new(ErrorKind::Precondition, "read by gds", message)
                .at(handle.file().path().display()));
        }
        let copied = target.copy_from(&lane.stream, &lane.scratch, strips);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(lane);
        copied
    }

    fn lane(&self) -> Result<Lane> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match idle {
            Some(lane) => Ok(lane),
            None => Ok(Lane {
                scratch: self.device.alloc(GDS_READ_BYTES_MAX as usize)?,
                stream: self.device.stream()?,
            }),
        }
    }

    /// What cuFile counted since this was opened. It counts for the whole process: so an error when a single read of anybody went through host memory, or
    /// when fewer reads went straight to the device than were made here.
    pub fn proof(&self) -> Result<Counters> {
        let reads = self.reads.load(Ordering::Relaxed);
        let counters = self.library.counters()?.since(&self.before);
        if counters.proves_direct(reads) {
            return Ok(counters);
        }
        let message = format!(
            "{} of {} reads went through host memory, and {} straight to the device, where {reads} should have",
            counters.reads_posix,
            counters.reads,
            counters.reads_nvfs + counters.reads_p2p
        );
        Err(Error::new(ErrorKind::Unsupported, "prove gds", message)
            .with_hint("`forebay gds FILE` says what is missing and what to change"))
    }
}

impl fmt::Debug for Gds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gds")
            .field("library", &self.library)
            .field("opened", &self.opened)
            .finish_non_exhaustive()
    }
}

/// Why what was opened is no proof of a direct path.
fn refuse(opened: &Opened) -> Result<()> {
    let message = if opened.is_compat_forced == Some(true) {
        "cuFile is told to send all reads through host memory (force_compat_mode)"
    } else if opened.nvfs.is_none() && opened.is_p2pdma_on != Some(true) {
        "cuFile has neither nvidia-fs nor peer-to-peer copies of the kernel"
    } else if !opened.has_statistics {
        "this cuFile does not tell which way its reads went, so nothing would be proved"
    } else {
        return Ok(());
    };
    Err(Error::new(ErrorKind::Unsupported, "open gds", message)
        .with_hint("`forebay gds FILE` says what is missing and what to change"))
}
