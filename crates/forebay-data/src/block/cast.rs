//! Columns of a shard that become what the data set calls them, where that is something else.

use forebay_core::{Error, ErrorKind, Result};

use super::{Block, Column, Rows, Shape};
use crate::schema::{Dtype, Field};

/// Integers up to this magnitude have a `float64` that is equal to them, each its own.
const EXACT_MAX: u64 = 1 << 53;

/// The `float64` that is equal to an integer, and to no other.
pub(crate) fn exact_float(number: i128) -> Option<f64> {
    (number.unsigned_abs() <= u128::from(EXACT_MAX)).then_some(number as f64)
}

/// Bytes of an `int64`, and of a `float64`.
const NUMBER_BYTES: usize = 8;

impl Block {
    /// With the columns of these numbers as these fields.
    pub(crate) fn cast(mut self, casts: &[(usize, Field)]) -> Result<Self> {
        let (Rows::Columns(columns), false) = (&mut self.rows, casts.is_empty()) else {
            return Ok(self);
        };
        let mut fields = self.table.fields.clone();
        for (index, field) in casts {
            let (Some(column), Some(own)) = (columns.get_mut(*index), fields.get_mut(*index)) else {
                continue;
            };
            if let Some(dtype) = field.list_in_place_of(own) {
                *column = numbers_of(column, self.samples, dtype).ok_or_else(|| {
                    let message = "a list has a null in it, and lists of other shards have integers";
                    refused(own, message.to_owned())
                        .with_hint("leave the column out, or write its lists without nulls")
                })?;
            } else if field.widens(own) {
                *column = floats_of(column, self.samples).map_err(|number| {
                    let message =
                        format!("{number} has no float64 of its own, which the numbers of other shards are");
                    refused(own, message).with_hint("leave the column out, or write its values as text")
                })?;
            }
            own.clone_from(field);
        }
        self.cast_fields = Some(fields.into());
        Ok(self)
    }
}

/// Lists of nulls that are JSON, `[null,null]`, as lists of numbers: NaN for each; `None` where the type has none.
fn numbers_of(json: &Column, rows: usize, dtype: Dtype) -> Option<Column> {
    let (mut data, mut ends, mut present) = (Vec::new(), vec![0], Vec::with_capacity(rows));
    for row in 0..rows {
        let list = json.get(row);
        let nulls = list.map_or(0, |list| list.split(|byte| *byte == b'n').count() - 1);
        if nulls > 0 {
            data.extend_from_slice(&dtype.nan()?.repeat(nulls));
        }
        ends.push(data.len() as u64);
        present.push(list.is_some());
    }
    Some(Column {
        data: data.into(),
        shape: Shape::Ends(ends),
        present: Some(present),
    })
}

/// `int64` as `float64` at the same places; one that would be rounded is the error.
fn floats_of(ints: &Column, rows: usize) -> Result<Column, i64> {
    let mut data = vec![0; ints.data.len()];
    for row in 0..rows {
        // Where there is no value may be any bytes.
        let Some(range) = ints.range(row) else {
            continue;
        };
        let (Some(from), Some(to)) = (ints.data.get(range.clone()), data.get_mut(range)) else {
            continue;
        };
        let numbers = from.chunks_exact(NUMBER_BYTES);
        for (number, place) in numbers.zip(to.chunks_exact_mut(NUMBER_BYTES)) {
            let number = number.try_into().map_or(0, i64::from_le_bytes);
            let float = exact_float(number.into()).ok_or(number)?;
            place.copy_from_slice(&float.to_le_bytes());
        }
    }
    Ok(Column {
        data: data.into(),
        shape: ints.shape.clone(),
        present: ints.present.clone(),
    })
}

fn refused(own: &Field, message: String) -> Error {
    let name = own.name.escape_debug();
    Error::new(ErrorKind::Unsupported, "read block", message).within(format_args!("column '{name}'"))
}
