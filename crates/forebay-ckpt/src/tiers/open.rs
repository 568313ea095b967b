//! Opening a checkpoint from the nearest tier that has it and holds, and falling back to the next while it is being read, saying so.

use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Ledger, Result};
use serde::Serialize;

use super::Tiers;
use crate::access_log::AccessLog;
use crate::load::{Loaded, Want};
use crate::names::Attempt;
use crate::open::Checkpoint;
use crate::seal::Keys;
use crate::sign::PublicKey;
use crate::verify::verify;

/// A tier that a checkpoint was not taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotFrom {
    /// The tier.
    pub tier: String,
    /// The step, where it is about one.
    pub step: Option<u64>,
    /// Why not, in words.
    pub why: String,
}

/// Where a checkpoint came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpenedFrom {
    /// Its step.
    pub step: u64,
    /// The tier's name.
    pub tier: String,
    /// The tier's number, 0 being the nearest.
    pub number: usize,
    /// What was tried before, in that order.
    pub not_from: Vec<NotFrom>,
}

/// How checkpoints are read, from whichever tier they come.
#[derive(Debug, Clone, Default)]
pub struct Reading {
    /// What sealed ones are opened with.
    pub keys: Keys,
    /// Only what one of these has signed is read; everything, without them.
    pub trusted: Vec<PublicKey>,
    /// Every load is noted there first, and every removal.
    pub access_log: Option<AccessLog>,
    /// Which rank of how many reads.
    pub rank: Option<(u32, u32)>,
}

impl Reading {
    /// A checkpoint as it is to be read; refuses one that nobody trusted has signed, where that is asked for.
    pub fn prepare(&self, checkpoint: &Checkpoint) -> Result<Checkpoint> {
        let mut prepared = checkpoint.with_keys(self.keys.clone());
        if let Some((rank, world)) = self.rank {
            prepared = prepared.for_rank(rank, world);
        }
        if let Some(log) = &self.access_log {
            prepared = prepared.with_access_log(log.clone());
        }
        if self.trusted.is_empty() {
            return Ok(prepared);
        }
        prepared.require_signature(&self.trusted)
    }
}

/// An open checkpoint, and the tiers behind the one it is read from.
#[derive(Debug)]
pub struct Tiered {
    tiers: Tiers,
    attempt: Attempt,
    checkpoint: Checkpoint,
    from: OpenedFrom,
}

impl Tiers {
    /// Open the checkpoint of a step, or the newest that any tier has, from the nearest tier that has it.
    ///
    /// With `is_verified`, every byte of it is compared before it is taken; without, damage shows when it is loaded, and [`Tiered::load`] falls back.
    pub async fn open(&self, step: Option<u64>, is_verified: bool) -> Result<Tiered> {
        let (placed, mut not_from) = self.list().await?;
        let candidates = placed
            .iter()
            .rev()
            .filter(|placed| step.is_none_or(|step| step == placed.step));
        for placed in candidates {
            let mut denied = None;
            for number in placed.tiers.keys() {
                match self.open_at(*number, placed.step, is_verified).await {
                    Ok(checkpoint) => {
                        let from = OpenedFrom {
                            step: placed.step,
                            tier: self.name(*number),
                            number: *number,
                            not_from,
                        };
                        return Ok(Tiered {
                            tiers: self.clone(),
                            attempt: checkpoint.manifest().attempt,
                            checkpoint,
                            from,
                        });
                    }
                    Err(error) => {
                        not_from.push(NotFrom {
                            tier: self.name(*number),
                            step: Some(placed.step),
                            why: error.to_string(),
                        });
                        if error.kind() == ErrorKind::PermissionDenied {
                            denied = Some(error);
                        }
                    }
                }
            }
            // Who may not read this one is not given an older one instead.
            if let Some(error) = denied {
                return Err(error);
            }
        }
        Err(nowhere(step, &not_from))
    }

    fn name(&self, number: usize) -> String {
        self.places
            .get(number)
            .map(|tier| tier.name.clone())
            .unwrap_or_default()
    }

    async fn open_at(&self, number: usize, step: u64, is_verified: bool) -> Result<Checkpoint> {
        let tier = self
            .places
            .get(number)
            .ok_or_else(|| Error::new(ErrorKind::Internal, "open checkpoint", "there is no such tier"))?;
        let checkpoint = Checkpoint::open(Arc::clone(&tier.store), &self.context, step).await?;
        let checkpoint = self.reading.prepare(&checkpoint)?;
        if !is_verified {
            return Ok(checkpoint);
        }
        let report = verify(&checkpoint, &|_| {}).await?;
        match report.damages.first() {
            None => Ok(checkpoint),
            Some(damage) => {
                let message = format!("{}: {}", damage.object, damage.message);
                Err(Error::new(ErrorKind::Corrupt, "verify", message).at(tier.store.location()))
            }
        }
    }
}

impl Tiered {
    /// The checkpoint, as the tier in [`from`](Self::from) has it.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Where it is read from, and why not from nearer.
    pub fn from(&self) -> &OpenedFrom {
        &self.from
    }

    /// Fill the memory of wants, which `wants` makes anew for each tier that is tried. A tier that fails or is damaged is left for the next that has the
    /// very same checkpoint; the ledger and [`from`](Self::from) say so.
    pub async fn load(&mut self, mut wants: impl FnMut() -> Result<Vec<Want>>) -> Result<Loaded> {
        loop {
            let error = match self.checkpoint.load(wants()?).await {
                Ok(mut loaded) => {
                    self.note(&mut loaded.ledger);
                    return Ok(loaded);
                }
                Err(error) => error,
            };
            self.fall_back(error).await?;
        }
    }

    /// Go on with the next tier that has this checkpoint, after a failure of this one. Gives the failure back where there is none, or where the caller
    /// asked for something that no tier can give.
    pub async fn fall_back(&mut self, error: Error) -> Result<()> {
        if matches!(
            error.kind(),
            ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::Cancelled
        ) {
            return Err(error);
        }
        let step = self.from.step;
        self.from.not_from.push(NotFrom {
            tier: self.from.tier.clone(),
            step: Some(step),
            why: error.to_string(),
        });
        for number in self.from.number + 1..self.tiers.places.len() {
            let why = match self.tiers.open_at(number, step, false).await {
                Ok(checkpoint) if checkpoint.manifest().attempt.is_same_save(self.attempt) => {
                    tracing::warn!(%error, tier = self.tiers.name(number), "reading a checkpoint from the next tier");
                    self.checkpoint = checkpoint;
                    (self.from.number, self.from.tier) = (number, self.tiers.name(number));
                    return Ok(());
                }
                Ok(_) => "it has another attempt at that step".to_owned(),
                Err(error) => error.to_string(),
            };
            self.from.not_from.push(NotFrom {
                tier: self.tiers.name(number),
                step: Some(step),
                why,
            });
        }
        Err(error)
    }

    /// Say in a ledger which tiers were passed over.
    fn note(&self, ledger: &mut Ledger) {
        let taken = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
        for tried in &self.from.not_from {
            let reason = format!("not from {}: {}", tried.tier, tried.why);
            ledger.record_downgrade(taken, taken, reason);
        }
    }
}

/// `NotFound`, unless a tier could not be asked: it may have what is wanted, and nobody must begin anew because of it.
fn nowhere(step: Option<u64>, not_from: &[NotFrom]) -> Error {
    let of_step = step.map(|step| format!(" of step {step}")).unwrap_or_default();
    let mut message = format!("no tier has a checkpoint{of_step} that can be read");
    for tried in not_from {
        message = format!("{message}; {}: {}", tried.tier, tried.why);
    }
    let is_unasked = not_from.iter().any(|tried| tried.step.is_none());
    let kind = if is_unasked {
        ErrorKind::Unavailable
    } else {
        ErrorKind::NotFound
    };
    Error::new(kind, "open checkpoint", message)
}
