//! How much of a file is in the page cache.
//!
//! Asked before a file is read around the cache: what is in memory already comes faster from there. The kernel tells by `cachestat` (since 6.5), before
//! by `mincore` of a mapping.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use forebay_core::{Error, Result, Span};
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::file::File;
use crate::map::PAGE;

/// The system call's number, the same on every architecture; libc does not name it everywhere.
const SYS_CACHESTAT: libc::c_long = 451;

/// Whether every page of a span of an open file is in the page cache; false where the kernel does not tell. Does not block.
pub fn is_resident(file: &File, span: Span) -> bool {
    let span = span.clamp_to(file.size());
    let around = span.align_out(PAGE as u64);
    let found = file.fd().and_then(|fd| by_cachestat(fd, around));
    !span.is_empty() && found.is_some_and(|found| found >= around.len())
}

/// Bytes of `spans` that are in the page cache, to the page; `None` where the kernel does not tell. Blocks, though not for long.
pub fn residency(path: &Path, spans: &[Span]) -> Result<Option<u64>> {
    let fail = |error: io::Error| Error::from_io("probe", error).at(path.display());
    let file = fs::File::open(path).map_err(fail)?;
    let size = file.metadata().map_err(fail)?.len();
    let mut bytes = 0;
    for span in spans {
        let span = span.clamp_to(size);
        if span.is_empty() {
            continue;
        }
        let Some(found) = by_cachestat(file.as_fd(), span).or_else(|| by_mincore(file.as_fd(), span)) else {
            return Ok(None);
        };
        bytes += found.min(span.len());
    }
    Ok(Some(bytes))
}

#[repr(C)]
struct CachestatRange {
    off: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Cachestat {
    cache: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

fn by_cachestat(fd: BorrowedFd<'_>, span: Span) -> Option<u64> {
    let range = CachestatRange {
        off: span.start(),
        len: span.len(),
    };
    let mut found = Cachestat::default();
    // SAFETY: the kernel reads `range` and writes `found`, both valid and of the layout it wants (`struct cachestat_range`, `struct cachestat`).
    let result = unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut found, 0) };
    (result == 0).then(|| found.cache.saturating_mul(PAGE as u64))
}

fn by_mincore(fd: BorrowedFd<'_>, span: Span) -> Option<u64> {
    let around = span.align_out(PAGE as u64);
    let len = around.len() as usize;
    // SAFETY: a fresh shared mapping at an address of the kernel's choice; it is never read through, so a file that shrinks meanwhile does no harm.
    let ptr = unsafe {
        mm::mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ,
            MapFlags::SHARED,
            fd,
            around.start(),
        )
    }
    .ok()?;
    let mut pages = vec![0u8; len / PAGE];
    // SAFETY: the range is the mapping, and `pages` has a byte for each of its pages.
    let result = unsafe { libc::mincore(ptr, len, pages.as_mut_ptr()) };
    // SAFETY: the mapping made above, which nobody else knows.
    let _ = unsafe { mm::munmap(ptr, len) };
    let found = pages.iter().filter(|page| **page & 1 == 1).count();
    (result == 0).then_some((found * PAGE) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::OpenHow;

    #[test]
    fn what_was_just_written_is_there_and_both_ways_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![7; 300_000]).unwrap();
        let spans = [Span::new(0, 8192).unwrap(), Span::new(200_000, 400_000).unwrap()];
        assert_eq!(residency(&path, &spans).unwrap(), Some(8192 + 100_000));
        let file = fs::File::open(&path).unwrap();
        assert_eq!(by_mincore(file.as_fd(), spans[0]), Some(8192));
        assert_eq!(residency(&path, &[]).unwrap(), Some(0));
        assert!(residency(&dir.path().join("missing"), &[]).is_err());
    }

    #[test]
    fn a_span_is_resident_when_all_of_its_pages_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![7; 300_000]).unwrap();
        let file = File::open(&path, OpenHow::READ).unwrap();
        let span = |start, end| Span::new(start, end).unwrap();
        if by_cachestat(file.fd().unwrap(), span(0, 4096)).is_none() {
            return;
        }
        assert!(is_resident(&file, span(5, 6)) && is_resident(&file, span(0, 300_000)));
        assert!(!is_resident(&file, span(7, 7)) && !is_resident(&file, span(400_000, 500_000)));
        file_of_a_hole(&path);
        let file = File::open(&path, OpenHow::READ).unwrap();
        assert!(
            !is_resident(&file, span(0, 1 << 20)),
            "the half of it is a hole nobody has read"
        );
    }

    /// The first half written, the second never read.
    fn file_of_a_hole(path: &Path) {
        fs::write(path, vec![7; 512 << 10]).unwrap();
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(1 << 20).unwrap();
    }

    #[test]
    fn what_was_dropped_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = fs::File::open(&path).unwrap();
        file.sync_all().unwrap();
        let dropped = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        let system = rustix::fs::fstatfs(&file).unwrap();
        if dropped.is_ok() && system.f_type as u64 == EXT4 {
            assert_eq!(residency(&path, &[Span::first(1 << 20)]).unwrap(), Some(0));
        }
    }

    /// Where dropping is known to drop; memory file systems keep everything.
    const EXT4: u64 = 0xef53;
}
