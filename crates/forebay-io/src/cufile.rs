//! NVIDIA's library for reads from storage straight to GPU memory (cuFile), opened by name while the program runs.
//!
//! cuFile falls back to ordinary reads without a word unless it is told not to: `allow_compat_mode` is on by default, and a read that went through
//! host memory looks like one that did not. So the driver is opened with that disallowed ([`CuFile::open_driver`]), what holds afterwards is
//! read back, and its own statistics ([`Counters`]) are compared before and after: they tell for each read which way it went.
//!
//! Calls that only newer libraries have are optional, one by one. The order is: library -> driver -> [`Handle`] of an open file -> reads into a
//! [`DeviceBuf`].

mod fault;
mod search;
mod stats;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;

pub use self::stats::Counters;

use self::fault::{broken, fault, no_library, read_fault};
use self::stats::StatsL3;
use crate::device::{Device, DeviceBuf};
use crate::dl::Library;
use crate::file::File;
use crate::per_process::PerProcess;

/// What direct reads must be aligned to: file offset, length and device address.
pub const GDS_ALIGN: usize = 4096;

/// `CU_FILE_SUCCESS`.
const SUCCESS: c_int = 0;
/// `CU_FILE_DRIVER_ALREADY_OPEN`.
const ALREADY_OPEN: c_int = 5026;
/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const HANDLE_FD: c_int = 1;
/// `CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE`.
const PARAM_ALLOW_COMPAT: c_int = 1;
/// `CUFILE_PARAM_FORCE_COMPAT_MODE`.
const PARAM_FORCE_COMPAT: c_int = 2;
/// `CUFILE_PARAM_USE_PCIP2PDMA`.
const PARAM_P2PDMA: c_int = 7;
/// The level of statistics that tells reads by path, for each GPU.
const STATS_LEVEL: c_int = 3;
/// The bit of `dcontrolflags` that says that compatibility mode is allowed.
const CONTROL_COMPAT_BIT: u32 = 1;

/// What most calls return.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Status {
    code: c_int,
    cuda: c_int,
}

/// `CUfileDescr_t`.
#[repr(C)]
struct Descriptor {
    kind: c_int,
    fd: Fd,
    operations: *const c_void,
}

/// The union of a descriptor and a pointer, of which the first is used.
#[repr(C, align(8))]
struct Fd {
    fd: c_int,
    padding: c_int,
}

/// `CUfileDrvProps`, as it has been since CUDA 11.6.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct RawProperties {
    nvfs_major: u32,
    nvfs_minor: u32,
    poll_threshold: usize,
    direct_bytes_max: usize,
    status_flags: u32,
    control_flags: u32,
    feature_flags: u32,
    device_cache_kib: u32,
    buffer_cache_kib: u32,
    pinned_kib: u32,
    batch_max: u32,
    batch_timeout_ms: u32,
    /// Room for what later versions may add.
    spare: [u64; 16],
}

macro_rules! calls {
    ($( $kind:ident $name:ident = $symbol:literal ( $($arg:ty),* ) $(-> $answer:ty)?; )*) => {
        struct Calls { $( $name: calls!(@type $kind unsafe extern "C" fn($($arg),*) $(-> $answer)?), )* }

        impl Calls {
            fn load(library: &Library) -> Result<Self, &'static std::ffi::CStr> {
                Ok(Self { $( $name: {
                    let call = library.symbol($symbol).map(|address| {
                        // SAFETY: the symbol is this function of the cuFile API; a pointer to a function has the size of a pointer.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $answer)?>(address.as_ptr()) }
                    });
                    calls!(@take $kind call, $symbol)
                }, )* })
            }
        }
    };
    (@type needed $call:ty) => { $call };
    (@type perhaps $call:ty) => { Option<$call> };
    (@take needed $call:ident, $symbol:literal) => { $call.ok_or($symbol)? };
    (@take perhaps $call:ident, $symbol:literal) => { $call };
}

calls! {
    needed driver_open = c"cuFileDriverOpen"() -> Status;
    needed properties = c"cuFileDriverGetProperties"(*mut RawProperties) -> Status;
    needed register = c"cuFileHandleRegister"(*mut *mut c_void, *mut Descriptor) -> Status;
    needed deregister = c"cuFileHandleDeregister"(*mut c_void);
    needed read = c"cuFileRead"(*mut c_void, *mut c_void, usize, i64, i64) -> isize;
    perhaps version = c"cuFileGetVersion"(*mut c_int) -> Status;
    perhaps use_count = c"cuFileUseCount"() -> i64;
    perhaps set_bool = c"cuFileSetParameterBool"(c_int, bool) -> Status;
    perhaps get_bool = c"cuFileGetParameterBool"(c_int, *mut bool) -> Status;
    perhaps set_stats = c"cuFileSetStatsLevel"(c_int) -> Status;
    perhaps start_stats = c"cuFileStatsStart"() -> Status;
    perhaps stats = c"cuFileGetStatsL3"(*mut StatsL3) -> Status;
}

/// The cuFile library of this machine.
pub struct CuFile {
    calls: Calls,
    library: Library,
    version: Option<(u32, u32)>,
}

/// What holds in this process once the driver of cuFile is open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Opened {
    /// Version of the kernel module nvidia-fs; `None` when it is not loaded.
    pub nvfs: Option<(u32, u32)>,
    /// Reads may go through host memory without a word. `None` when the library cannot be asked.
    pub is_compat_allowed: Option<bool>,
    /// All reads go through host memory.
    pub is_compat_forced: Option<bool>,
    /// Direct reads by the kernel's own peer-to-peer copies are switched on.
    pub is_p2pdma_on: Option<bool>,
    /// Somebody else in this process had opened it before, with settings of their own.
    pub was_open: bool,
    /// The library counts reads by the way they went.
    pub has_statistics: bool,
}

impl CuFile {
    /// The library of this machine, opened once per process.
    pub fn system() -> Result<Arc<Self>> {
        static SYSTEM: PerProcess<Option<Arc<CuFile>>> = PerProcess::new();
        let mut system = SYSTEM.lock();
        if let Some(library) = &*system {
            return Ok(Arc::clone(library));
        }
        let library = Arc::new(Self::open(&search::candidates())?);
        *system = Some(Arc::clone(&library));
        Ok(library)
    }

    /// The first of `candidates` that is a cuFile library.
    pub fn open(candidates: &[PathBuf]) -> Result<Self> {
        let library = Library::open(candidates).map_err(|refusals| no_library(&refusals))?;
        let calls = Calls::load(&library).map_err(|missing| {
            broken(&format!(
                "{} lacks {}",
                library.path().display(),
                missing.to_string_lossy()
            ))
        })?;
        let mut opened = Self {
            calls,
            library,
            version: None,
        };
        opened.version = opened.ask_version();
        Ok(opened)
    }

    fn ask_version(&self) -> Option<(u32, u32)> {
        let ask = self.calls.version?;
        let mut version = 0;
        // SAFETY: fills one integer, and needs no open driver.
        let status = unsafe { ask(&raw mut version) };
        (status.code == SUCCESS && version > 0).then_some((version as u32 / 1000, version as u32 % 1000 / 10))
    }

    /// Version of the library, where it tells.
    pub fn version(&self) -> Option<(u32, u32)> {
        self.version
    }

    /// The file that was opened.
    pub fn library(&self) -> &std::path::Path {
        self.library.path()
    }

    /// Open the driver of this process; with `is_strict`, without the permission to go through host memory. The error is cuFile's own refusal: without that permission
    /// it does not open where no direct path exists.
    pub fn open_driver(&self, is_strict: bool) -> Result<Opened> {
        // SAFETY: takes nothing and gives a count.
        let was_open = self.calls.use_count.is_some_and(|ask| unsafe { ask() } > 0);
        if let (true, false, Some(set)) = (is_strict, was_open, self.calls.set_bool) {
            // SAFETY: sets one parameter by number; refused when the driver is open already.
            let status = unsafe { set(PARAM_ALLOW_COMPAT, false) };
            if status.code != SUCCESS && status.code != ALREADY_OPEN {
                return Err(fault("open cufile", status.code, status.cuda));
            }
        }
        if let (false, Some(set)) = (was_open, self.calls.set_stats) {
            // SAFETY: sets the level of statistics.
            let status = unsafe { set(STATS_LEVEL) };
            tracing::debug!(code = status.code, "level of cuFile statistics");
        }
        // SAFETY: takes nothing; counted, and never closed by us, since others may use it.
        let status = unsafe { (self.calls.driver_open)() };
        if status.code != SUCCESS && status.code != ALREADY_OPEN {
            return Err(fault("open cufile", status.code, status.cuda));
        }
        let has_statistics = self.start_statistics();
        let properties = self.properties()?;
        let compat_flag = properties.control_flags >> CONTROL_COMPAT_BIT & 1 == 1;
        Ok(Opened {
            nvfs: (properties.nvfs_major > 0).then_some((properties.nvfs_major, properties.nvfs_minor)),
            is_compat_allowed: Some(self.flag(PARAM_ALLOW_COMPAT).unwrap_or(compat_flag)),
            is_compat_forced: self.flag(PARAM_FORCE_COMPAT),
            is_p2pdma_on: self.flag(PARAM_P2PDMA),
            was_open,
            has_statistics,
        })
    }

    fn start_statistics(&self) -> bool {
        let (Some(start), Some(_), true) =
            (self.calls.start_stats, self.calls.stats, self.knows_statistics())
        else {
            return false;
        };
        if let Some(set) = self.calls.set_stats {
            // SAFETY: sets the level of statistics.
            unsafe { set(STATS_LEVEL) };
        }
        // SAFETY: takes nothing; starting twice is refused with a code and does no harm.
        unsafe { start() };
        self.counters().is_ok()
    }

    /// True when the layout of the statistics is known for this version.
    fn knows_statistics(&self) -> bool {
        self.version.is_some_and(stats::is_layout_known)
    }

    fn properties(&self) -> Result<RawProperties> {
        let mut properties = RawProperties::default();
        // SAFETY: fills a structure whose front is as the header of the library has it, with room behind it.
        let status = unsafe { (self.calls.properties)(&raw mut properties) };
        if status.code != SUCCESS {
            return Err(fault("ask cufile", status.code, status.cuda));
        }
        Ok(properties)
    }

    fn flag(&self, parameter: c_int) -> Option<bool> {
        let ask = self.calls.get_bool?;
        let mut value = false;
        // SAFETY: fills one flag of a parameter by number.
        let status = unsafe { ask(parameter, &raw mut value) };
        (status.code == SUCCESS).then_some(value)
    }

    /// Reads of this process so far, by the way they went, over all GPUs.
    pub fn counters(&self) -> Result<Counters> {
        let unknown = || {
            let message = "this cuFile does not tell which way its reads went";
            Error::new(ErrorKind::Unsupported, "ask cufile", message)
                .with_hint("install the GPUDirect Storage library of CUDA 13.0 or later")
        };
        let ask = self
            .calls
            .stats
            .filter(|_| self.knows_statistics())
            .ok_or_else(unknown)?;
        let mut stats = StatsL3::boxed();
        // SAFETY: fills a structure whose layout is known for this version, with room behind it for more.
        let status = unsafe { ask(&raw mut *stats) };
        if status.code != SUCCESS {
            return Err(fault("ask cufile", status.code, status.cuda));
        }
        Ok(stats.counters())
    }

    /// Make an open file known to cuFile.
    pub fn register(self: &Arc<Self>, file: Arc<File>) -> Result<Handle> {
        let Some(fd) = file.raw_fd() else {
            let message = "a simulated file has no descriptor";
            return Err(Error::new(
                ErrorKind::Unsupported,
                "register with cufile",
                message,
            ));
        };
        let mut descriptor = Descriptor {
            kind: HANDLE_FD,
            fd: Fd { fd, padding: 0 },
            operations: std::ptr::null(),
        };
        let mut handle = std::ptr::null_mut();
        // SAFETY: the descriptor is read during the call, and the file stays open as long as the handle that holds it.
        let status = unsafe { (self.calls.register)(&raw mut handle, &raw mut descriptor) };
        if status.code != SUCCESS {
            return Err(fault("register with cufile", status.code, status.cuda).at(file.path().display()));
        }
        Ok(Handle {
            library: Arc::clone(self),
            raw: handle,
            file,
        })
    }
}

impl fmt::Debug for CuFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CuFile")
            .field("library", &self.library.path())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// An open file that cuFile knows.
pub struct Handle {
    library: Arc<CuFile>,
    raw: *mut c_void,
    file: Arc<File>,
}

// SAFETY: a handle may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: reads through one handle may run side by side.
unsafe impl Sync for Handle {}

impl Handle {
    /// Read `len` bytes at `file_offset` into `target` at `offset`, on this thread. Fewer than `needed` come only at the end of the file: direct reads ask for
    /// whole pages, of which the last may not be there.
    pub fn read(
        &self,
        target: &DeviceBuf,
        offset: usize,
        (len, needed): (usize, usize),
        file_offset: u64,
    ) -> Result<usize> {
        const OP: &str = "read by gds";
        if offset.checked_add(len).is_none_or(|end| end > target.len()) || i64::try_from(file_offset).is_err()
        {
            let message = format!("{len} bytes at {offset} of device memory of {}", target.len());
            return Err(Error::new(ErrorKind::InvalidInput, OP, message));
        }
        let device: &Device = target.device();
        let _entered = device.enter()?;
        let mut done = 0;
        while done < needed.min(len) {
            // SAFETY: the range lies within the allocation, which is borrowed until the call returns, and the read is synchronous.
            let count = unsafe {
                (self.library.calls.read)(
                    self.raw,
                    target.address() as *mut c_void,
                    len - done,
                    file_offset as i64 + done as i64,
                    (offset + done) as i64,
                )
            };
            match usize::try_from(count) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => return Err(read_fault(OP, count).at(self.file.path().display())),
            }
        }
        Ok(done)
    }

    /// The file behind it.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle came from `register`, and goes with its only holder.
        unsafe { (self.library.calls.deregister)(self.raw) };
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}
