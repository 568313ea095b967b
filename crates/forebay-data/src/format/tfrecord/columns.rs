//! The features of a shard as columns of its table.
//!
//! A field has one kind in the whole shard, and the first record does not know it yet. So plain values are noted first; when a record comes that needs
//! the message of the list, the column is noted as messages from there on; at the end the rows before it are widened, which takes nothing but
//! arithmetic, since a plain value has one tag and one length before it.

use std::collections::HashMap;

use forebay_core::{Error, ErrorKind, Result};

use super::example::{Feature, List};
use super::{HEAD_BYTES, Lists, RECORD_FIELD, TAIL_BYTES};
use crate::schema::{Dtype, Field, Kind};
use crate::table::{Layout, Spans, Table, TableBuilder};

/// Places of a table for features that a record does not have: so many for each it has, beside [`ABSENT_FREE`]. A few records with thousands of names must
/// not make every empty record behind them cost a row of that width.
const ABSENT_PER_FEATURE_MAX: u64 = 64;

/// Absent features that nobody counts; they take 128 MiB.
const ABSENT_FREE: u64 = 1 << 24;

/// The columns so far.
#[derive(Debug)]
pub(super) struct Columns {
    by_name: HashMap<Box<str>, usize>,
    states: Vec<ColumnState>,
    lists: Lists,
    /// Features that records have.
    present: u64,
}

#[derive(Debug)]
struct ColumnState {
    list: List,
    /// All its rows are noted as messages.
    is_listed: bool,
    /// First row that is noted as a message; all before are plain values.
    listed_from: Option<usize>,
    row_first: usize,
    row_last: usize,
}

impl Columns {
    /// With features that are noted as their messages.
    pub(super) fn new(lists: Lists) -> Self {
        Self {
            by_name: HashMap::new(),
            states: Vec::new(),
            lists,
            present: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Note the features of the record whose data begins at `data`. Gives the reason why the record is no Example, where that shows only now.
    pub(super) fn note(
        &mut self,
        builder: &mut TableBuilder,
        record: &[u8],
        features: &[Feature],
        data: u64,
    ) -> Result<Option<&'static str>> {
        let row = builder.samples();
        for feature in features {
            let name = record.get(feature.name.clone()).unwrap_or_default();
            let Ok(name) = std::str::from_utf8(name) else {
                return Ok(Some("a name that is not UTF-8"));
            };
            let (column, is_new) = match self.by_name.get(name) {
                Some(column) => (*column, false),
                None => (self.add(builder, name, feature.list, row)?, true),
            };
            let Some(state) = self.states.get_mut(column) else {
                continue;
            };
            if !is_new && state.row_last == row {
                return Ok(Some("a feature is there twice"));
            }
            if state.list != feature.list {
                return Err(mixed(name, state, feature.list, row));
            }
            state.row_last = row;
            if state.is_listed || !feature.is_plain {
                state.listed_from.get_or_insert(row);
            }
            let range = feature.range.start as u64..feature.range.end as u64;
            let range = match state.listed_from {
                Some(_) if feature.is_plain => state.list.message_of(range),
                _ => range,
            };
            builder.field(column, data + range.start, range.end - range.start)?;
            self.present += 1;
        }
        self.check_width(row as u64 + 1)?;
        Ok(None)
    }

    fn add(&mut self, builder: &mut TableBuilder, name: &str, list: List, row: usize) -> Result<usize> {
        let column = builder.column(name, || kind_of(list, false))?;
        self.by_name.insert(name.into(), column);
        self.states.push(ColumnState {
            list,
            is_listed: self.lists.has(name),
            listed_from: None,
            row_first: row,
            row_last: row,
        });
        self.check_width(row as u64)?;
        Ok(column)
    }

    fn check_width(&self, rows: u64) -> Result<()> {
        let places = rows.saturating_mul(self.states.len() as u64);
        let absent = places.saturating_sub(self.present);
        if absent <= ABSENT_FREE.saturating_add(self.present.saturating_mul(ABSENT_PER_FEATURE_MAX)) {
            return Ok(());
        }
        let message = "records have so few of the shard's features that its table would be mostly empty";
        Err(Error::new(ErrorKind::LimitExceeded, "read table", message))
    }

    /// Give every column one kind.
    pub(super) fn settle(&self, table: &mut Table) -> Result<()> {
        let Layout::Samples(samples) = &mut table.layout else {
            return Ok(());
        };
        let columns = samples.columns.iter_mut().zip(&mut table.fields);
        for ((column, field), state) in columns.zip(&self.states) {
            let Some(listed_from) = state.listed_from else {
                continue;
            };
            field.kind = kind_of(state.list, true);
            let (starts, lens) = column.parts();
            let (mut starts, mut lens) = (starts.to_vec(), lens.to_vec());
            for row in state.row_first..listed_from.min(starts.len()) {
                if let Some(range) = column.get(row) {
                    let range = state.list.message_of(range.start as u64..range.end as u64);
                    starts[row] = range.start as u32;
                    lens[row] = (range.end - range.start) as u32;
                }
            }
            *column = Spans::from_parts(starts, lens)?;
        }
        Ok(())
    }
}

/// Make every sample of a table one field, its record.
pub(super) fn give_records(table: &mut Table) {
    if let Layout::Samples(samples) = &mut table.layout {
        let around = (HEAD_BYTES + TAIL_BYTES) as u32;
        let lens: Vec<u32> = samples
            .lens
            .iter()
            .map(|len| len.saturating_sub(around))
            .collect();
        let starts = vec![HEAD_BYTES as u32; lens.len()];
        samples.columns = Spans::from_parts(starts, lens).into_iter().collect();
        table.fields = vec![Field::new(RECORD_FIELD, Kind::Bytes)];
    }
}

fn kind_of(list: List, is_listed: bool) -> Kind {
    let encoded = |encoding: &str| Kind::Encoded {
        encoding: encoding.to_owned(),
    };
    match (list, is_listed) {
        (List::Bytes, false) => Kind::Bytes,
        (List::Floats, false) => Kind::List {
            dtype: Dtype::Float32,
        },
        (List::Ints, false) => Kind::Varints,
        (List::Bytes, true) => encoded("tf:bytes_list"),
        (List::Floats, true) => encoded("tf:float_list"),
        (List::Ints, true) => encoded("tf:int64_list"),
        (List::Features, _) => encoded("tf:feature_list"),
    }
}

fn mixed(name: &str, state: &ColumnState, list: List, row: usize) -> Error {
    let message = format!(
        "feature '{}' is a {} in record {row}, but a {} in record {}",
        name.escape_debug(),
        list.name(),
        state.list.name(),
        state.row_first
    );
    Error::new(ErrorKind::Corrupt, "read table", message)
}
