//! Uploads whose parts and completion are tried again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_core::{Crc64Nvme, Key, Ledger, Result, crc64nvme};

use super::{Shared, Tries, account, found_done};
use crate::store::{PartBody, PutDone, Upload};

/// An upload whose passing faults are tried again.
#[derive(Debug)]
pub(super) struct RetriedUpload {
    shared: Arc<Shared>,
    inner: Box<dyn Upload>,
    key: Key,
    /// Length and CRC-64/NVME of the parts, to recognise the object when the reply to its completion was lost. `None` when another process
    /// wrote some of them, and when the object must not replace another: there the same content may be somebody else's.
    parts: Option<Mutex<BTreeMap<u32, (u64, u64)>>>,
}

impl RetriedUpload {
    pub(super) fn new(shared: &Arc<Shared>, inner: Box<dyn Upload>, key: &Key, known: bool) -> Self {
        Self {
            shared: Arc::clone(shared),
            inner,
            key: key.clone(),
            parts: known.then(Mutex::default),
        }
    }

    /// Size and checksum of everything that was written.
    fn sum(&self) -> Option<(u64, u64)> {
        let parts = self
            .parts
            .as_ref()?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let whole = parts
            .values()
            .fold((0, crc64nvme(b"")), |(size, whole), (len, crc)| {
                (size + len, Crc64Nvme::combine(whole, *crc, *len))
            });
        Some(whole)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for RetriedUpload {
    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, mut body: PartBody) -> Result<Ledger> {
        // Once for all tries, and for what is below.
        let sum = (body.size(), body.crc64nvme());
        let mut tries = Tries::default();
        let mut ledger = self
            .shared
            .run(&mut tries, || self.inner.put_part(index, body.clone()))
            .await?;
        if let Some(parts) = &self.parts {
            parts
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(index, sum);
        }
        account(&mut ledger, &tries);
        Ok(ledger)
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        self.inner.checkpoint()
    }

    /// After a lost reply the store has forgotten the upload, or meets its own object: whatever it answers then, the object decides.
    async fn complete(&self) -> Result<PutDone> {
        let mut tries = Tries::default();
        let result = self.shared.run(&mut tries, || self.inner.complete()).await;
        let mut done = match (result, self.sum()) {
            (Err(error), Some((size, crc64nvme))) if tries.failed > 0 => {
                match self.shared.is_ours(&self.key, size, crc64nvme).await {
                    Ok(Some(meta)) => found_done(meta, crc64nvme),
                    _ => return Err(error),
                }
            }
            (result, _) => result?,
        };
        account(&mut done.ledger, &tries);
        Ok(done)
    }

    async fn abort(&self) -> Result<()> {
        self.shared
            .run(&mut Tries::default(), || self.inner.abort())
            .await
    }
}
