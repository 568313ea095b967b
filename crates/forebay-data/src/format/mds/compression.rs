//! Compressions of whole shards, by the names index.json has for them, and zlib, which TFRecord has beside gzip.

use std::fmt;
use std::io::Write as _;

use forebay_core::{Error, ErrorKind, Result};

use crate::codec::Codec;

/// Window of brotli in powers of two: what Python's `brotli.compress` takes.
const BROTLI_WINDOW_BITS: u32 = 22;

/// Memory that brotli collects input and output in.
const BROTLI_BUFFER_BYTES: usize = 64 << 10;

/// A compression and how hard it tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compression {
    family: Family,
    /// As it was named; without, the family's own.
    level: Option<u32>,
}

/// The algorithms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Family {
    Brotli,
    Bzip2,
    Gzip,
    Snappy,
    Zlib,
    Zstd,
}

impl Family {
    const ALL: [Self; 6] = [
        Self::Brotli,
        Self::Bzip2,
        Self::Gzip,
        Self::Snappy,
        Self::Zlib,
        Self::Zstd,
    ];

    /// Its name, which is also the extension of its files.
    const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Bzip2 => "bz2",
            Self::Gzip => "gz",
            Self::Snappy => "snappy",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Lowest and highest level, and the one that is meant when none is named.
    const fn levels(self) -> Option<(u32, u32, u32)> {
        match self {
            Self::Brotli => Some((0, 11, 11)),
            Self::Bzip2 => Some((1, 9, 9)),
            Self::Gzip => Some((0, 9, 9)),
            Self::Snappy => None,
            Self::Zlib => Some((0, 9, 6)),
            Self::Zstd => Some((1, 22, 3)),
        }
    }
}

impl Compression {
    /// `zstd`, `zstd:7`, `gz`, `br:4`, `bz2`, `snappy`, ...
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::find(name).filter(|found| found.family != Family::Zlib);
        found.ok_or_else(|| {
            let message = format!("the compression '{}' is not known", name.escape_debug());
            Error::new(ErrorKind::Unsupported, "read mds", message)
                .with_hint("there are br:0-11, bz2:1-9, gz:0-9, snappy and zstd:1-22")
        })
    }

    /// The same and `zlib`, which MDS does not have, where there is one of that name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let (family, level) = match name.split_once(':') {
            Some((family, level)) => (family, Some(level)),
            None => (name, None),
        };
        let family = Family::ALL.into_iter().find(|known| known.name() == family)?;
        let level = match (level, family.levels()) {
            (None, _) => None,
            (Some(level), Some((lowest, highest, _))) => {
                let number = level.parse::<u32>().ok()?;
                // `zstd:07` is not a name of theirs.
                let is_name = (lowest..=highest).contains(&number) && number.to_string() == level;
                Some(is_name.then_some(number)?)
            }
            (Some(_), None) => return None,
        };
        Some(Self { family, level })
    }

    /// Extension of compressed shards, without the dot.
    pub fn extension(self) -> &'static str {
        self.family.name()
    }

    /// How it is undone.
    pub fn codec(self) -> Codec {
        match self.family {
            Family::Brotli => Codec::Brotli,
            Family::Bzip2 => Codec::Bzip2,
            Family::Gzip => Codec::Gzip,
            Family::Snappy => Codec::Snappy,
            Family::Zlib => Codec::Zlib,
            Family::Zstd => Codec::Zstd,
        }
    }

    /// Compress a shard.
    pub fn compress(self, raw: &[u8]) -> Result<Vec<u8>> {
        let level = match (self.level, self.family.levels()) {
            (Some(level), _) => level,
            (None, levels) => levels.map_or(0, |(.., usual)| usual),
        };
        let compressed = match self.family {
            Family::Brotli => brotli(raw, level),
            Family::Bzip2 => bzip2(raw, level),
            Family::Gzip => gzip(raw, level),
            Family::Snappy => {
                let compressed = snap::raw::Encoder::new().compress_vec(raw);
                return compressed.map_err(|error| failed(self, error));
            }
            Family::Zlib => zlib(raw, level),
            Family::Zstd => zstd_frame(raw, level as i32),
        };
        compressed.map_err(|error| failed(self, error))
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.family.name())?;
        match self.level {
            Some(level) => write!(f, ":{level}"),
            None => Ok(()),
        }
    }
}

fn brotli(raw: &[u8], level: u32) -> std::io::Result<Vec<u8>> {
    let mut writer =
        brotli::CompressorWriter::new(Vec::new(), BROTLI_BUFFER_BYTES, level, BROTLI_WINDOW_BITS);
    writer.write_all(raw)?;
    Ok(writer.into_inner())
}

fn bzip2(raw: &[u8], level: u32) -> std::io::Result<Vec<u8>> {
    let mut writer = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(level));
    writer.write_all(raw)?;
    writer.finish()
}

/// Without a time in its header, so that the same samples give the same bytes.
fn gzip(raw: &[u8], level: u32) -> std::io::Result<Vec<u8>> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    writer.write_all(raw)?;
    writer.finish()
}

fn zlib(raw: &[u8], level: u32) -> std::io::Result<Vec<u8>> {
    let mut writer = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(level));
    writer.write_all(raw)?;
    writer.finish()
}

/// With a checksum of the content, as gzip and bzip2 always have one: whoever decompresses the shard sees damage without a manifest.
fn zstd_frame(raw: &[u8], level: i32) -> std::io::Result<Vec<u8>> {
    let mut compressor = zstd::bulk::Compressor::new(level)?;
    compressor.include_checksum(true)?;
    compressor.compress(raw)
}

fn failed(compression: Compression, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let message = format!("{compression} does not compress the shard");
    Error::new(ErrorKind::Internal, "write mds", message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Decoder;

    #[test]
    fn names_come_back_and_bytes_too() {
        let raw: Vec<u8> = (0..200_000u32).map(|index| (index / 9 % 253) as u8).collect();
        for name in [
            "br", "br:0", "bz2", "bz2:1", "gz", "gz:0", "gz:9", "snappy", "zlib", "zlib:0", "zlib:9", "zstd",
            "zstd:1", "zstd:7",
        ] {
            let compression = Compression::find(name).unwrap();
            assert_eq!(compression.to_string(), name);
            let stored = compression.compress(&raw).unwrap();
            let mut decoder = Decoder::new(compression.codec());
            let mut back = Vec::new();
            let mut sink = |bytes: &[u8]| {
                back.extend_from_slice(bytes);
                Ok(())
            };
            for piece in stored.chunks(1000) {
                decoder.feed(piece, &mut sink).unwrap();
            }
            decoder.finish(&mut sink).unwrap();
            assert!(back == raw, "{name}");
        }
    }

    #[test]
    fn damage_is_seen_by_the_checksum_where_the_format_has_one() {
        // Noise, which no algorithm makes shorter: a flipped byte of it decompresses to another one.
        let mut noise = 1u64;
        let bytes = std::iter::repeat_with(|| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (noise >> 56) as u8
        });
        let raw: Vec<u8> = bytes.take(100_000).collect();
        for name in ["bz2", "gz", "zlib", "zstd", "zstd:19"] {
            let compression = Compression::find(name).unwrap();
            let mut stored = compression.compress(&raw).unwrap();
            let middle = stored.len() / 2;
            stored[middle] ^= 1;
            let mut decoder = Decoder::new(compression.codec());
            let mut ignore = |_: &[u8]| Ok(());
            let fed = decoder.feed(&stored, &mut ignore);
            let error = fed
                .and_then(|()| decoder.finish(&mut ignore).map(drop))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "", "lz4", "zstd:", "zstd:0", "zstd:23", "zstd:07", "gz:10", "br:12", "bz2:0", "snappy:1",
            "gz:-1", "zlib", "zlib:10",
        ] {
            let error = Compression::parse(name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        }
    }
}
