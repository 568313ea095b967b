//! The machine room: memory, files and the queue in front of them.
//!
//! Data moves like this: a caller leases an [`AlignedBuf`] from a [`BufPool`], a [`Disk`] passes the request through the
//! [`Gate`] (who may go first) to an [`Engine`] (`io_uring`, a thread pool, or a simulation), and the buffer comes back filled, with a
//! ledger of the path its bytes took. All unsafe code of the project lives here.
//!
//! - [`AlignedBuf`], [`Buf`], [`BufPool`]: memory whose types say alignment, ownership and ceiling;
//! - [`Engine`]: the seam to the operating system, with [`Uring`], [`Psync`] and [`SimEngine`] behind it;
//! - [`File`]: an open file and the reason why it is read directly or through the page cache;
//! - [`Gate`]: classes of service with a cap of bytes in flight each;
//! - [`Disk`]: reads and writes of any length and alignment, in bounded pieces, accounted;
//! - [`device`]: memory of GPUs, pinned memory, and copies between them.

mod ahead;
mod buf;
mod completion;
mod cpu;
pub mod cufile;
pub mod device;
mod disk;
mod dl;
mod engine;
mod file;
mod gate;
pub mod gds;
mod kept;
mod lock;
mod map;
mod names;
mod per_process;
mod pool;
mod psync;
mod residency;
mod runs;
pub mod sim;
mod socket;
mod uring;
mod whole;
mod workers;

pub use ahead::{Ahead, fault_ahead};
pub use buf::{AlignedBuf, Buf, page_ceil};
pub use completion::Completion;
pub use cpu::{cpu_time, memory_available_bytes, memory_peak_bytes};
pub use disk::{Disk, DiskConfig};
pub use engine::{Engine, EngineChoice, EngineKind, EngineReport, ReadDone, WriteDone, open_engine};
pub use file::{Access, Direct, File, OpenHow, Purpose};
pub use gate::{Class, FixedCaps, Gate, GatePolicy, InFlight, Permit};
pub use lock::RangeLock;
pub use map::{HUGE_PAGE, PAGE, PageKind, Pages};
pub use names::{DirEntry, FileKind, FileStat, NameDone, NameOp, Renamed};
pub use pool::{BufPool, PinHook, PoolConfig, PoolStats};
pub use psync::Psync;
pub use residency::{is_resident, residency};
pub use sim::SimEngine;
pub use socket::set_receive_low_water;
pub use uring::Uring;
pub use workers::settle;
