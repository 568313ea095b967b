//! Loading: from wanted boxes of tensors to verified bytes in the caller's memory.
//!
//! ```text
//! Want (name, box, memory) -> find slices -> [plan]: which chunks, which of their bytes go where
//!                                              |-- whole chunks that lie in a row here and there: read straight into the memory, then hashed there
//!                                              |-- compressed ones: read into leased memory, hashed, [unpack]ed to their place
//!                                              `-- others: read into leased memory, hashed, and the wanted rows copied
//! ```
//!
//! Who wants chunks as they were cut has them, without a look for slices ([`chunks`]). Other names of a tensor ([`alias`]) become wants of that tensor. What is wanted may be several boxes of one tensor ([`Areas`]), as bytes in a row are.
//!
//! Memory is given back only when every chunk has held its hash. Only chunks that overlap with what is wanted are read; of a chunk, all, since its
//! hash is of all of it.

mod alias;
mod chunks;
mod fetch;
mod plan;
#[cfg(test)]
mod tests;
mod unpack;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::{AlignedBuf, Class};
use forebay_store::ReadOptions;
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::entry::{Content, SliceSpec};
use crate::open::Checkpoint;

pub(crate) use self::chunks::ChunkRun;
pub(crate) use self::fetch::join;

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

/// Offsets and lengths of a box.
pub(crate) type Area = (Vec<u64>, Vec<u64>);

/// Boxes of a tensor that is stored under that name, one after the other in the memory; they ascend in the tensor and do not overlap.
#[derive(Debug)]
pub(crate) struct Areas {
    pub(crate) name: String,
    pub(crate) boxes: Vec<Area>,
    pub(crate) memory: AlignedBuf,
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
            alias::planned(self, want, found).await
        });
        let plans: Vec<_> = plans.buffered(PLANS_AT_ONCE).try_collect().await?;
        Ok(plans.len())
    }

    /// Fill the memory of every want. `NotFound` names a tensor that is not there, `Corrupt` the tensor and the bytes that are damaged or
    /// that no slice has.
    pub async fn load(&self, wants: Vec<Want>) -> Result<Loaded> {
        self.note_load().await?;
        let options = ReadOptions {
            class: Class::Data,
            ..ReadOptions::default()
        };
        self.load_boxes(wants, &options).await
    }

    /// The same; nothing is noted, and payloads are read as the options say.
    pub(crate) async fn load_boxes(&self, wants: Vec<Want>, options: &ReadOptions) -> Result<Loaded> {
        let resolved = stream::iter(wants).map(|want| alias::resolve(self, want));
        let resolved: Vec<_> = resolved.buffered(PLANS_AT_ONCE).try_collect().await?;
        let (mut wants, mut plans, mut views) = (Vec::new(), Vec::new(), Vec::new());
        for alias::Resolved { want, plan, view } in resolved {
            wants.push((want.name, want.memory));
            plans.push(plan);
            views.push(view);
        }
        // Boxed: whatever awaits this would be as large.
        let mut loaded = Box::pin(fetch::fetch(self, wants, plans, options)).await?;
        for (memory, view) in loaded.memory.iter_mut().zip(views) {
            if let Some(view) = view {
                *memory = view.gather(memory, &mut loaded.ledger)?;
            }
        }
        Ok(loaded)
    }

    /// Fill memory with several boxes of each tensor; of names that stand for themselves, without noting it.
    pub(crate) async fn load_areas(&self, wants: Vec<Areas>, options: &ReadOptions) -> Result<Loaded> {
        // Collected: a closure that borrows within the stream could not be shown to be fit for every thread.
        let planned: Vec<_> = wants.iter().map(|want| self.plan_areas(want).boxed()).collect();
        let plans: Vec<_> = stream::iter(planned)
            .buffered(PLANS_AT_ONCE)
            .try_collect()
            .await?;
        let wants = wants.into_iter().map(|want| (want.name, want.memory));
        Box::pin(fetch::fetch(self, wants.collect(), plans, options)).await
    }

    async fn plan_areas(&self, want: &Areas) -> Result<plan::Plan> {
        let found = self.find(&want.name).await?;
        let what = (want.name.as_str(), want.memory.len() as u64);
        plan::plan(self, what, &want.boxes, found).await
    }
}

/// An error about a tensor.
fn about(kind: ErrorKind, name: &str, message: &str) -> Error {
    let shown: String = name.chars().take(200).collect();
    Error::new(kind, "load", format!("{shown:?}: {message}")).with_field(shown)
}
