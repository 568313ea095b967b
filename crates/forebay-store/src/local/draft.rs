//! A file in the making: hidden, locked, and gone unless it is committed.
//!
//! The lock says that the writer is alive. It is taken on the temporary file itself and vanishes with the process, so anybody who
//! can take it knows that the file was left behind. Between making the file and locking it, a sweeper may have removed it; the
//! writer looks once more after locking, and makes another.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_core::{Error, ErrorKind, PathPolicy, Result, Seed, Span};
use forebay_io::{Disk, File, NameOp, OpenHow, RangeLock};
use futures::FutureExt;

use super::{Shared, Stamp, TEMP_PREFIX};
use crate::store::PutMode;

/// Files of at least this size have their blocks reserved first: a full disk is known before the first byte, and the file lies in one run.
/// Smaller ones fail as fast without.
const RESERVE_BYTES_MIN: u64 = 1 << 20;

/// Names tried for a temporary file before giving up; each failure needs a sweeper or a clash of random names at the same moment.
const CREATE_TRIES_MAX: usize = 8;

/// Of the permissions that are asked for, those that say who may do what with the bytes.
const PERMISSIONS_MASK: u32 = 0o777;

/// The owner can always read and write a file in the making: it is read back, and swept when its writer is dead.
const PERMISSIONS_OWNER: u32 = 0o600;

/// The byte whose lock says that the writer is alive.
pub(super) const ALIVE: Span = Span::first(1);

/// What a writer knows before it writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    /// Size of the whole, where known.
    pub(super) size: Option<u64>,
    /// Least size it is going to have, where the size is not known.
    pub(super) size_min: u64,
    /// Which paths are acceptable.
    pub(super) policy: PathPolicy,
    /// Permission bits, where others than usual are wanted.
    pub(super) permissions: Option<u32>,
    /// The writer can begin again when its file turns out to be gone, so there is no need to look.
    pub(super) can_repeat: bool,
}

/// A file in the making; removed on drop unless it was committed.
#[derive(Debug)]
pub(super) struct Draft {
    disk: Disk,
    temp: PathBuf,
    target: PathBuf,
    file: Arc<File>,
    lock: Option<RangeLock>,
    committed: bool,
}

impl Draft {
    /// Make a temporary file beside `target`, and the directories it needs.
    pub(super) async fn create(shared: &Shared, target: &Path, wanted: Wanted) -> Result<Self> {
        let disk = shared.disk().clone();
        let (target, seed) = (target.to_owned(), shared.context.seed());
        // As a task of its own: when the caller goes away while the file is being opened, the task still gets it, drops it, and
        // thereby removes it.
        let task = tokio::spawn(create(disk, target, wanted, seed));
        let draft = task.await.map_err(|error| {
            Error::new(ErrorKind::Cancelled, "create", "the runtime is shutting down").with_source(error)
        })??;
        if let Some(len) = wanted.size.filter(|size| *size >= RESERVE_BYTES_MIN) {
            let file = Arc::clone(&draft.file);
            draft.disk.name(NameOp::Reserve { file, len }).await?;
        }
        Ok(draft)
    }

    /// The open file.
    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Cut what was written beyond `size`: the padding of a direct write, or an earlier try of the last part.
    pub(super) async fn trim(&self, size: u64) -> Result<()> {
        self.disk.set_len(&self.file, size).await
    }

    /// Make its `size` bytes durable and visible under the target's name; gives the version.
    pub(super) async fn commit(mut self, shared: &Shared, size: u64, mode: PutMode) -> Result<String> {
        self.disk.sync(&self.file).await?;
        let dir = self.target.parent().unwrap_or(Path::new("/"));
        let ticket = shared.dir_syncs.ticket(dir);
        let (from, to) = (self.temp.clone(), self.target.clone());
        let renamed = self.disk.rename(from, to, mode == PutMode::Replace, size).await?;
        self.committed = true;
        // Renaming is a change, too. When the name means somebody else's file already, nobody will ever see the version of ours.
        let ours = renamed
            .after
            .filter(|after| after.identity == renamed.before.identity);
        let stamp = Stamp::of(&ours.unwrap_or(renamed.before));
        ticket.sync(&self.disk).await.map_err(|error| {
            error
                .with_hint("the object has its new content, but a power failure might bring back the old one")
        })?;
        Ok(stamp.version())
    }

    /// Remove it, and wait until it is gone.
    pub(super) async fn discard(mut self) -> Result<()> {
        self.committed = true;
        let path = self.temp.clone();
        self.disk.name(NameOp::Unlink { path }).await.map(drop)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        in_the_making().remove(&self.temp);
        if !self.committed {
            // Polled once, the removal is with the engine and runs to its end. It goes before the lock does.
            let path = self.temp.clone();
            drop(self.disk.name(NameOp::Unlink { path }).now_or_never());
        }
        self.lock = None;
    }
}

/// Temporary files of this process. Beside the locks, since these do not hold between simulated files.
pub(super) fn in_the_making() -> MutexGuard<'static, HashSet<PathBuf>> {
    static PATHS: LazyLock<Mutex<HashSet<PathBuf>>> = LazyLock::new(Mutex::default);
    PATHS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the locks of this crate that belong to the process and not to a store.
#[derive(Debug)]
pub struct ForkHold {
    _paths: MutexGuard<'static, HashSet<PathBuf>>,
}

/// Keep the process's own locks until the result is dropped. Whoever forks a process with threads does it around the fork: in the child
/// nobody would ever release a lock that another thread held.
pub fn hold_for_fork() -> ForkHold {
    ForkHold {
        _paths: in_the_making(),
    }
}

/// Remove the temporary files that are still there, when everything that made some was stopped and the process is about to end. Waits up
/// to `limit` for calls under way: a file whose maker went away while it was being opened is nobody's.
pub fn remove_drafts(limit: Duration) {
    forebay_io::settle(limit);
    for path in in_the_making().drain() {
        // Most are not there any more, and a next run sweeps those that cannot be removed.
        drop(std::fs::remove_file(path));
    }
}

async fn create(disk: Disk, target: PathBuf, wanted: Wanted, seed: Seed) -> Result<Draft> {
    let dir = target.parent().unwrap_or(Path::new("/")).to_owned();
    let mut how = OpenHow {
        size_hint: wanted.size.or(Some(wanted.size_min)),
        ..OpenHow::CREATE
    };
    if let Some(permissions) = wanted.permissions {
        how = how.with_permissions(permissions & PERMISSIONS_MASK | PERMISSIONS_OWNER);
    }
    let mut failed = None;
    for _ in 0..CREATE_TRIES_MAX {
        let temp = dir.join(temp_name(seed));
        in_the_making().insert(temp.clone());
        let opened = disk.open_file(&temp, how, wanted.policy).await;
        match opened {
            Ok(file) => {
                let draft = Draft {
                    disk: disk.clone(),
                    lock: None,
                    committed: false,
                    temp,
                    target: target.clone(),
                    file,
                };
                if let Some(draft) = draft.locked(wanted.can_repeat).await? {
                    return Ok(draft);
                }
            }
            Err(error) => {
                in_the_making().remove(&temp);
                match error.kind() {
                    ErrorKind::NotFound => drop(disk.name(NameOp::CreateDirs { path: dir.clone() }).await?),
                    ErrorKind::AlreadyExists => {}
                    // Opening may fail after making the file, when the path that is required is not available.
                    _ => {
                        drop(disk.name(NameOp::Unlink { path: temp }).await);
                        return Err(error);
                    }
                }
                failed = Some(error);
            }
        }
    }
    Err(failed.unwrap_or_else(|| {
        let message = "temporary files vanish as soon as they are made";
        Error::new(ErrorKind::Io, "create", message).at(dir.display())
    }))
}

impl Draft {
    /// Lock it, and see whether it is still there; `None` when a sweeper was faster.
    async fn locked(mut self, can_repeat: bool) -> Result<Option<Self>> {
        match RangeLock::try_exclusive(&self.file, ALIVE) {
            Ok(None) => return Ok(None),
            Ok(lock) => self.lock = lock,
            // Where locks do not work, nobody can take one, so nobody will sweep the file either.
            Err(error) => tracing::debug!(%error, "this file system has no locks"),
        }
        if can_repeat {
            return Ok(Some(self));
        }
        match self.disk.stat(&self.temp).await {
            Ok(_) => Ok(Some(self)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn temp_name(seed: Seed) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let random = seed.derive(COUNT.fetch_add(1, Ordering::Relaxed)).0;
    format!("{TEMP_PREFIX}{}-{random:016x}", std::process::id())
}
