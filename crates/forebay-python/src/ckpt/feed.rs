//! The staging area in rounds, for states that are larger than it.
//!
//! ```text
//! task of the save: [Feed] waits for a free part of the area, asks for a round ->  channel  -> caller's thread: [Rounds], copied by Python
//!                   chunks are hashed and written, and the part is free again  <-  copied   <-
//! ```
//!
//! The caller's thread copies, since what is computed there decides when a tensor of a device can be read, and since exceptions and Ctrl-C belong there.
//! Where either end goes away, the other is told: rounds end, or filling fails.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_ckpt::{Fill, Round};
use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{AlignedBuf, Buf, PAGE};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Parts of the area: one is filled while the other is written from.
const PARTS: usize = 2;

/// Number of a slice, first byte in it, bytes, and their offset in the staging area.
pub(crate) type PieceRow = (usize, u64, u64, usize);

/// The save's end.
#[derive(Debug)]
pub(super) struct Feed {
    area: Arc<Area>,
    asked: mpsc::Sender<Asked>,
}

/// The caller's end.
#[derive(Debug)]
pub(super) struct Rounds {
    asked: mpsc::Receiver<Asked>,
    /// Which is being copied.
    now: Option<Asked>,
    is_over: bool,
}

/// A round to be copied.
#[derive(Debug)]
struct Asked {
    round: Round,
    /// Where its part of the area begins.
    start: usize,
    copied: oneshot::Sender<()>,
}

/// The staging area, cut into equal parts.
#[derive(Debug)]
pub(super) struct Area {
    memory: Buf,
    part_bytes: usize,
    parts: usize,
    permits: Arc<Semaphore>,
    /// Numbers of parts that nobody has.
    free: Mutex<Vec<usize>>,
}

/// A part of the area that a round has, until all of its bytes are dropped.
#[derive(Debug)]
struct Part {
    number: usize,
    area: Arc<Area>,
    /// Given back behind the number.
    _permit: OwnedSemaphorePermit,
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut free = self.area.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(self.number);
    }
}

impl Area {
    /// Cut memory into parts that a chunk of `chunk_bytes` fits into: into one, where it is too small for two.
    fn cut(memory: Buf, chunk_bytes: usize) -> Result<Self> {
        let half = memory.len() / PARTS / PAGE * PAGE;
        let (parts, part_bytes) = if half >= chunk_bytes {
            (PARTS, half)
        } else {
            (1, memory.len())
        };
        if part_bytes < chunk_bytes {
            let message = format!(
                "staging_bytes must be {chunk_bytes} or more: of tensors on devices or with strides, whole chunks are staged"
            );
            return Err(Error::new(ErrorKind::LimitExceeded, "save", message)
                .with_hint("give more staging_bytes, or make chunk_bytes smaller"));
        }
        Ok(Self {
            memory,
            part_bytes,
            parts,
            permits: Arc::new(Semaphore::new(parts)),
            free: Mutex::new((0..parts).collect()),
        })
    }

    async fn part(self: &Arc<Self>) -> Result<Part> {
        let permit = Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .map_err(|_| over())?;
        let number = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Ok(Part {
            number: number.ok_or_else(over)?,
            area: Arc::clone(self),
            _permit: permit,
        })
    }

    /// Wait until no thread reads the area any more.
    pub(super) async fn idle(&self) {
        let all = u32::try_from(self.parts).unwrap_or(u32::MAX);
        drop(self.permits.acquire_many(all).await);
    }
}

impl Part {
    fn start(&self) -> usize {
        self.number * self.area.part_bytes
    }

    /// Its first bytes, which are all copied.
    fn into_buf(self, bytes: usize) -> Result<Buf> {
        let memory = self
            .area
            .memory
            .slice(self.start()..self.start() + self.area.part_bytes);
        let ptr = NonNull::new(memory.as_ptr().cast_mut()).ok_or_else(over)?;
        let len = bytes.min(memory.len());
        // SAFETY: the memory is that of the area, which the part keeps. The caller of `next_round` writes to a part only between being asked for a round in it
        // and saying that it is copied, which it has; nobody is asked for another in it before the part, which the buffer owns, is dropped.
        let lent = unsafe { AlignedBuf::lent(ptr, len, Box::new(self)) };
        Ok(lent.freeze())
    }
}

/// Both ends around a staging area whose rounds must hold chunks of `chunk_bytes`.
pub(super) fn feed(memory: Buf, chunk_bytes: usize) -> Result<(Feed, Rounds)> {
    let area = Arc::new(Area::cut(memory, chunk_bytes)?);
    let (asked, heard) = mpsc::channel(PARTS);
    let rounds = Rounds {
        asked: heard,
        now: None,
        is_over: false,
    };
    Ok((Feed { area, asked }, rounds))
}

impl Feed {
    pub(super) fn area(&self) -> Arc<Area> {
        Arc::clone(&self.area)
    }
}

#[async_trait]
impl Fill for Feed {
    fn round_bytes(&self) -> usize {
        self.area.part_bytes
    }

    async fn fill(&self, round: Round) -> Result<Buf> {
        let part = self.area.part().await?;
        let bytes = round.bytes;
        let (copied, is_copied) = oneshot::channel();
        let asked = Asked {
            round,
            start: part.start(),
            copied,
        };
        self.asked.send(asked).await.map_err(|_| over())?;
        is_copied.await.map_err(|_| over())?;
        part.into_buf(bytes)
    }
}

impl Rounds {
    /// Say that the round before is copied, and wait for the next; none where nothing more is to be copied, or where the save is over.
    pub(super) async fn next(&mut self) -> Option<Vec<PieceRow>> {
        if let Some(done) = self.now.take() {
            self.is_over = done.round.is_last;
            // Nobody may listen any more: then there is no next one.
            let _ = done.copied.send(());
        }
        if self.is_over {
            return None;
        }
        let asked = self.asked.recv().await?;
        let place = |at: usize| asked.start + at;
        let rows = asked.round.pieces.iter();
        let rows = rows.map(|piece| {
            (
                piece.number,
                piece.span.start(),
                piece.span.len(),
                place(piece.at),
            )
        });
        let rows = rows.collect();
        self.now = Some(asked);
        Some(rows)
    }
}

fn over() -> Error {
    let message = "the caller does not copy the state any more";
    Error::new(ErrorKind::Cancelled, "save", message)
}
