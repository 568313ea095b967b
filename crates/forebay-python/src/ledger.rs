//! The class `Ledger`: which way bytes went, as an object, a table and a dict.

use std::sync::Arc;

use forebay_core::Ledger;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// How many bytes took which path, with how many requests and copies, and why a faster path was not taken.
///
/// Ledgers add up: ``a + b``, ``sum(ledgers, Ledger())``. ``str(ledger)`` is a table.
#[pyclass(name = "Ledger", module = "forebay", frozen, eq)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PyLedger(Arc<Ledger>);

impl From<&Arc<Ledger>> for PyLedger {
    fn from(ledger: &Arc<Ledger>) -> Self {
        Self(Arc::clone(ledger))
    }
}

impl From<Ledger> for PyLedger {
    fn from(ledger: Ledger) -> Self {
        Self(Arc::new(ledger))
    }
}

#[pymethods]
impl PyLedger {
    /// An empty ledger.
    #[new]
    fn new() -> Self {
        Self::from(Ledger::default())
    }

    /// Bytes over all paths.
    #[getter]
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Requests over all paths.
    #[getter]
    fn requests(&self) -> u64 {
        self.0.paths.values().map(|totals| totals.requests).sum()
    }

    /// Bytes copied on the way, over all paths; zero when they landed where they were wanted.
    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.0.paths.values().map(|totals| totals.copied_bytes).sum()
    }

    /// Requests that were tried again, over all paths.
    #[getter]
    fn retries(&self) -> u64 {
        self.0.paths.values().map(|totals| totals.retries).sum()
    }

    /// Bytes whose checksum was compared with one made when they were written or sent.
    #[getter]
    fn verified_bytes(&self) -> u64 {
        self.0.verified_bytes
    }

    /// CPU time of this process spent on the operation, where it was measured.
    #[getter]
    fn cpu_ns(&self) -> u64 {
        self.0.cpu_ns
    }

    /// Totals by path: ``{"direct_uring": {"bytes": ..., "requests": ..., "copied_bytes": ..., "retries": ...}}``.
    #[getter]
    fn paths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let paths = PyDict::new(py);
        for (path, totals) in &self.0.paths {
            let row = PyDict::new(py);
            row.set_item("bytes", totals.bytes)?;
            row.set_item("requests", totals.requests)?;
            row.set_item("copied_bytes", totals.copied_bytes)?;
            row.set_item("retries", totals.retries)?;
            paths.set_item(path.name(), row)?;
        }
        Ok(paths)
    }

    /// Steps down from a faster path: ``[{"wanted": ..., "taken": ..., "reason": ...}]``.
    #[getter]
    fn downgrades<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let downgrades = PyList::empty(py);
        for downgrade in &self.0.downgrades {
            let row = PyDict::new(py);
            row.set_item("wanted", downgrade.wanted.name())?;
            row.set_item("taken", downgrade.taken.name())?;
            row.set_item("reason", &downgrade.reason)?;
            downgrades.append(row)?;
        }
        Ok(downgrades)
    }

    /// Distinct downgrades beyond those kept.
    #[getter]
    fn downgrades_dropped(&self) -> u64 {
        self.0.downgrades_dropped
    }

    /// The whole ledger in the form of its JSON.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("paths", self.paths(py)?)?;
        dict.set_item("verified_bytes", self.0.verified_bytes)?;
        dict.set_item("cpu_ns", self.0.cpu_ns)?;
        dict.set_item("downgrades", self.downgrades(py)?)?;
        dict.set_item("downgrades_dropped", self.0.downgrades_dropped)?;
        Ok(dict)
    }

    /// The sum of this ledger and another one; neither changes.
    fn merge(&self, other: &Self) -> Self {
        let mut sum = (*self.0).clone();
        sum.merge(&other.0);
        Self::from(sum)
    }

    fn __add__(&self, other: &Self) -> Self {
        self.merge(other)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let paths: Vec<String> = self
            .0
            .paths
            .iter()
            .map(|(path, totals)| format!("{path}: {} bytes", totals.bytes))
            .collect();
        format!(
            "<forebay.Ledger {}>",
            if paths.is_empty() {
                "empty".to_owned()
            } else {
                paths.join(", ")
            }
        )
    }
}
