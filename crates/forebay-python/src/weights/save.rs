//! Saving tensors from memory of others, named by addresses.
//!
//! Tensors of many kinds (bfloat16, views) export no buffer, so callers name addresses, as the safetensors library has it: they keep what is there
//! alive and in place until the call is over.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_core::safetensors::Dtype;
use forebay_core::{Error, ErrorKind, Location, Result};
use forebay_weights::save::{Content, KeepHashes, SaveOptions, TensorSpec, save_at, serialize};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors;
use crate::ledger::PyLedger;
use crate::process::Process;
use crate::wait::wait;

/// Name, dtype, shape, address and bytes of a tensor.
pub(crate) type Row = (String, String, Vec<u64>, usize, u64);

/// Memory of others.
#[derive(Debug)]
struct Addresses(Vec<(usize, u64)>);

impl Content for Addresses {
    fn copy_out(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let (address, len) = self.0.get(tensor).copied().unwrap_or((0, 0));
        let fits = offset
            .checked_add(into.len() as u64)
            .is_some_and(|end| end <= len);
        if !fits || (address == 0 && !into.is_empty()) {
            return Err(wrong_len());
        }
        if !into.is_empty() {
            let from = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the caller of the Python function says that `len` bytes are at `address` and stay there until it returns, and the range was
            // checked to lie within them; `into` is memory of ours, elsewhere.
            unsafe {
                std::ptr::copy_nonoverlapping(from.add(offset as usize), into.as_mut_ptr(), into.len());
            }
        }
        Ok(())
    }
}

fn wrong_len() -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        "save",
        "it has not as many bytes as its dtype and shape say",
    )
}

fn taken(rows: Vec<Row>) -> Result<(Vec<TensorSpec>, Addresses)> {
    let mut specs = Vec::with_capacity(rows.len());
    let mut addresses = Vec::with_capacity(rows.len());
    for (name, dtype, shape, address, len) in rows {
        let dtype = Dtype::parse(&dtype)?;
        let bits = shape
            .iter()
            .try_fold(dtype.bits(), |bits, side| bits.checked_mul(*side));
        if bits.is_none_or(|bits| bits.div_ceil(8) != len) {
            let message = format!(
                "tensor '{}' of {dtype} and shape {shape:?} has {len} bytes",
                name.escape_debug()
            );
            return Err(Error::new(ErrorKind::InvalidInput, "save", message));
        }
        addresses.push((address, len));
        specs.push(TensorSpec { name, dtype, shape });
    }
    Ok((specs, Addresses(addresses)))
}

fn options_of(metadata: Option<BTreeMap<String, String>>, align: u64, hashes: &str) -> Result<SaveOptions> {
    let hashes = match hashes {
        "no" => KeepHashes::No,
        "header" => KeepHashes::InHeader,
        "beside" => KeepHashes::Beside,
        _ => {
            let message = format!("checksums cannot be kept '{}'", hashes.escape_debug());
            return Err(
                Error::new(ErrorKind::InvalidInput, "save", message).with_hint("one of: no, header, beside")
            );
        }
    };
    Ok(SaveOptions {
        metadata,
        align,
        hashes,
        ..SaveOptions::default()
    })
}

/// Save tensors ``(name, dtype, shape, address, bytes)`` to a file, durable and atomic; the caller keeps the memory alive.
#[pyfunction]
#[pyo3(signature = (url, tensors, metadata=None, *, align=8, hashes="no"))]
pub(crate) fn weights_save(
    py: Python<'_>,
    url: &str,
    tensors: Vec<Row>,
    metadata: Option<BTreeMap<String, String>>,
    align: u64,
    hashes: &str,
) -> PyResult<PyLedger> {
    let raise = |error: Error| errors::raise(py, &error);
    let base: PathBuf = std::env::current_dir().map_err(|error| raise(Error::from_io("save", error)))?;
    let location = Location::parse(url, &base).map_err(raise)?;
    let (specs, content) = taken(tensors).map_err(raise)?;
    let options = options_of(metadata, align, hashes).map_err(raise)?;
    let process = Process::get(py)?;
    let done = wait(
        py,
        process,
        save_at(&location, &specs, &content, &options, process.context()),
    )?;
    Ok(PyLedger::from(done.ledger))
}

/// The bytes of a file with such tensors.
#[pyfunction]
#[pyo3(signature = (tensors, metadata=None))]
pub(crate) fn weights_serialize(
    py: Python<'_>,
    tensors: Vec<Row>,
    metadata: Option<BTreeMap<String, String>>,
) -> PyResult<Bound<'_, PyBytes>> {
    let made = py.detach(|| {
        let (specs, content) = taken(tensors)?;
        serialize(&specs, &content, &options_of(metadata, 8, "no")?)
    });
    let bytes = made.map_err(|error| errors::raise(py, &error))?;
    Ok(PyBytes::new(py, &bytes))
}
