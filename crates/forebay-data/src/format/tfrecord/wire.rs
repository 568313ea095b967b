//! The wire format of protobuf, as far as it is needed: a reader that gives the fields of one message as ranges, and lengths for writing.
//!
//! It follows no pointer and keeps no stack: who wants to look into a field makes a reader for its range. Reasons for refusal are words, since
//! the caller decides whether a refusal is damage or only means that the bytes are something else.

use std::ops::Range;

/// Most bytes of a varint: 64 bits in groups of 7.
const VARINT_BYTES_MAX: usize = 10;

/// Or why it cannot be read.
pub(super) type Parsed<T> = std::result::Result<T, &'static str>;

/// Value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Value {
    /// Wire type 0.
    Varint,
    /// Wire type 1.
    Fixed64,
    /// Wire type 2: where its bytes are.
    Bytes(Range<usize>),
    /// Wire type 5: where its four bytes are.
    Fixed32(Range<usize>),
}

/// A field of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WireField {
    pub(super) number: u32,
    pub(super) value: Value,
    /// Where the value is as it stands, without tag and length.
    pub(super) body: Range<usize>,
}

/// Reads the fields of one message.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    end: usize,
}

impl<'a> Reader<'a> {
    /// For the message in that range of `bytes`; ranges that come out count in `bytes`.
    pub(super) fn new(bytes: &'a [u8], range: Range<usize>) -> Self {
        let end = range.end.min(bytes.len());
        Self {
            bytes,
            at: range.start.min(end),
            end,
        }
    }

    /// The next field; `None` at the end of the message.
    pub(super) fn next(&mut self) -> Parsed<Option<WireField>> {
        if self.at == self.end {
            return Ok(None);
        }
        let tag = u32::try_from(self.varint()?).map_err(|_| "a tag of more than 32 bits")?;
        let number = tag >> 3;
        if number == 0 {
            return Err("a field of number 0");
        }
        let (value, body) = match tag & 7 {
            0 => {
                let start = self.at;
                self.varint()?;
                (Value::Varint, start..self.at)
            }
            1 => (Value::Fixed64, self.take(8)?),
            2 => {
                let len = self.varint()?;
                let body = self.take(len)?;
                (Value::Bytes(body.clone()), body)
            }
            5 => {
                let body = self.take(4)?;
                (Value::Fixed32(body.clone()), body)
            }
            3 | 4 => return Err("a group"),
            _ => return Err("an unknown wire type"),
        };
        Ok(Some(WireField { number, value, body }))
    }

    /// The next varint.
    pub(super) fn varint(&mut self) -> Parsed<u64> {
        let rest = self.bytes.get(self.at..self.end).unwrap_or_default();
        let (value, len) = read_varint(rest)?;
        self.at += len;
        Ok(value)
    }

    fn take(&mut self, len: u64) -> Parsed<Range<usize>> {
        let left = self.end - self.at;
        let len = usize::try_from(len)
            .ok()
            .filter(|len| *len <= left)
            .ok_or("a field that is longer than its message")?;
        let range = self.at..self.at + len;
        self.at = range.end;
        Ok(range)
    }
}

/// The varint that `bytes` begin with, and how many bytes it takes.
pub(super) fn read_varint(bytes: &[u8]) -> Parsed<(u64, usize)> {
    let mut value = 0u64;
    for (index, byte) in bytes.iter().take(VARINT_BYTES_MAX).enumerate() {
        // Of the tenth byte, one bit is left.
        if index == VARINT_BYTES_MAX - 1 && *byte > 1 {
            return Err("a varint of more than 64 bits");
        }
        value |= u64::from(byte & 0x7f) << (7 * index);
        if *byte < 0x80 {
            return Ok((value, index + 1));
        }
    }
    Err(if bytes.len() < VARINT_BYTES_MAX {
        "a varint that does not end"
    } else {
        "a varint of more than 64 bits"
    })
}

/// How many varints `bytes` are; `None` where they are anything else.
pub(super) fn varint_count(bytes: &[u8]) -> Option<usize> {
    let (mut run, mut count) = (0, 0);
    for byte in bytes {
        if *byte < 0x80 {
            if run == VARINT_BYTES_MAX - 1 && *byte > 1 {
                return None;
            }
            run = 0;
            count += 1;
        } else {
            run += 1;
            if run == VARINT_BYTES_MAX {
                return None;
            }
        }
    }
    (run == 0).then_some(count)
}

/// Bytes that a varint takes.
pub(super) fn varint_len(value: u64) -> u64 {
    u64::from((64 - (value | 1).leading_zeros()).div_ceil(7))
}

/// Append a varint.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes of a field of wire type 2, tag and length included; its number must be below 16.
pub(super) fn field_len(body: u64) -> u64 {
    1 + varint_len(body) + body
}

/// Append tag and length of a field of wire type 2.
pub(super) fn put_head(out: &mut Vec<u8>, number: u8, body: u64) {
    out.push(number << 3 | 2);
    put_varint(out, body);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fields(bytes: &[u8]) -> Parsed<Vec<WireField>> {
        let mut reader = Reader::new(bytes, 0..bytes.len());
        let mut fields = Vec::new();
        while let Some(field) = reader.next()? {
            fields.push(field);
        }
        Ok(fields)
    }

    #[test]
    fn fields_of_every_wire_type_are_found() {
        let bytes = b"\x08\x96\x01\x11--------\x1a\x02ab\x25----\x98\x01\x00";
        let found = fields(bytes).unwrap();
        let numbers: Vec<u32> = found.iter().map(|field| field.number).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 19]);
        assert_eq!(found[0].body, 1..3);
        assert_eq!(found[2].value, Value::Bytes(14..16));
        assert_eq!(found[3].value, Value::Fixed32(17..21));
    }

    #[test]
    fn hostile_messages_are_refused() {
        let long = [&[0x80; 10][..], &[1]].concat();
        let cases: [(&[u8], &str); 10] = [
            (b"\x00\x00", "number 0"),
            (b"\x0b\x0c", "group"),
            (b"\x0c", "group"),
            (b"\x0e", "wire type"),
            (b"\x0a\x02a", "longer than its message"),
            (
                b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                "longer than its message",
            ),
            (b"\x09-------", "longer than its message"),
            (b"\x0d---", "longer than its message"),
            (b"\x80", "does not end"),
            (&long, "more than 64 bits"),
        ];
        for (bytes, why) in cases {
            let error = fields(bytes).unwrap_err();
            assert!(error.contains(why), "{bytes:x?}: {error}");
        }
        assert!(
            fields(b"\xf8\xff\xff\xff\xff\x01\x00").is_err(),
            "a tag of 33 bits or more"
        );
    }

    proptest! {
        #[test]
        fn varints_read_back(values in prop::collection::vec(any::<u64>().prop_flat_map(|value| (0..64u32).prop_map(move |shift| value >> shift)), 0..20)) {
            let mut bytes = Vec::new();
            for value in &values {
                let before = bytes.len() as u64;
                put_varint(&mut bytes, *value);
                prop_assert_eq!(bytes.len() as u64 - before, varint_len(*value));
            }
            prop_assert_eq!(varint_count(&bytes), Some(values.len()));
            let mut reader = Reader::new(&bytes, 0..bytes.len());
            for value in &values {
                prop_assert_eq!(reader.varint(), Ok(*value));
            }
            prop_assert_eq!(reader.next(), Ok(None));
        }

        #[test]
        fn the_quick_look_agrees_with_reading(bytes in prop::collection::vec(prop_oneof![Just(0xffu8), Just(1), Just(2), any::<u8>()], 0..40)) {
            let mut reader = Reader::new(&bytes, 0..bytes.len());
            let mut is_read = true;
            while reader.at < reader.end && is_read {
                is_read = reader.varint().is_ok();
            }
            prop_assert_eq!(varint_count(&bytes).is_some(), is_read);
        }
    }
}
