//! Incremental saves write what changed and reference the rest; older steps may go.

use std::sync::Arc;

use forebay_core::{ErrorKind, Seed};
use forebay_store::{PutOptions, StoreExt};

use super::support::*;
use crate::*;

/// A state with one large tensor that changes in one place.
fn states() -> (State, State) {
    let mut before = state(1);
    before.insert(
        "large".to_owned(),
        Tensor::new(Dtype::F32, &[512, 64], &mut Seed(9).rng()),
    );
    let mut after = before.clone();
    after.get_mut("large").unwrap().bytes[70_000] ^= 1;
    after.get_mut("layer.0.bias").unwrap().bytes[0] ^= 1;
    (before, after)
}

fn incremental(step: u64, world: u32, base: u64) -> SaveOptions {
    SaveOptions {
        base_step: Some(base),
        ..options(step, 1, world)
    }
}

#[tokio::test]
async fn only_what_changed_is_written() {
    let context = context();
    for world in [1, 3] {
        let store = memory();
        let (before, after) = states();
        save(&store, &context, 1, world, &before).await;
        let (committed, saved) = save_with(&store, &context, incremental(2, world, 1), &after, 0)
            .await
            .unwrap();
        let referenced: u64 = saved.iter().map(|saved| saved.referenced_bytes).sum();
        let raw: u64 = saved.iter().map(|saved| saved.raw_bytes).sum();
        // The chunk of the large one, and the bias, of which each rank has some.
        assert_eq!(
            raw - referenced,
            u64::from(CHUNK) + if world == 1 { 37 * 4 } else { 13 * 4 }
        );
        assert!(committed.manifest.written_bytes < raw / 4);
        assert_eq!(committed.manifest.base.unwrap().chain, 1);
        let checkpoint = open(&store, &context, 2).await;
        for other in [1, 2, 4] {
            for rank in 0..other {
                load_shard(&checkpoint, &after, 0, rank, other).await.unwrap();
            }
        }
        assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
        let changed = diff(&open(&store, &context, 1).await, &checkpoint).await.unwrap();
        let names: Vec<_> = changed
            .differences
            .iter()
            .map(|difference| difference.name.as_str())
            .collect();
        assert_eq!(names, ["large", "layer.0.bias"]);
        assert_eq!(
            changed.differences[0].change,
            Change::Content {
                bytes: u64::from(CHUNK)
            }
        );
        // Nothing changes: nothing is written, and references point at where chunks lie, not at references.
        let (third, saved) = save_with(&store, &context, incremental(3, world, 2), &after, 0)
            .await
            .unwrap();
        assert!(saved.iter().all(|saved| saved.written_bytes == 0));
        assert_eq!(third.manifest.base.unwrap().chain, 2);
        assert!(third.manifest.payloads.iter().all(|payload| payload.step < 3));
        load_all(&open(&store, &context, 3).await, &after).await.unwrap();
    }
}

#[tokio::test]
async fn older_steps_may_go() {
    let context = context();
    let store = memory();
    let (before, after) = states();
    save(&store, &context, 1, 2, &before).await;
    save_with(&store, &context, incremental(2, 2, 1), &after, 0)
        .await
        .unwrap();
    save_with(&store, &context, incremental(3, 2, 2), &after, 0)
        .await
        .unwrap();
    let keep = GcOptions {
        keep_last: Some(1),
        ..GcOptions::default()
    };
    let collected = gc(Arc::clone(&store), &context, &keep).await.unwrap();
    assert_eq!((collected.steps, collected.kept), (vec![1, 2], vec![3]));
    // Parts and indexes of two steps; their payloads are needed.
    assert_eq!(collected.objects, 6);
    let left = list(Arc::clone(&store), &context).await.unwrap();
    assert_eq!(left.iter().map(|listed| listed.step).collect::<Vec<_>>(), [3]);
    let checkpoint = open(&store, &context, 3).await;
    load_all(&checkpoint, &after).await.unwrap();
    assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
    // Full again: now the old payloads go.
    save(&store, &context, 4, 2, &before).await;
    let collected = gc(Arc::clone(&store), &context, &keep).await.unwrap();
    assert_eq!(collected.steps, [3]);
    load_all(&open(&store, &context, 4).await, &before).await.unwrap();
    let again = gc(store, &context, &keep).await.unwrap();
    assert_eq!((again.objects, again.steps.len()), (0, 0));
}

#[tokio::test]
async fn full_saves_say_why() {
    let context = context();
    let store = memory();
    let (before, _) = states();
    save(&store, &context, 1, 1, &before).await;
    for (how, word) in [
        (incremental(2, 1, 9), "no checkpoint of step 9"),
        (
            SaveOptions {
                hash: HashKind::Crc32c,
                ..incremental(2, 1, 1)
            },
            "too short",
        ),
        (
            SaveOptions {
                hash: HashKind::Blake3,
                ..incremental(2, 1, 1)
            },
            "other chunks or hashes",
        ),
        (
            SaveOptions {
                chunk_bytes: 2 * CHUNK,
                ..incremental(2, 1, 1)
            },
            "other chunks or hashes",
        ),
    ] {
        let save = Save::begin(Arc::clone(&store), &context, how).await.unwrap();
        let why = save.full_because().unwrap().to_owned();
        assert!(why.contains(word), "{why}");
        let saved = save.rank(0, items(&before, 0, 0, 1)).await.unwrap();
        assert_eq!(saved.chunks_referenced, 0);
        save.abandon().await;
        gc(Arc::clone(&store), &context, &GcOptions::default())
            .await
            .unwrap();
    }
}

/// Two slices of the same name on different ranks: what moved to another rank is found by the index.
#[tokio::test]
async fn slices_that_moved_to_another_rank_are_referenced() {
    let context = context();
    let store = memory();
    let (before, _) = states();
    save(&store, &context, 1, 2, &before).await;
    let save = Save::begin(Arc::clone(&store), &context, incremental(2, 2, 1))
        .await
        .unwrap();
    let (first, second) = (items(&before, 0, 0, 2), items(&before, 0, 1, 2));
    let saved = [
        save.rank(0, second).await.unwrap(),
        save.rank(1, first).await.unwrap(),
    ];
    assert!(saved.iter().all(|saved| saved.written_bytes == 0), "{saved:?}");
    save.commit(metadata(0.0), NO_WAIT).await.unwrap();
    load_all(&open(&store, &context, 2).await, &before).await.unwrap();
}

/// Whatever of the base is damaged or missing, the save is made: in full, as far as that is needed, and it says why.
#[tokio::test]
async fn a_damaged_base_is_not_built_upon() {
    let context = context();
    let (before, after) = states();
    for piece in ["manifest", "part", "payload"] {
        for is_missing in [true, false] {
            let store = memory();
            save(&store, &context, 1, 1, &before).await;
            let base = open(&store, &context, 1).await;
            let attempt = base.manifest().attempt;
            let key = match piece {
                "manifest" => crate::names::manifest_key(1),
                "part" => crate::names::piece_key(1, attempt, crate::names::Piece::Part(0)),
                _ => base.manifest().payloads[0].key(),
            };
            if is_missing {
                store.delete(&key).await.unwrap();
            } else {
                store
                    .put_bytes(&key, b"damaged", &PutOptions::default())
                    .await
                    .unwrap();
            }
            let told = format!("{piece}, missing: {is_missing}");
            let save = Save::begin(Arc::clone(&store), &context, incremental(2, 1, 1)).await;
            let save = save.unwrap_or_else(|error| panic!("{told}: {error}"));
            let full_because = save.full_because().map(str::to_owned);
            let saved = save.rank(0, items(&after, 0, 0, 1)).await.unwrap();
            assert_eq!(saved.chunks_referenced, 0, "{told}");
            assert!(full_because.is_some() != saved.base_trouble.is_some(), "{told}");
            save.commit(metadata(0.0), NO_WAIT).await.unwrap();
            load_all(&open(&store, &context, 2).await, &after).await.unwrap();
        }
    }
}

/// A payload that goes after a rank has referenced it: the commit looks, and there is none.
#[tokio::test]
async fn a_commit_looks_for_what_it_references() {
    let context = context();
    let store = memory();
    let (before, after) = states();
    save(&store, &context, 1, 1, &before).await;
    let payload = open(&store, &context, 1).await.manifest().payloads[0].key();
    let save = Save::begin(Arc::clone(&store), &context, incremental(2, 1, 1))
        .await
        .unwrap();
    let saved = save.rank(0, items(&after, 0, 0, 1)).await.unwrap();
    assert!(saved.chunks_referenced > 0);
    store.delete(&payload).await.unwrap();
    let error = save.commit(metadata(0.0), NO_WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(Checkpoint::open(store, &context, 2).await.is_err());
}
