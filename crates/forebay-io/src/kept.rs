//! The memory of pools that are gone, kept for the next pool of the same size.
//!
//! The kernel clears a page before it is used for the first time, and in a virtual machine the host may have to find one as well: a third of what an epoch of small
//! samples costs. A stream makes the same pools for each epoch, so the next one can have the pages of the last.
//!
//! ```text
//! pool gone --> Kept::put: the kernel may take the pages back, and takes them before anything else when memory is short
//! new pool  --> Kept::take: none of its pages is the kernel's to take any more; those that it took are zero
//! ```
//!
//! What a ring has registered of the memory stays registered, since it goes on under the same name.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_core::Result;
use rustix::mm::{self, Advice};

use crate::map::{HUGE_PAGE, Map, Pages};
use crate::per_process::PerProcess;
use crate::pool::ArenaId;

/// Memory that is kept at most: the pools of two streams with the usual settings, such as one to train on and one to check with. What was kept first goes first.
const KEPT_BYTES_MAX: usize = 5 << 28;

static KEPT: PerProcess<Kept> = PerProcess::new();

/// The memory of a pool, and the name that rings know it by.
#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) id: ArenaId,
    pub(crate) map: Map,
    /// What was asked for.
    pages: Pages,
    /// Bytes from the front that somebody has used; behind them, no page was ever there.
    used_bytes: AtomicUsize,
}

impl Ground {
    /// Fresh from the kernel.
    pub(crate) fn map(len: usize, pages: Pages) -> Result<Arc<Self>> {
        let map = Map::new(len, pages)?;
        let id = ArenaId::fresh();
        let used_bytes = AtomicUsize::new(0);
        Ok(Arc::new(Self {
            id,
            map,
            pages,
            used_bytes,
        }))
    }

    /// What a pool of at least `len` bytes has left, or else fresh.
    pub(crate) fn kept_or_map(len: usize, pages: Pages) -> Result<Arc<Self>> {
        // The lock is not held while pages are made.
        let kept = KEPT.lock().take(len, pages);
        match kept.and_then(Idle::wake) {
            Some(ground) => Ok(ground),
            None => Self::map(len, pages),
        }
    }

    /// Keep it for the next pool, unless the kernel cannot; nobody uses it any more, and the pool before used it as far as `used_bytes`.
    pub(crate) fn keep(self: Arc<Self>, used_bytes: usize) {
        let idle = Idle::new(self, used_bytes);
        let gone = idle.map(|idle| KEPT.lock().put(idle, KEPT_BYTES_MAX));
        // Unmapping takes its time, and the lock is free again.
        drop(gone);
    }
}

/// Memory that no pool has, whose pages are the kernel's to take.
#[derive(Debug)]
struct Idle {
    ground: Arc<Ground>,
}

impl Idle {
    fn new(ground: Arc<Ground>, used_bytes: usize) -> Option<Self> {
        // To the end of a huge page, which would be broken up otherwise.
        let used_bytes = used_bytes.next_multiple_of(HUGE_PAGE).min(ground.map.len());
        ground.used_bytes.fetch_max(used_bytes, Ordering::Relaxed);
        let idle = Self { ground };
        idle.advise(Advice::LinuxFree).then_some(idle)
    }

    /// Its memory, which is as it was or zero, page by page, and stays so.
    fn wake(self) -> Option<Arc<Ground>> {
        self.advise(Advice::LinuxPopulateWrite).then_some(self.ground)
    }

    fn advise(&self, advice: Advice) -> bool {
        let address = self.ground.map.ptr().as_ptr().cast();
        let len = self.ground.used_bytes.load(Ordering::Relaxed);
        // SAFETY: the range is of the mapping, and no buffer is in it that could see its content change.
        let outcome = unsafe { mm::madvise(address, len, advice) };
        if let Err(errno) = outcome {
            tracing::debug!(%errno, ?advice, "memory is not kept");
        }
        outcome.is_ok()
    }
}

/// What is kept, the oldest first.
#[derive(Debug, Default)]
struct Kept(VecDeque<Idle>);

impl Kept {
    fn take(&mut self, len: usize, pages: Pages) -> Option<Idle> {
        let len = Map::len_of(len, pages)?;
        let is_such = |idle: &Idle| idle.ground.map.len() == len && idle.ground.pages == pages;
        // The latest: most of its pages are still there.
        let at = self.0.iter().rposition(is_such)?;
        self.0.remove(at)
    }

    /// Gives what is too much for `bytes_max`.
    fn put(&mut self, idle: Idle, bytes_max: usize) -> Vec<Idle> {
        self.0.push_back(idle);
        let bytes = |kept: &Self| kept.0.iter().map(|idle| idle.ground.map.len()).sum::<usize>();
        let mut gone = Vec::new();
        while bytes(self) > bytes_max {
            gone.extend(self.0.pop_front());
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::PAGE;

    const LEN: usize = 3 << 20;

    fn idle(len: usize) -> (Idle, ArenaId) {
        let ground = Ground::map(len, Pages::Transparent).unwrap();
        let id = ground.id;
        (Idle::new(ground, len).unwrap(), id)
    }

    #[test]
    fn only_a_pool_of_the_same_size_and_pages_gets_it() {
        let mut kept = Kept::default();
        let (idle, id) = idle(LEN);
        assert!(kept.put(idle, 2 * LEN).is_empty());
        assert!(kept.take(LEN + PAGE, Pages::Transparent).is_none());
        assert!(kept.take(LEN - PAGE, Pages::Transparent).is_none());
        assert!(kept.take(LEN, Pages::Small).is_none());
        let taken = kept.take(LEN - 1, Pages::Transparent).unwrap();
        assert_eq!(taken.ground.id, id);
        assert!(kept.take(LEN, Pages::Transparent).is_none(), "it is given once");
    }

    #[test]
    fn the_oldest_goes_when_there_is_too_much() {
        let mut kept = Kept::default();
        let ((first, _), (second, second_id), (large, large_id)) = (idle(LEN), idle(LEN), idle(3 * LEN));
        assert!(kept.put(first, 2 * LEN).is_empty());
        assert!(kept.put(second, 2 * LEN).is_empty());
        let gone = kept.put(large, 4 * LEN);
        assert_eq!(gone.len(), 1);
        assert_eq!(kept.take(LEN, Pages::Transparent).unwrap().ground.id, second_id);
        let (fourth, _) = idle(LEN);
        let gone = kept.put(fourth, 2 * LEN);
        assert_eq!(gone[0].ground.id, large_id);
    }

    /// Bytes of the mapping at `ptr` that the kernel may take, in KiB; `None` where it does not tell.
    fn lazy_kib(ptr: *const u8) -> Option<u64> {
        let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let is_start = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let address = |text| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(start, end)| {
                address(start).is_some_and(|start| start <= ptr.addr())
                    && address(end).is_some_and(|end| ptr.addr() < end)
            })
        };
        let mut lines = smaps.lines().skip_while(|line| !is_start(line));
        let lazy = lines.find_map(|line| line.strip_prefix("LazyFree:"))?;
        lazy.trim().strip_suffix(" kB")?.parse().ok()
    }

    #[test]
    fn pages_are_the_kernels_to_take_while_nobody_has_them_and_not_after() {
        let ground = Ground::map(LEN, Pages::Small).unwrap();
        let ptr = ground.map.ptr();
        // SAFETY: the range is of the mapping, which nobody else uses.
        unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), LEN) }.fill(7);
        let idle = Idle::new(ground, LEN).unwrap();
        assert!(lazy_kib(ptr.as_ptr()).is_none_or(|kib| kib > 0));
        // SAFETY: as above; a page goes as it would when memory is short.
        unsafe { mm::madvise(ptr.as_ptr().cast(), PAGE, Advice::LinuxDontNeed) }.unwrap();
        let Some(ground) = idle.wake() else {
            return; // An old kernel, which keeps nothing.
        };
        assert!(lazy_kib(ptr.as_ptr()).is_none_or(|kib| kib == 0));
        // SAFETY: as above.
        let bytes = unsafe { std::slice::from_raw_parts(ground.map.ptr().as_ptr(), LEN) };
        assert!(bytes[..PAGE].iter().all(|byte| *byte == 0), "what was taken");
        let is_either = |page: &[u8]| page == [7; PAGE] || page == [0; PAGE];
        assert!(bytes[PAGE..].chunks(PAGE).all(is_either));
    }
}
