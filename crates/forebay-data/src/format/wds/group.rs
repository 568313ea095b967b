//! Members become samples: consecutive ones of one key are one.

use forebay_core::{Error, ErrorKind, Result};

use super::names::{self, FIELD_BAD, FIELDS_RESERVED};
use super::scan::{OP, corrupt, shown};
use crate::table::{SAMPLE_BYTES_MAX, Table, TableBuilder};

/// Makes the table of a shard from its members.
#[derive(Debug, Default)]
pub(super) struct Grouper {
    builder: TableBuilder,
    sample: Sample,
    census: Census,
}

/// A regular file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    pub(super) name: &'a str,
    /// Where its headers begin.
    pub(super) start: u64,
    /// Where its data begin.
    pub(super) data_start: u64,
    pub(super) size: u64,
    /// Bytes of its data with their padding.
    pub(super) size_padded: u64,
}

/// The sample that is open.
#[derive(Debug, Default)]
struct Sample {
    key: String,
    start: u64,
    columns: Vec<usize>,
    is_bad: bool,
}

/// Which fields all samples have.
#[derive(Debug, Default)]
struct Census {
    samples: u64,
    /// Samples that have the field, by column.
    counts: Vec<u64>,
}

impl Census {
    fn count(&mut self, columns: &[usize]) {
        self.samples += 1;
        for column in columns {
            if *column >= self.counts.len() {
                self.counts.resize(column + 1, 0);
            }
            if let Some(count) = self.counts.get_mut(*column) {
                *count += 1;
            }
        }
    }

    /// True when a sample of these fields lacks one that all the others have.
    fn is_short(&self, columns: &[usize]) -> bool {
        let mut counts = self.counts.iter().enumerate();
        self.samples > 0 && counts.any(|(column, count)| *count == self.samples && !columns.contains(&column))
    }
}

impl Grouper {
    /// A member begins: true when it is a field of a sample, which is open from then on.
    pub(super) fn begin(&mut self, member: Member<'_>) -> Result<bool> {
        let Some((key, field)) = names::field_of(member.name) else {
            return Ok(false);
        };
        if !self.builder.is_open() || key != self.sample.key {
            self.open(key, member.start)?;
        }
        self.take_field(member, &field.to_lowercase())?;
        Ok(true)
    }

    /// Bytes of headers, data or padding. They belong to the open sample when a field of it ends behind them.
    pub(super) fn absorb(&mut self, bytes: &[u8]) {
        self.builder.absorb(bytes);
    }

    /// A field ends, with its padding.
    pub(super) fn end_field(&mut self) {
        self.builder.seal();
    }

    /// Without end blocks, a shard that was cut between two members looks whole. What all samples have, the last one has too.
    pub(super) fn check_last(&self, shard_bytes: u64) -> Result<()> {
        if !self.builder.is_open() || self.sample.is_bad || !self.census.is_short(&self.sample.columns) {
            return Ok(());
        }
        let message = format!(
            "the shard ends at byte {shard_bytes} without an end block, and sample '{}' lacks fields that all others have",
            shown(&self.sample.key)
        );
        Err(corrupt(message).with_hint("it was cut off; fetch or write it anew"))
    }

    /// The table.
    pub(super) fn finish(mut self) -> Result<Table> {
        self.close()?;
        self.builder.finish()
    }

    fn open(&mut self, key: &str, start: u64) -> Result<()> {
        self.close()?;
        self.builder.begin(start, Some(key))?;
        self.sample.key.clear();
        self.sample.key.push_str(key);
        self.sample.start = start;
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if !self.builder.is_open() {
            return Ok(());
        }
        if self.sample.is_bad {
            self.builder.discard();
        } else {
            self.builder.end()?;
            self.census.count(&self.sample.columns);
        }
        self.sample.columns.clear();
        self.sample.is_bad = false;
        Ok(())
    }

    fn take_field(&mut self, member: Member<'_>, field: &str) -> Result<()> {
        if FIELDS_RESERVED.contains(&field) {
            return Err(member.error("is a field of a name that is reserved"));
        }
        let before = member.data_start - self.sample.start;
        if before.saturating_add(member.size_padded) > SAMPLE_BYTES_MAX {
            let message = format!(
                "with member '{}' at byte {} of {} bytes, its sample has more than 4 GiB",
                shown(member.name),
                member.start,
                member.size
            );
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let column = self.builder.column(field, || names::kind_of(field))?;
        if self.sample.columns.contains(&column) {
            let error = member.error("is in its sample twice");
            return Err(
                error.with_hint("each field of a sample needs a name of its own; case does not count")
            );
        }
        self.sample.columns.push(column);
        self.sample.is_bad |= field == FIELD_BAD && member.size > 0;
        self.builder.field(column, member.data_start, member.size)
    }
}

impl Member<'_> {
    fn error(&self, wrong: &str) -> Error {
        let name = shown(self.name);
        corrupt(format!("member '{name}' at byte {} {wrong}", self.start))
    }
}
