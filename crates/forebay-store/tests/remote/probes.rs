//! The probe finds every way in which a server falls short, believes a good one, and cleans up.

use forebay_core::{DataPath, ErrorKind, PathPolicy};
use forebay_io::Buf;
use forebay_store::{Body, Capabilities, Proof, PutMode, PutOptions, ReadOptions};

use futures::TryStreamExt;

use crate::support::origin::{Origin, Quirk};
use crate::support::{Server, context, key, put};

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
    let cases: [(Quirk, Pick); 7] = [
        (Quirk::IgnoreIfNoneMatch, |found| &found.put_if_absent),
        (Quirk::RacyIfNoneMatch, |found| &found.put_if_absent),
        (Quirk::IgnoreCompleteCondition, |found| &found.upload_if_absent),
        (Quirk::IgnoreChecksum, |found| &found.checksum),
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
    }
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
    let store = server.store("probed", &context()).await;
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
