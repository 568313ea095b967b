//! Token files: one array of numbers, cut into windows, or into the documents of a Megatron index.
//!
//! Specified in `docs/formats/tokens.md`. What a file is says its name and what lies beside it: `.npy` has a header ([`npy`]), a `.bin` with an `.idx` is
//! Megatron's ([`megatron`]), anything else is the numbers alone, of a type the user must name. The pass itself ([`scan`]) does nothing but
//! count and check sums. [`write`] goes the other way.

mod megatron;
mod npy;
mod scan;
#[cfg(test)]
mod tests;
mod write;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Result};
use futures::TryStreamExt;

use crate::format::{Format, Scan};
use crate::schema::Dtype;
use crate::source::ShardSource;
use crate::table::SAMPLE_BYTES_MAX;

pub use write::{MegatronWriter, TokensWriter};

/// The one field of a sample.
pub const TOKENS_FIELD: &str = "tokens";

/// What a sample is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// That many tokens.
    Windows(u64),
    /// A document; the file must have an index.
    Documents,
}

/// The format.
#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    dtype: Option<Dtype>,
    cut: Cut,
}

impl Tokens {
    /// Of that type, where the files do not say it themselves, and cut like that.
    pub fn new(dtype: Option<Dtype>, cut: Cut) -> Result<Self> {
        if cut == Cut::Windows(0) {
            return Err(invalid("a sample needs at least one token"));
        }
        Ok(Self { dtype, cut })
    }

    /// Tokens behind the last whole window of a file of `bytes` (without a header): they are left out. 0 for documents.
    pub fn tail_tokens(&self, dtype: Dtype, bytes: u64) -> u64 {
        match self.cut {
            Cut::Windows(tokens) => bytes / dtype.bytes() % tokens.max(1),
            Cut::Documents => 0,
        }
    }

    /// A pass over the numbers alone.
    pub fn start_raw(&self) -> Result<Box<dyn Scan>> {
        let dtype = self.dtype.ok_or_else(|| {
            invalid("a raw token file does not say what its numbers are")
                .with_hint("name their type, such as uint16 or uint32")
        })?;
        Ok(Box::new(scan::Windows::new(dtype, self.window(dtype)?)?))
    }

    /// A pass over a `.npy` file.
    pub fn start_npy(&self) -> Result<Box<dyn Scan>> {
        self.window(Dtype::Uint8)?;
        Ok(Box::new(npy::NpyScan::new(*self)))
    }

    /// A pass over a `.bin` file of that many bytes with the index `idx` beside it.
    pub fn start_megatron(&self, idx: &[u8], bin_bytes: u64) -> Result<Box<dyn Scan>> {
        let mut parser = megatron::IndexParser::new(idx.len() as u64);
        parser.feed(idx)?;
        self.start_indexed(parser.finish(bin_bytes)?)
    }

    fn start_indexed(&self, index: megatron::Index) -> Result<Box<dyn Scan>> {
        self.check_dtype(index.dtype, "its index")?;
        Ok(match self.cut {
            Cut::Windows(_) => Box::new(scan::Windows::new(index.dtype, self.window(index.dtype)?)?),
            Cut::Documents => Box::new(scan::Documents::new(index)?),
        })
    }

    /// Bytes of a window.
    fn window(&self, dtype: Dtype) -> Result<u64> {
        let Cut::Windows(tokens) = self.cut else {
            return Err(invalid("only files with an index have documents")
                .with_hint("name the tokens of a sample, or put the .idx beside the .bin"));
        };
        tokens
            .checked_mul(dtype.bytes())
            .filter(|bytes| *bytes <= SAMPLE_BYTES_MAX)
            .ok_or_else(|| invalid("a sample of so many tokens is longer than 4 GiB"))
    }

    fn check_dtype(&self, found: Dtype, by: &str) -> Result<()> {
        match self.dtype {
            Some(asked) if asked != found => Err(invalid(&format!(
                "the tokens are {found} by {by}, but {asked} was asked for"
            ))),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Format for Tokens {
    fn name(&self) -> &'static str {
        "tokens"
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let key = &source.meta().key;
        match key.as_str().rsplit_once('.') {
            Some((_, "npy")) => self.start_npy(),
            Some((stem, "bin")) => match index_beside(source, stem).await? {
                Some(index) => self.start_indexed(index),
                None => self.start_raw(),
            },
            _ => self.start_raw(),
        }
    }
}

/// The index beside `stem.bin`, where there is one.
async fn index_beside(source: &ShardSource, stem: &str) -> Result<Option<megatron::Index>> {
    let idx = match source.beside(&Key::parse(&format!("{stem}.idx"))?).await {
        Ok(idx) => idx,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let parse = async {
        let mut parser = megatron::IndexParser::new(idx.size());
        let mut pieces = idx.pieces();
        while let Some((piece, _)) = pieces.try_next().await? {
            parser.feed(&piece)?;
        }
        parser.finish(source.size())
    };
    parse.await.map(Some).map_err(|error| idx.name_in(error))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "read tokens", message)
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, "read tokens", message)
}
