//! The models, one module each: a `Request` with documented defaults, and a function from it to a report.

pub mod burst;
pub mod checkpoint;
pub mod cluster;
pub mod cost;
pub mod fabric;
pub mod failures;
pub mod ingest;
pub mod network;
pub mod retention;
pub mod storage;
pub mod tracking;
