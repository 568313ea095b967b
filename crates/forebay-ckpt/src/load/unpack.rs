//! From stored chunks to raw ones, on a working thread: compared with their hashes, opened, and decompressed.

use std::sync::{Arc, Mutex, PoisonError};

use super::plan::Needed;
use crate::codec::Decoder;
use crate::hash::HashKind;
use crate::seal::{Bound, Opener};

/// What threads share.
#[derive(Debug)]
pub(super) struct Unpacker {
    hash: HashKind,
    /// Off only in tests, which show that damage would go unnoticed without.
    checks: bool,
    /// Where some chunk is sealed.
    opener: Option<Arc<Opener>>,
    spare: Mutex<Vec<Decoder>>,
}

/// A chunk that is not what was written, and why.
pub(super) type Bad = (Needed, &'static str);

const NO_HASH: &str = "what is stored does not hold its hash";

impl Unpacker {
    pub(super) fn new(hash: HashKind, checks: bool, opener: Option<Arc<Opener>>) -> Self {
        Self {
            hash,
            checks,
            opener,
            spare: Mutex::default(),
        }
    }

    /// Compare chunks with their hashes; `stored` begins at byte `start` of their payload.
    pub(super) fn check(&self, chunks: &[Needed], start: u64, stored: &[u8]) -> Result<(), Box<Bad>> {
        if !self.checks {
            return Ok(());
        }
        let bad = chunks.iter().find(|chunk| {
            let stored = stored.get(chunk.record.span().relative_to(start));
            !stored.is_some_and(|stored| chunk.record.holds(self.hash, &chunk.place, stored))
        });
        match bad {
            Some(chunk) => Err(Box::new((*chunk, NO_HASH))),
            None => Ok(()),
        }
    }

    /// Check one chunk and bring it into memory of its length.
    pub(super) fn unpack(&self, chunk: &Needed, stored: &mut [u8], raw: &mut [u8]) -> Result<(), Box<Bad>> {
        self.check(std::slice::from_ref(chunk), chunk.record.offset, stored)?;
        let opened = self.open(chunk, stored);
        let coded = opened.map_err(|why| Box::new((*chunk, why)))?;
        let spare = || self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let popped = spare().pop();
        let mut decoder = popped.unwrap_or_else(Decoder::new);
        let how = (chunk.record.codec, chunk.record.parameter);
        let decoded = decoder.decode(how, coded, raw);
        spare().push(decoder);
        decoded.map_err(|why| Box::new((*chunk, why)))
    }

    /// What was sealed, or what is stored where it is not.
    fn open<'a>(&self, chunk: &Needed, stored: &'a mut [u8]) -> Result<&'a [u8], &'static str> {
        let Needed {
            record,
            payload,
            place,
            chunks,
            ..
        } = chunk;
        if !record.is_sealed {
            return Ok(stored);
        }
        let opener = self.opener.as_ref().ok_or("it is sealed, and there is no key")?;
        let bound = Bound::of(record, payload.attempt, payload.rank, *place, *chunks);
        opener.open(&bound, stored).map(|opened| &*opened)
    }
}
