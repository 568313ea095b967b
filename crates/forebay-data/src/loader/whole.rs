//! Shards that are compressed as a whole: whether what a stream must hold of them at the same time is within reason.
//!
//! A sample of such a shard is there when all of it is decompressed, so every lane holds at least one shard, however small its window is. With many lanes
//! that is far more memory than was asked for, and it is known before anything is read.

use std::collections::BTreeSet;

use forebay_core::{ByteSize, Error, ErrorKind, Result};

use super::StreamSpec;
use super::course::{Course, Leg};
use super::sources::Sources;
use crate::codec::Codec;
use crate::dataset::Dataset;

/// A stream may need so many times its memory for compressed shards; the report tells by how much it grew.
pub(super) const MEMORY_MULTIPLE_MAX: u64 = 2;

/// Nobody is refused for less.
pub(super) const FREE_BYTES: u64 = 1 << 30;

/// Bytes that compressed shards may take at the same time.
pub(super) fn bytes_max(memory_bytes_max: u64) -> u64 {
    memory_bytes_max
        .saturating_mul(MEMORY_MULTIPLE_MAX)
        .max(FREE_BYTES)
}

/// Refuse a stream from a batch on whose lanes hold more of compressed shards than its memory allows.
pub(super) fn check(
    sources: &Sources,
    spec: &StreamSpec,
    course: &Course,
    leg: &Leg,
    batch: u64,
) -> Result<()> {
    let rows = sources.datasets().iter().flat_map(Dataset::shards);
    let compressed = rows.filter(|shard| shard.codec != Codec::None);
    let all: u64 = compressed.fold(0, |sum, shard| sum.saturating_add(shard.raw_bytes));
    let max = bytes_max(spec.memory_bytes_max);
    if all <= max {
        return Ok(());
    }
    // What a lane holds at first is like what it holds later; lanes may meet in a shard at first and part later.
    let (mut needed, mut largest) = (0u64, 0);
    for lane in leg.lanes() {
        let mut shards = BTreeSet::new();
        let window = course.needs(leg, lane, batch)?.next();
        for (source, block) in window.iter().flat_map(|need| {
            let blocks = need.window.blocks.iter();
            blocks.map(move |block| (need.source, block.shard))
        }) {
            shards.insert((source, block));
        }
        let bytes = shards.iter().filter_map(|(source, shard)| {
            let dataset = sources.datasets().get(*source as usize)?;
            let shard = dataset.shards().get(*shard as usize)?;
            (shard.codec != Codec::None).then_some(shard.raw_bytes)
        });
        let bytes = bytes.fold(0, u64::saturating_add);
        needed = needed.saturating_add(bytes);
        largest = largest.max(bytes);
    }
    let needed = needed.min(all);
    if needed <= max {
        return Ok(());
    }
    Err(refuse(spec, needed, max / largest.max(1)))
}

/// A setting of the memory for so many bytes, in words that the command line and Python take.
pub(super) fn memory_for(bytes: u64) -> String {
    format!("{}MiB", bytes.div_ceil(1 << 20))
}

/// `lanes_own` of this rank would fit.
fn refuse(spec: &StreamSpec, needed: u64, lanes_own: u64) -> Error {
    let message = format!(
        "the compressed shards of this stream take {} at once, and it has {} of memory",
        ByteSize(needed),
        ByteSize(spec.memory_bytes_max)
    );
    let lanes = lanes_own.saturating_mul(u64::from(spec.order.world));
    let enough = memory_for(needed);
    let hint = if spec.order.shuffle && lanes > 0 {
        format!("give it memory={enough}, or set lanes={lanes} or less (that gives another order of samples)")
    } else {
        format!(
            "give it memory={enough}, or pack it into shards that are smaller or not compressed: forebay pack"
        )
    };
    Error::new(ErrorKind::LimitExceeded, "stream", message)
        .with_field("memory")
        .with_hint(hint)
}
