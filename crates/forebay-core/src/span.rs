//! Half-open byte ranges: the only way to name a piece of an object.
//!
//! A [`Span`] is always well-formed (`start <= end`), so code that receives one never checks it again. Planning
//! (aligning outward for direct I/O, cutting into requests) is arithmetic on spans and nothing else.

use std::fmt;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Error, ErrorKind, Result};

/// A half-open byte range `start..end` with `start <= end`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(u64, u64)", into = "(u64, u64)")]
pub struct Span {
    start: u64,
    end: u64,
}

impl Span {
    /// The span `start..end`; `InvalidInput` when `end < start`.
    pub fn new(start: u64, end: u64) -> Result<Self> {
        if end < start {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "span",
                format!("range {start}..{end} ends before it starts"),
            ));
        }
        Ok(Self { start, end })
    }

    /// `len` bytes from `start`; `InvalidInput` when the end does not fit in 64 bits.
    pub fn at(start: u64, len: u64) -> Result<Self> {
        match start.checked_add(len) {
            Some(end) => Ok(Self { start, end }),
            None => Err(Error::new(
                ErrorKind::InvalidInput,
                "span",
                format!("{len} bytes at {start} overflow 64 bits"),
            )),
        }
    }

    /// The first `len` bytes.
    pub const fn first(len: u64) -> Self {
        Self { start: 0, end: len }
    }

    /// First byte.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// One past the last byte.
    pub const fn end(self) -> u64 {
        self.end
    }

    /// Number of bytes.
    pub const fn len(self) -> u64 {
        self.end - self.start
    }

    /// True when the span names no byte.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// True when every byte of `other` is in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The bytes that both spans name, or `None` when there are none.
    pub fn intersect(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// Cut to the first `len` bytes of an object.
    pub fn clamp_to(self, len: u64) -> Self {
        Self {
            start: self.start.min(len),
            end: self.end.min(len),
        }
    }

    /// True when both ends are multiples of `align`.
    pub const fn is_aligned(self, align: u64) -> bool {
        self.start.is_multiple_of(align) && self.end.is_multiple_of(align)
    }

    /// The smallest span with ends at multiples of `align` that contains this one (saturating at 2^64 - align).
    pub fn align_out(self, align: u64) -> Self {
        let start = self.start - self.start % align;
        let end = self
            .end
            .checked_next_multiple_of(align)
            .unwrap_or(u64::MAX - u64::MAX % align);
        Self {
            start,
            end: end.max(start),
        }
    }

    /// The largest span with ends at multiples of `align` inside this one, or `None` when there is none.
    pub fn align_in(self, align: u64) -> Option<Self> {
        let start = self.start.checked_next_multiple_of(align)?;
        let end = self.end - self.end % align;
        (start < end).then_some(Self { start, end })
    }

    /// Cut into consecutive pieces that end at multiples of `size` (counted from byte 0, so that neighbours agree).
    pub fn pieces(self, size: u64) -> Pieces {
        Pieces {
            rest: self,
            size: size.max(1),
        }
    }

    /// As a `usize` range relative to `origin`, for slicing a buffer that starts there.
    pub fn relative_to(self, origin: u64) -> Range<usize> {
        (self.start - origin) as usize..(self.end - origin) as usize
    }
}

/// Iterator over the pieces of a span; see [`Span::pieces`].
#[derive(Debug, Clone)]
pub struct Pieces {
    rest: Span,
    size: u64,
}

impl Iterator for Pieces {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        if self.rest.is_empty() {
            return None;
        }
        let cut = (self.rest.start / self.size + 1)
            .saturating_mul(self.size)
            .min(self.rest.end);
        let piece = Span {
            start: self.rest.start,
            end: cut,
        };
        self.rest.start = cut;
        Some(piece)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<(u64, u64)> for Span {
    type Error = Error;

    fn try_from((start, end): (u64, u64)) -> Result<Self> {
        Self::new(start, end)
    }
}

impl From<Span> for (u64, u64) {
    fn from(span: Span) -> Self {
        (span.start, span.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_the_span_without_gap_or_overlap(start in 0u64..1 << 40, len in 0u64..100_000, size in 1u64..9_000) {
            let span = Span::at(start, len).unwrap();
            let mut at = start;
            for piece in span.pieces(size) {
                prop_assert_eq!(piece.start(), at);
                prop_assert!(!piece.is_empty() && piece.len() <= size);
                prop_assert!(piece.end() == span.end() || piece.end() % size == 0);
                at = piece.end();
            }
            prop_assert_eq!(at, span.end());
        }

        #[test]
        fn alignment_brackets_the_span(start: u64, len in 0u64..1 << 20, shift in 0u32..16) {
            let Ok(span) = Span::at(start, len) else { return Ok(()) };
            let align = 1u64 << shift;
            let out = span.align_out(align);
            prop_assert!(out.is_aligned(align));
            if span.end() <= u64::MAX - align {
                prop_assert!(out.contains(span));
            }
            if let Some(inner) = span.align_in(align) {
                prop_assert!(inner.is_aligned(align) && span.contains(inner));
            }
        }
    }

    #[test]
    fn malformed_ranges_are_refused() {
        assert_eq!(Span::new(2, 1).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(Span::at(u64::MAX, 1).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(serde_json::from_str::<Span>("[5,4]").is_err());
        assert_eq!(serde_json::to_string(&Span::first(7)).unwrap(), "[0,7]");
    }
}
