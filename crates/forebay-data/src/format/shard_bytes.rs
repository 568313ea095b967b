//! A shard that is being made: bytes appended in memory from which they can be written as they lie.
//!
//! A `Vec` would be copied once more into aligned memory before it goes to a disk, and both in small pages. Who knows the size beforehand pays
//! for nothing but the bytes.

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{AlignedBuf, Buf, Pages};

/// Room of a shard whose size nobody told.
const CAPACITY_MIN: usize = 1 << 20;

/// Appended bytes, aligned at the start.
#[derive(Debug, Default)]
pub(crate) struct ShardBytes {
    buf: Option<AlignedBuf>,
    len: usize,
}

impl ShardBytes {
    /// Empty, with room for that many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Result<Self> {
        let buf = Some(AlignedBuf::alloc(bytes, Pages::default())?);
        Ok(Self { buf, len: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Append bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Append zeros up to a length.
    pub(crate) fn fill_to(&mut self, len: usize) -> Result<()> {
        self.room(len.saturating_sub(self.len))?.fill(0);
        Ok(())
    }

    /// The bytes.
    pub(crate) fn freeze(self) -> Result<Buf> {
        let mut buf = match self.buf {
            Some(buf) => buf,
            None => AlignedBuf::alloc(0, Pages::Small)?,
        };
        buf.set_len(self.len);
        Ok(buf.freeze())
    }

    /// The next so many bytes, which are part of it from now on.
    fn room(&mut self, more: usize) -> Result<&mut [u8]> {
        let end = self.len.checked_add(more).ok_or_else(too_long)?;
        let capacity = self.buf.as_ref().map_or(0, AlignedBuf::capacity);
        if self.buf.is_none() || end > capacity {
            let wanted = end.max(capacity.saturating_mul(2)).max(CAPACITY_MIN);
            let mut larger = AlignedBuf::alloc(wanted, Pages::default())?;
            if let (Some(buf), Some(place)) = (&self.buf, larger.get_mut(..self.len)) {
                place.copy_from_slice(buf.get(..self.len).ok_or_else(too_long)?);
            }
            self.buf = Some(larger);
        }
        let start = std::mem::replace(&mut self.len, end);
        let buf = self.buf.as_mut().ok_or_else(too_long)?;
        buf.set_len(end);
        buf.get_mut(start..end).ok_or_else(too_long)
    }
}

fn too_long() -> Error {
    let message = "a shard is longer than memory can be";
    Error::new(ErrorKind::LimitExceeded, "write shard", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_kept_while_it_grows() {
        let mut plain = Vec::new();
        let mut made = ShardBytes::with_capacity(10).unwrap();
        for round in 0..40u8 {
            let piece = vec![round; usize::from(round) * 9973];
            made.extend(&piece).unwrap();
            plain.extend_from_slice(&piece);
            plain.resize(plain.len().next_multiple_of(512), 0);
            made.fill_to(plain.len()).unwrap();
            assert_eq!(made.len(), plain.len());
        }
        assert!(made.freeze().unwrap()[..] == plain[..]);
        assert_eq!(ShardBytes::default().freeze().unwrap().len(), 0);
    }
}
