//! Values that no kind but JSON has a word for, one at a time: lists of lists, of text, of structs, and maps.
//!
//! Numbers, truth values and text are what they are in JSON; what is not finite is `null`. Bytes are base64. Dates and times are the integers they are stored as, as outside of
//! lists; decimals are numbers with all their digits. Structs, and maps whose keys are text, are objects; other maps are lists of pairs.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Date32Type, Date64Type, Decimal128Type, Decimal256Type, DecimalType,
    DurationMicrosecondType, DurationMillisecondType, DurationNanosecondType, DurationSecondType,
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, MapArray, StructArray};
use arrow_schema::{DataType, TimeUnit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::OP;
use super::convert::too_large;

/// Values one after the other. A value of a dictionary may stand in one row any number of times, so that what it has grown to is looked at between values.
#[derive(Debug)]
pub(in crate::format) struct Json {
    data: Vec<u8>,
    bytes_max: u64,
}

impl Json {
    /// None yet; more than `bytes_max` are refused.
    pub(in crate::format) fn new(bytes_max: u64) -> Self {
        Self {
            data: Vec::new(),
            bytes_max,
        }
    }

    pub(in crate::format) fn len(&self) -> usize {
        self.data.len()
    }

    pub(in crate::format) fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// Append the value of a row.
    pub(in crate::format) fn add(&mut self, array: &dyn Array, row: usize) -> Result<()> {
        write(array, row, self)?;
        self.check()
    }

    fn check(&self) -> Result<()> {
        if self.data.len() as u64 > self.bytes_max {
            return Err(too_large(self.bytes_max));
        }
        Ok(())
    }
}

fn write(array: &dyn Array, row: usize, out: &mut Json) -> Result<()> {
    if array.data_type() == &DataType::Null || array.is_null(row) {
        out.data.extend_from_slice(b"null");
        return Ok(());
    }
    match array.data_type() {
        DataType::Struct(_) => object(array.as_struct(), row, out),
        DataType::Map(..) => map(array.as_map(), row, out),
        DataType::List(_) => list(&array.as_list::<i32>().value(row), out),
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row), out),
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row), out),
        DataType::Utf8 => put(out, array.as_string::<i32>().value(row)),
        DataType::LargeUtf8 => put(out, array.as_string::<i64>().value(row)),
        DataType::Utf8View => put(out, array.as_string_view().value(row)),
        DataType::Binary => bytes(array.as_binary::<i32>().value(row), out),
        DataType::LargeBinary => bytes(array.as_binary::<i64>().value(row), out),
        DataType::BinaryView => bytes(array.as_binary_view().value(row), out),
        DataType::FixedSizeBinary(_) => bytes(array.as_fixed_size_binary().value(row), out),
        DataType::Boolean => put(out, &array.as_boolean().value(row)),
        other => number(array, other, row, out),
    }
}

fn number(array: &dyn Array, data_type: &DataType, row: usize, out: &mut Json) -> Result<()> {
    match data_type {
        DataType::Int8 => plain::<Int8Type>(array, row, out),
        DataType::Int16 => plain::<Int16Type>(array, row, out),
        DataType::Int32 => plain::<Int32Type>(array, row, out),
        DataType::Int64 => plain::<Int64Type>(array, row, out),
        DataType::UInt8 => plain::<UInt8Type>(array, row, out),
        DataType::UInt16 => plain::<UInt16Type>(array, row, out),
        DataType::UInt32 => plain::<UInt32Type>(array, row, out),
        DataType::UInt64 => plain::<UInt64Type>(array, row, out),
        DataType::Float16 => put(out, &array.as_primitive::<Float16Type>().value(row).to_f32()),
        DataType::Float32 => plain::<Float32Type>(array, row, out),
        DataType::Float64 => plain::<Float64Type>(array, row, out),
        DataType::Decimal128(digits, scale) => decimal::<Decimal128Type>(array, *digits, *scale, row, out),
        DataType::Decimal256(digits, scale) => decimal::<Decimal256Type>(array, *digits, *scale, row, out),
        other => time(array, other, row, out),
    }
}

/// The integer that a date or time is stored as, whatever its unit.
fn time(array: &dyn Array, data_type: &DataType, row: usize, out: &mut Json) -> Result<()> {
    use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
    match data_type {
        DataType::Date32 => plain::<Date32Type>(array, row, out),
        DataType::Date64 => plain::<Date64Type>(array, row, out),
        DataType::Time32(Second) => plain::<Time32SecondType>(array, row, out),
        DataType::Time32(Millisecond) => plain::<Time32MillisecondType>(array, row, out),
        DataType::Time64(Microsecond) => plain::<Time64MicrosecondType>(array, row, out),
        DataType::Time64(Nanosecond) => plain::<Time64NanosecondType>(array, row, out),
        DataType::Timestamp(Second, _) => plain::<TimestampSecondType>(array, row, out),
        DataType::Timestamp(Millisecond, _) => plain::<TimestampMillisecondType>(array, row, out),
        DataType::Timestamp(Microsecond, _) => plain::<TimestampMicrosecondType>(array, row, out),
        DataType::Timestamp(Nanosecond, _) => plain::<TimestampNanosecondType>(array, row, out),
        DataType::Duration(Second) => plain::<DurationSecondType>(array, row, out),
        DataType::Duration(Millisecond) => plain::<DurationMillisecondType>(array, row, out),
        DataType::Duration(Microsecond) => plain::<DurationMicrosecondType>(array, row, out),
        DataType::Duration(Nanosecond) => plain::<DurationNanosecondType>(array, row, out),
        other => Err(unreadable(other)),
    }
}

/// Values of a type that cannot be read as they are.
pub(in crate::format) fn unreadable(data_type: &DataType) -> Error {
    let message = format!("values of type {data_type} cannot be read");
    Error::new(ErrorKind::Unsupported, OP, message)
        .with_hint("leave the column out: name the fields that are needed")
}

fn decimal<T: DecimalType>(
    array: &dyn Array,
    digits: u8,
    scale: i8,
    row: usize,
    out: &mut Json,
) -> Result<()> {
    let value = array.as_primitive::<T>().value(row);
    if !T::is_valid_decimal_precision(value, digits) {
        return Err(corrupt("a decimal has more digits than its column"));
    }
    out.data
        .extend_from_slice(T::format_decimal(value, digits, scale).as_bytes());
    Ok(())
}

fn plain<T>(array: &dyn Array, row: usize, out: &mut Json) -> Result<()>
where
    T: ArrowPrimitiveType,
    T::Native: Serialize,
{
    put(out, &array.as_primitive::<T>().value(row))
}

fn list(values: &ArrayRef, out: &mut Json) -> Result<()> {
    each(b'[', values.len(), b']', out, |row, out| write(values, row, out))
}

fn object(values: &StructArray, row: usize, out: &mut Json) -> Result<()> {
    let fields = values.fields();
    each(b'{', fields.len(), b'}', out, |member, out| {
        put(out, fields[member].name())?;
        out.data.push(b':');
        write(values.column(member), row, out)
    })
}

fn map(values: &MapArray, row: usize, out: &mut Json) -> Result<()> {
    let entries = values.value(row);
    let (keys, values) = (entries.column(0), entries.column(1));
    if matches!(keys.data_type(), DataType::LargeUtf8 | DataType::Utf8View) {
        return each(b'{', entries.len(), b'}', out, |entry, out| {
            if keys.is_null(entry) {
                return Err(corrupt("a map has a key that is null"));
            }
            write(keys, entry, out)?;
            out.data.push(b':');
            write(values, entry, out)
        });
    }
    each(b'[', entries.len(), b']', out, |entry, out| {
        out.data.push(b'[');
        write(keys, entry, out)?;
        out.data.push(b',');
        write(values, entry, out)?;
        out.data.push(b']');
        Ok(())
    })
}

/// Things with commas between them.
fn each(
    open: u8,
    count: usize,
    close: u8,
    out: &mut Json,
    mut one: impl FnMut(usize, &mut Json) -> Result<()>,
) -> Result<()> {
    out.data.push(open);
    for number in 0..count {
        if number > 0 {
            out.data.push(b',');
        }
        one(number, out)?;
        out.check()?;
    }
    out.data.push(close);
    Ok(())
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

fn bytes(value: &[u8], out: &mut Json) -> Result<()> {
    put(out, &STANDARD.encode(value))
}

fn put<T: Serialize + ?Sized>(out: &mut Json, value: &T) -> Result<()> {
    serde_json::to_writer(&mut out.data, value)
        .map_err(|error| Error::new(ErrorKind::Internal, OP, "no JSON").with_source(error))
}
