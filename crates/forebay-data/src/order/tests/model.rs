//! The order once more, built explicitly: every list is written out, nothing is computed by formula that can be done by hand.

use std::collections::VecDeque;

use forebay_core::Seed;

use super::super::{Cut, Last, OrderSpec, ShardSize, Shards};
use super::Sample;

/// All global batches of an epoch, and what a sequential run would do with them.
pub(super) fn batches(shards: &Shards, spec: &OrderSpec, epoch: u64) -> Vec<Vec<Sample>> {
    if !spec.shuffle {
        return exact(shards, spec);
    }
    let root = spec.seed.derive(1);
    let lanes = lanes(shards, spec, root, epoch);
    deal(&lanes, spec)
}

/// Samples of shards in the given order.
fn row(shards: &Shards, order: &[u32]) -> Vec<Sample> {
    let samples = |shard: &u32| {
        let shard = *shard;
        (0..shards.sizes()[shard as usize].samples).map(move |sample| (shard, sample))
    };
    order.iter().flat_map(samples).collect()
}

fn exact(shards: &Shards, spec: &OrderSpec) -> Vec<Vec<Sample>> {
    let order: Vec<u32> = (0..shards.sizes().len() as u32).collect();
    let mut row = row(shards, &order);
    row.truncate(spec.limit.unwrap_or(u64::MAX).min(1 << 40) as usize);
    let batch = spec.batch_global() as usize;
    let mut batches: Vec<Vec<Sample>> = row.chunks(batch).map(<[Sample]>::to_vec).collect();
    let last = batches.last_mut().unwrap();
    if last.len() < batch {
        match spec.last {
            Last::Drop => drop(batches.pop()),
            Last::Short => {}
            Last::Wrap => {
                let missing = batch - last.len();
                last.extend(row.iter().cycle().take(missing));
            }
        }
    }
    batches
}

/// The order of each lane, with the limit applied.
fn lanes(shards: &Shards, spec: &OrderSpec, root: Seed, epoch: u64) -> Vec<Vec<Sample>> {
    let mut order: Vec<u32> = (0..shards.sizes().len() as u32).collect();
    order.retain(|shard| shards.sizes()[*shard as usize].samples > 0);
    root.derive(1).rng().shuffle(&mut order);
    let row = row(shards, &order);
    let count = spec.lanes as usize;
    let asked = spec
        .limit
        .map_or(row.len(), |limit| (limit as usize).min(row.len()));
    let within = if asked == row.len() || asked / count < row.len() / count {
        asked
    } else {
        asked / count * count
    };
    let ends = |total: usize, lane: usize| total * lane / count..total * (lane + 1) / count;
    (0..count)
        .map(|lane| {
            let part = &row[ends(row.len(), lane)];
            let seed = root.derive(2).derive(epoch).derive(lane as u64);
            let mut samples = lane_order(shards.sizes(), spec, seed, lane as u64, part);
            samples.truncate(ends(within, lane).len());
            samples
        })
        .collect()
}

fn lane_order(sizes: &[ShardSize], spec: &OrderSpec, seed: Seed, lane: u64, part: &[Sample]) -> Vec<Sample> {
    let mut segments: Vec<Vec<Sample>> = part.chunk_by(|a, b| a.0 == b.0).map(<[Sample]>::to_vec).collect();
    let mut rng = seed.derive(3).rng();
    rng.shuffle(&mut segments);
    let window = (spec.window_bytes / u64::from(spec.lanes)).max(1);
    let block = spec.block_bytes.min(window);
    let mut groups: Vec<Vec<Vec<Sample>>> = Vec::new();
    let first = &sizes[segments[0][0].0 as usize];
    if first.cut == Cut::Anywhere {
        let share = lane.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lead = (u128::from(per(first, window)) * u128::from(share)) >> 64;
        let lead = (lead as usize).min(segments[0].len());
        if lead > 0 {
            let whole = segments.remove(0);
            let start = rng.below(whole.len() as u64) as usize;
            let turned: Vec<usize> = (start..start + lead).map(|index| index % whole.len()).collect();
            let picked: Vec<Sample> = turned.iter().map(|index| whole[*index]).collect();
            // Where the beginning follows on the end, a new segment begins.
            let neighbours = |a: &Sample, b: &Sample| a.1 + 1 == b.1;
            groups.push(picked.chunk_by(neighbours).map(<[Sample]>::to_vec).collect());
            let rest: Vec<Sample> = whole
                .into_iter()
                .filter(|sample| !picked.contains(sample))
                .collect();
            segments.splice(..0, rest.chunk_by(neighbours).map(<[Sample]>::to_vec));
            segments.retain(|segment| !segment.is_empty());
        }
    }
    groups.extend(segments.chunks(spec.spread as usize).map(<[_]>::to_vec));
    let mut order = Vec::new();
    for (index, group) in groups.iter().enumerate() {
        let mut blocks: Vec<Vec<Sample>> = group
            .iter()
            .flat_map(|segment| cut(&sizes[segment[0].0 as usize], segment, block))
            .collect();
        seed.derive(4).derive(index as u64).rng().shuffle(&mut blocks);
        let mut blocks = VecDeque::from(blocks);
        while let Some(first) = blocks.pop_front() {
            let bytes = |block: &[Sample]| {
                let size = &sizes[block[0].0 as usize];
                size.bytes * block.len() as u64 / size.samples
            };
            let mut filled = bytes(&first);
            let mut samples = first;
            while blocks.front().is_some_and(|next| filled + bytes(next) <= window) {
                let next = blocks.pop_front().unwrap();
                filled += bytes(&next);
                samples.extend(next);
            }
            seed.derive(5)
                .derive(order.len() as u64)
                .rng()
                .shuffle(&mut samples);
            order.extend(samples);
        }
    }
    order
}

/// Samples of a shard in so many bytes.
fn per(size: &ShardSize, bytes: u64) -> u64 {
    (bytes * size.samples / size.bytes.max(size.samples)).max(1)
}

fn cut(size: &ShardSize, segment: &[Sample], block_bytes: u64) -> Vec<Vec<Sample>> {
    let per = per(size, block_bytes) as usize;
    match &size.cut {
        Cut::Whole => vec![segment.to_vec()],
        Cut::Anywhere => {
            let parts = segment.len().div_ceil(per);
            let bound = |part| segment.len() * part / parts;
            (0..parts)
                .map(|part| segment[bound(part)..bound(part + 1)].to_vec())
                .collect()
        }
        Cut::Groups(groups) => {
            // Which run of joined groups each sample of the shard belongs to.
            let mut runs = Vec::new();
            let (mut run, mut filled) = (0, 0);
            for (index, group) in groups.iter().enumerate() {
                if index > 0 && filled + *group as usize > per {
                    run += 1;
                    filled = 0;
                }
                filled += *group as usize;
                runs.extend(vec![run; *group as usize]);
            }
            segment
                .chunk_by(|a, b| runs[a.1 as usize] == runs[b.1 as usize])
                .map(<[Sample]>::to_vec)
                .collect()
        }
    }
}

/// Deal global batches from the lanes, group by group, as one deals cards.
fn deal(lanes: &[Vec<Sample>], spec: &OrderSpec) -> Vec<Vec<Sample>> {
    let batch = spec.batch_global() as usize;
    let groups = (1..=lanes.len())
        .filter(|count| batch.is_multiple_of(*count) && lanes.len().is_multiple_of(*count))
        .max()
        .unwrap();
    let shortest = lanes.iter().map(Vec::len).min().unwrap();
    let hands: Vec<Vec<Sample>> = lanes
        .chunks(lanes.len() / groups)
        .map(|members| {
            let longest = members.iter().map(Vec::len).max().unwrap();
            let rounds = if spec.last == Last::Drop {
                shortest
            } else {
                longest
            };
            (0..rounds)
                .flat_map(|round| members.iter().filter_map(move |lane| lane.get(round).copied()))
                .collect()
        })
        .collect();
    let step = batch / groups;
    let longest = hands.iter().map(Vec::len).max().unwrap();
    let count = match spec.last {
        Last::Drop => longest / step,
        Last::Short | Last::Wrap => longest.div_ceil(step),
    };
    let dealt = |batch: usize| {
        let taken = |hand: &Vec<Sample>| -> Vec<Sample> {
            match spec.last {
                Last::Wrap => hand
                    .iter()
                    .cycle()
                    .skip(batch * step)
                    .take(step)
                    .copied()
                    .collect(),
                Last::Drop | Last::Short => hand.iter().skip(batch * step).take(step).copied().collect(),
            }
        };
        hands.iter().flat_map(taken).collect()
    };
    (0..count).map(dealt).collect()
}
