//! A task being worked on: cut into requests, put together again from their results. Pure bookkeeping, no kernel.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use forebay_core::{Error, Result};
use tokio::sync::oneshot;

use crate::buf::{AlignedBuf, Buf};
use crate::engine::{ReadDone, WriteDone};
use crate::file::{Access, File};
use crate::gate::Permit;
use crate::pool::ArenaId;
use crate::psync::{EAGAIN_TRIES_MAX, ends_file};

use super::queue::Task;
use super::slots::GRANULE_BYTES;

/// What the memory of a job is and who waits for it.
#[derive(Debug)]
enum Work {
    Read {
        buf: AlignedBuf,
        answer: oneshot::Sender<ReadDone>,
    },
    Write {
        buf: Buf,
        answer: oneshot::Sender<WriteDone>,
    },
    Sync {
        answer: oneshot::Sender<Result<()>>,
    },
}

/// What a request asks the kernel for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Read,
    Write,
    Sync,
}

/// One request of a job: the bytes `at..end` of its buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) job: usize,
    pub(super) at: usize,
    pub(super) end: usize,
    tries: u32,
}

impl Request {
    pub(super) fn len(&self) -> usize {
        self.end - self.at
    }
}

/// A task being worked on.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) file: Arc<File>,
    pub(super) offset: u64,
    verb: Verb,
    /// While requests are in the kernel this memory must not be freed; `finish` is the only way out.
    work: ManuallyDrop<Work>,
    len: usize,
    /// Bytes for which a request was made.
    cut: usize,
    /// Where the file ended, as far as reads have met it.
    end_of_file: usize,
    requests_open: u32,
    requests: u32,
    error: Option<Error>,
    permit: Option<Permit>,
}

impl Job {
    /// Begin a task; `None` for one that is not I/O.
    pub(super) fn new(task: Task) -> Option<Self> {
        let (file, offset, verb, len, work, permit) = match task {
            Task::Read {
                file,
                offset,
                buf,
                len,
                answer,
                permit,
            } => (file, offset, Verb::Read, len, Work::Read { buf, answer }, permit),
            Task::Write {
                file,
                offset,
                buf,
                answer,
                permit,
            } => {
                let len = buf.len();
                (
                    file,
                    offset,
                    Verb::Write,
                    len,
                    Work::Write { buf, answer },
                    permit,
                )
            }
            Task::Sync { file, answer } => (file, 0, Verb::Sync, 1, Work::Sync { answer }, None),
            Task::Forget { .. } => return None,
        };
        let work = ManuallyDrop::new(work);
        Some(Self {
            file,
            offset,
            verb,
            work,
            len,
            cut: 0,
            end_of_file: len,
            requests_open: 0,
            requests: 0,
            error: None,
            permit,
        })
    }

    pub(super) fn verb(&self) -> Verb {
        self.verb
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The next request, until all bytes are asked for or something failed.
    pub(super) fn next_request(&mut self, job: usize, request_bytes: usize) -> Option<Request> {
        if self.cut >= self.len || self.error.is_some() {
            return None;
        }
        let at = self.cut;
        let end = self.len.min(at.saturating_add(request_bytes));
        let end = self.cut_at_granule(at, end);
        self.cut = end;
        self.requests_open += 1;
        self.requests += 1;
        Some(Request {
            job,
            at,
            end,
            tries: 0,
        })
    }

    /// Where a request from `at` ends at the latest so that it lies in one registered piece of its pool.
    fn cut_at_granule(&self, at: usize, end: usize) -> usize {
        let Some((_, offset)) = self.arena() else {
            return end;
        };
        let boundary = (offset + at + 1).next_multiple_of(GRANULE_BYTES) - offset;
        let align = match *self.file.access() {
            Access::Direct { align } => align as usize,
            Access::Buffered { .. } => 1,
        };
        if boundary < end && (boundary - at).is_multiple_of(align) {
            boundary
        } else {
            end
        }
    }

    /// Address of byte `at` of the buffer.
    pub(super) fn address(&self, at: usize) -> *mut u8 {
        match &*self.work {
            // SAFETY: `at` lies within the buffer, which is at least `len` bytes long.
            Work::Read { buf, .. } => unsafe { buf.as_raw().add(at) },
            // SAFETY: as above; the kernel only reads through this address.
            Work::Write { buf, .. } => unsafe { buf.as_ptr().add(at).cast_mut() },
            Work::Sync { .. } => std::ptr::null_mut(),
        }
    }

    /// Which arena the buffer lies in and where, when it comes from a pool.
    pub(super) fn arena(&self) -> Option<(ArenaId, usize)> {
        match &*self.work {
            Work::Read { buf, .. } => buf.arena(),
            Work::Write { buf, .. } => buf.arena(),
            Work::Sync { .. } => None,
        }
    }

    /// Address, length and liveness of that arena.
    pub(super) fn arena_memory(&self) -> Option<crate::pool::ArenaMemory> {
        match &*self.work {
            Work::Read { buf, .. } => buf.arena_memory(),
            Work::Write { buf, .. } => buf.arena_memory(),
            Work::Sync { .. } => None,
        }
    }

    /// Take in the kernel's answer to a request; gives the request to make next when there is more to do.
    pub(super) fn answered(&mut self, request: Request, result: i32) -> Option<Request> {
        let again = match result {
            count if count >= 0 => self.advance(request, count as usize),
            errno => self.failed(request, -errno),
        };
        match again {
            Some(_) => self.requests += 1,
            None => self.requests_open -= 1,
        }
        again
    }

    fn advance(&mut self, request: Request, count: usize) -> Option<Request> {
        let at = request.at + count;
        match self.verb {
            Verb::Sync => None,
            _ if at >= request.end => None,
            Verb::Read if count == 0 || ends_file(&self.file, count) => {
                self.end_of_file = self.end_of_file.min(at);
                None
            }
            Verb::Write if count == 0 => {
                self.fail(Error::from_io("write", std::io::ErrorKind::WriteZero.into()));
                None
            }
            Verb::Read | Verb::Write => Some(Request {
                at,
                tries: 0,
                ..request
            }),
        }
    }

    fn failed(&mut self, request: Request, errno: i32) -> Option<Request> {
        match errno {
            // The kernel reports a lost write once; asking again would be answered as if nothing had happened.
            _ if self.verb == Verb::Sync => {
                self.file.mark_sync_failed();
                self.fail(Error::from_io("sync", std::io::Error::from_raw_os_error(errno)));
                None
            }
            libc::EINTR => Some(request),
            libc::EAGAIN if request.tries < EAGAIN_TRIES_MAX => Some(Request {
                tries: request.tries + 1,
                ..request
            }),
            _ => {
                let op = match self.verb {
                    Verb::Read => "read",
                    Verb::Write => "write",
                    Verb::Sync => "sync",
                };
                self.fail(Error::from_io(op, std::io::Error::from_raw_os_error(errno)));
                None
            }
        }
    }

    fn fail(&mut self, error: Error) {
        self.error
            .get_or_insert_with(|| error.at(self.file.path().display()));
    }

    /// True when nothing is in the kernel and nothing more will be asked.
    pub(super) fn is_done(&self) -> bool {
        self.requests_open == 0 && (self.cut >= self.len || self.error.is_some())
    }

    /// Answer the caller. Only for a job that is done.
    pub(super) fn finish(self) {
        let Self {
            work,
            error,
            permit,
            requests,
            end_of_file,
            requests_open,
            ..
        } = self;
        debug_assert_eq!(requests_open, 0);
        // The permit goes first: whoever is woken by the answer may ask for the next one.
        drop(permit);
        // A caller that went away lets the buffer drop here.
        match ManuallyDrop::into_inner(work) {
            Work::Read { buf, answer } => {
                let result = error.map_or(Ok(end_of_file), Err);
                drop(answer.send(ReadDone {
                    result,
                    buf,
                    requests,
                }));
            }
            Work::Write { answer, .. } => drop(answer.send(WriteDone {
                result: error.map_or(Ok(()), Err),
                requests,
            })),
            Work::Sync { answer } => drop(answer.send(error.map_or(Ok(()), Err))),
        }
    }

    /// Give up on a job whose requests may still be in the kernel: whoever waits is told, the memory is leaked on purpose.
    pub(super) fn abandon(self) {
        let Self { work, .. } = self;
        match ManuallyDrop::into_inner(work) {
            Work::Read { buf, answer } => {
                std::mem::forget(buf);
                drop(answer);
            }
            Work::Write { buf, answer } => {
                std::mem::forget(buf);
                drop(answer);
            }
            Work::Sync { answer } => drop(answer),
        }
    }
}
