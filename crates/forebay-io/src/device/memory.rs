//! Device memory with an owner.

use std::fmt;

use forebay_core::{ByteSize, Error, ErrorKind, Result};

use super::driver::{CuAddress, From};
use super::flight::queue;
use super::{Device, Stream, Strips};

/// Device memory, freed on drop. Its content is whatever was there before.
pub struct DeviceBuf {
    device: Device,
    address: CuAddress,
    len: usize,
}

impl DeviceBuf {
    pub(super) fn new(device: &Device, len: usize) -> Result<Self> {
        let _entered = device.enter()?;
        // The driver refuses to allocate nothing.
        let address = device
            .driver()
            .alloc(len.max(1))
            .map_err(|error| explain(device, len, error))?;
        Ok(Self {
            device: device.clone(),
            address,
            len,
        })
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its address, for those who share the device's context in this process.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copy `into.len()` bytes from `offset` to host memory and wait for them: for checks and small things.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let from = self.piece(offset, into.len(), "copy from device")?;
        let stream = self.device.stream()?;
        let _entered = self.device.enter()?;
        // SAFETY: the piece lies within this allocation, the destination is borrowed for us alone, and both are held until the stream
        // has been waited for below.
        let copied = unsafe {
            self.device
                .driver()
                .copy_out(into.as_mut_ptr(), from, into.len(), stream.handle())
        };
        // The wait comes first: nothing may leave here while the device still writes.
        stream.wait()?;
        copied
    }

    /// Copy strips of `source`, on the same device, into this memory, and wait for them.
    pub fn copy_from(&self, stream: &Stream, source: &Self, strips: &[Strips]) -> Result<()> {
        if self.device != source.device || stream.device() != &self.device {
            return Err(super::driver::misuse(
                "copy on device",
                "the memory is of two devices",
            ));
        }
        for strips in strips {
            strips.check(source.len, self.len)?;
        }
        let _entered = self.device.enter()?;
        let mut queued = Ok(());
        for strips in strips.iter().filter(|strips| strips.bytes > 0 && strips.rows > 0) {
            // SAFETY: the strips lie within both, as checked; both are borrowed until the stream has been waited for below.
            queued = queued
                .and_then(|()| unsafe { queue(stream, From::Device(source.address), *strips, self.address) });
        }
        stream.wait()?;
        queued
    }

    /// The address of `offset..offset + len`, which must lie within.
    pub(super) fn piece(&self, offset: usize, len: usize, op: &'static str) -> Result<CuAddress> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address + offset as u64),
            _ => Err(super::driver::misuse(
                op,
                format!(
                    "bytes {offset}.. of length {len} in device memory of {}",
                    self.len
                ),
            )),
        }
    }
}

/// Say how much is there when there is not enough.
fn explain(device: &Device, len: usize, error: Error) -> Error {
    if error.kind() != ErrorKind::OutOfSpace {
        return error;
    }
    let free = match device.driver().memory() {
        Ok(memory) => format!(
            "{} of {} are free",
            ByteSize(memory.free_bytes),
            ByteSize(memory.total_bytes)
        ),
        Err(_) => "how much is free is not known".to_owned(),
    };
    let message = format!(
        "{} ({len} bytes) are needed on cuda:{}, and {free}",
        ByteSize(len as u64),
        device.ordinal()
    );
    let hint = error.hint().unwrap_or_default().to_owned();
    Error::new(ErrorKind::OutOfSpace, "allocate device memory", message)
        .with_hint(hint)
        .with_source(error)
}

impl Drop for DeviceBuf {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else {
            return;
        };
        // SAFETY: the address is this allocation's, and goes with it; flights that copy into it hold it alive.
        unsafe { self.device.driver().free(self.address) };
    }
}

impl fmt::Debug for DeviceBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuf")
            .field("device", &self.device)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
