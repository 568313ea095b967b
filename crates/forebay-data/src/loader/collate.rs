//! Collating: the fields of the samples of a batch, copied or decoded into one buffer.
//!
//! ```text
//! prepare: bad samples replaced, places laid out, one buffer leased --> pieces: rows of decoded fields, on several threads
//!                                                                           |
//! settle: what could not be decoded replaced <------------------------------+
//!    |
//!    +--> the other fields copied, on several threads where they are large (copy.rs) --> collated
//! ```
//!
//! A sample that is bad (its checksum or the size of a field does not hold, a field of fixed size has no value, or it cannot be decoded) is left out; with a policy that goes on, the next
//! good sample of the batch takes its place, so that batches never get shorter. Where a batch has none, the last sample of the batch before takes all places.

mod copy;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Clock, Error, ErrorKind, Result};
use forebay_io::{AlignedBuf, BufPool, Pages};
use futures::StreamExt;
use futures::future::try_join_all;
use serde::Serialize;

use super::batch::{Batch, BatchField, PART_ALIGN, Part, SampleKey};
use super::cpu::Cpu;
use super::decode::{Piece, Values, Wanted};
use super::read::Loaded;
use super::record::Record;
use super::spare::Before;
use crate::schema::Kind;
use copy::{Copy, Laid};

/// What one thread copies at least of a batch that several work on: less is done before another one has begun.
const COPY_BYTES_MIN: usize = if cfg!(test) { 64 } else { 4 << 20 };

/// A sample of a batch.
#[derive(Debug, Clone)]
pub(super) struct Pick {
    pub(super) block: Arc<Loaded>,
    pub(super) sample: u32,
}

/// A sample that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadSample {
    /// The key of its shard; in a mixture behind the number of its data set.
    pub shard: String,
    /// The number of its shard, over all data sets.
    #[serde(skip)]
    pub shard_number: u32,
    /// Its number there.
    pub index: u64,
    /// Where its bytes begin in the shard, before compression; rows of groups have no such place.
    pub offset: Option<u64>,
    /// Its key, where it has one.
    pub key: Option<String>,
    /// What is wrong with it.
    pub reason: String,
    /// Its bytes are not those that were indexed; else they are, and cannot be used as they were asked for.
    #[serde(skip)]
    pub is_damaged: bool,
    /// It has no value where its batch has a number, and nobody said what stands for it.
    #[serde(skip)]
    pub lacks_number: bool,
}

/// What to collate.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) epoch: u64,
    pub(super) index: u64,
    pub(super) picks: Vec<Pick>,
    pub(super) fields: Arc<[Wanted]>,
    pub(super) record: Record,
    pub(super) pool: BufPool,
    /// Threads that may decode for it.
    pub(super) threads: usize,
    /// Threads that may copy for it: its share, for as many batches are made side by side, and copying is not worth waiting for a turn.
    pub(super) copy_threads: usize,
    /// All its samples are one that another batch has lent: what is wrong with that was told there.
    pub(super) is_lent: bool,
}

/// A collated batch and the samples it had to do without.
#[derive(Debug)]
pub(super) struct Collated {
    /// Nothing where no sample is whole, and none was before it.
    pub(super) batch: Option<Batch>,
    pub(super) bad: Vec<BadSample>,
    /// Values that samples did not have, by field.
    pub(super) missing: Vec<(String, u64)>,
    /// The last of its samples, which are all good: it stands in for a batch after it that has none.
    pub(super) last: Option<Pick>,
}

/// All samples of a batch are bad.
#[derive(Debug)]
struct NoneWhole(Vec<BadSample>);

/// A batch or a part of one, unless no sample of it is whole.
type Tried<T> = Result<Result<T, NoneWhole>>;

/// A batch whose buffer is there, cut into the pieces that are to be decoded and the rest.
#[derive(Debug)]
struct Prepared {
    job: Arc<Job>,
    bad: Vec<BadSample>,
    laid: Laid,
    pieces: Vec<Piece>,
    /// What lies behind the pieces.
    rest: AlignedBuf,
}

/// A batch whose samples are all in their places, and what is decoded of them.
#[derive(Debug)]
struct Settled {
    job: Job,
    bad: Vec<BadSample>,
    laid: Laid,
    buf: AlignedBuf,
}

/// How far one thread comes with a batch.
#[derive(Debug)]
enum Step {
    /// Several are to decode.
    Decode(Prepared),
    Decoded(Rest),
}

/// What is left to do once everything is decoded.
#[derive(Debug)]
enum Rest {
    Nothing(Result<Collated, NoneWhole>),
    /// Several threads are to copy.
    Copy(Copying),
}

/// A batch that is cut into what several threads copy, each some neighbours.
#[derive(Debug)]
struct Copying {
    job: Job,
    bad: Vec<BadSample>,
    laid: Laid,
    decoded: AlignedBuf,
    groups: Vec<Vec<Copy>>,
}

impl Job {
    /// Collate on working threads; also tells when that began. With a policy that goes on, `before` is what to do without any whole sample.
    pub(super) async fn collate(
        self,
        before: Option<Before>,
        cpu: &Cpu,
        clock: &Arc<dyn Clock>,
    ) -> Result<(Collated, Duration)> {
        let again = before.is_some().then(|| self.clone());
        let (tried, begun) = self.attempt(cpu, clock).await?;
        let bad = match tried {
            Ok(collated) => return Ok((collated, begun)),
            Err(NoneWhole(bad)) => bad,
        };
        let lent = match (again, before) {
            (Some(job), Some(before)) => job.borrow(before, cpu, clock).await?,
            _ => None,
        };
        let collated = match lent {
            Some(collated) => Collated { bad, ..collated },
            None => Collated {
                batch: None,
                bad,
                missing: Vec::new(),
                last: None,
            },
        };
        Ok((collated, begun))
    }

    /// A batch of nothing but the first of these samples that can be used.
    async fn borrow(self, mut before: Before, cpu: &Cpu, clock: &Arc<dyn Clock>) -> Result<Option<Collated>> {
        while let Some(spare) = before.next().await {
            let mut job = self.clone();
            job.picks.fill(spare);
            job.is_lent = true;
            if let Ok(collated) = job.attempt(cpu, clock).await?.0 {
                return Ok(Some(collated));
            }
        }
        Ok(None)
    }

    async fn attempt(
        self,
        cpu: &Cpu,
        clock: &Arc<dyn Clock>,
    ) -> Result<(Result<Collated, NoneWhole>, Duration)> {
        let clock = Arc::clone(clock);
        let (begun, step) = cpu.run(move || (clock.now(), self.step())).await?;
        let rest = match step? {
            Step::Decoded(rest) => rest,
            Step::Decode(mut prepared) => {
                let pieces = std::mem::take(&mut prepared.pieces).into_iter().map(|piece| {
                    let job = Arc::clone(&prepared.job);
                    cpu.run(move || job.decode(piece))
                });
                let pieces = try_join_all(pieces).await?;
                cpu.run(move || prepared.rest(pieces)).await??
            }
        };
        let tried = match rest {
            Rest::Nothing(tried) => tried,
            Rest::Copy(copying) => Ok(copying.run(cpu).await?),
        };
        Ok((tried, begun))
    }

    /// As far as this thread is to go alone.
    fn step(self) -> Result<Step> {
        let is_heavy = self
            .fields
            .iter()
            .any(|wanted| wanted.tool.as_ref().is_some_and(super::decode::Tool::is_heavy));
        let mut prepared = match self.prepare()? {
            Ok(prepared) => prepared,
            Err(none) => return Ok(Step::Decoded(Rest::Nothing(Err(none)))),
        };
        if is_heavy {
            return Ok(Step::Decode(prepared));
        }
        let pieces = std::mem::take(&mut prepared.pieces).into_iter();
        let pieces = pieces.map(|piece| prepared.job.decode(piece)).collect();
        prepared.rest(pieces).map(Step::Decoded)
    }

    fn prepare(mut self) -> Tried<Prepared> {
        let bad = self.bad_samples();
        for (place, bad) in &bad {
            self.quarantine(*place, bad)?;
        }
        let places: Vec<usize> = bad.keys().copied().collect();
        if self.replace(&places).is_none() {
            return Ok(Err(NoneWhole(bad.into_values().collect())));
        }
        let laid = self.lay_out();
        let mut rest = self.lease(laid.len)?;
        let mut pieces = Vec::new();
        let mut at = 0;
        for (number, (wanted, part)) in self.fields.iter().zip(&laid.parts).enumerate() {
            let (Some(tool), Part::Fixed(range)) = (&wanted.tool, part) else {
                continue;
            };
            let width = wanted.width().unwrap_or_default();
            let step = tool.piece_rows(self.picks.len(), self.threads);
            for first in (0..self.picks.len()).step_by(step) {
                let rows = first..(first + step).min(self.picks.len());
                // The last piece of a field takes what is left free behind it.
                let end = if rows.end == self.picks.len() {
                    range.end.next_multiple_of(PART_ALIGN)
                } else {
                    range.start + rows.end * width
                };
                let tail = rest.split_off(end - at);
                let out = std::mem::replace(&mut rest, tail);
                at = end;
                pieces.push(Piece {
                    wanted: number,
                    rows,
                    out,
                    bad: Vec::new(),
                });
            }
        }
        Ok(Ok(Prepared {
            job: Arc::new(self),
            bad: bad.into_values().collect(),
            laid,
            pieces,
            rest,
        }))
    }

    fn lease(&self, len: usize) -> Result<AlignedBuf> {
        let mut buf = match self.pool.try_lease(len) {
            Some(buf) => buf,
            None => AlignedBuf::alloc(len, Pages::default())?,
        };
        buf.set_len(len);
        Ok(buf)
    }

    fn decode(&self, mut piece: Piece) -> Piece {
        let wanted = self.fields.get(piece.wanted);
        if let Some((wanted, tool)) = wanted.and_then(|wanted| Some((wanted, wanted.tool.as_ref()?))) {
            let rows = Values {
                epoch: self.epoch,
                picks: &self.picks,
                rows: piece.rows.clone(),
                wanted,
            };
            piece.bad = tool.decode(&rows, &mut piece.out);
        }
        piece
    }

    fn bad_sample(&self, place: usize, reason: String) -> Option<BadSample> {
        let pick = self.picks.get(place)?;
        let is_damaged = pick.block.why_bad(pick.sample).is_some();
        let more = if is_damaged {
            self.record.why_damaged(pick.block.shard)
        } else {
            ""
        };
        Some(BadSample {
            shard: self.record.shard_name(pick.block.shard),
            shard_number: pick.block.shard,
            index: pick.block.index(pick.sample),
            offset: pick.block.offset(pick.sample),
            key: pick.block.key(pick.sample).map(str::to_owned),
            reason: reason + more,
            is_damaged,
            lacks_number: !is_damaged && self.lacks_number(pick),
        })
    }

    fn lacks_number(&self, pick: &Pick) -> bool {
        self.fields.iter().any(|wanted| {
            let is_number = matches!(&wanted.field.kind, Kind::Array { shape, .. } if shape.is_empty());
            let has_value = pick.block.field(pick.sample, wanted.source).is_some();
            is_number && !has_value && wanted.fill_for(pick).is_err()
        })
    }

    fn quarantine(&self, place: usize, bad: &BadSample) -> Result<()> {
        if self.is_lent {
            return Ok(());
        }
        let (Some(quarantine), Some(pick)) = (self.record.quarantine(), self.picks.get(place)) else {
            return Ok(());
        };
        let fields = self.fields.iter().filter_map(|wanted| {
            let bytes = pick.block.field(pick.sample, wanted.source)?;
            Some((wanted.field.name.as_str(), bytes))
        });
        quarantine.keep(bad, &fields.collect::<Vec<_>>())
    }

    /// Samples that cannot be used, by their place.
    fn bad_samples(&self) -> BTreeMap<usize, BadSample> {
        let bad = self.picks.iter().enumerate().filter_map(|(place, pick)| {
            let reason = why_bad(&self.fields, pick)?;
            Some((place, self.bad_sample(place, reason)?))
        });
        bad.collect()
    }

    /// Put a good sample into each of these places, in ascending order; gives which place each was taken from. Nothing where no place is left.
    fn replace(&mut self, places: &[usize]) -> Option<Vec<(usize, usize)>> {
        let count = self.picks.len();
        if places.len() == count && count > 0 {
            return None;
        }
        let mut replaced = Vec::with_capacity(places.len());
        for place in places.iter().rev() {
            let mut next = (1..count).map(|step| (place + step) % count);
            if let Some(good) = next.find(|next| places.binary_search(next).is_err()) {
                self.picks[*place] = self.picks[good].clone();
                replaced.push((*place, good));
            }
        }
        Some(replaced)
    }

    /// Where each field lies, and how long the buffer is. Decoded fields are the first ones in it.
    fn lay_out(&self) -> Laid {
        let mut end = 0;
        let mut place = |len: usize| {
            let start = end;
            end = (start + len).next_multiple_of(PART_ALIGN);
            start..start + len
        };
        let count = self.picks.len();
        let mut parts = BTreeMap::new();
        let mut offsets = vec![Vec::new(); self.fields.len()];
        let (decoded, stored): (Vec<_>, Vec<_>) = self
            .fields
            .iter()
            .enumerate()
            .partition(|(_, wanted)| wanted.tool.is_some());
        for (number, wanted) in decoded.into_iter().chain(stored) {
            let part = match wanted.width() {
                Some(width) => Part::Fixed(place(width * count)),
                None => {
                    let mut ends = Vec::with_capacity(count + 1);
                    let mut bytes = 0;
                    ends.push(bytes);
                    ends.extend(self.picks.iter().map(|pick| {
                        let value = pick.block.field(pick.sample, wanted.source);
                        bytes += value.map_or(0, |value| wanted.len_of(value));
                        bytes
                    }));
                    offsets[number] = ends;
                    Part::Ragged {
                        offsets: place(8 * (count + 1)),
                        bytes: place(bytes),
                    }
                }
            };
            parts.insert(number, part);
        }
        Laid {
            parts: parts.into_values().collect(),
            len: end,
            offsets,
        }
    }

    /// How many samples do not have a field.
    fn lacking(&self, wanted: &Wanted) -> u64 {
        let picks = self.picks.iter();
        picks
            .filter(|pick| pick.block.field(pick.sample, wanted.source).is_none())
            .count() as u64
    }

    /// The batch, out of what is decoded and what was copied.
    fn collated(
        mut self,
        bad: Vec<BadSample>,
        laid: Laid,
        (decoded, copies): (AlignedBuf, Vec<Copy>),
    ) -> Result<Collated> {
        let (mut buf, missing) = copy::join(decoded, copies, self.fields.len())?;
        let missing = self.fields.iter().zip(&missing).filter_map(|(wanted, copied)| {
            let values = match (&wanted.tool, &wanted.fill) {
                (None, _) => *copied,
                // Counted when all samples are in their places, as the others are.
                (Some(_), Some(_)) => self.lacking(wanted),
                (Some(_), None) => 0,
            };
            (values > 0).then(|| (wanted.field.name.clone(), values))
        });
        let missing = missing.collect();
        let fields = self
            .fields
            .iter()
            .zip(laid.parts)
            .map(|(wanted, part)| BatchField {
                field: wanted.field.clone(),
                part,
            });
        buf.set_len(laid.len);
        Ok(Collated {
            batch: Some(Batch {
                epoch: self.epoch,
                index: self.index,
                samples: self.picks.len(),
                fields: fields.collect(),
                keys: self.picks.iter().map(key_of).collect(),
                data: buf.freeze(),
            }),
            bad,
            missing,
            last: self.picks.pop(),
        })
    }

    /// Put the decoded values of samples that take others' places into these.
    fn copy_decoded(&self, replaced: &[(usize, usize)], parts: &[Part], buf: &mut AlignedBuf) {
        for (wanted, part) in self.fields.iter().zip(parts) {
            let (Some(_), Part::Fixed(range)) = (&wanted.tool, part) else {
                continue;
            };
            let width = wanted.width().unwrap_or_default();
            for (place, good) in replaced {
                let from = range.start + good * width;
                buf.copy_within(from..from + width, range.start + place * width);
            }
        }
    }
}

impl Prepared {
    /// Put everything into its place, and copy what is stored unless that is for several threads.
    fn rest(self, pieces: Vec<Piece>) -> Result<Rest> {
        let settled = match self.settle(pieces)? {
            Ok(settled) => settled,
            Err(none) => return Ok(Rest::Nothing(Err(none))),
        };
        match settled.piece_bytes() {
            Some(piece_bytes) => Ok(Rest::Copy(settled.cut(piece_bytes))),
            None => Ok(Rest::Nothing(Ok(settled.finish()?))),
        }
    }

    fn settle(self, pieces: Vec<Piece>) -> Tried<Settled> {
        let (mut buf, undecoded) = join(pieces, self.rest)?;
        let (mut bad, mut laid) = (self.bad, self.laid);
        let mut job =
            Arc::try_unwrap(self.job).map_err(|_| internal("a piece of a batch is still being decoded"))?;
        if !undecoded.is_empty() {
            let places: Vec<usize> = undecoded.keys().copied().collect();
            for (place, reason) in undecoded {
                if let Some(sample) = job.bad_sample(place, reason) {
                    job.quarantine(place, &sample)?;
                    bad.push(sample);
                }
            }
            let Some(replaced) = job.replace(&places) else {
                return Ok(Err(NoneWhole(bad)));
            };
            // The samples that take their places may be longer; what was decoded lies before all that moves.
            laid = job.lay_out();
            if laid.len > buf.len() {
                let mut larger = job.lease(laid.len)?;
                put(&mut larger, 0, &buf)?;
                buf = larger;
            }
            job.copy_decoded(&replaced, &laid.parts, &mut buf);
        }
        Ok(Ok(Settled { job, bad, laid, buf }))
    }
}

impl Settled {
    /// What each of several threads is to copy; nothing where one does it all.
    fn piece_bytes(&self) -> Option<usize> {
        let fields = self.job.fields.iter().zip(&self.laid.parts);
        let decoded = fields.filter_map(|(wanted, part)| match part {
            Part::Fixed(range) if wanted.tool.is_some() => Some(range.end.next_multiple_of(PART_ALIGN)),
            _ => None,
        });
        let stored = self.laid.len.saturating_sub(decoded.max().unwrap_or(0));
        let is_large = self.job.copy_threads > 1 && stored >= 2 * COPY_BYTES_MIN;
        is_large.then(|| stored.div_ceil(self.job.copy_threads).max(COPY_BYTES_MIN))
    }

    /// Copy what is stored.
    fn finish(mut self) -> Result<Collated> {
        let (decoded, copies) = self.job.cut(self.buf, &mut self.laid, usize::MAX);
        let copies = copies.into_iter().map(|copy| self.job.copy(copy));
        let copies = copies.collect::<Result<_>>()?;
        self.job.collated(self.bad, self.laid, (decoded, copies))
    }

    fn cut(mut self, piece_bytes: usize) -> Copying {
        let (decoded, copies) = self.job.cut(self.buf, &mut self.laid, piece_bytes);
        Copying {
            job: self.job,
            bad: self.bad,
            laid: self.laid,
            decoded,
            groups: copy::groups(copies, piece_bytes),
        }
    }
}

impl Copying {
    async fn run(self, cpu: &Cpu) -> Result<Collated> {
        let job = Arc::new(self.job);
        let groups = self.groups.into_iter().map(|copies| {
            let job = Arc::clone(&job);
            cpu.run(move || {
                let copies = copies.into_iter().map(|copy| job.copy(copy));
                copies.collect::<Result<Vec<Copy>>>()
            })
        });
        let groups = try_join_all(groups).await?;
        let job = Arc::try_unwrap(job).map_err(|_| internal("a piece of a batch is still being copied"))?;
        let (bad, laid, decoded) = (self.bad, self.laid, self.decoded);
        let collate = move || {
            let copies = groups.into_iter().collect::<Result<Vec<_>>>()?;
            job.collated(bad, laid, (decoded, copies.into_iter().flatten().collect()))
        };
        cpu.run(collate).await?
    }
}

/// Why a sample cannot be used, as far as that shows before it is decoded.
pub(super) fn why_bad(fields: &[Wanted], pick: &Pick) -> Option<String> {
    if let Some(reason) = pick.block.why_bad(pick.sample) {
        return Some(reason.to_owned());
    }
    fields.iter().find_map(|wanted| {
        if wanted.tool.is_some() {
            return None;
        }
        if let Some(list) = wanted.list {
            let bytes = pick.block.field(pick.sample, wanted.source)?;
            let name = wanted.field.name.escape_debug();
            let is_damaged = list.checked_len(bytes).is_none();
            return is_damaged.then(|| format!("the numbers of field '{name}' cannot be read"));
        }
        let field = &wanted.field;
        if let Kind::List { dtype } = &field.kind {
            // Half a number at the end of one list would shift the numbers of all samples behind it.
            let bytes = pick.block.field(pick.sample, wanted.source)?.len() as u64;
            let is_whole = bytes.is_multiple_of(dtype.bytes());
            let name = field.name.escape_debug();
            return (!is_whole)
                .then(|| format!("field '{name}' has {bytes} bytes, which is no whole count of {dtype}"));
        }
        let width = field.kind.fixed_bytes()?;
        match pick.block.field(pick.sample, wanted.source) {
            Some(bytes) if bytes.len() as u64 == width => None,
            Some(bytes) => Some(format!(
                "field '{}' has {} bytes instead of {width}",
                field.name.escape_debug(),
                bytes.len()
            )),
            None => {
                let reason = wanted.fill_for(pick).err()?;
                Some(format!("field '{}' {reason}", field.name.escape_debug()))
            }
        }
    })
}

/// The buffer out of its pieces, and the places of what could not be decoded.
fn join(pieces: Vec<Piece>, rest: AlignedBuf) -> Result<(AlignedBuf, BTreeMap<usize, String>)> {
    let mut undecoded = BTreeMap::new();
    let mut joined: Option<AlignedBuf> = None;
    for piece in pieces {
        undecoded.extend(piece.bad);
        match &mut joined {
            None => joined = Some(piece.out),
            Some(joined) => joined.unsplit(piece.out).map_err(|_| scattered())?,
        }
    }
    match joined {
        None => Ok((rest, undecoded)),
        Some(mut joined) => {
            joined.unsplit(rest).map_err(|_| scattered())?;
            Ok((joined, undecoded))
        }
    }
}

fn scattered() -> Error {
    internal("the pieces of a batch are not neighbours")
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "collate", message)
}

fn put(buf: &mut AlignedBuf, at: usize, bytes: &[u8]) -> Result<()> {
    match buf.get_mut(at..at + bytes.len()) {
        Some(place) => {
            place.copy_from_slice(bytes);
            Ok(())
        }
        None => Err(internal("a field does not fit its place")),
    }
}

fn key_of(pick: &Pick) -> SampleKey {
    match pick.block.key(pick.sample) {
        Some(key) => SampleKey::Named(key.into()),
        None => SampleKey::Numbered {
            shard: pick.block.shard,
            index: pick.block.index(pick.sample),
        },
    }
}
