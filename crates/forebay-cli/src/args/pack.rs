//! `forebay pack` as a plain struct.

use std::ffi::OsString;

use clap::Args;
use forebay_core::ByteSize;

use super::FormatArgs;

/// `forebay pack`.
#[derive(Debug, Args)]
pub(crate) struct PackArgs {
    /// Format to write; tokens: Megatron's .bin and .idx, raw: .bin alone, of samples of one length, files: a plain file for every field
    #[arg(long, value_name = "FORMAT", value_parser = ["wds", "mds", "tfrecord", "parquet", "tokens", "raw", "files"])]
    pub(crate) to: String,
    /// Longest shard, before compression
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    pub(crate) shard_size: ByteSize,
    /// Most samples of one shard
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) samples_per_shard: Option<u64>,
    /// Compress shards, such as gz, zstd or zstd:7; wds: gz, zstd; mds: also br, bz2, snappy; tfrecord: gz, zlib; parquet: zstd
    #[arg(long, value_name = "NAME")]
    pub(crate) compression: Option<String>,
    /// Checksums of shards for index.json, for --to mds: any of hashlib's and xxhash's, such as sha1 or xxh64, with commas between them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) hashes: Vec<String>,
    /// Shuffle the samples, by --seed alone
    #[arg(long)]
    pub(crate) shuffle: bool,
    /// The shuffled order is a function of it
    #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "shuffle")]
    pub(crate) seed: u64,
    /// Only samples for which this holds, such as: label = 3 and json.width >= 256 and __key__ != 'a/b'
    #[arg(long, value_name = "PREDICATE")]
    pub(crate) filter: Option<String>,
    /// At most that many samples
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
    /// Only these fields, with commas between them
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub(crate) fields: Option<Vec<String>>,
    /// Leave the keys of samples behind; where the format must have some, they are numbers
    #[arg(long)]
    pub(crate) drop_keys: bool,
    /// Type of tokens in the target, such as uint16 or int32, for --to tokens and --to raw
    #[arg(long, value_name = "TYPE")]
    pub(crate) token_dtype: Option<String>,
    /// Shards built at once, as far as --memory allows; one per core unless given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: Option<u32>,
    /// Memory for samples read ahead and shards being built; with --shuffle, a quarter of it is what is shuffled together
    #[arg(long, value_name = "SIZE", default_value = "4GiB")]
    pub(crate) memory: ByteSize,
    /// Replace what was packed to the target before, finished or not; without, an unfinished pack is gone on with
    #[arg(long)]
    pub(crate) overwrite: bool,
    #[command(flatten)]
    pub(crate) format: FormatArgs,
    /// The manifest of the source, where it is not _forebay.fbi in it
    #[arg(long, value_name = "URL")]
    pub(crate) manifest: Option<OsString>,
    /// What to pack: a folder, the directory or prefix of a data set, one shard, or a pattern such as 'dir/{000000..000123}.tar'
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// Directory or prefix to write to
    #[arg(value_name = "TARGET")]
    pub(crate) target: OsString,
}
