//! Connections that are silent, that close while idle, and replies of several versions over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_core::{ErrorKind, Limits, Span};
use forebay_store::{ReadOptions, StoreExt as _};
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use crate::support::fake::Fake;
use crate::support::wire::{self, Message};
use crate::support::{context_with, key, limits, open, pattern, read, tls};

/// Far longer than connecting and stalling may take together; only a hang takes so long.
const HANG: Duration = Duration::from_secs(60);

/// One try: whatever is mended is mended without a retry.
fn once() -> Limits {
    Limits {
        tries_max: 1,
        connect_ms_max: 100,
        stall_ms_max: 200,
        ..limits()
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_never_speaks_tls_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let accepting = tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            held.push(socket);
        }
    });
    let store = open(&url, &[], &context_with(once())).await.unwrap();
    let reading = tokio::time::timeout(HANG, read(&*store, "k", 0..10));
    let error = reading.await.expect("hangs").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(error.hint().is_some(), "{error:?}");
    accepting.abort();
}

/// A server over TLS that answers one request per connection and then goes without a word, as idle connections end.
async fn start_curt(content: Vec<u8>) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let closed = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&closed);
    tokio::spawn(async move {
        let acceptor = tls::acceptor();
        while let Ok((socket, _)) = listener.accept().await {
            let mut stream = BufReader::new(acceptor.accept(socket).await.unwrap());
            wire::read(&mut stream, true).await.unwrap().unwrap();
            let len = content.len();
            let reply = Message::reply(206, content.clone())
                .with("content-range", format!("bytes 0-{}/{len}", len - 1))
                .with("last-modified", "Wed, 01 Jan 2025 00:00:00 GMT");
            stream.get_mut().write_all(&reply.bytes()).await.unwrap();
            stream.get_mut().flush().await.unwrap();
            // The socket closes; TLS is not told.
            drop(stream.into_inner().into_inner());
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (url, closed)
}

#[tokio::test]
async fn an_idle_connection_that_closed_is_replaced_without_a_retry() {
    let content = pattern(1000, 5);
    let (url, closed) = start_curt(content.clone()).await;
    let authority = tls::authority();
    let vars = [("AWS_CA_BUNDLE", authority.to_str().unwrap())];
    let store = open(&url, &vars, &context_with(once())).await.unwrap();
    for round in 1..4 {
        assert!(read(&*store, "k", 0..1000).await.unwrap() == content);
        while closed.load(Ordering::SeqCst) < round {
            tokio::task::yield_now().await;
        }
    }
}

/// Without a version nothing would tell ranges of two versions apart.
#[tokio::test]
async fn an_object_without_a_version_is_read_by_one_request() {
    const LEN: usize = 10_000;
    let content = pattern(LEN, 6);
    let served = content.clone();
    let fake = Fake::start(move |request| {
        let reply = match request.header("range") {
            None => Message::reply(200, served.clone()),
            Some(range) => {
                let (start, end) = range.trim_start_matches("bytes=").split_once('-').unwrap();
                let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
                Message::reply(206, served[start..=end].to_vec())
                    .with("content-range", format!("bytes {start}-{end}/{LEN}"))
            }
        };
        reply.with("last-modified", "Wed, 01 Jan 2025 00:00:00 GMT")
    })
    .await;
    let context = context_with(Limits {
        part_bytes: 4096,
        ..limits()
    });
    let store = open(&fake.url(), &[], &context).await.unwrap();
    let span = Span::first(LEN as u64);
    let options = ReadOptions::default();
    let (buf, _) = store.read(&key("k"), span, &options, &context).await.unwrap();
    assert!(buf[..] == content[..]);
    let gets = fake
        .log()
        .iter()
        .filter(|request| request.method() == "GET")
        .count();
    assert_eq!(gets, 1);
}

/// The first half of one version, a piece of another, the rest of the first: replicas that differ behind one address, and a server that does not
/// know conditions.
#[tokio::test]
async fn pieces_of_two_versions_are_never_joined() {
    const LEN: usize = 3000;
    let asked = AtomicUsize::new(0);
    let fake = Fake::start(move |request| {
        let range = request.header("range").unwrap().trim_start_matches("bytes=");
        let start: usize = range.split('-').next().unwrap().parse().unwrap();
        let (version, len) = match asked.fetch_add(1, Ordering::SeqCst) {
            0 => (1, 1000),
            1 => (2, 1000),
            _ => (1, LEN - start),
        };
        let body = pattern(LEN, version)[start..start + len].to_vec();
        // What is missing of the announced length never comes.
        Message::reply(206, body)
            .with("content-range", format!("bytes {start}-{}/{LEN}", LEN - 1))
            .with("content-length", (LEN - start).to_string())
            .with("etag", format!("\"v{version}\""))
            .with("last-modified", "Wed, 01 Jan 2025 00:00:00 GMT")
    })
    .await;
    let store = open(&fake.url(), &[], &context_with(limits())).await.unwrap();
    let result = read(&*store, "k", 0..LEN as u64).await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Precondition);
}
