//! The classes `NativeStream` and `NativeBatch`, which `forebay.stream` is made of.
//!
//! A stream knows its data set from the beginning, and its loader from the first batch on: until then it only knows where to begin. A wait that
//! Ctrl-C ended loses nothing, the next one goes on with it. What is said in words (positions, reports, schemas) crosses the border as JSON.

mod options;
mod pin;
mod value;

use std::ffi::CString;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_data::loader::{Batch, Loader, Outlook, Record, Sources, StreamSpec, Values};
use forebay_data::order::Position;
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::Serialize;

use crate::buffer;
use crate::errors;
use crate::fork::{ForkGuard, keep_away};
use crate::process::{self, Inside, Process};
use crate::wait::{drop_inside, wait, wait_telling};
use options::Options;
pub(crate) use value::stream_value;

/// Batches of a data set, in the order of the plan; see ``forebay.stream``, whose keyword arguments it takes as a dict.
#[pyclass(name = "NativeStream", module = "forebay._forebay")]
#[derive(Debug)]
pub(crate) struct PyNativeStream {
    state: ForkGuard<Inside<Option<State>>>,
    /// Batches that were taken from the loader. Python says how many of them it has given: an interruption may come between the two.
    taken: u64,
    /// The last of them, and where the stream stood before it, as JSON.
    last: Option<(Py<PyNativeBatch>, String)>,
}

#[derive(Debug)]
struct State {
    process: &'static Process,
    sources: Sources,
    spec: StreamSpec,
    /// None before the first batch.
    loader: Option<Loader>,
    /// What all its loaders did; none before the first.
    record: Option<Record>,
    /// Where the loader begins once it is made, and what it will give.
    outlook: Outlook,
}

impl State {
    async fn open(process: &'static Process, options: Options) -> Result<Self> {
        let (sources, spec) = options.open(process).await?;
        Ok(Self {
            process,
            outlook: Outlook::new(&sources, &spec, None)?,
            sources,
            spec,
            loader: None,
            record: None,
        })
    }

    fn loader(&mut self, py: Python<'_>) -> Result<&mut Loader> {
        match self.loader {
            Some(ref mut loader) => Ok(loader),
            ref mut none => {
                let sources = &self.sources;
                let record = self.record.get_or_insert_with(|| Record::new(sources));
                let (process, spec, position) = (self.process, &self.spec, &self.outlook.position);
                // It makes files and folders, which may be far away, and traces of a process share a lock.
                let loader = keep_away(py, || {
                    let _inside = process.runtime().enter();
                    Loader::go_on(spec, position, record.clone())
                })?;
                Ok(none.insert(loader))
            }
        }
    }

    fn position(&self) -> Position {
        match &self.loader {
            Some(loader) => loader.position(),
            None => self.outlook.position.clone(),
        }
    }

    /// Stop after an error, to begin there once more next time: what is behind it would go missing without a word.
    fn stop_here(&mut self, py: Python<'_>) {
        self.outlook.position = self.position();
        let gone = self.loader.take();
        drop_inside(py, self.process, gone);
    }

    /// Stop, to begin elsewhere next time.
    fn stop(&mut self, outlook: Outlook) -> Option<Loader> {
        self.outlook = outlook;
        self.loader.take()
    }
}

impl PyNativeStream {
    fn state(&self, py: Python<'_>) -> PyResult<&State> {
        let state = self.state.get().ok_or_else(forked);
        let state = state.and_then(|state| state.as_ref().ok_or_else(closed));
        state.map_err(|error| errors::raise(py, &error))
    }

    fn state_mut(&mut self, py: Python<'_>) -> PyResult<&mut State> {
        let state = self.state.get_mut().ok_or_else(forked);
        let state = state.and_then(|state| state.as_mut().ok_or_else(closed));
        state.map_err(|error| errors::raise(py, &error))
    }
}

fn forked() -> Error {
    process::other_process("stream", "stream")
}

fn closed() -> Error {
    Error::new(ErrorKind::InvalidInput, "stream", "the stream is closed")
}

#[pymethods]
impl PyNativeStream {
    #[new]
    fn new(py: Python<'_>, urls: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = Options::new(urls, options)?;
        let process = Process::get(py)?;
        let notes = options.notes();
        let tell = || notes.take().iter().try_for_each(|note| warn(py, note, 3));
        let state = wait_telling(py, process, State::open(process, options), tell)?;
        Ok(Self {
            state: ForkGuard::new(Inside::new(process, Some(state))),
            taken: 0,
            last: None,
        })
    }

    /// Refuse what ``new`` would refuse of any data set, without opening one.
    #[staticmethod]
    fn check(py: Python<'_>, urls: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<()> {
        let options = Options::new(urls, options)?;
        options.check().map_err(|error| errors::raise(py, &error))
    }

    /// Batches that were taken from the loader, given or not.
    #[getter]
    fn taken(&self) -> u64 {
        self.taken
    }

    /// The batch after the first `given`, which may be one that was taken before; None after the last.
    fn next(&mut self, py: Python<'_>, given: u64) -> PyResult<Option<Py<PyNativeBatch>>> {
        if let Some((last, _)) = self.last.as_ref().filter(|_| given < self.taken) {
            self.state(py)?;
            return Ok(Some(last.clone_ref(py)));
        }
        self.last = None;
        let before = self.position(py, given)?;
        let state = self.state_mut(py)?;
        let process = state.process;
        let loader = state.loader(py).map_err(|error| errors::raise(py, &error))?;
        let batch = match wait(py, process, async { Ok(loader.next_batch().await) })? {
            None => return Ok(None),
            Some(Ok(batch)) => batch,
            Some(Err(error)) => {
                if !loader.is_at_end() {
                    state.stop_here(py);
                }
                return Err(errors::raise(py, &error));
            }
        };
        let next = PyNativeBatch {
            is_last: loader.is_between_epochs(),
            batches_ahead: loader.batches(),
            batch: ForkGuard::new(batch),
            sources: ForkGuard::new(Inside::new(process, state.sources.clone())),
        };
        let next = Py::new(py, next)?;
        self.taken += 1;
        self.last = Some((next.clone_ref(py), before));
        Ok(Some(next))
    }

    /// Where it stands after the first `given` batches, as JSON.
    fn position(&self, py: Python<'_>, given: u64) -> PyResult<String> {
        let state = self.state(py)?;
        if let Some((_, before)) = self.last.as_ref().filter(|_| given < self.taken) {
            return Ok(before.clone());
        }
        let position = state.position().to_json();
        position.map_err(|error| errors::raise(py, &error))
    }

    /// Go on from a position, after the first `given` batches.
    fn restart(&mut self, py: Python<'_>, position: &str, given: u64) -> PyResult<()> {
        let state = self.state_mut(py)?;
        let outlook = Position::from_json(position)
            .and_then(|position| Outlook::new(&state.sources, &state.spec, Some(&position)));
        let outlook = outlook.map_err(|error| errors::raise(py, &error))?;
        if outlook.is_over {
            let note = "nothing is left: the state is at the end of the last epoch, and epochs counts from the beginning of the run";
            warn(py, note, 2)?;
        }
        let gone = state.stop(outlook);
        drop_inside(py, state.process, gone);
        (self.taken, self.last) = (given, None);
        Ok(())
    }

    /// Batches of one epoch.
    #[getter]
    fn batches(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.state(py)?.outlook.batches)
    }

    /// Samples of the data set that are kept.
    #[getter]
    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.state(py)?.sources.samples_kept())
    }

    /// The fields that are streamed, as JSON.
    fn schema(&self, py: Python<'_>) -> PyResult<String> {
        to_json(py, &self.state(py)?.outlook.fields)
    }

    /// What was done since the beginning, as JSON.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        let state = self.state(py)?;
        let report = match (&state.loader, &state.record) {
            (Some(loader), _) => Some(loader.report()),
            (None, record) => record.as_ref().map(Record::report),
        };
        to_json(py, &report)
    }

    /// Stop everything.
    fn close(&mut self, py: Python<'_>) {
        self.last = None;
        if let Some(state) = self.state.get_mut() {
            let process = state.as_ref().map(|state| state.process);
            let gone = state.take();
            if let Some(process) = process {
                drop_inside(py, process, gone);
            }
        }
    }
}

/// A warning to whoever called what is so many calls above this.
fn warn(py: Python<'_>, note: &str, stack_level: i32) -> PyResult<()> {
    let note = CString::new(note.replace('\0', "?"))?;
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), &note, stack_level)
}

fn to_json(py: Python<'_>, value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| {
        let message = "value cannot be JSON";
        errors::raise(
            py,
            &Error::new(ErrorKind::Internal, "stream", message).with_source(error),
        )
    })
}

/// The samples of one step.
#[pyclass(name = "NativeBatch", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyNativeBatch {
    batch: ForkGuard<Batch>,
    sources: ForkGuard<Inside<Sources>>,
    is_last: bool,
    batches_ahead: u64,
}

/// Name, bytes, and offsets where samples have different sizes.
type Part<'py> = (String, Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

#[pymethods]
impl PyNativeBatch {
    /// The epoch it belongs to.
    #[getter]
    fn epoch(&self) -> u64 {
        self.batch.get_anywhere().epoch()
    }

    /// Its number in the epoch.
    #[getter]
    fn index(&self) -> u64 {
        self.batch.get_anywhere().index()
    }

    /// Whether it is the last of its epoch.
    #[getter]
    fn is_last(&self) -> bool {
        self.is_last
    }

    /// Batches of the epoch that the one behind it is in.
    #[getter]
    fn batches_ahead(&self) -> u64 {
        self.batches_ahead
    }

    fn __len__(&self) -> usize {
        self.batch.get_anywhere().len()
    }

    /// What the samples are called.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let sources = self.sources.get_anywhere();
        let keys = self.batch.get_anywhere().keys().iter();
        let shard_key = |number: u32| sources.shard(number).map(|(_, shard)| shard.key.clone());
        PyList::new(py, keys.map(|key| key.text(shard_key)))
    }

    /// The fields: ``(name, bytes, None)``, or ``(name, bytes, offsets)`` where samples have different sizes.
    fn parts<'py>(&self, py: Python<'py>) -> PyResult<Vec<Part<'py>>> {
        let batch = self.batch.get_anywhere();
        let part = |buf| buffer::new_buffer(py, buf, Ledger::default());
        let parts = batch.fields().iter().map(|field| {
            let name = field.field.name.clone();
            Ok(match batch.values(field) {
                Values::Fixed(bytes) => (name, part(bytes)?, None),
                Values::Ragged { offsets, bytes } => (name, part(bytes)?, Some(part(offsets)?)),
            })
        });
        parts.collect()
    }
}
