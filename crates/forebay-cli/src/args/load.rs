//! `forebay load` as a plain struct.

use std::ffi::OsString;

use clap::Args;
use forebay_core::ByteSize;

use super::seal::TrustArgs;

/// `forebay load`.
#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Where to load to: host, or cuda:0; several GPUs are fed from one read
    #[arg(long, value_name = "DEVICE", default_value = "host")]
    pub(crate) device: Vec<String>,
    /// Whether bytes must, may or must not go by GPUDirect Storage: require, prefer or off
    #[arg(long, value_name = "HOW", default_value = "prefer")]
    pub(crate) gds: String,
    /// Pinned memory for GPUs
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) pinned: ByteSize,
    /// Load that many times; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,
    /// Only tensors whose names match, such as 'model.layers.[0-7].*'; may be given several times
    #[arg(long, value_name = "GLOB")]
    pub(crate) select: Vec<String>,
    /// Only what rank R of W needs of tensors that --shard-dim names
    #[arg(long, value_name = "R/W")]
    pub(crate) shard: Option<String>,
    /// Divide matching tensors along a dimension, such as '*.q_proj.weight=0'; the first that matches counts
    #[arg(long, value_name = "GLOB=DIM", requires = "shard")]
    pub(crate) shard_dim: Vec<String>,
    /// Which step of a folder of checkpoints; the newest unless told otherwise
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<u64>,
    /// A key that opens a sealed checkpoint: `file:PATH`, `env` (FOREBAY_KEY), `command:PROGRAM ARGUMENTS`, or a path
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Vec<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Compare with checksums beside the files or in their headers: off, prefer or require; checkpoints are always compared with their hashes
    #[arg(long, value_name = "HOW", default_value = "prefer")]
    pub(crate) verify: String,
    /// Most memory for tensors
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,
    /// Read around the page cache even what is in it, or fail
    #[arg(long)]
    pub(crate) direct: bool,
    /// Do not measure what the disk can do by plain direct reads of the same files
    #[arg(long)]
    pub(crate) no_limit: bool,
    /// List the tensors instead of loading them
    #[arg(long)]
    pub(crate) list: bool,
    /// Write checksums beside the files instead of loading them
    #[arg(long)]
    pub(crate) write_hashes: bool,
    /// Files, folders with or without an index, indices, or folders of checkpoints
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<OsString>,
}
