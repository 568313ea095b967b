//! What gc removes, and what it must not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key};
use forebay_store::{Entry as Row, ListOptions, OpenUpload, PutOptions, Store, StoreExt};
use futures::StreamExt;

use super::hooked::{Call, Hooked};
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

/// Step 2 is replaced by another attempt while a gc that wants to remove the one before is at work: the new one stays, whole.
#[tokio::test]
async fn a_newer_attempt_is_not_removed_for_an_older() {
    let context = context();
    let (before, after) = (state(1), state(2));
    let old = options(2, 1, 1).attempt;
    let by_number = GcOptions {
        remove: vec![2],
        ..GcOptions::default()
    };
    let by_attempt = GcOptions {
        remove_attempts: vec![(2, old)],
        ..GcOptions::default()
    };
    // After manifests were read, and before anything was: then the number alone would mean the new one.
    for (how, moment) in [
        (&by_number, ".gone"),
        (&by_attempt, ".gone"),
        (&by_attempt, ".pin"),
    ] {
        let inner = memory();
        save(&inner, &context, 2, 1, &before).await;
        let (other, other_context, state) = (Arc::clone(&inner), context.clone(), after.clone());
        let replace = Arc::new(AtomicBool::new(true));
        let once = Arc::clone(&replace);
        let store = Hooked::over(&inner, move |call, key| {
            let is_moment = call == Call::Put && key.as_str().ends_with(moment);
            let is_now = is_moment && once.swap(false, Ordering::SeqCst);
            let (store, context, state) = (Arc::clone(&other), other_context.clone(), state.clone());
            async move {
                if is_now {
                    let replacing = SaveOptions {
                        publish: Publish::Replace,
                        ..options(2, 7, 1)
                    };
                    save_with(&store, &context, replacing, &state, 0).await.unwrap();
                }
                Ok(())
            }
        });
        gc(store, &context, how).await.unwrap();
        assert!(!replace.load(Ordering::SeqCst), "{moment}");
        let there = open(&inner, &context, 2).await;
        assert_ne!(there.manifest().attempt, old);
        load_all(&there, &after).await.unwrap();
    }
}

/// Who goes back to an earlier step and saves from there keeps what it saves, and is told that there is a later one.
#[tokio::test]
async fn saves_after_going_back_are_kept() {
    let context = context();
    let store = memory();
    for step in [1000, 2000, 2800, 2900, 3000] {
        save(&store, &context, step, 1, &state(step)).await;
    }
    let begun = Save::begin(Arc::clone(&store), &context, options(1100, 1, 1))
        .await
        .unwrap();
    assert_eq!(begun.later_step(), Some(3000));
    begun.rank(0, items(&state(7), 0, 0, 1)).await.unwrap();
    begun.commit(metadata(0.0), NO_WAIT).await.unwrap();
    let collected = gc(Arc::clone(&store), &context, &keep(3, Some(1000)))
        .await
        .unwrap();
    assert_eq!(collected.kept, [1000, 1100, 2000, 2900, 3000]);
    load_all(&open(&store, &context, 1100).await, &state(7))
        .await
        .unwrap();
    let begun = Save::begin(store, &context, options(3100, 1, 1)).await.unwrap();
    assert_eq!(begun.later_step(), None);
}

async fn gc_pin_renewed(store: &Arc<dyn Store>, context: &forebay_store::Context, ago: Duration) -> Key {
    let mut pin = crate::pin::Pin::new(context, 0);
    pin.host = "elsewhere".to_owned();
    pin.boot_id = None;
    pin.created_ns -= u64::try_from(ago.as_nanos()).unwrap();
    crate::pin::put_gc(&**store, &pin, 7).await.unwrap()
}

/// A gc that was killed on another host is passed over after some seconds, by another gc and by a drain; one that lives is not, whatever its clock says.
#[tokio::test(start_paused = true)]
async fn a_killed_gc_does_not_block_others_for_long() {
    let context = context();
    let store = memory();
    save(&store, &context, 1, 1, &state(1)).await;
    let pin = gc_pin_renewed(&store, &context, Duration::from_secs(300)).await;
    let begun = tokio::time::Instant::now();
    gc(Arc::clone(&store), &context, &keep(1, None)).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(90), "it was watched first");
    assert!(!keys(&store).await.contains(&pin.to_string()));
    // A drain to there, likewise.
    gc_pin_renewed(&store, &context, Duration::ZERO).await;
    let near = memory();
    save(&near, &context, 2, 1, &state(2)).await;
    let drained = drain(
        near,
        Arc::clone(&store),
        &context,
        &DrainOptions::default(),
        &|_| {},
    )
    .await;
    assert_eq!(drained.unwrap().drained.len(), 1);
    // Five minutes behind, and at work.
    let late = Duration::from_secs(300);
    gc_pin_renewed(&store, &context, late).await;
    let (other, other_context) = (Arc::clone(&store), context.clone());
    let renewing = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(20)).await;
            gc_pin_renewed(&other, &other_context, late).await;
        }
    });
    let refused = gc(Arc::clone(&store), &context, &keep(1, None))
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::AlreadyExists, "{refused}");
    renewing.abort();
}

/// A gc that others took for dead deletes nothing any more.
#[tokio::test(start_paused = true)]
async fn a_gc_that_lost_its_pin_stops() {
    let context = context();
    let inner = memory();
    let state = state(1);
    for step in 1..=3 {
        save(&inner, &context, step, 1, &state).await;
    }
    let other = Arc::clone(&inner);
    let store = Hooked::over(&inner, move |call, key| {
        let store = Arc::clone(&other);
        async move {
            if call == Call::List && key.as_str() == "steps" {
                // It sleeps, and another has removed its pin.
                let pins = keys(&store).await.into_iter().filter(|key| key.contains("gc-"));
                for pin in pins.collect::<Vec<_>>() {
                    store.delete(&Key::parse(&pin).unwrap()).await.unwrap();
                }
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            Ok(())
        }
    });
    let error = gc(store, &context, &keep(1, None)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    let payloads = keys(&inner)
        .await
        .into_iter()
        .filter(|key| key.ends_with(".safetensors"));
    assert_eq!(payloads.count(), 3);
    load_all(&open(&inner, &context, 1).await, &state).await.unwrap();
}

/// What a save left whose process is known to be dead goes at once: a job that is killed and started again and again does not fill its disk.
#[tokio::test]
async fn what_the_dead_left_goes_at_once() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 1, &state).await;
    let killed = Save::begin(Arc::clone(&store), &context, options(2, 1, 1))
        .await
        .unwrap();
    killed.rank(0, items(&state, 0, 0, 1)).await.unwrap();
    let attempt = killed.options().attempt;
    drop(killed);
    let pin = crate::pin::of_attempt(&store, &context, attempt)
        .await
        .unwrap()
        .unwrap();
    let pin = crate::pin::Pin {
        pid: Some(crate::pin::tests::dead_pid()),
        ..pin
    };
    crate::pin::put_save(&*store, &pin, forebay_store::PutMode::Replace)
        .await
        .unwrap();
    let collected = gc(Arc::clone(&store), &context, &GcOptions::default())
        .await
        .unwrap();
    assert_eq!(collected.objects, 2);
    assert!(!keys(&store).await.iter().any(|key| key.contains(".pin")));
    load_all(&open(&store, &context, 1).await, &state).await.unwrap();
}

/// What a killed writer left of an upload goes when it is old, and nothing else does: not what is being saved, nor what is young, nor what is not ours.
#[tokio::test]
async fn uploads_of_the_dead_are_given_up() {
    let context = context();
    let inner = memory();
    save(&inner, &context, 1, 1, &state(1)).await;
    let begun = Save::begin(Arc::clone(&inner), &context, options(3, 1, 1))
        .await
        .unwrap();
    let now = context.clock().unix();
    let name = |step: u64, attempt: u8| {
        let attempt = options(step, attempt, 1).attempt;
        format!("steps/{step:020}/{attempt}/rank-000000.safetensors")
    };
    let (old, young) = (Some(now.saturating_sub(PIN_AGE_MAX * 2)), Some(now));
    let left = [
        (name(2, 1), old),
        (name(1, 1), old),
        (name(4, 1), young),
        (name(3, 1), old),
        (name(5, 1), None),
        ("steps/readme".to_owned(), old),
        ("elsewhere/rank-000000.safetensors".to_owned(), old),
    ];
    let upload = |(number, (name, begun)): (usize, &(String, Option<Duration>))| OpenUpload {
        key: Key::parse(name).unwrap(),
        id: number.to_string(),
        begun: *begun,
    };
    let uploads: Vec<OpenUpload> = left.iter().enumerate().map(upload).collect();
    let refuses = Arc::new(AtomicBool::new(true));
    let is_refused = Arc::clone(&refuses);
    let store = Hooked::with_uploads(&inner, uploads, move |call, _| {
        let is_bad = call == Call::OpenUploads && is_refused.load(Ordering::Relaxed);
        async move {
            if is_bad {
                return Err(Error::new(ErrorKind::PermissionDenied, "list uploads", "no"));
            }
            Ok(())
        }
    });
    let go = async |is_dry_run| {
        let options = GcOptions {
            is_dry_run,
            ..GcOptions::default()
        };
        gc(Arc::clone(&store), &context, &options).await.unwrap()
    };
    // A store that does not tell is told of, and the rest is done.
    let untold = go(false).await;
    assert!(untold.uploads.is_empty() && untold.uploads_trouble.unwrap().contains("no"));
    refuses.store(false, Ordering::Relaxed);
    let expected = [Key::parse(&name(2, 1)).unwrap(), Key::parse(&name(1, 1)).unwrap()];
    let there = async || store.open_uploads(&Key::ROOT).await.unwrap().len();
    assert_eq!((go(true).await.uploads, there().await), (expected.to_vec(), 7));
    assert_eq!((go(false).await.uploads, there().await), (expected.to_vec(), 5));
    assert_eq!((go(false).await.uploads, there().await), (vec![], 5));
    begun.abandon().await;
    assert_eq!(go(false).await.uploads, [Key::parse(&name(3, 1)).unwrap()]);
}
