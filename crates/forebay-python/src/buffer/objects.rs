//! Types and instances in the memory layout of C.
//!
//! A type is described by a table of slots and made once; the tables are leaked, as the interpreter keeps pointers into them. Neither type can
//! be instantiated or subclassed from Python, so every instance was made by [`instance`] and has its [`Memory`].

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use pyo3::ffi::{self, Py_ssize_t, PyObject, PyType_Slot, PyType_Spec};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::{Memory, methods};
use crate::ffi::{BF_GETBUFFER, BF_RELEASEBUFFER, PyBuffer_FillInfo, PyBufferView, called_by_python};

/// Which of the two classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Buffer,
    MutableBuffer,
}

/// An instance, as C sees it.
#[repr(C)]
struct Object {
    head: PyObject,
    /// From `Box::into_raw`; null only between allocation and the next line.
    memory: *mut Memory,
}

const BUFFER_DOC: &CStr = c"Immutable bytes in page-aligned memory, with the ledger of the read that brought them.

Supports the buffer protocol: memoryview, numpy.frombuffer and torch.frombuffer share its memory. Slices share it too.";

const MUTABLE_DOC: &CStr =
    c"Page-aligned memory to read into and to write from without a copy; made by forebay.alloc().

Supports the buffer protocol for writing.";

impl Class {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Buffer => "Buffer",
            Self::MutableBuffer => "MutableBuffer",
        }
    }

    fn full_name(self) -> &'static CStr {
        match self {
            Self::Buffer => c"forebay.Buffer",
            Self::MutableBuffer => c"forebay.MutableBuffer",
        }
    }

    fn slots(self) -> Vec<PyType_Slot> {
        let mut slots = vec![
            slot(ffi::Py_tp_dealloc, dealloc as *const ()),
            slot(BF_GETBUFFER, get_buffer as *const ()),
            slot(BF_RELEASEBUFFER, release_buffer as *const ()),
            slot(ffi::Py_sq_length, length as *const ()),
            slot(ffi::Py_mp_length, length as *const ()),
        ];
        let doc = match self {
            Self::Buffer => BUFFER_DOC,
            Self::MutableBuffer => MUTABLE_DOC,
        };
        slots.push(slot(ffi::Py_tp_doc, doc.as_ptr().cast()));
        slots.extend(methods::slots(self));
        slots.push(slot(0, std::ptr::null()));
        slots
    }
}

/// A row of the table.
pub(super) fn slot(number: c_int, value: *const ()) -> PyType_Slot {
    PyType_Slot {
        slot: number,
        pfunc: value.cast_mut().cast::<c_void>(),
    }
}

/// The type, made at its first use.
pub(super) fn type_of(py: Python<'_>, class: Class) -> PyResult<Bound<'_, PyType>> {
    static BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static MUTABLE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let cell = match class {
        Class::Buffer => &BUFFER,
        Class::MutableBuffer => &MUTABLE,
    };
    let made = cell.get_or_try_init(py, || make_type(py, class))?;
    Ok(made.bind(py).clone())
}

fn make_type(py: Python<'_>, class: Class) -> PyResult<Py<PyType>> {
    let slots: &'static mut [PyType_Slot] = class.slots().leak();
    let flags =
        ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION | ffi::Py_TPFLAGS_IMMUTABLETYPE;
    let spec = Box::leak(Box::new(PyType_Spec {
        name: class.full_name().as_ptr(),
        basicsize: size_of::<Object>() as c_int,
        itemsize: 0,
        flags: flags as c_uint,
        slots: slots.as_mut_ptr(),
    }));
    // SAFETY: the spec and its tables live for ever, end with a zero slot, and each slot has a function of the signature CPython gives it.
    let made = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyType_FromSpec(&raw mut *spec)) }?;
    Ok(made.cast_into::<PyType>()?.unbind())
}

/// A new instance that owns `memory`.
pub(super) fn instance(py: Python<'_>, class: Class, memory: Memory) -> PyResult<Bound<'_, PyAny>> {
    let class = type_of(py, class)?;
    // SAFETY: the type is ours and not variable-sized; the result is a new reference or null with an exception set.
    let object = unsafe {
        let raw = ffi::PyType_GenericAlloc(class.as_type_ptr(), 0);
        Bound::from_owned_ptr_or_err(py, raw)
    }?;
    // SAFETY: allocated above with the size of `Object`, and nobody else knows it yet.
    unsafe { (*object.as_ptr().cast::<Object>()).memory = Box::into_raw(Box::new(memory)) };
    Ok(object)
}

/// The memory of an instance of `class`; `None` for other objects.
pub(super) fn memory_of<'a>(object: &'a Bound<'_, PyAny>, class: Class) -> Option<&'a Memory> {
    let class = type_of(object.py(), class).ok()?;
    // SAFETY: an object whose type is exactly ours was made by `instance`, and lives as long as the reference to it.
    object
        .get_type()
        .is(&class)
        .then(|| unsafe { memory(object.as_ptr()) })
}

/// # Safety
/// `object` is an instance of one of our types and outlives `'a`.
pub(super) unsafe fn memory<'a>(object: *mut PyObject) -> &'a Memory {
    // SAFETY: by the caller's promise the layout is `Object`, whose pointer `instance` set before anybody else saw it, and which
    // only `dealloc` frees.
    unsafe { &*(*object.cast::<Object>()).memory }
}

unsafe extern "C" fn dealloc(object: *mut PyObject) {
    // SAFETY: CPython calls this once, with an instance of our type that nobody refers to any more. Instances of heap types own a reference
    // to their type, which goes last.
    unsafe {
        let memory = (*object.cast::<Object>()).memory;
        if !memory.is_null() {
            drop(Box::from_raw(memory));
        }
        let class = ffi::Py_TYPE(object);
        let free = ffi::PyType_GetSlot(class, ffi::Py_tp_free);
        if !free.is_null() {
            let free = std::mem::transmute::<*mut c_void, ffi::freefunc>(free);
            free(object.cast());
        }
        ffi::Py_DECREF(class.cast());
    }
}

unsafe extern "C" fn get_buffer(object: *mut PyObject, view: *mut PyBufferView, flags: c_int) -> c_int {
    // SAFETY: CPython passes an instance of our type and a view to fill. FillInfo stores a new reference to `object` in it, which keeps
    // the memory alive until the view is released; when it refuses, it sets an exception.
    unsafe {
        let memory = memory(object);
        let len = memory.len as Py_ssize_t;
        let readonly = memory.is_readonly().into();
        let failed = PyBuffer_FillInfo(view, object, memory.ptr.cast(), len, readonly, flags);
        if failed == 0 {
            memory.views.fetch_add(1, Ordering::Relaxed);
        }
        failed
    }
}

unsafe extern "C" fn release_buffer(object: *mut PyObject, _view: *mut PyBufferView) {
    // SAFETY: CPython calls this once for each view that `get_buffer` filled, before it drops the view's reference.
    unsafe { memory(object) }.views.fetch_sub(1, Ordering::Relaxed);
}

unsafe extern "C" fn length(object: *mut PyObject) -> Py_ssize_t {
    // SAFETY: CPython passes an instance of our type, and the thread is attached.
    unsafe { called_by_python(-1, |_| Ok(memory(object).len as Py_ssize_t)) }
}
