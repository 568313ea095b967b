//! The bytes of slices for those who hash and write them: memory that is there, or that is filled when it is their turn.
//!
//! ```text
//! chunks in their order -> rounds that fit -> [Fill]: one is filled while -> [threads] are at the one before -> what they make of it, in order
//! ```
//!
//! A state that is larger than the memory for its copy is saved like this: the memory of a round is used again once all of its chunks are written. Chunks whose
//! bytes are there take part without waiting for anybody.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Result, Span};
use forebay_io::Buf;
use futures::future::{TryFutureExt, ready};
use futures::stream::{self, BoxStream, Stream, StreamExt};

/// What pieces of a round begin at a multiple of: at least what any element is aligned to, so that it can be copied as such.
const PIECE_ALIGN: usize = 64;

/// Rounds that are asked for at once, beside the one that is worked on.
const ROUNDS_AHEAD: usize = 2;

/// A source of bytes that are not in memory yet, such as those of tensors on devices.
///
/// Rounds are asked for in order, the next ones while the one before is still held. Memory goes to them in that order, too, and comes back when all slices of the
/// buffer are dropped; whoever has memory for one round only waits for that. A source that is dropped is not asked any more.
#[async_trait]
pub trait Fill: fmt::Debug + Send + Sync {
    /// Most bytes of a round; at least those of a chunk.
    fn round_bytes(&self) -> usize;

    /// Memory with every piece at its place; waits until there is some.
    async fn fill(&self, round: Round) -> Result<Buf>;
}

/// What is filled at a time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// One behind the other, in the order in which they are saved.
    pub pieces: Vec<RoundPiece>,
    /// Bytes from the first to the last of them.
    pub bytes: usize,
    /// Nothing is asked for behind it.
    pub is_last: bool,
}

/// A part of a slice, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundPiece {
    /// The number that the item has in [`ItemData::Later`](crate::ItemData::Later).
    pub number: usize,
    /// Which of the slice's bytes.
    pub span: Span,
    /// Where they begin in the memory of the round.
    pub at: usize,
}

/// The bytes of a slice or of a part of it.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    There(Buf),
    Later { number: usize, span: Span },
}

impl Bytes {
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::There(buf) => buf.len() as u64,
            Self::Later { span, .. } => span.len(),
        }
    }

    /// A part of it, which must lie within.
    pub(super) fn slice(&self, part: Span) -> Result<Self> {
        Ok(match self {
            Self::There(buf) => Self::There(buf.slice(part.relative_to(0))),
            Self::Later { number, span } => Self::Later {
                number: *number,
                span: Span::at(span.start() + part.start(), part.len())?,
            },
        })
    }

    pub(super) fn there(self) -> Option<Buf> {
        match self {
            Self::There(buf) => Some(buf),
            Self::Later { .. } => None,
        }
    }
}

/// Gives chunks their bytes, and threads to work on them.
#[derive(Debug)]
pub(super) struct Supply {
    fill: Option<Arc<dyn Fill>>,
    rounds: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Supply {
    /// Nothing needs a source where all bytes are there.
    pub(super) fn new(fill: Option<Arc<dyn Fill>>) -> Self {
        Self {
            fill,
            rounds: Arc::default(),
            is_over: Arc::default(),
        }
    }

    /// True where bytes are not in memory yet.
    pub(super) fn is_streamed(&self) -> bool {
        self.fill.is_some()
    }

    /// Rounds that were filled so far.
    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Have `at_once` threads work on chunks as their bytes come; what they make is given in the order of the jobs. `is_last` says that nothing is asked for afterwards.
    pub(super) fn work<T, R>(
        &self,
        jobs: Vec<(T, Bytes)>,
        is_last: bool,
        at_once: usize,
        work: impl Fn(T, Buf) -> Result<R> + Send + Sync + 'static,
    ) -> Result<BoxStream<'static, Result<R>>>
    where
        T: Send + 'static,
        R: Send + 'static,
    {
        let round_bytes = self.fill.as_ref().map_or(0, |fill| fill.round_bytes());
        let groups = plan(jobs, round_bytes, is_last)?;
        let filled = self.filled(groups);
        let (work, is_over) = (Arc::new(work), Arc::clone(&self.is_over));
        let worked = filled.map(move |job| {
            let (work, is_over) = (Arc::clone(&work), Arc::clone(&is_over));
            async move {
                let (job, bytes) = job?;
                let working = tokio::task::spawn_blocking(move || {
                    if is_over.load(Ordering::Relaxed) {
                        return Err(Error::new(ErrorKind::Cancelled, "save", "another chunk failed"));
                    }
                    work(job, bytes)
                });
                working.await.map_err(|error| {
                    let message = "work on a chunk was broken off";
                    Error::new(ErrorKind::Internal, "save", message).with_source(error)
                })?
            }
        });
        Ok(worked.buffered(at_once.max(1)).boxed())
    }

    /// Chunks with their bytes, in order; an error instead of those of a round that could not be filled, behind which no other is asked for.
    fn filled<T: Send + 'static>(
        &self,
        groups: Vec<Group<T>>,
    ) -> impl Stream<Item = Result<(T, Buf)>> + Send + use<T> {
        let (fill, rounds) = (self.fill.clone(), Arc::clone(&self.rounds));
        let (is_over, is_dry) = (Arc::clone(&self.is_over), Arc::new(AtomicBool::new(false)));
        let is_failed = Arc::clone(&is_dry);
        let goes_on = move || !is_over.load(Ordering::Relaxed) && !is_dry.load(Ordering::Relaxed);
        stream::iter(groups)
            .take_while(move |_| ready(goes_on()))
            .map(move |group| {
                let is_failed = Arc::clone(&is_failed);
                let filled = group.filled(fill.clone(), Arc::clone(&rounds));
                filled.inspect_err(move |_| is_failed.store(true, Ordering::Relaxed))
            })
            .buffered(ROUNDS_AHEAD)
            .flat_map(|group| match group {
                Ok(jobs) => stream::iter(jobs).map(Ok).left_stream(),
                Err(error) => stream::iter([Err(error)]).right_stream(),
            })
    }

    /// After an error: nothing more is begun, and what threads are at is waited for. They must not go on behind the caller's back.
    pub(super) async fn stop<R>(&self, mut working: BoxStream<'static, Result<R>>) {
        self.is_over.store(true, Ordering::Relaxed);
        while working.next().await.is_some() {}
    }
}

/// Chunks of one round, with those between them whose bytes are there.
struct Group<T> {
    jobs: Vec<(T, Placed)>,
    round: Round,
}

enum Placed {
    There(Buf),
    InRound(Range<usize>),
}

impl<T> Default for Group<T> {
    fn default() -> Self {
        Self {
            jobs: Vec::new(),
            round: Round::default(),
        }
    }
}

impl<T> Group<T> {
    /// Where a span would go: right behind the bytes that it continues, else at an aligned place.
    fn place(&self, number: usize, span: Span) -> usize {
        if self.is_continued_by(number, span) {
            self.round.bytes
        } else {
            self.round.bytes.next_multiple_of(PIECE_ALIGN)
        }
    }

    fn is_continued_by(&self, number: usize, span: Span) -> bool {
        let last = self.round.pieces.last();
        last.is_some_and(|last| last.number == number && last.span.end() == span.start())
    }

    fn push(&mut self, job: T, number: usize, span: Span) -> Result<()> {
        let (at, len) = (self.place(number, span), span.len() as usize);
        let is_continued = self.is_continued_by(number, span);
        match self.round.pieces.last_mut() {
            Some(last) if is_continued => last.span = Span::new(last.span.start(), span.end())?,
            _ => self.round.pieces.push(RoundPiece { number, span, at }),
        }
        self.round.bytes = at + len;
        self.jobs.push((job, Placed::InRound(at..at + len)));
        Ok(())
    }

    /// The jobs with their bytes, once the round is filled.
    async fn filled(self, fill: Option<Arc<dyn Fill>>, rounds: Arc<AtomicU64>) -> Result<Vec<(T, Buf)>> {
        let bytes = self.round.bytes;
        let memory = match fill {
            Some(fill) if bytes > 0 => {
                let memory = fill.fill(self.round).await?;
                rounds.fetch_add(1, Ordering::Relaxed);
                memory
            }
            _ => Buf::copy_of(&[])?,
        };
        if memory.len() < bytes {
            let message = "a round was not filled";
            return Err(Error::new(ErrorKind::Internal, "save", message));
        }
        let with_bytes = |(job, placed)| match placed {
            Placed::There(buf) => (job, buf),
            Placed::InRound(range) => (job, memory.slice(range)),
        };
        Ok(self.jobs.into_iter().map(with_bytes).collect())
    }
}

/// Put chunks into rounds, in their order. Pure.
fn plan<T>(jobs: Vec<(T, Bytes)>, round_bytes: usize, is_last: bool) -> Result<Vec<Group<T>>> {
    let mut groups = vec![Group::default()];
    for (job, bytes) in jobs {
        let (number, span) = match bytes {
            Bytes::There(buf) => {
                if let Some(group) = groups.last_mut() {
                    group.jobs.push((job, Placed::There(buf)));
                }
                continue;
            }
            Bytes::Later { number, span } => (number, span),
        };
        let len = usize::try_from(span.len()).unwrap_or(usize::MAX);
        if len > round_bytes {
            let message = format!("a chunk of {len} bytes does not fit into a round of {round_bytes}");
            return Err(Error::new(ErrorKind::LimitExceeded, "save", message)
                .with_hint("give more memory, or make chunks smaller"));
        }
        let end = |group: &Group<T>| group.place(number, span).saturating_add(len);
        if groups.last().is_none_or(|group| end(group) > round_bytes) {
            groups.push(Group::default());
        }
        if let Some(group) = groups.last_mut() {
            group.push(job, number, span)?;
        }
    }
    if let Some(last) = groups.iter_mut().rfind(|group| group.round.bytes > 0) {
        last.round.is_last = is_last;
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn later(number: usize, start: u64, len: u64) -> Bytes {
        let span = Span::at(start, len).unwrap();
        Bytes::Later { number, span }
    }

    #[test]
    fn neighbours_are_one_piece_and_others_are_aligned() {
        let jobs = vec![
            ('a', later(0, 0, 100)),
            ('b', later(0, 100, 28)),
            ('c', Bytes::There(Buf::copy_of(&[7; 9]).unwrap())),
            ('d', later(1, 0, 5)),
            ('e', later(2, 0, 192)),
        ];
        let groups = plan(jobs, 200, true).unwrap();
        let rounds: Vec<_> = groups.iter().map(|group| group.round.clone()).collect();
        let piece = |number, len, at| RoundPiece {
            number,
            span: Span::first(len),
            at,
        };
        assert_eq!(rounds[0].pieces, [piece(0, 128, 0), piece(1, 5, 128)]);
        assert_eq!((rounds[0].bytes, rounds[0].is_last), (133, false));
        assert_eq!(rounds[1].pieces, [piece(2, 192, 0)]);
        assert_eq!((rounds[1].is_last, rounds.len()), (true, 2));
        let error = plan(vec![((), later(0, 0, 201))], 200, true).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    }

    proptest! {
        #[test]
        fn rounds_hold_all_in_order_within_their_bytes(sizes in prop::collection::vec((1u64..300, any::<bool>()), 0..60), round in 300usize..2000) {
            let mut jobs = Vec::new();
            let (mut number, mut start) = (0, 0);
            for (index, (len, is_next)) in sizes.iter().enumerate() {
                if *is_next {
                    (number, start) = (number + 1, 0);
                }
                jobs.push((index, later(number, start, *len)));
                start += len;
            }
            let groups = plan(jobs, round, true).unwrap();
            let mut next = 0;
            for group in &groups {
                prop_assert!(group.round.bytes <= round);
                let mut end = 0;
                for piece in &group.round.pieces {
                    prop_assert!(piece.at >= end && piece.at.is_multiple_of(PIECE_ALIGN));
                    end = piece.at + piece.span.len() as usize;
                }
                prop_assert_eq!(end, group.round.bytes);
                for (job, placed) in &group.jobs {
                    prop_assert_eq!(*job, next);
                    let Placed::InRound(range) = placed else { panic!() };
                    prop_assert_eq!(range.len() as u64, sizes[next].0);
                    next += 1;
                }
            }
            prop_assert_eq!(next, sizes.len());
            let lasts = groups.iter().filter(|group| group.round.is_last).count();
            prop_assert_eq!(lasts, usize::from(!sizes.is_empty()));
        }
    }
}
