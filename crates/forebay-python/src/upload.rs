//! The class `Upload`: an object written in parts.

use std::sync::Arc;

use forebay_store::Upload;
use pyo3::prelude::*;
use pyo3::types::PyType;

use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::process::{self, Inside};
use crate::rows::PyWriteResult;
use crate::store::{Opened, bytes_of, record_copy};
use crate::wait::wait;

/// An object being written in parts. Nothing is visible before ``complete``; letting go of it without gives up.
///
/// As a context manager it completes at the end of the block, and aborts when the block raises.
#[pyclass(name = "Upload", module = "forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyUpload {
    state: ForkGuard<Inside<State>>,
}

#[derive(Debug)]
struct State {
    upload: Box<dyn Upload>,
    opened: Arc<Opened>,
}

impl PyUpload {
    pub(crate) fn new(opened: Arc<Opened>, upload: Box<dyn Upload>) -> Self {
        let process = opened.process();
        Self {
            state: ForkGuard::new(Inside::new(process, State { upload, opened })),
        }
    }

    fn state(&self, py: Python<'_>) -> PyResult<&State> {
        let state = self.state.get().map(|state| &**state);
        state.ok_or_else(|| errors::raise(py, &process::other_process("upload", "upload")))
    }
}

#[pymethods]
impl PyUpload {
    /// Size that every part but the last must have.
    #[getter]
    fn part_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.state(py)?.upload.part_bytes())
    }

    /// Write part ``index`` (from 0). Parts may go in any order and from several threads.
    fn put_part(&self, py: Python<'_>, index: u32, data: &Bound<'_, PyAny>) -> PyResult<PyLedger> {
        let state = self.state(py)?;
        let process = state.opened.process();
        let (buf, is_copied) = bytes_of(data, process)?;
        let len = buf.len() as u64;
        let mut ledger = wait(py, process, state.upload.put_part(index, buf.into()))?;
        if is_copied {
            record_copy(&mut ledger, len);
        }
        Ok(ledger.into())
    }

    /// Make the object visible, from all parts up to the last without a gap.
    fn complete(&self, py: Python<'_>) -> PyResult<PyWriteResult> {
        let state = self.state(py)?;
        Ok(wait(py, state.opened.process(), state.upload.complete())?.into())
    }

    /// Give up and remove what was written.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state(py)?;
        wait(py, state.opened.process(), state.upload.abort())
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyType>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match kind {
            None => self.complete(py).map(drop),
            Some(_) => self.abort(py),
        }
    }
}
