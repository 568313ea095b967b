//! Where `forebay load` loads to: host memory, or GPUs with the limit of their bus.

use forebay_core::{ByteSize, Error, ErrorKind, Result};
use forebay_io::device::{Device, Place, Ring, RingConfig, copy_limit};
use forebay_io::gds::GdsPolicy;
use forebay_store::Context;
use forebay_weights::{
    DeviceOptions, DeviceReport, DeviceTensor, HostTensor, LoadOptions, LoadReport, Source, load_device,
    load_host,
};

use crate::app::App;
use crate::args::LoadArgs;
use crate::bench::meter::{Meter, Sample};
use crate::printer::Printed;

/// Copies of 8 MiB that show the limit of the bus: a gigabyte.
const LIMIT_COPIES: usize = 128;

/// The destination.
#[derive(Debug)]
pub(super) enum Target {
    Host,
    Devices(DeviceOptions),
}

/// What was loaded, held until it is measured.
#[derive(Debug)]
pub(super) enum Loaded {
    Host(#[expect(dead_code, reason = "held for its memory")] Vec<HostTensor>),
    Devices(
        #[expect(dead_code, reason = "held for its memory")] Vec<Vec<DeviceTensor>>,
        Box<DeviceReport>,
    ),
}

impl Loaded {
    pub(super) fn device(&self) -> Option<DeviceReport> {
        match self {
            Self::Host(_) => None,
            Self::Devices(_, report) => Some((**report).clone()),
        }
    }
}

impl Target {
    pub(super) fn parse(args: &LoadArgs) -> Result<Self> {
        let gds = args.gds.parse()?;
        let places = args
            .device
            .iter()
            .map(|name| name.parse())
            .collect::<Result<Vec<Place>>>()?;
        let mut ordinals = Vec::new();
        for place in &places {
            match place {
                Place::Host if places.len() == 1 && gds == GdsPolicy::Require => {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        "arguments",
                        "--gds require is for GPUs, and these tensors go to the memory of the host",
                    )
                    .with_hint("name a GPU, such as --device cuda:0"));
                }
                Place::Host if places.len() == 1 => return Ok(Self::Host),
                Place::Host => {
                    return Err(Error::new(
                        ErrorKind::InvalidInput,
                        "arguments",
                        "host memory and GPUs cannot be loaded to at once",
                    ));
                }
                Place::Cuda(ordinal) => ordinals.push(*ordinal),
            }
        }
        Ok(Self::Devices(DeviceOptions {
            ordinals,
            gds,
            pinned_bytes: args.pinned.0,
        }))
    }

    pub(super) async fn load(
        &self,
        source: &Source,
        options: &LoadOptions,
        context: &Context,
    ) -> Result<(Loaded, LoadReport)> {
        match self {
            Self::Host => {
                let (tensors, report) = load_host(source, options, context).await?;
                Ok((Loaded::Host(tensors), report))
            }
            Self::Devices(wanted) => {
                let (tensors, report, device) = load_device(source, options, wanted, context).await?;
                Ok((Loaded::Devices(tensors, Box::new(device)), report))
            }
        }
    }

    /// What the bus gives to plain copies of pinned memory.
    pub(super) fn bus_limit(&self) -> Result<Option<Sample>> {
        let Self::Devices(wanted) = self else {
            return Ok(None);
        };
        let Some(ordinal) = wanted.ordinals.first() else {
            return Ok(None);
        };
        let device = Device::system(*ordinal)?;
        let config = RingConfig {
            bytes_max: wanted.pinned_bytes,
        };
        let ring = Ring::shared(&device, config)?;
        let meter = Meter::start();
        let (bytes, time) = copy_limit(&device, &ring, LIMIT_COPIES)?;
        let mut sample = meter.stop(bytes);
        // Without what allocating took.
        sample.time = time;
        Ok(Some(sample))
    }
}

/// What was done on devices, in words.
pub(super) fn print(report: &DeviceReport, app: &App) -> Printed {
    let printer = app.printer();
    let ring = &report.ring;
    printer.data(format_args!(
        "pinned: {} of {}, in {:.3} s beside the loads; {} waits for a slot",
        ByteSize(ring.pinned_bytes),
        ByteSize(ring.bytes_max),
        ring.pin_seconds,
        ring.waits
    ))?;
    printer.data(format_args!(
        "device: {} copied, allocated in {:.4} s, first piece there {:.4} s after it was read",
        ByteSize(report.copied_bytes),
        report.alloc_seconds,
        report.first_landing_seconds
    ))?;
    if let Some(gds) = &report.gds {
        printer.data(format_args!(
            "gds: {} reads, {} by nvidia-fs, {} by p2pdma, {} through host memory, {} not aligned",
            gds.reads, gds.reads_nvfs, gds.reads_p2p, gds.reads_posix, gds.reads_unaligned
        ))?;
    }
    Ok(())
}
