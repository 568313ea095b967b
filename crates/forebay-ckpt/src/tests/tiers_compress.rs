//! Checkpoints that are compressed on their way to another store: raw near, compressed far, and the same as far as anybody who reads them can tell.

use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Seed};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{Context, Proof, PutOptions, Store, StoreExt};

use super::support::*;
use super::tiers::*;
use crate::pages::Source;
use crate::seal::tests::keys;
use crate::tiers::drain_with;
use crate::*;

fn packing(compress: Compress) -> DrainOptions {
    DrainOptions { compress, ..now() }
}

async fn drain_packed(from: &Arc<dyn Store>, to: &Arc<dyn Store>, context: &Context) -> DrainReport {
    let (from, to) = (Arc::clone(from), Arc::clone(to));
    drain(from, to, context, &packing(Compress::Auto), &silent)
        .await
        .unwrap()
}

fn soft_changed(state: &State, by: u8) -> State {
    let mut state = state.clone();
    state.get_mut("embed").unwrap().bytes[5000] ^= by;
    state
}

/// Every byte holds, and it has what was saved.
async fn is_whole(store: &Arc<dyn Store>, context: &Context, step: u64, state: &State) {
    let checkpoint = open(store, context, step).await;
    load_all(&checkpoint, state).await.unwrap();
    let report = verify(&checkpoint, &|_| {}).await.unwrap();
    assert!(report.is_whole(), "{:?}", report.damages);
}

#[tokio::test]
async fn what_is_raw_near_is_compressed_far_and_the_same() {
    let context = context();
    let mut state = soft_state(1);
    // Of chunks that are longer than what they are aligned to.
    let big = Tensor::new(Dtype::Bf16, &[256, 256], &mut Seed(2).rng());
    state.insert("big".to_owned(), soft(big));
    let how = || SaveOptions {
        chunk_bytes: 64 << 10,
        ..options(1, 1, 3)
    };
    for compress in [Compress::Auto, Compress::Lz4, Compress::Zstd { level: 1 }] {
        let (near, far) = (memory(), memory());
        save_with(&near, &context, how(), &state, 0).await.unwrap();
        let to = Arc::clone(&far);
        let report = drain(Arc::clone(&near), to, &context, &packing(compress), &silent)
            .await
            .unwrap();
        let drained = &report.drained[0];
        assert!(report.is_whole() && report.ledger.verified_bytes > 0);
        let (old, new) = (open(&near, &context, 1).await, open(&far, &context, 1).await);
        let (raw, packed) = (old.manifest(), new.manifest());
        // LZ4 finds nothing in numbers like these.
        if compress != Compress::Lz4 {
            assert!(packed.written_bytes < raw.written_bytes * 19 / 20, "{compress}");
            assert!(drained.bytes < raw.written_bytes);
        }
        assert_eq!(drained.recoded_bytes, raw.raw_bytes);
        assert_ne!(packed.attempt, raw.attempt);
        assert!(packed.attempt.is_same_save(raw.attempt));
        assert_eq!(
            (packed.committed, &packed.metadata, packed.raw_bytes),
            (raw.committed, &raw.metadata, raw.raw_bytes)
        );
        // By content ids, without a look at payloads.
        let diff = diff(&old, &new).await.unwrap();
        assert!(diff.differences.is_empty(), "{:?}", diff.differences);
        assert_eq!(diff.bytes_same, raw.raw_bytes);
        is_whole(&far, &context, 1, &state).await;
        assert_eq!(
            old.value("extra").await.unwrap(),
            new.value("extra").await.unwrap()
        );
        let names = objects(&far, &context).await;
        let count = |ending: &str| names.keys().filter(|name| name.ends_with(ending)).count();
        assert_eq!(
            (count(".chunks"), count(".safetensors"), count(".pin")),
            (3, 0, 0)
        );
        assert_eq!(drained.objects as usize, names.len());
        assert_eq!(
            drained.bytes as usize,
            names.values().map(Vec::len).sum::<usize>()
        );
        // It is there, by whatever way the next drain would bring it.
        for options in [now(), packing(Compress::Lz4)] {
            let again = drain(Arc::clone(&near), Arc::clone(&far), &context, &options, &silent);
            assert_eq!(again.await.unwrap().there, [1]);
        }
    }
}

/// What does not shrink is stored as it is, and what was compressed when it was saved is brought as it is.
#[tokio::test]
async fn nothing_is_made_longer_or_compressed_twice() {
    let context = context();
    let (near, far) = (memory(), memory());
    let noise = state(1);
    save(&near, &context, 1, 1, &noise).await;
    let how = SaveOptions {
        compress: Compress::Lz4,
        ..options(2, 1, 1)
    };
    save_with(&near, &context, how, &soft_state(2), 0).await.unwrap();
    let report = drain_packed(&near, &far, &context).await;
    let recoded: Vec<u64> = report.drained.iter().map(|one| one.recoded_bytes).collect();
    assert!(recoded[0] == 0 && recoded[1] > 0, "{recoded:?}");
    let (old, new) = (objects(&near, &context).await, objects(&far, &context).await);
    let folder = format!("steps/{:020}/", 2);
    let of = |all: &std::collections::BTreeMap<String, Vec<u8>>| -> Vec<(String, Vec<u8>)> {
        let of_step = all.iter().filter(|(name, _)| name.starts_with(&folder));
        of_step
            .map(|(name, bytes)| (name.clone(), bytes.clone()))
            .collect()
    };
    assert_eq!(of(&old), of(&new));
    is_whole(&far, &context, 1, &noise).await;
    is_whole(&far, &context, 2, &soft_state(2)).await;
}

/// Incremental saves reference at the destination what is there, in the way it is stored there; newest first or one by one.
#[tokio::test]
async fn references_are_to_what_the_destination_has() {
    let context = context();
    let near = memory();
    let first = soft_state(1);
    let states = [first.clone(), soft_changed(&first, 1), soft_changed(&first, 2)];
    let (at_once, one_by_one) = (memory(), memory());
    for (step, state) in (1..).zip(&states) {
        let how = if step == 1 {
            options(1, 1, 2)
        } else {
            on(step, step - 1, 2)
        };
        save_with(&near, &context, how, state, 0).await.unwrap();
        let report = drain_packed(&near, &one_by_one, &context).await;
        if step > 1 {
            let recoded = report.drained[0].recoded_bytes;
            assert!(recoded > 0 && recoded <= u64::from(CHUNK), "{recoded}");
        }
    }
    let report = drain_packed(&near, &at_once, &context).await;
    let recoded: Vec<u64> = report.drained.iter().map(|one| one.recoded_bytes).collect();
    // Step 2 finds what it needs in step 3, which came before it.
    assert!(recoded[1] <= u64::from(CHUNK) && recoded[1] > 0, "{recoded:?}");
    let base = open(&at_once, &context, 2).await.manifest().base.unwrap();
    assert_eq!(base.step, 3);
    for far in [&at_once, &one_by_one] {
        for (step, state) in (1..).zip(&states) {
            is_whole(far, &context, step, state).await;
        }
        // What is referenced stays when the step that wrote it goes.
        for gone in [vec![1], vec![3]] {
            let remove = GcOptions {
                remove: gone,
                ..GcOptions::default()
            };
            gc(Arc::clone(far), &context, &remove).await.unwrap();
            is_whole(far, &context, 2, &states[1]).await;
        }
    }
}

/// Back to a near place as it is, saved upon, and drained again: the chain holds, and steps that are there are known.
#[tokio::test]
async fn what_was_compressed_can_be_restored_and_built_upon() {
    let context = context();
    let (near, far, fresh) = (memory(), memory(), memory());
    let state = soft_state(1);
    save(&near, &context, 1, 2, &state).await;
    drain_packed(&near, &far, &context).await;
    drain_all(&far, &fresh, &context).await;
    assert_eq!(objects(&far, &context).await, objects(&fresh, &context).await);
    let next = soft_changed(&state, 1);
    let (_, saved) = save_with(&fresh, &context, on(2, 1, 2), &next, 0).await.unwrap();
    assert!(saved.iter().all(|rank| rank.chunks_referenced > 0));
    let report = drain_packed(&fresh, &far, &context).await;
    assert_eq!((report.there, report.drained.len()), (vec![1], 1));
    assert!(report.drained[0].recoded_bytes <= u64::from(CHUNK));
    is_whole(&far, &context, 2, &next).await;
    assert_eq!(drain_packed(&near, &far, &context).await.there, [1]);
}

/// A byte of any object changed: the checkpoint is not brought, and others are. With the checks off, some would be.
#[tokio::test]
async fn what_is_damaged_is_not_compressed() {
    let context = context();
    let near = memory();
    save(&near, &context, 1, 2, &soft_state(1)).await;
    save(&near, &context, 2, 2, &soft_state(2)).await;
    let whole = objects(&near, &context).await;
    let (folder, mut unnoticed, mut tried) = (format!("steps/{:020}/", 1), 0, 0);
    for (name, bytes) in whole.iter().filter(|(name, _)| name.starts_with(&folder)) {
        // The index is made anew, and the header of a payload is nothing that the copy has.
        let places = match name.rsplit_once('.').unwrap().1 {
            "part" => vec![0, bytes.len() / 2, bytes.len() - 1],
            "safetensors" => vec![bytes.len() / 2, bytes.len() - 1],
            _ => vec![],
        };
        for at in places {
            let key = Key::parse(name).unwrap();
            let mut bad = bytes.clone();
            bad[at] ^= 16;
            let put = async |bytes: &[u8]| near.put_bytes(&key, bytes, &PutOptions::default()).await.unwrap();
            put(&bad).await;
            let far = memory();
            let report = drain_packed(&near, &far, &context).await;
            assert_eq!(steps(&far, &context).await, [2], "{name} at {at}");
            assert_eq!(report.passed.len(), 1, "{name} at {at}");
            assert!(!report.is_whole());
            let unchecked = |store: Arc<dyn Store>| Source {
                store,
                context: context.clone(),
                checks: false,
            };
            let (blind, careless) = (unchecked(Arc::clone(&near)), unchecked(memory()));
            let drained = drain_with(&blind, &careless, &packing(Compress::Auto), &silent).await;
            unnoticed += u64::from(drained.is_ok_and(|report| report.is_whole()));
            tried += 1;
            put(bytes).await;
        }
    }
    println!("{tried} damages, of which {unnoticed} would have arrived without checks");
    assert!(tried >= 10, "{tried}");
}

#[tokio::test]
async fn what_is_signed_or_sealed_is_refused_unless_it_goes_as_it_is() {
    let context = context();
    let state = soft_state(1);
    let (signer, _) = SigningKey::generate().unwrap();
    let signed = |compress| SaveOptions {
        hash: HashKind::Blake3,
        sign: Some(signer.clone()),
        compress,
        ..options(1, 1, 1)
    };
    let sealed = |compress| SaveOptions {
        seal: keys(&[7]),
        compress,
        ..options(1, 1, 1)
    };
    for (how, word) in [
        (signed(Compress::Off), Some("signed")),
        (sealed(Compress::Off), Some("sealed")),
        (signed(Compress::Auto), None),
        (sealed(Compress::Auto), None),
    ] {
        let (near, far) = (memory(), memory());
        save_with(&near, &context, how, &state, 0).await.unwrap();
        save(&near, &context, 2, 1, &state).await;
        let report = drain_packed(&near, &far, &context).await;
        let there = steps(&far, &context).await;
        match word {
            Some(word) => {
                let passed = &report.passed[0];
                assert!(passed.is_trouble && passed.why.contains(word), "{passed:?}");
                assert!(passed.why.contains("compress when saving"), "{passed:?}");
                assert_eq!(there, [2]);
            }
            None => {
                assert!(report.is_whole() && there == [1, 2], "{report:?}");
                let (old, new) = (open(&near, &context, 1).await, open(&far, &context, 1).await);
                assert_eq!(old.manifest(), new.manifest());
            }
        }
    }
}

/// The store fails later and later: each drain goes on with the ranks that are there, and at the end nothing else is.
#[tokio::test]
async fn a_drain_that_broke_off_goes_on_by_ranks() {
    let context = context();
    let state = soft_state(1);
    let (near, far) = (memory(), memory());
    save(&near, &context, 1, 4, &state).await;
    let mut found = Vec::new();
    let mut lengths = Vec::new();
    for nth in 3..200 {
        let plan = FaultPlan::new(Seed(1)).with(Op::Put, When::Nth(nth), Fault::Fail(ErrorKind::Unavailable));
        let flaky: Arc<dyn Store> = Arc::new(Faulty::new(Arc::clone(&far), plan));
        // Another way each time: what is there is whole, however it was compressed.
        let way = if nth % 2 == 0 {
            Compress::Auto
        } else {
            Compress::Lz4
        };
        match drain(Arc::clone(&near), flaky, &context, &packing(way), &silent).await {
            Ok(report) => {
                found.push(report.drained[0].objects_there);
                break;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                assert_eq!(steps(&far, &context).await, [0; 0]);
                lengths.push(objects(&far, &context).await.len());
            }
        }
    }
    println!("{} drains broke off, with {lengths:?} objects", lengths.len());
    assert!(lengths.len() >= 3 && found[0] > 0, "{lengths:?} {found:?}");
    is_whole(&far, &context, 1, &state).await;
    // Four payloads and parts, index, manifest.
    assert_eq!(objects(&far, &context).await.len(), 10);
}

#[tokio::test]
async fn stores_that_can_do_less_are_served() {
    let context = context();
    let state = soft_state(1);
    let near = memory();
    save(&near, &context, 1, 2, &state).await;
    let far: Arc<dyn Store> = Arc::new(Abilities {
        inner: memory(),
        put_if_absent: Proof::Refuted("8 of 8 writers won".to_owned()),
    });
    let alone = DrainOptions {
        publish: Publish::SingleWriter,
        reads_back: true,
        ..packing(Compress::Auto)
    };
    let options = packing(Compress::Auto);
    let refused = drain(Arc::clone(&near), Arc::clone(&far), &context, &options, &silent).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    drain(Arc::clone(&near), Arc::clone(&far), &context, &alone, &silent)
        .await
        .unwrap();
    is_whole(&far, &context, 1, &state).await;
    // Two drains that replace share no name, should one of them only have slept.
    let again = memory();
    drain(Arc::clone(&near), Arc::clone(&again), &context, &alone, &silent)
        .await
        .unwrap();
    let attempt = async |store| open(store, &context, 1).await.manifest().attempt;
    assert_ne!(attempt(&far).await, attempt(&again).await);
    let wrong = DrainOptions {
        compress: Compress::Zstd { level: 99 },
        ..now()
    };
    let error = drain(near, again, &context, &wrong, &silent).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// Tiers keep their rules and fall back, whichever way the next one stores things.
#[tokio::test]
async fn tiers_take_the_copy_for_the_same_checkpoint() {
    let context = context();
    let (near, far) = (memory(), memory());
    for step in 1..=3 {
        save(&near, &context, step, 1, &soft_state(step)).await;
    }
    let tiers = vec![
        tier(&near, "near", Some(1)),
        tier(&far, "far", None).compressing(Compress::Auto),
    ];
    let tiers = Tiers::new(tiers, &context).unwrap();
    tiers.drain(&now(), &silent).await.unwrap();
    tiers.collect(false).await.unwrap();
    assert_eq!(steps(&near, &context).await, [3]);
    assert_eq!(steps(&far, &context).await, [1, 2, 3]);
    let payload = objects(&near, &context)
        .await
        .into_keys()
        .find(|key| key.ends_with(".safetensors"));
    let mut opened = tiers.open(None, false).await.unwrap();
    near.delete(&Key::parse(&payload.unwrap()).unwrap())
        .await
        .unwrap();
    let state = soft_state(3);
    let wants = || {
        let all = state.iter();
        Ok(all
            .map(|(name, tensor)| want(name, tensor, &vec![0; tensor.shape.len()], &tensor.shape))
            .collect())
    };
    opened.load(wants).await.unwrap();
    assert_eq!(opened.from().number, 1);
}
