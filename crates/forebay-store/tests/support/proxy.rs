//! A proxy on loopback between a store and its server that injects faults by rule.
//!
//! A [`Rule`] says which requests it concerns, which of those (the first ones, the Nth, some of them by a seeded die, all) and what goes wrong
//! with them. Everything else passes as it is, so signatures stay valid. The first rule that applies wins.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_core::Rng;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::wire::{self, Message};

/// What goes wrong with a request.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// The server is not asked; this is the answer.
    Reply(Message),
    /// The connection is reset before an answer.
    Reset,
    /// No answer, ever.
    Stall,
    /// The body stops in the middle and the connection stays.
    StallMidBody,
    /// The body comes in so many pieces, with that pause before each.
    Drip(usize, Duration),
    /// The body stops in the middle and the connection closes.
    Truncate,
    /// One byte of the body is another one.
    WrongByte,
    /// The reply claims to be another range.
    LieAboutRange,
    /// The server is not shown the range, so it answers with the whole object.
    HideRange,
    /// The server does what it is asked, but the answer never arrives.
    LoseReply,
}

/// Which of the requests that a rule concerns.
#[derive(Debug)]
pub(crate) enum Which {
    All,
    /// Only the Nth, counted from 1.
    Nth(u64),
    /// The first so many.
    First(u64),
    /// One in so many, by a seeded die.
    OneIn(u64, Rng),
}

/// Which requests, and what goes wrong with them.
pub(crate) struct Rule {
    pub(crate) concerns: fn(&Message) -> bool,
    pub(crate) which: Which,
    pub(crate) fault: Fault,
    pub(crate) seen: u64,
    pub(crate) done: u64,
}

impl Rule {
    pub(crate) fn new(concerns: fn(&Message) -> bool, which: Which, fault: Fault) -> Self {
        Self {
            concerns,
            which,
            fault,
            seen: 0,
            done: 0,
        }
    }

    fn applies(&mut self, request: &Message) -> bool {
        if !(self.concerns)(request) {
            return false;
        }
        self.seen += 1;
        let applies = match &mut self.which {
            Which::All => true,
            Which::Nth(n) => self.seen == *n,
            Which::First(n) => self.seen <= *n,
            Which::OneIn(n, rng) => rng.one_in(*n),
        };
        self.done += u64::from(applies);
        applies
    }
}

/// The running proxy; it stops when the test's runtime does.
#[derive(Clone)]
pub(crate) struct Proxy {
    address: SocketAddr,
    upstream: String,
    rules: Arc<Mutex<Vec<Rule>>>,
    log: Arc<Mutex<Vec<Message>>>,
}

impl Proxy {
    /// Stand before the server at `upstream` (`host:port`).
    pub(crate) async fn start(upstream: String, rules: Vec<Rule>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            address: listener.local_addr().unwrap(),
            upstream,
            rules: Arc::new(Mutex::new(rules)),
            log: Arc::default(),
        };
        let serving = proxy.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let proxy = serving.clone();
                tokio::spawn(async move {
                    let _ = proxy.serve(socket).await;
                });
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many faults were injected.
    pub(crate) fn faults(&self) -> u64 {
        self.rules.lock().unwrap().iter().map(|rule| rule.done).sum()
    }

    /// How many requests came, faulty or not.
    pub(crate) fn requests(&self) -> u64 {
        self.log.lock().unwrap().len() as u64
    }

    /// The heads of the requests that came.
    pub(crate) fn log(&self) -> Vec<Message> {
        self.log.lock().unwrap().clone()
    }

    fn fault(&self, request: &Message) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let rule = rules
            .iter_mut()
            .find_map(|rule| rule.applies(request).then(|| rule.fault.clone()));
        let mut log = self.log.lock().unwrap();
        log.push(Message {
            body: Vec::new(),
            ..request.clone()
        });
        rule
    }

    async fn serve(&self, client: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        let mut client = BufReader::new(client);
        let mut server = None;
        while let Some(mut request) = wire::read(&mut client, true).await? {
            let fault = self.fault(&request);
            match &fault {
                Some(Fault::Reply(reply)) => {
                    client.get_mut().write_all(&reply.bytes()).await?;
                    continue;
                }
                Some(Fault::Reset) => return reset(client.get_ref()),
                Some(Fault::Stall) => stall().await,
                Some(Fault::HideRange) => request
                    .headers
                    .retain(|(name, _)| !name.eq_ignore_ascii_case("range")),
                _ => {}
            }
            let mut reply = self.ask(&mut server, &request).await?;
            let has_body = request.method() != "HEAD";
            match fault {
                Some(Fault::LoseReply) => return reset(client.get_ref()),
                Some(fault @ (Fault::StallMidBody | Fault::Truncate)) => {
                    let half = reply.body.len() / 2;
                    let mut bytes = reply.head();
                    bytes.extend_from_slice(&reply.body[..half]);
                    client.get_mut().write_all(&bytes).await?;
                    if matches!(fault, Fault::StallMidBody) {
                        stall().await;
                    }
                    return Ok(());
                }
                Some(Fault::Drip(pieces, pause)) => {
                    client.get_mut().write_all(&reply.head()).await?;
                    for piece in reply.body.chunks(reply.body.len().div_ceil(pieces)) {
                        tokio::time::sleep(pause).await;
                        client.get_mut().write_all(piece).await?;
                    }
                    continue;
                }
                Some(Fault::WrongByte) => {
                    let middle = reply.body.len() / 2;
                    if let Some(byte) = reply.body.get_mut(middle) {
                        *byte ^= 0x40;
                    }
                }
                Some(Fault::LieAboutRange) => shift_range(&mut reply),
                _ => {}
            }
            let bytes = if has_body { reply.bytes() } else { reply.head() };
            client.get_mut().write_all(&bytes).await?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        server: &mut Option<BufReader<TcpStream>>,
        request: &Message,
    ) -> std::io::Result<Message> {
        let connection = match server {
            Some(connection) => connection,
            None => {
                let socket = TcpStream::connect(&self.upstream).await?;
                socket.set_nodelay(true)?;
                server.insert(BufReader::new(socket))
            }
        };
        connection.get_mut().write_all(&request.bytes()).await?;
        let reply = wire::read(connection, request.method() != "HEAD").await?;
        reply.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
    }
}

/// The right bytes under the wrong address.
fn shift_range(reply: &mut Message) {
    let Some(range) = reply.header("content-range").map(str::to_owned) else {
        return;
    };
    let (span, total) = range.trim_start_matches("bytes ").split_once('/').unwrap();
    let (start, end) = span.split_once('-').unwrap();
    let (start, end, total): (u64, u64, u64) = (
        start.parse().unwrap(),
        end.parse().unwrap(),
        total.parse().unwrap(),
    );
    reply.set(
        "content-range",
        format!("bytes {}-{}/{}", start + 1, end + 1, total + 1),
    );
}

/// Closed with unread or unsent data and no time to linger: the other side sees a reset.
fn reset(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_zero_linger()
}

/// Longer than any test waits.
async fn stall() {
    tokio::time::sleep(Duration::from_secs(600)).await;
}
