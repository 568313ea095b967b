//! Encoding a row group: the library's encoders, and page headers of our own.
//!
//! The library does not write page checksums, so its column writers are given a page writer that does: header with the CRC-32 of
//! the page as it is stored, then the page.

use bytes::Bytes;
use parquet::column::page::{CompressedPage, Page, PageWriteSpec, PageWriter};
use parquet::column::writer::{ColumnWriter, get_column_writer};
use parquet::data_type::{ByteArray, FixedLenByteArray};
use parquet::errors::{ParquetError, Result};
use parquet::file::properties::WriterPropertiesPtr;
use parquet::file::writer::SerializedFileWriter;

use super::thrift::Writer;
use super::writer::{Gathered, WideDecimal, is_list};
use crate::schema::{Dtype, Kind};

/// Values handed to the library at once become about as much: it closes pages only in between.
const STEP_BYTES: usize = 1 << 20;

/// And no more than that many of them.
const STEP_VALUES_MAX: usize = 1024;

/// Encode and append a row group, and leave the columns empty.
pub(super) fn write_group(
    file: &mut SerializedFileWriter<Vec<u8>>,
    properties: &WriterPropertiesPtr,
    columns: &mut [Gathered],
) -> Result<()> {
    let schema = file.schema_descr().clone();
    let mut group = file.next_row_group()?;
    for (index, column) in columns.iter_mut().enumerate() {
        let mut chunk = Vec::new();
        let pages = Box::new(Pages { chunk: &mut chunk });
        let mut writer = get_column_writer(schema.column(index), properties.clone(), pages);
        column.encode(&mut writer)?;
        let closed = writer.close()?;
        group.append_column(&Bytes::from(chunk), closed)?;
    }
    group.close()?;
    Ok(())
}

impl Gathered {
    /// Hand all values to a column writer, and forget them.
    fn encode(&mut self, writer: &mut ColumnWriter<'_>) -> Result<()> {
        if let Some(wide) = WideDecimal::of(&self.field.kind) {
            let values = self.data.chunks_exact_mut(wide.bytes as usize);
            values.for_each(<[u8]>::reverse);
        }
        let data = Bytes::from(std::mem::take(&mut self.data));
        let ends = std::mem::take(&mut self.ends);
        let present = std::mem::take(&mut self.present);
        if let Kind::List { dtype } = self.field.kind
            && is_list(dtype)
        {
            return encode_list(writer, dtype, &data, &ends, &present);
        }
        let levels: Vec<i16> = present.iter().map(|present| i16::from(*present)).collect();
        let values = Values::cut(&data, &ends);
        let dtype = match &self.field.kind {
            Kind::Array { dtype, shape } if shape.is_empty() => Some(*dtype),
            _ => None,
        };
        // Rows in steps; each step takes as many values as it has rows that are present.
        let step = (STEP_BYTES * present.len().max(1) / data.len().max(1)).clamp(1, STEP_VALUES_MAX);
        let mut taken = 0;
        for levels in levels.chunks(step) {
            let count = levels.iter().filter(|level| **level == 1).count();
            let values = values.get(taken..taken + count).unwrap_or_default();
            write_values(writer, dtype, values, levels, None)?;
            taken += count;
        }
        Ok(())
    }
}

/// Values as slices of one buffer.
struct Values;

impl Values {
    fn cut(data: &Bytes, ends: &[usize]) -> Vec<Bytes> {
        let mut start = 0;
        let cut = |end: &usize| {
            let value = data.slice(start..*end);
            start = *end;
            value
        };
        ends.iter().map(cut).collect()
    }
}

fn encode_list(
    writer: &mut ColumnWriter<'_>,
    dtype: Dtype,
    data: &Bytes,
    ends: &[usize],
    present: &[bool],
) -> Result<()> {
    let width = dtype.bytes() as usize;
    let mut ends = ends.iter();
    let (mut definitions, mut repetitions) = (Vec::new(), Vec::new());
    let (mut start, mut from) = (0, 0);
    for present in present {
        let end = if *present {
            ends.next().copied().unwrap_or(start)
        } else {
            start
        };
        let count = (end - start) / width;
        // 0: no list; 1: an empty one; 2: an element.
        match (present, count) {
            (false, _) => definitions.push(0),
            (true, 0) => definitions.push(1),
            (true, _) => definitions.resize(definitions.len() + count, 2),
        }
        repetitions.push(0);
        repetitions.resize(definitions.len(), 1);
        start = end;
        if end - from >= STEP_BYTES {
            write_elements(writer, dtype, &data.slice(from..end), &definitions, &repetitions)?;
            definitions.clear();
            repetitions.clear();
            from = end;
        }
    }
    if definitions.is_empty() {
        return Ok(());
    }
    write_elements(writer, dtype, &data.slice(from..), &definitions, &repetitions)
}

fn write_elements(
    writer: &mut ColumnWriter<'_>,
    dtype: Dtype,
    data: &Bytes,
    definitions: &[i16],
    repetitions: &[i16],
) -> Result<()> {
    let width = dtype.bytes() as usize;
    let ends: Vec<usize> = (1..=data.len() / width).map(|index| index * width).collect();
    write_values(
        writer,
        Some(dtype),
        &Values::cut(data, &ends),
        definitions,
        Some(repetitions),
    )
}

/// Hand values to the writer of their physical type.
fn write_values(
    writer: &mut ColumnWriter<'_>,
    dtype: Option<Dtype>,
    values: &[Bytes],
    definitions: &[i16],
    repetitions: Option<&[i16]>,
) -> Result<()> {
    let levels = Some(definitions);
    match writer {
        ColumnWriter::BoolColumnWriter(writer) => {
            let values: Vec<bool> = values.iter().map(|value| value.first() != Some(&0)).collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::Int32ColumnWriter(writer) => {
            let values: Vec<i32> = values.iter().map(|value| int(dtype, value) as i32).collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::Int64ColumnWriter(writer) => {
            let values: Vec<i64> = values.iter().map(|value| int(dtype, value)).collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::FloatColumnWriter(writer) => {
            let values: Vec<f32> = values
                .iter()
                .map(|value| f32::from_le_bytes(array(value)))
                .collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::DoubleColumnWriter(writer) => {
            let values: Vec<f64> = values
                .iter()
                .map(|value| f64::from_le_bytes(array(value)))
                .collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::ByteArrayColumnWriter(writer) => {
            let values: Vec<ByteArray> = values.iter().map(|value| value.clone().into()).collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::FixedLenByteArrayColumnWriter(writer) => {
            let values = values.iter().map(|value| ByteArray::from(value.clone()).into());
            let values: Vec<FixedLenByteArray> = values.collect();
            writer.write_batch(&values, levels, repetitions)?;
        }
        ColumnWriter::Int96ColumnWriter(_) => {
            return Err(ParquetError::General("no field becomes INT96".into()));
        }
    }
    Ok(())
}

/// The front of a value, whose length was checked when it was taken in.
fn array<const N: usize>(value: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, from) in bytes.iter_mut().zip(value) {
        *byte = *from;
    }
    bytes
}

/// An integer of any width: widened by its sign, or without one.
fn int(dtype: Option<Dtype>, value: &[u8]) -> i64 {
    match dtype {
        Some(Dtype::Int8) => i8::from_le_bytes(array(value)).into(),
        Some(Dtype::Int16) => i16::from_le_bytes(array(value)).into(),
        Some(Dtype::Int32) => i32::from_le_bytes(array(value)).into(),
        _ => i64::from_le_bytes(array(value)),
    }
}

/// Puts pages one after the other, each behind a header with its checksum.
struct Pages<'a> {
    chunk: &'a mut Vec<u8>,
}

impl PageWriter for Pages<'_> {
    fn write_page(&mut self, page: CompressedPage) -> Result<PageWriteSpec> {
        let offset = self.chunk.len() as u64;
        let header = header(&page)?;
        self.chunk.extend_from_slice(&header);
        self.chunk.extend_from_slice(page.data());
        let mut spec = PageWriteSpec::new();
        spec.page_type = page.page_type();
        spec.uncompressed_size = page.uncompressed_size() + header.len();
        spec.compressed_size = page.compressed_size() + header.len();
        spec.num_values = page.num_values();
        spec.offset = offset;
        spec.bytes_written = self.chunk.len() as u64 - offset;
        Ok(spec)
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

fn header(page: &CompressedPage) -> Result<Vec<u8>> {
    let size =
        |size: usize| i32::try_from(size).map_err(|_| ParquetError::General("a page over 2 GiB".into()));
    let mut writer = Writer::default();
    writer.i32(1, page.page_type() as i32);
    writer.i32(2, size(page.uncompressed_size())?);
    writer.i32(3, size(page.compressed_size())?);
    writer.i32(4, crc32fast::hash(page.data()) as i32);
    match page.compressed_page() {
        Page::DataPage {
            num_values,
            encoding,
            def_level_encoding,
            rep_level_encoding,
            ..
        } => {
            writer.begin(5);
            writer.i32(1, size(*num_values as usize)?);
            writer.i32(2, *encoding as i32);
            writer.i32(3, *def_level_encoding as i32);
            writer.i32(4, *rep_level_encoding as i32);
        }
        Page::DictionaryPage {
            num_values,
            encoding,
            is_sorted,
            ..
        } => {
            writer.begin(7);
            writer.i32(1, size(*num_values as usize)?);
            writer.i32(2, *encoding as i32);
            writer.bool(3, *is_sorted);
        }
        Page::DataPageV2 { .. } => {
            return Err(ParquetError::General("pages of version 2 are not written".into()));
        }
    }
    writer.end();
    Ok(writer.finish())
}
