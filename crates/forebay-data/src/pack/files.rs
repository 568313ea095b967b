//! A plain folder as input: nothing is read twice, and small files are read many in one turn of a thread.
//!
//! The listing says which files make which samples and how long they are; that is enough to put them in order and to read them. Only then, on their way
//! into a shard, are their bytes seen for the first time: checksums and tables are made of what is written.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Seed, Span};
use forebay_io::{AlignedBuf, Class};
use forebay_store::{Context, ObjectMeta, ReadOptions, Store, StoreExt};
use ring::digest;
use tokio::sync::mpsc;

use super::PackSpec;
use super::chunk::{Chunk, ChunkBuilder, Placed, refs};
use super::input::{Chunks, Coming, Reading};
use super::output::PackFormat;
use super::shape::{Shaper, Taken};
use crate::dataset::Task;
use crate::format::files::{FileLayout, FileSample, FileSet, FileSetBuilder, ImageFields};
use crate::format::{SampleRef, sha256_of};
use crate::manifest::FormatSpec;
use crate::schema::Schema;

/// Most bytes of one chunk, unless a sample is longer; fewer where there is no room for that many chunks.
const CHUNK_BYTES_MAX: u64 = 4 << 20;

/// Most files of one chunk: they are read in one turn of a thread, and there must be enough turns for all threads.
const CHUNK_FILES_MAX: usize = 256;

/// Chunks read ahead: more than there are threads to read them, as far as there is room.
const CHUNKS_AHEAD_MAX: usize = 32;

/// Files of up to this size are read whole in one turn; longer ones are worth a direct read each.
const SMALL_BYTES_MAX: u64 = 256 << 10;

/// Virtual shards are of no interest here.
const VIRTUAL_SHARD_BYTES: u64 = 1 << 30;

/// A folder.
#[derive(Debug)]
pub(super) struct FilesInput {
    store: Arc<dyn Store>,
    set: Arc<FileSet>,
    columns: Arc<HashMap<String, usize>>,
    schema: Schema,
    /// The samples in the order they are packed in; as they are listed without.
    order: Option<Arc<[u32]>>,
    identity: [u8; 32],
    bytes: u64,
}

impl FilesInput {
    /// Of the files listed.
    pub(super) fn new(
        store: Arc<dyn Store>,
        format: &FormatSpec,
        objects: &[ObjectMeta],
        spec: &PackSpec,
    ) -> Result<Self> {
        let fields = || match spec.to {
            PackFormat::Wds | PackFormat::Files => ImageFields::webdataset(),
            _ => ImageFields::arrays(),
        };
        let layout = FileLayout::of(format, fields)?;
        let is_tree = layout == FileLayout::Tree;
        let mut builder = FileSetBuilder::new(&Key::ROOT, layout);
        let mut identity = digest::Context::new(&digest::SHA256);
        identity.update(&[u8::from(is_tree)]);
        for meta in objects {
            // A stray file that comes or goes is no other input.
            if !builder.push(&meta.key, meta.size)? {
                continue;
            }
            for part in [meta.key.as_str(), meta.version.as_deref().unwrap_or_default()] {
                identity.update(&(part.len() as u64).to_le_bytes());
                identity.update(part.as_bytes());
            }
            identity.update(&meta.size.to_le_bytes());
        }
        let set = builder.finish(VIRTUAL_SHARD_BYTES)?;
        if set.samples() == 0 {
            let message = "no file here is part of a sample";
            return Err(Error::new(ErrorKind::NotFound, "pack", message)
                .at(store.location())
                .with_hint("a file needs a name before its first dot and an ending behind it"));
        }
        let fields = set.fields();
        let columns = fields
            .iter()
            .enumerate()
            .map(|(index, field)| (field.name.clone(), index));
        let order = spec.shuffle.map(|seed| {
            let mut order: Vec<u32> = (0..set.samples() as u32).collect();
            Seed(seed).rng().shuffle(&mut order);
            order.into()
        });
        Ok(Self {
            bytes: (0..set.samples() as usize)
                .map(|index| set.sample_bytes(index))
                .sum(),
            columns: Arc::new(columns.collect()),
            schema: fields.into(),
            set: Arc::new(set),
            order,
            identity: sha256_of(identity)?,
            store,
        })
    }

    pub(super) fn schema(&self) -> &Schema {
        &self.schema
    }

    pub(super) fn samples(&self) -> u64 {
        self.set.samples()
    }

    pub(super) fn files_left_out(&self) -> u64 {
        self.set.left_out().files()
    }

    pub(super) fn note(&self) -> Option<String> {
        self.set.note()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn identity(&self) -> [u8; 32] {
        self.identity
    }

    /// Read the samples at these positions.
    pub(super) fn chunks(&self, positions: Range<u64>, reading: &Reading) -> Chunks {
        let (sender, receiver) = mpsc::channel(CHUNKS_AHEAD_MAX);
        let feeder = Feeder {
            store: Arc::clone(&self.store),
            set: Arc::clone(&self.set),
            columns: Arc::clone(&self.columns),
            order: self.order.clone(),
            reading: reading.clone(),
        };
        let feeding = Task::spawn(async move {
            let mut start = positions.start;
            while start < positions.end {
                let (chunk, bytes) = feeder.cut(start..positions.end);
                start = chunk.end;
                let room = feeder.reading.chunks.take(bytes).await?;
                let feeder = feeder.clone();
                let chunk = Task::spawn(async move { feeder.read(chunk).await });
                if sender.send(Ok(Coming { chunk, room })).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        Chunks::new(receiver, feeding)
    }
}

/// Reads chunks.
#[derive(Debug, Clone)]
struct Feeder {
    store: Arc<dyn Store>,
    set: Arc<FileSet>,
    columns: Arc<HashMap<String, usize>>,
    order: Option<Arc<[u32]>>,
    reading: Reading,
}

impl Feeder {
    /// Number of the sample at a position.
    fn number(&self, position: u64) -> usize {
        match &self.order {
            Some(order) => order.get(position as usize).map_or(0, |number| *number as usize),
            None => position as usize,
        }
    }

    /// As many of these positions as one chunk takes, one at least; and their bytes.
    fn cut(&self, positions: Range<u64>) -> (Range<u64>, u64) {
        let bytes_max = (self.reading.chunks_bytes / CHUNKS_AHEAD_MAX as u64).min(CHUNK_BYTES_MAX);
        let (mut bytes, mut files) = (0u64, 0);
        for position in positions.clone() {
            let number = self.number(position);
            let more = bytes.saturating_add(self.set.sample_bytes(number));
            files += self.set.sample_files(number);
            let is_over = more > bytes_max || files > CHUNK_FILES_MAX;
            if is_over && position > positions.start {
                return (positions.start..position, bytes);
            }
            bytes = more;
        }
        (positions, bytes)
    }

    async fn read(&self, positions: Range<u64>) -> Result<Chunk> {
        let mut samples = Vec::new();
        for position in positions.clone() {
            let number = self.number(position);
            let sample = self.set.sample_at(number, &self.columns);
            samples.push(sample.ok_or_else(|| internal("a sample that the folder does not have"))?);
        }
        let objects: Vec<(Key, u64)> = samples
            .iter()
            .flat_map(|sample| {
                sample
                    .members
                    .iter()
                    .map(|member| (member.key.clone(), member.size))
            })
            .collect();
        let bytes = objects.iter().map(|(_, size)| size).sum::<u64>();
        let labels: Vec<Vec<u8>> = samples
            .iter()
            .map(|sample| self.set.label_bytes(sample))
            .collect();
        let labels_len: usize = labels.iter().map(Vec::len).sum();
        let len = usize::try_from(bytes).map_err(|_| internal("more bytes than memory can have"))?;
        let buf = self.reading.memory.take(len + labels_len)?;
        let (mut buf, ledger) = read_files(&self.store, &objects, buf, &self.reading.context).await?;
        self.reading.tally.read(bytes, &ledger);
        if let Some(place) = buf.get_mut(len..len + labels_len) {
            place.copy_from_slice(&labels.concat());
        }
        let data = buf.freeze().slice(..len + labels_len).into_bytes();
        let shaper = Arc::clone(&self.reading.shaper);
        let numbers: Vec<u64> = positions
            .clone()
            .map(|position| self.number(position) as u64)
            .collect();
        let label_field = self.set.label_field();
        let laid = Laid {
            samples,
            labels: labels.iter().map(Vec::len).collect(),
            label_field,
            files_len: len,
            first: positions.start,
            numbers,
        };
        // Half a megabyte of names and sizes: not worth a thread of its own.
        laid.chunk(&shaper, data)
    }
}

/// Samples whose bytes lie one after the other, their labels behind all of them.
struct Laid {
    samples: Vec<FileSample>,
    /// Bytes of each label.
    labels: Vec<usize>,
    label_field: Option<usize>,
    files_len: usize,
    first: u64,
    numbers: Vec<u64>,
}

impl Laid {
    fn chunk(&self, shaper: &Shaper, data: bytes::Bytes) -> Result<Chunk> {
        let mut builder = ChunkBuilder::default();
        let (mut at, mut label_at) = (0, self.files_len);
        let mut values: Vec<Placed> = Vec::new();
        let labels = self.labels.iter().zip(&self.numbers);
        for ((sample, (label, number)), position) in self.samples.iter().zip(labels).zip(self.first..) {
            values.clear();
            for member in &sample.members {
                let len = member.size as usize;
                values.push(Placed {
                    field: member.field,
                    start: at,
                    len,
                });
                at += len;
            }
            if let Some(field) = self.label_field {
                values.push(Placed {
                    field,
                    start: label_at,
                    len: *label,
                });
                label_at += label;
            }
            let value = |field: usize| {
                let found = values.iter().find(|value| value.field == field)?;
                data.get(found.start..found.start + found.len)
            };
            let taken = Taken {
                position,
                number: *number,
                key: Some(&sample.key),
                value: &value,
            };
            if shaper.is_plain() {
                place(shaper, &taken, &values, &data, &mut builder)?;
            } else {
                shaper.add(&taken, &mut builder)?;
            }
        }
        Ok(if shaper.is_plain() {
            builder.finish_in(data)
        } else {
            builder.finish()
        })
    }
}

/// Add a sample whose values stay where they are.
fn place(
    shaper: &Shaper,
    taken: &Taken<'_>,
    values: &[Placed],
    data: &[u8],
    builder: &mut ChunkBuilder,
) -> Result<()> {
    let key = shaper.key(taken)?;
    if !shaper.keeps(taken, &key) {
        return Ok(());
    }
    let written = values.iter().filter_map(|value| {
        let field = shaper.plain(value.field)?;
        Some(Placed { field, ..*value })
    });
    let written: Vec<Placed> = written.collect();
    let output = shaper.output();
    let fields = refs(&written, data, output.fields(), output.has_key_field(), &key);
    let cost = shaper.cost(SampleRef {
        key: &key,
        fields: &fields,
    });
    for value in written {
        builder.place(value);
    }
    builder.end(taken.position, &key, cost);
    Ok(())
}

/// Read files into one buffer, one after the other: runs of small ones together, long ones one by one.
async fn read_files(
    store: &Arc<dyn Store>,
    objects: &[(Key, u64)],
    mut buf: AlignedBuf,
    context: &Context,
) -> Result<(AlignedBuf, Ledger)> {
    let options = ReadOptions {
        class: Class::Data,
        ..ReadOptions::default()
    };
    let is_small = |size: u64| size <= SMALL_BYTES_MAX;
    let mut ledger = Ledger::default();
    let mut done: Vec<AlignedBuf> = Vec::new();
    for run in objects.chunk_by(|a, b| is_small(a.1) && is_small(b.1)) {
        let bytes: u64 = run.iter().map(|(_, size)| size).sum();
        let rest = buf.split_off(bytes as usize);
        let piece = std::mem::replace(&mut buf, rest);
        let read = match run {
            [(key, size)] if !is_small(*size) => {
                check_size(store, key, *size).await?;
                store
                    .read_parallel(key, Span::first(*size), piece, &options, context)
                    .await?
            }
            run => store.read_small(run, piece, &options).await?,
        };
        ledger.merge(&read.ledger);
        join(&mut done, read.buf);
    }
    join(&mut done, buf);
    let whole = match done.len() {
        1 => done.pop(),
        _ => None,
    };
    let whole = match whole {
        Some(whole) => whole,
        // A read that was tried again comes back in other memory.
        None => AlignedBuf::copy_of(&done.iter().map(|piece| &piece[..]).collect::<Vec<_>>().concat())?,
    };
    Ok((whole, ledger))
}

fn join(done: &mut Vec<AlignedBuf>, piece: AlignedBuf) {
    let alone = match done.last_mut() {
        Some(last) => last.unsplit(piece).err(),
        None => Some(piece),
    };
    done.extend(alone);
}

/// Refuse a file that does not have the size it was listed with any more.
async fn check_size(store: &Arc<dyn Store>, key: &Key, size: u64) -> Result<()> {
    let found = store.head(key).await?.size;
    if found == size {
        return Ok(());
    }
    let message = format!("the file has {found} bytes, where {size} were expected");
    Err(Error::new(ErrorKind::Precondition, "pack", message)
        .at(store.location().join(key))
        .with_hint("it changed meanwhile; pack again"))
}

fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "pack", message)
}
