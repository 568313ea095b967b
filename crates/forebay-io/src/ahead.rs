//! Pages for memory that is going to be read into, from a thread of its own.
//!
//! Fresh memory has no pages until it is touched, and a direct read touches it inside the call that submits it: the one thread that submits would
//! zero page after page while the device waits. Here, another thread has the kernel make the pages, ahead of the reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::mm::{self, Advice};

use crate::buf::AlignedBuf;

/// Stops the making of pages when it is dropped.
#[derive(Debug)]
pub struct Ahead(Arc<AtomicBool>);

impl Drop for Ahead {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Have the pages of `bufs` made, in this order. What cannot be (an old kernel, no memory, no thread) is left to whoever touches them first.
pub fn fault_ahead<'a>(bufs: impl IntoIterator<Item = &'a AlignedBuf>) -> Ahead {
    let is_stopped = Arc::new(AtomicBool::new(false));
    let ahead = Ahead(Arc::clone(&is_stopped));
    let ranges: Vec<_> = bufs.into_iter().map(AlignedBuf::range).collect();
    let run = move || {
        for range in ranges {
            if is_stopped.load(Ordering::Relaxed) {
                return;
            }
            let (address, len) = (range.pages(), range.len());
            // SAFETY: the range holds the memory, whole pages of it; making pages changes no content, whoever else reads or writes there.
            if let Err(errno) = unsafe { mm::madvise(address.cast(), len, Advice::LinuxPopulateWrite) } {
                tracing::debug!(%errno, "pages are not made ahead");
                return;
            }
        }
    };
    if let Err(error) = thread::Builder::new().name("forebay-ahead".to_owned()).spawn(run) {
        tracing::debug!(%error, "pages are not made ahead");
    }
    ahead
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::map::{PAGE, Pages};

    /// Pages of the buffer that are there.
    fn resident(buf: &AlignedBuf) -> usize {
        let mut pages = vec![0u8; buf.capacity() / PAGE];
        // SAFETY: the range is the buffer's memory, and `pages` has a byte for each of its pages.
        let code =
            unsafe { libc::mincore(buf.as_ptr().cast_mut().cast(), buf.capacity(), pages.as_mut_ptr()) };
        assert_eq!(code, 0);
        pages.iter().filter(|page| **page & 1 == 1).count()
    }

    #[test]
    fn pages_come_without_a_touch_and_content_stays() {
        let mut buf = AlignedBuf::alloc(8 << 20, Pages::Small).unwrap();
        buf[5 << 20] = 7;
        assert_eq!(resident(&buf), 1);
        let rest = buf.split_off(4 << 20);
        let ahead = fault_ahead([&buf, &rest]);
        for _ in 0..1000 {
            if resident(&buf) + resident(&rest) == (8 << 20) / PAGE {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
        if is_kernel_able() {
            assert_eq!(resident(&buf) + resident(&rest), (8 << 20) / PAGE);
        }
        assert_eq!((rest[1 << 20], buf[0]), (7, 0));
        drop((buf, rest, ahead));
    }

    fn is_kernel_able() -> bool {
        let buf = AlignedBuf::alloc(PAGE, Pages::Small).unwrap();
        // SAFETY: a page of our own.
        unsafe { mm::madvise(buf.as_ptr().cast_mut().cast(), PAGE, Advice::LinuxPopulateWrite) }.is_ok()
    }
}
