//! The class `NativeWeights`, which `forebay.load` and `forebay.safetensors` are made of, and saving.
//!
//! An instance knows its files and their checked headers; loading gives every tensor as a `MutableBuffer` that owns its bytes alone, so that arrays
//! over it may be written to and its memory goes when the last of them does. What is said in words crosses the border as JSON.

mod device;
mod dlpack;
mod open;
mod save;

use forebay_core::safetensors::Header;
use forebay_core::{DataPath, Error, ErrorKind, PathPolicy};
use forebay_store::Context;
use forebay_weights::{DeviceReport, LoadOptions, LoadReport, Selection, Shard, Slice, Source, load_host};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::Serialize;

pub(crate) use self::device::{PyDeviceTensor, gds_probe, weights_load_device, weights_warm};
use self::open::{Named, Opening};
pub(crate) use self::save::{weights_save, weights_serialize};
use crate::buffer;
use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::process::{self, Inside, Process};
use crate::settings::SizeArgument;
use crate::store::Choices;
use crate::wait::wait;

/// Files of tensors, opened.
#[pyclass(name = "NativeWeights", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyNativeWeights {
    opened: ForkGuard<Inside<Opened>>,
}

#[derive(Debug)]
struct Opened {
    process: &'static Process,
    context: Context,
    source: Source,
    left_out: Vec<String>,
    damaged: Vec<(u64, String)>,
}

/// Name, dtype and shape of a tensor, and the number of its file.
type Row = (String, &'static str, Vec<u64>, usize);

/// Location, bytes and metadata of a file, and whether it is compared with checksums.
type FileRow<'py> = (String, u64, Option<Bound<'py, PyDict>>, bool);

/// Names of tensors that were left out; steps that cannot be read, and why.
type Missing = (Vec<String>, Vec<(u64, String)>);

/// Name, dtype, shape and bytes of a tensor.
type Tensor<'py> = (String, &'static str, Vec<u64>, Bound<'py, PyAny>);

impl PyNativeWeights {
    fn opened(&self, py: Python<'_>) -> PyResult<&Opened> {
        let opened = self.opened.get().map(|opened| &**opened);
        opened.ok_or_else(|| errors::raise(py, &process::other_process("load", "source")))
    }
}

#[pymethods]
impl PyNativeWeights {
    #[new]
    fn new(py: Python<'_>, urls: Vec<String>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let raise = |error: Error| errors::raise(py, &error);
        let base = std::env::current_dir().map_err(|error| raise(Error::from_io("open", error)))?;
        let choices = Choices::of_store(
            get(options, "endpoint")?,
            get(options, "region")?,
            get(options, "addressing")?,
        );
        let process = Process::get(py)?;
        let opening = Opening::new(urls, base, options)?;
        let context = choices.context(process.context());
        let named = wait(py, process, opening.open(process, &context))?;
        let Named {
            source,
            left_out,
            damaged,
        } = named;
        let opened = Opened {
            process,
            context,
            source,
            left_out,
            damaged,
        };
        Ok(Self {
            opened: ForkGuard::new(Inside::new(process, opened)),
        })
    }

    /// What a selection wants: ``(name, dtype, shape of the whole, number of the file)``, in file order.
    fn tensors(&self, py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<Vec<Row>> {
        let opened = self.opened(py)?;
        let selection = selection_of(options)?;
        let wanted = opened.source.wanted(&selection);
        let wanted = wanted.map_err(|error| errors::raise(py, &error))?;
        let rows = wanted.iter().filter_map(|wanted| {
            let file = opened.source.files().get(wanted.file)?;
            let info = file.header.tensors().get(wanted.tensor)?;
            Some((
                info.name.clone(),
                info.dtype.name(),
                info.shape.clone(),
                wanted.file,
            ))
        });
        Ok(rows.collect())
    }

    /// The files: ``(location, bytes, metadata or None, True where there are checksums)``.
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Vec<FileRow<'py>>> {
        let files = self.opened(py)?.source.files().iter().map(|file| {
            let metadata = match file.header.metadata() {
                Some(metadata) => {
                    let dict = PyDict::new(py);
                    for (key, value) in metadata {
                        dict.set_item(key, value)?;
                    }
                    Some(dict)
                }
                None => None,
            };
            Ok((
                file.location.to_string(),
                file.meta.size,
                metadata,
                file.is_checked(),
            ))
        });
        files.collect()
    }

    /// Names of tensors of checkpoints that cannot be loaded so; and newer steps that cannot be read, with the reason.
    fn missing(&self, py: Python<'_>) -> PyResult<Missing> {
        let opened = self.opened(py)?;
        Ok((opened.left_out.clone(), opened.damaged.clone()))
    }

    /// Load what a selection wants: the tensors in file order, the report as JSON, and the ledger.
    fn load<'py>(
        &self,
        py: Python<'py>,
        options: &Bound<'py, PyDict>,
    ) -> PyResult<(Vec<Tensor<'py>>, String, PyLedger)> {
        let opened = self.opened(py)?;
        let options = load_options(options)?;
        let load = load_host(&opened.source, &options, &opened.context);
        let (tensors, mut report) = wait(py, opened.process, load)?;
        report.ledger.merge(opened.source.ledger());
        let tensors = tensors.into_iter().map(|tensor| {
            let bytes = buffer::new_mutable(py, tensor.bytes)?;
            Ok((tensor.name, tensor.dtype.name(), tensor.shape, bytes))
        });
        let tensors = tensors.collect::<PyResult<_>>()?;
        let (text, ledger) = told(py, report, None)?;
        Ok((tensors, text, ledger))
    }
}

/// What to load, and within which bounds.
fn load_options(options: &Bound<'_, PyDict>) -> PyResult<LoadOptions> {
    Ok(LoadOptions {
        selection: selection_of(options)?,
        memory_bytes_max: size(options, "memory")?,
        policy: policy_of(options)?,
        progress: None,
    })
}

/// What a load did, with what it did on devices where it did.
#[derive(Debug, Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    load: &'a LoadReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<&'a DeviceReport>,
}

/// A report as JSON, and its ledger.
fn told(py: Python<'_>, report: LoadReport, device: Option<&DeviceReport>) -> PyResult<(String, PyLedger)> {
    let load = &report;
    let text = serde_json::to_string(&Told { load, device }).map_err(|error| {
        let error = Error::new(ErrorKind::Internal, "load", "the report cannot be JSON").with_source(error);
        errors::raise(py, &error)
    })?;
    Ok((text, PyLedger::from(report.ledger)))
}

/// Names, each with a dimension, a first index and a number of indices where it is not wanted whole.
type Exact = Vec<(String, Option<(usize, u64, u64)>)>;

/// Rank, number of ranks, and the dimensions by which tensors are divided among them.
type Ranks = (u64, u64, Vec<(String, i64)>);

/// Patterns and a shard, or exact names with parts.
fn selection_of(options: &Bound<'_, PyDict>) -> PyResult<Selection> {
    let raise = |error: Error| errors::raise(options.py(), &error);
    if let Some(exact) = get::<Exact>(options, "exact")? {
        let exact = exact.into_iter().map(|(name, slice)| {
            let slice = slice.map(|(dim, start, len)| Slice { dim, start, len });
            (name, slice)
        });
        return Ok(Selection::exact(exact));
    }
    let select: Vec<String> = get(options, "select")?.unwrap_or_default();
    let shard = match get::<Ranks>(options, "shard")? {
        Some((rank, world, dims)) => Some(Shard::new(rank, world, &dims).map_err(raise)?),
        None => None,
    };
    Selection::new(&select, shard).map_err(raise)
}

fn policy_of(options: &Bound<'_, PyDict>) -> PyResult<PathPolicy> {
    let Some(path) = get::<String>(options, "require_path")? else {
        return Ok(PathPolicy::Fastest);
    };
    let path = DataPath::parse(&path).map_err(|error| errors::raise(options.py(), &error))?;
    Ok(PathPolicy::Require(path))
}

/// An argument; None counts as not given.
fn get<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>> {
    match given.get_item(name)?.filter(|value| !value.is_none()) {
        Some(value) => value.extract().map(Some).map_err(Into::into),
        None => Ok(None),
    }
}

fn size(given: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<u64>> {
    let Some(argument) = get::<SizeArgument>(given, name)? else {
        return Ok(None);
    };
    let size = argument.parse();
    let size = size.map_err(|error| errors::raise(given.py(), &error.at(name)))?;
    Ok(Some(size.0))
}

/// Name, dtype, shape, first and last byte of a tensor.
type HeaderRow = (String, &'static str, Vec<u64>, u64, u64);

/// The header of a file whose bytes are all there: its tensors ``(name, dtype, shape, begin, end)`` in file order, counted from the start.
#[pyfunction]
pub(crate) fn weights_header(py: Python<'_>, data: &Bound<'_, PyBytes>) -> PyResult<Vec<HeaderRow>> {
    let bytes = data.as_bytes();
    let header = Header::parse(bytes, bytes.len() as u64).map_err(|error| errors::raise(py, &error))?;
    let rows = header.tensors().iter().map(|tensor| {
        let span = tensor.span;
        (
            tensor.name.clone(),
            tensor.dtype.name(),
            tensor.shape.clone(),
            span.start(),
            span.end(),
        )
    });
    Ok(rows.collect())
}
