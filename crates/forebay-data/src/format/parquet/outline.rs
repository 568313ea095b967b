//! What the statistics of the footer tell of a column in a row group.
//!
//! They are used only where the order they were made with is the one values are compared with: not where an old writer compared
//! unsigned values and text as signed bytes, not for decimals and timestamps that are kept as bytes, not for lists.

use arrow_schema::DataType;
use parquet::basic::ColumnOrder;
use parquet::file::statistics::Statistics;

use super::footer::File;
use crate::filter::{Outline, Value};
use crate::schema::{Dtype, Kind};

impl File {
    pub(super) fn outline_of(&self, group: usize, column: usize) -> Outline<'_> {
        if let Some(constant) = self.constant(column) {
            return constant.outline();
        }
        let (Some(leaf), Some(rows)) = (self.leaves.get(column), self.groups.get(group)) else {
            return Outline::UNKNOWN;
        };
        let Ok((chunk, _)) = self.chunk(group, leaf.index) else {
            return Outline::UNKNOWN;
        };
        if leaf.is_repeated {
            return Outline::UNKNOWN;
        }
        let nulls = chunk.statistics().and_then(Statistics::null_count_opt);
        let may_be_null = chunk.column_descr().max_def_level() > 0;
        let mut outline = Outline {
            low: None,
            high: None,
            may_have_nulls: may_be_null && nulls != Some(0),
            may_have_values: rows.rows > 0 && nulls.is_none_or(|nulls| nulls < rows.rows),
        };
        let order = self.metadata.file_metadata().column_order(leaf.index);
        // A date that was widened, and any other value that is not decoded to what is stored.
        let is_stored = leaf.data_type != DataType::Date64;
        if let Some(statistics) = chunk.statistics().filter(|_| is_stored)
            && let Some((low, high)) = ends(statistics, &leaf.field.kind, order)
        {
            (outline.low, outline.high) = (low, high);
        }
        outline
    }
}

type Ends<'a> = (Option<Value<'a>>, Option<Value<'a>>);

fn ends<'a>(statistics: &'a Statistics, kind: &Kind, order: ColumnOrder) -> Option<Ends<'a>> {
    let is_old =
        statistics.is_min_max_deprecated() || matches!(order, ColumnOrder::UNDEFINED | ColumnOrder::UNKNOWN);
    let dtype = match kind {
        Kind::Array { dtype, shape } if shape.is_empty() => Some(*dtype),
        _ => None,
    };
    Some(match (statistics, dtype) {
        (Statistics::Boolean(ends), Some(Dtype::Bool)) if !is_old => (
            ends.min_opt().copied().map(Value::Bool),
            ends.max_opt().copied().map(Value::Bool),
        ),
        (Statistics::Int32(ends), Some(dtype)) => {
            let value = |value: &i32| int(i64::from(*value), u64::from(*value as u32), dtype, is_old);
            (ends.min_opt().and_then(value), ends.max_opt().and_then(value))
        }
        (Statistics::Int64(ends), Some(dtype)) => {
            let value = |value: &i64| int(*value, *value as u64, dtype, is_old);
            (ends.min_opt().and_then(value), ends.max_opt().and_then(value))
        }
        (Statistics::Float(ends), Some(Dtype::Float32)) => floats(
            ends.min_opt().map(|value| f64::from(*value)),
            ends.max_opt().map(|value| f64::from(*value)),
        ),
        (Statistics::Double(ends), Some(Dtype::Float64)) => {
            floats(ends.min_opt().copied(), ends.max_opt().copied())
        }
        (Statistics::ByteArray(ends), None) if !is_old && matches!(kind, Kind::Text | Kind::Bytes) => (
            ends.min_opt().map(|value| Value::Bytes(value.data())),
            ends.max_opt().map(|value| Value::Bytes(value.data())),
        ),
        _ => return None,
    })
}

fn int(signed: i64, unsigned: u64, dtype: Dtype, is_old: bool) -> Option<Value<'static>> {
    match dtype {
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => Some(Value::Int(signed.into())),
        Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 if !is_old => {
            Some(Value::Int(unsigned.into()))
        }
        _ => None,
    }
}

/// NaN as an end says nothing of either.
fn floats(low: Option<f64>, high: Option<f64>) -> Ends<'static> {
    if low.is_some_and(f64::is_nan) || high.is_some_and(f64::is_nan) {
        return (None, None);
    }
    (low.map(Value::Float), high.map(Value::Float))
}
