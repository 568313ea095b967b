//! The command line as plain structs.
//!
//! Nothing here looks at the machine: clap fills these, [`Config`](crate::config::Config) resolves the settings among them once,
//! and each command reads its own struct. The help texts below are what `--help`, the manual page and the reference page show.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use forebay_core::ByteSize;
use forebay_data::dataset::FORMAT_NAMES;

mod ckpt;
mod gds;
mod load;
mod pack;
mod seal;

pub(crate) use ckpt::{
    BenchCkptArgs, BringArgs, CkptCommand, CkptDiffArgs, CkptDrainArgs, CkptExportArgs, CkptGcArgs,
    CkptLsArgs, CkptRestoreArgs, CkptShowArgs, CkptVerifyArgs, ExportTo,
};
pub(crate) use gds::GdsArgs;
pub(crate) use load::LoadArgs;
pub(crate) use pack::PackArgs;
pub(crate) use seal::{CkptKeyArgs, CkptLogArgs, CkptRewrapArgs, keys};

use crate::commands::plan::PlanCommand;

/// Feed GPUs from any storage at the speed of the hardware: verified, accounted, without lock-in.
#[derive(Debug, Parser)]
#[command(
    name = "forebay",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "URLs are local paths, file:///path, s3://bucket/key, gs://, az://, http(s):// or mem://.\n\
                  Exit status: 0 done, 1 \"no\" (it exists already, it changed meanwhile), 2 an error, 130 Ctrl-C."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options every command takes.
#[derive(Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Print data as JSON on stdout, and an error as a JSON object on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing on stderr but errors
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more on stderr: what was done to each object, and the ledger
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) settings: SettingArgs,
}

/// Settings, which may also come from the environment or the configuration file; see [`crate::config`].
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings")]
pub(crate) struct SettingArgs {
    /// Configuration file instead of the user's own
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Folder for small state: store probes, transfers in progress, what filters keep
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) state_dir: Option<OsString>,
    /// Keep what is read from remote stores (by `stream`, from file systems too) on a local disk, such as /nvme/cache:200GiB
    #[arg(long, global = true, value_name = "DIR:SIZE")]
    pub(crate) cache: Option<OsString>,
    /// Use what is cached without asking the store whether it has changed: true or false
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) cache_immutable: Option<OsString>,
    /// Disk engine: auto, uring or psync
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) engine: Option<OsString>,
    /// Ceiling of buffer memory in flight, such as 512MiB
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) buffer_memory: Option<OsString>,
    /// Reserved 2 MiB pages for buffer memory: true or false
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) huge_pages: Option<OsString>,
    /// Requests to one store in flight
    #[arg(long, global = true, value_name = "COUNT")]
    pub(crate) concurrency: Option<OsString>,
    /// Size of one ranged GET or uploaded part, such as 8MiB
    #[arg(long, global = true, value_name = "SIZE")]
    pub(crate) part_size: Option<OsString>,
    /// S3 endpoint URL
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) s3_endpoint: Option<OsString>,
    /// S3 region
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) s3_region: Option<OsString>,
    /// Address buckets as host/bucket (path) or bucket.host (virtual); auto decides by the endpoint
    #[arg(long, global = true, value_name = "STYLE")]
    pub(crate) s3_addressing: Option<OsString>,
    /// Send S3 requests without a signature: true or false
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) s3_unsigned: Option<OsString>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List objects and prefixes
    Ls(LsArgs),
    /// Show what is known of an object, or what a store can be relied on for
    Stat(StatArgs),
    /// Copy objects between any two stores: in parallel, resumable, verified
    Cp(CpArgs),
    /// Remove objects
    Rm(RmArgs),
    /// Write an object, or a range of it, to stdout
    Cat(CatArgs),
    /// Load tensors of safetensors files into memory: rate, share of the disk's limit, and the path they took
    Load(Box<LoadArgs>),
    /// Say whether a file can reach a GPU without passing through host memory; if not, why, and what to change
    Gds(GdsArgs),
    /// Checkpoints: list, show, verify, compare, remove
    #[command(subcommand)]
    Ckpt(CkptCommand),
    /// Drain a data set as training does: rate, cost, and what was waited for
    Stream(Box<StreamArgs>),
    /// Write a data set anew as shards of another format, from any format that can be read
    Pack(Box<PackArgs>),
    /// Write the manifest of a data set: shards, SHA-256, where every sample is, with its checksum
    Index(IndexArgs),
    /// Compare a data set with its manifest, byte by byte, and name every damage
    Verify(VerifyArgs),
    /// Show what is in a shard or a data set: samples, fields, offsets, sizes
    Inspect(InspectArgs),
    /// Measure a disk or a store
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The main job on a local directory: write, read back verified, copy, and the table of what it cost
    Demo(DemoArgs),
    /// Serve the planner as a web page, on this machine only unless told otherwise
    Serve(ServeArgs),
    /// How much storage, how often to save, what it costs: numbers with formula, inputs and source
    #[command(subcommand)]
    Plan(PlanCommand),
    /// Show the settings in force, and where each of them comes from
    Config,
    /// Write a completion script for a shell to stdout
    Completions(CompletionsArgs),
    /// Write a manual page to stdout
    Man(ManArgs),
    /// Write a generated reference page to stdout
    #[command(hide = true)]
    Reference(ReferenceArgs),
}

/// `forebay ls`.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// List everything below, not only the next level
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// With size and time of change
    #[arg(short, long)]
    pub(crate) long: bool,
    /// Object, prefix or store
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `forebay stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Object, prefix or store
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `forebay cp`.
#[derive(Debug, Args)]
pub(crate) struct CpArgs {
    /// Copy everything below a prefix or directory
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// How the destination is checked
    #[arg(long, value_enum, default_value_t = VerifyArg::Auto)]
    pub(crate) verify: VerifyArg,
    /// Start over instead of going on where an interrupted copy stopped, and keep nothing to go on from
    #[arg(long)]
    pub(crate) no_resume: bool,
    /// Do not replace objects that exist at the destination; each of them counts as "no" (exit status 1)
    #[arg(long)]
    pub(crate) if_absent: bool,
    /// One or more sources, and the destination: a name, or a place to copy into (trailing slash, existing directory)
    #[arg(value_name = "URL", num_args = 2.., required = true)]
    pub(crate) urls: Vec<OsString>,
}

/// How a copy is verified at the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum VerifyArg {
    /// By the store where its probe showed that it refuses wrong checksums, by reading back otherwise
    Auto,
    /// Always by reading back
    #[value(alias = "readback")]
    ReadBack,
    /// Not at all
    None,
}

/// `forebay rm`.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Remove everything below a prefix or directory
    #[arg(short, long)]
    pub(crate) recursive: bool,
    /// With --recursive: allow a whole bucket or the root of the file system
    #[arg(long, requires = "recursive")]
    pub(crate) all: bool,
    /// Objects, or prefixes with --recursive
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<OsString>,
}

/// `forebay cat`.
#[derive(Debug, Args)]
pub(crate) struct CatArgs {
    /// Only these bytes: A-B without B, A- to the end, or -N for the last N; sizes like 64KiB are fine
    #[arg(long, value_name = "A-B", allow_hyphen_values = true)]
    pub(crate) range: Option<String>,
    /// The object
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// What becomes of samples that do not fill the last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LastArg {
    /// Left out
    Drop,
    /// A short batch
    Short,
    /// Filled from the beginning of the epoch
    Wrap,
}

/// `forebay stream`.
#[derive(Debug, Args)]
pub(crate) struct StreamArgs {
    /// Samples of a batch of one rank
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_size: u64,
    /// Shuffle, by --seed and the number of the epoch alone
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// The order is a function of it
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Passes over the data set, counted from the beginning of the run, also where it is resumed
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    /// End an epoch after that many samples of all ranks
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<u64>,
    /// Stop after that many batches
    #[arg(long, value_name = "COUNT")]
    pub(crate) batches: Option<u64>,
    /// This rank
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(crate) rank: u32,
    /// Ranks
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub(crate) world: u32,
    /// Parts of the data set that go to one rank each when shuffling; the world size must divide it
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub(crate) lanes: u32,
    /// About how much is shuffled together, over all lanes
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) window: ByteSize,
    /// About how much is read at once
    #[arg(long, value_name = "SIZE", default_value = "2MiB")]
    pub(crate) block_size: ByteSize,
    /// Memory for what is read ahead
    #[arg(long, value_name = "SIZE", default_value = "384MiB")]
    pub(crate) memory: ByteSize,
    /// Threads that check and collate; one per core, at most 16, unless given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Only these fields: names with commas between them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) fields: Vec<String>,
    /// Only samples of which this is true, such as "label = 3 and json.width >= 224"; see the page about Parquet for the language
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Leave samples out that do not fill the last batch: --last drop
    #[arg(long, conflicts_with = "last")]
    pub(crate) drop_last: bool,
    /// What becomes of samples that do not fill the last batch: drop leaves them out; short makes a short one, which may be empty on some ranks; wrap fills it from the beginning of the epoch, so that all samples come at least once and all batches are full
    #[arg(long, value_enum, value_name = "HOW", default_value = "short")]
    pub(crate) last: LastArg,
    /// Decode a field into one array: int, float (int:-1 has -1 where there is none), array:DTYPE:SHAPE such as array:uint16:2048, or image:PLAN such as image:rrc:224,flip,normalize
    #[arg(long, value_name = "FIELD=HOW")]
    pub(crate) decode: Vec<String>,
    /// What becomes of damaged samples: stop, skip:MAX (100 unless given), or quarantine:MAX:FOLDER to keep them
    #[arg(long, value_name = "POLICY", default_value = "stop")]
    pub(crate) bad: String,
    /// Go on from a position that --state-out saved: its file, or its JSON
    #[arg(long, value_name = "FILE|JSON")]
    pub(crate) resume: Option<OsString>,
    /// Save where the run stands at its end, also after Ctrl-C or an error. Python takes it where all settings are the same: there, last is drop unless given
    #[arg(long, value_name = "FILE")]
    pub(crate) state_out: Option<OsString>,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// Where there is no index yet, keep the one that is made: beside the shards, or where --manifest says
    #[arg(long)]
    pub(crate) save_index: bool,
    /// The index, where it is not _forebay.fbi beside the shards; with several data sets once for each, in their order
    #[arg(long, value_name = "URL")]
    pub(crate) manifest: Vec<OsString>,
    /// Write a trace of reading, checking, collating and waiting, for Chrome or Perfetto; of rank 3 of several to NAME-00003.json
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<OsString>,
    /// Write the keys of the samples to stdout, in order
    #[arg(long)]
    pub(crate) keys: bool,
    /// Shares of several data sets, in their order and with commas between them: 0.7,0.3; as many as each has samples, unless given
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    pub(crate) weights: Vec<f64>,
    /// Directory or prefix with shards, one shard, or a pattern such as 'train-{000000..000123}.tar'; several are mixed, but single shards of one
    /// directory (`dir/*.tar`) are one data set unless they have weights
    #[arg(value_name = "URL", required = true)]
    pub(crate) urls: Vec<OsString>,
}

/// Which format a data set has.
#[derive(Debug, Default, Args)]
pub(crate) struct FormatArgs {
    /// Format of the shards, where names do not tell it
    #[arg(long, value_name = "FORMAT", value_parser = clap::builder::PossibleValuesParser::new(FORMAT_NAMES))]
    pub(crate) format: Option<String>,
    /// Tokens of one sample, for files of raw tokens, and for tokens of --format litdata
    #[arg(long, value_name = "COUNT")]
    pub(crate) tokens: Option<u64>,
    /// Type of the tokens, such as uint16 or u32
    #[arg(long, value_name = "TYPE")]
    pub(crate) dtype: Option<String>,
    /// What records of TFRecord are: Examples, whose features become fields, or raw bytes
    #[arg(long, value_name = "KIND", value_parser = ["auto", "examples", "raw"])]
    pub(crate) records: Option<String>,
    /// What plain files are: images, whose directories are classes, or a tree of samples
    #[arg(long, value_name = "KIND", value_parser = ["images", "tree"])]
    pub(crate) layout: Option<String>,
    /// Give the bytes of pickles, for --format mds and litdata, which refuse them otherwise; they are never opened
    #[arg(long)]
    pub(crate) allow_pickle: bool,
    /// Any parameter of the format that --format names, its value as JSON or as text, such as records=raw for tfrecord
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) param: Vec<String>,
}

/// `forebay index`.
#[derive(Debug, Args)]
pub(crate) struct IndexArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// Write the manifest there instead of to _forebay.fbi in the data set
    #[arg(short, long, value_name = "URL")]
    pub(crate) output: Option<OsString>,
    /// Write it anew when there is one already
    #[arg(long)]
    pub(crate) force: bool,
    /// Directory or prefix of the data set, one shard, or a pattern such as 'dir/{000000..000123}.tar'
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}

/// `forebay verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The manifest, where it is not _forebay.fbi in the data set
    #[arg(long, value_name = "URL")]
    pub(crate) manifest: Option<OsString>,
    /// Directory or prefix of the data set, one shard, or a pattern such as 'dir/{000000..000123}.tar'
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}

/// `forebay inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// How many samples to show, and how many shards
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    pub(crate) samples: u64,
    /// Only the sample of this key, or of this number where samples have no keys
    #[arg(long, value_name = "KEY")]
    pub(crate) sample: Option<String>,
    /// Write the fields of that sample as files into this directory, and nowhere else
    #[arg(long, value_name = "DIR", requires = "sample")]
    pub(crate) extract: Option<OsString>,
    /// Replace files that exist
    #[arg(long, requires = "extract")]
    pub(crate) force: bool,
    /// The manifest, where it is not _forebay.fbi in the data set; shards that are named are shown by it, too, and not read
    #[arg(long, value_name = "URL")]
    pub(crate) manifest: Option<OsString>,
    /// A shard, or the directory or prefix of a data set
    #[arg(value_name = "URL")]
    pub(crate) url: String,
}

/// `forebay bench`.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// What a disk can do, and how close Forebay gets: the limit is measured in the same run, by other means
    Disk(BenchDiskArgs),
    /// What a store gives: parallel ranged GET, PUT in parts, small objects
    Store(BenchStoreArgs),
    /// What saving and loading a checkpoint costs beside a plain direct write and read in the same run
    Ckpt(BenchCkptArgs),
}

/// `forebay bench disk`.
#[derive(Debug, Args)]
pub(crate) struct BenchDiskArgs {
    /// Size of the test file
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub(crate) size: ByteSize,
    /// Rounds; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Directory on the disk to be measured
    #[arg(value_name = "DIR")]
    pub(crate) dir: OsString,
}

/// `forebay bench store`.
#[derive(Debug, Args)]
pub(crate) struct BenchStoreArgs {
    /// Bytes over all large objects
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub(crate) size: ByteSize,
    /// Size of one large object
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub(crate) object_size: ByteSize,
    /// Number of 4 KiB objects
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) small_objects: u32,
    /// Rounds; the median counts
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) runs: u32,
    /// Store or prefix; a prefix of its own is made below it and removed afterwards
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `forebay demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory to work in; a folder of its own is made there and removed afterwards
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: OsString,
    /// How much to write; three times as much must be free
    #[arg(long, value_name = "SIZE", default_value = "2GiB")]
    pub(crate) size: ByteSize,
}

/// `forebay serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address and port; port 0 lets the system choose one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    pub(crate) listen: String,
    /// Allow an address that other machines reach; there is no password and no encryption
    #[arg(long)]
    pub(crate) allow_remote: bool,
    /// Name of this machine that requests may use, beside its addresses and localhost; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
}

/// `forebay completions`.
#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Which shell
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// `forebay man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The page of this command, such as: cp, or: bench disk
    #[arg(value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// `forebay reference`.
#[derive(Debug, Args)]
pub(crate) struct ReferenceArgs {
    /// Which page
    #[arg(value_enum)]
    pub(crate) page: ReferencePage,
}

/// Generated pages of docs/reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReferencePage {
    /// Commands and options
    Cli,
    /// Settings and environment variables
    Configuration,
    /// Kinds of errors
    Errors,
}
