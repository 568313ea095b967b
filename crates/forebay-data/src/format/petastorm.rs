//! Petastorm data sets, read only: Parquet files, and a schema that says which bytes are arrays and images.
//!
//! ```text
//! _common_metadata --key-value metadata--> pickle --interpreted, never run--> Unischema
//!                                                                                |
//! part-*.parquet --> parquet::File, its columns given kinds and unpacking by it <-'
//! ```
//!
//! See docs/formats/petastorm.md. A [`File`] opened here scans, filters and decodes as one of plain Parquet does.

mod arrays;
#[cfg(fuzzing)]
pub mod fuzz;
mod npz;
mod pickle;
mod unischema;

pub(crate) use arrays::{Packing, unpack, unpack_npy};
pub use pickle::PICKLE_BYTES_MAX;
pub use unischema::{Unischema, UnischemaCodec, UnischemaField};

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Ledger, Result};

use super::parquet::{File, Parquet, footer_key_value};
use super::{Format, GroupDecoder, Scan};
use crate::codec::Codec;
use crate::schema::Kind;
use crate::source::ShardSource;
use crate::table::Groups;

/// The file beside the Parquet files that has the schema.
pub const COMMON_METADATA: &str = "_common_metadata";

/// Where the schema stands in it.
const UNISCHEMA_KEY: &str = "dataset-toolkit.unischema.v1";

/// The format, for one data set.
#[derive(Debug, Clone)]
pub struct Petastorm {
    /// The schema of the data set.
    pub schema: Arc<Unischema>,
    /// How its files are read.
    pub parquet: Parquet,
}

impl Petastorm {
    /// True when a `_common_metadata` has a schema of Petastorm's; Spark writes such files without one.
    pub async fn has_schema(common_metadata: &ShardSource) -> Result<bool> {
        let (pickle, _) = footer_key_value(common_metadata, UNISCHEMA_KEY).await?;
        Ok(pickle.is_some())
    }

    /// Read the schema from `_common_metadata`.
    pub async fn open(common_metadata: &ShardSource, parquet: Parquet) -> Result<(Self, Ledger)> {
        let (pickle, ledger) = footer_key_value(common_metadata, UNISCHEMA_KEY).await?;
        let schema = match pickle {
            Some(pickle) => Unischema::from_pickle(&pickle),
            None => Err(Error::new(
                ErrorKind::Corrupt,
                "read petastorm",
                format!("there is no schema under the key '{UNISCHEMA_KEY}'"),
            )
            .with_hint("read the data set as plain Parquet")),
        };
        let schema = schema.map_err(|error| common_metadata.name_in(error))?;
        let is_text = |name: &str| schema.field(name).is_some_and(|field| field.kind() == Kind::Text);
        let parquet = Parquet {
            partitions: parquet.partitions.with_text(is_text),
            ..parquet
        };
        let petastorm = Self {
            schema: Arc::new(schema),
            parquet,
        };
        Ok((petastorm, ledger))
    }

    /// Open one of the Parquet files.
    pub async fn open_file(&self, source: &ShardSource) -> Result<(File, Ledger)> {
        let (file, ledger) = File::open(source, &self.parquet).await?;
        Ok((self.describe(file), ledger))
    }

    /// Give the columns of a file what the schema knows of them.
    pub fn describe(&self, mut file: File) -> File {
        for index in 0..file.fields().len() {
            let Some(field) = file.fields().get(index).filter(|field| field.kind == Kind::Bytes) else {
                continue;
            };
            let Some(known) = self.schema.field(&field.name) else {
                continue;
            };
            let packing = match known.codec {
                UnischemaCodec::Ndarray => Some(Packing::Npy),
                UnischemaCodec::CompressedNdarray => Some(Packing::Npz),
                UnischemaCodec::Scalar | UnischemaCodec::CompressedImage => None,
            };
            file.set_kind(index, known.kind(), packing);
        }
        file
    }
}

#[async_trait]
impl Format for Petastorm {
    fn name(&self) -> &'static str {
        "petastorm"
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let (file, _) = self.open_file(source).await?;
        Ok(file.scan())
    }

    async fn decoder(&self, source: &ShardSource, groups: &Groups) -> Result<Arc<dyn GroupDecoder>> {
        let (file, _) = File::open_known(source, &self.parquet, &groups.footer).await?;
        Ok(Arc::new(self.describe(file)))
    }

    /// The format compresses within; a footer could not be found in a file that is compressed as a whole.
    fn codec(&self, _key: &Key, _first: &[u8]) -> Codec {
        Codec::None
    }
}
