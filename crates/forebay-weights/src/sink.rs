//! The seam of destinations: memory of the host, or of a device.
//!
//! A sink says how it wants things laid out, hears of the whole plan before the first read, then lends a buffer for every piece and takes it back
//! filled and checked. What it lends may be the final memory (the host's), so that nothing is copied, or a slot of a ring that it copies
//! onward and uses again (a device's); the loader does not know the difference.
//!
//! ```text
//! prepare(plan) --> for each piece, several at once: lease -> read -> check -> accept --> finish
//! ```

mod device;
mod host;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{ByteSize, Error, ErrorKind, Ledger, Result};
use forebay_io::AlignedBuf;

pub use self::device::{DeviceReport, DeviceSink, DeviceTensor, Direct};
pub use self::host::{HostSink, HostTensor};
use crate::load_plan::{Piece, Placement, Plan};
use crate::source::SourceFile;

/// A destination of tensors.
///
/// Contract:
/// - `prepare` comes first and once; what cannot be (too little memory) is said there, before anything is read;
/// - `lease` gives a buffer of at least `piece.span.len()` bytes at a page boundary. It waits when the sink has none free: that is the bound of
///   what is in flight. It may be called for several pieces before the first of them is accepted, so a sink must not wait for a
///   piece that it has not lent;
/// - `accept` gets every piece that was lent, once, in any order, with the first `piece.span.len()` bytes of the buffer filled. A store that had to try
///   again may have read into other memory than what was lent: a sink that cares must look. When a load fails, pieces are dropped instead;
/// - `finish` returns when every byte is where the plan puts it; when a load fails, `fail` comes in its place.
#[async_trait]
pub trait Sink: fmt::Debug + Send + Sync {
    /// How tensors are to lie in the destination.
    fn placement(&self) -> Placement;

    /// Most bytes of one piece; at least 8 MiB, so that checksums of whole chunks can be compared.
    fn piece_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Bytes in flight that reads of local files begin with; more are tried while they come faster for it.
    fn window_bytes(&self) -> u64 {
        u64::MAX
    }

    /// Get ready for all of it.
    async fn prepare(&self, plan: &Arc<Plan>) -> Result<()>;

    /// Move a piece in a way of the sink's own, where it has one (GPUDirect Storage, or straight from the page cache for a file that `is_hot`); `None` where
    /// it has not, and the piece is read as usual. Such pieces are not checked against checksums, so this is not called when they must be.
    async fn fetch(&self, piece: &Piece, file: &Arc<SourceFile>, is_hot: bool) -> Result<Option<Ledger>> {
        let _ = (piece, file, is_hot);
        Ok(None)
    }

    /// Memory for a piece.
    async fn lease(&self, piece: &Piece) -> Result<AlignedBuf>;

    /// Take a piece. The ledger says what was copied.
    async fn accept(&self, piece: &Piece, buf: AlignedBuf) -> Result<Ledger>;

    /// Wait until everything is where it belongs.
    async fn finish(&self) -> Result<()>;

    /// Wait until nothing of a failed load is under way any more, and say why it failed, where the sink knows better than the `error` that was met.
    async fn fail(&self, error: Error) -> Error {
        error
    }
}

/// Refuse tensors of `needed` bytes where at most `bytes_max` are allowed.
fn check_memory(needed: u64, bytes_max: Option<u64>) -> Result<()> {
    let Some(bytes_max) = bytes_max.filter(|bytes_max| needed > *bytes_max) else {
        return Ok(());
    };
    let message = format!(
        "loading this needs {} of memory, and at most {} may be used",
        ByteSize(needed),
        ByteSize(bytes_max)
    );
    Err(Error::new(ErrorKind::LimitExceeded, "load", message)
        .with_hint("allow more memory, or load less with select or shard"))
}
