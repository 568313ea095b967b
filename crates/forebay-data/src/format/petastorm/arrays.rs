//! Arrays out of `.npy` and `.npz` bytes, little-endian and in C order.

use forebay_core::{ByteSize, Error, ErrorKind, Result};

use super::npz;
use crate::block::{Column, Shape};
use crate::schema::{Dtype, Kind};

/// A decoded column is at most that large.
const COLUMN_BYTES_MAX: u64 = 8 << 30;

/// Longest header of a `.npy`: numpy itself refuses more than 10,000 characters.
const HEADER_BYTES_MAX: usize = 16 << 10;

/// How a column keeps arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    /// As `.npy`.
    Npy,
    /// As `.npz` with a member `arr`.
    Npz,
}

/// Take the arrays of a column out of their packing, as values of `kind`.
pub(crate) fn unpack(packed: &Column, rows: usize, kind: &Kind, packing: Packing) -> Result<Column> {
    let width = kind.fixed_bytes().and_then(|bytes| usize::try_from(bytes).ok());
    let mut data = Vec::new();
    let mut ends = vec![0];
    let mut present = Vec::with_capacity(rows);
    for row in 0..rows {
        let value = packed.get(row);
        present.push(value.is_some());
        if let Some(value) = value {
            unpack_one(value, kind, packing, &mut data)
                .map_err(|error| error.within(format_args!("row {row}")))?;
        } else if let Some(width) = width {
            data.resize(data.len() + width, 0);
        }
        if data.len() as u64 > COLUMN_BYTES_MAX {
            let message = format!("its arrays become more than {}", ByteSize(COLUMN_BYTES_MAX));
            return Err(Error::new(ErrorKind::LimitExceeded, "read petastorm", message));
        }
        if width.is_none() {
            ends.push(data.len() as u64);
        }
    }
    Ok(Column {
        data: data.into(),
        shape: width.map_or(Shape::Ends(ends), Shape::Fixed),
        present: present.contains(&false).then_some(present),
    })
}

/// Append the values of a `.npy` of that type and shape.
pub(crate) fn unpack_npy(npy: &[u8], dtype: Dtype, shape: &[u64], out: &mut Vec<u8>) -> Result<()> {
    let array = Npy::read(npy)?;
    array.check(dtype, shape)?;
    array.write(out)
}

fn unpack_one(value: &[u8], kind: &Kind, packing: Packing, out: &mut Vec<u8>) -> Result<()> {
    let inflated;
    let npy = match packing {
        Packing::Npy => value,
        Packing::Npz => {
            inflated = npz::member(value, "arr.npy")?;
            inflated.as_slice()
        }
    };
    let array = Npy::read(npy)?;
    match kind {
        Kind::Array { dtype, shape } => {
            array.check(*dtype, shape)?;
            array.write(out)
        }
        Kind::List { dtype } => {
            let len = array.shape.first().copied().unwrap_or(0);
            array.check(*dtype, &[len])?;
            array.write(out)
        }
        _ => {
            out.extend_from_slice(npy);
            Ok(())
        }
    }
}

/// A `.npy`, looked at.
#[derive(Debug)]
struct Npy<'a> {
    dtype: Option<Dtype>,
    descr: String,
    is_big_endian: bool,
    is_fortran: bool,
    shape: Vec<u64>,
    values: &'a [u8],
}

impl<'a> Npy<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self> {
        let (version, rest) = match bytes {
            [0x93, b'N', b'U', b'M', b'P', b'Y', version, _, rest @ ..] => (*version, rest),
            _ => return Err(corrupt("it does not begin like a .npy")),
        };
        let (len, rest) = match (version, rest) {
            (1, [a, b, rest @ ..]) => (usize::from(u16::from_le_bytes([*a, *b])), rest),
            (2 | 3, [a, b, c, d, rest @ ..]) => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
            (1..=3, _) => return Err(corrupt("a .npy ends in the middle of its header")),
            (other, _) => {
                let message = format!("version {other} of .npy is not known, only 1, 2 and 3");
                return Err(corrupt(&message));
            }
        };
        let header = rest.get(..len).filter(|_| len <= HEADER_BYTES_MAX);
        let header = header.and_then(|header| std::str::from_utf8(header).ok());
        let header = header.ok_or_else(|| corrupt("the header of a .npy ends in the middle"))?;
        let entry = |name: &str| {
            let (_, rest) = header.split_once(&format!("'{name}':"))?;
            Some(rest.trim_start())
        };
        let descr = entry("descr").and_then(|rest| rest.strip_prefix('\'')?.split('\'').next());
        let is_fortran = match entry("fortran_order") {
            Some(rest) if rest.starts_with("True") => Some(true),
            Some(rest) if rest.starts_with("False") => Some(false),
            _ => None,
        };
        let shape = entry("shape")
            .and_then(|rest| rest.strip_prefix('(')?.split_once(')'))
            .map(|(dims, _)| dims);
        let (Some(descr), Some(is_fortran), Some(shape)) = (descr, is_fortran, shape) else {
            return Err(corrupt("the header of a .npy lacks type, order or shape"));
        };
        let dims = shape.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        let shape = dims.map(|dim| {
            dim.trim_end_matches('L')
                .parse()
                .map_err(|_| corrupt("a dimension that is no number"))
        });
        Ok(Self {
            dtype: descr_dtype(descr),
            descr: descr.to_owned(),
            is_big_endian: descr.starts_with('>'),
            is_fortran,
            shape: shape.collect::<Result<_>>()?,
            values: rest.get(len..).unwrap_or_default(),
        })
    }

    fn check(&self, dtype: Dtype, shape: &[u64]) -> Result<()> {
        if self.dtype != Some(dtype) || self.shape != shape {
            return Err(corrupt(&format!(
                "an array of '{}' {:?} where {dtype} {shape:?} is to be",
                self.descr.escape_debug(),
                self.shape
            )));
        }
        let elements = shape.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim));
        let bytes = elements.and_then(|count| count.checked_mul(dtype.bytes()));
        if bytes != Some(self.values.len() as u64) {
            return Err(corrupt(
                "an array has another number of bytes than its shape says",
            ));
        }
        Ok(())
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        let width = self.dtype.map_or(1, |dtype| dtype.bytes() as usize);
        if self.is_fortran && self.shape.len() > 1 {
            self.write_turned(width, out)?;
        } else {
            out.extend_from_slice(self.values);
        }
        if self.is_big_endian {
            for value in out.get_mut(start..).unwrap_or_default().chunks_mut(width) {
                value.reverse();
            }
        }
        Ok(())
    }

    /// From the order where the first index runs fastest to that where the last does.
    fn write_turned(&self, width: usize, out: &mut Vec<u8>) -> Result<()> {
        let mut strides = Vec::with_capacity(self.shape.len());
        let mut stride = 1u64;
        for dim in &self.shape {
            strides.push(stride);
            stride = stride.saturating_mul(*dim);
        }
        let count = self.values.len() / width.max(1);
        let mut index = vec![0u64; self.shape.len()];
        for _ in 0..count {
            let at: u64 = index
                .iter()
                .zip(&strides)
                .map(|(index, stride)| index * stride)
                .sum();
            let at = at as usize * width;
            let value = self.values.get(at..at + width);
            out.extend_from_slice(value.ok_or_else(|| corrupt("an array ends in the middle"))?);
            for (index, dim) in index.iter_mut().zip(&self.shape).rev() {
                *index += 1;
                if *index < *dim {
                    break;
                }
                *index = 0;
            }
        }
        Ok(())
    }
}

/// The type of numpy's short name, as it stands in `.npy` files; any byte order.
pub(super) fn descr_dtype(descr: &str) -> Option<Dtype> {
    Some(match descr.get(1..)? {
        "b1" => Dtype::Bool,
        "i1" => Dtype::Int8,
        "i2" => Dtype::Int16,
        "i4" => Dtype::Int32,
        "i8" => Dtype::Int64,
        "u1" => Dtype::Uint8,
        "u2" => Dtype::Uint16,
        "u4" => Dtype::Uint32,
        "u8" => Dtype::Uint64,
        "f2" => Dtype::Float16,
        "f4" => Dtype::Float32,
        "f8" => Dtype::Float64,
        _ => return None,
    })
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read petastorm", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, fortran: bool, shape: &str, values: &[u8]) -> Vec<u8> {
        let fortran = if fortran { "True" } else { "False" };
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
        let len = (header.len() as u16).to_le_bytes();
        [
            b"\x93NUMPY\x01\x00".to_vec(),
            len.to_vec(),
            header.into_bytes(),
            values.to_vec(),
        ]
        .concat()
    }

    fn column(value: Vec<u8>) -> Column {
        Column {
            shape: Shape::Ends(vec![0, value.len() as u64]),
            data: value.into(),
            present: None,
        }
    }

    fn array(shape: &[u64]) -> Kind {
        Kind::Array {
            dtype: Dtype::Int16,
            shape: shape.to_vec(),
        }
    }

    #[test]
    fn orders_are_turned() {
        let read = |bytes, kind: &Kind| {
            unpack(&column(bytes), 1, kind, Packing::Npy).map(|column| column.data.to_vec())
        };
        let plain = [1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6, 0];
        let kind = array(&[2, 3]);
        assert_eq!(read(npy("<i2", false, "(2, 3)", &plain), &kind).unwrap(), plain);
        let turned = [1, 0, 4, 0, 2, 0, 5, 0, 3, 0, 6, 0];
        assert_eq!(read(npy("<i2", true, "(2, 3)", &turned), &kind).unwrap(), plain);
        let big = [0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0, 6];
        assert_eq!(read(npy(">i2", false, "(2, 3)", &big), &kind).unwrap(), plain);
        assert_eq!(
            read(
                npy("<i2", false, "(6,)", &plain),
                &Kind::List { dtype: Dtype::Int16 }
            )
            .unwrap(),
            plain
        );
        assert_eq!(
            read(npy("<i2", true, "()", &[7, 0]), &array(&[])).unwrap(),
            [7, 0]
        );
    }

    #[test]
    fn arrays_that_are_not_what_the_schema_says_are_corrupt() {
        let whole = npy("<i2", false, "(2,)", &[1, 0, 2, 0]);
        for bytes in [
            npy("<i4", false, "(2,)", &[0; 8]),
            npy("<i2", false, "(3,)", &[0; 6]),
            npy("<i2", false, "(2,)", &[0; 3]),
            npy("<i2", false, "(2, 18446744073709551615)", &[0; 4]),
            npy("<i2", false, "(x,)", &[0; 4]),
            whole[..20].to_vec(),
            b"PK".to_vec(),
        ] {
            let error = unpack(&column(bytes), 1, &array(&[2]), Packing::Npy).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().starts_with("row 0: "), "{error}");
        }
    }
}
