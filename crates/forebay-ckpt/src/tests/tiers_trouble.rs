//! Tiers with something wrong in them: one bad checkpoint, one missing object, one store that is away keeps the others from nothing.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Seed};
use forebay_store::wrap::{Fault, FaultPlan, Faulty, Op, When};
use forebay_store::{PutOptions, Store, StoreExt};

use super::hooked::{Call, Hooked};
use super::support::*;
use super::tiers::*;
use crate::*;

/// The newest step has an object that is missing, or that the disk cannot read: the older ones are brought all the same, again and again, and room is made.
#[tokio::test]
async fn a_bad_step_does_not_keep_others_from_being_brought() {
    let context = context();
    for (kind, piece) in [
        (ErrorKind::Io, ".safetensors"),
        (ErrorKind::NotFound, ".safetensors"),
        (ErrorKind::Io, ".part"),
        (ErrorKind::NotFound, ".part"),
    ] {
        let (disk, far) = (memory(), memory());
        for step in 1..=3 {
            save(&disk, &context, step, 1, &state(step)).await;
        }
        let bad = format!("steps/{:020}/", 3);
        let near = Hooked::over(&disk, move |call, key| {
            let is_bad = matches!(call, Call::Head | Call::Read(_))
                && key.as_str().starts_with(&bad)
                && key.as_str().ends_with(piece);
            async move {
                if is_bad {
                    Err(Error::new(kind, "read", "a bad sector"))
                } else {
                    Ok(())
                }
            }
        });
        let tiers = Tiers::new(
            vec![tier(&near, "near", Some(1)), tier(&far, "far", None)],
            &context,
        );
        let options = DrainerOptions {
            drain: now(),
            every: Duration::from_secs(3600),
            collects: true,
        };
        let drainer = Drainer::start(tiers.unwrap(), options);
        let state = drainer.settled().await.unwrap();
        assert_eq!(steps(&far, &context).await, [1, 2], "{kind:?} {piece}");
        let passed: Vec<_> = state
            .report
            .passed
            .iter()
            .map(|one| (one.step, one.is_trouble))
            .collect();
        assert_eq!(passed, [(3, true)], "{kind:?} {piece}");
        assert_eq!(steps(&near, &context).await, [3], "{kind:?} {piece}");
    }
}

/// The far store is away: what it is to have stays near, and what it is not to have goes all the same.
#[tokio::test]
async fn room_is_made_also_while_nothing_can_be_drained() {
    let context = context();
    let near = memory();
    for step in 1..=6 {
        save(&near, &context, step, 1, &state(step)).await;
    }
    let plan = FaultPlan::new(Seed(1)).with(Op::List, When::Always, Fault::Fail(ErrorKind::Unavailable));
    let away: Arc<dyn Store> = Arc::new(Faulty::new(memory(), plan));
    let tiers = Tiers::new(
        vec![tier(&near, "near", Some(1)), tier(&away, "away", Some(3))],
        &context,
    );
    let options = DrainerOptions {
        drain: now(),
        every: Duration::from_secs(3600),
        collects: true,
    };
    let drainer = Drainer::start(tiers.unwrap(), options);
    let error = drainer.settled().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(steps(&near, &context).await, [4, 5, 6]);
}

fn want_all(state: &State) -> impl FnMut() -> forebay_core::Result<Vec<Want>> + use<> {
    let state = state.clone();
    move || {
        let wants = state.iter();
        Ok(wants
            .map(|(name, tensor)| want(name, tensor, &vec![0; tensor.shape.len()], &tensor.shape))
            .collect())
    }
}

/// Whatever object of the nearest tier is missing, the next one is read from.
#[tokio::test]
async fn a_missing_object_is_a_reason_to_go_on_with_the_next_tier() {
    let context = context();
    let state = state(1);
    for ending in [".safetensors", ".part"] {
        let (near, far) = (memory(), memory());
        save(&near, &context, 1, 1, &state).await;
        drain_all(&near, &far, &context).await;
        let lost = objects(&near, &context)
            .await
            .into_keys()
            .find(|key| key.ends_with(ending));
        near.delete(&Key::parse(&lost.unwrap()).unwrap()).await.unwrap();
        let tiers = Tiers::new(vec![tier(&near, "near", None), tier(&far, "far", None)], &context).unwrap();
        let mut opened = tiers.open(None, false).await.unwrap();
        let loaded = opened.load(want_all(&state)).await;
        assert!(loaded.is_ok(), "{ending}: {:?}", loaded.err());
        assert_eq!(opened.from().number, 1, "{ending}");
    }
}

/// After a fall back, what is read is opened with the same keys, and signed by the same people, or not read.
#[tokio::test]
async fn the_next_tier_is_read_by_the_same_rules() {
    let context = context();
    let state = state(1);
    let (near, far) = (memory(), memory());
    let ((signer, _), (other, _)) = (SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let how = SaveOptions {
        hash: HashKind::Blake3,
        seal: crate::seal::tests::keys(&[1]),
        sign: Some(signer.clone()),
        ..options(1, 1, 1)
    };
    save_with(&near, &context, how, &state, 0).await.unwrap();
    drain_all(&near, &far, &context).await;
    let payload = open(&near, &context, 1).await.manifest().payloads[0].key();
    near.delete(&payload).await.unwrap();
    let both = || vec![tier(&near, "near", None), tier(&far, "far", None)];
    let folder = tempfile::tempdir().unwrap();
    let log = AccessLog::new(folder.path().join("access.log"));
    let reading = Reading {
        keys: crate::seal::tests::keys(&[1]),
        trusted: vec![signer.public()],
        access_log: Some(log.clone()),
        rank: None,
    };
    let tiers = Tiers::new(both(), &context).unwrap().reading(reading.clone());
    let mut opened = tiers.open(None, false).await.unwrap();
    opened.load(want_all(&state)).await.unwrap();
    assert_eq!(opened.from().number, 1);
    assert_eq!(log.verify().unwrap().lines, 2, "each tier that was tried");
    // The far one is of somebody else.
    let manifest = crate::names::manifest_key(1);
    let mut forged = open(&far, &context, 1).await.manifest().clone();
    forged.signatures = Vec::new();
    forged.sign(&other).unwrap();
    let bytes = forged.encode().unwrap();
    far.put_bytes(&manifest, &bytes, &PutOptions::default())
        .await
        .unwrap();
    let mut opened = tiers.open(None, false).await.unwrap();
    let error = opened.load(want_all(&state)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(opened.from().number, 0);
    assert!(
        opened.from().not_from[1].why.contains("sign"),
        "{:?}",
        opened.from()
    );
}

/// No checkpoint is found, and a tier could not be asked: that is no reason to begin anew.
#[tokio::test]
async fn a_tier_that_cannot_be_asked_is_not_an_empty_one() {
    let context = context();
    let away = || -> Arc<dyn Store> {
        let plan = FaultPlan::new(Seed(1)).with(Op::List, When::Always, Fault::Fail(ErrorKind::Unavailable));
        Arc::new(Faulty::new(memory(), plan))
    };
    let tiers = Tiers::new(
        vec![tier(&memory(), "near", None), tier(&away(), "away", None)],
        &context,
    )
    .unwrap();
    let error = tiers.open(None, false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let (placed, unreachable) = tiers.list().await.unwrap();
    assert_eq!((placed.len(), unreachable.len()), (0, 1));
    let tiers = Tiers::new(vec![tier(&away(), "a", None), tier(&away(), "b", None)], &context).unwrap();
    assert_eq!(tiers.list().await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// Payloads of a step that is gone, of many ranks: the parts are gone through once, not once for every few of them.
#[tokio::test]
async fn orphans_are_found_in_one_pass() {
    let context = context();
    let (inner, far) = (memory(), memory());
    let world = 24;
    let first = state(1);
    save(&inner, &context, 1, world, &first).await;
    save_with(&inner, &context, on(2, 1, world), &changed(&first, 1), 0)
        .await
        .unwrap();
    let keep = GcOptions {
        keep_last: Some(1),
        ..GcOptions::default()
    };
    gc(Arc::clone(&inner), &context, &keep).await.unwrap();
    let opened = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let count = Arc::clone(&opened);
    let near = Hooked::over(&inner, move |call, key| {
        if matches!(call, Call::Read(_)) && key.as_str().ends_with("rank-000000.part") {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        async { Ok(()) }
    });
    drain_all(&near, &far, &context).await;
    load_all(&open(&far, &context, 2).await, &changed(&first, 1))
        .await
        .unwrap();
    // For orphans, for the payload of rank 0, for its own seals, and as it is sent.
    let opened = opened.load(std::sync::atomic::Ordering::Relaxed);
    assert!(opened <= 4, "{opened}");
}
