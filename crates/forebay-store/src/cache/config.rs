//! What a cache is told: where, how much, in which pieces, and how long a version is believed.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{ByteSize, Error, ErrorKind, Location, Result};

/// Block size unless told otherwise: large enough that a fetch is not ruled by its round trip, small enough that reading a part of a block
/// (which reads and checks all of it) is bearable.
pub const BLOCK_BYTES_DEFAULT: u64 = 4 << 20;

/// Blocks are multiples of this: a page, and what direct I/O asks for on every device met so far.
const BLOCK_STEP: u64 = 4096;

/// Largest block: its length must fit a record, and a few of them in memory.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// Memory for blocks on their way from the origin to the disk: 16 blocks of the default size, enough to keep a 10 Gb/s origin busy.
pub const FILL_BYTES_DEFAULT: u64 = 64 << 20;

/// How much of an object a first read brings in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// All of it: the blocks asked for at once, the others in the background.
    #[default]
    Whole,
    /// Only the blocks asked for.
    Blocks,
}

/// How long the version of an object is believed before the origin is asked again. Reads that name a version are not concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Freshness {
    /// Not at all: every read asks, so a changed object is seen at once.
    #[default]
    Ask,
    /// That long.
    For(Duration),
    /// For ever: objects never change once written, as training data should not. Warm reads do not touch the origin, and objects of
    /// origins that give no versions can be cached.
    Immutable,
}

/// How a cache is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// Its directory; made when it is not there. Processes that name the same directory share it.
    pub root: PathBuf,
    /// Most it may take on the device.
    pub bytes_max: u64,
    /// Size of a block, a multiple of 4 KiB: the unit of fetching and checking.
    pub block_bytes: u64,
    /// How much a first read brings in.
    pub mode: Mode,
    /// How long a version is believed.
    pub freshness: Freshness,
    /// Memory for blocks being fetched and written, beside the buffer pool; at least one block.
    pub fill_bytes_max: u64,
}

impl CacheConfig {
    /// At most `bytes_max` below `root`, everything else as usual.
    pub fn new(root: impl Into<PathBuf>, bytes_max: u64) -> Self {
        Self {
            root: root.into(),
            bytes_max,
            block_bytes: BLOCK_BYTES_DEFAULT,
            mode: Mode::default(),
            freshness: Freshness::default(),
            fill_bytes_max: FILL_BYTES_DEFAULT,
        }
    }

    /// Parse `directory:size`, such as `/nvme/cache:200GiB`; a relative directory is taken from `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self> {
        let refuse = || {
            let message = format!("'{}' is not a cache", text.escape_debug());
            Error::new(ErrorKind::InvalidInput, "open cache", message)
                .with_hint("write directory:size, such as /nvme/cache:200GiB")
        };
        let (root, size) = text
            .rsplit_once(':')
            .filter(|(root, _)| !root.is_empty())
            .ok_or_else(refuse)?;
        let ByteSize(bytes_max) = size.parse().map_err(|_| refuse())?;
        Ok(Self::new(base.join(root), bytes_max))
    }

    pub(super) fn check(&self, origin: &Location) -> Result<()> {
        let refuse = |message: String, hint: &str| {
            Err(Error::new(ErrorKind::InvalidInput, "open cache", message)
                .at(self.root.display())
                .with_hint(hint))
        };
        let block = self.block_bytes;
        if block == 0 || !block.is_multiple_of(BLOCK_STEP) || block > BLOCK_BYTES_MAX {
            return refuse(
                format!("blocks of {block} bytes"),
                "use a multiple of 4KiB, up to 1GiB",
            );
        }
        if self.bytes_max < block {
            let message = format!("{} is less than one block", ByteSize(self.bytes_max));
            return refuse(message, "give the cache more room, or use smaller blocks");
        }
        // Eviction only ever removes names of its own making; still, nobody means to cache a directory in itself.
        let inside = origin
            .to_path()
            .is_some_and(|path| self.root.starts_with(&path) || path.starts_with(&self.root));
        if inside {
            return refuse(
                format!("the cache and its origin {origin} overlap"),
                "use a directory of its own for the cache",
            );
        }
        Ok(())
    }

    /// Blocks that may be in flight at once, within the memory given and the requests a store takes.
    pub(super) fn slots(&self, store_requests_max: u32) -> u64 {
        (self.fill_bytes_max / self.block_bytes).clamp(1, u64::from(store_requests_max.max(1)))
    }
}

/// As [`CacheConfig::parse`] reads it.
impl fmt::Display for CacheConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.root.display(), self.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_reads_back_as_it_is_written() {
        let base = Path::new("/base");
        for (text, root, bytes_max) in [
            ("/nvme/cache:200GiB", "/nvme/cache", 200 << 30),
            ("a:b:1.5GB", "/base/a:b", 1_500_000_000),
            ("c:4096", "/base/c", 4096),
        ] {
            let config = CacheConfig::parse(text, base).unwrap();
            assert_eq!(
                (config.root.as_path(), config.bytes_max),
                (Path::new(root), bytes_max)
            );
            assert_eq!(CacheConfig::parse(&config.to_string(), base).unwrap(), config);
        }
        for text in ["", "/nvme", ":1GiB", "/nvme:", "/nvme:much", "/nvme:-1"] {
            let error = CacheConfig::parse(text, base).unwrap_err();
            assert!(
                error.hint().is_some_and(|hint| hint.contains("directory:size")),
                "{text}"
            );
        }
    }
}
