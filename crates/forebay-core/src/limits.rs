//! Every bound with a name and a reason.
//!
//! One [`Limits`] travels from the configuration into the engine, the stores and the jobs. Nothing queues, buffers or
//! retries without a bound from here.

use serde::{Deserialize, Serialize};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Bounds on memory, concurrency and patience.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Buffer memory in flight, over all operations of the process. The ceiling that is held when a consumer or a store is
    /// slow: leasing waits. 512 MiB keeps 64 requests of 8 MiB in flight.
    pub buffer_bytes_max: u64,
    /// Size of one disk request. 4 MiB reaches the device's limit at half the CPU time of 1 MiB (a quarter, for writes) on the
    /// disks measured.
    pub disk_request_bytes: u64,
    /// Disk requests of one read or write in flight. 8 x 4 MiB is past the knee of every disk measured.
    pub disk_depth: u32,
    /// Entries of one io_uring; also the bound of its submission queue.
    pub ring_entries: u32,
    /// Threads of the blocking engine and for operations on names (open, rename, fsync of directories).
    pub worker_threads: u32,
    /// Requests waiting for a worker thread or a ring before submitting waits.
    pub queue_requests_max: u32,
    /// Size of one ranged GET and of one uploaded part. 8 MiB hides a round trip of 10 ms at 800 MB/s per stream.
    pub part_bytes: u64,
    /// Requests to one store in flight.
    pub store_requests_max: u32,
    /// Tries of one request, the first included.
    pub tries_max: u32,
    /// Retries that may be spent for each 100 requests over a store's life, so that an outage is not answered by a storm.
    pub retry_budget_percent: u32,
    /// First pause before a retry, in milliseconds; doubles with jitter up to `retry_pause_ms_max`.
    pub retry_pause_ms: u64,
    /// Longest pause before a retry, in milliseconds.
    pub retry_pause_ms_max: u64,
    /// Time without a single byte of progress before a request counts as stalled, in milliseconds.
    pub stall_ms_max: u64,
    /// Time to connect, in milliseconds.
    pub connect_ms_max: u64,
    /// Longest message or document of a server that is read into memory (error bodies, credentials).
    pub reply_bytes_max: u64,
}

impl Limits {
    /// Size of one disk request as engines use it: whole pages, so that the pieces of an aligned request are aligned, and no more than
    /// the kernel takes at once.
    pub fn disk_request_bytes_whole(&self) -> usize {
        const REQUEST_BYTES_MAX: u64 = 1 << 30;
        self.disk_request_bytes
            .clamp(1, REQUEST_BYTES_MAX)
            .next_multiple_of(4096) as usize
    }

    /// Entries of a ring as engines use them: one for waking the thread and at least one for work, and no more than the kernel has.
    pub fn ring_entries_usable(&self) -> u32 {
        self.ring_entries.clamp(2, 32_768)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            buffer_bytes_max: 512 * MIB,
            disk_request_bytes: 4 * MIB,
            disk_depth: 8,
            ring_entries: 128,
            worker_threads: 8,
            queue_requests_max: 1024,
            part_bytes: 8 * MIB,
            store_requests_max: 32,
            tries_max: 6,
            retry_budget_percent: 20,
            retry_pause_ms: 50,
            retry_pause_ms_max: 5_000,
            stall_ms_max: 20_000,
            connect_ms_max: 5_000,
            reply_bytes_max: MIB,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_settings_are_made_usable() {
        let limits = |disk_request_bytes, ring_entries| Limits {
            disk_request_bytes,
            ring_entries,
            ..Limits::default()
        };
        assert_eq!(limits(1_000_000, 0).disk_request_bytes_whole() % 4096, 0);
        assert_eq!(limits(0, 0).disk_request_bytes_whole(), 4096);
        assert_eq!(limits(u64::MAX, 0).disk_request_bytes_whole(), 1 << 30);
        assert_eq!(limits(1, 1).ring_entries_usable(), 2);
    }
}
