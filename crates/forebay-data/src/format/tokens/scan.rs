//! The passes over tokens: windows of one size, and documents of any.

use forebay_core::{Error, ErrorKind, Result};

use super::megatron::Index;
use super::{TOKENS_FIELD, corrupt};
use crate::format::Scan;
use crate::schema::{Dtype, Field, Kind};
use crate::table::{SAMPLE_BYTES_MAX, Table, TableBuilder};

/// Windows of one size, one after the other.
#[derive(Debug)]
pub(super) struct Windows {
    builder: TableBuilder,
    dtype: Dtype,
    window_bytes: u64,
    /// Bytes of the open window that are still to come.
    left: u64,
    offset: u64,
    base: u64,
}

impl Windows {
    /// Windows of that many bytes from offset 0.
    pub(super) fn new(dtype: Dtype, window_bytes: u64) -> Result<Self> {
        Self::from(dtype, window_bytes, 0)
    }

    /// Windows that begin behind a header.
    pub(super) fn from(dtype: Dtype, window_bytes: u64, base: u64) -> Result<Self> {
        let shape = vec![window_bytes / dtype.bytes()];
        let mut windows = Self {
            builder: TableBuilder::new(vec![Field::new(TOKENS_FIELD, Kind::Array { dtype, shape })]),
            dtype,
            window_bytes,
            left: 0,
            offset: base,
            base,
        };
        windows.open()?;
        Ok(windows)
    }

    fn open(&mut self) -> Result<()> {
        self.builder.begin(self.offset, None)?;
        self.builder.field(0, self.offset, self.window_bytes)?;
        self.left = self.window_bytes;
        Ok(())
    }

    /// Bytes of tokens so far.
    pub(super) fn bytes(&self) -> u64 {
        self.offset - self.base
    }
}

impl Scan for Windows {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(taken);
            self.builder.absorb(now);
            self.offset += taken as u64;
            self.left -= taken as u64;
            if self.left == 0 {
                self.builder.end()?;
                self.open()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Table> {
        let tail = self.window_bytes - self.left;
        if !tail.is_multiple_of(self.dtype.bytes()) {
            return Err(corrupt(format!(
                "the file ends at offset {} within a token of {} bytes",
                self.offset,
                self.dtype.bytes()
            )));
        }
        if tail > 0 {
            let tokens = tail / self.dtype.bytes();
            tracing::info!(
                tokens,
                "the tail of a token file is shorter than a sample and left out"
            );
        }
        self.builder.discard();
        self.builder.finish()
    }
}

/// The documents of an index.
#[derive(Debug)]
pub(super) struct Documents {
    builder: TableBuilder,
    /// Bytes of each document that is still to come.
    rest: std::vec::IntoIter<u64>,
    left: u64,
    offset: u64,
}

impl Documents {
    pub(super) fn new(index: Index) -> Result<Self> {
        let kind = Kind::List { dtype: index.dtype };
        let mut documents = Self {
            builder: TableBuilder::new(vec![Field::new(TOKENS_FIELD, kind)]),
            rest: index.documents.into_iter(),
            left: 0,
            offset: 0,
        };
        documents.open()?;
        Ok(documents)
    }

    /// Open the next document; those without a token end at once.
    fn open(&mut self) -> Result<()> {
        for bytes in self.rest.by_ref() {
            if bytes > SAMPLE_BYTES_MAX {
                let message = format!("the document at offset {} is longer than 4 GiB", self.offset);
                return Err(Error::new(ErrorKind::LimitExceeded, "read tokens", message));
            }
            self.builder.begin(self.offset, None)?;
            self.builder.field(0, self.offset, bytes)?;
            self.left = bytes;
            if bytes > 0 {
                return Ok(());
            }
            self.builder.end()?;
        }
        Ok(())
    }
}

impl Scan for Documents {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.left == 0 {
                return Err(corrupt(format!(
                    "the file goes on at offset {}, where its index ends",
                    self.offset
                )));
            }
            let taken = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            let (now, rest) = bytes.split_at(taken);
            self.builder.absorb(now);
            self.offset += taken as u64;
            self.left -= taken as u64;
            if self.left == 0 {
                self.builder.end()?;
                self.open()?;
            }
            bytes = rest;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        if self.left > 0 {
            return Err(corrupt(format!(
                "the file ends at offset {}, {} bytes before its document",
                self.offset, self.left
            )));
        }
        self.builder.finish()
    }
}
