//! Mixtures: shares after every sample, lanes, worlds, resuming.

use std::collections::BTreeMap;

use forebay_core::ErrorKind;
use proptest::prelude::*;

use super::*;

fn spec(rank: u32, world: u32) -> OrderSpec {
    OrderSpec {
        shuffle: true,
        lanes: 8,
        batch_size: 16 / u64::from(world),
        rank,
        world,
        ..OrderSpec::default()
    }
}

fn mixture(weights: &[f64], rank: u32, world: u32) -> Mixture {
    let source = |(index, weight): (usize, &f64)| Source {
        order: Order::new(plain(3 + index, 17 + index as u64, 100), spec(rank, world)).unwrap(),
        weight: *weight,
    };
    Mixture::new(weights.iter().enumerate().map(source).collect(), Seed(3)).unwrap()
}

/// Batches as (source, epoch, sample).
fn batches(mixture: &Mixture, batches: std::ops::Range<u64>) -> Vec<Vec<(u32, u64, Sample)>> {
    let first = |lane| mixture.position_at(lane, batches.start);
    let mut lanes: BTreeMap<u32, MixLane> = mixture
        .lanes()
        .map(|lane| (lane, mixture.lane(lane, first(lane)).unwrap()))
        .collect();
    let mut read: BTreeMap<(u32, u64, u32), Vec<Sample>> = BTreeMap::new();
    let mut take = |slot: Slot| {
        let lane = lanes.get_mut(&slot.lane).unwrap();
        assert_eq!(lane.next_position(), slot.position);
        let draw = lane.next().unwrap();
        let samples = read
            .entry((draw.source, draw.epoch, slot.lane))
            .or_insert_with(|| {
                let plan = mixture.lane_of(draw.source, draw.epoch, slot.lane).unwrap();
                lane_samples(&plan, 0)
            });
        (draw.source, draw.epoch, samples[draw.position as usize])
    };
    batches
        .map(|batch| mixture.batch(batch).map(&mut take).collect())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn shares_are_kept_after_every_sample(weights in prop::collection::vec(1e-3_f64..1.0, 1..9)) {
        let mixture = mixture(&weights, 0, 1);
        let rounded = mixture.weights();
        let total: f64 = weights.iter().sum();
        let mut counts = vec![0_u64; weights.len()];
        for (n, source) in mixture.pattern().iter().enumerate() {
            counts[usize::from(*source)] += 1;
            for (count, weight) in counts.iter().zip(&rounded) {
                prop_assert!((*count as f64 - (n + 1) as f64 * weight).abs() < 1.0);
            }
        }
        for (weight, rounded) in weights.iter().zip(&rounded) {
            prop_assert!((weight / total - rounded).abs() < 1.0 / PERIOD_MIN as f64);
        }
    }
}

#[test]
fn rounds_keep_shares_and_lanes_draw_alike() {
    let weights = [0.5, 0.3, 0.125, 0.075];
    let mixture = mixture(&weights, 0, 1);
    let period = mixture.pattern().len() as u64;
    let mut lanes: Vec<MixLane> = (0..8).map(|lane| mixture.lane(lane, 0).unwrap()).collect();
    for round in 1..=2000_u64 {
        for lane in &mut lanes {
            lane.next();
        }
        for (source, weight) in mixture.weights().iter().enumerate() {
            let taken: u64 = lanes.iter().map(|lane| lane.taken()[source]).sum();
            assert!((taken as f64 - (round * 8) as f64 * weight).abs() < 1.0);
        }
    }
    // A source that has an eighth would, without the turning, be drawn from by one lane of the eight.
    let eighth: Vec<u64> = lanes.iter().map(|lane| lane.taken()[2]).collect();
    assert!(
        eighth.iter().all(|taken| (200..=300).contains(taken)),
        "{eighth:?}"
    );
    let whole: Vec<Vec<u64>> = (0..8)
        .map(|lane| mixture.lane(lane, period).unwrap().taken().to_vec())
        .collect();
    assert!(whole.iter().all(|taken| *taken == whole[0]), "{whole:?}");
    assert_eq!(whole[0].iter().sum::<u64>(), period);
}

#[test]
fn positions_are_found_without_going_there() {
    let mixture = mixture(&[3.0, 1.0, 1.0], 0, 1);
    let period = mixture.pattern().len() as u64;
    for lane in [0, 5] {
        let mut walked = mixture.lane(lane, period - 50).unwrap();
        for position in period - 50..period + 50 {
            let found = mixture.lane(lane, position).unwrap();
            assert_eq!((found.next_position(), found.taken()), (position, walked.taken()));
            assert_eq!(found.clone().next(), walked.next());
        }
    }
}

#[test]
fn worlds_and_resuming_change_nothing() {
    let weights = [0.6, 0.25, 0.15];
    let through = batches(&mixture(&weights, 0, 1), 0..40);
    assert!(through.iter().flatten().any(|(_, epoch, _)| *epoch > 3));
    let position = mixture(&weights, 0, 1).position(13);
    let text = position.to_json().unwrap();
    let position = Position::from_json(&text).unwrap();
    for world in [1, 2, 4, 8] {
        let mut whole = vec![Vec::new(); 27];
        for rank in 0..world {
            let (mixture, next) = mixture(&weights, rank, world).resume(&position).unwrap();
            assert_eq!((next, mixture.position(next)), (13, position.clone()));
            for (whole, part) in whole.iter_mut().zip(batches(&mixture, 13..40)) {
                whole.extend(part);
            }
        }
        assert_eq!(whole, through[13..]);
    }
    // Within an epoch of a source and a lane, a sample comes once.
    let mut seen = std::collections::BTreeSet::new();
    assert!(through.into_iter().flatten().all(|draw| seen.insert(draw)));
}

#[test]
fn what_does_not_fit_is_refused() {
    let position = mixture(&[0.5, 0.5], 0, 1).position(1);
    let refused = |mixture: Mixture| {
        let error = mixture.resume(&position).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition);
        error.message().to_owned()
    };
    assert!(refused(mixture(&[0.5, 0.4], 0, 1)).contains("data set 0, its filter, its weight"));
    assert!(refused(mixture(&[0.5, 0.5, 0.5], 0, 1)).contains("another number of data sets"));
    let order = Order::new(plain(3, 17, 100), spec(0, 1)).unwrap();
    assert!(
        order
            .resume(&position)
            .unwrap_err()
            .message()
            .contains("of a mixture")
    );
    let alone = order.epoch(0).position(1);
    let error = mixture(&[0.5, 0.5], 0, 1).resume(&alone).unwrap_err();
    assert!(error.message().contains("of one data set"));
    let source = |spec: OrderSpec, weight| Source {
        order: Order::new(plain(3, 17, 100), spec).unwrap(),
        weight,
    };
    let unshuffled = OrderSpec {
        shuffle: false,
        ..spec(0, 1)
    };
    let lanes = OrderSpec {
        lanes: 4,
        ..spec(0, 1)
    };
    for sources in [
        vec![],
        vec![source(unshuffled, 1.0)],
        vec![source(spec(0, 1), 1.0), source(lanes, 1.0)],
        vec![source(spec(0, 1), 0.0)],
        vec![source(spec(0, 1), f64::NAN)],
        vec![source(spec(0, 1), 1.0); SOURCES_MAX + 1],
    ] {
        assert!(Mixture::new(sources, Seed(0)).is_err());
    }
    let tiny = vec![
        source(spec(0, 1), f64::MAX),
        source(spec(0, 1), f64::MAX),
        source(spec(0, 1), 1e-300),
    ];
    let shares = Mixture::new(tiny, Seed(0)).unwrap().weights();
    assert!(
        shares[2] > 0.0 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-12,
        "{shares:?}"
    );
}
