//! Memory of other Python objects: bytes, bytearray, memoryview, numpy arrays, CPU tensors.
//!
//! A [`View`] borrows contiguous bytes by the buffer protocol; the exporter keeps them where they are until the view is dropped. Copies in and
//! out run without the interpreter lock and on raw pointers: other threads may change the memory meanwhile, which can tear the
//! bytes but nothing of ours.

use std::marker::PhantomData;

use forebay_core::{Error, ErrorKind};
use forebay_io::AlignedBuf;
use pyo3::prelude::*;

use crate::errors;
use crate::ffi::{PYBUF_SIMPLE, PYBUF_WRITABLE, PyBuffer_Release, PyBufferView, PyObject_GetBuffer};
use crate::process::Process;

/// Borrowed bytes of a Python object. Holds the token, since releasing needs the interpreter.
#[derive(Debug)]
pub(crate) struct View<'py> {
    raw: Box<PyBufferView>,
    token: PhantomData<Python<'py>>,
}

/// An address that may be handed to code running without the interpreter lock.
#[derive(Clone, Copy)]
struct Address(*mut u8);

// SAFETY: only an address; what is done with it is justified where it is done.
unsafe impl Send for Address {}

impl Address {
    /// A method, so that closures capture the whole and not the pointer in it.
    fn get(self) -> *mut u8 {
        self.0
    }
}

impl<'py> View<'py> {
    /// Borrow bytes to be read.
    pub(crate) fn readable(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::with_flags(object, PYBUF_SIMPLE)
    }

    /// Borrow bytes to be written; `BufferError` where the object is read-only.
    pub(crate) fn writable(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        Self::with_flags(object, PYBUF_WRITABLE)
    }

    fn with_flags(object: &Bound<'py, PyAny>, flags: i32) -> PyResult<Self> {
        let mut raw = Box::new(PyBufferView::empty());
        // SAFETY: both pointers are valid, and the view stays at its address (some exporters point into it) in its box.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *raw, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self {
            raw,
            token: PhantomData,
        })
    }

    /// Bytes in it.
    pub(crate) fn len(&self) -> usize {
        self.raw.len as usize
    }

    /// The bytes, for a short look with the interpreter lock held.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.raw.buf.is_null() || self.len() == 0 {
            return &[];
        }
        // SAFETY: the exporter keeps `len` contiguous bytes there until release, and with the interpreter lock held nobody
        // changes them during the borrow.
        unsafe { std::slice::from_raw_parts(self.raw.buf.cast(), self.len()) }
    }

    /// A page-aligned copy, made without the interpreter lock.
    pub(crate) fn copy(&self, py: Python<'py>, process: &Process) -> PyResult<AlignedBuf> {
        let (from, len) = (Address(self.raw.buf.cast()), self.len());
        let copied = py.detach(move || {
            let mut buf = process.own_buf(len)?;
            if len > 0 {
                // SAFETY: the view pins `len` bytes at `from` until it is dropped, after this; `buf` has `len` bytes of its own.
                unsafe { std::ptr::copy_nonoverlapping(from.get(), buf.as_mut_ptr(), len) };
            }
            Ok::<_, Error>(buf)
        });
        copied.map_err(|error| errors::raise(py, &error))
    }

    /// Fill the front from `bytes`, without the interpreter lock.
    pub(crate) fn fill(&mut self, py: Python<'py>, bytes: &[u8]) -> PyResult<()> {
        if self.raw.readonly != 0 || bytes.len() > self.len() {
            let error = Error::new(
                ErrorKind::Internal,
                "read",
                "more bytes than the caller's buffer takes",
            );
            return Err(errors::raise(py, &error));
        }
        let to = Address(self.raw.buf.cast());
        if !bytes.is_empty() {
            py.detach(move || {
                // SAFETY: the view pins at least `bytes.len()` writable bytes at `to`; `bytes` is memory of ours, elsewhere.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.get(), bytes.len()) };
            });
        }
        Ok(())
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer and released once; the token says that we are attached.
        unsafe { PyBuffer_Release(&raw mut *self.raw) };
    }
}
