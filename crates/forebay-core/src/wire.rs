//! Numbers and text in untrusted bytes, and the way they are written: what the formats of several jobs are made of.
//!
//! [`Cursor`] checks each step against what is left and allocates nothing by what a length claims. [`Wire`] is its mirror on a growing
//! vector. Everything is little-endian; `varint` is LEB128 in its shortest form, so that one value has one encoding.

use crate::{Error, ErrorKind, Result};

/// Bytes of the longest varint: 64 bits by 7.
const VARINT_BYTES_MAX: u32 = 10;

/// A place in bytes that were read.
#[derive(Debug, Clone)]
pub struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    /// What is being done, for errors.
    op: &'static str,
    /// What is being read, for messages.
    what: &'static str,
}

macro_rules! numbers {
    ($( $name:ident: $number:ty; )*) => {
        $(
            #[doc = concat!("The next `", stringify!($number), "`.")]
            pub fn $name(&mut self) -> Result<$number> {
                self.array().map(<$number>::from_le_bytes)
            }
        )*
    };
}

impl<'a> Cursor<'a> {
    /// At the start of `bytes`, which are the `what` of a file; errors name `op`.
    pub fn new(bytes: &'a [u8], op: &'static str, what: &'static str) -> Self {
        Self {
            bytes,
            at: 0,
            op,
            what,
        }
    }

    /// Bytes that were read so far.
    pub fn at(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self
            .at
            .checked_add(len)
            .and_then(|end| Some((end, self.bytes.get(self.at..end)?)));
        let Some((end, bytes)) = taken else {
            return Err(self.corrupt("it ends too early"));
        };
        self.at = end;
        Ok(bytes)
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let next = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk());
        let Some(array) = next else {
            return Err(self.corrupt("it ends too early"));
        };
        self.at += N;
        Ok(*array)
    }

    numbers! {
        u8: u8;
        u16: u16;
        u32: u32;
        u64: u64;
    }

    /// A varint.
    pub fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for index in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if index == VARINT_BYTES_MAX - 1 && bits > 1 {
                return Err(self.corrupt("a number needs more than 64 bits"));
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                if byte == 0 && index > 0 {
                    return Err(self.corrupt("a number is longer than it needs to be"));
                }
                return Ok(value);
            }
        }
        Err(self.corrupt("a number needs more than 64 bits"))
    }

    /// A varint that counts things of at least `each_bytes` that follow; more than can follow is refused before anything is allocated for them.
    pub fn count(&mut self, max: u64, each_bytes: usize) -> Result<usize> {
        let count = self.varint()?;
        if count > max {
            return Err(self.corrupt(&format!("{count} of them, but at most {max} are allowed")));
        }
        let most = self.left() / each_bytes.max(1);
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(self.corrupt("it ends too early")),
        }
    }

    /// A varint of bytes, then the bytes.
    pub fn blob(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = self.count(max as u64, 1)?;
        self.take(len)
    }

    /// A varint of bytes, then as many of UTF-8.
    pub fn text(&mut self, max: usize) -> Result<&'a str> {
        let len = self.count(max as u64, 1)?;
        self.text_of(len)
    }

    /// `len` bytes of UTF-8.
    pub fn text_of(&mut self, len: usize) -> Result<&'a str> {
        let start = self.clone();
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|error| start.corrupt("text is not UTF-8").with_source(error))
    }

    /// Bytes that are compared with zero.
    pub fn zeros(&mut self, len: usize) -> Result<()> {
        if self.take(len)?.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        Err(self.corrupt("bytes that must be zero are not"))
    }

    /// 0 or 1.
    pub fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.corrupt("a truth value is neither 0 nor 1")),
        }
    }

    /// Nothing may follow.
    pub fn finish(self) -> Result<()> {
        if self.left() == 0 {
            return Ok(());
        }
        Err(self.corrupt("something follows its end"))
    }

    /// An error at this place.
    pub fn corrupt(&self, message: &str) -> Error {
        let message = format!("{message} (byte {} of the {})", self.at, self.what);
        Error::new(ErrorKind::Corrupt, self.op, message)
    }
}

/// Writes what [`Cursor`] reads.
pub trait Wire {
    /// A varint.
    fn put_varint(&mut self, value: u64);
    /// A varint of bytes, then the bytes.
    fn put_blob(&mut self, bytes: &[u8]);
    /// A varint of bytes, then the text.
    fn put_text(&mut self, text: &str) {
        self.put_blob(text.as_bytes());
    }
    /// Four bytes.
    fn put_u32(&mut self, value: u32);
    /// Eight bytes.
    fn put_u64(&mut self, value: u64);
}

impl Wire for Vec<u8> {
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }

    fn put_blob(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.extend_from_slice(bytes);
    }

    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn varints_come_back(value: u64, more in prop::collection::vec(any::<u8>(), 0..4)) {
            let mut bytes = Vec::new();
            bytes.put_varint(value);
            let len = bytes.len();
            bytes.extend_from_slice(&more);
            let mut cursor = Cursor::new(&bytes, "read", "test");
            prop_assert_eq!(cursor.varint().unwrap(), value);
            prop_assert_eq!(cursor.at(), len);
        }

        #[test]
        fn what_is_read_as_a_varint_is_its_only_encoding(bytes in prop::collection::vec(any::<u8>(), 0..12)) {
            let mut cursor = Cursor::new(&bytes, "read", "test");
            if let Ok(value) = cursor.varint() {
                let mut again = Vec::new();
                again.put_varint(value);
                prop_assert_eq!(&bytes[..cursor.at()], &again[..]);
            }
        }
    }

    #[test]
    fn lengths_beyond_the_end_are_refused_before_allocating() {
        let mut bytes = Vec::new();
        bytes.put_varint(u64::MAX);
        assert!(Cursor::new(&bytes, "read", "test").blob(usize::MAX).is_err());
        assert!(Cursor::new(&bytes, "read", "test").count(u64::MAX, 44).is_err());
        let error = Cursor::new(&[0x80, 0x00], "read", "head").varint().unwrap_err();
        assert!(error.to_string().contains("byte 2 of the head"), "{error}");
    }
}
