//! The same checkpoints in several stores: brought whole or not at all, kept by rules, opened from the nearest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ErrorKind, Key, Seed, Span};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{Context, Entry as Row, ListOptions, Proof, PutOptions, ReadOptions, Store, StoreExt};
use futures::StreamExt;

use super::support::*;
use crate::pages::Source;
use crate::tiers::drain_with;
use crate::*;

pub(super) fn silent(_: DrainEvent) {}

pub(super) fn now() -> DrainOptions {
    DrainOptions {
        stale_after: Duration::ZERO,
        ..DrainOptions::default()
    }
}

pub(super) async fn drain_all(from: &Arc<dyn Store>, to: &Arc<dyn Store>, context: &Context) -> DrainReport {
    drain(Arc::clone(from), Arc::clone(to), context, &now(), &silent)
        .await
        .unwrap()
}

pub(super) async fn objects(store: &Arc<dyn Store>, context: &Context) -> BTreeMap<String, Vec<u8>> {
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    let mut all = BTreeMap::new();
    while let Some(row) = rows.next().await {
        if let Row::Object(meta) = row.unwrap() {
            let span = Span::first(meta.size);
            let bytes = match meta.size {
                0 => Vec::new(),
                _ => store
                    .read(&meta.key, span, &ReadOptions::default(), context)
                    .await
                    .unwrap()
                    .0
                    .to_vec(),
            };
            all.insert(meta.key.to_string(), bytes);
        }
    }
    all
}

pub(super) async fn steps(store: &Arc<dyn Store>, context: &Context) -> Vec<u64> {
    let listed = list(Arc::clone(store), context).await.unwrap();
    listed.into_iter().map(|listed| listed.step).collect()
}

pub(super) fn changed(state: &State, by: u8) -> State {
    let mut state = state.clone();
    state.get_mut("embed").unwrap().bytes[5000] ^= by;
    state
}

pub(super) fn on(step: u64, base: u64, world: u32) -> SaveOptions {
    SaveOptions {
        base_step: Some(base),
        ..options(step, 1, world)
    }
}

#[tokio::test]
async fn what_is_drained_is_the_same_byte_for_byte() {
    let context = context();
    let (near, far) = (memory(), memory());
    let first = state(1);
    let second = changed(&first, 1);
    save(&near, &context, 1, 3, &first).await;
    save_with(&near, &context, on(2, 1, 3), &second, 0).await.unwrap();
    let report = drain_all(&near, &far, &context).await;
    assert_eq!(
        report.drained.iter().map(|one| one.step).collect::<Vec<_>>(),
        [2, 1],
        "newest first"
    );
    assert!(report.is_whole());
    assert!(report.drained.iter().all(|one| one.unreferenced_bytes == 0));
    assert!(report.ledger.verified_bytes > 0);
    assert_eq!(objects(&near, &context).await, objects(&far, &context).await);
    load_all(&open(&far, &context, 1).await, &first).await.unwrap();
    load_all(&open(&far, &context, 2).await, &second).await.unwrap();
    let again = drain_all(&near, &far, &context).await;
    assert_eq!((again.drained.len(), again.there), (0, vec![1, 2]));
    // What a newer step brought along is not sent again.
    let older = &report.drained[1];
    assert_eq!(older.objects_there, 3, "payloads: {older:?}");
}

#[tokio::test]
async fn compressed_checkpoints_are_drained_as_they_are() {
    let context = context();
    let (near, far) = (memory(), memory());
    let state = soft_state(1);
    for (step, compress) in [(1, Compress::Lz4), (2, Compress::Auto)] {
        let how = SaveOptions {
            compress,
            ..options(step, 1, 2)
        };
        save_with(&near, &context, how, &state, 0).await.unwrap();
    }
    let report = drain_all(&near, &far, &context).await;
    assert!(report.is_whole(), "{:?}", report.passed);
    assert_eq!(objects(&near, &context).await, objects(&far, &context).await);
    load_all(&open(&far, &context, 2).await, &state).await.unwrap();
}

#[tokio::test]
async fn payloads_outlive_the_step_that_wrote_them() {
    let context = context();
    let (near, far) = (memory(), memory());
    let first = state(1);
    let second = changed(&first, 1);
    save(&near, &context, 1, 2, &first).await;
    save_with(&near, &context, on(2, 1, 2), &second, 0).await.unwrap();
    let keep = GcOptions {
        keep_last: Some(1),
        ..GcOptions::default()
    };
    gc(Arc::clone(&near), &context, &keep).await.unwrap();
    let report = drain_all(&near, &far, &context).await;
    assert_eq!(report.drained.len(), 1);
    // The chunk that changed lies in the old payload, and nothing speaks for it any more.
    // Rank 0 has 48 of the 96 rows: 6,144 bytes, of which the second chunk changed.
    assert_eq!(report.drained[0].unreferenced_bytes, 6144 - u64::from(CHUNK));
    load_all(&open(&far, &context, 2).await, &second).await.unwrap();
    assert!(
        verify(&open(&far, &context, 2).await, &|_| {})
            .await
            .unwrap()
            .is_whole()
    );
}

/// Every object of a checkpoint, a byte of it changed: it is not brought, and the others are. With the checks off, it is.
#[tokio::test]
async fn what_is_damaged_never_arrives() {
    let context = context();
    let state = state(1);
    let near = memory();
    save(&near, &context, 1, 2, &state).await;
    save(&near, &context, 2, 2, &state).await;
    let whole = objects(&near, &context).await;
    let folder = format!("steps/{:020}/", 1);
    let mut tried = 0;
    for (name, bytes) in whole.iter().filter(|(name, _)| name.starts_with(&folder)) {
        for at in [0, bytes.len() / 2, bytes.len() - 1] {
            let far = memory();
            let mut bad = bytes.clone();
            bad[at] ^= 16;
            let key = Key::parse(name).unwrap();
            let put = |bytes: Vec<u8>| {
                let near = Arc::clone(&near);
                let key = key.clone();
                async move {
                    near.put_bytes(&key, &bytes, &PutOptions::default())
                        .await
                        .unwrap();
                }
            };
            put(bad).await;
            let report = drain_all(&near, &far, &context).await;
            assert_eq!(steps(&far, &context).await, [2], "{name} at {at}");
            assert!(!report.is_whole());
            assert_eq!(report.passed.len(), 1);
            let there = objects(&far, &context).await;
            assert!(!there.contains_key(name), "{name} at {at} arrived");
            let unchecked = |store: &Arc<dyn Store>| Source {
                store: Arc::clone(store),
                context: context.clone(),
                checks: false,
            };
            let (blind, careless) = (unchecked(&near), unchecked(&memory()));
            let drained = drain_with(&blind, &careless, &now(), &silent).await;
            if let Ok(report) = &drained
                && report.is_whole()
            {
                tried += 1;
            }
            put(bytes.clone()).await;
        }
    }
    println!("{tried} damages would have arrived without checks");
    assert!(tried >= 4, "{tried}");
}

#[tokio::test]
async fn a_drain_that_broke_off_goes_on() {
    let context = context();
    let state = state(1);
    let near = memory();
    save(&near, &context, 1, 3, &state).await;
    let (mut broken, mut sent) = (0, 0);
    let far = memory();
    // The store fails later and later, until it does not.
    for nth in 1..100 {
        let plan = FaultPlan::new(Seed(1))
            .with(Op::Part, When::Nth(nth), Fault::Fail(ErrorKind::Unavailable))
            .with(Op::Put, When::Nth(4), Fault::Fail(ErrorKind::Unavailable));
        let flaky: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&far), plan));
        match drain(Arc::clone(&near), flaky, &context, &now(), &silent).await {
            Ok(report) => {
                sent = report.drained[0].objects;
                assert!(report.drained[0].objects_there > 0, "{report:?}");
                break;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert_eq!(steps(&far, &context).await, [0; 0]);
                broken += 1;
            }
        }
    }
    println!("{broken} drains broke off; the last one sent {sent} objects");
    assert!(broken >= 2 && sent >= 1);
    load_all(&open(&far, &context, 1).await, &state).await.unwrap();
    assert_eq!(
        objects(&near, &context).await.keys().collect::<Vec<_>>(),
        objects(&far, &context).await.keys().collect::<Vec<_>>(),
        "no pin is left"
    );
}

#[tokio::test]
async fn only_what_the_destination_keeps_is_brought() {
    let context = context();
    let (near, far) = (memory(), memory());
    for step in 1..=6 {
        save(&near, &context, step * 10, 1, &state(step)).await;
    }
    let options = DrainOptions {
        retention: Retention {
            keep_last: Some(1),
            keep_every: Some(20),
            age_max: None,
        },
        ..now()
    };
    let go = || drain(Arc::clone(&near), Arc::clone(&far), &context, &options, &silent);
    go().await.unwrap();
    assert_eq!(steps(&far, &context).await, [20, 40, 60]);
    let one = DrainOptions {
        steps: Some(vec![30]),
        ..now()
    };
    drain(Arc::clone(&near), Arc::clone(&far), &context, &one, &silent)
        .await
        .unwrap();
    assert_eq!(steps(&far, &context).await, [20, 30, 40, 60]);
    let none = DrainOptions {
        steps: Some(vec![31]),
        ..now()
    };
    let error = drain(Arc::clone(&near), Arc::clone(&far), &context, &none, &silent)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let same = drain(Arc::clone(&near), Arc::clone(&near), &context, &one, &silent)
        .await
        .unwrap_err();
    assert_eq!(same.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn another_attempt_at_the_destination_is_in_the_way() {
    let context = context();
    let (near, far) = (memory(), memory());
    save(&near, &context, 1, 1, &state(1)).await;
    save_with(&far, &context, options(1, 9, 1), &state(2), 0)
        .await
        .unwrap();
    let report = drain_all(&near, &far, &context).await;
    assert!(!report.is_whole());
    assert!(
        report.passed[0].why.contains("another attempt"),
        "{:?}",
        report.passed
    );
    load_all(&open(&far, &context, 1).await, &state(2)).await.unwrap();
    let replace = DrainOptions {
        publish: Publish::Replace,
        ..now()
    };
    drain(Arc::clone(&near), Arc::clone(&far), &context, &replace, &silent)
        .await
        .unwrap();
    load_all(&open(&far, &context, 1).await, &state(1)).await.unwrap();
}

#[tokio::test]
async fn a_store_without_put_if_absent_needs_an_explicit_choice() {
    let context = context();
    let near = memory();
    save(&near, &context, 1, 2, &state(1)).await;
    let far: Arc<dyn Store> = Arc::new(Abilities {
        inner: memory(),
        put_if_absent: Proof::Refuted("8 of 8 writers won".to_owned()),
    });
    let error = drain(Arc::clone(&near), Arc::clone(&far), &context, &now(), &silent)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let alone = DrainOptions {
        publish: Publish::SingleWriter,
        ..now()
    };
    drain(Arc::clone(&near), Arc::clone(&far), &context, &alone, &silent)
        .await
        .unwrap();
    load_all(&open(&far, &context, 1).await, &state(1)).await.unwrap();
}

/// A drain that lives keeps a second one out; one that is dead is taken over, and finds that out should it wake up.
#[tokio::test(start_paused = true)]
async fn two_drains_do_not_do_the_same_work() {
    let context = context();
    let (near, far) = (memory(), memory());
    save(&near, &context, 1, 1, &state(1)).await;
    let source = |store: &Arc<dyn Store>| Source {
        store: Arc::clone(store),
        context: context.clone(),
        checks: true,
    };
    let stale = Duration::from_secs(90);
    let first = crate::tiers::Lease::take(&source(&near), &source(&far), stale)
        .await
        .unwrap();
    let patient = DrainOptions::default();
    let begun = tokio::time::Instant::now();
    let error = drain(Arc::clone(&near), Arc::clone(&far), &context, &patient, &silent)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "a renewal shows that it lives"
    );
    // Its task is gone without a word.
    first.die();
    drain(Arc::clone(&near), Arc::clone(&far), &context, &patient, &silent)
        .await
        .unwrap();
    assert!(begun.elapsed() > stale);
    let lost = first.check().await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Precondition, "{lost}");
    load_all(&open(&far, &context, 1).await, &state(1)).await.unwrap();
}

/// gc at the destination beside a drain that is under way: it removes nothing of what the drain brought or found.
#[tokio::test(flavor = "multi_thread")]
async fn gc_leaves_alone_what_is_being_brought() {
    let context = context();
    let (near, far) = (memory(), memory());
    let first = state(1);
    save(&near, &context, 1, 2, &first).await;
    drain_all(&near, &far, &context).await;
    save_with(&near, &context, on(2, 1, 2), &changed(&first, 1), 0)
        .await
        .unwrap();
    // Step 2 needs the payloads of step 1, which go with it unless the pin holds them.
    let during: Arc<std::sync::Mutex<Vec<Collected>>> = Arc::default();
    let tell = |event: DrainEvent| {
        if let DrainEvent::Sent(_) = event {
            let all = GcOptions {
                remove: vec![1],
                ..GcOptions::default()
            };
            let collecting = gc(Arc::clone(&far), &context, &all);
            let handle = tokio::runtime::Handle::current();
            let collected = tokio::task::block_in_place(|| handle.block_on(collecting));
            during.lock().unwrap().push(collected.unwrap());
        }
    };
    let report = drain(Arc::clone(&near), Arc::clone(&far), &context, &now(), &tell)
        .await
        .unwrap();
    assert_eq!(report.drained.len(), 1);
    let during = std::mem::take(&mut *during.lock().unwrap());
    assert!(!during.is_empty());
    assert!(during.iter().all(|one| one.objects == 0), "{during:?}");
    load_all(&open(&far, &context, 2).await, &changed(&first, 1))
        .await
        .unwrap();
}

pub(super) fn tier(store: &Arc<dyn Store>, name: &str, keep_last: Option<usize>) -> Tier {
    Tier {
        name: name.to_owned(),
        ..Tier::new(Arc::clone(store)).keeping(Retention {
            keep_last,
            ..Retention::default()
        })
    }
}

#[tokio::test]
async fn tiers_drain_outward_and_keep_by_their_own_rules() {
    let context = context();
    let (ram, disk, bucket) = (memory(), memory(), memory());
    let tiers = Tiers::new(
        vec![
            tier(&ram, "ram", Some(1)),
            tier(&disk, "disk", Some(2)),
            tier(&bucket, "bucket", None),
        ],
        &context,
    )
    .unwrap();
    for step in 1..=4 {
        save(&ram, &context, step, 1, &state(step)).await;
    }
    // Nothing is drained yet, so nothing goes that the next tier is to have.
    tiers.collect(false).await.unwrap();
    assert_eq!(steps(&ram, &context).await, [3, 4]);
    tiers.drain(&now(), &silent).await.unwrap();
    tiers.collect(false).await.unwrap();
    assert_eq!(steps(&ram, &context).await, [4]);
    assert_eq!(steps(&disk, &context).await, [3, 4]);
    assert_eq!(steps(&bucket, &context).await, [3, 4]);
    save(&ram, &context, 5, 1, &state(5)).await;
    let forced = tiers.collect(true).await.unwrap();
    assert_eq!(forced[0].steps, [4]);
    let one_place = Tiers::new(vec![tier(&ram, "a", None), tier(&ram, "b", None)], &context);
    assert_eq!(one_place.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn the_nearest_tier_that_holds_is_loaded_from() {
    let context = context();
    let (near, far) = (memory(), memory());
    let want_all = |state: &State| {
        let state = state.clone();
        move || {
            let wants = state.iter();
            Ok(wants
                .map(|(name, tensor)| want(name, tensor, &vec![0; tensor.shape.len()], &tensor.shape))
                .collect())
        }
    };
    let state = state(1);
    save(&near, &context, 1, 1, &state).await;
    let tiers = Tiers::new(vec![tier(&near, "near", None), tier(&far, "far", None)], &context).unwrap();
    tiers.drain(&now(), &silent).await.unwrap();
    let mut opened = tiers.open(None, true).await.unwrap();
    assert_eq!((opened.from().tier.as_str(), opened.from().number), ("near", 0));
    let loaded = opened.load(want_all(&state)).await.unwrap();
    assert_eq!(loaded.ledger.downgrades.len(), 0);
    // A byte of the payload is damaged.
    let payload = opened.checkpoint().manifest().payloads[0].key();
    let mut bytes = objects(&near, &context).await[payload.as_str()].clone();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    near.put_bytes(&payload, &bytes, &PutOptions::default())
        .await
        .unwrap();
    let mut opened = tiers.open(Some(1), false).await.unwrap();
    assert_eq!(opened.from().number, 0);
    let loaded = opened.load(want_all(&state)).await.unwrap();
    assert_eq!((opened.from().number, opened.from().tier.as_str()), (1, "far"));
    assert!(opened.from().not_from[0].why.contains("damaged"));
    assert!(loaded.ledger.downgrades[0].reason.contains("not from near"));
    for ((name, tensor), memory) in state.iter().zip(&loaded.memory) {
        assert_eq!(memory[..], tensor.bytes[..], "{name}");
    }
    let opened = tiers.open(None, true).await.unwrap();
    assert_eq!(opened.from().number, 1, "found out before it was taken");
    // What the caller asks for wrongly is no reason to go elsewhere.
    let mut opened = tiers.open(None, false).await.unwrap();
    let none = opened
        .load(|| Ok(vec![want("nobody", &state["step"], &[], &[])]))
        .await
        .unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
    assert_eq!(opened.from().number, 0);
    let nothing = tiers.open(Some(9), false).await.unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::NotFound, "{nothing}");
    // The near tier is gone altogether, as after a restart on another machine.
    let plan = FaultPlan::new(Seed(1)).with(Op::List, When::Always, Fault::Fail(ErrorKind::Unavailable));
    let lost: Arc<dyn Store> = Arc::new(Faulty::new(memory(), plan));
    let tiers = Tiers::new(vec![tier(&lost, "lost", None), tier(&far, "far", None)], &context).unwrap();
    let opened = tiers.open(None, false).await.unwrap();
    assert_eq!(opened.from().number, 1);
    assert_eq!(opened.from().not_from[0].tier, "lost");
}

#[tokio::test]
async fn a_drainer_brings_what_is_new_in_the_background() {
    let context = context();
    let (near, far) = (memory(), memory());
    let tiers = Tiers::new(
        vec![tier(&near, "near", Some(1)), tier(&far, "far", None)],
        &context,
    )
    .unwrap();
    let drainer = Drainer::start(
        tiers,
        DrainerOptions {
            drain: now(),
            every: Duration::from_secs(3600),
            collects: true,
        },
    );
    for step in 1..=3 {
        save(&near, &context, step, 1, &state(step)).await;
        drainer.settled().await.unwrap();
        assert_eq!(steps(&far, &context).await.last(), Some(&step));
        assert_eq!(steps(&near, &context).await, [step]);
    }
    save(&near, &context, 4, 1, &state(4)).await;
    let last = drainer.stop().await;
    assert_eq!(last.report.drained.len(), 4);
    assert_eq!(steps(&far, &context).await, [1, 2, 3, 4]);
}

/// One fault at every single call of a drain, at either end: the caller is told, or the checkpoint is there; what is visible is whole, and another drain ends the work.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_drain_may_fail() {
    let context = context();
    let (before, after) = (state(1), state(2));
    let near = memory();
    save(&near, &context, 1, 2, &before).await;
    save(&near, &context, 2, 2, &after).await;
    let (mut faults, mut survived) = (0, 0);
    for at_source in [true, false] {
        for op in Op::ALL {
            for fault in [
                Fault::Fail(ErrorKind::Unavailable),
                Fault::Fail(ErrorKind::Unauthenticated),
                Fault::Fail(ErrorKind::OutOfSpace),
                Fault::LoseReply(ErrorKind::Unavailable),
            ] {
                for nth in 1.. {
                    let far = memory();
                    let first = DrainOptions {
                        steps: Some(vec![1]),
                        ..now()
                    };
                    drain(Arc::clone(&near), Arc::clone(&far), &context, &first, &silent)
                        .await
                        .unwrap();
                    let plan = FaultPlan::new(Seed(1)).with(op, When::Nth(nth), fault);
                    let inner = if at_source { &near } else { &far };
                    let faulty = Faulty::new(Arc::clone(inner), plan);
                    let flaky: Arc<dyn Store> = Arc::new(faulty.clone());
                    let (from, to) = if at_source {
                        (flaky, Arc::clone(&far))
                    } else {
                        (Arc::clone(&near), flaky)
                    };
                    let drained = drain(from, to, &context, &now(), &silent).await;
                    if faulty.hits() == 0 {
                        break;
                    }
                    faults += 1;
                    load_all(&open(&far, &context, 1).await, &before).await.unwrap();
                    let there = Checkpoint::open(Arc::clone(&far), &context, 2).await;
                    match (&drained, there) {
                        (Ok(report), there) if report.is_whole() => {
                            survived += 1;
                            load_all(&there.unwrap(), &after).await.unwrap();
                        }
                        (_, Ok(there)) => load_all(&there, &after).await.unwrap(),
                        (_, Err(none)) => assert_eq!(none.kind(), ErrorKind::NotFound),
                    }
                    let again = drain_all(&near, &far, &context).await;
                    assert!(again.is_whole(), "{op:?} {fault:?} {nth}: {again:?}");
                    load_all(&open(&far, &context, 2).await, &after).await.unwrap();
                }
            }
        }
    }
    println!("{faults} faults, {survived} of them survived, 0 torn");
    assert!(faults > 100, "{faults}");
}
