//! The words every Forebay crate speaks in.
//!
//! Nothing here does I/O, starts a runtime or needs unsafe code. The modules are the vocabulary of the house:
//!
//! - [`Span`] names a piece of an object, [`Location`] the object, [`Key`] its name inside a store;
//! - [`Error`] and [`ErrorKind`] say what went wrong, where, and what follows from it (retry, exit code, exception);
//! - [`DataPath`] and [`PathPolicy`] say how bytes may move, [`Ledger`] how they did;
//! - [`Limits`] holds every bound, [`Clock`] and [`Seed`] are the only sources of time and randomness;
//! - [`Crc32c`] is the checksum that travels with data, [`ByteSize`] the way people write sizes;
//! - [`wire`] reads numbers and text out of untrusted bytes, for every format of our own;
//! - [`safetensors`] is the format of tensors on disk, read and written by several jobs;
//! - [`mod@env`] and [`metric`] are the registries of environment variables and metric names.

mod checksum;
mod clock;
pub mod env;
mod error;
mod key;
mod ledger;
mod limits;
mod location;
pub mod metric;
mod path;
pub mod safetensors;
mod seed;
mod size;
mod span;
pub mod wire;

pub use checksum::{Crc32c, Crc64Nvme, crc32c, crc64nvme};
pub use clock::{Clock, ManualClock, SystemClock};
pub use error::{Error, ErrorKind, Result, Retry};
pub use key::{KEY_BYTES_MAX, Key};
pub use ledger::{DOWNGRADES_KEPT_MAX, Downgrade, Ledger, PathTotals};
pub use limits::{Bounds, Limits};
pub use location::{Location, Scheme};
pub use path::{DataPath, PathPolicy};
pub use seed::{Rng, Seed};
pub use size::{ByteSize, Rate};
pub use span::{Pieces, Span};
