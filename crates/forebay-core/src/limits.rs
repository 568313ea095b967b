//! Every bound with a name and a reason.
//!
//! One [`Limits`] travels from the configuration into the engine, the stores and the jobs. Nothing queues, buffers or
//! retries without a bound from here.

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
const GIB: u64 = 1024 * MIB;

/// Longest time a setting may name: a day, in milliseconds.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Bounds on memory, concurrency and patience.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Buffer memory in flight, over all operations of the process. The ceiling that is held when a consumer or a store is
    /// slow: leasing waits. 512 MiB keeps 64 requests of 8 MiB in flight.
    pub buffer_bytes_max: u64,
    /// Most bytes of one disk request; io_uring reads in smaller ones still. Writes of 4 MiB reach the device's limit at a quarter of the CPU time
    /// of 1 MiB on the disks measured.
    pub disk_request_bytes: u64,
    /// Disk requests of one read or write in flight. 8 x 4 MiB is past the knee of every disk measured.
    pub disk_depth: u32,
    /// Entries of one io_uring; also the bound of its submission queue.
    pub ring_entries: u32,
    /// Threads of the blocking engine and for operations on names (open, rename, fsync of directories). They wait most of the time: small files
    /// that are not in memory came 1.6 to 1.9 times as fast with 32 as with 8 on a machine of two cores.
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

/// What one field of [`Limits`] may be, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Name of the field.
    pub field: &'static str,
    /// Smallest value that works.
    pub min: u64,
    /// Largest value that makes sense: above it, a number is a slip of the pen or of the unit.
    pub max: u64,
}

impl Bounds {
    /// The error for a value that is out of them, if it is.
    pub fn check(&self, value: u64) -> Result<()> {
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        let message = format!("{} is {value}", self.field);
        let hint = format!("it must be at least {} and at most {}", self.min, self.max);
        Err(Error::new(ErrorKind::InvalidInput, "configure", message).with_hint(hint))
    }
}

/// Makes the table of bounds and the check from the same rows, so that neither can have a field the other lacks.
macro_rules! bounds {
    ($( $field:ident: $min:expr, $max:expr; )*) => {
        impl Limits {
            /// What each field may be, in the order of the fields.
            pub const BOUNDS: &[Bounds] = &[
                $( Bounds { field: stringify!($field), min: $min, max: $max }, )*
            ];

            /// Refuse values out of bounds, naming the first field that is.
            pub fn check(&self) -> Result<()> {
                // Every field is named here, so a new one does not compile without bounds.
                let Self { $( $field, )* } = self;
                let values = [$( u64::from(*$field), )*];
                Self::BOUNDS.iter().zip(values).try_for_each(|(bounds, value)| bounds.check(value))
            }
        }
    };
}

bounds! {
    buffer_bytes_max: MIB, 1024 * 1024 * GIB;
    disk_request_bytes: 4 * KIB, GIB;
    disk_depth: 1, 65_536;
    ring_entries: 1, 32_768;
    worker_threads: 1, 4096;
    queue_requests_max: 1, 16 * 1024 * 1024;
    part_bytes: 64 * KIB, 5 * GIB;
    store_requests_max: 1, 65_536;
    tries_max: 1, 1000;
    retry_budget_percent: 0, 100_000;
    retry_pause_ms: 0, DAY_MS;
    retry_pause_ms_max: 0, DAY_MS;
    stall_ms_max: 1, DAY_MS;
    connect_ms_max: 1, DAY_MS;
    reply_bytes_max: KIB, GIB;
}

impl Limits {
    /// What a field may be; `None` for a name that is no field.
    pub fn bounds_of(field: &str) -> Option<Bounds> {
        Self::BOUNDS.iter().find(|bounds| bounds.field == field).copied()
    }

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
            worker_threads: 32,
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
    fn values_out_of_bounds_are_named_with_their_bounds() {
        Limits::default().check().unwrap();
        let error = |limits: Limits| limits.check().unwrap_err();
        let small = error(Limits {
            part_bytes: 100,
            ..Limits::default()
        });
        assert_eq!(small.kind(), ErrorKind::InvalidInput);
        assert!(small.to_string().contains("part_bytes is 100"), "{small}");
        assert!(small.hint().unwrap().contains("65536"), "{small:?}");
        let large = error(Limits {
            tries_max: u32::MAX,
            ..Limits::default()
        });
        assert!(large.to_string().contains("tries_max"), "{large}");
        for bounds in Limits::BOUNDS {
            assert!(bounds.min <= bounds.max, "{bounds:?}");
            assert!(bounds.check(bounds.min).is_ok() && bounds.check(bounds.max).is_ok());
            assert!(bounds.check(bounds.max + 1).is_err());
            assert_eq!(Limits::bounds_of(bounds.field), Some(*bounds));
        }
        assert_eq!(Limits::bounds_of("part"), None);
    }

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
