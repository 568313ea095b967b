//! Files kept open between reads, so that many ranges of one object are not many opens.
//!
//! A kept file is used only while its name still has the stamp it had when it was opened: who asks for a version need not look before reading, but must after.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::PathPolicy;
use forebay_io::File;

use super::Stamp;

/// Files one store keeps open. More than the objects a job reads side by side, each around the page cache and out of it, far below the usual limit of 1024 descriptors; a file that
/// somebody else removes keeps its space until it falls out, so this also bounds that.
const OPEN_FILES_MAX: usize = 64;

#[derive(Debug)]
struct Kept {
    path: PathBuf,
    policy: PathPolicy,
    stamp: Stamp,
    file: Arc<File>,
}

/// The most recently used files, newest last.
#[derive(Debug, Default)]
pub(super) struct OpenFiles(Mutex<VecDeque<Kept>>);

impl OpenFiles {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, if it is open and its stamp is still this one.
    pub(super) fn get(&self, path: &Path, policy: PathPolicy, stamp: &Stamp) -> Option<Arc<File>> {
        let mut kept = self.lock();
        let index = kept
            .iter()
            .position(|kept| kept.path == path && kept.policy == policy)?;
        let found = kept.remove(index)?;
        if found.stamp != *stamp {
            return None;
        }
        let file = Arc::clone(&found.file);
        kept.push_back(found);
        Some(file)
    }

    /// The file of that version, if it is open. Whether its name still means it is for the caller to see.
    pub(super) fn of_version(
        &self,
        path: &Path,
        policy: PathPolicy,
        version: &str,
    ) -> Option<(Stamp, Arc<File>)> {
        let mut kept = self.lock();
        let index = kept
            .iter()
            .position(|kept| kept.path == path && kept.policy == policy && kept.stamp.version() == version)?;
        let found = kept.remove(index)?;
        let (stamp, file) = (found.stamp, Arc::clone(&found.file));
        kept.push_back(found);
        Some((stamp, file))
    }

    /// Keep a file open.
    pub(super) fn keep(&self, path: &Path, policy: PathPolicy, stamp: Stamp, file: &Arc<File>) {
        let mut kept = self.lock();
        kept.retain(|kept| kept.path != path || kept.policy != policy);
        if kept.len() == OPEN_FILES_MAX {
            kept.pop_front();
        }
        kept.push_back(Kept {
            path: path.to_owned(),
            policy,
            stamp,
            file: Arc::clone(file),
        });
    }

    /// The name means something else from now on; an open file would only hold its space.
    pub(super) fn forget(&self, path: &Path) {
        self.lock().retain(|kept| kept.path != path);
    }
}
