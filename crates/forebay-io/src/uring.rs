//! The io_uring engine: one submission thread per device.
//!
//! ```text
//! caller --Task--> Queue (bounded, eventfd) --> ring thread: Task -> Job -> requests -> SQ
//!                                                            CQ -> requests -> Job done --> caller
//! ```
//!
//! A [`Task`](queue::Task) is one read, write or sync of any length. The ring thread cuts it into requests ([`job`]), keeps a bounded
//! number of them in the kernel, loops over short counts, and answers once. Buffers of a pool and large files are registered with the ring
//! ([`slots`]), so that the kernel does not look them up for each request. The thread sleeps in the kernel when there is nothing to
//! do: a poll of an eventfd in the ring wakes it. Operations on names go to worker threads.

mod job;
mod queue;
mod ring;
mod slots;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Limits, Result};
use io_uring::IoUring;
use tokio::sync::oneshot;

use crate::buf::{AlignedBuf, Buf};
use crate::completion::Completion;
use crate::engine::{Engine, EngineKind, EngineReport, ReadDone, WriteDone, check_alignment};
use crate::file::File;
use crate::gate::Permit;
use crate::names::{self, NameDone, NameOp};
use crate::whole;
use crate::workers::Workers;
use queue::{Queue, Task};

/// Reads and writes by io_uring, one ring and thread per device.
#[derive(Debug)]
pub struct Uring {
    workers: Workers,
    queues: Mutex<HashMap<u64, Arc<Queue>>>,
    limits: Limits,
    setup: Setup,
    notes: Notes,
}

/// What rings could not get, for the report.
type Notes = Arc<Mutex<Vec<String>>>;

/// Which flags rings are made with: the best this kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setup {
    /// One issuer that runs completions when it asks for them: no interrupting of other threads (Linux 6.1).
    SingleIssuer,
    /// Completions run when the thread enters the kernel anyway (Linux 5.19).
    Cooperative,
    /// Nothing special.
    Plain,
}

impl Setup {
    const BEST_FIRST: [Self; 3] = [Self::SingleIssuer, Self::Cooperative, Self::Plain];

    fn build(self, entries: u32) -> std::io::Result<IoUring> {
        let mut builder = IoUring::builder();
        match self {
            Self::SingleIssuer => builder
                .setup_single_issuer()
                .setup_defer_taskrun()
                .setup_coop_taskrun(),
            Self::Cooperative => builder.setup_coop_taskrun(),
            Self::Plain => &mut builder,
        };
        builder.build(entries)
    }

    fn name(self) -> &'static str {
        match self {
            Self::SingleIssuer => "single issuer, deferred completions",
            Self::Cooperative => "cooperative completions",
            Self::Plain => "plain ring (kernel older than 5.19)",
        }
    }
}

impl Uring {
    /// Find out whether io_uring works here; `Unsupported` with the reason when not.
    pub fn new(limits: &Limits) -> Result<Self> {
        let mut last = None;
        let setup =
            Setup::BEST_FIRST
                .into_iter()
                .find(|setup| match setup.build(limits.ring_entries_usable()) {
                    Ok(ring) => knows_requests(&ring),
                    Err(error) => {
                        last = Some(error);
                        false
                    }
                });
        let Some(setup) = setup else {
            return Err(unavailable(last));
        };
        Ok(Self {
            workers: Workers::new("forebay-names", limits)?,
            queues: Mutex::default(),
            limits: limits.clone(),
            setup,
            notes: Notes::default(),
        })
    }

    /// The queue of the ring that serves this file's device; starts the ring when it is the first.
    fn queue(&self, file: &File) -> Result<Arc<Queue>> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = queues.get(&file.device()) {
            return Ok(Arc::clone(queue));
        }
        let queue = ring::start(self.setup, &self.limits, &self.notes)?;
        queues.insert(file.device(), Arc::clone(&queue));
        Ok(queue)
    }
}

impl Engine for Uring {
    fn report(&self) -> EngineReport {
        let mut notes = vec![format!(
            "{}, {} entries",
            self.setup.name(),
            self.limits.ring_entries_usable()
        )];
        notes.extend(
            self.notes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .cloned(),
        );
        EngineReport {
            kind: EngineKind::Uring,
            notes,
            fallback_reason: None,
        }
    }

    fn read(
        &self,
        file: &Arc<File>,
        offset: u64,
        mut buf: AlignedBuf,
        len: usize,
        permit: Option<Permit>,
    ) -> Completion<ReadDone> {
        let len = len.min(buf.capacity());
        if buf.len() < len {
            buf.set_len(len);
        }
        let checked = check_alignment("read", file, offset, buf.as_ptr() as usize, len)
            .and_then(|()| file.fd().map(drop).ok_or_else(|| names::foreign("read", file)))
            .and_then(|()| self.queue(file));
        match checked {
            Err(error) => Completion::ready(ReadDone {
                result: Err(error),
                buf,
                requests: 0,
            }),
            Ok(_) if len == 0 => Completion::ready(ReadDone {
                result: Ok(0),
                buf,
                requests: 0,
            }),
            Ok(queue) => {
                let (answer, answered) = oneshot::channel();
                queue.push(Task::Read {
                    file: Arc::clone(file),
                    offset,
                    buf,
                    len,
                    answer,
                    permit,
                });
                Completion::pending(answered)
            }
        }
    }

    fn write(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: Buf,
        permit: Option<Permit>,
    ) -> Completion<WriteDone> {
        let checked = check_alignment("write", file, offset, buf.as_ptr() as usize, buf.len())
            .and_then(|()| file.fd().map(drop).ok_or_else(|| names::foreign("write", file)))
            .and_then(|()| self.queue(file));
        match checked {
            Err(error) => Completion::ready(WriteDone {
                result: Err(error),
                requests: 0,
            }),
            Ok(_) if buf.is_empty() => Completion::ready(WriteDone {
                result: Ok(()),
                requests: 0,
            }),
            Ok(queue) => {
                let (answer, answered) = oneshot::channel();
                queue.push(Task::Write {
                    file: Arc::clone(file),
                    offset,
                    buf,
                    answer,
                    permit,
                });
                Completion::pending(answered)
            }
        }
    }

    fn sync(&self, file: &Arc<File>) -> Completion<Result<()>> {
        if let Err(error) = file.check_syncable() {
            return Completion::ready(Err(error));
        }
        let queue = match file
            .fd()
            .map(drop)
            .ok_or_else(|| names::foreign("sync", file))
            .and_then(|()| self.queue(file))
        {
            Ok(queue) => queue,
            Err(error) => return Completion::ready(Err(error)),
        };
        let (answer, answered) = oneshot::channel();
        queue.push(Task::Sync {
            file: Arc::clone(file),
            answer,
        });
        Completion::pending(answered)
    }

    fn name(&self, op: NameOp) -> Completion<Result<NameDone>> {
        self.workers.submit(move || names::run(op))
    }

    fn read_files(
        &self,
        files: Vec<(PathBuf, u64)>,
        buf: AlignedBuf,
        permit: Option<Permit>,
    ) -> Completion<Result<AlignedBuf>> {
        self.workers.submit(move || {
            let _permit = permit;
            whole::read(&files, buf, whole::How::Waves)
        })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        for queue in self
            .queues
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
        {
            queue.close();
        }
    }
}

/// Whether the kernel knows the requests we make; rings came before some of them.
fn knows_requests(ring: &IoUring) -> bool {
    use io_uring::opcode;
    let mut probe = io_uring::Probe::new();
    ring.submitter().register_probe(&mut probe).is_ok()
        && [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::ReadFixed::CODE,
            opcode::WriteFixed::CODE,
            opcode::Fsync::CODE,
            opcode::PollAdd::CODE,
        ]
        .iter()
        .all(|code| probe.is_supported(*code))
}

/// Why there is no ring, in words.
fn unavailable(cause: Option<std::io::Error>) -> Error {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let reason = match (
        disabled.trim(),
        cause.as_ref().and_then(std::io::Error::raw_os_error),
    ) {
        ("1" | "2", _) => "disabled by the administrator (kernel.io_uring_disabled)",
        (_, Some(libc::ENOSYS)) => "not built into this kernel, or filtered by the container (seccomp)",
        (_, Some(libc::EPERM | libc::EACCES)) => {
            "forbidden to this process, probably by the container (seccomp)"
        }
        (_, Some(libc::EMFILE | libc::ENFILE)) => "no more files can be open (ulimit -n)",
        (_, Some(libc::ENOMEM)) => "the limit of locked memory is too low (ulimit -l)",
        _ => "the kernel refuses to make a ring",
    };
    let error = Error::new(ErrorKind::Unsupported, "open io_uring", reason)
        .with_hint("allow io_uring, or let the thread pool do the work (engine = auto or psync)");
    match cause {
        Some(cause) => error.with_source(cause),
        None => error,
    }
}
