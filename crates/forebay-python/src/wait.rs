//! Blocking on a future: the interpreter lock is released, and Ctrl-C gets through.
//!
//! The future runs on the calling thread, in slices: between two of them the interpreter looks at its signals. When a
//! handler raises (or whoever wants to be told how far it is), the future is dropped, which by the contract of stores leaves nothing
//! half-made, and the exception goes up.

use std::time::Duration;

use forebay_core::Result;
use pyo3::prelude::*;

use crate::errors;
use crate::process::Process;

/// How long Ctrl-C may have to wait: below what a person notices, above what costs anything.
const MAIN_THREAD_SLICE: Duration = Duration::from_millis(50);

/// Signals are handled in the main thread only, so the others wake up seldom.
const OTHER_THREAD_SLICE: Duration = Duration::from_secs(1);

/// Time between two calls of somebody who wants to know how far it is.
const TELLING_SLICE: Duration = Duration::from_millis(100);

/// Run `future` to its end, or until a signal handler raises.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    process: &'static Process,
    future: impl Future<Output = Result<T>> + Send,
) -> PyResult<T> {
    let slice = if is_main_thread() {
        MAIN_THREAD_SLICE
    } else {
        OTHER_THREAD_SLICE
    };
    in_slices(py, process, future, slice, || Ok(()))
}

/// The same, calling `tell` up to ten times a second and at the end; what that raises stops the future too.
pub(crate) fn wait_telling<T: Send>(
    py: Python<'_>,
    process: &'static Process,
    future: impl Future<Output = Result<T>> + Send,
    mut tell: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let done = in_slices(py, process, future, TELLING_SLICE, &mut tell)?;
    if let Err(raised) = tell() {
        drop_inside(py, process, done);
        return Err(raised);
    }
    Ok(done)
}

/// Drop inside the runtime, where what is dropped may want to clean up, and without the interpreter lock: going away may take a while.
pub(crate) fn drop_inside<T: Send>(py: Python<'_>, process: &'static Process, gone: T) {
    py.detach(|| {
        let _inside = process.runtime().enter();
        drop(gone);
    });
}

fn in_slices<T: Send>(
    py: Python<'_>,
    process: &'static Process,
    future: impl Future<Output = Result<T>> + Send,
    slice: Duration,
    mut between: impl FnMut() -> PyResult<()>,
) -> PyResult<T> {
    let mut future = Box::pin(future);
    loop {
        let done = py.detach(|| {
            process
                .runtime()
                .block_on(async { tokio::time::timeout(slice, &mut future).await.ok() })
        });
        if let Some(result) = done {
            return result.map_err(|error| errors::raise(py, &error));
        }
        if let Err(raised) = py.check_signals().and_then(|()| between()) {
            drop_inside(py, process, future);
            return Err(raised);
        }
    }
}

/// True on the thread the kernel started the process (or the forked child) with.
fn is_main_thread() -> bool {
    // SAFETY: takes nothing and cannot fail.
    let thread = unsafe { libc::gettid() };
    thread.cast_unsigned() == std::process::id()
}
