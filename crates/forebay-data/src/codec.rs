//! Compressions of whole shards: undone as a stream, in bounded memory and up to a bounded size.
//!
//! Which one it is says the name where it says anything (`.gz`, `.zst`, ...), and the first bytes otherwise.

mod frame;
mod frames;
mod items;
mod snappy;

use std::fmt;

use brotli::enc::StandardAlloc;
use brotli::{BrotliDecompressStream, BrotliResult, BrotliState};
use flate2::{Decompress, FlushDecompress, Status};
use forebay_core::{ByteSize, Error, ErrorKind, Key, Result};
use serde::{Deserialize, Serialize};
use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

use self::frames::Frames;
use self::items::Items;
use self::snappy::{Progress, Snappy};

/// A shard does not become larger than this when it is decompressed.
pub const RAW_BYTES_MAX: u64 = 64 << 30;

/// Nor more than that many times its stored size, once it is larger than [`RATIO_FREE_BYTES`]: no data compresses like that, bombs do.
pub const RATIO_MAX: u64 = 4096;

/// Size up to which nobody asks for the ratio.
pub const RATIO_FREE_BYTES: u64 = 256 << 20;

/// Memory for what a decoder gives out in one go.
const OUTPUT_BYTES: usize = 256 << 10;

/// A compression of whole shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Codec {
    /// None.
    #[default]
    None,
    /// gzip, of one or more members.
    Gzip,
    /// zlib.
    Zlib,
    /// Zstandard.
    Zstd,
    /// Brotli.
    Brotli,
    /// bzip2, of one or more streams.
    Bzip2,
    /// Snappy, as one raw block without frames.
    Snappy,
    /// The frames of a LitData chunk; undone, it is a plain chunk.
    LitdataFrames,
    /// A LitData chunk of items that are compressed one by one; undone, it is their number, and the items, each with its length behind it.
    LitdataItems,
}

impl Codec {
    /// True when what is compressed always has a checksum, which is compared when it is undone.
    pub fn has_sums(self) -> bool {
        matches!(self, Self::Gzip | Self::Zlib | Self::Bzip2)
    }

    /// The codec of an object, from its name and its first bytes.
    pub fn of(key: &Key, first: &[u8]) -> Self {
        let by_name = key
            .as_str()
            .rsplit('.')
            .next()
            .and_then(|extension| match extension {
                "gz" | "tgz" => Some(Self::Gzip),
                "zst" | "zstd" => Some(Self::Zstd),
                "br" => Some(Self::Brotli),
                "bz2" => Some(Self::Bzip2),
                "snappy" => Some(Self::Snappy),
                _ => None,
            });
        by_name.unwrap_or(match first {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // The magic of bzip2, its level, and the digits of pi that its first block begins with.
            [
                b'B',
                b'Z',
                b'h',
                b'1'..=b'9',
                0x31,
                0x41,
                0x59,
                0x26,
                0x53,
                0x59,
                ..,
            ] => Self::Bzip2,
            _ if first.starts_with(&frames::MAGIC) => Self::LitdataFrames,
            _ => Self::None,
        })
    }

    /// Refuse sizes of a shard that no writer could have seen: more bytes than decompressing would ever give, or other ones where nothing is compressed.
    /// Whoever makes room for a shard by what is written about it asks first.
    pub fn check_sizes(self, stored_bytes: u64, raw_bytes: u64) -> Result<()> {
        let is_possible = match self {
            Self::None => raw_bytes == stored_bytes && i64::try_from(raw_bytes).is_ok(),
            _ => i64::try_from(stored_bytes).is_ok() && raw_bytes <= raw_bytes_max(stored_bytes),
        };
        if is_possible {
            return Ok(());
        }
        let message = format!("a shard of {stored_bytes} bytes that becomes {raw_bytes} bytes");
        Err(Error::new(ErrorKind::LimitExceeded, "decompress", message)
            .with_hint("no ordinary data shrinks that much; look at where the shard comes from"))
    }
}

/// Most bytes that so many compressed ones may become.
fn raw_bytes_max(stored_bytes: u64) -> u64 {
    let by_ratio = stored_bytes.saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES);
    RAW_BYTES_MAX.min(by_ratio)
}

/// Takes what decoding gives.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<()>;

/// Undoes a [`Codec`], piece by piece.
pub struct Decoder {
    codec: Codec,
    state: State,
    output: Vec<u8>,
    stored_bytes: u64,
    raw_bytes: u64,
    /// At the end of a member or frame, where the input may end too.
    at_end: bool,
}

enum State {
    Plain,
    Flate(Decompress),
    Zstd(ZstdDecoder<'static>),
    Brotli(Box<Brotli>),
    Bzip2(bzip2::Decompress),
    Snappy(Box<Snappy>),
    Frames(Box<Frames>),
    Items(Box<Items>),
    Broken,
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// How far one step came.
struct Step {
    consumed: usize,
    produced: usize,
    is_end: bool,
}

impl Decoder {
    /// For that codec.
    pub fn new(codec: Codec) -> Self {
        let state = match codec {
            Codec::None => State::Plain,
            Codec::Gzip => State::Flate(Decompress::new_gzip(15)),
            Codec::Zlib => State::Flate(Decompress::new(true)),
            Codec::Zstd => ZstdDecoder::new().map_or(State::Broken, State::Zstd),
            // The strict one keeps to windows of 16 MiB.
            Codec::Brotli => State::Brotli(Box::new(BrotliState::new_strict(
                StandardAlloc::default(),
                StandardAlloc::default(),
                StandardAlloc::default(),
            ))),
            Codec::Bzip2 => State::Bzip2(bzip2::Decompress::new(false)),
            Codec::Snappy => State::Snappy(Box::new(Snappy::new())),
            Codec::LitdataFrames => {
                Frames::new().map_or(State::Broken, |frames| State::Frames(Box::new(frames)))
            }
            Codec::LitdataItems => Items::new().map_or(State::Broken, |items| State::Items(Box::new(items))),
        };
        let output = match codec {
            Codec::None => Vec::new(),
            _ => vec![0; OUTPUT_BYTES],
        };
        Self {
            codec,
            state,
            output,
            stored_bytes: 0,
            raw_bytes: 0,
            at_end: true,
        }
    }

    /// The codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Decode the next stored bytes.
    pub fn feed(&mut self, mut stored: &[u8], sink: Sink<'_>) -> Result<()> {
        self.stored_bytes += stored.len() as u64;
        if let State::Plain = self.state {
            self.raw_bytes += stored.len() as u64;
            return sink(stored);
        }
        loop {
            if stored.is_empty() && self.at_end {
                return Ok(());
            }
            let step = self.step(stored)?;
            stored = &stored[step.consumed..];
            self.at_end = step.is_end;
            self.count(step.produced as u64)?;
            sink(&self.output[..step.produced])?;
            if stored.is_empty() && step.produced < self.output.len() {
                return Ok(());
            } else if step.consumed == 0 && step.produced == 0 {
                return Err(self.corrupt("decoding does not get on"));
            } else if step.is_end && !stored.is_empty() {
                self.next_member();
            }
        }
    }

    /// The input is over: how many bytes it had, decoded.
    pub fn finish(self, _sink: Sink<'_>) -> Result<u64> {
        if self.at_end {
            return Ok(self.raw_bytes);
        }
        Err(self.corrupt("the compressed shard ends in the middle"))
    }

    fn step(&mut self, stored: &[u8]) -> Result<Step> {
        match &mut self.state {
            State::Flate(flate) => {
                let (consumed, produced) = (flate.total_in(), flate.total_out());
                let status = flate.decompress(stored, &mut self.output, FlushDecompress::None);
                let (consumed, produced) = (flate.total_in() - consumed, flate.total_out() - produced);
                let is_end = match status {
                    Ok(status) => matches!(status, Status::StreamEnd),
                    Err(error) => return Err(self.corrupt("it does not decompress").with_source(error)),
                };
                Ok(Step {
                    consumed: consumed as usize,
                    produced: produced as usize,
                    is_end,
                })
            }
            State::Zstd(zstd) => {
                let mut input = InBuffer::around(stored);
                let mut output = OutBuffer::around(&mut self.output[..]);
                match zstd.run(&mut input, &mut output) {
                    Ok(hint) => Ok(Step {
                        consumed: input.pos(),
                        produced: output.pos(),
                        is_end: hint == 0,
                    }),
                    Err(error) => Err(self.corrupt("it does not decompress").with_source(error)),
                }
            }
            State::Brotli(brotli) => match brotli_step(brotli, stored, &mut self.output) {
                Some(step) => Ok(step),
                None => Err(self.corrupt("it does not decompress")),
            },
            State::Bzip2(bzip2) => {
                let (consumed, produced) = (bzip2.total_in(), bzip2.total_out());
                let status = bzip2.decompress(stored, &mut self.output);
                let (consumed, produced) = (bzip2.total_in() - consumed, bzip2.total_out() - produced);
                match status {
                    Ok(status) => Ok(Step {
                        consumed: consumed as usize,
                        produced: produced as usize,
                        is_end: status == bzip2::Status::StreamEnd,
                    }),
                    Err(error) => Err(self.corrupt("it does not decompress").with_source(error)),
                }
            }
            State::Snappy(snappy) => {
                let progress = snappy.step(stored, &mut self.output);
                progress.map(Step::from).map_err(|why| self.corrupt(why))
            }
            State::Frames(frames) => {
                let progress = frames.step(stored, &mut self.output);
                progress.map(Step::from).map_err(|why| self.corrupt(why))
            }
            State::Items(items) => {
                let progress = items.step(stored, &mut self.output);
                progress.map(Step::from).map_err(|why| self.corrupt(why))
            }
            State::Plain | State::Broken => Err(self.corrupt("the decoder could not be made")),
        }
    }

    /// gzip and bzip2 files may be joined; zstd goes on by itself; behind the others there is nothing to decode, which the next step says.
    fn next_member(&mut self) {
        match (&mut self.state, self.codec) {
            (State::Flate(flate), Codec::Gzip) => *flate = Decompress::new_gzip(15),
            (State::Bzip2(bzip2), _) => *bzip2 = bzip2::Decompress::new(false),
            _ => {}
        }
        self.at_end = false;
    }

    fn count(&mut self, produced: u64) -> Result<()> {
        self.raw_bytes += produced;
        if self.raw_bytes <= raw_bytes_max(self.stored_bytes) {
            return Ok(());
        }
        let message = format!(
            "{} of compressed data become more than {}",
            ByteSize(self.stored_bytes),
            ByteSize(self.raw_bytes)
        );
        Err(Error::new(ErrorKind::LimitExceeded, "decompress", message)
            .with_hint("no ordinary data shrinks that much; look at where the shard comes from"))
    }

    fn corrupt(&self, message: &str) -> Error {
        let message = format!(
            "{message} (byte {} of the shard or shortly before)",
            self.stored_bytes
        );
        Error::new(ErrorKind::Corrupt, "decompress", message)
    }
}

impl From<Progress> for Step {
    fn from(progress: Progress) -> Self {
        Self {
            consumed: progress.consumed,
            produced: progress.produced,
            is_end: progress.is_end,
        }
    }
}

fn brotli_step(state: &mut Brotli, stored: &[u8], output: &mut [u8]) -> Option<Step> {
    let (mut consumed, mut produced, mut total) = (0, 0, 0);
    let (mut left, mut room) = (stored.len(), output.len());
    let result = BrotliDecompressStream(
        &mut left,
        &mut consumed,
        stored,
        &mut room,
        &mut produced,
        output,
        &mut total,
        state,
    );
    let is_end = match result {
        BrotliResult::ResultSuccess => true,
        BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => false,
        BrotliResult::ResultFailure => return None,
    };
    Some(Step {
        consumed,
        produced,
        is_end,
    })
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder")
            .field("codec", &self.codec)
            .field("stored_bytes", &self.stored_bytes)
            .field("raw_bytes", &self.raw_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
