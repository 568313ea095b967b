//! The order against a naive model, and what it promises.

mod golden;
mod limits;
mod mixture;
mod model;
mod properties;
mod quality;
mod resume;
mod selection;

use super::*;

/// A sample: its shard and its number there.
type Sample = (u32, u64);

/// Shards of `samples` samples of `bytes` bytes each that can be cut anywhere.
fn plain(shards: usize, samples: u64, bytes: u64) -> Shards {
    let size = ShardSize {
        samples,
        bytes: samples * bytes,
        cut: Cut::Anywhere,
    };
    Shards::new(vec![size; shards]).unwrap()
}

/// Samples of a lane by position, as a loader finds them.
fn lane_samples(lane: &LanePlan, from: u64) -> Vec<Sample> {
    let mut samples = Vec::new();
    for window in lane.windows_from(from) {
        let skipped = from.saturating_sub(window.start);
        for (block, sample) in window.order().into_iter().skip(skipped as usize) {
            let block = &window.blocks[block as usize];
            samples.push((block.shard, block.samples.start + u64::from(sample)));
        }
    }
    samples
}

/// Batches of one rank from batch `first` on, read as a loader does: each lane from where it stands.
fn rank_batches(plan: &EpochPlan, first: u64) -> Vec<Vec<Sample>> {
    let lanes: Vec<(u64, Vec<Sample>)> = plan
        .lanes()
        .map(|lane| {
            let from = plan.position_at(lane, first);
            (from, lane_samples(&plan.lane(lane).unwrap(), from))
        })
        .collect();
    let batch = |batch: u64| {
        plan.batch(batch)
            .map(|slot| {
                let (from, samples) = &lanes[(slot.lane - plan.lanes().start) as usize];
                samples[(slot.position - from) as usize]
            })
            .collect()
    };
    (first..plan.batches()).map(batch).collect()
}

/// The settings for another rank and world with the same global batch.
fn respec(spec: &OrderSpec, rank: u32, world: u32) -> OrderSpec {
    OrderSpec {
        rank,
        world,
        batch_size: spec.batch_global() / u64::from(world),
        ..spec.clone()
    }
}

/// Global batches: those of all ranks of a world, one after the other.
fn global_batches(shards: &Shards, spec: &OrderSpec, world: u32, epoch: u64) -> Vec<Vec<Sample>> {
    let mut global: Vec<Vec<Sample>> = Vec::new();
    for rank in 0..world {
        let order = Order::new(shards.clone(), respec(spec, rank, world)).unwrap();
        let batches = rank_batches(&order.epoch(epoch), 0);
        global.resize(batches.len().max(global.len()), Vec::new());
        for (whole, part) in global.iter_mut().zip(batches) {
            whole.extend(part);
        }
    }
    global
}

/// Worlds that divide both the lanes and the global batch.
fn worlds(spec: &OrderSpec) -> Vec<u32> {
    let fits = |world: &u32| {
        spec.batch_global().is_multiple_of(u64::from(*world))
            && (!spec.shuffle || spec.lanes.is_multiple_of(*world))
    };
    (1..=16).filter(fits).collect()
}
