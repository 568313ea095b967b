//! Calls into Python by threads of ours, none of which may be under way when the interpreter ends.
//!
//! An interpreter that ends takes away every thread that waits for its lock, by unwinding its stack; frames of Rust and of C++ on that stack take this for a failure, and the
//! process of a training run that is over dies by a signal. So the calls are counted. When Python runs what it was given to do at its end, which is
//! before it takes threads away, no new call begins on other threads than that one, and those under way are waited for.
//!
//! What Python runs after that, which are functions that were registered before the package was imported, can use everything but memory that is pinned by other threads.
//!
//! The count belongs to a process: in a forked child, whose threads are gone, it begins anew.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::prelude::*;

/// The process that counts, in the upper half, and its calls under way.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The thread on which the interpreter ends.
static ENDS_ON: OnceLock<ThreadId> = OnceLock::new();

/// How long is waited for calls under way. The longest unpins memory of gigabytes, within seconds; one that hangs must not keep a process alive.
const WAIT_STEPS_MAX: u32 = 60_000;

/// Between two looks at them.
const WAIT_STEP: Duration = Duration::from_millis(1);

/// Call into Python, unless the interpreter is about to end.
pub(crate) fn call<T>(function: impl for<'py> FnOnce(Python<'py>) -> T) -> Option<T> {
    let _under_way = UnderWay::begin()?;
    Python::try_attach(function)
}

/// A call that is under way.
struct UnderWay;

impl UnderWay {
    fn begin() -> Option<Self> {
        count(|calls| calls + 1);
        let begun = Self;
        // Counted first, and the end told first: whoever ends the interpreter sees this call, or this call sees that.
        fence(Ordering::SeqCst);
        let ends = ENDS_ON
            .get()
            .is_some_and(|thread| *thread != thread::current().id());
        (!ends).then_some(begun)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        count(|calls| calls.saturating_sub(1));
    }
}

fn count(change: impl Fn(u64) -> u64) {
    let process = own();
    // The closure always gives a value.
    let _ = CALLS.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |calls| {
        let calls = if calls & !COUNT == process {
            calls & COUNT
        } else {
            0
        };
        Some(process | (change(calls) & COUNT))
    });
}

const COUNT: u64 = u32::MAX as u64;

fn own() -> u64 {
    u64::from(std::process::id()) << 32
}

fn under_way() -> u64 {
    let calls = CALLS.load(Ordering::SeqCst);
    if calls & !COUNT == own() { calls & COUNT } else { 0 }
}

/// Run by Python at its end.
#[pyfunction]
fn end(py: Python<'_>) -> PyResult<()> {
    let _ = ENDS_ON.set(thread::current().id());
    fence(Ordering::SeqCst);
    for _ in 0..WAIT_STEPS_MAX {
        if under_way() == 0 {
            break;
        }
        py.detach(|| thread::sleep(WAIT_STEP));
        py.check_signals()?;
    }
    Ok(())
}

/// Have Python run it.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let atexit = module.py().import("atexit")?;
    atexit.call_method1("register", (wrap_pyfunction!(end, module)?,))?;
    Ok(())
}
