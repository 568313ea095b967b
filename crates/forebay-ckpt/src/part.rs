//! A part: all that one rank saved, by name and by chunk, with a hash for every piece.
//!
//! ```text
//! PartBuilder: entries, chunks, values --> pages (tree.rs) --> head --> trailer --> one object
//! PartHead::parse <-- the end of the object; pages.rs then fetches what is needed
//! ```
//!
//! Index files share the trailer ([`put_trailer`], [`split_tail`]). This file is pure; the bytes are described in `docs/formats/checkpoint.md`.

use forebay_core::{Error, ErrorKind, Key, Result, Span, crc32c};

use crate::entry::{CHUNK_RECORD_BYTES, ChunkRecord, Content, Entry};
use crate::hash::{Digest, HashKind, sha256};
use crate::names::{Attempt, Form, Piece, WORLD_MAX, piece_key};
use crate::tree::{Kind, NamedBuilder, Root, put_numbered};
use crate::wire::{Cursor, Wire, cursor};

#[cfg(test)]
pub(crate) mod tests;

/// Format that this version writes.
pub const FORMAT: u32 = 1;

/// Longest name of a tensor or value: fits into a page with all else.
pub const NAME_BYTES_MAX: usize = 4096;

/// Most chunks of a part.
pub(crate) const CHUNKS_MAX: u64 = 1 << 40;

/// Most entries of a part.
pub(crate) const ENTRIES_MAX: u64 = 1 << 32;

/// Most bytes of all values of a part.
const VALUES_BYTES_MAX: u64 = 1 << 40;

/// Most payloads that a part names: full saves come every some hundred steps at the latest.
pub(crate) const PAYLOADS_MAX: u64 = 65_536;

/// Most bytes of a head: the payloads it may name, and little else.
pub(crate) const HEAD_BYTES_MAX: u32 = 16 << 20;

/// Most features, and bytes of the name of one.
const FEATURES_MAX: u64 = 64;
const FEATURE_BYTES_MAX: usize = 64;

/// Least and most bytes of a chunk: below, hashes outweigh data; above, one damaged byte costs too much reading, and lengths need 32 bits.
pub const CHUNK_BYTES_MIN: u32 = 4 << 10;
/// See [`CHUNK_BYTES_MIN`].
pub const CHUNK_BYTES_MAX: u32 = 1 << 30;

/// Bytes of a trailer.
pub(crate) const TRAILER_BYTES: usize = 32;

pub(crate) const PAYLOAD_ROW_BYTES: usize = 80;

const PART_MAGIC: &[u8; 8] = b"FBAYPART";
const TRAILER_MAGIC: &[u8; 8] = b"FBAYPEND";

/// Features of checkpoints that this version can read.
pub(crate) const FEATURES_KNOWN: &[&str] = &["aes-256-gcm", "lz4", "opaque", "planes", "zstd"];

/// A payload file that chunks lie in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadRow {
    /// Step it was written for.
    pub step: u64,
    /// Attempt that wrote it.
    pub attempt: Attempt,
    /// Rank that wrote it.
    pub rank: u32,
    /// How it is laid out.
    pub form: Form,
    /// Bytes of the file.
    pub bytes: u64,
    /// Bytes of its header, which no chunk covers.
    pub head_bytes: u64,
    /// SHA-256 of the header.
    pub head_hash: Digest,
}

impl PayloadRow {
    /// Its name.
    pub fn key(&self) -> Key {
        piece_key(self.step, self.attempt, Piece::Payload(self.rank, self.form))
    }

    /// What rows are sorted by; no two payloads have the same.
    pub(crate) fn order(&self) -> (u64, Attempt, u32) {
        (self.step, self.attempt, self.rank)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.step);
        out.extend_from_slice(&self.attempt.0);
        out.put_u32(self.rank);
        out.extend_from_slice(&[u8::from(self.form == Form::Chunks), 0, 0, 0]);
        out.put_u64(self.bytes);
        out.put_u64(self.head_bytes);
        out.extend_from_slice(&self.head_hash);
    }

    pub(crate) fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let (step, attempt, rank) = (cursor.u64()?, Attempt(cursor.array()?), cursor.u32()?);
        let form = if cursor.flag()? {
            Form::Chunks
        } else {
            Form::Safetensors
        };
        cursor.zeros(3)?;
        let row = Self {
            step,
            attempt,
            rank,
            form,
            bytes: cursor.u64()?,
            head_bytes: cursor.u64()?,
            head_hash: cursor.array()?,
        };
        if rank >= WORLD_MAX || row.head_bytes > row.bytes {
            return Err(cursor.corrupt("a payload cannot be as it is described"));
        }
        Ok(row)
    }
}

pub(crate) fn put_features(out: &mut Vec<u8>, features: &[String]) {
    out.put_varint(features.len() as u64);
    for feature in features {
        out.put_text(feature);
    }
}

/// Features; those that this version does not know are refused by name.
pub(crate) fn take_features(cursor: &mut Cursor<'_>) -> Result<Vec<String>> {
    let count = cursor.count(FEATURES_MAX, 1)?;
    let mut features = Vec::with_capacity(count);
    for _ in 0..count {
        let feature = cursor.text(FEATURE_BYTES_MAX)?;
        if !FEATURES_KNOWN.contains(&feature) {
            let message = format!(
                "this checkpoint needs {:?}, which this version cannot read",
                feature.escape_debug().to_string()
            );
            return Err(Error::new(ErrorKind::Unsupported, "read checkpoint", message)
                .with_hint("read it with a version of forebay that can"));
        }
        features.push(feature.to_owned());
    }
    Ok(features)
}

pub(crate) fn take_format(cursor: &mut Cursor<'_>) -> Result<()> {
    let format = cursor.u32()?;
    if format == FORMAT {
        return Ok(());
    }
    let message = format!("this checkpoint has format {format}, and this version reads format {FORMAT}");
    Err(Error::new(ErrorKind::Unsupported, "read checkpoint", message)
        .with_hint("read it with a later version of forebay"))
}

pub(crate) fn check_chunk_bytes(chunk_bytes: u32) -> Result<(), &'static str> {
    let is_good = chunk_bytes.is_power_of_two() && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes);
    if is_good {
        return Ok(());
    }
    Err("bytes of a chunk must be a power of two from 4 KiB to 1 GiB")
}

/// What a part says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartHead {
    /// Step.
    pub step: u64,
    /// Attempt.
    pub attempt: Attempt,
    /// Rank that saved it.
    pub rank: u32,
    /// Ranks of the attempt.
    pub world: u32,
    /// Hash of chunks.
    pub hash: HashKind,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Bytes of all slices.
    pub raw_bytes: u64,
    /// Bytes written into the payload of this attempt.
    pub written_bytes: u64,
    /// What a reader must know.
    pub features: Vec<String>,
    /// Payloads that chunks lie in.
    pub payloads: Vec<PayloadRow>,
    pub(crate) entries: Root,
    pub(crate) chunks: Root,
    pub(crate) values: Root,
    pub(crate) content_ids: Root,
}

impl PartHead {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(PART_MAGIC);
        out.put_u32(FORMAT);
        out.put_u64(self.step);
        out.extend_from_slice(&self.attempt.0);
        out.put_u32(self.rank);
        out.put_u32(self.world);
        out.push(self.hash.number());
        out.put_u32(self.chunk_bytes);
        out.put_u64(self.raw_bytes);
        out.put_u64(self.written_bytes);
        put_features(out, &self.features);
        out.put_varint(self.payloads.len() as u64);
        self.payloads.iter().for_each(|row| row.put(out));
        for root in [&self.entries, &self.chunks, &self.values, &self.content_ids] {
            root.put(out);
        }
    }

    /// From the bytes of a head.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut cursor = cursor(bytes, "head of the part");
        if cursor.array::<8>()? != *PART_MAGIC {
            return Err(cursor.corrupt("this is no part of a checkpoint"));
        }
        take_format(&mut cursor)?;
        let (step, attempt) = (cursor.u64()?, Attempt(cursor.array()?));
        let (rank, world) = (cursor.u32()?, cursor.u32()?);
        if world > WORLD_MAX || rank >= world {
            return Err(cursor.corrupt("the rank is not one of the world"));
        }
        let hash = HashKind::from_number(cursor.u8()?)?;
        let chunk_bytes = cursor.u32()?;
        check_chunk_bytes(chunk_bytes).map_err(|why| cursor.corrupt(why))?;
        let (raw_bytes, written_bytes) = (cursor.u64()?, cursor.u64()?);
        let features = take_features(&mut cursor)?;
        let count = cursor.count(PAYLOADS_MAX, PAYLOAD_ROW_BYTES)?;
        let payloads = (0..count)
            .map(|_| PayloadRow::take(&mut cursor))
            .collect::<Result<_>>()?;
        let head = Self {
            step,
            attempt,
            rank,
            world,
            hash,
            chunk_bytes,
            raw_bytes,
            written_bytes,
            features,
            payloads,
            entries: Root::take(&mut cursor, Kind::Entries, ENTRIES_MAX)?,
            chunks: Root::take(&mut cursor, Kind::Chunks, CHUNKS_MAX)?,
            values: Root::take(&mut cursor, Kind::Values, VALUES_BYTES_MAX)?,
            content_ids: Root::take(&mut cursor, Kind::ContentIds, CHUNKS_MAX)?,
        };
        if head.content_ids.records != 0 && head.content_ids.records != head.chunks.records {
            return Err(cursor.corrupt("there are other content ids than chunks"));
        }
        cursor.finish()?;
        Ok(head)
    }
}

/// Put a head and the trailer that says where it is; gives the head's hash and length.
pub(crate) fn put_trailer(file: &mut Vec<u8>, head: &[u8]) -> (Digest, u32) {
    file.extend_from_slice(head);
    let file_bytes = (file.len() + TRAILER_BYTES) as u64;
    file.extend_from_slice(&trailer(file_bytes, head));
    (sha256(&[head]), head.len() as u32)
}

/// The last bytes of a file of so many bytes with that head.
pub(crate) fn trailer(file_bytes: u64, head: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(TRAILER_BYTES);
    out.put_u64(file_bytes);
    out.put_u32(head.len() as u32);
    out.put_u32(crc32c(head));
    out.put_u32(0);
    out.extend_from_slice(TRAILER_MAGIC);
    let crc = crc32c(&out);
    out.put_u32(crc);
    out
}

/// The head in the last bytes of a file of `size` bytes; `Err` with its length when more bytes are needed to have it.
pub(crate) fn split_tail(tail: &[u8], size: u64) -> Result<Result<&[u8], u32>> {
    let corrupt = |message: &str| Error::new(ErrorKind::Corrupt, "read checkpoint", message);
    let cut_off = || corrupt("this is no part or index of a checkpoint, or one that was cut off");
    let at = tail.len().checked_sub(TRAILER_BYTES).ok_or_else(cut_off)?;
    let (before, trailer) = tail.split_at(at);
    let mut cursor = cursor(trailer, "trailer");
    let (file_bytes, head_bytes, head_crc) = (cursor.u64()?, cursor.u32()?, cursor.u32()?);
    let zero = cursor.u32()?;
    let magic: [u8; 8] = cursor.array()?;
    let crc = cursor.u32()?;
    let covered = trailer.get(..TRAILER_BYTES - 4).unwrap_or_default();
    let is_good = magic == *TRAILER_MAGIC && crc32c(covered) == crc && zero == 0;
    if !is_good || file_bytes != size || head_bytes > HEAD_BYTES_MAX {
        return Err(cut_off());
    }
    if u64::from(head_bytes) + TRAILER_BYTES as u64 > size {
        return Err(corrupt("the trailer says that the head is longer than the file"));
    }
    let Some(start) = before.len().checked_sub(head_bytes as usize) else {
        return Ok(Err(head_bytes));
    };
    let head = before.get(start..).unwrap_or_default();
    if crc32c(head) != head_crc {
        return Err(corrupt("the head is not what was written: its CRC does not hold"));
    }
    Ok(Ok(head))
}

/// Collects what a part is made of.
#[derive(Debug)]
pub(crate) struct PartBuilder {
    pub(crate) head: PartHead,
    entries: Vec<Entry>,
    chunks: Vec<u8>,
    ids: Vec<u8>,
    /// Some chunk is not stored as it is, so contents cannot be told apart by hashes.
    needs_ids: bool,
    values: Vec<u8>,
}

impl PartBuilder {
    pub(crate) fn new(head: PartHead) -> Self {
        Self {
            head,
            entries: Vec::new(),
            chunks: Vec::new(),
            ids: Vec::new(),
            needs_ids: false,
            values: Vec::new(),
        }
    }

    /// The number that the next chunk will have.
    pub(crate) fn next_chunk(&self) -> u64 {
        (self.chunks.len() / CHUNK_RECORD_BYTES) as u64
    }

    /// Keep a chunk and its content id, which is stored where some chunk needs it.
    pub(crate) fn push_chunk(&mut self, chunk: &ChunkRecord, id: &Digest) {
        chunk.put(&mut self.chunks);
        self.ids.extend_from_slice(id);
        self.needs_ids |= !chunk.is_plain();
        for feature in chunk.features() {
            self.need(feature);
        }
    }

    fn need(&mut self, feature: &str) {
        let features = &mut self.head.features;
        if let Err(at) = features.binary_search_by(|known| known.as_str().cmp(feature)) {
            features.insert(at, feature.to_owned());
        }
    }

    /// Keep the bytes of a value.
    pub(crate) fn push_value(&mut self, bytes: &[u8]) -> Result<Span> {
        let span = Span::at(self.values.len() as u64, bytes.len() as u64)?;
        self.values.extend_from_slice(bytes);
        Ok(span)
    }

    pub(crate) fn push_entry(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// The bytes. Refuses entries that a reader would refuse.
    pub(crate) fn finish(mut self) -> Result<Vec<u8>> {
        let refuse = |message: String| Error::new(ErrorKind::InvalidInput, "save", message);
        self.entries.sort_by(|a, b| a.order().cmp(&b.order()));
        for pair in self.entries.windows(2) {
            if let [a, b] = pair
                && a.order() == b.order()
            {
                return Err(refuse(format!("{:?} is there twice", a.name)));
            }
        }
        let has_opaque = self
            .entries
            .iter()
            .any(|entry| matches!(entry.content, Content::Opaque(_)));
        if has_opaque {
            self.need("opaque");
        }
        let mut file = Vec::new();
        let mut tree = NamedBuilder::new(&mut file, Kind::Entries);
        let mut record = Vec::new();
        for entry in &self.entries {
            if entry.name.is_empty() || entry.name.len() > NAME_BYTES_MAX {
                let start: String = entry.name.chars().take(60).collect();
                return Err(refuse(format!("a name must have 1 to 4096 bytes: {start:?}")));
            }
            record.clear();
            entry.put(&mut record);
            tree.push(&entry.name, &record);
        }
        self.head.entries = tree.finish();
        self.head.chunks = put_numbered(&mut file, Kind::Chunks, &self.chunks);
        self.head.values = put_numbered(&mut file, Kind::Values, &self.values);
        if self.needs_ids {
            self.head.content_ids = put_numbered(&mut file, Kind::ContentIds, &self.ids);
        }
        let mut head = Vec::new();
        self.head.put(&mut head);
        if head.len() > HEAD_BYTES_MAX as usize || self.head.payloads.len() as u64 > PAYLOADS_MAX {
            let message = "chunks lie in more payloads than a part can name".to_owned();
            return Err(refuse(message).with_hint("make a full save"));
        }
        put_trailer(&mut file, &head);
        Ok(file)
    }
}
