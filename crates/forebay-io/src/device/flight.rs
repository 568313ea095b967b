//! Host memory on its way to devices.
//!
//! A [`Flight`] takes a filled buffer, queues copies of its pieces on any streams (one read may feed several devices), and gives the buffer back when the
//! last of them is done. While it is in flight nobody else has the buffer or can free what is copied to, so the calls need no unsafe contract:
//! a flight that is dropped waits first.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::Result;

use super::driver::misuse;
use super::{DeviceBuf, Event, Stream};
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
        const OP: &str = "copy to device";
        if stream.device() != target.device() {
            return Err(misuse(OP, "the stream belongs to another device"));
        }
        let Some(buf) = &self.buf else {
            return Err(misuse(OP, "the buffer was given back"));
        };
        let Some(from) = buf.get(piece.clone()) else {
            return Err(misuse(
                OP,
                format!("bytes {piece:?} of a buffer of {}", buf.len()),
            ));
        };
        let to = target.piece(offset, from.len(), OP)?;
        if from.is_empty() {
            return Ok(());
        }
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
        // SAFETY: both pieces lie within their allocations, which this flight holds and lets go of only after it has waited for the stream.
        unsafe {
            device
                .driver()
                .copy_in(to, from.as_ptr(), from.len(), stream.handle())
        }
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
            for event in self.events.drain(..) {
                outcome = outcome.and(event.wait());
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
