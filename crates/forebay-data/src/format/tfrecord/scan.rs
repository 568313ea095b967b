//! The pass over a shard: records are checked, and their features become columns of the table.
//!
//! A record goes through three states, head (length and its checksum), data, tail (checksum of the data), each fed from pieces of any size. The
//! data is looked at in place where one piece holds all of it, and collected otherwise, as far as it came: never by what the length claims.

use forebay_core::{Crc32c, Error, ErrorKind, Result};

use super::columns::{Columns, give_records};
use super::example::{self, Feature};
use super::{DATA_BYTES_MAX, HEAD_BYTES, Lists, Records, TAIL_BYTES, length_of, mask};
use crate::format::Scan;
use crate::table::{Table, TableBuilder};

/// Longest record that is looked at as an Example: protobuf messages end there.
const EXAMPLE_BYTES_MAX: u64 = i32::MAX as u64;

/// A pass over a shard.
#[derive(Debug)]
pub(super) struct RecordScan {
    state: State,
    /// Where the record begins that is being read.
    offset: u64,
    /// Bytes of its data.
    length: u64,
    /// Checksum of its data so far.
    crc: Crc32c,
    builder: TableBuilder,
    columns: Columns,
    records: Records,
    /// Why the shard is not one of Examples, where it is not.
    refusal: Option<&'static str>,
    /// Data of a record that came in pieces.
    data: Vec<u8>,
    features: Vec<Feature>,
    /// What is wrong with the features of the record, said once its checksum is known to hold.
    trouble: Option<Error>,
}

#[derive(Debug)]
enum State {
    Head {
        head: [u8; HEAD_BYTES],
        len: usize,
    },
    Data {
        left: u64,
        is_collected: bool,
    },
    Tail {
        tail: [u8; TAIL_BYTES],
        len: usize,
        crc: u32,
    },
}

const START: State = State::Head {
    head: [0; HEAD_BYTES],
    len: 0,
};

impl RecordScan {
    pub(super) fn new(records: Records, lists: Lists) -> Self {
        Self {
            state: START,
            offset: 0,
            length: 0,
            crc: Crc32c::default(),
            builder: TableBuilder::default(),
            columns: Columns::new(lists),
            records,
            refusal: (records == Records::Raw).then_some("records are asked for"),
            data: Vec::new(),
            features: Vec::new(),
            trouble: None,
        }
    }

    /// One step: how many bytes it took.
    fn step(&mut self, bytes: &[u8]) -> Result<usize> {
        match &mut self.state {
            State::Head { head, len } => {
                let taken = fill(head, len, bytes);
                if *len == HEAD_BYTES {
                    let head = *head;
                    self.begin(head)?;
                }
                Ok(taken)
            }
            State::Data { left, .. } => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                self.take_data(&bytes[..taken]);
                Ok(taken)
            }
            State::Tail { tail, len, crc } => {
                let taken = fill(tail, len, bytes);
                if *len == TAIL_BYTES {
                    let (tail, crc) = (*tail, *crc);
                    self.end(tail, crc)?;
                }
                Ok(taken)
            }
        }
    }

    fn begin(&mut self, head: [u8; HEAD_BYTES]) -> Result<()> {
        let Some(length) = length_of(&head) else {
            return Err(self
                .corrupt("the checksum of a record's length does not hold")
                .with_hint("either this is no TFRecord file, or it is damaged from here on"));
        };
        if length > DATA_BYTES_MAX {
            let message = format!(
                "a record of {length} bytes at offset {} is longer than a sample may be",
                self.offset
            );
            return Err(Error::new(ErrorKind::LimitExceeded, "read tfrecord", message));
        }
        self.builder.begin(self.offset, None)?;
        self.builder.absorb(&head);
        self.state = State::Data {
            left: length,
            is_collected: false,
        };
        self.crc = Crc32c::default();
        self.length = length;
        self.data.clear();
        if length > EXAMPLE_BYTES_MAX && self.refusal.is_none() {
            self.refusal = Some("it is longer than a protobuf message");
            self.builder.forget_fields();
        }
        Ok(())
    }

    fn take_data(&mut self, bytes: &[u8]) {
        let State::Data { left, is_collected } = &mut self.state else {
            return;
        };
        self.crc.update(bytes);
        self.builder.absorb(bytes);
        *left -= bytes.len() as u64;
        let is_whole = *left == 0;
        if self.refusal.is_none() && (*is_collected || !is_whole) {
            self.data.extend_from_slice(bytes);
            *is_collected = true;
        }
        if !is_whole {
            return;
        }
        let is_collected = *is_collected;
        if self.refusal.is_none() {
            // Lent for the call: the record may be in it.
            let data = std::mem::take(&mut self.data);
            self.look(if is_collected { &data } else { bytes });
            self.data = data;
        }
        self.state = State::Tail {
            tail: [0; TAIL_BYTES],
            len: 0,
            crc: self.crc.value(),
        };
    }

    /// Find the features of a whole record.
    fn look(&mut self, record: &[u8]) {
        self.features.clear();
        self.refusal = match example::find(record, &mut self.features) {
            Ok(true) => None,
            Ok(false) => Some("it has no field that an Example has"),
            Err(why) => Some(why),
        };
        if self.refusal.is_none() {
            let data = self.offset + HEAD_BYTES as u64;
            match self.columns.note(&mut self.builder, record, &self.features, data) {
                Ok(refusal) => self.refusal = refusal,
                Err(error) => self.trouble = Some(error),
            }
        }
        if self.refusal.is_some() {
            self.builder.forget_fields();
        }
    }

    fn end(&mut self, tail: [u8; TAIL_BYTES], crc: u32) -> Result<()> {
        self.builder.absorb(&tail);
        if u32::from_le_bytes(tail) != mask(crc) {
            return Err(self.corrupt("the checksum of a record's data does not hold"));
        }
        if let Some(error) = self.trouble.take() {
            return Err(self.place(&error));
        }
        match self.refusal {
            Some(why) if self.records == Records::Examples => {
                let message = format!("the record is no Example: {why}");
                return Err(self
                    .corrupt(&message)
                    .with_hint("read the records raw if they are something else"));
            }
            _ => {}
        }
        self.builder.end()?;
        self.offset += self.length + (HEAD_BYTES + TAIL_BYTES) as u64;
        self.state = START;
        Ok(())
    }

    fn corrupt(&self, message: &str) -> Error {
        let message = format!(
            "{message} (record {} at offset {})",
            self.builder.samples(),
            self.offset
        );
        Error::new(ErrorKind::Corrupt, "read tfrecord", message)
    }

    fn place(&self, error: &Error) -> Error {
        let message = format!(
            "{} (record {} at offset {})",
            error.message(),
            self.builder.samples(),
            self.offset
        );
        Error::new(error.kind(), "read tfrecord", message)
            .with_hint("records can be read raw, without looking into them")
    }
}

/// Copy bytes to the free part of `into`: how many.
fn fill(into: &mut [u8], len: &mut usize, bytes: &[u8]) -> usize {
    let free = &mut into[*len..];
    let taken = free.len().min(bytes.len());
    free[..taken].copy_from_slice(&bytes[..taken]);
    *len += taken;
    taken
}

impl Scan for RecordScan {
    fn has_sums(&self) -> bool {
        true
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        loop {
            // A record without data has nothing to wait for.
            if let State::Data { left: 0, .. } = self.state {
                self.take_data(&[]);
            }
            if bytes.is_empty() {
                return Ok(());
            }
            let taken = self.step(bytes)?;
            bytes = &bytes[taken..];
        }
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        if !matches!(self.state, State::Head { len: 0, .. }) {
            return Err(self.corrupt("the file ends within a record"));
        }
        let is_raw = self.refusal.is_some() || self.columns.is_empty();
        if let (Some(why), Records::Auto) = (self.refusal, self.records) {
            tracing::debug!(why, "records are handed out whole");
        }
        let mut table = self.builder.finish()?;
        if is_raw {
            give_records(&mut table);
        } else {
            self.columns.settle(&mut table)?;
        }
        Ok(table)
    }
}
