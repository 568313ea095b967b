//! Reading a virtual shard: many files at once, into one buffer.
//!
//! The buffer is leased once for a run of samples and cut along the files; each file is read into its own piece, and the pieces are joined again without a
//! copy. Labels are written between them.

use std::ops::Range;

use bytes::Bytes;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Class, Pages};
use forebay_store::{Context, ReadDone, ReadOptions, Store};
use futures::stream::{self, StreamExt, TryStreamExt};
use ring::digest;

use super::FileShard;
use crate::codec::Codec;
use crate::format::{Tabulated, sha256_of};
use crate::table::{Table, TableBuilder};

/// Bytes of files that a pass over a shard reads together. Small files want many at once, not large buffers.
const RUN_BYTES: u64 = 8 << 20;

/// Runs read ahead of a pass.
const RUNS_AHEAD: usize = 2;

/// A run of samples in memory.
#[derive(Debug)]
pub struct FileRead {
    /// Their bytes.
    pub data: Bytes,
    /// Offset in the virtual shard of the first byte.
    pub base: u64,
    /// Which way they came.
    pub ledger: Ledger,
}

/// What lies side by side in a virtual shard.
enum Segment<'a> {
    File(&'a Key, u64),
    Label(Vec<u8>),
}

impl Segment<'_> {
    fn bytes(&self) -> u64 {
        match self {
            Self::File(_, size) => *size,
            Self::Label(label) => label.len() as u64,
        }
    }
}

impl FileShard {
    /// Read samples `range` into one buffer.
    pub async fn read(&self, store: &dyn Store, range: Range<usize>, context: &Context) -> Result<FileRead> {
        let samples = self
            .samples
            .get(range.clone())
            .ok_or_else(|| internal("samples that the virtual shard does not have"))?;
        let base = self.samples.iter().take(range.start);
        let base = base.map(|sample| self.sample_bytes(sample)).sum();
        let mut segments = Vec::new();
        for sample in samples {
            let members = sample.members.iter();
            segments.extend(members.map(|member| Segment::File(&member.key, member.size)));
            if let (Some((_, form)), Some(label)) = (self.label, sample.label) {
                segments.push(Segment::Label(form.bytes(label)));
            }
        }
        let total = segments.iter().map(Segment::bytes).sum::<u64>();
        let len = usize::try_from(total).map_err(|_| internal("more bytes than memory can have"))?;
        let mut rest = context.pool().lease(len).await??;
        let mut pieces = Vec::with_capacity(segments.len());
        for segment in &segments {
            let after = rest.split_off(segment.bytes() as usize);
            pieces.push(std::mem::replace(&mut rest, after));
        }
        let options = ReadOptions {
            class: Class::Data,
            ..ReadOptions::default()
        };
        let reads = segments
            .iter()
            .zip(pieces)
            .map(|(segment, piece)| read_segment(store, segment, piece, &options));
        let depth = context.limits().store_requests_max.max(1) as usize;
        let mut reads = stream::iter(reads).buffered(depth);
        let mut joined = Joined::default();
        while let Some(done) = reads.try_next().await? {
            joined.add(done);
        }
        let (data, ledger) = joined.finish(len, context)?;
        Ok(FileRead { data, base, ledger })
    }

    /// Read the whole virtual shard once, and make its table. The SHA-256 is that of its bytes: the files one after the other, with their labels.
    pub async fn tabulate(&self, store: &dyn Store, context: &Context) -> Result<Tabulated> {
        let run_bytes = RUN_BYTES.min(context.pool().lease_bytes_max() as u64);
        let runs = self.runs(run_bytes);
        let reads = runs.into_iter().map(|run| async move {
            let read = self.read(store, run.clone(), context).await?;
            Ok::<_, Error>((run, read))
        });
        let mut reads = stream::iter(reads).buffered(RUNS_AHEAD);
        let mut builder = TableBuilder::new(self.fields.clone());
        let mut sha256 = digest::Context::new(&digest::SHA256);
        let mut ledger = Ledger::default();
        let mut offset = 0;
        while let Some((run, read)) = reads.try_next().await? {
            ledger.merge(&read.ledger);
            sha256.update(&read.data);
            self.note(&mut builder, run, &read.data, offset)?;
            offset += read.data.len() as u64;
        }
        Ok(Tabulated {
            has_sums: false,
            are_types_inferred: false,
            table: self.check(builder.finish()?, offset)?,
            sha256: sha256_of(sha256)?,
            raw_bytes: offset,
            codec: Codec::None,
            ledger,
        })
    }

    fn check(&self, table: Table, bytes: u64) -> Result<Table> {
        table.check(bytes)?;
        if bytes != self.bytes() {
            return Err(internal("a virtual shard of another size than its files"));
        }
        Ok(table)
    }

    /// Note the samples of a run, whose bytes begin at `offset`.
    fn note(
        &self,
        builder: &mut TableBuilder,
        run: Range<usize>,
        mut data: &[u8],
        mut offset: u64,
    ) -> Result<()> {
        for sample in self.samples.get(run).unwrap_or_default() {
            builder.begin(offset, Some(&sample.key))?;
            let len = usize::try_from(self.sample_bytes(sample)).unwrap_or(usize::MAX);
            let (own, rest) = data
                .split_at_checked(len)
                .ok_or_else(|| internal("a run does not hold its samples"))?;
            builder.absorb(own);
            let mut at = offset;
            for member in &sample.members {
                builder.field(member.field, at, member.size)?;
                at += member.size;
            }
            offset += len as u64;
            if let (Some((field, _)), Some(_)) = (self.label, sample.label) {
                builder.field(field, at, offset - at)?;
            }
            builder.end()?;
            data = rest;
        }
        Ok(())
    }

    /// Samples in runs of at most so many bytes; a longer sample is a run of its own.
    fn runs(&self, run_bytes: u64) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut bytes = 0;
        for (index, sample) in self.samples.iter().enumerate() {
            let own = self.sample_bytes(sample);
            match runs.last_mut() {
                Some(run) if bytes + own <= run_bytes => {
                    run.end = index + 1;
                    bytes += own;
                }
                _ => {
                    runs.push(index..index + 1);
                    bytes = own;
                }
            }
        }
        runs
    }
}

async fn read_segment(
    store: &dyn Store,
    segment: &Segment<'_>,
    mut piece: AlignedBuf,
    options: &ReadOptions,
) -> Result<ReadDone> {
    match segment {
        Segment::File(key, size) if *size > 0 => {
            let read = store.read_into(key, Span::first(*size), piece, options);
            read.await.map_err(|error| match error.kind() {
                ErrorKind::InvalidInput => {
                    let message = format!("the file is shorter than the {size} bytes it was listed with");
                    Error::new(ErrorKind::Precondition, "read files", message)
                        .at(store.location().join(key))
                        .with_hint("files must not change while they are read; list the folder again")
                        .with_source(error)
                }
                _ => error,
            })
        }
        Segment::File(..) => Ok(ReadDone {
            buf: piece,
            ledger: Ledger::default(),
        }),
        Segment::Label(label) => {
            piece.copy_from_slice(label);
            Ok(ReadDone {
                buf: piece,
                ledger: Ledger::default(),
            })
        }
    }
}

/// Pieces of the buffer, joined in order.
#[derive(Debug, Default)]
struct Joined {
    pieces: Vec<AlignedBuf>,
    ledger: Ledger,
}

impl Joined {
    fn add(&mut self, done: ReadDone) {
        self.ledger.merge(&done.ledger);
        let alone = match self.pieces.last_mut() {
            Some(last) => last.unsplit(done.buf).err(),
            None => Some(done.buf),
        };
        self.pieces.extend(alone);
    }

    /// One buffer. A read that was tried again comes back in other memory; only then everything is copied together.
    fn finish(mut self, len: usize, context: &Context) -> Result<(Bytes, Ledger)> {
        if self.pieces.len() <= 1 {
            let bytes = self.pieces.pop().map(|buf| buf.freeze().into_bytes());
            return Ok((bytes.unwrap_or_default(), self.ledger));
        }
        let mut whole = match context.pool().try_lease(len) {
            Some(buf) => buf,
            None => AlignedBuf::alloc(len, Pages::default())?,
        };
        let mut at = 0;
        for piece in &self.pieces {
            let place = whole
                .get_mut(at..at + piece.len())
                .ok_or_else(|| internal("pieces that are longer than what was read"))?;
            place.copy_from_slice(piece);
            at += piece.len();
        }
        let path = self.ledger.paths.keys().next().copied();
        self.ledger
            .record_copy(path.unwrap_or(DataPath::Memory), len as u64);
        Ok((whole.freeze().slice(..len).into_bytes(), self.ledger))
    }
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "read files", message)
}
