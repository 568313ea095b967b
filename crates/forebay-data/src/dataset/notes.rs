//! What is said before much is read that could have been read once, with how much that is over all ranks.

use forebay_core::{ByteSize, Location};

/// What a filter may read at every start, over all ranks, without a word: a second of one link of 10 Gb/s to a store that all of them share. Nobody packs a data
/// set to be spared that.
const FILTER_BYTES_UNTOLD_MAX: u64 = 1 << 30;

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

/// What is said before a filter reads samples to choose among them, where that is more than a trifle: how much it is, over all ranks that do so, and how to be
/// spared it.
pub fn note_filtered(bytes: u64, world: u32) -> Option<String> {
    if bytes.saturating_mul(u64::from(world.max(1))) <= FILTER_BYTES_UNTOLD_MAX {
        return None;
    }
    let ranks = over_all_ranks(bytes, world);
    let bytes = ByteSize(bytes);
    Some(format!(
        "the filter reads about {bytes} at every start without a state folder that remembers which samples it keeps{ranks}; `forebay pack --filter` makes a data set of them, once"
    ))
}

/// How much all ranks read where one of them reads so much.
fn over_all_ranks(bytes: u64, world: u32) -> String {
    let all = ByteSize(bytes.saturating_mul(u64::from(world)));
    match world {
        0 | 1 => String::new(),
        world => format!("; each of {world} ranks does so, {all} together"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_filter_reads_is_told_from_some_size_on() {
        const MIB: u64 = 1 << 20;
        for (bytes, world) in [(0, 1000), (1024 * MIB, 1), (16 * MIB, 64), (1024 * MIB, 0)] {
            assert_eq!(note_filtered(bytes, world), None, "{bytes} {world}");
        }
        let alone = note_filtered(2048 * MIB, 1).unwrap();
        assert!(
            alone.contains("reads about 2.0 GiB")
                && alone.contains("forebay pack --filter")
                && !alone.contains("ranks"),
            "{alone}"
        );
        let many = note_filtered(17 * MIB, 64).unwrap();
        assert!(
            many.contains("about 17.0 MiB") && many.contains("each of 64 ranks does so, 1.1 GiB together"),
            "{many}"
        );
        assert!(note_filtered(u64::MAX, u32::MAX).is_some());
    }
}
