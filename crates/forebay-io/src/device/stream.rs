//! Queues of copies, and marks in them.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::Result;

use super::Device;
use super::driver::{CuEvent, CuStream};

/// A queue of copies of one device: they run in the order they were put in; clones share it.
#[derive(Clone)]
pub struct Stream(Arc<Inner>);

struct Inner {
    device: Device,
    handle: CuStream,
    /// Marks that were passed, for the next ones: making one takes the driver's lock, for which all threads that copy would stand in line.
    spare: Mutex<Vec<Event>>,
}

/// Marks that a stream keeps: as many as there are buffers on their way at most.
const SPARE_MAX: usize = 128;

// SAFETY: handles of the driver API may be used from any thread.
unsafe impl Send for Inner {}
// SAFETY: as above; the driver locks the stream.
unsafe impl Sync for Inner {}

impl Stream {
    pub(super) fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let handle = device.driver().stream_create()?;
        Ok(Self(Arc::new(Inner {
            device: device.clone(),
            handle,
            spare: Mutex::default(),
        })))
    }

    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Event>> {
        self.0.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Wait until everything put in so far is done.
    pub fn wait(&self) -> Result<()> {
        let _entered = self.0.device.enter()?;
        // SAFETY: the stream is open as long as `self`.
        unsafe { self.0.device.driver().stream_wait(self.0.handle) }
    }

    /// A mark behind everything put in so far.
    pub fn record(&self) -> Result<Event> {
        let spare = self.spare().pop();
        let event = match spare {
            Some(event) => event,
            None => Event::new(&self.0.device)?,
        };
        event.record(self)?;
        Ok(event)
    }

    /// Take back a mark that was passed, or that nobody waits for any more.
    pub(super) fn give_back(&self, event: Event) {
        let mut spare = self.spare();
        if spare.len() < SPARE_MAX {
            spare.push(event);
        }
    }

    /// True when both are the same queue.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn handle(&self) -> CuStream {
        self.0.handle
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else {
            return;
        };
        // SAFETY: the last holder goes; work that is queued runs to its end, and its flights wait for their events.
        unsafe { self.device.driver().stream_destroy(self.handle) };
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stream").field(&self.0.device).finish()
    }
}

/// A mark in a stream.
pub struct Event {
    device: Device,
    handle: CuEvent,
}

// SAFETY: handles of the driver API may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver locks the event.
unsafe impl Sync for Event {}

impl Event {
    fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let handle = device.driver().event_create()?;
        Ok(Self {
            device: device.clone(),
            handle,
        })
    }

    fn record(&self, stream: &Stream) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both are open, and the event was made for the stream's device.
        unsafe { self.device.driver().event_record(self.handle, stream.handle()) }
    }

    /// True once the device has passed the mark.
    pub fn is_done(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: the event is open as long as `self`.
        unsafe { self.device.driver().event_is_done(self.handle) }
    }

    /// Sleep until the device has passed the mark.
    pub fn wait(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the event is open as long as `self`.
        unsafe { self.device.driver().event_wait(self.handle) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_entered) = self.device.enter() else {
            return;
        };
        // SAFETY: the event is open, and goes with its only holder.
        unsafe { self.device.driver().event_destroy(self.handle) };
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Event").field(&self.device).finish()
    }
}
