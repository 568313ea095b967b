//! From a request to an answer: which path is what, and what every answer says about itself.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use forebay_core::{Error, ErrorKind, Result};
use http::header::{self, HeaderValue};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::sync::Semaphore;

use super::api::{self, Call, Failure};
use super::assets::{self, Asset};

/// Body of a request; the largest scenario anybody writes by hand is a tenth of it.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What is read of a larger one and thrown away, since a client that still sends does not listen to the refusal.
const BODY_BYTES_DISCARDED_MAX: usize = 1 << 20;

/// Time for a body to arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(10);

/// Plans computed at a time: each takes one core, most of them for a millisecond.
const CALLS_MAX: usize = 4;

/// The page may load what this server gives and nothing else.
const CONTENT_POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'";

/// Answers requests; cheap to copy.
#[derive(Debug, Clone)]
pub(super) struct Site {
    is_loopback: bool,
    calls: Arc<Semaphore>,
}

/// What to send back.
type Answer = Response<Full<Bytes>>;

impl Site {
    /// For a server that listens there.
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            is_loopback: address.ip().is_loopback(),
            calls: Arc::new(Semaphore::new(CALLS_MAX)),
        }
    }

    /// The answer to a request; what goes wrong is an answer too.
    pub(super) async fn answer(&self, request: Request<Incoming>) -> Result<Answer, Infallible> {
        let result = match self.check_host(&request) {
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

    /// A page elsewhere may point its own name at this machine; the browser then takes our answers for its. So names other than
    /// localhost are refused as long as only this machine is served.
    fn check_host(&self, request: &Request<Incoming>) -> Result<(), Failure> {
        let host = request.headers().get(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        if !self.is_loopback || is_local_name(host) {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::InvalidInput,
            "serve",
            "the host of the request is not this machine",
        )
        .with_hint("open the page as http://127.0.0.1 or http://localhost, with the port");
        Err(Failure::new(StatusCode::MISDIRECTED_REQUEST, error))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Answer, Failure> {
        let path = request.uri().path().to_owned();
        if let Some(call) = Call::of(&path)? {
            allow(&request, &[Method::POST])?;
            let body = read_body(request).await?;
            return self.compute(call, body).await;
        }
        if path == "/" {
            allow(&request, &[Method::GET, Method::HEAD])?;
            return Ok(redirect("/plan"));
        }
        let answer = match path.strip_prefix("/assets/") {
            Some(name) => file(assets::find(name).map_err(Failure::not_found)?),
            None if path == "/plan" => file(assets::PLAN_PAGE),
            None if path == "/api/models" => json(StatusCode::OK, api::models()?),
            None => return Err(unknown_path(request.uri())),
        };
        allow(&request, &[Method::GET, Method::HEAD])?;
        Ok(answer)
    }

    /// Computes off the workers, so that a long plan holds up no connection but its own.
    async fn compute(&self, call: Call, body: Bytes) -> Result<Answer, Failure> {
        let internal = |message: &str| Failure::internal(Error::new(ErrorKind::Internal, "serve", message));
        let permit = Arc::clone(&self.calls).acquire_owned().await;
        let permit = permit.map_err(|_| internal("the server is stopping"))?;
        let work = move || {
            let _permit = permit;
            call.run(&body)
        };
        let done = tokio::task::spawn_blocking(work).await;
        let bytes = done.map_err(|_| internal("the plan was not computed to its end"))??;
        Ok(json(StatusCode::OK, bytes))
    }
}

/// `localhost` or an address, with or without a port.
fn is_local_name(host: &str) -> bool {
    let is_address = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    if host.parse::<SocketAddr>().is_ok() || is_address(host) {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
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

async fn read_body(request: Request<Incoming>) -> Result<Bytes, Failure> {
    let refuse = |status, message: String, hint: &str| {
        let error = Error::new(ErrorKind::InvalidInput, "serve", message).with_hint(hint);
        Failure::new(status, error)
    };
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    // Other pages may send forms here without being asked; JSON they may not.
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        let message = "the body is not declared as JSON".to_owned();
        let hint = "send the header Content-Type: application/json";
        return Err(refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, message, hint));
    }
    match tokio::time::timeout(BODY_TIME_MAX, collect(request.into_body())).await {
        Ok(Ok(Some(body))) => Ok(body),
        Ok(Ok(None)) => {
            let message = format!("the body is larger than {BODY_BYTES_MAX} bytes");
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
async fn collect(mut body: Incoming) -> hyper::Result<Option<Bytes>> {
    let mut bytes = BytesMut::new();
    let mut len = 0;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else {
            continue;
        };
        len += data.len();
        if len > BODY_BYTES_DISCARDED_MAX {
            break;
        }
        if len <= BODY_BYTES_MAX {
            bytes.extend_from_slice(&data);
        }
    }
    Ok((len <= BODY_BYTES_MAX).then(|| bytes.freeze()))
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
    // What is left of a body that was refused would be read as the next request.
    if failure.leaves_body() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    answer
}

fn unknown_path(uri: &Uri) -> Failure {
    let message = format!("there is no page '{}'", uri.path().escape_debug());
    Failure::not_found(Error::new(ErrorKind::NotFound, "serve", message).with_hint("the planner is at /plan"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_machine_are_local() {
        for host in [
            "localhost",
            "LOCALHOST:7070",
            "127.0.0.1",
            "127.0.0.1:7070",
            "[::1]:80",
            "[::1]",
            "10.0.0.1:1",
        ] {
            assert!(is_local_name(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            ":80",
        ] {
            assert!(!is_local_name(host), "{host}");
        }
    }
}
