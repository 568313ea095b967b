//! Uploads in parts that killed writers left behind: S3 keeps their parts, and charges for them, until somebody gives them up.
//!
//! They are listed by a request of our own, page by page, and given up one by one. Azure drops what was never committed after a week, and Google's uploads are
//! listed by another interface: there are none to be found there.

use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Result};
use object_store::path::Path;
use serde::Deserialize;

use super::RemoteStore;
use super::credentials::parse_time;
use super::list::{Lister, decode, slashed};
use crate::store::{OPEN_UPLOADS_MAX, OpenUpload};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reply {
    #[serde(default, rename = "Upload")]
    uploads: Vec<Row>,
    next_key_marker: Option<String>,
    next_upload_id_marker: Option<String>,
    #[serde(default)]
    is_truncated: bool,
    encoding_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    key: String,
    upload_id: String,
    initiated: Option<String>,
}

/// Where the next page begins: behind that name and upload.
type Marker = (String, Option<String>);

impl Reply {
    fn parse(body: &[u8]) -> Result<Self> {
        quick_xml::de::from_reader(body).map_err(|_| broken("reply is not a list of uploads"))
    }

    /// Names are URL-encoded where the server says so, the marker's, too.
    fn is_encoded(&self) -> bool {
        self.encoding_type.as_deref() == Some("url")
    }

    fn next(&self, before: Option<&Marker>) -> Result<Option<Marker>> {
        if !self.is_truncated {
            return Ok(None);
        }
        let Some(key) = self.next_key_marker.clone() else {
            return Err(broken("reply says there is more, but not how to get it"));
        };
        let key = decode(key, self.is_encoded())?;
        let id = self.next_upload_id_marker.clone().filter(|id| !id.is_empty());
        let next = (key, id);
        if before == Some(&next) {
            return Err(broken("reply points back at itself"));
        }
        Ok(Some(next))
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, "list uploads", what)
}

impl RemoteStore {
    pub(super) async fn find_open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        let Lister::S3(lister) = &self.0.backend.lister else {
            return Ok(Vec::new());
        };
        let dir = self.0.location.key().join(prefix);
        let below = slashed(&dir).unwrap_or_default();
        let (mut found, mut marker) = (Vec::new(), None::<Marker>);
        loop {
            // Not URL-encoded: servers were seen that say so here and do not do it.
            let mut query = vec![("uploads", "")];
            if !below.is_empty() {
                query.push(("prefix", &below));
            }
            if let Some((key, id)) = &marker {
                query.push(("key-marker", key));
                query.extend(id.as_ref().map(|id| ("upload-id-marker", id.as_str())));
            }
            // Signatures want them in order.
            query.sort_unstable();
            self.count("list_uploads");
            let page = async {
                let (_, body) = lister.get(&query).await?;
                let reply = Reply::parse(&body)?;
                let next = reply.next(marker.as_ref())?;
                Ok::<_, Error>((reply, next))
            };
            let page = page.await.map_err(|error| error.at(self.0.location.join(prefix)));
            let (reply, next) = page?;
            let is_encoded = reply.is_encoded();
            found.extend(
                reply
                    .uploads
                    .into_iter()
                    .filter_map(|row| self.found(row, is_encoded)),
            );
            marker = next;
            if marker.is_none() || found.len() >= OPEN_UPLOADS_MAX {
                found.truncate(OPEN_UPLOADS_MAX);
                return Ok(found);
            }
        }
    }

    /// `None` for names that are none of ours.
    fn found(&self, row: Row, is_encoded: bool) -> Option<OpenUpload> {
        let name = decode(row.key, is_encoded).ok()?;
        let key = Key::parse(&name).ok()?.below(self.0.location.key())?;
        let begun: Option<Duration> = row.initiated.as_deref().and_then(parse_time);
        (!key.is_root()).then_some(OpenUpload {
            key,
            id: row.upload_id,
            begun,
        })
    }

    pub(super) async fn give_up_upload(&self, upload: &OpenUpload) -> Result<()> {
        let path: Path = self.path("abort", &upload.key)?;
        let Some(parts) = &self.0.backend.parts else {
            let message = "this store takes no uploads in parts";
            return Err(Error::new(ErrorKind::Unsupported, "abort", message));
        };
        self.count("abort");
        match parts.abort_multipart(&path, &upload.id).await {
            Ok(()) => Ok(()),
            Err(error) => match self.explain("abort", error) {
                error if error.kind() == ErrorKind::NotFound => Ok(()),
                error => Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_and_end() {
        let page = |more: &str| {
            let xml = format!(
                "<ListMultipartUploadsResult><EncodingType>url</EncodingType>{more}\
                <Upload><Key>p/a+b%26</Key><UploadId>u1</UploadId><Initiated>2025-01-02T03:04:05.000Z</Initiated></Upload>\
                <Upload><Key>p/c</Key><UploadId>u2</UploadId></Upload></ListMultipartUploadsResult>"
            );
            Reply::parse(xml.as_bytes()).unwrap()
        };
        let last = page("<IsTruncated>false</IsTruncated>");
        assert_eq!((last.uploads.len(), last.next(None).unwrap()), (2, None));
        let more = page(
            "<IsTruncated>true</IsTruncated><NextKeyMarker>p/a+b</NextKeyMarker><NextUploadIdMarker>u1</NextUploadIdMarker>",
        );
        let next = more.next(None).unwrap().unwrap();
        assert_eq!(next, ("p/a b".to_owned(), Some("u1".to_owned())));
        // Such a server would be asked for ever.
        assert!(more.next(Some(&next)).is_err());
        assert!(page("<IsTruncated>true</IsTruncated>").next(None).is_err());
        assert!(Reply::parse(b"<html>").is_err());
        let empty = Reply::parse(b"<ListMultipartUploadsResult/>").unwrap();
        assert!(empty.uploads.is_empty() && empty.next(None).unwrap().is_none());
    }
}
