//! Columns of a shard that become what the data set calls them, where that is something else.

use forebay_core::{Error, ErrorKind, Result};

use super::{Block, Column, Rows, Shape};
use crate::schema::{Dtype, Field};

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

fn refused(own: &Field, message: String) -> Error {
    let name = own.name.escape_debug();
    Error::new(ErrorKind::Unsupported, "read block", message).within(format_args!("column '{name}'"))
}
