//! Secrets that AWS KMS wraps: what is asked of the service, what opens and what does not, and what its refusals become.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forebay_core::ErrorKind;
use forebay_store::remote::{Environment, Kms};
use serde_json::{Value, json};

use crate::support::context;
use crate::support::fake::Fake;
use crate::support::wire::Message;

const ARN: &str = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222";

/// What AWS KMS does, without the cryptography: a wrapped secret names its key and its context.
fn answer(request: &Message) -> Message {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let refuse = |code: &str| {
        let body = json!({"__type": format!("com.amazonaws.kms#{code}"), "message": "no"});
        Message::reply(400, body.to_string())
    };
    match request.header("x-amz-target").unwrap() {
        "TrentService.Encrypt" => {
            let blob = BASE64_STANDARD.encode(body.to_string());
            let reply =
                json!({"CiphertextBlob": blob, "KeyId": ARN, "EncryptionAlgorithm": "SYMMETRIC_DEFAULT"});
            Message::reply(200, reply.to_string())
        }
        "TrentService.Decrypt" => {
            let blob = BASE64_STANDARD
                .decode(body["CiphertextBlob"].as_str().unwrap())
                .unwrap();
            let Ok(wrapped) = serde_json::from_slice::<Value>(&blob) else {
                return refuse("InvalidCiphertextException");
            };
            if wrapped["EncryptionContext"] != body["EncryptionContext"] {
                return refuse("InvalidCiphertextException");
            }
            if wrapped["KeyId"] != body["KeyId"] {
                return refuse("IncorrectKeyException");
            }
            let reply = json!({"Plaintext": wrapped["Plaintext"], "KeyId": ARN});
            Message::reply(200, reply.to_string())
        }
        other => panic!("{other}"),
    }
}

fn kms(key: &str, endpoint: &str) -> Kms {
    let vars = [
        ("AWS_ACCESS_KEY_ID", "KEY"),
        ("AWS_SECRET_ACCESS_KEY", "canarySecret"),
        ("AWS_REGION", "us-east-2"),
        ("AWS_ENDPOINT_URL_KMS", endpoint),
    ];
    Kms::new(key, &context().with_environment(Environment::fixed(vars))).unwrap()
}

#[tokio::test]
async fn secrets_are_wrapped_and_open_with_their_context_only() {
    let server = Fake::start(answer).await;
    let own = kms(ARN, &server.url());
    let bound = [("forebay-attempt", "00ff")];
    let (id, wrapped) = own.encrypt(b"a data key", &bound).await.unwrap();
    assert_eq!(id, ARN);
    assert_eq!(own.decrypt(&wrapped, &bound).await.unwrap(), b"a data key");
    let other = own.decrypt(&wrapped, &[("forebay-attempt", "11ff")]).await;
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(
        own.decrypt(b"noise", &bound).await.unwrap_err().kind(),
        ErrorKind::Corrupt
    );
    let stranger = kms("alias/other", &server.url()).decrypt(&wrapped, &bound).await;
    assert_eq!(stranger.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // Signed for the region of the key, else for that of the settings.
    let scope = |request: &Message| request.header("authorization").unwrap().to_owned();
    let log = server.log();
    assert!(
        scope(&log[0]).contains("/eu-west-1/kms/aws4_request"),
        "{}",
        scope(&log[0])
    );
    assert!(scope(log.last().unwrap()).contains("/us-east-2/kms/aws4_request"));
    assert_eq!(log[0].header("content-type"), Some("application/x-amz-json-1.1"));
    // The endpoint of all services is that of this one, too.
    let all = [
        ("AWS_ACCESS_KEY_ID", "KEY"),
        ("AWS_SECRET_ACCESS_KEY", "canarySecret"),
        ("AWS_ENDPOINT_URL", &server.url()),
    ];
    let there = Kms::new(ARN, &context().with_environment(Environment::fixed(all))).unwrap();
    assert_eq!(there.decrypt(&wrapped, &bound).await.unwrap(), b"a data key");
}

#[tokio::test]
async fn refusals_are_told_and_secrets_are_not() {
    for (code, kind) in [
        ("AccessDeniedException", ErrorKind::PermissionDenied),
        ("DisabledException", ErrorKind::PermissionDenied),
        ("NotFoundException", ErrorKind::NotFound),
        ("UnrecognizedClientException", ErrorKind::Unauthenticated),
        ("ExpiredTokenException", ErrorKind::Unauthenticated),
    ] {
        let server = Fake::start(move |request| {
            // Servers quote what they were sent.
            let body = String::from_utf8_lossy(&request.body).into_owned();
            Message::reply(400, json!({"__type": code, "message": body}).to_string())
        })
        .await;
        let refused = kms(ARN, &server.url())
            .encrypt(b"canary data key", &[])
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        let text = format!("{refused} {refused:?}");
        assert!(text.contains(code), "{text}");
        assert!(
            !text.contains(&BASE64_STANDARD.encode(b"canary data key")),
            "{text}"
        );
        assert!(!text.contains("canarySecret"), "{text}");
        assert_eq!(server.log().len(), 1, "{code}");
    }
    let long = kms(ARN, "http://127.0.0.1:1").encrypt(&[0; 5000], &[]).await;
    assert_eq!(long.unwrap_err().kind(), ErrorKind::LimitExceeded);
    let bare = context().with_environment(Environment::fixed::<&str, &str>([]));
    for bad in ["", "a key", "key\n", "k\u{e9}y"] {
        assert_eq!(Kms::new(bad, &bare).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[tokio::test]
async fn a_service_that_asks_for_patience_is_asked_again() {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let server = Fake::start(move |request| {
        if count.fetch_add(1, Ordering::Relaxed) < 2 {
            return Message::reply(400, json!({"__type": "ThrottlingException"}).to_string());
        }
        answer(request)
    })
    .await;
    let wrapped = kms(ARN, &server.url()).encrypt(b"a data key", &[]).await;
    assert_eq!(wrapped.unwrap().0, ARN);
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    // Whoever answers something else is not believed.
    let other = Fake::start(|_| Message::reply(200, "<html>welcome</html>")).await;
    let confused = kms(ARN, &other.url())
        .encrypt(b"a data key", &[])
        .await
        .unwrap_err();
    assert_eq!(confused.kind(), ErrorKind::InvalidInput, "{confused}");
}
