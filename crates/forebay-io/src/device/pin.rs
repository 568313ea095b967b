//! Host memory that devices read without the driver's help: pinned for all devices, and not write-combined.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{ByteSize, Clock, Result};

use super::Device;
use crate::map::HUGE_PAGE;
use crate::pool::PinHook;

/// Pins the memory of pools by the CUDA driver, and knows what that took.
#[derive(Debug)]
pub struct HostPin {
    device: Device,
    clock: Arc<dyn Clock>,
    pinned_bytes: AtomicU64,
    took_ns: AtomicU64,
}

impl HostPin {
    /// Pin by `device`; the memory is pinned for all others too.
    pub fn new(device: &Device, clock: Arc<dyn Clock>) -> Self {
        Self {
            device: device.clone(),
            clock,
            pinned_bytes: AtomicU64::new(0),
            took_ns: AtomicU64::new(0),
        }
    }

    /// The device it pins by.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The clock it measures by.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Bytes that are pinned right now.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_bytes.load(Ordering::Relaxed)
    }

    /// Time that pinning took so far.
    pub fn took(&self) -> Duration {
        Duration::from_nanos(self.took_ns.load(Ordering::Relaxed))
    }
}

impl PinHook for HostPin {
    fn pin(&self, ptr: NonNull<u8>, len: usize) -> Result<()> {
        let start = self.clock.now();
        // Touched here, huge page by huge page: the kernel gives huge pages to a write, and single ones to a driver that asks for them all.
        for offset in (0..len).step_by(HUGE_PAGE) {
            // SAFETY: the offset lies within the pool's fresh memory, which nobody else has been told of.
            unsafe { ptr.add(offset).write_volatile(0) };
        }
        let _entered = self.device.enter()?;
        // SAFETY: the pool keeps the memory mapped until it calls `unpin`.
        let pinned = unsafe { self.device.driver().register(ptr.as_ptr(), len) };
        let took = self.clock.now().saturating_sub(start);
        self.took_ns.fetch_add(
            u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
        pinned.inspect(|()| {
            self.pinned_bytes.fetch_add(len as u64, Ordering::Relaxed);
            tracing::debug!("pinned {} in {took:?}", ByteSize(len as u64));
        })
    }

    fn unpin(&self, ptr: NonNull<u8>, len: usize) {
        if let Ok(_entered) = self.device.enter() {
            self.device.driver().unregister(ptr.as_ptr());
            self.pinned_bytes.fetch_sub(len as u64, Ordering::Relaxed);
        }
    }
}
