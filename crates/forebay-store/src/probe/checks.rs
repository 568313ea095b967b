//! The tries themselves, on small objects of their own.
//!
//! A check ends in `Shown` only when the store did what it must; in `Refuted` when it answered and did something else; in
//! `Untried` when it did not answer the question. Races are in `races.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Result, Retry, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use futures::future::join_all;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _, PutPayload, PutResult};

use super::races::Race;
use crate::remote::RemoteStore;
use crate::store::{Body, Capabilities, Proof, PutOptions, ReadOptions, Store};

/// Size of a probe object: enough for a range inside it.
const OBJECT_BYTES: usize = 16 << 10;

/// The range that is read.
const RANGE: std::ops::Range<u64> = 1_000..9_000;

/// What a probe found.
pub(super) struct Found {
    pub(super) capabilities: Capabilities,
    /// It is as good tomorrow: nothing that passes was in the way, such as a busy server or these credentials.
    pub(super) lasts: bool,
}

pub(super) struct Probe<'a> {
    pub(super) store: &'a RemoteStore,
    dir: Key,
    made: Mutex<Vec<Key>>,
    /// Uploads that were begun and neither completed nor given up.
    open: Mutex<Vec<(Path, String)>>,
    /// A check ended without an answer because of a fault that passes.
    pub(super) disturbed: AtomicBool,
}

pub(super) async fn run(store: &RemoteStore) -> Result<Found> {
    let probe = Probe {
        store,
        dir: Key::parse(&format!("{}/{}", super::DIR, store.unique()))?,
        made: Mutex::default(),
        open: Mutex::default(),
        disturbed: AtomicBool::new(false),
    };
    let capabilities = Box::pin(probe.all()).await;
    probe.remove().await;
    let capabilities = capabilities?;
    let lasts = capabilities.probed.is_some() && !probe.disturbed.load(Ordering::Relaxed);
    Ok(Found { capabilities, lasts })
}

impl Probe<'_> {
    async fn all(&self) -> Result<Capabilities> {
        let first = self.key("object")?;
        if let Err(error) = self.put(&first, 1).await {
            return match error.kind() {
                ErrorKind::PermissionDenied | ErrorKind::ReadOnly | ErrorKind::Unsupported => Ok(
                    Capabilities::untried(&format!("a probe object could not be written: {error}")),
                ),
                _ => Err(error),
            };
        }
        let range = self.range(&first).await?;
        let version_match = self.version_match(&first).await?;
        let checksum = self.checksum().await?;
        let upload_checksum = self.upload_checksum().await?;
        let put_if_absent = self.put_if_absent().await?;
        let multipart = self.multipart().await?;
        let upload_if_absent = self.upload_if_absent().await?;
        Ok(Capabilities {
            range,
            version_match,
            put_if_absent,
            upload_if_absent,
            checksum,
            upload_checksum,
            multipart,
            probed: Some(self.store.context().clock().unix()),
        })
    }

    pub(super) fn key(&self, name: &str) -> Result<Key> {
        let key = self.dir.join(&Key::parse(name)?);
        self.made().push(key.clone());
        Ok(key)
    }

    fn made(&self) -> MutexGuard<'_, Vec<Key>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> MutexGuard<'_, Vec<(Path, String)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn path(&self, key: &Key) -> Result<Path> {
        self.store.path("probe", key)
    }

    async fn put(&self, key: &Key, salt: u8) -> Result<()> {
        let body = Body::from(Buf::copy_of(&content(salt))?);
        self.store.put(key, body, &PutOptions::default()).await.map(drop)
    }

    /// The whole object; `None` when there is none.
    pub(super) async fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let size = match self.store.head(key).await {
            Ok(meta) => meta.size,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let buf = AlignedBuf::alloc(size as usize, Pages::Small)?;
        let options = ReadOptions::default();
        let done = self
            .store
            .read_into(key, Span::first(size), buf, &options)
            .await?;
        Ok(Some(done.buf[..size as usize].to_vec()))
    }

    async fn range(&self, key: &Key) -> Result<Proof> {
        let span = Span::new(RANGE.start, RANGE.end)?;
        let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small)?;
        match self
            .store
            .read_into(key, span, buf, &ReadOptions::default())
            .await
        {
            Ok(done) if done.buf[..span.len() as usize] == content(1)[span.relative_to(0)] => {
                Ok(Proof::Shown)
            }
            Ok(_) => Ok(refuted("a range of an object came with other bytes")),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(refuted("ranges are ignored")),
            Err(error) => Err(error),
        }
    }

    async fn version_match(&self, key: &Key) -> Result<Proof> {
        let Some(stale) = self.store.head(key).await?.version else {
            return Ok(refuted("objects have no version (ETag)"));
        };
        self.put(key, 2).await?;
        let get = GetOptions {
            if_match: Some(stale),
            range: Some(GetRange::Bounded(RANGE)),
            ..GetOptions::default()
        };
        match self.store.backend().objects.get_opts(&self.path(key)?, get).await {
            Ok(_) => Ok(refuted("a read under a stale version was answered")),
            Err(error) => Ok(self.refusal(&self.store.explain("probe", error), &[ErrorKind::Precondition])),
        }
    }

    async fn checksum(&self) -> Result<Proof> {
        let Some(spoiled) = &self.store.backend().spoiled else {
            return Ok(Proof::Untried(NO_CHECKSUM.to_owned()));
        };
        let key = self.key("checksum")?;
        let payload = PutPayload::from(Bytes::from(content(3)));
        match spoiled.put(&self.path(&key)?, payload).await {
            Ok(_) => Ok(refuted("bytes that did not match their checksum were accepted")),
            Err(error) => Ok(self.refusal(&self.store.explain("probe", error), MISMATCH)),
        }
    }

    /// What a server does for whole objects it may not do for parts.
    async fn upload_checksum(&self) -> Result<Proof> {
        let backend = self.store.backend();
        let (Some(spoiled), Some(api)) = (&backend.spoiled_parts, &backend.parts) else {
            return Ok(Proof::Untried(NO_CHECKSUM.to_owned()));
        };
        let (path, upload) = match self.create(&**api, &self.key("part")?).await {
            Ok(created) => created,
            Err(error) => return Ok(self.refusal(&error, &[])),
        };
        let payload = PutPayload::from(Bytes::from(content(3)));
        let proof = match spoiled.put_part(&path, &upload, 0, payload).await {
            Ok(_) => refuted("a part that did not match its checksum was accepted"),
            Err(error) => self.refusal(&self.store.explain("probe", error), MISMATCH),
        };
        self.abort(&**api, &path, &upload).await;
        Ok(proof)
    }

    async fn put_if_absent(&self) -> Result<Proof> {
        let key = self.key("absent")?;
        let path = self.path(&key)?;
        let put = |salt| {
            let payload = PutPayload::from(Bytes::from(content(salt)));
            self.store.put_create(&path, payload, None)
        };
        if let Err(error) = put(1).await {
            let error = self.store.explain("probe", error);
            return match error.kind() {
                ErrorKind::Unsupported => Ok(refuted("conditional writes are not offered")),
                _ => Ok(self.refusal(&error, &[])),
            };
        }
        match put(2).await {
            Ok(_) => return Ok(refuted("a conditional write replaced an object")),
            Err(error) => {
                let proof = self.refusal(&self.store.explain("probe", error), EXISTS);
                if !proof.is_shown() {
                    return Ok(proof);
                }
            }
        }
        if self.get(&key).await? != Some(content(1)) {
            return Ok(refuted("a refused conditional write changed the object"));
        }
        self.races("race", Race::Put).await
    }

    async fn multipart(&self) -> Result<Proof> {
        let Some(api) = &self.store.backend().parts else {
            return Ok(refuted("uploads in parts are not offered"));
        };
        let key = self.key("multipart")?;
        let (path, upload, part) = match self.begin(&**api, &key, 1).await {
            Ok(begun) => begun,
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                return Ok(refuted("uploads in parts are not offered"));
            }
            Err(error) => return Err(error),
        };
        if self.get(&key).await?.is_some() {
            return Ok(refuted("an upload was visible before it was complete"));
        }
        self.complete(&**api, &path, &upload, &part)
            .await
            .map_err(|error| self.store.explain("probe", error))?;
        if self.get(&key).await? == Some(content(1)) {
            Ok(Proof::Shown)
        } else {
            Ok(refuted("a complete upload came with other bytes"))
        }
    }

    async fn create(&self, api: &dyn MultipartStore, key: &Key) -> Result<(Path, String)> {
        let path = self.path(key)?;
        let upload = api.create_multipart(&path).await;
        let upload = upload.map_err(|error| self.store.explain("probe", error))?;
        self.open().push((path.clone(), upload.clone()));
        Ok((path, upload))
    }

    pub(super) async fn begin(
        &self,
        api: &dyn MultipartStore,
        key: &Key,
        salt: u8,
    ) -> Result<(Path, String, PartId)> {
        let (path, upload) = self.create(api, key).await?;
        let payload = PutPayload::from(Bytes::from(content(salt)));
        let part = api.put_part(&path, &upload, 0, payload).await;
        let part = part.map_err(|error| self.store.explain("probe", error))?;
        Ok((path, upload, part))
    }

    pub(super) async fn complete(
        &self,
        api: &dyn MultipartStore,
        path: &Path,
        upload: &String,
        part: &PartId,
    ) -> object_store::Result<PutResult> {
        let done = api.complete_multipart(path, upload, vec![part.clone()]).await;
        if done.is_ok() {
            self.open().retain(|(_, open)| open != upload);
        }
        done
    }

    /// Best effort: the bucket's rule for stale uploads removes what stays.
    pub(super) async fn abort(&self, api: &dyn MultipartStore, path: &Path, upload: &String) {
        self.open().retain(|(_, open)| open != upload);
        let _ = api.abort_multipart(path, upload).await;
    }

    /// All requests of the uploads go the way that real ones go.
    async fn upload_if_absent(&self) -> Result<Proof> {
        let Some(api) = &self.store.backend().parts_if_absent else {
            return Ok(Proof::Untried(
                "this client cannot ask this kind of store for it".to_owned(),
            ));
        };
        let api = &**api;
        let key = self.key("complete")?;
        self.put(&key, 9).await?;
        let (path, upload, part) = match self.begin(api, &key, 1).await {
            Ok(begun) => begun,
            Err(error) => return Ok(self.refusal(&error, &[])),
        };
        let refused = match self.complete(api, &path, &upload, &part).await {
            Ok(_) => return Ok(refuted("the completion of an upload replaced an object")),
            Err(error) => self.refusal(&self.store.explain("probe", error), EXISTS),
        };
        self.abort(api, &path, &upload).await;
        if !refused.is_shown() {
            return Ok(refused);
        }
        if self.get(&key).await? != Some(content(9)) {
            return Ok(refuted("a refused completion changed the object"));
        }
        self.races("complete", Race::Complete(api)).await
    }

    /// `Shown` when the store refused for the right reason.
    fn refusal(&self, error: &Error, right: &[ErrorKind]) -> Proof {
        if right.contains(&error.kind()) {
            return Proof::Shown;
        }
        if error.kind() == ErrorKind::Unsupported {
            return refuted("it is not offered");
        }
        if error.retry() != Retry::Never {
            self.disturbed.store(true, Ordering::Relaxed);
        }
        Proof::Untried(format!("the store did not answer the question: {error}"))
    }

    /// Best effort: what stays behind is small, and its name says what it is.
    async fn remove(&self) {
        let open = std::mem::take(&mut *self.open());
        if let Some(api) = &self.store.backend().parts {
            join_all(
                open.iter()
                    .map(|(path, upload)| api.abort_multipart(path, upload)),
            )
            .await;
        }
        let made = std::mem::take(&mut *self.made());
        join_all(made.iter().map(|key| self.store.delete(key))).await;
    }
}

/// How stores say that an object exists.
const EXISTS: &[ErrorKind] = &[ErrorKind::AlreadyExists, ErrorKind::Precondition];

/// How stores say that bytes are not those of their checksum.
const MISMATCH: &[ErrorKind] = &[
    ErrorKind::Corrupt,
    ErrorKind::InvalidInput,
    ErrorKind::Precondition,
];

const NO_CHECKSUM: &str = "this client sends no checksum to this kind of store";

pub(super) fn refuted(why: &str) -> Proof {
    Proof::Refuted(why.to_owned())
}

/// What an object with that salt holds.
pub(super) fn content(salt: u8) -> Vec<u8> {
    (0..OBJECT_BYTES)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ salt)
        .collect()
}
