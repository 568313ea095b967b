//! Hashes raw chunks by several threads, before anything is written.

use forebay_core::Result;
use forebay_io::Buf;
use futures::stream::TryStreamExt;

use super::supply::{Bytes, Supply};
use crate::hash::{Digest, IdKind, Place};

/// Most threads: hashing must keep up with the fastest disks, not take the machine from the training.
const THREADS_MAX: usize = 8;

/// Threads that work on chunks.
pub(super) fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX)
}

/// Where a chunk belongs, and its bytes.
pub(super) type Job = (Place, Bytes);

/// Hash chunks as their bytes come; what is asked for once is asked for again by whoever writes it.
pub(super) async fn all(supply: &Supply, kind: IdKind, jobs: Vec<Job>) -> Result<Vec<Digest>> {
    let mut hashes = Vec::with_capacity(jobs.len());
    let hash = move |place: Place, bytes: Buf| Ok(kind.of(&place, &bytes));
    let mut hashing = supply.work(jobs, false, threads(), hash)?;
    loop {
        match hashing.try_next().await {
            Ok(Some(hash)) => hashes.push(hash),
            Ok(None) => return Ok(hashes),
            Err(error) => {
                supply.stop(hashing).await;
                return Err(error);
            }
        }
    }
}
