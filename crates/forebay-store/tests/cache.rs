//! The cache as a store: its contract, its ledger, its sharing between threads, its cap, and what damage and crashes do to it.

#[path = "cache/basics.rs"]
mod basics;
#[path = "cache/changes.rs"]
mod changes;
#[path = "cache/crash.rs"]
mod crash;
#[path = "cache/damage.rs"]
mod damage;
#[path = "cache/room.rs"]
mod room;
#[path = "cache/sharing.rs"]
mod sharing;
#[path = "cache/support.rs"]
mod support;
