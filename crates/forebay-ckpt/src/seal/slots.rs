//! Key slots as they lie in a manifest. Pure.

use forebay_core::Result;

use crate::names::Attempt;
use crate::wire::{Wire, cursor};

/// Most slots of a manifest: several wrapping keys for the attempts of a long chain, within the bytes that slots may take.
const SLOTS_MAX: u64 = 16_384;

/// Most bytes of the kind of a slot, and of the id of a wrapping key: an ARN has some hundred.
const KIND_BYTES_MAX: usize = 64;
/// See [`KIND_BYTES_MAX`].
pub(crate) const ID_BYTES_MAX: usize = 2048;

/// Most bytes of a wrapped key: services answer with some hundred.
pub(crate) const WRAPPED_BYTES_MAX: usize = 8 << 10;

/// Least bytes of a slot: what counts are compared with.
const SLOT_BYTES_MIN: usize = 1 + 1 + 8 + 16 + 1;

/// A data key, wrapped by one wrapping key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Where the wrapping key comes from.
    pub(crate) kind: String,
    /// Which wrapping key.
    pub(crate) id: String,
    /// Whose data key.
    pub(crate) step: u64,
    /// Whose data key.
    pub(crate) attempt: Attempt,
    pub(crate) wrapped: Vec<u8>,
}

/// Slots as bytes; none for none.
pub(crate) fn encode(slots: &[Slot]) -> Vec<u8> {
    let mut out = Vec::new();
    if slots.is_empty() {
        return out;
    }
    out.put_varint(slots.len() as u64);
    for slot in slots {
        out.put_text(&slot.kind);
        out.put_text(&slot.id);
        out.put_u64(slot.step);
        out.extend_from_slice(&slot.attempt.0);
        out.put_blob(&slot.wrapped);
    }
    out
}

/// Slots from bytes.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Slot>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut cursor = cursor(bytes, "key slots");
    let count = cursor.count(SLOTS_MAX, SLOT_BYTES_MIN)?;
    let mut slots = Vec::with_capacity(count);
    for _ in 0..count {
        slots.push(Slot {
            kind: cursor.text(KIND_BYTES_MAX)?.to_owned(),
            id: cursor.text(ID_BYTES_MAX)?.to_owned(),
            step: cursor.u64()?,
            attempt: Attempt(cursor.array()?),
            wrapped: cursor.blob(WRAPPED_BYTES_MAX)?.to_vec(),
        });
    }
    if slots.is_empty() {
        return Err(cursor.corrupt("there are no slots where some should be"));
    }
    cursor.finish()?;
    Ok(slots)
}
