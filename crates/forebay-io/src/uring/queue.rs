//! The way into a ring thread: a bounded queue and an eventfd that wakes the thread.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use forebay_core::{Error, Limits, Result};
use rustix::event::EventfdFlags;
use tokio::sync::oneshot;

use crate::buf::{AlignedBuf, Buf};
use crate::engine::{ReadDone, WriteDone};
use crate::file::File;
use crate::gate::Permit;

/// What a caller wants, with everything it touches.
#[derive(Debug)]
pub(super) enum Task {
    Read {
        file: Arc<File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
        answer: oneshot::Sender<ReadDone>,
        permit: Option<Permit>,
    },
    Write {
        file: Arc<File>,
        offset: u64,
        buf: Buf,
        answer: oneshot::Sender<WriteDone>,
        permit: Option<Permit>,
    },
    Sync {
        file: Arc<File>,
        answer: oneshot::Sender<Result<()>>,
    },
    /// A registered file was closed by its last user.
    Forget { file_id: u64 },
}

/// A bounded queue of tasks. Pushing to a full one blocks until the ring takes some; only `Forget`, which the ring thread
/// itself may push, always fits.
#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    room: Condvar,
    wake: OwnedFd,
    /// The thread sleeps, or is about to: a push must write the eventfd.
    asleep: AtomicBool,
    tasks_max: usize,
    /// The process whose thread serves the queue: after a fork there is none.
    process: u32,
}

#[derive(Debug, Default)]
struct State {
    tasks: VecDeque<Task>,
    closed: bool,
}

impl Queue {
    pub(super) fn new(limits: &Limits) -> Result<Self> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::from_io("eventfd", errno.into()))?;
        let tasks_max = limits.queue_requests_max.max(1) as usize;
        Ok(Self {
            state: Mutex::default(),
            room: Condvar::new(),
            wake,
            asleep: AtomicBool::new(false),
            tasks_max,
            process: std::process::id(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_fd(&self) -> RawFd {
        self.wake.as_raw_fd()
    }

    /// Hand a task over. In a forked child it is dropped, and whoever waits is told.
    pub(super) fn push(&self, task: Task) {
        if std::process::id() != self.process {
            return;
        }
        let mut state = self.lock();
        while state.tasks.len() >= self.tasks_max && !state.closed && !matches!(task, Task::Forget { .. }) {
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            // Dropping the task drops its answer: whoever waits is told that the engine stopped.
            drop(state);
            drop(task);
            return;
        }
        state.tasks.push_back(task);
        drop(state);
        self.rouse();
    }

    /// No more tasks; the thread finishes what it has and ends.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.room.notify_all();
        self.rouse();
    }

    fn rouse(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            // An eventfd that is far from full always takes a 1; the thread reads it empty each time it wakes.
            let _ = rustix::io::write(&self.wake, &[1, 0, 0, 0, 0, 0, 0, 0]);
        }
    }

    /// Take the next task, if there is one.
    pub(super) fn pop(&self) -> Option<Task> {
        let mut state = self.lock();
        let task = state.tasks.pop_front();
        if task.is_some() {
            self.room.notify_one();
        }
        task
    }

    /// Announce that the thread is going to sleep; false when there is a reason not to: a task, or the end with nothing left to wait
    /// for (`busy` says that there is).
    pub(super) fn may_sleep(&self, busy: bool) -> bool {
        self.asleep.store(true, Ordering::SeqCst);
        let state = self.lock();
        if state.tasks.is_empty() && (busy || !state.closed) {
            return true;
        }
        drop(state);
        self.asleep.store(false, Ordering::SeqCst);
        false
    }

    /// Read the eventfd empty, so that the next poll waits.
    pub(super) fn clear_wake(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Announce that the thread is up again, whatever woke it: pushing needs no system call then.
    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    pub(super) fn is_finished(&self) -> bool {
        let state = self.lock();
        state.closed && state.tasks.is_empty()
    }

    /// Refuse everything from now on and drop what is queued: the ring is broken.
    pub(super) fn fail(&self) {
        let dropped = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.tasks)
        };
        self.room.notify_all();
        drop(dropped);
    }
}

/// Lives in a registered file and tells the ring when the file goes.
#[derive(Debug)]
pub(super) struct CloseNotice {
    pub(super) queue: Weak<Queue>,
    pub(super) file_id: u64,
}

impl Drop for CloseNotice {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.push(Task::Forget {
                file_id: self.file_id,
            });
        }
    }
}
