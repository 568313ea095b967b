//! `tf.train.Example` and `SequenceExample`: which features a record has, and where their values are.
//!
//! Nothing is copied and nothing decoded: a [`Feature`] is a few ranges of the record. What protobuf would have to merge from several places is not
//! taken for an Example, since no one range holds it.

use std::ops::Range;

use super::wire::{Parsed, Reader, Value, WireField, varint_count, varint_len};
use crate::table::FIELDS_MAX;

/// What a feature is a list of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    Bytes,
    Floats,
    Ints,
    /// A feature list of a `SequenceExample`.
    Features,
}

impl List {
    /// Its message's name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bytes => "BytesList",
            Self::Floats => "FloatList",
            Self::Ints => "Int64List",
            Self::Features => "FeatureList",
        }
    }

    /// The range of the message around a plain value. A list of numbers that is empty has no tag to go back over, and needs none.
    pub(super) fn message_of(self, value: Range<u64>) -> Range<u64> {
        let len = value.end - value.start;
        if len == 0 && self != Self::Bytes {
            return value;
        }
        value.start.saturating_sub(1 + varint_len(len))..value.end
    }
}

/// A feature of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Feature {
    /// Where its name is.
    pub(super) name: Range<usize>,
    pub(super) list: List,
    /// True when its message is nothing but one tag, the shortest length, and the value.
    pub(super) is_plain: bool,
    /// The value where it is plain, else the message.
    pub(super) range: Range<usize>,
}

/// Find the features of a record. Gives true when the record can be an Example at all: it is empty, or has a field an Example has.
pub(super) fn find(record: &[u8], features: &mut Vec<Feature>) -> Parsed<bool> {
    let mut reader = Reader::new(record, 0..record.len());
    let (mut context, mut lists) = (None, None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => set(&mut context, field)?,
            2 => set(&mut lists, field)?,
            _ => {}
        }
    }
    let is_known = record.is_empty() || context.is_some() || lists.is_some();
    if let Some(range) = context {
        entries(record, range, features, feature)?;
    }
    if let Some(range) = lists {
        entries(record, range, features, feature_list)?;
    }
    Ok(is_known)
}

/// The bytes of a message that may be there once.
fn set(slot: &mut Option<Range<usize>>, field: WireField) -> Parsed<()> {
    let Value::Bytes(range) = field.value else {
        return Err("a message of another wire type");
    };
    match slot.replace(range) {
        None => Ok(()),
        Some(_) => Err("a message in two pieces"),
    }
}

/// What the value of a map entry is: list, whether it is plain, range. `None` where there is no value.
type Found = Option<(List, bool, Range<usize>)>;

/// The entries of a map from names to features or feature lists.
fn entries(
    record: &[u8],
    map: Range<usize>,
    features: &mut Vec<Feature>,
    find: fn(&[u8], Range<usize>) -> Parsed<Found>,
) -> Parsed<()> {
    let mut reader = Reader::new(record, map);
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            continue;
        }
        let Value::Bytes(entry) = field.value else {
            return Err("a map entry of another wire type");
        };
        let (mut name, mut value) = (None, None);
        let mut parts = Reader::new(record, entry.clone());
        while let Some(part) = parts.next()? {
            match part.number {
                1 => set(&mut name, part)?,
                2 => set(&mut value, part)?,
                _ => {}
            }
        }
        // Protobuf's default for a key that is not there.
        let name = name.unwrap_or(entry.start..entry.start);
        if std::str::from_utf8(record.get(name.clone()).unwrap_or_default()).is_err() {
            return Err("a name that is not UTF-8");
        }
        let Some((list, is_plain, range)) = value.map_or(Ok(None), |value| find(record, value))? else {
            continue;
        };
        if features.len() >= FIELDS_MAX {
            return Err("more features than a record may have");
        }
        features.push(Feature {
            name,
            list,
            is_plain,
            range,
        });
    }
    Ok(())
}

/// The list of a feature, and its message.
pub(super) fn list_of(record: &[u8], feature: Range<usize>) -> Parsed<Option<(List, Range<usize>)>> {
    let mut reader = Reader::new(record, feature);
    let mut found = None;
    while let Some(field) = reader.next()? {
        let list = match field.number {
            1 => List::Bytes,
            2 => List::Floats,
            3 => List::Ints,
            _ => continue,
        };
        let mut message = None;
        set(&mut message, field)?;
        if found.replace((list, message.unwrap_or_default())).is_some() {
            return Err("a feature of two lists");
        }
    }
    Ok(found)
}

fn feature(record: &[u8], range: Range<usize>) -> Parsed<Found> {
    let Some((list, message)) = list_of(record, range)? else {
        return Ok(None);
    };
    let mut values = 0usize;
    let mut last = message.start..message.start;
    let mut is_packed = true;
    let mut reader = Reader::new(record, message.clone());
    while let Some(field) = reader.next()? {
        if field.number != 1 {
            is_packed = false;
            continue;
        }
        is_packed &= check_value(record, list, &field.value)?;
        values += 1;
        last = field.body;
    }
    if values == 0 && list == List::Bytes {
        return Ok(None);
    }
    let around = list.message_of(last.start as u64..last.end as u64);
    let is_whole = around == (message.start as u64..message.end as u64);
    // A tag with no numbers behind it is as empty as no tag.
    let is_empty = list != List::Bytes && last.is_empty() && message.len() <= 2;
    let is_plain = values <= 1 && is_packed && (is_whole || is_empty);
    Ok(Some((list, is_plain, if is_plain { last } else { message })))
}

/// Refuse a value that such a list cannot have. True when it is length-delimited: bytes, or packed numbers.
fn check_value(record: &[u8], list: List, value: &Value) -> Parsed<bool> {
    match (list, value) {
        (List::Bytes, Value::Bytes(_)) => Ok(true),
        (List::Floats, Value::Bytes(range)) if range.len().is_multiple_of(4) => Ok(true),
        (List::Ints, Value::Bytes(range))
            if varint_count(record.get(range.clone()).unwrap_or_default()).is_some() =>
        {
            Ok(true)
        }
        (List::Floats, Value::Fixed32(_)) | (List::Ints, Value::Varint) => Ok(false),
        _ => Err("a value of another type than its list"),
    }
}

/// A feature list is given whole; looked through, so that decoding it later finds nothing new.
fn feature_list(record: &[u8], range: Range<usize>) -> Parsed<Found> {
    let mut reader = Reader::new(record, range.clone());
    while let Some(field) = reader.next()? {
        if field.number == 1 {
            let Value::Bytes(member) = field.value else {
                return Err("a feature of another wire type");
            };
            feature(record, member)?;
        }
    }
    Ok(Some((List::Features, false, range)))
}
