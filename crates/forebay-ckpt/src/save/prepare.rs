//! Looks at everything a rank is to save before the first byte is written: what cannot be saved is refused by name, and nothing is left behind.

use std::collections::HashSet;

use forebay_core::{Error, ErrorKind, Result, Span};

use super::supply::Bytes;
use super::{Item, ItemData};
use crate::entry::{Alias, SliceSpec};
use crate::hash::SliceId;
use crate::part::NAME_BYTES_MAX;
use crate::value::{DIMS_MAX, VALUE_BYTES_MAX};

/// A slice to be saved.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) name: String,
    pub(super) spec: SliceSpec,
    /// What its chunks are hashed with.
    pub(super) id: SliceId,
    pub(super) bytes: Bytes,
    /// Number of its first chunk among those of the rank.
    pub(super) first_chunk: usize,
    pub(super) chunks: u64,
}

/// Anything else, as it is stored.
#[derive(Debug)]
pub(super) enum Other {
    Value(Vec<u8>),
    Opaque(Vec<u8>),
    Alias(Alias),
}

/// What a rank saves.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// By name and offsets.
    pub(super) slices: Vec<Slice>,
    pub(super) others: Vec<(String, Other)>,
}

pub(super) fn prepare(items: Vec<Item>, chunk_bytes: u32, has_fill: bool) -> Result<Prepared> {
    let mut prepared = Prepared::default();
    for Item { name, data } in items {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(refuse(&name, "a name must have 1 to 4096 bytes"));
        }
        match data {
            ItemData::Slice(spec, buf) => {
                let slice = check_slice(name, spec, Some(Bytes::There(buf)), chunk_bytes)?;
                prepared.slices.push(slice);
            }
            ItemData::Later(spec, number) => {
                let later = has_fill.then(|| Bytes::Later {
                    number,
                    span: Span::first(spec.bytes()),
                });
                prepared.slices.push(check_slice(name, spec, later, chunk_bytes)?);
            }
            other => {
                let other = prepare_other(&name, other)?;
                prepared.others.extend(other.map(|other| (name, other)));
            }
        }
    }
    let by_place = |slice: &Slice| (slice.name.clone(), slice.spec.offsets.clone());
    prepared.slices.sort_by_cached_key(by_place);
    let mut next = 0;
    for slice in &mut prepared.slices {
        slice.first_chunk = next;
        next += slice.chunks as usize;
    }
    check_names(&prepared)?;
    Ok(prepared)
}

/// A slice with the bytes that its shape needs; `None` where nobody can fill them.
fn check_slice(name: String, spec: SliceSpec, bytes: Option<Bytes>, chunk_bytes: u32) -> Result<Slice> {
    spec.check().map_err(|why| refuse(&name, why))?;
    let Some(bytes) = bytes else {
        return Err(refuse(&name, "its bytes are not there, and nobody fills them"));
    };
    let (len, needed) = (bytes.len(), spec.bytes());
    if len != needed {
        let why = format!("it has {len} bytes, but its shape needs {needed}");
        return Err(refuse(&name, &why));
    }
    Ok(Slice {
        chunks: spec.chunks(chunk_bytes),
        id: spec.id(&name),
        name,
        spec,
        bytes,
        first_chunk: 0,
    })
}

fn prepare_other(name: &str, data: ItemData) -> Result<Option<Other>> {
    match data {
        ItemData::Slice(..) | ItemData::Later(..) => Ok(None),
        ItemData::Value(value) => {
            let bytes = value.encode().map_err(|error| {
                let message = format!("{name:?} cannot be saved");
                Error::new(error.kind(), "save", message).with_source(error)
            })?;
            Ok(Some(Other::Value(bytes)))
        }
        ItemData::Opaque(bytes) if bytes.len() > VALUE_BYTES_MAX => {
            Err(refuse(name, "opaque bytes take more than 64 MiB"))
        }
        ItemData::Opaque(bytes) => Ok(Some(Other::Opaque(bytes))),
        ItemData::Alias(alias) => {
            let is_good = alias.shape.len() == alias.strides.len()
                && alias.shape.len() <= DIMS_MAX
                && alias.dtype.bytes_of(&alias.shape).is_some();
            if is_good {
                return Ok(Some(Other::Alias(alias)));
            }
            Err(refuse(
                name,
                "an alias needs a size and a stride for each dimension",
            ))
        }
    }
}

/// A name is of one tensor, whose slices agree and are each there once, or of one other thing.
fn check_names(prepared: &Prepared) -> Result<()> {
    for pair in prepared.slices.windows(2) {
        let [a, b] = pair else { continue };
        if a.name != b.name {
            continue;
        }
        if (a.spec.dtype, &a.spec.shape) != (b.spec.dtype, &b.spec.shape) {
            return Err(refuse(&a.name, "its slices differ in dtype or shape"));
        }
        if a.spec.offsets == b.spec.offsets {
            return Err(refuse(&a.name, "it is there twice"));
        }
    }
    let mut names: HashSet<&str> = prepared.slices.iter().map(|slice| slice.name.as_str()).collect();
    for (name, _) in &prepared.others {
        if !names.insert(name) {
            return Err(refuse(name, "it is there twice"));
        }
    }
    Ok(())
}

pub(super) fn refuse(name: &str, why: &str) -> Error {
    let shown: String = name.chars().take(200).collect();
    Error::new(ErrorKind::InvalidInput, "save", format!("{shown:?}: {why}")).with_field(shown)
}
