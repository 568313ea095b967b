//! Writes a checkpoint anew in the formats of others: one safetensors file, shards with an index as model hubs have them, or what `torch.save` writes.
//!
//! ```text
//! entries of all ranks -> tensors, whole, in the order of the file -> pieces of some megabytes (load: verified) -> parts of an upload (stream)
//! ```
//!
//! Memory is bounded by pieces, whatever the size of a tensor. Files appear when they are whole; an index is written after what it names. What a format cannot
//! hold is left out and named.
//!
//! - `tensors`: which tensors there are, and how one is cut into pieces;
//! - `stream`: pieces to the parts of an upload;
//! - `safetensors`, `torch`, `pickle`, `zip`: the formats.

mod pickle;
mod safetensors;
mod stream;
mod tensors;
mod torch;
mod zip;

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_store::Store;
use serde::Serialize;

use crate::open::Checkpoint;
use tensors::Tensors;

/// Bytes of a shard unless told otherwise, as the libraries of model hubs do it.
pub const SHARD_BYTES_DEFAULT: u64 = 5_000_000_000;

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// `model.safetensors`.
    Safetensors,
    /// `model-00001-of-00002.safetensors` and so on, and `model.safetensors.index.json`.
    Hf {
        /// Bytes of a shard; a tensor that is larger has one of its own.
        shard_bytes_max: u64,
    },
    /// `model.pt`: a dict of tensors and values, as `torch.save` writes it; read with `torch.load(weights_only=True)`.
    Torch,
}

/// How to export.
#[derive(Debug, Clone)]
pub struct ExportOptions {
    /// In which format.
    pub format: ExportFormat,
    /// Only what begins with this, which is left off.
    pub prefix: Option<String>,
    /// Name of the file, where the format has one; its usual name otherwise.
    pub file_name: Option<String>,
}

/// A file that was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportedFile {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What was written.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Exported {
    /// The step.
    pub step: u64,
    /// In the order in which they were written.
    pub files: Vec<ExportedFile>,
    /// Tensors in them.
    pub tensors: u64,
    /// Values in them.
    pub values: u64,
    /// What the format cannot hold, by name.
    pub left_out: Vec<String>,
    /// Which way the bytes went, there and back.
    pub ledger: Ledger,
}

/// Write a checkpoint to `to`, where files of these names are replaced. `tell` is given bytes as they are written.
pub async fn export(
    checkpoint: &Checkpoint,
    to: &Arc<dyn Store>,
    options: &ExportOptions,
    tell: &(dyn Fn(u64) + Send + Sync),
) -> Result<Exported> {
    let tensors = Tensors::of(checkpoint, options.prefix.as_deref()).await?;
    if tensors.list.is_empty() {
        let message = "there is no tensor to export";
        return Err(Error::new(ErrorKind::NotFound, "export", message)
            .at(checkpoint.source().store.location())
            .with_hint("see what is there: forebay ckpt show"));
    }
    let mut job = Job {
        checkpoint,
        to,
        tensors,
        tell,
        done: Exported {
            step: checkpoint.step(),
            ..Exported::default()
        },
    };
    match options.format {
        ExportFormat::Safetensors => job.safetensors(options.file_name.as_deref()).await?,
        ExportFormat::Hf { shard_bytes_max } => job.hf(shard_bytes_max).await?,
        ExportFormat::Torch => job.torch(options.file_name.as_deref()).await?,
    }
    job.done.ledger.merge(&checkpoint.ledger());
    Ok(job.done)
}

/// An export under way.
struct Job<'a> {
    checkpoint: &'a Checkpoint,
    to: &'a Arc<dyn Store>,
    tensors: Tensors,
    tell: &'a (dyn Fn(u64) + Send + Sync),
    done: Exported,
}
