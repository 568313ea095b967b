//! Host memory on its way to devices.
//!
//! A [`Flight`] takes a filled buffer, queues copies of its pieces on any streams (one read may feed several devices), and gives the buffer back when the
//! last of them is done. While it is in flight nobody else has the buffer or can free what is copied to, so the calls need no unsafe contract:
//! a flight that is dropped waits first.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::Result;

use super::driver::{From, Rows, misuse};
use super::{DeviceBuf, Event, Stream, Strips};
use crate::buf::AlignedBuf;

/// A buffer with copies of its pieces queued.
pub struct Flight {
    /// Empty once it was given back.
    buf: Option<AlignedBuf>,
    streams: Vec<Stream>,
    events: Vec<Event>,
    targets: Vec<Arc<DeviceBuf>>,
    is_launched: bool,
}

impl Flight {
    /// Of `buf`, with nothing queued yet.
    pub fn new(buf: AlignedBuf) -> Self {
        Self {
            buf: Some(buf),
            streams: Vec::new(),
            events: Vec::new(),
            targets: Vec::new(),
            is_launched: false,
        }
    }

    /// Queue a copy of `piece` of the buffer to `target` at `offset`, by `stream`.
    pub fn copy(
        &mut self,
        stream: &Stream,
        piece: Range<usize>,
        target: &Arc<DeviceBuf>,
        offset: usize,
    ) -> Result<()> {
        let bytes = piece.end.saturating_sub(piece.start);
        self.copy_strips(stream, Strips::run(piece.start, offset, bytes), target)
    }

    /// Queue a copy of strips of the buffer to `target`, by `stream`.
    pub fn copy_strips(&mut self, stream: &Stream, strips: Strips, target: &Arc<DeviceBuf>) -> Result<()> {
        const OP: &str = "copy to device";
        if stream.device() != target.device() {
            return Err(misuse(OP, "the stream belongs to another device"));
        }
        let Some(buf) = &self.buf else {
            return Err(misuse(OP, "the buffer was given back"));
        };
        strips.check(buf.len(), target.len())?;
        if strips.bytes == 0 || strips.rows == 0 {
            return Ok(());
        }
        let source = buf.as_ptr();
        // Remembered first: whatever comes of the call, the stream is waited for.
        self.is_launched = false;
        if !self.streams.iter().any(|known| known.is_same(stream)) {
            self.streams.push(stream.clone());
        }
        if !self.targets.iter().any(|known| Arc::ptr_eq(known, target)) {
            self.targets.push(Arc::clone(target));
        }
        let device = stream.device();
        let _entered = device.enter()?;
        // SAFETY: the strips lie within buffer and target, as checked, and this flight holds both until it has waited for the stream.
        unsafe { queue(stream, From::Host(source), strips, target.address()) }
    }

    /// Mark the end of what was queued.
    pub fn launch(&mut self) -> Result<()> {
        self.is_launched = true;
        self.events.clear();
        for stream in &self.streams {
            match stream.record() {
                Ok(event) => self.events.push(event),
                Err(error) => {
                    // Without its mark, waiting falls back to the whole stream.
                    self.is_launched = false;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// True once all copies are done.
    pub fn is_done(&self) -> Result<bool> {
        if !self.is_launched {
            return Ok(self.streams.is_empty());
        }
        for event in &self.events {
            if !event.is_done()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleep until all copies are done, and take the buffer back. It comes back even when the device failed: then the device reads no more.
    pub fn wait(mut self) -> (Option<AlignedBuf>, Result<()>) {
        let done = self.settle();
        (self.buf.take(), done)
    }

    /// Wait for every stream; the first failure is told.
    fn settle(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        if self.is_launched {
            for (event, stream) in self.events.drain(..).zip(&self.streams) {
                outcome = outcome.and(event.wait());
                stream.give_back(event);
            }
        } else {
            for stream in &self.streams {
                outcome = outcome.and(stream.wait());
            }
        }
        self.streams.clear();
        self.targets.clear();
        outcome
    }
}

/// Put copies of strips into a stream whose device is entered.
///
/// # Safety
/// The strips lie within source and target, and both stay allocated, the source unchanged, until the stream has passed them.
pub(super) unsafe fn queue(stream: &Stream, source: From, strips: Strips, target: u64) -> Result<()> {
    let driver = stream.device().driver();
    let rows = |strips: Strips| {
        let from = match source {
            From::Host(ptr) => From::Host(ptr.wrapping_add(strips.from)),
            From::Device(address) => From::Device(address + strips.from as u64),
        };
        let strides = (strips.from_stride, strips.to_stride);
        Rows::new(
            from,
            target + strips.to as u64,
            strips.bytes,
            strips.rows,
            strides,
        )
    };
    let strips = strips.simplest();
    if let (1, From::Host(ptr)) = (strips.rows, source) {
        let (to, from) = (target + strips.to as u64, ptr.wrapping_add(strips.from));
        // SAFETY: as the caller promises.
        return unsafe { driver.copy_in(to, from, strips.bytes, stream.handle()) };
    }
    if strips.is_grid() {
        // SAFETY: as the caller promises.
        return unsafe { driver.copy_rows(&rows(strips), stream.handle()) };
    }
    for row in strips.single_rows() {
        // SAFETY: as the caller promises.
        unsafe { driver.copy_rows(&rows(row), stream.handle()) }?;
    }
    Ok(())
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            tracing::warn!("a copy that nobody waited for failed: {error}");
        }
    }
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flight")
            .field("streams", &self.streams.len())
            .field("is_launched", &self.is_launched)
            .finish_non_exhaustive()
    }
}
