//! Headers of `.npy` files, versions 1 to 3, as far as one-dimensional arrays of numbers have them.

use forebay_core::{Error, ErrorKind, Result};

use super::scan::Windows;
use super::{Tokens, corrupt};
use crate::format::Scan;
use crate::schema::Dtype;
use crate::table::Table;

/// What every file begins with.
const MAGIC: &[u8] = b"\x93NUMPY";

/// Longest text of a header: what version 1 can say. numpy itself reads 10,000 bytes unless told otherwise.
const HEADER_BYTES_MAX: usize = 64 << 10;

/// A pass over a file: its header is collected, then the tokens are cut into windows.
#[derive(Debug)]
pub(super) struct NpyScan {
    tokens: Tokens,
    header: Vec<u8>,
    /// The windows, and the bytes the shape says there are.
    body: Option<(Box<Windows>, u64)>,
}

impl NpyScan {
    pub(super) fn new(tokens: Tokens) -> Self {
        Self {
            tokens,
            header: Vec::new(),
            body: None,
        }
    }

    /// Take what is missing of the header: how many bytes.
    fn take_header(&mut self, bytes: &[u8]) -> Result<usize> {
        let missing = header_len(&self.header)? - self.header.len();
        let taken = missing.min(bytes.len());
        self.header.extend_from_slice(&bytes[..taken]);
        if header_len(&self.header)? == self.header.len() {
            let (dtype, len) = parse(text_of(&self.header))?;
            self.tokens.check_dtype(dtype, "the header")?;
            let body = len
                .checked_mul(dtype.bytes())
                .ok_or_else(|| corrupt("the shape in the header is larger than any file"))?;
            let windows = Windows::from(dtype, self.tokens.window(dtype)?, self.header.len() as u64)?;
            self.body = Some((Box::new(windows), body));
        }
        Ok(taken)
    }
}

impl Scan for NpyScan {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let Some((windows, body)) = &mut self.body else {
                let taken = self.take_header(bytes)?;
                bytes = &bytes[taken..];
                continue;
            };
            if windows.bytes() + bytes.len() as u64 > *body {
                let end = self.header.len() as u64 + *body;
                return Err(corrupt(format!(
                    "the file goes on at offset {end}, where its array ends"
                )));
            }
            return windows.feed(bytes);
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        match self.body {
            Some((windows, body)) if windows.bytes() == body => windows.finish(),
            Some((windows, body)) => Err(corrupt(format!(
                "the file ends {} bytes before its array",
                body - windows.bytes()
            ))),
            None => Err(corrupt(format!(
                "the file ends within its header, at offset {}",
                self.header.len()
            ))),
        }
    }
}

/// Bytes of the whole header, as far as the first ones tell: at first those that tell the length.
fn header_len(header: &[u8]) -> Result<usize> {
    let known = header.len().min(MAGIC.len());
    if header.get(..known) != MAGIC.get(..known) {
        return Err(corrupt("a .npy file begins otherwise"));
    }
    let (fixed, text) = match header.get(MAGIC.len()..) {
        None | Some([] | [_]) => (8, 0),
        Some([1, 0, rest @ ..]) => (
            10,
            rest.first_chunk()
                .map_or(0, |len| usize::from(u16::from_le_bytes(*len))),
        ),
        Some([2 | 3, 0, rest @ ..]) => (
            12,
            rest.first_chunk()
                .map_or(0, |len| u32::from_le_bytes(*len) as usize),
        ),
        Some([major, minor, ..]) => {
            let message = format!("version {major}.{minor} of .npy is not known, only 1.0, 2.0 and 3.0");
            return Err(Error::new(ErrorKind::Unsupported, "read tokens", message)
                .with_hint("write the array anew with numpy.save"));
        }
    };
    if text > HEADER_BYTES_MAX {
        return Err(corrupt(format!(
            "a .npy header of {text} bytes is longer than any that numpy writes"
        )));
    }
    Ok(fixed + text)
}

fn text_of(header: &[u8]) -> &[u8] {
    let fixed = if header.get(MAGIC.len()) == Some(&1) {
        10
    } else {
        12
    };
    header.get(fixed..).unwrap_or_default()
}

/// Type and length from the dict in the header.
fn parse(text: &[u8]) -> Result<(Dtype, u64)> {
    let text = std::str::from_utf8(text).map_err(|_| corrupt("the .npy header is no text"))?;
    let dict = text
        .trim()
        .strip_prefix('{')
        .and_then(|text| text.strip_suffix('}'))
        .ok_or_else(|| corrupt("the .npy header is no dict"))?;
    let (mut descr, mut order, mut shape) = (None, None, None);
    let mut rest = dict.trim();
    while !rest.is_empty() {
        let (name, after) = quoted(rest).ok_or_else(|| malformed(rest))?;
        let after = after
            .trim_start()
            .strip_prefix(':')
            .ok_or_else(|| malformed(after))?;
        let (value, after) = value(after.trim_start()).ok_or_else(|| malformed(after))?;
        let slot = match name {
            "descr" => &mut descr,
            "fortran_order" => &mut order,
            "shape" => &mut shape,
            _ => return Err(malformed(rest)),
        };
        if slot.replace(value).is_some() {
            return Err(malformed(rest));
        }
        let after = after.trim_start();
        rest = match after.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if after.is_empty() => after,
            None => return Err(malformed(after)),
        };
    }
    let (Some(descr), Some("True" | "False"), Some(shape)) = (descr, order, shape) else {
        return Err(corrupt("the .npy header lacks descr, fortran_order or shape"));
    };
    Ok((dtype_of(descr)?, length_of(shape)?))
}

/// A quoted word, without its quotes, and what follows.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text.get(1..)?.split_once(quote)
}

/// A value with its quotes or parentheses, and what follows.
fn value(text: &str) -> Option<(&str, &str)> {
    let end = match text.chars().next()? {
        quote @ ('\'' | '"') => text.get(1..)?.find(quote)? + 2,
        '(' => text.find(')')? + 1,
        _ => text.find(',').unwrap_or(text.len()),
    };
    let (value, rest) = text.split_at_checked(end)?;
    Some((value.trim_end(), rest))
}

fn dtype_of(descr: &str) -> Result<Dtype> {
    let unsupported = || {
        let message = format!("tokens of type {} cannot be read", descr.escape_debug());
        Error::new(ErrorKind::Unsupported, "read tokens", message)
            .with_hint("save the array as little-endian numbers of one to eight bytes")
    };
    let (name, _) = quoted(descr).ok_or_else(unsupported)?;
    Ok(match name {
        "|b1" => Dtype::Bool,
        "|i1" => Dtype::Int8,
        "|u1" => Dtype::Uint8,
        "<i2" => Dtype::Int16,
        "<u2" => Dtype::Uint16,
        "<i4" => Dtype::Int32,
        "<u4" => Dtype::Uint32,
        "<i8" => Dtype::Int64,
        "<u8" => Dtype::Uint64,
        "<f2" => Dtype::Float16,
        "<f4" => Dtype::Float32,
        "<f8" => Dtype::Float64,
        _ => return Err(unsupported()),
    })
}

/// The one dimension of a shape such as `(1000,)`.
fn length_of(shape: &str) -> Result<u64> {
    let inside = shape.strip_prefix('(').and_then(|shape| shape.strip_suffix(')'));
    let mut dimensions = inside.unwrap_or_default().split(',').map(str::trim);
    match (dimensions.next(), dimensions.next(), dimensions.next()) {
        (Some(len), Some(""), None) if !len.is_empty() && len.bytes().all(|byte| byte.is_ascii_digit()) => {
            len.parse()
                .map_err(|_| corrupt("the shape in the header is larger than any file"))
        }
        _ => {
            let message = format!("an array of shape {} is no list of tokens", shape.escape_debug());
            let hint = "save it with one dimension: array.reshape(-1)";
            Err(Error::new(ErrorKind::Unsupported, "read tokens", message).with_hint(hint))
        }
    }
}

fn malformed(near: &str) -> Error {
    let near: String = near.chars().take(20).collect();
    corrupt(format!(
        "the .npy header cannot be read near '{}'",
        near.escape_debug()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dicts_are_read_as_numpy_writes_them_and_nothing_else() {
        let good = [
            "{'descr': '<u2', 'fortran_order': False, 'shape': (12,), }   \n",
            "{\"shape\":(12,),\"fortran_order\":True,\"descr\":\"<u2\"}",
        ];
        for text in good {
            assert_eq!(parse(text.as_bytes()).unwrap(), (Dtype::Uint16, 12), "{text}");
        }
        let bad = [
            "",
            "{",
            "{}",
            "[]",
            "{'descr': '<u2', 'shape': (12,)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (12,), 'x': 1}",
            "{'descr': '<u2', 'descr': '<u2', 'fortran_order': False, 'shape': (12,)}",
            "{'descr': '>u2', 'fortran_order': False, 'shape': (12,)}",
            "{'descr': '<u2', 'fortran_order': 0, 'shape': (12,)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (12)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 4)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': ()}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999999999999999,)}",
            "{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': (12,)}",
            "{'descr' '<u2'}",
            "{'descr: '<u2'}",
            "{'descr': '<u2' 'shape': (12,)}",
        ];
        for text in bad {
            assert!(parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
