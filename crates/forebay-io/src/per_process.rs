//! What there is once in a process, whatever forks.
//!
//! A forked child has a copy of its parent's memory and none of its threads: a lock that another thread held is held for ever, and what a parent made
//! (contexts, threads, pinned memory) is not there. So each process has a place of its own in a chain, and leaves those of its ancestors alone: they are neither
//! locked nor dropped in the child.

use std::fmt;
use std::process;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A value of this process behind a lock; empty at first.
pub(crate) struct PerProcess<T>(Link<T>);

/// Made without anything that takes time, so that no fork comes in between.
type Link<T> = OnceLock<Box<Place<T>>>;

struct Place<T> {
    process: u32,
    value: Mutex<T>,
    child: Link<T>,
}

impl<T: Default> PerProcess<T> {
    /// For a static.
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The value of this process. A panic of somebody who held it is passed over: values are replaced whole.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_of(process::id())
    }

    fn lock_of(&self, process: u32) -> MutexGuard<'_, T> {
        let mut link = &self.0;
        loop {
            let place = link.get_or_init(|| {
                Box::new(Place {
                    process,
                    value: Mutex::default(),
                    child: OnceLock::new(),
                })
            });
            if place.process == process {
                return place.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            link = &place.child;
        }
    }
}

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PerProcess")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_does_not_wait_for_what_a_thread_of_its_parent_held() {
        let value = PerProcess::<Vec<u32>>::new();
        let mut held = value.lock_of(1);
        held.push(1);
        // As after a fork: the place is held, and nobody is there to let go of it.
        value.lock_of(2).push(2);
        value.lock_of(3).push(3);
        assert_eq!(*value.lock_of(2), [2]);
        drop(held);
        assert_eq!(*value.lock_of(1), [1]);
        assert!(value.lock().is_empty(), "this one is none of them");
    }
}
