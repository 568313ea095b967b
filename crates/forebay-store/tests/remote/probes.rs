//! The probe finds every way in which a server falls short, believes a good one, and cleans up.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_core::{DataPath, ErrorKind, Limits, PathPolicy};
use forebay_io::Buf;
use forebay_store::{Body, Capabilities, ListOptions, Proof, PutMode, PutOptions, ReadOptions, WriteCheck};

use futures::TryStreamExt;

use crate::support::origin::{Origin, Quirk, error};
use crate::support::proxy::{Fault, Proxy, Rule, Which};
use crate::support::wire::Message;
use crate::support::{Server, context, context_with, key, limits, open, put};

async fn probe(quirks: &[Quirk]) -> (Origin, Capabilities) {
    let origin = Origin::start(quirks).await;
    let store = Server::of_origin(&origin).store("probe", &context()).await;
    let capabilities = store.capabilities().await.unwrap();
    (origin, capabilities)
}

#[tokio::test]
async fn a_good_server_is_believed_and_left_clean() {
    let (origin, capabilities) = probe(&[]).await;
    for (name, proof) in capabilities.rows() {
        assert_eq!(*proof, Proof::Shown, "{name}");
    }
    assert!(capabilities.probed.is_some());
    assert!(origin.names().is_empty(), "{:?}", origin.names());
    assert_eq!(origin.uploads(), 0);
}

#[tokio::test]
async fn every_quirk_is_found() {
    type Pick = fn(&Capabilities) -> &Proof;
    let cases: [(Quirk, Pick); 9] = [
        (Quirk::IgnoreIfNoneMatch, |found| &found.put_if_absent),
        (Quirk::RacyIfNoneMatch, |found| &found.put_if_absent),
        (Quirk::IgnoreCompleteCondition, |found| &found.upload_if_absent),
        (Quirk::IgnoreChecksum, |found| &found.checksum),
        (Quirk::IgnoreChecksum, |found| &found.upload_checksum),
        (Quirk::IgnorePartChecksum, |found| &found.upload_checksum),
        (Quirk::IgnoreIfMatch, |found| &found.version_match),
        (Quirk::IgnoreRange, |found| &found.range),
        (Quirk::EagerUpload, |found| &found.multipart),
    ];
    for (quirk, pick) in cases {
        let (origin, capabilities) = probe(&[quirk]).await;
        assert!(
            matches!(pick(&capabilities), Proof::Refuted(_)),
            "{quirk:?}: {capabilities:?}"
        );
        assert!(origin.names().is_empty(), "{quirk:?}: {:?}", origin.names());
        assert_eq!(origin.uploads(), 0, "{quirk:?}");
    }
}

/// The server compares the checksums of whole objects only, so nothing is claimed of uploads.
#[tokio::test]
async fn what_was_shown_of_puts_is_not_claimed_of_uploads() {
    let origin = Origin::start(&[Quirk::IgnorePartChecksum]).await;
    let store = Server::of_origin(&origin).store("parts", &context()).await;
    let capabilities = store.capabilities().await.unwrap();
    assert!(capabilities.checksum.is_shown(), "{capabilities:?}");
    let done = put(&*store, "whole", b"x").await.unwrap();
    assert_eq!(done.check, WriteCheck::ByStore);
    let upload = store.upload(&key("parts"), &PutOptions::default()).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"x").unwrap().into())
        .await
        .unwrap();
    assert_eq!(upload.complete().await.unwrap().check, WriteCheck::Unchecked);
}

fn is_race(request: &Message) -> bool {
    request.header("if-none-match").is_some() && request.path().contains("/race-")
}

/// A store behind a proxy that answers some of the racing writers with 503.
async fn disturbed(which: Which) -> (Proxy, Capabilities) {
    let origin = Origin::start(&[]).await;
    let server = Server::of_origin(&origin);
    let rule = Rule::new(is_race, which, Fault::Reply(error(503, "SlowDown")));
    let proxy = Proxy::start(server.address(), vec![rule]).await;
    let folder = tempfile::tempdir().unwrap();
    let context = context().with_state_dir(Some(folder.path().to_owned()));
    let store = server.through(&proxy.url()).store("busy", &context).await;
    let capabilities = store.capabilities().await.unwrap();
    let kept = std::fs::read_dir(folder.path().join("probes")).is_ok();
    assert_eq!(
        kept,
        capabilities.put_if_absent.is_shown(),
        "what a busy server left open must not be kept"
    );
    (proxy, capabilities)
}

#[tokio::test]
async fn a_race_that_was_disturbed_is_run_again() {
    let (proxy, capabilities) = disturbed(Which::Nth(3)).await;
    assert_eq!(capabilities.put_if_absent, Proof::Shown);
    let rounds: BTreeSet<String> = proxy
        .log()
        .iter()
        .filter(|request| is_race(request))
        .map(|request| request.path().to_owned())
        .collect();
    assert_eq!(rounds.len(), 9, "{rounds:?}");
}

#[tokio::test]
async fn a_race_whose_losers_never_answer_shows_nothing() {
    let every_other = Which::OneIn(2, forebay_core::Seed(4).rng());
    let (_, capabilities) = disturbed(every_other).await;
    let Proof::Untried(why) = &capabilities.put_if_absent else {
        panic!("{capabilities:?}")
    };
    assert!(why.contains("throttled"), "{why}");
}

/// The condition belongs to the completion: servers refuse it elsewhere, and the probe must not ask another question than a real upload does.
#[tokio::test]
async fn only_completions_carry_the_condition_of_an_upload() {
    let origin = Origin::start(&[]).await;
    let store = Server::of_origin(&origin).store("condition", &context()).await;
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let upload = store.upload(&key("o"), &options).await.unwrap();
    upload
        .put_part(0, Buf::copy_of(b"x").unwrap().into())
        .await
        .unwrap();
    upload.complete().await.unwrap();
    let given_up = store.upload(&key("p"), &options).await.unwrap();
    given_up.abort().await.unwrap();
    for request in origin.log() {
        let of_upload = request.query("uploadId").is_some() || request.query("uploads").is_some();
        let completes = request.method() == "POST" && request.query("uploadId").is_some();
        if of_upload {
            let conditional = request.header("if-none-match").is_some();
            // The probe completes one upload without a condition.
            assert!(completes || !conditional, "{}", request.start);
        }
        if completes && request.path().ends_with("/o") {
            assert_eq!(request.header("if-none-match"), Some("*"));
        }
    }
}

#[tokio::test]
async fn a_probe_whose_caller_goes_away_cleans_up() {
    let origin = Origin::start(&[]).await;
    let store = Server::of_origin(&origin).store("dropped", &context()).await;
    let begun = async {
        while origin.uploads() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = begun => {}
        found = store.capabilities() => panic!("{found:?}"),
    }
    assert!(!origin.names().is_empty());
    let clean = async {
        while !origin.names().is_empty() || origin.uploads() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), clean)
        .await
        .expect("a dropped probe leaves its objects behind");
}

#[tokio::test]
async fn listings_leave_out_what_probes_left() {
    let origin = Origin::start(&[]).await;
    for name in ["a", ".forebay-probe/x/object", "d/.forebay-probe/y/object", "d/b"] {
        origin.insert(name, b"x");
    }
    let server = Server::of_origin(&origin);
    let store = open("s3://bucket", &server.vars(), &context()).await.unwrap();
    let list = async |prefix: &forebay_core::Key, recursive| -> Vec<String> {
        let rows = store.list(prefix, ListOptions { recursive });
        let rows: Vec<_> = rows.try_collect().await.unwrap();
        rows.iter().map(|row| row.key().to_string()).collect()
    };
    let root = forebay_core::Key::ROOT;
    assert_eq!(list(&root, true).await, ["a", "d/b"]);
    assert_eq!(list(&root, false).await, ["a", "d"]);
    // Whoever asks for them by name can find and remove them.
    assert_eq!(
        list(&key(".forebay-probe"), true).await,
        [".forebay-probe/x/object"]
    );
}

#[tokio::test]
async fn who_may_not_write_learns_that_nothing_was_tried() {
    let (_, capabilities) = probe(&[Quirk::ReadOnly]).await;
    for (name, proof) in capabilities.rows() {
        let Proof::Untried(why) = proof else {
            panic!("{name}: {proof:?}")
        };
        assert!(why.contains("permission denied"), "{why}");
    }
}

#[tokio::test]
async fn conditional_writes_are_refused_where_the_probe_does_not_show_them() {
    let quirks = [Quirk::IgnoreIfNoneMatch, Quirk::IgnoreCompleteCondition];
    let origin = Origin::start(&quirks).await;
    let store = Server::of_origin(&origin).store("refuse", &context()).await;
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let body = Body::from(Buf::copy_of(b"x").unwrap());
    let error = store.put(&key("o"), body, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("replaced an object"), "{error}");
    let error = store.upload(&key("o"), &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(origin.names().is_empty());
    put(&*store, "o", b"plain writes still work").await.unwrap();
}

#[tokio::test]
async fn results_are_kept_between_stores_and_damage_means_probing_again() {
    let origin = Origin::start(&[]).await;
    let server = Server::of_origin(&origin);
    let folder = tempfile::tempdir().unwrap();
    let open = async || {
        let context = context().with_state_dir(Some(folder.path().to_owned()));
        server.store("cached", &context).await
    };
    let first = open().await.capabilities().await.unwrap();
    let asked = origin.log().len();
    let second = open().await.capabilities().await.unwrap();
    assert_eq!(first, second);
    assert_eq!(
        origin.log().len(),
        asked,
        "the second store asked the server again"
    );
    for file in std::fs::read_dir(folder.path().join("probes")).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"shown\"", "{\"untried\": \"forged\"}")).unwrap();
    }
    let third = open().await.capabilities().await.unwrap();
    assert!(third.put_if_absent.is_shown());
    assert!(origin.log().len() > asked);
}

#[tokio::test]
async fn server_the_real_server_is_probed() {
    let Some(server) = Server::from_env() else { return };
    // A busy machine takes its time, and a race in which somebody gave up says nothing.
    let patient = Limits {
        stall_ms_max: 20_000,
        ..limits()
    };
    let store = server.store("probed", &context_with(patient)).await;
    let capabilities = store.capabilities().await.unwrap();
    assert!(
        capabilities.range.is_shown() && capabilities.multipart.is_shown(),
        "{capabilities:?}"
    );
    if server.kind == "seaweedfs" {
        for (name, proof) in capabilities.rows() {
            // Its conditional completions race, and a race is not lost every time.
            assert!(
                proof.is_shown() || name == "upload_if_absent",
                "{name}: {proof:?}"
            );
        }
    }
    if server.kind == "garage" {
        assert!(
            matches!(capabilities.put_if_absent, Proof::Refuted(_)),
            "{capabilities:?}"
        );
    }
    if server.kind == "ceph" {
        assert!(!capabilities.checksum.is_shown(), "{capabilities:?}");
    }
    let left: Vec<_> = store
        .list(
            &forebay_core::Key::ROOT,
            forebay_store::ListOptions { recursive: true },
        )
        .try_collect()
        .await
        .unwrap();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_path_that_http_is_not_is_refused() {
    let origin = Origin::start(&[]).await;
    let store = Server::of_origin(&origin).store("policy", &context()).await;
    put(&*store, "o", b"x").await.unwrap();
    let buf = forebay_io::AlignedBuf::alloc(1, forebay_io::Pages::Small).unwrap();
    let options = ReadOptions {
        policy: PathPolicy::Require(DataPath::DirectUring),
        ..ReadOptions::default()
    };
    let span = forebay_core::Span::first(1);
    let error = store.read_into(&key("o"), span, buf, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
