//! What is said when something is wrong: missing buckets, wrong regions, no credentials; and that nothing secret is ever said.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind};
use forebay_io::Buf;
use forebay_store::{Body, ListOptions, PutMode, PutOptions, Store};
use futures::StreamExt;

use crate::support::fake::Fake;
use crate::support::origin::{Origin, error};
use crate::support::wire::Message;
use crate::support::{Server, context, key, open, pattern, put, read};

/// Every operation of a store that fails; the errors they end in.
async fn all_errors(store: &Arc<dyn Store>) -> Vec<Error> {
    let body = || Body::from(Buf::copy_of(b"x").unwrap());
    let if_absent = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let mut errors = vec![
        store.head(&key("k")).await.unwrap_err(),
        read(&**store, "k", 0..10).await.unwrap_err(),
        read(&**store, "k", 0..0).await.unwrap_err(),
        store
            .put(&key("k"), body(), &PutOptions::default())
            .await
            .unwrap_err(),
        store.put(&key("k"), body(), &if_absent).await.unwrap_err(),
        store.upload(&key("k"), &PutOptions::default()).await.unwrap_err(),
    ];
    errors.extend(store.delete(&key("k")).await.err());
    errors.extend(store.capabilities().await.err());
    let mut rows = store.list(&key("k"), ListOptions { recursive: true });
    while let Some(row) = rows.next().await {
        errors.extend(row.err());
    }
    errors
}

#[tokio::test]
async fn server_a_bucket_that_is_not_there_is_named() {
    let origin = Origin::start(&[]).await;
    let mut servers = vec![Server::of_origin(&origin)];
    servers.extend(Server::from_env());
    for server in servers {
        let url = "s3://no-such-bucket-here/prefix";
        let store = open(url, &server.vars(), &context()).await.unwrap();
        let mut errors = vec![
            store.head(&key("k")).await.unwrap_err(),
            read(&*store, "k", 0..10).await.unwrap_err(),
        ];
        // SeaweedFS makes a bucket of any name for whoever may.
        if server.kind != "seaweedfs" {
            errors.push(put(&*store, "k", b"x").await.unwrap_err());
            errors.push(store.upload(&key("k"), &PutOptions::default()).await.unwrap_err());
        }
        for error in errors {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{}: {error}", server.kind);
            assert!(
                error.message().contains("bucket 'no-such-bucket-here'"),
                "{}: {error}",
                server.kind
            );
        }
        let row = store
            .list(&forebay_core::Key::ROOT, ListOptions::default())
            .next()
            .await;
        let error = row.unwrap().unwrap_err();
        assert!(
            error.message().contains("bucket 'no-such-bucket-here'"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_wrong_region_is_answered_by_the_right_one() {
    type Answer = fn(&Message) -> Message;
    let answers: [Answer; 3] = [
        |_| {
            Message::reply(301, "<Error><Code>PermanentRedirect</Code></Error>")
                .with("x-amz-bucket-region", "eu-right-1")
        },
        |_| {
            Message::reply(
                400,
                "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message><Region>eu-right-1</Region></Error>",
            )
        },
        |_| Message::reply(400, "").with("x-amz-bucket-region", "eu-right-1"),
    ];
    for answer in answers {
        let fake = Fake::start(answer).await;
        let vars = [
            ("FOREBAY_S3_ENDPOINT", fake.url()),
            ("AWS_ACCESS_KEY_ID", "k".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "s".to_owned()),
        ];
        let vars: Vec<(&str, &str)> = vars.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let store = open("s3://bucket", &vars, &context()).await.unwrap();
        for error in [
            store.head(&key("k")).await.unwrap_err(),
            put(&*store, "k", b"x").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            let text = format!("{error} {:?}", error.hint());
            assert!(text.contains("eu-right-1"), "{text}");
        }
    }
}

#[tokio::test]
async fn without_a_signature_none_is_sent_and_no_credentials_are_looked_for() {
    let origin = Origin::start(&[]).await;
    origin.insert("public", b"hello");
    let url = origin.url();
    let vars = [
        ("FOREBAY_S3_ENDPOINT", url.as_str()),
        ("FOREBAY_S3_UNSIGNED", "1"),
    ];
    let store = open("s3://bucket", &vars, &context()).await.unwrap();
    assert_eq!(read(&*store, "public", 0..5).await.unwrap(), b"hello");
    assert_eq!(
        store
            .list(&forebay_core::Key::ROOT, ListOptions::default())
            .count()
            .await,
        1
    );
    assert!(
        origin
            .log()
            .iter()
            .all(|request| request.header("authorization").is_none())
    );
}

#[tokio::test]
async fn permission_and_identity_are_told_apart() {
    for (status, code, kind) in [
        (403, "AccessDenied", ErrorKind::PermissionDenied),
        (403, "InvalidAccessKeyId", ErrorKind::Unauthenticated),
        (403, "SignatureDoesNotMatch", ErrorKind::Unauthenticated),
        (401, "Whatever", ErrorKind::Unauthenticated),
    ] {
        let fake = Fake::start(move |_| error(status, code)).await;
        let vars = [
            ("FOREBAY_S3_ENDPOINT", fake.url()),
            ("AWS_ACCESS_KEY_ID", "k".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "s".to_owned()),
        ];
        let vars: Vec<(&str, &str)> = vars.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let store = open("s3://bucket", &vars, &context()).await.unwrap();
        assert_eq!(read(&*store, "k", 0..1).await.unwrap_err().kind(), kind, "{code}");
    }
}

#[tokio::test]
async fn server_wrong_keys_are_wrong_keys() {
    let Some(mut server) = Server::from_env() else {
        return;
    };
    "canarySecretThatIsWrong".clone_into(&mut server.secret_key);
    let store = server.store("wrong", &context()).await;
    for error in all_errors(&store).await {
        // Garage says only that access is denied, and who may not write cannot probe.
        let refused = matches!(
            error.kind(),
            ErrorKind::Unauthenticated | ErrorKind::PermissionDenied | ErrorKind::Unsupported
        );
        assert!(refused, "{error}");
        assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
    }
}

/// The request's headers as a server would quote them in XML.
fn quote(request: &Message) -> String {
    let quoted = request.headers.iter().map(|(name, value)| {
        let value = value.replace('&', "&amp;").replace('<', "&lt;");
        format!("{name}: {value} ")
    });
    quoted.collect()
}

fn signature(request: &Message) -> Option<&str> {
    request.header("authorization")?.rsplit('=').next()
}

/// A server that quotes whatever it gets, wherever it can.
async fn parrot(status: u16, code: &'static str) -> Fake {
    Fake::start(move |request| {
        let said = quote(request);
        let (signature, key) = (signature(request).unwrap_or(""), "AKIACANARYACCESS");
        let body = format!(
            "<Error><Code>{code}</Code><Message>{signature} {key} {said}</Message><StringToSign>{said}</StringToSign><AWSAccessKeyId>{key}</AWSAccessKeyId></Error>"
        );
        Message::reply(status, body).with("x-echo", said)
    })
    .await
}

/// Everything that every operation says when it fails.
async fn all_words(store: &Arc<dyn Store>) -> Vec<String> {
    let words = |error: Error| format!("{error} {error:?} {:?}", error.hint());
    let mut texts = vec![format!("{store:?}")];
    let mut rows = store.list(&key("k"), ListOptions { recursive: true });
    while let Some(row) = rows.next().await {
        texts.extend(row.err().map(words));
    }
    let body = Body::from(Buf::copy_of(b"x").unwrap());
    let results = [
        store.head(&key("k")).await.err(),
        read(&**store, "k", 0..10).await.err(),
        store.put(&key("k"), body, &PutOptions::default()).await.err(),
        store.upload(&key("k"), &PutOptions::default()).await.err(),
        store.delete(&key("k")).await.err(),
        store.capabilities().await.err(),
    ];
    texts.extend(results.into_iter().flatten().map(words));
    texts
}

/// Everything a request carries that is secret comes back in the reply, in every way a reply can fail; none of it may be said.
#[tokio::test]
async fn no_error_says_a_secret() {
    for status in [200, 206, 301, 400, 401, 403, 404, 409, 412, 416, 429, 500, 503] {
        for code in ["Odd", "ExpiredToken", "SignatureDoesNotMatch"] {
            let fake = parrot(status, code).await;
            let url = fake.url();
            let vars = [
                ("FOREBAY_S3_ENDPOINT", url.as_str()),
                ("AWS_ACCESS_KEY_ID", "AKIACANARYACCESS"),
                ("AWS_SECRET_ACCESS_KEY", "canarySecretKey0123456789"),
                ("AWS_SESSION_TOKEN", "canaryTokenCanaryToken+/=="),
            ];
            let store = open("s3://bucket/p", &vars, &context()).await.unwrap();
            let texts = all_words(&store).await;
            let log = fake.log();
            let signatures: Vec<&str> = log.iter().filter_map(signature).collect();
            assert!(!signatures.is_empty() && texts.len() > 3);
            for text in texts {
                for canary in ["CANARY", "canary", "Canary"].iter().chain(&signatures) {
                    assert!(!text.contains(canary), "{status} {code}: {text}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_root_is_no_object() {
    let origin = Origin::start(&[]).await;
    let store = open("s3://bucket", &Server::of_origin(&origin).vars(), &context())
        .await
        .unwrap();
    let error = store.head(&forebay_core::Key::ROOT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(origin.log().is_empty());
}

#[tokio::test]
async fn names_that_become_too_long_with_their_prefix_are_refused() {
    let origin = Origin::start(&[]).await;
    let url = format!("s3://bucket/{}", "p".repeat(600));
    let store = open(&url, &Server::of_origin(&origin).vars(), &context())
        .await
        .unwrap();
    let error = put(&*store, &"k".repeat(600), b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[tokio::test]
async fn only_certificates_of_trusted_authorities_are_taken() {
    let origin = Origin::start(&[]).await;
    let plain = Server::of_origin(&origin);
    let address = crate::support::tls::start(plain.address()).await;
    let server = plain.through(&format!("https://{address}"));
    let bytes = pattern(2 << 20, 4);
    let authority = crate::support::tls::authority();
    let mut vars = server.vars();
    vars.push(("AWS_CA_BUNDLE", authority.to_str().unwrap()));
    let store = open("s3://bucket/tls", &vars, &context()).await.unwrap();
    put(&*store, "o", &bytes).await.unwrap();
    assert!(read(&*store, "o", 0..2 << 20).await.unwrap() == bytes);
    assert_eq!(
        store
            .list(&forebay_core::Key::ROOT, ListOptions::default())
            .count()
            .await,
        1
    );
    // Without it nobody vouches for the server, on either way in.
    let asked = origin.log().len();
    let store = open("s3://bucket/tls", &server.vars(), &context()).await.unwrap();
    for error in [
        read(&*store, "o", 0..10).await.unwrap_err(),
        store.head(&key("o")).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.hint().unwrap().contains("AWS_CA_BUNDLE"), "{error:?}");
    }
    assert_eq!(origin.log().len(), asked);
}

#[tokio::test]
async fn a_certificate_file_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.pem");
    std::fs::write(
        &path,
        "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n",
    )
    .unwrap();
    for path in [path.to_str().unwrap(), "/nonexistent/ca.pem"] {
        let error = open("s3://bucket", &[("AWS_CA_BUNDLE", path)], &context())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
}
