//! Sealing: chunks under the data key of their attempt, and data keys under the keys of those who may read.
//!
//! ```text
//! save:   data key (drawn for the attempt) -> [wrap] by every wrapping key -> slots: in the pin for other ranks, then in the manifest
//!         chunk -> AES-256-GCM, bound to its place -> stored
//! load:   slots -> [wrap] the first key that opens one -> data keys -> chunks
//! rewrap: slots -> data keys -> slots of other wrapping keys; data stay as they are
//! ```
//!
//! - `slots`: how wrapped keys lie in a manifest; pure;
//! - `wrap`: wrapping keys from a file, the environment, or a command;
//! - `rewrap`: other wrapping keys for a checkpoint.
//!
//! Keys are wiped when they are dropped, and never shown.

mod command;
mod rewrap;
pub(crate) mod slots;
#[cfg(test)]
pub(crate) mod tests;
mod wrap;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, Tag, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::entry::{ChunkRecord, Codec, TAG_BYTES};
use crate::hash::Place;
use crate::names::Attempt;
use slots::Slot;

pub use rewrap::{Rewrapped, rewrap};
pub(crate) use wrap::read_private;
pub use wrap::{KeyWrap, Keys};

/// Bytes of every key here: AES-256.
pub(crate) const KEY_BYTES: usize = 32;

/// A key; wiped when it is dropped, and never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Zeroizing<[u8; KEY_BYTES]>);

impl Secret {
    pub(crate) fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// A new one.
    pub(crate) fn draw() -> Result<Self> {
        let mut bytes = Zeroizing::new([0; KEY_BYTES]);
        fill_random(&mut *bytes)?;
        Ok(Self(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Another key that tells nothing of this one.
    pub(crate) fn derive(&self, context: &str) -> Self {
        Self::new(blake3::derive_key(context, &self.0[..]))
    }

    fn aead(&self) -> Result<LessSafeKey> {
        let key = UnboundKey::new(&AES_256_GCM, &self.0[..]);
        let key = key.map_err(|_| Error::new(ErrorKind::Internal, "seal", "a key has another length"))?;
        Ok(LessSafeKey::new(key))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Bytes that nobody can foretell.
fn fill_random(bytes: &mut [u8]) -> Result<()> {
    SystemRandom::new()
        .fill(bytes)
        .map_err(|_| Error::new(ErrorKind::Io, "seal", "the system gives no random bytes"))
}

/// What content ids of a sealed checkpoint are keyed by.
pub(crate) fn id_key(data_key: &Secret) -> Arc<Secret> {
    Arc::new(data_key.derive("forebay content id 1"))
}

/// What a chunk is bound to beside its bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bound {
    /// That wrote the payload.
    pub(crate) attempt: Attempt,
    /// That wrote the payload.
    pub(crate) rank: u32,
    pub(crate) place: Place,
    pub(crate) codec: Codec,
    pub(crate) parameter: u16,
    /// Chunks of its slice.
    pub(crate) chunks: u64,
    /// For the nonce.
    pub(crate) number: u64,
}

impl Bound {
    /// As the record of a chunk in a payload says it.
    pub(crate) fn of(record: &ChunkRecord, attempt: Attempt, rank: u32, place: Place, chunks: u64) -> Self {
        Self {
            attempt,
            rank,
            place,
            codec: record.codec,
            parameter: record.parameter,
            chunks,
            number: record.number,
        }
    }

    fn nonce(&self) -> Nonce {
        let mut nonce = [0; 12];
        let (rank, number) = nonce.split_at_mut(4);
        rank.copy_from_slice(&self.rank.to_le_bytes());
        number.copy_from_slice(&self.number.to_le_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    fn aad(&self) -> Aad<Vec<u8>> {
        let mut aad = b"forebay seal 1\0".to_vec();
        aad.extend_from_slice(&self.attempt.0);
        aad.extend_from_slice(self.place.bytes());
        aad.push(self.codec.number());
        aad.extend_from_slice(&self.parameter.to_le_bytes());
        aad.extend_from_slice(&self.chunks.to_le_bytes());
        Aad::from(aad)
    }
}

/// Seals the chunks of one payload.
pub(crate) struct Sealer {
    key: LessSafeKey,
    /// Upper half of the numbers for nonces, drawn for the payload.
    drawn: u64,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(data_key: &Secret) -> Result<Self> {
        let mut drawn = [0; 4];
        fill_random(&mut drawn)?;
        Ok(Self {
            key: data_key.aead()?,
            drawn: u64::from(u32::from_le_bytes(drawn)) << 32,
        })
    }

    /// The number of the chunk that is the `index`th of its payload.
    pub(crate) fn number(&self, index: usize) -> Result<u64> {
        let count = u32::try_from(index).ok().and_then(|index| index.checked_add(1));
        let count = count.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "seal",
                "a rank has more than 2^32 chunks",
            )
            .with_hint("make chunks larger")
        })?;
        Ok(self.drawn | u64::from(count))
    }

    /// Seal in place; gives the tag.
    pub(crate) fn seal(&self, bound: &Bound, bytes: &mut [u8]) -> Result<[u8; TAG_BYTES as usize]> {
        let sealed = self
            .key
            .seal_in_place_separate_tag(bound.nonce(), bound.aad(), bytes);
        let tag = sealed.ok().and_then(|tag: Tag| tag.as_ref().try_into().ok());
        tag.ok_or_else(|| Error::new(ErrorKind::Internal, "seal", "a chunk cannot be sealed"))
    }
}

/// The data keys of a checkpoint, opened.
#[derive(Default)]
pub(crate) struct Opener(HashMap<Attempt, (LessSafeKey, Arc<Secret>)>);

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Opener {
    /// Open the keys of all attempts that have slots.
    pub(crate) async fn new(keys: &Keys, slots: &[Slot]) -> Result<Self> {
        let mut opener = Self::default();
        for slot in slots {
            if opener.0.contains_key(&slot.attempt) {
                continue;
            }
            let key = keys.open(slots, slot.attempt).await?;
            opener.0.insert(slot.attempt, (key.aead()?, Arc::new(key)));
        }
        Ok(opener)
    }

    /// The data key of an attempt.
    pub(crate) fn data_key(&self, attempt: Attempt) -> Option<Arc<Secret>> {
        self.0.get(&attempt).map(|(_, key)| Arc::clone(key))
    }

    /// Open a chunk in place, its tag behind it; gives what was sealed.
    pub(crate) fn open<'a>(&self, bound: &Bound, stored: &'a mut [u8]) -> Result<&'a mut [u8], &'static str> {
        let (key, _) = self
            .0
            .get(&bound.attempt)
            .ok_or("there is no key slot for the attempt that sealed it")?;
        key.open_in_place(bound.nonce(), bound.aad(), stored)
            .map_err(|_| "it was not sealed by this data key for this place")
    }
}
