//! The classes `Buffer` (frozen, what reads return) and `MutableBuffer` (to read into and to write from).
//!
//! Both export their memory by the buffer protocol, so `memoryview`, `numpy.frombuffer` and `torch.frombuffer` see it without a copy. They
//! are made with `PyType_FromSpec`, because PyO3 offers the protocol to wheels for 3.11 and later only; see [`ffi`](crate::ffi).
//!
//! An instance is a C object with one pointer to a [`Memory`]. Views hold a reference to the instance and the instance holds the memory: what a view
//! shows stays where it is as long as there is a view. Instances hold no references to Python objects but a function that unpins
//! their memory, so the garbage collector need not know them.
//!
//! - [`objects`] makes types and instances and has the slots about memory, [`methods`] the rest;
//! - [`take`] lends the memory of a `MutableBuffer` to one operation; [`pin`] has it pinned for devices until it goes.

mod methods;
mod objects;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::{AlignedBuf, Buf};
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::ending;
use crate::errors;
use crate::fork::ForkGuard;
use crate::process::{self, Process};
use objects::Class;

/// What an instance owns.
#[derive(Debug)]
struct Memory {
    ptr: *mut u8,
    len: usize,
    /// Views that exist.
    views: AtomicUsize,
    hold: Hold,
    /// What unpins it; in a forked child, where devices are dead, it is left alone.
    pinned: ForkGuard<Mutex<Option<Py<PyAny>>>>,
}

impl Drop for Memory {
    /// Unpin before anything is unmapped: devices must not know memory that is somebody else's next.
    fn drop(&mut self) {
        let Some(unpin) = self.pinned.get().and_then(|unpin| lock(unpin).take()) else {
            return;
        };
        let _ = ending::call(|py| {
            // An exception that is under way stays so.
            let pending = PyErr::take(py);
            if let Err(error) = self.call(unpin.bind(py)) {
                error.write_unraisable(py, None);
            }
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
    }
}

/// How the memory is held. What a pool lent must not be given back in a forked child: the pool's lock may be dead there.
#[derive(Debug)]
enum Hold {
    Frozen {
        buf: ForkGuard<Buf>,
        ledger: Arc<Ledger>,
    },
    /// Locked only while the interpreter lock is held; see `process`.
    Mutable(ForkGuard<Mutex<Lendable>>),
}

/// Memory that operations borrow one at a time.
#[derive(Debug)]
enum Lendable {
    /// Nobody has it.
    Here(AlignedBuf),
    /// An operation has it. The empty slice keeps it mapped for the views, and gets it back from an operation that failed.
    Lent(Buf),
    /// It became a `Buffer`.
    Frozen,
}

impl Memory {
    fn frozen(buf: Buf, ledger: Arc<Ledger>, pid: u32) -> Self {
        Self {
            ptr: buf.as_ptr().cast_mut(),
            len: buf.len(),
            views: AtomicUsize::new(0),
            hold: Hold::Frozen {
                buf: ForkGuard::made_in(pid, buf),
                ledger,
            },
            pinned: ForkGuard::new(Mutex::new(None)),
        }
    }

    fn mutable(mut buf: AlignedBuf) -> Self {
        Self {
            ptr: buf.as_mut_ptr(),
            len: buf.len(),
            views: AtomicUsize::new(0),
            hold: Hold::Mutable(ForkGuard::new(Mutex::new(Lendable::Here(buf)))),
            pinned: ForkGuard::new(Mutex::new(None)),
        }
    }

    /// Call a function with address and length.
    fn call(&self, function: &Bound<'_, PyAny>) -> PyResult<()> {
        function.call1((self.ptr as usize, self.len)).map(drop)
    }

    /// True when nothing may be written to it.
    fn is_readonly(&self) -> bool {
        match &self.hold {
            Hold::Frozen { .. } => true,
            Hold::Mutable(lendable) => matches!(*lock(lendable.get_anywhere()), Lendable::Frozen),
        }
    }

    fn lendable(&self, op: &'static str) -> Result<MutexGuard<'_, Lendable>> {
        match &self.hold {
            Hold::Frozen { .. } => Err(Error::new(ErrorKind::InvalidInput, op, "the buffer is frozen")),
            Hold::Mutable(lendable) => match lendable.get() {
                Some(lendable) => Ok(lock(lendable)),
                None => Err(process::other_process(op, "buffer")),
            },
        }
    }

    /// Take the memory for one operation.
    fn take(&self, op: &'static str) -> Result<AlignedBuf> {
        let mut slot = self.lendable(op)?;
        let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidInput, op, message));
        let mut whole = match std::mem::replace(&mut *slot, Lendable::Frozen) {
            Lendable::Frozen => return refuse("the buffer is frozen"),
            Lendable::Here(whole) => whole,
            // An operation that failed, or that was interrupted and is over by now, has dropped what it had.
            Lendable::Lent(keep) => match keep.try_unique() {
                Ok(whole) => whole,
                Err(keep) => {
                    *slot = Lendable::Lent(keep);
                    return refuse("the buffer is in use by another call");
                }
            },
        };
        whole.set_len(self.len);
        let lent = whole.split_off(0);
        *slot = Lendable::Lent(whole.freeze());
        Ok(lent)
    }
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Make a `Buffer` of what a read returned.
pub(crate) fn new_buffer(py: Python<'_>, buf: Buf, ledger: Ledger) -> PyResult<Bound<'_, PyAny>> {
    let memory = Memory::frozen(buf, Arc::new(ledger), std::process::id());
    objects::instance(py, Class::Buffer, memory)
}

/// Make a `MutableBuffer` of memory that nobody else has.
pub(crate) fn new_mutable(py: Python<'_>, buf: AlignedBuf) -> PyResult<Bound<'_, PyAny>> {
    objects::instance(py, Class::MutableBuffer, Memory::mutable(buf))
}

/// The bytes of a `Buffer`, shared; `None` for any other object.
pub(crate) fn shared_bytes(object: &Bound<'_, PyAny>) -> Option<Buf> {
    match &objects::memory_of(object, Class::Buffer)?.hold {
        // The clone is memory only; the original, leaked in a child, keeps it from ever going back to the pool there.
        Hold::Frozen { buf, .. } => Some(buf.get_anywhere().clone()),
        Hold::Mutable(_) => None,
    }
}

/// The memory of a `MutableBuffer`, taken for one operation; `None` for any other object. Dropping it (or the `Buf` it was frozen into)
/// gives it back: the next operation finds it unshared.
pub(crate) fn take(object: &Bound<'_, PyAny>, op: &'static str) -> PyResult<Option<AlignedBuf>> {
    let Some(memory) = objects::memory_of(object, Class::MutableBuffer) else {
        return Ok(None);
    };
    let taken = memory
        .take(op)
        .map_err(|error| errors::raise(object.py(), &error))?;
    Ok(Some(taken))
}

/// Have the memory of a `MutableBuffer` pinned: `pin` is called with address and length, and `unpin` likewise before it is unmapped.
#[pyfunction]
pub(crate) fn buffer_pin(
    object: &Bound<'_, PyAny>,
    pin: &Bound<'_, PyAny>,
    unpin: Py<PyAny>,
) -> PyResult<()> {
    let py = object.py();
    let Some(memory) = objects::memory_of(object, Class::MutableBuffer) else {
        return Err(PyTypeError::new_err("only a MutableBuffer can be pinned"));
    };
    let pinned = memory.pinned.get();
    let pinned = pinned.ok_or_else(|| errors::raise(py, &process::other_process("pin", "buffer")))?;
    memory.call(pin)?;
    lock(pinned).replace(unpin);
    Ok(())
}

/// Undo `buffer_pin` before the memory goes; nothing where it is not pinned.
#[pyfunction]
pub(crate) fn buffer_unpin(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let memory = objects::memory_of(object, Class::MutableBuffer);
    let pinned = memory.and_then(|memory| Some((memory, memory.pinned.get()?)));
    let Some((memory, pinned)) = pinned else {
        return Ok(());
    };
    let unpin = lock(pinned).take();
    unpin.map_or(Ok(()), |unpin| memory.call(unpin.bind(object.py())))
}

/// Turn a `MutableBuffer` into a `Buffer` without a copy.
fn freeze<'py>(object: &Bound<'py, PyAny>, memory: &Memory) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    if memory.views.load(Ordering::Relaxed) > 0 {
        let message = "the buffer has views, which could change what is frozen";
        return Err(PyBufferError::new_err(message));
    }
    let frozen = memory.take("freeze").and_then(|buf| {
        *memory.lendable("freeze")? = Lendable::Frozen;
        Ok(buf.freeze())
    });
    let frozen = frozen.map_err(|error| errors::raise(py, &error))?;
    new_buffer(py, frozen, Ledger::default())
}

/// Allocate zeroed, page-aligned memory to read into or to write from without a copy.
#[pyfunction]
pub(crate) fn alloc(py: Python<'_>, size: usize) -> PyResult<Bound<'_, PyAny>> {
    let buf = Process::get(py)?
        .own_buf(size)
        .map_err(|error| errors::raise(py, &error))?;
    new_mutable(py, buf)
}

/// Make the types and put them into the module.
pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    for class in [Class::Buffer, Class::MutableBuffer] {
        let object: Bound<'_, PyType> = objects::type_of(module.py(), class)?;
        module.add(class.name(), object)?;
    }
    Ok(())
}
