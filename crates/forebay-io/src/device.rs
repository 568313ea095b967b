//! Memory of GPUs, and copies to it.
//!
//! The CUDA driver is opened by name while the program runs ([`Driver`]): a program with this module works on a machine without a GPU, where the
//! answer to "which devices are there" is an error that says what is missing. The driver API is used, not the runtime: it comes with the
//! kernel module, so that its version is always the machine's own, and it shares the primary context with whatever else is in the process (torch).
//!
//! ```text
//! Driver --open--> Device --alloc--> DeviceBuf          one context per device, the process's primary one
//!                     |---stream--> Stream
//!                     '---HostPin--> pinned host memory
//! AlignedBuf --Flight::new--copy(stream, piece, DeviceBuf)--launch--> in flight --wait--> AlignedBuf again
//! ```
//!
//! A [`Flight`] owns the host memory that the device reads from and gives it back once the device is done: memory cannot be
//! reused, freed or returned to its pool while a copy runs, whatever the caller forgets. [`Ring`] is a set of pinned slots that flights recycle,
//! made once per process.
//!
//! Why not `cudarc`: it panics where the library or one of its hundreds of symbols is missing, and thirty calls are needed here.

mod driver;
mod feeder;
mod flight;
mod info;
mod limit;
mod memory;
mod pin;
mod place;
mod ring;
mod stream;
mod strips;
#[cfg(test)]
pub(crate) mod tests;

pub use driver::Driver;
pub use feeder::{Feeder, Targets};
pub use flight::Flight;
pub use info::{DeviceInfo, DeviceMemory};
pub use limit::copy_limit;
pub use memory::DeviceBuf;
pub use pin::HostPin;
pub use place::Place;
pub use ring::{RING_BYTES_DEFAULT, RING_BYTES_MAX, Ring, RingConfig, RingStats, Uploads};
pub use stream::{Event, Stream};
pub use strips::Strips;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};

use self::driver::{CuContext, CuDevice};
use crate::per_process::PerProcess;

/// A GPU whose primary context this process uses; clones share it.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    driver: Arc<Driver>,
    ordinal: u32,
    handle: CuDevice,
    context: CuContext,
}

// SAFETY: handles of the driver API may be used from any thread; the context is made current for each call.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks what it shares.
unsafe impl Sync for Inner {}

impl Device {
    /// The device numbered `ordinal` among those visible to this process, with its primary context.
    pub fn open(driver: &Arc<Driver>, ordinal: u32) -> Result<Self> {
        let count = driver.device_count()?;
        if ordinal >= count {
            let message = format!("there is no device cuda:{ordinal}: {count} visible to this process");
            return Err(Error::new(ErrorKind::InvalidInput, "open device", message)
                .with_hint("number devices from 0, and look at CUDA_VISIBLE_DEVICES"));
        }
        let handle = driver.device_handle(ordinal)?;
        let context = driver.retain_context(handle)?;
        Ok(Self(Arc::new(Inner {
            driver: Arc::clone(driver),
            ordinal,
            handle,
            context,
        })))
    }

    /// The device numbered `ordinal` of the driver of this machine. It is kept: making a context anew takes longer than many a load.
    pub fn system(ordinal: u32) -> Result<Self> {
        // A forked child has the handles of its parent and none of their use: the driver says so when it opens the device anew.
        static KEPT: PerProcess<BTreeMap<u32, Device>> = PerProcess::new();
        let driver = Driver::system()?;
        let mut kept = KEPT.lock();
        if let Some(device) = kept.get(&ordinal) {
            return Ok(device.clone());
        }
        let device = Self::open(&driver, ordinal)?;
        kept.insert(ordinal, device.clone());
        Ok(device)
    }

    /// The driver behind it.
    pub fn driver(&self) -> &Arc<Driver> {
        &self.0.driver
    }

    /// Its number among the visible devices.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Name, identity and place in the machine.
    pub fn info(&self) -> Result<DeviceInfo> {
        self.0.driver.device_info(self.0.ordinal)
    }

    /// Free and total memory right now.
    pub fn memory(&self) -> Result<DeviceMemory> {
        let _entered = self.enter()?;
        self.0.driver.memory()
    }

    /// `len` bytes of device memory. What is missing is told in bytes when there is not enough.
    pub fn alloc(&self, len: usize) -> Result<DeviceBuf> {
        DeviceBuf::new(self, len)
    }

    /// A queue of copies that run in order, beside those of other streams.
    pub fn stream(&self) -> Result<Stream> {
        Stream::new(self)
    }

    /// Make the context current on this thread until the guard goes, as whoever called expects to find its own afterwards.
    pub(crate) fn enter(&self) -> Result<Entered<'_>> {
        self.0.driver.push_context(self.0.context)?;
        Ok(Entered(&self.0.driver))
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (Arc::ptr_eq(&self.0.driver, &other.0.driver) && self.0.handle == other.0.handle)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device(cuda:{})", self.0.ordinal)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.release_context(self.handle);
    }
}

/// The context is current on this thread.
pub(crate) struct Entered<'a>(&'a Driver);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.pop_context();
    }
}
