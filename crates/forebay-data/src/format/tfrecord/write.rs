//! Records of Examples, made from samples.
//!
//! Sizes are computed before anything is written, level by level, since every message of protobuf begins with its length; the values are converted once,
//! straight into the shard.

use forebay_core::{Error, ErrorKind, Result, crc32c};
use forebay_io::Buf;

use super::example::List;
use super::wire::{field_len, put_head, put_varint, varint_count, varint_len};
use super::{DATA_BYTES_MAX, HEAD_BYTES, RECORD_FIELD, TAIL_BYTES, decode, mask};
use crate::format::{SampleRef, ShardWriter};
use crate::schema::{Dtype, Field, Kind};

/// Makes one TFRecord file.
#[derive(Debug, Default)]
pub struct TfRecordWriter {
    shard: Vec<u8>,
    /// Whether records are raw: the first sample decides.
    is_raw: Option<bool>,
}

impl TfRecordWriter {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    pub(super) fn shard_len(&self) -> u64 {
        self.shard.len() as u64
    }
}

/// A field on its way into a feature.
#[derive(Debug)]
struct Plan<'a> {
    name: &'a str,
    list: List,
    body: Body<'a>,
    /// Bytes of the list's message.
    list_len: u64,
}

#[derive(Debug)]
enum Body<'a> {
    /// The message as it is.
    Message(&'a [u8]),
    /// One length-delimited value: bytes, or numbers that are packed already.
    Value(&'a [u8]),
    /// Numbers to convert, and the bytes they will take.
    Numbers(Dtype, &'a [u8], u64),
}

impl<'a> Plan<'a> {
    fn new(field: &'a Field, bytes: &'a [u8]) -> Result<Self> {
        let (list, body) = match &field.kind {
            Kind::Bytes | Kind::Text | Kind::Json | Kind::Decimal | Kind::Image => {
                (List::Bytes, Body::Value(bytes))
            }
            Kind::Varints if varint_count(bytes).is_some() => (List::Ints, Body::Value(bytes)),
            Kind::Varints => return Err(invalid(field, "holds no whole varints")),
            Kind::Array { dtype, .. } | Kind::List { dtype } => numbers(field, *dtype, bytes)?,
            Kind::Encoded { encoding } => match encoding.as_str() {
                "tf:bytes_list" => {
                    decode::bytes_list(bytes, &mut Vec::new())?;
                    (List::Bytes, Body::Message(bytes))
                }
                "tf:float_list" => {
                    decode::float_list(bytes, &mut Vec::new())?;
                    (List::Floats, Body::Message(bytes))
                }
                "tf:int64_list" => {
                    decode::int64_list(bytes, &mut Vec::new())?;
                    (List::Ints, Body::Message(bytes))
                }
                "tf:feature_list" => {
                    decode::feature_list(bytes)?;
                    (List::Features, Body::Message(bytes))
                }
                _ => (List::Bytes, Body::Value(bytes)),
            },
        };
        let list_len = match &body {
            Body::Message(message) => message.len() as u64,
            Body::Value(value) => list_len(list, value.len() as u64),
            Body::Numbers(.., packed) => list_len(list, *packed),
        };
        Ok(Self {
            name: &field.name,
            list,
            body,
            list_len,
        })
    }

    /// Number of the list in a feature.
    fn number(&self) -> u8 {
        match self.list {
            List::Bytes => 1,
            List::Floats => 2,
            List::Ints | List::Features => 3,
        }
    }

    /// Bytes of the value of the map entry: a feature, or a feature list as it is.
    fn value_len(&self) -> u64 {
        match self.list {
            List::Features => self.list_len,
            _ => field_len(self.list_len),
        }
    }

    fn entry_len(&self) -> u64 {
        field_len(self.name.len() as u64) + field_len(self.value_len())
    }

    fn write(&self, out: &mut Vec<u8>) {
        put_head(out, 1, self.entry_len());
        put_head(out, 1, self.name.len() as u64);
        out.extend_from_slice(self.name.as_bytes());
        put_head(out, 2, self.value_len());
        if self.list != List::Features {
            put_head(out, self.number(), self.list_len);
        }
        match self.body {
            Body::Message(message) => out.extend_from_slice(message),
            Body::Value([]) | Body::Numbers(.., 0) if self.list != List::Bytes => {}
            Body::Value(value) => {
                put_head(out, 1, value.len() as u64);
                out.extend_from_slice(value);
            }
            Body::Numbers(dtype, bytes, packed) => {
                put_head(out, 1, packed);
                put_numbers(out, dtype, bytes);
            }
        }
    }
}

/// An empty list of numbers is an empty message; an empty value of bytes is a value.
fn list_len(list: List, value: u64) -> u64 {
    match list {
        List::Bytes => field_len(value),
        _ if value == 0 => 0,
        _ => field_len(value),
    }
}

fn numbers<'a>(field: &Field, dtype: Dtype, bytes: &'a [u8]) -> Result<(List, Body<'a>)> {
    if !(bytes.len() as u64).is_multiple_of(dtype.bytes()) {
        return Err(invalid(field, "holds no whole number of values"));
    }
    let count = bytes.len() as u64 / dtype.bytes();
    Ok(match dtype {
        Dtype::Float32 => (List::Floats, Body::Value(bytes)),
        Dtype::Float16 | Dtype::Bfloat16 => (List::Floats, Body::Numbers(dtype, bytes, 4 * count)),
        Dtype::Float64 | Dtype::Uint64 => (List::Bytes, Body::Value(bytes)),
        _ => {
            let packed = integers(dtype, bytes).map(varint_len).sum();
            (List::Ints, Body::Numbers(dtype, bytes, packed))
        }
    })
}

fn put_numbers(out: &mut Vec<u8>, dtype: Dtype, bytes: &[u8]) {
    let (words, _) = bytes.as_chunks::<2>();
    match dtype {
        Dtype::Float16 => words
            .iter()
            .for_each(|word| out.extend_from_slice(&half(u16::from_le_bytes(*word)).to_le_bytes())),
        Dtype::Bfloat16 => words
            .iter()
            .for_each(|word| out.extend_from_slice(&[0, 0, word[0], word[1]])),
        _ => integers(dtype, bytes).for_each(|value| put_varint(out, value)),
    }
}

/// Integers of any type as varints carry them: sign-extended to 64 bits.
fn integers(dtype: Dtype, bytes: &[u8]) -> Box<dyn Iterator<Item = u64> + '_> {
    fn each<const N: usize>(bytes: &[u8], value: fn([u8; N]) -> u64) -> Box<dyn Iterator<Item = u64> + '_> {
        Box::new(bytes.as_chunks::<N>().0.iter().map(move |word| value(*word)))
    }
    match dtype {
        Dtype::Bool => each(bytes, |[byte]| u64::from(byte != 0)),
        Dtype::Uint8 => each(bytes, |[byte]| u64::from(byte)),
        Dtype::Int8 => each(bytes, |word| i64::from(i8::from_le_bytes(word)).cast_unsigned()),
        Dtype::Uint16 => each(bytes, |word| u64::from(u16::from_le_bytes(word))),
        Dtype::Int16 => each(bytes, |word| i64::from(i16::from_le_bytes(word)).cast_unsigned()),
        Dtype::Uint32 => each(bytes, |word| u64::from(u32::from_le_bytes(word))),
        Dtype::Int32 => each(bytes, |word| i64::from(i32::from_le_bytes(word)).cast_unsigned()),
        Dtype::Int64 => each(bytes, u64::from_le_bytes),
        Dtype::Uint64 | Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => {
            Box::new(std::iter::empty())
        }
    }
}

/// A float16 as float32, exactly.
fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    let magnitude = match exponent {
        // Subnormal: a multiple of 2^-24, which float32 has as an ordinary number.
        0 => (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        0x1f => 0x7f80_0000 | fraction << 13,
        _ => (exponent + 112) << 23 | fraction << 13,
    };
    f32::from_bits(sign | magnitude)
}

fn plans(sample: SampleRef<'_>) -> Result<Vec<Plan<'_>>> {
    sample
        .fields
        .iter()
        .map(|(field, bytes)| Plan::new(field, bytes))
        .collect()
}

/// Bytes of the features, and of the feature lists.
fn lens(plans: &[Plan<'_>]) -> (u64, u64) {
    let (mut context, mut lists) = (0, 0);
    for plan in plans {
        let len = field_len(plan.entry_len());
        match plan.list {
            List::Features => lists += len,
            _ => context += len,
        }
    }
    (context, lists)
}

fn example_len(plans: &[Plan<'_>]) -> u64 {
    match lens(plans) {
        (context, 0) => field_len(context),
        (context, lists) => field_len(context) + field_len(lists),
    }
}

fn is_raw(sample: SampleRef<'_>) -> bool {
    matches!(sample.fields, [(field, _)] if field.name == RECORD_FIELD && field.kind == Kind::Bytes)
}

impl ShardWriter for TfRecordWriter {
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64 {
        let data = match sample.fields {
            [(_, bytes)] if is_raw(sample) => bytes.len() as u64,
            // A sample that cannot be written is refused by `add`.
            _ => plans(sample).map_or(0, |plans| example_len(&plans)),
        };
        self.shard.len() as u64 + data + (HEAD_BYTES + TAIL_BYTES) as u64
    }

    fn add(&mut self, sample: SampleRef<'_>) -> Result<()> {
        let is_raw = is_raw(sample);
        if *self.is_raw.get_or_insert(is_raw) != is_raw {
            let message = "raw records and samples with fields cannot be in one shard";
            return Err(Error::new(ErrorKind::InvalidInput, "write tfrecord", message));
        }
        let plans = if is_raw { Vec::new() } else { plans(sample)? };
        let length = match sample.fields {
            [(_, bytes)] if is_raw => bytes.len() as u64,
            _ => example_len(&plans),
        };
        if length > DATA_BYTES_MAX {
            let message = format!("a record of {length} bytes is longer than a sample may be");
            return Err(Error::new(ErrorKind::LimitExceeded, "write tfrecord", message));
        }
        let head = length.to_le_bytes();
        self.shard.extend_from_slice(&head);
        self.shard.extend_from_slice(&mask(crc32c(&head)).to_le_bytes());
        let start = self.shard.len();
        match sample.fields {
            [(_, bytes)] if is_raw => self.shard.extend_from_slice(bytes),
            _ => write_example(&mut self.shard, &plans),
        }
        debug_assert_eq!((self.shard.len() - start) as u64, length);
        let crc = mask(crc32c(self.shard.get(start..).unwrap_or_default()));
        self.shard.extend_from_slice(&crc.to_le_bytes());
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Buf> {
        Buf::copy_of(&self.shard)
    }
}

fn write_example(out: &mut Vec<u8>, plans: &[Plan<'_>]) {
    let (context, lists) = lens(plans);
    put_head(out, 1, context);
    plans
        .iter()
        .filter(|plan| plan.list != List::Features)
        .for_each(|plan| plan.write(out));
    if lists > 0 {
        put_head(out, 2, lists);
        plans
            .iter()
            .filter(|plan| plan.list == List::Features)
            .for_each(|plan| plan.write(out));
    }
}

fn invalid(field: &Field, what: &str) -> Error {
    let message = format!("field '{}' {what}", field.name.escape_debug());
    Error::new(ErrorKind::InvalidInput, "write tfrecord", message)
}

#[cfg(test)]
mod tests {
    use super::half;

    #[test]
    fn halves_are_exact() {
        let cases = [
            (0x0000, 0.0),
            (0x8000, -0.0),
            (0x0001, 2f32.powi(-24)),
            (0x03ff, 1023.0 * 2f32.powi(-24)),
            (0x0400, 2f32.powi(-14)),
            (0x3c00, 1.0),
            (0xc000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7bff, 65504.0),
            (0x7c00, f32::INFINITY),
            (0xfc00, f32::NEG_INFINITY),
        ];
        for (bits, value) in cases {
            assert_eq!(half(bits).to_bits(), f32::to_bits(value), "{bits:04x}");
        }
        assert!(half(0x7e00).is_nan());
    }
}
