//! Typed values from and to Python objects.
//!
//! `forebay.checkpoint` takes a state apart and leaves objects of few types: those of Python that have a value of their own, [`PyEntryName`] where a tensor
//! belongs, and [`PyTyped`] for values with a name. Anything else is refused here too.

use forebay_ckpt::{Array, DEPTH_MAX, Named, Value};
use forebay_core::{Error, ErrorKind};
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyBytes, PyComplex, PyComplexMethods, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType,
};

use super::refused;
use crate::errors;

/// In a state: the entry of that name belongs here.
#[pyclass(name = "EntryName", module = "forebay._forebay", frozen, get_all, eq, hash)]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyEntryName {
    /// The name of the entry.
    name: String,
}

#[pymethods]
impl PyEntryName {
    #[new]
    fn new(name: String) -> Self {
        Self { name }
    }

    fn __repr__(&self) -> String {
        format!("EntryName({:?})", self.name)
    }
}

/// In a state: a value of a type with a name.
#[pyclass(name = "Typed", module = "forebay._forebay", frozen, get_all)]
#[derive(Debug)]
pub(crate) struct PyTyped {
    /// The name of the type.
    kind: String,
    /// What it is made of.
    value: Py<PyAny>,
}

/// The kind of a [`PyTyped`] for arrays: dtype, shape and bytes.
const ARRAY: &str = "array";

#[pymethods]
impl PyTyped {
    #[new]
    fn new(kind: String, value: Py<PyAny>) -> Self {
        Self { kind, value }
    }

    fn __repr__(&self) -> String {
        format!("Typed({:?}, ..)", self.kind)
    }
}

fn refuse<T>(py: Python<'_>, message: impl Into<String>) -> PyResult<T> {
    Err(errors::raise(py, &refused(message)))
}

/// The value of an object.
pub(super) fn to_value(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    to_value_within(object, DEPTH_MAX)
}

fn to_value_within(object: &Bound<'_, PyAny>, depth: u32) -> PyResult<Value> {
    let py = object.py();
    let Some(depth) = depth.checked_sub(1) else {
        return refuse(py, format!("it is nested more than {DEPTH_MAX} levels deep"));
    };
    if object.is_none() {
        return Ok(Value::None);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if let Ok(value) = object.cast::<PyInt>() {
        return int_to_value(value);
    }
    if let Ok(value) = object.cast::<PyFloat>() {
        return Ok(Value::Float(value.value()));
    }
    if let Ok(value) = object.cast::<PyComplex>() {
        return Ok(Value::Complex(value.real(), value.imag()));
    }
    if let Ok(value) = object.cast::<PyString>() {
        return Ok(Value::Text(value.to_cow()?.into_owned()));
    }
    if let Ok(value) = object.cast::<PyBytes>() {
        return Ok(Value::Bytes(value.as_bytes().to_vec()));
    }
    if let Ok(values) = object.cast::<PyList>() {
        return Ok(Value::List(all(values.iter(), depth)?));
    }
    if let Ok(values) = object.cast::<PyTuple>() {
        return Ok(Value::Tuple(all(values.iter(), depth)?));
    }
    if let Ok(pairs) = object.cast::<PyDict>() {
        let pairs = pairs.iter().map(|(key, value)| {
            let key = to_value_within(&key, depth)?;
            Ok((key, to_value_within(&value, depth)?))
        });
        return Ok(Value::Dict(pairs.collect::<PyResult<_>>()?));
    }
    if let Ok(name) = object.cast::<PyEntryName>() {
        return Ok(Value::Tensor(name.get().name.clone()));
    }
    if let Ok(typed) = object.cast::<PyTyped>() {
        return typed_to_value(py, typed.get(), depth);
    }
    refuse(
        py,
        format!("an object of type {} has no value", object.get_type().name()?),
    )
}

fn all<'py>(values: impl Iterator<Item = Bound<'py, PyAny>>, depth: u32) -> PyResult<Vec<Value>> {
    values.map(|value| to_value_within(&value, depth)).collect()
}

fn int_to_value(value: &Bound<'_, PyInt>) -> PyResult<Value> {
    match value.extract::<i64>() {
        Ok(value) => return Ok(Value::Int(value)),
        Err(error) if !error.is_instance_of::<PyOverflowError>(value.py()) => return Err(error),
        Err(_) => {}
    }
    let negative = value.lt(0)?;
    let magnitude = value.abs()?;
    let bits: usize = magnitude.call_method0("bit_length")?.extract()?;
    let bytes = magnitude.call_method1("to_bytes", (bits.div_ceil(8), "little"))?;
    let magnitude = bytes.cast::<PyBytes>()?.as_bytes().to_vec();
    Ok(Value::BigInt { negative, magnitude })
}

fn typed_to_value(py: Python<'_>, typed: &PyTyped, depth: u32) -> PyResult<Value> {
    let value = typed.value.bind(py);
    if typed.kind == ARRAY {
        let (dtype, shape, bytes): (String, Vec<u64>, Bound<'_, PyBytes>) = value.extract()?;
        let bytes = bytes.as_bytes().to_vec();
        return Ok(Value::Array(Array { dtype, shape, bytes }));
    }
    let Some(named) = Named::from_text(&typed.kind) else {
        return refuse(
            py,
            format!("there is no type of the name '{}'", typed.kind.escape_debug()),
        );
    };
    Ok(Value::Named(named, Box::new(to_value_within(value, depth)?)))
}

/// A value as it is stored; refuses what cannot be. For ranks to compare theirs.
#[pyfunction]
pub(crate) fn ckpt_encode<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = value.py();
    let bytes = to_value(value)?.encode();
    let bytes = bytes.map_err(|error| errors::raise(py, &error))?;
    Ok(PyBytes::new(py, &bytes))
}

/// The object of a value.
pub(super) fn from_value<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::None => py.None().into_bound(py),
        Value::Bool(value) => PyBool::new(py, *value).to_owned().into_any(),
        Value::Int(value) => value.into_pyobject(py)?.into_any(),
        Value::BigInt { negative, magnitude } => {
            let bytes = PyBytes::new(py, magnitude);
            let int: Bound<'_, PyType> = py.get_type::<PyInt>();
            let value = int.call_method1("from_bytes", (bytes, "little"))?;
            if *negative { value.neg()? } else { value }
        }
        Value::Float(value) => PyFloat::new(py, *value).into_any(),
        Value::Complex(real, imaginary) => PyComplex::from_doubles(py, *real, *imaginary).into_any(),
        Value::Text(text) => PyString::new(py, text).into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::List(values) => PyList::new(py, objects(py, values)?)?.into_any(),
        Value::Tuple(values) => PyTuple::new(py, objects(py, values)?)?.into_any(),
        Value::Dict(pairs) => {
            let dict = PyDict::new(py);
            for (key, value) in pairs {
                dict.set_item(from_value(py, key)?, from_value(py, value)?)?;
            }
            dict.into_any()
        }
        Value::Array(array) => {
            let shape = array.shape.clone();
            let parts = (array.dtype.as_str(), shape, PyBytes::new(py, &array.bytes));
            typed(py, ARRAY, parts.into_pyobject(py)?.into_any())?
        }
        Value::Tensor(name) => Bound::new(py, PyEntryName::new(name.clone()))?.into_any(),
        Value::Named(named, value) => typed(py, named.text(), from_value(py, value)?)?,
    })
}

fn objects<'py>(py: Python<'py>, values: &[Value]) -> PyResult<Vec<Bound<'py, PyAny>>> {
    values.iter().map(|value| from_value(py, value)).collect()
}

fn typed<'py>(py: Python<'py>, kind: &str, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let typed = PyTyped::new(kind.to_owned(), value.unbind());
    Ok(Bound::new(py, typed)?.into_any())
}

/// A dict with texts for keys, which metadata are.
pub(super) fn to_metadata(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let value = to_value(object)?;
    let is_metadata = match &value {
        Value::Dict(pairs) => pairs.iter().all(|(key, _)| matches!(key, Value::Text(_))),
        _ => false,
    };
    if is_metadata {
        return Ok(value);
    }
    let error = Error::new(
        ErrorKind::InvalidInput,
        "save",
        "metadata are a dict with texts for keys",
    );
    Err(errors::raise(object.py(), &error))
}
