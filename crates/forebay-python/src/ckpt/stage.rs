//! The staging area: one reused `MutableBuffer` that holds a copy of the state while it is saved.
//!
//! Slices lie in it as they will in the payload, so that they are written from where they are. Tensors of the host are copied by threads of ours,
//! in pieces, without the interpreter lock; whatever else there is (devices, strides) torch copies through views of the same memory.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_ckpt::{SliceSpec, file_order};
use forebay_core::{Error, ErrorKind, Result};
use forebay_io::AlignedBuf;
use pyo3::prelude::*;

use super::{dtype_of, refused};
use crate::buffer;
use crate::errors;

/// Most threads of a copy: memory is saturated by fewer, and the training wants its cores back.
const THREADS_MAX: usize = 8;

/// Bytes that a thread copies at a time: so large that taking the next costs nothing, so small that all end together.
const PIECE_BYTES: usize = 4 << 20;

/// Name, dtype, shape of the tensor, and offsets and lengths of the slice.
pub(crate) type SpecRow = (String, String, Vec<u64>, Vec<u64>, Vec<u64>);

/// The slice that a row names.
pub(super) fn spec_of(
    name: &str,
    dtype: &str,
    shape: Vec<u64>,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
) -> Result<SliceSpec> {
    let spec = SliceSpec {
        dtype: dtype_of(dtype)?,
        shape,
        offsets,
        lengths,
    };
    match spec.check() {
        Ok(()) => Ok(spec),
        Err(why) => Err(refused(format!("{name:?}: {why}"))),
    }
}

/// A buffer over memory of Python objects, which `keep` keeps.
pub(super) fn lent(address: usize, len: usize, keep: Arc<Option<Py<PyAny>>>) -> Result<AlignedBuf> {
    let ptr = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address));
    let ptr = ptr.ok_or_else(|| refused("there is nothing at that address"))?;
    // SAFETY: the caller of the Python function says that `len` bytes are there, and that what it gave us to keep keeps them; whoever changes them meanwhile
    // can tear what is saved or loaded, which the caller is told.
    Ok(unsafe { AlignedBuf::lent(ptr, len, Box::new(keep)) })
}

/// Where slices lie in a staging area: an offset for each, in their order, and the bytes of all.
#[pyfunction]
pub(crate) fn ckpt_layout(py: Python<'_>, slices: Vec<SpecRow>) -> PyResult<(Vec<u64>, u64)> {
    let placed = py.detach(move || {
        let mut named = Vec::with_capacity(slices.len());
        for (name, dtype, shape, offsets, lengths) in slices {
            let spec = spec_of(&name, &dtype, shape, offsets, lengths)?;
            named.push((name, spec));
        }
        let borrowed: Vec<(&str, &SliceSpec)> =
            named.iter().map(|(name, spec)| (name.as_str(), spec)).collect();
        let mut places = vec![0; borrowed.len()];
        let mut end: u64 = 0;
        for index in file_order(&borrowed) {
            let (Some(place), Some((name, spec))) = (places.get_mut(index), borrowed.get(index)) else {
                continue;
            };
            *place = end;
            let next = end.checked_add(spec.bytes());
            end = next.ok_or_else(|| refused(format!("{name:?}: the state is too large")))?;
        }
        Ok::<_, Error>((places, end))
    });
    placed.map_err(|error| errors::raise(py, &error))
}

/// Address, offset in the staging area and bytes of something to be copied.
pub(crate) type CopyRow = (usize, usize, usize);

/// A piece of memory of others, and where its copy goes.
struct Piece<'a> {
    address: usize,
    to: &'a mut [u8],
}

/// Copy memory of others, named by addresses, into a staging area; the caller keeps it alive.
#[pyfunction]
pub(crate) fn ckpt_copy(py: Python<'_>, staging: &Bound<'_, PyAny>, rows: Vec<CopyRow>) -> PyResult<()> {
    let Some(mut area) = buffer::take(staging, "save")? else {
        let error = refused("the staging area is no MutableBuffer");
        return Err(errors::raise(py, &error));
    };
    let copied = py.detach(move || copy(&mut area, rows));
    copied.map_err(|error| errors::raise(py, &error))
}

fn copy(area: &mut AlignedBuf, mut rows: Vec<CopyRow>) -> Result<()> {
    let internal = |message: &str| Error::new(ErrorKind::Internal, "save", message);
    rows.retain(|(_, _, bytes)| *bytes > 0);
    rows.sort_unstable_by_key(|(_, offset, _)| *offset);
    let mut pieces = Vec::new();
    let (mut rest, mut at) = (&mut area[..], 0);
    for (address, offset, bytes) in rows {
        let gap = offset
            .checked_sub(at)
            .ok_or_else(|| internal("two copies overlap"))?;
        let (here, behind) = std::mem::take(&mut rest)
            .split_at_mut_checked(gap)
            .and_then(|(_, from)| from.split_at_mut_checked(bytes))
            .ok_or_else(|| internal("a copy goes beyond the staging area"))?;
        if address == 0 || address.checked_add(bytes).is_none() {
            return Err(internal("there is nothing to copy at that address"));
        }
        let parts = here.chunks_mut(PIECE_BYTES).enumerate();
        pieces.extend(parts.map(|(number, to)| Piece {
            address: address + number * PIECE_BYTES,
            to,
        }));
        (rest, at) = (behind, offset + bytes);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(THREADS_MAX).min(pieces.len());
    let pieces = Mutex::new(pieces.into_iter());
    let work = || {
        loop {
            let next = pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(Piece { address, to }) = next else { return };
            let from = std::ptr::with_exposed_provenance::<u8>(address);
            // SAFETY: the caller of the Python function says that the bytes are at `address` and stay there until it returns; `to` is memory
            // of ours, elsewhere. Other threads may change them meanwhile, which can tear the copy but nothing of ours.
            unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    Ok(())
}
