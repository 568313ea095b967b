//! What gc removes, and what it must not.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ErrorKind, Key};
use forebay_store::{Entry as Row, ListOptions, PutOptions, Store, StoreExt};
use futures::StreamExt;

use super::support::*;
use crate::*;

async fn keys(store: &Arc<dyn Store>) -> Vec<String> {
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    let mut keys = Vec::new();
    while let Some(row) = rows.next().await {
        if let Row::Object(meta) = row.unwrap() {
            keys.push(meta.key.to_string());
        }
    }
    keys
}

fn keep(last: usize, every: Option<u64>) -> GcOptions {
    GcOptions {
        keep_last: Some(last),
        keep_every: every,
        ..GcOptions::default()
    }
}

#[tokio::test]
async fn steps_are_kept_by_number_and_by_age() {
    let context = context();
    let store = memory();
    let state = state(1);
    for step in [10, 20, 30, 40, 50] {
        save(&store, &context, step, 1, &state).await;
    }
    let dry = GcOptions {
        is_dry_run: true,
        ..keep(2, Some(20))
    };
    let before = keys(&store).await;
    let would = gc(Arc::clone(&store), &context, &dry).await.unwrap();
    assert_eq!(keys(&store).await, before);
    let collected = gc(Arc::clone(&store), &context, &keep(2, Some(20)))
        .await
        .unwrap();
    assert_eq!(would, collected);
    assert_eq!(
        (collected.steps, collected.kept),
        (vec![10, 30], vec![20, 40, 50])
    );
    let only = GcOptions {
        remove: vec![50],
        ..GcOptions::default()
    };
    assert_eq!(gc(Arc::clone(&store), &context, &only).await.unwrap().steps, [50]);
    let (newest, damaged) = newest(Arc::clone(&store), &context).await.unwrap();
    assert_eq!(newest.unwrap().step(), 40);
    assert!(damaged.is_empty());
    let left = keys(&store).await;
    assert!(
        !left
            .iter()
            .any(|key| key.contains(".gone") || key.contains(".pin")),
        "{left:?}"
    );
    // A step that was removed may be saved again.
    save(&store, &context, 50, 1, &state).await;
    assert_eq!(
        gc(store, &context, &keep(0, None)).await.unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
}

#[tokio::test]
async fn what_is_being_saved_is_left_alone() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    let how = SaveOptions {
        base_step: Some(1),
        ..options(2, 1, 2)
    };
    let running = Save::begin(Arc::clone(&store), &context, how).await.unwrap();
    running.rank(0, items(&state, 0, 0, 1)).await.unwrap();
    save(&store, &context, 3, 1, &state).await;
    let collected = gc(Arc::clone(&store), &context, &keep(1, None)).await.unwrap();
    assert_eq!(collected.steps, [1]);
    assert_eq!(collected.objects, 0, "the base of a running save is needed");
    assert_eq!(collected.pinned.len(), 1);
    // Gone for readers, and still there for the save that references it.
    assert!(Checkpoint::open(Arc::clone(&store), &context, 1).await.is_err());
    running.rank(1, vec![]).await.unwrap();
    running.commit(metadata(0.0), NO_WAIT).await.unwrap();
    load_all(&open(&store, &context, 2).await, &state).await.unwrap();
    // Now the base's own files go, but not the payload that step 2 references.
    let collected = gc(Arc::clone(&store), &context, &keep(2, None)).await.unwrap();
    assert!(collected.steps.is_empty());
    assert_eq!(collected.objects, 1, "the part of step 1");
    load_all(&open(&store, &context, 2).await, &state).await.unwrap();
}

#[tokio::test]
async fn what_dead_saves_left_goes_once_their_pins_expire() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    let killed = Save::begin(Arc::clone(&store), &context, options(2, 1, 2))
        .await
        .unwrap();
    killed.rank(0, items(&state, 0, 0, 1)).await.unwrap();
    drop(killed);
    let collected = gc(Arc::clone(&store), &context, &GcOptions::default())
        .await
        .unwrap();
    assert_eq!(collected.objects, 0);
    let expired = GcOptions {
        pin_age_max: Duration::ZERO,
        ..GcOptions::default()
    };
    let collected = gc(Arc::clone(&store), &context, &expired).await.unwrap();
    assert_eq!(collected.objects, 2);
    load_all(&open(&store, &context, 1).await, &state).await.unwrap();
    assert!(!keys(&store).await.iter().any(|key| key.contains(".pin")));
}

#[tokio::test]
async fn gc_works_alone_and_only_beside_readable_manifests() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    save(&store, &context, 2, 1, &state).await;
    let pin = crate::pin::Pin::new(&context, 0);
    let other = crate::pin::put_gc(&*store, &pin, 7).await.unwrap();
    let error = gc(Arc::clone(&store), &context, &keep(1, None))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    store.delete(&other).await.unwrap();
    let key = crate::names::manifest_key(1);
    store
        .put_bytes(&key, b"damaged", &PutOptions::default())
        .await
        .unwrap();
    let error = gc(Arc::clone(&store), &context, &keep(1, None))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("step 1"), "{error}");
    let (newest, _) = newest(Arc::clone(&store), &context).await.unwrap();
    load_all(&newest.unwrap(), &state).await.unwrap();
    let remove = GcOptions {
        remove: vec![1],
        ..GcOptions::default()
    };
    let collected = gc(Arc::clone(&store), &context, &remove).await.unwrap();
    assert_eq!(collected.kept, [2]);
    load_all(&open(&store, &context, 2).await, &state).await.unwrap();
}

/// Names that are not ours are never touched.
#[tokio::test]
async fn others_files_stay() {
    let context = context();
    let store = memory();
    save(&store, &context, 1, 1, &state(1)).await;
    for name in [
        "steps/notes.txt",
        "steps/00000000000000000001/readme",
        "manifests/todo",
        "mine/a.part",
    ] {
        let key = Key::parse(name).unwrap();
        store
            .put_bytes(&key, b"mine", &PutOptions::default())
            .await
            .unwrap();
    }
    let remove = GcOptions {
        remove: vec![1],
        ..GcOptions::default()
    };
    gc(Arc::clone(&store), &context, &remove).await.unwrap();
    let left = keys(&store).await;
    assert_eq!(left.len(), 5, "{left:?}");
}
