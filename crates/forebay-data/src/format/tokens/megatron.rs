//! Megatron's index: where the documents of a `.bin` file are.
//!
//! Read as a stream: the counts are compared with the size of the file before anything is kept, so memory grows with bytes that are there and not with what
//! a header claims. Offsets are not kept at all: they must be the running sum of the lengths.

use forebay_core::{Error, ErrorKind, Result};

use super::corrupt;
use crate::schema::Dtype;

/// What every index begins with.
pub(super) const MAGIC: &[u8; 9] = b"MMIDIDX\0\0";

/// The one version.
pub(super) const VERSION: u64 = 1;

/// Bytes before the lengths.
pub(super) const HEAD_BYTES: usize = 34;

/// Types by their code.
const DTYPES: [(u8, Dtype); 8] = [
    (1, Dtype::Uint8),
    (2, Dtype::Int8),
    (3, Dtype::Int16),
    (4, Dtype::Int32),
    (5, Dtype::Int64),
    (6, Dtype::Float64),
    (7, Dtype::Float32),
    (8, Dtype::Uint16),
];

/// The code of a type, where it has one.
pub(super) fn code_of(dtype: Dtype) -> Option<u8> {
    DTYPES
        .iter()
        .find(|(_, known)| *known == dtype)
        .map(|(code, _)| *code)
}

/// What an index says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Index {
    pub(super) dtype: Dtype,
    /// Bytes of each document, in order; together they are the `.bin` file.
    pub(super) documents: Vec<u64>,
}

/// Reads an index.
#[derive(Debug)]
pub(super) struct IndexParser {
    idx_bytes: u64,
    head: Option<Head>,
    /// Bytes of an element that came in two pieces.
    pending: Vec<u8>,
    /// Elements that were read.
    read: u64,
    /// Tokens of each sequence.
    lens: Vec<u32>,
    /// Where the next sequence must begin.
    end: u64,
    /// Number of sequences before the last document that was begun.
    first: Option<u64>,
    documents: Vec<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    dtype: Dtype,
    sequences: u64,
    entries: u64,
}

/// The parts behind the head, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Lens,
    Offsets,
    Documents,
    Modes,
}

impl IndexParser {
    /// For a file of that size.
    pub(super) fn new(idx_bytes: u64) -> Self {
        Self {
            idx_bytes,
            head: None,
            pending: Vec::new(),
            read: 0,
            lens: Vec::new(),
            end: 0,
            first: None,
            documents: Vec::new(),
        }
    }

    /// The next bytes.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some((part, width)) = self.part() else {
                return Ok(());
            };
            if self.pending.is_empty() && bytes.len() >= width {
                let (element, rest) = bytes.split_at(width);
                self.take(part, element)?;
                bytes = rest;
                continue;
            }
            let taken = (width - self.pending.len()).min(bytes.len());
            self.pending.extend_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            if self.pending.len() == width {
                let element = std::mem::take(&mut self.pending);
                self.take(part, &element)?;
            }
        }
        Ok(())
    }

    /// Which part the next element is of (none: the head), and its width; `None` behind the end.
    fn part(&self) -> Option<(Option<Part>, usize)> {
        let Some(head) = self.head else {
            return Some((None, HEAD_BYTES));
        };
        let lens_end = head.sequences;
        let offsets_end = lens_end + head.sequences;
        let documents_end = offsets_end + head.entries;
        let (part, width) = match self.read {
            read if read < lens_end => (Part::Lens, 4),
            read if read < offsets_end => (Part::Offsets, 8),
            read if read < documents_end => (Part::Documents, 8),
            read if read < documents_end + head.sequences => (Part::Modes, 1),
            _ => return None,
        };
        Some((Some(part), width))
    }

    fn take(&mut self, part: Option<Part>, element: &[u8]) -> Result<()> {
        let word = || element.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let Some(part) = part else {
            self.head = Some(self.parse_head(element)?);
            return Ok(());
        };
        match part {
            Part::Lens => {
                let len = element.first_chunk().map_or(0, |word| i32::from_le_bytes(*word));
                let len = u32::try_from(len)
                    .map_err(|_| corrupt(format!("sequence {} has a negative length", self.read)))?;
                self.lens.push(len);
            }
            Part::Offsets => self.take_offset(word())?,
            Part::Documents => self.take_document(word())?,
            Part::Modes => {}
        }
        self.read += 1;
        Ok(())
    }

    fn parse_head(&self, head: &[u8]) -> Result<Head> {
        let word = |at: usize| {
            let bytes = head.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |word| u64::from_le_bytes(*word))
        };
        if !head.starts_with(MAGIC) {
            return Err(corrupt("it is no Megatron index: its first bytes are others")
                .with_hint("move the .idx away to read the .bin as raw tokens"));
        }
        if word(9) != VERSION {
            let message = format!(
                "version {} of Megatron's index is not known, only {VERSION}",
                word(9)
            );
            return Err(
                Error::new(ErrorKind::Unsupported, "read tokens", message).with_hint(
                    "write the .idx anew with Megatron, or move it away to read the .bin as raw tokens",
                ),
            );
        }
        let code = head.get(17).copied().unwrap_or_default();
        let dtype = DTYPES.iter().find(|(known, _)| *known == code);
        let (_, dtype) = dtype.ok_or_else(|| corrupt(format!("the index names no type of code {code}")))?;
        let (sequences, entries) = (word(18), word(26));
        let parts = sequences
            .checked_mul(12)
            .and_then(|bytes| bytes.checked_add(entries.checked_mul(8)?))
            .and_then(|bytes| bytes.checked_add(HEAD_BYTES as u64));
        let fits = parts.is_some_and(|bytes| {
            bytes == self.idx_bytes || bytes.checked_add(sequences) == Some(self.idx_bytes)
        });
        if !fits {
            return Err(corrupt(format!(
                "an index of {} bytes cannot have {sequences} sequences and {entries} documents",
                self.idx_bytes
            )));
        }
        Ok(Head {
            dtype: *dtype,
            sequences,
            entries,
        })
    }

    fn take_offset(&mut self, offset: u64) -> Result<()> {
        let sequence = self.read - self.lens.len() as u64;
        if offset != self.end {
            return Err(corrupt(format!(
                "sequence {sequence} begins at byte {offset} by its index, but the one before ends at {}",
                self.end
            )));
        }
        self.end = self
            .bytes_of(sequence)
            .and_then(|bytes| self.end.checked_add(bytes))
            .ok_or_else(|| corrupt("the sequences are longer than any file"))?;
        Ok(())
    }

    fn bytes_of(&self, sequence: u64) -> Option<u64> {
        let len = *self.lens.get(usize::try_from(sequence).ok()?)?;
        u64::from(len).checked_mul(self.head?.dtype.bytes())
    }

    fn take_document(&mut self, sequence: u64) -> Result<()> {
        let Some(first) = self.first else {
            if sequence != 0 {
                return Err(corrupt(
                    "the first document does not begin with the first sequence",
                ));
            }
            self.first = Some(0);
            return Ok(());
        };
        if sequence < first || sequence > self.lens.len() as u64 {
            return Err(corrupt(format!(
                "document {} ends with sequence {sequence}, which is not there or before its first",
                self.documents.len()
            )));
        }
        let bytes =
            (first..sequence).try_fold(0u64, |sum, sequence| sum.checked_add(self.bytes_of(sequence)?));
        self.documents
            .push(bytes.ok_or_else(|| corrupt("a document is longer than any file"))?);
        self.first = Some(sequence);
        Ok(())
    }

    /// The index, for a `.bin` of that size.
    pub(super) fn finish(self, bin_bytes: u64) -> Result<Index> {
        let Some(head) = self.head else {
            return Err(corrupt("the index ends within its head"));
        };
        let is_whole = !matches!(
            self.part(),
            Some((Some(Part::Lens | Part::Offsets | Part::Documents), _))
        );
        if !is_whole || !self.pending.is_empty() {
            return Err(corrupt("the index ends before its last entry"));
        }
        if self.first.unwrap_or(0) != head.sequences {
            return Err(corrupt("the last document does not end with the last sequence"));
        }
        if self.end != bin_bytes {
            return Err(corrupt(format!(
                "the .bin has {bin_bytes} bytes, but {} by its index",
                self.end
            ))
            .with_hint("the .bin is not whole, or belongs to another index"));
        }
        Ok(Index {
            dtype: head.dtype,
            documents: self.documents,
        })
    }
}
