//! Parquet, read and written. What becomes what is described in docs/formats/parquet.md.
//!
//! ```text
//! footer.rs: File (fields, row groups) --Format::scan--> Table of groups, CRC-32C of each extent as the bytes pass
//!    |                                                       |
//!    `-- decode.rs: chunks, pages, arrays --> Block <--------' (the loader reads an extent, compares, decodes)
//!
//! writer.rs, encode.rs: samples --> row groups --> pages with checksums --> bytes of a file
//! ```
//!
//! Bytes are hostile. What the `parquet` crate trusts is checked before it is called: the footer's schema (footer.rs), the headers of pages
//! (pages.rs). What is left is contained in one place (contain.rs).

mod columns;
mod contain;
mod convert;
mod decode;
mod encode;
mod footer;
mod outline;
mod pages;
mod thrift;
mod writer;

pub use decode::Decoded;
pub(crate) use footer::footer_key_value;
pub use footer::{FOOTER_BYTES_MAX, File, RowGroup};
pub use pages::PAGE_BYTES_MAX;
pub use writer::{ParquetOptions, ParquetWriter};

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Crc32c, Error, ErrorKind, Key, Result};

use super::{Format, GroupDecoder, Scan};
use crate::codec::Codec;
use crate::source::ShardSource;
use crate::table::{Group, Layout, Table};

/// What every file begins with.
const MAGIC: &[u8; 4] = b"PAR1";

/// The format.
#[derive(Debug, Clone, Default)]
pub struct Parquet {
    /// Only these columns become fields; all without. A name of a struct means all its members.
    pub columns: Option<Vec<String>>,
}

#[async_trait]
impl Format for Parquet {
    fn name(&self) -> &'static str {
        "parquet"
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let (file, _) = File::open(source, self.columns.as_deref()).await?;
        Ok(file.scan())
    }

    async fn decoder(&self, source: &ShardSource) -> Result<Arc<dyn GroupDecoder>> {
        let (file, _) = File::open(source, self.columns.as_deref()).await?;
        Ok(Arc::new(file))
    }

    /// The format compresses within; a footer could not be found in a file that is compressed as a whole.
    fn codec(&self, _key: &Key, _first: &[u8]) -> Codec {
        Codec::None
    }
}

impl File {
    /// A pass over the bytes of the file.
    pub fn scan(self) -> Box<dyn Scan> {
        Box::new(Pass {
            crcs: vec![Crc32c::default(); self.groups.len()],
            file: self,
            at: 0,
            next: 0,
        })
    }
}

/// Computes the checksums of extents as their bytes pass.
struct Pass {
    file: File,
    crcs: Vec<Crc32c>,
    /// Bytes that have passed.
    at: u64,
    /// The first row group whose end has not passed.
    next: usize,
}

impl Scan for Pass {
    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(magic) = MAGIC.get(self.at.min(4) as usize..) {
            let seen = bytes.get(..magic.len().min(bytes.len())).unwrap_or_default();
            if !magic.starts_with(seen) {
                return Err(corrupt("it does not begin with PAR1 (byte 0)"));
            }
        }
        let end = self.at + bytes.len() as u64;
        while let Some((group, crc)) = self.file.groups.get(self.next).zip(self.crcs.get_mut(self.next)) {
            let (start, stop) = (group.extent.start().max(self.at), group.extent.end().min(end));
            if start < stop
                && let Some(part) = bytes.get((start - self.at) as usize..(stop - self.at) as usize)
            {
                crc.update(part);
            }
            if group.extent.end() > end {
                break;
            }
            self.next += 1;
        }
        self.at = end;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        if self.next < self.file.groups.len() {
            return Err(corrupt(&format!(
                "it ends at byte {}, within row group {}",
                self.at, self.next
            )));
        }
        let groups = self.file.groups().iter().zip(&self.crcs);
        let groups = groups.map(|(group, crc)| Group {
            extent: group.extent,
            crc: crc.value(),
            samples: group.rows,
        });
        Ok(Table {
            fields: self.file.fields().to_vec(),
            layout: Layout::Groups(groups.collect()),
        })
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read parquet", message)
}
