//! A zip archive of entries that are stored as they are, written in one pass: sizes and CRC come behind the data and in the directory at the end. Pure bytes.
//!
//! Entries of 4 GiB and more, and archives of as many bytes or of 65,535 entries and more, take the fields of ZIP64.

use crate::wire::Wire;

const LOCAL: u32 = 0x0403_4b50;
const DESCRIPTOR: u32 = 0x0807_4b50;
const DIRECTORY: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const END_64: u32 = 0x0606_4b50;
const LOCATOR_64: u32 = 0x0706_4b50;

/// Sizes and CRC follow the data; names are UTF-8.
const FLAGS: u16 = 1 << 3 | 1 << 11;
/// Version that knows ZIP64.
const VERSION: u16 = 45;
/// The first day that the format can name: nobody needs another one.
const DATE: u16 = 1 << 5 | 1;

/// Data of entries begin at a multiple of this, as torch does it, so that they can be mapped.
pub(super) const ALIGN: u64 = 64;

const ID_ZIP64: u16 = 1;
/// An extra field that only fills up, with the letters that torch has there.
const ID_PADDING: u16 = u16::from_le_bytes(*b"FB");

fn put_u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// An entry that was written.
#[derive(Debug)]
struct Entry {
    name: String,
    start: u64,
    bytes: u64,
    crc: u32,
}

/// What was written so far.
#[derive(Debug, Default)]
pub(super) struct Archive {
    entries: Vec<Entry>,
}

impl Archive {
    /// What comes before the data of an entry that begins at byte `start` of the archive.
    pub(super) fn begin(&mut self, name: &str, start: u64) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_u32(LOCAL);
        for value in [VERSION, FLAGS, 0, 0, DATE] {
            put_u16(&mut out, value);
        }
        // CRC and sizes: behind the data.
        out.put_u32(0);
        out.put_u32(u32::MAX);
        out.put_u32(u32::MAX);
        let head_bytes = 30 + name.len() as u64;
        // ZIP64 says that the sizes behind the data have 8 bytes.
        let zip64_bytes = 4 + 16;
        let unpadded = start + head_bytes + zip64_bytes + 4;
        let padding = unpadded.next_multiple_of(ALIGN) - unpadded;
        put_u16(&mut out, name.len() as u16);
        put_u16(&mut out, (zip64_bytes + 4 + padding) as u16);
        out.extend_from_slice(name.as_bytes());
        put_u16(&mut out, ID_ZIP64);
        put_u16(&mut out, 16);
        out.put_u64(0);
        out.put_u64(0);
        put_u16(&mut out, ID_PADDING);
        put_u16(&mut out, padding as u16);
        out.resize(out.len() + padding as usize, b'Z');
        self.entries.push(Entry {
            name: name.to_owned(),
            start,
            bytes: 0,
            crc: 0,
        });
        out
    }

    /// What comes behind the data of the entry that was begun last.
    pub(super) fn end(&mut self, bytes: u64, crc: u32) -> Vec<u8> {
        if let Some(entry) = self.entries.last_mut() {
            (entry.bytes, entry.crc) = (bytes, crc);
        }
        let mut out = Vec::new();
        out.put_u32(DESCRIPTOR);
        out.put_u32(crc);
        out.put_u64(bytes);
        out.put_u64(bytes);
        out
    }

    /// The directory, which begins at byte `start` of the archive.
    pub(super) fn finish(self, start: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for entry in &self.entries {
            out.put_u32(DIRECTORY);
            for value in [VERSION, VERSION, FLAGS, 0, 0, DATE] {
                put_u16(&mut out, value);
            }
            out.put_u32(entry.crc);
            out.put_u32(u32::MAX);
            out.put_u32(u32::MAX);
            put_u16(&mut out, entry.name.len() as u16);
            put_u16(&mut out, 4 + 24);
            // Comment, disk, attributes.
            for value in [0, 0, 0] {
                put_u16(&mut out, value);
            }
            out.put_u32(0);
            out.put_u32(u32::MAX);
            out.extend_from_slice(entry.name.as_bytes());
            put_u16(&mut out, ID_ZIP64);
            put_u16(&mut out, 24);
            for value in [entry.bytes, entry.bytes, entry.start] {
                out.put_u64(value);
            }
        }
        let directory_bytes = out.len() as u64;
        let count = self.entries.len() as u64;
        let end_64 = start + directory_bytes;
        out.put_u32(END_64);
        out.put_u64(44);
        put_u16(&mut out, VERSION);
        put_u16(&mut out, VERSION);
        out.put_u32(0);
        out.put_u32(0);
        for value in [count, count, directory_bytes, start] {
            out.put_u64(value);
        }
        out.put_u32(LOCATOR_64);
        out.put_u32(0);
        out.put_u64(end_64);
        out.put_u32(1);
        out.put_u32(END);
        for value in [0, 0, u16::MAX, u16::MAX] {
            put_u16(&mut out, value);
        }
        out.put_u32(u32::MAX);
        out.put_u32(u32::MAX);
        put_u16(&mut out, 0);
        out
    }
}
