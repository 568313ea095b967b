//! Copies at the edges: the same name in two places, uploads that are gone, files that are more than bytes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{ErrorKind, Key, Location};
use forebay_store::copy::{Copier, is_tree_unfinished};
use forebay_store::remote::{Environment, RemoteConfig, open_with};
use forebay_store::tiers::{Tiers, TiersConfig};
use forebay_store::wrap::Prefixed;
use forebay_store::{MemoryStore, Store};

use super::odd::{load, odd};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn stores_of_one_location_are_not_one_store() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let (from, to): (Arc<dyn Store>, Arc<dyn Store>) =
        (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    assert_eq!(from.location(), to.location());
    put(&from, "a/k", 100).await;
    let copier = Copier::new(Arc::clone(&from), Arc::clone(&to), &context);
    no_failures(&copier.objects(vec![(key("a/k"), key("a/k"))]).await.unwrap());
    no_failures(&copier.tree(&key("a"), &key("a/b")).await.unwrap());
    assert_eq!(names(&to).await, ["a/b/k", "a/k"]);

    // What is the same store behind wrappers is still found out.
    let inside: Arc<dyn Store> = Arc::new(Prefixed::new(Arc::clone(&from), key("a")));
    let copier = Copier::new(Arc::clone(&inside), Arc::clone(&from), &context);
    let error = copier.objects(vec![(key("k"), key("a/k"))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let tiers = Tiers::new(vec![to, from], TiersConfig::default(), &context).unwrap();
    let error = Copier::new(Arc::new(tiers), inside, &context)
        .tree(&Key::ROOT, &key("x"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "inside one of the tiers");
}

#[tokio::test]
async fn a_bucket_is_another_one_behind_another_endpoint() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let mut identities = Vec::new();
    for (url, endpoint) in [
        ("s3://datasets", "http://127.0.0.1:1"),
        ("s3://datasets", "http://127.0.0.1:2"),
        ("s3://datasets/a", "http://127.0.0.1:2"),
        ("s3://datasets/a/b", "http://127.0.0.1:2"),
    ] {
        let location = Location::parse(url, Path::new("/")).unwrap();
        let vars = [
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ACCESS_KEY_ID", "someone"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let config = RemoteConfig::resolve(&location, Environment::fixed(vars))
            .await
            .unwrap();
        let identity = open_with(&location, &context, &config).unwrap().identity();
        assert!(
            !identity.contains("secret") && !identity.contains("someone"),
            "{identity}"
        );
        identities.push(identity);
    }
    assert_ne!(identities[0], identities[1]);
    assert_eq!(identities[3], format!("{}/b", identities[2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn journals_of_stores_of_one_name_do_not_meet() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    put(&from, "large", 6 << 20).await;
    let there: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let (to, told) = odd(Arc::clone(&there));
    let pair = || vec![(key("large"), key("copy"))];
    for name in ["one", "two"] {
        *told.identity.lock().unwrap() = Some(name.to_owned());
        told.writes_left.store(3, Ordering::SeqCst);
        let report = Copier::new(Arc::clone(&from), Arc::clone(&to), &context)
            .objects(pair())
            .await
            .unwrap();
        assert_eq!((report.objects_failed, report.bytes_resumed), (1, 0), "{name}");
    }
    assert_eq!(journals(dir.path()).len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_tree_is_found_by_its_locations() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let place = |name: &str| Location::from_path(&dir.path().join(name), Path::new("/")).unwrap();
    let from = local(&dir.path().join("from"), &context);
    put(&from, "a", 10).await;
    put(&from, "b", 10).await;
    let (to, told) = odd(local(&dir.path().join("to"), &context));
    told.writes_left.store(1, Ordering::SeqCst);
    let copier = Copier::new(from, to, &context);
    for is_over in [false, true] {
        let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
        assert_eq!(report.is_complete(), is_over);
        let is_unfinished = is_tree_unfinished(&place("from"), &place("to"), &context).await;
        assert_eq!(is_unfinished, !is_over);
        told.writes_left.store(-1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_the_store_has_forgotten_is_begun_anew() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let from = memory();
    put(&from, "large", 6 << 20).await;
    let there = memory();
    let (to, told) = odd(Arc::clone(&there));
    let copier = Copier::new(from, to, &context);
    let pair = || vec![(key("large"), key("copy"))];
    told.writes_left.store(3, Ordering::SeqCst);
    assert_eq!(copier.objects(pair()).await.unwrap().objects_failed, 1);
    told.writes_left.store(-1, Ordering::SeqCst);
    told.forgotten_below.store(1, Ordering::SeqCst);
    told.parts.store(0, Ordering::SeqCst);
    let report = copier.objects(pair()).await.unwrap();
    no_failures(&report);
    assert_eq!(
        (report.bytes_resumed, load(&told.parts)),
        (0, 6),
        "all of it, once"
    );
    assert_eq!(get(&there, "copy").await, content("large", 6 << 20));
    assert_eq!(journals(dir.path()), [""; 0]);

    // Once, not for ever: a store that forgets every upload is an error, and what is not there is not remembered.
    told.writes_left.store(3, Ordering::SeqCst);
    assert_eq!(copier.objects(pair()).await.unwrap().objects_failed, 1);
    told.writes_left.store(-1, Ordering::SeqCst);
    told.forgotten_below.store(u64::MAX, Ordering::SeqCst);
    let report = copier.objects(pair()).await.unwrap();
    assert_eq!(report.failures[0].error.kind(), ErrorKind::NotFound);
    told.forgotten_below.store(0, Ordering::SeqCst);
    no_failures(&copier.objects(pair()).await.unwrap());
}
