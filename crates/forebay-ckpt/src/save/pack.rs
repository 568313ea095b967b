//! Compresses and seals chunks by several threads, and writes what they become as a payload of chunks.
//!
//! ```text
//! chunks -> [threads: id of the raw bytes, compress, seal, hash] -> in their order -> parts of leased memory -> upload
//! ```
//!
//! A raw payload whose bytes are not in memory yet goes the same way, neither compressed nor sealed, behind its header.
//! A bounded number of chunks is in the works; whatever is done waits for its turn, so a state gives the same payload however many threads there are.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Ledger, Result};
use forebay_io::Buf;
use forebay_store::WriteCheck;
use futures::stream::TryStreamExt;

use super::Save;
use super::hash::threads;
use super::prepare::Slice;
use super::stream::PartWriter;
use super::supply::{Bytes, Supply};
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
    /// How far what arrived was checked, where it went chunk after chunk.
    pub(super) check: Option<WriteCheck>,
    pub(super) ledger: Ledger,
}

/// A payload to be written chunk after chunk.
#[derive(Debug)]
pub(super) struct Body {
    /// Without its bytes, where they are not known before.
    pub(super) row: PayloadRow,
    /// What is before the chunks.
    pub(super) header: Vec<u8>,
    /// What chunks begin at a multiple of.
    pub(super) align: u64,
    /// Most bytes that it can have.
    pub(super) bytes_max: u64,
    pub(super) jobs: Vec<(Job, Bytes)>,
}

impl Body {
    /// Chunks that `is_known` does not have, in a file of nothing else; `None` where there are none.
    pub(super) fn of_chunks(
        save: &Save,
        rank: u32,
        slices: &[Slice],
        is_known: impl Fn(usize) -> bool,
    ) -> Result<Option<Self>> {
        let mut jobs = Vec::new();
        for slice in slices {
            for chunk in 0..slice.chunks {
                if !is_known(slice.first_chunk + chunk as usize) {
                    jobs.push(Job::new(slice, chunk, save.options.chunk_bytes, jobs.len())?);
                }
            }
        }
        let longest = |(_, raw): &(Job, Bytes)| (raw.len() + TAG_BYTES).next_multiple_of(ALIGN);
        let row = PayloadRow {
            step: save.options.step,
            attempt: save.options.attempt,
            rank,
            form: Form::Chunks,
            bytes: 0,
            head_bytes: 0,
            head_hash: sha256(&[]),
        };
        Ok((!jobs.is_empty()).then(|| Self {
            row,
            header: Vec::new(),
            align: ALIGN,
            bytes_max: jobs.iter().map(longest).sum(),
            jobs,
        }))
    }
}

/// A chunk to be packed.
#[derive(Debug)]
pub(super) struct Job {
    number: usize,
    /// Which chunk of the payload it is.
    index: usize,
    /// Chunks of its slice.
    chunks: u64,
    place: Place,
    dtype: Dtype,
}

impl Job {
    /// Of a chunk of a slice, which comes as number `index` into the payload.
    pub(super) fn new(slice: &Slice, chunk: u64, chunk_bytes: u32, index: usize) -> Result<(Self, Bytes)> {
        let job = Self {
            number: slice.first_chunk + chunk as usize,
            index,
            chunks: slice.chunks,
            place: slice.spec.place(&slice.id, chunk, chunk_bytes),
            dtype: slice.spec.dtype,
        };
        Ok((job, slice.bytes.slice(slice.spec.chunk_span(chunk, chunk_bytes))?))
    }
}

/// A chunk that was packed; its bytes are the encoder's, or the raw ones.
#[derive(Debug)]
struct Packed {
    job: Job,
    raw: Buf,
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

    fn pack(&self, job: Job, raw: Buf) -> Result<Packed> {
        let mut encoder = self.encoder();
        let id = self.ids.of(&job.place, &raw);
        let (codec, parameter) = encoder.encode(self.compress, job.dtype, &raw);
        let nonce_number = self.seal(&job, &raw, &mut encoder, (codec, parameter))?;
        let hash = match &self.ids {
            // What is stored is what the id was made of.
            IdKind::Hash(kind) if *kind == self.hash && codec == Codec::Raw && nonce_number == 0 => id,
            _ => self.hash.chunk(&job.place, encoder.stored(&raw)),
        };
        Ok(Packed {
            job,
            raw,
            encoder,
            codec,
            parameter,
            nonce_number,
            hash,
            id,
        })
    }

    /// Seal what the encoder has; gives the number for the nonce.
    fn seal(
        &self,
        job: &Job,
        raw: &[u8],
        encoder: &mut Encoder,
        (codec, parameter): (Codec, u16),
    ) -> Result<u64> {
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
        let (bytes, room) = encoder.sealable(raw);
        let tag = sealer.seal(&bound, bytes)?;
        room.copy_from_slice(&tag);
        Ok(number)
    }
}

/// Write a payload as the bytes of its chunks come; nothing is asked of the supply afterwards.
pub(super) async fn write(save: &Save, supply: &Supply, body: Body) -> Result<Written> {
    let Body { row, bytes_max, .. } = body;
    let mut writer = PartWriter::begin(&save.source, row.key(), bytes_max, save.put_options()).await?;
    let mut written = Written::default();
    if let Err(error) = pack_all(save, supply, body, &mut writer, &mut written).await {
        writer.abort().await;
        return Err(error);
    }
    let (bytes, check, ledger) = writer.finish().await?;
    written.check = Some(check);
    written.row = Some(PayloadRow { bytes, ..row });
    written.ledger = ledger;
    Ok(written)
}

async fn pack_all(
    save: &Save,
    supply: &Supply,
    body: Body,
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
        rank: body.row.rank,
        spare: Mutex::default(),
    });
    writer.push(&body.header).await?;
    let at_once = (WORK_BYTES_MAX / (2 * options.chunk_bytes as usize)).clamp(1, threads());
    let shared = Arc::clone(&workshop);
    let mut packing = supply.work(body.jobs, true, at_once, move |job, raw| shared.pack(job, raw))?;
    let mut all = async || {
        while let Some(packed) = packing.try_next().await? {
            let encoder = put(packed, body.align, writer, written).await?;
            workshop.give_back(encoder);
        }
        Ok(())
    };
    let done = all().await;
    if done.is_err() {
        supply.stop(packing).await;
    }
    done
}

/// Write a chunk at its turn, and note where it lies.
async fn put(
    packed: Packed,
    align: u64,
    writer: &mut PartWriter<'_>,
    written: &mut Written,
) -> Result<Encoder> {
    let Packed {
        job, raw, encoder, ..
    } = &packed;
    let stored = encoder.stored(raw);
    let offset = writer.pad(align).await?;
    writer.push(stored).await?;
    let record = ChunkRecord {
        payload: 0,
        codec: packed.codec,
        is_sealed: packed.nonce_number != 0,
        parameter: packed.parameter,
        offset,
        stored_bytes: stored.len() as u32,
        raw_bytes: raw.len() as u32,
        number: packed.nonce_number,
        hash: packed.hash,
    };
    written.records.insert(job.number, record);
    written.ids.insert(job.number, packed.id);
    Ok(packed.encoder)
}
