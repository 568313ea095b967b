//! The manifest of a step: small, whole, and the only thing whose publication makes a checkpoint.
//!
//! It holds the hash of every part, so the hash of its body (the *root*) covers the whole checkpoint. Key slots and signatures lie outside of the body, so
//! that wrapping a key anew or signing changes neither root nor data. This file is pure; the bytes are described in `docs/formats/checkpoint.md`.

use std::time::Duration;

use forebay_core::{Error, ErrorKind, Result, crc32c};

use crate::hash::{Digest, HashKind, sha256};
use crate::names::{Attempt, WORLD_MAX};
use crate::part::{FORMAT, HEAD_BYTES_MAX};
use crate::part::{
    PAYLOAD_ROW_BYTES, PayloadRow, check_chunk_bytes, put_features, take_features, take_format,
};
use crate::value::Value;
use crate::wire::{Cursor, Wire, cursor};

#[cfg(test)]
mod tests;

/// Most bytes of a body: rows for all ranks of the largest world, and payloads of several steps for each.
pub(crate) const BODY_BYTES_MAX: u32 = 256 << 20;

/// Most bytes of key slots and of signatures: each takes some hundred.
const SLOTS_BYTES_MAX: u32 = 1 << 20;

/// Most bytes of metadata: every listing reads them.
pub const METADATA_BYTES_MAX: usize = 1 << 20;

/// Most payloads over all parts: what a body has room for.
const PAYLOADS_MAX: u64 = BODY_BYTES_MAX as u64 / PAYLOAD_ROW_BYTES as u64;

/// Most bytes of a manifest.
pub(crate) const MANIFEST_BYTES_MAX: u64 =
    PRELUDE_BYTES as u64 + BODY_BYTES_MAX as u64 + 2 * SLOTS_BYTES_MAX as u64 + 4;

const MAGIC: &[u8; 8] = b"FBAYCKPT";
const PRELUDE_BYTES: usize = 64;

/// Bytes of the row of a part.
const PART_ROW_BYTES: usize = 44;

/// How a checkpoint was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Publish {
    /// Only where the step has no checkpoint: of two writers, one wins. Needs a store whose probe has shown that.
    #[default]
    IfAbsent,
    /// Replacing the checkpoint that the step may have, at once.
    Replace,
    /// After a look that there is none, on a store that cannot do better: the caller promises to be the only writer.
    SingleWriter,
}

impl Publish {
    const ALL: [(Self, &'static str); 3] = [
        (Self::IfAbsent, "put-if-absent"),
        (Self::Replace, "replaced"),
        (Self::SingleWriter, "single writer"),
    ];

    /// In words, for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::IfAbsent => "put-if-absent",
            Self::Replace => "replaced",
            Self::SingleWriter => "single writer",
        }
    }
}

/// The checkpoint that an incremental one was compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BaseRow {
    /// Its step.
    pub step: u64,
    /// Its attempt.
    pub attempt: Attempt,
    /// Incremental saves since the last full one, this one included.
    pub chain: u32,
}

/// A part or index, as a manifest names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRow {
    /// Bytes of the object.
    pub bytes: u64,
    /// Bytes of its head.
    pub head_bytes: u32,
    /// SHA-256 of the head.
    pub hash: Digest,
}

impl FileRow {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.bytes);
        out.put_u32(self.head_bytes);
        out.extend_from_slice(&self.hash);
    }

    fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        let row = Self {
            bytes: cursor.u64()?,
            head_bytes: cursor.u32()?,
            hash: cursor.array()?,
        };
        if row.head_bytes > HEAD_BYTES_MAX || u64::from(row.head_bytes) > row.bytes {
            return Err(cursor.corrupt("a part has a head that does not fit"));
        }
        Ok(row)
    }
}

/// What makes a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    /// What a reader must know.
    pub features: Vec<String>,
    /// Step.
    pub step: u64,
    /// Attempt.
    pub attempt: Attempt,
    /// Time of the commit since 1970.
    pub committed: Duration,
    /// Hash of chunks.
    pub hash: HashKind,
    /// How it was published.
    pub publish: Publish,
    /// Bytes of a chunk.
    pub chunk_bytes: u32,
    /// Entries of all parts.
    pub entries: u64,
    /// Chunks of all parts.
    pub chunks: u64,
    /// Bytes of all slices.
    pub raw_bytes: u64,
    /// Bytes that this attempt wrote into payloads.
    pub written_bytes: u64,
    /// For incremental saves, what it was compared with.
    pub base: Option<BaseRow>,
    /// What the caller gave: a dict with texts for keys.
    pub metadata: Value,
    /// For each rank, its part.
    pub parts: Vec<FileRow>,
    /// The index over all parts.
    pub index: Option<FileRow>,
    /// All payloads that parts name, in order.
    pub payloads: Vec<PayloadRow>,
    /// Key slots as they are stored.
    pub slots: Vec<u8>,
    /// Signatures as they are stored.
    pub signatures: Vec<u8>,
}

impl Manifest {
    /// Ranks that saved it.
    pub fn world(&self) -> u32 {
        self.parts.len() as u32
    }

    /// True when chunks are sealed.
    pub fn is_sealed(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The bytes of an object. Refuses what a reader would refuse.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let body = self.body()?;
        let mut out = MAGIC.to_vec();
        out.put_u32(FORMAT);
        for part in [&body, &self.slots, &self.signatures] {
            out.put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
        }
        out.extend_from_slice(&sha256(&[&body]));
        out.put_u32(0);
        let crc = crc32c(&out);
        out.put_u32(crc);
        for part in [&body, &self.slots, &self.signatures] {
            out.extend_from_slice(part);
        }
        let crc = crc32c(&out);
        out.put_u32(crc);
        // The reader is the judge of every bound.
        Self::decode(&out).map_err(|error| {
            Error::new(
                ErrorKind::InvalidInput,
                "save",
                "this checkpoint cannot be described",
            )
            .with_source(error)
        })?;
        Ok(out)
    }

    /// SHA-256 of the body: covers every byte of the checkpoint.
    pub fn root(&self) -> Result<Digest> {
        Ok(sha256(&[&self.body()?]))
    }

    pub(crate) fn body(&self) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        put_features(&mut out, &self.features);
        out.put_u64(self.step);
        out.extend_from_slice(&self.attempt.0);
        out.put_u64(u64::try_from(self.committed.as_nanos()).unwrap_or(u64::MAX));
        out.put_u32(self.world());
        out.extend_from_slice(&[self.hash.number(), self.publish as u8]);
        out.put_u32(self.chunk_bytes);
        for number in [self.entries, self.chunks, self.raw_bytes, self.written_bytes] {
            out.put_u64(number);
        }
        out.push(u8::from(self.base.is_some()));
        if let Some(base) = &self.base {
            out.put_u64(base.step);
            out.extend_from_slice(&base.attempt.0);
            out.put_u32(base.chain);
        }
        out.put_blob(&self.metadata.encode()?);
        self.parts.iter().for_each(|row| row.put(&mut out));
        out.push(u8::from(self.index.is_some()));
        if let Some(index) = &self.index {
            index.put(&mut out);
        }
        out.put_varint(self.payloads.len() as u64);
        self.payloads.iter().for_each(|row| row.put(&mut out));
        Ok(out)
    }

    /// From the bytes of an object.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut cursor = cursor(bytes, "manifest");
        if cursor.array::<8>()? != *MAGIC {
            return Err(cursor.corrupt("this is no manifest of a checkpoint"));
        }
        take_format(&mut cursor)?;
        let (body_bytes, slot_bytes, signature_bytes) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
        let root: Digest = cursor.array()?;
        cursor.zeros(4)?;
        let prelude_crc = crc32c(bytes.get(..cursor.at()).unwrap_or_default());
        if cursor.u32()? != prelude_crc {
            return Err(cursor.corrupt("the beginning is not what was written: its CRC does not hold"));
        }
        if body_bytes > BODY_BYTES_MAX || slot_bytes > SLOTS_BYTES_MAX || signature_bytes > SLOTS_BYTES_MAX {
            return Err(cursor.corrupt("it says that it is longer than manifests are"));
        }
        let body = cursor.take(body_bytes as usize)?;
        let slots = cursor.take(slot_bytes as usize)?.to_vec();
        let signatures = cursor.take(signature_bytes as usize)?.to_vec();
        let crc = crc32c(bytes.get(..cursor.at()).unwrap_or_default());
        if cursor.u32()? != crc {
            return Err(cursor.corrupt("it is not what was written: its CRC does not hold"));
        }
        cursor.finish()?;
        if sha256(&[body]) != root {
            let error = crate::wire::cursor(body, "manifest").corrupt("the body is not what was written");
            return Err(error);
        }
        let mut manifest = Self::take_body(body)?;
        (manifest.slots, manifest.signatures) = (slots, signatures);
        Ok(manifest)
    }

    pub(crate) fn take_body(body: &[u8]) -> Result<Self> {
        let mut cursor = cursor(body, "manifest's body");
        let features = take_features(&mut cursor)?;
        let (step, attempt) = (cursor.u64()?, Attempt(cursor.array()?));
        let committed = Duration::from_nanos(cursor.u64()?);
        let world = cursor.u32()?;
        if world == 0 || world > WORLD_MAX {
            return Err(cursor.corrupt("it has an impossible number of ranks"));
        }
        let hash = HashKind::from_number(cursor.u8()?)?;
        let way = usize::from(cursor.u8()?);
        let Some((publish, _)) = Publish::ALL.get(way).copied() else {
            return Err(cursor.corrupt("it was published in a way that is not known"));
        };
        let chunk_bytes = cursor.u32()?;
        check_chunk_bytes(chunk_bytes).map_err(|why| cursor.corrupt(why))?;
        let (entries, chunks) = (cursor.u64()?, cursor.u64()?);
        let (raw_bytes, written_bytes) = (cursor.u64()?, cursor.u64()?);
        let base = if cursor.flag()? {
            Some(take_base(&mut cursor, step, attempt)?)
        } else {
            None
        };
        let metadata = take_metadata(&mut cursor)?;
        if cursor.left() / PART_ROW_BYTES < world as usize {
            return Err(cursor.corrupt("it ends too early"));
        }
        let parts = (0..world)
            .map(|_| FileRow::take(&mut cursor))
            .collect::<Result<_>>()?;
        let index = if cursor.flag()? {
            Some(FileRow::take(&mut cursor)?)
        } else {
            None
        };
        let payloads = take_payloads(&mut cursor)?;
        cursor.finish()?;
        Ok(Self {
            features,
            step,
            attempt,
            committed,
            hash,
            publish,
            chunk_bytes,
            entries,
            chunks,
            raw_bytes,
            written_bytes,
            base,
            metadata,
            parts,
            index,
            payloads,
            slots: Vec::new(),
            signatures: Vec::new(),
        })
    }

    /// True when that payload is among those that gc keeps for this checkpoint.
    pub(crate) fn names(&self, payload: &PayloadRow) -> bool {
        let found = self
            .payloads
            .binary_search_by(|row| row.order().cmp(&payload.order()));
        found.is_ok_and(|at| self.payloads.get(at) == Some(payload))
    }
}

fn take_base(cursor: &mut Cursor<'_>, step: u64, attempt: Attempt) -> Result<BaseRow> {
    let base = BaseRow {
        step: cursor.u64()?,
        attempt: Attempt(cursor.array()?),
        chain: cursor.u32()?,
    };
    if (base.step, base.attempt) == (step, attempt) {
        return Err(cursor.corrupt("it was compared with itself"));
    }
    Ok(base)
}

fn take_metadata(cursor: &mut Cursor<'_>) -> Result<Value> {
    let metadata = Value::decode(cursor.blob(METADATA_BYTES_MAX)?)?;
    let is_good = match &metadata {
        Value::Dict(pairs) => pairs.iter().all(|(key, _)| matches!(key, Value::Text(_))),
        _ => false,
    };
    if is_good {
        return Ok(metadata);
    }
    Err(cursor.corrupt("metadata are no dict with texts for keys"))
}

fn take_payloads(cursor: &mut Cursor<'_>) -> Result<Vec<PayloadRow>> {
    let count = cursor.count(PAYLOADS_MAX, PAYLOAD_ROW_BYTES)?;
    let mut payloads: Vec<PayloadRow> = Vec::with_capacity(count);
    for _ in 0..count {
        let row = PayloadRow::take(cursor)?;
        if payloads.last().is_some_and(|last| last.order() >= row.order()) {
            return Err(cursor.corrupt("payloads do not ascend"));
        }
        payloads.push(row);
    }
    Ok(payloads)
}
