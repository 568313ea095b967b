//! From Arrow arrays to columns of a block, without copying where Arrow's buffers have the layout already.
//!
//! Arrays of numbers, fixed-size binaries, lists and bytes with 64-bit offsets lie in one buffer, which the column takes over. Copied are truth values (bits
//! become bytes), views, decimals that shrink to 64 bits, and what comes in several batches.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ArrowPrimitiveType, ByteArrayType, ByteViewType, Decimal128Type, Float16Type, Float32Type, Float64Type,
};
use arrow_array::{
    Array, ArrayRef, GenericByteArray, GenericByteViewArray, GenericListArray, OffsetSizeTrait,
    PrimitiveArray, StructArray,
};
use arrow_buffer::{ArrowNativeType, Buffer, NullBuffer};
use arrow_schema::DataType;
use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result};

use super::OP;
use super::columns::{DECIMAL_DIGITS_MAX, dtype_of};
use super::json::Json;
use crate::block::{Column, Shape};

/// A column being put together from batches.
#[derive(Debug)]
pub(in crate::format) struct Joined {
    column: Option<Column>,
    rows: usize,
    bytes_max: u64,
    is_json: bool,
}

impl Joined {
    /// Nothing yet; more than `bytes_max` of it is refused.
    pub(in crate::format) fn new(bytes_max: u64) -> Self {
        Self {
            column: None,
            rows: 0,
            bytes_max,
            is_json: false,
        }
    }

    /// The same of values that become JSON.
    pub(in crate::format) fn json(bytes_max: u64) -> Self {
        Self {
            is_json: true,
            ..Self::new(bytes_max)
        }
    }

    /// The next rows, with those that have none. What is refused here has grown by one batch beyond the bound.
    pub(in crate::format) fn add(&mut self, array: &ArrayRef, nulls: Option<NullBuffer>) -> Result<()> {
        let rows = array.len();
        let column = if self.is_json {
            json_column(array, self.bytes_max)?
        } else {
            column_of(array, self.bytes_max)?
        };
        let added = Part { nulls, column };
        self.join(added, rows)?;
        self.rows += rows;
        Ok(())
    }

    fn join(&mut self, part: Part, rows: usize) -> Result<()> {
        let mut column = part.column;
        if let Some(nulls) = part.nulls.filter(|nulls| nulls.null_count() > 0) {
            column.present = Some(nulls.iter().collect());
        }
        let Some(before) = &mut self.column else {
            self.column = Some(column);
            return self.check();
        };
        let mut data = Vec::from(std::mem::take(&mut before.data));
        let base = data.len() as u64;
        data.extend_from_slice(&column.data);
        before.data = Bytes::from(data);
        match (&mut before.shape, column.shape) {
            (Shape::Ends(ends), Shape::Ends(more)) => ends.extend(more.iter().skip(1).map(|end| base + end)),
            (Shape::Fixed(width), Shape::Fixed(more)) if *width == more => {}
            _ => {
                return Err(Error::new(ErrorKind::Internal, OP, "batches of two layouts"));
            }
        }
        if before.present.is_some() || column.present.is_some() {
            let present = before.present.get_or_insert_with(|| vec![true; self.rows]);
            match column.present {
                Some(more) => present.extend(more),
                None => present.resize(present.len() + rows, true),
            }
        }
        self.check()
    }

    fn check(&self) -> Result<()> {
        let bytes = self.column.as_ref().map_or(0, |column| column.data.len() as u64);
        if bytes <= self.bytes_max {
            return Ok(());
        }
        Err(too_large(self.bytes_max))
    }

    /// The column, of as many rows as were expected.
    pub(in crate::format) fn finish(self, rows: u64) -> Result<Column> {
        if self.rows as u64 != rows {
            return Err(corrupt(&format!("it has {} rows instead of {rows}", self.rows)));
        }
        Ok(self.column.unwrap_or_else(absent))
    }
}

struct Part {
    nulls: Option<NullBuffer>,
    column: Column,
}

/// A column that no row has a value of.
pub(in crate::format) fn absent() -> Column {
    Column {
        data: Bytes::new(),
        shape: Shape::Fixed(0),
        present: Some(Vec::new()),
    }
}

/// The only leaf of nested structs, and which rows have it: a null struct has no members.
pub(in crate::format) fn innermost(batch: &StructArray) -> Result<(ArrayRef, Option<NullBuffer>)> {
    let mut nulls = batch.nulls().cloned();
    let mut members = batch.columns();
    loop {
        let [member] = members else {
            return Err(corrupt("it was decoded to several columns"));
        };
        nulls = NullBuffer::union(nulls.as_ref(), member.logical_nulls().as_ref());
        match member.as_struct_opt() {
            Some(inner) => members = inner.columns(),
            None => return Ok((member.clone(), nulls)),
        }
    }
}

fn column_of(array: &ArrayRef, bytes_max: u64) -> Result<Column> {
    match array.data_type() {
        DataType::Utf8 => bytes_column(array.as_string::<i32>()),
        DataType::Binary => bytes_column(array.as_binary::<i32>()),
        DataType::LargeUtf8 => bytes_column(array.as_string::<i64>()),
        DataType::LargeBinary => bytes_column(array.as_binary::<i64>()),
        DataType::Utf8View => view_column(array.as_string_view(), bytes_max),
        DataType::BinaryView => view_column(array.as_binary_view(), bytes_max),
        DataType::List(_) => list_column(array.as_list::<i32>()),
        DataType::LargeList(_) => list_column(array.as_list::<i64>()),
        _ => {
            let (data, width) = fixed(array)?;
            Ok(column(data, Shape::Fixed(width)))
        }
    }
}

fn column(data: Bytes, shape: Shape) -> Column {
    Column {
        data,
        shape,
        present: None,
    }
}

/// Arrow's buffer as the owner of bytes.
struct Owner(Buffer);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

fn bytes_of(buffer: Buffer) -> Bytes {
    Bytes::from_owner(Owner(buffer))
}

/// Values of a fixed width in one buffer, and that width.
fn fixed(array: &ArrayRef) -> Result<(Bytes, usize)> {
    match array.data_type() {
        DataType::Boolean => {
            let bits = array.as_boolean().values();
            let bytes: Vec<u8> = bits.iter().map(u8::from).collect();
            Ok((Bytes::from(bytes), 1))
        }
        DataType::Decimal128(digits, _) if *digits <= DECIMAL_DIGITS_MAX => narrow(array),
        DataType::FixedSizeList(_, len) => fixed_list(array, usize::try_from(*len).unwrap_or(0)),
        DataType::FixedSizeBinary(len) => slice(array, usize::try_from(*len).unwrap_or(0)),
        other => match other.primitive_width() {
            Some(width) => slice(array, width),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                OP,
                format!("it was decoded to {other}"),
            )),
        },
    }
}

/// The buffer of an array of that width, cut to its rows.
fn slice(array: &ArrayRef, width: usize) -> Result<(Bytes, usize)> {
    let data = array.to_data();
    let range = data
        .offset()
        .checked_mul(width)
        .zip(data.len().checked_mul(width));
    match (data.buffers().first(), range) {
        (Some(buffer), Some((start, len)))
            if start.checked_add(len).is_some_and(|end| end <= buffer.len()) =>
        {
            Ok((bytes_of(buffer.slice_with_length(start, len)), width))
        }
        (None, Some((_, 0))) => Ok((Bytes::new(), width)),
        _ => Err(corrupt("it was decoded to fewer bytes than it has rows")),
    }
}

fn narrow(array: &ArrayRef) -> Result<(Bytes, usize)> {
    let values = array.as_primitive::<Decimal128Type>();
    let mut bytes = Vec::with_capacity(values.len() * 8);
    for value in values.values() {
        let value =
            i64::try_from(*value).map_err(|_| corrupt("a decimal has more digits than its column"))?;
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    Ok((Bytes::from(bytes), 8))
}

fn fixed_list(array: &ArrayRef, len: usize) -> Result<(Bytes, usize)> {
    let list = array.as_fixed_size_list();
    let values = list.values();
    let total = list.len().checked_mul(len).filter(|total| *total <= values.len());
    let total = total.ok_or_else(|| corrupt("its lists are not all of one size"))?;
    let start = list.value_offset_at(0).min(values.len() - total);
    let values = with_nans(values.slice(start, total));
    if let Some(nulls) = values.nulls().filter(|nulls| nulls.null_count() > 0) {
        let has_null = |row: usize| (row * len..row * len + len).any(|index| nulls.is_null(index));
        if (0..list.len()).any(|row| list.is_valid(row) && has_null(row)) {
            return Err(null_element());
        }
    }
    let (data, width) = fixed(&values)?;
    Ok((data, width * len))
}

fn list_column<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<Column> {
    let offsets: Vec<usize> = list.value_offsets().iter().map(|end| end.as_usize()).collect();
    let (Some(first), Some(last)) = (offsets.first().copied(), offsets.last().copied()) else {
        return Ok(column(Bytes::new(), Shape::Ends(vec![0])));
    };
    let values = list.values();
    if first > last || last > values.len() {
        return Err(corrupt("its lists lie outside of its values"));
    }
    let values = with_nans(values.slice(first, last - first));
    if dtype_of(values.data_type()).is_none() {
        return Err(corrupt("its lists are of another type than the schema says"));
    }
    if let Some(nulls) = values.nulls().filter(|nulls| nulls.null_count() > 0) {
        // What a list holds that is null itself is nobody's.
        let mut lists = offsets.iter().zip(offsets.iter().skip(1)).enumerate();
        let has_null = |start: usize, end: usize| (start..end).any(|item| nulls.is_null(item - first));
        if lists.any(|(row, (start, end))| list.is_valid(row) && has_null(*start, *end)) {
            return Err(null_element());
        }
    }
    let (data, width) = fixed(&values)?;
    let ends = offsets
        .iter()
        .map(|end| end.saturating_sub(first) as u64 * width as u64);
    Ok(column(data, Shape::Ends(ends.collect())))
}

/// Elements of lists, with NaN for those that are null, as whoever makes a numpy array of them has it. What is not of floats has nothing to stand for them.
fn with_nans(values: ArrayRef) -> ArrayRef {
    type Half = <Float16Type as ArrowPrimitiveType>::Native;
    fn filled<T: ArrowPrimitiveType>(values: &ArrayRef, nan: T::Native) -> ArrayRef {
        let values = values.as_primitive::<T>().iter();
        let filled = values.map(|value| value.unwrap_or(nan));
        Arc::new(PrimitiveArray::<T>::from_iter_values(filled))
    }
    match values.data_type() {
        _ if values.null_count() == 0 => values,
        DataType::Float16 => filled::<Float16Type>(&values, Half::NAN),
        DataType::Float32 => filled::<Float32Type>(&values, f32::NAN),
        DataType::Float64 => filled::<Float64Type>(&values, f64::NAN),
        _ => values,
    }
}

fn bytes_column<T: ByteArrayType>(array: &GenericByteArray<T>) -> Result<Column> {
    let offsets = array.value_offsets();
    let (Some(first), Some(last)) = (offsets.first(), offsets.last()) else {
        return Ok(column(Bytes::new(), Shape::Ends(vec![0])));
    };
    let (first, last) = (first.as_usize(), last.as_usize());
    let buffer = array.values();
    if first > last || last > buffer.len() {
        return Err(corrupt("its values lie outside of their buffer"));
    }
    let ends = offsets
        .iter()
        .map(|end| end.as_usize().saturating_sub(first) as u64);
    let data = bytes_of(buffer.slice_with_length(first, last - first));
    Ok(column(data, Shape::Ends(ends.collect())))
}

/// Views may repeat one value in many rows: what they become is counted before it is copied.
fn view_column<T: ByteViewType>(array: &GenericByteViewArray<T>, bytes_max: u64) -> Result<Column> {
    // The low 32 bits of a view are the length of its value.
    let total: u64 = array.views().iter().map(|view| *view as u64 & 0xffff_ffff).sum();
    if total > bytes_max {
        return Err(too_large(bytes_max));
    }
    let mut data = Vec::with_capacity(total as usize);
    let mut ends = Vec::with_capacity(array.len() + 1);
    ends.push(0);
    for row in 0..array.len() {
        if array.is_valid(row) {
            let value: &[u8] = array.value(row).as_ref();
            data.extend_from_slice(value);
        }
        ends.push(data.len() as u64);
    }
    Ok(column(Bytes::from(data), Shape::Ends(ends)))
}

/// Values as JSON. A row without a value has none; JSON is never empty.
fn json_column(array: &ArrayRef, bytes_max: u64) -> Result<Column> {
    let mut json = Json::new(bytes_max);
    let mut ends = vec![0];
    let nulls = array.logical_nulls();
    for row in 0..array.len() {
        if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)) {
            json.add(array, row)?;
        }
        ends.push(json.len() as u64);
    }
    Ok(column(Bytes::from(json.into_bytes()), Shape::Ends(ends)))
}

pub(in crate::format) fn too_large(bytes_max: u64) -> Error {
    let message = format!("it becomes more than {bytes_max} bytes when it is decoded");
    Error::new(ErrorKind::LimitExceeded, OP, message)
}

fn null_element() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        OP,
        "a list has a null in it, for which its type has no value",
    )
    .with_hint("leave the column out, or write its lists without nulls, or as floats, where they are NaN")
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}
