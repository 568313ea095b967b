//! Saves what a checkpoint elsewhere has once more, stored in another way: a drain that compresses.
//!
//! ```text
//! part of a rank there -> entries and content ids -> what the base here has is referenced -> rounds of chunks, read and checked -> [pack] -> part
//! ```
//!
//! Chunks keep their places and content ids, so the copy has the same contents as far as diffs, incremental saves and loads can tell. Bytes that were read are used
//! only when they held the hash of what is stored there, and written only when they have the content id that they had.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_core::{Error, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Buf, Class, Pages};
use forebay_store::{PutMode, ReadOptions, WriteCheck};

use super::prepare::{Other, Prepared, Slice};
use super::supply::{Bytes, Fill, Round};
use super::{RankSaved, Save, SaveOptions, base, rank};
use crate::entry::{Content, Entry, SliceSpec};
use crate::hash::Digest;
use crate::load::ChunkRun;
use crate::names::Attempt;
use crate::open::{Checkpoint, Part};
use crate::pages::Source;

/// Bytes of a round unless a chunk is longer. Three of them are held at once: one is being packed while two are read.
const ROUND_BYTES: usize = 32 << 20;

/// Where what is saved again is read, and how.
pub(crate) struct Again<'a> {
    pub(crate) from: &'a Checkpoint,
    /// Class of service for local reads.
    pub(crate) class: Class,
    /// What is made of an error at the source.
    pub(crate) explain: fn(Error) -> Error,
    /// Counts bytes that were read, as they are.
    pub(crate) taken: Arc<AtomicU64>,
}

/// What a rank has saved again.
#[derive(Debug)]
pub(crate) struct SavedAgain {
    pub(crate) saved: RankSaved,
    /// Nobody compared what arrived.
    pub(crate) is_unchecked: bool,
}

impl Save {
    /// A save of what is elsewhere: its caller holds a pin that has its attempt and all that `base` names, and publishes it.
    pub(crate) async fn again(
        source: Source,
        options: SaveOptions,
        base: Option<(u64, Attempt)>,
        file_mode: PutMode,
    ) -> Result<Self> {
        options.check()?;
        let (base, full_because) = base::open_base(&source, &options, base).await?;
        Ok(Self {
            source,
            options,
            base,
            full_because,
            later_step: None,
            seal: None,
            file_mode,
        })
    }

    /// Save what a rank has there.
    pub(crate) async fn rank_again(&self, rank: u32, again: &Again<'_>) -> Result<SavedAgain> {
        let explain = again.explain;
        let part = again.from.open_part(rank).await.map_err(explain)?;
        let taken = take(part, self.options.chunk_bytes).await.map_err(explain)?;
        let slices = taken.prepared.slices.iter();
        let reader = Arc::new(Reader {
            from: again.from.clone(),
            part: taken.part,
            slices: slices
                .zip(taken.first_chunks)
                .map(|(slice, first)| (slice.name.clone(), slice.spec.clone(), first))
                .collect(),
            round_bytes: ROUND_BYTES.max(self.options.chunk_bytes as usize),
            class: again.class,
            explain,
            taken: Arc::clone(&again.taken),
            ledger: Mutex::default(),
        });
        let fill: Arc<dyn Fill> = Arc::clone(&reader) as Arc<dyn Fill>;
        let saving = rank::save_prepared(self, rank, taken.prepared, Some(fill), Some(&taken.ids));
        let (mut saved, checks) = Box::pin(saving).await?;
        let read = reader.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        saved.ledger.merge(&read);
        saved.ledger.merge(&reader.part.file.ledger());
        Ok(SavedAgain {
            saved,
            is_unchecked: checks.contains(&Some(WriteCheck::Unchecked)),
        })
    }
}

/// A part as it is to be saved again.
struct Taken {
    part: Part,
    prepared: Prepared,
    /// Of each slice, the number of its first chunk in the part.
    first_chunks: Vec<u64>,
    /// Of all chunks, in the order of the slices.
    ids: Vec<Digest>,
}

async fn take(part: Part, chunk_bytes: u32) -> Result<Taken> {
    let mut entries = Vec::new();
    let mut keep = |entry: Entry| {
        entries.push(entry);
        Ok(())
    };
    part.file.scan(&part.head.entries, &mut keep).await?;
    let mut prepared = Prepared::default();
    let (mut first_chunks, mut ids) = (Vec::new(), Vec::new());
    for Entry { name, content } in entries {
        let other = match content {
            Content::Slice { spec, first_chunk } => {
                let chunks = spec.chunks(chunk_bytes);
                let records = part.chunks(first_chunk, chunks).await?;
                let slice = Slice {
                    id: spec.id(&name),
                    name,
                    bytes: Bytes::Later {
                        number: prepared.slices.len(),
                        span: Span::first(spec.bytes()),
                    },
                    spec,
                    first_chunk: ids.len(),
                    chunks,
                };
                ids.extend(part.content_ids(first_chunk, &records).await?);
                first_chunks.push(first_chunk);
                prepared.slices.push(slice);
                continue;
            }
            Content::Value(span) => Other::Value(part.value(span).await?),
            Content::Opaque(span) => Other::Opaque(part.value(span).await?),
            Content::Alias(alias) => Other::Alias(alias),
        };
        prepared.others.push((name, other));
    }
    Ok(Taken {
        part,
        prepared,
        first_chunks,
        ids,
    })
}

/// Reads rounds of chunks, checked and unpacked.
#[derive(Debug)]
struct Reader {
    from: Checkpoint,
    part: Part,
    /// Name, box, and number of the first chunk in the part.
    slices: Vec<(String, SliceSpec, u64)>,
    round_bytes: usize,
    class: Class,
    explain: fn(Error) -> Error,
    taken: Arc<AtomicU64>,
    ledger: Mutex<Ledger>,
}

#[async_trait]
impl Fill for Reader {
    fn round_bytes(&self) -> usize {
        self.round_bytes
    }

    async fn fill(&self, round: Round) -> Result<Buf> {
        let mut runs = Vec::with_capacity(round.pieces.len());
        for piece in &round.pieces {
            let Some((name, spec, first_chunk)) = self.slices.get(piece.number) else {
                continue;
            };
            runs.push(ChunkRun {
                name,
                spec,
                first_chunk: *first_chunk,
                span: piece.span,
                at: piece.at,
            });
        }
        // Not of the pool, which those need who write what becomes of it.
        let memory = AlignedBuf::alloc(round.bytes, Pages::default())?;
        let options = ReadOptions {
            class: self.class,
            ..ReadOptions::default()
        };
        let loading = self.from.load_chunks(&self.part, &runs, memory, &options);
        let (memory, ledger) = loading.await.map_err(self.explain)?;
        self.ledger
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .merge(&ledger);
        self.taken.fetch_add(round.bytes as u64, Ordering::Relaxed);
        Ok(memory.freeze().slice(..round.bytes))
    }
}
