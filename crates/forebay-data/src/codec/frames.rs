//! LitData's chunks of frames (`LDFZ01`), turned back into plain chunks as a stream.
//!
//! ```text
//! "LDFZ01\0\0" | u16 version 1 | u16 flags 0 | u32 items | u32 items of a frame | u32 frames
//! u32 offsets[items + 1], from 0, in what the frames hold
//! frames x ( u32 first item | u32 items | u64 offset in the file | u32 stored bytes | u32 raw bytes )
//! zstd frames
//! ```
//!
//! What comes out is the chunk as it was before: `u32 items`, absolute offsets, items. So nothing else needs to know of frames. The frames must
//! lie behind each other in the order of their items, as their writer puts them; a file could say otherwise and is refused.

use super::frame::Frame;
use super::snappy::Progress;
use crate::format::ROWS_MAX;

/// How such a chunk begins.
pub(super) const MAGIC: [u8; 8] = *b"LDFZ01\0\0";

/// The only version.
const VERSION: u64 = 1;

const PREFIX_BYTES: usize = 24;
const WORD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 24;

/// Where decoding stands.
pub(super) struct Frames {
    phase: Phase,
    partial: Vec<u8>,
    items: u32,
    /// Entries of the table that are still to come.
    entries_left: u32,
    /// Offsets of the items, as they are in the file.
    offsets: Vec<u32>,
    /// Stored and raw bytes of each frame.
    table: Vec<(u32, u32)>,
    /// The next item that no frame of the table holds.
    items_placed: u32,
    /// Where the next frame of the table has to begin.
    stored_at: u64,
    /// Number of the open frame, and itself.
    number: usize,
    frame: Frame,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Prefix,
    Offsets,
    Table,
    Payload,
    End,
}

impl Frames {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            phase: Phase::Prefix,
            partial: Vec::new(),
            items: 0,
            entries_left: 0,
            offsets: Vec::new(),
            table: Vec::new(),
            items_placed: 0,
            stored_at: 0,
            number: 0,
            frame: Frame::new()?,
        })
    }

    /// Decode from `stored` into `output` until one is used up. In words, what is wrong.
    pub(super) fn step(&mut self, stored: &[u8], output: &mut [u8]) -> Result<Progress, &'static str> {
        let (mut consumed, mut produced) = (0, 0);
        loop {
            let rest = stored.get(consumed..).unwrap_or_default();
            let room = output.get_mut(produced..).unwrap_or_default();
            if room.len() < WORD_BYTES && self.phase != Phase::Payload {
                break;
            }
            let (taken, given) = match self.phase {
                Phase::Prefix => self.prefix(rest, room)?,
                Phase::Offsets => self.offset(rest, room)?,
                Phase::Table => (self.entry(rest)?, 0),
                Phase::Payload => self.payload(rest, room)?,
                Phase::End => (0, 0),
            };
            consumed += taken;
            produced += given;
            if taken == 0 && given == 0 {
                break;
            }
        }
        Ok(Progress {
            consumed,
            produced,
            is_end: self.phase == Phase::End,
        })
    }

    /// Keep bytes until there are `wanted` of them; then they are complete.
    fn take(&mut self, stored: &[u8], wanted: usize) -> (usize, bool) {
        let taken = stored.len().min(wanted.saturating_sub(self.partial.len()));
        self.partial
            .extend_from_slice(stored.get(..taken).unwrap_or_default());
        (taken, self.partial.len() == wanted)
    }

    /// The next number of what was kept.
    fn number(&self, at: usize, bytes: usize) -> u64 {
        let bytes = self.partial.get(at..at + bytes).unwrap_or_default();
        let bytes = bytes.iter().rev();
        bytes.fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn prefix(&mut self, stored: &[u8], room: &mut [u8]) -> Result<(usize, usize), &'static str> {
        let (taken, is_complete) = self.take(stored, PREFIX_BYTES);
        if !is_complete {
            return Ok((taken, 0));
        }
        if !self.partial.starts_with(&MAGIC) {
            return Err("it does not begin like a chunk of frames");
        }
        if self.number(8, 2) != VERSION || self.number(10, 2) != 0 {
            return Err("it is a chunk of frames of another version than 1, the only one that is known");
        }
        let (items, frames) = (self.number(12, 4) as u32, self.number(20, 4) as u32);
        if items == 0 || items > ROWS_MAX || frames == 0 || frames > items {
            return Err("no chunk has that many items and frames");
        }
        (self.items, self.entries_left) = (items, frames);
        self.stored_at = PREFIX_BYTES as u64
            + WORD_BYTES as u64 * (u64::from(items) + 1)
            + ENTRY_BYTES as u64 * u64::from(frames);
        self.partial.clear();
        self.phase = Phase::Offsets;
        Ok((taken, put(room, items)))
    }

    fn offset(&mut self, stored: &[u8], room: &mut [u8]) -> Result<(usize, usize), &'static str> {
        let (taken, is_complete) = self.take(stored, WORD_BYTES);
        if !is_complete {
            return Ok((taken, 0));
        }
        let offset = self.number(0, WORD_BYTES) as u32;
        if self.offsets.last().map_or(offset != 0, |last| offset < *last) {
            return Err("the offsets of the items do not ascend from 0");
        }
        let table_end = (self.items + 2) * WORD_BYTES as u32;
        let moved = offset
            .checked_add(table_end)
            .ok_or("the chunk is larger than 4 GiB")?;
        self.offsets.push(offset);
        self.partial.clear();
        if self.offsets.len() as u64 == u64::from(self.items) + 1 {
            self.phase = Phase::Table;
        }
        Ok((taken, put(room, moved)))
    }

    fn entry(&mut self, stored: &[u8]) -> Result<usize, &'static str> {
        let (taken, is_complete) = self.take(stored, ENTRY_BYTES);
        if !is_complete {
            return Ok(taken);
        }
        let (first, items) = (self.number(0, 4) as u32, self.number(4, 4) as u32);
        let (at, stored_bytes, raw_bytes) = (
            self.number(8, 8),
            self.number(16, 4) as u32,
            self.number(20, 4) as u32,
        );
        let end = first.checked_add(items).filter(|end| *end <= self.items);
        let (Some(end), true, 1..) = (end, first == self.items_placed, items) else {
            return Err("the frames do not hold all items in their order");
        };
        let offset = |item: u32| self.offsets.get(item as usize).copied().unwrap_or_default();
        if offset(end) - offset(first) != raw_bytes {
            return Err("a frame does not hold as many bytes as its items have");
        }
        if at != self.stored_at || stored_bytes == 0 {
            return Err("the frames do not lie behind each other");
        }
        self.items_placed = end;
        self.stored_at += u64::from(stored_bytes);
        self.table.push((stored_bytes, raw_bytes));
        self.partial.clear();
        self.entries_left -= 1;
        if self.entries_left == 0 {
            if self.items_placed != self.items {
                return Err("the frames do not hold all items in their order");
            }
            self.phase = Phase::Payload;
        }
        Ok(taken)
    }

    fn payload(&mut self, stored: &[u8], room: &mut [u8]) -> Result<(usize, usize), &'static str> {
        let Some((stored_bytes, raw_bytes)) = self.table.get(self.number).copied() else {
            self.phase = Phase::End;
            return Ok((0, 0));
        };
        let ran = self.frame.run(stored_bytes, raw_bytes, stored, room)?;
        if let Some(found) = ran.raw_bytes {
            if found != raw_bytes {
                return Err("a frame holds less than it says");
            }
            self.number += 1;
            if self.number == self.table.len() {
                self.phase = Phase::End;
            }
        }
        Ok((ran.taken, ran.given))
    }
}

/// Write a number where there is room for it. Everything in front of the frames comes in fours, so that a buffer of many of them never ends within one.
fn put(room: &mut [u8], number: u32) -> usize {
    let Some(room) = room.first_chunk_mut() else {
        return 0;
    };
    *room = number.to_le_bytes();
    WORD_BYTES
}
