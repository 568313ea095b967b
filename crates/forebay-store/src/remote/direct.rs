//! Bodies straight from the socket into the caller's buffer.
//!
//! An ordinary HTTP client hands out a body in chunks of its own memory, which then have to be copied: for large reads that copy is a third of
//! all the work. A request that carries a [`Sink`] goes over a connection of ours instead: the head is parsed (by `httparse`), checked like every
//! other reply, and the body is read to where it belongs. `object_store`, which built the request, sees a reply without a body.
//!
//! ```text
//! request + Sink -> pooled connection -> head -> checked -> recv() into the buffer -> connection back to the pool
//! ```
//!
//! What is not a plain success (errors, other framings than a length) is read as a small document and judged like everywhere else. A pooled
//! connection that turns out to be closed is replaced once: nothing was answered yet, and a GET can be sent again.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{ErrorKind, Limits};
use forebay_io::{AlignedBuf, set_receive_low_water};
use http::header::{CONNECTION, CONTENT_LENGTH, ETAG, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode, Uri, Version};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower_service::Service as _;

use super::failure::{Asked, Failure};
use super::transport::IDLE_SECONDS;

/// Read while looking for the end of a head; whatever of the body comes along is copied, so it is small.
const HEAD_READ_BYTES: usize = 4 << 10;

/// Longest head of a reply.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Most header lines of a reply.
const HEADERS_MAX: usize = 128;

/// Bytes of a body that must be there before its reader is woken. A server that sends in small writes would otherwise wake it for each of them; a
/// thirtieth of a usual range keeps the wire busy all the same.
const WAKE_BYTES: u32 = 256 << 10;

/// Where a body goes. Travels with the request as an extension; clones are the same place.
#[derive(Debug, Clone)]
pub(crate) struct Sink(Arc<Mutex<Option<Target>>>);

/// The caller's buffer and how far it is filled.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) buf: AlignedBuf,
    /// Bytes wanted, from the front.
    pub(crate) len: usize,
    pub(crate) filled: usize,
    /// The version of the last reply, even if its body broke.
    pub(crate) version: Option<String>,
}

impl Sink {
    pub(crate) fn new(buf: AlignedBuf, len: usize) -> Self {
        Self(Arc::new(Mutex::new(Some(Target {
            buf,
            len,
            filled: 0,
            version: None,
        }))))
    }

    /// Take the target out; `None` while a reply is being read into it.
    pub(crate) fn take(&self) -> Option<Target> {
        self.lock().take()
    }

    pub(crate) fn put(&self, target: Target) {
        *self.lock() = Some(target);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Target>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Stream = TokioIo<MaybeHttpsStream<TokioIo<TcpStream>>>;

/// Connections for direct reads.
pub(super) struct Direct {
    connector: HttpsConnector<TcpConnector>,
    idle: Mutex<HashMap<String, Vec<(Stream, Instant)>>>,
    idle_max: usize,
    /// Name lookup, connection and TLS handshake together.
    connect: Duration,
    stall: Duration,
    reply_bytes_max: usize,
}

/// A reply whose head was read.
struct Reply {
    stream: Stream,
    parts: http::response::Parts,
    /// What came after the head.
    rest: Vec<u8>,
}

impl Direct {
    pub(super) fn new(connector: HttpsConnector<TcpConnector>, limits: &Limits) -> Self {
        let stall = Duration::from_millis(limits.stall_ms_max);
        Self {
            connector,
            idle: Mutex::default(),
            idle_max: limits.store_requests_max as usize,
            connect: Duration::from_millis(limits.connect_ms_max) + stall,
            stall,
            reply_bytes_max: limits.reply_bytes_max as usize,
        }
    }

    /// Send the request; its body, if the reply passes `check`, goes into the sink.
    pub(super) async fn get(
        &self,
        request: &http::request::Parts,
        sink: &Sink,
        asked: &Asked,
        check: impl FnOnce(&mut http::response::Parts) -> Result<(), Failure>,
    ) -> Result<http::response::Parts, Failure> {
        let mut reply = self.ask(request).await?;
        if !reply.parts.status.is_success() {
            let body = self.small(&mut reply).await.unwrap_or_default();
            return Err(Failure::of_reply(
                reply.parts.status,
                &reply.parts.headers,
                &body,
                asked,
            ));
        }
        check(&mut reply.parts)?;
        let Some(len) = length(&reply.parts.headers) else {
            let message = "reply does not say how long it is";
            return Err(Failure::new(ErrorKind::Unavailable, message));
        };
        let Some(mut target) = sink.take() else {
            return Err(Failure::new(ErrorKind::Internal, "two replies for one buffer"));
        };
        target.version = text(&reply.parts.headers, &ETAG);
        let filled = self.fill(&mut reply, &mut target, len).await;
        sink.put(target);
        filled?;
        if keeps(&reply.parts) {
            self.keep(request, reply.stream);
        }
        Ok(reply.parts)
    }

    /// Exactly `len` bytes to where the target stands.
    async fn fill(&self, reply: &mut Reply, target: &mut Target, len: u64) -> Result<(), Failure> {
        let Target {
            buf,
            len: end,
            filled,
            ..
        } = target;
        let stop = *filled as u64 + len;
        if stop > *end as u64 || reply.rest.len() as u64 > len {
            let message = "server sent more bytes than it was asked for";
            return Err(Failure::new(ErrorKind::Corrupt, message));
        }
        let stop = stop as usize;
        buf[*filled..*filled + reply.rest.len()].copy_from_slice(&reply.rest);
        *filled += reply.rest.len();
        let mut water = LowWater::default();
        while *filled < stop {
            water.keep_below(&reply.stream, stop - *filled);
            let read = reply.stream.read(&mut buf[*filled..stop]);
            match tokio::time::timeout(self.stall, read).await {
                // Some bytes may be there, only not enough: then it is slow, and not stalled.
                Err(_) if water.lift(&reply.stream) => {}
                Err(_) => return Err(Failure::stalled(self.stall)),
                Ok(Err(error)) => return Err(Failure::of_network(&error, false)),
                Ok(Ok(0)) => {
                    let message = "connection closed in the middle of a body";
                    return Err(Failure::new(ErrorKind::Unavailable, message));
                }
                Ok(Ok(count)) => *filled += count,
            }
        }
        // The next reply on this connection begins with a short head.
        water.lift(&reply.stream);
        Ok(())
    }

    /// Send the request and read the head of the reply, over an idle connection if one is still good.
    async fn ask(&self, request: &http::request::Parts) -> Result<Reply, Failure> {
        let head = head_of(request);
        while let Some(stream) = self.reuse(request) {
            match self.ask_over(stream, &head).await {
                Ok(Some(reply)) => return Ok(reply),
                // Closed while it was idle: the request was not answered, so it is asked again.
                Ok(None) => {}
                Err(failure) => return Err(failure),
            }
        }
        let stream = self.connect(&request.uri).await?;
        match self.ask_over(stream, &head).await? {
            Some(reply) => Ok(reply),
            None => Err(Failure::new(
                ErrorKind::Unavailable,
                "connection closed before a reply came",
            )),
        }
    }

    async fn connect(&self, uri: &Uri) -> Result<Stream, Failure> {
        // The connector bounds TCP alone: a name service that is silent, or a balancer that accepts and says nothing, would hold us for ever.
        match tokio::time::timeout(self.connect, self.connector.clone().call(uri.clone())).await {
            Ok(Ok(stream)) => Ok(TokioIo::new(stream)),
            Ok(Err(error)) => Err(Failure::of_network(error.as_ref(), true)),
            Err(_) => Err(Failure::unconnected(self.connect)),
        }
    }

    /// `None` when the connection closed or broke before a single byte of the reply.
    async fn ask_over(&self, mut stream: Stream, head: &str) -> Result<Option<Reply>, Failure> {
        let exchange = async {
            match send(&mut stream, head).await {
                Err(error) if is_closed(&error) => return Ok(None),
                sent => sent?,
            }
            let mut bytes = Vec::with_capacity(HEAD_READ_BYTES);
            loop {
                let before = bytes.len();
                bytes.resize(before + HEAD_READ_BYTES, 0);
                let count = match stream.read(&mut bytes[before..]).await {
                    Err(error) if before == 0 && is_closed(&error) => return Ok(None),
                    count => count?,
                };
                bytes.truncate(before + count);
                if count == 0 {
                    let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return if before == 0 { Ok(None) } else { Err(ended) };
                }
                match parse_head(&bytes)? {
                    Some((parts, len)) => return Ok(Some((parts, bytes.split_off(len)))),
                    None if bytes.len() > HEAD_BYTES_MAX => return Err(io::ErrorKind::InvalidData.into()),
                    None => {}
                }
            }
        };
        match tokio::time::timeout(self.stall, exchange).await {
            Ok(Ok(None)) => Ok(None),
            Ok(Ok(Some((parts, rest)))) => Ok(Some(Reply { stream, parts, rest })),
            Ok(Err(error)) => Err(Failure::of_network(&error, false)),
            Err(_) => Err(Failure::stalled(self.stall)),
        }
    }

    /// A small document in whatever framing it came, such as an error message.
    async fn small(&self, reply: &mut Reply) -> Option<Vec<u8>> {
        let chunked = text(&reply.parts.headers, &TRANSFER_ENCODING).is_some();
        let len = length(&reply.parts.headers).filter(|_| !chunked);
        let enough = len.unwrap_or(u64::MAX).min(self.reply_bytes_max as u64) as usize;
        let mut body = std::mem::take(&mut reply.rest);
        let reading = async {
            while body.len() < enough && !(chunked && body.ends_with(b"0\r\n\r\n")) {
                let before = body.len();
                body.resize(before + HEAD_READ_BYTES, 0);
                let count = reply.stream.read(&mut body[before..]).await.unwrap_or(0);
                body.truncate(before + count);
                if count == 0 {
                    break;
                }
            }
        };
        // What came in time is better than nothing.
        let _ = tokio::time::timeout(self.stall, reading).await;
        Some(if chunked { unchunk(&body) } else { body })
    }

    fn reuse(&self, request: &http::request::Parts) -> Option<Stream> {
        let mut idle = self.idle();
        let streams = idle.get_mut(&place(&request.uri))?;
        let limit = Duration::from_secs(IDLE_SECONDS);
        match streams.pop() {
            Some((stream, since)) if since.elapsed() < limit => Some(stream),
            // The last one is the youngest: the others are too old as well.
            _ => {
                streams.clear();
                None
            }
        }
    }

    fn keep(&self, request: &http::request::Parts, stream: Stream) {
        let mut idle = self.idle();
        let streams = idle.entry(place(&request.uri)).or_default();
        if streams.len() < self.idle_max {
            streams.push((stream, Instant::now()));
        }
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<String, Vec<(Stream, Instant)>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many bytes must have come before the reader of a socket is woken. Failing to set it costs time and nothing else.
#[derive(Debug, Default)]
struct LowWater {
    /// What the socket has, when it is not the default of one byte.
    set: Option<u32>,
    lifted: bool,
}

impl LowWater {
    /// Wait for much at a time, but never for more than is still to come.
    fn keep_below(&mut self, stream: &Stream, left: usize) {
        let wanted = u32::try_from(left).unwrap_or(u32::MAX).min(WAKE_BYTES);
        if !self.lifted && self.set != Some(wanted) {
            self.set = set_receive_low_water(socket(stream), wanted)
                .is_ok()
                .then_some(wanted);
        }
    }

    /// Back to any byte at all, for good; true when that makes a difference.
    fn lift(&mut self, stream: &Stream) -> bool {
        self.lifted = true;
        self.set.take().is_some() && set_receive_low_water(socket(stream), 1).is_ok()
    }
}

fn socket(stream: &Stream) -> &TcpStream {
    match stream.inner() {
        MaybeHttpsStream::Http(plain) => plain.inner(),
        MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
    }
}

/// Scheme, host and port: what a connection can be used for.
fn place(uri: &Uri) -> String {
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    format!("{}://{authority}", uri.scheme_str().unwrap_or(""))
}

/// The request as it goes over the wire.
fn head_of(request: &http::request::Parts) -> String {
    let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut head = format!("{} {target} HTTP/1.1\r\n", request.method);
    // Writing to a string does not fail.
    let _ = write!(head, "{HOST}: {}\r\n", host(&request.uri));
    for (name, value) in &request.headers {
        if let Ok(value) = value.to_str() {
            let _ = write!(head, "{name}: {value}\r\n");
        }
    }
    head.push_str("\r\n");
    head
}

/// Without the port that goes without saying: it is part of the signature.
fn host(uri: &Uri) -> String {
    let name = uri.host().unwrap_or("");
    match (uri.port_u16(), uri.scheme_str()) {
        (None, _) | (Some(80), Some("http")) | (Some(443), Some("https")) => name.to_owned(),
        (Some(port), _) => format!("{name}:{port}"),
    }
}

/// The head and its length, once it is whole.
pub(super) fn parse_head(bytes: &[u8]) -> io::Result<Option<(http::response::Parts, usize)>> {
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let mut lines = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut head = httparse::Response::new(&mut lines);
    let len = match head.parse(bytes).map_err(|_| broken())? {
        httparse::Status::Partial => return Ok(None),
        httparse::Status::Complete(len) => len,
    };
    let status = head
        .code
        .and_then(|code| StatusCode::from_u16(code).ok())
        .ok_or_else(broken)?;
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = status;
    parts.version = if head.version == Some(1) {
        Version::HTTP_11
    } else {
        Version::HTTP_10
    };
    for line in head.headers.iter() {
        let name = HeaderName::from_bytes(line.name.as_bytes()).map_err(|_| broken())?;
        let value = HeaderValue::from_bytes(line.value).map_err(|_| broken())?;
        parts.headers.append(name, value);
    }
    Ok(Some((parts, len)))
}

/// The length of a body that says it, and says it once.
fn length(headers: &HeaderMap) -> Option<u64> {
    let mut values = headers.get_all(CONTENT_LENGTH).iter();
    let (first, more) = (values.next()?, values.next());
    if more.is_some() || headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    first.to_str().ok()?.parse().ok()
}

fn text(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// Whether the server keeps the connection open.
fn keeps(parts: &http::response::Parts) -> bool {
    let says = text(&parts.headers, &CONNECTION)
        .unwrap_or_default()
        .to_ascii_lowercase();
    parts.version == Version::HTTP_11 && !says.contains("close")
}

async fn send(stream: &mut Stream, head: &str) -> io::Result<()> {
    stream.write_all(head.as_bytes()).await?;
    stream.flush().await
}

/// How a connection that the other side closed shows before the first byte of a reply. The unexpected end is TLS whose other side
/// went without saying so, as most do with idle connections.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::UnexpectedEof
    )
}

/// The content of a chunked body, as far as it makes sense.
pub(super) fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    while let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).unwrap_or("");
        let size = size.split(';').next().unwrap_or("").trim();
        let Ok(len) = usize::from_str_radix(size, 16) else {
            break;
        };
        let start = end + 2;
        let Some(chunk) = bytes
            .get(start..start.saturating_add(len))
            .filter(|chunk| !chunk.is_empty())
        else {
            break;
        };
        body.extend_from_slice(chunk);
        bytes = bytes.get(start + len + 2..).unwrap_or_default();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_parsed_when_they_are_whole() {
        let head = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nETag: \"v\"\r\n\r\nhello";
        for cut in 0..head.len() - 5 {
            assert!(parse_head(&head[..cut]).unwrap().is_none(), "{cut}");
        }
        let (parts, len) = parse_head(head).unwrap().unwrap();
        assert_eq!((parts.status.as_u16(), &head[len..]), (206, &b"hello"[..]));
        assert_eq!(length(&parts.headers), Some(5));
        assert!(keeps(&parts));
        for nonsense in [
            &b"HTTP/9 x\r\n\r\n"[..],
            b"\x00\x01",
            b"HTTP/1.1 999999 x\r\n\r\n",
        ] {
            assert!(parse_head(nonsense).is_err(), "{nonsense:?}");
        }
    }

    #[test]
    fn lengths_that_are_ambiguous_are_no_lengths() {
        let parse = |lines: &str| {
            parse_head(format!("HTTP/1.1 200 OK\r\n{lines}\r\n").as_bytes())
                .unwrap()
                .unwrap()
                .0
        };
        assert_eq!(
            length(&parse("content-length: 5\r\ncontent-length: 6\r\n").headers),
            None
        );
        assert_eq!(
            length(&parse("content-length: 5\r\ntransfer-encoding: chunked\r\n").headers),
            None
        );
        assert_eq!(length(&parse("content-length: -5\r\n").headers), None);
        assert!(!keeps(&parse("connection: Close\r\n")));
    }

    #[test]
    fn chunks_are_joined_and_nonsense_ends_them() {
        assert_eq!(unchunk(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"), b"abcde");
        assert_eq!(unchunk(b"3\r\nab"), b"");
        assert_eq!(unchunk(b"ffffffffffffffff\r\nab"), b"");
        assert_eq!(unchunk(b"zz\r\nab"), b"");
    }

    #[test]
    fn the_host_is_the_one_that_was_signed() {
        let host = |uri: &'static str| super::host(&Uri::from_static(uri));
        assert_eq!(host("http://h:80/x"), "h");
        assert_eq!(host("https://h:443/x"), "h");
        assert_eq!(host("https://h:80/x"), "h:80");
        assert_eq!(host("http://[::1]:9000/x"), "[::1]:9000");
    }
}
