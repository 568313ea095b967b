//! An object written in parts: all of them into one draft, side by side, each at its place.
//!
//! A part is written by a task of its own that holds the draft until the engine is done, so a caller that drops `put_part` cannot leave a
//! write in flight that would land in a completed object.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use forebay_core::{Crc64Nvme, Error, ErrorKind, Ledger, Result, crc64nvme};
use forebay_io::Access;
use tokio::sync::RwLock;

use super::draft::{Draft, Wanted};
use super::explain::explain;
use super::{Shared, sweep};
use crate::memory::check_parts;
use crate::store::{PartBody, PutDone, PutOptions, Upload, WriteCheck};

/// Parts begin at multiples of this, so that direct files take them; more where the file wants more.
const PART_ALIGN: u64 = 4096;

/// What was written of a part: its length and CRC-64/NVME; nothing while it is being written.
type Part = Arc<tokio::sync::Mutex<Option<(u64, u64)>>>;

/// An object being written in parts.
#[derive(Debug)]
pub(super) struct LocalUpload {
    shared: Arc<Shared>,
    path: PathBuf,
    options: PutOptions,
    part_bytes: u64,
    /// `None` once it was completed or given up. Parts being written share it; completing waits for them.
    draft: Arc<RwLock<Option<Draft>>>,
    parts: Mutex<BTreeMap<u32, Part>>,
}

impl LocalUpload {
    pub(super) async fn begin(shared: &Arc<Shared>, path: PathBuf, options: &PutOptions) -> Result<Self> {
        shared.check_target("upload", &path, options.mode).await?;
        sweep::once(shared, &path).await;
        let part_bytes = shared.context.limits().part_bytes.max(1);
        let wanted = Wanted {
            size: options.size_hint,
            size_min: part_bytes,
            policy: options.policy,
            permissions: options.permissions,
            can_repeat: false,
        };
        let draft = Draft::create(shared, &path, wanted)
            .await
            .map_err(|error| explain("upload", &path, error))?;
        let align = match *draft.file().access() {
            Access::Direct { align } => PART_ALIGN.max(align.into()),
            Access::Buffered { .. } => PART_ALIGN,
        };
        Ok(Self {
            shared: Arc::clone(shared),
            path,
            options: options.clone(),
            part_bytes: part_bytes.next_multiple_of(align),
            draft: Arc::new(RwLock::new(Some(draft))),
            parts: Mutex::default(),
        })
    }

    fn parts(&self) -> MutexGuard<'_, BTreeMap<u32, Part>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self, op: &'static str, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidInput, op, message).at(self.path.display())
    }

    fn over(&self, op: &'static str) -> Error {
        self.refuse(op, "the upload is over")
    }

    /// Size and checksum of the whole, from parts without a gap.
    fn sum(&self) -> Result<(u64, u64)> {
        let mut done = Vec::new();
        for (index, part) in &*self.parts() {
            // Nobody writes while the draft is held alone; a part that is empty here failed.
            if let Some((len, crc)) = part.try_lock().ok().and_then(|part| *part) {
                done.push((*index, len, crc));
            }
        }
        let size = check_parts(done.iter().map(|(index, len, _)| (*index, *len)), self.part_bytes)
            .map_err(|error| error.at(self.path.display()))?;
        let whole = done.iter().fold(crc64nvme(b""), |whole, (_, len, crc)| {
            Crc64Nvme::combine(whole, *crc, *len)
        });
        Ok((size, whole))
    }

    async fn commit(&self, draft: Draft, size: u64) -> Result<String> {
        draft.trim(size).await?;
        draft.commit(&self.shared, size, self.options.mode).await
    }
}

#[async_trait]
impl Upload for LocalUpload {
    fn part_bytes(&self) -> u64 {
        self.part_bytes
    }

    async fn put_part(&self, index: u32, mut body: PartBody) -> Result<Ledger> {
        let len = body.size();
        if len > self.part_bytes {
            let message = format!("part of {len} bytes, but parts have {}", self.part_bytes);
            return Err(self.refuse("upload", message));
        }
        let part = Arc::clone(self.parts().entry(index).or_default());
        let (draft, disk) = (Arc::clone(&self.draft), self.shared.disk().clone());
        let (class, offset) = (self.options.class, u64::from(index) * self.part_bytes);
        let task = tokio::spawn(async move {
            let draft = draft.read_owned().await;
            let Some(draft) = draft.as_ref() else {
                return Ok(None);
            };
            // One write of a part at a time, or two tries would mix.
            let mut part = part.lock().await;
            *part = None;
            // Where it is not known, summed up while the disk is at it.
            let written = disk.write_at(draft.file(), offset, body.bytes().clone(), class);
            let (written, crc) = tokio::join!(written, async { body.crc64nvme() });
            let ledger = written?;
            *part = Some((len, crc));
            Ok(Some(ledger))
        });
        match task.await {
            Ok(Ok(ledger)) => ledger.ok_or_else(|| self.over("upload")),
            Ok(Err(error)) => Err(explain("upload", &self.path, error)),
            Err(error) => Err(
                Error::new(ErrorKind::Cancelled, "upload", "the runtime is shutting down")
                    .at(self.path.display())
                    .with_source(error),
            ),
        }
    }

    async fn complete(&self) -> Result<PutDone> {
        let mut held = self.draft.write().await;
        if held.is_none() {
            return Err(self.over("complete"));
        }
        let (size, crc64nvme) = self.sum()?;
        let draft = held.take().ok_or_else(|| self.over("complete"))?;
        let version = self
            .commit(draft, size)
            .await
            .map_err(|error| explain("complete", &self.path, error))?;
        self.shared.files.forget(&self.path);
        Ok(PutDone {
            version: Some(version),
            size,
            crc64nvme,
            check: WriteCheck::Durable,
            // The parts were accounted for as they came.
            ledger: Ledger::default(),
        })
    }

    async fn abort(&self) -> Result<()> {
        match self.draft.write().await.take() {
            Some(draft) => draft
                .discard()
                .await
                .map_err(|error| explain("abort", &self.path, error)),
            None => Ok(()),
        }
    }
}
