//! Memory of other Python objects: bytes, bytearray, memoryview, numpy arrays, CPU tensors.
//!
//! A [`View`] borrows contiguous bytes by the buffer protocol; the exporter keeps them where they are until the view is dropped. A [`Pinned`]
//! is the right to copy from or to them without the interpreter lock, and ends with the view. Copies run on raw pointers: other threads
//! may change the memory meanwhile, which can tear the bytes but nothing of ours.

use std::marker::PhantomData;

use forebay_core::{Error, ErrorKind, Result};
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

/// The memory of a view, for code that runs without the interpreter lock.
#[derive(Clone, Copy)]
pub(crate) struct Pinned<'view> {
    address: Address,
    len: usize,
    is_writable: bool,
    view: PhantomData<&'view ()>,
}

impl Pinned<'_> {
    /// Bytes in it.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The first `len` bytes of it, or all when it has not as many.
    pub(crate) fn front(self, len: usize) -> Self {
        let len = len.min(self.len);
        Self { len, ..self }
    }

    /// Fill all of `into` with the bytes from `at` on.
    pub(crate) fn copy_out(self, at: usize, into: &mut [u8]) -> Result<()> {
        self.check(at, into.len())?;
        if !into.is_empty() {
            // SAFETY: checked to lie within the bytes that the view pins, and the view outlives this; `into` is memory of ours, elsewhere.
            unsafe {
                let from = self.address.get().add(at);
                std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
            }
        }
        Ok(())
    }

    /// Put `bytes` there from `at` on.
    pub(crate) fn copy_in(self, at: usize, bytes: &[u8]) -> Result<()> {
        self.check(at, bytes.len())?;
        if !self.is_writable {
            return Err(internal("the caller's buffer is read-only"));
        }
        if !bytes.is_empty() {
            // SAFETY: checked to lie within the writable bytes that the view pins, and the view outlives this; `bytes` are ours, elsewhere.
            unsafe {
                let to = self.address.get().add(at);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        Ok(())
    }

    fn check(self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(internal("more bytes than the caller's buffer has")),
        }
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "copy", message)
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

    /// The memory, for as long as the view is there.
    pub(crate) fn pinned(&self) -> Pinned<'_> {
        Pinned {
            address: Address(self.raw.buf.cast()),
            len: self.len(),
            is_writable: self.raw.readonly == 0,
            view: PhantomData,
        }
    }

    /// A page-aligned copy, made without the interpreter lock.
    pub(crate) fn copy(&self, py: Python<'py>, process: &Process) -> PyResult<AlignedBuf> {
        let from = self.pinned();
        let copied = py.detach(move || {
            let mut buf = process.own_buf(from.len())?;
            from.copy_out(0, &mut buf)?;
            Ok::<_, Error>(buf)
        });
        copied.map_err(|error| errors::raise(py, &error))
    }

    /// Fill the front from `bytes`, without the interpreter lock.
    pub(crate) fn fill(&self, py: Python<'py>, bytes: &[u8]) -> PyResult<()> {
        let to = self.pinned();
        py.detach(move || to.copy_in(0, bytes))
            .map_err(|error| errors::raise(py, &error))
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: filled by PyObject_GetBuffer and released once; the token says that we are attached.
        unsafe { PyBuffer_Release(&raw mut *self.raw) };
    }
}
