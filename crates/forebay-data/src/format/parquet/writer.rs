//! Writing Parquet: samples are gathered column by column, and a row group is encoded when enough of them are.
//!
//! ```text
//! SampleRef --check--> Gathered (bytes, ends, present) --group full--> encode.rs: library's encoders --> pages with CRC-32
//!                                                                          |
//!                                                         finish: footer --+--> bytes of the file
//! ```
//!
//! What becomes what is described in docs/formats/parquet.md. Nothing depends on time or chance: the same samples give the same bytes.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::Buf;
use parquet::basic::{
    Compression, ConvertedType, LogicalType, Repetition, TimeUnit, Type as Physical, ZstdLevel,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesPtr, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, PrimitiveTypeBuilder, Type};

use super::encode;
use super::footer::FIELDS_KEY;
use crate::format::{SampleRef, ShardWriter};
use crate::schema::{Dtype, Field, Kind, Tick, Unit};
use crate::table::FIELDS_MAX;

/// Named in every file. The number changes when the bytes written for the same samples do.
const CREATED_BY: &str = "forebay version 2";

/// The column that keys are written to.
const KEY_COLUMN: &str = "__key__";

/// Bytes of a row group: large enough for a disk or a store to be read at its speed, small enough to decode and shuffle in memory.
const GROUP_BYTES: u64 = 16 << 20;

/// Longest value: pages are measured in 32 bits, and readers of Java in signed ones.
const VALUE_BYTES_MAX: u64 = 1 << 30;

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParquetOptions {
    /// Level of zstd for columns that are worth it; none without.
    pub zstd_level: Option<i32>,
    /// A row group is closed when it holds that many bytes.
    pub group_bytes: u64,
    /// Write the samples' keys as a first column `__key__`, unless there is a field of that name.
    pub has_keys: bool,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self {
            zstd_level: None,
            group_bytes: GROUP_BYTES,
            has_keys: true,
        }
    }
}

/// Makes a Parquet file.
pub struct ParquetWriter {
    file: SerializedFileWriter<Vec<u8>>,
    properties: WriterPropertiesPtr,
    options: ParquetOptions,
    /// The key column first, where there is one.
    columns: Vec<Gathered>,
    has_key_column: bool,
    rows: usize,
    /// Bytes gathered for the open row group, and of all before.
    open_bytes: u64,
    closed_bytes: u64,
}

/// Values of one column of the open row group.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) field: Field,
    pub(super) data: Vec<u8>,
    /// Where each value that is there ends.
    pub(super) ends: Vec<usize>,
    pub(super) present: Vec<bool>,
}

impl ParquetWriter {
    /// For samples with these fields, each of which may be absent.
    pub fn new(fields: &[Field], options: ParquetOptions) -> Result<Self> {
        let has_key_column = options.has_keys && fields.iter().all(|field| field.name != KEY_COLUMN);
        let mut columns: Vec<Field> = Vec::with_capacity(fields.len() + 1);
        columns.extend(has_key_column.then(|| Field::new(KEY_COLUMN, Kind::Text)));
        columns.extend_from_slice(fields);
        check(&columns)?;
        let schema = columns.iter().map(|field| column_type(field).map(Arc::new));
        let schema = Type::group_type_builder("schema")
            .with_fields(schema.collect::<Result<_>>()?)
            .build()
            .map_err(|error| failed(&error))?;
        let properties = Arc::new(properties(&columns, options)?);
        let file = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::clone(&properties))
            .map_err(|error| failed(&error))?;
        let gathered = |field| Gathered {
            field,
            data: Vec::new(),
            ends: Vec::new(),
            present: Vec::new(),
        };
        Ok(Self {
            file,
            properties,
            options,
            columns: columns.into_iter().map(gathered).collect(),
            has_key_column,
            rows: 0,
            open_bytes: 0,
            closed_bytes: 0,
        })
    }

    fn flush(&mut self) -> Result<()> {
        if self.rows == 0 {
            return Ok(());
        }
        encode::write_group(&mut self.file, &self.properties, &mut self.columns)
            .map_err(|error| failed(&error))?;
        self.closed_bytes += self.open_bytes;
        (self.rows, self.open_bytes) = (0, 0);
        Ok(())
    }

    /// The columns that are fields, without that of the keys.
    fn field_columns(&mut self) -> &mut [Gathered] {
        let skipped = usize::from(self.has_key_column);
        self.columns.get_mut(skipped..).unwrap_or_default()
    }
}

/// Bytes of a sample in the open row group: its values and a length for each.
fn sample_bytes(sample: SampleRef<'_>) -> u64 {
    let values: u64 = sample
        .fields
        .iter()
        .map(|(_, value)| value.len() as u64 + 4)
        .sum();
    values + sample.key.len() as u64 + 4
}

impl ShardWriter for ParquetWriter {
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64 {
        self.closed_bytes + self.open_bytes + sample_bytes(sample)
    }

    fn add(&mut self, sample: SampleRef<'_>) -> Result<()> {
        let columns = self.field_columns();
        // Found before anything is taken in: a sample that is refused leaves no trace.
        let mut values: Vec<Option<&[u8]>> = vec![None; columns.len()];
        for (number, (field, value)) in sample.fields.iter().enumerate() {
            let known = columns
                .get(number)
                .is_some_and(|column| column.field.name == field.name);
            let index = if known {
                Some(number)
            } else {
                columns.iter().position(|column| column.field.name == field.name)
            };
            let Some((index, column)) = index.and_then(|index| Some((index, columns.get(index)?))) else {
                return Err(refused(&field.name, "is not among the fields of the shard"));
            };
            if !column.field.is_like(field) {
                return Err(refused(
                    &field.name,
                    "is of another kind than in the samples before",
                ));
            }
            check_value(field, value)?;
            match values.get_mut(index) {
                Some(slot @ None) => *slot = Some(value),
                _ => return Err(refused(&field.name, "is in one sample twice")),
            }
        }
        for (column, value) in columns.iter_mut().zip(values) {
            column.push(value);
        }
        if self.has_key_column
            && let Some(column) = self.columns.first_mut()
        {
            column.push(Some(sample.key.as_bytes()));
        }
        self.rows += 1;
        self.open_bytes += sample_bytes(sample);
        if self.open_bytes >= self.options.group_bytes {
            self.flush()?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Buf> {
        self.flush()?;
        let file = self.file.into_inner().map_err(|error| failed(&error))?;
        Buf::copy_of(&file)
    }
}

impl Gathered {
    fn push(&mut self, value: Option<&[u8]>) {
        self.present.push(value.is_some());
        if let Some(value) = value {
            self.data.extend_from_slice(value);
            self.ends.push(self.data.len());
        }
    }
}

impl std::fmt::Debug for ParquetWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetWriter")
            .field("options", &self.options)
            .field("rows", &self.rows)
            .field("closed_bytes", &self.closed_bytes)
            .finish_non_exhaustive()
    }
}

fn check(columns: &[Field]) -> Result<()> {
    if columns.is_empty() || columns.len() > FIELDS_MAX {
        let message = format!("{} columns; a file may have 1 to {FIELDS_MAX}", columns.len());
        return Err(Error::new(ErrorKind::InvalidInput, "write parquet", message));
    }
    for (index, field) in columns.iter().enumerate() {
        if columns.iter().take(index).any(|before| before.name == field.name) {
            return Err(refused(&field.name, "is there twice"));
        }
        if let Kind::Array { .. } = &field.kind
            && !field
                .kind
                .fixed_bytes()
                .is_some_and(|bytes| (1..=VALUE_BYTES_MAX).contains(&bytes))
        {
            return Err(refused(
                &field.name,
                "is an array of no size that Parquet can hold",
            ));
        }
    }
    Ok(())
}

fn check_value(field: &Field, value: &[u8]) -> Result<()> {
    let len = value.len() as u64;
    let is_right = match &field.kind {
        Kind::Array { .. } => field.kind.fixed_bytes() == Some(len),
        Kind::List { dtype } => len.is_multiple_of(dtype.bytes()),
        Kind::Encoded { .. } => WideDecimal::of(&field.kind).is_none_or(|wide| len == wide.bytes),
        Kind::Text | Kind::Json | Kind::Decimal => std::str::from_utf8(value).is_ok(),
        Kind::Bytes | Kind::Varints | Kind::Image => true,
    };
    if !is_right {
        return Err(refused(&field.name, "has bytes that its kind does not allow"));
    }
    if len > VALUE_BYTES_MAX {
        return Err(refused(&field.name, "is longer than 1 GiB"));
    }
    Ok(())
}

/// The type of a column in the file.
fn column_type(field: &Field) -> Result<Type> {
    let text = || Some(LogicalType::String);
    let column = match &field.kind {
        Kind::Array { dtype, shape } if shape.is_empty() => {
            return scalar(&field.name, *dtype, field.unit, Repetition::OPTIONAL);
        }
        Kind::Array { .. } => {
            let bytes = field
                .kind
                .fixed_bytes()
                .and_then(|bytes| i32::try_from(bytes).ok());
            Type::primitive_type_builder(&field.name, Physical::FIXED_LEN_BYTE_ARRAY)
                .with_length(bytes.unwrap_or(0))
        }
        Kind::List { dtype } if is_list(*dtype) => return list(&field.name, *dtype, field.unit),
        Kind::Text | Kind::Json | Kind::Decimal => {
            Type::primitive_type_builder(&field.name, Physical::BYTE_ARRAY)
                .with_logical_type(text())
                .with_converted_type(ConvertedType::UTF8)
        }
        Kind::Bytes | Kind::Varints | Kind::Image | Kind::Encoded { .. } | Kind::List { .. } => {
            match WideDecimal::of(&field.kind) {
                Some(wide) => wide.column(&field.name),
                None => Type::primitive_type_builder(&field.name, Physical::BYTE_ARRAY),
            }
        }
    };
    let column = column.with_repetition(Repetition::OPTIONAL).build();
    column.map_err(|error| failed(&error))
}

/// Whether lists of a type are lists in the file too. Parquet has no bfloat16: lists of it are written as their bytes.
pub(super) fn is_list(dtype: Dtype) -> bool {
    dtype != Dtype::Bfloat16
}

/// Decimals of more digits than 64 bits have, in two's complement, little-endian; Parquet has them big-endian.
#[derive(Debug, Clone, Copy)]
pub(super) struct WideDecimal {
    digits: i32,
    scale: i32,
    pub(super) bytes: u64,
}

impl WideDecimal {
    /// What fields are encoded as that were read from such columns.
    pub(super) fn of(kind: &Kind) -> Option<Self> {
        let Kind::Encoded { encoding } = kind else {
            return None;
        };
        let (width, rest) = encoding.split_once(':')?;
        let (digits, scale) = rest.split_once(',')?;
        let (digits, scale): (i32, i32) = (digits.parse().ok()?, scale.parse().ok()?);
        let (bytes, possible) = match width {
            "decimal128" => (16, 19..=38),
            "decimal256" => (32, 39..=76),
            _ => return None,
        };
        let is_possible = possible.contains(&digits) && (0..=digits).contains(&scale);
        is_possible.then_some(Self { digits, scale, bytes })
    }

    fn column(self, name: &str) -> PrimitiveTypeBuilder<'_> {
        Type::primitive_type_builder(name, Physical::FIXED_LEN_BYTE_ARRAY)
            .with_length(self.bytes as i32)
            .with_logical_type(Some(LogicalType::decimal(self.scale, self.digits)))
            .with_precision(self.digits)
            .with_scale(self.scale)
    }
}

/// The type that Parquet has for what integers of a type count; `None` where it has none for it, such as seconds.
fn logical_of(dtype: Dtype, unit: Unit) -> Option<LogicalType> {
    let ticks = |tick| match tick {
        Tick::Second => None,
        Tick::Milli => Some(TimeUnit::MILLIS),
        Tick::Micro => Some(TimeUnit::MICROS),
        Tick::Nano => Some(TimeUnit::NANOS),
    };
    match (dtype, unit) {
        (Dtype::Int32, Unit::Date) => Some(LogicalType::Date),
        (Dtype::Int32, Unit::Time(tick @ Tick::Milli))
        | (Dtype::Int64, Unit::Time(tick @ (Tick::Micro | Tick::Nano))) => {
            Some(LogicalType::time(false, ticks(tick)?))
        }
        (Dtype::Int64, Unit::Timestamp { tick, is_utc }) => {
            Some(LogicalType::timestamp(is_utc, ticks(tick)?))
        }
        (Dtype::Int64, Unit::Decimal { digits, scale }) if (1..=18).contains(&digits) && scale <= digits => {
            Some(LogicalType::decimal(scale.into(), digits.into()))
        }
        _ => None,
    }
}

fn scalar(name: &str, dtype: Dtype, unit: Option<Unit>, repetition: Repetition) -> Result<Type> {
    let int = |bits, is_signed| Some(LogicalType::integer(bits, is_signed));
    let counted = unit.and_then(|unit| logical_of(dtype, unit));
    let is_counted = counted.is_some();
    let (physical, logical) = match dtype {
        Dtype::Int32 if is_counted => (Physical::INT32, counted),
        Dtype::Int64 if is_counted => (Physical::INT64, counted),
        Dtype::Bool => (Physical::BOOLEAN, None),
        Dtype::Int8 => (Physical::INT32, int(8, true)),
        Dtype::Int16 => (Physical::INT32, int(16, true)),
        Dtype::Int32 => (Physical::INT32, None),
        Dtype::Int64 => (Physical::INT64, None),
        Dtype::Uint8 => (Physical::INT32, int(8, false)),
        Dtype::Uint16 => (Physical::INT32, int(16, false)),
        Dtype::Uint32 => (Physical::INT32, int(32, false)),
        Dtype::Uint64 => (Physical::INT64, int(64, false)),
        Dtype::Float16 => (Physical::FIXED_LEN_BYTE_ARRAY, Some(LogicalType::Float16)),
        Dtype::Bfloat16 => (Physical::FIXED_LEN_BYTE_ARRAY, None),
        Dtype::Float32 => (Physical::FLOAT, None),
        Dtype::Float64 => (Physical::DOUBLE, None),
    };
    let length = if physical == Physical::FIXED_LEN_BYTE_ARRAY {
        2
    } else {
        -1
    };
    let column = Type::primitive_type_builder(name, physical);
    let column = match unit {
        // Of these the library wants to be told twice.
        Some(Unit::Decimal { digits, scale }) if logical.is_some() => {
            column.with_precision(digits.into()).with_scale(scale.into())
        }
        _ => column,
    };
    column
        .with_logical_type(logical)
        .with_length(length)
        .with_repetition(repetition)
        .build()
        .map_err(|error| failed(&error))
}

fn list(name: &str, dtype: Dtype, unit: Option<Unit>) -> Result<Type> {
    let element = scalar("element", dtype, unit, Repetition::REQUIRED)?;
    let repeated = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![Arc::new(element)])
        .build()
        .map_err(|error| failed(&error))?;
    Type::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_converted_type(ConvertedType::LIST)
        .with_fields(vec![Arc::new(repeated)])
        .build()
        .map_err(|error| failed(&error))
}

fn properties(columns: &[Field], options: ParquetOptions) -> Result<WriterProperties> {
    let kept = serde_json::to_string(columns)
        .map_err(|error| Error::new(ErrorKind::Internal, "write parquet", error.to_string()))?;
    let compression = match options.zstd_level {
        Some(level) => Compression::ZSTD(ZstdLevel::try_new(level).map_err(|error| failed(&error))?),
        None => Compression::UNCOMPRESSED,
    };
    let mut properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_created_by(CREATED_BY.to_owned())
        .set_key_value_metadata(Some(vec![KeyValue::new(FIELDS_KEY.to_owned(), kept)]))
        .set_compression(compression)
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true)
        .set_statistics_enabled(EnabledStatistics::Chunk);
    for field in columns {
        let path = ColumnPath::new(vec![field.name.clone()]);
        match &field.kind {
            Kind::Text | Kind::Json | Kind::Decimal => {
                properties = properties.set_column_dictionary_enabled(path, true);
            }
            kind if is_opaque(kind) => {
                properties = properties
                    .set_column_compression(path.clone(), Compression::UNCOMPRESSED)
                    .set_column_statistics_enabled(path, EnabledStatistics::None);
            }
            _ => {}
        }
    }
    Ok(properties.build())
}

/// Bytes that no general compression makes smaller, and that nobody compares.
fn is_opaque(kind: &Kind) -> bool {
    match kind {
        Kind::Bytes | Kind::Image => true,
        Kind::Array { shape, .. } => !shape.is_empty(),
        _ => false,
    }
}

fn refused(name: &str, message: &str) -> Error {
    let message = format!("field '{}' {message}", name.escape_debug());
    Error::new(ErrorKind::InvalidInput, "write parquet", message).with_field(name)
}

fn failed(error: &ParquetError) -> Error {
    Error::new(ErrorKind::Internal, "write parquet", error.to_string())
}
