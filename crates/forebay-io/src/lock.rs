//! Locks between processes that nobody has to clean up.
//!
//! A [`RangeLock`] is an open-file-description lock on some bytes of a file. The kernel drops it with the last descriptor, so a
//! process that is killed leaves no lock behind, and there is no lock file whose mere existence means anything.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, Span};

use crate::file::File;

/// An exclusive lock on a range of a file, against other processes; released on drop.
#[derive(Debug)]
pub struct RangeLock {
    file: Arc<File>,
    span: Span,
}

impl RangeLock {
    /// Take the lock if nobody else has it. Threads that share `file` do not exclude each other. A simulated file has no other process, so
    /// the lock is always free.
    pub fn try_exclusive(file: &Arc<File>, span: Span) -> Result<Option<Self>> {
        if span.is_empty() {
            // To the kernel, a length of 0 means everything from there on.
            let error = Error::new(ErrorKind::InvalidInput, "lock", "an empty range cannot be locked");
            return Err(error.at(file.path().display()));
        }
        match set_lock(file, span, libc::F_WRLCK) {
            Ok(()) => Ok(Some(Self {
                file: Arc::clone(file),
                span,
            })),
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(None),
            Err(error) => Err(Error::from_io("lock", error).at(file.path().display())),
        }
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        if let Err(error) = set_lock(&self.file, self.span, libc::F_UNLCK) {
            tracing::error!(%error, path = %self.file.path().display(), "cannot release a range lock");
        }
    }
}

fn set_lock(file: &File, span: Span, kind: i32) -> std::io::Result<()> {
    let Some(fd) = file.fd() else { return Ok(()) };
    // SAFETY: all-zero is a valid value of this plain C struct; OFD locks require `l_pid` to be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = span.start() as libc::off_t;
    lock.l_len = span.len() as libc::off_t;
    // SAFETY: the descriptor is open and `lock` is a valid `flock` for the duration of the call.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{OpenHow, Purpose};

    #[test]
    fn two_descriptions_exclude_each_other_by_range() {
        let dir = tempfile::tempdir().unwrap();
        let how = OpenHow {
            purpose: Purpose::Update,
            direct: crate::Direct::Never,
            ..OpenHow::READ
        };
        let open = || Arc::new(File::open(&dir.path().join("l"), how).unwrap());
        let (a, b) = (open(), open());
        let held = RangeLock::try_exclusive(&a, Span::first(1)).unwrap().unwrap();
        assert!(RangeLock::try_exclusive(&b, Span::first(1)).unwrap().is_none());
        assert!(
            RangeLock::try_exclusive(&b, Span::new(1, 2).unwrap())
                .unwrap()
                .is_some()
        );
        assert!(RangeLock::try_exclusive(&b, Span::first(0)).is_err());
        drop(held);
        assert!(RangeLock::try_exclusive(&b, Span::first(1)).unwrap().is_some());
    }
}
