//! Arrays as `.npy`, which is how WebDataset's decoders want numbers.

use forebay_core::{Error, ErrorKind, Result};

use crate::schema::Dtype;

/// The header is filled up to a multiple of this, so that the numbers are aligned when the file is mapped.
const ALIGN: usize = 64;

/// Magic, version and the length of the text.
const HEAD_BYTES: usize = 10;

/// Write an array: header of version 1, then the values as they are.
pub(super) fn write(dtype: Dtype, shape: &[u64], values: &[u8]) -> Result<Vec<u8>> {
    let dims: Vec<String> = shape.iter().map(u64::to_string).collect();
    let shape = match &dims[..] {
        [dim] => format!("({dim},)"),
        dims => format!("({})", dims.join(", ")),
    };
    let mut text = format!(
        "{{'descr': '{}', 'fortran_order': False, 'shape': {shape}, }}",
        descr(dtype)?
    );
    let padded = (HEAD_BYTES + text.len() + 1).next_multiple_of(ALIGN);
    text.extend(std::iter::repeat_n(' ', padded - HEAD_BYTES - text.len() - 1));
    text.push('\n');
    let Ok(len) = u16::try_from(text.len()) else {
        let message = "an array of more dimensions than a header of numpy can say";
        return Err(Error::new(ErrorKind::LimitExceeded, "write npy", message));
    };
    let mut bytes = Vec::with_capacity(padded + values.len());
    bytes.extend_from_slice(b"\x93NUMPY\x01\x00");
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(values);
    Ok(bytes)
}

/// What numpy calls a type.
fn descr(dtype: Dtype) -> Result<&'static str> {
    Ok(match dtype {
        Dtype::Bool => "|b1",
        Dtype::Uint8 => "|u1",
        Dtype::Int8 => "|i1",
        Dtype::Uint16 => "<u2",
        Dtype::Int16 => "<i2",
        Dtype::Uint32 => "<u4",
        Dtype::Int32 => "<i4",
        Dtype::Uint64 => "<u8",
        Dtype::Int64 => "<i8",
        Dtype::Float16 => "<f2",
        Dtype::Float32 => "<f4",
        Dtype::Float64 => "<f8",
        Dtype::Bfloat16 => {
            let message = "numpy has no bfloat16";
            return Err(Error::new(ErrorKind::Unsupported, "write npy", message));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_numpy() {
        let bytes = write(Dtype::Int32, &[2, 1], &[1, 0, 0, 0, 2, 0, 0, 0]).unwrap();
        assert_eq!(bytes.len(), 128 + 8);
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        let text = std::str::from_utf8(&bytes[10..128]).unwrap();
        assert!(text.starts_with("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), }"));
        assert!(text.ends_with(" \n"));
        let shape = |shape: &[u64]| {
            let bytes = write(Dtype::Uint8, shape, &[]).unwrap();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        assert!(shape(&[]).contains("'shape': (), "));
        assert!(shape(&[7]).contains("'shape': (7,), "));
        assert_eq!(
            write(Dtype::Bfloat16, &[], &[0, 0]).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
    }
}
