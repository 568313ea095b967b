//! What cuFile counts: the layout of its statistics, and the few numbers that prove a path.

use serde::Serialize;

/// GPUs that the statistics have room for.
const GPUS_MAX: usize = 16;
/// Numbers before those of the GPUs: level 1 and the histograms of level 2.
const NUMBERS_BEFORE: usize = 64 + 64;
/// Versions whose layout is this one: CUDA 13.0 (1.15) to 13.3; the next one has another.
const VERSIONS: std::ops::Range<(u32, u32)> = (1, 15)..(1, 19);

/// True when a library of this version fills the statistics as they are laid out here.
pub(super) fn is_layout_known(version: (u32, u32)) -> bool {
    VERSIONS.contains(&version)
}

/// `CUfilePerGpuStats_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Gpu {
    uuid: [u8; 16],
    read_bytes: u64,
    read_rate: u64,
    read_utilization: u64,
    read_duration_us: u64,
    reads: u64,
    reads_p2p: u64,
    reads_nvfs: u64,
    reads_posix: u64,
    reads_unaligned: u64,
    reads_routed: u64,
    sparse_regions: u64,
    inline_regions: u64,
    reads_failed: u64,
    /// Writes, mappings and registered memory.
    rest: [u64; 16],
}

/// `CUfileStatsLevel3_t`, with room behind it.
#[repr(C)]
pub(super) struct StatsL3 {
    before: [u64; NUMBERS_BEFORE],
    gpus_len: u32,
    gpus: [Gpu; GPUS_MAX],
    spare: [u64; 1024],
}

/// Reads by the way they went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// All reads.
    pub reads: u64,
    /// By the kernel module nvidia-fs.
    pub reads_nvfs: u64,
    /// By peer-to-peer copies of the kernel.
    pub reads_p2p: u64,
    /// Through host memory.
    pub reads_posix: u64,
    /// Not aligned, and so through a buffer in between.
    pub reads_unaligned: u64,
    /// All bytes read.
    pub read_bytes: u64,
}

impl StatsL3 {
    pub(super) fn boxed() -> Box<Self> {
        Box::new(Self {
            before: [0; NUMBERS_BEFORE],
            gpus_len: 0,
            gpus: [Gpu::default(); GPUS_MAX],
            spare: [0; 1024],
        })
    }

    /// The sum over all GPUs.
    pub(super) fn counters(&self) -> Counters {
        let count = (self.gpus_len as usize).min(GPUS_MAX);
        let mut sum = Counters::default();
        for gpu in self.gpus.iter().take(count) {
            sum.reads += gpu.reads;
            sum.reads_nvfs += gpu.reads_nvfs;
            sum.reads_p2p += gpu.reads_p2p;
            sum.reads_posix += gpu.reads_posix;
            sum.reads_unaligned += gpu.reads_unaligned;
            sum.read_bytes += gpu.read_bytes;
        }
        sum
    }
}

impl Counters {
    /// What was added since `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            reads: self.reads.saturating_sub(before.reads),
            reads_nvfs: self.reads_nvfs.saturating_sub(before.reads_nvfs),
            reads_p2p: self.reads_p2p.saturating_sub(before.reads_p2p),
            reads_posix: self.reads_posix.saturating_sub(before.reads_posix),
            reads_unaligned: self.reads_unaligned.saturating_sub(before.reads_unaligned),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
        }
    }

    /// True when there were so many reads and all of them went straight to the device.
    pub fn proves_direct(&self, reads: u64) -> bool {
        self.reads_posix == 0 && reads > 0 && self.reads_nvfs.saturating_add(self.reads_p2p) >= reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_that_of_the_header() {
        // Offsets as a C compiler lays out the header of CUDA 13.0.
        assert_eq!(std::mem::size_of::<Gpu>(), 16 + 29 * 8);
        assert_eq!(std::mem::offset_of!(StatsL3, gpus_len), 1024);
        assert_eq!(std::mem::offset_of!(StatsL3, gpus), 1032);
        assert_eq!(std::mem::offset_of!(StatsL3, spare), 5000);
        assert_eq!(std::mem::offset_of!(Gpu, reads_posix), 16 + 7 * 8);
    }

    #[test]
    fn one_posix_read_among_many_is_not_direct() {
        let counters = Counters {
            reads: 100,
            reads_nvfs: 99,
            reads_posix: 1,
            ..Counters::default()
        };
        assert!(!counters.proves_direct(99));
        assert!(!Counters::default().proves_direct(0), "no read proves nothing");
        let before = Counters {
            reads: 99,
            reads_nvfs: 98,
            reads_posix: 1,
            ..Counters::default()
        };
        let since = counters.since(&before);
        assert!(since.proves_direct(1));
        assert!(!since.proves_direct(2), "one read was counted nowhere");
        assert!(is_layout_known((1, 15)) && !is_layout_known((1, 14)) && !is_layout_known((1, 19)));
    }
}
