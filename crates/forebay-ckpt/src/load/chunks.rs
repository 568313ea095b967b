//! Whole chunks of slices that the caller has found already, in the order in which they are stored: for those who store them again.

use forebay_core::{Ledger, Result, Span};
use forebay_io::AlignedBuf;
use forebay_store::ReadOptions;

use super::fetch::{fetch, join};
use super::plan::{self, Copy, Plan};
use crate::entry::SliceSpec;
use crate::open::{Checkpoint, Part};

/// Neighbouring chunks of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkRun<'a> {
    pub(crate) name: &'a str,
    pub(crate) spec: &'a SliceSpec,
    /// Number of the slice's first chunk in its part.
    pub(crate) first_chunk: u64,
    /// Their bytes in the slice.
    pub(crate) span: Span,
    /// Where these begin in the memory.
    pub(crate) at: usize,
}

impl Checkpoint {
    /// Fill memory with runs of chunks of one part, which ascend in it; nothing is noted. Each chunk is checked and unpacked.
    pub(crate) async fn load_chunks(
        &self,
        part: &Part,
        runs: &[ChunkRun<'_>],
        memory: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<(AlignedBuf, Ledger)> {
        let (mut wants, mut plans) = (Vec::with_capacity(runs.len()), Vec::with_capacity(runs.len()));
        let (mut rest, mut at) = (memory, 0);
        for (run, next) in runs.iter().zip(runs.iter().skip(1).map(Some).chain([None])) {
            let copies = vec![Copy {
                from: run.span,
                to: 0,
            }];
            let slice = (run.name, run.spec, run.first_chunk);
            let chunks = plan::chunks_of(part, self.manifest().chunk_bytes, slice, &copies).await?;
            plans.push(Plan {
                parts: vec![plan::Part { copies, chunks }],
            });
            let end = next.map_or(rest.len(), |next| next.at - at);
            let behind = rest.split_off(end);
            wants.push((run.name.to_owned(), std::mem::replace(&mut rest, behind)));
            at += end;
        }
        // Boxed: whatever awaits this would be as large.
        let mut loaded = Box::pin(fetch(self, wants, plans, options)).await?;
        let memory = join(loaded.memory, &mut loaded.ledger)?;
        Ok((memory, loaded.ledger))
    }
}
