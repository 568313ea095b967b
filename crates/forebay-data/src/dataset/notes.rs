//! What is said before much is read that could have been read once, with how much that is over all ranks.

use forebay_core::{ByteSize, Location};

/// What is said before a data set without a manifest is read to make one: how much that is, over all ranks that do so, and how to be spared it.
pub fn note_unindexed(
    location: &Location,
    (shards, bytes): (u64, u64),
    world: u32,
    is_saved: bool,
) -> String {
    let plural = if shards == 1 { "" } else { "s" };
    let ranks = over_all_ranks(bytes, world);
    let (place, advice) = if is_saved {
        ("", String::new())
    } else {
        let advice = format!("; `forebay index {location}` makes the next start instant");
        (" in memory", advice)
    };
    let bytes = ByteSize(bytes);
    format!("no index here: reading {shards} shard{plural}, {bytes}, to make one{place}{ranks}{advice}")
}

/// How much all ranks read where one of them reads so much.
fn over_all_ranks(bytes: u64, world: u32) -> String {
    let all = ByteSize(bytes.saturating_mul(u64::from(world)));
    match world {
        0 | 1 => String::new(),
        world => format!("; each of {world} ranks does so, {all} together"),
    }
}
