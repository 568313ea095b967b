//! The bytes of a cache directory, as specified in `docs/formats/cache.md`: names, headers, records, the marker. Pure.
//!
//! An [`Identity`] says which version of which object an entry is of. From it follow the entry's [`Name`], its header and the seal that
//! binds every record to it. Decoding never trusts a length or a count before its checksum was compared.

use std::fmt;
use std::path::{Path, PathBuf};

use forebay_core::{Crc32c, Span, crc32c};
use ring::digest::{Context as Sha, SHA256};

/// Version of the format.
const FORMAT: u32 = 1;

const INDEX_MAGIC: [u8; 8] = *b"FBAYCIDX";
const MARKER_MAGIC: [u8; 8] = *b"FBAYCDIR";

/// Bytes of a header before its strings.
const FIXED_BYTES: usize = 64;

/// Headers are multiples of this, so that records are aligned to their size and never lie across a sector.
const HEADER_STEP: usize = 64;

/// Longest header that is written or believed: a path and a key of the longest kind and a version of 8 KiB.
pub(super) const HEADER_BYTES_MAX: usize = 16 << 10;

/// Bytes of one record.
pub(super) const RECORD_BYTES: u64 = 16;

const PRESENT: u32 = 1;
const VERIFIED: u32 = 2;

/// Name of the marker in the root.
pub(super) const MARKER_NAME: &str = "forebay-cache";

/// Bytes of the marker's fixed part; the usage slot follows.
pub(super) const MARKER_BYTES: usize = 64;

/// Bytes of the usage slot.
pub(super) const SLOT_BYTES: usize = 32;

/// Which version of which object, at which block size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    /// Which store the origin is: [`Store::identity`](crate::Store::identity).
    pub(super) location: String,
    /// Name in the origin.
    pub(super) key: String,
    /// Version, where the origin gives one.
    pub(super) version: Option<String>,
    /// Size of the object.
    pub(super) size: u64,
    /// Size of a block.
    pub(super) block_bytes: u64,
}

/// Binds records to their entry.
pub(super) type Seal = [u8; 16];

impl Identity {
    /// The digest that every record's checksum takes in.
    pub(super) fn seal(&self) -> Seal {
        first_bytes(&digest(&[
            self.location.as_bytes(),
            self.key.as_bytes(),
            &u64::from(self.version.is_some()).to_le_bytes(),
            self.version.as_deref().unwrap_or_default().as_bytes(),
            &self.size.to_le_bytes(),
            &self.block_bytes.to_le_bytes(),
        ]))
    }

    /// The entry's name.
    pub(super) fn name(&self) -> Name {
        Name::of(
            &self.location,
            &self.key,
            self.version.as_deref(),
            self.block_bytes,
        )
    }

    /// How many blocks there are.
    pub(super) fn blocks(&self) -> u64 {
        self.size.div_ceil(self.block_bytes)
    }

    /// The bytes of block `block`; empty beyond the last.
    pub(super) fn block_span(&self, block: u64) -> Span {
        let start = block.saturating_mul(self.block_bytes).min(self.size);
        let len = (self.size - start).min(self.block_bytes);
        Span::at(start, len).unwrap_or(Span::first(0))
    }

    /// The header, or `None` when the names in it are too long to be cached.
    pub(super) fn header(&self) -> Option<Vec<u8>> {
        let version = self.version.as_deref().unwrap_or_default();
        let strings = [self.location.as_str(), self.key.as_str(), version];
        let used = FIXED_BYTES + strings.iter().map(|text| text.len()).sum::<usize>() + 4;
        let len = used.next_multiple_of(HEADER_STEP);
        if len > HEADER_BYTES_MAX {
            return None;
        }
        let mut bytes = Vec::with_capacity(len);
        bytes.extend_from_slice(&INDEX_MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.block_bytes.to_le_bytes());
        for text in strings {
            bytes.extend_from_slice(&(text.len() as u32).to_le_bytes());
        }
        bytes.extend_from_slice(&u32::from(self.version.is_some()).to_le_bytes());
        bytes.extend_from_slice(&self.seal());
        for text in strings {
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.resize(len - 4, 0);
        let crc = crc32c(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        Some(bytes)
    }

    /// The identity in a header at the front of `bytes`, and the header's length; `None` when it is not valid.
    pub(super) fn parse(bytes: &[u8]) -> Option<(Self, u64)> {
        let len = u32_at(bytes, 12)? as usize;
        let header = bytes.get(..len)?;
        if header.get(..8)? != INDEX_MAGIC || u32_at(header, 8)? != FORMAT || len < FIXED_BYTES + 4 {
            return None;
        }
        if u32_at(header, len - 4)? != crc32c(&header[..len - 4]) {
            return None;
        }
        let mut at = FIXED_BYTES;
        let mut text = |field: usize| -> Option<String> {
            let len = u32_at(header, field)? as usize;
            let bytes = header.get(at..at.checked_add(len)?)?;
            at += len;
            String::from_utf8(bytes.to_vec()).ok()
        };
        let (location, key, version) = (text(32)?, text(36)?, text(40)?);
        let identity = Self {
            location,
            key,
            version: (u32_at(header, 44)? == 1).then_some(version),
            size: u64_at(header, 16)?,
            block_bytes: u64_at(header, 24)?,
        };
        let sealed = header.get(48..64)? == identity.seal();
        (sealed && identity.block_bytes > 0).then_some((identity, len as u64))
    }
}

/// The name of an entry: digest of location and key, digest of version and block size.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    key: [u8; 16],
    version: [u8; 8],
}

/// Which of an entry's two files a name in the directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Header and records.
    Index,
    /// The object's bytes.
    Data,
}

impl Name {
    /// The name for that version of that object at that block size.
    pub(super) fn of(location: &str, key: &str, version: Option<&str>, block_bytes: u64) -> Self {
        let version = digest(&[
            &u64::from(version.is_some()).to_le_bytes(),
            version.unwrap_or_default().as_bytes(),
            &block_bytes.to_le_bytes(),
        ]);
        Self {
            key: key_digest(location, key),
            version: first_bytes(&version),
        }
    }

    /// The first and the last name an entry of that object can have.
    pub(super) fn range_of(location: &str, key: &str) -> (Self, Self) {
        let key = key_digest(location, key);
        let with = |version| Self { key, version };
        (with([0; 8]), with([0xff; 8]))
    }

    /// True when both are entries of the same object.
    pub(super) fn same_object(&self, other: &Self) -> bool {
        self.key == other.key
    }

    /// The directory below the root it lies in.
    pub(super) fn dir(&self) -> String {
        format!("{:02x}", self.key[0])
    }

    /// Path of one of its files.
    pub(super) fn path(&self, root: &Path, part: Part) -> PathBuf {
        let suffix = match part {
            Part::Index => "index",
            Part::Data => "data",
        };
        root.join(self.dir()).join(format!("{self:?}.{suffix}"))
    }

    /// Read a file name back; `None` for everything that is not exactly one of ours.
    pub(super) fn parse(dir: &str, file: &str) -> Option<(Self, Part)> {
        let (stem, suffix) = file.split_once('.')?;
        let part = match suffix {
            "index" => Part::Index,
            "data" => Part::Data,
            _ => return None,
        };
        let (key, version) = stem.split_once('-')?;
        let name = Self {
            key: unhex(key)?,
            version: unhex(version)?,
        };
        (name.dir() == dir).then_some((name, part))
    }
}

/// `<key digest>-<version digest>` in hex.
impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.key {
            write!(f, "{byte:02x}")?;
        }
        f.write_str("-")?;
        for byte in self.version {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// What a record says of a block that is present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Present {
    /// CRC-32C of its bytes.
    pub(super) crc: u32,
    /// The origin's read counted it as verified; the checksum alone only shows that it is what was fetched.
    pub(super) verified: bool,
}

/// The record of a block that is present.
pub(super) fn record(seal: &Seal, block: u64, len: u32, present: Present) -> [u8; RECORD_BYTES as usize] {
    let state = if present.verified { VERIFIED } else { PRESENT };
    let mut bytes = [0; RECORD_BYTES as usize];
    bytes[..4].copy_from_slice(&state.to_le_bytes());
    bytes[4..8].copy_from_slice(&present.crc.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    let own = record_crc(seal, block, &bytes[..12]);
    bytes[12..].copy_from_slice(&own.to_le_bytes());
    bytes
}

/// What is known of block `block`, when `bytes` is a valid record that says it is present with `len` bytes.
pub(super) fn parse_record(seal: &Seal, block: u64, len: u32, bytes: &[u8]) -> Option<Present> {
    let own = record_crc(seal, block, bytes.get(..12)?);
    let verified = match u32_at(bytes, 0)? {
        PRESENT => false,
        VERIFIED => true,
        _ => return None,
    };
    let valid = u32_at(bytes, 8)? == len && u32_at(bytes, 12)? == own;
    let crc = u32_at(bytes, 4)?;
    valid.then_some(Present { crc, verified })
}

fn record_crc(seal: &Seal, block: u64, front: &[u8]) -> u32 {
    let mut crc = Crc32c::default();
    crc.update(seal);
    crc.update(&block.to_le_bytes());
    crc.update(front);
    crc.value()
}

/// What a marker's fixed part says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    /// This format.
    Ours,
    /// A valid marker of a format this version does not know.
    Foreign(u32),
    /// Not valid: new, or half written.
    Broken,
}

/// The fixed part of a marker.
pub(super) fn marker() -> [u8; MARKER_BYTES] {
    let mut bytes = [0; MARKER_BYTES];
    bytes[..8].copy_from_slice(&MARKER_MAGIC);
    bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    close(&mut bytes);
    bytes
}

/// Read the fixed part of a marker.
pub(super) fn parse_marker(bytes: &[u8]) -> Marker {
    let Some(bytes) = bytes.get(..MARKER_BYTES) else {
        return Marker::Broken;
    };
    if !bytes.starts_with(&MARKER_MAGIC) || !is_closed(bytes) {
        return Marker::Broken;
    }
    match u32_at(bytes, 8) {
        Some(FORMAT) => Marker::Ours,
        Some(format) => Marker::Foreign(format),
        None => Marker::Broken,
    }
}

/// What all processes of a node know of a cache directory together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Usage {
    /// Bytes the entries take, reserved ones included.
    pub(super) bytes: u64,
    /// How many times entries have been removed.
    pub(super) generation: u64,
}

impl Usage {
    /// As a slot of the marker.
    pub(super) fn encode(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.generation.to_le_bytes());
        close(&mut bytes);
        bytes
    }

    /// From a slot; `None` when it is not valid.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..SLOT_BYTES).filter(|bytes| is_closed(bytes))?;
        Some(Self {
            bytes: u64_at(bytes, 0)?,
            generation: u64_at(bytes, 8)?,
        })
    }
}

/// For the fuzz target: every parser, on the bytes as they are and with the checksums put right, without which nothing gets far.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    let mut header = bytes.to_vec();
    if header.len() >= FIXED_BYTES + 4 {
        let len = header.len();
        header[..8].copy_from_slice(&INDEX_MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        close(&mut header);
    }
    for bytes in [bytes, &header] {
        if let Some((identity, _)) = Identity::parse(bytes) {
            let again = identity.header().map(|header| Identity::parse(&header));
            assert!(again.is_none_or(|again| again.is_some_and(|(again, _)| again == identity)));
        }
        parse_marker(bytes);
        Usage::parse(bytes);
        parse_record(&first_bytes(bytes), 0, 4096, bytes);
    }
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Some((dir, file)) = text.split_once('/')
        && let Some((name, part)) = Name::parse(dir, file)
    {
        assert!(name.path(Path::new(""), part) == Path::new(text));
    }
}

/// Put the checksum of everything before them into the last four bytes.
fn close(bytes: &mut [u8]) {
    let (front, last) = bytes.split_at_mut(bytes.len() - 4);
    last.copy_from_slice(&crc32c(front).to_le_bytes());
}

fn is_closed(bytes: &[u8]) -> bool {
    let front = bytes.len() - 4;
    u32_at(bytes, front) == Some(crc32c(&bytes[..front]))
}

fn digest(fields: &[&[u8]]) -> [u8; 32] {
    let mut sha = Sha::new(&SHA256);
    for field in fields {
        sha.update(&(field.len() as u64).to_le_bytes());
        sha.update(field);
    }
    first_bytes(sha.finish().as_ref())
}

fn key_digest(location: &str, key: &str) -> [u8; 16] {
    first_bytes(&digest(&[location.as_bytes(), key.as_bytes()]))
}

fn first_bytes<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut first = [0; N];
    for (to, from) in first.iter_mut().zip(bytes) {
        *to = *from;
    }
    first
}

fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    if text.len() != 2 * N || !text.bytes().all(lower) {
        return None;
    }
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
