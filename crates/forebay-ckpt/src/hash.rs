//! Hashes of chunks, bound to the place a chunk belongs to, and the SHA-256 that everything above chunks is hashed with.
//!
//! A chunk's hash covers its [`Place`]: slice, number in the slice, length. A good chunk at a wrong place does not hold its hash there.

use std::fmt;
use std::sync::Arc;

use forebay_core::{Crc32c, Error, ErrorKind, Result};
use ring::digest;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128_with_seed};

use crate::seal::Secret;

/// A hash; shorter ones have zeros behind them.
pub type Digest = [u8; 32];

/// Bytes of a place.
const PLACE_BYTES: usize = 28;

/// SHA-256 of the pieces, one after the other.
pub(crate) fn sha256(pieces: &[&[u8]]) -> Digest {
    let mut context = digest::Context::new(&digest::SHA256);
    for piece in pieces {
        context.update(piece);
    }
    let mut out = Digest::default();
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// Which hash chunks have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashKind {
    /// CRC-32C: against accidents, and too short to tell contents apart.
    Crc32c,
    /// XXH3-128: against accidents.
    #[default]
    Xxh3,
    /// BLAKE3: against tampering, too.
    Blake3,
    /// SHA-256: against tampering, too.
    Sha256,
}

impl HashKind {
    /// All of them, with their numbers in the format and their names.
    pub const ALL: [(u8, Self, &'static str); 4] = [
        (1, Self::Crc32c, "crc32c"),
        (2, Self::Xxh3, "xxh3-128"),
        (3, Self::Blake3, "blake3"),
        (4, Self::Sha256, "sha-256"),
    ];

    pub(crate) fn number(self) -> u8 {
        self.row().0
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    fn row(self) -> (u8, Self, &'static str) {
        let [first, ..] = Self::ALL;
        Self::ALL
            .into_iter()
            .find(|(_, kind, _)| *kind == self)
            .unwrap_or(first)
    }

    pub(crate) fn from_number(number: u8) -> Result<Self> {
        let row = Self::ALL.into_iter().find(|(of, ..)| *of == number);
        row.map(|(_, kind, _)| kind).ok_or_else(|| {
            let message =
                format!("chunks are hashed by algorithm {number}, which this version does not know");
            Error::new(ErrorKind::Unsupported, "read checkpoint", message)
        })
    }

    /// Long enough that two contents with one hash are one content.
    pub fn tells_contents_apart(self) -> bool {
        self != Self::Crc32c
    }

    /// Holds against somebody who wants to deceive, not only against accidents: what is signed needs it.
    pub fn resists_tampering(self) -> bool {
        matches!(self, Self::Blake3 | Self::Sha256)
    }

    /// The hash of the bytes that are stored for a place.
    pub(crate) fn chunk(self, place: &Place, bytes: &[u8]) -> Digest {
        let mut out = Digest::default();
        match self {
            Self::Crc32c => {
                let mut crc = Crc32c::default();
                crc.update(&place.0);
                crc.update(bytes);
                out[..4].copy_from_slice(&crc.value().to_le_bytes());
            }
            Self::Xxh3 => {
                let hash = xxh3_128_with_seed(bytes, xxh3_64(&place.0));
                out[..16].copy_from_slice(&hash.to_le_bytes());
            }
            Self::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(&place.0);
                hasher.update(bytes);
                out = *hasher.finalize().as_bytes();
            }
            Self::Sha256 => out = sha256(&[&place.0, bytes]),
        }
        out
    }

    /// The same for bytes that come piece by piece.
    pub(crate) fn hasher(self, place: &Place) -> ChunkHasher {
        match self {
            Self::Crc32c => {
                let mut crc = Crc32c::default();
                crc.update(&place.0);
                ChunkHasher::Crc32c(Box::new(crc))
            }
            Self::Xxh3 => ChunkHasher::Xxh3(Box::new(Xxh3::with_seed(xxh3_64(&place.0)))),
            Self::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                hasher.update(&place.0);
                ChunkHasher::Blake3(Box::new(hasher))
            }
            Self::Sha256 => {
                let mut hasher = ChunkHasher::sha256();
                hasher.update(&place.0);
                hasher
            }
        }
    }
}

/// A hash of bytes that come piece by piece.
pub(crate) enum ChunkHasher {
    Crc32c(Box<Crc32c>),
    Xxh3(Box<Xxh3>),
    Blake3(Box<blake3::Hasher>),
    Sha256(Box<digest::Context>),
}

impl ChunkHasher {
    /// SHA-256, as of everything above chunks.
    pub(crate) fn sha256() -> Self {
        Self::Sha256(Box::new(digest::Context::new(&digest::SHA256)))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc32c(crc) => crc.update(bytes),
            Self::Xxh3(hasher) => hasher.update(bytes),
            Self::Blake3(hasher) => drop(hasher.update(bytes)),
            Self::Sha256(context) => context.update(bytes),
        }
    }

    pub(crate) fn finish(self) -> Digest {
        let mut out = Digest::default();
        match self {
            Self::Crc32c(crc) => out[..4].copy_from_slice(&crc.value().to_le_bytes()),
            Self::Xxh3(hasher) => out[..16].copy_from_slice(&hasher.digest128().to_le_bytes()),
            Self::Blake3(hasher) => out = *hasher.finalize().as_bytes(),
            Self::Sha256(context) => out.copy_from_slice(context.finish().as_ref()),
        }
        out
    }
}

impl fmt::Debug for ChunkHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChunkHasher")
    }
}

/// What contents are told apart by: hashes of raw bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdKind {
    /// As chunks are hashed.
    Hash(HashKind),
    /// By BLAKE3 under a key, for sealed checkpoints: ids tell nothing to those without it.
    Keyed(Arc<Secret>),
}

impl IdKind {
    /// The same for bytes that come piece by piece.
    pub(crate) fn hasher(&self, place: &Place) -> ChunkHasher {
        match self {
            Self::Hash(kind) => kind.hasher(place),
            Self::Keyed(key) => {
                let mut hasher = blake3::Hasher::new_keyed(key.bytes());
                hasher.update(&place.0);
                ChunkHasher::Blake3(Box::new(hasher))
            }
        }
    }

    /// The id of the raw bytes at a place.
    pub(crate) fn of(&self, place: &Place, raw: &[u8]) -> Digest {
        match self {
            Self::Hash(kind) => kind.chunk(place, raw),
            Self::Keyed(key) => {
                let mut hasher = blake3::Hasher::new_keyed(key.bytes());
                hasher.update(&place.0);
                hasher.update(raw);
                *hasher.finalize().as_bytes()
            }
        }
    }
}

impl fmt::Display for HashKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first bytes of the hash of a slice: name, dtype, box.
pub(crate) type SliceId = [u8; 16];

/// Where a chunk belongs, the same in every checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place([u8; PLACE_BYTES]);

impl Place {
    pub(crate) fn new(slice: &SliceId, chunk: u64, raw_bytes: u32) -> Self {
        let mut place = [0; PLACE_BYTES];
        let (id, rest) = place.split_at_mut(16);
        let (number, length) = rest.split_at_mut(8);
        id.copy_from_slice(slice);
        number.copy_from_slice(&chunk.to_le_bytes());
        length.copy_from_slice(&raw_bytes.to_le_bytes());
        Self(place)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_depend_on_bytes_and_place() {
        for (number, kind, _) in HashKind::ALL {
            assert_eq!(HashKind::from_number(number).unwrap(), kind);
            let place = Place::new(&[7; 16], 3, 5);
            let hash = kind.chunk(&place, b"hello");
            assert_eq!(hash, kind.chunk(&place, b"hello"));
            assert_ne!(hash, kind.chunk(&place, b"hellp"), "{kind}");
            for other in [
                Place::new(&[8; 16], 3, 5),
                Place::new(&[7; 16], 4, 5),
                Place::new(&[7; 16], 3, 6),
            ] {
                assert_ne!(hash, kind.chunk(&other, b"hello"), "{kind}");
            }
        }
        assert!(HashKind::from_number(9).unwrap_err().to_string().contains('9'));
    }

    #[test]
    fn hashes_by_pieces_are_the_same() {
        let bytes: Vec<u8> = (0..10_000u32).map(|number| number as u8).collect();
        let place = Place::new(&[7; 16], 3, bytes.len() as u32);
        for (_, kind, _) in HashKind::ALL {
            let mut hasher = kind.hasher(&place);
            for piece in bytes.chunks(777) {
                hasher.update(piece);
            }
            assert_eq!(hasher.finish(), kind.chunk(&place, &bytes), "{kind}");
        }
    }

    /// What the format page says, spelled out once more without the code above.
    #[test]
    fn hashes_are_what_the_format_says() {
        let place = Place::new(&[7; 16], 3, 5);
        let mut bytes = vec![7; 16];
        bytes.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0]);
        let seed = xxh3_64(&bytes);
        let low = xxh3_128_with_seed(b"hello", seed) as u64;
        assert_eq!(HashKind::Xxh3.chunk(&place, b"hello")[..8], low.to_le_bytes());
        bytes.extend_from_slice(b"hello");
        assert_eq!(HashKind::Sha256.chunk(&place, b"hello"), sha256(&[&bytes]));
        assert_eq!(
            HashKind::Blake3.chunk(&place, b"hello"),
            *blake3::hash(&bytes).as_bytes()
        );
        let crc = forebay_core::crc32c(&bytes).to_le_bytes();
        assert_eq!(HashKind::Crc32c.chunk(&place, b"hello")[..4], crc);
    }
}
