//! The iterator that `Store.list` returns.
//!
//! Rows are taken from the store's stream in batches: as many as are ready, at most [`BATCH_ROWS_MAX`], so that a listing of
//! millions needs little memory and few trips past the interpreter lock.

use std::collections::VecDeque;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::Result;
use forebay_store::{Entry, Listing, is_special_file};
use futures::stream::{BoxStream, StreamExt};
use pyo3::prelude::*;

use crate::errors;
use crate::fork::ForkGuard;
use crate::process::{self, Inside};
use crate::rows;
use crate::store::Opened;
use crate::wait::wait;

/// Rows held at once: one page of an S3 listing.
const BATCH_ROWS_MAX: usize = 1000;

/// Rows of a listing: ``ObjectMeta``, and ``Prefix`` where it is not recursive.
///
/// A name that cannot be listed raises when its turn comes; iterating again goes on behind it.
#[pyclass(name = "Listing", module = "forebay")]
pub(crate) struct PyListing {
    state: ForkGuard<Inside<State>>,
}

struct State {
    opened: Arc<Opened>,
    /// Never locked: the class must be shareable, but rows are taken by one thread at a time.
    batches: Mutex<BoxStream<'static, Vec<Result<Entry>>>>,
    rows: VecDeque<Result<Entry>>,
}

impl PyListing {
    pub(crate) fn new(opened: Arc<Opened>, rows: Listing) -> Self {
        let process = opened.process();
        let state = State {
            opened,
            // Sockets, FIFOs and devices are no objects; only copies have to say what they leave out.
            batches: Mutex::new(
                rows.filter(|row| ready(!row.as_ref().is_err_and(is_special_file)))
                    .ready_chunks(BATCH_ROWS_MAX)
                    .boxed(),
            ),
            rows: VecDeque::new(),
        };
        Self {
            state: ForkGuard::new(Inside::new(process, state)),
        }
    }
}

#[pymethods]
impl PyListing {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(state) = self.state.get_mut().map(|state| &mut **state) else {
            return Err(errors::raise(py, &process::other_process("list", "listing")));
        };
        if state.rows.is_empty() {
            let process = state.opened.process();
            let batches = state.batches.get_mut().unwrap_or_else(PoisonError::into_inner);
            let batch = wait(py, process, async {
                Ok(batches.next().await.unwrap_or_default())
            })?;
            state.rows.extend(batch);
        }
        match state.rows.pop_front() {
            Some(Ok(entry)) => rows::entry(py, entry).map(Some),
            Some(Err(error)) => Err(errors::raise(py, &error)),
            None => Ok(None),
        }
    }
}

impl fmt::Debug for PyListing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PyListing").finish_non_exhaustive()
    }
}
