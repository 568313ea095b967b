//! Loading into fresh memory, and into memory of the caller.
//!
//! Fresh memory is one region, cut at page boundaries, which is read into directly; it goes when the last tensor over it does. So is memory of the caller that
//! lies at page boundaries, such as what was loaded here before. Other memory is filled from a few reused slots: boxes are cut to fit them, loaded and verified there, and copied while the
//! next ones are read. What is beside the caller's memory is [`SLOTS_MAX`] slots and no more.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_ckpt::{Checkpoint, Loaded, Want};
use forebay_core::{DataPath, Error, ErrorKind, Ledger, Result};
use forebay_io::{AlignedBuf, PAGE, fault_ahead};
use futures::stream::{self, StreamExt, TryStreamExt};
use pyo3::prelude::*;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::stage::lent;
use super::{Place, refused};
use crate::process::Process;

/// Bytes of a slot: several chunks, so that reads are large and hashing goes on beside them.
const SLOT_BYTES: usize = 32 << 20;

/// Slots at once: one is read, one is hashed, one is copied, and one is spare.
const SLOTS_MAX: usize = 4;

/// Bytes from which on a thread has the pages of fresh memory made ahead of the reads: below, it costs more than it saves.
const AHEAD_BYTES_MIN: usize = 16 << 20;

/// Bytes from which on memory of whole pages is read into where it is: below, the slots do as well.
const DIRECT_BYTES_MIN: usize = 1 << 20;

/// Name, offsets, lengths and bytes of a box.
pub(crate) type WantRow = (String, Vec<u64>, Vec<u64>, usize);

/// Name, offsets, lengths, address and bytes of a box.
pub(crate) type IntoRow = (String, Vec<u64>, Vec<u64>, usize, usize);

/// Memory that loads leave for the next ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots(Arc<Mutex<Vec<AlignedBuf>>>);

impl Slots {
    fn take(&self, process: &Process) -> Result<AlignedBuf> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        kept.map_or_else(|| process.own_buf(SLOT_BYTES), Ok)
    }

    fn give(&self, slot: AlignedBuf) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < SLOTS_MAX && slot.capacity() >= SLOT_BYTES {
            kept.push(slot);
        }
    }
}

/// Load boxes into fresh memory.
pub(super) async fn load(
    place: &Place,
    checkpoint: Checkpoint,
    wants: &Arc<[WantRow]>,
) -> Result<(Vec<AlignedBuf>, Ledger)> {
    let total = pages_of(wants.iter().map(|(_, _, _, bytes)| *bytes))?;
    let mut rest = place.process.own_buf(total)?;
    rest.set_len(total);
    let wants = cut(wants.to_vec(), &mut rest);
    let ahead = (total >= AHEAD_BYTES_MIN).then(|| fault_ahead(wants.iter().map(|want| &want.memory)));
    let loaded = load_apart(&checkpoint, wants).await?;
    drop(ahead);
    let mut ledger = loaded.ledger;
    ledger.merge(&checkpoint.ledger());
    Ok((loaded.memory, ledger))
}

/// Load on a thread of the runtime's, where the future is made and stays; it is dropped when nobody waits for it any more.
async fn load_apart(checkpoint: &Checkpoint, wants: Vec<Want>) -> Result<Loaded> {
    let checkpoint = checkpoint.clone();
    let (waiting, gone) = oneshot::channel::<()>();
    let loading = tokio::task::spawn_blocking(move || {
        Handle::current().block_on(async {
            tokio::select! {
                loaded = checkpoint.load(wants) => loaded,
                _ = gone => Err(Error::new(ErrorKind::Cancelled, "load", "nobody waits for it")),
            }
        })
    });
    let loaded = loading
        .await
        .map_err(|error| Error::new(ErrorKind::Internal, "load", "a load was broken off").with_source(error));
    drop(waiting);
    loaded?
}

/// Bytes of whole pages for each.
fn pages_of(mut sizes: impl Iterator<Item = usize>) -> Result<usize> {
    let total = sizes.try_fold(0usize, |total, bytes| {
        total.checked_add(bytes.checked_next_multiple_of(PAGE)?)
    });
    total.ok_or_else(|| refused("that is more than memory can be"))
}

/// Give each want its memory, at page boundaries.
fn cut(wants: Vec<WantRow>, rest: &mut AlignedBuf) -> Vec<Want> {
    let wants = wants.into_iter().map(|(name, offsets, lengths, bytes)| {
        let behind = rest.split_off(bytes.next_multiple_of(PAGE));
        let mut memory = std::mem::replace(rest, behind);
        memory.set_len(bytes);
        Want {
            name,
            offsets,
            lengths,
            memory,
        }
    });
    wants.collect()
}

/// A box of a tensor, and the address of the caller's memory for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    name: String,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
    address: usize,
    bytes: usize,
}

impl Piece {
    /// True when it is read where it belongs: disks reach memory of whole pages by themselves.
    fn is_direct(&self) -> bool {
        self.address.is_multiple_of(PAGE) && self.bytes >= DIRECT_BYTES_MIN
    }
}

/// Rows that make sense.
pub(super) fn checked(rows: Vec<IntoRow>) -> Result<Vec<Piece>> {
    let pieces = rows.into_iter().map(|(name, offsets, lengths, address, bytes)| {
        let elements: u64 = lengths.iter().product();
        if bytes > 0 && (address == 0 || elements == 0 || !(bytes as u64 * 8).is_multiple_of(elements)) {
            return Err(refused(format!(
                "{name:?}: {bytes} bytes for {elements} elements"
            )));
        }
        Ok(Piece {
            name,
            offsets,
            lengths,
            address,
            bytes,
        })
    });
    pieces.collect()
}

/// Load boxes into memory of the caller.
pub(super) async fn load_into(
    place: &Place,
    checkpoint: Checkpoint,
    pieces: &[Piece],
    keep: &Arc<Option<Py<PyAny>>>,
) -> Result<Ledger> {
    let (direct, others): (Vec<Piece>, Vec<Piece>) = pieces.iter().cloned().partition(Piece::is_direct);
    let mut ledger = fill_direct(&checkpoint, direct, keep).await?;
    let mut cut = Vec::new();
    for piece in others {
        halve(piece, &mut cut);
    }
    let checkpoint = &checkpoint;
    let loads = batched(cut)
        .into_iter()
        .map(|batch| fill(place, checkpoint, batch));
    let mut loads = stream::iter(loads).buffer_unordered(SLOTS_MAX);
    while let Some(more) = loads.try_next().await? {
        ledger.merge(&more);
    }
    ledger.merge(&checkpoint.ledger());
    Ok(ledger)
}

/// Read pieces straight into the caller's memory. A wait that is broken off may leave reads that go on for a moment: the memory is kept until then.
async fn fill_direct(
    checkpoint: &Checkpoint,
    pieces: Vec<Piece>,
    keep: &Arc<Option<Py<PyAny>>>,
) -> Result<Ledger> {
    if pieces.is_empty() {
        return Ok(Ledger::default());
    }
    let mut wants = Vec::with_capacity(pieces.len());
    for Piece {
        name,
        offsets,
        lengths,
        address,
        bytes,
    } in pieces.iter().cloned()
    {
        let memory = lent(address, bytes, Arc::clone(keep))?;
        wants.push(Want {
            name,
            offsets,
            lengths,
            memory,
        });
    }
    let loaded = load_apart(checkpoint, wants).await?;
    let mut ledger = loaded.ledger;
    for (piece, memory) in pieces.iter().zip(&loaded.memory) {
        // A read that was tried again comes back in other memory.
        if memory.as_ptr().addr() != piece.address {
            let path = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
            ledger.record_copy(path, put(piece, memory));
        }
    }
    Ok(ledger)
}

/// Cut a box that is larger than a slot in two, along the first side that can be cut, so that each half lies in one run of the caller's memory.
fn halve(piece: Piece, pieces: &mut Vec<Piece>) {
    let side = piece.lengths.iter().position(|length| *length > 1);
    let (true, Some(side)) = (piece.bytes > SLOT_BYTES, side) else {
        pieces.push(piece);
        return;
    };
    let length = piece.lengths.get(side).copied().unwrap_or(1);
    // Eight elements of any type are whole bytes.
    let first = if length < 16 {
        length / 2
    } else {
        (length / 2) & !7
    };
    let first_bytes = (piece.bytes as u128 * u128::from(first) / u128::from(length)) as usize;
    let (mut front, mut back) = (piece.clone(), piece);
    if let (Some(front), Some(back), Some(offset)) = (
        front.lengths.get_mut(side),
        back.lengths.get_mut(side),
        back.offsets.get_mut(side),
    ) {
        *front = first;
        *back = length - first;
        *offset += first;
    }
    front.bytes = first_bytes;
    back.bytes -= first_bytes;
    back.address += first_bytes;
    halve(front, pieces);
    halve(back, pieces);
}

/// Pieces together, as many as fit into a slot.
fn batched(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut batches: Vec<Vec<Piece>> = Vec::new();
    let mut room = 0;
    for piece in pieces {
        let bytes = piece.bytes.next_multiple_of(PAGE);
        match batches.last_mut() {
            Some(batch) if bytes <= room => batch.push(piece),
            _ => {
                batches.push(vec![piece]);
                room = SLOT_BYTES;
            }
        }
        room = room.saturating_sub(bytes);
    }
    batches
}

/// Load pieces into a slot, and bring them to their places.
async fn fill(place: &Place, checkpoint: &Checkpoint, batch: Vec<Piece>) -> Result<Ledger> {
    let mut slot = place.slots.take(place.process)?;
    let total = pages_of(batch.iter().map(|piece| piece.bytes))?;
    if slot.capacity() < total {
        // Of dimensions that cannot be cut: rows of more than a slot.
        slot = place.process.own_buf(total)?;
    }
    slot.set_len(slot.capacity());
    let wants = batch
        .iter()
        .map(|piece| {
            let Piece {
                name,
                offsets,
                lengths,
                ..
            } = piece.clone();
            (name, offsets, lengths, piece.bytes)
        })
        .collect();
    let wants = cut(wants, &mut slot);
    let loaded = load_apart(checkpoint, wants).await?;
    let mut ledger = loaded.ledger;
    // On this thread and without a pause: a wait that Ctrl-C ends is not in the middle of it, and nothing is written to the caller's memory after.
    let copied = batch.iter().zip(&loaded.memory);
    let bytes = copied.map(|(piece, memory)| put(piece, memory)).sum();
    let memory = loaded.memory;
    let path = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
    ledger.record_copy(path, bytes);
    if let Some(slot) = joined(memory, slot) {
        place.slots.give(slot);
    }
    Ok(ledger)
}

/// Bring a piece to its place.
fn put(piece: &Piece, memory: &[u8]) -> u64 {
    let bytes = memory.len().min(piece.bytes);
    if bytes > 0 {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(piece.address);
        // SAFETY: the caller of the Python function says that its memory is at the address and stays there until it returns, and this runs on
        // the thread that called it; pieces of one row lie within its bytes.
        unsafe { std::ptr::copy_nonoverlapping(memory.as_ptr(), to, bytes) };
    }
    bytes as u64
}

/// The slot that was cut, whole again; nothing where a read that was tried again came back in other memory.
fn joined(memory: Vec<AlignedBuf>, rest: AlignedBuf) -> Option<AlignedBuf> {
    let mut pieces = memory.into_iter().chain([rest]);
    let mut slot = pieces.next()?;
    for mut piece in pieces {
        slot.set_len(slot.capacity());
        piece.set_len(piece.capacity());
        slot.unsplit(piece).ok()?;
    }
    Some(slot)
}
