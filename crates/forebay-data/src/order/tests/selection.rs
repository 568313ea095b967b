//! Selections against plain lists.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn a_selection_is_a_list(kept in prop::collection::vec(any::<bool>(), 0..2000), thin in 1_usize..80) {
        let kept: Vec<bool> = kept.iter().enumerate().map(|(index, keep)| *keep && index % thin == 0).collect();
        let list: Vec<u32> = (0..kept.len() as u32).filter(|index| kept[*index as usize]).collect();
        let samples = kept.len() as u64;
        let made = Selection::from_fn(samples, |index| kept[index as usize]).unwrap();
        let sorted = Selection::from_sorted(samples, list.clone()).unwrap();
        prop_assert_eq!(made.fingerprint(), sorted.fingerprint());
        let mut bytes = Vec::new();
        made.encode(&mut bytes);
        bytes.push(7);
        let mut rest = &bytes[..];
        let decoded = Selection::decode(samples, &mut rest);
        prop_assert_eq!(decoded.as_ref(), Some(&made));
        prop_assert_eq!(rest, &[7]);
        for len in 0..bytes.len() - 1 {
            prop_assert_eq!(Selection::decode(samples, &mut &bytes[..len]), None);
        }
        for selection in [made, sorted] {
            prop_assert_eq!(selection.count(), list.len() as u64);
            let got: Vec<u32> = (0..).map_while(|ordinal| selection.get(ordinal)).map(|number| number as u32).collect();
            prop_assert_eq!(&got, &list);
            for sample in 0..samples + 3 {
                let below = list.iter().filter(|number| u64::from(**number) < sample).count();
                prop_assert_eq!(selection.rank(sample), below as u64);
                let is_kept = list.binary_search(&(sample as u32)).is_ok();
                prop_assert_eq!(selection.contains(sample), is_kept);
            }
        }
    }
}

#[test]
fn sizes_shrink_with_their_groups() {
    let size = ShardSize {
        samples: 100,
        bytes: 1000,
        cut: Cut::Groups(vec![30, 30, 40]),
    };
    let selection = Selection::from_fn(100, |sample| sample % 2 == 0 && sample >= 40).unwrap();
    let shrunk = selection.size(&size).unwrap();
    assert_eq!((shrunk.samples, shrunk.bytes), (30, 300));
    assert_eq!(shrunk.cut, Cut::Groups(vec![0, 10, 20]));
    assert!(Selection::all(99).size(&size).is_err());
    assert_eq!(Selection::all(100).size(&size).unwrap(), size);
    // Counts are right for the order, too.
    assert_eq!(Shards::new(vec![shrunk]).unwrap().samples(), 30);
}

#[test]
fn lists_must_grow_and_stay_within() {
    assert!(Selection::from_sorted(10, vec![1, 1]).is_err());
    assert!(Selection::from_sorted(10, vec![2, 1]).is_err());
    assert!(Selection::from_sorted(10, vec![10]).is_err());
    assert!(Selection::from_sorted(1 << 40, vec![]).is_err());
    assert!(Selection::from_fn(1 << 40, |_| true).is_err());
    assert_eq!(Selection::from_sorted(10, vec![9]).unwrap().get(0), Some(9));
}

#[test]
fn bytes_that_are_no_selection_are_told() {
    let bytes = |kind: u32, items: &[u64]| {
        let head = [kind, items.len() as u32].map(u32::to_le_bytes).concat();
        [head, items.iter().flat_map(|item| item.to_le_bytes()).collect()].concat()
    };
    let decode = |samples, bytes: &[u8]| Selection::decode(samples, &mut &bytes[..]);
    assert_eq!(decode(65, &bytes(2, &[5, 1])).unwrap().count(), 3);
    assert_eq!(
        decode(65, &bytes(2, &[5, 2])),
        None,
        "a bit behind the last sample"
    );
    assert_eq!(decode(65, &bytes(2, &[5])), None);
    assert_eq!(decode(64, &bytes(2, &[5, 1])), None);
    assert_eq!(decode(64, &bytes(0, &[5])), None);
    assert_eq!(decode(64, &bytes(3, &[])), None);
    // Two numbers, of which the second is no larger.
    assert_eq!(decode(64, &[1u32, 2, 4, 4].map(u32::to_le_bytes).concat()), None);
    assert_eq!(decode(64, &[1u32, 2, 4, 64].map(u32::to_le_bytes).concat()), None);
    assert!(decode(64, &[1u32, 2, 4, 63].map(u32::to_le_bytes).concat()).is_some());
    assert_eq!(
        decode(64, &[1u32, u32::MAX, 4, 63].map(u32::to_le_bytes).concat()),
        None
    );
}

#[test]
fn a_selection_takes_little_more_than_a_bit_for_a_sample() {
    let every = |step: u64| Selection::from_fn(1 << 16, |sample| sample % step == 0).unwrap();
    assert_eq!(every(1), Selection::all(1 << 16));
    let all = Selection::all(10);
    assert!(all.contains(9) && !all.contains(10));
    assert_eq!((all.rank(9), all.rank(12), all.get(10)), (9, 10, None));
    let bits = (1 << 16) / 8;
    for (step, bytes) in [
        (1, 0),
        (2, bits + bits / 16),
        (31, bits + bits / 16),
        (32, 4 << 11),
        (1 << 12, 4 << 4),
    ] {
        assert_eq!(every(step).memory_bytes(), bytes, "{step}");
    }
}

#[test]
fn fingerprints_tell_selections_apart() {
    let mut prints = BTreeSet::new();
    for samples in [100, 128, 5000] {
        let none = Selection::from_fn(samples, |_| false).unwrap();
        assert!(prints.insert(none.fingerprint()));
        for kept in [1, 2, 3, 50, 51, 99] {
            let first = Selection::from_fn(samples, |sample| sample < kept).unwrap();
            let last = Selection::from_fn(samples, |sample| sample + kept >= samples).unwrap();
            for selection in [first, last] {
                assert!(prints.insert(selection.fingerprint()), "{samples} {kept}");
            }
        }
        assert!(prints.insert(Selection::all(samples).fingerprint()));
    }
}

#[test]
fn a_part_of_the_shards_keeps_their_identity_beside_its_own() {
    let shards = plain(2, 100, 10).with_identity(5);
    let half = |odd: u64| Selection::from_fn(100, |sample| sample % 2 == odd).unwrap();
    let select = |selections: [Selection; 2]| shards.clone().select(&selections.map(Arc::new)).unwrap();
    let (even, odd) = (select([half(0), half(0)]), select([half(1), half(1)]));
    let turned = select([half(0), half(1)]);
    assert_eq!((shards.selection(), even.samples()), (None, 100));
    assert_eq!(even.fingerprint(), shards.fingerprint());
    let prints: BTreeSet<_> = [&even, &odd, &turned, &select([half(1), half(0)])]
        .map(Shards::selection)
        .into();
    assert!(prints.len() == 4 && !prints.contains(&None));
    assert!(
        shards.clone().select(&[Arc::new(half(0))]).is_err(),
        "one for each"
    );
    let short = Arc::new(Selection::all(99));
    assert!(
        shards.select(&[Arc::clone(&short), short]).is_err(),
        "of the same size"
    );

    let order = |shards: &Shards| {
        let spec = OrderSpec {
            batch_size: 10,
            ..OrderSpec::default()
        };
        Order::new(shards.clone(), spec).unwrap()
    };
    let position = order(&even).epoch(0).position(3);
    assert_eq!(
        Position::from_json(&position.to_json().unwrap()).unwrap(),
        position
    );
    assert_eq!(order(&even).resume(&position).unwrap().1, 3);
    let refused = order(&odd).resume(&position).unwrap_err();
    assert!(
        refused.message().contains("filter keeps other samples"),
        "{refused}"
    );
}
