//! Settings that cannot be, sets that are too small or too large, and a data set of one billion samples.

use forebay_core::ErrorKind;

use super::*;

fn shuffled(lanes: u32, batch_size: u64) -> OrderSpec {
    OrderSpec {
        shuffle: true,
        lanes,
        batch_size,
        ..OrderSpec::default()
    }
}

fn refuse(shards: Shards, spec: OrderSpec) -> Error {
    Order::new(shards, spec).unwrap_err()
}

#[test]
fn worlds_that_do_not_divide_the_lanes_get_advice() {
    let world = |world, lanes| {
        let spec = OrderSpec {
            world,
            ..shuffled(lanes, 4)
        };
        refuse(plain(10, 100, 10), spec)
    };
    let error = world(6, 64);
    assert_eq!(
        (error.kind(), error.field()),
        (ErrorKind::InvalidInput, Some("lanes"))
    );
    assert_eq!(error.message(), "64 lanes cannot be shared by 6 ranks");
    assert_eq!(
        error.hint(),
        Some("set lanes to 60 or 66 (that gives another order of samples), or use 4 or 8 ranks")
    );
    assert_eq!(
        world(100, 64).hint(),
        Some("set lanes to 100 (that gives another order of samples), or use 64 ranks")
    );
}

#[test]
fn tiny_sets_get_advice() {
    let error = refuse(plain(2, 10, 10), shuffled(64, 1));
    assert_eq!(error.message(), "20 samples are fewer than the 64 lanes");
    assert_eq!(error.hint(), Some("set lanes to 20 or a smaller multiple of 1"));
    let spec = OrderSpec {
        world: 32,
        ..shuffled(64, 1)
    };
    let error = refuse(plain(2, 10, 10), spec);
    assert!(error.hint().unwrap().contains("fewer samples than ranks"));
    let error = refuse(plain(2, 10, 10), shuffled(4, 21));
    assert_eq!(
        error.message(),
        "20 samples do not fill one batch of 21 over all ranks"
    );
    let short = OrderSpec {
        last: Last::Short,
        ..shuffled(4, 21)
    };
    assert_eq!(Order::new(plain(2, 10, 10), short).unwrap().epoch(0).batches(), 1);
    for empty in [Shards::new(Vec::new()).unwrap(), plain(3, 0, 0)] {
        assert_eq!(
            refuse(empty, shuffled(4, 1)).message(),
            "the data set has no samples"
        );
    }
}

#[test]
fn numbers_out_of_bounds_are_refused() {
    let size = |samples, cut| ShardSize {
        samples,
        bytes: u64::MAX,
        cut,
    };
    let kind = |sizes: Vec<ShardSize>| Shards::new(sizes).unwrap_err().kind();
    assert_eq!(kind(vec![size(u64::MAX, Cut::Whole)]), ErrorKind::LimitExceeded);
    let many = vec![size(u64::from(u32::MAX), Cut::Anywhere); 1 << 22];
    assert_eq!(kind(many), ErrorKind::LimitExceeded);
    assert_eq!(
        kind(vec![size(3, Cut::Groups(vec![1, 1]))]),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(vec![size(1, Cut::Groups(vec![u64::MAX, 2]))]),
        ErrorKind::InvalidInput
    );
    let changes: [fn(&mut OrderSpec); 10] = [
        |spec| spec.lanes = 0,
        |spec| spec.lanes = LANES_MAX + 1,
        |spec| spec.batch_size = 0,
        |spec| spec.batch_size = u64::MAX,
        |spec| spec.world = 0,
        |spec| spec.rank = 1,
        |spec| spec.block_bytes = 0,
        |spec| spec.window_bytes = 0,
        |spec| spec.spread = 0,
        |spec| spec.limit = Some(0),
    ];
    for change in changes {
        let mut spec = shuffled(8, 1);
        change(&mut spec);
        let kind = refuse(plain(10, 10, 10), spec.clone()).kind();
        assert!(
            matches!(kind, ErrorKind::InvalidInput | ErrorKind::LimitExceeded),
            "{spec:?}"
        );
    }
}

#[test]
fn the_largest_numbers_work() {
    let sizes = vec![
        ShardSize {
            samples: u64::from(u32::MAX),
            bytes: u64::MAX,
            cut: Cut::Anywhere
        };
        1 << 20
    ];
    let shards = Shards::new(sizes).unwrap();
    for shuffle in [false, true] {
        for last in [Last::Drop, Last::Short, Last::Wrap] {
            let spec = OrderSpec {
                shuffle,
                last,
                window_bytes: u64::MAX,
                block_bytes: 1 << 50,
                ..shuffled(LANES_MAX, 48)
            };
            let plan = Order::new(shards.clone(), spec).unwrap().epoch(u64::MAX);
            let batch = plan.batches() - 1;
            let slot = plan.batch(batch).last().unwrap();
            let lane = plan.lane(slot.lane).unwrap();
            assert_eq!(plan.batch_of(slot.lane, slot.position), batch);
            let window = lane.window_at(slot.position).unwrap();
            assert!((window.start..window.end()).contains(&slot.position));
        }
    }
}

#[test]
fn limits_are_exact_or_whole_rounds() {
    let given = |limit, shuffle| {
        let spec = OrderSpec {
            limit: Some(limit),
            last: Last::Short,
            shuffle,
            ..shuffled(8, 8)
        };
        Order::new(plain(5, 21, 10), spec).unwrap().epoch(0).samples()
    };
    for (limit, shuffled) in [(8, 8), (77, 77), (103, 103), (104, 104), (105, 105), (1000, 105)] {
        assert_eq!(given(limit, true), shuffled, "limit {limit}");
        assert_eq!(given(limit, false), limit.min(105));
    }
    // 106 samples are 13 rounds of 8 lanes and 2: a limit of 105 is in the last round.
    let spec = OrderSpec {
        limit: Some(105),
        last: Last::Short,
        ..shuffled(8, 8)
    };
    assert_eq!(
        Order::new(plain(2, 53, 10), spec).unwrap().epoch(0).samples(),
        104
    );
}

/// 15,000 shards of 66,667 samples of 4 KiB.
fn billion() -> Shards {
    plain(15_000, 66_667, 4096)
}

#[test]
fn a_billion_samples_need_lists_of_shards_and_of_blocks_only() {
    let shards = billion();
    assert!(shards.samples() > 1_000_000_000);
    for world in [1, 64] {
        let spec = OrderSpec {
            world,
            ..shuffled(64, 256)
        };
        let order = Order::new(shards.clone(), spec).unwrap();
        let plan = order.epoch(3);
        let (mut items, mut open) = (0, 0);
        for lane in plan.lanes() {
            let lane = plan.lane(lane).unwrap();
            items += lane.items();
            let mut windows = lane.windows_from(lane.len() / 2);
            let window = windows.next().unwrap();
            assert!(window.blocks.len() <= 2 && window.len() <= 1024);
            open += windows.items();
        }
        // A segment per shard and two for the cuts of a lane, a group for every 16 of them.
        let lanes = plan.lanes().len();
        assert!(
            items <= (15_000 / world as usize + 3 * lanes) * 17 / 16 + 2 * lanes,
            "{items}"
        );
        // A group: blocks of 16 shards of 261 MiB, and a window for every two of them.
        assert!(open <= lanes * 3 * 16 * 66, "{open}");
    }
}

/// Prints the time to start and to seek, and how much memory that takes: `cargo test --release -p forebay-data -- --ignored billion --nocapture`.
#[test]
#[ignore = "it measures"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn a_billion_samples_in_figures() {
    let memory = || -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    let before = memory();
    let start = std::time::Instant::now();
    let shards = billion();
    let order = Order::new(shards, shuffled(64, 256)).unwrap();
    let laid = start.elapsed();
    let plan = order.epoch(1);
    let mut windows: Vec<_> = plan
        .lanes()
        .map(|lane| plan.lane(lane).unwrap().windows_from(0))
        .collect();
    let picks: usize = windows
        .iter_mut()
        .map(|windows| windows.next().unwrap().order().len())
        .sum();
    let begun = start.elapsed();
    let again = std::time::Instant::now();
    let batch = plan.batches() / 3;
    for lane in plan.lanes() {
        let position = plan.position_at(lane, batch);
        plan.lane(lane).unwrap().window_at(position).unwrap();
    }
    println!(
        "lay out {laid:?}; first windows of 64 lanes ({picks} samples) after {begun:?}; seek of 64 lanes {:?}; {} KiB",
        again.elapsed(),
        memory() - before
    );
}
