//! What a copy tells: while it runs, and at its end.

use std::fmt;

use forebay_core::{Error, Key, Ledger};
use serde::Serialize;

use crate::store::ObjectMeta;

/// Failures a report keeps with their error; beyond them only the number is kept, so that a million broken objects do not fill memory.
pub const FAILURES_KEPT_MAX: usize = 100;

/// Whether the bytes read are those the source wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceCheck {
    /// They have the checksum that the source keeps.
    Matched,
    /// The source keeps no checksum of the whole object.
    NoneKept,
    /// The source was not asked: its listing does not tell, and the object is too small for a request of its own.
    NotAsked,
}

/// Whether the destination holds the bytes that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DestinationCheck {
    /// The store compared them with our checksum, and its probe showed that it does.
    ByStore,
    /// They were read back and have the same checksum.
    ReadBack,
    /// Nobody compared anything, because the caller did not want it.
    NotCompared,
}

/// How much of an object had to be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Copied {
    /// All of it.
    Whole,
    /// What an earlier, interrupted copy had left to do.
    Resumed {
        /// Bytes that were there already.
        bytes_before: u64,
    },
}

/// A copied object.
#[derive(Debug, Clone, Serialize)]
pub struct ObjectCopied {
    /// Its name at the source.
    pub from: Key,
    /// Its version at the source.
    pub from_version: Option<String>,
    /// Its name at the destination.
    pub to: Key,
    /// Its version at the destination.
    pub to_version: Option<String>,
    /// Size in bytes.
    pub size: u64,
    /// CRC-64/NVME of the bytes as they were read.
    pub crc64nvme: u64,
    /// Whether they are those the source wrote.
    pub source: SourceCheck,
    /// Whether the destination holds them.
    pub destination: DestinationCheck,
    /// How much had to be moved.
    pub copied: Copied,
    /// Which way the bytes went, reading, writing and reading back together.
    pub ledger: Ledger,
}

/// An object that was not copied, and why.
#[derive(Debug)]
pub struct Failure {
    /// Its name at the source, where one is known (a listing itself may fail).
    pub key: Option<Key>,
    /// What went wrong.
    pub error: Error,
}

/// Told how a copy goes on. Called from many threads; must not block.
pub trait Progress: fmt::Debug + Send + Sync {
    /// So many more objects and bytes were found to be copied.
    fn planned(&self, objects: u64, bytes: u64);
    /// The listing is over: what was planned is all there is.
    fn planned_all(&self) {}
    /// So many more bytes have reached the destination.
    fn moved(&self, bytes: u64);
    /// An object is copied and checked.
    fn object_done(&self, object: &ObjectCopied);
    /// An object was at the destination already.
    fn object_skipped(&self, object: &ObjectMeta);
    /// Something below the source is no object (a socket, a FIFO, a device) and is left out; the error names it.
    fn special_skipped(&self, what: &Error) {
        let _ = what;
    }
    /// An object was not copied.
    fn object_failed(&self, failure: &Failure);
}

/// Tells nobody.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {
    fn planned(&self, _: u64, _: u64) {}
    fn moved(&self, _: u64) {}
    fn object_done(&self, _: &ObjectCopied) {}
    fn object_skipped(&self, _: &ObjectMeta) {}
    fn object_failed(&self, _: &Failure) {}
}

/// What a copy did.
#[derive(Debug, Default)]
pub struct CopyReport {
    /// Objects copied and checked as asked.
    pub objects_copied: u64,
    /// Their bytes.
    pub bytes_copied: u64,
    /// Bytes of them that an earlier, interrupted copy had moved already.
    pub bytes_resumed: u64,
    /// Objects that were at the destination already.
    pub objects_skipped: u64,
    /// Their bytes.
    pub bytes_skipped: u64,
    /// Objects that were not copied.
    pub objects_failed: u64,
    /// Sockets, FIFOs and devices below the source, which cannot be copied and are no failures.
    pub skipped_special: u64,
    /// Copied objects whose bytes have the checksum that the source keeps.
    pub source_matched: u64,
    /// Copied objects the destination compared itself.
    pub checked_by_store: u64,
    /// Copied objects that were read back.
    pub checked_by_read_back: u64,
    /// The first failures, at most [`FAILURES_KEPT_MAX`].
    pub failures: Vec<Failure>,
    /// The worst exit status that any failure asks for, those that are not kept included; 0 without failures.
    pub exit_code_worst: u8,
    /// The copy was stopped by the caller.
    pub cancelled: bool,
    /// Which way the bytes went.
    pub ledger: Ledger,
}

impl CopyReport {
    /// True when nothing failed and no object was left out.
    pub fn is_complete(&self) -> bool {
        self.objects_failed == 0 && !self.cancelled
    }

    /// Add what another copy did.
    pub fn merge(&mut self, other: Self) {
        self.objects_copied += other.objects_copied;
        self.bytes_copied += other.bytes_copied;
        self.bytes_resumed += other.bytes_resumed;
        self.objects_skipped += other.objects_skipped;
        self.bytes_skipped += other.bytes_skipped;
        self.skipped_special += other.skipped_special;
        self.source_matched += other.source_matched;
        self.checked_by_store += other.checked_by_store;
        self.checked_by_read_back += other.checked_by_read_back;
        self.cancelled |= other.cancelled;
        self.ledger.merge(&other.ledger);
        let dropped = other.objects_failed - other.failures.len() as u64;
        for failure in other.failures {
            self.fail(failure);
        }
        self.objects_failed += dropped;
        self.exit_code_worst = self.exit_code_worst.max(other.exit_code_worst);
    }

    /// Count a failure, and keep it while there is room.
    pub fn fail(&mut self, failure: Failure) {
        self.objects_failed += 1;
        self.exit_code_worst = self.exit_code_worst.max(failure.error.kind().exit_code());
        if self.failures.len() < FAILURES_KEPT_MAX {
            self.failures.push(failure);
        }
    }

    pub(super) fn count(&mut self, object: &ObjectCopied) {
        self.objects_copied += 1;
        self.bytes_copied += object.size;
        if let Copied::Resumed { bytes_before } = object.copied {
            self.bytes_resumed += bytes_before;
        }
        self.source_matched += u64::from(object.source == SourceCheck::Matched);
        self.checked_by_store += u64::from(object.destination == DestinationCheck::ByStore);
        self.checked_by_read_back += u64::from(object.destination == DestinationCheck::ReadBack);
        self.ledger.merge(&object.ledger);
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::ErrorKind;

    use super::*;

    fn failure(kind: ErrorKind) -> Failure {
        Failure {
            key: None,
            error: Error::new(kind, "copy", "for a test"),
        }
    }

    #[test]
    fn a_failure_that_is_not_kept_still_decides_the_exit_status() {
        let mut first = CopyReport::default();
        for _ in 0..FAILURES_KEPT_MAX {
            first.fail(failure(ErrorKind::AlreadyExists));
        }
        assert_eq!(first.exit_code_worst, 1);
        let mut second = CopyReport::default();
        second.fail(failure(ErrorKind::PermissionDenied));
        first.merge(second);
        assert_eq!(
            (first.failures.len(), first.exit_code_worst),
            (FAILURES_KEPT_MAX, 2)
        );
        let mut whole = CopyReport::default();
        whole.merge(first);
        assert_eq!(whole.exit_code_worst, 2);
    }
}
