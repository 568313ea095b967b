//! The CUDA driver library: found, opened, and its calls with their errors in words.
//!
//! `calls!` lists every call that is used, with its symbol. All of them exist in drivers of CUDA 11.4 (2021) and later; a library that lacks one
//! is refused by name. [`Driver`] wraps each call in a safe function where the arguments alone decide whether the call is sound, and in an unsafe one
//! where the caller must keep memory alive.

mod fault;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, mem};

use forebay_core::{Error, ErrorKind, Result, env};

use self::fault::{fault, no_library, too_old};
use super::info::{DeviceInfo, DeviceMemory, pci_text, uuid_text};
use crate::dl::Library;
use crate::per_process::PerProcess;

pub(super) type CuDevice = c_int;
pub(super) type CuContext = *mut c_void;
pub(super) type CuStream = *mut c_void;
pub(super) type CuEvent = *mut c_void;
/// An address in device memory.
pub(super) type CuAddress = u64;
type Code = c_uint;

/// `CUDA_SUCCESS`.
const SUCCESS: Code = 0;
/// `CUDA_ERROR_NOT_READY`: an event has not come yet.
const NOT_READY: Code = 600;
/// The oldest driver whose calls are used: CUDA 11.4, the driver branch 470.
const VERSION_MIN: c_int = 11_040;
/// Room for a device's name.
const NAME_BYTES_MAX: usize = 256;
/// Room for an address on the PCI bus.
const PCI_BYTES_MAX: usize = 64;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`.
const ATTRIBUTE_COMPUTE_MAJOR: c_int = 75;
/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR`.
const ATTRIBUTE_COMPUTE_MINOR: c_int = 76;
/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all devices. Never write-combined: the processor reads this memory when it checks sums.
const REGISTER_PORTABLE: c_uint = 1;
/// `CU_MEMORYTYPE_HOST`.
const MEMORY_HOST: c_int = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const MEMORY_DEVICE: c_int = 2;
/// `CU_STREAM_NON_BLOCKING`: does not wait for the default stream of others.
const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING`: a thread that waits sleeps.
const EVENT_FLAGS: c_uint = 1 | 2;

macro_rules! calls {
    ($( $name:ident = $symbol:literal ( $($arg:ty),* ); )*) => {
        /// Addresses of the calls.
        struct Calls { $( $name: unsafe extern "C" fn($($arg),*) -> Code, )* }

        impl Calls {
            /// Look all of them up; the name of the first one that is missing otherwise.
            fn load(library: &Library) -> Result<Self, &'static CStr> {
                Ok(Self { $(
                    $name: {
                        let address = library.symbol($symbol).ok_or($symbol)?;
                        // SAFETY: the symbol is this function of the CUDA driver API, whose signature never changes under one
                        // (versioned) name; a pointer to a function has the size of a pointer.
                        unsafe { mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> Code>(address.as_ptr()) }
                    },
                )* })
            }
        }
    };
}

calls! {
    init = c"cuInit"(c_uint);
    driver_version = c"cuDriverGetVersion"(*mut c_int);
    error_name = c"cuGetErrorName"(Code, *mut *const c_char);
    error_string = c"cuGetErrorString"(Code, *mut *const c_char);
    device_count = c"cuDeviceGetCount"(*mut c_int);
    device_get = c"cuDeviceGet"(*mut CuDevice, c_int);
    device_name = c"cuDeviceGetName"(*mut c_char, c_int, CuDevice);
    device_uuid = c"cuDeviceGetUuid_v2"(*mut [u8; 16], CuDevice);
    device_pci = c"cuDeviceGetPCIBusId"(*mut c_char, c_int, CuDevice);
    device_memory = c"cuDeviceTotalMem_v2"(*mut usize, CuDevice);
    device_attribute = c"cuDeviceGetAttribute"(*mut c_int, c_int, CuDevice);
    context_retain = c"cuDevicePrimaryCtxRetain"(*mut CuContext, CuDevice);
    context_release = c"cuDevicePrimaryCtxRelease_v2"(CuDevice);
    context_push = c"cuCtxPushCurrent_v2"(CuContext);
    context_pop = c"cuCtxPopCurrent_v2"(*mut CuContext);
    memory_info = c"cuMemGetInfo_v2"(*mut usize, *mut usize);
    memory_alloc = c"cuMemAlloc_v2"(*mut CuAddress, usize);
    memory_free = c"cuMemFree_v2"(CuAddress);
    host_register = c"cuMemHostRegister_v2"(*mut c_void, usize, c_uint);
    host_unregister = c"cuMemHostUnregister"(*mut c_void);
    copy_in = c"cuMemcpyHtoDAsync_v2"(CuAddress, *const c_void, usize, CuStream);
    copy_out = c"cuMemcpyDtoHAsync_v2"(*mut c_void, CuAddress, usize, CuStream);
    copy_rows = c"cuMemcpy2DAsync_v2"(*const Rows, CuStream);
    stream_create = c"cuStreamCreate"(*mut CuStream, c_uint);
    stream_destroy = c"cuStreamDestroy_v2"(CuStream);
    stream_wait = c"cuStreamSynchronize"(CuStream);
    event_create = c"cuEventCreate"(*mut CuEvent, c_uint);
    event_destroy = c"cuEventDestroy_v2"(CuEvent);
    event_record = c"cuEventRecord"(CuEvent, CuStream);
    event_query = c"cuEventQuery"(CuEvent);
    event_wait = c"cuEventSynchronize"(CuEvent);
}

/// `CUDA_MEMCPY2D`: rows of equal length at equal distances.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    from_x: usize,
    from_y: usize,
    from_kind: c_int,
    from_host: *const c_void,
    from_device: CuAddress,
    from_array: *const c_void,
    from_stride: usize,
    to_x: usize,
    to_y: usize,
    to_kind: c_int,
    to_host: *mut c_void,
    to_device: CuAddress,
    to_array: *const c_void,
    to_stride: usize,
    bytes: usize,
    count: usize,
}

/// Where rows are copied from.
#[derive(Debug, Clone, Copy)]
pub(super) enum From {
    Host(*const u8),
    Device(CuAddress),
}

impl Rows {
    /// `rows` rows of `bytes` bytes, with the distances between their starts.
    pub(super) fn new(from: From, to: CuAddress, bytes: usize, rows: usize, strides: (usize, usize)) -> Self {
        let (from_kind, from_host, from_device) = match from {
            From::Host(ptr) => (MEMORY_HOST, ptr.cast(), 0),
            From::Device(address) => (MEMORY_DEVICE, std::ptr::null(), address),
        };
        Self {
            from_x: 0,
            from_y: 0,
            from_kind,
            from_host,
            from_device,
            from_array: std::ptr::null(),
            from_stride: strides.0,
            to_x: 0,
            to_y: 0,
            to_kind: MEMORY_DEVICE,
            to_host: std::ptr::null_mut(),
            to_device: to,
            to_array: std::ptr::null(),
            to_stride: strides.1,
            bytes,
            count: rows,
        }
    }
}

/// The CUDA driver of this machine.
pub struct Driver {
    calls: Calls,
    library: Library,
    version: c_int,
}

impl Driver {
    /// The driver of this machine, opened once per process: `FOREBAY_CUDA_LIBRARY`, or where the loader finds it.
    pub fn system() -> Result<Arc<Self>> {
        static SYSTEM: PerProcess<Option<Arc<Driver>>> = PerProcess::new();
        let mut system = SYSTEM.lock();
        if let Some(driver) = &*system {
            return Ok(Arc::clone(driver));
        }
        let candidates = match env::CUDA_LIBRARY.get_os() {
            Some(path) => vec![PathBuf::from(path)],
            None => vec![PathBuf::from("libcuda.so.1"), PathBuf::from("libcuda.so")],
        };
        let driver = Arc::new(Self::open(&candidates)?);
        *system = Some(Arc::clone(&driver));
        Ok(driver)
    }

    /// The first of `candidates` that is a CUDA driver.
    pub fn open(candidates: &[PathBuf]) -> Result<Self> {
        let library = Library::open(candidates).map_err(|refusals| no_library(&refusals))?;
        let calls = Calls::load(&library).map_err(|missing| {
            let missing = missing.to_string_lossy();
            too_old(&format!("{} lacks {missing}", library.path().display()))
        })?;
        let mut driver = Self {
            calls,
            library,
            version: 0,
        };
        // SAFETY: fills one integer, and works before `cuInit`.
        let code = unsafe { (driver.calls.driver_version)(&raw mut driver.version) };
        driver.check("open device", code)?;
        if driver.version < VERSION_MIN {
            let (major, minor) = driver.version();
            return Err(too_old(&format!("it is for CUDA {major}.{minor}")));
        }
        // SAFETY: takes flags, of which there are none, and may be called any number of times.
        let code = unsafe { (driver.calls.init)(0) };
        driver.check("open device", code)?;
        Ok(driver)
    }

    /// The newest CUDA this driver is for.
    pub fn version(&self) -> (u32, u32) {
        (self.version as u32 / 1000, self.version as u32 % 1000 / 10)
    }

    /// The library file that was opened.
    pub fn library(&self) -> &std::path::Path {
        self.library.path()
    }

    /// Devices visible to this process.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: fills one integer.
        let code = unsafe { (self.calls.device_count)(&raw mut count) };
        self.check("list devices", code)?;
        Ok(count.max(0) as u32)
    }

    /// What the device of that number is; makes no context.
    pub fn device_info(&self, ordinal: u32) -> Result<DeviceInfo> {
        const OP: &str = "describe device";
        let device = self.device_handle(ordinal)?;
        let mut name = [0u8; NAME_BYTES_MAX];
        // SAFETY: fills at most the length given, with its end.
        let code =
            unsafe { (self.calls.device_name)(name.as_mut_ptr().cast(), NAME_BYTES_MAX as c_int, device) };
        self.check(OP, code)?;
        let mut pci = [0u8; PCI_BYTES_MAX];
        // SAFETY: as above.
        let code =
            unsafe { (self.calls.device_pci)(pci.as_mut_ptr().cast(), PCI_BYTES_MAX as c_int, device) };
        self.check(OP, code)?;
        let mut uuid = [0u8; 16];
        // SAFETY: fills sixteen bytes.
        let code = unsafe { (self.calls.device_uuid)(&raw mut uuid, device) };
        self.check(OP, code)?;
        let mut memory = 0usize;
        // SAFETY: fills one integer.
        let code = unsafe { (self.calls.device_memory)(&raw mut memory, device) };
        self.check(OP, code)?;
        Ok(DeviceInfo {
            ordinal,
            name: text(&name),
            uuid: uuid_text(&uuid),
            pci: pci_text(&text(&pci)),
            memory_bytes: memory as u64,
            compute: (
                self.attribute(ATTRIBUTE_COMPUTE_MAJOR, device)?,
                self.attribute(ATTRIBUTE_COMPUTE_MINOR, device)?,
            ),
        })
    }

    fn attribute(&self, attribute: c_int, device: CuDevice) -> Result<u32> {
        let mut value = 0;
        // SAFETY: fills one integer.
        let code = unsafe { (self.calls.device_attribute)(&raw mut value, attribute, device) };
        self.check("describe device", code)?;
        Ok(value.max(0) as u32)
    }

    pub(super) fn device_handle(&self, ordinal: u32) -> Result<CuDevice> {
        let mut device = 0;
        // SAFETY: fills one integer.
        let code = unsafe { (self.calls.device_get)(&raw mut device, ordinal as c_int) };
        self.check("open device", code)?;
        Ok(device)
    }

    pub(super) fn retain_context(&self, device: CuDevice) -> Result<CuContext> {
        let mut context = std::ptr::null_mut();
        // SAFETY: fills one handle; retaining is counted, and undone in `release_context`.
        let code = unsafe { (self.calls.context_retain)(&raw mut context, device) };
        self.check("open device", code)?;
        Ok(context)
    }

    pub(super) fn release_context(&self, device: CuDevice) {
        // SAFETY: undoes one `retain_context`, whose handle nobody uses any more.
        let code = unsafe { (self.calls.context_release)(device) };
        self.log("close device", code);
    }

    pub(super) fn push_context(&self, context: CuContext) -> Result<()> {
        // SAFETY: the context is retained by the device that calls this.
        let code = unsafe { (self.calls.context_push)(context) };
        self.check("use device", code)
    }

    pub(super) fn pop_context(&self) {
        let mut context = std::ptr::null_mut();
        // SAFETY: undoes one `push_context` of this thread.
        let code = unsafe { (self.calls.context_pop)(&raw mut context) };
        self.log("leave device", code);
    }

    pub(super) fn memory(&self) -> Result<DeviceMemory> {
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: fills two integers.
        let code = unsafe { (self.calls.memory_info)(&raw mut free, &raw mut total) };
        self.check("ask for device memory", code)?;
        Ok(DeviceMemory {
            free_bytes: free as u64,
            total_bytes: total as u64,
        })
    }

    pub(super) fn alloc(&self, len: usize) -> Result<CuAddress> {
        let mut address = 0;
        // SAFETY: fills one address; the allocation is freed by its owner.
        let code = unsafe { (self.calls.memory_alloc)(&raw mut address, len) };
        self.check("allocate device memory", code)?;
        Ok(address)
    }

    /// # Safety
    /// `address` came from [`alloc`](Self::alloc), is freed once, and nobody uses it any more.
    pub(super) unsafe fn free(&self, address: CuAddress) {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.memory_free)(address) };
        self.log("free device memory", code);
    }

    /// # Safety
    /// `ptr..ptr + len` stays mapped until [`unregister`](Self::unregister).
    pub(super) unsafe fn register(&self, ptr: *mut u8, len: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.host_register)(ptr.cast(), len, REGISTER_PORTABLE) };
        self.check("pin memory", code)
    }

    pub(super) fn unregister(&self, ptr: *mut u8) {
        // SAFETY: the driver looks the address up among those registered and refuses any other.
        let code = unsafe { (self.calls.host_unregister)(ptr.cast()) };
        self.log("unpin memory", code);
    }

    /// # Safety
    /// The source stays as it is, and both sides stay allocated, until the stream has passed this copy.
    pub(super) unsafe fn copy_in(
        &self,
        to: CuAddress,
        from: *const u8,
        len: usize,
        stream: CuStream,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.copy_in)(to, from.cast(), len, stream) };
        self.check("copy to device", code)
    }

    /// # Safety
    /// As for [`copy_in`](Self::copy_in), for every row.
    pub(super) unsafe fn copy_rows(&self, rows: &Rows, stream: CuStream) -> Result<()> {
        // SAFETY: as the caller promises; the structure is read during the call.
        let code = unsafe { (self.calls.copy_rows)(&raw const *rows, stream) };
        self.check("copy to device", code)
    }

    /// # Safety
    /// Nobody else uses the destination, and both sides stay allocated, until the stream has passed this copy.
    pub(super) unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: CuAddress,
        len: usize,
        stream: CuStream,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.copy_out)(to.cast(), from, len, stream) };
        self.check("copy from device", code)
    }

    pub(super) fn stream_create(&self) -> Result<CuStream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: fills one handle.
        let code = unsafe { (self.calls.stream_create)(&raw mut stream, STREAM_NON_BLOCKING) };
        self.check("make stream", code)?;
        Ok(stream)
    }

    /// # Safety
    /// `stream` is open, and not used again.
    pub(super) unsafe fn stream_destroy(&self, stream: CuStream) {
        // SAFETY: as the caller promises; work that is queued still runs to its end.
        let code = unsafe { (self.calls.stream_destroy)(stream) };
        self.log("close stream", code);
    }

    /// # Safety
    /// `stream` is open.
    pub(super) unsafe fn stream_wait(&self, stream: CuStream) -> Result<()> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.stream_wait)(stream) };
        self.check("wait for device", code)
    }

    pub(super) fn event_create(&self) -> Result<CuEvent> {
        let mut event = std::ptr::null_mut();
        // SAFETY: fills one handle.
        let code = unsafe { (self.calls.event_create)(&raw mut event, EVENT_FLAGS) };
        self.check("make event", code)?;
        Ok(event)
    }

    /// # Safety
    /// `event` is open, and not used again.
    pub(super) unsafe fn event_destroy(&self, event: CuEvent) {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.event_destroy)(event) };
        self.log("close event", code);
    }

    /// # Safety
    /// Both are open, and of one device.
    pub(super) unsafe fn event_record(&self, event: CuEvent, stream: CuStream) -> Result<()> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.event_record)(event, stream) };
        self.check("record event", code)
    }

    /// # Safety
    /// `event` is open.
    pub(super) unsafe fn event_is_done(&self, event: CuEvent) -> Result<bool> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.event_query)(event) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.check("ask for event", code)?;
        Ok(true)
    }

    /// # Safety
    /// `event` is open.
    pub(super) unsafe fn event_wait(&self, event: CuEvent) -> Result<()> {
        // SAFETY: as the caller promises.
        let code = unsafe { (self.calls.event_wait)(event) };
        self.check("wait for device", code)
    }

    fn check(&self, op: &'static str, code: Code) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(fault(op, code, &self.words(code)))
    }

    /// What cannot be answered any more is at least told.
    fn log(&self, op: &'static str, code: Code) {
        if code != SUCCESS {
            tracing::warn!("{op}: {}", self.words(code));
        }
    }

    /// The driver's own name and words for a code.
    fn words(&self, code: Code) -> String {
        let ask = |call: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut words = std::ptr::null();
            // SAFETY: fills one pointer to a constant string, or says that it knows no such code.
            let answer = unsafe { call(code, &raw mut words) };
            (answer == SUCCESS && !words.is_null()).then(|| {
                // SAFETY: the strings of the driver have their end and are never freed.
                unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
            })
        };
        match (ask(self.calls.error_name), ask(self.calls.error_string)) {
            (Some(name), Some(words)) => format!("{words} ({name})"),
            (Some(name), None) => name,
            _ => format!("error {code} of the CUDA driver"),
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("library", &self.library.path())
            .field("version", &self.version())
            .finish_non_exhaustive()
    }
}

/// The bytes before the first zero, as text.
fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

/// An error that has nothing to do with a code of the driver.
pub(super) fn misuse(op: &'static str, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, op, message)
}
