//! Stream: training data from the formats people have, in an order that depends on nothing but the seed.
//!
//! A data set is a list of *shards*: objects of a store that hold *samples* one after the other, each with named *fields*. One model
//! covers every format: a shard has a [`Table`] that says where its samples and their fields lie, so that a sample is a few slices of
//! one buffer and nothing is copied or parsed again when it is read.
//!
//! ```text
//! store --bytes--> codec (whole-shard compression) --> format/*.rs: one pass --> Table (spans, checksums, keys)
//!                                                                                  |
//!                                                              manifest.rs: all tables of a data set, in one side file
//!                                                                                  |
//!              order (pure): which samples, when, on which rank <-----------------+
//!                  |
//!              loader: blocks read ahead -> checked against the table -> shuffled -> collated into batches
//! ```
//!
//! - [`Schema`], [`Field`], [`Kind`]: what fields there are and what their bytes mean;
//! - [`Table`]: where they are in one shard, with a CRC-32C per sample;
//! - [`Block`]: samples in memory, checked;
//! - [`format`](mod@format): the seam each format implements, and the formats;
//! - [`codec`]: compressions of whole shards, bounded;
//! - [`manifest`]: what is in every shard of a data set, in one side file;
//! - [`dataset`]: from a URL to shards with their tables; [`verify`](mod@verify): compares them with their manifest;
//! - [`order`]: which samples come when, on which rank;
//! - [`filter`]: which samples to keep;
//! - [`loader`]: hands them out as batches;
//! - [`image`]: JPEG and PNG to tensors;
//! - [`pack`](mod@pack): any of the formats to any that is written.

mod block;
pub mod codec;
pub mod dataset;
pub mod filter;
pub mod format;
#[cfg(fuzzing)]
pub mod fuzz;
pub mod image;
mod kept;
pub mod loader;
pub mod manifest;
pub mod order;
pub mod pack;
mod schema;
mod source;
mod table;
pub mod verify;

pub use block::{Block, Column, Shape};
pub use dataset::Dataset;
pub use loader::{Batch, Loader, StreamSpec};
pub use manifest::Manifest;
pub use schema::{Dtype, Field, Kind, Schema, Tick, Unit};
pub use source::ShardSource;
pub use table::{
    CHUNKS_MAX, Footer, Group, Groups, Keys, Layout, SAMPLE_BYTES_MAX, Samples, Spans, Table, TableBuilder,
};
