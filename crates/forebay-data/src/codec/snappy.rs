//! Snappy's raw block, undone as a stream.
//!
//! ```text
//! varint: bytes of the whole, decoded | elements: a literal, or a copy of what was decoded before
//! ```
//!
//! The block has no frames and no checksum; it is what `snappy.compress` of Python gives. A copy could reach back to the beginning of the block,
//! but encoders look back 64 KiB at most, so a window is enough and a shard need not fit into memory.

/// How far back a copy may reach: sixteen times what encoders do.
pub(super) const WINDOW_BYTES: usize = 1 << 20;

/// Decoded bytes kept beyond the window before the window moves.
const SLACK_BYTES: usize = 1 << 20;

/// Longest varint of a 32-bit number.
const LENGTH_BYTES_MAX: u32 = 5;

/// Where decoding stands, and the bytes a copy can ask for.
pub(super) struct Snappy {
    element: Element,
    /// What was decoded last. The bytes before `given` are given out already.
    window: Vec<u8>,
    given: usize,
    /// Bytes that are still to come, once the length is known.
    left: Option<u64>,
}

enum Element {
    /// The length of the block, as far as it was read.
    Length { value: u64, bytes: u32 },
    /// The next element begins.
    Tag,
    /// An element whose length or offset is not complete: tag, bytes so far, how many of them, how many there will be.
    Head { tag: u8, value: u32, have: u8, need: u8 },
    /// A literal with that many bytes to come.
    Literal { left: u64 },
    /// A copy with that many bytes to come.
    Copy { offset: usize, left: usize },
}

/// How far a step came.
pub(super) struct Progress {
    pub(super) consumed: usize,
    pub(super) produced: usize,
    pub(super) is_end: bool,
}

impl Snappy {
    pub(super) fn new() -> Self {
        Self {
            element: Element::Length { value: 0, bytes: 0 },
            window: Vec::new(),
            given: 0,
            left: None,
        }
    }

    /// Decode from `stored` into `output` until one is used up. In words, what is wrong.
    pub(super) fn step(&mut self, stored: &[u8], output: &mut [u8]) -> Result<Progress, &'static str> {
        let (mut consumed, mut produced) = (0, 0);
        loop {
            produced += self.give(output.get_mut(produced..).unwrap_or_default());
            let rest = stored.get(consumed..).unwrap_or_default();
            let is_blocked = rest.is_empty() && !matches!(self.element, Element::Copy { .. });
            if produced == output.len() || is_blocked || self.is_end() {
                return Ok(Progress {
                    consumed,
                    produced,
                    is_end: self.is_end() && self.given == self.window.len(),
                });
            }
            consumed += self.element(rest)?;
        }
    }

    fn is_end(&self) -> bool {
        self.left == Some(0) && matches!(self.element, Element::Tag)
    }

    /// Go on with the element that is open; how many bytes of `stored` that took.
    fn element(&mut self, stored: &[u8]) -> Result<usize, &'static str> {
        match self.element {
            Element::Literal { left } => {
                let taken = (stored.len() as u64).min(left).min(SLACK_BYTES as u64) as usize;
                self.make_room();
                self.window
                    .extend_from_slice(stored.get(..taken).unwrap_or_default());
                self.element = match left - taken as u64 {
                    0 => Element::Tag,
                    left => Element::Literal { left },
                };
                self.count(taken as u64)?;
                Ok(taken)
            }
            Element::Copy { offset, left } => {
                // A copy may overlap what it makes: then it repeats, piece by piece.
                let len = left.min(offset);
                self.make_room();
                let start = self.window.len().checked_sub(offset).ok_or(TOO_FAR)?;
                self.window.extend_from_within(start..start + len);
                self.element = match left - len {
                    0 => Element::Tag,
                    left => Element::Copy { offset, left },
                };
                self.count(len as u64)?;
                Ok(0)
            }
            _ => {
                let byte = *stored.first().ok_or("the block ends in the middle")?;
                self.byte(byte)?;
                Ok(1)
            }
        }
    }

    /// One byte of the block's length, a tag, or what follows a tag.
    fn byte(&mut self, byte: u8) -> Result<(), &'static str> {
        match &mut self.element {
            Element::Length { value, bytes } => {
                *value |= u64::from(byte & 0x7f) << (7 * *bytes);
                *bytes += 1;
                if byte & 0x80 == 0 {
                    self.left = Some(*value);
                    self.element = Element::Tag;
                } else if *bytes == LENGTH_BYTES_MAX {
                    return Err("the length of the block has more than 32 bits");
                }
            }
            Element::Tag => {
                let need = match (byte & 3, byte >> 2) {
                    (0, code @ 60..) => code - 59,
                    (0, _) => 0,
                    (1, _) => 1,
                    (2, _) => 2,
                    _ => 4,
                };
                self.element = Element::Head {
                    tag: byte,
                    value: 0,
                    have: 0,
                    need,
                };
                self.head()?;
            }
            Element::Head { value, have, .. } => {
                *value |= u32::from(byte) << (8 * *have);
                *have += 1;
                self.head()?;
            }
            Element::Literal { .. } | Element::Copy { .. } => {}
        }
        Ok(())
    }

    /// Begin the element whose head is complete.
    fn head(&mut self) -> Result<(), &'static str> {
        let Element::Head {
            tag,
            value,
            have,
            need,
        } = self.element
        else {
            return Ok(());
        };
        if have < need {
            return Ok(());
        }
        let (kind, code) = (tag & 3, tag >> 2);
        if kind == 0 {
            let len = if need == 0 { u32::from(code) } else { value };
            self.element = Element::Literal {
                left: u64::from(len) + 1,
            };
            return Ok(());
        }
        let (offset, left) = match kind {
            1 => (u32::from(tag >> 5) << 8 | value, 4 + usize::from(code & 7)),
            _ => (value, 1 + usize::from(code)),
        };
        let offset = offset as usize;
        if offset == 0 || offset > self.window.len() || offset > WINDOW_BYTES {
            return Err(TOO_FAR);
        }
        self.element = Element::Copy { offset, left };
        Ok(())
    }

    fn count(&mut self, len: u64) -> Result<(), &'static str> {
        let left = self.left.and_then(|left| left.checked_sub(len));
        self.left = Some(left.ok_or("the block holds more than it says")?);
        Ok(())
    }

    /// Give out what was decoded.
    fn give(&mut self, output: &mut [u8]) -> usize {
        let ready = self.window.get(self.given..).unwrap_or_default();
        let len = ready.len().min(output.len());
        if let (Some(output), Some(ready)) = (output.get_mut(..len), ready.get(..len)) {
            output.copy_from_slice(ready);
        }
        self.given += len;
        len
    }

    /// Forget what no copy can ask for, once there is enough of it. Everything was given out by then.
    fn make_room(&mut self) {
        if self.window.len() >= WINDOW_BYTES + SLACK_BYTES && self.given == self.window.len() {
            self.window.drain(..self.window.len() - WINDOW_BYTES);
            self.given = self.window.len();
        }
    }
}

const TOO_FAR: &str = "a copy reaches back further than there is anything";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode(stored: &[u8], step: usize, room: usize) -> Result<Vec<u8>, &'static str> {
        let mut snappy = Snappy::new();
        let (mut raw, mut output) = (Vec::new(), vec![0; room]);
        let mut is_end = false;
        for mut piece in stored.chunks(step) {
            loop {
                let progress = snappy.step(piece, &mut output)?;
                raw.extend_from_slice(&output[..progress.produced]);
                piece = &piece[progress.consumed..];
                is_end = progress.is_end;
                if piece.is_empty() && progress.produced < room {
                    break;
                }
                if progress.consumed == 0 && progress.produced == 0 {
                    return Err("there is more");
                }
            }
        }
        if is_end { Ok(raw) } else { Err("it ends early") }
    }

    proptest! {
        #[test]
        fn it_decodes_what_the_usual_decoder_does(
            seed in prop::collection::vec(any::<u8>(), 1..200),
            repeats in 1usize..300,
            step in 1usize..5000,
            room in 1usize..3000,
        ) {
            // Repetitions with a drift make copies of all lengths and distances.
            let bytes: Vec<u8> = (0..repeats)
                .flat_map(|turn| seed.iter().map(move |byte| byte.wrapping_add((turn / 7) as u8)))
                .collect();
            let stored = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
            prop_assert!(decode(&stored, step, room).unwrap() == bytes);
        }

        #[test]
        fn it_agrees_with_the_usual_decoder_on_anything(
            stored in prop::collection::vec(any::<u8>(), 1..60),
            step in 1usize..10,
        ) {
            // A length that the elements could have.
            let stored = [&[stored[0] & 0x3f], &stored[1..]].concat();
            let usual = snap::raw::Decoder::new().decompress_vec(&stored);
            let ours = decode(&stored, step, 16);
            prop_assert_eq!(usual.is_ok(), ours.is_ok(), "{:?} {:?}", usual, ours);
            if let (Ok(usual), Ok(ours)) = (usual, ours) {
                prop_assert_eq!(usual, ours);
            }
        }
    }

    #[test]
    fn the_window_moves_and_ends() {
        let bytes: Vec<u8> = (0..6 << 20u32)
            .map(|index: u32| (index % 65_521 % 256) as u8)
            .collect();
        let stored = snap::raw::Encoder::new().compress_vec(&bytes).unwrap();
        assert!(decode(&stored, 100_000, 65_536).unwrap() == bytes);
        // Literals of 64 KiB, then a copy from further back than the window is long.
        let mut stored = vec![0x85, 0x80, 0x80, 0x01];
        for _ in 0..32 {
            stored.extend([61 << 2, 0xff, 0xff]);
            stored.extend(vec![7; 65_536]);
        }
        let mut near = stored.clone();
        for (stored, offset) in [
            (&mut stored, WINDOW_BYTES as u32 + 1),
            (&mut near, WINDOW_BYTES as u32),
        ] {
            stored.push(4 << 2 | 3);
            stored.extend(offset.to_le_bytes());
        }
        assert_eq!(decode(&stored, 4096, 4096), Err(TOO_FAR));
        assert_eq!(decode(&near, 4096, 4096).unwrap().len(), (2 << 20) + 5);
    }
}
