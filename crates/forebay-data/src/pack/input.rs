//! What is packed: samples in a row, each known by its position before it is read.
//!
//! A plain folder is read file by file, many at once, with nothing but its listing known ([`files`](super::files)); everything else through its manifest or
//! a pass over its shards ([`shards`](super::shards)). Either way the samples come in chunks, in order, some read ahead.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{ErrorKind, Key, Ledger, Result};
use forebay_store::Context;
use tokio::sync::mpsc;

use super::PackSpec;
use super::chunk::Chunk;
use super::files::FilesInput;
use super::memory::{Held, Memory, Reads, Room, Shares};
use super::shape::{Shaper, Source};
use super::shards::ShardsInput;
use crate::dataset::{Dataset, FILES, OpenOptions, Place, Progress, Task, UseManifest, look_for};
use crate::manifest::MANIFEST_NAME;
use crate::schema::Schema;

/// Samples to be packed.
#[derive(Debug)]
pub(super) enum Input {
    Files(FilesInput),
    Shards(ShardsInput),
}

/// Counts what is read.
#[derive(Debug)]
pub(super) struct Tally {
    ledger: Mutex<Ledger>,
    progress: Arc<dyn Progress>,
}

impl Tally {
    pub(super) fn new(progress: &Arc<dyn Progress>) -> Arc<Self> {
        Arc::new(Self {
            ledger: Mutex::default(),
            progress: Arc::clone(progress),
        })
    }

    /// So many bytes of the input were read, in that way.
    pub(super) fn read(&self, bytes: u64, ledger: &Ledger) {
        self.ledger
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .merge(ledger);
        self.progress.moved(bytes);
    }

    pub(super) fn ledger(&self) -> Ledger {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Chunks in order, as they are read.
pub(super) struct Chunks {
    coming: mpsc::Receiver<Result<Coming>>,
    /// Gone when it has ended.
    feeding: Option<Task<()>>,
}

/// A chunk that is being made, and the room that is kept for it.
pub(super) struct Coming {
    pub(super) chunk: Task<Chunk>,
    pub(super) room: Held,
}

impl Chunks {
    /// From what `feeding` sends.
    pub(super) fn new(coming: mpsc::Receiver<Result<Coming>>, feeding: Task<()>) -> Self {
        Self {
            coming,
            feeding: Some(feeding),
        }
    }

    /// The next chunk, and the room that is kept for it; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Result<(Chunk, Held)>> {
        match self.coming.recv().await {
            Some(Ok(Coming { chunk, room })) => Some(chunk.await.map(|chunk| (chunk, room))),
            Some(Err(error)) => Some(Err(error)),
            // A feeder that failed is not the end of the samples.
            None => self.feeding.take()?.await.err().map(Err),
        }
    }
}

/// Everything that reading samples takes.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) shaper: Arc<Shaper>,
    pub(super) tally: Arc<Tally>,
    pub(super) context: Context,
    pub(super) threads: usize,
    pub(super) memory: Memory,
    /// For blocks of shards that were read.
    pub(super) windows: Room,
    /// For chunks ahead of the cut and on their way to builders.
    pub(super) chunks: Room,
    /// Bytes of it that are for those ahead of the cut.
    pub(super) chunks_bytes: u64,
}

impl Reading {
    pub(super) fn new(
        shaper: Arc<Shaper>,
        context: &Context,
        spec: &PackSpec,
        shares: &Shares,
    ) -> Result<Self> {
        Ok(Self {
            shaper,
            tally: Tally::new(&spec.progress),
            context: context.clone(),
            threads: spec.threads,
            memory: Memory::new(spec)?,
            windows: Room::new(shares.windows_bytes),
            chunks: Room::new(shares.chunks_bytes.saturating_add(shares.waiting_bytes)),
            chunks_bytes: shares.chunks_bytes,
        })
    }
}

impl Input {
    /// Find out what is there. Plain folders without a manifest are only listed.
    pub(super) async fn open(
        place: Place,
        context: &Context,
        options: &OpenOptions,
        spec: &PackSpec,
    ) -> Result<Self> {
        let has_manifest = match (options.manifest, &options.manifest_at) {
            (UseManifest::Never, _) => false,
            (UseManifest::Always, _) | (_, Some(_)) => true,
            (UseManifest::IfThere, None) => match place.store.head(&Key::parse(MANIFEST_NAME)?).await {
                Ok(_) => true,
                Err(error) if error.kind() == ErrorKind::NotFound => false,
                Err(error) => return Err(error),
            },
        };
        if !has_manifest {
            let shards = place.shards.as_deref();
            let found = look_for(&place.store, context, options.format.as_ref(), shards).await?;
            if found.spec.name == FILES {
                found.refuse_unfinished()?;
                found.notes.iter().for_each(|note| options.progress.noted(note));
                return FilesInput::new(place.store, &found.spec, &found.shards, spec).map(Self::Files);
            }
        }
        let options = OpenOptions {
            shards: place.shards,
            ..options.clone()
        };
        let dataset = Dataset::open(place.store, context, &options).await?;
        ShardsInput::new(dataset, spec).map(Self::Shards)
    }

    /// The fields.
    pub(super) fn schema(&self) -> &Schema {
        match self {
            Self::Files(files) => files.schema(),
            Self::Shards(shards) => shards.schema(),
        }
    }

    /// What is known of its samples.
    pub(super) fn source(&self) -> Source {
        match self {
            Self::Files(_) => Source {
                is_named: true,
                ..Source::default()
            },
            Self::Shards(shards) => shards.source(),
        }
    }

    /// What is read to get at them.
    pub(super) fn reads(&self) -> Reads {
        match self {
            Self::Files(_) => Reads::Files,
            Self::Shards(shards) => shards.reads(),
        }
    }

    /// How many samples there are.
    pub(super) fn samples(&self) -> u64 {
        match self {
            Self::Files(files) => files.samples(),
            Self::Shards(shards) => shards.samples(),
        }
    }

    /// Files of a folder that are part of no sample, and are not packed.
    pub(super) fn files_left_out(&self) -> u64 {
        match self {
            Self::Files(files) => files.files_left_out(),
            Self::Shards(shards) => shards.files_left_out(),
        }
    }

    /// What is to be said of them, unless it was when the input was opened.
    pub(super) fn note(&self) -> Option<String> {
        match self {
            Self::Files(files) => files.note(),
            Self::Shards(shards) => shards.note(),
        }
    }

    /// Bytes of all of them.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Files(files) => files.bytes(),
            Self::Shards(shards) => shards.bytes(),
        }
    }

    /// About how many of these bytes the samples at these positions have: exactly, where all are as long. All of them together have all bytes.
    pub(super) fn share(&self, positions: Range<u64>) -> u64 {
        let samples = u128::from(self.samples().max(1));
        let up_to = |position: u64| u128::from(self.bytes()) * u128::from(position) / samples;
        let share = up_to(positions.end).saturating_sub(up_to(positions.start));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// A digest of what is read: another one where names, sizes or contents are others.
    pub(super) fn identity(&self) -> [u8; 32] {
        match self {
            Self::Files(files) => files.identity(),
            Self::Shards(shards) => shards.identity(),
        }
    }

    /// Read the samples at these positions.
    pub(super) fn chunks(&self, positions: Range<u64>, reading: &Reading) -> Chunks {
        match self {
            Self::Files(files) => files.chunks(positions, reading),
            Self::Shards(shards) => shards.chunks(positions, reading),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Error;

    use super::*;

    #[tokio::test]
    async fn a_feeder_that_fails_is_not_the_end() {
        let (given, coming) = mpsc::channel(1);
        let feeding = Task::spawn(async move {
            drop(given);
            Err(Error::new(ErrorKind::Internal, "list files", "it broke"))
        });
        let mut chunks = Chunks::new(coming, feeding);
        let failed = chunks.next().await.expect("the error");
        assert_eq!(failed.err().map(|error| error.kind()), Some(ErrorKind::Internal));
        assert!(chunks.next().await.is_none());
    }
}
