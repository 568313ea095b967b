//! Loads into device memory, and the class `DeviceTensor` that shows a tensor there to torch, cupy and jax by DLPack, without a copy.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind};
use forebay_io::device::{Device, Place, RING_BYTES_DEFAULT, Ring, RingConfig};
use forebay_io::gds::GdsPolicy;
use forebay_io::gds::probe::{Question, probe};
use forebay_weights::{DeviceOptions, DeviceTensor, load_device};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::dlpack::{self, Exported};
use super::{PyNativeWeights, get, load_options, size, told};
use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::process;

/// A tensor in device memory.
#[pyclass(name = "DeviceTensor", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyDeviceTensor {
    tensor: ForkGuard<DeviceTensor>,
    ordinal: u32,
}

#[pymethods]
impl PyDeviceTensor {
    /// The capsule of a tensor that shares this memory. It is ready whatever stream asks: the load has waited for its copies.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        drop(stream);
        if copy == Some(true) || dl_device.is_some_and(|wanted| wanted != self.__dlpack_device__()) {
            let message = "the memory is shared where it is; copy what was made of it";
            return Err(PyBufferError::new_err(message));
        }
        let Some(tensor) = self.tensor.get() else {
            return Err(errors::raise(py, &process::other_process("share", "tensor")));
        };
        let is_versioned = max_version.is_some_and(|(major, _)| major >= 1);
        dlpack::capsule(py, Exported::new(tensor, self.ordinal), is_versioned)
    }

    /// Kind and number of the device.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::DEVICE_CUDA, self.ordinal as i32)
    }

    /// Where it is in device memory.
    #[getter]
    fn address(&self) -> u64 {
        let tensor = self.tensor.get_anywhere();
        tensor.memory.address() + tensor.place.start()
    }

    /// Its length in bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.tensor.get_anywhere().place.len()
    }

    /// The bytes, copied to host memory: for checks and small things.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let raise = |error: Error| errors::raise(py, &error);
        let Some(tensor) = self.tensor.get() else {
            return Err(raise(process::other_process("copy", "tensor")));
        };
        let mut bytes = vec![0; tensor.place.len() as usize];
        let start = tensor.place.start() as usize;
        let copied = py.detach(|| tensor.memory.read(start, &mut bytes));
        copied.map_err(raise)?;
        Ok(pyo3::types::PyBytes::new(py, &bytes).into_any())
    }
}

/// Name, dtype and shape of a tensor, and its memory.
type Tensor<'py> = (String, &'static str, Vec<u64>, Bound<'py, PyAny>);

/// Load what a selection wants to devices: for each the tensors in file order, the report as JSON, and the ledger.
#[pyfunction]
pub(crate) fn weights_load_device<'py>(
    py: Python<'py>,
    source: &PyNativeWeights,
    devices: Vec<String>,
    options: &Bound<'py, PyDict>,
) -> PyResult<(Vec<Vec<Tensor<'py>>>, String, PyLedger)> {
    let raise = |error: Error| errors::raise(py, &error);
    let opened = source.opened(py)?;
    let wanted = DeviceOptions {
        ordinals: ordinals_of(devices).map_err(raise)?,
        gds: gds_of(options)?,
        pinned_bytes: size(options, "pinned")?.unwrap_or(RING_BYTES_DEFAULT),
    };
    let options = load_options(options)?;
    let load = load_device(&opened.source, &options, &wanted, &opened.context);
    let (tensors, mut report, device) = crate::wait::wait(py, opened.process, load)?;
    report.ledger.merge(opened.source.ledger());
    let mut lists = Vec::with_capacity(tensors.len());
    for (tensors, ordinal) in tensors.into_iter().zip(&wanted.ordinals) {
        let tensors = tensors.into_iter().map(|tensor| {
            let (name, dtype, shape) = (tensor.name.clone(), tensor.dtype.name(), tensor.shape.clone());
            let tensor = PyDeviceTensor {
                tensor: ForkGuard::new(tensor),
                ordinal: *ordinal,
            };
            Ok((name, dtype, shape, Bound::new(py, tensor)?.into_any()))
        });
        lists.push(tensors.collect::<PyResult<Vec<_>>>()?);
    }
    let (text, ledger) = told(py, report, Some(&device))?;
    Ok((lists, text, ledger))
}

/// Open a device and pin the memory of loads now, so that the first load finds it ready: bytes and seconds that pinning took in this process.
#[pyfunction]
#[pyo3(signature = (device, pinned=None))]
pub(crate) fn weights_warm(py: Python<'_>, device: &str, pinned: Option<u64>) -> PyResult<(u64, f64)> {
    let ordinals = ordinals_of(vec![device.to_owned()]);
    let warmed = py.detach(|| {
        let ordinal = ordinals?.first().copied().unwrap_or(0);
        let device = Device::system(ordinal)?;
        let config = RingConfig {
            bytes_max: pinned.unwrap_or(RING_BYTES_DEFAULT),
        };
        let ring = Ring::shared(&device, config)?;
        ring.pin_all()?;
        let stats = ring.stats();
        Ok((stats.pinned_bytes, stats.pin_seconds))
    });
    warmed.map_err(|error: Error| errors::raise(py, &error))
}

/// Everything that reads straight to a GPU need, with its state and remedy, as JSON.
#[pyfunction]
#[pyo3(signature = (file, device))]
pub(crate) fn gds_probe(py: Python<'_>, file: Option<std::path::PathBuf>, device: &str) -> PyResult<String> {
    let raise = |error: Error| errors::raise(py, &error);
    let ordinals = ordinals_of(vec![device.to_owned()]).map_err(raise)?;
    let question = Question::here(file, ordinals.first().copied().unwrap_or(0));
    let report = py.detach(|| probe(&question));
    serde_json::to_string(&report).map_err(|error| {
        raise(Error::new(ErrorKind::Internal, "probe", "the report cannot be JSON").with_source(error))
    })
}

fn ordinals_of(devices: Vec<String>) -> forebay_core::Result<Vec<u32>> {
    devices
        .into_iter()
        .map(|name| match name.parse()? {
            Place::Cuda(ordinal) => Ok(ordinal),
            Place::Host => Err(Error::new(
                ErrorKind::InvalidInput,
                "load",
                "host memory and GPUs cannot be loaded to at once",
            )),
        })
        .collect()
}

fn gds_of(options: &Bound<'_, PyDict>) -> PyResult<GdsPolicy> {
    let text = get::<Bound<'_, PyString>>(options, "gds")?;
    match text {
        Some(text) => text
            .to_cow()?
            .parse()
            .map_err(|error| errors::raise(options.py(), &error)),
        None => Ok(GdsPolicy::default()),
    }
}

impl Exported {
    /// What is shown of a tensor.
    fn new(tensor: &DeviceTensor, ordinal: u32) -> Self {
        Self {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            len: tensor.place.len(),
            address: tensor.memory.address() + tensor.place.start(),
            ordinal,
            hold: ForkGuard::new(Arc::clone(&tensor.memory)),
        }
    }
}
