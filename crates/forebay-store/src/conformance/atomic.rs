//! Whole or not at all: replacing under readers, racing writers, writes that are dropped or refused.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use forebay_core::{ErrorKind, Key, Span};
use forebay_io::Buf;
use futures::future::join_all;

use super::{Miss, Suite, Verdict, ensure, expect_error, pattern};
use crate::ext::StoreExt;
use crate::store::{PutDone, PutMode, PutOptions, ReadOptions, Store};

/// Writes of the replacing check: enough for readers to meet some of them half-way.
const ROUNDS: u8 = 12;

/// Readers beside the writer.
const READERS: usize = 3;

/// Writers that race for one name.
const RACERS: u8 = 8;

const IF_ABSENT: PutMode = PutMode::IfAbsent;

fn absent() -> PutOptions {
    PutOptions {
        mode: IF_ABSENT,
        ..PutOptions::default()
    }
}

/// Content of one round: one byte throughout, and a size of its own.
fn uniform(round: u8) -> Vec<u8> {
    vec![round; 100_000 + usize::from(round) * 5_000]
}

pub(super) async fn replace_under_readers(suite: &Suite) -> Verdict {
    let key = suite.key("object")?;
    suite.put("object", &uniform(0)).await?;
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (store, context) = (Arc::clone(&suite.store), suite.context.clone());
            let (key, over) = (key.clone(), Arc::clone(&over));
            tokio::spawn(async move {
                while !over.load(Ordering::Relaxed) {
                    read_whole(&*store, &key, &context).await?;
                    tokio::task::yield_now().await;
                }
                Ok::<(), Miss>(())
            })
        })
        .collect();
    let mut written = Ok(());
    for round in 1..=ROUNDS {
        written = suite.put("object", &uniform(round)).await.map(drop);
        if written.is_err() {
            break;
        }
    }
    over.store(true, Ordering::Relaxed);
    for reader in readers {
        reader
            .await
            .map_err(|error| Miss::Failed(format!("a reader panicked: {error}")))??;
    }
    written?;
    ensure!(
        suite.get("object").await? == uniform(ROUNDS),
        "not the last content after all writes"
    );
    Ok(())
}

/// One look by a reader: an object is there, whole, of one round.
async fn read_whole(store: &dyn Store, key: &Key, context: &crate::Context) -> Verdict {
    let meta = store.head(key).await?;
    let options = ReadOptions {
        version: meta.version.clone(),
        ..ReadOptions::default()
    };
    let bytes = match store.read(key, Span::first(meta.size), &options, context).await {
        Ok((bytes, _)) => bytes,
        // Replaced since the head: a stale version, or a size that is too long by now.
        Err(error) if error.kind() == ErrorKind::Precondition => return Ok(()),
        Err(error) if error.kind() == ErrorKind::InvalidInput && options.version.is_none() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let round = bytes.first().copied().unwrap_or_default();
    ensure!(
        bytes.iter().all(|byte| *byte == round),
        "a reader saw a mixture of old and new"
    );
    ensure!(
        options.version.is_none() || bytes.len() == uniform(round).len(),
        "a reader saw {} bytes of round {round}",
        bytes.len()
    );
    Ok(())
}

/// Skip where the store says that it cannot; everything else must be right.
fn unless_unsupported(
    suite: &Suite,
    result: Result<PutDone, forebay_core::Error>,
) -> Verdict<Result<PutDone, forebay_core::Error>> {
    match result {
        Err(error)
            if error.kind() == ErrorKind::Unsupported && !suite.capabilities.put_if_absent.is_shown() =>
        {
            Err(Miss::Skipped(format!(
                "put-if-absent is refused: {:?}",
                suite.capabilities.put_if_absent
            )))
        }
        result => Ok(result),
    }
}

pub(super) async fn absent_only_once(suite: &Suite) -> Verdict {
    let key = suite.key("dir/object")?;
    let put = |bytes: &'static [u8]| {
        let key = key.clone();
        async move { suite.store.put_bytes(&key, bytes, &absent()).await }
    };
    unless_unsupported(suite, put(b"first").await)??;
    expect_error(
        "a second put",
        put(b"second").await,
        ErrorKind::AlreadyExists,
        "dir/object",
    )?;
    ensure!(
        suite.get("dir/object").await? == b"first",
        "the refused put changed the object"
    );
    suite.store.delete(&key).await?;
    put(b"third").await?;
    ensure!(
        suite.get("dir/object").await? == b"third",
        "after deleting, put-if-absent wrote nothing"
    );
    Ok(())
}

pub(super) async fn absent_race(suite: &Suite) -> Verdict {
    for round in 0..3 {
        let key = suite.key(&format!("round-{round}"))?;
        let racers = (0..RACERS).map(|racer| {
            let (store, key) = (Arc::clone(&suite.store), key.clone());
            tokio::spawn(async move { store.put_bytes(&key, &[racer; 5000], &absent()).await })
        });
        let mut winners = Vec::new();
        for (racer, result) in join_all(racers).await.into_iter().enumerate() {
            let result = result.map_err(|error| Miss::Failed(format!("a writer panicked: {error}")))?;
            match unless_unsupported(suite, result)? {
                Ok(_) => winners.push(racer as u8),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error.into()),
            }
        }
        ensure!(
            winners.len() == 1,
            "{} of {RACERS} racing writers won",
            winners.len()
        );
        let content = suite.get(&format!("round-{round}")).await?;
        ensure!(
            content == [winners[0]; 5000],
            "the content is not that of the writer who won"
        );
    }
    Ok(())
}

/// Poll a future some times, letting others run in between, and drop it.
async fn poll_some<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    for _ in 0..times {
        let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

pub(super) async fn dropped_put(suite: &Suite) -> Verdict {
    let (old, new) = (pattern(1, 50_000), pattern(2, 300_000));
    suite.put("object", &old).await?;
    for times in [1, 2, 3, 5, 8, 13, 21, 50, 200, 1000] {
        for name in ["object", "other"] {
            let body = Buf::copy_of(&new)?.into();
            let key = suite.key(name)?;
            let options = PutOptions::default();
            poll_some(suite.store.put(&key, body, &options), times).await;
        }
        let content = suite.get("object").await?;
        ensure!(
            content == old || content == new,
            "a dropped put left {} bytes that are neither the old nor the new content",
            content.len()
        );
        let listed = suite.list("", true).await?;
        for name in &listed {
            ensure!(
                name == "object" || name == "other",
                "a dropped put left '{name}' behind"
            );
        }
        if listed.iter().any(|name| name == "other") {
            ensure!(
                suite.get("other").await? == new,
                "a dropped put left a part behind"
            );
        }
        suite.put("object", &old).await?;
        suite.store.delete(&suite.key("other")?).await?;
    }
    Ok(())
}

pub(super) async fn refused_put_changes_nothing(suite: &Suite) -> Verdict {
    let bytes = pattern(3, 10_000);
    suite.put("object", &bytes).await?;
    let before = suite.store.head(&suite.key("object")?).await?;
    let refused = suite
        .store
        .put_bytes(&suite.key("object")?, b"other", &absent())
        .await;
    ensure!(refused.is_err(), "put-if-absent replaced an object");
    ensure!(
        suite.get("object").await? == bytes,
        "a refused put changed the object"
    );
    ensure!(
        suite.store.head(&suite.key("object")?).await? == before,
        "a refused put changed what is known of the object"
    );
    Ok(())
}
