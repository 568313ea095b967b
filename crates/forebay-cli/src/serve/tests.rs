//! A server with limits of milliseconds, over real sockets: that each of them holds, and what stays possible beside it.
//!
//! Nothing here measures time. A limit under test is short and all others are an hour, so a test ends for one reason or hangs, which is
//! a failure as well.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Hosts, Limits, Server};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_millis(100);

/// How long silence must last to be believed: an answer on loopback takes a hundredth of it.
const SILENCE: Duration = Duration::from_millis(300);

/// Limits nobody meets.
fn patient() -> Limits {
    Limits {
        connection_time_max: LONG,
        grace_time_max: LONG,
        head_time_max: LONG,
        body_time_max: LONG,
        call_wait_max: LONG,
        call_time_max: LONG,
        ..Limits::default()
    }
}

/// A server that ends with the test.
struct Running {
    address: SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<()>,
    _guard: DropGuard,
}

impl Running {
    async fn start(limits: Limits) -> Self {
        let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into()).await.unwrap();
        let address = server.address();
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let stop = stop.clone();
            async move { server.run(Hosts::default(), limits, &stop).await }
        });
        Self {
            address,
            task,
            _guard: stop.clone().drop_guard(),
            stop,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A connection that has said so much.
    async fn saying(&self, text: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }
}

const PAGE: &str = "GET /plan HTTP/1.1\r\nHost: localhost\r\n\r\n";
const PAGE_ONCE: &str = "GET /plan HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn post(path: &str, body: &str) -> String {
    let len = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    )
}

/// Everything until the server closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    drop(stream.read_to_end(&mut bytes).await);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The beginning of an answer.
async fn status(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 12];
    stream.read_exact(&mut bytes).await.unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_head_that_does_not_end_is_cut_off() {
    let server = Running::start(Limits {
        head_time_max: SHORT,
        ..patient()
    })
    .await;
    let mut slow = server.saying("GET /plan HTTP/1.1\r\nHost: local").await;
    let mut silent = server.connect().await;
    rest(&mut slow).await;
    assert_eq!(rest(&mut silent).await, "");
    // The pause before the next request counts as well.
    let mut idle = server.saying(PAGE).await;
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_body_that_does_not_end_is_refused() {
    let server = Running::start(Limits {
        body_time_max: SHORT,
        ..patient()
    })
    .await;
    let whole = post("/api/plan/checkpoint", "{\"params\": \"70B\"}");
    let mut slow = server.saying(&whole[..whole.len() - 1]).await;
    let said = rest(&mut slow).await;
    assert!(said.starts_with("HTTP/1.1 408"), "{said}");
    assert!(said.contains("took too long"), "{said}");
}

#[tokio::test]
async fn a_connection_does_not_live_for_ever() {
    let server = Running::start(Limits {
        connection_time_max: SHORT,
        ..patient()
    })
    .await;
    let mut idle = server.saying(PAGE).await;
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200"));
    // A reader that takes nothing, and a body that does not come, are left behind after the grace.
    let server = Running::start(Limits {
        connection_time_max: SHORT,
        grace_time_max: SHORT,
        ..patient()
    })
    .await;
    let mut stuck = server.saying("POST /api/plan/cost HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{").await;
    assert_eq!(rest(&mut stuck).await, "");
}

#[tokio::test]
async fn so_many_connections_are_served_and_the_next_one_waits() {
    let server = Running::start(Limits {
        connections_max: 2,
        ..patient()
    })
    .await;
    let mut first = server.saying(PAGE).await;
    let mut second = server.saying(PAGE).await;
    for stream in [&mut first, &mut second] {
        assert_eq!(status(stream).await, "HTTP/1.1 200");
    }
    let mut third = server.saying(PAGE_ONCE).await;
    let answer = tokio::time::timeout(SILENCE, status(&mut third)).await;
    assert!(answer.is_err(), "{answer:?}");
    drop(first);
    assert_eq!(status(&mut third).await, "HTTP/1.1 200");
}

#[tokio::test]
async fn slow_clients_below_the_limit_hold_up_nobody() {
    let limits = Limits {
        connections_max: 8,
        ..patient()
    };
    let server = Running::start(limits).await;
    let mut slow = Vec::new();
    for _ in 1..limits.connections_max {
        slow.push(server.saying("GET /plan HTTP/1.1\r\nHost: local").await);
    }
    let mut quick = server.saying(PAGE_ONCE).await;
    assert!(rest(&mut quick).await.starts_with("HTTP/1.1 200"));
    // The slow ones are served as well, once they have said what they want.
    let mut first = slow.remove(0);
    first
        .write_all(b"host\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(rest(&mut first).await.starts_with("HTTP/1.1 200"));
}

/// Work that ends when it is told to and in no other way.
fn endless() -> String {
    post("/api/endless", "{}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_takes_its_work_with_it() {
    let server = Running::start(Limits {
        calls_max: 1,
        ..patient()
    })
    .await;
    let gone = server.saying(&endless()).await;
    let plan = post("/api/plan/cost", "{\"gpus\": 8}");
    // Whoever is answered came before the endless one had begun: the only turn was not taken yet.
    let mut next = loop {
        let mut next = server.saying(&plan).await;
        match tokio::time::timeout(SILENCE, status(&mut next)).await {
            Ok(answer) => assert_eq!(answer, "HTTP/1.1 200"),
            Err(_silence) => break next,
        }
    };
    drop(gone);
    assert_eq!(status(&mut next).await, "HTTP/1.1 200");
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_takes_too_long_is_refused_and_then_there_is_room_again() {
    let server = Running::start(Limits {
        calls_max: 1,
        call_time_max: SHORT,
        ..patient()
    })
    .await;
    let mut late = server.saying(&endless()).await;
    assert_eq!(status(&mut late).await, "HTTP/1.1 503");
    let mut next = server.saying(&post("/api/plan/cost", "{\"gpus\": 8}")).await;
    assert_eq!(status(&mut next).await, "HTTP/1.1 200");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_finds_all_turns_taken_is_told_when_to_come_again() {
    let server = Running::start(Limits {
        calls_max: 1,
        call_wait_max: SHORT,
        ..patient()
    })
    .await;
    let _busy = server.saying(&endless()).await;
    let plan = post("/api/plan/cost", "{\"gpus\": 8}").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    loop {
        let said = rest(&mut server.saying(&plan).await).await;
        // The other may not have begun yet.
        if said.starts_with("HTTP/1.1 200") {
            continue;
        }
        assert!(said.starts_with("HTTP/1.1 503"), "{said}");
        assert!(
            said.to_ascii_lowercase().contains("\r\nretry-after: 1\r\n"),
            "{said}"
        );
        return;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_does_not_wait_for_work_under_way() {
    let server = Running::start(Limits {
        grace_time_max: SHORT,
        calls_max: 1,
        call_wait_max: SHORT,
        ..patient()
    })
    .await;
    let mut asking = server.saying(&endless()).await;
    tokio::time::sleep(SHORT).await;
    server.stop.cancel();
    server.task.await.unwrap();
    assert_eq!(rest(&mut asking).await, "");
}

/// What was logged while this runs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_connection_that_panics_is_logged() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .finish();
    let ended = tokio::spawn(async { panic!("on purpose") }).await;
    tracing::subscriber::with_default(subscriber, || super::note_end(ended));
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains("fault of the server"), "{said}");
}
