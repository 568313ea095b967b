//! The buffer protocol of CPython, declared by hand, and the guard around functions that C calls.
//!
//! The limited API has `Py_buffer` only from 3.11 on, so PyO3 hides it from a wheel for 3.10. The binary interface is older:
//! `PyType_FromSpec` takes the two buffer slots since 3.9, the functions below are exported by every CPython 3, and the struct has kept
//! its layout (3.11 froze it into the stable ABI as it was). That is all this module relies on. PyPy has another layout; wheels with the
//! stable ABI are not installed there.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::exceptions::PySystemError;
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;

/// A view of memory, as exporters fill it and consumers hold it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct PyBufferView {
    pub(crate) buf: *mut c_void,
    /// An owned reference to the exporter; null when nothing is borrowed.
    pub(crate) obj: *mut PyObject,
    pub(crate) len: Py_ssize_t,
    pub(crate) itemsize: Py_ssize_t,
    pub(crate) readonly: c_int,
    pub(crate) ndim: c_int,
    pub(crate) format: *mut c_char,
    pub(crate) shape: *mut Py_ssize_t,
    pub(crate) strides: *mut Py_ssize_t,
    pub(crate) suboffsets: *mut Py_ssize_t,
    pub(crate) internal: *mut c_void,
}

/// Contiguous bytes, whatever they mean.
pub(crate) const PYBUF_SIMPLE: c_int = 0;
/// The same, to be written to.
pub(crate) const PYBUF_WRITABLE: c_int = 1;

/// Slot numbers of `PyType_FromSpec`.
pub(crate) const BF_GETBUFFER: c_int = 1;
pub(crate) const BF_RELEASEBUFFER: c_int = 2;

unsafe extern "C" {
    pub(crate) fn PyObject_GetBuffer(object: *mut PyObject, view: *mut PyBufferView, flags: c_int) -> c_int;
    pub(crate) fn PyBuffer_FillInfo(
        view: *mut PyBufferView,
        object: *mut PyObject,
        buf: *mut c_void,
        len: Py_ssize_t,
        readonly: c_int,
        flags: c_int,
    ) -> c_int;
    pub(crate) fn PyBuffer_Release(view: *mut PyBufferView);
}

impl PyBufferView {
    /// A view of nothing.
    pub(crate) const fn empty() -> Self {
        Self {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        }
    }
}

/// Run the body of a function that the interpreter calls: errors and panics become Python exceptions, and `failed` is returned.
///
/// # Safety
/// The calling thread must be attached to the interpreter, as it is in every slot and method.
pub(crate) unsafe fn called_by_python<T>(failed: T, body: impl FnOnce(Python<'_>) -> PyResult<T>) -> T {
    // SAFETY: the caller's promise.
    let py = unsafe { Python::assume_attached() };
    match catch_unwind(AssertUnwindSafe(|| body(py))) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => {
            error.restore(py);
            failed
        }
        Err(_) => {
            PySystemError::new_err("forebay: a fault in the buffer code; please report it").restore(py);
            failed
        }
    }
}
