//! Whole checkpoints on whole stores: saved, loaded in other shapes, damaged, crashed, collected.
//!
//! Inside the crate, since the tests of checkers run once with the checks off to show that they would see what the checks prevent.

mod compress;
mod crash;
mod damage;
mod drain_crash;
mod export;
mod faults;
mod filled;
mod gc;
mod golden;
mod golden_coded;
pub(crate) mod hooked;
mod incremental;
mod round_trip;
mod scale;
mod sealed;
mod shared;
pub(crate) mod support;
mod tiers;
mod tiers_compress;
mod tiers_trouble;
