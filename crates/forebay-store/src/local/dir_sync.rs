//! Directory syncs that writers share.
//!
//! After its rename, each writer needs a sync of the directory that *begins* after it. Writers that come while a sync runs wait for it and
//! then share the next one: N writers that rename at the same time cost two syncs, one after the other, instead of N.
//!
//! A sync that fails has failed for everybody whose rename it may have covered, which is everybody who had begun to rename before it ended:
//! the kernel reports a loss once and forgets it, so a later sync would succeed without making the lost rename durable. So a
//! writer takes a [`Ticket`] before it renames, and syncs run as tasks of their own, whose outcome is kept even when
//! the writer that began one goes away.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{Disk, NameOp};

/// Directories that somebody renames in.
#[derive(Debug, Default)]
pub(super) struct DirSyncs(Arc<Mutex<Dirs>>);

type Dirs = HashMap<PathBuf, Arc<DirSync>>;

#[derive(Debug, Default)]
struct DirSync {
    /// Held by the sync that runs.
    turn: Arc<tokio::sync::Mutex<()>>,
    seen: Mutex<Seen>,
}

/// Syncs are numbered from 1 as they begin.
#[derive(Debug, Default)]
struct Seen {
    /// The last that began.
    begun: u64,
    /// The last that ended.
    ended: u64,
    /// The last that succeeded.
    good: u64,
    /// The last that failed, and how.
    bad: Option<(u64, ErrorKind, String)>,
}

/// The claim of a writer on a sync of a directory, taken before it renames.
#[derive(Debug)]
pub(super) struct Ticket {
    dirs: Arc<Mutex<Dirs>>,
    dir: PathBuf,
    entry: Arc<DirSync>,
    /// The last sync that had ended by then.
    ended: u64,
}

impl DirSyncs {
    /// To be taken before a rename in `dir`.
    pub(super) fn ticket(&self, dir: &Path) -> Ticket {
        let entry = Arc::clone(lock(&self.0).entry(dir.to_owned()).or_default());
        let ended = lock(&entry.seen).ended;
        Ticket {
            dirs: Arc::clone(&self.0),
            dir: dir.to_owned(),
            entry,
            ended,
        }
    }
}

impl Ticket {
    /// Make the names in the directory durable as they are now.
    pub(super) async fn sync(self, disk: &Disk) -> Result<()> {
        let begun = lock(&self.entry.seen).begun;
        let turn = Arc::clone(&self.entry.turn).lock_owned().await;
        if let Some(result) = self.outcome(begun) {
            return result;
        }
        let (entry, dir, disk) = (Arc::clone(&self.entry), self.dir.clone(), disk.clone());
        let task = tokio::spawn(async move {
            let result = entry.run(&disk, dir).await;
            drop(turn);
            result
        });
        task.await.map_err(|error| {
            Error::new(
                ErrorKind::Cancelled,
                "sync directory",
                "the runtime is shutting down",
            )
            .at(self.dir.display())
            .with_source(error)
        })?
    }

    /// What others' syncs say about a rename that began with this ticket and ended when `begun` syncs had begun.
    fn outcome(&self, begun: u64) -> Option<Result<()>> {
        let seen = lock(&self.entry.seen);
        if let Some((number, kind, message)) = &seen.bad
            && *number > self.ended
        {
            return Some(Err(
                Error::new(*kind, "sync directory", message).at(self.dir.display())
            ));
        }
        (seen.good > begun).then_some(Ok(()))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut dirs = lock(&self.dirs);
        // The map's and ours: nobody else renames there.
        if Arc::strong_count(&self.entry) == 2 {
            dirs.remove(&self.dir);
        }
    }
}

impl DirSync {
    async fn run(&self, disk: &Disk, dir: PathBuf) -> Result<()> {
        let number = {
            let mut seen = lock(&self.seen);
            seen.begun += 1;
            seen.begun
        };
        let result = disk.name(NameOp::SyncDir { path: dir }).await;
        let mut seen = lock(&self.seen);
        seen.ended = number;
        match result {
            Ok(_) => {
                seen.good = number;
                Ok(())
            }
            Err(error) => {
                seen.bad = Some((number, error.kind(), error.to_string()));
                Err(error)
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
