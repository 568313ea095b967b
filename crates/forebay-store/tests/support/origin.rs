//! A small S3 server in the test's own process: objects in a map, ranges, conditions, checksums, uploads in parts, listings.
//!
//! It behaves unless it is told a [`Quirk`], each of which a real server was seen to have; the probe must find every one of them. It takes
//! any credentials and remembers what it was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forebay_core::crc64nvme;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::wire::{self, Message};

/// A way in which real servers fall short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Quirk {
    /// Conditional puts replace all the same.
    IgnoreIfNoneMatch,
    /// Conditional puts look first and write later.
    RacyIfNoneMatch,
    /// Conditional completions replace all the same.
    IgnoreCompleteCondition,
    /// Wrong checksums are taken.
    IgnoreChecksum,
    /// Wrong checksums of parts are taken, those of whole objects are not.
    IgnorePartChecksum,
    /// A stale version is read all the same.
    IgnoreIfMatch,
    /// Ranges are answered by the whole object.
    IgnoreRange,
    /// Writes are forbidden.
    ReadOnly,
    /// Uploads are visible before they are complete.
    EagerUpload,
    /// Objects keep no checksum.
    ForgetChecksum,
}

#[derive(Debug, Clone)]
struct Object {
    bytes: Arc<Vec<u8>>,
    etag: String,
    metadata: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Upload {
    name: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<u32, Vec<u8>>,
}

#[derive(Debug, Default)]
struct State {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    log: Vec<Message>,
    made: u64,
}

/// The running server; it stops when the test's runtime does.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    address: SocketAddr,
    quirks: Arc<BTreeSet<Quirk>>,
    state: Arc<Mutex<State>>,
}

/// The only bucket.
pub(crate) const BUCKET: &str = "/bucket";

impl Origin {
    pub(crate) async fn start(quirks: &[Quirk]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = Self {
            address: listener.local_addr().unwrap(),
            quirks: Arc::new(quirks.iter().copied().collect()),
            state: Arc::default(),
        };
        let serving = origin.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let origin = serving.clone();
                tokio::spawn(async move {
                    let _ = origin.serve(socket).await;
                });
            }
        });
        origin
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it was asked so far.
    pub(crate) fn log(&self) -> Vec<Message> {
        self.state().log.clone()
    }

    pub(crate) fn object(&self, name: &str) -> Option<Vec<u8>> {
        self.state().objects.get(name).map(|object| object.bytes.to_vec())
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    pub(crate) fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    /// Put an object there without asking anyone.
    pub(crate) fn insert(&self, name: &str, bytes: &[u8]) {
        let object = self.object_of(bytes.to_vec(), Vec::new());
        self.state().objects.insert(name.to_owned(), object);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn has(&self, quirk: Quirk) -> bool {
        self.quirks.contains(&quirk)
    }

    async fn serve(&self, socket: TcpStream) -> std::io::Result<()> {
        socket.set_nodelay(true)?;
        let mut socket = BufReader::new(socket);
        while let Some(request) = wire::read(&mut socket, true).await? {
            self.state().log.push(request.clone());
            let mut reply = self.answer(&request).await;
            let mut bytes = if request.method() == "HEAD" {
                if reply.header("content-length").is_none() {
                    reply.set("content-length", "0");
                }
                reply.head()
            } else {
                reply.bytes()
            };
            socket.get_mut().write_all(&bytes).await?;
            bytes.clear();
        }
        Ok(())
    }

    async fn answer(&self, request: &Message) -> Message {
        let path = percent_decode_str(request.path())
            .decode_utf8_lossy()
            .into_owned();
        let Some(name) = path.strip_prefix(BUCKET) else {
            return error(404, "NoSuchBucket");
        };
        let name = name.trim_start_matches('/');
        let writes = matches!(request.method(), "PUT" | "POST" | "DELETE");
        if writes && self.has(Quirk::ReadOnly) {
            return error(403, "AccessDenied");
        }
        match (request.method(), request.query("uploadId"), name) {
            ("GET", _, "") if request.query("uploads").is_some() => self.list_uploads(request),
            ("GET", _, "") => self.list(request),
            ("GET" | "HEAD", _, _) => self.get(request, name),
            ("POST", None, _) if request.query("uploads").is_some() => self.begin(request, name),
            ("PUT", Some(upload), _) => self.put_part(request, upload),
            ("POST", Some(upload), _) => self.complete(request, upload, name),
            ("DELETE", Some(upload), _) => match self.state().uploads.remove(upload) {
                Some(_) => Message::reply(204, ""),
                None => error(404, "NoSuchUpload"),
            },
            ("PUT", _, _) => self.put(request, name).await,
            ("DELETE", _, _) => {
                self.state().objects.remove(name);
                Message::reply(204, "")
            }
            _ => error(405, "MethodNotAllowed"),
        }
    }

    fn get(&self, request: &Message, name: &str) -> Message {
        let Some(object) = self.state().objects.get(name).cloned() else {
            return error(404, "NoSuchKey");
        };
        let stale = request.header("if-match").is_some_and(|tag| tag != object.etag);
        if stale && !self.has(Quirk::IgnoreIfMatch) {
            return error(412, "PreconditionFailed");
        }
        let total = object.bytes.len();
        let range = request
            .header("range")
            .and_then(|range| parse_range(range, total));
        let mut reply = match range {
            Some((start, _)) if start >= total => return error(416, "InvalidRange"),
            Some((start, end)) if !self.has(Quirk::IgnoreRange) => {
                let body = if request.method() == "HEAD" {
                    Vec::new()
                } else {
                    object.bytes[start..=end].to_vec()
                };
                Message::reply(206, body)
                    .with("content-range", format!("bytes {start}-{end}/{total}"))
                    .with("content-length", (end - start + 1).to_string())
            }
            _ => {
                let body = if request.method() == "HEAD" {
                    Vec::new()
                } else {
                    object.bytes.to_vec()
                };
                Message::reply(200, body).with("content-length", total.to_string())
            }
        };
        reply.set("etag", object.etag.clone());
        reply.set("last-modified", "Wed, 01 Jan 2025 00:00:00 GMT");
        for (name, value) in &object.metadata {
            reply.set(name, value.clone());
        }
        let asked = request.header("x-amz-checksum-mode") == Some("ENABLED");
        if asked && !self.has(Quirk::ForgetChecksum) {
            reply.set("x-amz-checksum-crc64nvme", sum(&object.bytes));
            reply.set("x-amz-checksum-type", "FULL_OBJECT");
        }
        reply
    }

    async fn put(&self, request: &Message, name: &str) -> Message {
        if let Err(refused) = self.check_sum(request) {
            return refused;
        }
        let conditional = request.header("if-none-match").is_some() && !self.has(Quirk::IgnoreIfNoneMatch);
        if self.has(Quirk::RacyIfNoneMatch) && conditional {
            if self.state().objects.contains_key(name) {
                return error(412, "PreconditionFailed");
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        let object = self.object_of(request.body.clone(), metadata(request));
        let mut state = self.state();
        if conditional && !self.has(Quirk::RacyIfNoneMatch) && state.objects.contains_key(name) {
            return error(412, "PreconditionFailed");
        }
        let reply = Message::reply(200, "").with("etag", object.etag.clone());
        state.objects.insert(name.to_owned(), object);
        reply
    }

    fn check_sum(&self, request: &Message) -> Result<(), Message> {
        match request.header("x-amz-checksum-crc64nvme") {
            Some(sent) if sent != sum(&request.body) && !self.has(Quirk::IgnoreChecksum) => {
                Err(error(400, "BadDigest"))
            }
            _ => Ok(()),
        }
    }

    fn begin(&self, request: &Message, name: &str) -> Message {
        let mut state = self.state();
        state.made += 1;
        let id = format!("upload{}", state.made);
        let upload = Upload {
            name: name.to_owned(),
            metadata: metadata(request),
            ..Upload::default()
        };
        state.uploads.insert(id.clone(), upload);
        drop(state);
        if self.has(Quirk::EagerUpload) {
            self.insert(name, b"half");
        }
        Message::reply(
            200,
            format!(
                "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ),
        )
    }

    /// Two on a page, by name and then by when they were begun.
    fn list_uploads(&self, request: &Message) -> Message {
        let query = |name| {
            let text = request.query(name).unwrap_or_default();
            percent_decode_str(text).decode_utf8_lossy().into_owned()
        };
        let (prefix, after) = (query("prefix"), (query("key-marker"), query("upload-id-marker")));
        let state = self.state();
        let open = state.uploads.iter();
        let open = open.filter(|(_, upload)| upload.name.starts_with(&prefix));
        let mut open: Vec<(String, String)> = open
            .map(|(id, upload)| (upload.name.clone(), id.clone()))
            .collect();
        open.sort();
        open.retain(|upload| after.0.is_empty() || *upload > after);
        let is_more = open.len() > 2;
        open.truncate(2);
        let mut body = format!(
            "<ListMultipartUploadsResult><EncodingType>url</EncodingType><IsTruncated>{is_more}</IsTruncated>"
        );
        if let Some((name, id)) = open.last().filter(|_| is_more) {
            let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
            write!(
                body,
                "<NextKeyMarker>{name}</NextKeyMarker><NextUploadIdMarker>{id}</NextUploadIdMarker>"
            )
            .unwrap();
        }
        for (name, id) in open {
            let name = percent_encoding::utf8_percent_encode(&name, percent_encoding::NON_ALPHANUMERIC);
            write!(
                body,
                "<Upload><Key>{name}</Key><UploadId>{id}</UploadId><Initiated>2025-01-01T00:00:00.000Z</Initiated></Upload>"
            )
            .unwrap();
        }
        Message::reply(200, body + "</ListMultipartUploadsResult>")
    }

    fn put_part(&self, request: &Message, upload: &str) -> Message {
        match self.check_sum(request) {
            Err(refused) if !self.has(Quirk::IgnorePartChecksum) => return refused,
            _ => {}
        }
        let number: u32 = request.query("partNumber").unwrap().parse().unwrap();
        match self.state().uploads.get_mut(upload) {
            None => error(404, "NoSuchUpload"),
            Some(upload) => {
                upload.parts.insert(number, request.body.clone());
                Message::reply(200, "").with("etag", format!("\"part{number}\""))
            }
        }
    }

    fn complete(&self, request: &Message, id: &str, name: &str) -> Message {
        let conditional =
            request.header("if-none-match").is_some() && !self.has(Quirk::IgnoreCompleteCondition);
        let mut state = self.state();
        if !state.uploads.contains_key(id) {
            return error(404, "NoSuchUpload");
        }
        if conditional && state.objects.contains_key(name) {
            return error(412, "PreconditionFailed");
        }
        let upload = state.uploads.remove(id).unwrap();
        drop(state);
        let bytes = upload.parts.into_values().flatten().collect();
        let object = self.object_of(bytes, upload.metadata);
        let etag = object.etag.clone();
        self.state().objects.insert(name.to_owned(), object);
        let body =
            format!("<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>");
        Message::reply(200, body)
    }

    fn list(&self, request: &Message) -> Message {
        let decode = |name: &str| {
            let value = request.query(name).unwrap_or("");
            percent_decode_str(value).decode_utf8_lossy().into_owned()
        };
        let (prefix, token) = (decode("prefix"), decode("continuation-token"));
        let after = percent_decode_str(&token).decode_utf8_lossy().into_owned();
        let mut rows = String::new();
        let mut last = String::new();
        let mut count = 0;
        let mut truncated = false;
        let state = self.state();
        for (name, object) in state.objects.iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let below = name[prefix.len()..]
                .split_once('/')
                .map(|(dir, _)| format!("{prefix}{dir}/"));
            let row = match below.filter(|_| request.query("delimiter").is_some()) {
                Some(dir) => dir,
                None => name.clone(),
            };
            if row <= after || row == last {
                continue;
            }
            // Small pages, so that paging is tried.
            if count == 3 {
                truncated = true;
                break;
            }
            count += 1;
            let encoded = percent_encoding::utf8_percent_encode(&row, percent_encoding::NON_ALPHANUMERIC);
            if row.ends_with('/') {
                let _ = write!(
                    rows,
                    "<CommonPrefixes><Prefix>{encoded}</Prefix></CommonPrefixes>"
                );
            } else {
                let (size, etag) = (object.bytes.len(), &object.etag);
                let _ = write!(
                    rows,
                    "<Contents><Key>{encoded}</Key><Size>{size}</Size><ETag>{etag}</ETag><LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
                );
            }
            last = row;
        }
        let next = if truncated {
            let token = percent_encoding::utf8_percent_encode(&last, percent_encoding::NON_ALPHANUMERIC);
            format!("<NextContinuationToken>{token}</NextContinuationToken>")
        } else {
            String::new()
        };
        let body = format!(
            "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>{truncated}</IsTruncated>{next}{rows}</ListBucketResult>"
        );
        Message::reply(200, body)
    }

    fn object_of(&self, bytes: Vec<u8>, metadata: Vec<(String, String)>) -> Object {
        let mut state = self.state();
        state.made += 1;
        Object {
            etag: format!("\"{:x}-{}\"", crc64nvme(&bytes), state.made),
            bytes: Arc::new(bytes),
            metadata,
        }
    }
}

/// An S3 error document.
pub(crate) fn error(status: u16, code: &str) -> Message {
    Message::reply(
        status,
        format!(
            "<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>said the server</Message></Error>"
        ),
    )
    .with("content-type", "application/xml")
}

/// `x-amz-checksum-crc64nvme` of these bytes.
pub(crate) fn sum(bytes: &[u8]) -> String {
    let mut word = crc64nvme(bytes).to_le_bytes();
    word.reverse();
    BASE64_STANDARD.encode(word)
}

fn metadata(request: &Message) -> Vec<(String, String)> {
    let ours = |name: &str| name.to_ascii_lowercase().starts_with("x-amz-meta-");
    request
        .headers
        .iter()
        .filter(|(name, _)| ours(name))
        .cloned()
        .collect()
}

fn parse_range(range: &str, total: usize) -> Option<(usize, usize)> {
    let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (start, end): (usize, usize) = (start.parse().ok()?, end.parse().ok()?);
    Some((start, end.min(total.saturating_sub(1))))
}
