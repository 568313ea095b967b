//! What the bytes of an object must be, piece by piece, and a checker that they are fed to while they go by.
//!
//! Payloads, parts and indexes are all sealed by the checkpoint they belong to: chunks by their hashes, headers and heads by SHA-256, pages by the pointers to
//! them. So an object can be checked in one pass of any length of pieces, and needs no memory for that but the list of its seals.

use forebay_core::{Error, ErrorKind, Result, Span};

use crate::hash::{ChunkHasher, Digest, HashKind, Place};

/// What some bytes must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Check {
    /// A chunk, by the hash that its place has.
    Chunk(HashKind, Place, Digest),
    /// Anything else, by SHA-256.
    Bytes(Digest),
}

/// Some bytes of an object, and what they must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seal {
    pub(super) span: Span,
    pub(super) check: Check,
}

/// What may lie between seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gaps {
    /// Zeros alone.
    Zeros,
    /// Bytes of chunks that no checkpoint has any more: they are counted.
    Any,
}

/// An object and what it must be.
#[derive(Debug, Clone)]
pub(super) struct Sealed {
    pub(super) key: forebay_core::Key,
    pub(super) bytes: u64,
    /// Ascending, without overlap.
    seals: Vec<Seal>,
    gaps: Gaps,
}

impl Sealed {
    /// Refuses seals that lie over each other or beyond the object: nobody wrote such.
    pub(super) fn new(key: forebay_core::Key, bytes: u64, mut seals: Vec<Seal>, gaps: Gaps) -> Result<Self> {
        seals.retain(|seal| !seal.span.is_empty());
        seals.sort_by_key(|seal| seal.span);
        // Several ranks may reference one chunk.
        seals.dedup();
        let overlap = |pair: &[Seal]| match pair {
            [a, b] => a.span.end() > b.span.start(),
            _ => false,
        };
        let is_beyond = seals.last().is_some_and(|seal| seal.span.end() > bytes);
        if is_beyond || seals.windows(2).any(overlap) {
            let message = format!("{key}: its chunks lie over each other or beyond its end");
            return Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message));
        }
        Ok(Self {
            key,
            bytes,
            seals,
            gaps,
        })
    }

    pub(super) fn checker(self: std::sync::Arc<Self>) -> Checker {
        Checker {
            of: self,
            next: 0,
            at: 0,
            hasher: None,
            unreferenced_bytes: 0,
        }
    }
}

/// Checks the bytes of an object in their order.
#[derive(Debug)]
pub(super) struct Checker {
    of: std::sync::Arc<Sealed>,
    /// The seal that is being checked or comes next.
    next: usize,
    at: u64,
    hasher: Option<ChunkHasher>,
    unreferenced_bytes: u64,
}

impl Checker {
    /// Take the next bytes. An error names the bytes that are damaged.
    pub(super) fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let seal = self.of.seals.get(self.next).copied();
            let until = match seal {
                Some(seal) if self.at < seal.span.start() => seal.span.start(),
                Some(seal) => seal.span.end(),
                None => u64::MAX,
            };
            let take = usize::try_from(until - self.at).unwrap_or(usize::MAX);
            let (here, rest) = bytes.split_at(take.min(bytes.len()));
            match seal {
                Some(seal) if self.at >= seal.span.start() => self.feed_sealed(seal, here)?,
                _ => self.feed_gap(here)?,
            }
            bytes = rest;
        }
        Ok(())
    }

    fn feed_sealed(&mut self, seal: Seal, bytes: &[u8]) -> Result<()> {
        let hasher = self.hasher.get_or_insert_with(|| match &seal.check {
            Check::Chunk(kind, place, _) => kind.hasher(place),
            Check::Bytes(_) => ChunkHasher::sha256(),
        });
        hasher.update(bytes);
        self.at += bytes.len() as u64;
        if self.at < seal.span.end() {
            return Ok(());
        }
        self.next += 1;
        let (Check::Chunk(_, _, expected) | Check::Bytes(expected)) = seal.check;
        let found = self.hasher.take().map(ChunkHasher::finish);
        if found == Some(expected) {
            return Ok(());
        }
        Err(self.damaged(seal.span, "their hash does not hold"))
    }

    fn feed_gap(&mut self, bytes: &[u8]) -> Result<()> {
        let span = Span::at(self.at, bytes.len() as u64)?;
        self.at += bytes.len() as u64;
        match self.of.gaps {
            Gaps::Any => self.unreferenced_bytes += bytes.len() as u64,
            Gaps::Zeros if bytes.iter().all(|byte| *byte == 0) => {}
            Gaps::Zeros => return Err(self.damaged(span, "no chunk has them, and they are not zero")),
        }
        Ok(())
    }

    /// After all bytes: how many of them nothing spoke for.
    pub(super) fn finish(&self) -> Result<u64> {
        if self.at == self.of.bytes && self.next == self.of.seals.len() {
            return Ok(self.unreferenced_bytes);
        }
        let message = format!("{}: it ends after {} bytes", self.of.key, self.at);
        Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message))
    }

    fn damaged(&self, span: Span, why: &str) -> Error {
        let message = format!("{}: bytes {span} are damaged: {why}", self.of.key);
        Error::new(ErrorKind::Corrupt, "read checkpoint", message)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_core::Key;

    use super::*;
    use crate::hash::sha256;

    fn sealed(bytes: &[u8], gaps: Gaps) -> Arc<Sealed> {
        let place = Place::new(&[3; 16], 0, 20);
        let seals = vec![
            Seal {
                span: Span::new(40, 60).unwrap(),
                check: Check::Chunk(
                    HashKind::Xxh3,
                    place,
                    HashKind::Xxh3.chunk(&place, &bytes[40..60]),
                ),
            },
            Seal {
                span: Span::new(0, 30).unwrap(),
                check: Check::Bytes(sha256(&[&bytes[..30]])),
            },
            Seal {
                span: Span::new(60, 60).unwrap(),
                check: Check::Bytes([0; 32]),
            },
        ];
        let sealed = Sealed::new(Key::parse("a").unwrap(), bytes.len() as u64, seals, gaps);
        Arc::new(sealed.unwrap())
    }

    fn check(sealed: &Arc<Sealed>, bytes: &[u8], piece: usize) -> Result<u64> {
        let mut checker = Arc::clone(sealed).checker();
        for piece in bytes.chunks(piece) {
            checker.feed(piece)?;
        }
        checker.finish()
    }

    #[test]
    fn every_changed_byte_is_found_whatever_the_pieces() {
        let mut bytes: Vec<u8> = (1..=70).collect();
        bytes[30..40].fill(0);
        bytes[60..].fill(0);
        let strict = sealed(&bytes, Gaps::Zeros);
        let loose = sealed(&bytes, Gaps::Any);
        for piece in [1, 7, 30, 70] {
            assert_eq!(check(&strict, &bytes, piece).unwrap(), 0);
            assert_eq!(check(&loose, &bytes, piece).unwrap(), 20);
            for at in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 4;
                assert_eq!(
                    check(&strict, &bad, piece).unwrap_err().kind(),
                    ErrorKind::Corrupt,
                    "{at}"
                );
                let is_gap = (30..40).contains(&at) || at >= 60;
                assert_eq!(check(&loose, &bad, piece).is_ok(), is_gap, "{at}");
            }
            assert!(check(&strict, &bytes[..69], piece).is_err());
        }
    }

    #[test]
    fn seals_over_each_other_are_refused() {
        let at = |start, end| Seal {
            span: Span::new(start, end).unwrap(),
            check: Check::Bytes([0; 32]),
        };
        let new = |seals| Sealed::new(Key::parse("a").unwrap(), 100, seals, Gaps::Any);
        assert!(new(vec![at(0, 10), at(9, 20)]).is_err());
        assert!(new(vec![at(90, 101)]).is_err());
        // One chunk, twice referenced.
        assert!(new(vec![at(5, 10), at(5, 10), at(10, 100)]).is_ok());
    }
}
