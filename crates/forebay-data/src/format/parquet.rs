//! Parquet, read and written. What becomes what is described in docs/formats/parquet.md.
//!
//! ```text
//! footer.rs: File (fields, row groups) --Format::scan--> scan.rs: Table of groups, CRC-32C of footer and chunks as the bytes pass
//!    |                                                       |
//!    `-- decode.rs: chunks, pages, arrays --> Block <--------' (the loader reads chunks; they are compared, then decoded)
//!
//! writer.rs, encode.rs: samples --> row groups --> pages with checksums --> bytes of a file
//! ```
//!
//! Bytes are hostile. What the `parquet` crate trusts is checked before it is called: the types in headers (known.rs), the footer's schema (footer.rs), the
//! headers of pages (pages.rs), and counts within pages once they are decompressed (held.rs). What is left is contained in one place (arrow/contain.rs). What Arrow's arrays become is the room of arrow.rs.

mod decode;
mod encode;
mod footer;
mod held;
mod known;
mod lent;
mod outline;
mod pages;
mod partitions;
mod scan;
mod thrift;
mod writer;

pub use decode::Decoded;
pub(crate) use footer::footer_key_value;
#[cfg(fuzzing)]
pub(crate) use footer::fuzz as fuzz_footer;
pub use footer::{FOOTER_BYTES_MAX, File, RowGroup};
pub use pages::PAGE_BYTES_MAX;
pub use partitions::Partitions;
#[cfg(fuzzing)]
pub(crate) use partitions::fuzz as fuzz_folders;
pub use writer::{ParquetOptions, ParquetWriter};

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Key, Result};

use super::arrow::absent;
use super::{Format, GroupDecoder, Scan};
use crate::codec::Codec;
use crate::source::ShardSource;
use crate::table::Groups;

/// What errors say was being done.
const OP: &str = "read parquet";

/// The format.
#[derive(Debug, Clone, Default)]
pub struct Parquet {
    /// Only these columns become fields; all without. A name of a struct means all its members.
    pub columns: Option<Vec<String>>,
    /// Columns that names of folders say.
    pub partitions: Partitions,
}

#[async_trait]
impl Format for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let (file, _) = File::open(source, self).await?;
        Ok(file.scan())
    }

    async fn decoder(&self, source: &ShardSource, groups: &Groups) -> Result<Arc<dyn GroupDecoder>> {
        let (file, _) = File::open_known(source, self, &groups.footer).await?;
        Ok(Arc::new(file))
    }

    /// The format compresses within; a footer could not be found in a file that is compressed as a whole.
    fn codec(&self, _key: &Key, _first: &[u8]) -> Codec {
        Codec::None
    }
}
