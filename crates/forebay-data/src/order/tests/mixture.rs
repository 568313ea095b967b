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
                // Tijdeman's bound, which no rule beats.
                let bound = 1.0 - 1.0 / (2.0 * weights.len() as f64 - 2.0).max(1.0);
                prop_assert!((*count as f64 - (n + 1) as f64 * weight).abs() <= bound + 1e-6);
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

#[test]
fn positions_and_batches_of_lanes_agree() {
    for (rank, world) in [(0, 1), (1, 2), (6, 8)] {
        let mixture = mixture(&[0.6, 0.4], rank, world);
        for batch in [0, 1, 7, 1000, 1 << 40] {
            let slots: Vec<Slot> = mixture.batch(batch).collect();
            assert_eq!(slots.len() as u64, 16 / u64::from(world));
            for lane in mixture.lanes() {
                let positions = slots
                    .iter()
                    .filter(|slot| slot.lane == lane)
                    .map(|slot| slot.position);
                let positions: Vec<u64> = positions.collect();
                assert_eq!(positions.first(), Some(&mixture.position_at(lane, batch)));
                assert!(positions.iter().all(|at| mixture.batch_of(lane, *at) == batch));
                assert_eq!(
                    positions.last().map(|last| last + 1),
                    Some(mixture.position_at(lane, batch + 1))
                );
            }
        }
        let (lanes, other) = (mixture.lanes(), (mixture.lanes().end) % 8);
        assert_eq!(lanes.len() as u32, 8 / world);
        if world > 1 {
            assert!(mixture.lane(other, 0).is_err() && mixture.lane_of(0, 0, other).is_err());
        }
        assert!(mixture.lane_of(2, 0, lanes.start).is_err(), "no such data set");
    }
}

#[test]
fn another_batch_goes_on_with_the_same_samples() {
    let position = mixture(&[0.6, 0.4], 0, 1).position(3);
    let through = batches(&mixture(&[0.6, 0.4], 0, 1), 3..9);
    let double = OrderSpec {
        batch_size: 32,
        ..spec(0, 1)
    };
    let source = |(index, weight): (usize, f64)| Source {
        order: Order::new(plain(3 + index, 17 + index as u64, 100), double.clone()).unwrap(),
        weight,
    };
    let sources = [0.6, 0.4].into_iter().enumerate().map(source).collect();
    let (mixture, next) = Mixture::new(sources, Seed(3)).unwrap().resume(&position).unwrap();
    assert_eq!(next, 1, "48 samples are one batch of 32 and a half");
    assert_eq!(mixture.position(next).samples, position.samples);
    for (twice, two) in batches(&mixture, next..next + 3)
        .into_iter()
        .zip(through.chunks(2))
    {
        let (mut twice, mut two) = (twice, two.concat());
        twice.sort_unstable();
        two.sort_unstable();
        assert_eq!(twice, two);
    }
}

#[test]
fn everything_a_mixture_depends_on_is_in_its_position() {
    let with = |seed: u64, change: fn(&mut OrderSpec)| {
        let source = |changed: bool| {
            let mut spec = spec(0, 1);
            if changed {
                change(&mut spec);
            }
            Source {
                order: Order::new(plain(3, 17, 100), spec).unwrap(),
                weight: 1.0,
            }
        };
        Mixture::new(vec![source(false), source(true)], Seed(seed)).unwrap()
    };
    let position = with(3, |_| {}).position(2);
    assert_eq!(with(3, |_| {}).resume(&position).unwrap().1, 2);
    let refused = |mixture: Mixture| mixture.resume(&position).unwrap_err().message().to_owned();
    assert!(refused(with(4, |_| {})).contains("seed of the mixture"));
    let changes: [fn(&mut OrderSpec); 5] = [
        |spec| spec.seed = Seed(9),
        |spec| spec.block_bytes -= 1,
        |spec| spec.window_bytes -= 1,
        |spec| spec.spread += 1,
        |spec| spec.limit = Some(40),
    ];
    for change in changes {
        assert!(refused(with(3, change)).contains("data set 1"));
    }
    for spoil in [
        |position: &mut Position| position.epoch = 1,
        |position: &mut Position| position.samples = SAMPLES_MAX + 16,
        |position: &mut Position| position.samples += 1,
    ] {
        let mut spoiled = position.clone();
        spoil(&mut spoiled);
        let error = with(3, |_| {}).resume(&spoiled).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
}

#[test]
fn shares_are_rounded_to_the_period() {
    let shares = |weights: &[f64]| -> Vec<u64> {
        let mixture = mixture(weights, 0, 1);
        let period = mixture.pattern().len() as f64;
        mixture
            .weights()
            .iter()
            .map(|share| (share * period).round() as u64)
            .collect()
    };
    assert_eq!(shares(&[1.0, 1.0, 1.0]), [21_846, 21_845, 21_845]);
    assert_eq!(shares(&[1.0, 3.0]), [16_384, 49_152]);
    // The remainder goes where most of it was cut off.
    assert_eq!(shares(&[10.4, 20.7, 65_504.9]), [10, 21, 65_505]);
    // What is too little gets one, at the cost of the largest.
    assert_eq!(shares(&[1e-9, 1.0, 1e-9]), [1, 65_534, 1]);
}
