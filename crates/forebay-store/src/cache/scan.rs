//! What lies in a cache directory: names and sizes, never contents; and the removal of what killed processes left there.
//!
//! Only names of our own making are looked at. Everything else that somebody put into the directory is left alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_core::{ErrorKind, Result};
use forebay_io::{Disk, FileKind};
use futures::stream::{self, StreamExt};

use super::files;
use super::format::{Name, Part};

/// Directories scanned side by side; their files are looked at by the disk's few worker threads anyway.
const DIRS_MAX: usize = 8;

/// Files of one directory looked at side by side.
const STATS_MAX: usize = 16;

/// Length of the shortest header: an index below it never got that far.
const INDEX_BYTES_MIN: u64 = 128;

/// An entry as its names and sizes tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Row {
    /// Bytes both files take on the device.
    pub(super) bytes: u64,
    /// Last use, nanoseconds since 1970.
    pub(super) used_ns: i64,
    /// Length of the index, where there is one.
    pub(super) index: Option<u64>,
    /// There is a data file.
    pub(super) data: bool,
}

impl Row {
    /// False for what a process that was killed left half made or half removed.
    fn is_whole(&self) -> bool {
        self.data && self.index.is_some_and(|bytes| bytes >= INDEX_BYTES_MIN)
    }
}

/// All entries below `root`.
pub(super) async fn scan(disk: &Disk, root: &Path) -> Result<BTreeMap<Name, Row>> {
    let dirs: Vec<(String, PathBuf)> = disk
        .list(root)
        .await?
        .into_iter()
        .filter(|entry| entry.kind == FileKind::Dir && entry.name.len() == 2)
        .filter_map(|entry| {
            let name = entry.name.to_str()?.to_owned();
            let path = root.join(&name);
            Some((name, path))
        })
        .collect();
    let mut rows = BTreeMap::new();
    let mut scans = stream::iter(dirs)
        .map(|(name, path)| scan_dir(disk, name, path))
        .buffer_unordered(DIRS_MAX);
    while let Some(part) = scans.next().await {
        rows.extend(part);
    }
    Ok(rows)
}

/// The entries of one directory. A directory that cannot be read counts as empty: a cache never fails because of a part of it.
async fn scan_dir(disk: &Disk, dir: String, path: PathBuf) -> BTreeMap<Name, Row> {
    let listed = match disk.list(&path).await {
        Ok(listed) => listed,
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(%error, "cannot read a directory of the cache");
            }
            return BTreeMap::new();
        }
    };
    let ours = listed.into_iter().filter_map(|entry| {
        let file = entry.name.to_str().filter(|_| entry.kind == FileKind::File)?;
        let (name, part) = Name::parse(&dir, file)?;
        Some((name, part, path.join(file)))
    });
    let mut stats = stream::iter(ours)
        .map(|(name, part, path)| async move { (name, part, disk.stat(&path).await) })
        .buffer_unordered(STATS_MAX);
    let mut rows: BTreeMap<Name, Row> = BTreeMap::new();
    while let Some((name, part, stat)) = stats.next().await {
        // What is gone by now was removed by somebody else.
        let Ok(stat) = stat else { continue };
        let row = rows.entry(name).or_default();
        row.bytes += stat.stored_bytes;
        match part {
            Part::Index => row.index = Some(stat.size),
            Part::Data => row.data = true,
        }
        row.used_ns = row.used_ns.max(stat.accessed_ns);
    }
    rows
}

/// Remove leftovers from `rows` and from the directory; true when there were any. The marker's lock is held, without which nobody makes an
/// entry, so nothing half made is in the making.
pub(super) async fn sweep(disk: &Disk, root: &Path, rows: &mut BTreeMap<Name, Row>) -> bool {
    let broken: Vec<Name> = rows
        .iter()
        .filter(|(_, row)| !row.is_whole())
        .map(|(name, _)| *name)
        .collect();
    let mut removed = false;
    for name in broken {
        match remove(disk, root, name).await {
            Ok(()) => {
                rows.remove(&name);
                removed = true;
            }
            Err(error) => tracing::warn!(%error, "cannot remove a leftover from the cache"),
        }
    }
    removed
}

/// Remove an entry: the index first, so that nothing ever finds records without data by a name.
pub(super) async fn remove(disk: &Disk, root: &Path, name: Name) -> Result<()> {
    files::unlink(disk, name.path(root, Part::Index)).await?;
    files::unlink(disk, name.path(root, Part::Data)).await
}
