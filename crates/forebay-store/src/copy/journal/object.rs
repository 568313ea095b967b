//! The journal of one large object.

use std::path::Path;
use std::time::Duration;

use forebay_core::Key;
use serde::{Deserialize, Serialize};

use super::{FORMAT, Slot, WRITE_PERIOD, on_blocking};
use crate::copy::Shared;
use crate::copy::object::Sums;
use crate::store::{ObjectMeta, Upload, identity_below};

/// What the file holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    format: u32,
    source: String,
    source_version: String,
    size: u64,
    destination: String,
    part_bytes: u64,
    parts: Vec<PartRecord>,
    /// What the destination needs to go on.
    upload: serde_json::Value,
}

/// A part that has reached the destination.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct PartRecord {
    index: u32,
    len: u64,
    crc64nvme: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    crc32c: Option<u32>,
}

/// For the fuzz target.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    drop(serde_json::from_slice::<Record>(bytes));
}

/// Remembers the parts of one object on their way. Does nothing where there is no place for state, no version to go by, or a
/// destination whose uploads do not outlive the process.
#[derive(Debug)]
pub(crate) struct ObjectJournal {
    slot: Option<Slot>,
    found: Option<Record>,
    identity: Record,
    clock: std::sync::Arc<dyn forebay_core::Clock>,
    written: Option<Duration>,
}

impl ObjectJournal {
    /// Find what an earlier copy of the same version to the same place has left.
    pub(crate) async fn open(shared: &Shared, meta: &ObjectMeta, to: &Key) -> Self {
        let source = identity_below(&shared.source.identity(), &meta.key);
        let destination = identity_below(&shared.destination.identity(), to);
        let slot = match &meta.version {
            Some(_) => Slot::claim(shared, &source, &destination, "json").await,
            None => None,
        };
        let identity = Record {
            format: FORMAT,
            source,
            source_version: meta.version.clone().unwrap_or_default(),
            size: meta.size,
            destination,
            part_bytes: 0,
            parts: Vec::new(),
            upload: serde_json::Value::Null,
        };
        let text = match &slot {
            Some(slot) => slot.read().await,
            None => None,
        };
        let found = text
            .and_then(|text| serde_json::from_str::<Record>(&text).ok())
            .filter(|record| record.is_for(&identity));
        Self {
            slot,
            found,
            identity,
            clock: std::sync::Arc::clone(shared.context.clock()),
            written: None,
        }
    }

    /// What the destination needs to go on, if there is something to go on with.
    pub(crate) fn state(&self) -> Option<&serde_json::Value> {
        self.found.as_ref().map(|record| &record.upload)
    }

    /// The part size of the upload that was interrupted.
    pub(crate) fn part_bytes(&self) -> Option<u64> {
        self.found.as_ref().map(|record| record.part_bytes)
    }

    /// The parts that are there already.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (u32, Sums)> {
        self.found.iter().flat_map(|record| &record.parts).map(|part| {
            let sums = Sums {
                crc64nvme: part.crc64nvme,
                crc32c: part.crc32c,
                len: part.len,
            };
            (part.index, sums)
        })
    }

    /// Remember what is done, if the last time is long enough ago.
    pub(crate) async fn record(&mut self, upload: &dyn Upload, parts: &[Option<Sums>]) {
        let now = self.clock.now();
        // The first period begins with the first part, so that a copy that is over by then writes nothing at all.
        let last = *self.written.get_or_insert(now);
        if now.saturating_sub(last) >= WRITE_PERIOD && self.keep(upload, parts).await {
            self.written = Some(now);
        }
    }

    /// Remember what is done; false when it could not be kept, so that there will be nothing to resume.
    pub(crate) async fn keep(&mut self, upload: &dyn Upload, parts: &[Option<Sums>]) -> bool {
        let (Some(slot), Some(state)) = (&self.slot, upload.checkpoint()) else {
            return false;
        };
        let done = (0u32..).zip(parts).filter_map(|(index, part)| {
            part.map(|sums| PartRecord {
                index,
                len: sums.len,
                crc64nvme: sums.crc64nvme,
                crc32c: sums.crc32c,
            })
        });
        let record = Record {
            part_bytes: upload.part_bytes(),
            parts: done.collect(),
            upload: state,
            ..self.identity.clone()
        };
        let path = slot.path.clone();
        on_blocking(move || replace(&path, &record))
            .await
            .is_some_and(|result| match result {
                Ok(()) => true,
                Err(error) => {
                    tracing::warn!(%error, "cannot remember how far a copy has come");
                    false
                }
            })
    }

    /// Forget it.
    pub(crate) async fn remove(&mut self) {
        self.found = None;
        if let Some(slot) = &self.slot {
            slot.remove().await;
        }
    }
}

impl Record {
    /// The same version of the same object to the same place.
    fn is_for(&self, other: &Self) -> bool {
        (self.format, self.size) == (other.format, other.size)
            && self.source == other.source
            && self.source_version == other.source_version
            && self.destination == other.destination
    }
}

/// Write beside and rename: readers see the old or the new text.
fn replace(path: &Path, record: &Record) -> std::io::Result<()> {
    let text = serde_json::to_vec(record)?;
    let temp = path.with_extension("json.new");
    std::fs::write(&temp, text)?;
    std::fs::rename(&temp, path)
}
