//! The class `NativeCheckpoint`: what is in a checkpoint, and its bytes.

use std::collections::HashSet;

use forebay_ckpt::{Checkpoint, Content, Manifest, verify};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use super::load::{IntoRow, WantRow};
use super::value::from_value;
use super::{Place, load, to_json};
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
    checkpoint: Checkpoint,
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
    pub(super) fn new(place: &Place, checkpoint: Checkpoint) -> Self {
        let opened = Opened {
            place: place.clone(),
            checkpoint,
        };
        Self {
            opened: ForkGuard::new(Inside::new(place.process, opened)),
        }
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
        Ok(self.opened(py)?.checkpoint.step())
    }

    /// What its manifest says.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        described(py, self.opened(py)?.checkpoint.manifest())
    }

    /// What is in it, over all ranks, each name once.
    fn entries(&self, py: Python<'_>) -> PyResult<Vec<EntryRow>> {
        let Opened { place, checkpoint } = self.opened(py)?;
        let found = wait(py, place.process, checkpoint.entries())?;
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
        let Opened { place, checkpoint } = self.opened(py)?;
        let value = match rank {
            Some(rank) => wait(py, place.process, checkpoint.value_of(name, rank))?,
            None => wait(py, place.process, checkpoint.value(name))?,
        };
        value.map(|value| from_value(py, &value)).transpose()
    }

    /// Bytes that only their writer understands; None where there are none.
    fn opaque<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Opened { place, checkpoint } = self.opened(py)?;
        let bytes = wait(py, place.process, checkpoint.opaque(name))?;
        Ok(bytes.map(|bytes| PyBytes::new(py, &bytes)))
    }

    /// Load boxes of tensors into memory of their own: buffers in their order, and the ledger.
    fn load<'py>(
        &self,
        py: Python<'py>,
        wants: Vec<WantRow>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, PyLedger)> {
        let Opened { place, checkpoint } = self.opened(py)?;
        load::load(py, place, checkpoint, wants)
    }

    /// Load boxes of tensors into memory of the caller, named by addresses, who keeps it alive.
    fn load_into(&self, py: Python<'_>, rows: Vec<IntoRow>) -> PyResult<PyLedger> {
        let Opened { place, checkpoint } = self.opened(py)?;
        load::load_into(py, place, checkpoint, rows)
    }

    /// Compare everything with its hashes: what was found, as JSON.
    fn verify(&self, py: Python<'_>) -> PyResult<String> {
        let Opened { place, checkpoint } = self.opened(py)?;
        let verified = wait(py, place.process, verify(checkpoint, &|_| {}))?;
        to_json(py, &verified)
    }
}
