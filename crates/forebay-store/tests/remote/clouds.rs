//! Google, Azure and plain HTTP: no such service is here, so what goes over the wire is looked at, and what comes back is made up.

use forebay_core::ErrorKind;
use forebay_store::{Entry, ListOptions, Proof, PutOptions, Store};
use futures::TryStreamExt;

use crate::support::fake::Fake;
use crate::support::origin::Origin;
use crate::support::wire::Message;
use crate::support::{context, key, open, put, read};

/// A cloud with one object, `hello world`, under any name but `missing`.
fn cloud(request: &Message) -> Message {
    let body = b"hello world";
    if request.path().ends_with("missing") {
        return Message::reply(404, "<Error><Code>BlobNotFound</Code></Error>");
    }
    let base = |status, bytes: &[u8]| {
        Message::reply(status, bytes)
            .with("etag", "\"v1\"")
            .with("last-modified", "Wed, 01 Jan 2025 00:00:00 GMT")
    };
    match (request.method(), request.header("range")) {
        ("GET", Some(range)) => {
            let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap();
            let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
            base(206, &body[start..=end]).with("content-range", format!("bytes {start}-{end}/{}", body.len()))
        }
        ("HEAD", _) => base(200, b"").with("content-length", body.len().to_string()),
        ("PUT", _) => base(201, b""),
        ("DELETE", _) => Message::reply(202, ""),
        _ => Message::reply(500, ""),
    }
}

async fn tour(store: &dyn Store) {
    assert_eq!(read(store, "dir/a b", 6..11).await.unwrap(), b"world");
    let meta = store.head(&key("dir/a b")).await.unwrap();
    assert_eq!((meta.size, meta.version.as_deref()), (11, Some("\"v1\"")));
    assert_eq!(
        put(store, "dir/a b", b"x").await.unwrap().version.as_deref(),
        Some("\"v1\"")
    );
    let error = read(store, "missing", 0..1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[tokio::test]
async fn google_is_reached_by_its_own_paths() {
    let fake = Fake::start(cloud).await;
    let url = fake.url();
    let vars = [("STORAGE_EMULATOR_HOST", url.as_str())];
    let store = open("gs://bucket/pre", &vars, &context()).await.unwrap();
    tour(&*store).await;
    store.delete(&key("dir/a b")).await.unwrap();
    let paths: Vec<String> = fake
        .log()
        .iter()
        .map(|request| request.path().to_owned())
        .collect();
    assert_eq!(paths[0], "/bucket/pre%2Fdir%2Fa%20b", "{paths:?}");
}

#[tokio::test]
async fn azure_is_signed_with_its_account_key() {
    let fake = Fake::start(cloud).await;
    let url = fake.url();
    let vars = [
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "Y2FuYXJ5U2VjcmV0S2V5"),
        ("AZURE_STORAGE_ENDPOINT", url.as_str()),
    ];
    let store = open("az://container/pre", &vars, &context()).await.unwrap();
    tour(&*store).await;
    let log = fake.log();
    assert!(
        log[0].path().ends_with("/container/pre/dir/a%20b"),
        "{}",
        log[0].path()
    );
    assert!(
        log[0]
            .header("authorization")
            .unwrap()
            .starts_with("SharedKey account:")
    );
    let error = open("az://container", &[], &context()).await.unwrap_err();
    assert!(error.hint().unwrap().contains("AZURE_STORAGE_ACCOUNT_NAME"));
    let bad_key = [
        ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "canary not base64!"),
    ];
    let error = open("az://container", &bad_key, &context()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
}

#[tokio::test]
async fn errors_of_the_clouds_find_their_kind_and_say_no_secret() {
    for (status, code, kind) in [
        (403, "AuthenticationFailed", ErrorKind::Unauthenticated),
        (403, "AuthorizationFailure", ErrorKind::PermissionDenied),
        (404, "ContainerNotFound", ErrorKind::NotFound),
        (503, "ServerBusy", ErrorKind::Throttled),
        (500, "InternalError", ErrorKind::Unavailable),
        (412, "ConditionNotMet", ErrorKind::Precondition),
    ] {
        let fake = Fake::start(move |request| {
            let quoted = format!(
                "{} {}",
                request.target(),
                request.header("authorization").unwrap_or("")
            );
            let quoted = quoted.replace('&', "&amp;");
            Message::reply(
                status,
                format!("<Error><Code>{code}</Code><Message>{quoted}</Message></Error>"),
            )
        })
        .await;
        let url = fake.url();
        let azure = [
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_SAS_TOKEN", "sv=2024&sig=canarySignature0123"),
            ("AZURE_STORAGE_ENDPOINT", url.as_str()),
        ];
        let google = [("STORAGE_EMULATOR_HOST", url.as_str())];
        for (location, vars) in [("az://container", &azure[..]), ("gs://bucket", &google[..])] {
            let store = open(location, vars, &context()).await.unwrap();
            let error = read(&*store, "k", 0..1).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{location} {code}: {error}");
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    }
}

#[tokio::test]
async fn google_credentials_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("adc.json");
    std::fs::write(
        &path,
        r#"{"type":"service_account","private_key":"canarySecret"}"#,
    )
    .unwrap();
    for path in [path.to_str().unwrap(), "/nonexistent/adc.json"] {
        let error = open(
            "gs://bucket",
            &[("GOOGLE_APPLICATION_CREDENTIALS", path)],
            &context(),
        )
        .await
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}

#[tokio::test]
async fn plain_http_is_read_and_never_probed_by_writing() {
    let origin = Origin::start(&[]).await;
    origin.insert("data/x", b"hello world");
    let url = format!("{}/bucket/data", origin.url());
    let store = open(&url, &[], &context()).await.unwrap();
    assert_eq!(read(&*store, "x", 6..11).await.unwrap(), b"world");
    assert_eq!(store.head(&key("x")).await.unwrap().size, 11);
    assert_eq!(
        read(&*store, "y", 0..1).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let capabilities = store.capabilities().await.unwrap();
    assert!(
        capabilities
            .rows()
            .iter()
            .all(|(_, proof)| matches!(proof, Proof::Untried(_)))
    );
    assert!(
        origin
            .log()
            .iter()
            .all(|request| matches!(request.method(), "GET" | "HEAD"))
    );
    let error = store.upload(&key("z"), &PutOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let rows: Result<Vec<Entry>, _> = store
        .list(&forebay_core::Key::ROOT, ListOptions { recursive: true })
        .try_collect()
        .await;
    assert_eq!(rows.unwrap_err().kind(), ErrorKind::Unsupported);
}

#[tokio::test]
async fn a_webdav_server_is_listed() {
    let multistatus = r#"<?xml version="1.0"?><D:multistatus xmlns:D="DAV:">
        <D:response><D:href>/pub/</D:href><D:propstat><D:prop><D:resourcetype><D:collection/></D:resourcetype><D:getlastmodified>Wed, 01 Jan 2025 00:00:00 GMT</D:getlastmodified></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
        <D:response><D:href>/pub/b%20c</D:href><D:propstat><D:prop><D:resourcetype/><D:getcontentlength>3</D:getcontentlength><D:getlastmodified>Wed, 01 Jan 2025 00:00:00 GMT</D:getlastmodified></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
        <D:response><D:href>/pub/a</D:href><D:propstat><D:prop><D:resourcetype/><D:getcontentlength>1</D:getcontentlength><D:getlastmodified>Wed, 01 Jan 2025 00:00:00 GMT</D:getlastmodified></D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>
        </D:multistatus>"#;
    let fake = Fake::start(move |request| match request.method() {
        "PROPFIND" => Message::reply(207, multistatus),
        _ => Message::reply(404, ""),
    })
    .await;
    let store = open(&format!("{}/pub", fake.url()), &[], &context())
        .await
        .unwrap();
    let rows: Vec<Entry> = store
        .list(&forebay_core::Key::ROOT, ListOptions { recursive: true })
        .try_collect()
        .await
        .unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.key().as_str()).collect();
    assert_eq!(names, ["a", "b c"]);
}
