//! How far a copy is, counted by its tasks and told by the thread that waits for it.

use std::sync::atomic::{AtomicU64, Ordering};

use forebay_store::ObjectMeta;
use forebay_store::copy::{Failure, ObjectCopied, Progress};

/// Numbers that only grow.
#[derive(Debug, Default)]
pub(super) struct Counted {
    bytes_done: AtomicU64,
    bytes_total: AtomicU64,
    objects_done: AtomicU64,
}

impl Counted {
    /// Bytes done, bytes found to be copied so far, objects done.
    pub(super) fn now(&self) -> (u64, u64, u64) {
        // In this order: what is done was planned before.
        let bytes_done = self.bytes_done.load(Ordering::Acquire);
        let objects_done = self.objects_done.load(Ordering::Acquire);
        (bytes_done, self.bytes_total.load(Ordering::Acquire), objects_done)
    }
}

impl Progress for Counted {
    fn planned(&self, _objects: u64, bytes: u64) {
        self.bytes_total.fetch_add(bytes, Ordering::AcqRel);
    }

    fn moved(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::AcqRel);
    }

    fn object_done(&self, _object: &ObjectCopied) {
        self.objects_done.fetch_add(1, Ordering::AcqRel);
    }

    fn object_skipped(&self, _object: &ObjectMeta) {}

    fn object_failed(&self, _failure: &Failure) {}
}
