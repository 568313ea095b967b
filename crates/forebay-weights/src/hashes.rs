//! Checksums of chunks, from beside a file or from its header; see `docs/formats/weights-hashes.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forebay_core::safetensors::Header;
use forebay_core::{Crc32c, Error, ErrorKind, Result, Span, crc32c};
use serde::Serialize;

use crate::load_plan::Grid;

/// What the name of a side file adds to that of the file.
pub const SIDE_SUFFIX: &str = ".forebay-hashes";

/// The entry of the metadata that holds checksums.
pub const METADATA_ENTRY: &str = "forebay.crc32c";

/// Bytes of a chunk in what this version writes: 4 KiB of checksums per GiB, and a slice reads at most two of them too much.
pub const CHUNK_BYTES: u64 = 1 << 20;

const CHUNK_BYTES_MIN: u64 = 64 << 10;
const CHUNK_BYTES_MAX: u64 = 2 << 20;
const MAGIC: &[u8; 8] = b"FBHASHES";
const VERSION: u32 = 1;
const SIDE_HEADER_BYTES: usize = 64;

/// What the data area of a file with checksums in its header begins at a multiple of.
pub const DATA_ALIGN: u64 = 4096;

/// Whether bytes are compared with checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// Never.
    Off,
    /// Where there are any.
    #[default]
    Prefer,
    /// Always; a file without is an error.
    Require,
}

impl std::str::FromStr for Verify {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "off" => Ok(Self::Off),
            "prefer" => Ok(Self::Prefer),
            "require" => Ok(Self::Require),
            _ => {
                let message = format!("there is no way '{}' to verify", text.escape_debug());
                Err(Error::new(ErrorKind::InvalidInput, "verify", message)
                    .with_hint("one of: off, prefer, require"))
            }
        }
    }
}

/// Checksums of the chunks of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hashes {
    grid: Grid,
    file_len: u64,
    crcs: Vec<u32>,
}

impl Hashes {
    /// Where chunks begin.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Longest side file of a file of that length.
    pub fn side_bytes_max(file_len: u64) -> u64 {
        let chunks = file_len.div_ceil(CHUNK_BYTES_MIN);
        chunks
            .saturating_mul(4)
            .saturating_add(SIDE_HEADER_BYTES as u64 + 4)
    }

    /// Compare the whole chunks of the file's first bytes, where the checksums begin with the file.
    pub(crate) fn check_prefix(&self, prefix: &[u8]) -> Result<u64, BadChunk> {
        self.check(Span::first(prefix.len() as u64), prefix)
    }

    /// Parse a side file for a file of `file_len` bytes.
    pub fn parse_side(bytes: &[u8], file_len: u64) -> Result<Self> {
        let bad = |why: String| Error::new(ErrorKind::Corrupt, "read checksums", why);
        let (body, crc) = bytes
            .split_last_chunk::<4>()
            .filter(|(body, _)| body.len() >= SIDE_HEADER_BYTES && body.starts_with(MAGIC))
            .ok_or_else(|| bad("this is no file of checksums".to_owned()))?;
        let version = u32_at(body, 8);
        if version != VERSION {
            return Err(other_version(&version.to_string()));
        }
        if crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(bad("the checksums are damaged themselves".to_owned())
                .with_hint("make them again with `forebay load FILE --write-hashes`"));
        }
        let chunk_bytes = u64::from(u32_at(body, 12));
        let (told_len, count) = (u64_at(body, 16), u64_at(body, 24));
        check_chunk_bytes(chunk_bytes)?;
        if told_len != file_len {
            let message = format!("the checksums are of a file of {told_len} bytes, but it has {file_len}");
            return Err(
                Error::new(ErrorKind::Precondition, "read checksums", message).with_hint(
                    "the file was replaced since; make them again with `forebay load FILE --write-hashes`",
                ),
            );
        }
        let crcs: Vec<u32> = body[SIDE_HEADER_BYTES..]
            .chunks_exact(4)
            .map(|crc| u32_at(crc, 0))
            .collect();
        if count != file_len.div_ceil(chunk_bytes)
            || crcs.len() as u64 != count
            || !(body.len() - SIDE_HEADER_BYTES).is_multiple_of(4)
        {
            return Err(bad(format!(
                "{} checksums for {file_len} bytes in chunks of {chunk_bytes}",
                crcs.len()
            )));
        }
        let origin = 0;
        Ok(Self {
            grid: Grid { origin, chunk_bytes },
            file_len,
            crcs,
        })
    }

    /// The bytes of a side file.
    pub fn encode_side(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SIDE_HEADER_BYTES + self.crcs.len() * 4 + 4);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(self.grid.chunk_bytes as u32).to_le_bytes());
        bytes.extend_from_slice(&self.file_len.to_le_bytes());
        bytes.extend_from_slice(&(self.crcs.len() as u64).to_le_bytes());
        bytes.resize(SIDE_HEADER_BYTES, 0);
        for crc in &self.crcs {
            bytes.extend_from_slice(&crc.to_le_bytes());
        }
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// From the checksums of a whole file in chunks of [`CHUNK_BYTES`] from its start.
    pub fn of_file(file_len: u64, crcs: Vec<u32>) -> Self {
        let grid = Grid {
            origin: 0,
            chunk_bytes: CHUNK_BYTES,
        };
        Self { grid, file_len, crcs }
    }

    /// The checksums a header holds, where it does; `Corrupt` when the header is not as it was written.
    pub fn parse_header(header: &Header, prefix: &[u8]) -> Result<Option<Self>> {
        let Some(text) = header
            .metadata()
            .and_then(|metadata| metadata.get(METADATA_ENTRY))
        else {
            return Ok(None);
        };
        let bad = |why: &str| {
            let message = format!("__metadata__ entry '{METADATA_ENTRY}': {why}");
            Error::new(ErrorKind::Corrupt, "read checksums", message).with_hint(
                "a program that copied the metadata and wrote the file anew leaves checksums that are not its own: save it without them, \
                 or load it with verify=\"off\"",
            )
        };
        let mut words = text.split(' ');
        let mut word = || words.next().ok_or_else(|| bad("it is too short"));
        let version = word()?;
        if version != "1" {
            return Err(other_version(version));
        }
        let chunk_bytes: u64 = word()?
            .parse()
            .map_err(|_| bad("the size of chunks is no number"))?;
        check_chunk_bytes(chunk_bytes)?;
        let own = hex_u32(word()?.as_bytes()).ok_or_else(|| bad("the header's checksum is none"))?;
        let digits = word()?.as_bytes();
        let origin = header.data_start();
        if !origin.is_multiple_of(DATA_ALIGN) {
            return Err(bad("the data area is not where it was when they were made"));
        }
        let count = header.data_span().len().div_ceil(chunk_bytes);
        if digits.len() as u64 != count * 8 {
            return Err(bad("it has not as many checksums as there are chunks"));
        }
        let crcs = digits
            .chunks_exact(8)
            .map(hex_u32)
            .collect::<Option<Vec<u32>>>()
            .ok_or_else(|| bad("a checksum is none"))?;
        if header_crc(prefix, header.data_start()) != Some(own) {
            return Err(bad("the header is not as it was written"));
        }
        Ok(Some(Self {
            grid: Grid { origin, chunk_bytes },
            file_len: header.file_len(),
            crcs,
        }))
    }

    /// Compare the whole chunks of `span`, whose bytes these are; gives how many bytes were compared. The error names the byte range.
    pub fn check(&self, span: Span, bytes: &[u8]) -> Result<u64, BadChunk> {
        let Grid { origin, chunk_bytes } = self.grid;
        let first = span.start().saturating_sub(origin).div_ceil(chunk_bytes);
        let mut checked = 0;
        for index in first.. {
            let start = origin + index * chunk_bytes;
            let end = (start + chunk_bytes).min(self.file_len);
            let Some(expected) = self.crcs.get(index as usize).filter(|_| end <= span.end()) else {
                break;
            };
            let Some(chunk) = bytes.get((start - span.start()) as usize..(end - span.start()) as usize)
            else {
                break;
            };
            if crc32c(chunk) != *expected {
                return Err(BadChunk { start, end });
            }
            checked += chunk.len() as u64;
        }
        Ok(checked)
    }
}

/// A chunk that is not as it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadChunk {
    /// First byte in the file.
    pub start: u64,
    /// One past the last.
    pub end: u64,
}

impl BadChunk {
    /// The error, with the tensors that the chunk holds bytes of.
    pub fn error(self, header: &Header) -> Error {
        const NAMES_SHOWN: usize = 4;
        let chunk = Span::new(self.start, self.end).unwrap_or_else(|_| Span::first(0));
        let own = (self.start < header.data_start()).then(|| "the header".to_owned());
        let names = header
            .tensors()
            .iter()
            .filter(|tensor| tensor.span.intersect(chunk).is_some())
            .map(|tensor| format!("tensor '{}'", tensor.name.escape_debug()));
        let mut names = own.into_iter().chain(names);
        let mut shown: Vec<String> = names.by_ref().take(NAMES_SHOWN).collect();
        let more = names.count();
        if more > 0 {
            shown.push(format!("{more} more"));
        }
        let message = format!("bytes {chunk} are not as they were written: {}", shown.join(", "));
        Error::new(ErrorKind::Corrupt, "verify", message)
            .with_hint("fetch the file again; if it was changed on purpose, make its checksums anew")
    }
}

/// Checksums of consecutive chunks, of bytes that come in pieces of any size.
#[derive(Debug, Default)]
pub struct ChunkHasher {
    crcs: Vec<u32>,
    running: Crc32c,
    in_chunk: u64,
}

impl ChunkHasher {
    /// Take more bytes in.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = (CHUNK_BYTES - self.in_chunk) as usize;
            let (now, rest) = bytes.split_at(room.min(bytes.len()));
            self.running.update(now);
            self.in_chunk += now.len() as u64;
            if self.in_chunk == CHUNK_BYTES {
                self.end_chunk();
            }
            bytes = rest;
        }
    }

    /// The checksums; the last chunk may be short.
    pub fn finish(mut self) -> Vec<u32> {
        if self.in_chunk > 0 {
            self.end_chunk();
        }
        self.crcs
    }

    fn end_chunk(&mut self) {
        self.crcs.push(self.running.value());
        self.running = Crc32c::default();
        self.in_chunk = 0;
    }
}

/// The entry for a header with checksums, with the header's own still zero; see [`seal_header`].
pub(crate) fn metadata_entry(crcs: &[u32]) -> String {
    let mut text = format!("1 {CHUNK_BYTES} 00000000 ");
    for crc in crcs {
        // Writing to a string cannot fail.
        let _ = write!(text, "{crc:08x}");
    }
    text
}

/// Put the header's own checksum into it.
pub(crate) fn seal_header(prefix: &mut [u8]) -> Result<()> {
    let lost = || Error::new(ErrorKind::Internal, "save", "the header's checksum has no place");
    let crc = header_crc(prefix, prefix.len() as u64).ok_or_else(lost)?;
    let at = own_digits(prefix).ok_or_else(lost)?;
    let digits = format!("{crc:08x}");
    prefix
        .get_mut(at..at + 8)
        .ok_or_else(lost)?
        .copy_from_slice(digits.as_bytes());
    Ok(())
}

/// Put the value of the entry into a header that has a place of the same length for it.
pub(crate) fn own_value(prefix: &mut [u8], value: &str) -> Result<()> {
    let start = value_start(prefix);
    let place = start.and_then(|start| prefix.get_mut(start..start + value.len()));
    let lost = || Error::new(ErrorKind::Internal, "save", "the checksums have no place");
    place.ok_or_else(lost)?.copy_from_slice(value.as_bytes());
    Ok(())
}

/// Add the entry for checksums that are computed later to metadata: as long as the real one.
pub(crate) fn reserve_entry(metadata: &mut BTreeMap<String, String>, data_len: u64) {
    let count = data_len.div_ceil(CHUNK_BYTES) as usize;
    metadata.insert(METADATA_ENTRY.to_owned(), metadata_entry(&vec![0; count]));
}

/// CRC-32C of the first `len` bytes with the digits of the checksum itself taken for zeros.
fn header_crc(prefix: &[u8], len: u64) -> Option<u32> {
    let prefix = prefix.get(..len as usize)?;
    let at = own_digits(prefix)?;
    let mut crc = Crc32c::default();
    crc.update(prefix.get(..at)?);
    crc.update(b"00000000");
    crc.update(prefix.get(at + 8..)?);
    Some(crc.value())
}

/// Where in a header the value of the entry begins.
fn value_start(prefix: &[u8]) -> Option<usize> {
    let key = format!("\"{METADATA_ENTRY}\":\"");
    let mut windows = prefix.windows(key.len()).enumerate();
    // Behind a backslash it is the end of a longer key.
    let is_own = |at: usize| at.checked_sub(1).and_then(|at| prefix.get(at)) != Some(&b'\\');
    let (at, _) = windows.find(|(at, window)| *window == key.as_bytes() && is_own(*at))?;
    Some(at + key.len())
}

/// Where in a header the digits of its checksum are: the third word of the entry's value.
fn own_digits(prefix: &[u8]) -> Option<usize> {
    let at = value_start(prefix)?;
    let mut spaces = prefix[at..]
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b' ')
        .map(|(index, _)| index);
    let second = spaces.nth(1)?;
    Some(at + second + 1)
}

fn other_version(version: &str) -> Error {
    let message = format!(
        "the checksums have version {}, and this version of Forebay knows {VERSION}",
        version.escape_debug()
    );
    Error::new(ErrorKind::Unsupported, "read checksums", message).with_hint(
        "load with a later version of Forebay or with verify=\"off\", or make them again with `forebay load FILE --write-hashes`",
    )
}

fn check_chunk_bytes(chunk_bytes: u64) -> Result<()> {
    if chunk_bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes) {
        return Ok(());
    }
    let message = format!("chunks of {chunk_bytes} bytes are not known");
    Err(Error::new(ErrorKind::Corrupt, "read checksums", message))
}

fn hex_u32(digits: &[u8]) -> Option<u32> {
    let is_hex = digits.len() == 8
        && digits
            .iter()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let text = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
    u32::from_str_radix(text, 16).ok()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes
        .get(at..at + 4)
        .and_then(|bytes| bytes.first_chunk().copied())
        .map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|bytes| bytes.first_chunk().copied())
        .map_or(0, u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use forebay_core::safetensors::{Dtype, HeaderBuilder};
    use proptest::prelude::*;

    use super::*;

    fn hashed(bytes: &[u8]) -> Hashes {
        let mut hasher = ChunkHasher::default();
        for piece in bytes.chunks(300_007) {
            hasher.update(piece);
        }
        Hashes::of_file(bytes.len() as u64, hasher.finish())
    }

    #[test]
    fn side_files_read_back_and_find_a_flipped_bit() {
        let mut bytes: Vec<u8> = (0..CHUNK_BYTES * 5 / 2)
            .map(|index| (index * 7 % 251) as u8)
            .collect();
        let hashes = hashed(&bytes);
        let side = hashes.encode_side();
        let len = bytes.len() as u64;
        assert_eq!(Hashes::parse_side(&side, len).unwrap(), hashes);
        assert_eq!(hashes.check(Span::first(len), &bytes).unwrap(), len);
        let middle = Span::new(CHUNK_BYTES - 5, len).unwrap();
        assert_eq!(
            hashes.check(middle, &bytes[middle.start() as usize..]).unwrap(),
            len - CHUNK_BYTES
        );
        bytes[CHUNK_BYTES as usize + 77] ^= 4;
        let bad = hashes.check(Span::first(len), &bytes).unwrap_err();
        assert_eq!((bad.start, bad.end), (CHUNK_BYTES, 2 * CHUNK_BYTES));
    }

    #[test]
    fn side_files_of_other_files_versions_or_with_damage_are_refused() {
        let side = hashed(&[7; 100]).encode_side();
        let kind = |side: &[u8], len| Hashes::parse_side(side, len).unwrap_err().kind();
        assert_eq!(kind(&side, 101), ErrorKind::Precondition);
        assert_eq!(kind(&side[..side.len() - 1], 100), ErrorKind::Corrupt);
        assert_eq!(kind(b"FBHASHES", 100), ErrorKind::Corrupt);
        for at in 0..side.len() {
            let mut side = side.clone();
            side[at] ^= 1;
            assert!(Hashes::parse_side(&side, 100).is_err(), "byte {at}");
        }
        let mut newer = side.clone();
        newer[8] = 2;
        let error = Hashes::parse_side(&newer, 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error
                .message()
                .contains("have version 2, and this version of Forebay knows 1"),
            "{error}"
        );
        assert!(error.hint().unwrap().contains("--write-hashes"), "{error}");
    }

    fn sealed(data_len: u64) -> Vec<u8> {
        let mut metadata = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        reserve_entry(&mut metadata, data_len);
        let mut builder = HeaderBuilder::new().align(DATA_ALIGN).metadata(Some(metadata));
        builder.tensor("t", Dtype::U8, [data_len]);
        let mut prefix = builder.encode().unwrap().bytes;
        seal_header(&mut prefix).unwrap();
        prefix
    }

    #[test]
    fn headers_hold_their_checksums_and_notice_a_change() {
        let prefix = sealed(3 * CHUNK_BYTES + 1);
        let parse = |prefix: &[u8]| {
            let header = Header::parse(prefix, prefix.len() as u64 + 3 * CHUNK_BYTES + 1)?;
            Hashes::parse_header(&header, prefix)
        };
        assert_eq!(parse(&prefix).unwrap().unwrap().crcs, [0; 4]);
        let text = String::from_utf8(prefix[8..].to_vec()).unwrap();
        let other = text.replace("\"a\":\"b\"", "\"a\":\"c\"");
        let mut changed = prefix[..8].to_vec();
        changed.extend_from_slice(other.as_bytes());
        let error = parse(&changed).unwrap_err();
        assert!(
            error.to_string().contains("header is not as it was written"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn damage_to_either_kind_never_panics(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
            let mut side = hashed(&[7; 1000]).encode_side();
            let index = at.index(side.len());
            side[index] = byte;
            let _ = Hashes::parse_side(&side[..cut.index(side.len() + 1)], 1000);
            let mut prefix = sealed(1000);
            let index = at.index(prefix.len());
            prefix[index] = byte;
            if let Ok(header) = Header::parse(&prefix, prefix.len() as u64 + 1000) {
                let _ = Hashes::parse_header(&header, &prefix);
            }
        }
    }
}
