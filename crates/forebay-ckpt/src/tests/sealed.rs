//! Sealed checkpoints: read by those with a key, and by nobody else; keys change without the data.

use std::sync::Arc;

use forebay_core::ErrorKind;

use super::support::*;
use crate::seal::tests::keys;
use crate::*;

fn how(step: u64, world: u32, compress: Compress) -> SaveOptions {
    SaveOptions {
        compress,
        seal: keys(&[1, 2]),
        ..options(step, 1, world)
    }
}

#[tokio::test]
async fn only_a_key_reads_it_and_nobody_needs_one_to_verify() {
    let context = context();
    let state = soft_state(1);
    for compress in [Compress::Off, Compress::Auto] {
        for (_, hash, _) in HashKind::ALL {
            let store = memory();
            let options = SaveOptions {
                hash,
                ..how(1, 2, compress)
            };
            save_with(&store, &context, options, &state, 0).await.unwrap();
            let checkpoint = open(&store, &context, 1).await;
            assert!(checkpoint.manifest().is_sealed());
            assert!(checkpoint.manifest().features.contains(&"aes-256-gcm".to_owned()));
            for number in [1, 2] {
                let opened = checkpoint.with_keys(keys(&[number]));
                for (dim, world) in [(0, 1), (0, 3), (1, 2)] {
                    for rank in 0..world {
                        load_shard(&opened, &state, dim, rank, world).await.unwrap();
                    }
                }
            }
            let wrong = load_all(&checkpoint.with_keys(keys(&[3])), &state)
                .await
                .unwrap_err();
            assert!(
                wrong.contains("none of the keys") && wrong.contains("file "),
                "{wrong}"
            );
            let none = load_all(&checkpoint, &state).await.unwrap_err();
            assert!(none.contains("no key was given"), "{none}");
            assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
            assert!(
                verify(&checkpoint.with_keys(keys(&[1])), &|_| {})
                    .await
                    .unwrap()
                    .is_whole()
            );
            verify(&checkpoint.with_keys(keys(&[3])), &|_| {})
                .await
                .unwrap_err();
            let embed = &state["embed"].bytes[..32];
            for (key, bytes) in contents(&store, &context).await {
                assert!(!bytes.windows(32).any(|window| window == embed), "{key}");
            }
        }
    }
}

#[tokio::test]
async fn ranks_find_the_data_key_in_the_pin() {
    let context = context();
    let store = memory();
    let state = soft_state(1);
    let begin = Save::begin(Arc::clone(&store), &context, how(1, 2, Compress::Auto))
        .await
        .unwrap();
    let join = |seal: Keys| {
        let options = SaveOptions {
            seal,
            ..how(1, 2, Compress::Auto)
        };
        Save::join(Arc::clone(&store), &context, options, NO_WAIT)
    };
    let other = join(keys(&[2])).await.unwrap();
    assert_eq!(
        join(keys(&[3])).await.unwrap_err().kind(),
        ErrorKind::PermissionDenied
    );
    assert!(
        join(Keys::default())
            .await
            .unwrap_err()
            .to_string()
            .contains("no key")
    );
    begin.rank(0, items(&state, 0, 0, 2)).await.unwrap();
    other.rank(1, items(&state, 0, 1, 2)).await.unwrap();
    begin.commit(metadata(0.0), NO_WAIT).await.unwrap();
    let checkpoint = open(&store, &context, 1).await.with_keys(keys(&[1]));
    load_all(&checkpoint, &state).await.unwrap();
    // And who seals does not join who does not.
    let plain = Save::begin(Arc::clone(&store), &context, options(2, 1, 2))
        .await
        .unwrap();
    let join = Save::join(
        Arc::clone(&store),
        &context,
        SaveOptions {
            seal: keys(&[1]),
            ..options(2, 1, 2)
        },
        NO_WAIT,
    );
    assert!(join.await.unwrap_err().to_string().contains("rank 0 does not"));
    plain.abandon().await;
}

#[tokio::test]
async fn incremental_saves_reference_what_is_sealed() {
    let context = context();
    let store = memory();
    let mut state = soft_state(1);
    for step in 1u64..=4 {
        state.get_mut("layer.0.weight").unwrap().bytes[5000] ^= 1;
        let options = SaveOptions {
            base_step: Some(step - 1),
            // The keys turn: each opens what the one before and the one after seal.
            seal: keys(&[step as u8, step as u8 + 1]),
            ..how(step, 2, Compress::Auto)
        };
        let (committed, saved) = save_with(&store, &context, options, &state, 0).await.unwrap();
        if step > 1 {
            let written: u64 = saved
                .iter()
                .map(|saved| saved.raw_bytes - saved.referenced_bytes)
                .sum();
            assert_eq!(written, u64::from(CHUNK), "step {step}");
            assert!(committed.manifest.base.is_some());
        }
        let checkpoint = open(&store, &context, step).await;
        for number in [step as u8, step as u8 + 1] {
            load_all(&checkpoint.with_keys(keys(&[number])), &state)
                .await
                .unwrap();
        }
        // Also of what is referenced, only the keys of this save open anything.
        load_all(&checkpoint.with_keys(keys(&[step as u8 + 2])), &state)
            .await
            .unwrap_err();
        assert!(verify(&checkpoint, &|_| {}).await.unwrap().is_whole());
    }
    let (third, fourth) = (open(&store, &context, 3).await, open(&store, &context, 4).await);
    let changed = diff(&third, &fourth).await.unwrap();
    let change = Change::Sealed {
        bytes: u64::from(CHUNK),
    };
    assert_eq!(changed.differences.len(), 1);
    assert_eq!(changed.differences[0].change, change);
    let keep = GcOptions {
        keep_last: Some(1),
        ..GcOptions::default()
    };
    gc(Arc::clone(&store), &context, &keep).await.unwrap();
    load_all(&fourth.with_keys(keys(&[5])), &state).await.unwrap();
}

#[tokio::test]
async fn what_is_sealed_and_what_is_not_do_not_mix() {
    let context = context();
    let store = memory();
    let state = soft_state(1);
    save(&store, &context, 1, 1, &state).await;
    save_with(&store, &context, how(2, 1, Compress::Auto), &state, 0)
        .await
        .unwrap();
    for (step, base, seal, word) in [
        (3, 1, keys(&[1]), "is not sealed, and this save is"),
        (4, 2, Keys::default(), "is sealed, and this save is not"),
        (5, 2, keys(&[9]), "none of the keys"),
    ] {
        let options = SaveOptions {
            base_step: Some(base),
            seal,
            ..options(step, 1, 1)
        };
        let save = Save::begin(Arc::clone(&store), &context, options).await.unwrap();
        let why = save.full_because().unwrap().to_owned();
        assert!(why.contains(word), "{why}");
        let saved = save.rank(0, items(&state, 0, 0, 1)).await.unwrap();
        assert_eq!(saved.chunks_referenced, 0);
        save.commit(metadata(0.0), NO_WAIT).await.unwrap();
    }
}

#[tokio::test]
async fn rewrapping_changes_keys_and_nothing_else() {
    let context = context();
    let store = memory();
    let mut state = soft_state(1);
    save_with(&store, &context, how(1, 2, Compress::Auto), &state, 0)
        .await
        .unwrap();
    state.get_mut("layer.0.weight").unwrap().bytes[5000] ^= 1;
    let options = SaveOptions {
        base_step: Some(1),
        ..how(2, 2, Compress::Auto)
    };
    save_with(&store, &context, options, &state, 0).await.unwrap();
    let before = contents(&store, &context).await;
    let root = open(&store, &context, 2).await.manifest().root().unwrap();
    let done = rewrap(Arc::clone(&store), &context, 2, &keys(&[2]), &keys(&[7]))
        .await
        .unwrap();
    assert_eq!((done.keys, done.slots_before, done.slots), (2, 4, 2));
    let after = contents(&store, &context).await;
    let changed: Vec<_> = after
        .iter()
        .filter(|(key, bytes)| before.get(key) != Some(bytes))
        .collect();
    assert_eq!(changed.len(), 1, "{:?}", changed[0].0);
    assert_eq!(before.len(), after.len());
    let checkpoint = open(&store, &context, 2).await;
    assert_eq!(checkpoint.manifest().root().unwrap(), root);
    load_all(&checkpoint.with_keys(keys(&[7])), &state).await.unwrap();
    load_all(&checkpoint.with_keys(keys(&[1, 2])), &state)
        .await
        .unwrap_err();
    // Refused: a wrong key, no key, what is not sealed, what is not there.
    let try_it = |step, old, new| {
        let (store, context) = (Arc::clone(&store), context.clone());
        async move { rewrap(store, &context, step, &old, &new).await.unwrap_err() }
    };
    assert_eq!(
        try_it(2, keys(&[1]), keys(&[8])).await.kind(),
        ErrorKind::PermissionDenied
    );
    assert_eq!(
        try_it(2, keys(&[7]), Keys::default()).await.kind(),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        try_it(9, keys(&[7]), keys(&[8])).await.kind(),
        ErrorKind::NotFound
    );
    save(&store, &context, 3, 1, &state).await;
    assert!(
        try_it(3, keys(&[7]), keys(&[8]))
            .await
            .to_string()
            .contains("not sealed")
    );
    // The refusals left no pin, so nothing keeps gc.
    let pins = contents(&store, &context).await;
    assert!(pins.keys().all(|key| !key.as_str().starts_with("pins/")));
}
