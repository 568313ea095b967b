//! Where the samples of one shard lie.
//!
//! A [`Table`] is made once, by a pass of a format over the bytes ([`TableBuilder`]) or from the manifest, and used ever after: with it,
//! reading a sample means reading a range, comparing its checksum, and slicing. Two layouts cover all formats:
//!
//! - [`Samples`]: every sample is one range of the shard (its *extent*, headers included), its fields are ranges within it;
//! - [`Groups`]: samples are rows of column groups that are decoded together (Parquet); in `groups.rs`.
//!
//! Offsets count in the shard as it is after decompression of a whole-shard codec. Fields are kept column by column, in 32 bits: a sample of
//! more than [`SAMPLE_BYTES_MAX`] is refused.

mod groups;

use std::ops::Range;

use forebay_core::{Crc32c, Error, ErrorKind, Result, Span};

pub(crate) use groups::chunks;
pub use groups::{CHUNKS_MAX, Footer, Group, Groups};

use crate::schema::{Field, Kind};

/// Longest sample: its fields are found by 32-bit offsets, of which the last value means "absent".
pub const SAMPLE_BYTES_MAX: u64 = u32::MAX as u64 - 1;

/// Most samples of one shard. A shard of 4 GiB of one-byte samples has that many; more is damage or an attack.
pub(crate) const SAMPLES_MAX: usize = u32::MAX as usize;

/// Most fields of one shard: a table has a column for each, and names in hostile tars are cheap.
pub(crate) const FIELDS_MAX: usize = 4096;

/// Most cells (samples times fields) of one shard: where each field of each sample lies takes 2 GiB then, which is as much as one section of a manifest
/// may have. A tar of a million samples could otherwise name a field of its own in each of 4,096 of them, and ask for 32 GiB.
pub(crate) const CELLS_MAX: usize = 1 << 28;

/// Most bytes that the keys of one shard take together.
pub(crate) const KEYS_BYTES_MAX: usize = 1 << 30;

/// Length of a field that the sample does not have.
const ABSENT: u32 = u32::MAX;

/// What one shard holds, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The fields its samples may have.
    pub fields: Vec<Field>,
    /// Where they are.
    pub layout: Layout,
}

/// The two ways samples lie in a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Layout {
    /// Each sample is a range.
    Samples(Samples),
    /// Samples are rows of groups.
    Groups(Groups),
}

/// Samples that are ranges, field by field.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Samples {
    /// Where each begins.
    pub starts: Vec<u64>,
    /// Bytes of each.
    pub lens: Vec<u32>,
    /// CRC-32C of each extent.
    pub crcs: Vec<u32>,
    /// What each is called.
    pub keys: Keys,
    /// One column for each field of the table.
    pub columns: Vec<Spans>,
}

/// Where one field lies in each sample.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Spans {
    starts: Vec<u32>,
    lens: Vec<u32>,
}

/// Names of samples.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Keys {
    /// The format has none: shard and number name a sample.
    #[default]
    Numbered,
    /// One after the other, with the end of each.
    Named {
        /// All keys, joined.
        text: String,
        /// Where each ends.
        ends: Vec<u32>,
    },
}

impl Keys {
    /// The key of sample `index`, where samples have keys.
    pub fn get(&self, index: usize) -> Option<&str> {
        let Self::Named { text, ends } = self else {
            return None;
        };
        let end = *ends.get(index)? as usize;
        let start = index.checked_sub(1).map_or(0, |before| ends[before] as usize);
        text.get(start..end)
    }

    fn push(&mut self, key: &str) -> Result<()> {
        if let Self::Numbered = self {
            *self = Self::Named {
                text: String::new(),
                ends: Vec::new(),
            };
        }
        if let Self::Named { text, ends } = self {
            if text.len() + key.len() > KEYS_BYTES_MAX {
                return Err(limit("the keys of one shard take more memory than they may"));
            }
            text.push_str(key);
            ends.push(text.len() as u32);
        }
        Ok(())
    }

    fn truncate(&mut self, count: usize) {
        if let Self::Named { text, ends } = self {
            ends.truncate(count);
            text.truncate(ends.last().map_or(0, |end| *end as usize));
        }
    }
}

impl Spans {
    /// From starts and lengths as they stand in a manifest; `u32::MAX` is the length of what is absent.
    pub fn from_parts(starts: Vec<u32>, lens: Vec<u32>) -> Result<Self> {
        if starts.len() == lens.len() {
            return Ok(Self { starts, lens });
        }
        Err(corrupt("a column has another number of starts than of lengths"))
    }

    /// Starts and lengths, as [`from_parts`](Self::from_parts) takes them.
    pub fn parts(&self) -> (&[u32], &[u32]) {
        (&self.starts, &self.lens)
    }

    /// Where the field lies in the extent of sample `index`; `None` where the sample does not have it.
    pub fn get(&self, index: usize) -> Option<Range<usize>> {
        let (start, len) = (*self.starts.get(index)?, *self.lens.get(index)?);
        (len != ABSENT).then(|| start as usize..start as usize + len as usize)
    }

    fn push_absent(&mut self) {
        self.starts.push(0);
        self.lens.push(ABSENT);
    }
}

impl Samples {
    /// How many.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// The bytes of sample `index`.
    pub fn extent(&self, index: usize) -> Option<Span> {
        let (start, len) = (*self.starts.get(index)?, *self.lens.get(index)?);
        Span::at(start, u64::from(len)).ok()
    }
}

impl Table {
    /// Number of samples.
    pub fn samples(&self) -> u64 {
        match &self.layout {
            Layout::Samples(samples) => samples.len() as u64,
            Layout::Groups(groups) => groups.list.iter().map(|group| group.samples).sum(),
        }
    }

    /// Refuse a table that does not hold together, or does not fit a shard of that many bytes. What passes cannot make a reader slice out of
    /// bounds.
    pub fn check(&self, shard_bytes: u64) -> Result<()> {
        if self.fields.len() > FIELDS_MAX {
            return Err(limit("more fields than a shard may have"));
        }
        match &self.layout {
            Layout::Samples(samples) => check_samples(samples, self.fields.len(), shard_bytes),
            Layout::Groups(groups) => groups.check(self.fields.len(), shard_bytes),
        }
    }
}

fn check_samples(samples: &Samples, fields: usize, shard_bytes: u64) -> Result<()> {
    let count = samples.len();
    check_cells(count, fields, CELLS_MAX)?;
    let keys_fit = match &samples.keys {
        Keys::Numbered => true,
        Keys::Named { text, ends } => {
            ends.len() == count
                && ends.is_sorted()
                && ends.last().is_none_or(|end| *end as usize == text.len())
                && ends.iter().all(|end| text.is_char_boundary(*end as usize))
        }
    };
    let lengths_agree = samples.lens.len() == count
        && samples.crcs.len() == count
        && samples.columns.len() == fields
        && samples
            .columns
            .iter()
            .all(|column| column.starts.len() == count && column.lens.len() == count);
    if !keys_fit || !lengths_agree {
        return Err(corrupt("the columns of a shard's table do not fit each other"));
    }
    let extents = samples.starts.iter().zip(&samples.lens);
    for (start, len) in extents.clone() {
        Span::at(*start, u64::from(*len))?;
    }
    check_order(
        extents.filter_map(|(start, len)| Span::at(*start, u64::from(*len)).ok()),
        shard_bytes,
    )?;
    for column in &samples.columns {
        let spans = column.starts.iter().zip(&column.lens).zip(&samples.lens);
        for ((start, len), extent) in spans {
            if *len != ABSENT && u64::from(*start) + u64::from(*len) > u64::from(*extent) {
                return Err(corrupt("a field lies outside its sample"));
            }
        }
    }
    Ok(())
}

fn check_cells(samples: usize, fields: usize, cells_max: usize) -> Result<()> {
    if samples
        .checked_mul(fields)
        .is_some_and(|cells| cells <= cells_max)
    {
        return Ok(());
    }
    Err(limit("more samples times fields than a shard may have")
        .with_hint("make shards of fewer samples, or with fewer different fields"))
}

/// Extents must not overlap, must ascend, and must end within the shard.
fn check_order(extents: impl Iterator<Item = Span>, shard_bytes: u64) -> Result<()> {
    let mut end = 0;
    for extent in extents {
        if extent.start() < end || extent.end() > shard_bytes {
            return Err(corrupt("a sample lies outside its shard or over another one"));
        }
        end = extent.end();
    }
    Ok(())
}

/// Makes a [`Table`] of [`Samples`] from one pass over a shard.
///
/// For each sample: [`begin`](Self::begin), then its bytes in order ([`absorb`](Self::absorb), headers included) and its fields
/// ([`field`](Self::field)) in any order, then [`end`](Self::end).
#[derive(Debug)]
pub struct TableBuilder {
    fields: Vec<Field>,
    samples: Samples,
    open: Option<Open>,
    cells_max: usize,
}

impl Default for TableBuilder {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

#[derive(Debug)]
struct Open {
    start: u64,
    len: u64,
    crc: Crc32c,
    /// Length and checksum at the last place where the sample might end.
    sealed: Option<(u64, Crc32c)>,
    /// What was said of fields: column, start in the shard, length.
    fields: Vec<(usize, u64, u64)>,
    /// All columns that were named are before this one.
    columns_end: usize,
}

impl TableBuilder {
    /// With fields that are known from the beginning.
    pub fn new(fields: Vec<Field>) -> Self {
        let columns = vec![Spans::default(); fields.len()];
        Self {
            fields,
            samples: Samples {
                columns,
                ..Samples::default()
            },
            open: None,
            cells_max: CELLS_MAX,
        }
    }

    /// Column of the field of that name, made when there is none yet.
    pub fn column(&mut self, name: &str, kind: impl FnOnce() -> Kind) -> Result<usize> {
        if let Some(index) = self.fields.iter().position(|field| field.name == name) {
            return Ok(index);
        }
        if self.fields.len() >= FIELDS_MAX {
            return Err(limit("more fields than a shard may have"));
        }
        check_cells(self.samples.len(), self.fields.len() + 1, self.cells_max)?;
        self.fields.push(Field::new(name, kind()));
        let mut column = Spans::default();
        for _ in 0..self.samples.len() {
            column.push_absent();
        }
        self.samples.columns.push(column);
        Ok(self.fields.len() - 1)
    }

    /// Drop all fields; the samples stay. For a format that finds out late that its shard has no fields but one for the whole sample.
    pub fn forget_fields(&mut self) {
        self.fields = Vec::new();
        self.samples.columns = Vec::new();
        if let Some(open) = &mut self.open {
            open.fields = Vec::new();
        }
    }

    /// A sample begins at offset `start`. Either all samples have keys or none.
    pub fn begin(&mut self, start: u64, key: Option<&str>) -> Result<()> {
        if self.samples.len() >= SAMPLES_MAX {
            return Err(limit("more samples than a shard may have"));
        }
        if let Some(key) = key {
            self.samples.keys.push(key)?;
        }
        self.open = Some(Open {
            start,
            len: 0,
            crc: Crc32c::default(),
            sealed: None,
            fields: Vec::new(),
            columns_end: 0,
        });
        Ok(())
    }

    /// True between `begin` and `end`.
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The next bytes of the open sample; without one, nothing happens.
    pub fn absorb(&mut self, bytes: &[u8]) {
        if let Some(open) = &mut self.open {
            open.crc.update(bytes);
            open.len += bytes.len() as u64;
        }
    }

    /// The open sample has a field at that offset of the shard.
    pub fn field(&mut self, column: usize, start: u64, len: u64) -> Result<()> {
        let Some(open) = &mut self.open else {
            return Err(corrupt("a field outside of any sample"));
        };
        // Most formats name columns in their order; then nobody needs to search, were there thousands of them.
        let is_later = column >= open.columns_end;
        if !is_later && open.fields.iter().any(|(known, ..)| *known == column) {
            let name = self.fields.get(column).map_or("", |field| &field.name);
            let message = format!("field '{}' is in one sample twice", name.escape_debug());
            return Err(corrupt(&message));
        }
        open.columns_end = open.columns_end.max(column.saturating_add(1));
        open.fields.push((column, start, len));
        Ok(())
    }

    /// The open sample may end here: bytes absorbed from now on are its own only when it is sealed again behind them.
    ///
    /// For formats that tell the end of a sample by what comes next.
    pub fn seal(&mut self) {
        if let Some(open) = &mut self.open {
            open.sealed = Some((open.len, open.crc.clone()));
        }
    }

    /// Forget the open sample.
    pub fn discard(&mut self) {
        if self.open.take().is_some() {
            self.samples.keys.truncate(self.samples.len());
        }
    }

    /// The open sample ends after the bytes absorbed so far, or where it was last sealed.
    pub fn end(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else {
            return Err(corrupt("a sample ends that did not begin"));
        };
        if let Some((len, crc)) = open.sealed.take() {
            (open.len, open.crc) = (len, crc);
        }
        if open.len > SAMPLE_BYTES_MAX {
            return Err(limit("a sample is longer than 4 GiB"));
        }
        check_cells(self.samples.len() + 1, self.samples.columns.len(), self.cells_max)?;
        for column in &mut self.samples.columns {
            column.push_absent();
        }
        let row = self.samples.len();
        for (column, start, len) in open.fields {
            let inside = start
                .checked_sub(open.start)
                .filter(|at| at.checked_add(len).is_some_and(|end| end <= open.len));
            let (Some(at), Some(column)) = (inside, self.samples.columns.get_mut(column)) else {
                return Err(corrupt("a field lies outside its sample"));
            };
            column.starts[row] = at as u32;
            column.lens[row] = len as u32;
        }
        self.samples.starts.push(open.start);
        self.samples.lens.push(open.len as u32);
        self.samples.crcs.push(open.crc.value());
        Ok(())
    }

    /// Samples that are complete.
    pub fn samples(&self) -> usize {
        self.samples.len()
    }

    /// The table. An open sample is an error: its end was never seen.
    pub fn finish(self) -> Result<Table> {
        if self.open.is_some() {
            return Err(corrupt("the shard ends within a sample"));
        }
        Ok(Table {
            fields: self.fields,
            layout: Layout::Samples(self.samples),
        })
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read table", message)
}

fn limit(message: &str) -> Error {
    Error::new(ErrorKind::LimitExceeded, "read table", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::crc32c;

    fn two_samples() -> TableBuilder {
        let mut builder = TableBuilder::new(vec![Field::new("a", Kind::Bytes)]);
        builder.begin(10, Some("x")).unwrap();
        builder.absorb(b"hea");
        builder.absorb(b"dabc");
        builder.field(0, 14, 3).unwrap();
        builder.end().unwrap();
        builder.begin(20, Some("yy")).unwrap();
        let late = builder.column("b", || Kind::Text).unwrap();
        builder.field(late, 20, 2).unwrap();
        builder.absorb(b"zz");
        builder.end().unwrap();
        builder
    }

    #[test]
    fn a_table_says_where_everything_is() {
        let table = two_samples().finish().unwrap();
        table.check(22).unwrap();
        assert!(table.check(21).is_err());
        let Layout::Samples(samples) = &table.layout else {
            unreachable!()
        };
        assert_eq!(samples.extent(0), Span::at(10, 7).ok());
        assert_eq!(samples.crcs, [crc32c(b"headabc"), crc32c(b"zz")]);
        assert_eq!(
            (samples.keys.get(0), samples.keys.get(1)),
            (Some("x"), Some("yy"))
        );
        assert_eq!(samples.columns[0].get(0), Some(4..7));
        assert_eq!(samples.columns[0].get(1), None);
        assert_eq!(samples.columns[1].get(0), None);
        assert_eq!(samples.columns[1].get(1), Some(0..2));
    }

    #[test]
    fn a_sample_ends_where_it_was_sealed_or_is_forgotten() {
        let mut builder = two_samples();
        builder.begin(30, Some("forgotten")).unwrap();
        builder.absorb(b"q");
        builder.discard();
        builder.begin(40, Some("z")).unwrap();
        builder.absorb(b"ab");
        builder.seal();
        builder.absorb(b"c");
        builder.seal();
        builder.absorb(b"defg");
        builder.end().unwrap();
        let table = builder.finish().unwrap();
        table.check(43).unwrap();
        let Layout::Samples(samples) = &table.layout else {
            unreachable!()
        };
        assert_eq!(samples.extent(2), Span::at(40, 3).ok());
        assert_eq!(samples.crcs[2], crc32c(b"abc"));
        assert_eq!(samples.keys.get(2), Some("z"));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mut builder = two_samples();
        builder.begin(30, Some("z")).unwrap();
        builder.field(0, 29, 1).unwrap();
        assert!(builder.end().is_err(), "begins before its sample");
        let mut builder = two_samples();
        builder.begin(30, Some("z")).unwrap();
        builder.absorb(b"q");
        builder.field(0, 30, u64::MAX).unwrap();
        assert!(builder.end().is_err(), "ends behind it");
        let mut builder = two_samples();
        builder.begin(30, Some("z")).unwrap();
        builder.field(1, 30, 0).unwrap();
        assert!(builder.field(1, 30, 0).is_err(), "twice");
        assert!(builder.finish().is_err(), "never ended");
    }

    #[test]
    fn a_field_of_its_own_for_every_sample_takes_no_more_memory_than_allowed() {
        let mut builder = TableBuilder {
            cells_max: 100,
            ..TableBuilder::default()
        };
        let add = |builder: &mut TableBuilder, name: &str| {
            builder.begin(0, None)?;
            let column = builder.column(name, || Kind::Bytes)?;
            builder.field(column, 0, 0)?;
            builder.end()
        };
        for index in 0..10 {
            add(&mut builder, &format!("f{index}")).unwrap();
        }
        // Ten by ten: neither one more field fits, nor one more sample.
        let wide = add(&mut builder, "f10").unwrap_err();
        assert_eq!(wide.kind(), ErrorKind::LimitExceeded);
        builder.discard();
        let long = add(&mut builder, "f0").unwrap_err();
        assert_eq!(
            (long.kind(), long.hint().is_some()),
            (ErrorKind::LimitExceeded, true)
        );
        assert_eq!(builder.samples(), 10);
        let cells: usize = builder
            .samples
            .columns
            .iter()
            .map(|column| column.starts.len())
            .sum();
        assert!(cells <= 100, "{cells}");
        assert!(check_cells(1 << 16, 1 << 12, CELLS_MAX).is_ok());
        assert!(check_cells((1 << 16) + 1, 1 << 12, CELLS_MAX).is_err());
        assert!(check_cells(usize::MAX, 2, CELLS_MAX).is_err());
    }

    #[test]
    fn a_table_that_does_not_hold_together_is_refused() {
        let table = two_samples().finish().unwrap();
        let spoil = |spoil: fn(&mut Samples)| {
            let mut table = table.clone();
            let Layout::Samples(samples) = &mut table.layout else {
                unreachable!()
            };
            spoil(samples);
            table.check(22).unwrap_err()
        };
        spoil(|samples| samples.starts[1] = 16);
        spoil(|samples| samples.starts[0] = u64::MAX);
        spoil(|samples| samples.crcs.truncate(1));
        spoil(|samples| samples.columns[0].lens[0] = 4);
        spoil(|samples| samples.columns[0].starts[0] = u32::MAX);
        spoil(|samples| samples.columns.truncate(1));
        spoil(|samples| {
            if let Keys::Named { ends, .. } = &mut samples.keys {
                ends[0] = 9;
            }
        });
    }
}
