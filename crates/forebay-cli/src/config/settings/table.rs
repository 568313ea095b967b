//! The table of settings itself.

use forebay_core::env;

use super::{Bounds, Kind, Setting, Value};

/// `limits.*`, whose defaults are the library's.
macro_rules! limit {
    ($field:ident, $kind:ident, $min:expr, $max:expr, $env:expr, $flag:expr, $doc:literal) => {
        Setting {
            key: concat!("limits.", stringify!($field)),
            kind: Kind::$kind(Bounds { min: $min, max: $max }),
            env: $env,
            flag: $flag,
            doc: $doc,
            default: |limits| Value::$kind(u64::from(limits.$field)),
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// More than any machine has; beyond it the address space ends.
const MEMORY_BYTES_MAX: u64 = 16 << 40;
/// The kernel moves at most 2 GiB at once.
const DISK_REQUEST_BYTES_MAX: u64 = GIB;
/// A disk has queues of 1024 requests or less.
const DISK_DEPTH_MAX: u64 = 1024;
/// The kernel's own bound.
const RING_ENTRIES_MAX: u64 = 32_768;
/// Threads that block in the kernel; far beyond what any disk gains from, and within the usual bounds on threads.
const WORKER_THREADS_MAX: u64 = 1024;
/// Waiting requests take memory; a million of them are a mistake already.
const QUEUE_REQUESTS_MAX: u64 = 1 << 20;
/// The largest part S3 takes.
const PART_BYTES_MAX: u64 = 5 * GIB;
/// Each request needs a socket, and few processes may open more.
const STORE_REQUESTS_MAX: u64 = 4096;
/// With pauses between them, a request that fails so often fails for ever.
const TRIES_MAX: u64 = 100;
/// Ten retries for each request.
const RETRY_BUDGET_PERCENT_MAX: u64 = 1000;
/// A day, in milliseconds.
const PATIENCE_MS_MAX: u64 = 24 * 60 * 60 * 1000;
/// Messages are read into memory.
const REPLY_BYTES_MAX: u64 = GIB;

/// All of them, in the order of the reference page.
pub(crate) const SETTINGS: &[Setting] = &[
    Setting {
        key: "state_dir",
        kind: Kind::Path,
        env: Some(env::STATE_DIR),
        flag: Some(("--state-dir", |args| args.state_dir.as_ref())),
        doc: "Folder for small state: store probes, transfers in progress, what filters keep. Default: `forebay` in the user's cache folder.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "cache",
        kind: Kind::Cache,
        env: Some(env::CACHE),
        flag: Some(("--cache", |args| args.cache.as_ref())),
        doc: "Keep what `stream`, `cat` and `cp` read from remote stores on a local disk: `directory:size`, such as `/nvme/cache:200GiB`. Given as an option, `stream` keeps what it reads from file systems, too. Default: no cache.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "cache_immutable",
        kind: Kind::Switch,
        env: Some(env::CACHE_IMMUTABLE),
        flag: Some(("--cache-immutable", |args| args.cache_immutable.as_ref())),
        doc: "Objects never change once written: what is cached is used without asking the store.",
        default: |_| Value::Switch(false),
    },
    Setting {
        key: "disk.engine",
        kind: Kind::Choice(&["auto", "uring", "psync"]),
        env: Some(env::ENGINE),
        flag: Some(("--engine", |args| args.engine.as_ref())),
        doc: "Disk engine: io_uring where it works (`auto`), io_uring or an error (`uring`), blocking calls on threads (`psync`).",
        default: |_| Value::Text("auto".to_owned()),
    },
    Setting {
        key: "disk.huge_pages",
        kind: Kind::Switch,
        env: Some(env::HUGE_PAGES),
        flag: Some(("--huge-pages", |args| args.huge_pages.as_ref())),
        doc: "Take buffer memory from the reserved 2 MiB pages of the machine, where it has some; transparent ones are used anyway.",
        default: |_| Value::Switch(false),
    },
    limit!(
        buffer_bytes_max,
        Size,
        MIB,
        MEMORY_BYTES_MAX,
        Some(env::BUFFER_MEMORY),
        Some(("--buffer-memory", |args| args.buffer_memory.as_ref())),
        "Ceiling of buffer memory in flight, over all operations of the process."
    ),
    limit!(
        disk_request_bytes,
        Size,
        4 * KIB,
        DISK_REQUEST_BYTES_MAX,
        None,
        None,
        "Most bytes of one disk request; io_uring reads at most 1 MiB at a time."
    ),
    limit!(
        disk_depth,
        Count,
        1,
        DISK_DEPTH_MAX,
        None,
        None,
        "Disk requests of one operation in flight."
    ),
    limit!(
        ring_entries,
        Count,
        1,
        RING_ENTRIES_MAX,
        None,
        None,
        "Entries of one io_uring."
    ),
    limit!(
        worker_threads,
        Count,
        1,
        WORKER_THREADS_MAX,
        None,
        None,
        "Threads of the blocking engine and for operations on names."
    ),
    limit!(
        queue_requests_max,
        Count,
        1,
        QUEUE_REQUESTS_MAX,
        None,
        None,
        "Requests waiting for a worker thread or a ring before submitting waits."
    ),
    limit!(
        part_bytes,
        Size,
        64 * KIB,
        PART_BYTES_MAX,
        Some(env::PART_SIZE),
        Some(("--part-size", |args| args.part_size.as_ref())),
        "Size of one ranged GET and of one uploaded part."
    ),
    limit!(
        store_requests_max,
        Count,
        1,
        STORE_REQUESTS_MAX,
        Some(env::CONCURRENCY),
        Some(("--concurrency", |args| args.concurrency.as_ref())),
        "Requests to one store in flight."
    ),
    limit!(
        tries_max,
        Count,
        1,
        TRIES_MAX,
        None,
        None,
        "Tries of one request, the first included."
    ),
    limit!(
        retry_budget_percent,
        Count,
        0,
        RETRY_BUDGET_PERCENT_MAX,
        None,
        None,
        "Retries that may be spent for each 100 requests over a store's life."
    ),
    limit!(
        retry_pause_ms,
        Count,
        0,
        PATIENCE_MS_MAX,
        None,
        None,
        "First pause before a retry, in milliseconds."
    ),
    limit!(
        retry_pause_ms_max,
        Count,
        0,
        PATIENCE_MS_MAX,
        None,
        None,
        "Longest pause before a retry, in milliseconds."
    ),
    limit!(
        stall_ms_max,
        Count,
        1,
        PATIENCE_MS_MAX,
        None,
        None,
        "Time without a single byte of progress before a request counts as stalled, in milliseconds."
    ),
    limit!(
        connect_ms_max,
        Count,
        1,
        PATIENCE_MS_MAX,
        None,
        None,
        "Time to connect, in milliseconds."
    ),
    limit!(
        reply_bytes_max,
        Size,
        KIB,
        REPLY_BYTES_MAX,
        None,
        None,
        "Longest message or document of a server that is read into memory."
    ),
    Setting {
        key: "s3.endpoint",
        kind: Kind::Endpoint,
        env: Some(env::S3_ENDPOINT),
        flag: Some(("--s3-endpoint", |args| args.s3_endpoint.as_ref())),
        doc: "S3 endpoint URL. Default: the variables and profiles of AWS, then AWS itself.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "s3.region",
        kind: Kind::Text,
        env: Some(env::S3_REGION),
        flag: Some(("--s3-region", |args| args.s3_region.as_ref())),
        doc: "S3 region. Default: the variables and profiles of AWS.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "s3.addressing",
        kind: Kind::Choice(&["auto", "path", "virtual"]),
        env: Some(env::S3_ADDRESSING),
        flag: Some(("--s3-addressing", |args| args.s3_addressing.as_ref())),
        doc: "Address buckets as `host/bucket` (`path`) or `bucket.host` (`virtual`). Default: by path behind an endpoint of one's own.",
        default: |_| Value::Unset,
    },
    Setting {
        key: "s3.unsigned",
        kind: Kind::Switch,
        env: Some(env::S3_UNSIGNED),
        flag: Some(("--s3-unsigned", |args| args.s3_unsigned.as_ref())),
        doc: "Send S3 requests without a signature, for public buckets.",
        default: |_| Value::Unset,
    },
];
