//! Every metric name, with unit and meaning, in one place.
//!
//! `cargo xtask tidy` refuses a metric that is not declared here. Names end in their unit; counters end in `_total`.

/// Bytes moved, labelled by `path` and `op`.
pub const IO_BYTES_TOTAL: &str = "forebay.io.bytes_total";
/// Requests to the kernel, labelled by `path` and `op`.
pub const IO_REQUESTS_TOTAL: &str = "forebay.io.requests_total";
/// Buffer memory leased right now, in bytes.
pub const POOL_LEASED_BYTES: &str = "forebay.pool.leased_bytes";
/// Times a lease had to wait for memory.
pub const POOL_WAITS_TOTAL: &str = "forebay.pool.waits_total";
/// Bytes in flight behind the QoS gate, labelled by `class`.
pub const GATE_IN_FLIGHT_BYTES: &str = "forebay.gate.in_flight_bytes";
/// Requests to a store, labelled by `scheme` and `op`.
pub const STORE_REQUESTS_TOTAL: &str = "forebay.store.requests_total";
/// Retries of store requests, labelled by `scheme` and `kind`.
pub const STORE_RETRIES_TOTAL: &str = "forebay.store.retries_total";
/// Reads answered by the cache, in blocks.
pub const CACHE_HITS_TOTAL: &str = "forebay.cache.hits_total";
/// Reads that had to go to the origin, in blocks.
pub const CACHE_MISSES_TOTAL: &str = "forebay.cache.misses_total";
/// Blocks whose checksum did not match and that were fetched again.
pub const CACHE_CORRUPT_TOTAL: &str = "forebay.cache.corrupt_total";
/// Bytes the cache holds.
pub const CACHE_BYTES: &str = "forebay.cache.bytes";
