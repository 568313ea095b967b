//! Samples become a tar that WebDataset, `tarfile` and GNU tar read: plain `ustar` headers, an `x` header only for names that do not fit.
//!
//! The same samples give the same bytes: no clock, no user, fields in the order of their names. A sample that a reader would not get back
//! as it is, is refused before any of it is written.

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{Buf, BufPool};

use super::header::{NAME_BYTES_MAX, PREFIX_BYTES_MAX, Written};
use super::names::{self, FIELD_BAD, FIELD_LOCAL_PATH, FIELDS_RESERVED};
use super::scan::shown;
use super::{BLOCK_BYTES, padded, pax};
use crate::format::shard_bytes::ShardBytes;
use crate::format::{SampleRef, ShardWriter};
use crate::table::SAMPLE_BYTES_MAX;

/// Blocks of zeros at the end.
const END_BYTES: u64 = 2 * BLOCK_BYTES as u64;

/// Archives are filled up to a multiple of this, the record of tapes, as all writers of tar do by default.
const RECORD_BYTES: u64 = 20 * BLOCK_BYTES as u64;

/// Longest name: no file system has longer ones, and readers of tar have limits of their own.
const NAME_WRITTEN_BYTES_MAX: usize = 4096;

/// What Python's writer calls the header with the records.
const RECORDS_NAME: &[u8] = b"././@PaxHeader";

const OP: &str = "write tar";

/// Makes one WebDataset shard.
#[derive(Debug, Default)]
pub struct WdsWriter {
    bytes: ShardBytes,
    /// Empty before the first sample: no key is.
    key_before: String,
}

impl ShardWriter for WdsWriter {
    fn bytes_with(&self, sample: SampleRef<'_>) -> u64 {
        archive_bytes((self.bytes.len() as u64).saturating_add(sample_bytes(sample)))
    }

    fn add(&mut self, sample: SampleRef<'_>) -> Result<()> {
        let members = self.checked(sample)?;
        for (name, data) in members {
            self.write(&name, data)?;
        }
        sample.key.clone_into(&mut self.key_before);
        Ok(())
    }

    fn take_parts(&mut self) -> Vec<Buf> {
        self.bytes.take_full()
    }

    fn finish(mut self: Box<Self>) -> Result<Buf> {
        let bytes = archive_bytes(self.bytes.len() as u64);
        self.bytes.fill_to(bytes as usize)?;
        self.bytes.freeze()
    }
}

impl WdsWriter {
    /// An empty archive in parts of that many bytes, which can be taken away while it grows.
    pub(crate) fn in_parts(bytes: usize, memory: &BufPool) -> Self {
        Self {
            bytes: ShardBytes::in_parts(bytes, memory),
            key_before: String::new(),
        }
    }

    /// The members of a sample, in order.
    fn checked<'a>(&self, sample: SampleRef<'a>) -> Result<Vec<(String, &'a [u8])>> {
        if sample.key == self.key_before && !sample.key.is_empty() {
            let error = refused(format!("two samples with key '{}' in a row", shown(sample.key)));
            return Err(error.with_hint("readers would take them for one; give each a key of its own"));
        }
        if sample.fields.is_empty() {
            let message = format!("sample '{}' has no fields, and would be lost", shown(sample.key));
            return Err(refused(message));
        }
        if sample_bytes(sample) > SAMPLE_BYTES_MAX {
            let message = format!("sample '{}' has more than 4 GiB", shown(sample.key));
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
        let mut members: Vec<(String, &[u8])> = Vec::with_capacity(sample.fields.len());
        for (field, data) in sample.fields {
            let name = member_name(sample.key, &field.name);
            if !is_readable(sample.key, &field.name, &name) {
                check_key(sample.key)?;
                check_field(sample.key, &field.name)?;
            }
            members.push((name, data));
        }
        members.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        let mut neighbours = members.iter().zip(members.iter().skip(1));
        if let Some(((name, _), _)) = neighbours.find(|(one, other)| one.0 == other.0) {
            let field = name.get(sample.key.len() + 1..).unwrap_or(name);
            let message = format!(
                "field '{}' is in sample '{}' twice",
                shown(field),
                shown(sample.key)
            );
            return Err(refused(message));
        }
        Ok(members)
    }

    fn write(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let mut header = Written {
            flag: b'0',
            prefix: b"",
            name: name.as_bytes(),
            size: data.len() as u64,
            is_file: true,
        };
        let short: Vec<u8>;
        match place(name) {
            Place::Name => {}
            Place::Prefix(slash) => {
                let (prefix, rest) = name.split_at(slash);
                header.prefix = prefix.as_bytes();
                header.name = rest.strip_prefix('/').unwrap_or(rest).as_bytes();
            }
            Place::Records => {
                let record = pax::record("path", name);
                let records = Written {
                    flag: b'x',
                    prefix: b"",
                    name: RECORDS_NAME,
                    size: record.len() as u64,
                    is_file: false,
                };
                self.bytes.extend(&records.block())?;
                self.write_data(record.as_bytes())?;
                short = shortened(name);
                header.name = &short;
            }
        }
        self.bytes.extend(&header.block())?;
        self.write_data(data)
    }

    fn write_data(&mut self, data: &[u8]) -> Result<()> {
        self.bytes.extend(data)?;
        self.bytes.fill_to(self.bytes.len().next_multiple_of(BLOCK_BYTES))
    }
}

/// Where a name goes.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// Into the field for it.
    Name,
    /// Up to the slash at that place into the prefix, the rest into the field.
    Prefix(usize),
    /// Into a header of its own.
    Records,
}

fn place(name: &str) -> Place {
    // Other characters have no encoding that all readers agree on, except in records.
    if !name.is_ascii() {
        return Place::Records;
    }
    if name.len() <= NAME_BYTES_MAX {
        return Place::Name;
    }
    let fits = |slash: &usize| {
        let rest = name.len() - slash - 1;
        (1..=PREFIX_BYTES_MAX).contains(slash) && (1..=NAME_BYTES_MAX).contains(&rest)
    };
    let mut slashes = name.match_indices('/').map(|(slash, _)| slash);
    slashes.find(fits).map_or(Place::Records, Place::Prefix)
}

/// What stands in the header of a name that is in the records: for tools that do not read those.
fn shortened(name: &str) -> Vec<u8> {
    let ascii = |character| u8::try_from(character).ok().filter(u8::is_ascii);
    let bytes = name.chars().map(|character| ascii(character).unwrap_or(b'?'));
    bytes.take(NAME_BYTES_MAX).collect()
}

fn member_name(key: &str, field: &str) -> String {
    [key, ".", field].concat()
}

/// Bytes that a sample takes in an archive.
pub(crate) fn sample_bytes(sample: SampleRef<'_>) -> u64 {
    let bytes = |(field, data): &(&crate::schema::Field, &[u8])| {
        records_bytes(sample.key, &field.name) + member_bytes(data.len() as u64)
    };
    sample.fields.iter().map(bytes).sum()
}

/// Bytes of the header that a name needs for itself; none for nearly all.
fn records_bytes(key: &str, field: &str) -> u64 {
    if key.len() + 1 + field.len() <= NAME_BYTES_MAX && key.is_ascii() && field.is_ascii() {
        return 0;
    }
    let name = member_name(key, field);
    match place(&name) {
        Place::Records => member_bytes(pax::record("path", &name).len() as u64),
        Place::Name | Place::Prefix(_) => 0,
    }
}

fn member_bytes(data: u64) -> u64 {
    BLOCK_BYTES as u64 + padded(data).unwrap_or(data)
}

/// Bytes of the archive around that many of members.
pub(crate) fn archive_bytes(members: u64) -> u64 {
    let bytes = members.saturating_add(END_BYTES);
    bytes.checked_next_multiple_of(RECORD_BYTES).unwrap_or(bytes)
}

/// True when a member of that name is read as this field of this key, as nearly all are. Others are refused by [`check_key`] or [`check_field`],
/// which tell why; both make names of their own to find that out.
fn is_readable(key: &str, field: &str, name: &str) -> bool {
    let is_plain_field =
        |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase() && !matches!(byte, b'/' | 0);
    !key.is_empty()
        && !key.contains('\0')
        && !key.starts_with('/')
        && !key.split('/').any(|part| part == "..")
        && field.bytes().all(is_plain_field)
        && !FIELDS_RESERVED.contains(&field)
        && ![FIELD_BAD, FIELD_LOCAL_PATH].contains(&field)
        && names::split(name) == Some((key, field))
        && !names::is_metadata(name)
        && name.len() <= NAME_WRITTEN_BYTES_MAX
}

/// The name of the file that a field of a sample is, checked as one in an archive.
pub(crate) fn file_name(key: &str, field: &str) -> Result<String> {
    let name = member_name(key, field);
    if !is_readable(key, field, &name) {
        check_key(key)?;
        check_field(key, field)?;
    }
    Ok(name)
}

/// Refuse a key that would not be read as this key, or is a trap for those who unpack the archive.
fn check_key(key: &str) -> Result<()> {
    let wrong = if key.is_empty() {
        "is empty"
    } else if key.contains('\0') {
        "holds a NUL"
    } else if key.starts_with('/') || key.split('/').any(|part| part == "..") {
        "leads out of the folder into which somebody unpacks the shard"
    } else if names::split(&member_name(key, "x")) != Some((key, "x")) {
        "would be cut at another place than its end when the shard is read"
    } else if names::is_metadata(&member_name(key, "x")) {
        "would be taken for metadata"
    } else {
        return Ok(());
    };
    Err(refused(format!("key '{}' {wrong}", shown(key)))
        .with_field("key")
        .with_hint("a key is a relative path without a dot in its last part, such as train/000017"))
}

/// Refuse a field that would not be read as this field.
fn check_field(key: &str, field: &str) -> Result<()> {
    let name = member_name(key, field);
    let wrong = if field.contains(['/', '\0']) {
        "holds a slash or a NUL"
    } else if field != field.to_lowercase() {
        "has upper-case letters, which readers make small"
    } else if FIELDS_RESERVED.contains(&field) || [FIELD_BAD, FIELD_LOCAL_PATH].contains(&field) {
        "has a name that means something else to readers"
    } else if names::is_metadata(&name) {
        "would be taken for metadata together with its key"
    } else if names::split(&name) != Some((key, field)) {
        "would be read as another one"
    } else if name.len() > NAME_WRITTEN_BYTES_MAX {
        "has too long a name together with its key"
    } else {
        return Ok(());
    };
    let message = format!("field '{}' of sample '{}' {wrong}", shown(field), shown(key));
    Err(refused(message)
        .with_field("field")
        .with_hint("a field is an extension in lower case, such as jpg or seg.png"))
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, OP, message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The short way says yes to nothing that the long one refuses.
        #[test]
        fn names_that_are_taken_unseen_pass_all_checks(key in "[a_./ \n0-9]{0,8}", field in "[a-c_./A.]{0,6}") {
            if is_readable(&key, &field, &member_name(&key, &field)) {
                prop_assert!(check_key(&key).is_ok() && check_field(&key, &field).is_ok());
            }
        }
    }

    proptest! {
        /// What is said of names without making them is what is so.
        #[test]
        fn names_are_measured_without_making_them(key in "[a/\u{e9}]{0,90}", field in "[a-c.\u{e9}]{0,20}") {
            let is_long = place(&member_name(&key, &field)) == Place::Records;
            prop_assert_eq!(records_bytes(&key, &field) > 0, is_long);
        }
    }

    #[test]
    fn records_are_for_names_that_fit_nowhere_else() {
        let name = |len: usize| "n".repeat(len);
        let cases = [
            (name(100), Place::Name),
            (name(101), Place::Records),
            (format!("{}/{}", name(155), name(100)), Place::Prefix(155)),
            (format!("{}/{}", name(156), name(50)), Place::Records),
            (format!("{}/{}", name(155), name(101)), Place::Records),
            (format!("a/b/{}", name(98)), Place::Prefix(1)),
            (format!("a/b/{}", name(99)), Place::Prefix(3)),
            ("caf\u{e9}".to_owned(), Place::Records),
        ];
        for (name, expected) in cases {
            assert_eq!(place(&name), expected, "{name}");
        }
    }

    #[test]
    fn archives_end_in_two_blocks_and_fill_their_record() {
        let cases = [
            (0, 10_240),
            (9_216, 10_240),
            (9_217, 20_480),
            (u64::MAX, u64::MAX),
        ];
        for (members, bytes) in cases {
            assert_eq!(archive_bytes(members), bytes);
        }
    }
}
