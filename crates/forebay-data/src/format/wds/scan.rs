//! The pass over a tar: bytes in pieces of any size become members.
//!
//! A member begins with its headers: the one of its own, and before it those that say more about it (`x`, `L`, `K`). Their bytes are kept until
//! the member's name is known, for only then it is clear whether they belong to the open sample, to a new one or to none. Data are never kept:
//! they go through the checksum of the open sample and are forgotten.

use forebay_core::{Error, ErrorKind, Result};

use super::group::{Grouper, Member};
use super::header::{self, Header, Type};
use super::names;
use super::pax::Records;
use super::{BLOCK_BYTES, Block, padded};
use crate::format::Scan;
use crate::table::Table;

/// Longest data of a header that says more about a member. Names have at most a few thousand bytes; records may hold attributes of files too.
const EXTENSION_BYTES_MAX: u64 = 1 << 20;

/// Most bytes of headers before the data of one member: a name, a link, records, and some global records in between.
const HEADERS_BYTES_MAX: u64 = 4 * EXTENSION_BYTES_MAX;

/// Characters of a name that errors show.
const NAME_SHOWN_CHARS_MAX: usize = 200;

/// A pass over a WebDataset shard.
#[derive(Debug, Default)]
pub struct WdsScan {
    grouper: Grouper,
    state: State,
    /// Bytes taken so far.
    offset: u64,
    /// Headers of the member that begins, and where they begin.
    headers: Vec<u8>,
    member_start: u64,
    pending: Pending,
    global: Records,
    /// Name of the member whose data are read, for errors.
    name: String,
}

/// What the next bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum State {
    /// A header, of which the last bytes of `headers` from here on are known.
    #[default]
    Header,
    /// The data of a header, which begin at `at` of `headers`, and their padding.
    Extension {
        kind: Type,
        at: usize,
        size: u64,
        left: u64,
    },
    /// The data of a member, and their padding.
    Data { left: u64, is_field: bool },
    /// Blocks behind the first one of zeros, of which that many were whole.
    Tail { blocks: u64 },
}

/// What headers said about the next member.
#[derive(Debug, Default)]
struct Pending {
    records: Option<Records>,
    long_name: Option<Vec<u8>>,
    has_long_link: bool,
}

impl Pending {
    fn is_empty(&self) -> bool {
        self.records.is_none() && self.long_name.is_none() && !self.has_long_link
    }
}

impl Scan for WdsScan {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let taken = match self.state {
                State::Header | State::Tail { .. } => self.feed_block(bytes)?,
                State::Extension { left, .. } => self.feed_extension(bytes, left)?,
                State::Data { left, is_field } => self.feed_data(bytes, left, is_field),
            };
            bytes = bytes.get(taken..).unwrap_or_default();
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Table> {
        let at = self.offset;
        match self.state {
            State::Tail { blocks } => self.check_tail(blocks)?,
            State::Data { left, .. } => {
                let message = format!(
                    "the shard ends at byte {at}, inside member '{}', {left} bytes before its end",
                    shown(&self.name)
                );
                return Err(corrupt(message).with_hint("it was cut off; fetch or write it anew"));
            }
            State::Extension { .. } => {
                return Err(corrupt(format!(
                    "the shard ends at byte {at}, inside an extended header"
                )));
            }
            State::Header if at == 0 => {
                return Err(corrupt("the shard has no bytes").with_hint("even an empty tar has end blocks"));
            }
            State::Header if !self.headers.is_empty() => {
                return Err(corrupt(format!("the shard ends at byte {at}, inside a header")));
            }
            State::Header => self.grouper.check_last(at)?,
        }
        self.grouper.finish()
    }
}

impl WdsScan {
    /// Bytes of a header or of the tail, up to the end of a block.
    fn feed_block(&mut self, bytes: &[u8]) -> Result<usize> {
        let missing = BLOCK_BYTES - self.headers.len() % BLOCK_BYTES;
        let taken = missing.min(bytes.len());
        self.keep(bytes, taken);
        if taken < missing {
            return Ok(taken);
        }
        let Some(block) = self.headers.last_chunk::<BLOCK_BYTES>().copied() else {
            return Err(internal("a block of another size"));
        };
        match self.state {
            State::Tail { blocks } => self.end_tail_block(&block, blocks)?,
            _ => self.end_header(&block)?,
        }
        Ok(taken)
    }

    fn keep(&mut self, bytes: &[u8], taken: usize) {
        self.headers
            .extend_from_slice(bytes.get(..taken).unwrap_or_default());
        self.offset += taken as u64;
    }

    fn feed_extension(&mut self, bytes: &[u8], before: u64) -> Result<usize> {
        let taken = at_most(bytes, before);
        self.keep(bytes, taken);
        if let State::Extension { left, .. } = &mut self.state {
            *left -= taken as u64;
        }
        if taken as u64 == before {
            self.end_extension()?;
        }
        Ok(taken)
    }

    fn feed_data(&mut self, bytes: &[u8], before: u64, is_field: bool) -> usize {
        let taken = at_most(bytes, before);
        self.grouper.absorb(bytes.get(..taken).unwrap_or_default());
        self.offset += taken as u64;
        let left = before - taken as u64;
        self.state = State::Data { left, is_field };
        if left == 0 {
            self.end_data(is_field);
        }
        taken
    }

    /// A header is complete.
    fn end_header(&mut self, block: &Block) -> Result<()> {
        if block.iter().all(|byte| *byte == 0) {
            return self.end_archive();
        }
        let header = Header::parse(block).map_err(|wrong| self.header_error(wrong))?;
        match header.kind {
            Type::Records | Type::RecordsGlobal | Type::LongName | Type::LongLink => {
                self.begin_extension(&header)
            }
            Type::File => self.begin_file(&header),
            Type::Sparse => Err(self.sparse(&header.name())),
            Type::Dataless => self.begin_skipped(&header, 0),
            Type::Other => self.begin_skipped(&header, self.size_of(&header)),
        }
    }

    fn begin_extension(&mut self, header: &Header<'_>) -> Result<()> {
        let is_second = match header.kind {
            Type::Records => self.pending.records.is_some(),
            Type::LongName => self.pending.long_name.is_some(),
            Type::LongLink => self.pending.has_long_link,
            _ => false,
        };
        if is_second {
            return Err(self.header_error("says again what the one before it said about the same member"));
        }
        let left = padded(header.size).unwrap_or(u64::MAX);
        let kept = self.headers.len() as u64;
        if header.size > EXTENSION_BYTES_MAX || kept.saturating_add(left) > HEADERS_BYTES_MAX {
            let message = format!(
                "the extended header at byte {} is too long: {} bytes, and at most {EXTENSION_BYTES_MAX} are read",
                self.header_start(),
                header.size
            );
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        self.state = State::Extension {
            kind: header.kind,
            at: self.headers.len(),
            size: header.size,
            left,
        };
        if left == 0 {
            self.end_extension()?;
        }
        Ok(())
    }

    /// The data of an extended header are complete.
    fn end_extension(&mut self) -> Result<()> {
        let State::Extension { kind, at, size, .. } = self.state else {
            return Err(internal("an extended header ends that did not begin"));
        };
        self.state = State::Header;
        let start = self.member_start + at as u64 - BLOCK_BYTES as u64;
        let data = self
            .headers
            .get(at..at + size as usize)
            .ok_or_else(|| internal("data of an extended header are not there"))?;
        let records = |data| {
            Records::parse(data)
                .map_err(|wrong| corrupt(format!("the extended header at byte {start} {wrong}")))
        };
        match kind {
            Type::RecordsGlobal => {
                self.global.update(records(data)?);
                // It is of no single member; where it stands between a member and its headers, it stays with them.
                if self.pending.is_empty() {
                    self.grouper.absorb(&self.headers);
                    self.begin_member();
                }
            }
            Type::Records => self.pending.records = Some(records(data)?),
            Type::LongName => self.pending.long_name = Some(header::text(data).to_vec()),
            _ => self.pending.has_long_link = true,
        }
        Ok(())
    }

    /// A regular file: a field, where its name says so.
    fn begin_file(&mut self, header: &Header<'_>) -> Result<()> {
        let is_sparse = |records: &Records| records.is_sparse;
        if is_sparse(&self.global) || self.pending.records.as_ref().is_some_and(is_sparse) {
            return Err(self.sparse(&self.name_of(header)?));
        }
        let size = self.size_of(header);
        let name = String::from_utf8(self.name_of(header)?).or_else(|error| {
            // What stands for foreign bytes is neither dot nor slash: a member that is passed over is so under its own name too.
            let name = String::from_utf8_lossy(error.as_bytes());
            match names::field_of(&name) {
                Some(_) => Err(self.foreign(&name)),
                None => Ok(name.into_owned()),
            }
        })?;
        let left = self.data_left(&name, size)?;
        let is_field = self.grouper.begin(Member {
            name: &name,
            start: self.member_start,
            data_start: self.offset,
            size,
            size_padded: left,
        })?;
        self.begin_data(name, left, is_field);
        Ok(())
    }

    fn begin_skipped(&mut self, header: &Header<'_>, size: u64) -> Result<()> {
        let name = String::from_utf8_lossy(&self.name_of(header)?).into_owned();
        let left = self.data_left(&name, size)?;
        self.begin_data(name, left, false);
        Ok(())
    }

    fn begin_data(&mut self, name: String, left: u64, is_field: bool) {
        self.grouper.absorb(&self.headers);
        self.pending = Pending::default();
        self.name = name;
        self.state = State::Data { left, is_field };
        if left == 0 {
            self.end_data(is_field);
        }
    }

    fn end_data(&mut self, is_field: bool) {
        if is_field {
            self.grouper.end_field();
        }
        self.state = State::Header;
        self.begin_member();
    }

    fn begin_member(&mut self) {
        self.headers.clear();
        self.member_start = self.offset;
    }

    /// A block of zeros stands where a header could.
    fn end_archive(&mut self) -> Result<()> {
        if !self.pending.is_empty() {
            return Err(self
                .header_error("is the end of the archive, but an extended header before it has no member"));
        }
        self.state = State::Tail { blocks: 0 };
        self.begin_member();
        Ok(())
    }

    /// The block behind the first one of zeros must be of zeros too, as far as it is there.
    fn check_tail(&self, blocks: u64) -> Result<()> {
        if blocks > 0 || self.headers.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let message = format!(
            "a single block of zeros before byte {}: two of them end an archive, and none is inside",
            self.member_start
        );
        Err(corrupt(message))
    }

    /// What is behind the end must be padding. A member there would be lost without a word.
    fn end_tail_block(&mut self, block: &Block, blocks: u64) -> Result<()> {
        self.check_tail(blocks)?;
        let start = self.header_start();
        if header::has_checksum(block) {
            let message = format!("a member at byte {start}, behind the end of the archive");
            return Err(corrupt(message)
                .with_hint("two archives were joined, or a part was overwritten by zeros; pack it anew"));
        }
        self.state = State::Tail { blocks: blocks + 1 };
        self.headers.clear();
        Ok(())
    }

    fn name_of(&self, header: &Header<'_>) -> Result<Vec<u8>> {
        let by_records = self
            .pending
            .records
            .as_ref()
            .and_then(|records| records.path.as_ref());
        match (by_records, &self.pending.long_name) {
            (Some(_), Some(_)) => {
                Err(self.header_error("has two names before it, and readers disagree which one is its own"))
            }
            (None, Some(name)) => Ok(name.clone()),
            (by_records, None) => Ok(match by_records.or(self.global.path.as_ref()) {
                Some(path) => without_slashes(path).to_vec(),
                None => header.name(),
            }),
        }
    }

    fn size_of(&self, header: &Header<'_>) -> u64 {
        let records = self.pending.records.as_ref();
        let by_records = records.and_then(|records| records.size);
        by_records.or(self.global.size).unwrap_or(header.size)
    }

    /// Bytes of the data of a member, with their padding.
    fn data_left(&self, name: &str, size: u64) -> Result<u64> {
        let left = padded(size).filter(|left| self.offset.checked_add(*left).is_some());
        left.ok_or_else(|| {
            let (name, start) = (shown(name), self.member_start);
            corrupt(format!(
                "member '{name}' at byte {start} cannot have {size} bytes"
            ))
        })
    }

    /// Where the header that was read last begins.
    fn header_start(&self) -> u64 {
        self.offset.saturating_sub(BLOCK_BYTES as u64)
    }

    fn header_error(&self, wrong: &str) -> Error {
        let at = self.header_start();
        let error = corrupt(format!("the header at byte {at} {wrong}"));
        if at == 0 {
            return error.with_hint("is it a tar at all?");
        }
        error
    }

    fn foreign(&self, name: &str) -> Error {
        let (name, start) = (shown(name), self.member_start);
        let message = format!("the name of member '{name}' at byte {start} is not UTF-8");
        Error::new(ErrorKind::Unsupported, OP, message)
            .with_hint("keys are text; pack the files anew under names that are")
    }

    fn sparse(&self, name: &[u8]) -> Error {
        let message = format!(
            "member '{}' at byte {} is a sparse file, whose bytes do not lie in one piece",
            shown(&String::from_utf8_lossy(name)),
            self.member_start
        );
        Error::new(ErrorKind::Unsupported, OP, message).with_hint("pack the files anew, without --sparse")
    }
}

pub(super) const OP: &str = "read tar";

pub(super) fn corrupt(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, OP, message)
}

/// Start of a name, fit for a terminal.
pub(super) fn shown(name: &str) -> String {
    let escaped = name.escape_debug();
    escaped.take(NAME_SHOWN_CHARS_MAX).collect()
}

fn at_most(bytes: &[u8], left: u64) -> usize {
    bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX))
}

fn without_slashes(path: &[u8]) -> &[u8] {
    let slashes = path.iter().rev().take_while(|byte| **byte == b'/').count();
    path.get(..path.len() - slashes).unwrap_or(path)
}
