//! When temporary credentials are asked for again: not by every request, not by all of them at once, and after the server called them expired.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{ErrorKind, Limits, ManualClock, Seed};
use forebay_store::{Context, ListOptions, Store};
use futures::TryStreamExt;
use tokio::io::{AsyncWriteExt, BufReader};

use crate::support::fake::Fake;
use crate::support::origin::{Origin, error};
use crate::support::wire::{self, Message};
use crate::support::{context, context_with, key, limits, open};

/// A bucket at `bucket` with credentials from the container's endpoint at `endpoint`.
async fn open_with(bucket: &str, endpoint: &str, context: &Context) -> Arc<dyn Store> {
    let vars = [
        ("HOME", "/nonexistent"),
        ("FOREBAY_S3_ENDPOINT", bucket),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", endpoint),
    ];
    open("s3://bucket", &vars, context).await.unwrap()
}

async fn bucket() -> String {
    Origin::start(&[]).await.url()
}

/// Credentials that expire so many seconds after 1970, where the tests' clock starts.
fn document(name: &str, expires_s: i64) -> Message {
    let expires = chrono::DateTime::from_timestamp(expires_s, 0)
        .unwrap()
        .to_rfc3339();
    Message::reply(
        200,
        format!(r#"{{"AccessKeyId":"{name}","SecretAccessKey":"s","Token":"t","Expiration":"{expires}"}}"#),
    )
}

#[tokio::test]
async fn credentials_that_live_shorter_than_the_margin_are_not_asked_for_by_every_request() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let endpoint = Fake::start(move |_| {
        let count = counter.fetch_add(1, Ordering::Relaxed);
        document("KEY", 120 * (count as i64 + 1))
    })
    .await;
    let clock = Arc::new(ManualClock::default());
    let context = context().with_time(Arc::clone(&clock) as _, Seed(1));
    let store = open_with(&bucket().await, &endpoint.url(), &context).await;
    for _ in 0..10 {
        store.head(&key("x")).await.unwrap_err();
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    clock.advance(Duration::from_secs(61));
    for _ in 0..10 {
        store.head(&key("x")).await.unwrap_err();
    }
    assert_eq!(asked.load(Ordering::Relaxed), 2, "at half their life");
}

/// The endpoint says nothing while the old credentials hold: one request waits for it, the others go on.
#[tokio::test]
async fn a_renewal_that_hangs_holds_up_one_request() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            let mut socket = BufReader::new(socket);
            wire::read(&mut socket, true).await.unwrap();
            if held.is_empty() {
                let reply = document("KEY", 3600).with("connection", "close");
                socket.get_mut().write_all(&reply.bytes()).await.unwrap();
            }
            held.push(socket);
            asked.send(()).unwrap();
        }
    });
    let clock = Arc::new(ManualClock::default());
    let patient = Limits {
        stall_ms_max: 600_000,
        ..limits()
    };
    let context = context_with(patient).with_time(Arc::clone(&clock) as _, Seed(1));
    let store = open_with(&bucket().await, &url, &context).await;
    store.head(&key("x")).await.unwrap_err();
    asks.recv().await.unwrap();
    clock.advance(Duration::from_secs(3500));
    let winner = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.head(&key("x")).await }
    });
    asks.recv().await.unwrap();
    let others = futures::future::join_all((0..8).map(|_| async {
        let error = store.head(&key("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }));
    tokio::time::timeout(Duration::from_secs(60), others)
        .await
        .expect("hangs");
    assert!(asks.try_recv().is_err(), "others asked for credentials too");
    winner.abort();
}

#[tokio::test]
async fn a_listing_that_meets_expired_credentials_forgets_them() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let endpoint = Fake::start(move |_| {
        let count = counter.fetch_add(1, Ordering::Relaxed);
        document(&format!("KEY-{count}"), 4_000_000_000)
    })
    .await;
    let bucket = Fake::start(|request| {
        if request.header("authorization").unwrap().contains("KEY-0/") {
            return error(403, "ExpiredToken");
        }
        Message::reply(
            200,
            "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>",
        )
    })
    .await;
    let store = open_with(&bucket.url(), &endpoint.url(), &context()).await;
    let list = async || {
        let rows = store.list(&forebay_core::Key::ROOT, ListOptions::default());
        rows.try_collect::<Vec<_>>().await
    };
    assert_eq!(list().await.unwrap_err().kind(), ErrorKind::Unauthenticated);
    assert!(list().await.unwrap().is_empty());
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}
