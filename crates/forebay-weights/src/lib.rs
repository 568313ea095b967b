//! Load: tensors from safetensors files into memory at the rate of the disk, and back.
//!
//! ```text
//! path or URL --source--> files with checked headers --load_plan (pure)--> pieces: what is read, and where it goes
//!                                                                            |
//!              sink: the destination <--filled, checked buffers-- loader: reads side by side, straight into the sink's memory
//! ```
//!
//! - [`source`]: a file, a folder with or without an index, or a URL, to files with checked headers; [`index`]: `*.index.json`;
//! - [`select`]: which tensors, and which slices of them;
//! - [`load_plan`]: few, large, aligned reads in file order that cover what is wanted, and where each of them goes;
//! - [`sink`]: the seam of destinations, with memory of the host and of devices behind it;
//! - [`loader`]: from a plan to filled memory, with a ledger;
//! - [`hashes`]: checksums made when a file was written, beside it or in its header;
//! - [`save`]: tensors to a durable, valid file.

mod glob;
pub mod hashes;
pub mod index;
pub mod load_plan;
pub mod loader;
pub mod save;
pub mod select;
pub mod sink;
pub mod source;

pub use hashes::{Hashes, Verify};
pub use load_plan::{Cut, Edges, Moves, Piece, Placement, Plan, PlanTensor, Region};
pub use loader::{DeviceOptions, LoadOptions, LoadReport, load_device, load_host, load_into};
pub use select::{Selection, Shard, Slice};
pub use sink::{DeviceReport, DeviceSink, DeviceTensor, HostSink, HostTensor, Sink};
pub use source::{CheckedFile, Source, SourceFile};
