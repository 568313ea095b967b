//! A bounded pool of buffer memory: asking waits, never over-allocates; dropping returns.
//!
//! One arena is mapped when the pool is made (pages are touched only when used), so the ceiling is fixed, io_uring and the GPU
//! can register the memory once, and a lease of any size is a run of its pages. Waiters are served strictly in the order
//! they came: a large lease cannot be starved by small ones behind it.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_core::{ByteSize, Error, ErrorKind, Result, metric};
use tokio::sync::oneshot;

use crate::buf::{AlignedBuf, Region};
use crate::completion::Completion;
use crate::kept::Ground;
use crate::map::{HUGE_PAGE, PAGE, PageKind, Pages};
use crate::runs::Runs;

/// Names an arena for as long as the process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ArenaId(u64);

impl ArenaId {
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Called with the arena's memory when a pool is made and before it is unmapped, so that a device can pin it.
pub trait PinHook: fmt::Debug + Send + Sync {
    /// Pin `len` bytes at `ptr`. An error fails the making of the pool.
    fn pin(&self, ptr: NonNull<u8>, len: usize) -> Result<()>;
    /// Undo [`pin`](Self::pin).
    fn unpin(&self, ptr: NonNull<u8>, len: usize);
}

/// How a pool is made.
#[derive(Debug, Clone, Default)]
pub struct PoolConfig {
    /// The ceiling in bytes, rounded up to whole pages.
    pub bytes_max: u64,
    /// Which pages to ask for.
    pub pages: Pages,
    /// Pins the memory for a device.
    pub pin: Option<Arc<dyn PinHook>>,
    /// Pin this much when the pool is made, rounded up to huge pages, and the rest by [`BufPool::pin_more`], since pinning takes longer than reading;
    /// 0 pins everything at once. No lease is longer than a step: devices refuse to copy from memory that was pinned in two pieces.
    pub pin_step_bytes: u64,
    /// Take the memory that an earlier pool of this size has left, and leave it to the next one: for pools that are made again and again. While nobody has it, the
    /// kernel may take it back.
    pub is_kept: bool,
}

/// What a pool holds and has held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolStats {
    /// The ceiling.
    pub bytes_max: u64,
    /// Leased right now.
    pub leased_bytes: u64,
    /// Most ever leased at once.
    pub leased_bytes_peak: u64,
    /// Leases that had to wait.
    pub waits: u64,
    /// Which pages the kernel gave.
    pub pages: PageKind,
}

/// A bounded pool of page-aligned buffers; clones share it.
#[derive(Clone)]
pub struct BufPool(Arc<Arena>);

struct Arena {
    ground: Arc<Ground>,
    is_kept: bool,
    pin: Option<Arc<dyn PinHook>>,
    pin_step: usize,
    /// Pieces that are pinned, as offset and length.
    pinned: Mutex<Vec<(usize, usize)>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    runs: Runs,
    /// Pages from the front that may be leased: all, or those that are pinned so far.
    pages_open: usize,
    /// Pages that may ever be leased.
    pages_max: usize,
    waiters: VecDeque<Waiter>,
    pages_peak: usize,
    /// Pages from the front that have been leased at some time; behind them none was.
    pages_used: usize,
    waits: u64,
}

impl State {
    fn tell(&self) {
        let leased = (self.pages_open - self.runs.pages_free()) * PAGE;
        metrics::gauge!(metric::POOL_LEASED_BYTES).set(leased as f64);
    }
}

#[derive(Debug)]
struct Waiter {
    len: usize,
    grant: Grant,
}

type Grant = oneshot::Sender<Result<AlignedBuf>>;

impl BufPool {
    /// Map the arena.
    pub fn new(config: &PoolConfig) -> Result<Self> {
        let len = config.bytes_max as usize;
        let ground = if config.is_kept {
            Ground::kept_or_map(len, config.pages)?
        } else {
            Ground::map(len, config.pages)?
        };
        let map = &ground.map;
        let pin_step = match config.pin_step_bytes as usize {
            0 => map.len(),
            step => step.next_multiple_of(HUGE_PAGE).min(map.len()),
        };
        let mut pinned = Vec::new();
        let mut pages_open = map.len() / PAGE;
        if let Some(pin) = &config.pin {
            pin.pin(map.ptr(), pin_step)?;
            pinned.push((0, pin_step));
            pages_open = pin_step / PAGE;
        }
        // A lease is copied from as one piece, so it must have been pinned as one.
        let segment = if config.pin.is_some() {
            pin_step / PAGE
        } else {
            usize::MAX
        };
        let pages = map.len() / PAGE;
        let state = State {
            runs: Runs::new(pages_open, segment),
            pages_open,
            pages_max: pages,
            waiters: VecDeque::new(),
            pages_peak: 0,
            pages_used: 0,
            waits: 0,
        };
        Ok(Self(Arc::new(Arena {
            ground,
            is_kept: config.is_kept,
            pin: config.pin.clone(),
            pin_step,
            pinned: Mutex::new(pinned),
            state: Mutex::new(state),
        })))
    }

    /// Lease `len` bytes; waits its turn when the pool is used up. `LimitExceeded` when the pool could never give so many.
    pub fn lease(&self, len: usize) -> Completion<Result<AlignedBuf>> {
        if let Err(error) = self.0.check(len) {
            return Completion::ready(Err(error));
        }
        let mut state = self.0.lock();
        let grants = self.0.serve(&mut state);
        let lease = if let Some(buf) = self.0.grant_unless_waited_for(&mut state, len) {
            Completion::ready(Ok(buf))
        } else {
            let (grant, granted) = oneshot::channel();
            state.waiters.push_back(Waiter { len, grant });
            state.waits += 1;
            metrics::counter!(metric::POOL_WAITS_TOTAL).increment(1);
            let arena = Arc::clone(&self.0);
            Completion::queued(granted, move || arena.serve_now())
        };
        drop(state);
        hand_out(grants);
        lease
    }

    /// Lease `len` bytes if they are free right now.
    pub fn try_lease(&self, len: usize) -> Option<AlignedBuf> {
        let mut state = self.0.lock();
        let grants = self.0.serve(&mut state);
        let lease = self.0.grant_unless_waited_for(&mut state, len);
        drop(state);
        hand_out(grants);
        lease
    }

    /// True while somebody waits for memory.
    pub fn has_waiters(&self) -> bool {
        self.0
            .lock()
            .waiters
            .iter()
            .any(|waiter| !waiter.grant.is_closed())
    }

    /// The largest lease this pool can give.
    pub fn lease_bytes_max(&self) -> usize {
        self.0.largest(&self.0.lock())
    }

    /// Pin the next piece of the memory that was left for later, and open it to those who wait; false when there is no more. After an error
    /// the pool stays as large as it got.
    pub fn pin_more(&self) -> Result<bool> {
        let Some(pin) = &self.0.pin else {
            return Ok(false);
        };
        let mut pinned = self.0.pinned.lock().unwrap_or_else(PoisonError::into_inner);
        let start = pinned.last().map_or(0, |(offset, len)| offset + len);
        let len = self.0.pin_step.min(self.0.ground.map.len() - start);
        if len == 0 || self.0.lock().pages_max * PAGE <= start {
            return Ok(false);
        }
        // SAFETY: `start` lies within the arena's mapping.
        let ptr = unsafe { self.0.ground.map.ptr().add(start) };
        let outcome = pin.pin(ptr, len);
        if outcome.is_ok() {
            pinned.push((start, len));
        }
        // Still under the lock: whoever hears that there is no more finds all of it open.
        self.0.open(outcome.is_ok().then_some(len / PAGE));
        drop(pinned);
        outcome.map(|()| true)
    }

    /// What it holds and has held.
    pub fn stats(&self) -> PoolStats {
        let state = self.0.lock();
        PoolStats {
            bytes_max: (state.pages_max * PAGE) as u64,
            leased_bytes: ((state.pages_open - state.runs.pages_free()) * PAGE) as u64,
            leased_bytes_peak: (state.pages_peak * PAGE) as u64,
            waits: state.waits,
            pages: self.0.ground.map.kind(),
        }
    }
}

impl Arena {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock is held cannot leave the page sets half-changed in a way that matters more than losing pages.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self, len: usize) -> Result<()> {
        Self::check_against(self.largest(&self.lock()), len)
    }

    fn check_against(largest: usize, len: usize) -> Result<()> {
        if len <= largest {
            return Ok(());
        }
        let (len, largest) = (ByteSize(len as u64), ByteSize(largest as u64));
        Err(Error::new(
            ErrorKind::LimitExceeded,
            "lease",
            format!("{len} in one buffer, but the pool's largest is {largest}"),
        )
        .with_hint("raise the buffer memory, or read in smaller pieces"))
    }

    fn grant(self: &Arc<Self>, state: &mut State, len: usize) -> Option<AlignedBuf> {
        let count = len.max(1).div_ceil(PAGE);
        let first = state.runs.take(count)?;
        state.pages_peak = state.pages_peak.max(state.pages_open - state.runs.pages_free());
        state.pages_used = state.pages_used.max(first + count);
        state.tell();
        let block = PoolBlock {
            arena: Arc::clone(self),
            first,
            count,
        };
        Some(AlignedBuf::whole(Region::Pooled(block), len))
    }

    /// Grant to somebody who comes now: nobody overtakes a waiter.
    fn grant_unless_waited_for(self: &Arc<Self>, state: &mut State, len: usize) -> Option<AlignedBuf> {
        state.waiters.is_empty().then(|| self.grant(state, len)).flatten()
    }

    /// Give pages back and serve waiters.
    fn give_back(self: &Arc<Self>, first: usize, count: usize) {
        let mut state = self.lock();
        state.runs.release(first, count);
        state.tell();
        let grants = self.serve(&mut state);
        drop(state);
        hand_out(grants);
    }

    /// The longest lease there can be.
    fn largest(&self, state: &State) -> usize {
        match self.pin {
            Some(_) => self.pin_step.min(state.pages_max * PAGE),
            None => state.pages_max * PAGE,
        }
    }

    /// Open `pages` more, or take note that there will never be more, which those who wait for too much are told.
    fn open(self: &Arc<Self>, pages: Option<usize>) {
        let mut state = self.lock();
        let mut refused = Vec::new();
        if let Some(pages) = pages {
            let first = state.pages_open;
            state.runs.open(first, pages);
            state.pages_open += pages;
        } else {
            state.pages_max = state.pages_open;
            let largest = self.largest(&state);
            let waiters = std::mem::take(&mut state.waiters);
            for waiter in waiters {
                match Self::check_against(largest, waiter.len) {
                    Ok(()) => state.waiters.push_back(waiter),
                    Err(error) => refused.push((waiter.grant, error)),
                }
            }
        }
        let grants = self.serve(&mut state);
        drop(state);
        hand_out(grants);
        for (grant, error) in refused {
            drop(grant.send(Err(error)));
        }
    }

    /// Serve waiters because one of them went away.
    fn serve_now(self: &Arc<Self>) {
        let grants = self.serve(&mut self.lock());
        hand_out(grants);
    }

    /// Serve waiters, in order, as far as the memory reaches. Those that went away are passed over: a large one that nobody waits for
    /// must not hold up the small ones behind it.
    fn serve(self: &Arc<Self>, state: &mut State) -> Vec<(Grant, AlignedBuf)> {
        let mut grants = Vec::new();
        while let Some(waiter) = state.waiters.pop_front() {
            if waiter.grant.is_closed() {
                continue;
            }
            let Some(buf) = self.grant(state, waiter.len) else {
                state.waiters.push_front(waiter);
                break;
            };
            grants.push((waiter.grant, buf));
        }
        grants
    }
}

/// Hand leases out, outside the lock: a waiter that went away meanwhile gives its buffer back here.
fn hand_out(grants: Vec<(Grant, AlignedBuf)>) {
    for (grant, buf) in grants {
        drop(grant.send(Ok(buf)));
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut used_bytes = self.lock().pages_used * PAGE;
        let pinned = self.pinned.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (offset, len) in pinned.drain(..) {
            used_bytes = used_bytes.max(offset + len);
            if let Some(pin) = &self.pin {
                // SAFETY: the piece was pinned from this mapping.
                pin.unpin(unsafe { self.ground.map.ptr().add(offset) }, len);
            }
        }
        if self.is_kept {
            Arc::clone(&self.ground).keep(used_bytes);
        }
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BufPool").field(&self.stats()).finish()
    }
}

/// A run of pages of an arena, returned on drop.
pub(crate) struct PoolBlock {
    arena: Arc<Arena>,
    first: usize,
    count: usize,
}

impl PoolBlock {
    pub(crate) fn ptr(&self) -> NonNull<u8> {
        // SAFETY: the run lies within the arena's mapping.
        unsafe { self.arena.ground.map.ptr().add(self.first * PAGE) }
    }

    pub(crate) fn len(&self) -> usize {
        self.count * PAGE
    }

    pub(crate) fn arena_id(&self) -> ArenaId {
        self.arena.ground.id
    }

    /// Offset of the run in its arena, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.first * PAGE
    }

    /// The whole arena, for registration with a ring.
    pub(crate) fn arena_memory(&self) -> ArenaMemory {
        ArenaMemory {
            ptr: self.arena.ground.map.ptr(),
            len: self.arena.ground.map.len(),
            alive: Arc::downgrade(&self.arena.ground),
        }
    }
}

/// Where an arena lies, and whether it is still there.
#[derive(Debug)]
pub(crate) struct ArenaMemory {
    pub(crate) ptr: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) alive: Weak<Ground>,
}

impl Drop for PoolBlock {
    fn drop(&mut self) {
        self.arena.give_back(self.first, self.count);
    }
}

impl fmt::Debug for PoolBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBlock")
            .field("offset", &self.offset())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(bytes_max: u64) -> BufPool {
        BufPool::new(&PoolConfig {
            bytes_max,
            ..PoolConfig::default()
        })
        .unwrap()
    }

    #[test]
    fn the_ceiling_holds_and_waiters_come_in_order() {
        let pool = pool(64 << 10);
        let a = pool.lease(40 << 10).wait().unwrap().unwrap();
        assert!(pool.try_lease(40 << 10).is_none());
        let big = pool.lease(60 << 10);
        let small = pool.lease(4 << 10);
        assert!(pool.try_lease(4 << 10).is_none(), "nobody overtakes a waiter");
        assert_eq!(pool.stats().leased_bytes, 40 << 10);
        drop(a);
        let big = big.wait().unwrap().unwrap();
        let small = small.wait().unwrap().unwrap();
        assert_eq!((big.len(), small.len()), (60 << 10, 4 << 10));
        assert_eq!(pool.stats().leased_bytes_peak, 64 << 10);
        drop((big, small));
        assert_eq!(pool.stats().leased_bytes, 0);
        assert_eq!(pool.stats().waits, 2);
    }

    #[test]
    fn a_waiter_that_goes_away_costs_nothing() {
        let pool = pool(8 << 10);
        let held = pool.lease(8 << 10).wait().unwrap().unwrap();
        drop(pool.lease(8 << 10));
        let next = pool.lease(4 << 10);
        drop(held);
        assert_eq!(next.wait().unwrap().unwrap().len(), 4 << 10);
    }

    #[test]
    fn a_waiter_that_went_away_does_not_hold_up_smaller_ones() {
        let pool = pool(8 << 10);
        let held = pool.lease(4 << 10).wait().unwrap().unwrap();
        drop(pool.lease(8 << 10));
        assert!(pool.try_lease(4 << 10).is_some());
        let (gone, behind) = (pool.lease(8 << 10), pool.lease(4 << 10));
        drop(gone);
        // The next one who comes finds out.
        assert!(pool.try_lease(8 << 10).is_none());
        assert_eq!(behind.wait().unwrap().unwrap().len(), 4 << 10);
        drop(held);
        assert_eq!(pool.stats().leased_bytes, 0);
    }

    #[test]
    fn what_can_never_be_given_is_an_error_not_a_hang() {
        let error = pool(1 << 20).lease(2 << 20).wait().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }

    #[test]
    fn frozen_slices_keep_the_lease() {
        let pool = pool(8 << 10);
        let slice = pool.lease(8 << 10).wait().unwrap().unwrap().freeze().slice(5..6);
        assert!(pool.try_lease(1).is_none());
        drop(slice);
        assert!(pool.try_lease(1).is_some());
    }

    #[test]
    fn many_threads_never_pass_the_ceiling() {
        let pool = pool(256 << 10);
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..200 {
                        let len = 1 + (thread * 7919 + round * 104_729) % (128 << 10);
                        let mut buf = pool.lease(len).wait().unwrap().unwrap();
                        buf.fill(thread as u8);
                        assert!(buf.iter().all(|byte| *byte == thread as u8));
                    }
                });
            }
        });
        let stats = pool.stats();
        assert!(stats.leased_bytes == 0 && stats.leased_bytes_peak <= stats.bytes_max);
    }

    #[derive(Debug, Default)]
    struct CountingPin(AtomicU64, AtomicU64);

    impl PinHook for CountingPin {
        fn pin(&self, _: NonNull<u8>, len: usize) -> Result<()> {
            self.0.fetch_add(len as u64, Ordering::SeqCst);
            Ok(())
        }

        fn unpin(&self, _: NonNull<u8>, len: usize) {
            self.1.fetch_add(len as u64, Ordering::SeqCst);
        }
    }

    #[test]
    fn memory_is_pinned_once_and_unpinned_when_the_last_buffer_goes() {
        let pin = Arc::new(CountingPin::default());
        let pool = BufPool::new(&PoolConfig {
            bytes_max: 1 << 20,
            pin: Some(pin.clone()),
            ..PoolConfig::default()
        })
        .unwrap();
        let buf = pool.try_lease(100).unwrap();
        drop(pool);
        assert_eq!(
            (pin.0.load(Ordering::SeqCst), pin.1.load(Ordering::SeqCst)),
            (1 << 20, 0)
        );
        drop(buf);
        assert_eq!(pin.1.load(Ordering::SeqCst), 1 << 20);
    }

    #[test]
    fn the_next_pool_gets_the_memory_of_a_kept_one_but_never_what_somebody_holds() {
        let config = PoolConfig {
            // A size that no other test has, and more than a huge page.
            bytes_max: (3 << 20) + 17 * PAGE as u64,
            is_kept: true,
            ..PoolConfig::default()
        };
        let lease = || BufPool::new(&config).unwrap().try_lease(PAGE).unwrap();
        let mut first = lease();
        first.fill(7);
        let batch = first.freeze().slice(5..);
        // The pool is gone, and a slice of it is held.
        let mut second = lease();
        assert_ne!(second.as_ptr(), batch.as_ptr().wrapping_sub(5));
        second.fill(8);
        assert!(batch.iter().all(|byte| *byte == 7));
        let (at, id) = (second.as_ptr(), second.arena());
        drop(second);
        let third = lease();
        assert_eq!((third.as_ptr(), third.arena()), (at, id));
        // What a ring registered of it is not taken for gone.
        assert_eq!(third.arena_memory().unwrap().alive.strong_count(), 1);
    }

    #[derive(Debug, Default)]
    struct FailingPin {
        allowed: AtomicU64,
        unpinned_bytes: AtomicU64,
    }

    impl PinHook for FailingPin {
        fn pin(&self, _: NonNull<u8>, _: usize) -> Result<()> {
            let left = self.allowed.load(Ordering::SeqCst);
            if left == 0 {
                return Err(Error::new(ErrorKind::LimitExceeded, "pin", "no more"));
            }
            self.allowed.store(left - 1, Ordering::SeqCst);
            Ok(())
        }

        fn unpin(&self, _: NonNull<u8>, len: usize) {
            self.unpinned_bytes.fetch_add(len as u64, Ordering::SeqCst);
        }
    }

    fn stepping(allowed: u64) -> (BufPool, Arc<FailingPin>) {
        let pin = Arc::new(FailingPin {
            allowed: AtomicU64::new(allowed),
            ..FailingPin::default()
        });
        let config = PoolConfig {
            bytes_max: 6 << 20,
            pin: Some(pin.clone()),
            pin_step_bytes: 2 << 20,
            ..PoolConfig::default()
        };
        (BufPool::new(&config).unwrap(), pin)
    }

    #[test]
    fn memory_pinned_later_serves_those_who_wait() {
        let (pool, pin) = stepping(9);
        let first = pool.try_lease(2 << 20).unwrap();
        assert!(pool.try_lease(1).is_none(), "what is not pinned is not leased");
        let (small, large) = (pool.lease(1 << 20), pool.lease(2 << 20));
        assert!(pool.pin_more().unwrap());
        let small = small.wait().unwrap().unwrap();
        assert_eq!(pool.stats().leased_bytes, 3 << 20);
        assert!(pool.pin_more().unwrap());
        // The second half of the second step and the first one of the third would do, but were not pinned as one.
        assert_eq!(large.wait().unwrap().unwrap().len(), 2 << 20);
        assert!(!pool.pin_more().unwrap() && !pool.pin_more().unwrap());
        let long = pool.lease((2 << 20) + 1).wait().unwrap();
        assert_eq!(long.unwrap_err().kind(), ErrorKind::LimitExceeded);
        drop(small);
        drop((first, pool));
        assert_eq!(pin.unpinned_bytes.load(Ordering::SeqCst), 6 << 20);
    }

    #[test]
    fn a_pool_that_cannot_be_pinned_further_stays_as_it_is() {
        let (pool, pin) = stepping(1);
        let (small, large) = (pool.lease(2 << 20), pool.lease(3 << 20));
        assert_eq!(pool.pin_more().unwrap_err().kind(), ErrorKind::LimitExceeded);
        assert!(!pool.pin_more().unwrap());
        assert_eq!(
            large.wait().unwrap().unwrap_err().kind(),
            ErrorKind::LimitExceeded
        );
        assert_eq!(pool.lease_bytes_max(), 2 << 20);
        drop(small);
        assert!(pool.try_lease(2 << 20).is_some());
        drop(pool);
        assert_eq!(pin.unpinned_bytes.load(Ordering::SeqCst), 2 << 20);
    }

    #[test]
    fn those_behind_a_waiter_that_goes_away_need_nobody_to_move_up() {
        let pool = pool(8 << 10);
        let _held = pool.lease(4 << 10).wait().unwrap().unwrap();
        let gone = pool.lease(8 << 10);
        let behind = pool.lease(4 << 10);
        drop(gone);
        assert_eq!(behind.wait().unwrap().unwrap().len(), 4 << 10);
    }
}
