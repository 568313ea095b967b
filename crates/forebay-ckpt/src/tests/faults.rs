//! Stores that fail, ranks that die, writers that race: a clear error, and what was committed stays.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Seed};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{ListOptions, Proof, Store};
use futures::StreamExt;

use super::support::*;
use crate::*;

#[tokio::test]
async fn of_two_writers_for_one_step_one_wins() {
    let context = context();
    let store = memory();
    let (first, second) = (state(1), state(2));
    let begin = |attempt| Save::begin(Arc::clone(&store), &context, options(5, attempt, 2));
    let (one, two) = (begin(1).await.unwrap(), begin(2).await.unwrap());
    // Ranks of both, one after the other, so that any mixture would show.
    for rank in 0..2 {
        one.rank(rank, items(&first, 0, rank, 2)).await.unwrap();
        two.rank(rank, items(&second, 0, rank, 2)).await.unwrap();
    }
    two.commit(metadata(0.0), NO_WAIT).await.unwrap();
    let lost = one.commit(metadata(0.0), NO_WAIT).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::AlreadyExists, "{lost}");
    load_all(&open(&store, &context, 5).await, &second).await.unwrap();
    let late = begin(3).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::AlreadyExists, "{late}");
    // Explicitly, it may be replaced; what the loser left goes.
    let replace = SaveOptions {
        publish: Publish::Replace,
        ..options(5, 4, 1)
    };
    save_with(&store, &context, replace, &first, 0).await.unwrap();
    load_all(&open(&store, &context, 5).await, &first).await.unwrap();
    let collected = gc(Arc::clone(&store), &context, &GcOptions::default())
        .await
        .unwrap();
    assert_eq!(
        collected.objects, 12,
        "payload and part of two ranks, and an index, of two attempts; notes of the one that lost and the one that was late"
    );
    load_all(&open(&store, &context, 5).await, &first).await.unwrap();
}

#[tokio::test]
async fn a_rank_that_dies_leaves_the_checkpoint_before() {
    let context = context();
    let store = memory();
    let state = state(1);
    save(&store, &context, 1, 3, &state).await;
    let save = Save::begin(Arc::clone(&store), &context, options(2, 1, 3))
        .await
        .unwrap();
    save.rank(0, items(&state, 0, 0, 3)).await.unwrap();
    save.rank(2, items(&state, 0, 2, 3)).await.unwrap();
    let error = save
        .commit(metadata(0.0), Duration::from_millis(30))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(
        error
            .to_string()
            .contains("1 of 3 ranks did not save, among them 1"),
        "{error}"
    );
    let (newest, _) = newest(Arc::clone(&store), &context).await.unwrap();
    assert_eq!(newest.unwrap().step(), 1);
}

/// Ranks that share nothing but the store: each begins in its own time, in tasks of their own.
#[tokio::test(flavor = "multi_thread")]
async fn ranks_meet_in_the_store() {
    let context = context();
    let store = memory();
    let state = state(1);
    let world = 4;
    let how = options(9, 1, world);
    let mut tasks = Vec::new();
    for rank in (0..world).rev() {
        let (store, context, how, state) = (Arc::clone(&store), context.clone(), how.clone(), state.clone());
        tasks.push(tokio::spawn(async move {
            let wait = Duration::from_secs(60);
            let save = match rank {
                0 => Save::begin(store, &context, how).await?,
                _ => Save::join(store, &context, how, wait).await?,
            };
            save.rank(rank, items(&state, 0, rank, world)).await?;
            match rank {
                0 => save.commit(metadata(0.0), wait).await.map(drop),
                _ => Ok(()),
            }
        }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    load_all(&open(&store, &context, 9).await, &state).await.unwrap();
    let nobody = Save::join(store, &context, options(10, 1, 2), NO_WAIT)
        .await
        .unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::Timeout, "{nobody}");
}

/// Whoever waits for a rank that cannot save is told why, and does not wait until the time is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_cannot_save_ends_the_wait_of_all() {
    let context = context();
    let store = memory();
    let state = state(1);
    let forever = Duration::from_secs(3600);
    save(&store, &context, 1, 1, &state).await;
    // The coordinator is refused: those who wait for it get the same error.
    let join = |how| Save::join(Arc::clone(&store), &context, how, forever);
    let begin = |how| Save::begin(Arc::clone(&store), &context, how);
    let (begun, joined) = tokio::join!(begin(options(1, 7, 2)), join(options(1, 7, 2)));
    assert_eq!(begun.unwrap_err().kind(), ErrorKind::AlreadyExists);
    let error = match joined {
        Err(error) => error,
        // It saw the pin before that went.
        Ok(joined) => joined.published(forever).await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    assert!(error.to_string().contains("rank 0 cannot save"), "{error}");
    // Another rank fails: the coordinator is told, and then everybody.
    let first = begin(options(2, 7, 3)).await.unwrap();
    let (second, third) = (
        join(options(2, 7, 3)).await.unwrap(),
        join(options(2, 7, 3)).await.unwrap(),
    );
    first.rank(0, items(&state, 0, 0, 3)).await.unwrap();
    second.rank(1, items(&state, 0, 1, 3)).await.unwrap();
    let broken = Error::new(ErrorKind::Io, "write", "the disk is broken");
    let ((), committed, published) = tokio::join!(
        third.fail(2, &broken),
        first.commit(metadata(0.0), forever),
        second.published(forever)
    );
    for error in [committed.unwrap_err(), published.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("rank 2 cannot save") && text.contains("the disk is broken"),
            "{text}"
        );
        assert!(!text.contains("rank 0"), "{text}");
    }
    // One that comes when the coordinator has gone is told, too.
    let late = join(options(2, 7, 3)).await.unwrap_err();
    assert!(late.to_string().contains("rank 2 cannot save"), "{late}");
    // Notes are nobody's: they go with the rest.
    gc(Arc::clone(&store), &context, &GcOptions::default())
        .await
        .unwrap();
    let mut left = store.list(&Key::parse("steps").unwrap(), ListOptions { recursive: true });
    while let Some(row) = left.next().await {
        let row = format!("{row:?}");
        assert!(!row.contains(".failed"), "{row}");
    }
}

#[tokio::test]
async fn ranks_that_disagree_are_refused() {
    let context = context();
    let store = memory();
    let begin = |how| Save::begin(Arc::clone(&store), &context, how);
    let one = begin(options(1, 1, 2)).await.unwrap();
    let other = SaveOptions {
        hash: HashKind::Sha256,
        ..options(1, 1, 2)
    };
    let two = Save::join(Arc::clone(&store), &context, other, NO_WAIT)
        .await
        .unwrap();
    one.rank(0, vec![]).await.unwrap();
    two.rank(1, vec![]).await.unwrap();
    let error = one.commit(metadata(0.0), NO_WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("sha-256"), "{error}");
    let one = begin(options(2, 1, 2)).await.unwrap();
    let other_world = Save::join(Arc::clone(&store), &context, options(2, 1, 3), NO_WAIT)
        .await
        .unwrap_err();
    assert_eq!(other_world.kind(), ErrorKind::InvalidInput, "{other_world}");
    one.abandon().await;
}

/// One fault at every single call of a save: the caller is told, or the checkpoint is good; what was there before always loads.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_of_a_save_may_fail() {
    let context = context();
    let (before, after) = (state(1), state(2));
    let (mut faults, mut survived) = (0, 0);
    for op in [
        Op::Head,
        Op::Read,
        Op::Put,
        Op::Upload,
        Op::Part,
        Op::Complete,
        Op::List,
        Op::Delete,
        Op::Capabilities,
    ] {
        for fault in [
            Fault::Fail(ErrorKind::Unavailable),
            Fault::Fail(ErrorKind::Unauthenticated),
            Fault::Fail(ErrorKind::OutOfSpace),
            Fault::LoseReply(ErrorKind::Unavailable),
        ] {
            for nth in 1.. {
                let inner = memory();
                save(&inner, &context, 1, 2, &before).await;
                let plan = FaultPlan::new(Seed(1)).with(op, When::Nth(nth), fault);
                let faulty = Faulty::new(Arc::clone(&inner), plan);
                let store: Arc<dyn Store> = Arc::new(faulty.clone());
                let saved = save_with(&store, &context, options(2, 1, 2), &after, 0).await;
                if faulty.hits() == 0 {
                    break;
                }
                faults += 1;
                load_all(&open(&inner, &context, 1).await, &before).await.unwrap();
                let there = Checkpoint::open(Arc::clone(&inner), &context, 2).await;
                match (saved, there) {
                    (Ok(_), there) => {
                        survived += 1;
                        load_all(&there.unwrap(), &after).await.unwrap();
                    }
                    // Lost replies: nobody knows, but what is there is whole.
                    (Err(_), Ok(there)) => load_all(&there, &after).await.unwrap(),
                    (Err(error), Err(none)) => {
                        assert_eq!(
                            none.kind(),
                            ErrorKind::NotFound,
                            "{op:?} {fault:?} {nth}: {error}"
                        );
                    }
                }
            }
        }
    }
    println!("{faults} faults, {survived} of them survived");
    assert!(faults > 60, "{faults}");
}

#[tokio::test]
async fn a_store_without_put_if_absent_needs_an_explicit_choice() {
    let context = context();
    let store: Arc<dyn Store> = Arc::new(Abilities {
        inner: memory(),
        put_if_absent: Proof::Refuted("8 of 8 writers won".to_owned()),
    });
    let state = state(1);
    let error = Save::begin(Arc::clone(&store), &context, options(1, 1, 1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("8 of 8 writers won"), "{error}");
    assert!(error.hint().unwrap().contains("single-writer"), "{error:?}");
    let alone = |step, attempt| SaveOptions {
        publish: Publish::SingleWriter,
        ..options(step, attempt, 2)
    };
    let (committed, _) = save_with(&store, &context, alone(1, 1), &state, 0).await.unwrap();
    assert_eq!(committed.manifest.publish, Publish::SingleWriter);
    let checkpoint = open(&store, &context, 1).await;
    assert_eq!(checkpoint.manifest().publish, Publish::SingleWriter);
    load_all(&checkpoint, &state).await.unwrap();
    let again = save_with(&store, &context, alone(1, 2), &state, 0)
        .await
        .unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
}

/// A job that is started again with the run id it had before: what a killed try left is not taken for a part of the new one.
#[tokio::test]
async fn an_attempt_is_begun_once() {
    let context = context();
    let unable: Arc<dyn Store> = Arc::new(Abilities {
        inner: memory(),
        put_if_absent: Proof::Refuted("8 of 8 writers won".to_owned()),
    });
    for store in [memory(), unable] {
        let how = |step| SaveOptions {
            publish: Publish::SingleWriter,
            ..options(step, 1, 2)
        };
        let begin = |step| Save::begin(Arc::clone(&store), &context, how(step));
        // Killed before anything was written, and after one rank has.
        drop(begin(1).await.unwrap());
        let killed = begin(2).await.unwrap();
        killed.rank(1, items(&state(1), 0, 1, 2)).await.unwrap();
        killed.abandon().await;
        for step in [1, 2] {
            let again = begin(step).await.unwrap_err();
            assert_eq!(again.kind(), ErrorKind::Precondition, "step {step}: {again}");
            assert!(again.hint().unwrap().contains("run id"), "{again:?}");
        }
        // The pin of the one that is there stays its own.
        Save::join(Arc::clone(&store), &context, how(1), NO_WAIT)
            .await
            .unwrap();
    }
}
