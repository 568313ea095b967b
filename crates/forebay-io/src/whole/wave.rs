//! A wave of small files, asked for by one system call: requests for files that lie beside each other on the disk become one, and the disk is told once.
//!
//! Each thread has a ring of its own, which is empty between two waves.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::fill;

/// Files that are open at once in a thread. More of them make a cold disk little faster.
pub(super) const WAVE_FILES_MAX: usize = 64;

thread_local! {
    /// `None` where the kernel has none for us.
    static RING: RefCell<Option<IoUring>> = RefCell::new(IoUring::new(WAVE_FILES_MAX as u32).ok());
}

/// A file that is open, and where all of it goes.
pub(super) struct Open<'a> {
    pub(super) file: OwnedFd,
    pub(super) place: &'a mut [u8],
}

/// Why no file of a wave was read.
#[derive(Debug)]
pub(super) enum Unread {
    /// There is no ring.
    NoRing,
    /// The ring failed while requests may have been under way: nobody may have the memory of the places ever again.
    Stopped(io::Error),
}

/// Read files from their beginning, each until its place is full or it ends; gives how many bytes of each there are.
pub(super) fn read(files: &mut [Open<'_>]) -> Result<Vec<Result<usize, Errno>>, Unread> {
    RING.with_borrow_mut(|slot| {
        let Some(ring) = slot else {
            return Err(Unread::NoRing);
        };
        let answers = ask(ring, files);
        if answers.is_err() {
            *slot = None;
        }
        let answers = answers?;
        let read = answers.iter().zip(files).map(|(answer, open)| match *answer {
            // A few kinds of files cannot be waited for by a ring, and a short answer is not the end of a file.
            answer if answer >= 0 || -answer == libc::EAGAIN || -answer == libc::EINTR => {
                fill(&open.file, open.place, usize::try_from(answer).unwrap_or(0))
            }
            answer => Err(Errno::from_raw_os_error(-answer)),
        });
        Ok(read.collect())
    })
}

/// What the kernel answers for each file.
fn ask(ring: &mut IoUring, files: &mut [Open<'_>]) -> Result<Vec<i32>, Unread> {
    for (index, open) in files.iter_mut().enumerate() {
        let len = u32::try_from(open.place.len()).map_err(|_| Unread::NoRing)?;
        let fd = types::Fd(open.file.as_fd().as_raw_fd());
        let request = opcode::Read::new(fd, open.place.as_mut_ptr(), len)
            .offset(0)
            .build()
            .user_data(index as u64);
        // SAFETY: files and places outlive their requests: below, each of them is answered, or the caller hears that they may not be used again. Requests that are
        // not submitted go with the ring.
        unsafe { ring.submission().push(&request) }.map_err(|_| Unread::NoRing)?;
    }
    let mut answers = vec![0; files.len()];
    let mut left = files.len();
    while left > 0 {
        match ring.submit_and_wait(left) {
            Ok(_) => {}
            Err(error) if is_passing(&error) => {}
            Err(error) => return Err(Unread::Stopped(error)),
        }
        for answer in ring.completion() {
            if let Some(slot) = answers.get_mut(answer.user_data() as usize) {
                *slot = answer.result();
                left -= 1;
            }
        }
    }
    Ok(answers)
}

fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)
    )
}
