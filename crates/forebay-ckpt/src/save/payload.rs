//! A raw payload: which chunks go into it, where they lie, and the file around them.
//!
//! It is written from memory that has all of it (`write`), or as its bytes come (`pack`); the file is the same.

use std::collections::{BTreeMap, HashMap};

use forebay_core::{Error, ErrorKind, Result, Span};
use forebay_io::Buf;

use super::Save;
use super::known::Known;
use super::pack::{Body, Job, Written};
use super::prepare::Slice;
use super::write::{self, Segments};
use crate::entry::{ChunkRecord, Codec};
use crate::hash::{Digest, IdKind, sha256};
use crate::layout::{Layout, Stored, lay_out};
use crate::names::{Attempt, Form};
use crate::part::{FORMAT, PayloadRow};

/// Neighbouring chunks of a slice that are not known.
#[derive(Debug, Clone, Copy)]
struct Run<'a> {
    slice: &'a Slice,
    first: u64,
    count: u64,
    /// Which of the slice's bytes.
    span: Span,
}

/// A payload to be written.
#[derive(Debug)]
pub(super) struct Payload<'a> {
    chunk_bytes: u32,
    /// In the order of the file, each with its place there.
    runs: Vec<(Run<'a>, Span)>,
    header: Vec<u8>,
    row: PayloadRow,
}

impl<'a> Payload<'a> {
    /// Lay out what is not known; `None` where nothing is to be written.
    pub(super) fn plan(
        save: &Save,
        rank: u32,
        slices: &'a [Slice],
        known: &HashMap<usize, Known>,
    ) -> Result<Option<Self>> {
        let chunk_bytes = save.options.chunk_bytes;
        let runs = unknown_runs(slices, known, chunk_bytes)?;
        if runs.iter().all(|run| run.count == 0) && (runs.is_empty() || save.base.is_some()) {
            return Ok(None);
        }
        let stored = |run: &Run<'a>| Stored {
            name: &run.slice.name,
            spec: &run.slice.spec,
            span: run.span,
        };
        let stored: Vec<Stored<'_>> = runs.iter().map(stored).collect();
        let (step, attempt) = (save.options.step, save.options.attempt);
        let Layout {
            header,
            placed,
            bytes,
        } = lay_out(&stored, file_metadata(step, attempt, rank))?;
        let placed = placed.into_iter();
        let runs = placed.filter_map(|(at, place)| Some((*runs.get(at)?, place)));
        Ok(Some(Self {
            chunk_bytes,
            runs: runs.collect(),
            row: PayloadRow {
                step,
                attempt,
                rank,
                form: Form::Safetensors,
                bytes,
                head_bytes: header.len() as u64,
                head_hash: sha256(&[&header]),
            },
            header,
        }))
    }

    /// Write it from the memory that it lies in, with ids of that kind made on the way. Records have no hashes yet.
    pub(super) async fn write(self, save: &Save, ids: Option<IdKind>) -> Result<Written> {
        let (mut segments, mut chunks) = (Segments::default(), Vec::new());
        let mut records = HashMap::new();
        segments.push(Buf::copy_of(&self.header)?);
        for (run, place) in &self.runs {
            let here = run.slice.bytes.slice(run.span)?.there();
            segments.push(here.ok_or_else(not_there)?);
            for number in 0..run.count {
                let chunk = run.first + number;
                let span = run.slice.spec.chunk_span(chunk, self.chunk_bytes);
                let bytes = run.slice.bytes.slice(span)?.there().ok_or_else(not_there)?;
                let record = ChunkRecord {
                    payload: 0,
                    codec: Codec::Raw,
                    is_sealed: false,
                    parameter: 0,
                    offset: place.start() + number * u64::from(self.chunk_bytes),
                    stored_bytes: span.len() as u32,
                    raw_bytes: span.len() as u32,
                    number: 0,
                    hash: Digest::default(),
                };
                let number = run.slice.first_chunk + chunk as usize;
                chunks.push(write::Chunk {
                    number,
                    offset: record.offset,
                    place: run.slice.spec.place(&run.slice.id, chunk, self.chunk_bytes),
                    bytes,
                });
                records.insert(number, record);
            }
        }
        let content = write::Content {
            segments,
            ids,
            chunks,
        };
        let sent = write::write(&save.source, &self.row.key(), content, &save.put_options()).await?;
        Ok(Written {
            row: Some(self.row),
            records,
            ids: sent.ids.into_iter().collect(),
            check: None,
            ledger: sent.ledger,
        })
    }

    /// The same file for those who write chunk after chunk.
    pub(super) fn into_body(self) -> Result<Body> {
        let mut jobs = Vec::new();
        for (run, _) in &self.runs {
            for chunk in run.first..run.first + run.count {
                jobs.push(Job::new(run.slice, chunk, self.chunk_bytes, jobs.len())?);
            }
        }
        Ok(Body {
            bytes_max: self.row.bytes,
            row: self.row,
            header: self.header,
            align: 1,
            jobs,
        })
    }
}

fn not_there() -> Error {
    let message = "bytes that are not there cannot be written at once";
    Error::new(ErrorKind::Internal, "save", message)
}

fn unknown_runs<'a>(
    slices: &'a [Slice],
    known: &HashMap<usize, Known>,
    chunk_bytes: u32,
) -> Result<Vec<Run<'a>>> {
    let mut runs: Vec<Run<'a>> = Vec::new();
    for slice in slices {
        let is_new = |number: u64| !known.contains_key(&(slice.first_chunk + number as usize));
        let mut next = 0;
        while let Some(first) = (next..slice.chunks).find(|number| is_new(*number)) {
            let end = (first..slice.chunks).find(|number| !is_new(*number));
            next = end.unwrap_or(slice.chunks);
            let start = first * u64::from(chunk_bytes);
            let end = (next * u64::from(chunk_bytes)).min(slice.spec.bytes());
            runs.push(Run {
                slice,
                first,
                count: next - first,
                span: Span::new(start, end)?,
            });
        }
        if slice.chunks == 0 {
            // Without bytes, but in the file all the same, for those who read it as it is.
            let (first, count, span) = (0, 0, Span::first(0));
            runs.push(Run {
                slice,
                first,
                count,
                span,
            });
        }
    }
    Ok(runs)
}

fn file_metadata(step: u64, attempt: Attempt, rank: u32) -> BTreeMap<String, String> {
    BTreeMap::from([
        ("forebay.format".to_owned(), FORMAT.to_string()),
        ("forebay.step".to_owned(), step.to_string()),
        ("forebay.attempt".to_owned(), attempt.to_string()),
        ("forebay.rank".to_owned(), rank.to_string()),
    ])
}
