//! Measuring: what a run cost, what the machine can do by other means, and a place to do it in.
//!
//! - [`meter`]: wall time and CPU time of one run, and the median of several;
//! - [`raw`]: the disk's own limit by a plain loop of blocking calls on threads, which shares no code with the engine;
//! - [`fio`]: the same by fio, where it is installed;
//! - [`ours`]: the same through Forebay's disk;
//! - [`scratch`]: a folder that is gone afterwards.

pub(crate) mod fio;
pub(crate) mod meter;
pub(crate) mod ours;
pub(crate) mod raw;
pub(crate) mod scratch;
