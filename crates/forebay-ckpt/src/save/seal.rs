//! The data key of an attempt: drawn by the coordinator, and found by the other ranks in the pin, wrapped.

use forebay_core::{Error, ErrorKind, Result};

use super::{Save, SaveOptions};
use crate::hash::IdKind;
use crate::hex;
use crate::names::Attempt;
use crate::part::PayloadRow;
use crate::seal::slots::{self, Slot};
use crate::seal::{Sealer, Secret, id_key};

/// What an attempt is sealed with.
#[derive(Debug)]
pub(super) struct Seal {
    key: Secret,
    slots: Vec<Slot>,
}

impl Seal {
    /// A new data key, where the save is to be sealed.
    pub(super) async fn draw(options: &SaveOptions) -> Result<Option<Self>> {
        if options.seal.is_empty() {
            return Ok(None);
        }
        let key = Secret::draw()?;
        let slots = options.seal.wrap((options.step, options.attempt), &key).await?;
        Ok(Some(Self { key, slots }))
    }

    /// As other ranks find it.
    pub(super) fn in_pin(&self) -> String {
        hex::encode(&slots::encode(&self.slots))
    }

    /// The data key that the coordinator drew.
    pub(super) async fn from_pin(options: &SaveOptions, pinned: Option<&str>) -> Result<Option<Self>> {
        let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidInput, "save", message));
        let Some(pinned) = pinned else {
            if options.seal.is_empty() {
                return Ok(None);
            }
            return refuse("this rank is to seal, but rank 0 does not");
        };
        if options.seal.is_empty() {
            return refuse("rank 0 seals, but this rank was given no key");
        }
        let Some(bytes) = hex::decode(pinned) else {
            return refuse("the pin has key slots that are no hex digits");
        };
        let slots = slots::decode(&bytes)?;
        let key = options.seal.open(&slots, options.attempt).await?;
        Ok(Some(Self { key, slots }))
    }
}

impl Save {
    /// True when chunks are sealed.
    pub(super) fn is_sealed(&self) -> bool {
        self.seal.is_some()
    }

    /// What seals the chunks of one payload.
    pub(super) fn sealer(&self) -> Result<Option<Sealer>> {
        self.seal.as_ref().map(|seal| Sealer::new(&seal.key)).transpose()
    }

    /// What contents are told apart by.
    pub(super) fn id_kind(&self) -> IdKind {
        match &self.seal {
            Some(seal) => IdKind::Keyed(id_key(&seal.key)),
            None => IdKind::Hash(self.options.hash),
        }
    }

    /// What contents of the base are told apart by.
    pub(super) fn base_id_kind(&self) -> IdKind {
        match &self.base {
            Some(base) => base.id_kind(),
            None => self.id_kind(),
        }
    }

    /// Key slots for every attempt whose payloads are named, and for this one.
    pub(crate) async fn slots(&self, payloads: &[PayloadRow]) -> Result<Vec<u8>> {
        let Some(seal) = &self.seal else {
            return Ok(Vec::new());
        };
        let own = (self.options.step, self.options.attempt);
        let mut all = seal.slots.clone();
        let mut others: Vec<(u64, Attempt)> = payloads.iter().map(|row| (row.step, row.attempt)).collect();
        others.retain(|other| *other != own);
        others.sort_unstable();
        others.dedup();
        for other in others {
            let opener = self.base.as_ref().and_then(|base| base.opener.as_ref());
            let key = opener
                .and_then(|opener| opener.data_key(other.1))
                .ok_or_else(|| {
                    let message = format!(
                        "chunks of attempt {} are referenced, whose data key is not known",
                        other.1
                    );
                    Error::new(ErrorKind::Corrupt, "commit", message)
                })?;
            all.extend(self.options.seal.wrap(other, &key).await?);
        }
        Ok(slots::encode(&all))
    }
}
