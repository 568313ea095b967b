//! Anonymous memory straight from the kernel: page-aligned, zeroed, in 2 MiB pages where they can be had.
//!
//! A device reads into pieces of contiguous memory. In 4 KiB pages a request of 4 MiB is a thousand pieces, more than most devices take at once, so
//! that the kernel cuts it up; in 2 MiB pages it is two.
//!
//! Everything Forebay reads into or writes from lives in a [`Map`]. malloc is not used for it: large blocks come back at
//! page offset 16, which tripled the CPU cost of plain reads on a host measured, and direct I/O needs alignment anyway.

use std::io;
use std::ptr::NonNull;

use forebay_core::{ByteSize, Error, ErrorKind, Result};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use serde::Serialize;

/// The granule of alignment: a page, and at least what every direct I/O device asks for.
pub const PAGE: usize = 4096;
/// The size of a huge page.
pub const HUGE_PAGE: usize = 2 << 20;

/// Which pages to ask the kernel for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pages {
    /// Ordinary 4 KiB pages: for small and short-lived memory.
    Small,
    /// Transparent 2 MiB pages, as far as the kernel finds them, and 4 KiB pages elsewhere.
    #[default]
    Transparent,
    /// 2 MiB pages: reserved ones where the machine has them, otherwise transparent ones.
    Huge,
}

/// Which pages the kernel gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PageKind {
    /// Ordinary 4 KiB pages.
    Small,
    /// Transparent 2 MiB pages, as far as the kernel finds them.
    Transparent,
    /// Reserved 2 MiB pages.
    Reserved,
}

/// One anonymous mapping, unmapped on drop.
#[derive(Debug)]
pub(crate) struct Map {
    ptr: NonNull<u8>,
    len: usize,
    kind: PageKind,
}

// SAFETY: the mapping is plain memory owned by this value; access to it is governed by the types that hold the map.
unsafe impl Send for Map {}
// SAFETY: as above; `Map` itself hands out only the address.
unsafe impl Sync for Map {}

impl Map {
    /// Map at least `len` zeroed bytes (rounded up to whole pages).
    pub(crate) fn new(len: usize, pages: Pages) -> Result<Self> {
        let len = Self::len_of(len, pages).ok_or_else(|| refused(len, None))?;
        if pages == Pages::Huge
            && let Ok(ptr) = map(len, MapFlags::HUGETLB)
        {
            return Ok(Self {
                ptr,
                len,
                kind: PageKind::Reserved,
            });
        }
        let is_huge = pages != Pages::Small && len >= HUGE_PAGE;
        let mapped = if is_huge {
            map_aligned(len)
        } else {
            map(len, MapFlags::NORESERVE)
        };
        let ptr = mapped.map_err(|errno| refused(len, Some(errno.into())))?;
        let mut map = Self {
            ptr,
            len,
            kind: PageKind::Small,
        };
        if is_huge && map.advise_huge() {
            map.kind = PageKind::Transparent;
        }
        Ok(map)
    }

    /// How long a mapping of at least `len` bytes is.
    pub(crate) fn len_of(len: usize, pages: Pages) -> Option<usize> {
        let granule = if pages == Pages::Huge { HUGE_PAGE } else { PAGE };
        len.max(1).checked_next_multiple_of(granule)
    }

    fn advise_huge(&self) -> bool {
        // SAFETY: the range is this mapping, and the advice changes no content.
        unsafe { mm::madvise(self.ptr.as_ptr().cast(), self.len, Advice::LinuxHugepage) }.is_ok()
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn kind(&self) -> PageKind {
        self.kind
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `ptr` and `len` are those of the mapping, and nobody holds a reference into it any more: every buffer
        // keeps the map alive through an `Arc`.
        let _ = unsafe { mm::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

fn map(len: usize, flags: MapFlags) -> rustix::io::Result<NonNull<u8>> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a private anonymous mapping at an address of the kernel's choice touches no existing memory.
    let ptr =
        unsafe { mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE | flags)? };
    NonNull::new(ptr.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// A mapping that starts where a 2 MiB page can. Kernels before 6.7 do not see to it.
fn map_aligned(len: usize) -> rustix::io::Result<NonNull<u8>> {
    let ptr = map(len, MapFlags::NORESERVE)?;
    let over = ptr.as_ptr().addr() % HUGE_PAGE;
    if over == 0 {
        return Ok(ptr);
    }
    let unmap = |ptr: *mut u8, len: usize| {
        // SAFETY: called with ranges of mappings made here that nobody has been told of.
        let _ = unsafe { mm::munmap(ptr.cast(), len) };
    };
    unmap(ptr.as_ptr(), len);
    let whole = len.checked_add(HUGE_PAGE).ok_or(rustix::io::Errno::NOMEM)?;
    let ptr = map(whole, MapFlags::NORESERVE)?;
    let before = ptr.as_ptr().addr().next_multiple_of(HUGE_PAGE) - ptr.as_ptr().addr();
    let start = ptr.as_ptr().wrapping_add(before);
    if before > 0 {
        unmap(ptr.as_ptr(), before);
    }
    let behind = before + len;
    if behind < whole {
        unmap(ptr.as_ptr().wrapping_add(behind), whole - behind);
    }
    NonNull::new(start).ok_or(rustix::io::Errno::NOMEM)
}

fn refused(len: usize, source: Option<io::Error>) -> Error {
    let message = format!("cannot map {} of memory", ByteSize(len as u64));
    let error = Error::new(ErrorKind::LimitExceeded, "allocate", message)
        .with_hint("lower the buffer memory, or give the process more");
    match source {
        Some(source) => error.with_source(source),
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transparent_pages_start_where_a_huge_page_can() {
        // Several of odd lengths: the kernel puts them side by side.
        let maps: Vec<Map> = (1..6)
            .map(|pages| Map::new(HUGE_PAGE * pages + PAGE * pages, Pages::Transparent).unwrap())
            .collect();
        for map in &maps {
            assert_eq!(map.ptr().as_ptr().addr() % HUGE_PAGE, 0);
            // SAFETY: the range is this mapping, which nobody else uses.
            let bytes = unsafe { std::slice::from_raw_parts_mut(map.ptr().as_ptr(), map.len()) };
            bytes.fill(7);
        }
    }
}
