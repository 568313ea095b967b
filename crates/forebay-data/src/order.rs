//! The order of samples, as a pure function: which sample goes into which batch of which rank.
//!
//! In go the sizes of the shards ([`Shards`]) and the settings ([`OrderSpec`]); together they are an [`Order`]. It answers for any epoch
//! ([`EpochPlan`]), lane ([`LanePlan`]) and position, without I/O, without state and without a list of the samples of the epoch:
//!
//! ```text
//! Shards + OrderSpec -> Order --epoch--> EpochPlan --batch(k)--> slots: (lane, position in the lane)
//!                         |                  |
//!                     Position           lane(l) -> LanePlan --windows_from(position)--> Window: blocks to read, and the order of their samples
//! ```
//!
//! - `turns.rs`: which lane gives which sample to which batch (numbers only);
//! - `lane.rs`: segments, groups of blocks and windows of a shuffled lane; `stripe.rs`: the same for a rank without shuffling;
//! - `window.rs`: blocks and windows; `plan.rs`: one epoch of one rank;
//! - `position.rs`: where a run stands, and going on from there;
//! - `mixture.rs`: several data sets by weight; `selection.rs`: a part of the samples.
//!
//! What it promises is written in docs/concepts/order.md. The algorithm is frozen under [`ORDER_VERSION`]: golden vectors in the tests hold it,
//! and whoever has to change them has made a new version.

mod lane;
mod mixture;
mod plan;
mod position;
mod selection;
mod stripe;
mod turns;
mod window;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, Seed};
use serde::{Deserialize, Serialize};

pub use lane::{LanePlan, Windows};
pub use mixture::{Draw, MixLane, Mixture, PERIOD_MIN, SOURCES_MAX, Source};
pub use plan::{EpochPlan, Slot};
pub use position::{POSITION_BYTES_MAX, Position, Settings};
pub use selection::Selection;
pub use window::{BlockRef, Window};

/// Version of the algorithm; part of every position.
pub const ORDER_VERSION: u32 = 1;

/// Most lanes. Each has a window open: at 256 MiB, more than this would leave less than a page of memory to each.
pub const LANES_MAX: u32 = 1 << 16;

/// Most samples of a data set: integers up to this pass through every reader of JSON unharmed.
pub const SAMPLES_MAX: u64 = 1 << 53;

/// Most samples of a global batch, far above any in use; products with lanes and turns stay well within 128 bits.
pub const BATCH_MAX: u64 = 1 << 32;

/// Streams of random numbers, one for each purpose. The numbers are part of the frozen algorithm.
mod stream {
    pub(super) const SHARDS: u64 = 1;
    pub(super) const LANES: u64 = 2;
    pub(super) const SEGMENTS: u64 = 3;
    pub(super) const BLOCKS: u64 = 4;
    pub(super) const WINDOWS: u64 = 5;
    pub(super) const MIXTURE: u64 = 6;
}

/// Where a shard may be cut into blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cut {
    /// Between any two samples.
    Anywhere,
    /// Between groups that are decoded as one; their numbers of samples.
    Groups(Vec<u64>),
    /// Nowhere: it is decompressed as a whole.
    Whole,
}

/// What the order knows of a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardSize {
    /// Its samples; 0 is fine.
    pub samples: u64,
    /// Their bytes together, as far as known: only sizes of blocks depend on it.
    pub bytes: u64,
    /// Where it may be cut.
    pub cut: Cut,
}

impl ShardSize {
    /// Samples that have about `bytes` together; at least one.
    fn samples_of(&self, bytes: u64) -> u64 {
        // A sample takes at least a byte, lest everything fit into one block.
        let total = u128::from(self.bytes.max(self.samples).max(1));
        let fitting = u128::from(bytes) * u128::from(self.samples) / total;
        u64::try_from(fitting).unwrap_or(u64::MAX).max(1)
    }

    /// Bytes that `samples` of it have on average.
    fn bytes_of(&self, samples: u64) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(samples) / u128::from(self.samples.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The shards of a data set, checked, in their own order.
#[derive(Debug, Clone)]
pub struct Shards {
    sizes: Arc<[ShardSize]>,
    samples: u64,
    fingerprint: Seed,
    /// What a part of the samples is known by, where it is one.
    selection: Option<u64>,
}

impl Shards {
    /// Check the sizes.
    pub fn new(sizes: Vec<ShardSize>) -> Result<Self> {
        if u32::try_from(sizes.len()).is_err() {
            return Err(limit("a data set has at most 4,294,967,295 shards"));
        }
        let mut samples = 0_u64;
        let mut fingerprint = Seed(sizes.len() as u64);
        for (index, size) in sizes.iter().enumerate() {
            if size.samples > u64::from(u32::MAX) {
                return Err(limit(format!(
                    "shard {index} has {} samples; a shard has at most {}",
                    size.samples,
                    u32::MAX
                )));
            }
            samples += size.samples;
            if samples > SAMPLES_MAX {
                return Err(limit(format!("a data set has at most {SAMPLES_MAX} samples")));
            }
            fingerprint = fingerprint.derive(size.samples).derive(size.bytes);
            fingerprint = match &size.cut {
                Cut::Anywhere => fingerprint.derive(0),
                Cut::Whole => fingerprint.derive(1),
                Cut::Groups(groups) => {
                    let total = groups
                        .iter()
                        .try_fold(0_u64, |sum, group| sum.checked_add(*group));
                    if total != Some(size.samples) {
                        let message = format!(
                            "the groups of shard {index} do not add up to its {} samples",
                            size.samples
                        );
                        return Err(invalid(message));
                    }
                    let print = fingerprint.derive(2).derive(groups.len() as u64);
                    groups.iter().fold(print, |print, group| print.derive(*group))
                }
            };
        }
        Ok(Self {
            sizes: sizes.into(),
            samples,
            fingerprint,
            selection: None,
        })
    }

    /// The shards with nothing but the samples that are kept, one selection for each.
    pub fn select<S: AsRef<Selection>>(self, selections: &[S]) -> Result<Self> {
        if selections.len() != self.sizes.len() {
            return Err(invalid("there must be one selection for each shard"));
        }
        let pairs = self.sizes.iter().zip(selections);
        let sizes = pairs.map(|(size, selection)| selection.as_ref().size(size));
        let selected = Self::new(sizes.collect::<Result<_>>()?)?;
        let prints = selections
            .iter()
            .map(|selection| selection.as_ref().fingerprint());
        Ok(Self {
            fingerprint: self.fingerprint,
            selection: Some(prints.fold(Seed(4), Seed::derive).0),
            ..selected
        })
    }

    /// Make something else of the data set part of its fingerprint, such as a checksum of its manifest: data sets of
    /// fixed-size samples often have the same sizes.
    pub fn with_identity(mut self, identity: u64) -> Self {
        self.fingerprint = self.fingerprint.derive(3).derive(identity);
        self
    }

    /// Samples of all shards.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The sizes.
    pub fn sizes(&self) -> &[ShardSize] {
        &self.sizes
    }

    /// A number that another data set does not have; a part of one has it too.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint.0
    }

    /// A number that another part of the data set does not have, where it is a part.
    pub fn selection(&self) -> Option<u64> {
        self.selection
    }
}

/// What becomes of samples that do not fill a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Last {
    /// Left out; all batches are full.
    #[default]
    Drop,
    /// The last batch is shorter, on some ranks by one more than on others; it may be empty on some.
    Short,
    /// The last batch is filled from the beginning of the epoch's order.
    Wrap,
}

/// How samples are put in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderSpec {
    /// The order is a function of it.
    pub seed: Seed,
    /// Shuffled, or exactly as they lie.
    pub shuffle: bool,
    /// Parts of the data set that go to one rank each; the world size must divide it.
    pub lanes: u32,
    /// Samples of a batch of one rank.
    pub batch_size: u64,
    /// This rank.
    pub rank: u32,
    /// Ranks.
    pub world: u32,
    /// About how much is read at once.
    pub block_bytes: u64,
    /// About how much is shuffled together, over all lanes.
    pub window_bytes: u64,
    /// Shards of a lane whose blocks are mixed.
    pub spread: u32,
    /// What becomes of samples that do not fill a batch.
    pub last: Last,
    /// End an epoch after that many samples.
    pub limit: Option<u64>,
}

impl Default for OrderSpec {
    fn default() -> Self {
        Self {
            seed: Seed(0),
            shuffle: false,
            lanes: 64,
            batch_size: 1,
            rank: 0,
            world: 1,
            block_bytes: 2 << 20,
            window_bytes: 256 << 20,
            spread: 16,
            last: Last::Drop,
            limit: None,
        }
    }
}

impl OrderSpec {
    /// Samples of a batch of all ranks together.
    pub fn batch_global(&self) -> u64 {
        self.batch_size.saturating_mul(u64::from(self.world))
    }

    /// Refuse settings that fit no data set.
    pub fn check(&self) -> Result<()> {
        let zeroes = [
            ("lanes", u64::from(self.lanes)),
            ("batch_size", self.batch_size),
            ("world", u64::from(self.world)),
            ("block_bytes", self.block_bytes),
            ("window_bytes", self.window_bytes),
            ("spread", u64::from(self.spread)),
            ("limit", self.limit.unwrap_or(1)),
        ];
        for (field, value) in zeroes {
            if value == 0 {
                return Err(invalid(format!("{field} must not be 0")).with_field(field));
            }
        }
        if self.rank >= self.world {
            let message = format!("rank {} is not below the world size {}", self.rank, self.world);
            return Err(invalid(message).with_field("rank"));
        }
        if self.lanes > LANES_MAX {
            return Err(limit(format!("there are at most {LANES_MAX} lanes")).with_field("lanes"));
        }
        if self.batch_global() > BATCH_MAX {
            let message = format!("a batch over all ranks has at most {BATCH_MAX} samples");
            return Err(limit(message).with_field("batch_size"));
        }
        if self.shuffle && !self.lanes.is_multiple_of(self.world) {
            let message = format!("{} lanes cannot be shared by {} ranks", self.lanes, self.world);
            return Err(invalid(message)
                .with_field("lanes")
                .with_hint(fitting(self.lanes, self.world)));
        }
        Ok(())
    }
}

/// Which lanes would fit the world, and which worlds the lanes.
fn fitting(lanes: u32, world: u32) -> String {
    let below = lanes / world * world;
    let numbers = match below {
        0 => world.to_string(),
        _ => format!("{below} or {}", below + world),
    };
    let divides = |candidate: &u32| lanes.is_multiple_of(*candidate);
    let smaller = (1..world.min(lanes + 1)).rev().find(divides).unwrap_or(1);
    let worlds = match (world + 1..=lanes).find(divides) {
        Some(larger) => format!("{smaller} or {larger}"),
        None => smaller.to_string(),
    };
    format!("set lanes to {numbers} (that gives another order of samples), or use {worlds} ranks")
}

/// Everything that is the same in all epochs.
#[derive(Debug, Clone)]
pub struct Order {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shards: Shards,
    spec: OrderSpec,
    /// Where random numbers come from.
    root: Seed,
    /// Shards with samples, in the order in which they stand in the row.
    row: Vec<u32>,
    /// Number in the row of the first sample of each.
    starts: Vec<u64>,
    /// Samples of an epoch, before batches are formed.
    samples: u64,
}

impl Order {
    /// Check the settings against the data set and lay out the shards.
    pub fn new(shards: Shards, spec: OrderSpec) -> Result<Self> {
        spec.check()?;
        let samples = samples_of_epoch(&shards, &spec)?;
        let root = spec.seed.derive(u64::from(ORDER_VERSION));
        let mut row: Vec<u32> = (0..shards.sizes.len() as u32)
            .filter(|shard| shards.sizes[*shard as usize].samples > 0)
            .collect();
        if spec.shuffle {
            root.derive(stream::SHARDS).rng().shuffle(&mut row);
        }
        let mut starts = Vec::with_capacity(row.len());
        let mut start = 0;
        for shard in &row {
            starts.push(start);
            start += shards.sizes[*shard as usize].samples;
        }
        let order = Self {
            inner: Arc::new(Inner {
                shards,
                spec,
                root,
                row,
                starts,
                samples,
            }),
        };
        if order.epoch(0).batches() == 0 {
            let batch = order.spec().batch_global();
            let message = format!("{samples} samples do not fill one batch of {batch} over all ranks");
            return Err(invalid(message).with_field("batch_size").with_hint(
                "use a smaller batch size, or let the last batch be short (last='short' in Python, --last short)",
            ));
        }
        Ok(order)
    }

    /// The settings.
    pub fn spec(&self) -> &OrderSpec {
        &self.inner.spec
    }

    /// The data set.
    pub fn shards(&self) -> &Shards {
        &self.inner.shards
    }

    /// One epoch, from its beginning.
    pub fn epoch(&self, epoch: u64) -> EpochPlan {
        EpochPlan::new(self.inner.clone(), epoch, 0)
    }
}

/// Samples of an epoch, with the limit applied.
///
/// Lanes have lengths that differ by at most one, spread evenly over them. A limit is laid out in the same way, which must not ask a lane for
/// more than it has: it cannot where it is a whole round of the lanes below the data set, and else it is rounded to whole rounds.
fn samples_of_epoch(shards: &Shards, spec: &OrderSpec) -> Result<u64> {
    let all = shards.samples;
    if all == 0 {
        return Err(invalid("the data set has no samples"));
    }
    let asked = spec.limit.unwrap_or(all).min(all);
    if !spec.shuffle {
        return Ok(asked);
    }
    let lanes = u64::from(spec.lanes);
    let exact = asked == all || asked / lanes < all / lanes;
    let samples = if exact { asked } else { asked / lanes * lanes };
    if samples >= lanes {
        return Ok(samples);
    }
    let message = format!("{samples} samples are fewer than the {lanes} lanes");
    let fit = samples / u64::from(spec.world) * u64::from(spec.world);
    let hint = match fit {
        0 => "there are fewer samples than ranks: use fewer ranks, or no shuffling".to_owned(),
        fit => format!("set lanes to {fit} or a smaller multiple of {}", spec.world),
    };
    Err(invalid(message).with_field("lanes").with_hint(hint))
}

/// Where part `part` of `parts` begins when `total` is shared out evenly: sizes differ by at most one.
fn share_start(total: u64, parts: u64, part: u64) -> u64 {
    (u128::from(total) * u128::from(part) / u128::from(parts.max(1))) as u64
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "plan order", message)
}

fn limit(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::LimitExceeded, "plan order", message)
}
