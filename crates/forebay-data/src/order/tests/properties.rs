//! What holds for every data set and every setting.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

pub(super) fn cuts() -> impl Strategy<Value = (Vec<u64>, u8)> {
    (prop::collection::vec(0_u64..25, 0..5), 0_u8..3)
}

pub(super) fn shards() -> impl Strategy<Value = Shards> {
    let size = (cuts(), 0_u64..60).prop_map(|((groups, kind), sample_bytes)| {
        let samples = groups.iter().sum();
        ShardSize {
            samples,
            bytes: samples * sample_bytes,
            cut: match kind {
                0 => Cut::Anywhere,
                1 => Cut::Groups(groups),
                _ => Cut::Whole,
            },
        }
    });
    prop::collection::vec(size, 1..14).prop_map(|sizes| Shards::new(sizes).unwrap())
}

pub(super) fn specs() -> impl Strategy<Value = OrderSpec> {
    let lanes = prop::sample::select(vec![1_u32, 2, 3, 4, 6, 8, 12, 16]);
    let last = prop::sample::select(vec![Last::Drop, Last::Short, Last::Wrap]);
    let limit = prop::option::weighted(0.3, 1_u64..200);
    let sizes = (1_u64..600, 1_u64..6000, 1_u32..5);
    (any::<u64>(), any::<bool>(), lanes, 1_u64..40, last, limit, sizes).prop_map(
        |(seed, shuffle, lanes, batch_size, last, limit, (block_bytes, window_bytes, spread))| OrderSpec {
            seed: Seed(seed),
            shuffle,
            lanes,
            batch_size,
            block_bytes,
            window_bytes,
            spread,
            last,
            limit,
            ..OrderSpec::default()
        },
    )
}

fn counts(batches: &[Vec<Sample>]) -> BTreeMap<Sample, usize> {
    let mut counts = BTreeMap::new();
    for sample in batches.iter().flatten() {
        *counts.entry(*sample).or_default() += 1;
    }
    counts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn global_batches_are_those_of_the_model_in_every_world(shards in shards(), spec in specs(), epoch in 0_u64..3) {
        prop_assume!(Order::new(shards.clone(), spec.clone()).is_ok());
        let model = model::batches(&shards, &spec, epoch);
        for world in worlds(&spec) {
            prop_assert_eq!(&global_batches(&shards, &spec, world, epoch), &model, "world {}", world);
        }
    }

    #[test]
    fn shards_are_read_by_one_rank_but_at_the_borders_of_their_lanes(shards in shards(), spec in specs()) {
        let spec = OrderSpec { shuffle: true, last: Last::Drop, limit: None, ..spec };
        prop_assume!(Order::new(shards.clone(), spec.clone()).is_ok());
        let touched = |rank: u32, world: u32| -> BTreeSet<u32> {
            let plan = Order::new(shards.clone(), respec(&spec, rank, world)).unwrap().epoch(0);
            let lanes = plan.lanes().flat_map(|lane| lane_samples(&plan.lane(lane).unwrap(), 0));
            lanes.map(|(shard, _)| shard).collect()
        };
        let alone = touched(0, 1).len();
        for world in worlds(&spec) {
            let reads: usize = (0..world).map(|rank| touched(rank, world).len()).sum();
            prop_assert!(reads < alone + world as usize, "{} reads of {} shards by {} ranks", reads, alone, world);
        }
    }

    #[test]
    fn samples_come_once_and_ranks_get_alike(shards in shards(), spec in specs()) {
        let Ok(order) = Order::new(shards.clone(), spec.clone()) else { return Ok(()) };
        let samples = order.inner.samples;
        let batches = global_batches(&shards, &spec, 1, 0);
        let counts = counts(&batches);
        let given: usize = counts.values().sum();
        prop_assert_eq!(given as u64, order.epoch(0).samples());
        match spec.last {
            Last::Drop => {
                prop_assert!(counts.values().all(|count| *count == 1));
                let lanes = if spec.shuffle { u64::from(spec.lanes) } else { 1 };
                let left = samples - given as u64;
                prop_assert!(left < spec.batch_global() + lanes, "{} left out", left);
            }
            Last::Short => {
                prop_assert!(counts.values().all(|count| *count == 1));
                prop_assert_eq!(given as u64, samples);
            }
            Last::Wrap => {
                prop_assert_eq!(counts.len() as u64, samples);
                prop_assert!(batches.iter().all(|batch| batch.len() as u64 == spec.batch_global()));
            }
        }
        for world in worlds(&spec) {
            let plans: Vec<_> = (0..world)
                .map(|rank| Order::new(shards.clone(), respec(&spec, rank, world)).unwrap().epoch(0))
                .collect();
            for batch in 0..plans[0].batches() {
                let lens: BTreeSet<u64> = plans.iter().map(|plan| plan.batch_len(batch)).collect();
                let (min, max) = (*lens.first().unwrap(), *lens.last().unwrap());
                let full = batch + 1 < plans[0].batches() || spec.last != Last::Short;
                prop_assert!(max - min <= u64::from(!full), "batch {} has {:?}", batch, lens);
                prop_assert!(!full || max == spec.batch_global() / u64::from(world));
            }
            prop_assert!(plans.iter().all(|plan| plan.batches() == plans[0].batches()));
        }
    }

    #[test]
    fn lanes_answer_alike_from_everywhere(shards in shards(), spec in specs(), world in 0_usize..8, rank in any::<u32>()) {
        prop_assume!(Order::new(shards.clone(), spec.clone()).is_ok());
        let worlds = worlds(&spec);
        let world = worlds[world % worlds.len()];
        let spec = respec(&spec, rank % world, world);
        let plan = Order::new(shards.clone(), spec).unwrap().epoch(1);
        let mut standing: BTreeMap<u32, u64> = plan.lanes().map(|lane| (lane, 0)).collect();
        for batch in 0..plan.batches() {
            for (lane, position) in &standing {
                prop_assert_eq!(plan.position_at(*lane, batch), *position);
            }
            prop_assert_eq!(plan.batch(batch).count() as u64, plan.batch_len(batch));
            for slot in plan.batch(batch) {
                prop_assert_eq!(standing[&slot.lane], slot.position, "positions only grow, by one");
                prop_assert_eq!(plan.batch_of(slot.lane, slot.position), batch);
                *standing.get_mut(&slot.lane).unwrap() += 1;
            }
        }
        prop_assert_eq!(plan.batch(plan.batches()).count(), 0);
        for (lane, used) in standing {
            let lane = plan.lane(lane).unwrap();
            prop_assert_eq!(lane.len(), used);
            prop_assert!(lane.window_at(used).is_none());
            let windows: Vec<Window> = lane.windows_from(0).collect();
            let mut end = 0;
            for window in &windows {
                prop_assert_eq!(window.start, end);
                prop_assert_eq!(window.order().len() as u64, window.len());
                end = window.end();
                for position in window.start..window.end().min(used) {
                    let found = lane.window_at(position);
                    prop_assert_eq!(found.as_ref(), Some(window));
                }
            }
            prop_assert!(end >= used);
        }
    }

    #[test]
    fn blocks_keep_to_their_bounds(shards in shards(), spec in specs()) {
        let spec = OrderSpec { shuffle: true, ..spec };
        let Ok(order) = Order::new(shards.clone(), spec.clone()) else { return Ok(()) };
        let plan = order.epoch(0);
        let window_bytes = (spec.window_bytes / u64::from(spec.lanes)).max(1);
        for lane in plan.lanes() {
            for window in plan.lane(lane).unwrap().windows_from(0) {
                let bytes = |block: &BlockRef| shards.sizes()[block.shard as usize].bytes_of(block.len());
                let filled: u64 = window.blocks.iter().map(bytes).sum();
                prop_assert!(filled <= window_bytes || window.blocks.len() == 1);
                for block in &window.blocks {
                    let size = &shards.sizes()[block.shard as usize];
                    prop_assert!(!block.is_empty() && block.samples.end <= size.samples);
                    if size.cut == Cut::Anywhere {
                        prop_assert!(bytes(block) <= spec.block_bytes.min(window_bytes) || block.len() == 1);
                    }
                }
            }
        }
    }
}

#[test]
fn epochs_seeds_and_lanes_give_other_orders() {
    let shards = plain(20, 50, 100);
    let spec = OrderSpec {
        shuffle: true,
        lanes: 8,
        batch_size: 16,
        block_bytes: 1000,
        window_bytes: 16_000,
        ..OrderSpec::default()
    };
    let first = global_batches(&shards, &spec, 1, 0);
    assert_ne!(first, global_batches(&shards, &spec, 1, 1));
    let seeded = OrderSpec {
        seed: Seed(1),
        ..spec.clone()
    };
    assert_ne!(first, global_batches(&shards, &seeded, 1, 0));
    // The golden-ratio stagger: lanes do not begin their second windows at the same position.
    let plan = Order::new(shards, spec).unwrap().epoch(0);
    let second = |lane| plan.lane(lane).unwrap().windows_from(0).nth(1).unwrap().start;
    let begins: BTreeSet<u64> = plan.lanes().map(second).collect();
    assert!(begins.len() > 4, "{begins:?}");
}

#[test]
fn a_lane_has_the_same_shards_in_every_epoch() {
    let shards = plain(40, 31, 100);
    let spec = OrderSpec {
        shuffle: true,
        lanes: 8,
        batch_size: 8,
        last: Last::Short,
        ..OrderSpec::default()
    };
    let order = Order::new(shards, spec).unwrap();
    for lane in 0..8 {
        let samples = |epoch| -> BTreeSet<Sample> {
            let lane = order.epoch(epoch).lane(lane).unwrap();
            lane_samples(&lane, 0).into_iter().collect()
        };
        assert_eq!(samples(0), samples(5));
    }
}

#[test]
fn what_is_dropped_differs_from_epoch_to_epoch() {
    let shards = plain(5, 21, 100);
    let spec = OrderSpec {
        shuffle: true,
        lanes: 8,
        batch_size: 8,
        ..OrderSpec::default()
    };
    let mut dropped = BTreeSet::new();
    for epoch in 0..40 {
        let counts = counts(&global_batches(&shards, &spec, 1, epoch));
        assert_eq!(counts.len(), 104);
        let all = (0..5).flat_map(|shard| (0..21).map(move |sample| (shard, sample)));
        dropped.extend(all.filter(|sample| !counts.contains_key(sample)));
    }
    assert!(dropped.len() >= 8, "{dropped:?}");
}
