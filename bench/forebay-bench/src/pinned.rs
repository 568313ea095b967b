//! Memory that is pinned already, to a device: what the ring of a load reaches when nothing has to be read.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::Result;
use forebay_core::SystemClock;
use forebay_io::device::{Device, DeviceBuf, Flight, Ring, RingConfig, Stream, Strips};

use crate::job::{Job, Meter};
use crate::{Contender, Done};

/// Bytes of a slot, as loads have them.
const SLOT_BYTES: usize = 8 << 20;

/// Slots in flight: one is being copied while the next wait behind it.
const SLOTS: usize = 4;

pub(crate) struct Pinned {
    ring: Ring,
    stream: Stream,
    target: Arc<DeviceBuf>,
    bytes: usize,
}

impl Pinned {
    pub(crate) fn new(job: &Job) -> Result<Self> {
        let device = Device::system(0)?;
        let bytes = (job.number("bytes")? as usize).next_multiple_of(SLOT_BYTES);
        let config = RingConfig {
            bytes_max: (SLOTS * SLOT_BYTES) as u64,
        };
        let ring = Ring::new(&device, config, Arc::new(SystemClock))?;
        ring.pin_all()?;
        Ok(Self {
            stream: device.stream()?,
            target: Arc::new(device.alloc(bytes)?),
            ring,
            bytes,
        })
    }
}

impl Contender for Pinned {
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>> {
        Box::pin(async move {
            let meter = Meter::start();
            let uploads = self.ring.uploads();
            for at in (0..self.bytes).step_by(SLOT_BYTES) {
                let slot = self.ring.lease(SLOT_BYTES).await??;
                let mut flight = Flight::new(slot);
                flight.copy_strips(&self.stream, Strips::run(0, at, SLOT_BYTES), &self.target)?;
                uploads.send(flight)?;
            }
            uploads.finish().await??;
            Ok(meter.done(self.bytes as u64))
        })
    }
}
