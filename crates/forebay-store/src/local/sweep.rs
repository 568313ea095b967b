//! Removes temporary files that dead processes left behind.
//!
//! A file whose lock can be taken has no living writer. No age, no process number and no lock file is consulted: these lie in containers and
//! on shared file systems.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use forebay_core::{ErrorKind, PathPolicy, Result};
use forebay_io::{DirEntry, Direct, Disk, FileKind, NameOp, OpenHow, Purpose, RangeLock};

use super::draft::{ALIVE, in_the_making};
use super::{Shared, TEMP_PREFIX};

/// Directories a store remembers to have swept before writing; beyond them it does not sweep again but by listing.
const DIRS_SWEPT_MAX: usize = 1024;

/// Directories that this store has swept before writing into them.
#[derive(Debug, Default)]
pub(super) struct Swept(Mutex<HashSet<PathBuf>>);

impl Swept {
    /// True the first time.
    fn claim(&self, dir: &Path) -> bool {
        let mut swept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        swept.len() < DIRS_SWEPT_MAX && swept.insert(dir.to_owned())
    }
}

/// True for the name of a file in the making.
pub(super) fn is_temp(entry: &DirEntry) -> bool {
    entry.name.as_encoded_bytes().starts_with(TEMP_PREFIX.as_bytes())
}

/// Before the first large write into a directory: what was left there may be what fills the disk.
pub(super) async fn once(shared: &Shared, target: &Path) {
    let Some(dir) = target.parent() else { return };
    if !shared.swept.claim(dir) {
        return;
    }
    if let Ok(entries) = shared.disk().list(dir).await {
        sweep(shared.disk(), dir, entries.iter().filter(|entry| is_temp(entry))).await;
    }
}

/// Remove those of the temporary files in `dir` whose writers are gone. What cannot be removed stays, and nobody is harmed.
pub(super) async fn sweep(disk: &Disk, dir: &Path, entries: impl Iterator<Item = &DirEntry>) {
    for entry in entries.filter(|entry| entry.kind == FileKind::File) {
        let path = dir.join(&entry.name);
        if let Err(error) = remove_if_left(disk, &path).await {
            tracing::debug!(%error, path = %path.display(), "cannot remove a temporary file");
        }
    }
}

async fn remove_if_left(disk: &Disk, path: &Path) -> Result<()> {
    if in_the_making().contains(path) {
        return Ok(());
    }
    // An exclusive lock needs a file open for writing. Should the file be gone by now, this makes an empty one, which is removed below.
    let how = OpenHow {
        purpose: Purpose::Update,
        direct: Direct::Never,
        ..OpenHow::READ
    };
    let file = disk.open_file(path, how, PathPolicy::Fastest).await?;
    let Some(lock) = RangeLock::try_exclusive(&file, ALIVE)? else {
        return Ok(());
    };
    let path = path.to_owned();
    tracing::info!(path = %path.display(), "removing a temporary file that its writer left behind");
    let removed = disk.name(NameOp::Unlink { path }).await;
    drop(lock);
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
