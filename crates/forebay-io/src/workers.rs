//! A small pool of threads for calls that block.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use forebay_core::{Error, Limits, Result};
use tokio::sync::oneshot;

use crate::completion::Completion;

type Job = Box<dyn FnOnce() + Send>;

/// Jobs of all pools of this process that are queued or running.
static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Time between two looks of [`settle`].
const SETTLE_LOOK: Duration = Duration::from_millis(1);

/// Wait until the calls that were handed to threads have returned, for a process that is about to end: what nobody waits for any more,
/// such as the removal of a temporary file, would end with it. False when `limit` was over first.
pub fn settle(limit: Duration) -> bool {
    let looks = limit.as_millis() / SETTLE_LOOK.as_millis();
    for _ in 0..looks {
        if UNDER_WAY.load(Ordering::Acquire) == 0 {
            return true;
        }
        thread::sleep(SETTLE_LOOK);
    }
    false
}

/// A fixed number of threads behind a bounded queue. Submitting to a full queue blocks until a thread takes a job; jobs never submit
/// jobs, so that always ends. Dropping the pool lets the queued jobs finish.
pub(crate) struct Workers(Arc<Shared>);

struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    room: Condvar,
    queue_max: usize,
    /// The process whose threads these are: after a fork there are none.
    process: u32,
}

struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

impl Workers {
    pub(crate) fn new(name: &str, limits: &Limits) -> Result<Self> {
        let queue = Mutex::new(Queue {
            jobs: VecDeque::new(),
            closed: false,
        });
        let queue_max = limits.queue_requests_max.max(1) as usize;
        let shared = Arc::new(Shared {
            queue,
            work: Condvar::new(),
            room: Condvar::new(),
            queue_max,
            process: std::process::id(),
        });
        for index in 0..limits.worker_threads.max(1) {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name(format!("{name}-{index}"))
                .spawn(move || shared.run())
                .map_err(|error| Error::from_io("start thread", error))?;
        }
        Ok(Self(shared))
    }

    /// Run `job` on a thread of the pool. In a forked child nothing runs, and whoever waits is told.
    pub(crate) fn submit<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Completion<T> {
        let (sender, receiver) = oneshot::channel();
        if std::process::id() == self.0.process {
            self.0.push(Box::new(move || drop(sender.send(job()))));
        }
        Completion::pending(receiver)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) {
        let mut queue = self.lock();
        while queue.jobs.len() >= self.queue_max {
            queue = self.room.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        UNDER_WAY.fetch_add(1, Ordering::Relaxed);
        queue.jobs.push_back(job);
        self.work.notify_one();
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                self.room.notify_one();
                drop(queue);
                // A job that panics drops its answer, which tells whoever waits; the thread goes on.
                drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)));
                UNDER_WAY.fetch_sub(1, Ordering::Release);
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.work.notify_all();
    }
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Workers({} queued)", self.0.lock().jobs.len())
    }
}
