//! The encodings of MDS columns: their names, their sizes, what they mean here.

use std::fmt;

use forebay_core::{Error, ErrorKind, Result};

use crate::format::value::{self, Cursor, Value};
use crate::schema::{Dtype, Kind};

/// What the values of a column are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// Anything.
    Bytes,
    /// UTF-8.
    Str,
    /// A 64-bit integer under the name `int`.
    Int,
    /// A number.
    Scalar(Dtype),
    /// An array. What is `None` stands in front of each value.
    Ndarray {
        /// Type of its values.
        dtype: Option<Dtype>,
        /// Its shape; given only together with the type.
        shape: Option<Vec<u64>>,
    },
    /// A whole number as text.
    StrInt,
    /// A number as text.
    StrFloat,
    /// A number as text, without rounding.
    StrDecimal,
    /// A raw image.
    Pil,
    /// A JPEG file.
    Jpeg,
    /// A PNG file.
    Png,
    /// JPEG files.
    JpegArray,
    /// Images of one kind, in the encoding of that name.
    List(ListOf),
    /// UTF-8 JSON.
    Json,
    /// A Python object that runs code when it is opened.
    Pickle,
}

/// What `list[...]` can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of the encodings")]
pub enum ListOf {
    Pil,
    Jpeg,
    Png,
}

impl ListOf {
    const fn name(self) -> &'static str {
        match self {
            Self::Pil => "pil",
            Self::Jpeg => "jpeg",
            Self::Png => "png",
        }
    }
}

/// Types that MDS has numbers and arrays of, with their codes in front of arrays.
const DTYPES: [(Dtype, u8); 11] = [
    (Dtype::Uint8, 8),
    (Dtype::Int8, 9),
    (Dtype::Uint16, 16),
    (Dtype::Int16, 17),
    (Dtype::Float16, 18),
    (Dtype::Uint32, 32),
    (Dtype::Int32, 33),
    (Dtype::Float32, 34),
    (Dtype::Uint64, 64),
    (Dtype::Int64, 65),
    (Dtype::Float64, 66),
];

fn is_known(dtype: Dtype) -> bool {
    DTYPES.iter().any(|(known, _)| *known == dtype)
}

impl Encoding {
    /// The encoding of that name.
    pub fn parse(name: &str) -> Result<Self> {
        Self::simple(name).or_else(|| Self::ndarray(name)).ok_or_else(|| {
            let message = format!("the encoding '{}' is not known", name.escape_debug());
            Error::new(ErrorKind::Unsupported, "read mds", message)
        })
    }

    fn simple(name: &str) -> Option<Self> {
        Some(match name {
            "bytes" => Self::Bytes,
            "str" => Self::Str,
            "int" => Self::Int,
            "str_int" => Self::StrInt,
            "str_float" => Self::StrFloat,
            "str_decimal" => Self::StrDecimal,
            "pil" => Self::Pil,
            "jpeg" => Self::Jpeg,
            "png" => Self::Png,
            "jpeg_array" | "jpegarray" => Self::JpegArray,
            "list[pil]" => Self::List(ListOf::Pil),
            "list[jpeg]" => Self::List(ListOf::Jpeg),
            "list[png]" => Self::List(ListOf::Png),
            "json" => Self::Json,
            "pkl" => Self::Pickle,
            _ => {
                return Dtype::parse(name)
                    .filter(|dtype| is_known(*dtype))
                    .map(Self::Scalar);
            }
        })
    }

    /// `ndarray`, `ndarray:<dtype>` or `ndarray:<dtype>:<dim>,<dim>,...`.
    fn ndarray(name: &str) -> Option<Self> {
        let mut parts = name.split(':');
        if parts.next() != Some("ndarray") {
            return None;
        }
        let dtype = match parts.next() {
            None => None,
            Some("") if name == "ndarray:" => None,
            Some(dtype) => Some(Dtype::parse(dtype).filter(|dtype| is_known(*dtype))?),
        };
        let shape = match parts.next() {
            None => None,
            Some(dims) => Some(shape(dims)?),
        };
        let encoding = Self::Ndarray { dtype, shape };
        // An array that no sample could hold has no size, although it should have one.
        let is_whole = parts.next().is_none();
        let fits = !matches!(encoding, Self::Ndarray { shape: Some(_), .. }) || encoding.size().is_some();
        (is_whole && fits).then_some(encoding)
    }

    /// The encoding to write values of that kind in. What MDS has no word for is written as `bytes`.
    pub fn for_kind(kind: &Kind) -> Self {
        match kind {
            Kind::Text => Self::Str,
            Kind::Json => Self::Json,
            Kind::Decimal => Self::StrDecimal,
            Kind::Image => Self::Jpeg,
            Kind::Varints => Self::Ndarray {
                dtype: Some(Dtype::Int64),
                shape: None,
            },
            Kind::List { dtype } => stored_dtype(*dtype).map_or(Self::Bytes, |dtype| Self::Ndarray {
                dtype: Some(dtype),
                shape: None,
            }),
            Kind::Array { dtype, shape } => Self::for_array(*dtype, shape),
            Kind::Encoded { encoding } => Self::for_encoded(encoding),
            Kind::Bytes => Self::Bytes,
        }
    }

    /// Images and lists of files have the same bytes in LitData; its arrays have the same values behind another head.
    fn for_encoded(name: &str) -> Self {
        match name {
            "litdata:pil" => Self::Pil,
            "litdata:jpeg_array" => Self::JpegArray,
            "litdata:tensor" | "litdata:numpy" => Self::Ndarray {
                dtype: None,
                shape: None,
            },
            _ => name
                .strip_prefix("mds:")
                .and_then(|name| Self::parse(name).ok())
                .unwrap_or(Self::Bytes),
        }
    }

    fn for_array(dtype: Dtype, shape: &[u64]) -> Self {
        let Some(dtype) = stored_dtype(dtype) else {
            return Self::Bytes;
        };
        if shape.is_empty() {
            return Self::Scalar(dtype);
        }
        let encoding = Self::Ndarray {
            dtype: Some(dtype),
            shape: Some(shape.to_vec()),
        };
        // Without elements, or too large for a sample: its readers would not take it.
        match encoding.size() {
            Some(1..) => encoding,
            _ => Self::Bytes,
        }
    }

    /// Bytes of every value, where they are the same for all.
    pub fn size(&self) -> Option<u32> {
        match self {
            Self::Int => Some(8),
            Self::Scalar(dtype) => u32::try_from(dtype.bytes()).ok(),
            Self::Ndarray {
                dtype: Some(dtype),
                shape: Some(shape),
            } => {
                let mut dims = shape.iter();
                let bytes = dims.try_fold(dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim))?;
                u32::try_from(bytes).ok()
            }
            _ => None,
        }
    }

    /// What the bytes of a value mean.
    pub fn kind(&self) -> Kind {
        let number = |dtype| Kind::Array {
            dtype,
            shape: Vec::new(),
        };
        match self {
            Self::Bytes | Self::Pickle => Kind::Bytes,
            Self::Str => Kind::Text,
            Self::Int => number(Dtype::Int64),
            Self::Scalar(dtype) => number(*dtype),
            Self::Ndarray {
                dtype: Some(dtype),
                shape: Some(shape),
            } => Kind::Array {
                dtype: *dtype,
                shape: shape.clone(),
            },
            Self::StrInt | Self::StrFloat | Self::StrDecimal => Kind::Decimal,
            Self::Jpeg | Self::Png => Kind::Image,
            Self::Json => Kind::Json,
            Self::Ndarray { .. } | Self::Pil | Self::JpegArray | Self::List(_) => Kind::Encoded {
                encoding: format!("mds:{self}"),
            },
        }
    }

    /// Open a value that says itself what it is; `None` for encodings whose values are what they are.
    pub(super) fn open<'a>(&self, bytes: &'a [u8]) -> Option<Result<Value<'a>>> {
        match self {
            Self::Ndarray { dtype, shape: None } => Some(open_array(*dtype, bytes)),
            Self::Pil => Some(value::image(bytes)),
            Self::JpegArray => Some(value::list(Cursor::new(bytes))),
            Self::List(_) => Some(open_list(bytes)),
            _ => None,
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Bytes => "bytes",
            Self::Str => "str",
            Self::Int => "int",
            Self::Scalar(dtype) => dtype.name(),
            Self::StrInt => "str_int",
            Self::StrFloat => "str_float",
            Self::StrDecimal => "str_decimal",
            Self::Pil => "pil",
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::JpegArray => "jpeg_array",
            Self::List(of) => return write!(f, "list[{}]", of.name()),
            Self::Json => "json",
            Self::Pickle => "pkl",
            Self::Ndarray { dtype, shape } => {
                f.write_str("ndarray")?;
                if let Some(dtype) = dtype {
                    write!(f, ":{dtype}")?;
                }
                for (index, dim) in shape.iter().flatten().enumerate() {
                    write!(f, "{}{dim}", if index == 0 { ':' } else { ',' })?;
                }
                return Ok(());
            }
        };
        f.write_str(name)
    }
}

/// The type values are stored as: MDS has no truth values, but their bytes are those of `uint8`.
fn stored_dtype(dtype: Dtype) -> Option<Dtype> {
    let stored = if dtype == Dtype::Bool { Dtype::Uint8 } else { dtype };
    is_known(stored).then_some(stored)
}

/// `3,4`; every dimension at least 1, as its writers ask for.
fn shape(dims: &str) -> Option<Vec<u64>> {
    let mut shape = Vec::new();
    for dim in dims.split(',') {
        let dim = dim.trim().parse::<u64>().ok().filter(|dim| *dim >= 1)?;
        if shape.len() >= value::DIMS_MAX {
            return None;
        }
        shape.push(dim);
    }
    Some(shape)
}

fn open_array(dtype: Option<Dtype>, bytes: &[u8]) -> Result<Value<'_>> {
    let mut cursor = Cursor::new(bytes);
    let dtype = match dtype {
        Some(dtype) => dtype,
        None => dtype_of_code(cursor.u8()?)?,
    };
    let head = cursor.u8()?;
    let (dims, width) = (head >> 2, 1 << (head & 3));
    let mut shape = Vec::with_capacity(usize::from(dims));
    for _ in 0..dims {
        shape.push(cursor.number(width)?);
    }
    value::array(dtype, shape, cursor)
}

fn dtype_of_code(code: u8) -> Result<Dtype> {
    let found = DTYPES.iter().find(|(_, known)| *known == code);
    found
        .map(|(dtype, _)| *dtype)
        .ok_or_else(|| value::corrupt(&format!("an array of the unknown type {code}")))
}

/// The code that an array has for its type where the column does not give it.
pub(super) fn code_of_dtype(dtype: Dtype) -> Option<u8> {
    let stored = stored_dtype(dtype)?;
    let found = DTYPES.iter().find(|(known, _)| *known == stored);
    found.map(|(_, code)| *code)
}

/// The head that an array of that shape has where the column gives the type, but not the shape; `None` where it cannot have one.
pub(super) fn array_head(shape: &[u64]) -> Option<Vec<u8>> {
    let longest = shape.iter().max()?;
    let code: u8 = match longest {
        0..=0xff => 0,
        0x100..=0xffff => 1,
        0x1_0000..=0xffff_ffff => 2,
        _ => 3,
    };
    let dims = u8::try_from(shape.len()).ok().filter(|dims| *dims < 64)?;
    let mut head = vec![dims << 2 | code];
    for dim in shape {
        head.extend(&dim.to_le_bytes()[..1 << code]);
    }
    Some(head)
}

fn open_list(bytes: &[u8]) -> Result<Value<'_>> {
    let mut cursor = Cursor::new(bytes);
    if cursor.u32()? != 0 {
        return Err(value::corrupt("the reserved number in front of a list is not 0"));
    }
    value::list(cursor)
}

#[cfg(test)]
mod tests;
