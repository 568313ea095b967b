//! Tiers: the same checkpoints in several places, near and far. Memory or a fast disk first, where saves commit; then whatever is slower and lasts longer.
//!
//! ```text
//! save -> tier 0 (tmpfs, NVMe) --drain--> tier 1 (NVMe, shared disk) --drain--> tier 2 (bucket)        each with rules of its own about what it keeps
//! open <- nearest tier that has the step and holds <- the next one, saying why
//! ```
//!
//! - [`drain`](fn@drain): whole checkpoints from one store to another (`bring`), checked on the way (`objects`, `seal`, `send`), under a pin (`lease`); or compressed on the way (`recode`);
//! - [`Tiers`]: an ordered list of them: drain outward, collect by each tier's [`Retention`], open from the nearest;
//! - [`Drainer`]: draining and collecting in the background of a process;
//! - [`OpenedFrom`]: which tier a checkpoint came from, and why not from a nearer one.
//!
//! A manifest is the same, byte for byte, in every tier, and so is everything that it names, unless a tier compresses: it has manifests of its own, of the same
//! contents. See `docs/formats/checkpoint.md`.

mod bring;
mod drain;
mod drainer;
mod lease;
mod objects;
mod open;
mod recode;
mod seal;
mod send;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::{Context, Store};

#[cfg(test)]
pub(crate) use drain::drain_with;
pub use drain::{BYTES_PER_SECOND_MIN, DrainEvent, DrainOptions, DrainReport, Drained, Passed, drain};
pub use drainer::{DrainState, Drainer, DrainerOptions};
#[cfg(test)]
pub(crate) use lease::Lease;
pub use open::{NotFrom, OpenedFrom, Reading, Tiered};

use crate::codec::Compress;
use crate::gc::{Collected, GcOptions, gc};
use crate::list::{Listed, list};
use crate::manifest::{Manifest, Publish};
use crate::names::Attempt;
use crate::retention::{Retention, StepState, Verdict};

/// Most tiers: memory, local disk, shared disk, bucket, archive, and room for more.
pub const TIERS_MAX: usize = 8;

/// One place for checkpoints.
#[derive(Debug, Clone)]
pub struct Tier {
    /// For reports.
    pub name: String,
    /// Where it is.
    pub store: Arc<dyn Store>,
    /// What it keeps.
    pub retention: Retention,
    /// How a drain publishes here.
    pub publish: Publish,
    /// Most bytes a second that a drain writes here.
    pub bytes_per_second_max: Option<u64>,
    /// How a drain to here compresses what was saved raw.
    pub compress: Compress,
}

impl Tier {
    /// A tier that keeps everything, named by its place.
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            name: store.location().to_string(),
            store,
            retention: Retention::default(),
            publish: Publish::default(),
            bytes_per_second_max: None,
            compress: Compress::Off,
        }
    }

    /// With chunks that are compressed on their way here.
    pub fn compressing(self, compress: Compress) -> Self {
        Self { compress, ..self }
    }

    /// With rules about what it keeps.
    pub fn keeping(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }
}

/// Which tiers have a checkpoint.
#[derive(Debug)]
pub struct Placed {
    /// Its step.
    pub step: u64,
    /// By the number of the tier, nearest first: its manifest, or why it cannot be read.
    pub tiers: BTreeMap<usize, Result<Manifest>>,
}

/// The same checkpoints in several places, nearest first; cheap to clone.
#[derive(Debug, Clone)]
pub struct Tiers {
    places: Arc<Vec<Tier>>,
    context: Context,
    reading: Arc<Reading>,
}

impl Tiers {
    /// An ordered list of tiers. Saves go to the first.
    pub fn new(tiers: Vec<Tier>, context: &Context) -> Result<Self> {
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidInput, "open tiers", message));
        if tiers.is_empty() || tiers.len() > TIERS_MAX {
            return refuse(format!("there must be 1 to {TIERS_MAX} tiers"));
        }
        for (index, tier) in tiers.iter().enumerate() {
            let identity = tier.store.identity();
            let before = tiers.iter().take(index);
            if let Some(other) = before
                .into_iter()
                .find(|other| other.store.identity() == identity)
            {
                return refuse(format!("{:?} and {:?} are one place", other.name, tier.name));
            }
        }
        Ok(Self {
            places: Arc::new(tiers),
            context: context.clone(),
            reading: Arc::default(),
        })
    }

    /// With keys to read by, a rank to read for, and a log of it: whichever tier a checkpoint comes from.
    pub fn reading(self, reading: Reading) -> Self {
        Self {
            reading: Arc::new(reading),
            ..self
        }
    }

    /// The tiers.
    pub fn tiers(&self) -> &[Tier] {
        &self.places
    }

    /// The store that saves go to.
    pub fn nearest(&self) -> Option<&Arc<dyn Store>> {
        self.places.first().map(|tier| &tier.store)
    }

    /// Checkpoints of all tiers, by step, and which tiers cannot be reached, be it the nearest: what the others have can be loaded all the same. Fails only when
    /// none can be.
    pub async fn list(&self) -> Result<(Vec<Placed>, Vec<NotFrom>)> {
        let mut steps: BTreeMap<u64, BTreeMap<usize, Result<Manifest>>> = BTreeMap::new();
        let (mut unreachable, mut first_error) = (Vec::new(), None);
        for (number, tier) in self.places.iter().enumerate() {
            match list(Arc::clone(&tier.store), &self.context).await {
                Ok(listed) => {
                    for Listed { step, manifest } in listed {
                        steps.entry(step).or_default().insert(number, manifest);
                    }
                }
                Err(error) => {
                    unreachable.push(NotFrom {
                        tier: tier.name.clone(),
                        step: None,
                        why: error.to_string(),
                    });
                    first_error.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first_error.filter(|_| unreachable.len() == self.places.len()) {
            return Err(error);
        }
        let placed = steps.into_iter().map(|(step, tiers)| Placed { step, tiers });
        Ok((placed.collect(), unreachable))
    }

    /// Drain outward: from each tier to the next. `options` tells what tiers do not say by themselves.
    pub async fn drain(
        &self,
        options: &DrainOptions,
        tell: &(dyn Fn(DrainEvent) + Send + Sync),
    ) -> Result<DrainReport> {
        let mut report = DrainReport::default();
        let mut failed = None;
        for pair in self.places.windows(2) {
            let [near, far] = pair else { continue };
            let options = DrainOptions {
                retention: far.retention,
                publish: far.publish,
                bytes_per_second_max: far.bytes_per_second_max.or(options.bytes_per_second_max),
                compress: match far.compress {
                    Compress::Off => options.compress,
                    compress => compress,
                },
                ..options.clone()
            };
            let (from, to) = (Arc::clone(&near.store), Arc::clone(&far.store));
            match drain(from, to, &self.context, &options, tell).await {
                Ok(drained) => report.merge(drained),
                // The pairs behind it have work of their own.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(report), Err)
    }

    /// Remove from each tier what its rules do not keep and the next tier has, or is not to have. With `is_forced`, what the next tier lacks, too.
    pub async fn collect(&self, is_forced: bool) -> Result<Vec<Collected>> {
        let (mut all, mut failed) = (Vec::new(), None);
        for (number, tier) in self.places.iter().enumerate() {
            let next = self.places.get(number + 1).filter(|_| !is_forced);
            match self.collect_from(tier, next).await {
                Ok(collected) => all.push(collected),
                // A tier that fails does not keep the others from making room.
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        failed.map_or(Ok(all), Err)
    }

    async fn collect_from(&self, tier: &Tier, next: Option<&Tier>) -> Result<Collected> {
        let options = GcOptions {
            remove_attempts: self.going(tier, next).await?,
            access_log: self.reading.access_log.clone(),
            ..GcOptions::default()
        };
        gc(Arc::clone(&tier.store), &self.context, &options).await
    }

    /// Checkpoints that a tier is to remove.
    async fn going(&self, tier: &Tier, next: Option<&Tier>) -> Result<Vec<(u64, Attempt)>> {
        if tier.retention.keeps_all() {
            return Ok(Vec::new());
        }
        let now = self.context.clock().unix();
        let here = readable(&tier.store, &self.context).await?;
        let (mut states, mut attempts) = (Vec::new(), Vec::new());
        for manifest in here.values() {
            states.push(StepState::of(manifest));
            attempts.push((manifest.step, manifest.attempt));
        }
        if let Some(next) = next {
            let there = match readable(&next.store, &self.context).await {
                Ok(there) => there,
                Err(error) => {
                    // What is to go there stays here; what is not may go.
                    tracing::warn!(%error, tier = next.name, "nobody knows what the next tier has");
                    BTreeMap::new()
                }
            };
            let there: BTreeMap<u64, Attempt> = there
                .into_iter()
                .map(|(step, manifest)| (step, manifest.attempt))
                .collect();
            let wanted = next.retention.plan(&states, now);
            for ((state, (step, attempt)), verdict) in states.iter_mut().zip(&attempts).zip(wanted) {
                state.is_drained = verdict == Verdict::Remove
                    || there.get(step).is_some_and(|there| there.is_same_save(*attempt));
            }
        }
        let verdicts = tier.retention.plan(&states, now);
        let going = attempts.into_iter().zip(verdicts);
        let going = going.filter(|(_, verdict)| *verdict == Verdict::Remove);
        Ok(going.map(|(which, _)| which).collect())
    }
}

async fn readable(store: &Arc<dyn Store>, context: &Context) -> Result<BTreeMap<u64, Manifest>> {
    let listed = list(Arc::clone(store), context).await?.into_iter();
    let readable = listed.filter_map(|listed| Some((listed.step, listed.manifest.ok()?)));
    Ok(readable.collect())
}
