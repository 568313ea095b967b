//! What the bus gives: plain copies of pinned memory, as the limit to hold loads against.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::Result;

use super::{Device, Flight, Ring};

/// Bytes of one copy.
const COPY_BYTES: usize = 8 << 20;

/// Time that `copies` copies of 8 MiB of pinned memory to a device take, with the bytes that moved.
pub fn copy_limit(device: &Device, ring: &Ring, copies: usize) -> Result<(u64, Duration)> {
    let target = Arc::new(device.alloc(COPY_BYTES * copies.max(1))?);
    let stream = device.stream()?;
    let mut slot = ring.lease(COPY_BYTES).wait()??;
    slot.fill(0x5a);
    let mut flight = Flight::new(slot);
    let start = ring.clock().now();
    for index in 0..copies {
        flight.copy(&stream, 0..COPY_BYTES, &target, index * COPY_BYTES)?;
    }
    flight.launch()?;
    let (_, outcome) = flight.wait();
    outcome?;
    Ok((
        (COPY_BYTES * copies) as u64,
        ring.clock().now().saturating_sub(start),
    ))
}
