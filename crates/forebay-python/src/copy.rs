//! The function `copy` and its result.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_store::copy::{Copier, CopyOptions, CopyReport, Verify};
use forebay_store::{Context, PutMode, Store, open, open_object};
use pyo3::prelude::*;

use crate::errors;
use crate::ledger::PyLedger;
use crate::process::Process;
use crate::wait::wait;

/// What a copy did.
#[pyclass(name = "CopyResult", module = "forebay", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct PyCopyResult {
    /// Objects copied, and checked as asked.
    objects: u64,
    /// Their bytes.
    bytes: u64,
    /// Objects that were there already.
    objects_skipped: u64,
    /// Bytes that an earlier, interrupted copy had moved already.
    bytes_resumed: u64,
    /// Objects whose bytes have the checksum that the source keeps.
    source_matched: u64,
    /// Objects the destination compared itself.
    checked_by_store: u64,
    /// Objects that were read back.
    checked_by_read_back: u64,
    /// Which way the bytes went.
    ledger: PyLedger,
}

impl From<CopyReport> for PyCopyResult {
    fn from(report: CopyReport) -> Self {
        Self {
            objects: report.objects_copied,
            bytes: report.bytes_copied,
            objects_skipped: report.objects_skipped,
            bytes_resumed: report.bytes_resumed,
            source_matched: report.source_matched,
            checked_by_store: report.checked_by_store,
            checked_by_read_back: report.checked_by_read_back,
            ledger: report.ledger.into(),
        }
    }
}

#[pymethods]
impl PyCopyResult {
    fn __repr__(&self) -> String {
        format!(
            "<forebay.CopyResult {} objects, {} bytes>",
            self.objects, self.bytes
        )
    }
}

/// Copy an object from one URL to another, or with ``recursive`` everything below a prefix: in parallel, resumable, verified.
///
/// Args:
///     source: URL of the object or prefix
///     destination: URL of the copy
///     recursive: copy everything below ``source`` to the same names below ``destination``
///     verify: ``"auto"`` (by the store where it is shown to check, else by reading back), ``"read_back"`` or ``"none"``
///     if_absent: an object that exists at the destination is an error
#[pyfunction]
#[pyo3(signature = (source, destination, *, recursive=false, verify="auto", if_absent=false))]
pub(crate) fn copy(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    recursive: bool,
    verify: &str,
    if_absent: bool,
) -> PyResult<PyCopyResult> {
    let raise = |error: Error| errors::raise(py, &error);
    let base = std::env::current_dir().map_err(|error| raise(Error::from_io("copy", error)))?;
    let locate = |path: PathBuf| Location::parse_os(&path.into_os_string(), &base).map_err(raise);
    let (from, to) = (locate(source)?, locate(destination)?);
    let options = CopyOptions {
        verify: verify_of(verify).map_err(raise)?,
        mode: if if_absent {
            PutMode::IfAbsent
        } else {
            PutMode::Replace
        },
        ..CopyOptions::default()
    };
    let process = Process::get(py)?;
    let report = wait(py, process, run(from, to, recursive, options, process.context()))?;
    Ok(report.into())
}

async fn run(
    from: Location,
    to: Location,
    recursive: bool,
    options: CopyOptions,
    context: &Context,
) -> Result<CopyReport> {
    let report = if recursive {
        let (source, destination) = (open(&from, context).await?, open(&to, context).await?);
        copier(source, destination, options, context)
            .tree(&Key::ROOT, &Key::ROOT)
            .await?
    } else {
        let (source, from) = open_object(&from, context).await?;
        let (destination, to) = open_object(&to, context).await?;
        copier(source, destination, options, context)
            .objects(vec![(from, to)])
            .await?
    };
    let failed = report.objects_failed;
    match report.failures.into_iter().next() {
        None => Ok(CopyReport {
            failures: Vec::new(),
            ..report
        }),
        Some(first) if failed > 1 => {
            let hint = format!(
                "{} other objects were not copied either; run it again to go on",
                failed - 1
            );
            Err(first.error.with_hint(hint))
        }
        Some(first) => Err(first.error),
    }
}

fn copier(
    source: Arc<dyn Store>,
    destination: Arc<dyn Store>,
    options: CopyOptions,
    context: &Context,
) -> Copier {
    Copier::new(source, destination, context).with_options(options)
}

fn verify_of(name: &str) -> Result<Verify> {
    match name {
        "auto" => Ok(Verify::Auto),
        "read_back" => Ok(Verify::ReadBack),
        "none" => Ok(Verify::None),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "copy",
            format!("unknown way to verify '{}'", name.escape_debug()),
        )
        .with_hint("one of: auto, read_back, none")),
    }
}
