//! The thread that owns a ring: takes tasks, keeps requests in the kernel, collects answers, sleeps when idle.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, mpsc};
use std::thread;

use forebay_core::{Error, Limits, Result};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::job::{Job, Request, Verb};
use super::queue::{Queue, Task};
use super::slots::Slots;
use super::{Notes, Setup};

/// Marks the answer to the poll of the eventfd that wakes the thread.
const WAKE: u64 = u64::MAX;

/// With at least this many small requests in the kernel, answers come so often that the thread need not be woken for new tasks.
const NAP_REQUESTS_MIN: usize = 4;
/// What counts as a small request.
const NAP_REQUEST_BYTES_MAX: usize = 512 << 10;
/// Longest time a new task waits for a napping thread. Two system calls and two switches of threads are saved for each request,
/// which is worth more than this at the rates where it applies.
const NAP: Timespec = Timespec::new().nsec(50_000);

/// Most bytes of one read. One virtual disk was a tenth faster with many of these than with a few of 4 MiB, another loses 2 % by it, and 6 % with half of it; drives of
/// one's own cut requests to about this size themselves. Writes stay large: they cost a quarter of the CPU time that way.
const READ_BYTES_MAX: usize = 1 << 20;

/// Start a ring and its thread.
pub(super) fn start(setup: Setup, limits: &Limits, notes: &Notes) -> Result<Arc<Queue>> {
    let queue = Arc::new(Queue::new(limits)?);
    let (ready, started) = mpsc::channel();
    let (thread_queue, limits, notes) = (Arc::clone(&queue), limits.clone(), Arc::clone(notes));
    thread::Builder::new()
        .name("forebay-ring".to_owned())
        .spawn(move || {
            // The ring is made here because only the thread that makes it may use it.
            match setup.build(limits.ring_entries_usable()) {
                Ok(ring) => {
                    let _ = ready.send(Ok(()));
                    Ring::new(ring, thread_queue, &limits, notes).run();
                }
                Err(error) => drop(ready.send(Err(error))),
            }
        })
        .map_err(|error| Error::from_io("start thread", error))?;
    match started.recv() {
        Ok(Ok(())) => Ok(queue),
        Ok(Err(error)) => Err(Error::from_io("open io_uring", error)),
        Err(_) => Err(Error::from_io("open io_uring", std::io::ErrorKind::Other.into())),
    }
}

struct Ring {
    kernel: IoUring,
    queue: Arc<Queue>,
    slots: Slots,
    notes: Notes,
    jobs: Table<Job>,
    requests: Table<Request>,
    /// Bytes asked for by `requests`.
    requested_bytes: usize,
    /// Jobs that still have requests to make, oldest first.
    pending: VecDeque<usize>,
    /// Requests to be made again: short counts, `EAGAIN`.
    again: VecDeque<Request>,
    requests_max: usize,
    request_bytes: usize,
    /// A poll of the eventfd is in the kernel.
    armed: bool,
    /// An answer came since the last nap: more are likely to follow soon. Without one, the thread sleeps until it is woken.
    fresh: bool,
}

impl Ring {
    fn new(kernel: IoUring, queue: Arc<Queue>, limits: &Limits, notes: Notes) -> Self {
        let slots = Slots::new(&kernel.submitter());
        Self {
            kernel,
            queue,
            slots,
            notes,
            jobs: Table::default(),
            requests: Table::default(),
            requested_bytes: 0,
            pending: VecDeque::new(),
            again: VecDeque::new(),
            // One entry stays free for the wake-up.
            requests_max: limits.ring_entries_usable() as usize - 1,
            request_bytes: limits.disk_request_bytes_whole(),
            armed: false,
            fresh: false,
        }
    }

    fn run(mut self) {
        loop {
            self.take_tasks();
            self.fill();
            self.tell_notes();
            if self.jobs.is_empty() && self.queue.is_finished() {
                return;
            }
            match self.submit() {
                Ok(_) => {}
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME)
                    ) => {}
                Err(error) => {
                    tracing::error!(%error, "io_uring stopped working");
                    self.queue.fail();
                    return;
                }
            }
            self.queue.awake();
            self.collect();
        }
    }

    /// Hand new requests to the kernel, and wait for an answer unless there are tasks to take.
    fn submit(&mut self) -> std::io::Result<usize> {
        let count = self.requests.len();
        if count >= self.requests_max {
            return self.kernel.submit_and_wait(1);
        }
        let small = count >= NAP_REQUESTS_MIN && self.requested_bytes / count <= NAP_REQUEST_BYTES_MAX;
        if small && self.fresh && self.kernel.params().is_feature_ext_arg() {
            self.fresh = false;
            return self
                .kernel
                .submitter()
                .submit_with_args(1, &SubmitArgs::new().timespec(&NAP));
        }
        // What could not be handed over yet must not wait for an answer to something else.
        let waiting = !self.again.is_empty() || !self.pending.is_empty();
        let wait = !waiting && self.queue.may_sleep(!self.jobs.is_empty());
        self.kernel.submit_and_wait(usize::from(wait))
    }

    fn take_tasks(&mut self) {
        while self.jobs.len() < self.requests_max {
            match self.queue.pop() {
                None => return,
                Some(Task::Forget { file_id }) => self.slots.forget(&self.kernel.submitter(), file_id),
                Some(task) => {
                    if let Some(job) = Job::new(task) {
                        let index = self.jobs.insert(job);
                        self.pending.push_back(index);
                    }
                }
            }
        }
    }

    /// Put requests into the submission queue as far as there is room, oldest job first.
    fn fill(&mut self) {
        if !self.armed {
            let wake = opcode::PollAdd::new(Fd(self.queue.wake_fd()), libc::POLLIN as u32)
                .build()
                .user_data(WAKE);
            self.armed = self.push(&wake);
        }
        while self.requests.len() < self.requests_max {
            let Some(request) = self.next_request() else {
                return;
            };
            let goes_alone = request.len() >= READ_BYTES_MAX && self.verb_of(request) == Some(Verb::Read);
            let Some(entry) = self.entry(request) else {
                self.settle(request, -libc::EBADF);
                continue;
            };
            let index = self.requests.insert(request);
            self.requested_bytes += request.len();
            if !self.push(&entry.user_data(index as u64)) {
                self.requests.remove(index);
                self.requested_bytes -= request.len();
                self.again.push_front(request);
                return;
            }
            if goes_alone {
                // Neighbours that come together would be one request again by the time they are at the disk. What is not taken
                // now goes with the rest.
                let _ = self.kernel.submit();
            }
        }
    }

    fn verb_of(&mut self, request: Request) -> Option<Verb> {
        self.jobs.get_mut(request.job).map(|job| job.verb())
    }

    fn next_request(&mut self) -> Option<Request> {
        if let Some(request) = self.again.pop_front() {
            return Some(request);
        }
        while let Some(&index) = self.pending.front() {
            let request_bytes = self.request_bytes;
            match self.jobs.get_mut(index).and_then(|job| {
                let bytes_max = match job.verb() {
                    Verb::Read => request_bytes.min(READ_BYTES_MAX),
                    Verb::Write | Verb::Sync => request_bytes,
                };
                job.next_request(index, bytes_max)
            }) {
                Some(request) => return Some(request),
                None => drop(self.pending.pop_front()),
            }
        }
        None
    }

    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the memory and file an entry names are owned by its job (the wake-up names none) and stay where they
        // are until the answer is collected: jobs leave the table only by `finish`, when nothing of them is in the kernel.
        unsafe { self.kernel.submission().push(entry) }.is_ok()
    }

    /// The kernel's form of a request, with registered memory and file where there are some.
    fn entry(&mut self, request: Request) -> Option<squeue::Entry> {
        let job = self.jobs.get_mut(request.job)?;
        let submitter = self.kernel.submitter();
        let fd = job.file.raw_fd()?;
        let slot = self.slots.file(&submitter, &job.file, fd, job.len(), &self.queue);
        let target = Fd(slot.map_or(fd, |slot| slot as i32));
        let (address, len) = (job.address(request.at), request.len() as u32);
        let offset = job.offset + request.at as u64;
        let registered = job.arena().and_then(|(arena, start)| {
            self.slots
                .buffer(&submitter, (arena, start + request.at), len as usize, || {
                    job.arena_memory()
                })
        });
        let entry = match (job.verb(), registered) {
            (Verb::Read, Some(index)) => opcode::ReadFixed::new(target, address, len, index)
                .offset(offset)
                .build(),
            (Verb::Read, None) => opcode::Read::new(target, address, len).offset(offset).build(),
            (Verb::Write, Some(index)) => opcode::WriteFixed::new(target, address, len, index)
                .offset(offset)
                .build(),
            (Verb::Write, None) => opcode::Write::new(target, address, len).offset(offset).build(),
            (Verb::Sync, _) => opcode::Fsync::new(target).flags(FsyncFlags::DATASYNC).build(),
        };
        let mut flags = squeue::Flags::empty();
        flags.set(squeue::Flags::FIXED_FILE, slot.is_some());
        flags.set(squeue::Flags::ASYNC, job.file.blocks_submitter());
        Some(entry.flags(flags))
    }

    fn collect(&mut self) {
        let answers: Vec<(u64, i32)> = self
            .kernel
            .completion()
            .map(|entry| (entry.user_data(), entry.result()))
            .collect();
        for (id, result) in answers {
            if id == WAKE {
                self.armed = false;
                self.queue.clear_wake();
                continue;
            }
            if let Some(request) = self.requests.remove(id as usize) {
                self.fresh = true;
                self.requested_bytes -= request.len();
                self.settle(request, result);
            }
        }
    }

    /// Take in the answer to a request, and answer the caller when it was the last one of its job.
    fn settle(&mut self, request: Request, result: i32) {
        let Some(job) = self.jobs.get_mut(request.job) else {
            return;
        };
        match job.answered(request, result) {
            Some(request) => self.again.push_back(request),
            None if job.is_done() => {
                // A finished job may still stand in the line of those with requests to make, when it failed early.
                self.pending.retain(|index| *index != request.job);
                if let Some(job) = self.jobs.remove(request.job) {
                    job.finish();
                }
            }
            None => {}
        }
    }

    fn tell_notes(&mut self) {
        let new = self.slots.take_notes();
        if !new.is_empty() {
            let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
            for note in new {
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
    }
}

impl Drop for Ring {
    /// After an orderly end there is no job left. After a panic or a broken ring, requests may still be in the kernel: their memory is
    /// leaked rather than freed under it.
    fn drop(&mut self) {
        self.queue.fail();
        for job in self.jobs.drain() {
            job.abandon();
        }
    }
}

/// A vector with holes: indices stay valid until removed.
#[derive(Debug)]
struct Table<T> {
    rows: Vec<Option<T>>,
    holes: Vec<usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            holes: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    fn len(&self) -> usize {
        self.rows.len() - self.holes.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn insert(&mut self, row: T) -> usize {
        match self.holes.pop() {
            Some(index) => {
                self.rows[index] = Some(row);
                index
            }
            None => {
                self.rows.push(Some(row));
                self.rows.len() - 1
            }
        }
    }

    fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        self.rows.get_mut(index)?.as_mut()
    }

    fn remove(&mut self, index: usize) -> Option<T> {
        let row = self.rows.get_mut(index)?.take()?;
        self.holes.push(index);
        Some(row)
    }

    fn drain(&mut self) -> impl Iterator<Item = T> + '_ {
        self.holes.clear();
        self.rows.drain(..).flatten()
    }
}
