//! Faults on the wire, between a store and its server: for each of them right bytes or a clear error of the right kind, within the bound on
//! tries, never wrong bytes, never a hang.
//!
//! Every fault runs against the origin and, where one is named, against the real server.

mod support;

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{DataPath, Error, ErrorKind, Limits, Seed, crc64nvme};
use forebay_io::Buf;
use forebay_store::copy::Copier;
use forebay_store::{Body, MemoryStore, PutMode, PutOptions, ReadOptions, Store};
use futures::TryStreamExt;
use support::origin::{Origin, error};
use support::proxy::{Fault, Proxy, Rule, Which};
use support::wire::Message;
use support::{Server, context, context_with, key, limits, pattern, put, read};

/// Longer than all tries of a request with its stalls and pauses; only a hang takes so long.
const HANG: Duration = Duration::from_secs(60);

const MIB: usize = 1 << 20;

async fn upstreams() -> Vec<Server> {
    let origin = Origin::start(&[]).await;
    let mut servers = vec![Server::of_origin(&origin)];
    servers.extend(Server::from_env());
    servers
}

/// GET of an object (not of a listing).
fn is_get(request: &Message) -> bool {
    request.method() == "GET" && request.header("range").is_some()
}

fn is_put(request: &Message) -> bool {
    request.method() == "PUT" && request.query("uploadId").is_none()
}

fn is_part(request: &Message) -> bool {
    request.method() == "PUT" && request.query("uploadId").is_some()
}

fn is_complete(request: &Message) -> bool {
    request.method() == "POST" && request.query("uploadId").is_some()
}

fn is_list(request: &Message) -> bool {
    request.query("list-type").is_some()
}

fn is_head(request: &Message) -> bool {
    request.method() == "HEAD"
}

fn slow_down() -> Message {
    error(503, "SlowDown")
}

fn retry_after() -> Message {
    Message::reply(429, "").with("retry-after", "0")
}

/// A store through a proxy with one rule, with an object in it that was written beside the proxy.
struct Scene {
    proxy: Proxy,
    store: Arc<dyn Store>,
    bytes: Vec<u8>,
    kind: String,
}

async fn scene(server: &Server, limits: Limits, len: usize, rules: Vec<Rule>) -> Scene {
    let context = context_with(limits);
    let direct = server.store("faults", &context).await;
    let bytes = pattern(len, 11);
    put(&*direct, "o", &bytes).await.unwrap();
    let proxy = Proxy::start(server.address(), rules).await;
    let server = server.through(&proxy.url());
    let url = direct.location().to_string();
    let store = support::open(&url, &server.vars(), &context).await.unwrap();
    Scene {
        proxy,
        store,
        bytes,
        kind: server.kind,
    }
}

/// Read the object; right bytes or an error, in time.
async fn try_read(scene: &Scene) -> Result<(), Error> {
    let len = scene.bytes.len() as u64;
    let result = tokio::time::timeout(HANG, read(&*scene.store, "o", 0..len))
        .await
        .expect("hangs");
    let got = result?;
    assert!(got == scene.bytes, "wrong bytes on {}", scene.kind);
    Ok(())
}

/// Faults that pass: with what the read fails when they do not.
fn passing() -> Vec<(Fault, ErrorKind)> {
    vec![
        (Fault::Reply(error(500, "InternalError")), ErrorKind::Unavailable),
        (Fault::Reply(slow_down()), ErrorKind::Throttled),
        (Fault::Reply(retry_after()), ErrorKind::Throttled),
        (Fault::Reset, ErrorKind::Unavailable),
        (Fault::Stall, ErrorKind::Timeout),
        (Fault::StallMidBody, ErrorKind::Timeout),
        (Fault::Truncate, ErrorKind::Unavailable),
        (Fault::LieAboutRange, ErrorKind::Unavailable),
        (Fault::LoseReply, ErrorKind::Unavailable),
    ]
}

#[tokio::test]
async fn server_a_read_gets_over_a_fault_that_passes() {
    for server in upstreams().await {
        for (fault, _) in passing() {
            let rule = Rule::new(is_get, Which::First(2), fault.clone());
            let scene = scene(&server, limits(), MIB + 77, vec![rule]).await;
            if let Err(error) = try_read(&scene).await {
                panic!("{fault:?} on {}: {error}", scene.kind);
            }
            assert_eq!(scene.proxy.faults(), 2, "{fault:?}");
        }
    }
}

/// Far less than what usually wakes the reader comes within the time after which a reply counts as stalled, but something does.
#[tokio::test]
async fn a_slow_body_is_not_a_stalled_one() {
    let server = &upstreams().await[0];
    let pause = Duration::from_millis(limits().stall_ms_max / 4);
    let rule = Rule::new(is_get, Which::All, Fault::Drip(12, pause));
    let scene = scene(server, limits(), 12_000, vec![rule]).await;
    try_read(&scene).await.unwrap();
    assert_eq!(scene.proxy.requests(), 1, "one slow reply, and no retry");
}

#[tokio::test]
async fn a_fault_that_stays_ends_in_its_kind_within_the_tries() {
    let server = &upstreams().await[0];
    for (fault, kind) in passing() {
        let rule = Rule::new(is_get, Which::All, fault.clone());
        let scene = scene(server, limits(), MIB, vec![rule]).await;
        let error = try_read(&scene).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{fault:?}: {error}");
        assert!(error.location().unwrap().ends_with("/o"), "{error}");
        // A body that breaks in the middle is resumed in place while it moves, and the wrapper tries that often at most.
        let tries = u64::from(limits().tries_max);
        let most = match fault {
            Fault::StallMidBody | Fault::Truncate => tries * tries,
            _ => tries,
        };
        assert!(
            scene.proxy.requests() <= most,
            "{fault:?}: {}",
            scene.proxy.requests()
        );
    }
}

#[tokio::test]
async fn server_a_broken_body_is_resumed_where_it_broke() {
    for server in upstreams().await {
        let rule = Rule::new(is_get, Which::First(2), Fault::Truncate);
        let scene = scene(&server, limits(), MIB, vec![rule]).await;
        let buf = forebay_io::AlignedBuf::alloc(MIB, forebay_io::Pages::Small).unwrap();
        let address = buf.as_ptr();
        let span = forebay_core::Span::first(MIB as u64);
        let done = scene
            .store
            .read_into(&key("o"), span, buf, &ReadOptions::default())
            .await
            .unwrap();
        assert!(done.buf[..] == scene.bytes[..]);
        assert_eq!(done.buf.as_ptr(), address, "the caller's buffer was lost");
        let totals = done.ledger.path(DataPath::Http);
        assert_eq!(
            (totals.requests, totals.retries, totals.bytes),
            (3, 2, MIB as u64)
        );
        let gets: Vec<Message> = scene.proxy.log().into_iter().filter(is_get).collect();
        let ranges: Vec<&str> = gets.iter().filter_map(|get| get.header("range")).collect();
        assert_eq!(
            ranges,
            ["bytes=0-1048575", "bytes=524288-1048575", "bytes=786432-1048575"]
        );
        // Later tries are pinned to the version the first one had.
        assert!(gets[0].header("if-match").is_none());
        assert!(gets[1].header("if-match").is_some() && gets[2].header("if-match").is_some());
    }
}

#[tokio::test]
async fn an_object_replaced_while_its_body_broke_is_not_mixed() {
    let origin = Origin::start(&[]).await;
    let server = Server::of_origin(&origin);
    let rule = Rule::new(is_get, Which::First(1), Fault::Truncate);
    let slow = Limits {
        retry_pause_ms: 300,
        retry_pause_ms_max: 300,
        ..limits()
    };
    let scene = scene(&server, slow, MIB, vec![rule]).await;
    let reading = try_read(&scene);
    let replacing = async {
        // The first reply is made as soon as its request is in the log.
        while !origin.log().iter().any(is_get) {
            tokio::task::yield_now().await;
        }
        let name = origin.names().remove(0);
        origin.insert(&name, &pattern(MIB, 99));
    };
    let (read, ()) = tokio::join!(reading, replacing);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Precondition);
}

/// Only on the origin: the range is part of the signature, so a server that checks it refuses instead.
#[tokio::test]
async fn a_server_that_ignores_ranges_is_not_believed() {
    let server = &upstreams().await[0];
    let rule = Rule::new(is_get, Which::All, Fault::HideRange);
    let scene = scene(server, limits(), MIB, vec![rule]).await;
    let error = read(&*scene.store, "o", 10..20).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    // The whole object is exactly what was asked for.
    try_read(&scene).await.unwrap();
}

#[tokio::test]
async fn server_expired_credentials_are_said_to_be_so_and_not_retried() {
    for server in upstreams().await {
        for status in [400, 403] {
            let rule = Rule::new(|_| true, Which::All, Fault::Reply(error(status, "ExpiredToken")));
            let scene = scene(&server, limits(), 100, vec![rule]).await;
            let error = try_read(&scene).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unauthenticated);
            assert!(error.to_string().contains("expired"), "{error}");
            assert_eq!(scene.proxy.requests(), 1);
        }
    }
}

/// At the level of a range nothing tells a flipped bit on the wire; whole objects are compared with the checksum the store keeps.
#[tokio::test]
async fn server_wrong_bytes_of_the_right_length_are_caught_by_the_copy() {
    for server in upstreams().await {
        for which in [Which::First(1), Which::All] {
            let always = matches!(which, Which::All);
            let rule = Rule::new(is_get, which, Fault::WrongByte);
            let scene = scene(&server, limits(), MIB, vec![rule]).await;
            if scene.store.head(&key("o")).await.unwrap().checksum.is_none() {
                // Ceph 16 keeps none, so there is nothing to compare with, and the copy's report says so.
                assert_eq!(scene.kind, "ceph");
                continue;
            }
            let memory = MemoryStore::named(&support::location(&format!("mem://copy-{:x}", Seed::fresh().0)));
            let copier = Copier::new(Arc::clone(&scene.store), Arc::clone(&memory), &context());
            let report = copier.objects(vec![(key("o"), key("o"))]).await.unwrap();
            // Either it was read again after the checksum did not match, or the copy failed and left nothing.
            match report.failures.first() {
                None => {
                    assert!(!always, "{}: wrong bytes were copied", scene.kind);
                    let got = read(&*memory, "o", 0..MIB as u64).await.unwrap();
                    assert!(got == scene.bytes, "{}: wrong bytes were copied", scene.kind);
                }
                Some(failure) => {
                    assert_eq!(failure.error.kind(), ErrorKind::Corrupt, "{}", failure.error);
                    assert_eq!(
                        memory.head(&key("o")).await.unwrap_err().kind(),
                        ErrorKind::NotFound
                    );
                }
            }
            assert!(scene.proxy.faults() > 0);
        }
    }
}

#[tokio::test]
async fn server_writes_get_over_faults_that_pass() {
    let faults = [
        Fault::Reply(error(500, "InternalError")),
        Fault::Reply(slow_down()),
        Fault::Reset,
        Fault::LoseReply,
        Fault::Stall,
    ];
    for server in upstreams().await {
        for fault in &faults {
            let rules = vec![
                Rule::new(is_put, Which::First(1), fault.clone()),
                Rule::new(is_part, Which::First(1), fault.clone()),
                Rule::new(is_complete, Which::First(1), fault.clone()),
                Rule::new(is_list, Which::First(1), fault.clone()),
                Rule::new(is_head, Which::First(1), fault.clone()),
            ];
            let scene = scene(&server, limits(), 10, rules).await;
            let store = &*scene.store;
            let work = async {
                let bytes = pattern(5000, 3);
                put(store, "small", &bytes).await.unwrap();
                let upload = store.upload(&key("large"), &PutOptions::default()).await.unwrap();
                upload
                    .put_part(0, Buf::copy_of(&bytes).unwrap().into())
                    .await
                    .unwrap();
                let done = upload.complete().await.unwrap();
                assert_eq!(done.crc64nvme, crc64nvme(&bytes), "{fault:?}");
                for name in ["small", "large"] {
                    assert!(read(store, name, 0..5000).await.unwrap() == bytes, "{fault:?}");
                }
                assert_eq!(store.head(&key("small")).await.unwrap().size, 5000);
                let options = forebay_store::ListOptions { recursive: true };
                let rows: Vec<_> = store
                    .list(&forebay_core::Key::ROOT, options)
                    .try_collect()
                    .await
                    .unwrap();
                assert_eq!(rows.len(), 3, "{fault:?}");
            };
            tokio::time::timeout(HANG, work).await.expect("hangs");
            assert_eq!(scene.proxy.faults(), 5, "{fault:?}");
        }
    }
}

/// The reply to a conditional write is lost: the second try must not take our own object for that of another writer.
#[tokio::test]
async fn server_a_lost_reply_to_a_conditional_write_is_no_defeat() {
    for server in upstreams().await {
        let rules = vec![
            Rule::new(
                |request| is_put(request) && request.path().ends_with("/mine"),
                Which::First(1),
                Fault::LoseReply,
            ),
            Rule::new(
                |request| is_complete(request) && request.path().ends_with("/large"),
                Which::First(1),
                Fault::LoseReply,
            ),
        ];
        let scene = scene(&server, limits(), 10, rules).await;
        let store = &*scene.store;
        let capabilities = store.capabilities().await.unwrap();
        let options = PutOptions {
            mode: PutMode::IfAbsent,
            ..PutOptions::default()
        };
        let bytes = pattern(3000, 8);
        let body = || Body::from(Buf::copy_of(&bytes).unwrap());
        if capabilities.put_if_absent.is_shown() {
            store.put(&key("mine"), body(), &options).await.unwrap();
            assert!(read(store, "mine", 0..3000).await.unwrap() == bytes);
            let error = store.put(&key("mine"), body(), &options).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        }
        if capabilities.upload_if_absent.is_shown() {
            let upload = store.upload(&key("large"), &options).await.unwrap();
            upload
                .put_part(0, Buf::copy_of(&bytes).unwrap().into())
                .await
                .unwrap();
            upload.complete().await.unwrap();
            assert!(read(store, "large", 0..3000).await.unwrap() == bytes);
        }
        // The origin shows both, so both were lost there.
        if scene.kind == "origin" {
            assert_eq!(scene.proxy.faults(), 2);
        }
    }
}

#[tokio::test]
async fn the_writer_that_lost_is_told_so_even_when_a_reply_was_lost() {
    let origin = Origin::start(&[]).await;
    let server = Server::of_origin(&origin);
    let concerns = |request: &Message| is_put(request) && request.path().ends_with("/theirs");
    let rule = Rule::new(
        concerns,
        Which::First(1),
        Fault::Reply(error(500, "InternalError")),
    );
    let scene = scene(&server, limits(), 10, vec![rule]).await;
    scene.store.capabilities().await.unwrap();
    // Somebody else is first.
    let url = scene.store.location().to_string();
    let direct = support::open(&url, &server.vars(), &context()).await.unwrap();
    put(&*direct, "theirs", b"theirs").await.unwrap();
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    // The same bytes make it no less theirs.
    let body = Body::from(Buf::copy_of(b"theirs").unwrap());
    let error = scene.store.put(&key("theirs"), body, &options).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert_eq!(read(&*direct, "theirs", 0..6).await.unwrap(), b"theirs");
}

/// All tries are one write: the first took effect and nobody could say so, the second meets its object.
#[tokio::test]
async fn a_second_try_knows_the_object_of_the_first() {
    let origin = Origin::start(&[]).await;
    let server = Server::of_origin(&origin);
    for (name, bytes) in [("/whole", &b"mine"[..]), ("/empty", b"")] {
        let concerns: fn(&Message) -> bool = match name {
            "/whole" => |request| is_put(request) && request.path().ends_with("/whole"),
            _ => |request| is_put(request) && request.path().ends_with("/empty"),
        };
        let heads: fn(&Message) -> bool = match name {
            "/whole" => |request| is_head(request) && request.path().ends_with("/whole"),
            _ => |request| is_head(request) && request.path().ends_with("/empty"),
        };
        let rules = vec![
            Rule::new(concerns, Which::First(1), Fault::LoseReply),
            // Asking what became of it fails as well.
            Rule::new(heads, Which::First(1), Fault::Reset),
        ];
        let scene = scene(&server, limits(), 10, rules).await;
        let options = PutOptions {
            mode: PutMode::IfAbsent,
            ..PutOptions::default()
        };
        let upload = async {
            let upload = scene.store.upload(&key("empty"), &options).await?;
            upload.complete().await
        };
        let body = Body::from(Buf::copy_of(bytes).unwrap());
        let done = match name {
            "/whole" => scene.store.put(&key("whole"), body, &options).await,
            _ => upload.await,
        };
        assert_eq!(done.unwrap().size, bytes.len() as u64, "{name}");
        assert_eq!(scene.proxy.faults(), 2, "{name}");
    }
}

#[tokio::test]
async fn server_many_reads_through_a_bad_network_are_all_right() {
    for server in upstreams().await {
        let faults = [
            Fault::Truncate,
            Fault::Reset,
            Fault::Reply(error(500, "InternalError")),
        ];
        let rules = faults
            .into_iter()
            .enumerate()
            .map(|(index, fault)| Rule::new(is_get, Which::OneIn(8, Seed(index as u64).rng()), fault))
            .collect();
        let tries = Limits {
            tries_max: 8,
            ..limits()
        };
        let scene = scene(&server, tries, MIB, rules).await;
        let reads = (0..64u64).map(|n| {
            let (store, bytes) = (&scene.store, &scene.bytes);
            async move {
                let start = n * 16_000;
                let got = read(&**store, "o", start..start + 16_000).await.unwrap();
                assert!(got == bytes[start as usize..start as usize + 16_000]);
            }
        });
        let all = futures::future::join_all(reads);
        tokio::time::timeout(HANG, all).await.expect("hangs");
        assert!(scene.proxy.faults() > 5);
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let server = Server {
        endpoint: format!("http://{address}"),
        ..Server::of_origin(&Origin::start(&[]).await)
    };
    let store = server.store("gone", &context()).await;
    let head = tokio::time::timeout(HANG, store.head(&key("x")))
        .await
        .expect("hangs");
    let error = head.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.hint().is_some());
}
