//! Numbers in the ways that formats keep them, put one after the other as batches have them.

use forebay_core::Result;

use crate::format::petastorm::unpack_npy;
use crate::format::tfrecord::decode;
use crate::format::value::{Value, is_array};
use crate::schema::{Dtype, Kind};

/// The encoding of `.npy` files.
const NPY: &str = "npy";

/// Lists of numbers that are stored in a way of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// Integers as varints.
    Varints,
    /// A message of integers, as TensorFlow has it.
    Ints,
    /// The same of floats.
    Floats,
}

impl List {
    pub(super) fn of(kind: &Kind) -> Option<Self> {
        match kind {
            Kind::Varints => Some(Self::Varints),
            Kind::Encoded { encoding } if encoding == "tf:int64_list" => Some(Self::Ints),
            Kind::Encoded { encoding } if encoding == "tf:float_list" => Some(Self::Floats),
            _ => None,
        }
    }

    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Varints | Self::Ints => Dtype::Int64,
            Self::Floats => Dtype::Float32,
        }
    }

    /// Bytes of the numbers of a value; `None` where it is damaged.
    pub(super) fn checked_len(self, stored: &[u8]) -> Option<usize> {
        let count = match self {
            Self::Varints => decode::varint_count(stored),
            Self::Ints => decode::int64_list_len(stored).ok(),
            Self::Floats => decode::float_list_len(stored).ok(),
        };
        count.map(|count| count * self.dtype().bytes() as usize)
    }

    /// The same of a value that was checked.
    pub(super) fn len_of(self, stored: &[u8]) -> usize {
        match self {
            // Each ends with a byte below 0x80, and has no other.
            Self::Varints => 8 * stored.iter().filter(|byte| **byte < 0x80).count(),
            _ => self.checked_len(stored).unwrap_or_default(),
        }
    }

    /// Write the numbers of a value to the front of `place`; gives how many bytes they take.
    pub(super) fn put(self, stored: &[u8], place: &mut [u8]) -> Result<usize> {
        match self {
            Self::Varints => decode::varints_into(stored, place),
            Self::Ints => decode::int64_list_into(stored, place),
            Self::Floats => decode::float_list_into(stored, place),
        }
    }
}

/// How numbers are stored.
#[derive(Debug)]
pub(super) enum Numbers {
    /// One after the other.
    Plain,
    List(List),
    /// As a `.npy`.
    Npy,
    /// With their type and shape, in an encoding of that name.
    Encoded(String),
}

impl Numbers {
    pub(super) fn of(stored: &Kind) -> Self {
        match stored {
            Kind::Encoded { encoding } if encoding == NPY => Self::Npy,
            Kind::Encoded { encoding } if is_array(encoding) => Self::Encoded(encoding.clone()),
            kind => List::of(kind).map_or(Self::Plain, Self::List),
        }
    }

    /// True where they carry their type and shape.
    pub(super) fn has_shape(&self) -> bool {
        matches!(self, Self::Npy | Self::Encoded(_))
    }

    /// Put the numbers of a value into their place, which must be the right one.
    pub(super) fn put(
        &self,
        bytes: &[u8],
        dtype: Dtype,
        shape: &[u64],
        place: &mut [u8],
    ) -> Result<(), String> {
        match self {
            Self::Plain if bytes.len() == place.len() => place.copy_from_slice(bytes),
            Self::Plain => {
                return Err(format!("it has {} bytes instead of {}", bytes.len(), place.len()));
            }
            Self::List(list) => {
                let len = list.checked_len(bytes).ok_or("its numbers cannot be read")?;
                if len != place.len() {
                    let width = dtype.bytes() as usize;
                    let (has, wants) = (len / width, place.len() / width);
                    return Err(format!("it has {has} numbers instead of {wants}"));
                }
                list.put(bytes, place)
                    .map_err(|error| error.message().to_owned())?;
            }
            Self::Npy => {
                let mut values = Vec::with_capacity(place.len());
                unpack_npy(bytes, dtype, shape, &mut values).map_err(|error| error.message().to_owned())?;
                place.copy_from_slice(&values);
            }
            Self::Encoded(encoding) => match Value::open(encoding, bytes) {
                Ok(Value::Array(array)) if (array.dtype, &*array.shape) == (dtype, shape) => {
                    place.copy_from_slice(array.values);
                }
                Ok(Value::Array(array)) => {
                    return Err(format!(
                        "it is an array of {} of shape {:?}, not of {dtype} of shape {shape:?}",
                        array.dtype, array.shape
                    ));
                }
                Ok(_) => return Err("it is no array".to_owned()),
                Err(error) => return Err(error.message().to_owned()),
            },
        }
        Ok(())
    }
}
