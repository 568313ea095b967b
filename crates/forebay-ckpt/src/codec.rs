//! Compression of chunks: what goes into a payload, and back.
//!
//! ```text
//! encode: chunk -> [planes of its elements] -> each tried by samples, compressed where that pays -> shorter bytes, or none: stored raw
//! decode: stored bytes -> every length compared with the record -> exactly the chunk's bytes, or refused
//! ```
//!
//! Numbers of 2, 4 or 8 bytes are cut into byte planes (`planes`): the exponents of weights are alike and shrink to a third by entropy coding alone (`block`), their mantissas are
//! noise and stay as they are. What a chunk becomes depends on its bytes and nothing else, so that a state is written in one way by any number of threads. Pure.

mod block;
mod planes;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use forebay_core::{Error, ErrorKind, Result};

use crate::dtype::Dtype;
use crate::entry::{Codec, TAG_BYTES};
use block::{Coder, Decoder as BlockDecoder, Method};

/// Levels of zstd that may be asked for: what the library has.
const LEVEL_MIN: i32 = -131_072;
const LEVEL_MAX: i32 = 22;

/// Flag in the parameter of planes: elements were rotated left by one bit.
const ROTATED: u16 = 256;

/// Bytes of the length of a plane.
const LENGTH_BYTES: usize = 4;

/// How chunks are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compress {
    /// Not at all: payloads are safetensors files, and nothing waits for a processor.
    #[default]
    Off,
    /// LZ4: the fastest to undo; floating-point numbers by planes.
    Lz4,
    /// zstd at a level; floating-point numbers by planes.
    Zstd {
        /// As zstd counts them: 1 to 22, or negative for faster ones.
        level: i32,
    },
    /// What pays for weights: planes, entropy coded, at more than a gigabyte a second and core.
    Auto,
}

impl Compress {
    /// Refuse levels that there are not.
    pub(crate) fn check(self) -> Result<()> {
        match self {
            Self::Zstd { level } if !(LEVEL_MIN..=LEVEL_MAX).contains(&level) || level == 0 => {
                let message = format!("zstd has no level {level}");
                Err(Error::new(ErrorKind::InvalidInput, "save", message)
                    .with_hint("levels go from 1 to 22, or below 0"))
            }
            _ => Ok(()),
        }
    }
}

impl FromStr for Compress {
    type Err = Error;

    /// `off`, `lz4`, `zstd` (level 1), `zstd:LEVEL`, `auto`.
    fn from_str(text: &str) -> Result<Self> {
        let parsed = match text.split_once(':') {
            None => match text {
                "off" => Some(Self::Off),
                "lz4" => Some(Self::Lz4),
                "zstd" => Some(Self::Zstd { level: 1 }),
                "auto" => Some(Self::Auto),
                _ => None,
            },
            Some(("zstd", level)) => level.parse().ok().map(|level| Self::Zstd { level }),
            Some(_) => None,
        };
        let parsed = parsed.ok_or_else(|| {
            let shown: String = text.chars().take(60).collect();
            Error::new(
                ErrorKind::InvalidInput,
                "compress",
                format!("there is no way to compress called {shown:?}"),
            )
            .with_hint("off, lz4, zstd, zstd:LEVEL or auto")
        })?;
        parsed.check()?;
        Ok(parsed)
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd { level } => write!(f, "zstd:{level}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// How the elements of a dtype are cut into planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    width: usize,
    rotated: bool,
}

impl Cut {
    /// `None` where an element is a byte or no whole bytes.
    fn of(dtype: Dtype) -> Option<Self> {
        let (width, rotated) = match dtype {
            Dtype::F16 | Dtype::Bf16 => (2, true),
            Dtype::F32 | Dtype::C64 => (4, true),
            Dtype::F64 | Dtype::C128 => (8, true),
            Dtype::I16 | Dtype::U16 => (2, false),
            Dtype::I32 | Dtype::U32 => (4, false),
            Dtype::I64 | Dtype::U64 => (8, false),
            _ => return None,
        };
        Some(Self { width, rotated })
    }

    fn parameter(self) -> u16 {
        self.width as u16 + if self.rotated { ROTATED } else { 0 }
    }

    fn from_parameter(parameter: u16) -> Option<Self> {
        let cut = Self {
            width: usize::from(parameter & 0xff),
            rotated: parameter & ROTATED != 0,
        };
        (matches!(cut.width, 2 | 4 | 8) && cut.parameter() == parameter).then_some(cut)
    }
}

/// True when a chunk of that many bytes can have been stored in so many by that codec; sealing is not counted.
pub(crate) fn fits(codec: Codec, parameter: u16, stored_bytes: u64, raw_bytes: u32) -> bool {
    let raw = u64::from(raw_bytes);
    match codec {
        Codec::Raw => stored_bytes == raw && parameter == 0,
        Codec::Zstd | Codec::Lz4 => stored_bytes < raw && parameter == 0,
        Codec::PlanesZstd | Codec::PlanesLz4 => {
            let cut = Cut::from_parameter(parameter);
            cut.is_some_and(|cut| {
                raw.is_multiple_of(cut.width as u64)
                    && stored_bytes < raw
                    && stored_bytes > (LENGTH_BYTES * cut.width) as u64
            })
        }
    }
}

/// Compresses chunks; keeps its memory between them.
#[derive(Debug)]
pub(crate) struct Encoder {
    coder: Coder,
    planes: Vec<u8>,
    /// What the last chunk became, where it shrank; longer than that, so that it need not be cleared for each chunk.
    out: Vec<u8>,
    len: usize,
}

impl Encoder {
    pub(crate) fn new() -> Self {
        Self {
            coder: Coder::new(),
            planes: Vec::new(),
            out: Vec::new(),
            len: 0,
        }
    }

    /// What the last chunk became; nothing where it is stored raw.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.out.get(..self.len).unwrap_or_default()
    }

    /// What is stored of the last chunk.
    pub(crate) fn stored<'a>(&'a self, raw: &'a [u8]) -> &'a [u8] {
        if self.len == 0 { raw } else { self.bytes() }
    }

    /// Have the raw bytes here, too, where they did not shrink, and room for a tag behind; both are the caller's to change.
    pub(crate) fn sealable(&mut self, raw: &[u8]) -> (&mut [u8], &mut [u8]) {
        if self.len == 0 {
            self.out.resize(self.out.len().max(raw.len()), 0);
            if let Some(place) = self.out.get_mut(..raw.len()) {
                place.copy_from_slice(raw);
            }
            self.len = raw.len();
        }
        let coded = self.len;
        self.len += TAG_BYTES as usize;
        self.out.resize(self.out.len().max(self.len), 0);
        let whole = self.out.get_mut(..self.len).unwrap_or_default();
        whole.split_at_mut(coded.min(whole.len()))
    }

    /// Compress a chunk; `Raw` where it does not shrink.
    pub(crate) fn encode(&mut self, how: Compress, dtype: Dtype, raw: &[u8]) -> (Codec, u16) {
        let cut = Cut::of(dtype).filter(|cut| !raw.is_empty() && raw.len().is_multiple_of(cut.width));
        let (method, plain, by_planes) = match how {
            Compress::Off => {
                self.len = 0;
                return (Codec::Raw, 0);
            }
            Compress::Lz4 => (Method::Lz4, Codec::Lz4, Codec::PlanesLz4),
            Compress::Zstd { level } => (Method::Zstd(level), Codec::Zstd, Codec::PlanesZstd),
            Compress::Auto => (Method::Entropy, Codec::Zstd, Codec::PlanesZstd),
        };
        // Match finders see more in whole integers than in planes of them; entropy coders see less.
        let cut = cut.filter(|cut| cut.rotated || how == Compress::Auto);
        if self.out.len() < raw.len() {
            self.out.resize(raw.len(), 0);
        }
        let coded = match cut {
            Some(cut) => self
                .encode_planes(method, cut, raw)
                .map(|len| (by_planes, cut.parameter(), len)),
            None => self
                .coder
                .shrink(method, raw, &mut self.out)
                .map(|len| (plain, 0, len)),
        };
        match coded {
            Some((codec, parameter, len)) if len < raw.len() => {
                self.len = len;
                (codec, parameter)
            }
            _ => {
                self.len = 0;
                (Codec::Raw, 0)
            }
        }
    }

    /// Bytes that the planes became; `None` where none of them shrank.
    fn encode_planes(&mut self, method: Method, cut: Cut, raw: &[u8]) -> Option<usize> {
        let count = raw.len() / cut.width;
        self.planes.resize(raw.len(), 0);
        planes::split(raw, cut.width, cut.rotated, &mut self.planes);
        let mut at = LENGTH_BYTES * cut.width;
        let mut has_shrunk = false;
        for (number, plane) in self.planes.chunks_exact(count).enumerate() {
            let room = self.out.get_mut(at..raw.len())?;
            let len = if let Some(len) = self.coder.shrink(method, plane, room) {
                has_shrunk = true;
                len
            } else {
                room.get_mut(..count)?.copy_from_slice(plane);
                count
            };
            let length = self.out.get_mut(number * LENGTH_BYTES..)?.first_chunk_mut()?;
            *length = (len as u32).to_le_bytes();
            at += len;
        }
        has_shrunk.then_some(at)
    }
}

/// Undoes what encoders did; keeps its memory between chunks.
#[derive(Debug)]
pub(crate) struct Decoder {
    block: BlockDecoder,
    planes: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self {
            block: BlockDecoder::new(),
            planes: Vec::new(),
        }
    }

    /// The chunk, into memory of its length; else why it is none.
    pub(crate) fn decode(
        &mut self,
        (codec, parameter): (Codec, u16),
        stored: &[u8],
        raw: &mut [u8],
    ) -> Result<(), &'static str> {
        let raw_bytes = u32::try_from(raw.len()).map_err(|_| "it is too long for a chunk")?;
        if !fits(codec, parameter, stored.len() as u64, raw_bytes) {
            return Err("it has lengths that do not fit");
        }
        match codec {
            Codec::Raw => raw.copy_from_slice(stored),
            Codec::Zstd => self.block.zstd(stored, raw)?,
            Codec::Lz4 => BlockDecoder::lz4(stored, raw)?,
            Codec::PlanesZstd | Codec::PlanesLz4 => {
                let cut = Cut::from_parameter(parameter).ok_or("its planes have no width")?;
                self.decode_planes(codec, cut, stored, raw)?;
            }
        }
        Ok(())
    }

    fn decode_planes(
        &mut self,
        codec: Codec,
        cut: Cut,
        stored: &[u8],
        raw: &mut [u8],
    ) -> Result<(), &'static str> {
        const SHORT: &str = "its planes are not as long as they say";
        let count = raw.len() / cut.width;
        let (lengths, mut rest) = stored.split_at_checked(LENGTH_BYTES * cut.width).ok_or(SHORT)?;
        let (lengths, _) = lengths.as_chunks::<LENGTH_BYTES>();
        self.planes.resize(raw.len(), 0);
        let mut decoded = self.planes.chunks_exact_mut(count.max(1));
        let mut planes: Vec<&[u8]> = Vec::with_capacity(cut.width);
        for length in lengths {
            let len = u32::from_le_bytes(*length) as usize;
            let (plane, behind) = rest.split_at_checked(len).ok_or(SHORT)?;
            rest = behind;
            let place = decoded.next().ok_or(SHORT)?;
            // What is stored as it is needs no copy before it is joined.
            if len == count {
                planes.push(plane);
                continue;
            }
            if len > count {
                return Err(SHORT);
            }
            match codec {
                Codec::PlanesLz4 => BlockDecoder::lz4(plane, place)?,
                _ => self.block.zstd(plane, place)?,
            }
            planes.push(place);
        }
        if !rest.is_empty() {
            return Err(SHORT);
        }
        planes::join(&planes, cut.rotated, raw);
        Ok(())
    }
}
