//! Directory syncs that writers share.
//!
//! After its rename, each writer needs a sync of the directory that *begins* after it. Writers that come while a sync runs wait for it and
//! then share the next one: N writers into one directory cost at most two syncs, one after the other. A sync that fails has
//! failed for everybody it covered: the kernel may report the same loss only once, so trying again would hide it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{Disk, NameOp};

/// Directories that somebody waits for.
#[derive(Debug, Default)]
pub(super) struct DirSyncs(Mutex<HashMap<PathBuf, Arc<DirSync>>>);

#[derive(Debug, Default)]
struct DirSync {
    /// Syncs begun; the number of a sync is its place in this count.
    begun: AtomicU64,
    ended: tokio::sync::Mutex<Ended>,
}

#[derive(Debug, Default)]
struct Ended {
    /// Number of the last sync that succeeded.
    good: u64,
    /// The last sync that failed.
    bad: Option<(u64, ErrorKind, String)>,
}

impl DirSyncs {
    fn lock(&self) -> MutexGuard<'_, HashMap<PathBuf, Arc<DirSync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Make the names in `dir` durable as they are now.
    pub(super) async fn sync(&self, disk: &Disk, dir: &Path) -> Result<()> {
        let entry = Arc::clone(self.lock().entry(dir.to_owned()).or_default());
        let result = entry.sync(disk, dir).await;
        let mut dirs = self.lock();
        // The map's and ours: nobody else is waiting.
        if Arc::strong_count(&entry) == 2 {
            dirs.remove(dir);
        }
        result
    }
}

impl DirSync {
    async fn sync(&self, disk: &Disk, dir: &Path) -> Result<()> {
        let before = self.begun.load(Ordering::SeqCst);
        let mut ended = self.ended.lock().await;
        if let Some((number, kind, message)) = &ended.bad
            && *number > before
        {
            return Err(Error::new(*kind, "sync directory", message).at(dir.display()));
        }
        if ended.good > before {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let result = disk.name(NameOp::SyncDir { path: dir.to_owned() }).await;
        match result {
            Ok(_) => {
                ended.good = number;
                Ok(())
            }
            Err(error) => {
                ended.bad = Some((number, error.kind(), error.to_string()));
                Err(error)
            }
        }
    }
}
