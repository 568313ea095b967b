//! Leaves of a sample: what LitData's serializers make of values, by their names in `data_format`.

use forebay_core::Result;

use crate::format::value::{self, Cursor, Value};
use crate::schema::{Dtype, Kind};

/// What a leaf is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leaf {
    /// Anything.
    Bytes,
    /// UTF-8.
    Text,
    /// A number of one size.
    Number(Dtype),
    /// Values in one dimension.
    List(Dtype),
    /// An image as in a file.
    Image,
    /// Bytes that begin with what they are, in an encoding of LitData of that name.
    Encoded(String),
    /// A Python object that runs code when it is opened.
    Pickle,
}

impl Leaf {
    /// The leaf of that serializer. Users can have their own: what is not known keeps its name and is not opened.
    pub fn parse(serializer: &str) -> Self {
        let (name, rest) = match serializer.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (serializer, None),
        };
        let code = || rest.and_then(|code| code.parse::<u32>().ok());
        let list = |dtype: Option<Dtype>| dtype.map_or(Self::Encoded(serializer.to_owned()), Self::List);
        match name {
            "str" | "text" => Self::Text,
            "bool" => Self::Number(Dtype::Bool),
            "int" => Self::Number(Dtype::Int64),
            "float" => Self::Number(Dtype::Float64),
            "jpeg" | "png" | "image" => Self::Image,
            "no_header_tensor" => list(code().and_then(torch_dtype)),
            "no_header_numpy" => list(code().and_then(numpy_dtype)),
            // A graph holds a pickle, even where its tensors do not.
            "pickle" | "graph" => Self::Pickle,
            "bytes" | "file" | "tifffile" | "tiff" | "video" | "audio" | "nifti" | "mesh" | "pdf" => {
                Self::Bytes
            }
            _ => Self::Encoded(serializer.to_owned()),
        }
    }

    /// What its bytes mean.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Bytes | Self::Pickle => Kind::Bytes,
            Self::Text => Kind::Text,
            Self::Number(dtype) => Kind::Array {
                dtype: *dtype,
                shape: Vec::new(),
            },
            Self::List(dtype) => Kind::List { dtype: *dtype },
            Self::Image => Kind::Image,
            Self::Encoded(name) => Kind::Encoded {
                encoding: format!("litdata:{name}"),
            },
        }
    }

    /// Bytes of every value, where they are the same for all.
    pub fn size(&self) -> Option<u32> {
        match self {
            Self::Number(dtype) => u32::try_from(dtype.bytes()).ok(),
            _ => None,
        }
    }
}

/// The type of a tensor. Half of the codes are other words for the ones before them, and those are the ones that are written.
fn torch_dtype(code: u32) -> Option<Dtype> {
    Some(match code {
        0 | 1 => Dtype::Float32,
        2 | 3 => Dtype::Float64,
        8 | 9 => Dtype::Float16,
        10 => Dtype::Bfloat16,
        11 => Dtype::Uint8,
        12 => Dtype::Int8,
        13 | 14 => Dtype::Int16,
        15 | 16 => Dtype::Int32,
        17 | 18 => Dtype::Int64,
        19 => Dtype::Bool,
        20 => Dtype::Uint16,
        _ => return None,
    })
}

/// The type of a numpy array.
fn numpy_dtype(code: u32) -> Option<Dtype> {
    Some(match code {
        0 => Dtype::Int8,
        1 => Dtype::Int16,
        2 => Dtype::Int32,
        3 => Dtype::Int64,
        4 => Dtype::Uint8,
        5 => Dtype::Uint16,
        6 => Dtype::Uint32,
        7 => Dtype::Uint64,
        8 => Dtype::Float16,
        9 => Dtype::Float32,
        10 => Dtype::Float64,
        13 => Dtype::Bool,
        _ => return None,
    })
}

/// Open a value of the serializer of that name; `None` where it is not one that says itself what it is.
pub(crate) fn open_value<'a>(serializer: &str, bytes: &'a [u8]) -> Option<Result<Value<'a>>> {
    match serializer {
        "tensor" => Some(tensor(bytes)),
        "numpy" => Some(numpy(bytes)),
        "pil" => Some(value::image(bytes)),
        "jpeg_array" => Some(value::list(Cursor::new(bytes))),
        _ => None,
    }
}

/// `u32` type, rank and dimensions, most significant byte first, then the values.
fn tensor(bytes: &[u8]) -> Result<Value<'_>> {
    let mut cursor = Cursor::new(bytes);
    let (code, rank) = (cursor.u32_swapped()?, cursor.u32_swapped()?);
    let shape = shape(rank, || cursor.u32_swapped())?;
    value::array(known(torch_dtype(code), code)?, shape, cursor)
}

/// The same with the least significant byte first.
fn numpy(bytes: &[u8]) -> Result<Value<'_>> {
    let mut cursor = Cursor::new(bytes);
    let (code, rank) = (cursor.u32()?, cursor.u32()?);
    let shape = shape(rank, || cursor.u32())?;
    value::array(known(numpy_dtype(code), code)?, shape, cursor)
}

fn shape(rank: u32, mut dim: impl FnMut() -> Result<u32>) -> Result<Vec<u64>> {
    if rank as usize > value::DIMS_MAX {
        return Err(value::corrupt(&format!("an array of {rank} dimensions")));
    }
    (0..rank).map(|_| dim().map(u64::from)).collect()
}

fn known(dtype: Option<Dtype>, code: u32) -> Result<Dtype> {
    dtype.ok_or_else(|| value::corrupt(&format!("an array of the unknown type {code}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serializers_become_kinds() {
        let number = |dtype| Kind::Array {
            dtype,
            shape: Vec::new(),
        };
        let encoded = |name: &str| Kind::Encoded {
            encoding: format!("litdata:{name}"),
        };
        for (name, kind) in [
            ("str", Kind::Text),
            ("bool", number(Dtype::Bool)),
            ("int", number(Dtype::Int64)),
            ("float", number(Dtype::Float64)),
            ("bytes", Kind::Bytes),
            ("jpeg", Kind::Image),
            ("image:png", Kind::Image),
            ("file:txt", Kind::Bytes),
            ("no_header_tensor:14", Kind::List { dtype: Dtype::Int16 }),
            (
                "no_header_tensor:1",
                Kind::List {
                    dtype: Dtype::Float32,
                },
            ),
            ("no_header_tensor:18", Kind::List { dtype: Dtype::Int64 }),
            ("no_header_numpy:5", Kind::List { dtype: Dtype::Uint16 }),
            ("no_header_tensor:4", encoded("no_header_tensor:4")),
            ("no_header_numpy:x", encoded("no_header_numpy:x")),
            ("tensor", encoded("tensor")),
            ("pil", encoded("pil")),
            ("my_own", encoded("my_own")),
        ] {
            assert_eq!(Leaf::parse(name).kind(), kind, "{name}");
        }
        for name in ["pickle", "graph", "graph:pickle"] {
            assert_eq!(Leaf::parse(name), Leaf::Pickle);
        }
    }

    #[test]
    fn the_two_headers_differ_in_the_order_of_their_bytes() {
        let open = |name: &str, bytes: &[u8]| match open_value(name, bytes) {
            Some(Ok(Value::Array(array))) => Some((array.dtype, array.shape, array.values.len())),
            Some(Err(_)) => None,
            other => panic!("{other:?}"),
        };
        let tensor = [0, 0, 0, 11, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 7, 7, 7];
        assert_eq!(open("tensor", &tensor), Some((Dtype::Uint8, vec![1, 3], 3)));
        assert_eq!(open("numpy", &tensor), None);
        let numpy = [4, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 7, 7, 7];
        assert_eq!(open("numpy", &numpy), Some((Dtype::Uint8, vec![1, 3], 3)));
        assert_eq!(open("tensor", &numpy), None);
        for len in 0..tensor.len() {
            assert_eq!(open("tensor", &tensor[..len]), None);
        }
        assert_eq!(open("numpy", &[4, 0, 0, 0, 255, 255, 255, 255]), None);
        assert_eq!(open("numpy", &[14, 0, 0, 0, 0, 0, 0, 0, 1]), None);
    }
}
