//! From a request to an answer: which path is what, and what every answer says about itself.

use std::convert::Infallible;

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, ErrorKind, Result};
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;

use super::api::{self, Call, Failure};
use super::assets::{self, Asset};
use super::hosts::Hosts;
use super::limits::Limits;
use super::planner::Planner;

/// The page may load what this server gives and nothing else.
const CONTENT_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

/// Answers requests; cheap to copy.
#[derive(Debug, Clone)]
pub(super) struct Site {
    hosts: Hosts,
    limits: Limits,
    planner: Planner,
}

/// What to send back.
type Answer = Response<Full<Bytes>>;

impl Site {
    /// For a server of those names and bounds.
    pub(super) fn new(hosts: Hosts, limits: Limits) -> Self {
        Self {
            hosts,
            limits,
            planner: Planner::new(&limits),
        }
    }

    /// The answer to a request; what goes wrong is an answer too.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let result = match self.hosts.check(request.uri(), request.headers()) {
            Ok(()) => self.route(request).await,
            Err(failure) => Err(failure),
        };
        let mut answer = result.unwrap_or_else(|failure| refusal(&failure));
        let headers = answer.headers_mut();
        for (name, value) in [
            (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
            (header::CACHE_CONTROL, "no-cache"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Ok(answer)
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Answer, Failure> {
        let page = Page::of(request.uri())?;
        allow(&request, page.methods())?;
        match page {
            Page::Home => Ok(redirect("/plan")),
            Page::File(asset) => Ok(file(asset)),
            Page::Models => Ok(json(StatusCode::OK, api::models()?)),
            Page::Call(call) => {
                let body = read_body(request, &self.limits).await?;
                let work = self.planner.compute(move |stop| call.run(&body, stop));
                Ok(json(StatusCode::OK, work.await?))
            }
        }
    }
}

/// What a path names.
#[derive(Debug)]
enum Page {
    Home,
    File(Asset),
    Models,
    Call(Call),
}

impl Page {
    fn of(uri: &Uri) -> Result<Self, Failure> {
        let path = uri.path();
        if let Some(call) = Call::of(path)? {
            return Ok(Self::Call(call));
        }
        if let Some(name) = path.strip_prefix("/assets/") {
            return Ok(Self::File(assets::find(name).map_err(Failure::not_found)?));
        }
        match path {
            "/" => Ok(Self::Home),
            "/plan" | "/plan/" => Ok(Self::File(assets::PLAN_PAGE)),
            "/api/models" => Ok(Self::Models),
            _ => Err(unknown_path(path)),
        }
    }

    fn methods(&self) -> &'static [Method] {
        match self {
            Self::Call(_) => &[Method::POST],
            _ => &[Method::GET, Method::HEAD],
        }
    }
}

fn allow(request: &Request<Incoming>, methods: &[Method]) -> Result<(), Failure> {
    if methods.contains(request.method()) {
        return Ok(());
    }
    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
    let message = format!("{} is not possible here", request.method());
    let error = Error::new(ErrorKind::InvalidInput, "serve", message)
        .with_hint(format!("send {}", names.join(" or ")));
    Err(Failure::new(StatusCode::METHOD_NOT_ALLOWED, error).allowing(names.join(", ")))
}

async fn read_body(request: Request<Incoming>, limits: &Limits) -> Result<Bytes, Failure> {
    let refuse = |status, message: String, hint: &str| {
        let error = Error::new(ErrorKind::InvalidInput, "serve", message).with_hint(hint);
        Failure::new(status, error)
    };
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // Other pages may send forms here without being asked; JSON they may not.
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "the body is not declared as JSON".to_owned();
        let hint = "send the header Content-Type: application/json";
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message, hint));
    }
    match tokio::time::timeout(limits.body_time_max, collect(request.into_body(), limits)).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => {
            let message = format!("the body is larger than {} bytes", limits.body_bytes_max);
            let hint = "send one scenario at a time";
            Err(refuse(StatusCode::PAYLOAD_TOO_LARGE, message, hint))
        }
        Ok(Err(error)) => {
            let message = format!("the body did not arrive: {error}");
            Err(refuse(StatusCode::BAD_REQUEST, message, "send it again"))
        }
        Err(_) => {
            let message = "the body took too long to arrive".to_owned();
            Err(refuse(StatusCode::REQUEST_TIMEOUT, message, "send it again"))
        }
    }
}

/// The whole body; nothing when it is too large.
async fn collect(mut body: Incoming, limits: &Limits) -> hyper::Result<Option<Bytes>> {
    let mut bytes = BytesMut::new();
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        len += data.len();
        if len > limits.body_discarded_bytes_max {
            break;
        }
        if len <= limits.body_bytes_max {
            bytes.extend_from_slice(&data);
        }
    }
    Ok((len <= limits.body_bytes_max).then(|| bytes.freeze()))
}

fn file(asset: Asset) -> Answer {
    with_body(
        StatusCode::OK,
        asset.content_type,
        Bytes::from_static(asset.bytes),
    )
}

fn json(status: StatusCode, bytes: Vec<u8>) -> Answer {
    with_body(status, "application/json", Bytes::from(bytes))
}

fn with_body(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let content_type = HeaderValue::from_static(content_type);
    answer.headers_mut().insert(header::CONTENT_TYPE, content_type);
    answer
}

fn redirect(to: &'static str) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let location = HeaderValue::from_static(to);
    answer.headers_mut().insert(header::LOCATION, location);
    answer
}

fn refusal(failure: &Failure) -> Answer {
    let mut answer = json(failure.status(), failure.body());
    let headers = answer.headers_mut();
    if let Some(allowed) = failure.allowed() {
        headers.insert(header::ALLOW, allowed);
    }
    if let Some(pause) = failure.retry_after() {
        headers.insert(header::RETRY_AFTER, pause);
    }
    // What is left of a body that was refused would be read as the next request.
    if failure.leaves_body() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn unknown_path(path: &str) -> Failure {
    let message = format!("there is no page '{}'", path.escape_debug());
    Failure::not_found(Error::new(ErrorKind::NotFound, "serve", message).with_hint("the planner is at /plan"))
}
