//! Reading through the cache: cut into blocks, hits from disk into the caller's buffer in place, misses through flights.
//!
//! ```text
//! span --> pieces, one per block --> record valid? --yes--> disk read into the piece --> checksum holds? --yes--> done
//!                                      |no                                                  |no
//!                                      +------> join the flight of the block <--------------+
//! ```
//!
//! Pieces run side by side and are joined again in order, so the caller's buffer comes back as one. Each is checked as soon as it has
//! arrived, while the next ones are on their way. A piece that is less than its block is read with all of the block into a leased buffer, checked
//! there, and copied; for callers that check what they read, what they want is read alone, into its place, and not checked here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::{DataPath, Error, ErrorKind, Ledger, Result, Span, crc32c};
use forebay_io::{AlignedBuf, Class};
use futures::stream::{self, StreamExt};
use tokio::sync::oneshot;

use super::config::Mode;
use super::entry::Entry;
use super::fill::{self, Served, Waiter};
use super::format::Present;
use super::shared::Shared;

/// Pieces of one read in flight, however small the blocks are.
const PIECES_MAX: u64 = 64;

/// Blocks from this size on are checked on another thread; below, handing them over costs more than the checking.
const CHECK_ASIDE_BYTES_MIN: usize = 256 << 10;

/// One read through the cache.
pub(super) struct Read<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) entry: &'a Arc<Entry>,
    pub(super) class: Class,
    /// Only what comes from the cache's own disk will do.
    pub(super) stored_only: bool,
    /// Whoever reads checks it: only what is wanted is read.
    pub(super) caller_checks: bool,
}

impl Read<'_> {
    /// Read `span` into the front of `buf`. The buffer comes back whole, with the account or the error; lost only with an engine that is gone.
    pub(super) async fn run(&self, span: Span, mut buf: AlignedBuf) -> Result<(AlignedBuf, Result<Ledger>)> {
        let block_bytes = self.entry.identity.block_bytes;
        let (first, last) = (span.start() / block_bytes, (span.end() - 1) / block_bytes);
        let records = self.entry.records(&self.shared.disk, first, last).await;
        let len = buf.len();
        buf.set_len(span.len() as usize);
        let failed = AtomicBool::new(false);
        let depth = self.depth();
        let mut pieces = stream::iter(cut(span, block_bytes, buf).into_iter().zip(records))
            .map(|((want, piece), record)| self.piece(want, piece, record, &failed))
            .buffered(depth);
        let mut whole: Option<AlignedBuf> = None;
        let mut result = Ok(Ledger::default());
        while let Some(served) = pieces.next().await {
            let served = served?;
            match (&mut result, served.result) {
                (Ok(ledger), Ok(part)) => ledger.merge(&part),
                (Ok(_), Err(error)) => result = Err(error),
                (Err(_), _) => {}
            }
            match &mut whole {
                None => whole = Some(served.piece),
                Some(whole) => whole.unsplit(served.piece).map_err(|_| torn())?,
            }
        }
        drop(pieces);
        let mut buf = whole.ok_or_else(torn)?;
        buf.set_len(len);
        Ok((buf, result))
    }

    /// Pieces in flight. How many of them are read from disk at the same time is another matter.
    fn depth(&self) -> usize {
        let limits = self.shared.disk.limits();
        let window_bytes = u64::from(limits.disk_depth) * limits.disk_request_bytes;
        let pieces = (window_bytes / self.entry.identity.block_bytes).max(self.shared.slots);
        pieces.clamp(2, PIECES_MAX) as usize
    }

    async fn piece(
        &self,
        want: Span,
        piece: AlignedBuf,
        record: Option<Present>,
        failed: &AtomicBool,
    ) -> Result<Served> {
        if failed.load(Ordering::Relaxed) {
            return Ok(Served {
                piece,
                result: Ok(Ledger::default()),
            });
        }
        let served = self.serve(want, piece, record).await;
        if !served.as_ref().is_ok_and(|served| served.result.is_ok()) {
            failed.store(true, Ordering::Relaxed);
        }
        served
    }

    async fn serve(&self, want: Span, piece: AlignedBuf, record: Option<Present>) -> Result<Served> {
        let block = want.start() / self.entry.identity.block_bytes;
        let (piece, why) = match record {
            Some(present) => match self.hit(want, piece, present).await? {
                (piece, Ok(ledger)) => {
                    return Ok(Served {
                        piece,
                        result: Ok(ledger),
                    });
                }
                (piece, Err(error)) => {
                    self.entry.disbelieve(block);
                    (piece, Some(error))
                }
            },
            None => (piece, None),
        };
        let mut served = self.miss(block, want, piece).await?;
        if let (Ok(ledger), Some(error)) = (&mut served.result, why) {
            let path = fill::main_path(ledger);
            ledger.record_downgrade(
                self.entry.path(&self.shared.disk),
                path,
                format!("cached block not used: {error}"),
            );
        }
        if !self.stored_only || served.result.is_err() {
            return Ok(served);
        }
        self.hit_after_fill(block, want, served.piece).await
    }

    async fn miss(&self, block: u64, want: Span, piece: AlignedBuf) -> Result<Served> {
        let (reply, answer) = oneshot::channel();
        let waiter = Waiter {
            piece,
            want,
            stored: self.stored_only,
            reply,
        };
        fill::join(self.shared, self.entry, block, Some(waiter), self.class, None);
        if self.shared.config.mode == Mode::Whole {
            fill::fill_whole(self.shared, self.entry, block, self.class);
        }
        let mut served = answer.await.map_err(|_| torn())?;
        if let (Ok(ledger), Some(trouble)) = (&mut served.result, self.shared.trouble()) {
            let path = fill::main_path(ledger);
            let reason = format!("the cache could not keep a block: {trouble}");
            ledger.record_downgrade(DataPath::DirectUring, path, reason);
        }
        Ok(served)
    }

    /// A caller that accepts only the local path reads what was just filled in.
    async fn hit_after_fill(&self, block: u64, want: Span, piece: AlignedBuf) -> Result<Served> {
        let records = self.entry.records(&self.shared.disk, block, block).await;
        let Some(Some(present)) = records.first().copied() else {
            let reason = self
                .shared
                .trouble()
                .unwrap_or_else(|| "no room was found for it".to_owned());
            let message =
                format!("the block could not be kept, and only the cache's disk is accepted: {reason}");
            return Ok(Served {
                piece,
                result: Err(Error::new(ErrorKind::Unsupported, "read", message)),
            });
        };
        let (piece, result) = self.hit(want, piece, present).await?;
        Ok(Served { piece, result })
    }

    /// Read from disk and compare with the record's checksum: all of the block, in place where all of it is wanted.
    async fn hit(
        &self,
        want: Span,
        piece: AlignedBuf,
        present: Present,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        let block = want.start() / self.entry.identity.block_bytes;
        let span = self.entry.identity.block_span(block);
        if self.caller_checks {
            let (piece, result) = self.read_disk(want, piece).await?;
            if result.is_ok() {
                self.shared.counts.hit();
            }
            return Ok((piece, result));
        }
        let (piece, mut result) = if span == want {
            self.hit_whole(want, piece, present.crc).await?
        } else {
            self.hit_part(span, want, piece, present.crc).await?
        };
        if let Ok(ledger) = &mut result {
            self.shared.counts.hit();
            // The record's checksum shows that this is what was fetched; whether that was right is what the fetch found out.
            ledger.verified_bytes += if present.verified { want.len() } else { 0 };
        }
        Ok((piece, result))
    }

    async fn hit_whole(
        &self,
        want: Span,
        piece: AlignedBuf,
        crc: u32,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        let (piece, read) = self.read_disk(want, piece).await?;
        let ledger = match read {
            Ok(ledger) => ledger,
            Err(error) => return Ok((piece, Err(error))),
        };
        let (piece, checked) = check_aside(piece, want.len() as usize, crc).await?;
        Ok((piece, checked.map(|()| ledger)))
    }

    /// Read from the entry's file when it is this read's turn.
    async fn read_disk(&self, span: Span, buf: AlignedBuf) -> Result<(AlignedBuf, Result<Ledger>)> {
        let _turn = self.shared.hits.acquire().await.map_err(|_| torn())?;
        let disk = &self.shared.disk;
        disk.try_read_into(&self.entry.data, span, buf, self.class).await
    }

    async fn hit_part(
        &self,
        span: Span,
        want: Span,
        mut piece: AlignedBuf,
        crc: u32,
    ) -> Result<(AlignedBuf, Result<Ledger>)> {
        let disk = &self.shared.disk;
        let buf = self.shared.part_pool.lease(span.len() as usize).await??;
        let (buf, read) = self.read_disk(span, buf).await?;
        let checked = read.and_then(|read| {
            check(&buf[..span.len() as usize], crc)?;
            piece[..want.len() as usize].copy_from_slice(&buf[want.relative_to(span.start())]);
            let path = self.entry.path(disk);
            let mut ledger = Ledger::of(path, want.len(), read.path(path).requests);
            ledger.record_copy(path, want.len());
            for downgrade in read.downgrades {
                ledger.record_downgrade(downgrade.wanted, downgrade.taken, downgrade.reason);
            }
            Ok(ledger)
        });
        Ok((piece, checked))
    }
}

/// Check the front of a piece, a large one on another thread: the task that has the reads in hand goes on with the next of them.
async fn check_aside(piece: AlignedBuf, len: usize, crc: u32) -> Result<(AlignedBuf, Result<()>)> {
    if len < CHECK_ASIDE_BYTES_MIN {
        let checked = check(&piece[..len], crc);
        return Ok((piece, checked));
    }
    let checking = tokio::task::spawn_blocking(move || {
        let checked = check(&piece[..len], crc);
        (piece, checked)
    });
    checking.await.map_err(|_| torn())
}

fn check(bytes: &[u8], crc: u32) -> Result<()> {
    if crc32c(bytes) == crc {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        "read",
        "the block does not hold its checksum",
    ))
}

/// Cut a read at block boundaries, each piece with its part of the buffer; the last keeps the spare room behind.
fn cut(span: Span, block_bytes: u64, buf: AlignedBuf) -> Vec<(Span, AlignedBuf)> {
    let mut rest = Some(buf);
    let mut pieces = Vec::new();
    for want in span.pieces(block_bytes) {
        let Some(mut piece) = rest.take() else { break };
        if want.end() < span.end() {
            rest = Some(piece.split_off(want.len() as usize));
        }
        pieces.push((want, piece));
    }
    pieces
}

fn torn() -> Error {
    Error::new(
        ErrorKind::Internal,
        "read",
        "the pieces of a buffer did not come back",
    )
}
