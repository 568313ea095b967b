//! LitData's chunks whose items are compressed one by one, undone as a stream.
//!
//! ```text
//! u32 items | u32 offsets[items + 1], absolute | one zstd frame for each item
//!    becomes
//! u32 items | items, each with its length (u32) behind it
//! ```
//!
//! A plain chunk would have to say where its items are before the first of them, and that is known after the last.

use super::frame::Frame;
use super::snappy::Progress;
use crate::format::ROWS_MAX;

const WORD_BYTES: usize = 4;

/// Where decoding stands.
pub(super) struct Items {
    phase: Phase,
    partial: Vec<u8>,
    count: u32,
    /// Where the frames begin, and where the last ends.
    offsets: Vec<u32>,
    item: usize,
    frame: Frame,
    /// A number that is to be given, and how many of its bytes were.
    owed: [u8; WORD_BYTES],
    owed_given: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Count,
    Offsets,
    Item,
    End,
}

impl Items {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            phase: Phase::Count,
            partial: Vec::new(),
            count: 0,
            offsets: Vec::new(),
            item: 0,
            frame: Frame::new()?,
            owed: [0; WORD_BYTES],
            owed_given: WORD_BYTES,
        })
    }

    /// Decode from `stored` into `output` until one is used up. In words, what is wrong.
    pub(super) fn step(&mut self, stored: &[u8], output: &mut [u8]) -> Result<Progress, &'static str> {
        let (mut consumed, mut produced) = (0, 0);
        loop {
            let rest = stored.get(consumed..).unwrap_or_default();
            let room = output.get_mut(produced..).unwrap_or_default();
            let (taken, given) = match self.phase {
                _ if self.owes() => (0, self.give(room)),
                Phase::Count => (self.take_count(rest)?, 0),
                Phase::Offsets => (self.take_offset(rest)?, 0),
                Phase::Item => self.item(rest, room)?,
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
            is_end: self.phase == Phase::End && !self.owes(),
        })
    }

    fn owe(&mut self, number: u32) {
        (self.owed, self.owed_given) = (number.to_le_bytes(), 0);
    }

    fn owes(&self) -> bool {
        self.owed_given < WORD_BYTES
    }

    /// Give what there is room for of a number: the room may end within it.
    fn give(&mut self, room: &mut [u8]) -> usize {
        let left = self.owed.get(self.owed_given..).unwrap_or_default();
        let given = left.len().min(room.len());
        if let (Some(room), Some(left)) = (room.get_mut(..given), left.get(..given)) {
            room.copy_from_slice(left);
        }
        self.owed_given += given;
        given
    }

    /// The next number, when its bytes are complete.
    fn word(&mut self, stored: &[u8]) -> (usize, Option<u32>) {
        let taken = stored.len().min(WORD_BYTES - self.partial.len());
        self.partial
            .extend_from_slice(stored.get(..taken).unwrap_or_default());
        let word = self.partial.first_chunk().copied().map(u32::from_le_bytes);
        if word.is_some() {
            self.partial.clear();
        }
        (taken, word)
    }

    fn take_count(&mut self, stored: &[u8]) -> Result<usize, &'static str> {
        let (taken, Some(items)) = self.word(stored) else {
            return Ok(stored.len());
        };
        if items == 0 || items > ROWS_MAX {
            return Err("no chunk has that many items");
        }
        self.count = items;
        self.owe(items);
        self.phase = Phase::Offsets;
        Ok(taken)
    }

    fn take_offset(&mut self, stored: &[u8]) -> Result<usize, &'static str> {
        let (taken, Some(offset)) = self.word(stored) else {
            return Ok(stored.len());
        };
        let is_possible = match self.offsets.last() {
            None => offset == (self.count + 2) * WORD_BYTES as u32,
            Some(before) => offset > *before,
        };
        if !is_possible {
            return Err("the offsets of the items do not ascend from the end of their table");
        }
        self.offsets.push(offset);
        if self.offsets.len() as u64 == u64::from(self.count) + 1 {
            self.phase = Phase::Item;
        }
        Ok(taken)
    }

    fn item(&mut self, stored: &[u8], room: &mut [u8]) -> Result<(usize, usize), &'static str> {
        let ends = (self.offsets.get(self.item), self.offsets.get(self.item + 1));
        let (Some(start), Some(end)) = ends else {
            self.phase = Phase::End;
            return Ok((0, 0));
        };
        let ran = self.frame.run(end - start, u32::MAX, stored, room)?;
        if let Some(len) = ran.raw_bytes {
            self.owe(len);
            self.item += 1;
            if self.item == self.count as usize {
                self.phase = Phase::End;
            }
        }
        Ok((ran.taken, ran.given))
    }
}
