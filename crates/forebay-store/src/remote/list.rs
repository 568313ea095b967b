//! Listings, page by page.
//!
//! S3 is listed by a request of our own (signed by `object_store`'s signer): names come URL-encoded, so that any of them survives XML, and a name
//! that is not a [`Key`] becomes an error row instead of ending the listing. GCS, Azure and WebDAV are listed through
//! `object_store`. Rows stay in the order of the store: by name, a common prefix with its slash.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Result};
use object_store::aws::AwsAuthorizer;
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ListResult, ObjectStore};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;

use super::credentials::{Chain, parse_time};
use super::failure::explain;
use super::transport::Transport;
use crate::probe;
use crate::store::{Entry, ObjectMeta};

/// What stays as it is in a query: RFC 3986's unreserved characters, as signatures want it.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Some rows with their full names, and how to get the next ones.
pub(crate) struct Page {
    pub(crate) rows: Vec<Row>,
    pub(crate) next: Option<String>,
}

/// A row with its full name in the bucket.
pub(crate) enum Row {
    Object {
        name: String,
        meta: Meta,
    },
    /// With the slash at its end.
    Prefix(String),
}

/// What a listing tells of an object.
pub(crate) struct Meta {
    size: u64,
    version: Option<String>,
    modified: Option<Duration>,
}

impl Row {
    fn name(&self) -> &str {
        match self {
            Self::Object { name, .. } | Self::Prefix(name) => name,
        }
    }

    /// Left by a probe, and not what is listed itself.
    pub(crate) fn is_probe(&self, dir: &Key) -> bool {
        let name = self.name();
        let below = name.strip_prefix(dir.as_str()).unwrap_or(name);
        below.split('/').any(|part| part == probe::DIR)
    }

    /// As an entry of a store at `base`; `None` for what is no object of its own (directory markers).
    pub(crate) fn into_entry(self, base: &Key) -> Option<Result<Entry>> {
        let raw = self.name();
        if let Self::Object { meta, .. } = &self {
            // Consoles and other tools make an empty `dir/` for a directory; it is no object that anyone reads.
            if raw.ends_with('/') && meta.size == 0 {
                return None;
            }
        }
        let is_object = matches!(self, Self::Object { .. });
        let key = if is_object && raw.ends_with('/') {
            Err(odd_name(raw))
        } else {
            Key::parse(raw).map_err(|_| odd_name(raw))
        };
        let key = match key {
            Ok(key) => key.below(base)?,
            Err(error) => return Some(Err(error)),
        };
        if key.is_root() {
            return None;
        }
        Some(Ok(match self {
            Self::Prefix(_) => Entry::Prefix(key),
            Self::Object { meta, .. } => Entry::Object(ObjectMeta {
                key,
                size: meta.size,
                version: meta.version,
                modified: meta.modified,
                checksum: None,
                permissions: None,
            }),
        }))
    }
}

fn odd_name(name: &str) -> Error {
    let message = format!("object has a name that cannot be used: '{}'", name.escape_debug());
    Error::new(ErrorKind::InvalidInput, "list", message)
}

/// How a store is listed.
#[derive(Clone)]
pub(crate) enum Lister {
    S3(Arc<S3Lister>),
    Pages(Arc<dyn PaginatedListStore>),
    Webdav(Arc<dyn ObjectStore>),
}

impl Lister {
    /// One page of what is below `dir` (empty for everything), after `token`.
    pub(crate) async fn page(&self, dir: &Key, recursive: bool, token: Option<String>) -> Result<Page> {
        match self {
            Self::S3(lister) => {
                let prefix = slashed(dir);
                lister.page(prefix.as_deref(), recursive, token).await
            }
            Self::Pages(store) => {
                let options = PaginatedListOptions {
                    delimiter: (!recursive).then_some("/".into()),
                    page_token: token,
                    ..PaginatedListOptions::default()
                };
                let page = store
                    .list_paginated(slashed(dir).as_deref(), options)
                    .await
                    .map_err(|error| explain("list", error))?;
                Ok(Page {
                    rows: sorted(page.result),
                    next: page.page_token,
                })
            }
            Self::Webdav(store) => webdav(store, dir, recursive).await,
        }
    }
}

impl fmt::Debug for Lister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lister")
    }
}

pub(super) fn slashed(dir: &Key) -> Option<String> {
    (!dir.is_root()).then(|| format!("{dir}/"))
}

/// WebDAV answers in one piece and in any order.
async fn webdav(store: &Arc<dyn ObjectStore>, dir: &Key, recursive: bool) -> Result<Page> {
    use futures::TryStreamExt;
    let path = Path::parse(dir.as_str()).map_err(|_| odd_name(dir.as_str()))?;
    let result = if recursive {
        let objects = store.list(Some(&path)).try_collect().await;
        objects.map(|objects| ListResult {
            objects,
            common_prefixes: Vec::new(),
            extensions: http::Extensions::default(),
        })
    } else {
        store.list_with_delimiter(Some(&path)).await
    };
    match result {
        Ok(result) => Ok(Page {
            rows: sorted(result),
            next: None,
        }),
        Err(error) => {
            let error = explain("list", error);
            if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) {
                let message = "this HTTP server cannot list what it has (it does not speak WebDAV)";
                return Err(Error::new(ErrorKind::Unsupported, "list", message));
            }
            Err(error)
        }
    }
}

fn sorted(result: ListResult) -> Vec<Row> {
    let objects = result.objects.into_iter().map(|object| Row::Object {
        name: object.location.into(),
        meta: Meta {
            size: object.size,
            version: object.e_tag,
            modified: since_1970(object.last_modified.timestamp_millis()),
        },
    });
    let prefixes = result
        .common_prefixes
        .into_iter()
        .map(|prefix| Row::Prefix(format!("{prefix}/")));
    let mut rows: Vec<Row> = objects.chain(prefixes).collect();
    rows.sort_by(|a, b| a.name().cmp(b.name()));
    rows
}

/// Milliseconds since 1970, unknown when not after it.
pub(crate) fn since_1970(millis: i64) -> Option<Duration> {
    u64::try_from(millis)
        .ok()
        .filter(|millis| *millis > 0)
        .map(Duration::from_millis)
}

/// Lists an S3 bucket.
pub(crate) struct S3Lister {
    pub(crate) url: String,
    pub(crate) region: String,
    /// `None` for requests without a signature.
    pub(crate) chain: Option<Arc<Chain>>,
    pub(crate) transport: Arc<Transport>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reply {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    next_continuation_token: Option<String>,
    #[serde(default)]
    is_truncated: bool,
    encoding_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    size: u64,
    last_modified: Option<String>,
    #[serde(rename = "ETag")]
    e_tag: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix {
    prefix: String,
}

impl S3Lister {
    async fn page(&self, prefix: Option<&str>, recursive: bool, token: Option<String>) -> Result<Page> {
        let mut query = vec![("encoding-type", "url"), ("list-type", "2")];
        if !recursive {
            query.push(("delimiter", "/"));
        }
        if let Some(prefix) = prefix {
            query.push(("prefix", prefix));
        }
        if let Some(token) = &token {
            query.push(("continuation-token", token));
        }
        let (_, body) = self.get(&query).await?;
        let broken = |what: String| Error::new(ErrorKind::Unavailable, "list", what);
        let reply: Reply = quick_xml::de::from_reader(body.as_ref())
            .map_err(|_| broken("reply is not a listing".to_owned()))?;
        if reply.is_truncated && reply.next_continuation_token.is_none() {
            return Err(broken(
                "reply says there is more, but not how to get it".to_owned(),
            ));
        }
        if reply.is_truncated && reply.next_continuation_token == token {
            return Err(broken("reply points back at itself".to_owned()));
        }
        let next = reply
            .next_continuation_token
            .clone()
            .filter(|_| reply.is_truncated);
        Ok(Page {
            rows: reply.into_rows()?,
            next,
        })
    }

    /// True when the bucket answers.
    pub(crate) async fn exists(&self) -> Result<()> {
        self.get(&[("list-type", "2"), ("max-keys", "1")]).await.map(drop)
    }

    pub(super) async fn get(&self, query: &[(&str, &str)]) -> Result<(http::HeaderMap, Bytes)> {
        let query: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{name}={}", utf8_percent_encode(value, QUERY)))
            .collect();
        let refuse = |what: &str| Error::new(ErrorKind::InvalidInput, "list", what);
        let mut request: HttpRequest = http::Request::get(format!("{}?{}", self.url, query.join("&")))
            .body(HttpRequestBody::empty())
            .map_err(|_| refuse("endpoint and bucket make no URL"))?;
        if let Some(chain) = &self.chain {
            let credential = chain.get().await?;
            AwsAuthorizer::new(&credential, "s3", &self.region)
                .try_authorize(&mut request, None)
                .map_err(|_| refuse("request could not be signed"))?;
        }
        let reply = self.transport.fetch(request.map(|_| Bytes::new()), &[]).await;
        reply.map_err(|failure| {
            // As with every other request: the next one has fresh ones.
            match &self.chain {
                Some(chain) if failure.kind == ErrorKind::Unauthenticated => chain.forget(),
                _ => {}
            }
            failure.to_error("list")
        })
    }
}

impl Reply {
    /// Objects and prefixes in one order by name.
    fn into_rows(self) -> Result<Vec<Row>> {
        let encoded = self.encoding_type.as_deref() == Some("url");
        let mut rows = Vec::with_capacity(self.contents.len() + self.common_prefixes.len());
        for object in self.contents {
            rows.push(Row::Object {
                name: decode(object.key, encoded)?,
                meta: Meta {
                    size: object.size,
                    version: object.e_tag,
                    modified: object.last_modified.as_deref().and_then(parse_time),
                },
            });
        }
        for prefix in self.common_prefixes {
            rows.push(Row::Prefix(decode(prefix.prefix, encoded)?));
        }
        rows.sort_by(|a, b| a.name().cmp(b.name()));
        Ok(rows)
    }
}

/// For the fuzz target: a page of a listing.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    if let Ok(reply) = quick_xml::de::from_reader::<_, Reply>(bytes) {
        drop(reply.into_rows());
    }
}

/// Undo `encoding-type=url`, in which a space is `+` or `%20`.
pub(super) fn decode(name: String, encoded: bool) -> Result<String> {
    if !encoded {
        return Ok(name);
    }
    let plain = name.replace('+', " ");
    percent_decode_str(&plain)
        .decode_utf8()
        .map(std::borrow::Cow::into_owned)
        .map_err(|_| odd_name(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(xml: &str) -> Vec<Row> {
        quick_xml::de::from_str::<Reply>(xml)
            .unwrap()
            .into_rows()
            .unwrap()
    }

    #[test]
    fn names_are_decoded_sorted_and_odd_ones_reported() {
        let xml = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><EncodingType>url</EncodingType>\
            <Contents><Key>p/z%26%3C%25</Key><Size>3</Size><LastModified>2025-01-02T03:04:05.000Z</LastModified><ETag>&quot;e&quot;</ETag></Contents>\
            <Contents><Key>p/a+b%2Bc</Key><Size>1</Size></Contents><Contents><Key>p/dir/</Key><Size>0</Size></Contents>\
            <Contents><Key>p//twice</Key><Size>1</Size></Contents><Contents><Key>p/odd/</Key><Size>7</Size></Contents>\
            <CommonPrefixes><Prefix>p/a/</Prefix></CommonPrefixes><CommonPrefixes><Prefix>p/a-/</Prefix></CommonPrefixes></ListBucketResult>";
        let base = Key::parse("p").unwrap();
        let entries: Vec<Result<Entry>> = rows(xml)
            .into_iter()
            .filter_map(|row| row.into_entry(&base))
            .collect();
        let names: Vec<&str> = entries
            .iter()
            .map(|entry| entry.as_ref().map_or("error", |entry| entry.key().as_str()))
            .collect();
        assert_eq!(names, ["error", "a b+c", "a-", "a", "error", "z&<%"]);
        let Ok(Entry::Object(meta)) = &entries[5] else {
            panic!("{entries:?}")
        };
        assert_eq!(meta.version.as_deref(), Some("\"e\""));
        assert_eq!(meta.modified, Some(Duration::from_secs(1_735_787_045)));
    }

    #[test]
    fn names_that_are_not_encoded_stay_as_they_are() {
        let xml =
            "<ListBucketResult><Contents><Key>a+b%20&amp;</Key><Size>1</Size></Contents></ListBucketResult>";
        assert_eq!(rows(xml)[0].name(), "a+b%20&");
    }
}
