//! A simulated file system behind the engine seam: seeded, deterministic, and as unkind as a real one may be.
//!
//! A [`SimEngine`] runs on a [`SimFs`]. Every request it makes of the simulated kernel is counted and traced, and may be refused, fail, come
//! back short or be answered out of order, as [`SimConfig`] has it. Nothing is durable before it is synced: [`SimFs::crash`] gives one of the
//! file systems a power loss may leave. A crash sweep runs the same work with `stop_after_ops` from 0 up to all of its operations,
//! crashes each with some seeds, and checks what a new engine finds:
//!
//! ```text
//! SimEngine --calls, numbered--> SimFs: volatile view --sync--> durable view --crash(seed)--> SimFs of the next start
//! ```
//!
//! - `names`: operations on names; `fs`, `tree`: inodes, open files and names; `content`, `journal`: what bytes and names are not durable yet;
//! - `crash`: which of that survives; `held`: answers in another order.

mod content;
mod crash;
mod fs;
mod held;
mod journal;
mod names;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::VecDeque;
use std::error::Error as _;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, ErrorKind, Result, Rng, Seed};
use rustix::io::Errno;

use crate::buf::{AlignedBuf, Buf};
use crate::completion::Completion;
use crate::engine::{Engine, EngineKind, EngineReport, ReadDone, WriteDone, check_alignment};
use crate::file::{Access, File, Handle};
use crate::gate::Permit;
use crate::names::{NameDone, NameOp, foreign};
use crate::psync::{read_all, write_all};

pub use fs::SimFs;
use fs::Ticket;
use held::Held;

/// Operations a trace keeps: the end of a run is what a failed check needs.
const TRACE_MAX: usize = 256;

/// What goes wrong, and when. Operations are numbered from 1; the default is a disk that does its best.
#[derive(Debug, Clone)]
pub struct SimConfig {
    /// Decides everything that is random.
    pub seed: Seed,
    /// Power is lost after that many operations: later ones fail with `Cancelled` and have no effect.
    pub stop_after_ops: Option<u64>,
    /// What happens to the operation of that number, when it suits the operation.
    pub fail_op: Option<(u64, SimFault)>,
    /// One in so many reads and writes comes back short or interrupted; 0 for none.
    pub short_one_in: u64,
    /// Answer requests in another order than they came in. A sync then covers only what was answered before.
    pub reorder: bool,
    /// Offer direct I/O with that alignment, unless the caller asks for the page cache; without it, everything is buffered.
    pub direct_align: Option<u32>,
    /// Room for the bytes of all files.
    pub capacity_bytes: Option<u64>,
    /// Most bytes of one request to the simulated kernel; a multiple of `direct_align`.
    pub request_bytes: usize,
}

impl Default for SimConfig {
    fn default() -> Self {
        Self {
            seed: Seed(0),
            stop_after_ops: None,
            fail_op: None,
            short_one_in: 0,
            reorder: false,
            direct_align: None,
            capacity_bytes: None,
            request_bytes: 1 << 20,
        }
    }
}

/// A fault of one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SimFault {
    /// Any operation fails with `EIO` and has no effect.
    Eio,
    /// Whatever may need room fails with `ENOSPC` and has no effect.
    Enospc,
    /// A read or write comes back short.
    ShortCount,
    /// A sync (of a file or a directory) fails with `EIO`, and the kernel forgets what it should have written: later syncs succeed without
    /// making it durable.
    FsyncEio,
    /// A write fails with `EIO` after some of its sectors were written.
    TornWrite,
}

impl SimFault {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Eio,
        Self::Enospc,
        Self::ShortCount,
        Self::FsyncEio,
        Self::TornWrite,
    ];
}

/// An engine on a simulated file system.
pub struct SimEngine {
    fs: SimFs,
    config: SimConfig,
    meter: Mutex<Meter>,
    held: Option<Arc<Held>>,
}

struct Meter {
    ops: u64,
    trace: VecDeque<String>,
    rng: Rng,
}

impl SimEngine {
    /// An engine on `fs` with faults as `config` has them. Several engines may share a file system, as processes do.
    pub fn new(fs: &SimFs, config: SimConfig) -> Self {
        let held = config.reorder.then(|| Arc::new(Held::new(config.seed.derive(1))));
        let meter = Mutex::new(Meter {
            ops: 0,
            trace: VecDeque::new(),
            rng: config.seed.derive(0).rng(),
        });
        Self {
            fs: fs.clone(),
            config,
            meter,
            held,
        }
    }

    /// The file system.
    pub fn fs(&self) -> &SimFs {
        &self.fs
    }

    /// Operations asked for so far, those after the power loss included.
    pub fn ops(&self) -> u64 {
        self.meter().ops
    }

    /// The last operations in words, oldest first, for messages.
    pub fn trace(&self) -> Vec<String> {
        self.meter().trace.iter().cloned().collect()
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Count an operation; gives the fault it has, or `ECANCELED` after the power loss.
    fn turn(&self, what: fmt::Arguments<'_>) -> rustix::io::Result<Option<SimFault>> {
        let mut meter = self.meter();
        meter.ops += 1;
        let number = meter.ops;
        let is_lost = self.config.stop_after_ops.is_some_and(|last| number > last);
        let fault = match self.config.fail_op {
            Some((at, fault)) if at == number => Some(fault),
            _ => None,
        };
        if meter.trace.len() == TRACE_MAX {
            meter.trace.pop_front();
        }
        meter.trace.push_back(match (is_lost, fault) {
            (true, _) => format!("#{number} {what}: power loss"),
            (false, Some(fault)) => format!("#{number} {what}: {fault:?}"),
            (false, None) => format!("#{number} {what}"),
        });
        if is_lost { Err(Errno::CANCELED) } else { Ok(fault) }
    }

    /// [`turn`](Self::turn) for operations without faults of their own.
    fn plain_turn(&self, what: fmt::Arguments<'_>, needs_room: bool) -> rustix::io::Result<()> {
        match self.turn(what)? {
            Some(SimFault::Eio) => Err(Errno::IO),
            Some(SimFault::Enospc) if needs_room => Err(Errno::NOSPC),
            _ => Ok(()),
        }
    }

    /// How much of a read or write of `len` bytes the kernel does: all, less, or nothing for now.
    fn cut_short(&self, file: &File, len: usize, must: bool) -> rustix::io::Result<usize> {
        let mut meter = self.meter();
        if !must {
            if !meter.rng.one_in(self.config.short_one_in) {
                return Ok(len);
            }
            match meter.rng.below(4) {
                0 => return Err(Errno::INTR),
                1 => return Err(Errno::AGAIN),
                _ => {}
            }
        }
        let unit = unit(file);
        match len / unit {
            0 | 1 => Ok(len),
            units => Ok(unit * (1 + meter.rng.below(units as u64 - 1) as usize)),
        }
    }

    fn call_read(&self, file: &File, number: u64, buf: &mut [u8], at: u64) -> rustix::io::Result<usize> {
        let what = format_args!("read {} {} at {at}", file.path().display(), buf.len());
        let fault = self.turn(what)?;
        if fault == Some(SimFault::Eio) {
            return Err(Errno::IO);
        }
        let len = self.cut_short(file, buf.len(), fault == Some(SimFault::ShortCount))?;
        self.fs.lock().read(number, at, &mut buf[..len])
    }

    fn call_write(
        &self,
        file: &File,
        number: u64,
        (buf, at): (&[u8], u64),
        tickets: &mut Vec<Ticket>,
    ) -> rustix::io::Result<usize> {
        let what = format_args!("write {} {} at {at}", file.path().display(), buf.len());
        let fault = self.turn(what)?;
        match fault {
            Some(SimFault::Eio) => return Err(Errno::IO),
            Some(SimFault::Enospc) => return Err(Errno::NOSPC),
            _ => {}
        }
        let len = self.cut_short(file, buf.len(), fault == Some(SimFault::ShortCount))?;
        let mut rng = self.meter().rng.clone();
        let mut fs = self.fs.lock();
        let room = fs
            .write_end_max(number, self.config.capacity_bytes)?
            .saturating_sub(at);
        let len = match room.min(len as u64) as usize {
            len if len < buf.len() => len - len % unit(file),
            len => len,
        };
        if len == 0 {
            return Err(Errno::NOSPC);
        }
        let end = at.checked_add(len as u64).ok_or(Errno::FBIG)?;
        let is_torn = fault == Some(SimFault::TornWrite);
        let ticket = fs.edit(number, end, self.config.capacity_bytes, |content, ticket| {
            let (bytes, at) = (&buf[..len], at as usize);
            if is_torn {
                content.write_torn(ticket, at, bytes, &mut rng);
            } else {
                content.write(ticket, at, bytes);
            }
        })?;
        tickets.push(ticket);
        if is_torn { Err(Errno::IO) } else { Ok(len) }
    }

    fn call_sync(&self, file: &File) -> Result<()> {
        let path = file.path();
        let number = number_of("sync", file)?;
        let result = match self.turn(format_args!("sync {}", path.display())) {
            Ok(Some(SimFault::Eio)) => Err(Errno::IO),
            Ok(Some(SimFault::Enospc)) => Err(Errno::NOSPC),
            Ok(fault) => self.fs.lock().sync(number, fault == Some(SimFault::FsyncEio)),
            Err(errno) => Err(errno),
        };
        result.map_err(|errno| failed("sync", path, errno))
    }

    /// Answer now, or some time later.
    fn answer<T: Send + 'static>(&self, value: T, tickets: Vec<Ticket>) -> Completion<T> {
        let fs = self.fs.clone();
        let told = move || {
            for ticket in tickets {
                fs.lock().land(ticket);
            }
        };
        match &self.held {
            Some(held) => held.hold(value, told),
            None => {
                told();
                Completion::ready(value)
            }
        }
    }
}

impl Engine for SimEngine {
    fn report(&self) -> EngineReport {
        EngineReport {
            kind: EngineKind::Sim,
            notes: vec![format!("seed {}", self.config.seed.0)],
            fallback_reason: Some("files are simulated in memory".to_owned()),
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
        let mut requests = 0;
        let result = check_alignment("read", file, offset, buf.as_ptr() as usize, len)
            .and_then(|()| number_of("read", file))
            .and_then(|number| {
                let step = self.config.request_bytes;
                read_all(file, offset, &mut buf[..len], step, &mut requests, |piece, at| {
                    self.call_read(file, number, piece, at)
                })
            })
            .map_err(|error| or_power_loss("read", file, error));
        drop(permit);
        let done = ReadDone {
            result,
            buf,
            requests,
        };
        self.answer(done, Vec::new())
    }

    fn write(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: Buf,
        permit: Option<Permit>,
    ) -> Completion<WriteDone> {
        let mut requests = 0;
        let mut tickets = Vec::new();
        let result = check_alignment("write", file, offset, buf.as_ptr() as usize, buf.len())
            .and_then(|()| number_of("write", file))
            .and_then(|number| {
                let step = self.config.request_bytes;
                write_all(file, offset, &buf, step, &mut requests, |piece, at| {
                    self.call_write(file, number, (piece, at), &mut tickets)
                })
            })
            .map_err(|error| or_power_loss("write", file, error));
        drop((buf, permit));
        self.answer(WriteDone { result, requests }, tickets)
    }

    fn sync(&self, file: &Arc<File>) -> Completion<Result<()>> {
        self.answer(self.call_sync(file), Vec::new())
    }

    fn name(&self, op: NameOp) -> Completion<Result<NameDone>> {
        let mut tickets = Vec::new();
        let done = self.call_name(op, &mut tickets);
        self.answer(done, tickets)
    }

    fn read_files(
        &self,
        files: Vec<(PathBuf, u64)>,
        buf: AlignedBuf,
        permit: Option<Permit>,
    ) -> Completion<Result<AlignedBuf>> {
        drop(permit);
        self.answer(self.call_read_files(&files, buf), Vec::new())
    }
}

impl fmt::Debug for SimEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimEngine")
            .field("fs", &self.fs)
            .field("ops", &self.ops())
            .finish_non_exhaustive()
    }
}

/// What counts of this file are multiples of.
fn unit(file: &File) -> usize {
    match *file.access() {
        Access::Direct { align } => align as usize,
        Access::Buffered { .. } => 1,
    }
}

fn number_of(op: &'static str, file: &File) -> Result<u64> {
    match file.handle {
        Handle::Sim(number) => Ok(number),
        Handle::Os(_) => Err(foreign(op, file)),
    }
}

fn failed(op: &'static str, path: &Path, errno: Errno) -> Error {
    if errno == Errno::CANCELED {
        Error::new(ErrorKind::Cancelled, op, "simulated power loss").at(path.display())
    } else {
        Error::from_io(op, errno.into()).at(path.display())
    }
}

/// The loops shared with the kernel's engine know error numbers only.
fn or_power_loss(op: &'static str, file: &File, error: Error) -> Error {
    let cause = error
        .source()
        .and_then(|source| source.downcast_ref::<std::io::Error>());
    match cause.and_then(std::io::Error::raw_os_error) {
        Some(libc::ECANCELED) => failed(op, file.path(), Errno::CANCELED),
        _ => error,
    }
}
