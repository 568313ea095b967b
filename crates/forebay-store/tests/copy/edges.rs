//! Copies at the edges: the same name in two places, uploads that are gone, files that are more than bytes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{ErrorKind, Key, Location};
use forebay_store::copy::{Copier, SourceCheck, is_tree_unfinished};
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

#[tokio::test(flavor = "multi_thread")]
async fn copies_of_files_open_nothing_to_others() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let from = local(&dir.path().join("from"), &context);
    for (name, len) in [("small", 100), ("large", 3 << 20)] {
        put(&from, name, len).await;
        let secret = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(dir.path().join("from").join(name), secret).unwrap();
    }
    let to = local(&dir.path().join("to"), &context);
    let copier = Copier::new(Arc::clone(&from), Arc::clone(&to), &context);
    no_failures(&copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap());
    no_failures(&copier.objects(vec![(key("small"), key("named"))]).await.unwrap());
    for name in ["small", "large", "named"] {
        let meta = std::fs::metadata(dir.path().join("to").join(name)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o777, 0o600, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_copied_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(&dir.path().join("state"));
    let from = local(&dir.path().join("from"), &context);
    put(&from, "a", 10).await;
    put(&from, "z", 10).await;
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("from/s")).unwrap();
    let to = local(&dir.path().join("to"), &context);
    let report = Copier::new(from, Arc::clone(&to), &context)
        .tree(&Key::ROOT, &Key::ROOT)
        .await
        .unwrap();
    no_failures(&report);
    assert_eq!((report.objects_copied, report.skipped_special), (2, 1));
    assert_eq!(names(&to).await, ["a", "z"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn checksums_that_a_listing_leaves_out_are_asked_for_where_it_pays() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(dir.path());
    let inner = memory();
    put(&inner, "medium", 1 << 20).await;
    put(&inner, "small", (1 << 20) - 1).await;
    let (from, asked) = odd(inner);
    asked.is_bucket.store(true, Ordering::SeqCst);
    let keep = Arc::new(Keep::default());
    let copier = Copier::new(from, memory(), &context).with_progress(Arc::clone(&keep) as Arc<dyn Progress>);
    let report = copier.tree(&Key::ROOT, &Key::ROOT).await.unwrap();
    no_failures(&report);
    assert_eq!((load(&asked.heads), report.source_matched), (1, 1));
    let mut checks: Vec<_> = keep
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|done| (done.size, done.source))
        .collect();
    checks.sort_by_key(|(size, _)| *size);
    let expected = [
        ((1 << 20) - 1, SourceCheck::NotAsked),
        (1 << 20, SourceCheck::Matched),
    ];
    assert_eq!(checks, expected);

    // And compared.
    asked.tamper_reads.store(true, Ordering::SeqCst);
    let report = copier.objects(vec![(key("small"), key("x"))]).await.unwrap();
    assert_eq!(report.failures[0].error.kind(), ErrorKind::Corrupt);
    let report = copier.tree(&Key::ROOT, &key("y")).await.unwrap();
    assert_eq!(report.objects_failed, 1, "{:?}", report.failures);
    assert_eq!(report.failures[0].key, Some(key("medium")));
}
