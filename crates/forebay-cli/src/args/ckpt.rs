//! `forebay ckpt` as plain structs.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use forebay_core::ByteSize;

/// `forebay ckpt`.
#[derive(Debug, Subcommand)]
pub(crate) enum CkptCommand {
    /// List checkpoints: step, time, sizes, ranks, and what the caller noted
    Ls(CkptLsArgs),
    /// Show what is in a checkpoint, or where one tensor of it lies
    Show(CkptShowArgs),
    /// Compare every byte of a checkpoint with its hash, and name every damage by tensor and range
    Verify(CkptVerifyArgs),
    /// Show what changed between two checkpoints, without reading their tensors
    Diff(CkptDiffArgs),
    /// Remove checkpoints beyond those to keep, and what attempts without a commit left
    Gc(CkptGcArgs),
}

/// `forebay ckpt ls`.
#[derive(Debug, Args)]
pub(crate) struct CkptLsArgs {
    /// Where the checkpoints are
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `forebay ckpt show`.
#[derive(Debug, Args)]
pub(crate) struct CkptShowArgs {
    /// Which step; the newest unless told otherwise
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<u64>,
    /// Where the checkpoints are
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
    /// A tensor or value; without it, all are listed
    #[arg(value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// `forebay ckpt verify`.
#[derive(Debug, Args)]
pub(crate) struct CkptVerifyArgs {
    /// Which step; the newest unless told otherwise
    #[arg(long, value_name = "STEP", conflicts_with = "all")]
    pub(crate) step: Option<u64>,
    /// All steps
    #[arg(long)]
    pub(crate) all: bool,
    /// Where the checkpoints are
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `forebay ckpt diff`.
#[derive(Debug, Args)]
pub(crate) struct CkptDiffArgs {
    /// Where the checkpoints are
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
    /// The older step
    #[arg(value_name = "OLD")]
    pub(crate) old: u64,
    /// The newer step
    #[arg(value_name = "NEW")]
    pub(crate) new: u64,
}

/// `forebay ckpt gc`.
#[derive(Debug, Args)]
pub(crate) struct CkptGcArgs {
    /// Keep that many of the newest; without it, no checkpoint goes
    #[arg(long, value_name = "COUNT")]
    pub(crate) keep_last: Option<usize>,
    /// Beside them, keep steps that are a multiple of this
    #[arg(long, value_name = "STEPS", requires = "keep_last", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_every: Option<u64>,
    /// Remove this step, whatever else is said; may be given several times
    #[arg(long, value_name = "STEP")]
    pub(crate) remove: Vec<u64>,
    /// Saves that did not end within so many hours are dead, and what they left goes
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    pub(crate) dead_after: u32,
    /// Only say what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Where the checkpoints are
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

impl CkptGcArgs {
    /// The age from which a save counts as dead.
    pub(crate) fn dead_age(&self) -> Duration {
        Duration::from_secs(3600) * self.dead_after
    }
}

/// `forebay bench ckpt`.
#[derive(Debug, Args)]
pub(crate) struct BenchCkptArgs {
    /// Bytes of the state; twice as much memory is used, and three times as much room
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub(crate) size: ByteSize,
    /// Rounds; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Directory on the disk to be measured
    #[arg(value_name = "DIR")]
    pub(crate) dir: OsString,
}
