//! The little of Thrift's compact protocol that headers need: enough to look before the Parquet library leaps, and to write page headers with
//! their checksum, which it does not.

use forebay_core::{Error, ErrorKind, Result};

use super::OP;

/// Deepest nesting of values that are stepped over: stacks are finite.
const SKIP_DEPTH_MAX: u32 = 16;

/// Types of fields.
pub(super) const TRUE: u8 = 1;
pub(super) const FALSE: u8 = 2;
pub(super) const BYTE: u8 = 3;
pub(super) const I16: u8 = 4;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
pub(super) const DOUBLE: u8 = 7;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
pub(super) const SET: u8 = 10;
pub(super) const STRUCT: u8 = 12;

/// Reads values one after the other; what does not follow the protocol is `Corrupt`.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A field of a struct: its number and its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) id: i16,
    pub(super) kind: u8,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Result<u8> {
        let byte = self.bytes.get(self.at).copied();
        self.at += 1;
        byte.ok_or_else(|| corrupt("a header ends in the middle"))
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(corrupt("a number of more than 64 bits"))
    }

    fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub(super) fn i32(&mut self) -> Result<i32> {
        i32::try_from(self.zigzag()?).map_err(|_| corrupt("a number of more than 32 bits"))
    }

    /// The next field of a struct, after the field `before` (0 at first); `None` at its end.
    pub(super) fn field(&mut self, before: i16) -> Result<Option<Tag>> {
        let byte = self.byte()?;
        let (step, kind) = (byte >> 4, byte & 0x0f);
        if kind == 0 {
            return Ok(None);
        }
        let id = match step {
            0 => i16::try_from(self.zigzag()?).ok(),
            _ => before.checked_add(step.into()),
        };
        let id = id.ok_or_else(|| corrupt("a field of an impossible number"))?;
        Ok(Some(Tag { id, kind }))
    }

    /// Length and type of the elements of a list. No list is longer than what is left: each element takes a byte.
    pub(super) fn list(&mut self) -> Result<(usize, u8)> {
        let byte = self.byte()?;
        let len = match byte >> 4 {
            15 => self.varint()?,
            len => len.into(),
        };
        let left = self.bytes.len().saturating_sub(self.at) as u64;
        if len > left {
            return Err(corrupt("a list is longer than its header"));
        }
        Ok((len as usize, byte & 0x0f))
    }

    /// A text, or any bytes.
    pub(super) fn binary(&mut self) -> Result<&'a [u8]> {
        let len = self.varint()?;
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let bytes = bytes.ok_or_else(|| corrupt("a text is longer than its header"))?;
        self.at += bytes.len();
        Ok(bytes)
    }

    pub(super) fn skip(&mut self, kind: u8) -> Result<()> {
        self.skip_within(kind, 0)
    }

    fn skip_within(&mut self, kind: u8, depth: u32) -> Result<()> {
        if depth > SKIP_DEPTH_MAX {
            return Err(corrupt("a header is nested too deeply"));
        }
        match kind {
            TRUE | FALSE => {}
            BYTE => self.at += 1,
            I16 | I32 | I64 => {
                self.varint()?;
            }
            DOUBLE => self.at += 8,
            BINARY => {
                self.binary()?;
            }
            LIST | SET => {
                let (len, kind) = self.list()?;
                // No header has such a list. Its elements take a byte each, but the library steps over them as over fields, which take none.
                if len > 0 && matches!(kind, TRUE | FALSE) {
                    return Err(corrupt("a header has a list of truth values"));
                }
                for _ in 0..len {
                    self.skip_within(kind, depth + 1)?;
                }
            }
            STRUCT => {
                let mut before = 0;
                while let Some(tag) = self.field(before)? {
                    self.skip_within(tag.kind, depth + 1)?;
                    before = tag.id;
                }
            }
            _ => return Err(corrupt("a header has a value of unknown type")),
        }
        if self.at > self.bytes.len() {
            return Err(corrupt("a header ends in the middle"));
        }
        Ok(())
    }
}

/// Writes one struct.
#[derive(Debug, Default)]
pub(super) struct Writer {
    bytes: Vec<u8>,
    before: Vec<i16>,
    last: i16,
}

impl Writer {
    fn tag(&mut self, id: i16, kind: u8) {
        // Fields are written in ascending order, less than 16 apart.
        self.bytes.push(((id - self.last) as u8) << 4 | kind);
        self.last = id;
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    pub(super) fn i32(&mut self, id: i16, value: i32) {
        self.tag(id, I32);
        self.varint(u64::from((value << 1 ^ value >> 31) as u32));
    }

    pub(super) fn bool(&mut self, id: i16, value: bool) {
        self.tag(id, if value { 1 } else { 2 });
    }

    pub(super) fn begin(&mut self, id: i16) {
        self.tag(id, STRUCT);
        self.before.push(self.last);
        self.last = 0;
    }

    pub(super) fn end(&mut self) {
        self.bytes.push(0);
        self.last = self.before.pop().unwrap_or_default();
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut writer = Writer::default();
        writer.i32(1, -3);
        writer.i32(4, i32::MIN);
        writer.begin(5);
        writer.i32(2, 300);
        writer.bool(7, true);
        writer.end();
        writer.i32(8, i32::MAX);
        let bytes = writer.finish();
        let mut reader = Reader::new(&bytes);
        let mut seen = Vec::new();
        let mut before = 0;
        while let Some(tag) = reader.field(before).unwrap() {
            match tag.kind {
                I32 => seen.push((tag.id, reader.i32().unwrap())),
                kind => reader.skip(kind).unwrap(),
            }
            before = tag.id;
        }
        assert_eq!(seen, [(1, -3), (4, i32::MIN), (8, i32::MAX)]);
        assert_eq!(reader.at(), bytes.len());
        for len in 0..bytes.len() {
            assert!(Reader::new(&bytes[..len]).skip(STRUCT).is_err(), "{len}");
        }
    }

    #[test]
    fn lengths_and_depths_are_bounded() {
        let deep = [[0x1c].repeat(40), vec![0; 41]].concat();
        assert!(Reader::new(&deep).skip(STRUCT).is_err());
        assert!(Reader::new(&[0x18, 0xff, 0xff, 0x03, 0]).skip(STRUCT).is_err());
        assert!(Reader::new(&[0xfc, 0xff, 0xff, 0xff, 0x7f]).list().is_err());
        assert!(Reader::new(&[0xff; 11]).i32().is_err());
        assert!(Reader::new(&[0x19, 0x21, 1, 1, 0]).skip(STRUCT).is_err());
        assert!(Reader::new(&[0x19, 0x01, 0]).skip(STRUCT).is_ok());
    }
}
