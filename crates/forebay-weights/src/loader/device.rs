//! Loads into device memory: opens devices, ring and direct path, lets the loader fill the sink, and makes the ledger say which way bytes went.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Result};
use forebay_io::device::{Device, RING_BYTES_DEFAULT, Ring, RingConfig};
use forebay_io::gds::{Gds, GdsPolicy};
use forebay_store::Context;

use super::{LoadOptions, LoadReport, load_into};
use crate::sink::{DeviceReport, DeviceSink, DeviceTensor, Direct, Sink};
use crate::source::Source;

/// Where to load to, and how.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// Numbers of devices; each gets everything, from one read.
    pub ordinals: Vec<u32>,
    /// Whether bytes must, may or must not go by GPUDirect Storage.
    pub gds: GdsPolicy,
    /// Pinned memory of this process; counts for its first load.
    pub pinned_bytes: u64,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            ordinals: vec![0],
            gds: GdsPolicy::default(),
            pinned_bytes: RING_BYTES_DEFAULT,
        }
    }
}

/// Load into the memory of devices; the tensors of each, in the order of the ordinals.
pub async fn load_device(
    source: &Source,
    options: &LoadOptions,
    wanted: &DeviceOptions,
    context: &Context,
) -> Result<(Vec<Vec<DeviceTensor>>, LoadReport, DeviceReport)> {
    let wanted = wanted.clone();
    let sink = tokio::task::spawn_blocking(move || open(&wanted))
        .await
        .map_err(|error| {
            Error::new(ErrorKind::Cancelled, "load", "the runtime is shutting down").with_source(error)
        })??;
    load_sink(source, options, sink, context).await
}

/// Open what a load needs of devices. Calls into drivers block, the first one of a process for long.
fn open(wanted: &DeviceOptions) -> Result<DeviceSink> {
    let devices = wanted
        .ordinals
        .iter()
        .map(|ordinal| Device::system(*ordinal))
        .collect::<Result<Vec<Device>>>()?;
    let first = devices
        .first()
        .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "load", "no device is named"))?;
    let config = RingConfig {
        bytes_max: wanted.pinned_bytes,
    };
    let ring = Ring::shared(first, config)?;
    let direct = match (wanted.gds, devices.len()) {
        (GdsPolicy::Off, _) => Direct::No,
        (GdsPolicy::Prefer, 1) => Direct::new(GdsPolicy::Prefer, Gds::open_if_offered(first).map(Arc::new))?,
        (policy, 1) => Direct::new(policy, Gds::open(first).map(Arc::new))?,
        (policy, count) => {
            let message = format!("one read feeds {count} devices, which is done through pinned memory");
            Direct::new(
                policy,
                Err(Error::new(ErrorKind::Unsupported, "open gds", message)),
            )?
        }
    };
    DeviceSink::new(devices, ring, direct)
}

/// Load into an open sink.
pub(super) async fn load_sink(
    source: &Source,
    options: &LoadOptions,
    sink: DeviceSink,
    context: &Context,
) -> Result<(Vec<Vec<DeviceTensor>>, LoadReport, DeviceReport)> {
    let sink = Arc::new(sink.within(options.memory_bytes_max));
    let shared: Arc<dyn Sink> = Arc::<DeviceSink>::clone(&sink);
    let mut report = load_into(source, options, shared, context).await?;
    let device = sink.report();
    if let Some(reason) = &device.gds_refusal {
        tell_downgrade(&mut report, reason, device.gds.is_some());
    }
    Ok((sink.tensors(), report, device))
}

/// Say why bytes did not go by GPUDirect Storage, for each path that they took instead. Bytes that it moved without proof are not counted as its own.
fn tell_downgrade(report: &mut LoadReport, reason: &str, is_proved: bool) {
    let ledger = &mut report.ledger;
    if !is_proved && let Some(unproved) = ledger.paths.remove(&DataPath::Gds) {
        ledger.record(DataPath::Buffered, unproved.bytes, unproved.requests);
        ledger.record_copy(DataPath::Buffered, unproved.bytes);
    }
    let taken: Vec<DataPath> = ledger
        .paths
        .iter()
        .filter(|(path, totals)| **path != DataPath::Gds && totals.bytes > 0)
        .map(|(path, _)| *path)
        .collect();
    for path in taken {
        ledger.record_downgrade(DataPath::Gds, path, reason);
    }
}
