//! Values of fields that are more than bytes, decoded on demand.
//!
//! Everything is checked again: what is decoded may come from a manifest and a shard that do not belong together.

use forebay_core::{Error, ErrorKind, Result};

use super::example::{self, List};
use super::wire::{self, Parsed, Reader, Value, read_varint};

/// The value of one feature of a feature list.
#[derive(Debug, Clone, PartialEq)]
pub enum FeatureValue<'a> {
    /// None of the three lists.
    None,
    /// A `BytesList`.
    Bytes(Vec<&'a [u8]>),
    /// A `FloatList`.
    Floats(Vec<f32>),
    /// An `Int64List`.
    Ints(Vec<i64>),
}

/// Append the numbers of a field of kind [`Varints`](crate::Kind::Varints). What came before an error is taken back.
pub fn varints(bytes: &[u8], out: &mut Vec<i64>) -> Result<()> {
    let before = out.len();
    let pushed = each_varint(bytes, |value| {
        out.push(value);
        Ok(())
    });
    pushed.map_err(|why| {
        out.truncate(before);
        corrupt("Int64List", why)
    })
}

/// How many numbers a field of kind [`Varints`](crate::Kind::Varints) has; `None` where it is damaged.
pub fn varint_count(bytes: &[u8]) -> Option<usize> {
    wire::varint_count(bytes)
}

/// Write the numbers of a field of kind [`Varints`](crate::Kind::Varints) as 64-bit integers to the front of `out`; gives how many bytes they take.
pub(crate) fn varints_into(bytes: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut places = Places { out, at: 0 };
    each_varint(bytes, |value| places.put(value.to_le_bytes())).map_err(|why| corrupt("Int64List", why))?;
    Ok(places.at)
}

/// The same of a field of kind `tf:int64_list`.
pub(crate) fn int64_list_into(message: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut places = Places { out, at: 0 };
    each_int(message, |value| places.put(value.to_le_bytes()))?;
    Ok(places.at)
}

/// The same of a field of kind `tf:float_list`, as 32-bit floats.
pub(crate) fn float_list_into(message: &[u8], out: &mut [u8]) -> Result<usize> {
    let mut places = Places { out, at: 0 };
    each_float(message, |value| places.put(value))?;
    Ok(places.at)
}

/// How many numbers a field of kind `tf:int64_list` has.
pub(crate) fn int64_list_len(message: &[u8]) -> Result<usize> {
    let mut count = 0;
    each_int(message, |_| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// How many numbers a field of kind `tf:float_list` has.
pub(crate) fn float_list_len(message: &[u8]) -> Result<usize> {
    let mut count = 0;
    each_float(message, |_| {
        count += 1;
        Ok(())
    })?;
    Ok(count)
}

/// Numbers one after the other.
struct Places<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Places<'_> {
    fn put<const N: usize>(&mut self, number: [u8; N]) -> Parsed<()> {
        let place = self.out.get_mut(self.at..self.at + N);
        place
            .ok_or("it has more values than there is room for")?
            .copy_from_slice(&number);
        self.at += N;
        Ok(())
    }
}

/// The values of a field of kind `tf:bytes_list`.
pub fn bytes_list<'a>(message: &'a [u8], out: &mut Vec<&'a [u8]>) -> Result<()> {
    let before = out.len();
    let mut push = |value: Value| match value {
        Value::Bytes(range) => {
            out.push(message.get(range).unwrap_or_default());
            Ok(())
        }
        _ => Err("a value of another type than its list"),
    };
    let pushed = each(message, |value, _| push(value));
    pushed.map_err(|why| {
        out.truncate(before);
        corrupt(List::Bytes.name(), why)
    })
}

/// Append the values of a field of kind `tf:float_list`.
pub fn float_list(message: &[u8], out: &mut Vec<f32>) -> Result<()> {
    let before = out.len();
    let pushed = each_float(message, |value| {
        out.push(f32::from_le_bytes(value));
        Ok(())
    });
    pushed.inspect_err(|_| out.truncate(before))
}

/// Append the values of a field of kind `tf:int64_list`.
pub fn int64_list(message: &[u8], out: &mut Vec<i64>) -> Result<()> {
    let before = out.len();
    let pushed = each_int(message, |value| {
        out.push(value);
        Ok(())
    });
    pushed.inspect_err(|_| out.truncate(before))
}

fn each_float(message: &[u8], mut take: impl FnMut([u8; 4]) -> Parsed<()>) -> Result<()> {
    let taken = each(message, |value, _| match value {
        Value::Bytes(range) | Value::Fixed32(range) if range.len().is_multiple_of(4) => {
            let (words, _) = message.get(range).unwrap_or_default().as_chunks::<4>();
            words.iter().try_for_each(|word| take(*word))
        }
        _ => Err("a value of another type than its list"),
    });
    taken.map_err(|why| corrupt(List::Floats.name(), why))
}

fn each_int(message: &[u8], mut take: impl FnMut(i64) -> Parsed<()>) -> Result<()> {
    let taken = each(message, |value, body| match value {
        Value::Bytes(_) | Value::Varint => each_varint(body, &mut take),
        _ => Err("a value of another type than its list"),
    });
    taken.map_err(|why| corrupt(List::Ints.name(), why))
}

/// The features of a field of kind `tf:feature_list`, in order.
pub fn feature_list(message: &[u8]) -> Result<Vec<FeatureValue<'_>>> {
    let mut features = Vec::new();
    let pushed = each(message, |value, _| match value {
        Value::Bytes(range) => {
            features.push(example::list_of(message, range)?);
            Ok(())
        }
        _ => Err("a feature of another wire type"),
    });
    pushed.map_err(|why| corrupt(List::Features.name(), why))?;
    let mut values = Vec::with_capacity(features.len());
    for feature in features {
        let Some((list, range)) = feature else {
            values.push(FeatureValue::None);
            continue;
        };
        let body = message.get(range).unwrap_or_default();
        values.push(value_of(list, body)?);
    }
    Ok(values)
}

fn value_of(list: List, message: &[u8]) -> Result<FeatureValue<'_>> {
    match list {
        List::Bytes => {
            let mut values = Vec::new();
            bytes_list(message, &mut values)?;
            Ok(FeatureValue::Bytes(values))
        }
        List::Floats => {
            let mut values = Vec::new();
            float_list(message, &mut values)?;
            Ok(FeatureValue::Floats(values))
        }
        List::Ints => {
            let mut values = Vec::new();
            int64_list(message, &mut values)?;
            Ok(FeatureValue::Ints(values))
        }
        List::Features => Ok(FeatureValue::None),
    }
}

/// Every value of field 1 of a message, with its body.
fn each(message: &[u8], mut take: impl FnMut(Value, &[u8]) -> Parsed<()>) -> Parsed<()> {
    let mut reader = Reader::new(message, 0..message.len());
    while let Some(field) = reader.next()? {
        if field.number == 1 {
            take(field.value, message.get(field.body).unwrap_or_default())?;
        }
    }
    Ok(())
}

fn each_varint(mut bytes: &[u8], mut take: impl FnMut(i64) -> Parsed<()>) -> Parsed<()> {
    loop {
        // Token numbers take one to three bytes; the first two are worth a way of their own.
        bytes = match bytes {
            [] => return Ok(()),
            [low @ 0..0x80, rest @ ..] => {
                take(i64::from(*low))?;
                rest
            }
            [low, high @ 0..0x80, rest @ ..] => {
                take(i64::from(low & 0x7f) | i64::from(*high) << 7)?;
                rest
            }
            _ => {
                let (value, len) = read_varint(bytes)?;
                take(value.cast_signed())?;
                bytes.get(len..).unwrap_or_default()
            }
        };
    }
}

fn corrupt(list: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "decode tfrecord",
        format!("a {list} cannot be read: {why}"),
    )
}
