//! Exceptions: one class per error kind, under `ForebayError`.
//!
//! The classes are made from [`ErrorKind::ALL`], so a new kind has its class at once. Where Python has a class of that meaning, ours is a
//! subclass of it too: code that catches `FileNotFoundError` or `TimeoutError` goes on working.

use forebay_core::{Error, ErrorKind};
use pyo3::exceptions::{
    PyConnectionError, PyException, PyFileExistsError, PyFileNotFoundError, PyNotImplementedError, PyOSError,
    PyPermissionError, PyTimeoutError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

/// Classes in the order of [`ErrorKind::ALL`].
static CLASSES: PyOnceLock<Vec<Py<PyType>>> = PyOnceLock::new();

const BASE_DOC: &str = "Something Forebay could not do.

Attributes:
    kind: which kind of error, such as ``not_found``
    op: the operation that failed
    location: the place, where one is known
    hint: what you can do, where there is something";

/// Make the classes and put them into the module.
pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let base = class(py, "ForebayError", &[py.get_type::<PyException>()], BASE_DOC)?;
    for name in ["kind", "op", "location", "hint"] {
        base.setattr(name, py.None())?;
    }
    module.add("ForebayError", &base)?;
    let mut classes = Vec::with_capacity(ErrorKind::ALL.len());
    for kind in ErrorKind::ALL {
        let mut bases = vec![base.clone()];
        let natural = builtin(py, *kind);
        let errno = natural.as_ref().and_then(|(_, errno)| *errno);
        bases.extend(natural.map(|(natural, _)| natural));
        let doc = format!("{}.", capitalized(kind.name()));
        let class = class(py, kind.python_class(), &bases, &doc)?;
        class.setattr("kind", slug(*kind))?;
        if let Some(errno) = errno {
            // On the class and not on instances, where it lies outside the attributes that pickling keeps.
            class.setattr("errno", errno)?;
        }
        module.add(kind.python_class(), &class)?;
        classes.push(class.unbind());
    }
    // Importing twice (a second interpreter is refused by the module machinery) keeps the first set.
    let _ = CLASSES.set(py, classes);
    Ok(())
}

/// The exception for an error.
pub(crate) fn raise(py: Python<'_>, error: &Error) -> PyErr {
    exception(py, error).unwrap_or_else(|failed| failed)
}

fn exception(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let place = ErrorKind::ALL.iter().position(|kind| *kind == error.kind());
    let class = place.and_then(|place| CLASSES.get(py)?.get(place));
    let Some(class) = class else {
        return Ok(PyException::new_err(error.to_string()));
    };
    let mut text = error.to_string();
    if let Some(hint) = error.hint() {
        text = format!("{text} (hint: {hint})");
    }
    let instance = class.bind(py).call1((text,))?;
    instance.setattr("op", error.op())?;
    instance.setattr("location", error.location())?;
    instance.setattr("hint", error.hint())?;
    Ok(PyErr::from_value(instance))
}

/// The built-in class of the same meaning, with the error number it stands for.
fn builtin(py: Python<'_>, kind: ErrorKind) -> Option<(Bound<'_, PyType>, Option<i32>)> {
    Some(match kind {
        ErrorKind::NotFound => (py.get_type::<PyFileNotFoundError>(), Some(libc::ENOENT)),
        ErrorKind::AlreadyExists => (py.get_type::<PyFileExistsError>(), Some(libc::EEXIST)),
        ErrorKind::PermissionDenied | ErrorKind::Unauthenticated => {
            (py.get_type::<PyPermissionError>(), Some(libc::EACCES))
        }
        ErrorKind::InvalidInput => (py.get_type::<PyValueError>(), None),
        ErrorKind::Unsupported => (py.get_type::<PyNotImplementedError>(), None),
        ErrorKind::Timeout => (py.get_type::<PyTimeoutError>(), Some(libc::ETIMEDOUT)),
        ErrorKind::Unavailable => (py.get_type::<PyConnectionError>(), None),
        ErrorKind::OutOfSpace => (py.get_type::<PyOSError>(), Some(libc::ENOSPC)),
        ErrorKind::ReadOnly => (py.get_type::<PyOSError>(), Some(libc::EROFS)),
        ErrorKind::Io => (py.get_type::<PyOSError>(), Some(libc::EIO)),
        _ => return None,
    })
}

/// `type(name, bases, {...})`, which unlike the C function takes several bases.
fn class<'py>(
    py: Python<'py>,
    name: &str,
    bases: &[Bound<'py, PyType>],
    doc: &str,
) -> PyResult<Bound<'py, PyType>> {
    let body = PyDict::new(py);
    body.set_item("__module__", "forebay")?;
    body.set_item("__doc__", doc)?;
    let bases = PyTuple::new(py, bases)?;
    Ok(py.get_type::<PyType>().call1((name, bases, body))?.cast_into()?)
}

/// `PermissionDenied` -> `permission_denied`.
fn slug(kind: ErrorKind) -> String {
    let mut slug = String::new();
    for letter in format!("{kind:?}").chars() {
        if letter.is_ascii_uppercase() && !slug.is_empty() {
            slug.push('_');
        }
        slug.push(letter.to_ascii_lowercase());
    }
    slug
}

fn capitalized(words: &str) -> String {
    let mut letters = words.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
