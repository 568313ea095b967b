//! From the first bytes of a file to a checked [`Header`].
//!
//! The JSON is read in one pass by a visitor that refuses what a map would hide: a name or key that comes twice. Then tensors are sorted by
//! offset and walked once, and every byte of the data area must belong to exactly one of them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{
    DIMS_MAX, Dtype, HEADER_BYTES_MAX, Header, LENGTH_BYTES, METADATA_KEY, OP, TensorInfo, corrupt,
    tensor_bytes,
};
use crate::{Error, ErrorKind, Result, Span};

/// Longest part of a name that an error repeats.
const NAME_SHOWN_CHARS: usize = 200;

/// Smallest header: `{}`.
const HEADER_BYTES_MIN: u64 = 2;

pub(super) fn prefix_bytes(first: &[u8], file_len: u64) -> Result<u64> {
    let Some(length) = first.first_chunk::<8>().filter(|_| file_len >= LENGTH_BYTES) else {
        return Err(corrupt(format!(
            "{file_len} bytes are too short for a safetensors file, which begins with 8 bytes of length"
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_BYTES_MAX {
        let message = format!(
            "the header at offset 8 claims {length} bytes, and at most {HEADER_BYTES_MAX} are allowed"
        );
        return Err(Error::new(ErrorKind::LimitExceeded, OP, message)
            .with_hint("this is probably no safetensors file"));
    }
    if length < HEADER_BYTES_MIN {
        return Err(corrupt(format!(
            "the header at offset 8 claims {length} bytes, too few for any"
        )));
    }
    let end = LENGTH_BYTES + length;
    if end > file_len {
        return Err(corrupt(format!(
            "the header at offset 8 claims {length} bytes, but the file ends at {file_len}"
        ))
        .with_hint("the file was cut short, or is still being written"));
    }
    Ok(end)
}

pub(super) fn parse(prefix: &[u8], file_len: u64) -> Result<Header> {
    let data_start = prefix_bytes(prefix, file_len)?;
    let Some(text) = prefix.get(LENGTH_BYTES as usize..data_start as usize) else {
        let message = format!(
            "the header ends at {data_start}, but only {} bytes were given",
            prefix.len()
        );
        return Err(Error::new(ErrorKind::InvalidInput, OP, message));
    };
    let text = std::str::from_utf8(text).map_err(|error| {
        let offset = LENGTH_BYTES + error.valid_up_to() as u64;
        corrupt(format!("the header is not UTF-8 at offset {offset}"))
    })?;
    if !text.starts_with('{') {
        return Err(corrupt("the header at offset 8 does not begin with '{'"));
    }
    let raw: RawHeader = serde_json::from_str(text).map_err(|error| explain(text, &error))?;
    let tensors = checked(raw.tensors, data_start, file_len)?;
    Ok(Header::from_parts(tensors, raw.metadata, data_start, file_len))
}

/// An error of the JSON parser with the place in the file.
fn explain(text: &str, error: &serde_json::Error) -> Error {
    let line_start: usize = text
        .split_inclusive('\n')
        .take(error.line().saturating_sub(1))
        .map(str::len)
        .sum();
    let offset = LENGTH_BYTES as usize + line_start + error.column().saturating_sub(1);
    let message = error.to_string();
    // Its own place counts lines and columns of a text nobody sees as such.
    let message = message
        .rsplit_once(" at line ")
        .map_or(&*message, |(head, _)| head);
    match message.strip_prefix(UNSUPPORTED_MARK) {
        Some(message) => Error::new(
            ErrorKind::Unsupported,
            OP,
            format!("{message}, near offset {offset}"),
        )
        .with_hint("the file was written by a newer version of the format; update forebay"),
        None => corrupt(format!("the header is wrong near offset {offset}: {message}")),
    }
}

/// Goes in front of messages about dtypes through the JSON parser, which knows only one kind of error. No message of its own begins so.
const UNSUPPORTED_MARK: &str = "\u{1}";

/// Sort by offset, and see that sizes fit and nothing is left out or used twice.
fn checked(mut raw: Vec<RawTensor>, data_start: u64, file_len: u64) -> Result<Vec<TensorInfo>> {
    raw.sort_by_key(|tensor| (tensor.begin, tensor.end));
    let data_len = file_len - data_start;
    let mut tensors: Vec<TensorInfo> = Vec::with_capacity(raw.len());
    let mut at = 0;
    for tensor in raw {
        let (begin, end) = (tensor.begin, tensor.end);
        let name = shown(&tensor.name);
        let fail = |why: String| corrupt(format!("tensor '{name}' with offsets {begin}..{end}: {why}"));
        if end < begin {
            return Err(fail("it ends before it begins".to_owned()));
        }
        let bytes = tensor_bytes(tensor.dtype, &tensor.shape).map_err(|why| fail(why.to_owned()))?;
        if end - begin != bytes {
            let RawTensor { dtype, shape, .. } = &tensor;
            return Err(fail(format!(
                "dtype {dtype} and shape {shape:?} need {bytes} bytes"
            )));
        }
        if end > data_len {
            let need = u128::from(data_start) + u128::from(end);
            return Err(fail(format!(
                "it needs a file of {need} bytes, but the file ends at {file_len}"
            ))
            .with_hint("the file was cut short, or is still being written"));
        }
        if begin != at {
            let before = tensors.last().map_or_else(
                || "the data area".to_owned(),
                |last| format!("tensor '{}'", shown(&last.name)),
            );
            return Err(fail(if begin < at {
                format!("it overlaps {before}, which ends at {at}")
            } else if tensors.is_empty() {
                format!("the first {begin} bytes of the data area belong to no tensor")
            } else {
                format!("bytes {at}..{begin} between it and {before} belong to no tensor")
            }));
        }
        at = end;
        tensors.push(TensorInfo {
            span: Span::new(data_start + begin, data_start + end)?,
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
        });
    }
    if at != data_len {
        let end = data_start + at;
        return Err(corrupt(format!(
            "the tensors end at offset {end}, but the file ends at {file_len}"
        )));
    }
    Ok(tensors)
}

fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(NAME_SHOWN_CHARS).collect();
    if shown.len() < name.len() {
        shown.push_str("...");
    }
    shown.escape_debug().to_string()
}

/// What the JSON says, with nothing checked but names.
struct RawHeader {
    tensors: Vec<RawTensor>,
    metadata: Option<BTreeMap<String, String>>,
}

struct RawTensor {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    begin: u64,
    end: u64,
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = RawHeader;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
        let mut tensors: Vec<RawTensor> = Vec::new();
        let mut metadata: Option<Option<Metadata>> = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == METADATA_KEY {
                if metadata.replace(map.next_value()?).is_some() {
                    return Err(de::Error::custom("__metadata__ comes twice"));
                }
                continue;
            }
            let entry: RawEntry = map
                .next_value()
                .map_err(|error| de::Error::custom(format!("tensor '{}': {}", shown(&name), bare(&error))))?;
            let dtype = Dtype::parse(&entry.dtype).map_err(|error| {
                let message = error.message();
                de::Error::custom(format!("{UNSUPPORTED_MARK}tensor '{}': {message}", shown(&name)))
            })?;
            let (begin, end) = entry.data_offsets;
            tensors.push(RawTensor {
                name,
                dtype,
                shape: entry.shape.0,
                begin,
                end,
            });
        }
        refuse_twins(&tensors)?;
        Ok(RawHeader {
            tensors,
            metadata: metadata.flatten().map(|metadata| metadata.0),
        })
    }
}

/// Two tensors of one name: which of them is meant would be anybody's guess.
fn refuse_twins<E: de::Error>(tensors: &[RawTensor]) -> Result<(), E> {
    let mut names: Vec<&RawTensor> = tensors.iter().collect();
    names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    for pair in names.windows(2) {
        if let [a, b] = pair
            && a.name == b.name
        {
            return Err(E::custom(format!(
                "tensor '{}' comes twice, with offsets {}..{} and {}..{}",
                shown(&a.name),
                a.begin,
                a.end,
                b.begin,
                b.end
            )));
        }
    }
    Ok(())
}

/// A message of the parser without its place, which the outermost error repeats.
fn bare(error: &impl fmt::Display) -> String {
    let message = error.to_string();
    message
        .rsplit_once(" at line ")
        .map_or(message.clone(), |(head, _)| head.to_owned())
}

/// Unknown fields are passed over, as other readers do.
#[derive(serde::Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Shape,
    data_offsets: (u64, u64),
}

struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ShapeVisitor)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = Shape;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of lengths")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Shape, A::Error> {
        let mut shape = Vec::new();
        while let Some(len) = seq.next_element()? {
            if shape.len() == DIMS_MAX {
                return Err(de::Error::custom(format!(
                    "the shape has more than {DIMS_MAX} dimensions"
                )));
            }
            shape.push(len);
        }
        Ok(Shape(shape))
    }
}

struct Metadata(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct MetadataVisitor;

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
        let mut metadata = BTreeMap::new();
        while let Some((key, value)) = map.next_entry::<String, String>()? {
            match metadata.entry(key) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(twin) => {
                    let message = format!("'{}' comes twice in __metadata__", shown(twin.key()));
                    return Err(de::Error::custom(message));
                }
            }
        }
        Ok(Metadata(metadata))
    }
}
