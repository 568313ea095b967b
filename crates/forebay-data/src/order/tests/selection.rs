//! Selections against plain lists.

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
        for selection in [made, sorted] {
            prop_assert_eq!(selection.count(), list.len() as u64);
            let got: Vec<u32> = (0..).map_while(|ordinal| selection.get(ordinal)).map(|number| number as u32).collect();
            prop_assert_eq!(&got, &list);
            for sample in 0..samples + 3 {
                let below = list.iter().filter(|number| u64::from(**number) < sample).count();
                prop_assert_eq!(selection.rank(sample), below as u64);
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
