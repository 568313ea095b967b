//! A look at the pages of a column chunk before anything is decoded.
//!
//! The Parquet library allocates by what page headers claim, and inflates without a bound. So the headers are walked first: what they claim
//! must fit the chunk, the limits and the footer, and the values of a dictionary its bytes (`held.rs`, which knows their type, asks again). What is found out (which encodings there are, how large everything becomes) decides
//! how the column is decoded.

use std::io::{self, Read};
use std::ops::Range;

use forebay_core::{ByteSize, Error, ErrorKind, Result};
use parquet::basic::Compression;

use super::OP;
use super::known;
use super::thrift::{I32, Reader, STRUCT};
use crate::codec::{RATIO_FREE_BYTES, RATIO_MAX};

/// A page is at most that large before compression. Writers make pages of about 1 MiB; one value, an image or a clip, may need more.
pub const PAGE_BYTES_MAX: u64 = 512 << 20;

/// Up to that size nobody asks how much a page was compressed.
const PAGE_FREE_BYTES: u64 = 64 << 20;

/// Inflate gives at most that many bytes for each it reads.
const GZIP_RATIO_MAX: u64 = 1032;

/// LZ4 gives at most that many.
const LZ4_RATIO_MAX: u64 = 255;

/// Numbers of encodings in page headers.
const PLAIN: i32 = 0;
const PLAIN_DICTIONARY: i32 = 2;
const RLE_DICTIONARY: i32 = 8;
const RLE: i32 = 3;
const DELTA_LENGTH: i32 = 6;
const DELTA_BYTE_ARRAY: i32 = 7;

/// What the headers of a chunk's pages say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pages {
    /// Values of all data pages, nulls included.
    pub(super) values: u64,
    /// Bytes of all pages before compression.
    pub(super) raw_bytes: u64,
    /// Some values are numbers of dictionary entries: many can stand for one.
    pub(super) has_dictionary: bool,
    /// Some values are given by what they differ in from others.
    pub(super) has_deltas: bool,
    /// No more than so many bytes are what values become that repeat the beginning of the one before.
    pub(super) repeated_bytes_max: u64,
    /// The pages whose values stand there as they are.
    pub(super) plain: Vec<PlainPage>,
}

/// A page of values that are neither encoded nor compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlainPage {
    /// Where its levels and values are in the chunk.
    pub(super) body: Range<usize>,
    /// Nulls included.
    pub(super) values: u64,
    pub(super) levels: Levels,
    /// CRC-32 of the body, where the header has one.
    pub(super) crc: Option<u32>,
}

/// How the levels before the values of a page tell how long they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Levels {
    /// By themselves.
    Prefixed,
    /// By the header of the page.
    Sized { repetition: usize, definition: usize },
}

#[derive(Debug, Default)]
struct Header {
    kind: Option<i32>,
    raw_bytes: Option<i32>,
    stored_bytes: Option<i32>,
    values: Option<i32>,
    encoding: Option<i32>,
    crc: Option<i32>,
    /// Nulls, in pages of version 2.
    nulls: Option<i32>,
    /// Numbers of the structs for a kind of page that there are.
    structs: Vec<i16>,
    /// Encoding of definition levels, in pages of version 1.
    definition_encoding: Option<i32>,
    /// Bytes of levels before the values, which are not compressed in pages of version 2: of repetitions and of definitions.
    levels_bytes: [u64; 2],
    is_compressed: bool,
}

const DATA_PAGE: i32 = 0;
const INDEX_PAGE: i32 = 1;
const DICTIONARY_PAGE: i32 = 2;
const DATA_PAGE_V2: i32 = 3;

/// Walk the pages of a chunk.
pub(super) fn walk(chunk: &[u8], compression: Compression) -> Result<Pages> {
    let mut pages = Pages::default();
    let mut at = 0;
    while at < chunk.len() {
        let rest = chunk.get(at..).unwrap_or_default();
        let named = |error: Error| error.within(format_args!("page at byte {at} of the column chunk"));
        known::check(&mut Reader::new(rest), known::PAGE).map_err(named)?;
        let mut reader = Reader::new(rest);
        let header = Header::read(&mut reader).map_err(named)?;
        header.check_kind().map_err(named)?;
        let (raw, stored) = header.sizes().map_err(named)?;
        let start = reader.at();
        let body = rest
            .get(start..)
            .and_then(|body| body.get(..stored))
            .ok_or_else(|| named(corrupt("a page ends behind its column chunk")))?;
        check_inflated(body, &header, raw, compression).map_err(named)?;
        pages.add(&header, raw).map_err(named)?;
        let body = at + start..at + start + stored;
        pages.plain.extend(header.plain(body, raw, compression));
        at += start + stored;
    }
    Ok(pages)
}

impl Pages {
    /// Those of another chunk of the same field.
    pub(super) fn merge(&mut self, other: &Self) {
        self.values = self.values.max(other.values);
        self.raw_bytes = self.raw_bytes.saturating_add(other.raw_bytes);
        self.has_dictionary |= other.has_dictionary;
        self.has_deltas |= other.has_deltas;
        self.repeated_bytes_max = self.repeated_bytes_max.saturating_add(other.repeated_bytes_max);
    }

    fn add(&mut self, header: &Header, raw: u64) -> Result<()> {
        self.raw_bytes += raw;
        match header.kind {
            Some(DICTIONARY_PAGE) => {
                // No value takes less than a bit, and one without bytes is there once.
                if header.count()? > raw.saturating_mul(8).max(1) {
                    return Err(corrupt("a dictionary has more values than its bytes can hold"));
                }
                self.has_dictionary = true;
            }
            Some(DATA_PAGE | DATA_PAGE_V2) => {
                let values = header.count()?;
                self.values += values;
                if header.encoding == Some(DELTA_BYTE_ARRAY) {
                    let bytes = values.saturating_mul(raw);
                    self.repeated_bytes_max = self.repeated_bytes_max.saturating_add(bytes);
                }
                match header.encoding {
                    Some(PLAIN_DICTIONARY | RLE_DICTIONARY) => self.has_dictionary = true,
                    Some(PLAIN | DELTA_LENGTH) => {}
                    _ => self.has_deltas = true,
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Header {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let mut header = Self {
            is_compressed: true,
            ..Self::default()
        };
        let mut before = 0;
        while let Some(tag) = reader.field(before)? {
            match (tag.id, tag.kind) {
                (1, I32) => header.kind = Some(reader.i32()?),
                (2, I32) => header.raw_bytes = Some(reader.i32()?),
                (3, I32) => header.stored_bytes = Some(reader.i32()?),
                (4, I32) => header.crc = Some(reader.i32()?),
                (5 | 7 | 8, STRUCT) => {
                    header.structs.push(tag.id);
                    header.read_inner(reader, tag.id == 8)?;
                }
                (_, kind) => reader.skip(kind)?,
            }
            before = tag.id;
        }
        Ok(header)
    }

    fn read_inner(&mut self, reader: &mut Reader<'_>, is_v2: bool) -> Result<()> {
        let mut before = 0;
        while let Some(tag) = reader.field(before)? {
            match (tag.id, tag.kind, is_v2) {
                (1, I32, _) => self.values = Some(reader.i32()?),
                (2, I32, false) | (4, I32, true) => self.encoding = Some(reader.i32()?),
                (2, I32, true) => self.nulls = Some(reader.i32()?),
                (3, I32, false) => self.definition_encoding = Some(reader.i32()?),
                (5 | 6, I32, true) => {
                    let len = u64::try_from(reader.i32()?);
                    let len = len.map_err(|_| corrupt("levels of a negative length"))?;
                    self.levels_bytes[usize::from(tag.id == 5)] = len;
                }
                (7, 1 | 2, true) => self.is_compressed = tag.kind == 1,
                (_, kind, _) => reader.skip(kind)?,
            }
            before = tag.id;
        }
        Ok(())
    }

    /// A page says what it is once: of two that differ, the library could take the one that was not looked at.
    fn check_kind(&self) -> Result<()> {
        let own = match self.kind {
            Some(DATA_PAGE) => 5,
            Some(INDEX_PAGE) => return Ok(()),
            Some(DICTIONARY_PAGE) => 7,
            Some(DATA_PAGE_V2) => 8,
            _ => return Err(corrupt("a page of unknown type")),
        };
        match self.structs[..] {
            [only] if only == own => Ok(()),
            _ => Err(corrupt("a page does not say what its type has to")),
        }
    }

    /// How many values it has.
    fn count(&self) -> Result<u64> {
        let values = self.values.and_then(|values| u64::try_from(values).ok());
        values.ok_or_else(|| corrupt("a page does not say how many values it has"))
    }

    /// Bytes before compression and as stored, within all limits.
    fn sizes(&self) -> Result<(u64, usize)> {
        let size = |size: Option<i32>| size.and_then(|size| u64::try_from(size).ok());
        let (Some(raw), Some(stored)) = (size(self.raw_bytes), size(self.stored_bytes)) else {
            return Err(corrupt("a page without a size"));
        };
        let by_ratio = stored.saturating_mul(RATIO_MAX).max(PAGE_FREE_BYTES);
        if raw > PAGE_BYTES_MAX.min(by_ratio) {
            let message = format!(
                "a page of {} claims to become {} when it is decompressed",
                ByteSize(stored),
                ByteSize(raw)
            );
            return Err(limit(message));
        }
        if self.levels() > raw || self.levels() > stored {
            return Err(corrupt("levels that are longer than their page"));
        }
        Ok((raw, stored as usize))
    }

    /// Bytes of all levels that are not compressed.
    fn levels(&self) -> u64 {
        self.levels_bytes.iter().sum()
    }

    /// The page, where its values stand there as they are.
    fn plain(&self, body: Range<usize>, raw: u64, compression: Compression) -> Option<PlainPage> {
        let is_stored = compression == Compression::UNCOMPRESSED || !self.is_compressed;
        if !is_stored || self.encoding != Some(PLAIN) || body.len() as u64 != raw {
            return None;
        }
        let levels = match (self.kind, &self.structs[..]) {
            (Some(DATA_PAGE), [5]) if self.definition_encoding == Some(RLE) => Levels::Prefixed,
            (Some(DATA_PAGE_V2), [8]) if self.nulls == Some(0) => Levels::Sized {
                repetition: self.levels_bytes[0] as usize,
                definition: self.levels_bytes[1] as usize,
            },
            _ => return None,
        };
        Some(PlainPage {
            body,
            values: u64::try_from(self.values?).ok()?,
            levels,
            crc: self.crc.map(i32::cast_unsigned),
        })
    }
}

/// Codecs that the library inflates up to their end, whatever the header says, are tried against the header first, where that could
/// become large.
fn check_inflated(body: &[u8], header: &Header, raw: u64, compression: Compression) -> Result<()> {
    if !header.is_compressed {
        return Ok(());
    }
    let values = body.get(header.levels() as usize..).unwrap_or_default();
    let expected = raw.saturating_sub(header.levels());
    if expected == 0 {
        return Ok(()); // No value at all: nothing is inflated.
    }
    let reach = |ratio: u64| (values.len() as u64).saturating_mul(ratio) > PAGE_BYTES_MAX;
    match compression {
        Compression::GZIP(_) if reach(GZIP_RATIO_MAX) => {
            count(flate2::bufread::MultiGzDecoder::new(values), expected)
        }
        Compression::BROTLI(_) => count(brotli::Decompressor::new(values, 64 << 10), expected),
        Compression::LZ4 if reach(LZ4_RATIO_MAX) => Err(limit(format!(
            "a page of {} in the LZ4 framing that was given up",
            ByteSize(values.len() as u64)
        ))),
        _ => Ok(()),
    }
}

fn count(decoder: impl Read, expected: u64) -> Result<()> {
    let inflated = io::copy(&mut decoder.take(expected + 1), &mut io::sink());
    match inflated {
        Ok(bytes) if bytes == expected => Ok(()),
        Ok(_) => Err(corrupt("a page does not have the size that its header says")),
        Err(error) => Err(corrupt("a page does not decompress").with_source(error)),
    }
}

/// Refuse a column that would take more memory than its stored bytes can account for.
pub(super) fn check_decoded(decoded_bytes: u64, stored_bytes: u64) -> Result<()> {
    if decoded_bytes <= stored_bytes.saturating_mul(RATIO_MAX).max(RATIO_FREE_BYTES) {
        return Ok(());
    }
    let message = format!(
        "{} become more than {} when they are decoded",
        ByteSize(stored_bytes),
        ByteSize(decoded_bytes)
    );
    Err(limit(message))
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

fn limit(message: String) -> Error {
    Error::new(ErrorKind::LimitExceeded, OP, message)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::thrift::Writer;
    use super::*;

    fn page(kind: i32, raw: i32, stored: i32, values: i32, encoding: i32) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.i32(1, kind);
        writer.i32(2, raw);
        writer.i32(3, stored);
        writer.begin(if kind == DICTIONARY_PAGE { 7 } else { 5 });
        writer.i32(1, values);
        writer.i32(2, encoding);
        writer.end();
        writer.finish()
    }

    fn walk_one(header: Vec<u8>, body: &[u8], compression: Compression) -> Result<Pages> {
        walk(&[header, body.to_vec()].concat(), compression)
    }

    #[test]
    fn pages_are_counted() {
        let chunk = [
            page(DICTIONARY_PAGE, 10, 4, 2, PLAIN),
            vec![0; 4],
            page(DATA_PAGE, 20, 3, 7, RLE_DICTIONARY),
            vec![0; 3],
            page(DATA_PAGE, 20, 0, 5, 7),
        ]
        .concat();
        let pages = walk(&chunk, Compression::SNAPPY).unwrap();
        let expected = Pages {
            values: 12,
            raw_bytes: 50,
            has_dictionary: true,
            repeated_bytes_max: 100,
            has_deltas: true,
            plain: Vec::new(),
        };
        assert_eq!(pages, expected);
        for len in 1..chunk.len() {
            let cut = walk(&chunk[..len], Compression::SNAPPY);
            assert!(cut.is_err() || cut.unwrap().values < 12, "{len}");
        }
    }

    #[test]
    fn claims_beyond_the_limits_are_refused() {
        let kind = |header, body: &[u8]| walk_one(header, body, Compression::SNAPPY).unwrap_err().kind();
        assert_eq!(kind(page(0, i32::MAX, 3, 1, 0), b"abc"), ErrorKind::LimitExceeded);
        assert_eq!(
            kind(page(0, 100 << 20, 3, 1, 0), b"abc"),
            ErrorKind::LimitExceeded
        );
        assert_eq!(kind(page(0, -1, 3, 1, 0), b"abc"), ErrorKind::Corrupt);
        assert_eq!(kind(page(0, 3, -3, 1, 0), b"abc"), ErrorKind::Corrupt);
        assert_eq!(kind(page(0, 3, 4, 1, 0), b"abc"), ErrorKind::Corrupt);
        assert_eq!(kind(page(0, 3, 3, -1, 0), b"abc"), ErrorKind::Corrupt);
        assert_eq!(kind(page(9, 3, 3, 1, 0), b"abc"), ErrorKind::Corrupt);
        assert_eq!(kind(page(2, 3, 3, i32::MAX, 0), b"abc"), ErrorKind::Corrupt);
        assert_eq!(kind(page(2, 3, 3, -1, 0), b"abc"), ErrorKind::Corrupt);
        assert!(walk_one(page(2, 3, 3, 24, 0), b"abc", Compression::SNAPPY).is_ok());
        assert!(check_decoded(RATIO_FREE_BYTES, 1).is_ok());
        assert_eq!(
            check_decoded(RATIO_FREE_BYTES + 1, 1).unwrap_err().kind(),
            ErrorKind::LimitExceeded
        );
    }

    /// The library goes by the struct that the type names, whatever others say.
    #[test]
    fn a_page_that_says_two_things_is_refused() {
        let page = |structs: &[(i16, i32)]| {
            let mut writer = Writer::default();
            for id in 1..=3 {
                writer.i32(id, if id == 1 { DATA_PAGE } else { 3 });
            }
            for (id, values) in structs {
                writer.begin(*id);
                writer.i32(1, *values);
                writer.i32(2, PLAIN);
                writer.end();
            }
            walk_one(writer.finish(), b"abc", Compression::UNCOMPRESSED)
        };
        assert!(page(&[(5, 1)]).is_ok());
        for structs in [&[][..], &[(7, 1)], &[(5, i32::MAX), (8, 1)]] {
            let error = page(structs).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains("its type"), "{error}");
        }
    }

    #[test]
    fn what_inflates_beyond_its_header_is_refused() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let piece = vec![0; 1 << 20];
        for _ in 0..600 {
            gzip.write_all(&piece).unwrap();
        }
        let body = gzip.finish().unwrap();
        let header = page(0, 1 << 20, body.len() as i32, 1, 0);
        let error = walk_one(
            header,
            &body,
            Compression::GZIP(parquet::basic::GzipLevel::default()),
        )
        .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let mut body = Vec::new();
        brotli::CompressorWriter::new(&mut body, 4096, 5, 22)
            .write_all(&piece)
            .unwrap();
        let brotli = Compression::BROTLI(parquet::basic::BrotliLevel::default());
        let header = |raw| page(0, raw, body.len() as i32, 1, 0);
        assert!(walk_one(header(1 << 20), &body, brotli).is_ok());
        assert!(walk_one(header(1 << 19), &body, brotli).is_err());
        assert!(walk_one(header(1 << 21), &body, brotli).is_err());
    }
}
