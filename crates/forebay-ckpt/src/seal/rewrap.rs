//! Other wrapping keys for a checkpoint: its manifest gets other slots, and nothing else changes.
//!
//! The new manifest replaces the old one at once, so at any moment either the old keys open it or the new ones. A pin keeps gc from removing the checkpoint meanwhile.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_store::{Context, PutMode, PutOptions, Store, StoreExt};
use serde::Serialize;

use super::slots::{self, Slot};
use super::{Keys, Opener};
use crate::list::find_gone;
use crate::manifest::Manifest;
use crate::names::{Attempt, manifest_key};
use crate::open::read_manifest;
use crate::pages::Source;
use crate::pin::{self, Pin};
use crate::save::remove_pin;

/// What rewrapping did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rewrapped {
    /// Which step.
    pub step: u64,
    /// Data keys that were wrapped anew.
    pub keys: usize,
    /// Slots before and after.
    pub slots_before: usize,
    /// See `slots_before`.
    pub slots: usize,
    /// Bytes of the manifest, which is all that was written.
    pub bytes: u64,
    /// Which way they went.
    #[serde(skip)]
    pub ledger: Ledger,
}

/// Wrap the data keys of a checkpoint by `new` keys in place of those it has; `old` must open them. Nobody else may replace the checkpoint of that step meanwhile.
pub async fn rewrap(
    store: Arc<dyn Store>,
    context: &Context,
    step: u64,
    old: &Keys,
    new: &Keys,
) -> Result<Rewrapped> {
    let source = Source {
        store,
        context: context.clone(),
        checks: true,
    };
    if new.is_empty() {
        let message = "no key to wrap by: nobody could read the checkpoint any more";
        return Err(Error::new(ErrorKind::InvalidInput, "rewrap", message));
    }
    let (found, _) = read(&source, step).await?;
    // As an incremental save does: the pin first, then the look whether what it names is still there.
    let drawn = Attempt::draw(context);
    let mut pin = Pin::new(context, found.world());
    pin.save = Some((step, drawn));
    pin.base = Some((step, found.attempt));
    pin::put_save(&*source.store, &pin, PutMode::Replace).await?;
    let done = rewrap_pinned(&source, step, found.attempt, old, new).await;
    remove_pin(&source, drawn).await;
    done
}

async fn read(source: &Source, step: u64) -> Result<(Manifest, Vec<Slot>)> {
    let refuse = |kind, message: String| Error::new(kind, "rewrap", message).at(source.store.location());
    let found = read_manifest(source, step).await?;
    let (manifest, _) = found.ok_or_else(|| {
        refuse(
            ErrorKind::NotFound,
            format!("there is no checkpoint of step {step}"),
        )
    })?;
    if find_gone(source, step, manifest.attempt).await? {
        return Err(refuse(
            ErrorKind::NotFound,
            format!("step {step} is being removed"),
        ));
    }
    let slots = slots::decode(&manifest.slots)?;
    if slots.is_empty() {
        return Err(refuse(
            ErrorKind::InvalidInput,
            format!("the checkpoint of step {step} is not sealed"),
        ));
    }
    Ok((manifest, slots))
}

async fn rewrap_pinned(
    source: &Source,
    step: u64,
    attempt: Attempt,
    old: &Keys,
    new: &Keys,
) -> Result<Rewrapped> {
    let replaced = || {
        let message = format!("the checkpoint of step {step} was replaced meanwhile");
        Error::new(ErrorKind::Precondition, "rewrap", message).at(source.store.location())
    };
    let (manifest, before) = read(source, step).await?;
    if manifest.attempt != attempt {
        return Err(replaced());
    }
    let opener = Opener::new(old, &before).await?;
    let mut owners: Vec<(u64, Attempt)> = before.iter().map(|slot| (slot.step, slot.attempt)).collect();
    owners.sort_unstable();
    owners.dedup();
    let mut after = Vec::new();
    for owner in &owners {
        let key = opener.data_key(owner.1).ok_or_else(replaced)?;
        let wrapped = new.wrap(*owner, &key).await?;
        // A key that wraps and does not unwrap would make the checkpoint unreadable.
        if new.open(&wrapped, owner.1).await? != *key {
            let message = "what the new key wrapped does not come back by it";
            return Err(Error::new(ErrorKind::InvalidInput, "rewrap", message));
        }
        after.extend(wrapped);
    }
    let (slots_before, slots) = (before.len(), after.len());
    let root = manifest.root()?;
    let rewrapped = Manifest {
        slots: slots::encode(&after),
        ..manifest.clone()
    };
    let bytes = rewrapped.encode()?;
    if rewrapped.root()? != root || read(source, step).await?.0 != manifest {
        return Err(replaced());
    }
    let options = PutOptions {
        mode: PutMode::Replace,
        ..PutOptions::default()
    };
    let put = source
        .store
        .put_bytes(&manifest_key(step), &bytes, &options)
        .await?;
    Ok(Rewrapped {
        step,
        keys: owners.len(),
        slots_before,
        slots,
        bytes: bytes.len() as u64,
        ledger: put.ledger,
    })
}
