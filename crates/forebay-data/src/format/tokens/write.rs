//! Raw token files, and Megatron's pairs.

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::Buf;

use super::megatron::{HEAD_BYTES, MAGIC, VERSION, code_of};
use crate::format::tfrecord::decode;
use crate::format::{SampleRef, ShardWriter};
use crate::schema::{Dtype, Field, Kind};

/// Makes one raw token file.
#[derive(Debug)]
pub struct TokensWriter {
    dtype: Dtype,
    shard: Vec<u8>,
}

impl TokensWriter {
    /// Of numbers of that type.
    pub fn new(dtype: Dtype) -> Self {
        Self {
            dtype,
            shard: Vec::new(),
        }
    }
}

impl ShardWriter for TokensWriter {
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64 {
        let mut tokens = Vec::new();
        // A sample that cannot be written is refused by `add`.
        let _ = push(sample, self.dtype, &mut tokens);
        (self.shard.len() + tokens.len()) as u64
    }

    fn add(&mut self, sample: SampleRef<'_>) -> Result<()> {
        push(sample, self.dtype, &mut self.shard)
    }

    fn finish(self: Box<Self>) -> Result<Buf> {
        Buf::copy_of(&self.shard)
    }
}

/// Makes a `.bin` of Megatron's, with its `.idx` as a side file: every sample is a sequence and a document.
#[derive(Debug)]
pub struct MegatronWriter {
    tokens: TokensWriter,
    code: u8,
    /// Tokens of each sequence.
    lens: Vec<i32>,
}

impl MegatronWriter {
    /// Of numbers of that type, which must be one that the index has a code for.
    pub fn new(dtype: Dtype) -> Result<Self> {
        let code = code_of(dtype).ok_or_else(|| {
            let message = format!("Megatron's index has no code for {dtype}");
            Error::new(ErrorKind::Unsupported, "write tokens", message)
                .with_hint("use uint16, int32 or int64")
        })?;
        Ok(Self {
            tokens: TokensWriter::new(dtype),
            code,
            lens: Vec::new(),
        })
    }

    fn index(&self) -> Vec<u8> {
        let count = self.lens.len() as u64;
        let mut idx = Vec::with_capacity(HEAD_BYTES + 20 * self.lens.len() + 8);
        idx.extend_from_slice(MAGIC);
        idx.extend_from_slice(&VERSION.to_le_bytes());
        idx.push(self.code);
        idx.extend_from_slice(&count.to_le_bytes());
        idx.extend_from_slice(&(count + 1).to_le_bytes());
        for len in &self.lens {
            idx.extend_from_slice(&len.to_le_bytes());
        }
        let mut offset = 0i64;
        for len in &self.lens {
            idx.extend_from_slice(&offset.to_le_bytes());
            offset += i64::from(*len) * self.tokens.dtype.bytes().cast_signed();
        }
        for document in 0..=count {
            idx.extend_from_slice(&document.to_le_bytes());
        }
        idx
    }
}

impl ShardWriter for MegatronWriter {
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64 {
        self.tokens.bytes_with(sample)
    }

    fn add(&mut self, sample: SampleRef<'_>) -> Result<()> {
        let before = self.tokens.shard.len();
        self.tokens.add(sample)?;
        let bytes = (self.tokens.shard.len() - before) as u64;
        let Ok(len) = i32::try_from(bytes / self.tokens.dtype.bytes()) else {
            self.tokens.shard.truncate(before);
            return Err(refuse(
                ErrorKind::LimitExceeded,
                "has more tokens than Megatron's index can say",
            ));
        };
        self.lens.push(len);
        Ok(())
    }

    fn sides(&mut self) -> Result<Vec<(&'static str, Vec<u8>)>> {
        Ok(vec![("idx", self.index())])
    }

    fn finish(self: Box<Self>) -> Result<Buf> {
        Buf::copy_of(&self.tokens.shard)
    }
}

/// Append the tokens of a sample; nothing where it fails.
fn push(sample: SampleRef<'_>, dtype: Dtype, out: &mut Vec<u8>) -> Result<()> {
    let [(field, bytes)] = sample.fields else {
        return Err(refuse(ErrorKind::InvalidInput, "must have one field, its tokens"));
    };
    let before = out.len();
    convert(field, bytes, dtype, out).inspect_err(|_| out.truncate(before))
}

fn convert(field: &Field, bytes: &[u8], dtype: Dtype, out: &mut Vec<u8>) -> Result<()> {
    let from = match &field.kind {
        Kind::Array { dtype, .. } | Kind::List { dtype } => *dtype,
        Kind::Varints => {
            let mut values = Vec::new();
            decode::varints(bytes, &mut values)?;
            return values
                .into_iter()
                .try_for_each(|value| put(i128::from(value), dtype, out));
        }
        _ => {
            return Err(refuse(
                ErrorKind::InvalidInput,
                "has a field that is no list of numbers",
            ));
        }
    };
    if !(bytes.len() as u64).is_multiple_of(from.bytes()) {
        return Err(refuse(ErrorKind::InvalidInput, "has no whole number of tokens"));
    }
    if from == dtype {
        out.extend_from_slice(bytes);
        return Ok(());
    }
    bytes
        .chunks_exact(from.bytes() as usize)
        .try_for_each(|word| put(integer(word, from)?, dtype, out))
}

/// A number of any integer type.
fn integer(word: &[u8], dtype: Dtype) -> Result<i128> {
    let mut wide = [0; 8];
    wide.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
    let wide = u64::from_le_bytes(wide);
    let shift = 64 - 8 * dtype.bytes();
    match dtype {
        Dtype::Bool | Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => Ok(i128::from(wide)),
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => {
            Ok(i128::from((wide << shift).cast_signed() >> shift))
        }
        Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => {
            Err(refuse(ErrorKind::InvalidInput, "has tokens that are no integers"))
        }
    }
}

fn put(value: i128, dtype: Dtype, out: &mut Vec<u8>) -> Result<()> {
    let bits = 8 * dtype.bytes();
    let range = match dtype {
        Dtype::Bool => 0..2,
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => 0..1i128 << bits,
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => {
            -(1i128 << (bits - 1))..1i128 << (bits - 1)
        }
        Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => 0..0,
    };
    if !range.contains(&value) {
        let what = format!("has token {value}, which does not fit {dtype}");
        return Err(refuse(ErrorKind::InvalidInput, &what));
    }
    let bytes = value.to_le_bytes();
    out.extend_from_slice(bytes.get(..dtype.bytes() as usize).unwrap_or_default());
    Ok(())
}

fn refuse(kind: ErrorKind, what: &str) -> Error {
    Error::new(kind, "write tokens", format!("a sample {what}"))
}
