//! Objects written in parts, side by side and in any order, resumable by another process.
//!
//! Every upload carries a name of its own as metadata, so that a lost reply to its completion is no riddle: the object that is there is
//! ours or it is not. Dropping an upload gives it up in the background, unless a checkpoint was taken: then somebody
//! means to go on with it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use forebay_core::{
    Crc64Nvme, DataPath, Error, ErrorKind, Key, Ledger, Limits, Location, Result, Retry, crc64nvme,
};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{PutMultipartOptions, PutPayload};
use serde::{Deserialize, Serialize};

use super::RemoteStore;
use super::failure::Failure;
use super::write::{Absent, exists, is_refusal, told, written_by};
use crate::store::{PartBody, PutDone, PutMode, PutOptions, Upload};

/// Smallest part but the last that S3 takes.
const PART_BYTES_MIN: u64 = 5 << 20;

/// Most parts of one object, on S3.
const PARTS_MAX: u64 = 10_000;

/// Parts grow in whole units of this size, so that they stay aligned.
const PART_BYTES_UNIT: u64 = 1 << 20;

/// Version of the state that travels between processes.
const STATE_VERSION: u32 = 1;

/// A part that the store has.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Part {
    id: String,
    len: u64,
    crc64nvme: u64,
}

/// What another process needs to go on.
#[derive(Debug, Serialize, Deserialize)]
struct State {
    version: u32,
    upload: String,
    write_id: String,
    part_bytes: u64,
    if_absent: bool,
    parts: BTreeMap<u32, Part>,
}

/// An object being written in parts.
pub(super) struct RemoteUpload {
    store: RemoteStore,
    parts_api: Arc<dyn MultipartStore>,
    location: Location,
    path: Path,
    upload: String,
    write_id: String,
    part_bytes: u64,
    mode: PutMode,
    parts: Mutex<BTreeMap<u32, Part>>,
    /// A completion may have taken effect although it failed.
    uncertain: AtomicBool,
    /// Nothing is left to be given up: completed, aborted, or kept for another process.
    settled: AtomicBool,
}

impl RemoteStore {
    pub(super) async fn begin_upload(&self, key: &Key, options: &PutOptions) -> Result<RemoteUpload> {
        let parts_api = self.parts_api(options).await?;
        let path = self.path("upload", key)?;
        let write_id = options.write_id.clone().unwrap_or_else(|| self.unique());
        self.count("upload");
        let create = PutMultipartOptions {
            attributes: written_by(&write_id),
            ..PutMultipartOptions::default()
        };
        let upload = parts_api
            .create_multipart_opts(&path, create)
            .await
            .map_err(|error| self.explain("upload", error))?;
        Ok(RemoteUpload {
            store: self.clone(),
            parts_api,
            location: self.0.location.join(key),
            path,
            upload,
            write_id,
            part_bytes: part_bytes(&self.0.limits, options.size_hint)?,
            mode: options.mode,
            parts: Mutex::default(),
            uncertain: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        })
    }

    pub(super) async fn continue_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<RemoteUpload> {
        let refuse = |what: &str| Error::new(ErrorKind::InvalidInput, "upload", what);
        let state: State =
            serde_json::from_value(state).map_err(|_| refuse("state of the upload does not parse"))?;
        if state.version != STATE_VERSION {
            let message = format!(
                "state of the upload has version {}, and this version of Forebay knows {STATE_VERSION}",
                state.version
            );
            return Err(refuse(&message).with_hint("begin the upload anew"));
        }
        if state.if_absent != (options.mode == PutMode::IfAbsent) {
            return Err(refuse("the upload was begun in another mode"));
        }
        Ok(RemoteUpload {
            store: self.clone(),
            parts_api: self.parts_api(options).await?,
            location: self.0.location.join(key),
            path: self.path("upload", key)?,
            upload: state.upload,
            write_id: state.write_id,
            part_bytes: state.part_bytes,
            mode: options.mode,
            parts: Mutex::new(state.parts),
            // The other process may have tried.
            uncertain: AtomicBool::new(true),
            // Its checkpoint exists: only `abort` gives it up.
            settled: AtomicBool::new(true),
        })
    }

    async fn parts_api(&self, options: &PutOptions) -> Result<Arc<dyn MultipartStore>> {
        options
            .policy
            .admit(DataPath::Http, "upload", "remote objects go over HTTP")?;
        if options.mode == PutMode::IfAbsent {
            self.require_upload_if_absent().await?;
        }
        let backend = &self.0.backend;
        let api = match options.mode {
            PutMode::Replace => &backend.parts,
            PutMode::IfAbsent => &backend.parts_if_absent,
        };
        api.clone().ok_or_else(|| {
            Error::new(
                ErrorKind::Unsupported,
                "upload",
                "this store takes no uploads in parts",
            )
            .with_hint("write the object in one piece")
        })
    }
}

/// Large enough for S3, and so large that the parts of the whole object can be counted.
fn part_bytes(limits: &Limits, size_hint: Option<u64>) -> Result<u64> {
    let least = size_hint.unwrap_or(0).div_ceil(PARTS_MAX);
    let bytes = least
        .max(PART_BYTES_MIN)
        .max(limits.part_bytes)
        .next_multiple_of(PART_BYTES_UNIT);
    if bytes > limits.buffer_bytes_max {
        let message = format!("parts of {bytes} bytes are needed, more than all buffer memory");
        return Err(Error::new(ErrorKind::LimitExceeded, "upload", message)
            .with_hint("raise the buffer memory (FOREBAY_BUFFER_MEMORY)"));
    }
    Ok(bytes)
}

impl RemoteUpload {
    fn parts(&self) -> MutexGuard<'_, BTreeMap<u32, Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn at(&self, error: Error) -> Error {
        error.at(&self.location)
    }

    async fn write_part(&self, index: u32, mut body: PartBody) -> Result<Ledger> {
        let refuse = |kind, what: String| Err(Error::new(kind, "upload", what));
        if u64::from(index) >= PARTS_MAX {
            let what = format!("part {index} is beyond the {PARTS_MAX} parts an object may have");
            return refuse(ErrorKind::LimitExceeded, what);
        }
        let len = body.size();
        if len > self.part_bytes {
            let what = format!("part of {len} bytes, parts have {}", self.part_bytes);
            return refuse(ErrorKind::InvalidInput, what);
        }
        let crc64nvme = body.crc64nvme();
        self.store.count("put_part");
        let payload = PutPayload::from(body.bytes().clone().into_bytes());
        let PartId { content_id } = self
            .parts_api
            .put_part(&self.path, &self.upload, index as usize, payload)
            .await
            .map_err(|error| self.store.explain("upload", error))?;
        let part = Part {
            id: content_id,
            len,
            crc64nvme,
        };
        self.parts().insert(index, part);
        Ok(Ledger::of(DataPath::Http, len, 1))
    }

    /// The parts in order, when there is no gap and only the last one is short.
    fn whole(&self) -> Result<Vec<Part>> {
        let parts = self.parts();
        let count = parts.len();
        let mut whole = Vec::with_capacity(count);
        for (expected, (index, part)) in parts.iter().enumerate() {
            let refuse = |what: String| Err(Error::new(ErrorKind::InvalidInput, "upload", what));
            if *index as usize != expected {
                return refuse(format!("part {expected} is missing"));
            }
            if part.len != self.part_bytes && expected + 1 != count {
                return refuse(format!(
                    "part {index} has {} bytes, all but the last must have {}",
                    part.len, self.part_bytes
                ));
            }
            whole.push(part.clone());
        }
        Ok(whole)
    }

    /// Complete. When it is not known what became of this or an earlier try, the object that is there tells: it carries the name
    /// of its write. Trying again is the retry wrapper's business.
    async fn finish(&self, parts: &[Part]) -> Result<Option<String>> {
        if parts.is_empty() {
            return self.finish_empty().await;
        }
        self.store.count("complete");
        let ids = parts.iter().map(|part| PartId {
            content_id: part.id.clone(),
        });
        let done = self
            .parts_api
            .complete_multipart(&self.path, &self.upload, ids.collect())
            .await;
        let error = match done {
            Ok(done) => return Ok(told(done.e_tag)),
            Err(error) => error,
        };
        if Failure::find(&error).is_none_or(|failure| failure.uncertain) {
            self.uncertain.store(true, Ordering::Relaxed);
        }
        let error = self.store.explain("upload", error);
        let refused = is_refusal(&error);
        if self.uncertain.load(Ordering::Relaxed) {
            match self.store.whose(&self.path, &self.write_id).await {
                Ok(Some(Absent::Won(version))) => return Ok(version),
                // Whose it is may be known at the next try; until then nobody lost.
                Err(asked) if refused && asked.retry() != Retry::Never => return Err(asked),
                // Not ours, or not to be asked: the first error says more.
                _ => {}
            }
        }
        Err(if refused { exists() } else { error })
    }

    /// Not every server takes an empty part, so an empty object is written whole and the upload given up.
    async fn finish_empty(&self) -> Result<Option<String>> {
        let version = self
            .store
            .put_empty(&self.path, self.mode, &self.write_id)
            .await?;
        // The object is there; an upload without parts costs nothing.
        let _ = self.give_up().await;
        Ok(version)
    }

    async fn give_up(&self) -> Result<()> {
        self.store.count("abort");
        match self.parts_api.abort_multipart(&self.path, &self.upload).await {
            Ok(()) => Ok(()),
            Err(error) => match self.store.explain("abort", error) {
                error if error.kind() == ErrorKind::NotFound => Ok(()),
                error => Err(error),
            },
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for RemoteUpload {
    fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        self.write_part(index, body).await.map_err(|error| self.at(error))
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        let state = State {
            version: STATE_VERSION,
            upload: self.upload.clone(),
            write_id: self.write_id.clone(),
            part_bytes: self.part_bytes,
            if_absent: self.mode == PutMode::IfAbsent,
            parts: self.parts().clone(),
        };
        let state = serde_json::to_value(state).ok()?;
        self.settled.store(true, Ordering::Relaxed);
        Some(state)
    }

    async fn complete(&self) -> Result<PutDone> {
        let parts = self.whole().map_err(|error| self.at(error))?;
        let version = self.finish(&parts).await.map_err(|error| self.at(error))?;
        self.settled.store(true, Ordering::Relaxed);
        let mut crc64nvme = crc64nvme(&[]);
        for part in &parts {
            crc64nvme = Crc64Nvme::combine(crc64nvme, part.crc64nvme, part.len);
        }
        Ok(PutDone {
            version,
            size: parts.iter().map(|part| part.len).sum(),
            crc64nvme,
            // An object without parts was written whole.
            check: self.store.write_check(!parts.is_empty()),
            ledger: Ledger::of(DataPath::Http, 0, 1),
        })
    }

    async fn abort(&self) -> Result<()> {
        self.give_up().await.map_err(|error| self.at(error))?;
        self.settled.store(true, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for RemoteUpload {
    fn drop(&mut self) {
        if self.settled.load(Ordering::Relaxed) {
            return;
        }
        // Best effort: what a process leaves behind when it ends here is the bucket's rule for stale uploads to remove.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (api, path, upload) = (
                Arc::clone(&self.parts_api),
                self.path.clone(),
                self.upload.clone(),
            );
            runtime.spawn(async move {
                let _ = api.abort_multipart(&path, &upload).await;
            });
        }
    }
}

impl fmt::Debug for RemoteUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteUpload")
            .field("location", &self.location)
            .field("parts", &self.parts().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_grow_with_the_object_and_stay_aligned() {
        let limits = Limits::default();
        assert_eq!(part_bytes(&limits, None).unwrap(), 8 << 20);
        let small = Limits {
            part_bytes: 1,
            ..Limits::default()
        };
        assert_eq!(part_bytes(&small, Some(10)).unwrap(), PART_BYTES_MIN);
        let size = 1u64 << 40;
        let bytes = part_bytes(&limits, Some(size)).unwrap();
        assert!(size.div_ceil(bytes) <= PARTS_MAX && bytes.is_multiple_of(PART_BYTES_UNIT));
        let error = part_bytes(&limits, Some(u64::MAX)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }
}
