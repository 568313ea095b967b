//! The safetensors format: what a file's header says, checked, and headers for files to be written. Bytes in, structs out; no I/O.
//!
//! ```text
//! file:  u64 LE length N | N bytes of JSON, padded with spaces | data area: the tensors back to back
//! read:  first bytes --Header::prefix_bytes--> how many to read --Header::parse--> Header { tensors in file order, metadata }
//! write: names, dtypes, shapes --HeaderBuilder::encode--> the bytes in front of the data area, and the same Header
//! ```
//!
//! A parsed [`Header`] is sound: every tensor has the bytes its dtype and shape need, and together they cover the data area without gap or
//! overlap, so what is made from it needs no further check. The `safetensors` crate is not used for this because it lets the last of
//! two tensors of one name win, its errors do not say where, and it cannot begin the data area at a page; the tests compare with it.

mod dtype;
mod encode;
mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use self::dtype::Dtype;
pub use self::encode::{Encoded, HeaderBuilder, Order};
use crate::{Error, ErrorKind, Result, Span};

/// Bytes of the number in front of the header that says how long it is.
pub const LENGTH_BYTES: u64 = 8;

/// Longest header in bytes, without the length in front of it: the limit of the format, which other readers hold too.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Most dimensions of a tensor: no framework has more than 64, and a header of nothing but dimensions must not fill memory.
pub const DIMS_MAX: usize = 64;

/// The key under which a header keeps what is not a tensor.
pub const METADATA_KEY: &str = "__metadata__";

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Number of elements in each dimension; empty for a scalar.
    pub shape: Vec<u64>,
    /// Where its bytes are, counted from the start of the file.
    pub span: Span,
}

/// What a file holds; see the module for what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    tensors: Vec<TensorInfo>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
    metadata: Option<BTreeMap<String, String>>,
    data_start: u64,
    file_len: u64,
}

impl Header {
    /// How many bytes from the start of the file [`parse`](Self::parse) needs, known from the first eight of them.
    ///
    /// `Corrupt` when the file cannot hold what it announces, `LimitExceeded` for a header beyond the format's limit.
    pub fn prefix_bytes(first: &[u8], file_len: u64) -> Result<u64> {
        parse::prefix_bytes(first, file_len)
    }

    /// Parse and check the header of a file of `file_len` bytes from at least its first [`prefix_bytes`](Self::prefix_bytes).
    ///
    /// `Corrupt` names the tensor and the offset at fault, `Unsupported` a dtype this version does not know.
    pub fn parse(prefix: &[u8], file_len: u64) -> Result<Self> {
        parse::parse(prefix, file_len)
    }

    /// From tensors in file order that are known to be sound.
    fn from_parts(
        tensors: Vec<TensorInfo>,
        metadata: Option<BTreeMap<String, String>>,
        data_start: u64,
        file_len: u64,
    ) -> Self {
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by(|a, b| tensors[*a as usize].name.cmp(&tensors[*b as usize].name));
        Self {
            tensors,
            by_name,
            metadata,
            data_start,
            file_len,
        }
    }

    /// The tensors, in the order of their bytes.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.index_of(name).and_then(|index| self.tensors.get(index))
    }

    /// Where in [`tensors`](Self::tensors) the one of that name is.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let found = self
            .by_name
            .binary_search_by(|index| self.tensors[*index as usize].name.as_str().cmp(name));
        found.ok().map(|at| self.by_name[at] as usize)
    }

    /// Names in their own order.
    pub fn names_sorted(&self) -> impl Iterator<Item = &str> {
        self.by_name
            .iter()
            .map(|index| self.tensors[*index as usize].name.as_str())
    }

    /// What the file says of itself, where it does.
    pub fn metadata(&self) -> Option<&BTreeMap<String, String>> {
        self.metadata.as_ref()
    }

    /// First byte of the data area.
    pub fn data_start(&self) -> u64 {
        self.data_start
    }

    /// The data area.
    pub fn data_span(&self) -> Span {
        Span::new(self.data_start, self.file_len).unwrap_or_else(|_| Span::first(0))
    }

    /// Length of the whole file.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }
}

/// Bytes of a tensor; the reason in words when there is no such number.
fn tensor_bytes(dtype: Dtype, shape: &[u64]) -> Result<u64, &'static str> {
    let elements = shape
        .iter()
        .try_fold(1u64, |product, len| product.checked_mul(*len))
        .ok_or("the number of its elements does not fit 64 bits")?;
    let bits = elements
        .checked_mul(dtype.bits())
        .ok_or("its size in bits does not fit 64 bits")?;
    if bits.is_multiple_of(8) {
        Ok(bits / 8)
    } else {
        Err("its elements do not end at a whole byte")
    }
}

fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

/// What errors say was done.
const OP: &str = "parse safetensors";
