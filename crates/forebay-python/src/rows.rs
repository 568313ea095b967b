//! Small classes that calls return: what is known of an object, rows of listings, results of writes, proofs of abilities.

use forebay_store::{Checksum, Entry, ObjectMeta, Proof, PutDone, WriteCheck};
use pyo3::prelude::*;

use crate::ledger::PyLedger;

/// What is known of an object without reading it.
#[pyclass(name = "ObjectMeta", module = "forebay", frozen, get_all, eq)]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PyObjectMeta {
    /// Its name in the store.
    key: String,
    /// Size in bytes.
    size: u64,
    /// Changes whenever the content does; opaque.
    version: Option<String>,
    /// Last change, in seconds since 1970.
    modified: Option<f64>,
    /// A checksum the store keeps, such as ``crc32c:0f1e2d3c``.
    checksum: Option<String>,
}

impl From<ObjectMeta> for PyObjectMeta {
    fn from(meta: ObjectMeta) -> Self {
        Self {
            key: meta.key.into(),
            size: meta.size,
            version: meta.version,
            modified: meta.modified.map(|since| since.as_secs_f64()),
            checksum: meta.checksum.map(|checksum| match checksum {
                Checksum::Crc32c(value) => format!("crc32c:{value:08x}"),
                Checksum::Crc64Nvme(value) => format!("crc64nvme:{value:016x}"),
            }),
        }
    }
}

#[pymethods]
impl PyObjectMeta {
    fn __repr__(&self) -> String {
        format!("<forebay.ObjectMeta {:?} of {} bytes>", self.key, self.size)
    }
}

/// A common prefix of objects, like a directory.
#[pyclass(name = "Prefix", module = "forebay", frozen, get_all, eq)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PyPrefix {
    /// Its name in the store, without a trailing slash.
    key: String,
}

#[pymethods]
impl PyPrefix {
    fn __repr__(&self) -> String {
        format!("<forebay.Prefix {:?}>", self.key)
    }
}

/// A row of a listing as the object Python gets.
pub(crate) fn entry(py: Python<'_>, entry: Entry) -> PyResult<Bound<'_, PyAny>> {
    match entry {
        Entry::Object(meta) => Ok(Bound::new(py, PyObjectMeta::from(meta))?.into_any()),
        Entry::Prefix(key) => Ok(Bound::new(py, PyPrefix { key: key.into() })?.into_any()),
    }
}

/// A finished write.
#[pyclass(name = "WriteResult", module = "forebay", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct PyWriteResult {
    /// Version of what was written, where the store tells.
    version: Option<String>,
    /// Size written.
    size: u64,
    /// CRC-64/NVME of what was written.
    crc64nvme: u64,
    /// How far it was checked: ``by_store``, ``durable`` or ``unchecked``.
    check: &'static str,
    /// Which way the bytes went.
    ledger: PyLedger,
}

impl From<PutDone> for PyWriteResult {
    fn from(done: PutDone) -> Self {
        Self {
            version: done.version,
            size: done.size,
            crc64nvme: done.crc64nvme,
            check: match done.check {
                WriteCheck::ByStore => "by_store",
                WriteCheck::Durable => "durable",
                WriteCheck::Unchecked => "unchecked",
            },
            ledger: done.ledger.into(),
        }
    }
}

#[pymethods]
impl PyWriteResult {
    fn __repr__(&self) -> String {
        format!("<forebay.WriteResult of {} bytes, {}>", self.size, self.check)
    }
}

/// What a probe found out about one ability; true only when it was tried and held.
#[pyclass(name = "Proof", module = "forebay", frozen, get_all, eq)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PyProof {
    /// ``shown``, ``refuted`` or ``untried``.
    state: &'static str,
    /// Why it is not shown.
    reason: Option<String>,
}

impl From<&Proof> for PyProof {
    fn from(proof: &Proof) -> Self {
        let (state, reason) = match proof {
            Proof::Shown => ("shown", None),
            Proof::Refuted(reason) => ("refuted", Some(reason.clone())),
            Proof::Untried(reason) => ("untried", Some(reason.clone())),
        };
        Self { state, reason }
    }
}

#[pymethods]
impl PyProof {
    fn __bool__(&self) -> bool {
        self.state == "shown"
    }

    fn __repr__(&self) -> String {
        match &self.reason {
            Some(reason) => format!("<forebay.Proof {}: {reason}>", self.state),
            None => format!("<forebay.Proof {}>", self.state),
        }
    }
}
