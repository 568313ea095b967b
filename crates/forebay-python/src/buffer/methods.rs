//! What can be done with a buffer from Python, beside viewing it: indexing, comparing, converting.

use std::ffi::{CStr, c_int, c_void};

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::ffi::{self, PyGetSetDef, PyMethodDef, PyMethodDefPointer, PyObject, PyType_Slot};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PySlice, PyString};

use super::objects::{Class, memory, slot};
use super::{Hold, Memory};
use crate::ffi::called_by_python;
use crate::ledger::PyLedger;
use crate::view::View;

/// The rows of the type's table that are not about memory.
pub(super) fn slots(class: Class) -> Vec<PyType_Slot> {
    let (methods, getters) = match class {
        Class::Buffer => (
            vec![method(c"tobytes", tobytes, c"tobytes($self, /)\n--\n\nA copy as bytes.")],
            vec![
                getter(c"ledger", get_ledger, c"Which way the bytes came."),
                getter(c"nbytes", get_nbytes, c"Number of bytes."),
                getter(c"address", get_address, c"Address of the first byte."),
            ],
        ),
        Class::MutableBuffer => (
            vec![
                method(c"tobytes", tobytes, c"tobytes($self, /)\n--\n\nA copy as bytes."),
                method(
                    c"freeze",
                    freeze,
                    c"freeze($self, /)\n--\n\nHand the memory over to a Buffer, without a copy. Refused while there are views.",
                ),
            ],
            vec![
                getter(c"nbytes", get_nbytes, c"Number of bytes."),
                getter(c"address", get_address, c"Address of the first byte."),
            ],
        ),
    };
    let mut slots = vec![
        slot(ffi::Py_tp_methods, ended(methods)),
        slot(ffi::Py_tp_getset, ended(getters)),
        slot(ffi::Py_tp_repr, repr as *const ()),
    ];
    if class == Class::Buffer {
        slots.push(slot(ffi::Py_mp_subscript, subscript as *const ()));
        slots.push(slot(ffi::Py_tp_richcompare, compare as *const ()));
        // Equal to bytes of the same content, whose hash we would have to compute over all of it.
        slots.push(slot(
            ffi::Py_tp_hash,
            ffi::PyObject_HashNotImplemented as *const (),
        ));
    }
    slots
}

/// A table of C, ended by a zeroed row, that lives for ever.
fn ended<T>(mut rows: Vec<T>) -> *const () {
    // SAFETY: both row types are plain structs of pointers and integers, for which zero is the end mark of CPython.
    rows.push(unsafe { std::mem::zeroed() });
    rows.leak().as_ptr().cast()
}

fn method(
    name: &'static CStr,
    function: unsafe extern "C" fn(*mut PyObject, *mut PyObject) -> *mut PyObject,
    doc: &'static CStr,
) -> PyMethodDef {
    PyMethodDef {
        ml_name: name.as_ptr(),
        ml_meth: PyMethodDefPointer {
            PyCFunction: function,
        },
        ml_flags: ffi::METH_NOARGS,
        ml_doc: doc.as_ptr(),
    }
}

fn getter(
    name: &'static CStr,
    function: unsafe extern "C" fn(*mut PyObject, *mut c_void) -> *mut PyObject,
    doc: &'static CStr,
) -> PyGetSetDef {
    PyGetSetDef {
        name: name.as_ptr(),
        get: Some(function),
        set: None,
        doc: doc.as_ptr(),
        closure: std::ptr::null_mut(),
    }
}

/// Run a method of an instance and return a new reference, or null with an exception set.
///
/// # Safety
/// `object` is an instance of one of our types and the thread is attached: what CPython promises to slots and methods.
unsafe fn with_memory<'py>(
    object: *mut PyObject,
    body: impl FnOnce(&Bound<'py, PyAny>, &Memory) -> PyResult<Bound<'py, PyAny>>,
) -> *mut PyObject {
    // SAFETY: the caller's promise; the token lives as long as the call, which `'py` cannot outlive since nothing escapes but
    // the owned reference.
    unsafe {
        called_by_python(std::ptr::null_mut(), |_| {
            let object = Bound::from_borrowed_ptr(Python::assume_attached(), object);
            let memory = memory(object.as_ptr());
            body(&object, memory).map(Bound::into_ptr)
        })
    }
}

unsafe extern "C" fn tobytes(object: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`.
    unsafe {
        with_memory(object, |object, _| {
            let view = View::readable(object)?;
            Ok(PyBytes::new(object.py(), view.bytes()).into_any())
        })
    }
}

unsafe extern "C" fn freeze(object: *mut PyObject, _: *mut PyObject) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`.
    unsafe { with_memory(object, |object, memory| super::freeze(object, memory)) }
}

unsafe extern "C" fn get_ledger(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`.
    unsafe {
        with_memory(object, |object, memory| match &memory.hold {
            Hold::Frozen { ledger, .. } => {
                let ledger = PyLedger::from(ledger);
                Ok(Bound::new(object.py(), ledger)?.into_any())
            }
            Hold::Mutable(_) => Err(PyTypeError::new_err("no ledger")),
        })
    }
}

unsafe extern "C" fn get_nbytes(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`.
    unsafe {
        with_memory(object, |object, memory| {
            Ok(memory.len.into_pyobject(object.py())?.into_any())
        })
    }
}

unsafe extern "C" fn get_address(object: *mut PyObject, _: *mut c_void) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`.
    unsafe {
        with_memory(object, |object, memory| {
            Ok(memory.ptr.addr().into_pyobject(object.py())?.into_any())
        })
    }
}

unsafe extern "C" fn repr(object: *mut PyObject) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`.
    unsafe {
        with_memory(object, |object, memory| {
            let class = object.get_type().name()?;
            let text = format!("<forebay.{class} of {} bytes>", memory.len);
            Ok(PyString::new(object.py(), &text).into_any())
        })
    }
}

unsafe extern "C" fn subscript(object: *mut PyObject, key: *mut PyObject) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`. The key is borrowed for the call.
    unsafe {
        with_memory(object, |object, memory| {
            let key = Bound::from_borrowed_ptr(object.py(), key);
            let Hold::Frozen { buf, ledger } = &memory.hold else {
                return Err(PyTypeError::new_err("no index"));
            };
            if let Ok(slice) = key.cast::<PySlice>() {
                let range = slice.indices(memory.len as isize)?;
                if range.step != 1 {
                    return Err(PyValueError::new_err(
                        "slices share memory and have a step of 1; use memoryview for others",
                    ));
                }
                let start = range.start as usize;
                let part = buf.get_anywhere().slice(start..start + range.slicelength);
                let part = Memory::frozen(part, ledger.clone(), buf.pid());
                return super::objects::instance(object.py(), Class::Buffer, part);
            }
            let index: isize = key.extract()?;
            let index = if index < 0 {
                index + memory.len as isize
            } else {
                index
            };
            let byte = usize::try_from(index)
                .ok()
                .and_then(|index| buf.get_anywhere().get(index).copied());
            let byte = byte.ok_or_else(|| PyIndexError::new_err("index is beyond the buffer"))?;
            Ok(byte.into_pyobject(object.py())?.into_any())
        })
    }
}

unsafe extern "C" fn compare(object: *mut PyObject, other: *mut PyObject, op: c_int) -> *mut PyObject {
    // SAFETY: as CPython promises; see `with_memory`. The other object is borrowed for the call.
    unsafe {
        with_memory(object, |object, _| {
            let py = object.py();
            let other = Bound::from_borrowed_ptr(py, other);
            let not_implemented = py.NotImplemented().into_bound(py);
            let wants_equal = match op {
                ffi::Py_EQ => true,
                ffi::Py_NE => false,
                _ => return Ok(not_implemented),
            };
            let Ok(theirs) = View::readable(&other) else {
                return Ok(not_implemented);
            };
            let equal = View::readable(object)?.bytes() == theirs.bytes();
            Ok((equal == wants_equal).into_pyobject(py)?.to_owned().into_any())
        })
    }
}
