//! Typed values: what a state holds beside tensors, without pickle.
//!
//! ```text
//! Python object --(face: refuses other types by name)--> Value --encode--> bytes in a part --decode, bounded--> Value
//! ```
//!
//! One value has one encoding, so equal states give equal bytes. Decoding allocates by what is there and never by what a count claims, goes at
//! most [`DEPTH_MAX`] levels deep, and refuses names of types it does not know by name.

use std::collections::HashSet;

use forebay_core::{Error, ErrorKind, Result};

use crate::wire::{Cursor, Wire, cursor};

#[cfg(test)]
mod tests;

/// Most bytes of one encoded value: larger ones are tensors, which are chunked and read by ranges.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Deepest nesting: a parser of hostile bytes must not run out of stack, and no state is that deep.
pub const DEPTH_MAX: u32 = 64;

/// Most dimensions, as torch has it.
pub const DIMS_MAX: usize = 64;

/// Longest text of a type or of a numpy dtype.
const TYPE_BYTES_MAX: usize = 64;

/// A value that is not a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `None`.
    None,
    /// `bool`.
    Bool(bool),
    /// `int` that 64 bits hold.
    Int(i64),
    /// Any other `int`: magnitude with the lowest byte first.
    BigInt {
        /// Below zero.
        negative: bool,
        /// Lowest byte first, without zeros at its end.
        magnitude: Vec<u8>,
    },
    /// `float`.
    Float(f64),
    /// `complex`.
    Complex(f64, f64),
    /// `str`.
    Text(String),
    /// `bytes`.
    Bytes(Vec<u8>),
    /// `list`.
    List(Vec<Value>),
    /// `tuple`.
    Tuple(Vec<Value>),
    /// `dict`, in its order.
    Dict(Vec<(Value, Value)>),
    /// A numpy array.
    Array(Array),
    /// The tensor of that name belongs here.
    Tensor(String),
    /// A value of a type with a name.
    Named(Named, Box<Value>),
}

/// A numpy array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    /// As numpy writes it, such as `<f4`.
    pub dtype: String,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Elements in row-major order.
    pub bytes: Vec<u8>,
}

macro_rules! named {
    ($( $name:ident: $text:literal; )*) => {
        /// Types with a name of their own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is the type its name says")]
        pub enum Named {
            $( $name, )*
        }

        impl Named {
            /// All of them with the names they have in files.
            pub const ALL: &'static [(Self, &'static str)] = &[$( (Self::$name, $text), )*];

            /// The name in files.
            pub const fn text(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }
        }
    };
}

named! {
    RngPython: "rng.python";
    RngNumpy: "rng.numpy";
    RngTorch: "rng.torch";
    RngCuda: "rng.cuda";
    TorchDtype: "torch.dtype";
    TorchDevice: "torch.device";
    TorchSize: "torch.Size";
    OrderedDict: "OrderedDict";
    DefaultDict: "defaultdict";
    Set: "set";
    FrozenSet: "frozenset";
    NumpyScalar: "numpy.scalar";
    NumpyArray: "numpy.ndarray";
}

impl Named {
    /// By its name in files.
    pub fn from_text(text: &str) -> Option<Self> {
        let row = Self::ALL.iter().find(|(_, name)| *name == text);
        row.map(|(named, _)| *named)
    }
}

mod tag {
    pub(super) const NONE: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const INT: u8 = 3;
    pub(super) const BIG_INT: u8 = 4;
    pub(super) const FLOAT: u8 = 5;
    pub(super) const COMPLEX: u8 = 6;
    pub(super) const TEXT: u8 = 7;
    pub(super) const BYTES: u8 = 8;
    pub(super) const LIST: u8 = 9;
    pub(super) const TUPLE: u8 = 10;
    pub(super) const DICT: u8 = 11;
    pub(super) const ARRAY: u8 = 12;
    pub(super) const TENSOR: u8 = 13;
    pub(super) const NAMED: u8 = 14;
}

impl Value {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// The value of a key of a dict.
    pub fn get(&self, key: &str) -> Option<&Self> {
        let Self::Dict(pairs) = self else { return None };
        let pair = pairs
            .iter()
            .find(|(name, _)| matches!(name, Self::Text(text) if text == key));
        pair.map(|(_, value)| value)
    }

    /// As bytes. Refuses what a reader would refuse.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        self.put(&mut out)?;
        // The reader is the judge of depth, keys and canonical numbers: one rule, in one place.
        Self::decode(&out).map_err(|error| refused("this value cannot be saved").with_source(error))?;
        Ok(out)
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::None => out.push(tag::NONE),
            Self::Bool(false) => out.push(tag::FALSE),
            Self::Bool(true) => out.push(tag::TRUE),
            Self::Int(value) => {
                out.push(tag::INT);
                out.put_varint((value.wrapping_shl(1) ^ (value >> 63)) as u64);
            }
            Self::BigInt { negative, magnitude } => {
                out.extend_from_slice(&[tag::BIG_INT, u8::from(*negative)]);
                out.put_blob(magnitude);
            }
            Self::Float(value) => {
                out.push(tag::FLOAT);
                out.extend_from_slice(&value.to_bits().to_le_bytes());
            }
            Self::Complex(real, imaginary) => {
                out.push(tag::COMPLEX);
                out.extend_from_slice(&real.to_bits().to_le_bytes());
                out.extend_from_slice(&imaginary.to_bits().to_le_bytes());
            }
            Self::Text(text) => {
                out.push(tag::TEXT);
                out.put_text(text);
            }
            Self::Bytes(bytes) => {
                out.push(tag::BYTES);
                out.put_blob(bytes);
            }
            Self::List(values) => put_all(tag::LIST, values, out)?,
            Self::Tuple(values) => put_all(tag::TUPLE, values, out)?,
            Self::Dict(pairs) => {
                out.push(tag::DICT);
                out.put_varint(pairs.len() as u64);
                for (key, value) in pairs {
                    key.put(out)?;
                    value.put(out)?;
                }
            }
            Self::Array(array) => array.put(out)?,
            Self::Tensor(name) => {
                out.push(tag::TENSOR);
                out.put_text(name);
            }
            Self::Named(named, value) => {
                out.push(tag::NAMED);
                out.put_text(named.text());
                value.put(out)?;
            }
        }
        if out.len() > VALUE_BYTES_MAX {
            return Err(refused("this value takes more than 64 MiB")
                .with_hint("save large arrays as tensors: they are stored in chunks and read by ranges"));
        }
        Ok(())
    }

    /// From bytes that hold one value and nothing else.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > VALUE_BYTES_MAX {
            return Err(refused("this value takes more than 64 MiB"));
        }
        let mut cursor = cursor(bytes, "value");
        let value = Self::take(&mut cursor, DEPTH_MAX)?;
        cursor.finish()?;
        Ok(value)
    }

    fn take(cursor: &mut Cursor<'_>, depth: u32) -> Result<Self> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(cursor.corrupt("values are nested more than 64 levels deep"));
        };
        Ok(match cursor.u8()? {
            tag::NONE => Self::None,
            tag::FALSE => Self::Bool(false),
            tag::TRUE => Self::Bool(true),
            tag::INT => {
                let zigzag = cursor.varint()?;
                Self::Int((zigzag >> 1) as i64 ^ -((zigzag & 1) as i64))
            }
            tag::BIG_INT => Self::take_big_int(cursor)?,
            tag::FLOAT => Self::Float(f64::from_bits(cursor.u64()?)),
            tag::COMPLEX => {
                let real = f64::from_bits(cursor.u64()?);
                Self::Complex(real, f64::from_bits(cursor.u64()?))
            }
            tag::TEXT => Self::Text(cursor.text(VALUE_BYTES_MAX)?.to_owned()),
            tag::BYTES => Self::Bytes(cursor.blob(VALUE_BYTES_MAX)?.to_vec()),
            tag::LIST => Self::List(Self::take_all(cursor, depth)?),
            tag::TUPLE => Self::Tuple(Self::take_all(cursor, depth)?),
            tag::DICT => Self::take_dict(cursor, depth)?,
            tag::ARRAY => Self::Array(Array::take(cursor)?),
            tag::TENSOR => Self::Tensor(cursor.text(crate::part::NAME_BYTES_MAX)?.to_owned()),
            tag::NAMED => {
                let name = cursor.text(TYPE_BYTES_MAX)?;
                let Some(named) = Named::from_text(name) else {
                    let message = format!("a value is of type {name:?}, which this version does not know");
                    return Err(Error::new(ErrorKind::Unsupported, "read checkpoint", message));
                };
                Self::Named(named, Box::new(Self::take(cursor, depth)?))
            }
            other => return Err(cursor.corrupt(&format!("there is no value with tag {other}"))),
        })
    }

    fn take_all(cursor: &mut Cursor<'_>, depth: u32) -> Result<Vec<Self>> {
        let count = cursor.count(u64::MAX, 1)?;
        // A tag of one byte takes some thirty in memory, so vectors grow by what is there.
        let mut values = Vec::new();
        for _ in 0..count {
            values.push(Self::take(cursor, depth)?);
        }
        Ok(values)
    }

    fn take_dict(cursor: &mut Cursor<'_>, depth: u32) -> Result<Self> {
        let count = cursor.count(u64::MAX, 2)?;
        let (mut pairs, mut keys) = (Vec::new(), HashSet::new());
        for _ in 0..count {
            let key = Self::take(cursor, depth)?;
            if !key.is_key() {
                return Err(cursor.corrupt("a dict has a key of a type that cannot be one"));
            }
            let mut encoded = Vec::new();
            key.put(&mut encoded)?;
            if !keys.insert(encoded) {
                return Err(cursor.corrupt("a dict has the same key twice"));
            }
            pairs.push((key, Self::take(cursor, depth)?));
        }
        Ok(Self::Dict(pairs))
    }

    fn take_big_int(cursor: &mut Cursor<'_>) -> Result<Self> {
        let negative = cursor.flag()?;
        let magnitude = cursor.blob(VALUE_BYTES_MAX)?;
        let is_shortest = magnitude.last().is_some_and(|last| *last != 0);
        if !is_shortest || fits_64_bits(negative, magnitude) {
            return Err(cursor.corrupt("an integer is longer than it needs to be"));
        }
        let magnitude = magnitude.to_vec();
        Ok(Self::BigInt { negative, magnitude })
    }

    fn is_key(&self) -> bool {
        match self {
            Self::None
            | Self::Bool(_)
            | Self::Int(_)
            | Self::BigInt { .. }
            | Self::Float(_)
            | Self::Text(_)
            | Self::Bytes(_) => true,
            Self::Tuple(values) => values.iter().all(Self::is_key),
            _ => false,
        }
    }
}

/// Whether [`Value::Int`] can hold it.
fn fits_64_bits(negative: bool, magnitude: &[u8]) -> bool {
    if magnitude.len() > 8 {
        return false;
    }
    let value = magnitude
        .iter()
        .rev()
        .fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    value <= i64::MAX as u64 + u64::from(negative)
}

fn put_all(tag: u8, values: &[Value], out: &mut Vec<u8>) -> Result<()> {
    out.push(tag);
    out.put_varint(values.len() as u64);
    values.iter().try_for_each(|value| value.put(out))
}

impl Array {
    fn put(&self, out: &mut Vec<u8>) -> Result<()> {
        let dims = u8::try_from(self.shape.len())
            .map_err(|_| refused("an array has more dimensions than torch knows"))?;
        out.push(tag::ARRAY);
        out.put_text(&self.dtype);
        out.push(dims);
        self.shape.iter().for_each(|size| out.put_varint(*size));
        out.put_blob(&self.bytes);
        Ok(())
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let dtype = cursor.text(TYPE_BYTES_MAX)?.to_owned();
        let Some(element_bytes) = numpy_element_bytes(&dtype) else {
            let message = format!("an array is of numpy dtype {dtype:?}, which cannot be stored as a value");
            return Err(Error::new(ErrorKind::Unsupported, "read checkpoint", message));
        };
        let dims = usize::from(cursor.u8()?);
        if dims > DIMS_MAX {
            return Err(cursor.corrupt("an array has more than 64 dimensions"));
        }
        let shape = (0..dims).map(|_| cursor.varint()).collect::<Result<Vec<_>>>()?;
        let bytes = cursor.blob(VALUE_BYTES_MAX)?.to_vec();
        let expected = shape
            .iter()
            .try_fold(element_bytes, |bytes, size| bytes.checked_mul(*size));
        if expected != Some(bytes.len() as u64) {
            return Err(cursor.corrupt("an array has other bytes than its shape says"));
        }
        Ok(Self { dtype, shape, bytes })
    }
}

/// Bytes of an element by the name numpy gives a dtype (`<f4`, `|b1`); `None` for objects and whatever else has no fixed meaning.
fn numpy_element_bytes(dtype: &str) -> Option<u64> {
    let mut characters = dtype.chars();
    let order = characters.next()?;
    let kind = characters.next()?;
    let size: u64 = characters.as_str().parse().ok()?;
    let fits = match kind {
        'b' => size == 1,
        'i' | 'u' => matches!(size, 1 | 2 | 4 | 8),
        'f' => matches!(size, 2 | 4 | 8),
        'c' => matches!(size, 8 | 16),
        'S' | 'V' => size <= 1 << 20,
        _ => return None,
    };
    let is_canonical = dtype.len() == 2 + size.to_string().len();
    (fits && is_canonical && matches!(order, '<' | '|')).then_some(size)
}

fn refused(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "save", message)
}
