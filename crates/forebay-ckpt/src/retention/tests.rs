//! The rules, one by one, and what holds for any list of steps.

use proptest::prelude::*;

use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn state(step: u64, age: Duration) -> StepState {
    StepState {
        step,
        committed: (1000 * DAY).saturating_sub(age),
        is_readable: true,
        is_drained: true,
    }
}

fn kept(retention: Retention, states: &[StepState]) -> Vec<u64> {
    let verdicts = retention.plan(states, 1000 * DAY);
    let pairs = states.iter().zip(verdicts);
    let kept = pairs.filter(|(_, verdict)| *verdict != Verdict::Remove);
    kept.map(|(state, _)| state.step).collect()
}

#[test]
fn rules_keep_and_what_none_keeps_goes() {
    let days: Vec<StepState> = (1..=6)
        .map(|step| state(step * 10, DAY * (6 - step as u32)))
        .collect();
    let none = Retention::default();
    assert_eq!(kept(none, &days), [10, 20, 30, 40, 50, 60]);
    let every_alone = Retention {
        keep_every: Some(20),
        ..none
    };
    assert_eq!(kept(every_alone, &days).len(), 6);
    let last = Retention {
        keep_last: Some(2),
        ..none
    };
    assert_eq!(kept(last, &days), [50, 60]);
    let milestones = Retention {
        keep_every: Some(20),
        ..last
    };
    assert_eq!(kept(milestones, &days), [20, 40, 50, 60]);
    let young = Retention {
        age_max: Some(DAY * 3),
        ..none
    };
    assert_eq!(kept(young, &days), [30, 40, 50, 60]);
    let both = Retention {
        keep_last: Some(5),
        ..young
    };
    assert_eq!(kept(both, &days), [20, 30, 40, 50, 60]);
    // However old, the newest stays.
    assert_eq!(kept(young, &[state(1, DAY * 90), state(2, DAY * 80)]), [2]);
}

#[test]
fn what_is_not_drained_stays_and_what_cannot_be_read_counts_for_nothing() {
    let one = Retention {
        keep_last: Some(1),
        ..Retention::default()
    };
    let mut states = [state(1, DAY), state(2, DAY), state(3, DAY)];
    states[0].is_drained = false;
    assert_eq!(kept(one, &states), [1, 3]);
    states[2].is_readable = false;
    assert_eq!(kept(one, &states), [1, 2, 3]);
    let verdicts = one.plan(&states, 1000 * DAY);
    assert_eq!(
        verdicts,
        [
            Verdict::Keep(Kept::NotDrained),
            Verdict::Keep(Kept::Newest),
            Verdict::Keep(Kept::Unreadable)
        ]
    );
}

/// Who goes back to an earlier step and saves from there keeps what it saves: not what was saved before under higher numbers.
#[test]
fn the_last_are_those_committed_last() {
    let retention = Retention {
        keep_last: Some(3),
        keep_every: Some(1000),
        age_max: None,
    };
    let before = [1000, 2000, 2800, 2900, 3000];
    let before = (0..)
        .zip(before)
        .map(|(hour, step)| state(step, DAY / 24 * (24 - hour)));
    let mut states: Vec<StepState> = before.collect();
    states.push(state(1100, DAY / 3));
    assert_eq!(kept(retention, &states), [1000, 2000, 2900, 3000, 1100]);
    states.extend([state(1200, DAY / 4), state(1300, DAY / 5), state(1400, DAY / 6)]);
    assert_eq!(kept(retention, &states), [1000, 2000, 3000, 1200, 1300, 1400]);
}

fn any_state() -> impl Strategy<Value = StepState> {
    (0u64..60, 0u64..40, any::<bool>(), any::<bool>()).prop_map(|(step, days, is_readable, is_drained)| {
        StepState {
            is_readable,
            is_drained,
            ..state(step, DAY * days as u32)
        }
    })
}

fn any_retention() -> impl Strategy<Value = Retention> {
    let last = prop::option::of(0usize..6);
    let every = prop::option::of(0u64..9);
    let age = prop::option::of((0u32..40).prop_map(|days| DAY * days));
    (last, every, age).prop_map(|(keep_last, keep_every, age_max)| Retention {
        keep_last,
        keep_every,
        age_max,
    })
}

proptest! {
    #[test]
    fn nothing_goes_that_must_stay(
        retention in any_retention(),
        states in prop::collection::btree_map(0u64..60, any_state(), 0..30),
    ) {
        let states: Vec<StepState> = states
            .into_iter()
            .map(|(step, state)| StepState { step, ..state })
            .collect();
        let now = 1000 * DAY;
        let verdicts = retention.plan(&states, now);
        prop_assert_eq!(verdicts.len(), states.len());
        let order = |state: &StepState| (state.committed, state.step);
        let readable = || states.iter().filter(|state| state.is_readable).map(order);
        let newest = readable().max();
        let newer = |state: &StepState| readable().filter(|other| *other > order(state)).count();
        for (state, verdict) in states.iter().zip(&verdicts) {
            let must_stay = !state.is_readable
                || !state.is_drained
                || Some(order(state)) == newest
                || retention.keeps_all()
                || retention.keep_last.is_some_and(|last| newer(state) < last)
                || retention.keep_every.is_some_and(|every| every > 0 && state.step % every == 0)
                || retention.age_max.is_some_and(|age| now.saturating_sub(state.committed) <= age);
            prop_assert_eq!(*verdict == Verdict::Remove, !must_stay, "{:?}", state);
        }
        // What stays once stays again: a second look removes nothing more.
        let left: Vec<StepState> = states
            .iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| **verdict != Verdict::Remove)
            .map(|(state, _)| *state)
            .collect();
        prop_assert!(!retention.plan(&left, now).contains(&Verdict::Remove));
        // The order of the list does not matter.
        let mut turned = states.clone();
        turned.reverse();
        let mut again = retention.plan(&turned, now);
        again.reverse();
        prop_assert_eq!(again, verdicts);
    }
}
