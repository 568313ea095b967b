//! How bytes may move, and how they did.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// How bytes really moved between where they live and the caller's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPath {
    /// Storage to GPU memory without passing through host memory.
    Gds,
    /// Direct I/O through io_uring: no page cache, no copy by the kernel.
    DirectUring,
    /// Direct I/O by blocking calls on a thread pool.
    DirectPsync,
    /// Through the page cache: one copy by the kernel.
    Buffered,
    /// Memory-mapped file pages.
    Mmap,
    /// NVMe over TCP, in user space.
    NvmeTcp,
    /// HTTP body streamed into our buffers.
    Http,
    /// Memory of this process.
    Memory,
}

impl DataPath {
    /// Every path, in the order tables print them.
    pub const ALL: [Self; 8] = [
        Self::Gds,
        Self::DirectUring,
        Self::DirectPsync,
        Self::Buffered,
        Self::Mmap,
        Self::NvmeTcp,
        Self::Http,
        Self::Memory,
    ];

    /// Name in tables, JSON and Python.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gds => "gds",
            Self::DirectUring => "direct_uring",
            Self::DirectPsync => "direct_psync",
            Self::Buffered => "buffered",
            Self::Mmap => "mmap",
            Self::NvmeTcp => "nvme_tcp",
            Self::Http => "http",
            Self::Memory => "memory",
        }
    }

    /// The path of that name.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|path| path.name() == name)
            .ok_or_else(|| {
                let names: Vec<&str> = Self::ALL.iter().map(|path| path.name()).collect();
                Error::new(
                    ErrorKind::InvalidInput,
                    "path",
                    format!("unknown data path '{}'", name.escape_debug()),
                )
                .with_hint(format!("one of: {}", names.join(", ")))
            })
    }

    /// True when the page cache is not involved.
    pub const fn is_direct(self) -> bool {
        matches!(self, Self::Gds | Self::DirectUring | Self::DirectPsync)
    }
}

impl fmt::Display for DataPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which paths a caller accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum PathPolicy {
    /// The fastest path the file and the machine allow; each step down is recorded in the ledger.
    #[default]
    Fastest,
    /// This path or an error that says why it is not available.
    Require(DataPath),
}

impl PathPolicy {
    /// Check the path that would be taken; under `Require`, any other path is an error carrying `reason`.
    pub fn admit(self, path: DataPath, op: &'static str, reason: &str) -> Result<()> {
        match self {
            Self::Require(required) if required != path => Err(Error::new(
                ErrorKind::Unsupported,
                op,
                format!("path {required} is required but not available: {reason}"),
            )
            .with_hint("drop the requirement, or use a file system and machine that offer this path")),
            _ => Ok(()),
        }
    }
}
