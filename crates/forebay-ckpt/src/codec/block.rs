//! One run of bytes, compressed and back: zstd, zstd as a plain entropy coder, LZ4.
//!
//! Nothing here trusts a length: what is decoded goes into memory of the size that is expected, and must fill it. Pure.

use zstd_safe::{CCtx, CParameter, DCtx, ParamSwitch, find_frame_compressed_size};

/// The level at which zstd searches next to nothing: what shrinks the exponents of weights is the entropy coder, and looking for matches in them costs five times as much for less.
pub(crate) const LEVEL_ENTROPY: i32 = -1000;

/// What must be saved for compression to be worth undoing it: one part in so many.
const GAIN_MIN: usize = 32;

/// Runs from this length on are tried by samples first, so that what does not shrink costs little.
const SAMPLED_BYTES_MIN: usize = 128 << 10;

/// Samples of a run, spread over it, and bytes of each: together long enough that the table of the entropy coder does not count.
const SAMPLES: usize = 4;
/// See [`SAMPLES`].
const SAMPLE_BYTES: usize = 8 << 10;

/// How a run is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// zstd with next to no search, literals always entropy coded.
    Entropy,
    /// zstd at a level.
    Zstd(i32),
    /// One LZ4 block.
    Lz4,
}

/// Compresses; keeps its tables between runs.
pub(crate) struct Coder {
    zstd: CCtx<'static>,
    /// What the context is set to.
    set_to: Option<Method>,
    sample: Vec<u8>,
}

impl std::fmt::Debug for Coder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Coder").finish_non_exhaustive()
    }
}

impl Coder {
    pub(crate) fn new() -> Self {
        Self {
            zstd: CCtx::create(),
            set_to: None,
            sample: Vec::new(),
        }
    }

    /// Compress a run into the front of `out`; `None` where that does not save enough, or there is no room for it.
    pub(crate) fn shrink(&mut self, method: Method, run: &[u8], out: &mut [u8]) -> Option<usize> {
        if run.len() >= SAMPLED_BYTES_MIN && !self.samples_shrink(method, run) {
            return None;
        }
        self.compress(method, run, out)
    }

    fn samples_shrink(&mut self, method: Method, run: &[u8]) -> bool {
        let mut sample = std::mem::take(&mut self.sample);
        sample.clear();
        for number in 0..SAMPLES {
            let at = (run.len() - SAMPLE_BYTES) / SAMPLES * number;
            sample.extend_from_slice(run.get(at..at + SAMPLE_BYTES).unwrap_or_default());
        }
        let mut out = vec![0; SAMPLES * SAMPLE_BYTES];
        let shrinks = self.compress(method, &sample, &mut out).is_some();
        self.sample = sample;
        shrinks
    }

    fn compress(&mut self, method: Method, run: &[u8], out: &mut [u8]) -> Option<usize> {
        let most = run.len() - run.len() / GAIN_MIN;
        let most = most.min(run.len().saturating_sub(1)).min(out.len());
        let out = out.get_mut(..most)?;
        match method {
            Method::Lz4 => {
                // The encoder wants room for the worst case.
                let mut room = vec![0; lz4_flex::block::get_maximum_output_size(run.len())];
                let len = lz4_flex::block::compress_into(run, &mut room).ok()?;
                out.get_mut(..len)?.copy_from_slice(room.get(..len)?);
                Some(len)
            }
            Method::Entropy | Method::Zstd(_) => {
                self.set(method)?;
                self.zstd.compress2(out, run).ok()
            }
        }
    }

    fn set(&mut self, method: Method) -> Option<()> {
        if self.set_to == Some(method) {
            return Some(());
        }
        let (level, literals) = match method {
            Method::Zstd(level) => (level, ParamSwitch::Auto),
            _ => (LEVEL_ENTROPY, ParamSwitch::Enable),
        };
        self.zstd
            .set_parameter(CParameter::CompressionLevel(level))
            .ok()?;
        self.zstd
            .set_parameter(CParameter::LiteralCompressionMode(literals))
            .ok()?;
        self.set_to = Some(method);
        Some(())
    }
}

/// Undoes zstd; keeps its tables between runs.
pub(crate) struct Decoder(DCtx<'static>);

impl std::fmt::Debug for Decoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Decoder {
    pub(crate) fn new() -> Self {
        Self(DCtx::create())
    }

    /// One frame that fills `out`.
    pub(crate) fn zstd(&mut self, stored: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
        // Decoding would go on with a second frame, and pass over what is skippable.
        if find_frame_compressed_size(stored) != Ok(stored.len()) {
            return Err("it is not one zstd frame");
        }
        let len = out.len();
        match self.0.decompress(out, stored) {
            Ok(written) if written == len => Ok(()),
            _ => Err("its zstd frame cannot be decoded, or has another length"),
        }
    }

    /// One LZ4 block that fills `out`.
    pub(crate) fn lz4(stored: &[u8], out: &mut [u8]) -> Result<(), &'static str> {
        let len = out.len();
        match lz4_flex::block::decompress_into(stored, out) {
            Ok(written) if written == len => Ok(()),
            _ => Err("its LZ4 block cannot be decoded, or has another length"),
        }
    }
}
