//! Rows behind a table of offsets: what MDS shards and LitData chunks have in common.
//!
//! ```text
//! u32 N | u32 offsets[N+1], absolute | header | row 0 | row 1 | ...
//! row: one u32 length for each column of variable size | values of all columns
//! ```
//!
//! [`Rows`] takes the bytes in pieces of any size. When the header is complete, its reader says what columns there are; from then on each row is
//! split by its lengths and nothing of it is kept. Everything the table claims is compared before it is used: offsets ascend, rows are as
//! long as their columns, the shard is as long as the last offset. Memory follows the bytes that came, not the numbers in them.

use forebay_core::{Error, ErrorKind, Result};

use crate::schema::Field;
use crate::table::{Table, TableBuilder};

/// Most rows of one shard: the table of offsets is kept (256 MiB at this many). A shard has at most 4 GiB, so more would be rows of less than 64
/// bytes in the largest of shards.
pub(crate) const ROWS_MAX: u32 = 1 << 26;

/// Longest header: the configuration of a shard with thousands of columns takes less.
pub(crate) const HEADER_BYTES_MAX: u64 = 4 << 20;

/// Bytes of a number in the table, and of a length in a row.
const WORD_BYTES: usize = 4;

/// What stands before the rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header<'a> {
    /// Bytes between the table of offsets and the first row.
    pub(crate) bytes: &'a [u8],
    /// How many rows there are.
    pub(crate) rows: u32,
    /// Length of the shard, as the last offset says.
    pub(crate) end: u32,
}

/// How rows are made.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) fields: Vec<Field>,
    pub(crate) row: Row,
}

/// How one row is made.
#[derive(Debug)]
pub(crate) enum Row {
    /// Of columns.
    Columns(Vec<ColumnSize>),
    /// Of one value, without a length before it.
    Whole,
    /// Of that many bytes each, cut out of all rows as if they were one; what is left at the end is none.
    Cut(u32),
}

/// How many bytes a value of a column has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnSize {
    /// That many, and rows do not say so.
    Fixed(u32),
    /// What the row says.
    Said,
    /// What the row says, and it must say that.
    SaidAs(u32),
}

/// Reads a header and says what it means for the rows.
pub(crate) type HeaderReader = Box<dyn FnOnce(Header<'_>) -> Result<Plan> + Send>;

/// A pass over such a shard.
pub(crate) struct Rows {
    op: &'static str,
    reader: Option<HeaderReader>,
    phase: Phase,
    /// Offset of the next byte.
    at: u64,
    /// What came of the number, the header or the lengths that are not complete yet.
    partial: Vec<u8>,
    count: u32,
    offsets: Vec<u32>,
    /// Where the last row ends, by the table.
    end: u32,
    builder: TableBuilder,
    layout: RowLayout,
    /// Row that is read now; `count` when all are complete.
    row: usize,
    /// Its fields are placed: what is left of it are values.
    is_placed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Count,
    Offsets,
    Header,
    Rows,
}

/// [`Row`], with what is the same in every row counted once.
#[derive(Debug, Default)]
struct RowLayout {
    columns: Vec<ColumnSize>,
    is_whole: bool,
    /// Bytes of the lengths in front.
    head_bytes: u64,
    /// Fewest bytes a row can have.
    bytes_min: u64,
}

impl RowLayout {
    fn of(row: Row) -> Self {
        let Row::Columns(columns) = row else {
            return Self {
                is_whole: true,
                ..Self::default()
            };
        };
        let sizes = columns.iter().map(|size| match size {
            ColumnSize::Fixed(bytes) => (0, u64::from(*bytes)),
            ColumnSize::Said => (WORD_BYTES as u64, 0),
            ColumnSize::SaidAs(bytes) => (WORD_BYTES as u64, u64::from(*bytes)),
        });
        let (head_bytes, fixed) = sizes.fold((0, 0), |sum, size| (sum.0 + size.0, sum.1 + size.1));
        Self {
            columns,
            is_whole: false,
            head_bytes,
            bytes_min: head_bytes + fixed,
        }
    }
}

impl Rows {
    /// Before the first byte. `op` is what errors say was being done.
    pub(crate) fn new(op: &'static str, reader: HeaderReader) -> Self {
        Self {
            op,
            reader: Some(reader),
            phase: Phase::Count,
            at: 0,
            partial: Vec::new(),
            count: 0,
            offsets: Vec::new(),
            end: 0,
            builder: TableBuilder::default(),
            layout: RowLayout::default(),
            row: 0,
            is_placed: false,
        }
    }

    /// The next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        loop {
            self.settle()?;
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = match self.phase {
                Phase::Count => self.take_count(bytes)?,
                Phase::Offsets => self.take_offsets(bytes)?,
                Phase::Header => self.take_partial(bytes, self.header_bytes()),
                Phase::Rows => self.take_row(bytes)?,
            };
            self.at += taken as u64;
            bytes = bytes.get(taken..).unwrap_or_default();
        }
    }

    /// There are no more bytes.
    pub(crate) fn finish(self) -> Result<Table> {
        if self.phase == Phase::Rows && self.row == self.count as usize && self.at == u64::from(self.end()) {
            return self.builder.finish();
        }
        let place = match self.phase {
            Phase::Count => "in the number of its samples".to_owned(),
            Phase::Offsets => format!("in its table of {} offsets", u64::from(self.count) + 1),
            Phase::Header => "in its header".to_owned(),
            Phase::Rows => format!(
                "in sample {} of {}; its table says it has {} bytes",
                self.row,
                self.count,
                self.end()
            ),
        };
        Err(self.corrupt(&format!("the shard ends at byte {}, {place}", self.at)))
    }

    /// Where the last row ends, once the table says so.
    pub(crate) fn end_known(&self) -> Option<u64> {
        matches!(self.phase, Phase::Header | Phase::Rows).then(|| self.end().into())
    }

    /// Go on as far as the bytes that came allow.
    fn settle(&mut self) -> Result<()> {
        if self.phase == Phase::Header && self.partial.len() as u64 == self.header_bytes() {
            self.read_header()?;
        }
        while self.phase == Phase::Rows && self.row < self.count as usize {
            if !self.builder.is_open() {
                self.begin_row()?;
            }
            if !self.is_placed && self.partial.len() as u64 == self.layout.head_bytes {
                self.place()?;
            }
            if !self.is_placed || self.at < self.offset(self.row + 1) {
                return Ok(());
            }
            self.builder.end()?;
            self.row += 1;
        }
        Ok(())
    }

    fn take_count(&mut self, bytes: &[u8]) -> Result<usize> {
        let taken = self.take_partial(bytes, WORD_BYTES as u64);
        if let Some(count) = word(&self.partial) {
            if table_end(count) > u64::from(u32::MAX) {
                let message = format!("a table of offsets for {count} samples would not fit into a shard");
                return Err(self.corrupt(&message));
            }
            if count > ROWS_MAX {
                let message = format!("the shard says it has {count} samples, more than {ROWS_MAX}");
                return Err(Error::new(ErrorKind::LimitExceeded, self.op, message));
            }
            self.count = count;
            self.partial.clear();
            self.phase = Phase::Offsets;
        }
        Ok(taken)
    }

    fn take_offsets(&mut self, bytes: &[u8]) -> Result<usize> {
        let wanted = self.count as usize + 1;
        let mut taken = 0;
        while self.offsets.len() < wanted && taken < bytes.len() {
            taken += self.take_partial(bytes.get(taken..).unwrap_or_default(), WORD_BYTES as u64);
            if let Some(offset) = word(&self.partial) {
                self.push_offset(offset)?;
                self.partial.clear();
            }
        }
        if self.offsets.len() == wanted {
            self.phase = Phase::Header;
        }
        Ok(taken)
    }

    fn push_offset(&mut self, offset: u32) -> Result<()> {
        let number = self.offsets.len();
        let before = match self.offsets.last() {
            Some(last) => u64::from(*last),
            None => table_end(self.count),
        };
        let Some(beyond) = u64::from(offset).checked_sub(before) else {
            let message = format!("offset {number} is {offset}, before byte {before}, its earliest place");
            return Err(self.corrupt(&message));
        };
        if number == 0 && beyond > HEADER_BYTES_MAX {
            let message = format!("the header in front of the samples would have {beyond} bytes");
            return Err(Error::new(ErrorKind::LimitExceeded, self.op, message));
        }
        self.offsets.push(offset);
        self.end = offset;
        Ok(())
    }

    fn read_header(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.partial);
        let Some(reader) = self.reader.take() else {
            return Err(Error::new(ErrorKind::Internal, self.op, "a header is read twice"));
        };
        let plan = reader(Header {
            bytes: &bytes,
            rows: self.count,
            end: self.end(),
        })?;
        self.builder = TableBuilder::new(plan.fields);
        if let Row::Cut(bytes) = plan.row {
            self.cut(bytes)?;
        }
        self.layout = RowLayout::of(plan.row);
        self.phase = Phase::Rows;
        Ok(())
    }

    /// Have rows of so many bytes in place of those of the table.
    fn cut(&mut self, bytes: u32) -> Result<()> {
        let start = self.offset(0);
        let rows = u64::from(self.end).saturating_sub(start) / u64::from(bytes.max(1));
        let count = u32::try_from(rows).ok().filter(|rows| *rows <= ROWS_MAX);
        let Some(count) = count else {
            let message = format!("the shard would have {rows} samples, more than {ROWS_MAX}");
            return Err(Error::new(ErrorKind::LimitExceeded, self.op, message));
        };
        self.count = count;
        self.offsets = (0..=count).map(|row| start as u32 + row * bytes).collect();
        Ok(())
    }

    fn begin_row(&mut self) -> Result<()> {
        let (start, end) = (self.offset(self.row), self.offset(self.row + 1));
        let len = end.saturating_sub(start);
        if len < self.layout.bytes_min {
            let message = format!(
                "sample {} at byte {start} has {len} bytes, but its columns take at least {}",
                self.row, self.layout.bytes_min
            );
            return Err(self.corrupt(&message));
        }
        self.is_placed = false;
        self.builder.begin(start, None)
    }

    fn take_row(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.row == self.count as usize && self.at < u64::from(self.end()) {
            // What is too short to be a row.
            return Ok(bytes.len().min((u64::from(self.end()) - self.at) as usize));
        }
        let left = if self.row < self.count as usize {
            self.offset(self.row + 1).saturating_sub(self.at)
        } else {
            0
        };
        if left == 0 {
            let message = format!(
                "there are bytes after byte {}, where the last sample ends",
                self.end()
            );
            return Err(self.corrupt(&message));
        }
        let taken = if self.is_placed {
            bytes.len().min(left as usize)
        } else {
            self.take_partial(bytes, self.layout.head_bytes)
        };
        self.builder.absorb(bytes.get(..taken).unwrap_or_default());
        Ok(taken)
    }

    /// The lengths of the open row are complete: say where its fields are.
    fn place(&mut self) -> Result<()> {
        let (start, end) = (self.offset(self.row), self.offset(self.row + 1));
        self.is_placed = true;
        if self.layout.is_whole {
            return self.builder.field(0, start, end - start);
        }
        let mut at = start + self.layout.head_bytes;
        let mut lens = self.partial.chunks_exact(WORD_BYTES).filter_map(word);
        for (column, size) in self.layout.columns.iter().enumerate() {
            let len = match size {
                ColumnSize::Fixed(bytes) => *bytes,
                ColumnSize::Said | ColumnSize::SaidAs(_) => lens.next().unwrap_or_default(),
            };
            if let ColumnSize::SaidAs(bytes) = size
                && *bytes != len
            {
                let message = format!(
                    "value {column} of sample {} at byte {start} has {len} bytes, not {bytes}",
                    self.row
                );
                return Err(self.corrupt(&message));
            }
            let len = u64::from(len);
            self.builder.field(column, at, len)?;
            at += len;
        }
        if at != end {
            let message = format!(
                "the columns of sample {} at byte {start} end at byte {at}, the sample at byte {end}",
                self.row
            );
            return Err(self.corrupt(&message));
        }
        self.partial.clear();
        Ok(())
    }

    /// Keep bytes until there are `wanted` of them.
    fn take_partial(&mut self, bytes: &[u8], wanted: u64) -> usize {
        let missing = (wanted as usize).saturating_sub(self.partial.len());
        let taken = missing.min(bytes.len());
        self.partial
            .extend_from_slice(bytes.get(..taken).unwrap_or_default());
        taken
    }

    fn offset(&self, index: usize) -> u64 {
        self.offsets.get(index).map_or(0, |offset| u64::from(*offset))
    }

    fn header_bytes(&self) -> u64 {
        self.offset(0).saturating_sub(table_end(self.count))
    }

    fn end(&self) -> u32 {
        self.end
    }

    fn corrupt(&self, message: &str) -> Error {
        Error::new(ErrorKind::Corrupt, self.op, message)
    }
}

/// Where the table of offsets ends.
fn table_end(count: u32) -> u64 {
    (u64::from(count) + 2) * WORD_BYTES as u64
}

/// A number of the table, when its bytes are complete.
fn word(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_le_bytes)
}
