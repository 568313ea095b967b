//! Files that are in memory already, copied to devices by several threads.
//!
//! One thread copies from the page cache at an eighth of what the bus takes, so there is almost one per core; each copies a little at a time into a pinned
//! slot, queues the copy to the device, and goes on once its copy before that is done. Slots are small, a thread has two, and the ones used last come first, so that what the processor
//! has written may still be in its cache when the device reads it.

use std::fmt;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Limits, Result, Span};

use super::{DeviceBuf, Flight, Stream, Strips, Uploads};
use crate::completion::Completion;
use crate::file::{Direct, File, OpenHow};
use crate::names;
use crate::per_process::PerProcess;
use crate::psync::read_all;
use crate::workers::Workers;

/// Bytes of a slot: the bus takes copies of 1 MiB at nine tenths of its rate and those of 4 MiB at almost all of it; larger ones leave the caches (H200, measured).
const SLOT_BYTES: u64 = 4 << 20;

/// What a device asks memory for at once, at least.
const LINE_BYTES: usize = 256;

/// Most threads: memory is the limit long before.
const THREADS_MAX: usize = 32;

/// Of so many cores, one is left to those who hand out the work.
const CORES_PER_FREE: usize = 8;

/// Threads that copy from the page cache to devices.
pub struct Feeder {
    workers: Workers,
    threads: usize,
}

/// Where bytes go: every device gets them.
pub type Targets = Arc<Vec<(Stream, Arc<DeviceBuf>)>>;

impl Feeder {
    /// The threads of this process, started at the first call and kept.
    pub fn shared() -> Result<Arc<Self>> {
        static SHARED: PerProcess<Option<Arc<Feeder>>> = PerProcess::new();
        let mut shared = SHARED.lock();
        if let Some(feeder) = &*shared {
            return Ok(Arc::clone(feeder));
        }
        let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
        let threads = (cores - cores / CORES_PER_FREE).min(THREADS_MAX);
        let feeder = Arc::new(Self::new(threads)?);
        *shared = Some(Arc::clone(&feeder));
        Ok(feeder)
    }

    /// So many threads of its own.
    pub(super) fn new(threads: usize) -> Result<Self> {
        let limits = Limits {
            worker_threads: threads as u32,
            ..Limits::default()
        };
        Ok(Self {
            workers: Workers::new("forebay-feeder", &limits)?,
            threads,
        })
    }

    /// How many they are.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Open a file to be read through the page cache.
    pub fn open(path: &Path) -> Result<Arc<File>> {
        File::open(path, OpenHow::READ.with_direct(Direct::Never)).map(Arc::new)
    }

    /// Copy runs of bytes of `span` to all of `targets`; comes when all of it is queued, with the number of reads. Runs are strips of one row.
    pub fn feed(
        &self,
        file: &Arc<File>,
        span: Span,
        runs: Vec<Strips>,
        targets: &Targets,
        uploads: &Uploads,
    ) -> Completion<Result<u64>> {
        let (file, targets, uploads) = (Arc::clone(file), Arc::clone(targets), uploads.clone());
        self.workers
            .submit(move || feed_now(&file, span, &runs, &targets, &uploads))
    }
}

fn feed_now(file: &File, span: Span, runs: &[Strips], targets: &Targets, uploads: &Uploads) -> Result<u64> {
    let fd = file.fd().ok_or_else(|| names::foreign("read", file))?;
    let mut requests = 0;
    for piece in span.pieces(SLOT_BYTES) {
        let start = (piece.start() - span.start()) as usize;
        let len = piece.len() as usize;
        let clipped: Vec<Strips> = runs.iter().filter_map(|run| clip(run, start, len)).collect();
        if clipped.is_empty() {
            continue;
        }
        let lead = lead_of(&clipped);
        let mut slot = uploads.lease(lead + len).wait()??;
        let mut calls = 0;
        let place = slot.get_mut(lead..lead + len).unwrap_or_default();
        let got = read_all(file, piece.start(), place, len, &mut calls, |part, at| {
            rustix::io::pread(fd, part, at)
        })?;
        requests += u64::from(calls);
        if got < len {
            let message = "the file ends early: it was cut while it was read";
            return Err(Error::new(ErrorKind::Precondition, "read", message).at(file.path().display()));
        }
        let mut flight = Flight::new(slot);
        for (stream, target) in targets.iter() {
            for run in &clipped {
                let from = run.from + lead;
                flight.copy_strips(stream, Strips { from, ..*run }, target)?;
            }
        }
        uploads.pace(flight)?;
    }
    Ok(requests)
}

/// Bytes to leave free at the front of a slot, so that the longest run begins at a line of the cache: files promise tensors no more than 8 bytes, and a
/// device reads memory line by line.
fn lead_of(runs: &[Strips]) -> usize {
    let longest = runs.iter().max_by_key(|run| run.bytes);
    longest.map_or(0, |run| run.from.wrapping_neg() % LINE_BYTES)
}

/// The part of a run that lies in `start..start + len` of the source, counted from `start`.
fn clip(run: &Strips, start: usize, len: usize) -> Option<Strips> {
    let (begin, end) = (run.from.max(start), (run.from + run.bytes).min(start + len));
    (begin < end).then(|| Strips::run(begin - start, run.to + (begin - run.from), end - begin))
}

impl fmt::Debug for Feeder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Feeder({} threads)", self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_begins_at_a_line() {
        assert_eq!(lead_of(&[]), 0);
        assert_eq!(lead_of(&[Strips::run(0, 7, 10)]), 0);
        for from in [1, 8, 255, 256, 4096 + 24] {
            let runs = [Strips::run(0, 0, from), Strips::run(from, 512, 10 * from)];
            let lead = lead_of(&runs);
            assert!(lead < LINE_BYTES && (lead + from).is_multiple_of(LINE_BYTES));
        }
    }

    #[test]
    fn runs_are_clipped_to_slots() {
        let run = Strips::run(100, 7, 50);
        assert_eq!(clip(&run, 0, 100), None);
        assert_eq!(clip(&run, 0, 120), Some(Strips::run(100, 7, 20)));
        assert_eq!(clip(&run, 120, 10), Some(Strips::run(0, 27, 10)));
        assert_eq!(clip(&run, 140, 100), Some(Strips::run(0, 47, 10)));
        assert_eq!(clip(&run, 150, 100), None);
    }
}
