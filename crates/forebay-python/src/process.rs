//! The runtime and the context of this process.
//!
//! Both are made at the first call that needs them, shared by all stores, and never dropped: threads that outlive the interpreter
//! are ended by the kernel, not by us. In a forked child, where the threads of the parent's runtime do not exist, the first call makes new
//! ones and leaves the old ones alone.

use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

use forebay_core::{Clock, Error, ErrorKind, Result, SystemClock};
use forebay_io::{AlignedBuf, Pages};
use forebay_store::Context;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tokio::runtime::Runtime;

use crate::errors;
use crate::log;
use crate::settings;

/// Most threads of the runtime. They only move bodies from sockets to buffers (disks have threads of their own), and on a node with
/// eight ranks eight processes like this one run side by side.
const RUNTIME_THREADS_MAX: usize = 8;

/// What all stores of this process share.
#[derive(Debug)]
pub(crate) struct Process {
    pid: u32,
    runtime: Runtime,
    context: Context,
    pages: Pages,
    /// The parent had begun to work before it forked.
    is_forked: bool,
}

/// Locked only while the interpreter lock is held, which a thread that forks holds too: so it is never found locked in a child.
static PROCESS: Mutex<Option<&'static Process>> = Mutex::new(None);

impl Process {
    /// The process's own, made now if need be.
    pub(crate) fn get(py: Python<'_>) -> PyResult<&'static Self> {
        let mut made = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(process) = *made
            && process.is_here()
        {
            return Ok(process);
        }
        let process = Self::start(made.is_some()).map_err(|error| errors::raise(py, &error))?;
        Ok(made.insert(Box::leak(Box::new(process))))
    }

    /// True when the process has begun to work, so that settings come too late.
    pub(crate) fn is_started(_py: Python<'_>) -> bool {
        let made = PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        made.is_some_and(Self::is_here)
    }

    fn start(is_forked: bool) -> Result<Self> {
        log::start()?;
        let (config, pages) = settings::resolve()?;
        // Started once per process, and better now than while some thread forks.
        SystemClock.now();
        let threads = std::thread::available_parallelism().map_or(2, NonZero::get);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.clamp(2, RUNTIME_THREADS_MAX))
            .thread_name("forebay-py")
            .enable_all()
            .build()
            .map_err(|error| Error::from_io("start", error))?;
        let context = {
            let _inside = runtime.enter();
            Context::open(config)?
        };
        Ok(Self {
            pid: std::process::id(),
            runtime,
            context,
            pages,
            is_forked,
        })
    }

    fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    /// True in a child whose parent had begun to work: locks of other crates that are not ours to make anew may be dead here.
    pub(crate) fn is_forked(&self) -> bool {
        self.is_forked
    }

    /// The runtime futures of stores run on.
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What stores are opened with.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Memory for a result: from the pool while half of it is free, else of its own.
    ///
    /// A result belongs to the caller, who may keep any number of them; waiting here for memory that only the caller can
    /// give back would never end. The other half is for those who wait: what they hold they give back.
    pub(crate) fn result_buf(&self, len: usize) -> Result<AlignedBuf> {
        let pool = self.context.pool();
        let stats = pool.stats();
        let is_room = stats.leased_bytes.saturating_add(len as u64) <= stats.bytes_max / 2;
        match is_room.then(|| pool.try_lease(len)).flatten() {
            Some(buf) => Ok(buf),
            None => self.own_buf(len),
        }
    }

    /// Memory outside the pool.
    pub(crate) fn own_buf(&self, len: usize) -> Result<AlignedBuf> {
        AlignedBuf::alloc(len, self.pages)
    }
}

/// A value that is dropped inside the runtime: what stores leave behind is cleaned up there.
#[derive(Debug)]
pub(crate) struct Inside<T> {
    process: &'static Process,
    value: ManuallyDrop<T>,
}

impl<T> Inside<T> {
    pub(crate) fn new(process: &'static Process, value: T) -> Self {
        Self {
            process,
            value: ManuallyDrop::new(value),
        }
    }
}

impl<T> Deref for Inside<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Inside<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Inside<T> {
    fn drop(&mut self) {
        let _inside = self.process.runtime.enter();
        // SAFETY: dropped once, here; nothing uses it afterwards.
        unsafe { ManuallyDrop::drop(&mut self.value) }
    }
}

/// Which disk engine runs in this process, and why not a better one.
#[pyfunction]
pub(crate) fn engine(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let report = Process::get(py)?.context.disk().report();
    let kind = match report.kind {
        forebay_io::EngineKind::Uring => "uring",
        forebay_io::EngineKind::Psync => "psync",
        forebay_io::EngineKind::Sim => "sim",
    };
    let dict = PyDict::new(py);
    dict.set_item("kind", kind)?;
    dict.set_item("notes", report.notes)?;
    dict.set_item("fallback_reason", report.fallback_reason)?;
    Ok(dict)
}

/// A thing made before a fork was used after it.
pub(crate) fn other_process(op: &'static str, what: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        op,
        format!("this {what} was made in another process"),
    )
    .with_hint("make a new one after the fork")
}
