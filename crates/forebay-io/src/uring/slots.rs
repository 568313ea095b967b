//! Memory and files registered with a ring.
//!
//! Pool memory is registered in granules as it is first used, so that a small job does not pin the whole pool. Files are registered when a
//! large task comes for them and let go when their last user closes them. Both tables are bounded; what does not fit, or
//! what the kernel refuses, goes the ordinary way, and the report says so.

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use io_uring::Submitter;

use crate::file::File;
use crate::kept::Ground;
use crate::pool::{ArenaId, ArenaMemory};

use super::queue::{CloseNotice, Queue};

/// Size of one registered piece of a pool.
pub(super) const GRANULE_BYTES: usize = 16 << 20;
/// Registered pieces per ring: 16 GiB of buffers.
const GRANULES_MAX: u32 = 1024;
/// Registered files per ring.
const FILES_MAX: u32 = 256;
/// A task shorter than this does not make its file worth registering.
const FILE_TASK_BYTES_MIN: usize = 4 << 20;

/// A table of numbered slots.
#[derive(Debug)]
struct Free {
    next: u32,
    max: u32,
    returned: Vec<u32>,
}

impl Free {
    fn new(max: u32) -> Self {
        Self {
            next: 0,
            max,
            returned: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.returned.is_empty() && self.next >= self.max
    }

    fn take(&mut self) -> Option<u32> {
        self.returned.pop().or_else(|| {
            let slot = self.next;
            (slot < self.max).then(|| self.next += 1).map(|()| slot)
        })
    }
}

/// What is registered with one ring.
#[derive(Debug)]
pub(super) struct Slots {
    granules: HashMap<(ArenaId, usize), (u32, Weak<Ground>)>,
    granules_free: Free,
    buffers_on: bool,
    files: HashMap<u64, u32>,
    files_free: Free,
    files_on: bool,
    notes: Vec<String>,
}

impl Slots {
    pub(super) fn new(submitter: &Submitter<'_>) -> Self {
        let mut notes = Vec::new();
        let buffers = submitter.register_buffers_sparse(GRANULES_MAX);
        let files = submitter.register_files_sparse(FILES_MAX);
        for (what, result) in [("buffers", &buffers), ("files", &files)] {
            match result {
                Ok(()) => notes.push(format!("registered {what}")),
                Err(error) => notes.push(format!("no registered {what}: {error}")),
            }
        }
        Self {
            granules: HashMap::new(),
            granules_free: Free::new(GRANULES_MAX),
            buffers_on: buffers.is_ok(),
            files: HashMap::new(),
            files_free: Free::new(FILES_MAX),
            files_on: files.is_ok(),
            notes,
        }
    }

    /// What was and was not to be had since the last call.
    pub(super) fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// The registered slot that holds `len` bytes at `offset` of an arena; registers the granule when it is new.
    pub(super) fn buffer(
        &mut self,
        submitter: &Submitter<'_>,
        (arena, offset): (ArenaId, usize),
        len: usize,
        memory: impl FnOnce() -> Option<ArenaMemory>,
    ) -> Option<u16> {
        let granule = offset / GRANULE_BYTES;
        if !self.buffers_on || (offset + len - 1) / GRANULE_BYTES != granule {
            return None;
        }
        if let Some((slot, _)) = self.granules.get(&(arena, granule)) {
            return Some(*slot as u16);
        }
        let memory = memory()?;
        // A new pool is the sign to look for old ones that are gone: their pages stay pinned until then.
        if !self.granules.keys().any(|(known, _)| *known == arena) || self.granules_free.is_empty() {
            self.sweep(submitter);
        }
        let slot = self.granules_free.take()?;
        let start = granule * GRANULE_BYTES;
        let iovec = libc::iovec {
            iov_base: memory.ptr.as_ptr().wrapping_add(start).cast(),
            iov_len: GRANULE_BYTES.min(memory.len - start),
        };
        // SAFETY: the range lies within the arena's mapping, which the job at hand keeps alive during the call. Afterwards the
        // kernel holds the pages itself, so a slot that outlives its arena points at orphaned pages, never at foreign memory.
        if let Err(error) = unsafe { submitter.register_buffers_update(slot, &[iovec], None) } {
            self.buffers_on = false;
            self.notes.push(format!(
                "no more registered buffers: {error} (raise the limit of locked memory, ulimit -l)"
            ));
            return None;
        }
        self.granules.insert((arena, granule), (slot, memory.alive));
        Some(slot as u16)
    }

    /// Let go of pieces whose pool is gone.
    fn sweep(&mut self, submitter: &Submitter<'_>) {
        let dead: Vec<_> = self
            .granules
            .iter()
            .filter(|(_, (_, alive))| alive.strong_count() == 0)
            .map(|(key, _)| *key)
            .collect();
        for key in dead {
            let Some((slot, _)) = self.granules.remove(&key) else {
                continue;
            };
            let empty = libc::iovec {
                iov_base: std::ptr::null_mut(),
                iov_len: 0,
            };
            // SAFETY: an empty iovec clears the slot and names no memory.
            if unsafe { submitter.register_buffers_update(slot, &[empty], None) }.is_ok() {
                self.granules_free.returned.push(slot);
            }
        }
    }

    /// The registered slot of a file; registers it when a task of `len` bytes makes that worth while.
    pub(super) fn file(
        &mut self,
        submitter: &Submitter<'_>,
        file: &File,
        fd: RawFd,
        len: usize,
        queue: &Arc<Queue>,
    ) -> Option<u32> {
        if let Some(slot) = self.files.get(&file.id()) {
            return Some(*slot);
        }
        if !self.files_on || len < FILE_TASK_BYTES_MIN {
            return None;
        }
        let slot = self.files_free.take()?;
        if let Err(error) = submitter.register_files_update(slot, &[fd]) {
            self.files_on = false;
            self.notes.push(format!("no more registered files: {error}"));
            return None;
        }
        file.on_close(CloseNotice {
            queue: Arc::downgrade(queue),
            file_id: file.id(),
        });
        self.files.insert(file.id(), slot);
        Some(slot)
    }

    /// Let go of a file that was closed, so that its space can be freed.
    pub(super) fn forget(&mut self, submitter: &Submitter<'_>, file_id: u64) {
        let Some(slot) = self.files.remove(&file_id) else {
            return;
        };
        if submitter.register_files_update(slot, &[-1]).is_ok() {
            self.files_free.returned.push(slot);
        }
    }
}
