//! Saved positions: no text panics, and what a run accepts is where it goes on.

#![no_main]

use std::sync::LazyLock;

use forebay_core::Seed;
use forebay_data::order::{Cut, Last, Mixture, Order, OrderSpec, Position, ShardSize, Shards, Source};
use libfuzzer_sys::fuzz_target;

/// Orders of all kinds of ends, shuffled and not.
static ORDERS: LazyLock<Vec<Order>> = LazyLock::new(|| {
    let mut orders = Vec::new();
    for shuffle in [false, true] {
        for last in [Last::Drop, Last::Short, Last::Wrap] {
            orders.push(order(shuffle, last));
        }
    }
    orders
});

static MIXTURE: LazyLock<Mixture> = LazyLock::new(|| {
    let source = |weight| Source {
        order: order(true, Last::Drop),
        weight,
    };
    Mixture::new(vec![source(0.7), source(0.3)], Seed(0)).expect("a mixture")
});

fn order(shuffle: bool, last: Last) -> Order {
    let size = ShardSize {
        samples: 101,
        bytes: 101_000,
        cut: Cut::Anywhere,
    };
    let spec = OrderSpec {
        shuffle,
        lanes: 8,
        batch_size: 12,
        last,
        ..OrderSpec::default()
    };
    let shards = Shards::new(vec![size; 5]).expect("shards");
    Order::new(shards, spec).expect("an order")
}

/// Settings and fingerprints of a run, with the numbers of the text: else nothing random would ever be accepted.
fn fitted(position: &Position, own: Position) -> Position {
    Position {
        epoch: position.epoch,
        samples: position.samples,
        batch: position.batch,
        ..own
    }
}

fuzz_target!(|text: &str| {
    let Ok(position) = Position::from_json(text) else {
        return;
    };
    let again = position.to_json().expect("what was read can be written");
    if let Ok(again) = Position::from_json(&again) {
        assert_eq!(again, position);
    }
    for order in ORDERS.iter() {
        let _ = order.resume(&position);
        let fitted = fitted(&position, order.epoch(0).position(0));
        let Ok((plan, batch)) = order.resume(&fitted) else {
            continue;
        };
        if batch < plan.batches() {
            assert_eq!(plan.position(batch).samples, position.samples);
        }
        for slot in plan.batch(batch) {
            let lane = plan.lane(slot.lane).expect("a lane of this rank");
            assert!(lane.window_at(slot.position).is_some());
        }
    }
    let _ = MIXTURE.resume(&position);
    let fitted = fitted(&position, MIXTURE.position(0));
    if let Ok((mixture, batch)) = MIXTURE.resume(&fitted) {
        assert_eq!(mixture.position(batch).samples, position.samples);
        for lane in mixture.lanes() {
            let drawn = mixture.lane(lane, mixture.position_at(lane, batch));
            assert!(drawn.expect("a lane of this rank").next().is_some());
        }
    }
});
