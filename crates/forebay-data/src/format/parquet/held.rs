//! A row group whose bytes are in memory, as the library asks for it: page by page, each looked at once more when it is decompressed.
//!
//! Two encodings say within a page how many values it has, and the library makes room for as many before it reads the first: deltas of lengths (`DELTA_LENGTH_BYTE_ARRAY`), and of
//! beginnings and lengths (`DELTA_BYTE_ARRAY`). Of a dictionary, the header says how many values it has, and room is made for as many. Memory that is not there ends the process, so these numbers
//! are compared first: those of deltas with the header of the page, which was compared with the footer, and those of a dictionary with the bytes that it has.

use std::iter;
use std::sync::Arc;

use bytes::buf::Reader as BytesReader;
use bytes::{Buf as _, Bytes};
use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::{Encoding, Type};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

/// Chunks of a row group, at their place in the file.
pub(super) struct Held {
    pub(super) start: u64,
    pub(super) bytes: Bytes,
}

impl Held {
    fn from(&self, start: u64) -> Result<Bytes> {
        let at = start
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok());
        match at.filter(|at| *at <= self.bytes.len()) {
            Some(at) => Ok(self.bytes.slice(at..)),
            None => Err(ParquetError::EOF("a page outside of its column chunk".into())),
        }
    }
}

impl Length for Held {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for Held {
    type T = BytesReader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            return Err(ParquetError::EOF("a page ends behind its column chunk".into()));
        }
        Ok(bytes.slice(..length))
    }
}

/// One row group of a file.
pub(super) struct HeldGroup<'a> {
    pub(super) held: Arc<Held>,
    pub(super) metadata: &'a ParquetMetaData,
    pub(super) group: &'a RowGroupMetaData,
    pub(super) rows: usize,
}

impl RowGroups for HeldGroup<'_> {
    fn num_rows(&self) -> usize {
        self.rows
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        let chunk = self.group.columns().get(column);
        let chunk = chunk.ok_or_else(|| ParquetError::General("there is no such column".into()))?;
        let descr = chunk.column_descr();
        let pages = Pages {
            inner: SerializedPageReader::new(Arc::clone(&self.held), chunk, self.rows, None)?,
            levels_max: [descr.max_rep_level(), descr.max_def_level()],
            value_bits: value_bits(descr.physical_type(), descr.type_length()),
        };
        Ok(Box::new(OneChunk(Some(pages))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(iter::once(self.group))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata
    }
}

struct OneChunk(Option<Pages>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let pages = self.0.take()?;
        Some(Ok(Box::new(pages)))
    }
}

impl PageIterator for OneChunk {}

/// The pages of a chunk.
struct Pages {
    inner: SerializedPageReader<Held>,
    /// Of repetitions, and of definitions.
    levels_max: [i16; 2],
    /// Fewest bits that a value takes as it is.
    value_bits: u64,
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

#[deny(clippy::missing_trait_methods)]
impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.inner.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.inner.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.inner.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.inner.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        let page = self.inner.take_deferred_dictionary()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.inner.at_record_boundary()
    }
}

impl Pages {
    fn check(&self, page: &Page) -> Result<()> {
        let (encoding, values) = match page {
            Page::DataPage {
                encoding, num_values, ..
            }
            | Page::DataPageV2 {
                encoding, num_values, ..
            } => (*encoding, u64::from(*num_values)),
            Page::DictionaryPage { buf, num_values, .. } => return self.check_dictionary(buf, *num_values),
        };
        let lists = match encoding {
            Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
            Encoding::DELTA_BYTE_ARRAY => 2,
            _ => return Ok(()),
        };
        let mut rest = self.values_of(page)?;
        for _ in 0..lists {
            rest = behind_deltas(rest, values)?;
        }
        Ok(())
    }

    fn check_dictionary(&self, bytes: &[u8], values: u32) -> Result<()> {
        let bits = u64::from(values).saturating_mul(self.value_bits);
        if bits.div_ceil(8) <= bytes.len() as u64 {
            return Ok(());
        }
        let message = format!("a dictionary of {} bytes speaks of {values} values", bytes.len());
        Err(ParquetError::General(message))
    }

    /// What stands in a data page behind its levels.
    fn values_of<'a>(&self, page: &'a Page) -> Result<&'a [u8]> {
        match page {
            Page::DataPage {
                buf,
                num_values,
                def_level_encoding,
                rep_level_encoding,
                ..
            } => {
                let mut rest: &[u8] = buf;
                let levels = self
                    .levels_max
                    .into_iter()
                    .zip([rep_level_encoding, def_level_encoding]);
                for (max, encoding) in levels.filter(|(max, _)| *max > 0) {
                    let len = if *encoding == Encoding::RLE {
                        let (len, behind) = rest.split_first_chunk::<4>().ok_or_else(cut_off)?;
                        rest = behind;
                        u32::from_le_bytes(*len) as usize
                    } else {
                        // The packing that was given up: as many bits as the largest needs, and nothing before them.
                        let bits = (i16::BITS - max.leading_zeros()) as usize;
                        (*num_values as usize * bits).div_ceil(8)
                    };
                    rest = rest.get(len..).ok_or_else(cut_off)?;
                }
                Ok(rest)
            }
            Page::DataPageV2 {
                buf,
                def_levels_byte_len,
                rep_levels_byte_len,
                ..
            } => {
                let levels = *def_levels_byte_len as usize + *rep_levels_byte_len as usize;
                buf.get(levels..).ok_or_else(cut_off)
            }
            Page::DictionaryPage { buf, .. } => Ok(buf),
        }
    }
}

/// Fewest bits that a value of a type takes as it is: text and bytes have their length in front.
fn value_bits(physical: Type, type_length: i32) -> u64 {
    match physical {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT | Type::BYTE_ARRAY => 32,
        Type::INT64 | Type::DOUBLE => 64,
        Type::INT96 => 96,
        Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(type_length).unwrap_or(0).saturating_mul(8),
    }
}

/// What stands behind a list of at most `values_max` deltas: `block size, mini blocks of a block, count, first value`, then blocks of `smallest delta, width of each mini block, mini
/// blocks`.
fn behind_deltas(bytes: &[u8], values_max: u64) -> Result<&[u8]> {
    let mut rest = bytes;
    let block = varint(&mut rest)?;
    let minis = varint(&mut rest)?;
    let count = varint(&mut rest)?;
    varint(&mut rest)?;
    if count > values_max {
        let message = format!("a page of {values_max} values speaks of {count} in its deltas");
        return Err(ParquetError::General(message));
    }
    let mini_values = block.checked_div(minis).filter(|values| *values > 0);
    let mini_values = mini_values.ok_or_else(cut_off)?;
    let mut left = count.saturating_sub(1);
    while left > 0 {
        varint(&mut rest)?;
        let minis = usize::try_from(minis).map_err(|_| cut_off())?;
        let (widths, behind) = rest.split_at_checked(minis).ok_or_else(cut_off)?;
        rest = behind;
        for width in widths {
            if left == 0 {
                break; // What the others say is left open by the specification.
            }
            let bits = mini_values.checked_mul(u64::from(*width)).ok_or_else(cut_off)?;
            let len = usize::try_from(bits / 8).map_err(|_| cut_off())?;
            rest = rest.get(len..).ok_or_else(cut_off)?;
            left = left.saturating_sub(mini_values);
        }
    }
    Ok(rest)
}

/// A number of 7 bits for each byte, as the library reads it.
fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first().ok_or_else(cut_off)?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(cut_off())
}

fn cut_off() -> ParquetError {
    ParquetError::EOF("deltas that end behind their page".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 128 in 4 mini blocks, a count, the first value 0, and what is behind that.
    fn deltas(count: u64, behind: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x80, 0x01, 4];
        let mut rest = count;
        while rest >= 0x80 {
            bytes.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        bytes.extend([rest as u8, 0]);
        bytes.extend_from_slice(behind);
        bytes
    }

    #[test]
    fn what_is_behind_deltas_is_found() {
        assert_eq!(behind_deltas(&deltas(0, b"xyz"), 9).unwrap(), b"xyz");
        assert_eq!(behind_deltas(&deltas(1, b"xyz"), 9).unwrap(), b"xyz");
        // 40 values: two mini blocks of 32 are there, of one and of two bits; what the others say does not matter.
        let mut blocks = vec![0, 1, 2, 77, 77];
        blocks.extend([0xff; 4 + 8]);
        blocks.extend(b"xyz");
        assert_eq!(behind_deltas(&deltas(40, &blocks), 40).unwrap(), b"xyz");
        for len in 0..5 + 5 + 12 {
            behind_deltas(&deltas(40, &blocks)[..len], 40).unwrap_err();
        }
    }

    #[test]
    fn more_values_than_the_page_has_are_refused() {
        behind_deltas(&deltas(41, &[0; 9]), 41).unwrap();
        for count in [42, 1 << 31, 1 << 50, u64::MAX] {
            let error = behind_deltas(&deltas(count, &[0; 9]), 41).unwrap_err();
            assert!(error.to_string().contains("41 values speaks of"), "{error}");
        }
        behind_deltas(&[0x80; 11], 41).unwrap_err();
        behind_deltas(&[0x80, 1, 0, 4, 0], 41).unwrap_err();
    }
}
