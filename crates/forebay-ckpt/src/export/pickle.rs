//! Writes the pickle of a dict of tensors and plain values, as `torch.save` does, and nothing that would have to be run to be read. Pure bytes.
//!
//! Only opcodes that `torch.load(weights_only=True)` takes: containers, numbers, texts, and torch's own functions that put a tensor together.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::{Error, ErrorKind, Result};

use crate::dtype::Dtype;
use crate::value::{Named, Value};
use crate::wire::Wire;

/// Pairs of a dict that are put at once, as pickle does it.
const BATCH: usize = 1000;

/// A tensor in a pickle: a view of a storage.
#[derive(Debug)]
pub(super) struct TensorView<'a> {
    pub(super) dtype: Dtype,
    /// Name of the storage in the archive.
    pub(super) storage: &'a str,
    /// Elements of the storage.
    pub(super) storage_elements: u64,
    pub(super) first_element: u64,
    pub(super) shape: &'a [u64],
    pub(super) strides: &'a [u64],
}

/// How torch knows a dtype.
enum TorchType {
    /// By a storage of that class.
    Storage(&'static str),
    /// By its own name, over a storage of bytes.
    Dtype(&'static str),
}

fn torch_type(dtype: Dtype) -> Result<TorchType> {
    Ok(match dtype {
        Dtype::F32 => TorchType::Storage("FloatStorage"),
        Dtype::F64 => TorchType::Storage("DoubleStorage"),
        Dtype::F16 => TorchType::Storage("HalfStorage"),
        Dtype::Bf16 => TorchType::Storage("BFloat16Storage"),
        Dtype::I64 => TorchType::Storage("LongStorage"),
        Dtype::I32 => TorchType::Storage("IntStorage"),
        Dtype::I16 => TorchType::Storage("ShortStorage"),
        Dtype::I8 => TorchType::Storage("CharStorage"),
        Dtype::U8 => TorchType::Storage("ByteStorage"),
        Dtype::Bool => TorchType::Storage("BoolStorage"),
        Dtype::C64 => TorchType::Storage("ComplexFloatStorage"),
        Dtype::C128 => TorchType::Storage("ComplexDoubleStorage"),
        Dtype::U16 => TorchType::Dtype("uint16"),
        Dtype::U32 => TorchType::Dtype("uint32"),
        Dtype::U64 => TorchType::Dtype("uint64"),
        Dtype::F8_E4M3 => TorchType::Dtype("float8_e4m3fn"),
        Dtype::F8_E5M2 => TorchType::Dtype("float8_e5m2"),
        Dtype::F8_E4M3Fnuz => TorchType::Dtype("float8_e4m3fnuz"),
        Dtype::F8_E5M2Fnuz => TorchType::Dtype("float8_e5m2fnuz"),
        Dtype::F8_E8M0 => TorchType::Dtype("float8_e8m0fnu"),
        Dtype::F4 | Dtype::F6_E2M3 | Dtype::F6_E3M2 => {
            let message = format!("torch has no tensors of {dtype}");
            return Err(Error::new(ErrorKind::Unsupported, "export", message));
        }
    })
}

/// False for what torch has no type of.
pub(super) fn has_type(dtype: Dtype) -> bool {
    torch_type(dtype).is_ok()
}

/// A dict being written.
#[derive(Debug)]
pub(super) struct Pickle {
    out: Vec<u8>,
    pairs: usize,
}

impl Pickle {
    pub(super) fn new() -> Self {
        // Protocol 2, and an empty dict.
        Self {
            out: vec![0x80, 2, b'}'],
            pairs: 0,
        }
    }

    /// Put a pair whose bytes are there.
    fn pair(&mut self, key: &Value, bytes: &[u8]) {
        if self.pairs.is_multiple_of(BATCH) {
            if self.pairs > 0 {
                self.out.push(b'u');
            }
            self.out.push(b'(');
        }
        self.pairs += 1;
        put_value(&mut self.out, key);
        self.out.extend_from_slice(bytes);
    }

    /// Put a tensor under a name.
    pub(super) fn tensor(&mut self, name: &str, tensor: &[u8]) {
        self.pair(&Value::text(name), tensor);
    }

    /// Put a value under a name; false, and nothing put, when it has no plain form.
    pub(super) fn value(&mut self, name: &str, value: &Value) -> bool {
        let mut bytes = Vec::new();
        let is_plain = put_value(&mut bytes, value);
        if is_plain {
            self.pair(&Value::text(name), &bytes);
        }
        is_plain
    }

    /// Put what a dict has, nested as it is, with the tensors that belong in it; false, and nothing put, where it is none.
    pub(super) fn nest(&mut self, structure: &Value, nest: &mut Nest<'_>) -> bool {
        let Some(pairs) = pairs_of(structure) else {
            return false;
        };
        for (key, value) in pairs {
            let (mut bytes, path) = (Vec::new(), path_of("", key));
            if is_plain(key) && nest.put(&mut bytes, value, &path) {
                self.pair(key, &bytes);
            }
        }
        true
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        if self.pairs > 0 {
            self.out.push(b'u');
        }
        self.out.push(b'.');
        self.out
    }
}

/// A structure on its way into a pickle.
pub(super) struct Nest<'a> {
    /// The bytes of tensors by their names, as [`put_tensor`] makes them; each is taken once or more.
    pub(super) tensors: &'a BTreeMap<&'a str, Vec<u8>>,
    pub(super) taken: BTreeSet<String>,
    /// Values put.
    pub(super) values: u64,
    /// Paths of what has no plain form.
    pub(super) left_out: Vec<String>,
}

impl Nest<'_> {
    /// Put a value; false, and named as left out, where it has no plain form. Of a dict, only what has none is left out.
    fn put(&mut self, out: &mut Vec<u8>, value: &Value, path: &str) -> bool {
        let start = out.len();
        if let Some(pairs) = pairs_of(value) {
            match value {
                Value::Named(Named::OrderedDict, _) => {
                    put_global(out, "collections", "OrderedDict");
                    out.extend_from_slice(b")R(");
                }
                _ => out.extend_from_slice(b"}("),
            }
            for (key, value) in pairs {
                let (start, path) = (out.len(), path_of(path, key));
                if !put_value(out, key) || !self.put(out, value, &path) {
                    out.truncate(start);
                }
            }
            out.push(b'u');
            return true;
        }
        let is_put = match value {
            Value::Tensor(name) => match self.tensors.get(name.as_str()) {
                Some(bytes) => {
                    self.taken.insert(name.clone());
                    out.extend_from_slice(bytes);
                    true
                }
                None => false,
            },
            Value::List(values) | Value::Tuple(values) => {
                let (begin, end): (&[u8], u8) = match value {
                    Value::List(_) => (b"](", b'e'),
                    _ => (b"(", b't'),
                };
                out.extend_from_slice(begin);
                let mut items = values.iter().enumerate();
                let is_put = items.all(|(index, value)| self.put(out, value, &format!("{path}[{index}]")));
                out.push(end);
                // What could not be put is named already.
                if !is_put {
                    out.truncate(start);
                    return false;
                }
                true
            }
            value => {
                let is_put = put_value(out, value);
                self.values += u64::from(is_put);
                is_put
            }
        };
        if !is_put {
            out.truncate(start);
            self.left_out.push(path.to_owned());
        }
        is_put
    }
}

/// The pairs of a dict, of whichever kind it is.
fn pairs_of(value: &Value) -> Option<&[(Value, Value)]> {
    match value {
        Value::Dict(pairs) => Some(pairs),
        Value::Named(Named::OrderedDict, inner) => pairs_of(inner),
        // What it makes for keys that are missing has no plain form.
        Value::Named(Named::DefaultDict, inner) => match &**inner {
            Value::Tuple(parts) => pairs_of(parts.get(1)?),
            _ => None,
        },
        _ => None,
    }
}

fn path_of(path: &str, key: &Value) -> String {
    let key = match key {
        Value::Text(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        key => format!("{key:?}"),
    };
    if path.is_empty() {
        key
    } else {
        format!("{path}.{key}")
    }
}

fn is_plain(value: &Value) -> bool {
    put_value(&mut Vec::new(), value)
}

/// A tensor, as torch puts it together.
pub(super) fn put_tensor(view: &TensorView<'_>) -> Result<Vec<u8>> {
    let kind = torch_type(view.dtype)?;
    let mut bytes = Vec::new();
    let out = &mut bytes;
    let (function, storage, elements) = match &kind {
        TorchType::Storage(storage) => ("_rebuild_tensor_v2", ("torch", *storage), view.storage_elements),
        TorchType::Dtype(_) => {
            let bytes = view.storage_elements.saturating_mul(view.dtype.bits() / 8);
            ("_rebuild_tensor_v3", ("torch.storage", "UntypedStorage"), bytes)
        }
    };
    put_global(out, "torch._utils", function);
    out.extend_from_slice(b"((");
    put_text(out, "storage");
    put_global(out, storage.0, storage.1);
    put_text(out, view.storage);
    put_text(out, "cpu");
    put_number(out, elements);
    out.extend_from_slice(b"tQ");
    put_number(out, view.first_element);
    for numbers in [view.shape, view.strides] {
        out.push(b'(');
        for number in numbers {
            put_number(out, *number);
        }
        out.push(b't');
    }
    // No gradient, no hooks.
    out.push(0x89);
    put_global(out, "collections", "OrderedDict");
    out.extend_from_slice(b")R");
    if let TorchType::Dtype(dtype) = kind {
        put_global(out, "torch", dtype);
    }
    out.extend_from_slice(b"tR");
    Ok(bytes)
}

fn put_global(out: &mut Vec<u8>, module: &str, name: &str) {
    out.push(b'c');
    out.extend_from_slice(module.as_bytes());
    out.push(b'\n');
    out.extend_from_slice(name.as_bytes());
    out.push(b'\n');
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'X');
    out.put_u32(text.len() as u32);
    out.extend_from_slice(text.as_bytes());
}

fn put_number(out: &mut Vec<u8>, number: u64) {
    put_int(out, i128::from(number));
}

fn put_int(out: &mut Vec<u8>, number: i128) {
    if let Ok(small) = i32::try_from(number) {
        out.push(b'J');
        out.extend_from_slice(&small.to_le_bytes());
        return;
    }
    // Nine bytes hold every number of 64 bits and its sign.
    out.extend_from_slice(&[0x8a, 9]);
    out.extend_from_slice(number.to_le_bytes().get(..9).unwrap_or_default());
}

#[expect(clippy::big_endian_bytes, reason = "pickle has floats that way")]
fn put_float(out: &mut Vec<u8>, number: f64) {
    out.push(b'G');
    out.extend_from_slice(&number.to_be_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) -> bool {
    match value {
        Value::None => out.push(b'N'),
        Value::Bool(is_true) => out.push(if *is_true { 0x88 } else { 0x89 }),
        Value::Int(number) => put_int(out, i128::from(*number)),
        Value::Float(number) => put_float(out, *number),
        Value::Text(text) => put_text(out, text),
        Value::List(values) => {
            out.extend_from_slice(b"](");
            if !values.iter().all(|value| put_value(out, value)) {
                return false;
            }
            out.push(b'e');
        }
        Value::Tuple(values) => {
            out.push(b'(');
            if !values.iter().all(|value| put_value(out, value)) {
                return false;
            }
            out.push(b't');
        }
        Value::Dict(pairs) => {
            out.extend_from_slice(b"}(");
            let mut put = |(key, value): &(Value, Value)| put_value(out, key) && put_value(out, value);
            if !pairs.iter().all(&mut put) {
                return false;
            }
            out.push(b'u');
        }
        Value::BigInt { .. }
        | Value::Complex(..)
        | Value::Bytes(_)
        | Value::Array(_)
        | Value::Tensor(_)
        | Value::Named(..) => return false,
    }
    true
}
