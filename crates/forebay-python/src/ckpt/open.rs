//! The class `NativeCheckpoint`: what is in a checkpoint, and its bytes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_ckpt::{Checkpoint, Content, Manifest, Tiered, verify};
use forebay_core::{DataPath, ErrorKind, Ledger, Result};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::load::{IntoRow, WantRow};
use super::value::from_value;
use super::{Damaged, Place, load, to_json};
use crate::buffer;
use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::process::{self, Inside};
use crate::wait::wait;

/// An open checkpoint.
#[pyclass(name = "NativeCheckpoint", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyNativeCheckpoint {
    opened: ForkGuard<Inside<Opened>>,
}

#[derive(Debug)]
struct Opened {
    place: Place,
    /// As the place has it that it is read from now.
    checkpoint: Mutex<Checkpoint>,
    /// The places behind that one, where there are several.
    tiered: Option<tokio::sync::Mutex<Tiered>>,
}

impl Opened {
    fn checkpoint(&self) -> Checkpoint {
        self.checkpoint
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Do something with the checkpoint; where that fails, with the same checkpoint of the next place.
    fn try_each<T: Send, F: Future<Output = Result<T>> + Send>(
        &self,
        py: Python<'_>,
        mut job: impl FnMut(Checkpoint) -> F,
    ) -> PyResult<T> {
        loop {
            let work = job(self.checkpoint());
            let error = match wait(py, self.place.process, async { Ok(work.await) })? {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let Some(tiered) = &self.tiered else {
                return Err(errors::raise(py, &error));
            };
            let next = wait(py, self.place.process, async {
                let mut tiered = tiered.lock().await;
                tiered.fall_back(error).await?;
                self.place.prepared(tiered.checkpoint())
            })?;
            *self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner) = next;
        }
    }

    /// Say in a ledger which places were passed over.
    fn note(&self, ledger: &mut Ledger) {
        let Some(tiered) = &self.tiered else { return };
        let Ok(tiered) = tiered.try_lock() else { return };
        let taken = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
        for tried in &tiered.from().not_from {
            ledger.record_downgrade(taken, taken, format!("not from {}: {}", tried.tier, tried.why));
        }
    }
}

/// Name, kind (tensor, value, opaque, alias), dtype, shape, and for an alias the tensor, the first element and the strides.
type EntryRow = (
    String,
    &'static str,
    &'static str,
    Vec<u64>,
    Option<(String, u64, Vec<u64>)>,
);

impl PyNativeCheckpoint {
    pub(super) fn new(place: &Place, checkpoint: Checkpoint, tiered: Option<Tiered>) -> Self {
        let opened = Opened {
            place: place.clone(),
            checkpoint: Mutex::new(checkpoint),
            tiered: tiered.map(tokio::sync::Mutex::new),
        };
        Self {
            opened: ForkGuard::new(Inside::new(place.process, opened)),
        }
    }

    /// The checkpoint of a step, or the newest of any place, from the nearest that has it; and what was passed over.
    pub(super) fn open_tiered(
        py: Python<'_>,
        place: &Place,
        step: Option<u64>,
    ) -> PyResult<(Option<Self>, Damaged)> {
        let found = wait(py, place.process, async {
            match place.tiers.open(step, false).await {
                Ok(tiered) => Ok(Some(tiered)),
                Err(error) if step.is_none() && error.kind() == ErrorKind::NotFound => {
                    // Told apart from a place that has some, none of which can be read.
                    let (placed, unreachable) = place.tiers.list().await?;
                    if placed.is_empty() && unreachable.is_empty() {
                        return Ok(None);
                    }
                    Err(error)
                }
                Err(error) => Err(error),
            }
        })?;
        let Some(tiered) = found else {
            return Ok((None, Vec::new()));
        };
        let passed = tiered.from().not_from.iter();
        let passed = passed.map(|tried| (tried.step, format!("{}: {}", tried.tier, tried.why)));
        let passed = passed.collect();
        let checkpoint = place.prepared(tiered.checkpoint());
        let checkpoint = checkpoint.map_err(|error| errors::raise(py, &error))?;
        Ok((Some(Self::new(place, checkpoint, Some(tiered))), passed))
    }

    fn opened(&self, py: Python<'_>) -> PyResult<&Opened> {
        let opened = self.opened.get().map(|opened| &**opened);
        opened.ok_or_else(|| errors::raise(py, &process::other_process("load", "checkpoint")))
    }
}

/// What a manifest says.
pub(super) fn described<'py>(py: Python<'py>, manifest: &Manifest) -> PyResult<Bound<'py, PyDict>> {
    let row = PyDict::new(py);
    row.set_item("step", manifest.step)?;
    row.set_item("attempt", manifest.attempt.to_string())?;
    row.set_item("time", manifest.committed.as_secs_f64())?;
    row.set_item("world", manifest.world())?;
    row.set_item("entries", manifest.entries)?;
    row.set_item("bytes_total", manifest.raw_bytes)?;
    row.set_item("bytes_written", manifest.written_bytes)?;
    row.set_item("hash", manifest.hash.name())?;
    row.set_item("chunk_bytes", manifest.chunk_bytes)?;
    row.set_item("publish", manifest.publish.name())?;
    row.set_item("features", &manifest.features)?;
    row.set_item("base", manifest.base.map(|base| base.step))?;
    row.set_item("chain", manifest.base.map_or(0, |base| base.chain))?;
    row.set_item("metadata", from_value(py, &manifest.metadata)?)?;
    Ok(row)
}

#[pymethods]
impl PyNativeCheckpoint {
    /// Its step.
    #[getter]
    fn step(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.opened(py)?.checkpoint().step())
    }

    /// What its manifest says.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        described(py, self.opened(py)?.checkpoint().manifest())
    }

    /// What is in it, over all ranks, each name once.
    fn entries(&self, py: Python<'_>) -> PyResult<Vec<EntryRow>> {
        let entries = |checkpoint: Checkpoint| async move { checkpoint.entries().await };
        let found = self.opened(py)?.try_each(py, entries)?;
        let mut seen = HashSet::new();
        let mut rows = Vec::new();
        for entry in found.into_iter().map(|found| found.entry) {
            if !seen.insert(entry.name.clone()) {
                continue;
            }
            rows.push(match entry.content {
                Content::Slice { spec, .. } => (entry.name, "tensor", spec.dtype.name(), spec.shape, None),
                Content::Value(_) => (entry.name, "value", "", Vec::new(), None),
                Content::Opaque(_) => (entry.name, "opaque", "", Vec::new(), None),
                Content::Alias(alias) => {
                    let of = (alias.target, alias.first_element, alias.strides);
                    (entry.name, "alias", alias.dtype.name(), alias.shape, Some(of))
                }
            });
        }
        Ok(rows)
    }

    /// A value of a rank, or of the first that has it; None where there is none.
    #[pyo3(signature = (name, rank=None))]
    fn value<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        rank: Option<u32>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = self.opened(py)?.try_each(py, |checkpoint| async move {
            match rank {
                Some(rank) => checkpoint.value_of(name, rank).await,
                None => checkpoint.value(name).await,
            }
        })?;
        value.map(|value| from_value(py, &value)).transpose()
    }

    /// Bytes that only their writer understands, of a rank, or of the first that has some; None where there are none.
    #[pyo3(signature = (name, rank=None))]
    fn opaque<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        rank: Option<u32>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.opened(py)?.try_each(py, |checkpoint| async move {
            match rank {
                Some(rank) => checkpoint.opaque_of(name, rank).await,
                None => checkpoint.opaque(name).await,
            }
        })?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Load boxes of tensors into memory of their own: buffers in their order, and the ledger.
    fn load<'py>(
        &self,
        py: Python<'py>,
        wants: Vec<WantRow>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, PyLedger)> {
        let opened = self.opened(py)?;
        let wants = Arc::from(wants);
        let loads = |checkpoint| load::load(&opened.place, checkpoint, &wants);
        let (memory, mut ledger) = opened.try_each(py, loads)?;
        opened.note(&mut ledger);
        let buffers = memory.into_iter().map(|memory| buffer::new_mutable(py, memory));
        Ok((buffers.collect::<PyResult<_>>()?, PyLedger::from(ledger)))
    }

    /// Load boxes of tensors into memory of the caller, named by addresses, which ``keep`` keeps.
    fn load_into(&self, py: Python<'_>, rows: Vec<IntoRow>, keep: Py<PyAny>) -> PyResult<PyLedger> {
        let opened = self.opened(py)?;
        let keep = Arc::new(Some(keep));
        let rows = load::checked(rows).map_err(|error| errors::raise(py, &error))?;
        let fills = |checkpoint| load::load_into(&opened.place, checkpoint, &rows, &keep);
        let mut ledger = opened.try_each(py, fills)?;
        opened.note(&mut ledger);
        Ok(PyLedger::from(ledger))
    }

    /// Compare everything with its hashes: what was found, as JSON.
    fn verify(&self, py: Python<'_>) -> PyResult<String> {
        let opened = self.opened(py)?;
        let checkpoint = opened.checkpoint();
        let verified = wait(py, opened.place.process, verify(&checkpoint, &|_| {}))?;
        to_json(py, &verified)
    }
}
