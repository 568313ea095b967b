//! What a shard says of itself, and index.json of a shard: columns, compression, checksums.
//!
//! The text comes from outside: it is bounded before it is parsed, and what it says is compared before it is used.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::encoding::Encoding;
use crate::format::rows::{ColumnSize, Plan, Row};
use crate::schema::Field;
use crate::table::FIELDS_MAX;

/// The only version there is a reader for, here and there.
pub(super) const VERSION: u64 = 2;

/// What to do about another version.
pub(super) const OTHER_VERSION: &str = "write the data set anew with a mosaicml-streaming that writes version 2, or use a later version of Forebay";

/// The word for this format.
pub(super) const FORMAT: &str = "mds";

/// One column of a data set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub encoding: Encoding,
    /// The name of the encoding as it was written: some have two.
    pub(super) encoding_name: String,
}

impl Column {
    /// A column of that name and encoding.
    pub fn new(name: impl Into<String>, encoding: Encoding) -> Self {
        Self {
            name: name.into(),
            encoding_name: encoding.to_string(),
            encoding,
        }
    }
}

/// What stands between the offsets and the samples, in the order of Python's sorted keys.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Config {
    pub(super) column_encodings: Vec<String>,
    pub(super) column_names: Vec<String>,
    pub(super) column_sizes: Vec<Option<u64>>,
    pub(super) compression: Option<String>,
    pub(super) format: String,
    #[serde(default)]
    pub(super) hashes: Vec<String>,
    #[serde(default)]
    pub(super) size_limit: Option<u64>,
    pub(super) version: u64,
}

impl Config {
    /// Parse the header of a shard.
    pub(super) fn parse(text: &[u8]) -> Result<Self> {
        serde_json::from_slice(text)
            .map_err(|error| corrupt("the header of the shard is not its configuration").with_source(error))
    }

    /// The columns, checked.
    pub(super) fn columns(&self) -> Result<Vec<Column>> {
        columns(
            self.version,
            &self.format,
            &self.column_names,
            &self.column_encodings,
            &self.column_sizes,
        )
    }
}

/// Columns out of the parallel lists of a configuration.
pub(super) fn columns(
    version: u64,
    format: &str,
    names: &[String],
    encodings: &[String],
    sizes: &[Option<u64>],
) -> Result<Vec<Column>> {
    if format != FORMAT {
        let message = format!(
            "the shards are in the format '{}', not mds",
            format.escape_debug()
        );
        return Err(Error::new(ErrorKind::Unsupported, OP, message));
    }
    if version != VERSION {
        let message = format!("version {version} of mds is not known, only {VERSION}");
        return Err(Error::new(ErrorKind::Unsupported, OP, message).with_hint(OTHER_VERSION));
    }
    if names.len() != encodings.len() || names.len() != sizes.len() {
        return Err(corrupt(
            "there are not as many names as encodings and sizes of columns",
        ));
    }
    if names.is_empty() {
        return Err(corrupt("there are no columns"));
    }
    if names.len() > FIELDS_MAX {
        let message = format!("{} columns are more than {FIELDS_MAX}", names.len());
        return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
    }
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair.first() == pair.last()) {
        let name = pair.first().map_or("", |name| name.as_str());
        return Err(corrupt(&format!(
            "column '{}' is there twice",
            name.escape_debug()
        )));
    }
    let columns = names.iter().zip(encodings).zip(sizes);
    columns
        .map(|((name, encoding), size)| column(name, encoding, *size))
        .collect()
}

fn column(name: &str, encoding_name: &str, size: Option<u64>) -> Result<Column> {
    let encoding = Encoding::parse(encoding_name)?;
    if size != encoding.size().map(u64::from) {
        let words = |size: Option<u64>| size.map_or("any size".to_owned(), |size| format!("{size} bytes"));
        let message = format!(
            "column '{}' is said to have values of {}, but those of {encoding} are of {}",
            name.escape_debug(),
            words(size),
            words(encoding.size().map(u64::from))
        );
        return Err(corrupt(&message));
    }
    Ok(Column {
        name: name.to_owned(),
        encoding,
        encoding_name: encoding_name.to_owned(),
    })
}

/// How samples of these columns are made. Pickles are refused unless they are asked for.
pub(super) fn plan(columns: &[Column], allow_pickle: bool) -> Result<Plan> {
    let pickle = columns.iter().find(|column| column.encoding == Encoding::Pickle);
    if let (Some(column), false) = (pickle, allow_pickle) {
        let message = format!("column '{}' holds pickles", column.name.escape_debug());
        return Err(Error::new(ErrorKind::Unsupported, OP, message)
            .with_hint(
            "a pickle runs code when it is opened; its bytes, unopened, are given with --format mds --allow-pickle, \
             in Python with format={'name': 'mds', 'pickle': True}",
        ));
    }
    let fields = columns
        .iter()
        .map(|column| Field::new(column.name.clone(), column.encoding.kind()));
    let sizes = columns
        .iter()
        .map(|column| column.encoding.size().map_or(ColumnSize::Said, ColumnSize::Fixed));
    Ok(Plan {
        fields: fields.collect(),
        row: Row::Columns(sizes.collect()),
    })
}

/// Columns that many shards share.
pub(super) type Columns = Arc<[Column]>;

pub(super) const OP: &str = "read mds";

pub(super) fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}
