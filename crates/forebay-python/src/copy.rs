//! The function `copy` and its result.
//!
//! [`plan`] decides what goes where, the copier of `forebay-store` does the work, and [`progress`] counts it for the callback, which the waiting
//! thread calls.

mod plan;
mod progress;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::copy::{Copier, CopyOptions, CopyReport, Progress, Silent, Verify};
use forebay_store::{Context, PutMode};
use pyo3::prelude::*;

use crate::errors;
use crate::ledger::PyLedger;
use crate::process::Process;
use crate::wait::{wait, wait_telling};
use plan::{Target, What, plan};
use progress::Counted;

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
/// As with ``forebay cp``, a destination that ends with a slash, that is a whole store or a local directory that exists is copied into, under the
/// source's last name; any other is the new name.
///
/// Args:
///     source: URL of the object or prefix
///     destination: URL of the copy
///     recursive: copy everything below ``source``
///     verify: ``"auto"`` (by the store where it is shown to check, else by reading back), ``"read_back"`` or ``"none"``
///     if_absent: an object that exists at the destination is an error
///     progress: called with ``(bytes_done, bytes_total, objects_done)`` up to ten times a second and at the end, by the thread that
///         called ``copy``; the total grows while the source is listed. What it raises stops the copy
#[pyfunction]
#[pyo3(signature = (source, destination, *, recursive=false, verify="auto", if_absent=false, progress=None))]
pub(crate) fn copy(
    py: Python<'_>,
    source: PathBuf,
    destination: PathBuf,
    recursive: bool,
    verify: &str,
    if_absent: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyCopyResult> {
    let raise = |error: Error| errors::raise(py, &error);
    let base = std::env::current_dir().map_err(|error| raise(Error::from_io("copy", error)))?;
    let from = Target::parse(source, &base).map_err(raise)?;
    let to = Target::parse(destination, &base).map_err(raise)?;
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
    let run = |progress| run(&from, &to, recursive, options, progress, process.context());
    let report = match progress {
        None => wait(py, process, run(Arc::new(Silent)))?,
        Some(told) => {
            let counted = Arc::new(Counted::default());
            let tell = || told.call1(counted.now()).map(drop);
            wait_telling(py, process, run(Arc::clone(&counted) as Arc<dyn Progress>), tell)?
        }
    };
    Ok(report.into())
}

async fn run(
    from: &Target,
    to: &Target,
    recursive: bool,
    options: CopyOptions,
    progress: Arc<dyn Progress>,
    context: &Context,
) -> Result<CopyReport> {
    let plan = plan(from, to, recursive, context).await?;
    let copier = Copier::new(plan.source, plan.destination, context)
        .with_options(options)
        .with_progress(progress);
    let report = match plan.what {
        What::Object(meta, name) => copier.known(vec![(meta, name)]).await?,
        What::Tree(below) => copier.tree(&Key::ROOT, &below).await?,
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

fn verify_of(name: &str) -> Result<Verify> {
    match name {
        "auto" => Ok(Verify::Auto),
        // As it is written on the command line, too.
        "read_back" | "read-back" | "readback" => Ok(Verify::ReadBack),
        "none" => Ok(Verify::None),
        _ => Err(Error::new(
            ErrorKind::InvalidInput,
            "copy",
            format!("unknown way to verify '{}'", name.escape_debug()),
        )
        .with_hint("one of: auto, read_back, none")),
    }
}
