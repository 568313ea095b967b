//! Published constants of links, drives and accelerators, each with what it is often confused with.

use crate::field::choice;

/// NVMe: I/O queues of a controller.
pub const NVME_QUEUES_MAX: u32 = 65_535;
/// NVMe: commands in a queue; 64,000 is often quoted, the specification allows 65,536.
pub const NVME_QUEUE_COMMANDS_MAX: u32 = 65_536;
/// AHCI, for comparison: one queue.
pub const AHCI_QUEUES: u32 = 1;
/// AHCI: commands in the queue.
pub const AHCI_QUEUE_COMMANDS: u32 = 32;

/// Sequential rates of NVMe drives in bytes per second: common writes and reads of the data sheets.
pub const NVME_DRIVE_RATES: [f64; 2] = [3e9, 7e9];
/// A network volume of a cloud, in bytes per second; common, from no publication.
pub const NETWORK_VOLUME_RATE: f64 = 0.5e9;

/// First-byte latency of parallel file systems on flash, in seconds; assumed, but "sub-microsecond" is not possible over a network.
pub const PARALLEL_FS_LATENCY_S: f64 = 50e-6;

/// Dense BF16 rate of an H100 in FLOP/s. 1,979 (or "2,000") is the rate with sparsity, which training does not use.
pub const H100_FLOPS: f64 = 989e12;
/// Memory of an H100 in bytes.
pub const H100_MEMORY_BYTES: f64 = 80e9;
/// NVLink 4 of an H100 in one direction, in bytes per second (900 GB/s in both).
pub const H100_NVLINK: f64 = 450e9;
/// Share of its line rate that InfiniBand NDR delivers: 48 of 50 GB/s.
pub const INFINIBAND_EFFICIENCY: f64 = 0.96;

choice! {
    /// Generation of a network adapter.
    Nic {
        /// InfiniBand EDR, 100 Gb/s.
        Edr = "edr",
        /// InfiniBand HDR, 200 Gb/s.
        Hdr = "hdr",
        /// InfiniBand NDR, 400 Gb/s.
        Ndr = "ndr",
        /// InfiniBand XDR, 800 Gb/s.
        Xdr = "xdr",
    }
}

impl Nic {
    /// Line rate of a port in bytes per second.
    pub const fn rate(self) -> f64 {
        match self {
            Self::Edr => 12.5e9,
            Self::Hdr => 25e9,
            Self::Ndr => 50e9,
            Self::Xdr => 100e9,
        }
    }
}

choice! {
    /// Generation of PCI Express.
    Pcie {
        /// 8 GT/s per lane.
        Gen3 = "gen3",
        /// 16 GT/s per lane.
        Gen4 = "gen4",
        /// 32 GT/s per lane.
        Gen5 = "gen5",
        /// 64 GT/s per lane, in flits.
        Gen6 = "gen6",
    }
}

impl Pcie {
    /// Bytes per second of one lane in one direction. Up to generation 5 a lane carries 128 of 130 bits; flits of
    /// generation 6 have no such code, and their own overhead is not taken off.
    pub const fn lane(self) -> f64 {
        match self {
            Self::Gen3 => 8e9 / 8.0 * 128.0 / 130.0,
            Self::Gen4 => 16e9 / 8.0 * 128.0 / 130.0,
            Self::Gen5 => 32e9 / 8.0 * 128.0 / 130.0,
            Self::Gen6 => 64e9 / 8.0,
        }
    }
}

choice! {
    /// Clusters whose failures were published.
    Published {
        /// Llama 3 405B: 16,384 H100, 54 days, 419 unexpected interruptions.
        Llama3 = "llama3",
        /// What MLCommons assumes.
        Mlcommons = "mlcommons",
        /// Meta RSC-1: 6.5 failures per 1000 node-days, 8 A100 in a node.
        Rsc1 = "rsc1",
        /// OPT-175B: one failure in 7.5 hours on about 1,000 A100.
        Opt175b = "opt175b",
    }
}

impl Published {
    /// GPU-hours of work per failure.
    pub const fn gpu_hours(self) -> f64 {
        match self {
            Self::Llama3 => 16_384.0 * 54.0 * 24.0 / 419.0,
            Self::Mlcommons => 50_000.0,
            Self::Rsc1 => 1000.0 * 24.0 * 8.0 / 6.5,
            Self::Opt175b => 7.5 * 1000.0,
        }
    }

    /// The same as a formula.
    pub const fn formula(self) -> &'static str {
        match self {
            Self::Llama3 => "16384 x 54 x 24 / 419",
            Self::Mlcommons => "50000",
            Self::Rsc1 => "1000 x 24 x 8 / 6.5",
            Self::Opt175b => "7.5 x 1000",
        }
    }

    /// Where it was published.
    pub const fn source(self) -> &'static str {
        match self {
            Self::Llama3 => {
                "Llama 3, arXiv:2407.21783: 419 unexpected interruptions of 16,384 H100 in 54 days"
            }
            Self::Mlcommons => {
                "MLCommons, an assumption: one failure per 50,000 accelerator-hours, \
                 https://mlcommons.org/2025/08/mlperf-storage-v2-0-results/"
            }
            Self::Rsc1 => "Kokolis et al., arXiv:2410.21680: 6.5 failures per 1000 node-days on RSC-1",
            Self::Opt175b => {
                "OPT-175B log book, arXiv:2205.01068 and \
                 https://github.com/facebookresearch/metaseq/tree/main/projects/OPT/chronicles: \
                 one failure in 7.5 hours on about 1,000 A100, as others counted in it"
            }
        }
    }
}
