//! Reading ahead: the blocks of the windows to come, in the order in which batches will need them.
//!
//! A task goes through the windows of all lanes of this rank, nearest need first, and over the end of an epoch into the next, so that there is no
//! gap between epochs. Before a block is read, room for it is taken from a bounded budget; room comes back when the last sample of a block has been
//! collated. So what is read ahead is bounded by bytes, and memory by the budget. What the blocks of a shard share (its table, and all of a shard that is compressed as a whole) takes
//! room once. Blocks of a far store that lie beside each other and are needed soon are read by one request ([`Ahead`]), and take their room together.
//!
//! The budget could be smaller than what one batch needs at the same time. Nothing would ever come back then: whoever assembles batches says that it
//! starves ([`Room::starve`]), and the budget grows block by block until it does not. The report tells by how much.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Error, ErrorKind, Result};
use futures::stream::{self, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};

use super::ahead::{Ahead, Next, Planned};
use super::course::{Course, Leg};
use super::read::{Hold, Joint, Loaded, Reader, Share};
use super::task::Task;
use crate::order::BlockRef;

/// Windows that are fed and not yet taken: bytes bound what is read ahead, but a small data set has so few of them that it would be read over and over.
pub(super) const FED_WINDOWS_MAX: usize = 1024;

/// Unit in which room is counted.
const ROOM_UNIT_BYTES: u64 = 4096;

/// Shards that are looked at side by side before the first batch.
const LOOKS_AT_ONCE_MAX: usize = 32;

/// A window whose blocks are on their way.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) source: u32,
    pub(super) epoch: u64,
    pub(super) lane: u32,
    pub(super) start: u64,
    /// For each position from `start` on: block and sample.
    pub(super) order: Vec<(u32, u32)>,
    /// The blocks; `None` for those of which no sample is needed any more.
    pub(super) blocks: Vec<Option<Task<Result<Loaded>>>>,
}

/// How much may be in memory, and who asks for more.
#[derive(Debug)]
pub(crate) struct Room {
    left: Arc<Semaphore>,
    /// Most that is given at once.
    units_max: u64,
    is_starving: watch::Sender<bool>,
    grown_bytes: AtomicU64,
}

impl Room {
    /// Of that many bytes.
    pub(super) fn new(bytes: u64) -> Self {
        let units = (bytes / ROOM_UNIT_BYTES).clamp(1, Semaphore::MAX_PERMITS as u64 / 2);
        Self {
            left: Arc::new(Semaphore::new(units as usize)),
            units_max: u64::MAX,
            is_starving: watch::Sender::new(false),
            grown_bytes: AtomicU64::new(0),
        }
    }

    /// Of that many bytes, where what is larger has all of it to itself: for those who take once and do not wait for each other.
    pub(super) fn shared(bytes: u64) -> Self {
        let room = Self::new(bytes);
        let units_max = room.left.available_permits() as u64;
        Self { units_max, ..room }
    }

    /// Say whether nothing that is in memory will be given back before more comes.
    pub(super) fn starve(&self, is_starving: bool) {
        self.is_starving.send_replace(is_starving);
    }

    /// Bytes that had to be added.
    pub(super) fn grown_bytes(&self) -> u64 {
        self.grown_bytes.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn left_bytes(&self) -> u64 {
        self.left.available_permits() as u64 * ROOM_UNIT_BYTES
    }

    fn units(&self, bytes: u64) -> Result<u32> {
        let units = bytes.div_ceil(ROOM_UNIT_BYTES).max(1).min(self.units_max);
        u32::try_from(units).map_err(|_| {
            let message = "a block is larger than 16 TiB";
            Error::new(ErrorKind::LimitExceeded, "stream", message)
        })
    }

    pub(super) async fn take(&self, bytes: u64) -> Result<OwnedSemaphorePermit> {
        let units = self.units(bytes)?;
        let mut taking = std::pin::pin!(Arc::clone(&self.left).acquire_many_owned(units));
        let mut is_starving = self.is_starving.subscribe();
        let taken = tokio::select! {
            biased;
            taken = &mut taking => taken,
            () = async { drop(is_starving.wait_for(|is_starving| *is_starving).await) } => {
                self.left.add_permits(units as usize);
                self.grown_bytes.fetch_add(u64::from(units) * ROOM_UNIT_BYTES, Ordering::Relaxed);
                taking.await
            }
        };
        taken.map_err(|_| gone())
    }

    /// The same for what can do with less: `None` instead of a larger budget.
    pub(super) async fn take_unless_starving(&self, bytes: u64) -> Result<Option<OwnedSemaphorePermit>> {
        let units = self.units(bytes)?;
        let mut is_starving = self.is_starving.subscribe();
        tokio::select! {
            biased;
            taken = Arc::clone(&self.left).acquire_many_owned(units) => taken.map(Some).map_err(|_| gone()),
            () = async { drop(is_starving.wait_for(|is_starving| *is_starving).await) } => Ok(None),
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Internal, "stream", "the budget is gone")
}

/// Reads ahead until the last epoch, or until nobody takes what it reads.
#[derive(Debug)]
pub(super) struct Feeder {
    pub(super) course: Course,
    /// One for each data set.
    pub(super) readers: Arc<[Reader]>,
    pub(super) room: Arc<Room>,
    pub(super) fed: mpsc::Sender<Result<Fed>>,
}

impl Feeder {
    /// From batch `batch` of `leg` on.
    pub(super) async fn run(self, leg: Leg, batch: u64) {
        if let Err(error) = self.feed(leg, batch).await {
            drop(self.fed.send(Err(error)).await);
        }
    }

    async fn feed(&self, leg: Leg, batch: u64) -> Result<()> {
        let (mut now, mut batch) = (Some(leg), batch);
        while let Some(leg) = now {
            let mut heap = BinaryHeap::new();
            for lane in leg.lanes() {
                heap.extend(Next::of(self.course.needs(&leg, lane, batch)?).map(Reverse));
            }
            self.warm(&heap).await;
            let mut ahead = Ahead::new(&self.readers, heap);
            while let Some(next) = ahead.next() {
                let fed = self.window(next, &mut ahead).await?;
                if self.fed.send(Ok(fed)).await.is_err() {
                    return Ok(());
                }
            }
            now = self.course.after(&leg);
            batch = 0;
        }
        Ok(())
    }

    /// Look at the shards of the first windows side by side: one after the other, far away, it would take seconds.
    async fn warm(&self, heap: &BinaryHeap<Reverse<Next>>) {
        let shards = heap.iter().flat_map(|next| {
            let need = &next.0.need;
            need.window.blocks.iter().map(|block| (need.source, block.shard))
        });
        let shards: BTreeSet<(u32, u32)> = shards.collect();
        let looks = stream::iter(shards).map(|(source, shard)| async move {
            if let Some(reader) = self.readers.get(source as usize) {
                reader.warm(shard).await;
            }
        });
        looks
            .buffer_unordered(LOOKS_AT_ONCE_MAX)
            .for_each(|()| std::future::ready(()))
            .await;
    }

    /// Begin to read a window, but for what lies before the first position that is needed.
    async fn window(&self, planned: Planned, ahead: &mut Ahead<'_>) -> Result<Fed> {
        let need = planned.need;
        let mut blocks = Vec::with_capacity(planned.needed.len());
        for (block, needed) in need.window.blocks.iter().zip(planned.needed) {
            blocks.push(if needed {
                Some(self.begin(need.source, block, ahead).await?)
            } else {
                None
            });
        }
        Ok(Fed {
            source: need.source,
            epoch: need.epoch,
            lane: need.lane,
            start: need.window.start,
            order: planned.order,
            blocks,
        })
    }

    async fn begin(
        &self,
        source: u32,
        block: &BlockRef,
        ahead: &mut Ahead<'_>,
    ) -> Result<Task<Result<Loaded>>> {
        let reader = self.readers.get(source as usize);
        let reader = reader
            .ok_or_else(|| Error::new(ErrorKind::Internal, "stream", "a data set that is not streamed"))?;
        let taken = ahead.begin(source, block);
        let hold = reader.hold(block.shard, Some(&self.room)).await?;
        let joint = match taken {
            Some(joint) => Some(joint),
            None if hold.is_whole() => None,
            None => self.join(reader, (source, block), &hold, ahead).await?,
        };
        let share = match joint {
            Some(joint) => Share::Joint(joint),
            None if hold.is_whole() => Share::own(None),
            None => {
                let bytes = reader.bytes_of(block, &hold).await?;
                Share::own(Some(self.room.take(bytes).await?))
            }
        };
        let (reader, block) = (reader.clone(), block.clone());
        Ok(Task::spawn(async move { reader.load(block, hold, share).await }))
    }

    /// A block together with its neighbours that are needed soon, where it has such. Not at the price of more memory: where there is no room for
    /// all of them and none will come back, the block is read alone, and so is everything once the budget had to grow.
    async fn join(
        &self,
        reader: &Reader,
        (source, block): (u32, &BlockRef),
        hold: &Hold,
        ahead: &mut Ahead<'_>,
    ) -> Result<Option<Arc<Joint>>> {
        if reader.joint_bytes_max == 0 || self.room.grown_bytes() > 0 {
            return Ok(None);
        }
        let span = |samples: &Range<u64>| reader.joint_span(block.shard, samples, hold);
        let Some((samples, span)) = ahead.neighbours(source, block, span)? else {
            return Ok(None);
        };
        let Some(room) = self.room.take_unless_starving(span.len()).await? else {
            return Ok(None);
        };
        let joint = Arc::new(Joint::new(span, room));
        ahead.take_along(source, block.shard, &samples, &joint);
        Ok(Some(joint))
    }
}
