//! A copy under way: the tasks of its objects, within their bounds, and the account of what they did.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

use super::journal::TreeJournal;
use super::report::{CopyReport, Failure, ObjectCopied};
use super::{Job, Shared, object};
use crate::store::ObjectMeta;

/// Large objects in flight. Their parts already share the bound of requests, so more of them would only open more uploads at once.
const LARGE_OBJECTS_IN_FLIGHT_MAX: usize = 4;

type Finished = (Key, Result<ObjectCopied>);

/// A copy under way: its tasks and its account.
pub(super) struct Run {
    shared: Arc<Shared>,
    small: JoinSet<Finished>,
    large: JoinSet<Finished>,
    large_slots: Arc<Semaphore>,
    report: CopyReport,
    journal: Option<TreeJournal>,
    /// A failure concerns the store and not one object: going on would only repeat it.
    pub(super) is_hopeless: bool,
}

impl Run {
    pub(super) fn new(shared: Arc<Shared>, journal: Option<TreeJournal>) -> Self {
        Self {
            shared,
            small: JoinSet::new(),
            large: JoinSet::new(),
            large_slots: Arc::new(Semaphore::new(LARGE_OBJECTS_IN_FLIGHT_MAX)),
            report: CopyReport::default(),
            journal,
            is_hopeless: false,
        }
    }

    /// Start a job as soon as the bounds allow.
    pub(super) async fn start(&mut self, job: Job) {
        let shared = Arc::clone(&self.shared);
        let is_small = job.from.size <= shared.small_bytes_max();
        let bound = if is_small {
            &shared.requests
        } else {
            &self.large_slots
        };
        let permit = tokio::select! {
            biased;
            () = shared.cancel.cancelled() => return,
            permit = Arc::clone(bound).acquire_owned() => permit,
        };
        let Ok(permit) = permit else { return };
        let key = job.from.key.clone();
        if is_small {
            self.small.spawn(async move {
                let result = object::copy_small(&shared, &job).await;
                drop(permit);
                (key, result)
            });
        } else {
            self.large.spawn(async move {
                let result = object::copy_large(&shared, &job).await;
                drop(permit);
                (key, result)
            });
        }
    }

    /// Take in what is done, without waiting.
    pub(super) fn collect_finished(&mut self) {
        while let Some(joined) = self.small.try_join_next() {
            self.take(joined);
        }
        while let Some(joined) = self.large.try_join_next() {
            self.take(joined);
        }
        if let Some(journal) = &mut self.journal {
            journal.flush_if_due();
        }
    }

    fn take(&mut self, joined: Result<Finished, JoinError>) {
        match joined {
            Ok((_, Ok(object))) => {
                if let Some(journal) = &mut self.journal {
                    journal.record(&object);
                }
                self.report.count(&object);
                self.shared.progress.object_done(&object);
            }
            Ok((key, Err(error))) => self.failed(Failure {
                key: Some(key),
                error,
            }),
            Err(error) if error.is_cancelled() => {}
            Err(error) => self.failed(Failure {
                key: None,
                error: Error::new(ErrorKind::Internal, "copy", "a task of the copy panicked")
                    .with_source(error),
            }),
        }
    }

    pub(super) fn skipped(&mut self, meta: &ObjectMeta) {
        self.report.objects_skipped += 1;
        self.report.bytes_skipped += meta.size;
        self.shared.progress.object_skipped(meta);
    }

    pub(super) fn special(&mut self, what: &Error) {
        self.report.skipped_special += 1;
        self.shared.progress.special_skipped(what);
    }

    pub(super) fn failed(&mut self, failure: Failure) {
        if failure.error.kind() == ErrorKind::Cancelled && self.shared.cancel.is_cancelled() {
            return;
        }
        self.is_hopeless |= matches!(
            failure.error.kind(),
            ErrorKind::OutOfSpace | ErrorKind::ReadOnly | ErrorKind::Unauthenticated
        );
        self.shared.progress.object_failed(&failure);
        self.report.fail(failure);
    }

    /// Wait for what is under way; after a cancellation, small objects are dropped and large ones wrap up.
    pub(super) async fn finish(mut self) -> Result<CopyReport> {
        let cancel = self.shared.cancel.clone();
        loop {
            let joined = tokio::select! {
                biased;
                () = cancel.cancelled(), if !self.small.is_empty() => {
                    self.small.shutdown().await;
                    continue;
                }
                Some(joined) = self.small.join_next() => joined,
                Some(joined) = self.large.join_next() => joined,
                else => break,
            };
            self.take(joined);
            if let Some(journal) = &mut self.journal {
                journal.flush_if_due();
            }
        }
        self.report.cancelled = cancel.is_cancelled();
        if let Some(journal) = self.journal.take() {
            journal.close(self.report.is_complete()).await;
        }
        Ok(self.report)
    }
}
