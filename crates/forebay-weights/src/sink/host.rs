//! Host memory: one allocation per file, read into where it stays; tensors are pieces of it.
//!
//! The memory of a file is cut into the pieces of the plan before the first read, and joined and cut into tensors after the last, all without
//! copying: each tensor owns its bytes alone and may be written to. Slices that must be cut out of rows are read into memory of the pool and
//! copied.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use forebay_core::safetensors::Dtype;
use forebay_core::{ByteSize, DataPath, Error, ErrorKind, Ledger, Result};
use forebay_io::{Ahead, AlignedBuf, BufPool, Pages, fault_ahead, memory_available_bytes};

use super::{Sink, check_memory};
use crate::load_plan::{Cut, Moves, Piece, Placement, Plan, Region};

/// A loaded tensor.
#[derive(Debug)]
pub struct HostTensor {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
    /// Its bytes: nobody else has them, though neighbours share the allocation.
    pub bytes: AlignedBuf,
}

/// A destination in host memory.
#[derive(Debug)]
pub struct HostSink {
    /// Where memory for slices that are cut out is leased from.
    pool: BufPool,
    pages: Pages,
    bytes_max: Option<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Arc<Plan>,
    /// The memory that each piece fills; away while it is lent.
    places: Vec<Option<AlignedBuf>>,
    /// Makes the pages of the memory while the first pieces are read.
    _ahead: Option<Ahead>,
}

/// Less memory than this has its pages soon enough without a thread for it.
const AHEAD_BYTES_MIN: u64 = 64 << 20;

impl HostSink {
    /// Memory of at most `bytes_max`, with rows read into buffers of `pool`.
    pub fn new(pool: &BufPool, bytes_max: Option<u64>) -> Self {
        Self {
            pool: pool.clone(),
            pages: Pages::default(),
            bytes_max,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, piece: &Piece) -> Result<AlignedBuf> {
        let place = self.lock().places.get_mut(piece.index).and_then(Option::take);
        place.ok_or_else(|| internal("a piece was lent twice"))
    }

    fn put(&self, piece: &Piece, buf: AlignedBuf) {
        if let Some(place) = self.lock().places.get_mut(piece.index) {
            *place = Some(buf);
        }
    }

    /// The tensors, once everything is loaded. The ledger says what had to be copied because a store that tried again read into other
    /// memory.
    pub fn into_tensors(self) -> Result<(Vec<HostTensor>, Ledger)> {
        let State { plan, mut places, .. } = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut ledger = Ledger::default();
        let mut rests = Vec::with_capacity(plan.regions().len());
        for region in plan.regions() {
            let whole = join(region, &plan, &mut places, self.pages, &mut ledger)?;
            rests.push((filled_from(region, &plan), whole));
        }
        let mut order: Vec<usize> = (0..plan.tensors().len()).collect();
        order.sort_by_key(|index| plan.tensors()[*index].place.start());
        let mut tensors: Vec<Option<HostTensor>> = Vec::new();
        tensors.resize_with(order.len(), || None);
        for index in order {
            let tensor = &plan.tensors()[index];
            let bytes = match tensor.region {
                Some(region) => {
                    let (at, rest) = rests
                        .get_mut(region)
                        .ok_or_else(|| internal("a tensor has no region"))?;
                    // What is before it belongs to no tensor.
                    let mut bytes = rest.split_off((tensor.place.start() - *at) as usize);
                    let behind = bytes.split_off(tensor.place.len() as usize);
                    (*at, *rest) = (tensor.place.end(), behind);
                    bytes
                }
                None => AlignedBuf::alloc(0, Pages::Small)?,
            };
            if bytes.len() as u64 != tensor.place.len() {
                return Err(internal("a tensor has not all its bytes"));
            }
            tensors[index] = Some(HostTensor {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                bytes,
            });
        }
        Ok((tensors.into_iter().flatten().collect(), ledger))
    }
}

/// Where the first piece of a region goes.
fn filled_from(region: &Region, plan: &Plan) -> u64 {
    let first = plan.pieces().get(region.pieces.start);
    first.map_or(region.dest.start(), |piece| piece.dest.start())
}

/// The pieces of a region as one buffer.
fn join(
    region: &Region,
    plan: &Plan,
    places: &mut [Option<AlignedBuf>],
    pages: Pages,
    ledger: &mut Ledger,
) -> Result<AlignedBuf> {
    let mut parts: Vec<AlignedBuf> = Vec::new();
    for piece in &plan.pieces()[region.pieces.clone()] {
        let part = places
            .get_mut(piece.index)
            .and_then(Option::take)
            .ok_or_else(|| internal("a piece is missing"))?;
        let alone = match parts.last_mut() {
            Some(last) => last.unsplit(part).err(),
            None => Some(part),
        };
        parts.extend(alone);
    }
    if parts.len() == 1
        && let Some(whole) = parts.pop()
    {
        return Ok(whole);
    }
    // A read that was tried again came back in other memory.
    let len = parts.iter().map(|part| part.len()).sum();
    let mut whole = AlignedBuf::alloc(len, pages)?;
    let mut at = 0;
    for part in &parts {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    ledger.record_copy(DataPath::Memory, len as u64);
    Ok(whole)
}

/// Cut the memory of one file into what its pieces fill.
fn cut_up(plan: &Plan, file: usize, pages: Pages, places: &mut [Option<AlignedBuf>]) -> Result<()> {
    let mut regions: Vec<&Region> = plan
        .regions()
        .iter()
        .filter(|region| region.file == file)
        .collect();
    regions.sort_by_key(|region| region.dest.start());
    let (Some(first), Some(last)) = (regions.first(), regions.last()) else {
        return Ok(());
    };
    let mut at = first.dest.start();
    let mut rest = AlignedBuf::alloc((last.dest.end() - at) as usize, pages)?;
    for region in regions {
        let mut own = rest.split_off((region.dest.start() - at) as usize);
        rest = own.split_off(region.dest.len() as usize);
        at = region.dest.end();
        let pieces = &plan.pieces()[region.pieces.clone()];
        // What is before the first piece keeps it as far from a page as in the file.
        let mut own_at = filled_from(region, plan);
        own = own.split_off((own_at - region.dest.start()) as usize);
        for (index, piece) in pieces.iter().enumerate() {
            let mut place = own;
            if index + 1 == pieces.len() {
                // The last one keeps the padding behind it as capacity: a direct read of the end of a file needs it.
                own = AlignedBuf::alloc(0, Pages::Small)?;
                place.set_len(piece.dest.len() as usize);
            } else {
                own = place.split_off((piece.dest.end() - own_at) as usize);
                own_at = piece.dest.end();
            }
            let slot = places
                .get_mut(piece.index)
                .ok_or_else(|| internal("a piece has no number"))?;
            *slot = Some(place);
        }
    }
    Ok(())
}

/// Refuse what the machine has no memory for: it would be promised, and whoever touches it last be killed.
fn check_available(needed: u64) -> Result<()> {
    let Some(available) = memory_available_bytes().filter(|available| needed > *available) else {
        return Ok(());
    };
    let message = format!(
        "{} ({needed} bytes) of memory are needed, and {} are available",
        ByteSize(needed),
        ByteSize(available)
    );
    Err(Error::new(ErrorKind::OutOfSpace, "load", message)
        .with_hint("load less with select or shard, or free memory"))
}

#[async_trait]
impl Sink for HostSink {
    fn placement(&self) -> Placement {
        Placement::AsInFile
    }

    async fn prepare(&self, plan: &Arc<Plan>) -> Result<()> {
        let needed = plan.dest_bytes();
        check_memory(needed, self.bytes_max)?;
        check_available(needed)?;
        let mut places = Vec::new();
        places.resize_with(plan.pieces().len(), || None);
        let files = plan.regions().last().map_or(0, |region| region.file + 1);
        for file in 0..files {
            cut_up(plan, file, self.pages, &mut places)?;
        }
        let ahead = (needed >= AHEAD_BYTES_MIN).then(|| fault_ahead(places.iter().flatten()));
        *self.lock() = State {
            plan: Arc::clone(plan),
            places,
            _ahead: ahead,
        };
        Ok(())
    }

    async fn lease(&self, piece: &Piece) -> Result<AlignedBuf> {
        match piece.moves {
            Moves::Whole => self.take(piece),
            Moves::Cuts(_) => self.pool.lease(piece.span.len() as usize).await?,
        }
    }

    async fn accept(&self, piece: &Piece, buf: AlignedBuf) -> Result<Ledger> {
        let mut ledger = Ledger::default();
        match &piece.moves {
            Moves::Whole => self.put(piece, buf),
            Moves::Cuts(cuts) => {
                let mut place = self.take(piece)?;
                for cut in cuts {
                    copy(cut, &buf, piece.dest.start(), &mut place)?;
                }
                self.put(piece, place);
                ledger.record_copy(DataPath::Memory, piece.dest.len());
            }
        }
        Ok(ledger)
    }

    async fn finish(&self) -> Result<()> {
        Ok(())
    }
}

/// Copy strips out of a piece into its place, which begins at byte `base` of the destination.
fn copy(cut: &Cut, from: &[u8], base: u64, to: &mut [u8]) -> Result<()> {
    let bytes = cut.bytes as usize;
    for row in 0..cut.rows {
        let start = (cut.from + row * cut.from_stride) as usize;
        let end = (cut.to - base + row * cut.to_stride) as usize;
        let (Some(from), Some(to)) = (from.get(start..start + bytes), to.get_mut(end..end + bytes)) else {
            return Err(internal("a strip lies outside its piece"));
        };
        to.copy_from_slice(from);
    }
    Ok(())
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "load", message)
}

#[cfg(test)]
mod tests {
    use forebay_core::safetensors::{Header, HeaderBuilder};
    use forebay_io::PoolConfig;

    use super::*;
    use crate::load_plan::{Cuts, PlanFile};
    use crate::select::Wanted;

    const PIECE_BYTES: u64 = 64 << 10;

    fn sink() -> HostSink {
        let pool = BufPool::new(&PoolConfig {
            bytes_max: 1 << 20,
            ..PoolConfig::default()
        });
        HostSink::new(&pool.unwrap(), None)
    }

    fn planned(header: &Header) -> Arc<Plan> {
        let file = PlanFile {
            header,
            cuts: Cuts::Pages,
        };
        let wanted: Vec<Wanted> = (0..header.tensors().len())
            .map(|tensor| Wanted {
                file: 0,
                tensor,
                slice: None,
            })
            .collect();
        Arc::new(Plan::new(&[file], &wanted, Placement::AsInFile, PIECE_BYTES).unwrap())
    }

    fn header() -> Header {
        let mut builder = HeaderBuilder::new();
        builder
            .tensor("a", Dtype::U8, [200_000])
            .tensor("b", Dtype::U8, [77])
            .tensor("c", Dtype::U8, [100_000]);
        builder.encode().unwrap().header
    }

    /// The byte of a file at that offset.
    fn byte(at: u64) -> u8 {
        (at * 31 % 251) as u8
    }

    #[tokio::test]
    async fn pieces_that_came_back_in_other_memory_are_joined_all_the_same() {
        let header = header();
        let plan = planned(&header);
        for elsewhere in [None, Some(0), Some(2)] {
            let sink = sink();
            sink.prepare(&plan).await.unwrap();
            for piece in plan.pieces() {
                let mut buf = sink.lease(piece).await.unwrap();
                assert_eq!(buf.len() as u64, piece.span.len());
                if elsewhere == Some(piece.index) {
                    buf = AlignedBuf::alloc(buf.len(), Pages::Small).unwrap();
                }
                for (at, place) in (piece.span.start()..).zip(buf.iter_mut()) {
                    *place = byte(at);
                }
                sink.accept(piece, buf).await.unwrap();
            }
            let (tensors, ledger) = sink.into_tensors().unwrap();
            for (tensor, info) in tensors.iter().zip(header.tensors()) {
                assert_eq!(tensor.name, info.name);
                assert!(
                    tensor
                        .bytes
                        .iter()
                        .zip(info.span.start()..)
                        .all(|(found, at)| *found == byte(at)),
                    "{} {elsewhere:?}",
                    tensor.name
                );
            }
            let copied = ledger.path(DataPath::Memory).copied_bytes;
            assert_eq!(copied > 0, elsewhere.is_some());
        }
    }

    #[tokio::test]
    async fn what_is_missing_or_lent_twice_is_no_tensor() {
        let header = header();
        let plan = planned(&header);
        let sink = sink();
        sink.prepare(&plan).await.unwrap();
        let first = sink.lease(&plan.pieces()[0]).await.unwrap();
        assert_eq!(
            sink.lease(&plan.pieces()[0]).await.unwrap_err().kind(),
            ErrorKind::Internal
        );
        drop(first);
        assert!(sink.into_tensors().is_err());
    }
}
