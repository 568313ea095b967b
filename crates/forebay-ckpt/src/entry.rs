//! What a part lists: slices of tensors, values, aliases; and the chunks that slices consist of.

use forebay_core::{Error, ErrorKind, Result, Span};

use crate::codec;
use crate::dtype::Dtype;
use crate::hash::{Digest, HashKind, Place, SliceId, sha256};
use crate::part::{CHUNKS_MAX, NAME_BYTES_MAX};
use crate::value::{DIMS_MAX, VALUE_BYTES_MAX};
use crate::wire::{Cursor, Wire};

/// A box of a tensor: which elements of it, and of what type.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SliceSpec {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Sizes of the whole tensor.
    pub shape: Vec<u64>,
    /// First element of the box in each dimension.
    pub offsets: Vec<u64>,
    /// Elements of the box in each dimension.
    pub lengths: Vec<u64>,
}

impl SliceSpec {
    /// The whole of a tensor.
    pub fn whole(dtype: Dtype, shape: &[u64]) -> Self {
        Self {
            dtype,
            shape: shape.to_vec(),
            offsets: vec![0; shape.len()],
            lengths: shape.to_vec(),
        }
    }

    /// A box of the same tensor.
    pub fn cut(&self, offsets: &[u64], lengths: &[u64]) -> Self {
        Self {
            dtype: self.dtype,
            shape: self.shape.clone(),
            offsets: offsets.to_vec(),
            lengths: lengths.to_vec(),
        }
    }

    /// Bytes of the box. Only for specs that [`check`](Self::check) found good; 0 for others.
    pub fn bytes(&self) -> u64 {
        self.dtype.bytes_of(&self.lengths).unwrap_or(0)
    }

    /// Refuse a box that does not lie in its tensor, or whose bytes cannot be counted.
    pub fn check(&self) -> Result<(), &'static str> {
        let dims = self.shape.len();
        if dims > DIMS_MAX {
            return Err("it has more than 64 dimensions");
        }
        if self.offsets.len() != dims || self.lengths.len() != dims {
            return Err("shape, offsets and lengths have different dimensions");
        }
        let boxes = self.shape.iter().zip(self.offsets.iter().zip(&self.lengths));
        for (size, (offset, length)) in boxes {
            if offset.checked_add(*length).is_none_or(|end| end > *size) {
                return Err("the slice does not lie within its tensor");
            }
        }
        if self.dtype.bytes_of(&self.shape).is_none() {
            return Err("the tensor has no whole number of bytes, or more than 64 bits can count");
        }
        match self.dtype.bytes_of(&self.lengths) {
            Some(_) => Ok(()),
            None => Err("the slice has no whole number of bytes"),
        }
    }

    /// How many chunks it has.
    pub(crate) fn chunks(&self, chunk_bytes: u32) -> u64 {
        self.bytes().div_ceil(u64::from(chunk_bytes.max(1)))
    }

    /// The bytes of chunk `number` within the slice.
    pub(crate) fn chunk_span(&self, number: u64, chunk_bytes: u32) -> Span {
        let start = number.saturating_mul(u64::from(chunk_bytes));
        let end = start.saturating_add(chunk_bytes.into()).min(self.bytes());
        Span::new(start.min(end), end).unwrap_or(Span::first(0))
    }

    /// What chunk hashes are bound to.
    pub(crate) fn id(&self, name: &str) -> SliceId {
        let mut bytes = b"forebay slice 1\0".to_vec();
        bytes.put_text(name);
        bytes.extend_from_slice(&[self.dtype.number(), self.shape.len() as u8]);
        let boxes = self.shape.iter().zip(self.offsets.iter().zip(&self.lengths));
        for (size, (offset, length)) in boxes {
            bytes.put_u64(*size);
            bytes.put_u64(*offset);
            bytes.put_u64(*length);
        }
        let mut id = SliceId::default();
        id.copy_from_slice(&sha256(&[&bytes])[..16]);
        id
    }

    /// The place of chunk `number`.
    pub(crate) fn place(&self, id: &SliceId, number: u64, chunk_bytes: u32) -> Place {
        Place::new(id, number, self.chunk_span(number, chunk_bytes).len() as u32)
    }

    /// What both boxes have, as offsets and lengths in the tensor.
    pub(crate) fn intersect(&self, offsets: &[u64], lengths: &[u64]) -> Option<(Vec<u64>, Vec<u64>)> {
        let (mut starts, mut counts) = (Vec::new(), Vec::new());
        let own = self.offsets.iter().zip(&self.lengths);
        for ((own_offset, own_length), (offset, length)) in own.zip(offsets.iter().zip(lengths)) {
            let start = *own_offset.max(offset);
            let end = (own_offset + own_length).min(offset.saturating_add(*length));
            if start >= end {
                return None;
            }
            starts.push(start);
            counts.push(end - start);
        }
        Some((starts, counts))
    }
}

/// Another name for (a part of) a tensor of the same checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alias {
    /// The tensor that is stored.
    pub target: String,
    /// Type of the elements.
    pub dtype: Dtype,
    /// First element of the target's storage.
    pub first_element: u64,
    /// Sizes.
    pub shape: Vec<u64>,
    /// Strides in elements.
    pub strides: Vec<u64>,
}

/// What is stored under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A slice of a tensor.
    Slice {
        /// Which.
        spec: SliceSpec,
        /// Number of its first chunk in its part.
        first_chunk: u64,
    },
    /// A typed value: its bytes among the values of the part.
    Value(Span),
    /// Bytes that only their writer understands.
    Opaque(Span),
    /// Another name.
    Alias(Alias),
}

/// A row of a part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// What it stands for.
    pub content: Content,
}

mod kind {
    pub(super) const SLICE: u8 = 0;
    pub(super) const VALUE: u8 = 1;
    pub(super) const OPAQUE: u8 = 2;
    pub(super) const ALIAS: u8 = 3;
}

impl Entry {
    /// What entries are sorted by.
    pub(crate) fn order(&self) -> (&str, &[u64]) {
        let offsets: &[u64] = match &self.content {
            Content::Slice { spec, .. } => &spec.offsets,
            _ => &[],
        };
        (&self.name, offsets)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_text(&self.name);
        match &self.content {
            Content::Slice { spec, first_chunk } => {
                out.extend_from_slice(&[kind::SLICE, spec.dtype.number(), spec.shape.len() as u8]);
                let boxes = spec.shape.iter().zip(spec.offsets.iter().zip(&spec.lengths));
                for (size, (offset, length)) in boxes {
                    out.put_varint(*size);
                    out.put_varint(*offset);
                    out.put_varint(*length);
                }
                out.put_varint(*first_chunk);
            }
            Content::Value(span) | Content::Opaque(span) => {
                let is_value = matches!(self.content, Content::Value(_));
                out.push(if is_value { kind::VALUE } else { kind::OPAQUE });
                out.put_varint(span.start());
                out.put_varint(span.len());
            }
            Content::Alias(alias) => {
                out.push(kind::ALIAS);
                out.put_text(&alias.target);
                out.push(alias.dtype.number());
                out.put_varint(alias.first_element);
                out.push(alias.shape.len() as u8);
                for (size, stride) in alias.shape.iter().zip(&alias.strides) {
                    out.put_varint(*size);
                    out.put_varint(*stride);
                }
            }
        }
    }

    pub(crate) fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let name = cursor.text(NAME_BYTES_MAX)?.to_owned();
        if name.is_empty() {
            return Err(cursor.corrupt("an entry has no name"));
        }
        let content = match cursor.u8()? {
            kind::SLICE => take_slice(cursor)?,
            kind::VALUE => Content::Value(take_span(cursor)?),
            kind::OPAQUE => Content::Opaque(take_span(cursor)?),
            kind::ALIAS => Content::Alias(take_alias(cursor)?),
            other => return Err(cursor.corrupt(&format!("there is no entry of kind {other}"))),
        };
        Ok(Self { name, content })
    }
}

fn take_dims(cursor: &mut Cursor<'_>) -> Result<usize> {
    let dims = usize::from(cursor.u8()?);
    if dims > DIMS_MAX {
        return Err(cursor.corrupt("a tensor has more than 64 dimensions"));
    }
    Ok(dims)
}

fn take_slice(cursor: &mut Cursor<'_>) -> Result<Content> {
    let dtype = Dtype::from_number(cursor.u8()?)?;
    let dims = take_dims(cursor)?;
    let mut spec = SliceSpec {
        dtype,
        shape: Vec::with_capacity(dims),
        offsets: Vec::with_capacity(dims),
        lengths: Vec::with_capacity(dims),
    };
    for _ in 0..dims {
        spec.shape.push(cursor.varint()?);
        spec.offsets.push(cursor.varint()?);
        spec.lengths.push(cursor.varint()?);
    }
    spec.check().map_err(|why| cursor.corrupt(why))?;
    let first_chunk = cursor.varint()?;
    if first_chunk > CHUNKS_MAX {
        return Err(cursor.corrupt("a slice begins at a chunk that cannot be"));
    }
    Ok(Content::Slice { spec, first_chunk })
}

fn take_span(cursor: &mut Cursor<'_>) -> Result<Span> {
    let (start, len) = (cursor.varint()?, cursor.varint()?);
    if len > VALUE_BYTES_MAX as u64 {
        return Err(cursor.corrupt("a value takes more than 64 MiB"));
    }
    Span::at(start, len).map_err(|_| cursor.corrupt("a value lies nowhere"))
}

fn take_alias(cursor: &mut Cursor<'_>) -> Result<Alias> {
    let target = cursor.text(NAME_BYTES_MAX)?.to_owned();
    let dtype = Dtype::from_number(cursor.u8()?)?;
    let first_element = cursor.varint()?;
    let dims = take_dims(cursor)?;
    let (mut shape, mut strides) = (Vec::with_capacity(dims), Vec::with_capacity(dims));
    for _ in 0..dims {
        shape.push(cursor.varint()?);
        strides.push(cursor.varint()?);
    }
    if dtype.bytes_of(&shape).is_none() {
        return Err(cursor.corrupt("an alias has no whole number of bytes"));
    }
    Ok(Alias {
        target,
        dtype,
        first_element,
        shape,
        strides,
    })
}

/// How the bytes of a chunk are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// As they are.
    Raw,
    /// One zstd frame.
    Zstd,
    /// One LZ4 block.
    Lz4,
    /// Byte planes, each stored or zstd.
    PlanesZstd,
    /// Byte planes, each stored or LZ4.
    PlanesLz4,
}

impl Codec {
    pub(crate) const ALL: [Self; 5] = [
        Self::Raw,
        Self::Zstd,
        Self::Lz4,
        Self::PlanesZstd,
        Self::PlanesLz4,
    ];

    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}

/// Bytes of the tag behind a sealed chunk.
pub(crate) const TAG_BYTES: u64 = 16;

/// Bytes of a chunk's record.
pub(crate) const CHUNK_RECORD_BYTES: usize = 64;

/// Where a chunk lies and what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Index in the part's table of payloads.
    pub payload: u32,
    /// How it is stored.
    pub codec: Codec,
    /// Encrypted.
    pub is_sealed: bool,
    /// What the codec needs.
    pub parameter: u16,
    /// Offset in the payload.
    pub offset: u64,
    /// Bytes as stored.
    pub stored_bytes: u32,
    /// Bytes as they are.
    pub raw_bytes: u32,
    /// For the nonce.
    pub number: u64,
    /// Hash of what is stored, bound to its place.
    pub hash: Digest,
}

impl ChunkRecord {
    /// Where it lies in its payload.
    pub fn span(&self) -> Span {
        Span::at(self.offset, self.stored_bytes.into()).unwrap_or(Span::first(0))
    }

    /// True when it is stored as it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.codec == Codec::Raw && !self.is_sealed
    }

    /// Stored bytes without the tag of a sealed chunk; `None` where there is no room for one.
    pub(crate) fn coded_bytes(&self) -> Option<u64> {
        let tag_bytes = if self.is_sealed { TAG_BYTES } else { 0 };
        u64::from(self.stored_bytes).checked_sub(tag_bytes)
    }

    /// The features that a reader of it needs.
    pub(crate) fn features(&self) -> impl Iterator<Item = &'static str> {
        let of_codec: &[&str] = match self.codec {
            Codec::Raw => &[],
            Codec::Zstd => &["zstd"],
            Codec::Lz4 => &["lz4"],
            Codec::PlanesZstd => &["planes", "zstd"],
            Codec::PlanesLz4 => &["planes", "lz4"],
        };
        let of_seal = self.is_sealed.then_some("aes-256-gcm");
        of_codec.iter().copied().chain(of_seal)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u32(self.payload);
        out.extend_from_slice(&[self.codec.number(), u8::from(self.is_sealed)]);
        out.extend_from_slice(&self.parameter.to_le_bytes());
        out.put_u64(self.offset);
        out.put_u32(self.stored_bytes);
        out.put_u32(self.raw_bytes);
        out.put_u64(self.number);
        out.extend_from_slice(&self.hash);
    }

    pub(crate) fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let payload = cursor.u32()?;
        let number = usize::from(cursor.u8()?);
        let Some(codec) = Codec::ALL.get(number).copied() else {
            let message = format!("a chunk is stored by codec {number}, which this version does not know");
            return Err(Error::new(ErrorKind::Unsupported, "read checkpoint", message));
        };
        let is_sealed = cursor.flag()?;
        let record = Self {
            payload,
            codec,
            is_sealed,
            parameter: cursor.u16()?,
            offset: cursor.u64()?,
            stored_bytes: cursor.u32()?,
            raw_bytes: cursor.u32()?,
            number: cursor.u64()?,
            hash: cursor.array()?,
        };
        let fits = record.coded_bytes().is_some_and(|coded_bytes| {
            is_sealed == (record.number != 0)
                && codec::fits(codec, record.parameter, coded_bytes, record.raw_bytes)
        });
        if !fits || record.offset.checked_add(record.stored_bytes.into()).is_none() {
            return Err(cursor.corrupt("a chunk has lengths that do not fit"));
        }
        Ok(record)
    }

    /// True when the stored bytes hold the hash of that place.
    pub(crate) fn holds(&self, kind: HashKind, place: &Place, stored: &[u8]) -> bool {
        stored.len() == self.stored_bytes as usize && kind.chunk(place, stored) == self.hash
    }
}
