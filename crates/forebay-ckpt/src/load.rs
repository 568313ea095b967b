//! Loading: from wanted boxes of tensors to verified bytes in the caller's memory.
//!
//! ```text
//! Want (name, box, memory) -> find slices -> [plan]: which chunks, which of their bytes go where
//!                                              |-- whole chunks that lie in a row here and there: read straight into the memory, then hashed there
//!                                              |-- compressed ones: read into leased memory, hashed, [unpack]ed to their place
//!                                              `-- others: read into leased memory, hashed, and the wanted rows copied
//! ```
//!
//! Other names of a tensor ([`alias`]) become wants of that tensor.
//!
//! Memory is given back only when every chunk has held its hash. Only chunks that overlap with what is wanted are read; of a chunk, all, since its
//! hash is of all of it.

mod alias;
mod fetch;
mod plan;
#[cfg(test)]
mod tests;
mod unpack;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::AlignedBuf;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::entry::{Content, SliceSpec};
use crate::open::Checkpoint;

/// Tensors looked up at once: hides the latency of an object store.
const PLANS_AT_ONCE: usize = 32;

/// A box of a tensor that is wanted, and the memory for it.
#[derive(Debug)]
pub struct Want {
    /// Name of the tensor.
    pub name: String,
    /// First element in each dimension.
    pub offsets: Vec<u64>,
    /// Elements in each dimension.
    pub lengths: Vec<u64>,
    /// As many bytes as the box has.
    pub memory: AlignedBuf,
}

/// What was loaded: the memory of each want, in their order.
#[derive(Debug)]
pub struct Loaded {
    /// Filled memory.
    pub memory: Vec<AlignedBuf>,
    /// Which way the bytes came, all of them verified; not those of parts and index, which [`Checkpoint::ledger`] has.
    pub ledger: Ledger,
}

impl Checkpoint {
    /// dtype and shape of a tensor; `None` when there is none of that name.
    pub async fn tensor(&self, name: &str) -> Result<Option<SliceSpec>> {
        let found = self.find(name).await?;
        let mut specs = found.into_iter().filter_map(|found| match found.entry.content {
            Content::Slice { spec, .. } => Some(SliceSpec::whole(spec.dtype, &spec.shape)),
            Content::Alias(alias) => Some(SliceSpec::whole(alias.dtype, &alias.shape)),
            _ => None,
        });
        Ok(specs.next())
    }

    /// Only find out what would be read.
    #[cfg(test)]
    pub(crate) async fn plan_all(&self, wants: &[Want]) -> Result<usize> {
        let plans = stream::iter(wants).map(|want| async move {
            let found = alias::find(self, want).await?;
            plan::plan(self, want, found).await
        });
        let plans: Vec<_> = plans.buffered(PLANS_AT_ONCE).try_collect().await?;
        Ok(plans.len())
    }

    /// Fill the memory of every want. `NotFound` names a tensor that is not there, `Corrupt` the tensor and the bytes that are damaged or
    /// that no slice has.
    pub async fn load(&self, wants: Vec<Want>) -> Result<Loaded> {
        self.note_load().await?;
        let resolved = stream::iter(wants).map(|want| alias::resolve(self, want));
        let resolved: Vec<_> = resolved.buffered(PLANS_AT_ONCE).try_collect().await?;
        let (mut wants, mut plans, mut views) = (Vec::new(), Vec::new(), Vec::new());
        for alias::Resolved { want, plan, view } in resolved {
            wants.push(want);
            plans.push(plan);
            views.push(view);
        }
        let mut loaded = fetch::fetch(self, wants, plans).await?;
        for (memory, view) in loaded.memory.iter_mut().zip(views) {
            if let Some(view) = view {
                *memory = view.gather(memory, &mut loaded.ledger)?;
            }
        }
        Ok(loaded)
    }
}

/// An error about a tensor.
fn about(kind: ErrorKind, name: &str, message: &str) -> Error {
    let shown: String = name.chars().take(200).collect();
    Error::new(kind, "load", format!("{shown:?}: {message}")).with_field(shown)
}
