//! Hashes raw chunks by several threads: beside their writing, where their bytes are there, or as they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::Buf;
use futures::stream::TryStreamExt;
use tokio::task::JoinHandle;

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

/// Hashing in progress.
#[derive(Debug)]
pub(super) struct Hashing {
    count: usize,
    threads: Vec<JoinHandle<Vec<(usize, Digest)>>>,
}

/// Begin to hash chunks whose bytes are there; the threads take one after the other until there is none.
pub(super) fn start(kind: &IdKind, jobs: Vec<Job>) -> Hashing {
    let count = jobs.len();
    let there = jobs
        .into_iter()
        .filter_map(|(place, bytes)| Some((place, bytes.there()?)));
    let jobs: Arc<Vec<(Place, Buf)>> = Arc::new(there.collect());
    let next = Arc::new(AtomicUsize::new(0));
    let threads = (0..threads().min(count))
        .map(|_| {
            let (kind, jobs, next) = (kind.clone(), Arc::clone(&jobs), Arc::clone(&next));
            tokio::task::spawn_blocking(move || {
                let mut done = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((place, bytes)) = jobs.get(number) else {
                        return done;
                    };
                    done.push((number, kind.of(place, bytes)));
                }
            })
        })
        .collect();
    Hashing { count, threads }
}

impl Hashing {
    /// The hashes, in the order of the jobs.
    pub(super) async fn finish(self) -> Result<Vec<Digest>> {
        let mut hashes = vec![Digest::default(); self.count];
        let mut there = 0;
        for thread in self.threads {
            let done = thread.await.map_err(|error| {
                Error::new(ErrorKind::Internal, "save", "hashing was broken off").with_source(error)
            })?;
            there += done.len();
            for (number, hash) in done {
                if let Some(place) = hashes.get_mut(number) {
                    *place = hash;
                }
            }
        }
        if there == self.count {
            return Ok(hashes);
        }
        Err(Error::new(
            ErrorKind::Internal,
            "save",
            "not all chunks were hashed",
        ))
    }
}
