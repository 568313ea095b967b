//! Reads what plans need, checks it, and brings it to its place.
//!
//! Direct runs are pieces split off the caller's memory: chunks that lie one after the other in the payload, in the slice and in the memory. Chunks that are not stored as they are come through
//! leased memory, one by one, and are unpacked to their place; everything else goes through leased memory and is copied.

use std::sync::Arc;

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Pages};
use forebay_store::{ReadOptions, Store};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::plan::{Copy, Needed, Part, Plan};
use super::unpack::{Bad, Unpacker};
use super::{Loaded, about};
use crate::open::Checkpoint;
use crate::pages::Source;

/// Bytes of one read: large enough for the fastest disks, small enough that hashing one read goes on beside the next.
const READ_BYTES_MAX: u64 = 16 << 20;

/// Reads in flight into the caller's memory, with those that are being hashed: the disk has enough to do while a batch that came at once is hashed, and they
/// take no memory of ours.
const DIRECT_READS_IN_FLIGHT: usize = 64;

/// Reads in flight through leased memory: past the knee of every disk measured, and of an object store's round trips.
const READS_IN_FLIGHT: usize = 16;

/// Chunks that lie one after the other in one payload.
#[derive(Debug)]
struct Run {
    want: usize,
    key: Key,
    /// In the payload.
    span: Span,
    chunks: Vec<Needed>,
    /// For direct runs, where in the memory of the want.
    to: u64,
}

impl Run {
    /// True when what is stored is what is wanted.
    fn is_plain(&self) -> bool {
        self.chunks.iter().all(|chunk| chunk.record.is_plain())
    }

    /// Bytes that its chunks have.
    fn raw_bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.span.len()).sum()
    }
}

/// A run and what is to be copied of it.
#[derive(Debug)]
struct Bounce {
    run: Run,
    copies: Vec<Copy>,
}

/// Carry plans out, each into the memory of its want, which comes with the name of its tensor.
pub(super) async fn fetch(
    checkpoint: &Checkpoint,
    wants: Vec<(String, AlignedBuf)>,
    plans: Vec<Plan>,
    options: &ReadOptions,
) -> Result<Loaded> {
    let mut needed = plans
        .iter()
        .flat_map(|plan| &plan.parts)
        .flat_map(|part| &part.chunks);
    let opener = if needed.any(|chunk| chunk.record.is_sealed) {
        Some(checkpoint.opener().await?)
    } else {
        None
    };
    let (mut direct, mut bounces) = (Vec::new(), Vec::new());
    for (index, plan) in plans.into_iter().enumerate() {
        for part in plan.parts {
            sort_out(index, part, &mut direct, &mut bounces);
        }
    }
    let (names, memory): (Vec<String>, Vec<AlignedBuf>) = wants.into_iter().unzip();
    let source = checkpoint.source();
    let job = Job {
        source,
        unpacker: Arc::new(Unpacker::new(checkpoint.manifest().hash, source.checks, opener)),
        names: &names,
        options,
    };
    let mut ledger = Ledger::default();
    let mut memory = job.read_direct(memory, direct, &mut ledger).await?;
    job.read_bounced(&mut memory, bounces, &mut ledger).await?;
    Ok(Loaded { memory, ledger })
}

/// Chunks that lie whole within one copy are read straight to their place; others are bounced.
fn sort_out(want: usize, part: Part, direct: &mut Vec<Run>, bounces: &mut Vec<Bounce>) {
    let mut copies = part.copies.iter().peekable();
    for needed in part.chunks {
        while copies
            .next_if(|copy| copy.from.end() <= needed.span.start())
            .is_some()
        {}
        let whole = copies.peek().filter(|copy| copy.from.contains(needed.span));
        if let Some(copy) = whole {
            let to = copy.to + (needed.span.start() - copy.from.start());
            add(direct, want, needed, to, |run| run.to + run.span.len() == to);
            continue;
        }
        let mut here = Vec::new();
        for copy in part
            .copies
            .iter()
            .skip(first_at(&part.copies, needed.span.start()))
        {
            let Some(from) = copy.from.intersect(needed.span) else {
                break;
            };
            here.push(Copy {
                from,
                to: copy.to + (from.start() - copy.from.start()),
            });
        }
        let mut alone = Vec::new();
        add(&mut alone, want, needed, 0, |_| false);
        bounces.extend(alone.into_iter().map(|run| Bounce {
            run,
            copies: here.clone(),
        }));
    }
}

/// The first of ascending copies that ends behind a byte.
fn first_at(copies: &[Copy], byte: u64) -> usize {
    copies.partition_point(|copy| copy.from.end() <= byte)
}

fn add(runs: &mut Vec<Run>, want: usize, needed: Needed, to: u64, follows: impl Fn(&Run) -> bool) {
    let span = needed.record.span();
    let key = needed.payload.key();
    if let Some(last) = runs.last_mut()
        && last.want == want
        && last.key == key
        && last.is_plain()
        && needed.record.is_plain()
        && last.span.end() == span.start()
        && follows(last)
        && last.span.len() + span.len() <= READ_BYTES_MAX
        && let Ok(joined) = Span::new(last.span.start(), span.end())
    {
        last.span = joined;
        last.chunks.push(needed);
        return;
    }
    runs.push(Run {
        want,
        key,
        span,
        chunks: vec![needed],
        to,
    });
}

/// What reading needs.
struct Job<'a> {
    source: &'a Source,
    unpacker: Arc<Unpacker>,
    names: &'a [String],
    options: &'a ReadOptions,
}

impl Job<'_> {
    async fn read_direct(
        &self,
        memory: Vec<AlignedBuf>,
        mut runs: Vec<Run>,
        ledger: &mut Ledger,
    ) -> Result<Vec<AlignedBuf>> {
        runs.sort_by_key(|run| (run.want, run.to));
        let mut pieces = Vec::new();
        let mut runs = runs.into_iter().peekable();
        for (want, mut rest) in memory.into_iter().enumerate() {
            let mut at = 0;
            while let Some(run) = runs.next_if(|run| run.want == want) {
                let mut piece = rest.split_off((run.to - at) as usize);
                pieces.push((want, rest, None));
                rest = piece.split_off(run.raw_bytes() as usize);
                at = run.to + run.raw_bytes();
                pieces.push((want, piece, Some(run)));
            }
            pieces.push((want, rest, None));
        }
        let reads = pieces
            .into_iter()
            .enumerate()
            .map(|(number, (want, piece, run))| async move {
                match run {
                    None => Ok((number, want, piece, Ledger::default())),
                    Some(run) => {
                        let (piece, ledger) = self.read_run(&run, piece).await?;
                        Ok::<_, Error>((number, want, piece, ledger))
                    }
                }
            });
        let mut reads = stream::iter(reads).buffer_unordered(DIRECT_READS_IN_FLIGHT);
        let mut done = Vec::new();
        while let Some((number, want, piece, read)) = reads.try_next().await? {
            ledger.merge(&read);
            done.push((number, want, piece));
        }
        done.sort_unstable_by_key(|(number, ..)| *number);
        let mut joined: Vec<Vec<AlignedBuf>> = Vec::new();
        for (_, want, piece) in done {
            if joined.len() <= want {
                joined.push(Vec::new());
            }
            if let Some(pieces) = joined.last_mut() {
                pieces.push(piece);
            }
        }
        joined.into_iter().map(|pieces| join(pieces, ledger)).collect()
    }

    /// Read what a bounce needs into its lease, and have its raw bytes.
    async fn read_leased(
        &self,
        leased: Result<(Bounce, AlignedBuf)>,
    ) -> Result<(Bounce, AlignedBuf, Ledger)> {
        let (bounce, lease) = leased?;
        let run = &bounce.run;
        let (raw, read) = match run.chunks.first() {
            Some(chunk) if !run.is_plain() => {
                // Not of the pool: who holds one lease must not wait for another.
                let raw = AlignedBuf::alloc(run.raw_bytes() as usize, Pages::default())?;
                self.read_packed(run, chunk, lease, raw).await?
            }
            _ => self.read_plain(run, lease).await?,
        };
        Ok((bounce, raw, read))
    }

    async fn read_bounced(
        &self,
        memory: &mut [AlignedBuf],
        bounces: Vec<Bounce>,
        ledger: &mut Ledger,
    ) -> Result<()> {
        let source = self.source.clone();
        let reads = stream::iter(bounces)
            // Leased in order, whatever way they are stored: were a later read to hold the last memory, the one before would wait for ever.
            .then(move |bounce| with_lease(source.clone(), bounce))
            .map(|leased| self.read_leased(leased).boxed());
        let mut reads = std::pin::pin!(reads.buffered(READS_IN_FLIGHT));
        while let Some((Bounce { run, copies }, lease, read)) = reads.try_next().await? {
            ledger.merge(&read);
            let start = run.chunks.first().map_or(0, |chunk| chunk.span.start());
            for copy in copies {
                let from = lease.get(copy.from.relative_to(start));
                let to = memory.get_mut(run.want).and_then(|memory| {
                    let end = copy.to + copy.from.len();
                    memory.get_mut(copy.to as usize..end as usize)
                });
                let (Some(from), Some(to)) = (from, to) else {
                    return Err(Error::new(ErrorKind::Internal, "load", "a copy goes nowhere"));
                };
                to.copy_from_slice(from);
                let path = read.paths.keys().next().copied().unwrap_or(DataPath::Memory);
                ledger.record_copy(path, copy.from.len());
            }
        }
        Ok(())
    }

    /// Read a run, compare each of its chunks with its hash, and have its raw bytes in `piece`.
    async fn read_run(&self, run: &Run, piece: AlignedBuf) -> Result<(AlignedBuf, Ledger)> {
        match run.chunks.first() {
            Some(chunk) if !run.is_plain() => {
                // Given back as soon as it is unpacked, whether or not those before are: nobody waits for it for ever.
                let memory = self.source.memory(run.span.len() as usize).await?;
                self.read_packed(run, chunk, memory, piece).await
            }
            _ => self.read_plain(run, piece).await,
        }
    }

    async fn read_stored(&self, run: &Run, memory: AlignedBuf) -> Result<(AlignedBuf, Ledger)> {
        let store: &dyn Store = &*self.source.store;
        let done = store.read_into(&run.key, run.span, memory, self.options).await;
        let done = done.map_err(|error| self.unreadable(run, error))?;
        Ok((done.buf, done.ledger))
    }

    async fn read_plain(&self, run: &Run, piece: AlignedBuf) -> Result<(AlignedBuf, Ledger)> {
        let (buf, mut ledger) = self.read_stored(run, piece).await?;
        if !self.source.checks {
            return Ok((buf, ledger));
        }
        let (unpacker, chunks, start) = (Arc::clone(&self.unpacker), run.chunks.clone(), run.span.start());
        let checking = tokio::task::spawn_blocking(move || {
            let checked = unpacker.check(&chunks, start, &buf);
            (buf, checked)
        });
        let (buf, checked) = checking.await.map_err(broken_off)?;
        checked.map_err(|bad| self.damaged(run, *bad))?;
        ledger.verified_bytes += run.span.len();
        Ok((buf, ledger))
    }

    async fn read_packed(
        &self,
        run: &Run,
        chunk: &Needed,
        memory: AlignedBuf,
        mut piece: AlignedBuf,
    ) -> Result<(AlignedBuf, Ledger)> {
        let (mut stored, mut ledger) = self.read_stored(run, memory).await?;
        let (unpacker, chunk) = (Arc::clone(&self.unpacker), *chunk);
        let unpacking = tokio::task::spawn_blocking(move || {
            let unpacked = unpacker.unpack(&chunk, &mut stored, &mut piece);
            drop(stored);
            (piece, unpacked)
        });
        let (piece, unpacked) = unpacking.await.map_err(broken_off)?;
        unpacked.map_err(|bad| self.damaged(run, *bad))?;
        if self.source.checks {
            ledger.verified_bytes += run.span.len();
        }
        let path = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
        ledger.record_copy(path, run.raw_bytes());
        Ok((piece, ledger))
    }

    fn name(&self, run: &Run) -> &str {
        self.names.get(run.want).map_or("", String::as_str)
    }

    fn damaged(&self, run: &Run, (chunk, why): Bad) -> Error {
        let message = format!(
            "bytes {} of its slice are damaged, stored at {}: {why}",
            chunk.span,
            chunk.record.span()
        );
        about(ErrorKind::Corrupt, self.name(run), &message).at(self.source.store.location().join(&run.key))
    }

    fn unreadable(&self, run: &Run, error: Error) -> Error {
        let kind = match error.kind() {
            // A payload that a manifest names must be there, whole.
            ErrorKind::NotFound | ErrorKind::InvalidInput => ErrorKind::Corrupt,
            kind => kind,
        };
        about(kind, self.name(run), "what is stored cannot be read")
            .with_source(error)
            .at(self.source.store.location().join(&run.key))
    }
}

/// Memory for what is stored of a run.
async fn with_lease(source: Source, bounce: Bounce) -> Result<(Bounce, AlignedBuf)> {
    let lease = source.memory(bounce.run.span.len() as usize).await?;
    Ok((bounce, lease))
}

fn broken_off(error: tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Internal, "load", "unpacking was broken off").with_source(error)
}

/// Pieces of one memory as one again. A read that was tried again comes back in other memory; only then everything is copied together.
pub(crate) fn join(split: Vec<AlignedBuf>, ledger: &mut Ledger) -> Result<AlignedBuf> {
    let mut pieces: Vec<AlignedBuf> = Vec::new();
    for piece in split {
        let alone = match pieces.last_mut() {
            Some(last) => last.unsplit(piece).err(),
            None => Some(piece),
        };
        pieces.extend(alone);
    }
    if pieces.len() == 1
        && let Some(whole) = pieces.pop()
    {
        return Ok(whole);
    }
    let len = pieces.iter().map(|piece| piece.len()).sum();
    let mut whole = AlignedBuf::alloc(len, Pages::default())?;
    let mut at = 0;
    for piece in &pieces {
        if let Some(place) = whole.get_mut(at..at + piece.len()) {
            place.copy_from_slice(piece);
        }
        at += piece.len();
    }
    ledger.record_copy(DataPath::Memory, len as u64);
    Ok(whole)
}
