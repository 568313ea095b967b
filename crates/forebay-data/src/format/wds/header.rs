//! The header block of a tar member, read and written.

use std::iter::Sum;

use super::{BLOCK_BYTES, Block};

const NAME: std::ops::Range<usize> = 0..NAME_BYTES_MAX;
const MODE: std::ops::Range<usize> = 100..108;
const OWNER: std::ops::Range<usize> = 108..116;
const GROUP: std::ops::Range<usize> = 116..124;
const SIZE: std::ops::Range<usize> = 124..136;
const TIME: std::ops::Range<usize> = 136..148;
const CHECKSUM: std::ops::Range<usize> = 148..156;
const TYPE: usize = 156;
const MAGIC: std::ops::Range<usize> = 257..265;
const OWNER_NAME: usize = 265;
const GROUP_NAME: usize = 297;
const PREFIX: std::ops::Range<usize> = 345..345 + PREFIX_BYTES_MAX;

/// Longest name in the name field.
pub(super) const NAME_BYTES_MAX: usize = 100;

/// Longest folder in the prefix field.
pub(super) const PREFIX_BYTES_MAX: usize = 155;

/// What POSIX headers have at the place of the magic; readers ignore the version behind it.
const MAGIC_POSIX: &[u8] = b"ustar\0";

/// Owner and group, as WebDataset's own writer names them.
const OWNER_WRITTEN: &[u8] = b"bigdata";

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    /// A regular file.
    File,
    /// A link, device, directory or FIFO: no data, whatever the size says.
    Dataless,
    /// PAX records for the next member.
    Records,
    /// PAX records for all members from here on.
    RecordsGlobal,
    /// The name of the next member.
    LongName,
    /// The link target of the next member.
    LongLink,
    /// A file with holes.
    Sparse,
    /// Anything else; it has data.
    Other,
}

/// What a header says, as far as it matters here.
#[derive(Debug)]
pub(super) struct Header<'a> {
    pub(super) kind: Type,
    pub(super) size: u64,
    prefix: &'a [u8],
    name: &'a [u8],
}

impl<'a> Header<'a> {
    /// Read a block; what is wrong with it, otherwise.
    pub(super) fn parse(block: &'a Block) -> Result<Self, &'static str> {
        if !has_checksum(block) {
            return Err("does not have its checksum");
        }
        let size = number(&block[SIZE]).ok_or("has a size that is no number")?;
        let is_posix = block[MAGIC].starts_with(MAGIC_POSIX);
        let prefix = if is_posix { text(&block[PREFIX]) } else { b"" };
        let name = text(&block[NAME]);
        Ok(Self {
            kind: kind(block[TYPE], name),
            size,
            prefix,
            name,
        })
    }

    /// The name in the header.
    pub(super) fn name(&self) -> Vec<u8> {
        if self.prefix.is_empty() {
            return self.name.to_vec();
        }
        [self.prefix, b"/", self.name].concat()
    }
}

fn kind(flag: u8, name: &[u8]) -> Type {
    match flag {
        // Archives of before 1988 have no type for directories.
        0 if name.ends_with(b"/") => Type::Dataless,
        0 | b'0' | b'7' => Type::File,
        b'1'..=b'6' => Type::Dataless,
        b'x' | b'X' => Type::Records,
        b'g' => Type::RecordsGlobal,
        b'L' => Type::LongName,
        b'K' => Type::LongLink,
        b'S' => Type::Sparse,
        _ => Type::Other,
    }
}

/// Bytes up to the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

/// True when the checksum of a header is that of its bytes.
pub(super) fn has_checksum(block: &Block) -> bool {
    let Some(claimed) = number(&block[CHECKSUM]) else {
        return false;
    };
    // Some old systems added up signed bytes.
    claimed == sum(block, u64::from)
        || i64::try_from(claimed) == Ok(sum(block, |byte| i64::from(byte.cast_signed())))
}

/// Sum of all bytes, those of the checksum itself taken as spaces.
fn sum<N: Sum>(block: &Block, value: impl Fn(u8) -> N) -> N {
    let (before, after) = (&block[..CHECKSUM.start], &block[CHECKSUM.end..]);
    let spaces = [b' '; CHECKSUM.end - CHECKSUM.start];
    // Part by part: a chain of them is added up byte by byte.
    let parts = [before, &spaces, after].map(|part| part.iter().map(|byte| value(*byte)).sum());
    parts.into_iter().sum()
}

/// A number: octal text, or binary where the highest bit is set.
fn number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 == 0 {
        return octal(field);
    }
    // The next bit is the sign.
    if first & 0x40 != 0 {
        return None;
    }
    let top = u64::from(first & 0x3f);
    rest.iter().try_fold(top, |value, byte| {
        Some(value.checked_mul(256)? | u64::from(*byte))
    })
}

fn octal(field: &[u8]) -> Option<u64> {
    let digits = text(field).trim_ascii();
    digits.iter().try_fold(0u64, |value, digit| match digit {
        b'0'..=b'7' => value.checked_mul(8)?.checked_add(u64::from(digit - b'0')),
        _ => None,
    })
}

/// What is to stand in a header.
pub(super) struct Written<'a> {
    pub(super) flag: u8,
    pub(super) prefix: &'a [u8],
    pub(super) name: &'a [u8],
    pub(super) size: u64,
    /// Mode and owner, which records do without.
    pub(super) is_file: bool,
}

impl Written<'_> {
    /// The block. The name, the prefix and the size must fit their fields.
    pub(super) fn block(&self) -> Block {
        let mut block = [0; BLOCK_BYTES];
        put(&mut block, NAME.start, self.name);
        put_octal(&mut block, MODE, if self.is_file { 0o444 } else { 0 });
        for field in [OWNER, GROUP, TIME] {
            put_octal(&mut block, field, 0);
        }
        put_octal(&mut block, SIZE, self.size);
        block[TYPE] = self.flag;
        put(&mut block, MAGIC.start, MAGIC_POSIX);
        put(&mut block, MAGIC.start + MAGIC_POSIX.len(), b"00");
        if self.is_file {
            put(&mut block, OWNER_NAME, OWNER_WRITTEN);
            put(&mut block, GROUP_NAME, OWNER_WRITTEN);
        }
        put(&mut block, PREFIX.start, self.prefix);
        let sum = sum(&block, u64::from);
        put_octal(&mut block, CHECKSUM.start..CHECKSUM.end - 1, sum);
        block[CHECKSUM.end - 1] = b' ';
        block
    }
}

fn put(block: &mut Block, at: usize, bytes: &[u8]) {
    let len = bytes.len().min(BLOCK_BYTES - at);
    block[at..at + len].copy_from_slice(&bytes[..len]);
}

/// Digits to fill the field but for the NUL at its end.
fn put_octal(block: &mut Block, field: std::ops::Range<usize>, value: u64) {
    let mut rest = value;
    for place in block[field.start..field.end - 1].iter_mut().rev() {
        *place = b'0' + (rest & 7) as u8;
        rest >>= 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(name: &[u8], prefix: &[u8]) -> Block {
        Written {
            flag: b'0',
            prefix,
            name,
            size: 0o1234,
            is_file: true,
        }
        .block()
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        let cases: [(&[u8], Option<u64>); 16] = [
            (b"0000644\0", Some(0o644)),
            (b"  644 \0\0", Some(0o644)),
            (b"77777777", Some(0o77_777_777)),
            (b"\0\0\0\0\0\0\0\0", Some(0)),
            (b"        ", Some(0)),
            (b"12\x00junk!", Some(0o12)),
            (b"12 3\0\0\0\0", None),
            (b"00000008", None),
            (b"-1\0\0\0\0\0\0", None),
            (b"0x10\0\0\0\0", None),
            (b"\x80\0\0\0\0\0\x01\x02", Some(0x102)),
            (b"\x81\0\0\0\0\0\0\0", Some(1 << 56)),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", None),
            (b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", Some(u64::MAX)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"", None),
        ];
        for (field, expected) in cases {
            assert_eq!(number(field), expected, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let block = written(b"b.jpg", b"a/long/way");
        let header = Header::parse(&block).unwrap();
        assert_eq!((header.kind, header.size), (Type::File, 0o1234));
        assert_eq!(header.name(), b"a/long/way/b.jpg");
        let full = [b'n'; NAME_BYTES_MAX];
        assert_eq!(Header::parse(&written(&full, b"")).unwrap().name(), full);
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let block = written(b"b.jpg", b"a");
        let before = format!("{:?}", Header::parse(&block).unwrap());
        for bit in 0..BLOCK_BYTES * 8 {
            let mut damaged = block;
            damaged[bit / 8] ^= 1 << (bit % 8);
            if let Ok(header) = Header::parse(&damaged) {
                // Behind the digits of the checksum nothing matters.
                assert!(CHECKSUM.contains(&(bit / 8)), "bit {bit}");
                assert_eq!(format!("{header:?}"), before);
            }
        }
    }

    #[test]
    fn signed_sums_are_sums_too() {
        let mut block = written(b"caf\xc3\xa9.txt", b"");
        let signed = sum(&block, |byte| i64::from(byte.cast_signed()));
        assert!(has_checksum(&block));
        put(&mut block, CHECKSUM.start, format!("{signed:06o}").as_bytes());
        assert!(has_checksum(&block));
        put(
            &mut block,
            CHECKSUM.start,
            format!("{:06o}", signed + 1).as_bytes(),
        );
        assert!(!has_checksum(&block));
    }

    #[test]
    fn a_prefix_is_one_in_posix_headers_only() {
        for (magic, name) in [
            (b"ustar\x0000", "p/n"),
            (b"ustar  \0", "n"),
            (b"\0\0\0\0\0\0\0\0", "n"),
        ] {
            let mut block = written(b"n", b"p");
            put(&mut block, MAGIC.start, magic);
            let sum = sum(&block, u64::from);
            put(&mut block, CHECKSUM.start, format!("{sum:06o}").as_bytes());
            assert_eq!(Header::parse(&block).unwrap().name(), name.as_bytes());
        }
    }

    #[test]
    fn types_are_told_by_flag_and_name() {
        let cases: [(u8, &[u8], Type); 12] = [
            (0, b"a", Type::File),
            (0, b"a/", Type::Dataless),
            (b'0', b"a/", Type::File),
            (b'7', b"a", Type::File),
            (b'1', b"a", Type::Dataless),
            (b'6', b"a", Type::Dataless),
            (b'8', b"a", Type::Other),
            (b'X', b"a", Type::Records),
            (b'g', b"a", Type::RecordsGlobal),
            (b'L', b"a", Type::LongName),
            (b'K', b"a", Type::LongLink),
            (b'S', b"a", Type::Sparse),
        ];
        for (flag, name, expected) in cases {
            assert_eq!(kind(flag, name), expected, "{}", char::from(flag));
        }
    }
}
