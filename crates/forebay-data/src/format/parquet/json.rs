//! Values that no kind but JSON has a word for, one at a time: lists of lists, of text, of structs, and maps.
//!
//! Numbers, truth values and text are what they are in JSON; what is not finite is `null`. Bytes are base64. Dates and times are the integers they are stored as, as outside of
//! lists; decimals are numbers with all their digits. Structs, and maps whose keys are text, are objects; other maps are lists of pairs.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, Decimal128Type, Decimal256Type, DecimalType, Float16Type, Float32Type, Float64Type,
    Int8Type, Int16Type, Int32Type, Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType,
    IntervalYearMonthType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, MapArray, StructArray};
use arrow_buffer::ArrowNativeType;
use arrow_schema::{DataType, IntervalUnit};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::convert::too_large;

/// Values one after the other. A value of a dictionary may stand in one row any number of times, so that what it has grown to is looked at between values.
#[derive(Debug)]
pub(super) struct Json {
    data: Vec<u8>,
    bytes_max: u64,
}

impl Json {
    /// None yet; more than `bytes_max` are refused.
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            data: Vec::new(),
            bytes_max,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.data.len()
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// Append the value of a row.
    pub(super) fn add(&mut self, array: &dyn Array, row: usize) -> Result<()> {
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
        DataType::LargeUtf8 => put(out, array.as_string::<i64>().value(row)),
        DataType::Utf8View => put(out, array.as_string_view().value(row)),
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
        DataType::Decimal128(digits, scale) => {
            let value = array.as_primitive::<Decimal128Type>().value(row);
            out.data
                .extend_from_slice(Decimal128Type::format_decimal(value, *digits, *scale).as_bytes());
            Ok(())
        }
        DataType::Decimal256(digits, scale) => {
            let value = array.as_primitive::<Decimal256Type>().value(row);
            out.data
                .extend_from_slice(Decimal256Type::format_decimal(value, *digits, *scale).as_bytes());
            Ok(())
        }
        other => time(array, other, row, out),
    }
}

fn time(array: &dyn Array, data_type: &DataType, row: usize, out: &mut Json) -> Result<()> {
    match data_type {
        DataType::Date32 | DataType::Time32(_) => stored::<i32>(array, row, out),
        DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_) => {
            stored::<i64>(array, row, out)
        }
        DataType::Interval(unit) => interval(array, *unit, row, out),
        other => {
            let message = format!("values of type {other} in it cannot be written as JSON");
            Err(Error::new(ErrorKind::Unsupported, "read parquet", message))
        }
    }
}

fn interval(array: &dyn Array, unit: IntervalUnit, row: usize, out: &mut Json) -> Result<()> {
    #[derive(Serialize)]
    struct Interval {
        months: i32,
        days: i32,
        nanoseconds: i64,
    }
    let value = match unit {
        IntervalUnit::YearMonth => Interval {
            months: array.as_primitive::<IntervalYearMonthType>().value(row),
            days: 0,
            nanoseconds: 0,
        },
        IntervalUnit::DayTime => {
            let value = array.as_primitive::<IntervalDayTimeType>().value(row);
            Interval {
                months: 0,
                days: value.days,
                nanoseconds: i64::from(value.milliseconds) * 1_000_000,
            }
        }
        IntervalUnit::MonthDayNano => {
            let value = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
            Interval {
                months: value.months,
                days: value.days,
                nanoseconds: value.nanoseconds,
            }
        }
    };
    put(out, &value)
}

fn plain<T>(array: &dyn Array, row: usize, out: &mut Json) -> Result<()>
where
    T: ArrowPrimitiveType,
    T::Native: Serialize,
{
    put(out, &array.as_primitive::<T>().value(row))
}

/// The integer that a time is stored as, whatever its unit.
fn stored<T: ArrowNativeType + Serialize>(array: &dyn Array, row: usize, out: &mut Json) -> Result<()> {
    let data = array.to_data();
    put(out, &data.buffer::<T>(0).get(row))
}

fn list(values: &ArrayRef, out: &mut Json) -> Result<()> {
    each(b'[', values.len(), b']', out, |row, out| write(values, row, out))
}

fn object(values: &StructArray, row: usize, out: &mut Json) -> Result<()> {
    let names = values.column_names();
    each(b'{', names.len(), b'}', out, |member, out| {
        put(out, names[member])?;
        out.data.push(b':');
        write(values.column(member), row, out)
    })
}

fn map(values: &MapArray, row: usize, out: &mut Json) -> Result<()> {
    let entries = values.value(row);
    let (keys, values) = (entries.column(0), entries.column(1));
    if matches!(keys.data_type(), DataType::LargeUtf8 | DataType::Utf8View) {
        return each(b'{', entries.len(), b'}', out, |entry, out| {
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

fn bytes(value: &[u8], out: &mut Json) -> Result<()> {
    put(out, &STANDARD.encode(value))
}

fn put<T: Serialize + ?Sized>(out: &mut Json, value: &T) -> Result<()> {
    serde_json::to_writer(&mut out.data, value)
        .map_err(|error| Error::new(ErrorKind::Internal, "read parquet", "no JSON").with_source(error))
}
