//! Going on from a saved position.

use std::collections::BTreeSet;

use forebay_core::ErrorKind;
use proptest::prelude::*;

use super::properties::{shards, specs};
use super::*;

fn reopen(position: &Position) -> Position {
    let text = position.to_json().unwrap();
    assert!(text.len() < POSITION_BYTES_MAX, "{text}");
    Position::from_json(&text).unwrap()
}

/// What is left of an epoch after a position, in another world.
fn rest(shards: &Shards, spec: &OrderSpec, world: u32, position: &Position) -> Vec<Vec<Sample>> {
    let mut global: Vec<Vec<Sample>> = Vec::new();
    for rank in 0..world {
        let order = Order::new(shards.clone(), respec(spec, rank, world)).unwrap();
        let (plan, batch) = order.resume(position).unwrap();
        assert_eq!(plan.position(batch), *position);
        let batches = rank_batches(&plan, batch);
        global.resize(batches.len().max(global.len()), Vec::new());
        for (whole, part) in global.iter_mut().zip(batches) {
            whole.extend(part);
        }
    }
    global
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn from_every_position_and_in_every_world(shards in shards(), spec in specs(), epoch in 0_u64..3) {
        let Ok(order) = Order::new(shards.clone(), spec.clone()) else { return Ok(()) };
        let plan = order.epoch(epoch);
        let through = global_batches(&shards, &spec, 1, epoch);
        let worlds = worlds(&spec);
        for batch in 0..plan.batches() {
            let world = worlds[batch as usize % worlds.len()];
            let position = reopen(&plan.position(batch));
            prop_assert_eq!(&rest(&shards, &spec, world, &position)[..], &through[batch as usize..]);
        }
        let end = plan.position(plan.batches());
        prop_assert_eq!((end.epoch, end.samples), (epoch + 1, 0));
    }

    #[test]
    fn with_another_batch_where_it_is_allowed(shards in shards(), spec in specs(), batch in 1_u64..40, at in any::<u64>()) {
        let spec = OrderSpec { last: Last::Short, ..spec };
        let Ok(order) = Order::new(shards.clone(), spec.clone()) else { return Ok(()) };
        let plan = order.epoch(0);
        let done = at % plan.batches();
        let position = plan.position(done);
        let changed = OrderSpec { batch_size: batch, ..spec.clone() };
        let reopened = Order::new(shards.clone(), changed.clone()).unwrap();
        let lanes = u64::from(spec.lanes);
        let allowed = !spec.shuffle
            || position.samples.is_multiple_of(lanes)
            || turns::gcd(spec.batch_size, lanes) == turns::gcd(batch, lanes);
        let resumed = reopened.resume(&position);
        prop_assert_eq!(resumed.is_ok(), allowed);
        let Ok((plan, next)) = resumed else { return Ok(()) };
        // Nothing is lost and nothing comes twice, and a second change of mind in the middle is fine, too.
        let before = global_batches(&shards, &spec, 1, 0);
        let mut seen: Vec<Sample> = before[..done as usize].concat();
        for batch in next..plan.batches() {
            prop_assert!(plan.batch(batch).all(|slot| plan.batch_of(slot.lane, slot.position) == batch));
        }
        let after = rank_batches(&plan, next);
        let half = after.len() / 2;
        seen.extend(after[..half].concat());
        seen.extend(rest(&shards, &changed, 1, &plan.position(next + half as u64)).concat());
        let distinct: BTreeSet<Sample> = seen.iter().copied().collect();
        prop_assert_eq!(seen.len(), distinct.len());
        if half < after.len() {
            prop_assert_eq!(seen.len() as u64, order.inner.samples);
        }
    }

    #[test]
    fn no_text_panics(text in ".{0,200}", number in any::<u64>()) {
        let _ = Position::from_json(&text);
        let (shards, spec) = base();
        let order = Order::new(shards, spec).unwrap();
        let mut position = order.epoch(0).position(1);
        position.samples = number;
        position.batch = number % 100;
        let _ = order.resume(&position);
    }
}

fn base() -> (Shards, OrderSpec) {
    let spec = OrderSpec {
        shuffle: true,
        lanes: 8,
        batch_size: 12,
        ..OrderSpec::default()
    };
    (plain(10, 50, 100), spec)
}

#[test]
fn what_differs_is_named() {
    let (shards, spec) = base();
    let order = Order::new(shards.clone(), spec.clone()).unwrap();
    let position = order.epoch(2).position(3);
    assert_eq!((position.epoch, position.samples, position.batch), (2, 36, 12));
    let refused = |shards: Shards, change: fn(&mut OrderSpec)| {
        let mut spec = spec.clone();
        change(&mut spec);
        let error = Order::new(shards, spec).unwrap().resume(&position).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
        error.message().to_owned()
    };
    let lead = "the saved position does not fit this run: ";
    let same = shards.clone();
    assert_eq!(
        refused(same.clone(), |spec| (spec.seed, spec.lanes) = (Seed(9), 16)),
        format!("{lead}seed was 0 and is 9, lanes was 8 and is 16")
    );
    let last = refused(same.clone(), |spec| {
        (spec.last, spec.limit) = (Last::Wrap, Some(90));
    });
    assert_eq!(
        last,
        format!("{lead}last was drop and is wrap, limit was none and is 90")
    );
    assert!(refused(same.clone(), |spec| spec.shuffle = false).contains("shuffle was true and is false"));
    assert_eq!(
        refused(same.clone(), |spec| (spec.window_bytes, spec.block_bytes) =
            (3 << 20, 4097)),
        format!("{lead}window was 256MiB and is 3MiB, block_size was 2MiB and is 4097B")
    );
    for text in ["{}", "[]", "", "{\"version\":1}", "{\"version\":\"x\"}"] {
        let error = Position::from_json(text).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert_eq!(error.message(), "this is no state of a stream");
    }
    let other = format!("{lead}the data set is another one");
    assert_eq!(refused(plain(10, 51, 100), |_| ()), other);
    assert_eq!(refused(same.clone().with_identity(7), |_| ()), other);
    let text = position.to_json().unwrap();
    let newer = Position::from_json(&text.replace("\"version\":1", "\"version\":2")).unwrap_err();
    assert_eq!(newer.kind(), ErrorKind::Precondition);
    let shown = "it was saved with version 2 of the order, and this version of Forebay has version 1";
    assert_eq!(newer.message(), format!("{lead}{shown}"));
    assert!(
        newer.hint().unwrap().contains("version of Forebay that saved it"),
        "{newer}"
    );
    let mut made = position.clone();
    made.version = 7;
    let made = order.resume(&made).unwrap_err();
    assert!(made.message().contains("version 7"), "{made}");
}

#[test]
fn another_batch_gets_advice() {
    let (shards, spec) = base();
    let order = Order::new(shards.clone(), spec.clone()).unwrap();
    let position = order.epoch(0).position(3);
    let changed = OrderSpec {
        batch_size: 8,
        ..spec
    };
    let changed = Order::new(shards, changed).unwrap();
    let error = changed.resume(&position).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        error.hint(),
        Some("keep batch_size x world at 12, or save the position after a multiple of 2 batches of an epoch")
    );
    assert!(changed.resume(&order.epoch(0).position(4)).is_ok());
}

#[test]
fn hostile_positions_are_refused() {
    let (shards, spec) = base();
    let order = Order::new(shards, spec).unwrap();
    let good = order.epoch(0).position(1);
    let text = good.to_json().unwrap();
    assert_eq!(Position::from_json(&text).unwrap(), good);
    let long = format!("{text}{}", " ".repeat(POSITION_BYTES_MAX));
    for bad in [
        "",
        "{}",
        "[]",
        "null",
        &text[..text.len() - 1],
        &long,
        &text.replace("\"samples\":12", "\"samples\":-1"),
        &text.replace("\"samples\":12", "\"samples\":18446744073709551615"),
        &text.replace("\"batch\":12", "\"batch\":0"),
        &text.replace("\"spread\"", "\"spraed\""),
    ] {
        assert_eq!(
            Position::from_json(bad).unwrap_err().kind(),
            ErrorKind::Corrupt,
            "{bad}"
        );
    }
    for (samples, batch) in [(500, 12), (13, 12), (504, 12), (1 << 53, 12)] {
        let position = Position {
            samples,
            batch,
            ..good.clone()
        };
        let error = order.resume(&position).err().map(|error| error.kind());
        let expected = (samples != 500).then_some(ErrorKind::Corrupt);
        assert_eq!(error, expected, "{samples}");
    }
}

#[test]
fn the_longest_position_is_short_enough() {
    let (shards, spec) = base();
    let mut position = Order::new(shards, spec).unwrap().epoch(0).position(1);
    position.epoch = u64::MAX;
    position.samples = u64::MAX;
    position.batch = u64::MAX;
    position.data = u64::MAX;
    position.sources = Some("ffff".repeat(SOURCES_MAX));
    position.settings = Settings {
        seed: u64::MAX,
        shuffle: false,
        lanes: u32::MAX,
        window_bytes: u64::MAX,
        block_bytes: u64::MAX,
        spread: u32::MAX,
        last: Last::Short,
        limit: Some(u64::MAX),
    };
    let text = position.to_json().unwrap();
    assert!(text.len() < POSITION_BYTES_MAX, "{} bytes", text.len());
}
