//! Where a run stands, in a text of less than 1 KiB, and going on from there.
//!
//! One position is good for all ranks. It holds the settings that the order depends on beside a fingerprint of the data set, so that an error can say
//! which of them differs.

use forebay_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use super::plan::EpochPlan;
use super::turns::gcd;
use super::{Inner, Last, ORDER_VERSION, Order, SAMPLES_MAX};

/// Longest text of a position.
pub const POSITION_BYTES_MAX: usize = 1024;

/// How far a run has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// [`ORDER_VERSION`] that it was made with.
    pub version: u32,
    /// The epoch.
    pub epoch: u64,
    /// Samples of the epoch that all ranks together have consumed.
    pub samples: u64,
    /// Samples of a batch over all ranks.
    pub batch: u64,
    /// Fingerprint of the data set.
    pub data: u64,
    /// Fingerprint of the part of the data set that is kept, where it is a part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<u64>,
    /// Short fingerprints of the sources of a mixture, four hexadecimal digits each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<String>,
    /// What else the order depends on.
    pub settings: Settings,
}

/// Settings that the order depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Seed.
    pub seed: u64,
    /// Whether samples are shuffled.
    pub shuffle: bool,
    /// Lanes.
    pub lanes: u32,
    /// About how much is shuffled together.
    pub window_bytes: u64,
    /// About how much is read at once.
    pub block_bytes: u64,
    /// Shards whose blocks are mixed.
    pub spread: u32,
    /// What becomes of the last batch.
    pub last: Last,
    /// Samples after which an epoch ends.
    pub limit: Option<u64>,
}

impl Position {
    pub(super) fn new(order: &Inner, epoch: u64, samples: u64) -> Self {
        Self {
            version: ORDER_VERSION,
            epoch,
            samples,
            batch: order.spec.batch_global(),
            data: order.shards.fingerprint(),
            selection: order.shards.selection(),
            sources: None,
            settings: Settings::of(order),
        }
    }

    /// As JSON, of at most [`POSITION_BYTES_MAX`] bytes.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|error| Error::new(ErrorKind::Internal, "save position", error.to_string()))
    }

    /// From JSON.
    pub fn from_json(text: &str) -> Result<Self> {
        if text.len() > POSITION_BYTES_MAX {
            let message = format!("{} bytes are more than a position has", text.len());
            return Err(corrupt(message));
        }
        let Ok(Version { version }) = serde_json::from_str(text) else {
            return Err(no_state());
        };
        if version != ORDER_VERSION {
            return Err(other_version(version));
        }
        let Ok(position) = serde_json::from_str::<Self>(text) else {
            return Err(no_state());
        };
        // Ends of epochs are beginnings of the next, so that a position is never above the samples.
        if position.samples > SAMPLES_MAX || position.batch == 0 || position.batch > super::BATCH_MAX {
            return Err(corrupt("numbers that no position has"));
        }
        Ok(position)
    }
}

/// The one field that every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Settings {
    pub(super) fn of(order: &Inner) -> Self {
        let spec = &order.spec;
        Self {
            seed: spec.seed.0,
            shuffle: spec.shuffle,
            lanes: spec.lanes,
            window_bytes: spec.window_bytes,
            block_bytes: spec.block_bytes,
            spread: spec.spread,
            last: spec.last,
            limit: spec.limit,
        }
    }

    /// What differs, in words, with the names that options have. Without shuffling, only what the order depends on then.
    fn difference(&self, now: &Self) -> Option<String> {
        let (was, is) = (self.named(), now.named());
        let differing: Vec<String> = was
            .iter()
            .zip(&is)
            .take(if now.shuffle { was.len() } else { UNSHUFFLED })
            .filter(|((_, was), (_, is))| was != is)
            .map(|((name, was), (_, is))| format!("{name} was {was} and is {is}"))
            .collect();
        (!differing.is_empty()).then(|| differing.join(", "))
    }

    /// The settings as users write them, those first that count without shuffling.
    fn named(&self) -> [(&'static str, String); 8] {
        let last = match self.last {
            Last::Drop => "drop",
            Last::Short => "short",
            Last::Wrap => "wrap",
        };
        let limit = self
            .limit
            .map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        [
            ("shuffle", self.shuffle.to_string()),
            ("last", last.to_owned()),
            ("limit", limit),
            ("seed", self.seed.to_string()),
            ("lanes", self.lanes.to_string()),
            ("window", size(self.window_bytes)),
            ("block_size", size(self.block_bytes)),
            ("spread", self.spread.to_string()),
        ]
    }
}

/// So many of the settings count without shuffling.
const UNSHUFFLED: usize = 3;

/// A size as options have it, exactly.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}MiB", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    }
}

impl Order {
    /// Go on from a position: the plan of its epoch, and the batch of this plan that comes next.
    ///
    /// Batches of the plan are numbered so that `plan.position(batch)` is the position again. The batch may be behind the last: then the
    /// epoch has no further one, and the next epoch follows.
    pub fn resume(&self, position: &Position) -> Result<(EpochPlan, u64)> {
        let inner = &self.inner;
        if position.sources.is_some() {
            return Err(differs("it is of a mixture, and this is one data set"));
        }
        check(position, &Settings::of(inner))?;
        if position.data != inner.shards.fingerprint() {
            return Err(differs("the data set is another one"));
        }
        match (position.selection, inner.shards.selection()) {
            (was, is) if was == is => {}
            (None, _) => return Err(differs("all samples were streamed, and now a filter keeps some")),
            (_, None) => return Err(differs("a filter kept some samples, and now there is none")),
            _ => {
                return Err(differs(
                    "the filter keeps other samples than the one it was saved with",
                ));
            }
        }
        if position.samples > inner.samples {
            return Err(corrupt("it is behind the end of its epoch"));
        }
        let batch = inner.spec.batch_global();
        if inner.spec.shuffle {
            check_lanes(position, inner.spec.lanes, batch)?;
        }
        let plan = EpochPlan::new(inner.clone(), position.epoch, position.samples % batch);
        Ok((plan, position.samples / batch))
    }
}

/// Refuse a position of another version or of other settings.
pub(super) fn check(position: &Position, now: &Settings) -> Result<()> {
    if position.version != ORDER_VERSION {
        return Err(other_version(position.version));
    }
    match position.settings.difference(now) {
        None => Ok(()),
        Some(difference) if difference.contains("last was") => Err(differs(&difference).with_hint(
            "use the settings of the run that saved it; last is 'drop' in Python and short on the command line, unless it is given (last=, --last)",
        )),
        Some(difference) => Err(differs(&difference)),
    }
}

/// Refuse a count of samples after which the lanes do not stand as a run with this batch has them.
pub(super) fn check_lanes(position: &Position, lanes: u32, batch: u64) -> Result<()> {
    let lanes = u64::from(lanes);
    let groups = gcd(batch, lanes);
    if position.batch == 0 || !position.samples.is_multiple_of(gcd(position.batch, lanes)) {
        return Err(corrupt("its samples do not follow from its batches"));
    }
    if position.samples.is_multiple_of(lanes) || gcd(position.batch, lanes) == groups {
        return Ok(());
    }
    // Batches after which every lane has given equally many samples.
    let every = lanes / gcd(position.batch, lanes);
    let message = format!(
        "{} samples were consumed in batches of {} over all ranks, and batches of {batch} cannot go on from there",
        position.samples, position.batch
    );
    Err(Error::new(ErrorKind::InvalidInput, "resume", message)
        .with_field("batch_size")
        .with_hint(format!(
            "keep batch_size x world at {}, or save the position after a multiple of {every} batches of an epoch",
            position.batch
        )))
}

pub(super) fn differs(what: &str) -> Error {
    let message = format!("the saved position does not fit this run: {what}");
    Error::new(ErrorKind::Precondition, "resume", message)
        .with_hint("use the data set and settings of the run that saved it, or start without it")
}

/// The algorithm of the order is another one: no setting brings its batches back.
fn other_version(version: u32) -> Error {
    differs(&format!(
        "it was saved with version {version} of the order, and this version of Forebay has version {ORDER_VERSION}"
    ))
    .with_hint("go on with the version of Forebay that saved it, or start without it, at the beginning of an epoch")
}

fn no_state() -> Error {
    corrupt("this is no state of a stream").with_hint("give what state_dict() or --state-out gave, unchanged")
}

pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, "read position", message)
}
