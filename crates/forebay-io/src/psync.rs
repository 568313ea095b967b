//! The fallback engine: blocking `pread`/`pwrite` on a thread pool.
//!
//! Used where io_uring is not built in, disabled by the administrator or filtered by a container; which of these it was is in the
//! report. Large requests are cut like in the ring, so that one of them does not hold a thread for long, and
//! several threads work on neighbouring requests.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, Limits, Result};

use crate::buf::{AlignedBuf, Buf};
use crate::completion::Completion;
use crate::engine::{Engine, EngineKind, EngineReport, ReadDone, WriteDone, check_alignment};
use crate::file::{Access, File};
use crate::gate::Permit;
use crate::names::{self, NameDone, NameOp};
use crate::whole;
use crate::workers::Workers;

/// Times `EAGAIN` is tried again for one request before it is an error: on a regular file it is a passing shortage.
pub(crate) const EAGAIN_TRIES_MAX: u32 = 64;

/// Blocking calls on a thread pool.
#[derive(Debug)]
pub struct Psync {
    workers: Workers,
    request_bytes: usize,
    fallback_reason: Option<String>,
}

impl Psync {
    /// Start the threads; `fallback_reason` says why this engine runs instead of io_uring.
    pub fn new(limits: &Limits, fallback_reason: Option<String>) -> Result<Self> {
        Ok(Self {
            workers: Workers::new("forebay-psync", limits)?,
            request_bytes: limits.disk_request_bytes_whole(),
            fallback_reason,
        })
    }
}

impl Engine for Psync {
    fn report(&self) -> EngineReport {
        EngineReport {
            kind: EngineKind::Psync,
            notes: Vec::new(),
            fallback_reason: self.fallback_reason.clone(),
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
        let (file, request_bytes) = (Arc::clone(file), self.request_bytes);
        self.workers.submit(move || {
            let len = len.min(buf.capacity());
            if buf.len() < len {
                buf.set_len(len);
            }
            let mut requests = 0;
            let result = check_alignment("read", &file, offset, buf.as_ptr() as usize, len)
                .and_then(|()| pread_all(&file, offset, &mut buf[..len], request_bytes, &mut requests));
            drop(permit);
            ReadDone {
                result,
                buf,
                requests,
            }
        })
    }

    fn write(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: Buf,
        permit: Option<Permit>,
    ) -> Completion<WriteDone> {
        let (file, request_bytes) = (Arc::clone(file), self.request_bytes);
        self.workers.submit(move || {
            let mut requests = 0;
            let result = check_alignment("write", &file, offset, buf.as_ptr() as usize, buf.len())
                .and_then(|()| pwrite_all(&file, offset, &buf, request_bytes, &mut requests));
            drop(permit);
            WriteDone { result, requests }
        })
    }

    fn sync(&self, file: &Arc<File>) -> Completion<Result<()>> {
        let file = Arc::clone(file);
        self.workers.submit(move || {
            file.check_syncable()?;
            let fd = file.fd().ok_or_else(|| names::foreign("sync", &file))?;
            rustix::fs::fdatasync(fd).map_err(|errno| {
                file.mark_sync_failed();
                Error::from_io("sync", errno.into()).at(file.path().display())
            })
        })
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
            whole::read(&files, buf, whole::How::Singly)
        })
    }
}

fn pread_all(
    file: &File,
    offset: u64,
    buf: &mut [u8],
    request_bytes: usize,
    requests: &mut u32,
) -> Result<usize> {
    let fd = file.fd().ok_or_else(|| names::foreign("read", file))?;
    read_all(file, offset, buf, request_bytes, requests, |piece, at| {
        rustix::io::pread(fd, piece, at)
    })
}

fn pwrite_all(file: &File, offset: u64, buf: &[u8], request_bytes: usize, requests: &mut u32) -> Result<()> {
    let fd = file.fd().ok_or_else(|| names::foreign("write", file))?;
    write_all(file, offset, buf, request_bytes, requests, |piece, at| {
        rustix::io::pwrite(fd, piece, at)
    })
}

/// Fill `buf` by calls that may return less than asked for; stops early only at the end of the file.
///
/// Shared with the simulation, whose calls come back short far more often than the kernel's.
pub(crate) fn read_all(
    file: &File,
    offset: u64,
    buf: &mut [u8],
    request_bytes: usize,
    requests: &mut u32,
    mut call: impl FnMut(&mut [u8], u64) -> rustix::io::Result<usize>,
) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let end = buf.len().min(done + request_bytes);
        *requests += 1;
        let count = retry("read", file, || call(&mut buf[done..end], offset + done as u64))?;
        done += count;
        if count == 0 || ends_file(file, count) {
            break;
        }
    }
    Ok(done)
}

/// Write all of `buf` by calls that may take less than given; shared with the simulation.
pub(crate) fn write_all(
    file: &File,
    offset: u64,
    buf: &[u8],
    request_bytes: usize,
    requests: &mut u32,
    mut call: impl FnMut(&[u8], u64) -> rustix::io::Result<usize>,
) -> Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let end = buf.len().min(done + request_bytes);
        *requests += 1;
        let count = retry("write", file, || call(&buf[done..end], offset + done as u64))?;
        if count == 0 {
            return Err(Error::from_io("write", io::ErrorKind::WriteZero.into()).at(file.path().display()));
        }
        done += count;
    }
    Ok(())
}

/// A direct read that comes back with a count off the alignment has met the end of the file: asking again from there would
/// be misaligned.
pub(crate) fn ends_file(file: &File, count: usize) -> bool {
    matches!(*file.access(), Access::Direct { align } if !count.is_multiple_of(align as usize))
}

fn retry(
    op: &'static str,
    file: &File,
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> Result<usize> {
    let mut tries = 0;
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) if tries < EAGAIN_TRIES_MAX => {
                tries += 1;
                std::thread::yield_now();
            }
            result => {
                return result.map_err(|errno| Error::from_io(op, errno.into()).at(file.path().display()));
            }
        }
    }
}
