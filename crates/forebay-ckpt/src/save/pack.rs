//! Compresses and seals chunks by several threads, and writes what they become as a payload of chunks.
//!
//! ```text
//! chunks -> [threads: id of the raw bytes, compress, seal, hash] -> in their order -> parts of leased memory -> upload
//! ```
//!
//! A bounded number of chunks is in the works; whatever is done waits for its turn, so a state gives the same payload however many threads there are.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::Buf;
use futures::stream::{self, StreamExt, TryStreamExt};

use super::Save;
use super::hash::threads;
use super::prepare::Slice;
use super::stream::PartWriter;
use crate::codec::{Compress, Encoder};
use crate::dtype::Dtype;
use crate::entry::{ChunkRecord, Codec, TAG_BYTES};
use crate::hash::{Digest, HashKind, IdKind, Place, sha256};
use crate::layout::ALIGN;
use crate::names::{Attempt, Form};
use crate::part::PayloadRow;
use crate::seal::{Bound, Sealer};

/// Memory for chunks in the works, each of which takes planes and what they become: with the parts in flight well below 256 MiB. Chunks larger than that go one by one.
const WORK_BYTES_MAX: usize = 96 << 20;

/// A payload that was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) row: Option<PayloadRow>,
    /// By the number of a chunk; the payload is not filled in.
    pub(super) records: HashMap<usize, ChunkRecord>,
    /// Content ids of these, where they were not known before.
    pub(super) ids: HashMap<usize, Digest>,
    pub(super) ledger: Ledger,
}

/// A chunk to be packed.
#[derive(Debug)]
struct Job {
    number: usize,
    /// Which chunk of the payload it is.
    index: usize,
    /// Chunks of its slice.
    chunks: u64,
    place: Place,
    dtype: Dtype,
    raw: Buf,
}

/// A chunk that was packed; its bytes are the encoder's, or the raw ones.
#[derive(Debug)]
struct Packed {
    job: Job,
    encoder: Encoder,
    codec: Codec,
    parameter: u16,
    /// For the nonce; 0 when not sealed.
    nonce_number: u64,
    hash: Digest,
    id: Digest,
}

/// What threads share.
#[derive(Debug)]
struct Workshop {
    compress: Compress,
    hash: HashKind,
    ids: IdKind,
    sealer: Option<Sealer>,
    attempt: Attempt,
    rank: u32,
    spare: Mutex<Vec<Encoder>>,
    is_over: AtomicBool,
}

impl Workshop {
    fn encoder(&self) -> Encoder {
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.pop().unwrap_or_else(Encoder::new)
    }

    fn give_back(&self, encoder: Encoder) {
        self.spare
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(encoder);
    }

    fn pack(&self, job: Job) -> Result<Packed> {
        if self.is_over.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "save", "another chunk failed"));
        }
        let mut encoder = self.encoder();
        let id = self.ids.of(&job.place, &job.raw);
        let (codec, parameter) = encoder.encode(self.compress, job.dtype, &job.raw);
        let nonce_number = self.seal(&job, &mut encoder, (codec, parameter))?;
        let hash = match &self.ids {
            // What is stored is what the id was made of.
            IdKind::Hash(kind) if *kind == self.hash && codec == Codec::Raw && nonce_number == 0 => id,
            _ => self.hash.chunk(&job.place, encoder.stored(&job.raw)),
        };
        Ok(Packed {
            job,
            encoder,
            codec,
            parameter,
            nonce_number,
            hash,
            id,
        })
    }

    /// Seal what the encoder has; gives the number for the nonce.
    fn seal(&self, job: &Job, encoder: &mut Encoder, (codec, parameter): (Codec, u16)) -> Result<u64> {
        let Some(sealer) = &self.sealer else { return Ok(0) };
        let number = sealer.number(job.index)?;
        let bound = Bound {
            attempt: self.attempt,
            rank: self.rank,
            place: job.place,
            codec,
            parameter,
            chunks: job.chunks,
            number,
        };
        let (bytes, room) = encoder.sealable(&job.raw);
        let tag = sealer.seal(&bound, bytes)?;
        room.copy_from_slice(&tag);
        Ok(number)
    }
}

/// Write the chunks that `is_known` does not have.
pub(super) async fn write(
    save: &Save,
    rank: u32,
    slices: &[Slice],
    is_known: impl Fn(usize) -> bool,
) -> Result<Written> {
    let jobs = jobs(slices, save.options.chunk_bytes, is_known);
    if jobs.is_empty() {
        return Ok(Written::default());
    }
    let row = PayloadRow {
        step: save.options.step,
        attempt: save.options.attempt,
        rank,
        form: Form::Chunks,
        bytes: 0,
        head_bytes: 0,
        head_hash: sha256(&[]),
    };
    let longest = |job: &Job| (job.raw.len() as u64 + TAG_BYTES).next_multiple_of(ALIGN);
    let bytes_max = jobs.iter().map(longest).sum();
    let mut writer = PartWriter::begin(&save.source, row.key(), bytes_max, save.put_options()).await?;
    let mut written = Written::default();
    if let Err(error) = pack_all(save, rank, jobs, &mut writer, &mut written).await {
        writer.abort().await;
        return Err(error);
    }
    let (bytes, ledger) = writer.finish().await?;
    written.row = Some(PayloadRow { bytes, ..row });
    written.ledger = ledger;
    Ok(written)
}

fn jobs(slices: &[Slice], chunk_bytes: u32, is_known: impl Fn(usize) -> bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    for slice in slices {
        let id = slice.spec.id(&slice.name);
        for chunk in 0..slice.chunks {
            let number = slice.first_chunk + chunk as usize;
            if is_known(number) {
                continue;
            }
            let span = slice.spec.chunk_span(chunk, chunk_bytes);
            jobs.push(Job {
                number,
                index: jobs.len(),
                chunks: slice.chunks,
                place: slice.spec.place(&id, chunk, chunk_bytes),
                dtype: slice.spec.dtype,
                raw: slice.bytes.slice(span.relative_to(0)),
            });
        }
    }
    jobs
}

async fn pack_all(
    save: &Save,
    rank: u32,
    jobs: Vec<Job>,
    writer: &mut PartWriter<'_>,
    written: &mut Written,
) -> Result<()> {
    let options = &save.options;
    let workshop = Arc::new(Workshop {
        compress: options.compress,
        hash: options.hash,
        ids: save.id_kind(),
        sealer: save.sealer()?,
        attempt: options.attempt,
        rank,
        spare: Mutex::default(),
        is_over: AtomicBool::new(false),
    });
    let at_once = (WORK_BYTES_MAX / (2 * options.chunk_bytes as usize)).clamp(1, threads());
    let packing = stream::iter(jobs).map(|job| {
        let workshop = Arc::clone(&workshop);
        async move {
            let packing = tokio::task::spawn_blocking(move || workshop.pack(job));
            packing.await.map_err(|error| {
                Error::new(ErrorKind::Internal, "save", "packing was broken off").with_source(error)
            })?
        }
    });
    let mut packing = packing.buffered(at_once);
    let mut all = async || {
        while let Some(packed) = packing.try_next().await? {
            let encoder = put(packed, writer, written).await?;
            workshop.give_back(encoder);
        }
        Ok(())
    };
    let done = all().await;
    if done.is_err() {
        // Threads must not go on behind the caller's back.
        workshop.is_over.store(true, Ordering::Relaxed);
        while packing.next().await.is_some() {}
    }
    done
}

/// Write a chunk at its turn, and note where it lies.
async fn put(packed: Packed, writer: &mut PartWriter<'_>, written: &mut Written) -> Result<Encoder> {
    let Packed { job, encoder, .. } = &packed;
    let stored = encoder.stored(&job.raw);
    let offset = writer.pad(ALIGN).await?;
    writer.push(stored).await?;
    let record = ChunkRecord {
        payload: 0,
        codec: packed.codec,
        is_sealed: packed.nonce_number != 0,
        parameter: packed.parameter,
        offset,
        stored_bytes: stored.len() as u32,
        raw_bytes: job.raw.len() as u32,
        number: packed.nonce_number,
        hash: packed.hash,
    };
    written.records.insert(job.number, record);
    written.ids.insert(job.number, packed.id);
    Ok(packed.encoder)
}
