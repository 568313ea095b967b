//! Buffers that say alignment and ownership in their types.
//!
//! [`AlignedBuf`] is unique and mutable: a page-aligned region, or one of the disjoint pieces it was split into. I/O takes it and gives
//! it back. [`AlignedBuf::freeze`] makes a [`Buf`]: shared, immutable, sliced without copying. Both keep their memory alive
//! through one `Arc<Region>`; when the last piece goes, the region returns to its pool or to the kernel.
//!
//! ```text
//! AlignedBuf --split_off--> AlignedBuf + AlignedBuf --unsplit--> AlignedBuf --freeze--> Buf --slice--> Buf
//! ```

use std::fmt;
use std::ops::{Bound, Deref, DerefMut, RangeBounds};
use std::ptr::NonNull;
use std::sync::Arc;

use forebay_core::Result;

use crate::map::{Map, PAGE, Pages};
use crate::pool::{ArenaId, ArenaMemory, PoolBlock};

/// The memory behind buffers: a mapping of its own, a block of a pool, or memory of somebody else.
#[derive(Debug)]
pub(crate) enum Region {
    Own(Map),
    Pooled(PoolBlock),
    Lent(Lent),
}

/// Memory of somebody else, and what keeps it there.
pub(crate) struct Lent {
    ptr: NonNull<u8>,
    len: usize,
    _owner: Box<dyn Send + Sync>,
}

// SAFETY: an address and an owner that may move between threads; access is governed by the buffers, as with memory of our own.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Region {
    fn ptr(&self) -> NonNull<u8> {
        match self {
            Self::Own(map) => map.ptr(),
            Self::Pooled(block) => block.ptr(),
            Self::Lent(lent) => lent.ptr,
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Own(map) => map.len(),
            Self::Pooled(block) => block.len(),
            Self::Lent(lent) => lent.len,
        }
    }
}

/// Where a buffer lies. Keeps the memory alive, and nothing more.
#[derive(Debug)]
pub(crate) struct Range {
    region: Arc<Region>,
    start: usize,
    len: usize,
}

impl Range {
    /// Address of the page it begins in.
    pub(crate) fn pages(&self) -> *mut u8 {
        self.region
            .ptr()
            .as_ptr()
            .wrapping_add(self.start - self.start % PAGE)
    }

    /// Bytes from there to its end.
    pub(crate) fn len(&self) -> usize {
        self.len + self.start % PAGE
    }
}

/// A unique, mutable, page-aligned buffer (or a piece of one).
///
/// The memory is always initialised: fresh from the kernel it is zero, from a pool it holds what the last user left.
pub struct AlignedBuf {
    region: Arc<Region>,
    start: usize,
    cap: usize,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of its own with `len` zeroed bytes, outside any pool.
    pub fn alloc(len: usize, pages: Pages) -> Result<Self> {
        Ok(Self::whole(Region::Own(Map::new(len, pages)?), len))
    }

    /// A page-aligned copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let mut buf = Self::alloc(bytes.len(), Pages::Small)?;
        buf.copy_from_slice(bytes);
        Ok(buf)
    }

    /// A buffer over memory of somebody else, such as tensors of another library. Where it is not aligned to pages, I/O copies what has to be.
    ///
    /// # Safety
    /// `len` initialised bytes are at `ptr` and stay there until `owner` is dropped; nobody else writes to them while the buffer or one made of it is there,
    /// nor reads them where it is written to.
    pub unsafe fn lent(ptr: NonNull<u8>, len: usize, owner: Box<dyn Send + Sync>) -> Self {
        let lent = Lent {
            ptr,
            len,
            _owner: owner,
        };
        Self::whole(Region::Lent(lent), len)
    }

    pub(crate) fn whole(region: Region, len: usize) -> Self {
        let cap = region.len();
        Self {
            region: Arc::new(region),
            start: 0,
            cap,
            len: len.min(cap),
        }
    }

    /// The memory it lies in, kept alive but not to be read or written.
    pub(crate) fn range(&self) -> Range {
        Range {
            region: Arc::clone(&self.region),
            start: self.start,
            len: self.cap,
        }
    }

    /// Bytes that may be used without a new allocation; at least [`len`](slice::len), rounded up to whole pages for an
    /// unsplit buffer.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Set the length, up to the capacity; a longer wish is cut. Bytes gained hold whatever was there.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.cap);
    }

    /// True when the first byte's address is a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.as_ptr() as usize).is_multiple_of(align)
    }

    /// Split in two at `at` (cut to the length): `self` keeps the bytes before, the result owns the rest and the spare capacity.
    pub fn split_off(&mut self, at: usize) -> Self {
        let at = at.min(self.len);
        let tail = Self {
            region: Arc::clone(&self.region),
            start: self.start + at,
            cap: self.cap - at,
            len: self.len - at,
        };
        self.cap = at;
        self.len = at;
        tail
    }

    /// Undo [`split_off`](Self::split_off). Gives `tail` back when it is not the neighbour of `self`, or when `self` was
    /// shortened in between.
    pub fn unsplit(&mut self, tail: Self) -> Result<(), Self> {
        let adjacent = Arc::ptr_eq(&self.region, &tail.region)
            && self.start + self.cap == tail.start
            && self.len == self.cap;
        if !adjacent {
            return Err(tail);
        }
        self.cap += tail.cap;
        self.len += tail.len;
        Ok(())
    }

    /// Make it shared and immutable.
    pub fn freeze(self) -> Buf {
        Buf {
            region: self.region,
            start: self.start,
            len: self.len,
        }
    }

    pub(crate) fn arena(&self) -> Option<(ArenaId, usize)> {
        arena_of(&self.region, self.start)
    }

    pub(crate) fn arena_memory(&self) -> Option<ArenaMemory> {
        match &*self.region {
            Region::Own(_) | Region::Lent(_) => None,
            Region::Pooled(block) => Some(block.arena_memory()),
        }
    }

    pub(crate) fn as_raw(&self) -> *mut u8 {
        // SAFETY: `start` lies within the region, or one past its end for an empty piece.
        unsafe { self.region.ptr().add(self.start).as_ptr() }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region is initialised memory of at least `start + len` bytes, and this piece is the only one that
        // covers `start..start + cap`.
        unsafe { std::slice::from_raw_parts(self.as_raw(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.as_raw(), self.len) }
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf")
            .field("len", &self.len)
            .field("capacity", &self.cap)
            .finish_non_exhaustive()
    }
}

/// A shared, immutable buffer; cloning and slicing copy nothing.
#[derive(Clone)]
pub struct Buf {
    region: Arc<Region>,
    start: usize,
    len: usize,
}

impl Buf {
    /// A page-aligned copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        Ok(AlignedBuf::copy_of(bytes)?.freeze())
    }

    /// The bytes of `range`, sharing the memory; ends beyond the length are cut.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => self.len,
        };
        let end = end.min(self.len);
        let start = start.min(end);
        Self {
            region: Arc::clone(&self.region),
            start: self.start + start,
            len: end - start,
        }
    }

    /// Grow by `tail`, which is the memory right behind; otherwise gives it back.
    pub fn unsplit(&mut self, tail: Self) -> Result<(), Self> {
        if !Arc::ptr_eq(&self.region, &tail.region) || self.start + self.len != tail.start {
            return Err(tail);
        }
        self.len += tail.len;
        Ok(())
    }

    /// True when the first byte's address is a multiple of `align`.
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.as_ptr() as usize).is_multiple_of(align)
    }

    /// Make it unique again when nothing else shares the memory; otherwise gives it back.
    pub fn try_unique(self) -> Result<AlignedBuf, Self> {
        let Self { region, start, len } = self;
        match Arc::try_unwrap(region) {
            Ok(region) => {
                let cap = region.len() - start;
                Ok(AlignedBuf {
                    region: Arc::new(region),
                    start,
                    cap,
                    len,
                })
            }
            Err(region) => Err(Self { region, start, len }),
        }
    }

    /// As `Bytes`, sharing the memory.
    pub fn into_bytes(self) -> bytes::Bytes {
        bytes::Bytes::from_owner(self)
    }

    pub(crate) fn arena(&self) -> Option<(ArenaId, usize)> {
        arena_of(&self.region, self.start)
    }

    pub(crate) fn arena_memory(&self) -> Option<ArenaMemory> {
        match &*self.region {
            Region::Own(_) | Region::Lent(_) => None,
            Region::Pooled(block) => Some(block.arena_memory()),
        }
    }
}

impl Deref for Buf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the region is initialised memory of at least `start + len` bytes, and no `AlignedBuf` covers these bytes:
        // a buffer becomes a `Buf` by giving up its unique piece.
        unsafe { std::slice::from_raw_parts(self.region.ptr().add(self.start).as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

fn arena_of(region: &Region, start: usize) -> Option<(ArenaId, usize)> {
    match region {
        Region::Own(_) | Region::Lent(_) => None,
        Region::Pooled(block) => Some((block.arena_id(), block.offset() + start)),
    }
}

/// `len` rounded up to whole pages.
pub const fn page_ceil(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_disjoint_and_join_again() {
        let mut buf = AlignedBuf::alloc(10_000, Pages::Small).unwrap();
        assert!(buf.is_aligned(PAGE) && buf.capacity() == 12_288);
        let mut tail = buf.split_off(4096);
        let mut end = tail.split_off(4096);
        buf.fill(1);
        tail.fill(2);
        end.fill(3);
        assert_eq!((buf.len(), tail.len(), end.len()), (4096, 4096, 1808));
        let end = buf.unsplit(end).unwrap_err();
        tail.unsplit(end).unwrap();
        buf.unsplit(tail).unwrap();
        assert_eq!((buf.len(), buf.capacity()), (10_000, 12_288));
        assert_eq!(
            [buf[0], buf[4095], buf[4096], buf[8191], buf[8192], buf[9999]],
            [1, 1, 2, 2, 3, 3]
        );
    }

    #[test]
    fn a_shortened_piece_does_not_join() {
        let mut buf = AlignedBuf::alloc(8192, Pages::Small).unwrap();
        let tail = buf.split_off(4096);
        buf.set_len(100);
        assert!(buf.unsplit(tail).is_err());
    }

    #[test]
    fn lent_memory_is_kept_while_any_piece_is_there() {
        let (told, heard) = std::sync::mpsc::channel::<()>();
        let mut theirs = vec![7u8; 300];
        let ptr = NonNull::new(theirs.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the buffers, and is looked at only when they are gone.
        let mut buf = unsafe { AlignedBuf::lent(ptr, theirs.len(), Box::new(told)) };
        assert_eq!((buf.len(), buf.capacity()), (300, 300));
        let mut tail = buf.split_off(100);
        tail.fill(9);
        let shared = tail.freeze().slice(5..);
        drop(buf);
        assert_eq!(heard.try_recv(), Err(std::sync::mpsc::TryRecvError::Empty));
        assert_eq!(shared[0], 9);
        drop(shared);
        assert_eq!(heard.try_recv(), Err(std::sync::mpsc::TryRecvError::Disconnected));
        assert_eq!((theirs[99], theirs[100]), (7, 9));
    }

    #[test]
    fn slices_share_and_clip() {
        let buf = Buf::copy_of(b"hello world").unwrap();
        let slice = buf.slice(6..);
        assert_eq!(&slice[..], b"world");
        assert_eq!(slice.as_ptr(), buf[6..].as_ptr());
        assert_eq!(buf.slice(5..100).len(), 6);
        assert!(buf.slice(50..).is_empty());
        assert!(buf.clone().try_unique().is_err());
        drop(slice);
        assert!(buf.try_unique().is_ok());
    }

    #[test]
    fn huge_pages_are_a_wish() {
        let mut buf = AlignedBuf::alloc(3 << 20, Pages::Huge).unwrap();
        buf.fill(9);
        assert!(buf.capacity() >= 4 << 20);
    }
}
