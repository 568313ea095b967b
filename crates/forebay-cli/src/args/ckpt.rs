//! `forebay ckpt` as plain structs.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use forebay_ckpt::{Compress, Retention};
use forebay_core::ByteSize;

use super::seal::{CkptKeyArgs, CkptLogArgs, CkptRewrapArgs, TrustArgs};

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
    /// Copy whole checkpoints to another place, every byte compared with its hash on the way; goes on where one that was killed stopped
    Drain(CkptDrainArgs),
    /// Copy one checkpoint back to a near place, as `drain` does
    Restore(CkptRestoreArgs),
    /// Change who can read sealed checkpoints: their data keys are wrapped anew, and data stay as they are
    Rewrap(CkptRewrapArgs),
    /// Make a key to seal or to sign with
    Key(CkptKeyArgs),
    /// Check that no line of an access log was changed, removed or put in
    Log(CkptLogArgs),
    /// Write a checkpoint anew in the format of others, tensors whole whoever saved their slices, every byte verified
    Export(CkptExportArgs),
}

/// `forebay ckpt ls`.
#[derive(Debug, Args)]
pub(crate) struct CkptLsArgs {
    /// Where the checkpoints are; with several places, such as a run and its mirror, each step is told with those that have it
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<OsString>,
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
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
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
    /// Open what is sealed, too, which hashes do not need: `file:PATH`, `env` (FOREBAY_KEY), `aws-kms:KEY`, `command:PROGRAM ARGUMENTS`, or a path
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Vec<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
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

/// What a place keeps.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct KeepArgs {
    /// Keep that many of those committed last
    #[arg(long, value_name = "COUNT")]
    pub(crate) keep_last: Option<usize>,
    /// Beside them, keep steps that are a multiple of this
    #[arg(long, value_name = "STEPS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep_every: Option<u64>,
    /// Beside them, keep what is younger than this, such as 12h or 7d; what nothing keeps goes, the newest excepted
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    pub(crate) older_than: Option<Duration>,
}

impl KeepArgs {
    /// As a rule.
    pub(crate) fn retention(&self) -> Retention {
        Retention {
            keep_last: self.keep_last,
            keep_every: self.keep_every,
            age_max: self.older_than,
        }
    }
}

/// A time such as `90s`, `15m`, `12h`, `7d`.
fn parse_age(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write 90s, 15m, 12h or 7d");
    let unit_at = text.len().saturating_sub(1);
    let (number, unit) = text.split_at_checked(unit_at).ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

/// How checkpoints are brought to another place.
#[derive(Debug, Clone, Args)]
pub(crate) struct BringArgs {
    /// Most bytes a second that are written
    #[arg(long, value_name = "SIZE")]
    pub(crate) bytes_per_second: Option<ByteSize>,
    /// Replace checkpoints of the same step that are of another attempt
    #[arg(long, conflicts_with = "single_writer")]
    pub(crate) replace: bool,
    /// Nobody else writes there: needed for stores that do not show put-if-absent
    #[arg(long)]
    pub(crate) single_writer: bool,
    /// Read back everything that was sent, not only where nobody else compared it
    #[arg(long)]
    pub(crate) read_back: bool,
    /// Note in this file which checkpoints are copied before they are; see `forebay ckpt log`
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
}

/// `forebay ckpt drain`.
#[derive(Debug, Args)]
pub(crate) struct CkptDrainArgs {
    /// Only this step; may be given several times
    #[arg(long, value_name = "STEP", conflicts_with_all = ["keep_last", "keep_every", "older_than"])]
    pub(crate) step: Vec<u64>,
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    #[command(flatten)]
    pub(crate) bring: BringArgs,
    /// Compress on the way what was saved raw: off, auto, lz4, zstd or zstd:LEVEL. What is signed or sealed, and not compressed already, is refused
    #[arg(long, value_name = "WAY", default_value_t = Compress::Off)]
    pub(crate) compress: Compress,
    /// Go on for ever: bring what is new as it comes
    #[arg(long)]
    pub(crate) watch: bool,
    /// With --watch, look again after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) every: u64,
    /// Where the checkpoints are
    #[arg(value_name = "FROM")]
    pub(crate) from: OsString,
    /// Where they go
    #[arg(value_name = "TO")]
    pub(crate) to: OsString,
}

/// `forebay ckpt restore`.
#[derive(Debug, Args)]
pub(crate) struct CkptRestoreArgs {
    /// Which step; the newest unless told otherwise
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<u64>,
    #[command(flatten)]
    pub(crate) bring: BringArgs,
    /// Where the checkpoint is
    #[arg(value_name = "URL")]
    pub(crate) from: OsString,
    /// Where it goes
    #[arg(value_name = "DIR|URL")]
    pub(crate) to: OsString,
}

/// Formats of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportTo {
    /// One file, model.safetensors
    Safetensors,
    /// Shards and an index, as model hubs have them
    Hf,
    /// What torch.save writes, model.pt; read it with torch.load(weights_only=True)
    Torch,
}

/// `forebay ckpt export`.
#[derive(Debug, Args)]
pub(crate) struct CkptExportArgs {
    /// Format
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: ExportTo,
    /// Which step; the newest unless told otherwise
    #[arg(long, value_name = "STEP")]
    pub(crate) step: Option<u64>,
    /// Only names that begin with this, such as model., which is left off
    #[arg(long, value_name = "TEXT")]
    pub(crate) prefix: Option<String>,
    /// A key that opens it, where it is sealed; as for `verify`
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Vec<String>,
    #[command(flatten)]
    pub(crate) trust: TrustArgs,
    /// Note in this file that the checkpoint is loaded before it is; see `forebay ckpt log`
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
    /// Bytes of a shard
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub(crate) shard_size: ByteSize,
    /// Where the checkpoint is
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
    /// Folder that the files are written to; or the file, where the format has one and the name ends like it (.safetensors; .pt, .pth, .bin, .ckpt)
    #[arg(value_name = "DIR|FILE|URL")]
    pub(crate) dir: OsString,
}

/// `forebay ckpt gc`.
#[derive(Debug, Args)]
pub(crate) struct CkptGcArgs {
    #[command(flatten)]
    pub(crate) keep: KeepArgs,
    /// Remove this step, whatever else is said; may be given several times
    #[arg(long, value_name = "STEP")]
    pub(crate) remove: Vec<u64>,
    /// Saves that did not end within so many hours are dead, and what they left goes
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    pub(crate) dead_after: u32,
    /// Only say what would go
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Note in this file which steps go before they do; see `forebay ckpt log`
    #[arg(long, value_name = "FILE")]
    pub(crate) access_log: Option<PathBuf>,
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
    /// Compress the state, which then has numbers as weights have: off, auto, lz4, zstd or zstd:LEVEL
    #[arg(long, value_name = "WAY", default_value_t = Compress::Off)]
    pub(crate) compress: Compress,
    /// Seal the state by a key that is drawn for it
    #[arg(long)]
    pub(crate) seal: bool,
    /// Directory on the disk to be measured
    #[arg(value_name = "DIR")]
    pub(crate) dir: OsString,
}
