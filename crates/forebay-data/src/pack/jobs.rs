//! Shards on their way to those who build them: samples are handed on as they are cut, so that a shard is being built and stored while the rest of it is read.
//!
//! ```text
//! chunks --cut--> pieces --one queue per shard--> a builder each, several at once
//! ```
//!
//! What lies in the queues is counted by the room of the chunks. Pieces come in the order of the shards, so the builder of the first has all it needs, and none waits for one behind it.

use forebay_core::Result;
use tokio::sync::mpsc;

use super::cut::{Cutter, Piece, Taken, What};
use super::input::Chunks;
use crate::dataset::Task;

/// Pieces of one shard that wait for its builder, at most; their bytes are bounded by the room of the chunks.
const PIECES_MAX: usize = 4096;

/// A shard to be built.
#[derive(Debug)]
pub(super) struct Job {
    /// Its number.
    pub(super) number: u64,
    /// Its samples as they come, up to its end.
    pub(super) pieces: mpsc::Receiver<Result<What>>,
}

/// The shards, in order, as they are begun.
pub(super) struct Jobs {
    jobs: mpsc::Receiver<Result<Job>>,
    /// Gone when it has ended.
    feeding: Option<Task<()>>,
}

impl Jobs {
    /// Of all chunks, or of as many as the cutter wants.
    pub(super) fn new(cutter: Cutter, chunks: Chunks) -> Self {
        let (sender, jobs) = mpsc::channel(1);
        let feeder = Feeder {
            jobs: sender,
            open: None,
        };
        Self {
            jobs,
            feeding: Some(Task::spawn(async move {
                feeder.run(cutter, chunks).await;
                Ok(())
            })),
        }
    }

    pub(super) async fn next(&mut self) -> Option<Result<Job>> {
        match self.jobs.recv().await {
            None => self.feeding.take()?.await.err().map(Err),
            job => job,
        }
    }
}

struct Feeder {
    jobs: mpsc::Sender<Result<Job>>,
    /// Where pieces of the shard that is being cut go.
    open: Option<mpsc::Sender<Result<What>>>,
}

impl Feeder {
    /// Until the end, an error, or until nobody builds any more.
    async fn run(mut self, mut cutter: Cutter, mut chunks: Chunks) {
        while !cutter.is_full() {
            match chunks.next().await {
                Some(Ok((chunk, room))) => {
                    for piece in cutter.push(Taken { chunk, _room: room }) {
                        if self.send(piece).await.is_none() {
                            return;
                        }
                    }
                }
                Some(Err(error)) => {
                    // Nobody listens where the builder failed by itself.
                    match self.open.take() {
                        Some(open) => drop(open.send(Err(error)).await),
                        None => drop(self.jobs.send(Err(error)).await),
                    }
                    return;
                }
                None => break,
            }
        }
        if let Some(end) = cutter.finish() {
            self.send(end).await;
        }
    }

    async fn send(&mut self, piece: Piece) -> Option<()> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let (sender, pieces) = mpsc::channel(PIECES_MAX);
                let number = piece.number;
                self.jobs.send(Ok(Job { number, pieces })).await.ok()?;
                sender
            }
        };
        let is_end = matches!(piece.what, What::End(_));
        open.send(Ok(piece.what)).await.ok()?;
        self.open = (!is_end).then_some(open);
        Some(())
    }
}
