//! Values that belong to one process, and what is done around a fork.
//!
//! `fork` copies memory but only the calling thread: runtimes, rings, sockets and every lock another thread held are
//! dead in the child. A [`ForkGuard`] therefore remembers where it was made. Elsewhere it gives nothing out, and dropping it drops nothing:
//! the copy in the child is leaked, never touched. The few locks that belong to the process and not to a value are held by the thread
//! that forks, so that nobody else can hold them at that moment; what takes such locks of other crates without the interpreter lock does
//! it inside [`keep_away`].

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::{PoisonError, RwLock, RwLockWriteGuard, TryLockError};

use forebay_store::{ForkHold, hold_for_fork};
use pyo3::prelude::*;
use pyo3::types::PyDict;

thread_local! {
    /// Between the two handlers, which run on the thread that forks.
    static HELD: RefCell<Option<Hold>> = const { RefCell::new(None) };
    /// This thread is inside `keep_away`, and may be called back into Python from there.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Read by those inside `keep_away`, written by whoever forks.
static AWAY: RwLock<()> = RwLock::new(());

/// What a thread that forks holds.
type Hold = (ForkHold, Option<RwLockWriteGuard<'static, ()>>);

/// Do without the interpreter lock what may hold locks that belong to the process: nobody forks meanwhile.
pub(crate) fn keep_away<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    py.detach(|| {
        if IS_INSIDE.get() {
            return work();
        }
        let _away = AWAY.read().unwrap_or_else(PoisonError::into_inner);
        let _entered = Entered::new();
        work()
    })
}

/// Sets `IS_INSIDE` until it is dropped.
struct Entered;

impl Entered {
    fn new() -> Self {
        IS_INSIDE.set(true);
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

/// Have the handlers called by `os.fork`.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let handlers = PyDict::new(module.py());
    handlers.set_item("before", wrap_pyfunction!(before_fork, module)?)?;
    handlers.set_item("after_in_parent", wrap_pyfunction!(after_fork, module)?)?;
    handlers.set_item("after_in_child", wrap_pyfunction!(after_fork, module)?)?;
    let os = module.py().import("os")?;
    os.call_method("register_at_fork", (), Some(&handlers)).map(drop)
}

#[pyfunction]
fn before_fork(py: Python<'_>) {
    if HELD.with_borrow(Option::is_some) {
        return;
    }
    // One that is inside itself, called back from there, would wait for itself.
    let away = (!IS_INSIDE.get()).then(|| nobody_inside(py));
    HELD.set(Some((hold_for_fork(), away)));
}

/// Wait until nobody is inside `keep_away`, without the interpreter lock, which they may want.
fn nobody_inside(py: Python<'_>) -> RwLockWriteGuard<'static, ()> {
    loop {
        match AWAY.try_write() {
            Ok(away) => return away,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => py.detach(|| drop(AWAY.write())),
        }
    }
}

#[pyfunction]
fn after_fork() {
    HELD.with_borrow_mut(Option::take);
}

/// A value with the number of the process it was made in.
#[derive(Debug)]
pub(crate) struct ForkGuard<T> {
    pid: u32,
    value: ManuallyDrop<T>,
}

impl<T> ForkGuard<T> {
    /// Made here and now.
    pub(crate) fn new(value: T) -> Self {
        Self::made_in(std::process::id(), value)
    }

    /// A value that shares what belongs to the process `pid`.
    pub(crate) fn made_in(pid: u32, value: T) -> Self {
        Self {
            pid,
            value: ManuallyDrop::new(value),
        }
    }

    /// The process it belongs to.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// True in the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_here().then_some(&*self.value)
    }

    /// The value to change, in the process that made it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        self.is_here().then_some(&mut *self.value)
    }

    /// The value wherever we are; only for what needs no lock, thread or descriptor (memory).
    pub(crate) fn get_anywhere(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for ForkGuard<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: dropped once, here; nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
