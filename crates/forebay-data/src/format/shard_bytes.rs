//! A shard that is being made: bytes appended in memory from which they can be written as they lie.
//!
//! A `Vec` would be copied once more into aligned memory before it goes to a disk, and both in small pages. Who knows the size beforehand pays
//! for nothing but the bytes.

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{AlignedBuf, Buf, BufPool, Pages};

/// Room of a shard whose size nobody told.
const CAPACITY_MIN: usize = 1 << 20;

/// Appended bytes, aligned at the start: as a whole, or in parts that can be taken away while it grows.
#[derive(Debug, Default)]
pub(crate) struct ShardBytes {
    /// What was not taken away; of parts, the last.
    buf: Option<AlignedBuf>,
    /// Bytes in it.
    filled: usize,
    /// Bytes of all.
    len: usize,
    parts: Option<Parts>,
}

/// Where parts lie, and those that are full.
#[derive(Debug)]
struct Parts {
    bytes: usize,
    memory: BufPool,
    full: Vec<Buf>,
}

impl ShardBytes {
    /// Empty, with room for that many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Result<Self> {
        Ok(Self {
            buf: Some(AlignedBuf::alloc(bytes, Pages::default())?),
            ..Self::default()
        })
    }

    /// Empty, in parts of that many bytes in memory that is used again.
    pub(crate) fn in_parts(bytes: usize, memory: &BufPool) -> Self {
        let parts = Parts {
            bytes: bytes.max(1),
            memory: memory.clone(),
            full: Vec::new(),
        };
        Self {
            parts: Some(parts),
            ..Self::default()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Append bytes.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let place = self.room(rest.len())?;
            let (now, later) = rest.split_at(place.len());
            place.copy_from_slice(now);
            rest = later;
        }
        Ok(())
    }

    /// Append zeros up to a length.
    pub(crate) fn fill_to(&mut self, len: usize) -> Result<()> {
        while self.len < len {
            self.room(len - self.len)?.fill(0);
        }
        Ok(())
    }

    /// The parts that are full and were not taken before, in order.
    pub(crate) fn take_full(&mut self) -> Vec<Buf> {
        self.parts
            .as_mut()
            .map_or_else(Vec::new, |parts| std::mem::take(&mut parts.full))
    }

    /// The bytes behind those that were taken, in one piece.
    pub(crate) fn freeze(mut self) -> Result<Buf> {
        let full = self.take_full();
        let mut buf = match self.buf {
            Some(buf) => buf,
            None => AlignedBuf::alloc(0, Pages::Small)?,
        };
        buf.set_len(self.filled);
        if full.is_empty() {
            return Ok(buf.freeze());
        }
        let mut joined = Self::with_capacity(full.iter().map(|part| part.len()).sum::<usize>() + buf.len())?;
        for part in &full {
            joined.extend(part)?;
        }
        joined.extend(&buf)?;
        joined.freeze()
    }

    /// The next bytes, which are part of it from now on: as many as are asked for, or those up to the end of a part.
    fn room(&mut self, more: usize) -> Result<&mut [u8]> {
        let more = match &mut self.parts {
            Some(parts) => {
                if self.filled == parts.bytes {
                    parts.full.extend(self.buf.take().map(AlignedBuf::freeze));
                    self.filled = 0;
                }
                if self.buf.is_none() {
                    self.buf = Some(match parts.memory.try_lease(parts.bytes) {
                        Some(buf) => buf,
                        None => AlignedBuf::alloc(parts.bytes, Pages::default())?,
                    });
                }
                more.min(parts.bytes - self.filled)
            }
            None => more,
        };
        let end = self.filled.checked_add(more).ok_or_else(too_long)?;
        self.grow(end)?;
        self.len += more;
        let start = std::mem::replace(&mut self.filled, end);
        let buf = self.buf.as_mut().ok_or_else(too_long)?;
        buf.set_len(end);
        buf.get_mut(start..end).ok_or_else(too_long)
    }

    /// Have memory for so many bytes.
    fn grow(&mut self, end: usize) -> Result<()> {
        let capacity = self.buf.as_ref().map_or(0, AlignedBuf::capacity);
        if self.buf.is_some() && end <= capacity {
            return Ok(());
        }
        let wanted = end.max(capacity.saturating_mul(2)).max(CAPACITY_MIN);
        let mut larger = AlignedBuf::alloc(wanted, Pages::default())?;
        if let (Some(buf), Some(place)) = (&self.buf, larger.get_mut(..self.filled)) {
            place.copy_from_slice(buf.get(..self.filled).ok_or_else(too_long)?);
        }
        self.buf = Some(larger);
        Ok(())
    }
}

fn too_long() -> Error {
    let message = "a shard is longer than memory can be";
    Error::new(ErrorKind::LimitExceeded, "write shard", message)
}

#[cfg(test)]
mod tests {
    use forebay_io::PoolConfig;

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

    #[test]
    fn parts_are_all_of_it_and_of_one_size() {
        let memory = BufPool::new(&PoolConfig {
            bytes_max: 16 << 10,
            ..PoolConfig::default()
        });
        let memory = memory.unwrap();
        for part_bytes in [1, 512, 4096, 5000] {
            let (mut made, mut plain, mut parts) =
                (ShardBytes::in_parts(part_bytes, &memory), Vec::new(), Vec::new());
            for round in 0..9u8 {
                let piece = vec![round + 1; usize::from(round) * 373];
                made.extend(&piece).unwrap();
                plain.extend_from_slice(&piece);
                plain.resize(plain.len().next_multiple_of(512), 0);
                made.fill_to(plain.len()).unwrap();
                assert_eq!(made.len(), plain.len());
                parts.extend(made.take_full());
            }
            assert!(parts.iter().all(|part| part.len() == part_bytes));
            let last = made.freeze().unwrap();
            assert!(!last.is_empty() && last.len() <= part_bytes);
            parts.push(last);
            assert!(parts.iter().map(|part| &part[..]).collect::<Vec<_>>().concat() == plain);
        }
        let mut made = ShardBytes::in_parts(100, &memory);
        made.extend(&[1; 250]).unwrap();
        assert_eq!(
            made.freeze().unwrap()[..],
            [1; 250],
            "what was not taken is still there"
        );
    }
}
