//! One shard's table as a section of a manifest, and back. The bytes are described in `docs/formats/manifest.md`.

use std::io::Read;

use forebay_core::{ByteSize, Error, ErrorKind, Result, Span, crc32c};

use super::cursor::{Cursor, Planes, cursor, put_planes_u32, put_planes_u64};
use crate::schema::Field;
use crate::table::{FIELDS_MAX, Footer, Group, Groups, Keys, Layout, Samples, Spans, Table, chunks};

/// Longest section, stored or decompressed: room for some twenty million samples with keys and five fields, in memory of the same order.
pub(super) const SECTION_BYTES_MAX: u64 = 2 << 30;

/// A section does not become more than that many times larger, once it is larger than [`RATIO_FREE_BYTES`]. Checksums do not compress, so the
/// only tables that come near are those of thousands of fields that most samples lack.
const RATIO_MAX: u64 = 16_384;

/// Size up to which nobody asks for the ratio.
const RATIO_FREE_BYTES: u64 = 64 << 20;

/// Level of zstd: higher ones gain a few per cent for several times the time.
const ZSTD_LEVEL: i32 = 3;

const LAYOUT_SAMPLES: u8 = 0;
const LAYOUT_GROUPS: u8 = 1;

/// Bytes of one group.
const GROUP_BYTES: usize = 24;

/// Where a section lies and what it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) span: Span,
    pub(super) raw_bytes: u32,
    pub(super) crc: u32,
}

impl Section {
    /// Refuse what no writer makes.
    pub(super) fn check(&self) -> Result<()> {
        let (stored, raw) = (self.span.len(), u64::from(self.raw_bytes));
        let by_ratio = stored.saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES);
        if stored <= SECTION_BYTES_MAX && raw <= SECTION_BYTES_MAX.min(by_ratio) {
            return Ok(());
        }
        let message = format!("a section of {} that becomes {}", ByteSize(stored), ByteSize(raw));
        Err(Error::new(ErrorKind::LimitExceeded, "read manifest", message))
    }
}

/// A table as it is stored; where it will lie is the caller's to say.
pub(super) fn encode(table: &Table) -> Result<(Vec<u8>, Section)> {
    let raw = encode_raw(table)?;
    let refuse = || {
        let message = format!("the table of one shard takes {}", ByteSize(raw.len() as u64));
        Error::new(ErrorKind::LimitExceeded, "write manifest", message)
            .with_hint("make shards of fewer samples: forebay pack writes them in the size you ask for")
    };
    let raw_bytes = u32::try_from(raw.len()).map_err(|_| refuse())?;
    let stored = zstd::encode_all(&raw[..], ZSTD_LEVEL).map_err(|error| {
        Error::new(ErrorKind::Internal, "write manifest", "zstd failed").with_source(error)
    })?;
    let section = Section {
        span: Span::first(stored.len() as u64),
        raw_bytes,
        crc: crc32c(&stored),
    };
    section.check().map_err(|_| refuse())?;
    Ok((stored, section))
}

fn encode_raw(table: &Table) -> Result<Vec<u8>> {
    let fields = serde_json::to_vec(&table.fields).map_err(|error| {
        Error::new(ErrorKind::Internal, "write manifest", "fields are no JSON").with_source(error)
    })?;
    let mut raw = Vec::new();
    raw.push(match table.layout {
        Layout::Samples(_) => LAYOUT_SAMPLES,
        Layout::Groups(_) => LAYOUT_GROUPS,
    });
    put_len(&mut raw, fields.len())?;
    raw.extend(fields);
    match &table.layout {
        Layout::Samples(samples) => {
            put_len(&mut raw, samples.len())?;
            put_samples(&mut raw, samples)?;
        }
        Layout::Groups(groups) => {
            put_len(&mut raw, groups.list.len())?;
            put_groups(&mut raw, groups);
        }
    }
    Ok(raw)
}

fn put_len(raw: &mut Vec<u8>, len: usize) -> Result<()> {
    let len = u32::try_from(len).map_err(|_| {
        Error::new(
            ErrorKind::LimitExceeded,
            "write manifest",
            "a table is too large for a manifest",
        )
    })?;
    raw.extend(len.to_le_bytes());
    Ok(())
}

fn put_groups(raw: &mut Vec<u8>, groups: &Groups) {
    let Footer { extent, crc } = groups.footer;
    raw.extend(extent.start().to_le_bytes());
    raw.extend(extent.len().to_le_bytes());
    raw.extend(crc.to_le_bytes());
    for group in &groups.list {
        raw.extend(group.extent.start().to_le_bytes());
        raw.extend(group.extent.len().to_le_bytes());
        raw.extend(group.samples.to_le_bytes());
    }
    put_planes_u32(raw, &groups.chunk_crcs.iter().copied());
}

fn put_samples(raw: &mut Vec<u8>, samples: &Samples) -> Result<()> {
    let mut gaps = Vec::with_capacity(samples.len());
    let mut end = 0;
    for index in 0..samples.len() {
        let extent = samples.extent(index).filter(|extent| extent.start() >= end);
        let Some(extent) = extent else {
            let message = "samples of a table overlap or are out of order";
            return Err(Error::new(ErrorKind::Internal, "write manifest", message));
        };
        gaps.push(extent.start() - end);
        end = extent.end();
    }
    put_planes_u64(raw, &gaps.iter().copied());
    put_planes_u32(raw, &samples.lens.iter().copied());
    put_planes_u32(raw, &samples.crcs.iter().copied());
    match &samples.keys {
        Keys::Numbered => raw.push(0),
        Keys::Named { text, ends } => {
            raw.push(1);
            let starts = std::iter::once(0).chain(ends.iter().copied());
            put_planes_u32(raw, &ends.iter().zip(starts).map(|(end, start)| end - start));
            raw.extend(text.as_bytes());
        }
    }
    for column in &samples.columns {
        let (starts, lens) = column.parts();
        put_planes_u32(raw, &starts.iter().copied());
        put_planes_u32(raw, &lens.iter().copied());
    }
    Ok(())
}

/// The table in a section's bytes. Whether it fits its shard is the caller's to check.
pub(super) fn decode(stored: &[u8], section: &Section) -> Result<Table> {
    section.check()?;
    if stored.len() as u64 != section.span.len() || crc32c(stored) != section.crc {
        return Err(corrupt("a section does not have the checksum of the directory"));
    }
    decode_raw(&decompress(stored, section.raw_bytes)?)
}

fn decompress(stored: &[u8], raw_bytes: u32) -> Result<Vec<u8>> {
    let bad = |error| corrupt("a section does not decompress").with_source(error);
    let decoder = zstd::stream::read::Decoder::with_buffer(stored).map_err(bad)?;
    let mut raw = Vec::new();
    decoder
        .take(u64::from(raw_bytes) + 1)
        .read_to_end(&mut raw)
        .map_err(bad)?;
    if raw.len() as u64 == u64::from(raw_bytes) {
        return Ok(raw);
    }
    Err(corrupt("a section has another length than the directory says"))
}

/// From decompressed bytes.
pub(super) fn decode_raw(raw: &[u8]) -> Result<Table> {
    let mut cursor = cursor(raw, "section");
    let layout = cursor.u8()?;
    let fields_len = cursor.u32()? as usize;
    let fields: Vec<Field> = serde_json::from_slice(cursor.take(fields_len)?)
        .map_err(|error| corrupt("the fields of a shard cannot be read").with_source(error))?;
    if fields.len() > FIELDS_MAX {
        return Err(corrupt("more fields than a shard may have"));
    }
    let count = cursor.u32()? as usize;
    let layout = match layout {
        LAYOUT_SAMPLES => Layout::Samples(read_samples(&mut cursor, count, fields.len())?),
        LAYOUT_GROUPS => Layout::Groups(read_groups(&mut cursor, count, fields.len())?),
        _ => return Err(corrupt("a section of an unknown layout")),
    };
    cursor.finish()?;
    Ok(Table { fields, layout })
}

fn read_samples(cursor: &mut Cursor<'_>, count: usize, fields: usize) -> Result<Samples> {
    let mut starts = cursor.planes_u64(count)?;
    let lens = cursor.planes_u32(count)?;
    let crcs = cursor.planes_u32(count)?;
    let mut end = 0u64;
    for (start, len) in starts.iter_mut().zip(&lens) {
        let at = end.checked_add(*start);
        let (Some(at), Some(next)) = (at, at.and_then(|at| at.checked_add(u64::from(*len)))) else {
            return Err(cursor.corrupt("a sample ends beyond every shard"));
        };
        (*start, end) = (at, next);
    }
    let keys = match cursor.u8()? {
        0 => Keys::Numbered,
        1 => read_keys(cursor, count)?,
        _ => return Err(cursor.corrupt("neither keys nor none")),
    };
    let mut columns = Vec::with_capacity(fields);
    for _ in 0..fields {
        let starts = cursor.planes_u32(count)?;
        let lens = cursor.planes_u32(count)?;
        columns.push(Spans::from_parts(starts, lens)?);
    }
    Ok(Samples {
        starts,
        lens,
        crcs,
        keys,
        columns,
    })
}

fn read_keys(cursor: &mut Cursor<'_>, count: usize) -> Result<Keys> {
    let mut ends = cursor.planes_u32(count)?;
    let mut end = 0u32;
    for len in &mut ends {
        let Some(next) = end.checked_add(*len) else {
            return Err(cursor.corrupt("the keys are longer than any section"));
        };
        (*len, end) = (next, next);
    }
    let text = cursor.text_of(end as usize)?.to_owned();
    Ok(Keys::Named { text, ends })
}

fn read_groups(cursor: &mut Cursor<'_>, count: usize, fields: usize) -> Result<Groups> {
    let footer = Footer {
        extent: read_span(cursor, "the footer ends beyond every shard")?,
        crc: cursor.u32()?,
    };
    let chunks = chunks(count, fields)?;
    let expected = count
        .checked_mul(GROUP_BYTES)
        .and_then(|bytes| bytes.checked_add(chunks.checked_mul(size_of::<u32>())?));
    if expected != Some(cursor.left()) {
        return Err(cursor.corrupt("another number of groups or chunks than it says"));
    }
    let mut list = Vec::with_capacity(count);
    let mut samples_all = 0u64;
    for _ in 0..count {
        let extent = read_span(cursor, "a group ends beyond every shard")?;
        let samples = cursor.u64()?;
        samples_all = samples_all
            .checked_add(samples)
            .ok_or_else(|| cursor.corrupt("more samples than can be counted"))?;
        list.push(Group { extent, samples });
    }
    Ok(Groups {
        footer,
        list,
        chunk_crcs: cursor.planes_u32(chunks)?,
    })
}

fn read_span(cursor: &mut Cursor<'_>, beyond: &str) -> Result<Span> {
    let (start, len) = (cursor.u64()?, cursor.u64()?);
    Span::at(start, len).map_err(|error| cursor.corrupt(beyond).with_source(error))
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read manifest", message)
}
