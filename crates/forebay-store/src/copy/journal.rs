//! What survives the process: how far a copy had come.
//!
//! Two kinds of files in `transfers` below the state folder, both named by a hash of the identities of where from and where to, both dropped on
//! success:
//!
//! - `*.json`, one per large object under way ([`ObjectJournal`]): the version that is copied, the checksum of each finished part, and what the
//!   destination needs to go on with the upload. Replaced atomically, at most once a second.
//! - `*.tree`, one per tree under way ([`TreeJournal`]): a header and one line of JSON per finished object, appended in batches. A line that was
//!   cut by a crash is ignored.
//!
//! A journal is a hint, never a promise: what does not fit (another version, another part size, an unreadable file) is ignored and the work is
//! done again. One process at a time uses a journal; it holds a lock on one byte of the file `lock`, which the kernel drops with the process.

mod object;
mod tree;

use std::path::{Path, PathBuf};

use forebay_core::{PathPolicy, Result, Span, crc64nvme};
use forebay_io::{Direct, NameOp, OpenHow, Purpose, RangeLock};

pub(super) use object::ObjectJournal;
pub(super) use tree::{Known, TreeJournal, is_unfinished};

use super::Shared;
use crate::context::Context;

/// Version of both files; others are ignored.
const FORMAT: u32 = 1;

/// A journal file larger than this is not ours.
const JOURNAL_BYTES_MAX: u64 = 256 << 20;

/// Shortest time between two writes of a journal: what a crash costs at most, against what writing costs.
const WRITE_PERIOD: std::time::Duration = std::time::Duration::from_secs(1);

/// A journal file that this process may use.
#[derive(Debug)]
struct Slot {
    path: PathBuf,
    _lock: RangeLock,
}

impl Slot {
    /// The file for a copy between these places, unless another process is at it or there is no place for state.
    async fn claim(shared: &Shared, from: &str, to: &str, ending: &str) -> Option<Self> {
        if !shared.options.resume {
            return None;
        }
        let path = path(&shared.context, from, to, ending)?;
        let claimed = claim(shared, path, hash(from, to, ending)).await;
        claimed.unwrap_or_else(|error| {
            tracing::warn!(%error, "this copy cannot be resumed if it is interrupted");
            None
        })
    }

    /// The text of the file, if there is one.
    async fn read(&self) -> Option<String> {
        let path = self.path.clone();
        on_blocking(move || {
            let is_small = std::fs::metadata(&path).is_ok_and(|meta| meta.len() <= JOURNAL_BYTES_MAX);
            is_small.then(|| std::fs::read_to_string(&path).ok()).flatten()
        })
        .await
        .flatten()
    }

    async fn remove(&self) {
        let path = self.path.clone();
        on_blocking(move || drop(std::fs::remove_file(path))).await;
    }
}

async fn claim(shared: &Shared, path: PathBuf, hash: u64) -> Result<Option<Slot>> {
    let disk = shared.context.disk();
    let dir = path.parent().unwrap_or(Path::new("/")).to_owned();
    let lock = dir.join("lock");
    disk.name(NameOp::CreateDirs { path: dir }).await?;
    let how = OpenHow {
        purpose: Purpose::Update,
        direct: Direct::Never,
        ..OpenHow::READ
    };
    let file = disk.open_file(lock, how, PathPolicy::Fastest).await?;
    // A byte per journal; offsets of locks are signed.
    let lock = RangeLock::try_exclusive(&file, Span::at(hash >> 2, 1)?)?;
    Ok(lock.map(|lock| Slot { path, _lock: lock }))
}

fn hash(from: &str, to: &str, ending: &str) -> u64 {
    crc64nvme(format!("{from}\n{to}\n{ending}").as_bytes())
}

/// Where the journal of a copy between these places is, if there is a place for state.
fn path(context: &Context, from: &str, to: &str, ending: &str) -> Option<PathBuf> {
    let name = format!("{:016x}.{ending}", hash(from, to, ending));
    Some(context.state_dir()?.join("transfers").join(name))
}

/// Run a few calls to the file system on a thread that may block.
async fn on_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// For the fuzz target.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    object::fuzz(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        tree::fuzz(text);
    }
}
