//! Which checkpoints of a tier stay and which go: a pure function from what is there to a verdict for each.
//!
//! Rules keep; what no rule keeps, goes. Whatever the rules say, the checkpoint that was committed last stays, and so does what the next tier does not have yet, unless
//! the caller says otherwise. That payloads which a newer checkpoint references outlive their own step is gc's doing.
//!
//! *Last* is by the time of the commit, not by the number of the step: who went back to an earlier step and trains on from there saves lower numbers than those
//! that are there already, and these saves are what is to be kept.

use std::time::Duration;

use serde::Serialize;

use crate::manifest::Manifest;

#[cfg(test)]
mod tests;

/// What is to be kept. Without `keep_last` and `age_max`, everything is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Retention {
    /// Keep that many of those committed last.
    pub keep_last: Option<usize>,
    /// Keep every step that is a multiple of this.
    pub keep_every: Option<u64>,
    /// Keep what is younger than this.
    pub age_max: Option<Duration>,
}

/// A checkpoint, as far as keeping it is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepState {
    /// Its step.
    pub step: u64,
    /// Time of its commit since 1970.
    pub committed: Duration,
    /// Its manifest can be read. What cannot is no rule's concern: nobody knows what it needs.
    pub is_readable: bool,
    /// It need not be spared for the next tier: that has it, or is not to have it.
    pub is_drained: bool,
}

impl StepState {
    /// Of a checkpoint that no other tier waits for.
    pub fn of(manifest: &Manifest) -> Self {
        Self {
            step: manifest.step,
            committed: manifest.committed,
            is_readable: true,
            is_drained: true,
        }
    }
}

/// Why a checkpoint stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kept {
    /// No rule says that anything goes.
    NoRule,
    /// Of those that can be read, it was committed last.
    Newest,
    /// It is among those committed last.
    Last,
    /// Its step is a multiple.
    Every,
    /// It is young.
    Young,
    /// The next tier does not have it yet.
    NotDrained,
    /// Its manifest cannot be read.
    Unreadable,
}

/// What becomes of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep(Kept),
    /// It goes.
    Remove,
}

impl Retention {
    /// True when everything stays.
    pub fn keeps_all(&self) -> bool {
        self.keep_last.is_none() && self.age_max.is_none()
    }

    /// A verdict for each of the steps, in their order, which need not ascend.
    pub fn plan(&self, steps: &[StepState], now: Duration) -> Vec<Verdict> {
        // The step decides where clocks do not tell them apart.
        let order = |state: &StepState| (state.committed, state.step);
        let mut readable: Vec<(Duration, u64)> = steps
            .iter()
            .filter(|state| state.is_readable)
            .map(order)
            .collect();
        readable.sort_unstable();
        let newest = readable.last().copied();
        let last_from = match self.keep_last {
            Some(count) => readable.get(readable.len().saturating_sub(count)).copied(),
            None => None,
        };
        let verdict = |state: &StepState| {
            let is_multiple = |every: u64| every > 0 && state.step.is_multiple_of(every);
            let is_young = |age: Duration| now.saturating_sub(state.committed) <= age;
            if !state.is_readable {
                Verdict::Keep(Kept::Unreadable)
            } else if self.keeps_all() {
                Verdict::Keep(Kept::NoRule)
            } else if newest == Some(order(state)) {
                Verdict::Keep(Kept::Newest)
            } else if last_from.is_some_and(|from| order(state) >= from) {
                Verdict::Keep(Kept::Last)
            } else if self.keep_every.is_some_and(is_multiple) {
                Verdict::Keep(Kept::Every)
            } else if self.age_max.is_some_and(is_young) {
                Verdict::Keep(Kept::Young)
            } else if !state.is_drained {
                Verdict::Keep(Kept::NotDrained)
            } else {
                Verdict::Remove
            }
        };
        steps.iter().map(verdict).collect()
    }
}
