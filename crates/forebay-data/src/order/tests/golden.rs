//! The algorithm is frozen: these orders are what version 1 gives. Whoever has to change them has made a new version.

use forebay_core::Crc32c;

use super::*;

fn mixed_cuts() -> Shards {
    let cut = |index: u64| match index % 3 {
        0 => Cut::Anywhere,
        1 => Cut::Groups(vec![20, 5, 0, 15 + index]),
        _ => Cut::Whole,
    };
    let size = |index: u64| ShardSize {
        samples: 40 + index,
        bytes: (40 + index) * (100 + 7 * index),
        cut: cut(index),
    };
    Shards::new((0..24).map(size).collect()).unwrap()
}

/// Checksum of all batches of an epoch.
fn checksum(shards: &Shards, spec: &OrderSpec, epoch: u64) -> u32 {
    let mut crc = Crc32c::default();
    for (shard, sample) in global_batches(shards, spec, 1, epoch).concat() {
        crc.update(&shard.to_le_bytes());
        crc.update(&sample.to_le_bytes());
    }
    crc.value()
}

#[test]
fn a_small_order_in_full() {
    let spec = OrderSpec {
        seed: Seed(7),
        shuffle: true,
        lanes: 2,
        batch_size: 6,
        block_bytes: 20,
        window_bytes: 80,
        spread: 2,
        ..OrderSpec::default()
    };
    let batches = global_batches(&plain(4, 6, 10), &spec, 1, 0);
    let golden: Vec<Vec<Sample>> = GOLDEN_SMALL.iter().map(|batch| batch.to_vec()).collect();
    assert_eq!(batches, golden);
}

const GOLDEN_SMALL: [[Sample; 6]; 4] = [
    [(2, 1), (2, 4), (2, 5), (0, 5), (0, 4), (0, 2)],
    [(2, 0), (1, 4), (1, 3), (3, 4), (0, 3), (3, 5)],
    [(1, 2), (1, 5), (2, 3), (3, 0), (0, 0), (0, 1)],
    [(1, 1), (2, 2), (1, 0), (3, 1), (3, 2), (3, 3)],
];

#[test]
fn large_orders_by_checksum() {
    let shards = mixed_cuts();
    let spec = OrderSpec {
        seed: Seed(42),
        shuffle: true,
        lanes: 12,
        batch_size: 20,
        block_bytes: 1000,
        window_bytes: 48_000,
        spread: 3,
        ..OrderSpec::default()
    };
    let with = |last, limit| OrderSpec {
        last,
        limit,
        ..spec.clone()
    };
    let found = [
        checksum(&shards, &spec, 0),
        checksum(&shards, &spec, 1),
        checksum(&shards, &with(Last::Short, None), 0),
        checksum(&shards, &with(Last::Wrap, Some(500)), 2),
    ];
    assert_eq!(found, [2_650_782_419, 342_523_919, 3_769_733_798, 2_522_242_541]);
    assert_eq!(shards.fingerprint(), 15_271_600_162_713_352_387);
}

#[test]
fn a_mixture_by_checksum() {
    let source = |weight| Source {
        order: Order::new(
            mixed_cuts(),
            OrderSpec {
                shuffle: true,
                lanes: 12,
                ..OrderSpec::default()
            },
        )
        .unwrap(),
        weight,
    };
    let mixture = Mixture::new(vec![source(0.7), source(0.2), source(0.1)], Seed(5)).unwrap();
    let mut crc = Crc32c::default();
    for lane in mixture.lanes() {
        for draw in mixture.lane(lane, 0).unwrap().take(1000) {
            crc.update(&draw.source.to_le_bytes());
            crc.update(&draw.position.to_le_bytes());
        }
    }
    assert_eq!(crc.value(), 3_344_299_093);
}
