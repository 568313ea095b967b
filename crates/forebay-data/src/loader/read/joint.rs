//! Blocks that come by one request: neighbours in a shard of a far store that are needed at about the same time.
//!
//! ```text
//! feeder: block, its neighbours that are needed soon --room for all of them--> Joint --> a task for each block
//!                                                                              | whoever comes first reads, the others wait for it
//!                                                                              +--> the same bytes for all, each checks its own samples
//! ```
//!
//! The memory goes back when the last block of it is done, and so does the room. A read that fails is tried again by the next of them, as
//! blocks that are read alone would be.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, Ledger, Result, Span};
use tokio::sync::{OnceCell, OwnedSemaphorePermit};

use super::{ALIGN, Hold, Origin, Reader, runs_of, span_of};
use crate::block::Block;
use crate::source::ShardSource;
use crate::table::{Layout, Table};

/// The room of a block, and with it the way its bytes come.
#[derive(Debug)]
pub(crate) enum Share {
    /// By requests of its own; no room where what it belongs to has taken it.
    Own { _room: Option<OwnedSemaphorePermit> },
    /// Together with others.
    Joint(Arc<Joint>),
}

impl Share {
    /// A block that is read alone.
    pub(crate) fn own(room: Option<OwnedSemaphorePermit>) -> Self {
        Self::Own { _room: room }
    }
}

/// A range of a shard that several blocks lie in.
#[derive(Debug)]
pub(crate) struct Joint {
    span: Span,
    content: OnceCell<Fetched>,
    _room: OwnedSemaphorePermit,
}

/// Its bytes.
#[derive(Debug, Clone)]
pub(super) struct Fetched {
    bytes: Bytes,
    /// Offset in the shard of the first of them.
    base: u64,
    pub(super) origin: Origin,
}

impl Joint {
    /// To be read by whoever comes first.
    pub(crate) fn new(span: Span, room: OwnedSemaphorePermit) -> Self {
        Self {
            span,
            content: OnceCell::new(),
            _room: room,
        }
    }
}

impl Fetched {
    /// Runs of samples that lie in it.
    pub(super) fn blocks(&self, table: &Arc<Table>, runs: Vec<Range<u64>>) -> Result<Vec<Block>> {
        let blocks = runs
            .into_iter()
            .map(|run| Block::from_bytes(Arc::clone(table), run, self.bytes.clone(), self.base));
        blocks.collect()
    }
}

impl Reader {
    /// The range that samples of a shard lie in, where one request may bring it; samples are counted among those that are kept.
    pub(crate) fn joint_span(&self, shard: u32, samples: &Range<u64>, hold: &Hold) -> Result<Option<Span>> {
        let Layout::Samples(layout) = &hold.table().layout else {
            return Ok(None);
        };
        let selection = self.dataset.selection(shard as usize);
        let runs = runs_of(layout, samples, selection.as_deref())?;
        let [run] = &runs[..] else {
            return Ok(None);
        };
        let span = span_of(layout, run)?.align_out(ALIGN);
        Ok((span.len() <= self.joint_bytes_max).then_some(span))
    }

    /// The bytes of a joint; the ledger is that of whoever read them.
    pub(super) async fn fetched(&self, source: &ShardSource, joint: &Joint) -> Result<(Fetched, Ledger)> {
        let mut own = Ledger::default();
        let fetch = async {
            let span = joint.span.clamp_to(source.size());
            let buf = self.memory(span.len() as usize)?;
            let (bytes, ledger) = source.read_to_check(span, buf).await?;
            let origin = Origin::of(&self.dataset, &ledger);
            own = ledger;
            Ok::<_, Error>(Fetched {
                bytes,
                base: span.start(),
                origin,
            })
        };
        let fetched = joint.content.get_or_try_init(|| fetch).await?.clone();
        Ok((fetched, own))
    }
}
