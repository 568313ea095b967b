//! Bits of a scan and the codes in them.
//!
//! A table answers most codes together with the number that follows them in one lookup of [`LOOK_BITS`] bits. Longer ones are found
//! by their length.

#![expect(
    clippy::inline_always,
    reason = "these run for every number of an image; a call costs more than what they do"
)]

use super::Damaged;

/// Bits of a lookup: nearly every code with its number fits, and two tables fit into the nearest cache.
const LOOK_BITS: u32 = 11;
const LOOK_SIZE: usize = 1 << LOOK_BITS;

/// Longest code.
const CODE_BITS_MAX: usize = 16;

/// A skip beyond any block: the code that ends it.
pub(super) const SKIP_END: u32 = 127;

/// What kind of numbers a table is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The mean of a block: the symbol is the length of the number.
    Mean,
    /// Everything else: the symbol is how many zeros to skip and the length of the number.
    Detail,
}

/// A code book.
#[derive(Debug)]
pub(super) struct Table {
    /// `value << 16 | skip << 8 | bits` where code and number fit; otherwise `symbol << 16 | code bits << 8`, or 0 for longer codes.
    look: [u32; LOOK_SIZE],
    /// For each length: one more than the last code, and what to add to a code for its place in `symbols`.
    ends: [(u32, i32); CODE_BITS_MAX + 1],
    symbols: [u8; 256],
}

impl Default for Table {
    fn default() -> Self {
        Self {
            look: [0; LOOK_SIZE],
            ends: [(0, 0); CODE_BITS_MAX + 1],
            symbols: [0; 256],
        }
    }
}

impl Table {
    /// Make the table anew from the number of codes of each length and the symbols in order; `None` when they do not make a code.
    pub(super) fn build(&mut self, kind: Kind, counts: &[u8; CODE_BITS_MAX], symbols: &[u8]) -> Option<()> {
        self.look.fill(0);
        self.ends.fill((0, 0));
        self.symbols.get_mut(..symbols.len())?.copy_from_slice(symbols);
        let (mut code, mut place) = (0_u32, 0_usize);
        for (index, count) in counts.iter().enumerate() {
            let bits = index as u32 + 1;
            let first = place as i32 - code as i32;
            for symbol in symbols.get(place..place + usize::from(*count))? {
                if bits <= LOOK_BITS {
                    self.enter(kind, code, bits, *symbol)?;
                }
                code += 1;
            }
            place += usize::from(*count);
            if code > 1 << bits {
                return None;
            }
            *self.ends.get_mut(bits as usize)? = (code, first);
            code <<= 1;
        }
        Some(())
    }

    /// Fill all places of the lookup that begin with a code.
    fn enter(&mut self, kind: Kind, code: u32, bits: u32, symbol: u8) -> Option<()> {
        let (skip, size) = split(kind, symbol);
        let free = LOOK_BITS - bits;
        let start = (code << free) as usize;
        let places = self.look.get_mut(start..start + (1 << free))?;
        for (rest, place) in places.iter_mut().enumerate() {
            *place = if size <= free {
                let number = (rest as u32) >> (free - size);
                let value = extended(number, size) as u32;
                value << 16 | skip << 8 | (bits + size)
            } else {
                u32::from(symbol) << 16 | bits << 8
            };
        }
        Some(())
    }
}

/// Zeros to skip and length of the number.
fn split(kind: Kind, symbol: u8) -> (u32, u32) {
    let (skip, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
    match kind {
        Kind::Mean => (0, size),
        // Zeros without a number: sixteen of them, of which the last is a number 0, or all that are left.
        Kind::Detail if size == 0 && skip < 15 => (SKIP_END, 0),
        Kind::Detail => (skip, size),
    }
}

/// Numbers of a length are the largest ones of either sign that need it: negative when the first bit is 0.
fn extended(number: u32, size: u32) -> i32 {
    if size == 0 {
        return 0;
    }
    let number = number as i32;
    if number >> (size - 1) == 0 {
        number - (1 << size) + 1
    } else {
        number
    }
}

/// The bits of a scan, up to the next marker.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    /// First byte that is not loaded.
    at: usize,
    /// Loaded bits, from the top.
    word: u64,
    /// How many of them count.
    count: u32,
    /// How many of these are made up, behind the end.
    made_up: u32,
}

/// Bits that one code and its number can take.
const NUMBER_BITS_MAX: u32 = 32;

/// Numbers that a lookup finds for each refill: after two of them there are still bits enough for any third.
pub(super) const NUMBERS_PER_REFILL: usize = 3;
const _: () = assert!(56 - (NUMBERS_PER_REFILL as u32 - 1) * LOOK_BITS >= NUMBER_BITS_MAX);

impl<'a> Bits<'a> {
    pub(super) fn new(data: &'a [u8]) -> Self {
        Self {
            data,
            at: 0,
            word: 0,
            count: 0,
            made_up: 0,
        }
    }

    /// True when bits were used that are not there.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.count < self.made_up
    }

    /// Go on behind a restart marker, which must be next.
    pub(super) fn restart(&mut self) -> Result<(), Damaged> {
        let whole = self.count.checked_sub(self.made_up).is_some_and(|left| left < 8);
        match self.data.get(self.at..self.at + 2) {
            Some([0xff, 0xd0..=0xd7]) if whole => {
                *self = Self {
                    at: self.at + 2,
                    ..Self::new(self.data)
                };
                Ok(())
            }
            _ => Err(Damaged),
        }
    }

    /// Load as many bits as there is room for: 56 and more.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        if let Some(next) = self.data.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            let next = u64::from_le_bytes(*next).swap_bytes();
            if !has_marker(next) {
                // Bits below `count` are what follows anyway, so that setting them twice does no harm.
                self.word |= next >> self.count;
                self.at += ((63 - self.count) >> 3) as usize;
                self.count |= 0b11_1000;
                return;
            }
        }
        *self = self.refilled_slowly();
    }

    /// By value, as is [`Self::next_slowly`]: were its address taken, the state could not stay in registers.
    #[cold]
    #[inline(never)]
    fn refilled_slowly(mut self) -> Self {
        while self.count <= 56 {
            let (byte, taken) = match self.data.get(self.at..) {
                Some([0xff, 0, ..]) => (0xff, 2),
                Some([byte, ..]) if *byte != 0xff => (*byte, 1),
                _ => (0, 0),
            };
            if taken == 0 {
                self.made_up += 8;
            }
            self.word |= u64::from(byte) << (56 - self.count);
            self.count += 8;
            self.at += taken;
        }
        self
    }

    #[inline(always)]
    fn drop(&mut self, bits: u32) {
        self.word <<= bits;
        self.count -= bits;
    }

    /// True when there are bits enough for any code and its number.
    #[inline(always)]
    pub(super) fn is_enough(&self) -> bool {
        self.count >= NUMBER_BITS_MAX
    }

    /// The next number: how many zeros to skip before it, and the number itself. There must be bits [enough](Self::is_enough).
    #[inline(always)]
    pub(super) fn next(&mut self, kind: Kind, table: &Table) -> Result<(u32, i32), Damaged> {
        let entry = table.look[(self.word >> (64 - LOOK_BITS)) as usize];
        let bits = entry & 31;
        if bits != 0 {
            self.drop(bits);
            return Ok(((entry >> 8) & 127, (entry as i32) >> 16));
        }
        let (after, skip, value) = self.next_slowly(kind, table, entry)?;
        *self = after;
        Ok((skip, value))
    }

    /// A code that the lookup does not have, or whose number it does not have.
    #[inline(never)]
    fn next_slowly(mut self, kind: Kind, table: &Table, entry: u32) -> Result<(Self, u32, i32), Damaged> {
        let mut symbol = (entry >> 16) as u8;
        let mut bits = entry >> 8 & 31;
        if entry == 0 {
            bits = LOOK_BITS + 1;
            loop {
                let code = (self.word >> (64 - bits)) as u32;
                let (end, first) = *table.ends.get(bits as usize).ok_or(Damaged)?;
                if code < end {
                    let place = usize::try_from(code as i32 + first).map_err(|_| Damaged)?;
                    symbol = *table.symbols.get(place).ok_or(Damaged)?;
                    break;
                }
                bits += 1;
            }
        }
        self.drop(bits);
        let (skip, size) = split(kind, symbol);
        if size == 0 {
            return Ok((self, skip, 0));
        }
        let number = (self.word >> (64 - size)) as u32;
        self.drop(size);
        Ok((self, skip, extended(number, size)))
    }
}

/// True when one of eight bytes is 0xff.
#[inline(always)]
fn has_marker(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let inverse = !word;
    inverse.wrapping_sub(ONES) & !inverse & (ONES << 7) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three codes, 0, 10 and 110, and one of 13 bits.
    fn table() -> Table {
        let mut counts = [0; 16];
        (counts[0], counts[1], counts[2], counts[12]) = (1, 1, 1, 1);
        let mut table = Table::default();
        table
            .build(Kind::Detail, &counts, &[0x00, 0x12, 0xf0, 0x0b])
            .unwrap();
        table
    }

    fn numbers(data: &[u8], count: usize) -> Vec<(u32, i32)> {
        let (mut bits, table) = (Bits::new(data), table());
        (0..count)
            .map(|_| next(&mut bits, &table))
            .map(Result::unwrap)
            .collect()
    }

    fn next(bits: &mut Bits<'_>, table: &Table) -> Result<(u32, i32), Damaged> {
        bits.refill();
        assert!(bits.is_enough());
        bits.next(Kind::Detail, table)
    }

    #[test]
    fn codes_are_read_with_their_numbers() {
        // 10 01 | 10 11 | 110 | 0 | 1110000000000 11111111111
        let data = [
            0b1001_1011,
            0b1100_1110,
            0b0000_0000,
            0b0111_1111,
            0b1111_0000,
            0,
            0,
            0,
            0,
            0,
        ];
        let expected = [(1, -2), (1, 3), (15, 0), (SKIP_END, 0), (0, 2047)];
        assert_eq!(numbers(&data, 5), expected);
        assert_eq!(numbers(&data[..5], 5), expected, "near the end");
    }

    #[test]
    fn stuffed_bytes_markers_and_restarts_are_seen() {
        let table = table();
        let mut bits = Bits::new(&[0b1011_1001, 0xff, 0xd0, 0b1001_1001, 0xff, 0xd9]);
        assert_eq!(bits.restart(), Err(Damaged), "too early");
        assert_eq!(next(&mut bits, &table), Ok((1, 3)));
        assert_eq!(next(&mut bits, &table), Ok((1, -2)));
        assert_eq!(bits.restart(), Ok(()));
        assert_eq!(next(&mut bits, &table), Ok((1, -2)));
        assert_eq!(next(&mut bits, &table), Ok((1, -2)));
        assert!(!bits.is_overdrawn());
        let _ = next(&mut bits, &table);
        assert!(bits.is_overdrawn());
        let stuffed = Bits::new(&[0xff, 0, 0x12]);
        let mut loaded = stuffed;
        loaded.refill();
        assert_eq!((loaded.word >> 48, loaded.made_up), (0xff12, 48));
    }

    #[test]
    fn what_is_no_code_is_refused() {
        let mut table = Table::default();
        let mut counts = [0; 16];
        counts[0] = 3;
        assert_eq!(table.build(Kind::Mean, &counts, &[1, 2, 3]), None);
        counts[0] = 1;
        assert_eq!(table.build(Kind::Mean, &counts, &[]), None);
        assert_eq!(table.build(Kind::Mean, &counts, &[1]), Some(()));
        let mut bits = Bits::new(&[0xfe; 9]);
        bits.refill();
        assert_eq!(bits.next(Kind::Mean, &table), Err(Damaged));
    }
}
