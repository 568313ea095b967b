//! Pinning the memory of batches by calls into Python: whoever has a device (torch, cupy) knows how.

use std::ptr::NonNull;

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::PinHook;
use pyo3::prelude::*;

use crate::ending;

/// A pair of functions of an address and a size.
#[derive(Debug)]
pub(super) struct PythonPin {
    pin: Py<PyAny>,
    unpin: Py<PyAny>,
}

impl PythonPin {
    pub(super) fn new(pin: Py<PyAny>, unpin: Py<PyAny>) -> Self {
        Self { pin, unpin }
    }
}

impl PinHook for PythonPin {
    fn pin(&self, ptr: NonNull<u8>, len: usize) -> Result<()> {
        let refused = |why: String| {
            let message = format!("the memory of batches cannot be pinned: {why}");
            Error::new(ErrorKind::Unsupported, "stream", message)
        };
        match ending::call(|py| self.pin.call1(py, (ptr.as_ptr() as usize, len)).map(drop)) {
            Some(pinned) => pinned.map_err(|error| refused(error.to_string())),
            None => Err(refused("the interpreter ends".to_owned())),
        }
    }

    fn unpin(&self, ptr: NonNull<u8>, len: usize) {
        // An interpreter that ends has no devices any more.
        let unpinned = ending::call(|py| self.unpin.call1(py, (ptr.as_ptr() as usize, len)).map(drop));
        if let Some(Err(error)) = unpinned {
            tracing::warn!("the memory of batches stays pinned: {error}");
        }
    }
}
