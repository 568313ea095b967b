//! What a server or the network refused, and what that means in our words.
//!
//! A [`Failure`] is made in the transport, where status, headers and body are at hand, travels through `object_store` as the source of its
//! error, and is found again by [`explain`]. The kind follows from the status code and from the code in the reply's XML. Of
//! the reply only its code and message are kept, cut to a bound, and without anything the request carried as a credential.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use forebay_core::{Error, ErrorKind};
use http::{HeaderMap, StatusCode};

/// Longest message of a server that is repeated: enough for a sentence or two.
const MESSAGE_CHARS_MAX: usize = 300;

/// How a message begins when the status is all there is.
pub(crate) const MUTE: &str = "server replied";

/// Longest error code that is repeated.
const CODE_CHARS_MAX: usize = 64;

/// Shortest text that is taken for a secret: anything shorter would blot out ordinary words.
const SECRET_BYTES_MIN: usize = 8;

/// Why a request did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// The pause the server asks for.
    pub(crate) pause: Option<Duration>,
    /// The request may have taken effect all the same.
    pub(crate) uncertain: bool,
    /// 409: another request about the same object was in the way.
    pub(crate) conflict: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Failure {}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            hint: None,
            pause: None,
            uncertain: false,
            conflict: false,
        }
    }

    pub(crate) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// A reply that is not a success.
    pub(crate) fn of_reply(status: StatusCode, headers: &HeaderMap, body: &[u8], asked: &Asked) -> Self {
        let body = String::from_utf8_lossy(body);
        let secrets = &asked.secrets;
        let [code, message, region] = match json_texts(&body) {
            Some([code, message]) => [code, message, None],
            None => xml_texts(&body, ["Code", "Message", "Region"]),
        };
        let code = tidy(&code.unwrap_or_default(), secrets, CODE_CHARS_MAX);
        let message = tidy(&message.unwrap_or_default(), secrets, MESSAGE_CHARS_MAX);
        let region = region.or_else(|| header(headers, "x-amz-bucket-region"));
        let region = region.map(|region| tidy(&region, secrets, CODE_CHARS_MAX));
        // Garage and AWS name the region in errors that have nothing to do with it.
        let region = region.filter(|region| asked.region.as_ref() != Some(region));
        let mut failure = classify(status, &code, region.as_deref());
        let said = [code.as_str(), message.as_str()]
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join(": ");
        if failure.message.is_empty() {
            failure.message = format!("{MUTE} {}", status.as_u16());
        }
        if !said.is_empty() {
            failure.message = format!("{} ({said})", failure.message);
        }
        failure.pause = header(headers, "retry-after")
            .and_then(|value| value.parse().ok())
            .map(Duration::from_secs);
        failure.uncertain = status.is_server_error();
        failure.conflict = status == StatusCode::CONFLICT;
        failure
    }

    /// The other side was not reached, or the connection broke.
    pub(crate) fn of_network(error: &(dyn StdError + 'static), connecting: bool) -> Self {
        let mut words = Vec::new();
        let mut cause = Some(error);
        while let Some(error) = cause {
            let text = error.to_string();
            // Each layer repeats what the one below says.
            if !words.iter().any(|word: &String| word.contains(&text)) {
                words.push(text);
            }
            cause = error.source();
        }
        let words = tidy(&words.join(": "), &[], MESSAGE_CHARS_MAX);
        if words.contains("certificate") {
            return Self::new(
                ErrorKind::InvalidInput,
                format!("server certificate is not trusted: {words}"),
            )
            .with_hint(
                "name the certificate authority in AWS_CA_BUNDLE or SSL_CERT_FILE, or check the endpoint",
            );
        }
        let failure = if words.contains("timed out") || words.contains("deadline") {
            Self::new(ErrorKind::Timeout, words)
        } else {
            Self::new(ErrorKind::Unavailable, words)
        };
        if connecting {
            failure.with_hint("check the endpoint, the network and the name service")
        } else {
            Self {
                uncertain: true,
                ..failure
            }
        }
    }

    /// Nothing came for so long.
    pub(crate) fn stalled(stall: Duration) -> Self {
        let message = format!("no progress for {} ms", stall.as_millis());
        Self {
            uncertain: true,
            ..Self::new(ErrorKind::Timeout, message)
        }
    }

    /// No connection came about in that time.
    pub(crate) fn unconnected(within: Duration) -> Self {
        let message = format!("no connection within {} ms", within.as_millis());
        Self::new(ErrorKind::Timeout, message)
            .with_hint("check the endpoint, the network and the name service")
    }

    /// The failure at the bottom of another error.
    pub(crate) fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(failure) = error.downcast_ref::<Self>() {
                return Some(failure);
            }
            cause = error.source();
        }
        None
    }

    /// As an error of `op`; the place is for the caller to name.
    pub(crate) fn to_error(&self, op: &'static str) -> Error {
        let mut error = Error::new(self.kind, op, self.message.clone());
        if let Some(pause) = self.pause {
            error = error.with_retry_after(pause);
        }
        match &self.hint {
            Some(hint) => error.with_hint(hint.clone()),
            None => error,
        }
    }
}

/// The table of status codes and of the codes S3, GCS and Azure give.
fn classify(status: StatusCode, code: &str, region: Option<&str>) -> Failure {
    use ErrorKind as Kind;
    let plain = |kind| Failure::new(kind, "");
    match (status.as_u16(), code) {
        (_, "NoSuchBucket" | "ContainerNotFound") => Failure::new(Kind::NotFound, "bucket does not exist"),
        (_, "ExpiredToken" | "TokenRefreshRequired" | "ExpiredTokenException") => {
            Failure::new(Kind::Unauthenticated, "credentials have expired")
                .with_hint("renew them: log in again, or export fresh ones")
        }
        (
            _,
            "InvalidAccessKeyId"
            | "SignatureDoesNotMatch"
            | "InvalidToken"
            | "InvalidClientTokenId"
            | "AuthenticationFailed"
            | "InvalidSecurity"
            | "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignature"
            | "MissingAuthenticationToken",
        ) => Failure::new(Kind::Unauthenticated, "credentials are wrong").with_hint(
            "check the access key, the secret key and the session token, and that they belong together",
        ),
        (_, "RequestTimeTooSkewed") => {
            Failure::new(Kind::Unauthenticated, "the clock of this machine is wrong")
                .with_hint("set the clock: signatures hold for a few minutes only")
        }
        (301 | 307, _) | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
            wrong_region(region)
        }
        (400, "") if region.is_some() => wrong_region(region),
        (_, "BadDigest" | "InvalidDigest" | "XAmzContentChecksumMismatch" | "XAmzContentSHA256Mismatch") => {
            Failure::new(Kind::Corrupt, "the bytes do not match their checksum")
        }
        (
            _,
            "AccessDeniedException"
            | "DisabledException"
            | "KMSInvalidStateException"
            | "IncorrectKeyException",
        ) => plain(Kind::PermissionDenied),
        (_, "NotFoundException") => plain(Kind::NotFound),
        (_, "InvalidCiphertextException") => {
            Failure::new(Kind::Corrupt, "what was wrapped does not open here")
        }
        (_, "KeyUnavailableException" | "DependencyTimeoutException" | "KMSInternalException") => {
            plain(Kind::Unavailable)
        }
        (_, "RequestTimeout") | (408, _) => plain(Kind::Timeout),
        (_, "SlowDown" | "ThrottlingException" | "RequestLimitExceeded" | "ServerBusy") | (429 | 503, _) => {
            Failure::new(Kind::Throttled, "server asks for fewer requests")
        }
        (_, "EntityTooLarge") | (413, _) => plain(Kind::LimitExceeded),
        (_, "QuotaExceeded" | "XMinioStorageFull") | (507, _) => plain(Kind::OutOfSpace),
        (_, "BlobAlreadyExists" | "PreconditionFailed") if status == StatusCode::CONFLICT => {
            plain(Kind::AlreadyExists)
        }
        (304 | 412, _) => plain(Kind::Precondition),
        (401, _) => plain(Kind::Unauthenticated),
        (403, _) => plain(Kind::PermissionDenied),
        (404 | 410, _) => plain(Kind::NotFound),
        (416, _) => Failure::new(Kind::InvalidInput, "the range lies beyond the end of the object"),
        (405 | 501 | 505, _) => plain(Kind::Unsupported),
        // 409: two conditional writes met, and S3 asks to try again.
        (409 | 500..=599, _) => plain(Kind::Unavailable),
        _ => plain(Kind::InvalidInput),
    }
}

fn wrong_region(region: Option<&str>) -> Failure {
    let failure = Failure::new(ErrorKind::InvalidInput, "the bucket is in another region");
    match region {
        Some(region) => Failure::new(
            ErrorKind::InvalidInput,
            format!("the bucket is in region {region}, requests were signed for another"),
        )
        .with_hint(format!("set FOREBAY_S3_REGION={region} (or AWS_REGION)")),
        None => failure.with_hint("set FOREBAY_S3_REGION (or AWS_REGION) to the region of the bucket"),
    }
}

/// An error of `object_store` in our words.
pub(crate) fn explain(op: &'static str, error: object_store::Error) -> Error {
    use object_store::Error as Theirs;
    if let Some(failure) = Failure::find(&error) {
        return failure.to_error(op);
    }
    let kind = match error {
        // What our own credential provider said.
        Theirs::Generic { source, .. } => match source.downcast::<Error>() {
            Ok(error) => return *error,
            Err(source) => {
                let words = tidy(&source.to_string(), &[], MESSAGE_CHARS_MAX);
                return Error::new(ErrorKind::Unavailable, op, words);
            }
        },
        Theirs::NotFound { .. } => ErrorKind::NotFound,
        Theirs::InvalidPath { .. } => ErrorKind::InvalidInput,
        Theirs::NotSupported { .. } | Theirs::NotImplemented { .. } => ErrorKind::Unsupported,
        Theirs::AlreadyExists { .. } => ErrorKind::AlreadyExists,
        Theirs::Precondition { .. } | Theirs::NotModified { .. } => ErrorKind::Precondition,
        Theirs::PermissionDenied { .. } => ErrorKind::PermissionDenied,
        Theirs::Unauthenticated { .. } => ErrorKind::Unauthenticated,
        _ => ErrorKind::Internal,
    };
    Error::new(kind, op, "")
}

/// Code and message of an error of AWS services that speak JSON; `None` of any other document.
fn json_texts(body: &str) -> Option<[Option<String>; 2]> {
    #[derive(serde::Deserialize)]
    struct Document {
        #[serde(rename = "__type")]
        code: Option<String>,
        #[serde(alias = "Message")]
        message: Option<String>,
    }
    let Document { code, message } = serde_json::from_str(body).ok()?;
    // With the name of the service before it.
    let code = code.map(|code| code.rsplit('#').next().unwrap_or_default().to_owned());
    Some([code, message])
}

/// The first text of each of these elements, wherever in the document it is.
pub(crate) fn xml_texts<const N: usize>(xml: &str, names: [&str; N]) -> [Option<String>; N] {
    use quick_xml::events::Event;
    let mut texts: [Option<String>; N] = std::array::from_fn(|_| None);
    let mut reader = quick_xml::Reader::from_str(xml);
    let mut current: Option<usize> = None;
    // A document that stops making sense gives what it gave so far.
    while let Ok(event) = reader.read_event() {
        match event {
            Event::Start(start) => {
                let name = start.local_name();
                current = names.iter().position(|wanted| wanted.as_bytes() == name.as_ref());
            }
            Event::Text(text) => {
                if let (Some(at), Ok(text)) = (current, text.decode()) {
                    texts[at].get_or_insert_with(String::new).push_str(&text);
                }
            }
            Event::GeneralRef(reference) => {
                if let (Some(at), Some(text)) = (current, resolve(&reference)) {
                    texts[at].get_or_insert_with(String::new).push_str(&text);
                }
            }
            Event::End(_) => current = None,
            Event::Eof => break,
            _ => {}
        }
    }
    texts
}

/// `&amp;` and its like, and characters by number.
fn resolve(reference: &quick_xml::events::BytesRef<'_>) -> Option<String> {
    if let Ok(Some(character)) = reference.resolve_char_ref() {
        return Some(character.to_string());
    }
    let name = reference.decode().ok()?;
    quick_xml::escape::resolve_predefined_entity(&name).map(str::to_owned)
}

/// One line of printable text without secrets, cut to a bound.
pub(crate) fn tidy(text: &str, secrets: &[String], chars_max: usize) -> String {
    let mut text = text.to_owned();
    for secret in secrets.iter().filter(|secret| secret.len() >= SECRET_BYTES_MIN) {
        text = text.replace(secret.as_str(), "[redacted]");
    }
    let mut line: String = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(chars_max)
        .collect();
    if text.trim().chars().count() > chars_max {
        line.push_str("...");
    }
    line
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(str::to_owned)
}

/// What is remembered of a request to judge its reply.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Everything it carries that must not be repeated: whole headers, and their parts, since servers quote those.
    secrets: Vec<String>,
    /// The region it was signed for.
    region: Option<String>,
}

impl Asked {
    pub(crate) fn of(headers: &HeaderMap, uri: &http::Uri) -> Self {
        const HEADERS: [&str; 6] = [
            "authorization",
            "x-amz-security-token",
            "x-amz-s3session-token",
            "x-aws-ec2-metadata-token",
            "x-amz-sso_bearer_token",
            "x-ms-encryption-key",
        ];
        const PARAMETERS: [&str; 4] = [
            "sig",
            "X-Amz-Signature",
            "X-Amz-Credential",
            "X-Amz-Security-Token",
        ];
        let mut secrets = Vec::new();
        for value in HEADERS.iter().filter_map(|name| header(headers, name)) {
            // `Credential=KEY/date/region/s3/aws4_request, Signature=HEX`: the key and the signature on their own.
            let parts = value.split([' ', ',', '=']);
            let parts = parts.map(|part| part.split('/').next().unwrap_or(part));
            let is_word = |part: &&str| {
                matches!(
                    *part,
                    "AWS4-HMAC-SHA256" | "Credential" | "SignedHeaders" | "Signature"
                ) || part.contains(';')
            };
            secrets.extend(parts.filter(|part| !is_word(part)).map(str::to_owned));
            secrets.push(value);
        }
        for pair in uri.query().unwrap_or("").split('&') {
            match pair.split_once('=') {
                Some((name, value)) if PARAMETERS.contains(&name) => secrets.push(value.to_owned()),
                _ => {}
            }
        }
        // Longest first, so that no part of a longer one is left standing.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        let scope = header(headers, "authorization").unwrap_or_default();
        let region = scope
            .split_once("Credential=")
            .and_then(|(_, scope)| scope.split('/').nth(2));
        Self {
            region: region.map(str::to_owned),
            secrets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, body: &str) -> Failure {
        Failure::of_reply(
            StatusCode::from_u16(status).unwrap(),
            &HeaderMap::new(),
            body.as_bytes(),
            &Asked::default(),
        )
    }

    fn coded(status: u16, code: &str) -> ErrorKind {
        reply(status, &format!("<Error><Code>{code}</Code></Error>")).kind
    }

    #[test]
    fn statuses_and_codes_find_their_kind() {
        use ErrorKind as Kind;
        for (status, code, kind) in [
            (400, "ExpiredToken", Kind::Unauthenticated),
            (403, "ExpiredToken", Kind::Unauthenticated),
            (403, "InvalidAccessKeyId", Kind::Unauthenticated),
            (403, "SignatureDoesNotMatch", Kind::Unauthenticated),
            (403, "RequestTimeTooSkewed", Kind::Unauthenticated),
            (403, "AccessDenied", Kind::PermissionDenied),
            (403, "", Kind::PermissionDenied),
            (401, "", Kind::Unauthenticated),
            (404, "NoSuchKey", Kind::NotFound),
            (404, "NoSuchBucket", Kind::NotFound),
            (404, "NoSuchUpload", Kind::NotFound),
            (409, "BlobAlreadyExists", Kind::AlreadyExists),
            (409, "ConditionalRequestConflict", Kind::Unavailable),
            (412, "PreconditionFailed", Kind::Precondition),
            (429, "", Kind::Throttled),
            (503, "SlowDown", Kind::Throttled),
            (503, "", Kind::Throttled),
            (500, "InternalError", Kind::Unavailable),
            (502, "", Kind::Unavailable),
            (301, "PermanentRedirect", Kind::InvalidInput),
            (400, "AuthorizationHeaderMalformed", Kind::InvalidInput),
            (400, "BadDigest", Kind::Corrupt),
            (400, "RequestTimeout", Kind::Timeout),
            (413, "", Kind::LimitExceeded),
            (507, "", Kind::OutOfSpace),
            (501, "NotImplemented", Kind::Unsupported),
        ] {
            assert_eq!(coded(status, code), kind, "{status} {code}");
        }
    }

    #[test]
    fn the_region_a_server_names_is_in_the_hint() {
        let failure = reply(
            400,
            "<?xml version=\"1.0\"?><Error><Code>AuthorizationHeaderMalformed</Code><Message>expecting &apos;eu-1&apos;</Message><Region>eu-1</Region></Error>",
        );
        assert!(
            failure.hint.as_ref().unwrap().contains("FOREBAY_S3_REGION=eu-1"),
            "{failure:?}"
        );
        assert!(failure.message.contains("expecting 'eu-1'"), "{failure:?}");
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-bucket-region", "ap-9".parse().unwrap());
        let failure = Failure::of_reply(StatusCode::MOVED_PERMANENTLY, &headers, b"", &Asked::default());
        assert!(failure.hint.unwrap().contains("ap-9"));
    }

    #[test]
    fn a_region_that_was_meant_is_no_mistake() {
        let mut request = HeaderMap::new();
        let scope = "AWS4-HMAC-SHA256 Credential=K/20250101/garage/s3/aws4_request, Signature=0".parse();
        request.insert("authorization", scope.unwrap());
        let asked = Asked::of(&request, &"http://h/".parse().unwrap());
        assert_eq!(asked.region.as_deref(), Some("garage"));
        let mut headers = HeaderMap::new();
        headers.insert("x-amz-bucket-region", "garage".parse().unwrap());
        let body = b"<Error><Code>InvalidRequest</Code><Region>garage</Region></Error>";
        for body in [&body[..], b""] {
            let failure = Failure::of_reply(StatusCode::BAD_REQUEST, &headers, body, &asked);
            assert!(!failure.message.contains("region"), "{failure}");
        }
    }

    #[test]
    fn the_pause_a_server_asks_for_goes_with_the_error() {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", "7".parse().unwrap());
        let status = StatusCode::TOO_MANY_REQUESTS;
        let failure = Failure::of_reply(status, &headers, b"", &Asked::default());
        assert_eq!(
            failure.to_error("read").retry_after(),
            Some(Duration::from_secs(7))
        );
        assert_eq!(reply(429, "").to_error("read").retry_after(), None);
    }

    #[test]
    fn messages_are_cut_and_hold_no_secret() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIACANARYKEY/20250101/r/s3/aws4_request, SignedHeaders=host;x-amz-date, Signature=c0ffee0123456789"
                .parse()
                .unwrap(),
        );
        headers.insert(
            "x-amz-security-token",
            "canary/token+with==signs".parse().unwrap(),
        );
        let asked = Asked::of(&headers, &"http://h/k?sig=canarysas%3D&x=1".parse().unwrap());
        let body = format!(
            "<Error><Code>Odd</Code><Message>AKIACANARYKEY c0ffee0123456789 canary/token+with==signs canarysas%3D host {}\u{7}</Message></Error>",
            "long ".repeat(500)
        );
        let failure = Failure::of_reply(
            StatusCode::BAD_REQUEST,
            &HeaderMap::new(),
            body.as_bytes(),
            &asked,
        );
        let text = format!("{failure} {failure:?}");
        for canary in [
            "AKIACANARYKEY",
            "c0ffee0123456789",
            "canary/token",
            "canarysas",
            "\u{7}",
        ] {
            assert!(!text.contains(canary), "{canary} in {text}");
        }
        assert!(text.contains("[redacted]") && text.contains("host"), "{text}");
        assert!(failure.message.chars().count() < MESSAGE_CHARS_MAX + 100);
    }

    #[test]
    fn broken_xml_gives_what_it_can() {
        assert_eq!(
            xml_texts("<a><Code>x</Code><b", ["Code", "b"]),
            [Some("x".to_owned()), None]
        );
        assert_eq!(xml_texts("not xml", ["Code"]), [None]);
        assert_eq!(
            xml_texts("<Key>a&amp;b&#x20;c</Key>", ["Key"]),
            [Some("a&b c".to_owned())]
        );
    }
}
