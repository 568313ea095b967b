//! WebDataset: tar archives whose members are the fields of samples.
//!
//! ```text
//! bytes --scan.rs--> blocks --header.rs, pax.rs--> members --names.rs--> (key, field) --group.rs--> samples of a Table
//! samples --write.rs--> headers and data --> bytes
//! ```
//!
//! Names, types and numbers are read as the library of that name reads them, down to its regular expression; where it stops at damage without a
//! word, this one says so. The bytes and all rules stand in `docs/formats/webdataset.md`.

mod group;
mod header;
pub(crate) mod names;
mod pax;
mod scan;
mod write;

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use forebay_core::Result;

use crate::format::{Format, Scan};
use crate::source::ShardSource;

pub use scan::WdsScan;
pub use write::WdsWriter;
pub(crate) use write::{archive_bytes, file_name, sample_bytes};

/// Everything in a tar lies at a multiple of this.
const BLOCK_BYTES: usize = 512;

/// One block.
type Block = [u8; BLOCK_BYTES];

/// `bytes` with the padding up to whole blocks; `None` where no archive could be that long.
fn padded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(BLOCK_BYTES as u64)
}

/// The format of WebDataset shards.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wds;

#[async_trait]
impl Format for Wds {
    fn name(&self) -> &'static str {
        "wds"
    }

    async fn scan(&self, _source: &ShardSource) -> Result<Box<dyn Scan>> {
        Ok(Box::new(WdsScan::default()))
    }
}
