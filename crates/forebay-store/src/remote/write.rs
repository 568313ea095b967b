//! Writing whole objects.
//!
//! Pieces go to the socket as they are, without being joined; a CRC-64/NVME travels along for the server to compare. Writes that must
//! not replace anything carry a name of their own as metadata: when a reply is lost, that name tells whether the object that is there
//! now is ours.

use bytes::Bytes;
use forebay_core::{ByteSize, Crc64Nvme, DataPath, Error, ErrorKind, Key, Ledger, Result, Retry};
use object_store::path::Path;
use object_store::{Attribute, Attributes, GetOptions, PutPayload, PutResult};

use super::RemoteStore;
use super::failure::Failure;
use crate::store::{Body, PutDone, PutMode, PutOptions, WriteCheck};

/// Largest object written in one request: the limit of S3, GCS and Azure.
const PUT_BYTES_MAX: u64 = 5 << 30;

/// Name of the metadata that tells whose write an object is. Letters only: Azure takes no hyphens, proxies drop underscores.
pub(super) const WRITE_ID: &str = "forebaywriteid";

/// The outcome of a write that must not replace anything.
pub(super) enum Absent {
    /// The object is ours, in this version.
    Won(Option<String>),
    /// Somebody was first.
    Lost,
}

impl RemoteStore {
    pub(super) async fn put_object(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        options
            .policy
            .admit(DataPath::Http, "put", "remote objects go over HTTP")?;
        let size = body.len();
        if size > PUT_BYTES_MAX {
            let message = format!(
                "{} is more than one request takes ({})",
                ByteSize(size),
                ByteSize(PUT_BYTES_MAX)
            );
            return Err(Error::new(ErrorKind::LimitExceeded, "put", message)
                .with_hint("write it in parts, with an upload"));
        }
        let path = self.path("put", key)?;
        let mut crc = Crc64Nvme::default();
        for piece in body.pieces() {
            crc.update(piece);
        }
        let payload = payload(&body);
        let version = match options.mode {
            PutMode::Replace => told(self.put_plain(&path, payload).await?.e_tag),
            PutMode::IfAbsent => {
                self.require_put_if_absent().await?;
                let id = options.write_id.clone();
                let id = id.unwrap_or_else(|| self.unique());
                self.put_if_absent(&path, payload, &id).await?
            }
        };
        Ok(PutDone {
            version,
            size,
            crc64nvme: crc.value(),
            check: self.write_check(false),
            ledger: Ledger::of(DataPath::Http, size, 1),
        })
    }

    /// Write an object without a byte, under the name of its write.
    pub(super) async fn put_empty(&self, path: &Path, mode: PutMode, id: &str) -> Result<Option<String>> {
        match mode {
            PutMode::Replace => Ok(told(self.put_plain(path, PutPayload::default()).await?.e_tag)),
            PutMode::IfAbsent => {
                self.require_put_if_absent().await?;
                self.put_if_absent(path, PutPayload::default(), id).await
            }
        }
    }

    async fn put_plain(&self, path: &Path, payload: PutPayload) -> Result<PutResult> {
        self.count("put");
        let options = object_store::PutOptions::default();
        self.0
            .backend
            .objects
            .put_opts(path, payload, options)
            .await
            .map_err(|error| self.explain("put", error))
    }

    /// Write unless there is an object. When it is not known what became of the request or of an earlier try of the same write, the object
    /// that is there tells: it carries the name of its write. Trying again is the retry wrapper's business.
    async fn put_if_absent(&self, path: &Path, payload: PutPayload, id: &str) -> Result<Option<String>> {
        let error = match self.put_create(path, payload, Some(id)).await {
            Ok(done) => return Ok(told(done.e_tag)),
            Err(error) => error,
        };
        let uncertain = Failure::find(&error).is_none_or(|failure| failure.uncertain);
        let error = self.explain("put", error);
        let refused = is_refusal(&error);
        if !refused && !uncertain {
            return Err(error);
        }
        match self.whose(path, id).await {
            Ok(Some(Absent::Won(version))) => Ok(version),
            Ok(Some(Absent::Lost)) => Err(exists()),
            // Whose it is may be known at the next try; until then nobody lost.
            Err(asked) if refused && asked.retry() != Retry::Never => Err(asked),
            Ok(None) | Err(_) if refused => Err(exists()),
            // Not there, or not to be asked: the first error says more.
            Ok(None) | Err(_) => Err(error),
        }
    }

    /// One conditional write, without asking whether the store can be relied on.
    pub(crate) async fn put_create(
        &self,
        path: &Path,
        payload: PutPayload,
        id: Option<&str>,
    ) -> object_store::Result<PutResult> {
        self.count("put");
        let options = object_store::PutOptions {
            mode: object_store::PutMode::Create,
            attributes: id.map(written_by).unwrap_or_default(),
            ..object_store::PutOptions::default()
        };
        self.0.backend.objects.put_opts(path, payload, options).await
    }

    /// Whose write the object at `path` is; `None` when there is no object.
    pub(super) async fn whose(&self, path: &Path, id: &str) -> Result<Option<Absent>> {
        self.count("head");
        let options = GetOptions {
            head: true,
            ..GetOptions::default()
        };
        match self.0.backend.objects.get_opts(path, options).await {
            Ok(found) => {
                let theirs = found.attributes.get(&Attribute::Metadata(WRITE_ID.into()));
                let ours = theirs.is_some_and(|value| value.as_ref() == id);
                Ok(Some(if ours {
                    Absent::Won(found.meta.e_tag)
                } else {
                    Absent::Lost
                }))
            }
            Err(error) => match self.explain("head", error) {
                error if error.kind() == ErrorKind::NotFound => Ok(None),
                error => Err(error),
            },
        }
    }

    /// `Ok` when a conditional write failed because another was first, the other error otherwise.
    pub(crate) fn lost_race(&self, error: object_store::Error) -> Result<()> {
        let conflict = Failure::find(&error).is_some_and(|failure| failure.conflict);
        let error = self.explain("probe", error);
        if conflict || is_refusal(&error) {
            return Ok(());
        }
        Err(error)
    }

    /// Whether the store compared the checksums of whole writes, or of parts, as far as a probe has shown.
    pub(super) fn write_check(&self, in_parts: bool) -> WriteCheck {
        let proof = self.0.capabilities.get().map(|capabilities| {
            if in_parts {
                &capabilities.upload_checksum
            } else {
                &capabilities.checksum
            }
        });
        match proof {
            Some(proof) if proof.is_shown() => WriteCheck::ByStore,
            _ => WriteCheck::Unchecked,
        }
    }
}

/// A version that the store really tells; Ceph 16 completes uploads with an empty one.
pub(super) fn told(version: Option<String>) -> Option<String> {
    version.filter(|version| !version.trim_matches('"').is_empty())
}

/// How a store says that an object is in the way.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::Precondition)
}

pub(super) fn exists() -> Error {
    Error::new(ErrorKind::AlreadyExists, "put", "")
}

pub(super) fn written_by(id: &str) -> Attributes {
    let mut attributes = Attributes::new();
    attributes.insert(Attribute::Metadata(WRITE_ID.into()), id.to_owned().into());
    attributes
}

/// The pieces, shared and not copied.
fn payload(body: &Body) -> PutPayload {
    body.pieces()
        .iter()
        .map(|piece| piece.clone().into_bytes())
        .collect::<Vec<Bytes>>()
        .into_iter()
        .collect()
}
