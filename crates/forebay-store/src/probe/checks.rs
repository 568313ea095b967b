//! The tries themselves, on small objects of their own.
//!
//! A check ends in `Shown` only when the store did what it must; in `Refuted` when it answered and did something else; in
//! `Untried` when it did not answer the question. Races are real: several writers at once, over connections that are open already, for
//! several rounds. That no violation was seen is no proof, but what ignores or races on conditions shows it here.

use std::sync::Mutex;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Result, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use futures::future::join_all;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectStoreExt as _, PutPayload};

use crate::remote::RemoteStore;
use crate::store::{Body, Capabilities, Proof, PutOptions, ReadOptions, Store};

/// Writers that race.
const WRITERS: usize = 8;

/// Rounds of a race. A server whose completions race (SeaweedFS 4.48) shows it in about every second round, so eight of them miss it
/// once in some hundred probes; each round is one round trip for puts and three for uploads.
const ROUNDS: usize = 8;

/// Size of a probe object: enough for a range inside it.
const OBJECT_BYTES: usize = 16 << 10;

/// The range that is read.
const RANGE: std::ops::Range<u64> = 1_000..9_000;

struct Probe<'a> {
    store: &'a RemoteStore,
    dir: Key,
    made: Mutex<Vec<Key>>,
}

pub(super) async fn run(store: &RemoteStore) -> Result<Capabilities> {
    let probe = Probe {
        store,
        dir: Key::parse(&format!(".forebay-probe/{}", store.unique()))?,
        made: Mutex::default(),
    };
    let capabilities = probe.all().await;
    probe.remove().await;
    capabilities
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
        let put_if_absent = self.put_if_absent().await?;
        let multipart = self.multipart().await?;
        let upload_if_absent = self.upload_if_absent().await?;
        Ok(Capabilities {
            range,
            version_match,
            put_if_absent,
            upload_if_absent,
            checksum,
            multipart,
            probed: Some(self.store.context().clock().unix()),
        })
    }

    fn key(&self, name: &str) -> Result<Key> {
        let key = self.dir.join(&Key::parse(name)?);
        self.made().push(key.clone());
        Ok(key)
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Vec<Key>> {
        self.made
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn path(&self, key: &Key) -> Result<Path> {
        self.store.path("probe", key)
    }

    async fn put(&self, key: &Key, salt: u8) -> Result<()> {
        let body = Body::from(Buf::copy_of(&content(salt))?);
        self.store.put(key, body, &PutOptions::default()).await.map(drop)
    }

    /// The whole object; `None` when there is none.
    async fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
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
            Err(error) => Ok(refusal(
                &self.store.explain("probe", error),
                &[ErrorKind::Precondition],
            )),
        }
    }

    async fn checksum(&self) -> Result<Proof> {
        let Some(spoiled) = &self.store.backend().spoiled else {
            return Ok(Proof::Untried(
                "this client sends no checksum to this kind of store".to_owned(),
            ));
        };
        let key = self.key("checksum")?;
        let payload = PutPayload::from(Bytes::from(content(3)));
        match spoiled.put(&self.path(&key)?, payload).await {
            Ok(_) => Ok(refuted("bytes that did not match their checksum were accepted")),
            Err(error) => Ok(refusal(
                &self.store.explain("probe", error),
                &[
                    ErrorKind::Corrupt,
                    ErrorKind::InvalidInput,
                    ErrorKind::Precondition,
                ],
            )),
        }
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
                _ => Ok(Proof::Untried(format!("a conditional write failed: {error}"))),
            };
        }
        match put(2).await {
            Ok(_) => return Ok(refuted("a conditional write replaced an object")),
            Err(error) => {
                let proof = refusal(&self.store.explain("probe", error), EXISTS);
                if !proof.is_shown() {
                    return Ok(proof);
                }
            }
        }
        if self.get(&key).await? != Some(content(1)) {
            return Ok(refuted("a refused conditional write changed the object"));
        }
        for round in 0..ROUNDS {
            let key = self.key(&format!("race-{round}"))?;
            let path = self.path(&key)?;
            let writers = (0..WRITERS).map(|writer| {
                let payload = PutPayload::from(Bytes::from(content(writer as u8)));
                self.store.put_create(&path, payload, None)
            });
            let won: Vec<bool> = join_all(writers).await.iter().map(Result::is_ok).collect();
            if let Some(proof) = self.judge(&key, &won).await? {
                return Ok(proof);
            }
        }
        Ok(Proof::Shown)
    }

    /// `None` when exactly one writer won and the object is its.
    async fn judge(&self, key: &Key, won: &[bool]) -> Result<Option<Proof>> {
        let winners: Vec<usize> = (0..won.len()).filter(|writer| won[*writer]).collect();
        match winners.as_slice() {
            [winner] if self.get(key).await? == Some(content(*winner as u8)) => Ok(None),
            [_] => Ok(Some(refuted(
                "the writer that won a race is not the one whose object is there",
            ))),
            [] => Ok(Some(Proof::Untried("no writer won a race".to_owned()))),
            several => Ok(Some(refuted(&format!(
                "{} of {WRITERS} racing writers won",
                several.len()
            )))),
        }
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
        api.complete_multipart(&path, &upload, vec![part])
            .await
            .map_err(|error| self.store.explain("probe", error))?;
        if self.get(&key).await? == Some(content(1)) {
            Ok(Proof::Shown)
        } else {
            Ok(refuted("a complete upload came with other bytes"))
        }
    }

    async fn begin(&self, api: &dyn MultipartStore, key: &Key, salt: u8) -> Result<(Path, String, PartId)> {
        let path = self.path(key)?;
        let explain = |error| self.store.explain("probe", error);
        let upload = api.create_multipart(&path).await.map_err(explain)?;
        let payload = PutPayload::from(Bytes::from(content(salt)));
        let part = api.put_part(&path, &upload, 0, payload).await.map_err(explain)?;
        Ok((path, upload, part))
    }

    async fn upload_if_absent(&self) -> Result<Proof> {
        let backend = self.store.backend();
        let (Some(api), Some(plain)) = (&backend.parts_if_absent, &backend.parts) else {
            return Ok(Proof::Untried(
                "this client cannot ask this kind of store for it".to_owned(),
            ));
        };
        let key = self.key("complete")?;
        self.put(&key, 9).await?;
        let (path, upload, part) = self.begin(&**plain, &key, 1).await?;
        let refused = match api.complete_multipart(&path, &upload, vec![part]).await {
            Ok(_) => return Ok(refuted("the completion of an upload replaced an object")),
            Err(error) => refusal(&self.store.explain("probe", error), EXISTS),
        };
        let _ = plain.abort_multipart(&path, &upload).await;
        if !refused.is_shown() {
            return Ok(refused);
        }
        if self.get(&key).await? != Some(content(9)) {
            return Ok(refuted("a refused completion changed the object"));
        }
        for round in 0..ROUNDS {
            let key = self.key(&format!("complete-{round}"))?;
            let begun = (0..WRITERS).map(|writer| self.begin(&**plain, &key, writer as u8));
            let begun: Vec<_> = join_all(begun).await.into_iter().collect::<Result<_>>()?;
            let completions = begun
                .iter()
                .map(|(path, upload, part)| api.complete_multipart(path, upload, vec![part.clone()]));
            let won: Vec<bool> = join_all(completions).await.iter().map(Result::is_ok).collect();
            let verdict = self.judge(&key, &won).await?;
            let lost = begun.iter().zip(&won).filter(|(_, won)| !**won);
            join_all(lost.map(|((path, upload, _), _)| plain.abort_multipart(path, upload))).await;
            if let Some(proof) = verdict {
                return Ok(proof);
            }
        }
        Ok(Proof::Shown)
    }

    /// Best effort: what stays behind is small, and its name says what it is.
    async fn remove(&self) {
        let made = std::mem::take(&mut *self.made());
        join_all(made.iter().map(|key| self.store.delete(key))).await;
    }
}

/// How stores say that an object exists.
const EXISTS: &[ErrorKind] = &[ErrorKind::AlreadyExists, ErrorKind::Precondition];

fn refuted(why: &str) -> Proof {
    Proof::Refuted(why.to_owned())
}

/// `Shown` when the store refused for the right reason.
fn refusal(error: &Error, right: &[ErrorKind]) -> Proof {
    if right.contains(&error.kind()) {
        Proof::Shown
    } else if error.kind() == ErrorKind::Unsupported {
        refuted("it is not offered")
    } else {
        Proof::Untried(format!("the store did not answer the question: {error}"))
    }
}

/// What an object with that salt holds.
fn content(salt: u8) -> Vec<u8> {
    (0..OBJECT_BYTES)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ salt)
        .collect()
}
