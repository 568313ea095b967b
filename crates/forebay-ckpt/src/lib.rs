//! Checkpoint: saves state so that what is visible is whole, and what is damaged is refused.
//!
//! A checkpoint is a payload and a part for each rank, and one manifest whose atomic publication is the commit. Everything is hashed, up to one root.
//!
//! ```text
//! save:  items -> chunks, hashed [compressed] -> payload (raw: a safetensors file), then part -> [all ranks] -> index, manifest: the commit
//! load:  manifest -> index or parts, page by page -> plan: which chunks -> read, verified -> the caller's memory
//! ```
//!
//! - [`Save`]: one attempt at one step, over all ranks; [`Publish`]: how it becomes visible;
//! - [`Checkpoint`]: an open one; [`Want`], [`Loaded`]: any box of any tensor, whoever saved it;
//! - [`Value`]: what is not a tensor, without pickle; [`Dtype`], [`SliceSpec`]: what is;
//! - [`list`](fn@list), [`newest`], [`verify`](fn@verify), [`diff`](fn@diff), [`gc`](fn@gc);
//! - [`Tiers`], [`drain`](fn@drain), [`Retention`]: the same checkpoints near and far, and what each place keeps;
//! - [`export`](fn@export): written anew in the formats of others;
//! - [`CheckpointView`]: its tensors as one safetensors file, which is nowhere written.
//!
//! The bytes are specified in `docs/formats/checkpoint.md`. `wire`, `tree`, `part`, `index`, `manifest`, `layout` and `codec` are pure; `pages` and `open` read, `save` and
//! `commit` write.

mod access_log;
mod codec;
mod commit;
mod diff;
mod dtype;
mod entry;
mod export;
mod failed;
#[cfg(fuzzing)]
pub mod fuzz;
mod gc;
mod hash;
mod hex;
mod index;
mod layout;
mod list;
mod load;
mod manifest;
mod names;
mod open;
mod pages;
mod part;
mod pem;
mod pin;
mod retention;
mod save;
mod seal;
mod sign;
#[cfg(test)]
mod tests;
mod tiers;
mod tree;
mod value;
mod verify;
mod view;
mod wire;

pub use access_log::{AccessLine, AccessLog, AccessOp, LogVerified};
pub use codec::Compress;
pub use commit::Committed;
pub use diff::{Change, Diff, Difference, diff};
pub use dtype::Dtype;
pub use entry::{Alias, ChunkRecord, Codec, Content, Entry, SliceSpec};
pub use export::{ExportFormat, ExportOptions, Exported, ExportedFile, SHARD_BYTES_DEFAULT, export};
pub use failed::note_failure;
pub use gc::{Collected, GcOptions, gc};
pub use hash::{Digest, HashKind};
pub use index::Found;
pub use layout::file_order;
pub use list::{Listed, list, newest};
pub use load::{Loaded, Want};
pub use manifest::{BaseRow, FileRow, METADATA_BYTES_MAX, Manifest, Publish};
pub use names::{Attempt, Form, WORLD_MAX};
pub use open::Checkpoint;
pub use part::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, FORMAT, NAME_BYTES_MAX, PartHead, PayloadRow};
pub use pin::PIN_AGE_MAX;
pub use retention::{Kept, Retention, StepState, Verdict};
pub use save::{CHUNK_BYTES_DEFAULT, Fill, Item, ItemData, RankSaved, Round, RoundPiece, Save, SaveOptions};
pub use seal::{KeyWrap, Keys, Rewrapped, rewrap};
pub use sign::{PublicKey, SigningKey};
pub use tiers::{
    BYTES_PER_SECOND_MIN, DrainEvent, DrainOptions, DrainReport, DrainState, Drained, Drainer,
    DrainerOptions, NotFrom, OpenedFrom, Passed, Placed, Reading, TIERS_MAX, Tier, Tiered, Tiers, drain,
};
pub use value::{Array, DEPTH_MAX, DIMS_MAX, Named, VALUE_BYTES_MAX, Value};
pub use verify::{DAMAGES_KEPT_MAX, Damage, Verified, verify};
pub use view::{CheckpointView, ViewOptions, Viewed};
