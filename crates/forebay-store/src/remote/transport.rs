//! The wire: one HTTP/1.1 client for everything remote, with our bounds on patience and memory.
//!
//! `object_store` builds and signs requests; a [`Service`] sends them through the [`Transport`] that all stores of a context share.
//! Reads of objects go past its buffers (see `direct.rs`). Here, and only here, replies are judged: anything but a success becomes a [`Failure`] (see `failure.rs`), a partial reply must be exactly the
//! range that was asked for, every body carries a stall guard, and every body that is not object content is bounded.
//!
//! ```text
//! object_store --signed request--> Service --(altered for probes)--> Transport --hyper--> server
//!              <--checked reply, guarded body-----------------------
//! ```

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{ErrorKind, Limits};
use http::header::{CONTENT_LENGTH, CONTENT_RANGE, HeaderValue, IF_NONE_MATCH, RANGE, USER_AGENT};
use http::{HeaderMap, Method, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use tokio::time::{Instant, Sleep};

use super::direct::{Direct, Sink};
use super::failure::{Asked, Failure};

/// Largest reply that is not object content: a page of a listing has up to 1000 names of up to 1024 bytes, written as
/// `%XX` at worst.
const DOCUMENT_BYTES_MAX: u64 = 8 << 20;

/// Uploads are handed on in pieces of this size, so that a slow but moving one is told from a stalled one.
const OUTGOING_PIECE_BYTES: usize = 1 << 20;

/// How long an idle connection is kept; servers and load balancers close them after a minute or so.
pub(super) const IDLE_SECONDS: u64 = 30;

const AGENT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// The client that all stores of a context share: one pool of connections, one set of trusted certificates.
pub(crate) struct Transport {
    client: Client<HttpsConnector<TcpConnector>, Outgoing>,
    direct: Direct,
    stall: Duration,
    reply_bytes_max: usize,
}

impl Transport {
    pub(crate) fn new(limits: &Limits, tls: rustls::ClientConfig) -> Self {
        let mut tcp = TcpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(Duration::from_millis(limits.connect_ms_max)));
        let connector = hyper_rustls::HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(IDLE_SECONDS))
            .pool_max_idle_per_host(limits.store_requests_max as usize)
            .pool_timer(TokioTimer::new())
            .build(connector.clone());
        let stall = Duration::from_millis(limits.stall_ms_max);
        Self {
            client,
            direct: Direct::new(connector, limits),
            stall,
            reply_bytes_max: limits.reply_bytes_max as usize,
        }
    }

    /// Send a request and check the reply; `pass` lets a reply that is not a success through to the caller.
    async fn exchange(
        &self,
        request: HttpRequest,
        pass: fn(&Method, StatusCode) -> bool,
    ) -> Result<HttpResponse, Failure> {
        let (mut parts, body) = request.into_parts();
        parts
            .headers
            .entry(USER_AGENT)
            .or_insert(HeaderValue::from_static(AGENT));
        let context = Asked::of(&parts.headers, &parts.uri);
        let asked = parts.headers.get(RANGE).cloned();
        if let (Some(sink), Some(asked)) = (parts.extensions.get::<Sink>(), &asked) {
            let check = |reply: &mut http::response::Parts| check_range(asked, reply);
            let reply = self.direct.get(&parts, sink, &context, check).await?;
            return Ok(HttpResponse::from_parts(reply, Bytes::new().into()));
        }
        let method = parts.method.clone();
        let sent = Arc::new(AtomicU64::new(0));
        let body = Outgoing {
            inner: body,
            piece: Bytes::new(),
            sent: Arc::clone(&sent),
        };
        let reply = self.send(http::Request::from_parts(parts, body), &sent).await?;
        let (mut parts, body) = reply.into_parts();
        if !parts.status.is_success() && !pass(&method, parts.status) {
            let body = self.small(body).await.unwrap_or_default();
            return Err(Failure::of_reply(parts.status, &parts.headers, &body, &context));
        }
        match &asked {
            Some(asked) if parts.status.is_success() => check_range(asked, &mut parts)?,
            _ => {}
        }
        if method == Method::HEAD {
            parts.extensions.insert(ReplyHeaders(parts.headers.clone()));
        }
        let bytes_max = if asked.is_some() {
            u64::MAX
        } else {
            DOCUMENT_BYTES_MAX
        };
        let body = HttpResponseBody::new(Guarded::new(body, self.stall, bytes_max));
        Ok(HttpResponse::from_parts(parts, body))
    }

    /// Wait for the head of the reply, for as long as the request makes progress.
    async fn send(
        &self,
        request: http::Request<Outgoing>,
        sent: &AtomicU64,
    ) -> Result<http::Response<Incoming>, Failure> {
        let mut reply = pin!(self.client.request(request));
        let mut sent_before = 0;
        loop {
            match tokio::time::timeout(self.stall, &mut reply).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(error)) => return Err(Failure::of_network(&error, error.is_connect())),
                Err(_) => {
                    let sent_now = sent.load(Ordering::Relaxed);
                    if sent_now == sent_before {
                        return Err(Failure::stalled(self.stall));
                    }
                    sent_before = sent_now;
                }
            }
        }
    }

    /// A small document, such as an error message.
    async fn small(&self, body: Incoming) -> Option<Bytes> {
        let body = Limited::new(body, self.reply_bytes_max).collect();
        let body = tokio::time::timeout(self.stall, body).await.ok()?.ok()?;
        Some(body.to_bytes())
    }

    /// Send a request of our own and read its whole small reply. `secrets` of the request's body must not be repeated.
    pub(crate) async fn fetch(
        &self,
        request: http::Request<Bytes>,
        secrets: &[String],
    ) -> Result<(HeaderMap, Bytes), Failure> {
        let (parts, body) = request.into_parts();
        let request = HttpRequest::from_parts(parts, HttpRequestBody::from(body));
        let pass_nothing = |_: &Method, _| false;
        let reply = self
            .exchange(request, pass_nothing)
            .await
            .map_err(|mut failure| {
                failure.message = super::failure::tidy(&failure.message, secrets, usize::MAX);
                failure
            })?;
        let (parts, body) = reply.into_parts();
        match Limited::new(body, DOCUMENT_BYTES_MAX as usize).collect().await {
            Ok(body) => Ok((parts.headers, body.to_bytes())),
            Err(error) => Err(Failure::of_network(error.as_ref(), false)),
        }
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

/// The headers of a reply to HEAD, for what `object_store` does not pass on (checksums).
#[derive(Debug, Clone)]
pub(crate) struct ReplyHeaders(pub(crate) HeaderMap);

/// What a service changes on a request after it was signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alter {
    Nothing,
    /// Flip a bit of the body, so that its checksum header is wrong: the probe's question whether the server looks.
    SpoilBody,
    /// Completing an upload must not replace an object: `object_store` has no way to ask for it.
    CompleteIfAbsent,
    /// Let the replies through that WebDAV directories are made from.
    Webdav,
}

/// `object_store`'s way to the transport.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) transport: Arc<Transport>,
    pub(crate) alter: Alter,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut pass: fn(&Method, StatusCode) -> bool = |_, _| false;
        match self.alter {
            Alter::SpoilBody => request = spoil(request).await?,
            // Only there: what else belongs to an upload says nothing about the object, and servers refuse conditions they do not know.
            Alter::CompleteIfAbsent if is_completion(&request) => {
                let headers = request.headers_mut();
                headers.insert(IF_NONE_MATCH, HeaderValue::from_static("*"));
            }
            Alter::Nothing | Alter::CompleteIfAbsent => {}
            Alter::Webdav => {
                pass = |method, status| {
                    matches!(
                        (method.as_str(), status.as_u16()),
                        ("PUT", 404 | 409) | ("MKCOL", 409) | ("PROPFIND", 404)
                    )
                };
            }
        }
        // `object_store` never retries here (it is told not to), so the kind does not matter to it.
        self.transport
            .exchange(request, pass)
            .await
            .map_err(|failure| HttpError::new(HttpErrorKind::Unknown, failure))
    }
}

impl HttpConnector for Service {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

/// `POST object?uploadId=...`: the one request of an upload in parts that makes an object.
fn is_completion(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or("");
    request.method() == Method::POST && query.split('&').any(|pair| pair.starts_with("uploadId="))
}

async fn spoil(request: HttpRequest) -> Result<HttpRequest, HttpError> {
    let (parts, body) = request.into_parts();
    let mut bytes = body.collect().await?.to_bytes().to_vec();
    if let Some(first) = bytes.first_mut() {
        *first ^= 1;
    }
    Ok(HttpRequest::from_parts(parts, bytes.into()))
}

/// A partial reply must be the range that was asked for (or what there is of it). A whole object is fine when it is exactly the range.
fn check_range(asked: &HeaderValue, reply: &mut http::response::Parts) -> Result<(), Failure> {
    let Some((start, end)) = asked.to_str().ok().and_then(parse_range) else {
        return Ok(());
    };
    let length = reply
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if reply.status != StatusCode::PARTIAL_CONTENT {
        if start == 0 && length == Some(end + 1) {
            let range = format!("bytes 0-{end}/{}", end + 1);
            if let Ok(range) = HeaderValue::from_str(&range) {
                reply.status = StatusCode::PARTIAL_CONTENT;
                reply.headers.insert(CONTENT_RANGE, range);
                return Ok(());
            }
        }
        return Err(Failure::new(
            ErrorKind::Unsupported,
            format!("asked for bytes {start}-{end}, the server ignored the range"),
        )
        .with_hint("this server or a proxy before it does not serve parts of an object"));
    }
    let range = reply
        .headers
        .get(CONTENT_RANGE)
        .and_then(|value| value.to_str().ok());
    let Some((got_start, got_end, total)) = range.and_then(parse_content_range) else {
        return Err(Failure::new(
            ErrorKind::Unavailable,
            "partial reply does not say which bytes it holds",
        ));
    };
    if got_start != start || got_end != end.min(total.saturating_sub(1)) {
        let message =
            format!("asked for bytes {start}-{end}, the server sent {got_start}-{got_end} of {total}");
        return Err(Failure::new(ErrorKind::Unavailable, message));
    }
    if length.is_some_and(|length| length != got_end - got_start + 1) {
        let message = "length of a partial reply does not fit its range";
        return Err(Failure::new(ErrorKind::Unavailable, message));
    }
    Ok(())
}

/// `bytes=START-END`, both ends inclusive.
pub(super) fn parse_range(range: &str) -> Option<(u64, u64)> {
    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end) = (start.parse().ok()?, end.parse().ok()?);
    (start <= end && end < u64::MAX).then_some((start, end))
}

/// `bytes START-END/TOTAL`.
pub(super) fn parse_content_range(range: &str) -> Option<(u64, u64, u64)> {
    let (range, total) = range.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end, total) = (start.parse().ok()?, end.parse().ok()?, total.parse().ok()?);
    (start <= end && end < total).then_some((start, end, total))
}

/// A request's body, handed on in pieces that are counted.
pub(crate) struct Outgoing {
    inner: HttpRequestBody,
    piece: Bytes,
    sent: Arc<AtomicU64>,
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        while self.piece.is_empty() {
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => self.piece = frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        let len = self.piece.len().min(OUTGOING_PIECE_BYTES);
        let piece = self.piece.split_to(len);
        self.sent.fetch_add(len as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.piece.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.inner.size_hint().exact().unwrap_or(0);
        SizeHint::with_exact(rest + self.piece.len() as u64)
    }
}

/// A reply's body that fails when nothing comes for too long, or too much.
struct Guarded {
    inner: Incoming,
    stall: Duration,
    sleep: Pin<Box<Sleep>>,
    /// The sleep was set since the last byte came.
    waiting: bool,
    bytes_left: u64,
}

impl Guarded {
    fn new(inner: Incoming, stall: Duration, bytes_max: u64) -> Self {
        Self {
            inner,
            stall,
            sleep: Box::pin(tokio::time::sleep(stall)),
            waiting: true,
            bytes_left: bytes_max,
        }
    }

    fn fail(failure: Failure) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        Poll::Ready(Some(Err(HttpError::new(HttpErrorKind::Unknown, failure))))
    }
}

impl Body for Guarded {
    type Data = Bytes;
    type Error = HttpError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, HttpError>>> {
        match Pin::new(&mut self.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.waiting = false;
                let len = frame.data_ref().map_or(0, Bytes::len) as u64;
                if len > self.bytes_left {
                    let message = "reply is longer than any such document should be";
                    return Self::fail(Failure::new(ErrorKind::LimitExceeded, message));
                }
                self.bytes_left -= len;
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Self::fail(Failure::of_network(&error, false)),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                if !self.waiting {
                    self.waiting = true;
                    let until = Instant::now() + self.stall;
                    self.sleep.as_mut().reset(until);
                }
                match self.sleep.as_mut().poll(cx) {
                    Poll::Ready(()) => Self::fail(Failure::stalled(self.stall)),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
