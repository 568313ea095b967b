//! Hashes raw chunks by several threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::Buf;
use tokio::task::JoinHandle;

use crate::hash::{Digest, IdKind, Place};

/// Most threads: hashing must keep up with the fastest disks, not take the machine from the training.
const THREADS_MAX: usize = 8;

/// Threads that work on chunks.
pub(super) fn threads() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    cores.min(THREADS_MAX)
}

/// A chunk to be hashed.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) place: Place,
    pub(crate) bytes: Buf,
}

/// Hashing in progress.
#[derive(Debug)]
pub(super) struct Hashing {
    count: usize,
    threads: Vec<JoinHandle<Vec<(usize, Digest)>>>,
}

/// Begin to hash; the threads take chunk after chunk until there is none.
pub(super) fn start(kind: &IdKind, jobs: Vec<Job>) -> Hashing {
    let count = jobs.len();
    let jobs = Arc::new(jobs);
    let next = Arc::new(AtomicUsize::new(0));
    let threads = (0..threads().min(count))
        .map(|_| {
            let (kind, jobs, next) = (kind.clone(), Arc::clone(&jobs), Arc::clone(&next));
            tokio::task::spawn_blocking(move || {
                let mut done = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { return done };
                    done.push((number, kind.of(&job.place, &job.bytes)));
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
