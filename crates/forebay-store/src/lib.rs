//! Where bytes live.
//!
//! A [`Store`] is a place with objects in it: a directory, memory, a bucket. Everything above this crate speaks that one
//! trait; everything below it is a detail of one implementation. Stores compose: wrappers ([`wrap`]) add counting, limits, retries, faults or
//! a prefix, a [`cache`] keeps what was read on local NVMe, [`tiers`] read through an ordered list.
//!
//! ```text
//! caller --key, span, buffer--> [Tiers] -> [Cache] -> [Retry] -> Remote | Local | Memory --buffer, ledger--> caller
//! ```
//!
//! [`open`] turns a [`Location`](forebay_core::Location) into a store with the wrappers it should have.

pub mod cache;
pub mod conformance;
mod context;
pub mod copy;
mod ext;
#[cfg(fuzzing)]
pub mod fuzz;
mod local;
mod memory;
mod open;
pub mod probe;
pub mod remote;
mod store;
pub mod tiers;
pub mod wrap;

pub use context::Context;
pub use ext::{BeginParts, StoreExt};
pub use local::{ForkHold, LocalStore, hold_for_fork, remove_drafts};
pub use memory::MemoryStore;
pub use open::{open, open_object};
pub use store::{
    Body, Capabilities, Checksum, Entry, ListOptions, Listing, OPEN_UPLOADS_MAX, ObjectMeta, OpenUpload,
    PartBody, Proof, PutDone, PutMode, PutOptions, ReadDone, ReadOptions, Store, Upload, WriteCheck,
    is_special_file,
};
