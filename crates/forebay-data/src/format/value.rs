//! Values that say themselves what they are: arrays with their shape, raw images, lists of files.
//!
//! A field of [`Kind::Encoded`](crate::Kind::Encoded) is opened here on demand, by the name of its encoding. Nothing is copied: what comes
//! out are slices of the field. The bytes are as hostile as any: lengths and shapes are compared with what is there before they are used.
//!
//! | encoding | value |
//! |---|---|
//! | `mds:ndarray`, `mds:ndarray:<dtype>` | [`Value::Array`] |
//! | `mds:pil`, `litdata:pil` | [`Value::Image`] |
//! | `mds:jpeg_array`, `mds:list[pil\|jpeg\|png]`, `litdata:jpeg_array` | [`Value::List`] |
//! | `litdata:tensor`, `litdata:numpy` | [`Value::Array`] |
//! | `tf:bytes_list` | [`Value::List`] |

use forebay_core::{Error, ErrorKind, Result};

use crate::format::{litdata, mds, tfrecord};
use crate::schema::Dtype;

/// Most dimensions of an array: numpy's own limit.
pub const DIMS_MAX: usize = 64;

/// Longest name of an image's mode: Pillow's longest has six letters.
const MODE_BYTES_MAX: usize = 16;

/// An encoded field, opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'a> {
    /// An array.
    Array(ArrayRef<'a>),
    /// Pixels without compression.
    Image(RawImage<'a>),
    /// Files, one after the other.
    List(Vec<&'a [u8]>),
}

/// An array in C order, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArrayRef<'a> {
    /// Type of its values.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its values; exactly as many as the shape says.
    pub values: &'a [u8],
}

/// An image as Pillow keeps it in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawImage<'a> {
    /// Pixels in a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// What a pixel is, in Pillow's words (`RGB`, `L`, ...).
    pub mode: &'a str,
    /// The pixels, row by row.
    pub pixels: &'a [u8],
}

/// True for encodings of arrays that carry their shape, whatever says their type.
pub(crate) fn is_array(encoding: &str) -> bool {
    matches!(encoding, "mds:ndarray" | "litdata:tensor" | "litdata:numpy")
        || encoding.starts_with("mds:ndarray:")
}

impl<'a> Value<'a> {
    /// Open the bytes of a field of that encoding.
    pub fn open(encoding: &str, bytes: &'a [u8]) -> Result<Self> {
        let opened = match encoding.split_once(':') {
            Some(("mds", name)) => mds::open_value(name, bytes),
            Some(("litdata", name)) => litdata::open_value(name, bytes),
            Some(("tf", "bytes_list")) => {
                let mut values = Vec::new();
                Some(tfrecord::decode::bytes_list(bytes, &mut values).map(|()| Self::List(values)))
            }
            _ => None,
        };
        opened.unwrap_or_else(|| {
            let message = format!("nothing is known of the encoding '{}'", encoding.escape_debug());
            Err(Error::new(ErrorKind::Unsupported, OP, message))
        })
    }
}

const OP: &str = "decode value";

/// Takes a value apart from its first byte on.
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            let message = format!(
                "the value ends after {} bytes, where {len} more are needed from byte {} on",
                self.at + self.rest.len(),
                self.at
            );
            return Err(corrupt(&message));
        };
        self.rest = rest;
        self.at += len;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(self.number(4)? as u32)
    }

    /// A little-endian number of up to eight bytes.
    pub(crate) fn number(&mut self, bytes: usize) -> Result<u64> {
        let taken = self.take(bytes)?;
        Ok(taken
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// A number of four bytes, most significant first.
    pub(crate) fn u32_swapped(&mut self) -> Result<u32> {
        Ok(self.u32()?.swap_bytes())
    }

    /// Everything that is left.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }
}

/// An array of the values that are left, when they are as many as the shape says.
pub(crate) fn array(dtype: Dtype, shape: Vec<u64>, values: Cursor<'_>) -> Result<Value<'_>> {
    let values = values.rest();
    let bytes = shape
        .iter()
        .try_fold(dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim));
    if bytes != Some(values.len() as u64) {
        let message = format!(
            "an array of {dtype} and shape {shape:?} does not take {} bytes",
            values.len()
        );
        return Err(corrupt(&message));
    }
    Ok(Value::Array(ArrayRef { dtype, shape, values }))
}

/// `u32` width, height and length of the mode, the mode, the pixels: how both MDS and LitData keep a Pillow image.
pub(crate) fn image(bytes: &[u8]) -> Result<Value<'_>> {
    let mut cursor = Cursor::new(bytes);
    let (width, height, mode_len) = (cursor.u32()?, cursor.u32()?, cursor.u32()? as usize);
    if mode_len > MODE_BYTES_MAX {
        return Err(corrupt(&format!("an image whose mode has {mode_len} letters")));
    }
    let Ok(mode) = std::str::from_utf8(cursor.take(mode_len)?) else {
        return Err(corrupt("the mode of an image is not text"));
    };
    let pixels = cursor.rest();
    if image_bytes(width, height, mode).is_some_and(|bytes| bytes != pixels.len() as u64) {
        let message = format!(
            "an image of {width} x {height} in mode {mode} does not take {} bytes",
            pixels.len()
        );
        return Err(corrupt(&message));
    }
    Ok(Value::Image(RawImage {
        width,
        height,
        mode,
        pixels,
    }))
}

/// Bytes of an image of that size, where the mode is one whose pixels are known.
fn image_bytes(width: u32, height: u32, mode: &str) -> Option<u64> {
    let row = |pixel: u64| u64::from(width) * pixel;
    let row_bytes = match mode {
        "1" => u64::from(width.div_ceil(8)),
        "L" | "P" => row(1),
        "LA" | "La" | "PA" | "I;16" | "I;16L" | "I;16B" => row(2),
        "RGB" | "YCbCr" | "LAB" | "HSV" => row(3),
        "RGBA" | "RGBa" | "RGBX" | "CMYK" | "I" | "F" => row(4),
        _ => return None,
    };
    Some(row_bytes.saturating_mul(u64::from(height)))
}

/// `u32` count, `u32` lengths, then the files: `jpeg_array` of MDS and LitData.
pub(crate) fn list(mut cursor: Cursor<'_>) -> Result<Value<'_>> {
    let count = cursor.u32()? as usize;
    let mut lens = Cursor::new(cursor.take(count.saturating_mul(4))?);
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        files.push(cursor.take(lens.u32()? as usize)?);
    }
    match cursor.rest() {
        [] => Ok(Value::List(files)),
        rest => Err(corrupt(&format!(
            "{} bytes are left behind a list of {count} files",
            rest.len()
        ))),
    }
}

pub(crate) fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pil(width: u32, height: u32, mode: &str, pixels: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [width, height, mode.len() as u32] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(mode.as_bytes());
        bytes.extend(vec![7; pixels]);
        bytes
    }

    #[test]
    fn images_are_as_large_as_they_say() {
        for (width, height, mode, pixels) in [
            (3, 2, "RGB", 18),
            (3, 2, "L", 6),
            (9, 2, "1", 4),
            (2, 2, "F", 16),
            (1, 1, "newmode", 5),
        ] {
            let bytes = pil(width, height, mode, pixels);
            let Ok(Value::Image(image)) = Value::open("mds:pil", &bytes) else {
                panic!("{mode}")
            };
            assert_eq!((image.width, image.height, image.mode), (width, height, mode));
            assert_eq!(image.pixels.len(), pixels);
        }
        for bytes in [
            pil(3, 2, "RGB", 17),
            pil(u32::MAX, u32::MAX, "RGBA", 4),
            pil(1, 1, "a mode of many letters", 1),
            pil(1, 1, "RGB", 3)[..13].to_vec(),
            pil(1, 1, "\u{e9}", 0)[..13].to_vec(),
        ] {
            let error = Value::open("litdata:pil", &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    #[test]
    fn lists_do_not_believe_their_counts() {
        let list = |words: &[u32], tail: &[u8]| {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.extend(tail);
            bytes
        };
        let bytes = list(&[2, 3, 0], b"abc");
        assert_eq!(
            Value::open("mds:jpeg_array", &bytes).unwrap(),
            Value::List(vec![b"abc", b""])
        );
        let bytes = list(&[0, 1, 2], b"xy");
        assert_eq!(
            Value::open("mds:list[png]", &bytes).unwrap(),
            Value::List(vec![b"xy"])
        );
        for bytes in [
            list(&[u32::MAX, 1], b"abc"),
            list(&[1, u32::MAX], b"abc"),
            list(&[1, 2], b"abc"),
            list(&[1, 4], b"abc"),
            b"abc".to_vec(),
        ] {
            assert!(Value::open("litdata:jpeg_array", &bytes).is_err(), "{bytes:?}");
        }
        let error = Value::open("mds:list[png]", &list(&[9, 1, 2], b"xy")).unwrap_err();
        assert!(error.to_string().contains("reserved"), "{error}");
    }

    #[test]
    fn unknown_encodings_are_refused_by_name() {
        for name in ["npy", "mds:pkl", "mds:str", "litdata:pickle", "other:thing"] {
            let error = Value::open(name, b"").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }
}
