//! Uploads into tiers: to the one that decides, and from there to the others when it is complete.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use async_trait::async_trait;
use forebay_core::{Key, Ledger, Result};

use super::promote::copy_object;
use super::{Shared, WritePolicy};
use crate::store::{PartBody, PutDone, PutMode, PutOptions, Upload};

/// The upload as it is, or one that brings the other tiers along.
pub(super) fn wrap(
    shared: &Arc<Shared>,
    inner: Box<dyn Upload>,
    key: &Key,
    options: &PutOptions,
) -> Box<dyn Upload> {
    if shared.config.write == WritePolicy::First || shared.stores.len() == 1 {
        return inner;
    }
    Box::new(AllUpload {
        shared: Arc::clone(shared),
        inner,
        key: key.clone(),
        options: PutOptions {
            mode: PutMode::Replace,
            ..options.clone()
        },
    })
}

#[derive(Debug)]
struct AllUpload {
    shared: Arc<Shared>,
    inner: Box<dyn Upload>,
    key: Key,
    options: PutOptions,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Upload for AllUpload {
    fn part_bytes(&self) -> u64 {
        self.inner.part_bytes()
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        self.inner.put_part(index, body).await
    }

    fn checkpoint(&self) -> Option<serde_json::Value> {
        self.inner.checkpoint()
    }

    /// The farthest tier is complete first; the nearer ones get copies of it.
    async fn complete(&self) -> Result<PutDone> {
        let mut done = self.inner.complete().await?;
        let farthest = self.shared.decider();
        let meta = farthest.head(&self.key).await?;
        for store in self.shared.stores.iter().rev().skip(1) {
            let never = AtomicBool::new(false);
            let copied = copy_object(
                &**farthest,
                &**store,
                &meta,
                &self.options,
                &self.shared.context,
                &never,
            )
            .await?;
            for (path, totals) in &copied.ledger.paths {
                done.ledger.record_copy(*path, totals.bytes);
            }
            done.version = copied.version;
        }
        Ok(done)
    }

    async fn abort(&self) -> Result<()> {
        self.inner.abort().await
    }
}
