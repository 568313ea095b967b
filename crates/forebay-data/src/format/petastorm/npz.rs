//! One member of a `.npz`, which is a zip.

use std::io::Read;

use forebay_core::{ByteSize, Error, ErrorKind, Result};

use crate::codec::RATIO_MAX;

/// A member is at most that large.
const MEMBER_BYTES_MAX: u64 = 1 << 30;

/// Up to that size nobody asks how much it was compressed.
const FREE_BYTES: u64 = 16 << 20;

/// Bytes of the record at the end of a zip, without its comment.
const END_BYTES: usize = 22;

/// Longest comment behind it.
const COMMENT_BYTES_MAX: usize = u16::MAX as usize;

/// Bytes of a member's entry in the directory and before its data, without name and extras.
const ENTRY_BYTES: usize = 46;
const LOCAL_BYTES: usize = 30;

/// The bytes of a member, inflated and compared with their CRC-32.
pub(super) fn member(zip: &[u8], name: &str) -> Result<Vec<u8>> {
    let end = find_end(zip)?;
    let (count, mut at) = (u16_at(zip, end + 10)?, u32_at(zip, end + 16)? as usize);
    for _ in 0..count {
        let [name_len, extra_len, comment_len] = [28, 30, 32].map(|field| u16_at(zip, at + field));
        let name_len = usize::from(name_len?);
        let found = zip.get(at + ENTRY_BYTES..).and_then(|rest| rest.get(..name_len));
        if !zip
            .get(at..)
            .is_some_and(|entry| entry.starts_with(b"PK\x01\x02"))
        {
            return Err(corrupt("the directory of a .npz is damaged"));
        }
        if found == Some(name.as_bytes()) {
            return inflate(zip, at);
        }
        at += ENTRY_BYTES + name_len + usize::from(extra_len?) + usize::from(comment_len?);
    }
    Err(corrupt(&format!("a .npz without a member '{name}'")))
}

fn find_end(zip: &[u8]) -> Result<usize> {
    let last = zip
        .len()
        .checked_sub(END_BYTES)
        .ok_or_else(|| corrupt("a .npz that is too short"))?;
    let first = last.saturating_sub(COMMENT_BYTES_MAX);
    let is_end = |at: &usize| zip.get(*at..).is_some_and(|rest| rest.starts_with(b"PK\x05\x06"));
    (first..=last)
        .rev()
        .find(is_end)
        .ok_or_else(|| corrupt("a .npz without a directory"))
}

fn inflate(zip: &[u8], entry: usize) -> Result<Vec<u8>> {
    let (flags, method) = (u16_at(zip, entry + 8)?, u16_at(zip, entry + 10)?);
    let (crc, stored, raw) = (
        u32_at(zip, entry + 16)?,
        u32_at(zip, entry + 20)?,
        u32_at(zip, entry + 24)?,
    );
    let local = u32_at(zip, entry + 42)? as usize;
    if flags & 1 != 0 || stored == u32::MAX || raw == u32::MAX {
        let message = "a .npz that is encrypted or of more than 4 GiB";
        return Err(Error::new(ErrorKind::Unsupported, "read petastorm", message));
    }
    let skipped = usize::from(u16_at(zip, local + 26)?) + usize::from(u16_at(zip, local + 28)?);
    let data = zip
        .get(local + LOCAL_BYTES + skipped..)
        .and_then(|rest| rest.get(..stored as usize));
    let data = data.ok_or_else(|| corrupt("a member of a .npz ends in the middle"))?;
    let raw = u64::from(raw);
    if raw > MEMBER_BYTES_MAX.min((data.len() as u64).saturating_mul(RATIO_MAX).max(FREE_BYTES)) {
        let message = format!(
            "a .npz of {} claims to become {}",
            ByteSize(data.len() as u64),
            ByteSize(raw)
        );
        return Err(Error::new(ErrorKind::LimitExceeded, "read petastorm", message));
    }
    let mut out = Vec::new();
    match method {
        0 => out.extend_from_slice(data),
        8 => {
            let mut decoder = flate2::bufread::DeflateDecoder::new(data).take(raw + 1);
            let done = decoder.read_to_end(&mut out);
            done.map_err(|error| corrupt("a .npz does not decompress").with_source(error))?;
        }
        other => {
            let message = format!("a .npz of compression method {other}");
            return Err(Error::new(ErrorKind::Unsupported, "read petastorm", message));
        }
    }
    if out.len() as u64 != raw || crc32fast::hash(&out) != crc {
        return Err(corrupt("a member of a .npz does not have its checksum"));
    }
    Ok(out)
}

fn bytes_at<const N: usize>(zip: &[u8], at: usize) -> Result<[u8; N]> {
    let bytes = zip.get(at..).and_then(<[u8]>::first_chunk);
    bytes.copied().ok_or_else(|| corrupt("a .npz ends in the middle"))
}

fn u16_at(zip: &[u8], at: usize) -> Result<u16> {
    bytes_at(zip, at).map(u16::from_le_bytes)
}

fn u32_at(zip: &[u8], at: usize) -> Result<u32> {
    bytes_at(zip, at).map(u32::from_le_bytes)
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read petastorm", message)
}
