//! One zstd frame after the other, each of a stored size that is known: what chunks of LitData are made of.

use zstd::stream::raw::{Decoder as ZstdDecoder, InBuffer, Operation, OutBuffer};

/// The open frame.
pub(super) struct Frame {
    zstd: ZstdDecoder<'static>,
    /// Its bytes so far, stored and raw.
    taken: u32,
    given: u32,
}

/// How far a frame came.
pub(super) struct Ran {
    pub(super) taken: usize,
    pub(super) given: usize,
    /// Its raw bytes, when it is complete.
    pub(super) raw_bytes: Option<u32>,
}

impl Frame {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            zstd: ZstdDecoder::new()?,
            taken: 0,
            given: 0,
        })
    }

    /// Decode the frame of `stored_bytes` bytes that becomes `raw_bytes_max` at most, from what is next of it. When it is complete, the next one can begin.
    pub(super) fn run(
        &mut self,
        stored_bytes: u32,
        raw_bytes_max: u32,
        stored: &[u8],
        room: &mut [u8],
    ) -> Result<Ran, &'static str> {
        let len = stored.len().min((stored_bytes - self.taken) as usize);
        let mut input = InBuffer::around(stored.get(..len).unwrap_or_default());
        let is_full = room.is_empty();
        let mut output = OutBuffer::around(room);
        let hint = self
            .zstd
            .run(&mut input, &mut output)
            .map_err(|_| "a frame does not decompress")?;
        let (taken, given) = (input.pos(), output.pos());
        self.taken += taken as u32;
        let total = u64::from(self.given) + given as u64;
        if total > u64::from(raw_bytes_max) {
            return Err("a frame holds more than it says");
        }
        self.given = total as u32;
        let is_used_up = self.taken == stored_bytes;
        let mut raw_bytes = None;
        if hint == 0 && (taken > 0 || given > 0) {
            if !is_used_up {
                return Err("a frame ends before its bytes do");
            }
            raw_bytes = Some(self.given);
            (self.taken, self.given) = (0, 0);
        } else if is_used_up && !is_full && taken == 0 && given == 0 {
            return Err("a frame ends in the middle");
        }
        Ok(Ran {
            taken,
            given,
            raw_bytes,
        })
    }
}
