//! Tensors to a file: laid out, copied into aligned parts, written side by side around the page cache, made durable, and only then given its name.
//!
//! ```text
//! names, dtypes, shapes --HeaderBuilder--> where everything goes
//! Content (the caller's memory) --copied part by part into the pool--> Upload::put_part, several at once --> complete: sync, rename
//! ```
//!
//! Parts with bytes of the header go last: with checksums in it, it is known last.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_core::safetensors::{Dtype, Encoded, HeaderBuilder, Order};
use forebay_core::{Crc32c, Error, ErrorKind, Key, Ledger, Location, Result, Span, crc32c};
use forebay_io::{AlignedBuf, Class, Pages};
use forebay_store::{Context, PutDone, PutMode, PutOptions, Store, StoreExt, Upload};
use futures::stream::{FuturesUnordered, StreamExt};

use crate::hashes::{
    CHUNK_BYTES, DATA_ALIGN, Hashes, SIDE_SUFFIX, metadata_entry, reserve_entry, seal_header,
};
use crate::hashes::{METADATA_ENTRY, own_value};

/// Parts on their way at once: the gate holds what is with the disk to less, and one is filled while others are written.
const PARTS_AT_ONCE: usize = 6;

/// A tensor to be saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<u64>,
}

/// The bytes of tensors, wherever they are.
pub trait Content: fmt::Debug + Send + Sync {
    /// Fill all of `into` with the bytes of tensor number `tensor` from `offset` on.
    fn copy_out(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// Plain memory.
impl<T: AsRef<[u8]> + fmt::Debug + Send + Sync> Content for Vec<T> {
    fn copy_out(&self, tensor: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = self.get(tensor).map(AsRef::as_ref).unwrap_or_default();
        let from = usize::try_from(offset)
            .ok()
            .and_then(|start| from.get(start..start.checked_add(into.len())?))
            .ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidInput,
                    "save",
                    "a tensor has fewer bytes than its shape says",
                )
            })?;
        into.copy_from_slice(from);
        Ok(())
    }
}

/// Where checksums are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepHashes {
    /// Nowhere.
    #[default]
    No,
    /// In the header.
    InHeader,
    /// In a file beside it.
    Beside,
}

/// How to save.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// What the file says of itself.
    pub metadata: Option<BTreeMap<String, String>>,
    /// Where checksums are kept.
    pub hashes: KeepHashes,
    /// The data area begins at a multiple of this.
    pub align: u64,
    /// How tensors are ordered.
    pub order: Order,
    /// What to do when the file exists.
    pub mode: PutMode,
    /// Class of service.
    pub class: Class,
}

impl Default for SaveOptions {
    /// At a page, so that direct reads need no copy; replaces what is there.
    fn default() -> Self {
        Self {
            metadata: None,
            hashes: KeepHashes::No,
            align: DATA_ALIGN,
            order: Order::Safetensors,
            mode: PutMode::Replace,
            class: Class::Checkpoint,
        }
    }
}

/// Write a file; when it returns, the file is durable and has its name.
pub async fn save(
    store: &dyn Store,
    key: &Key,
    tensors: &[TensorSpec],
    content: &dyn Content,
    options: &SaveOptions,
    context: &Context,
) -> Result<PutDone> {
    let at = |error: Error| error.at(store.location().join(key));
    let encoded = encode(tensors, options).map_err(at)?;
    let put_options = PutOptions {
        mode: options.mode,
        class: options.class,
        size_hint: Some(encoded.header.file_len()),
        ..PutOptions::default()
    };
    let hashes = options.hashes;
    let upload = store.upload(key, &put_options).await?;
    let sent = async {
        let file = Writing {
            encoded,
            content,
            upload: &*upload,
            context,
            hashes,
        };
        file.send().await
    };
    let (ledger, crcs, file_len) = match sent.await {
        Ok(sent) => sent,
        Err(error) => {
            // The caller learns what went wrong first; what stays behind is what any upload leaves that nobody finishes.
            let _ = upload.abort().await;
            return Err(at(error));
        }
    };
    // Those of a file that was here before would refuse this one until the new ones are there. Who may write but not remove writes over them.
    if hashes == KeepHashes::Beside
        && let Err(error) = forget_side(store, key).await
        && error.kind() != ErrorKind::PermissionDenied
    {
        let _ = upload.abort().await;
        return Err(error);
    }
    let mut done = upload.complete().await?;
    done.ledger.merge(&ledger);
    if hashes == KeepHashes::Beside {
        keep_beside(store, key, &Hashes::of_file(file_len, crcs)).await?;
    } else if let Err(error) = forget_side(store, key).await {
        // The file is saved, whatever comes of this: if there are old checksums, loads say that they do not fit.
        tracing::warn!(
            "{} is saved; whether checksums of an earlier file are left beside it is not known: {error}",
            store.location().join(key)
        );
    }
    Ok(done)
}

/// Write checksums beside a file that is saved.
async fn keep_beside(store: &dyn Store, key: &Key, hashes: &Hashes) -> Result<()> {
    let side = side_key(key)?;
    let put = store
        .put_bytes(&side, &hashes.encode_side(), &PutOptions::default())
        .await;
    put.map(drop).map_err(|error| {
        let message = "the file is saved, but not its checksums";
        Error::new(error.kind(), "save", message)
            .at(store.location().join(&side))
            .with_source(error)
    })
}

/// Save to a location.
pub async fn save_at(
    location: &Location,
    tensors: &[TensorSpec],
    content: &dyn Content,
    options: &SaveOptions,
    context: &Context,
) -> Result<PutDone> {
    let (store, key) = forebay_store::open_object(location, context).await?;
    save(&*store, &key, tensors, content, options, context).await
}

/// The header and layout of what is to be saved.
pub fn encode(tensors: &[TensorSpec], options: &SaveOptions) -> Result<Encoded> {
    let mut metadata = options.metadata.clone();
    if let Some(metadata) = &mut metadata {
        // Checksums of another file, if this was read from one.
        metadata.remove(METADATA_ENTRY);
    }
    let mut align = options.align;
    if options.hashes == KeepHashes::InHeader {
        let bits = |tensor: &TensorSpec| {
            let elements = tensor
                .shape
                .iter()
                .try_fold(1u64, |product, len| product.checked_mul(*len))?;
            elements.checked_mul(tensor.dtype.bits())
        };
        let data_len = tensors
            .iter()
            .try_fold(0u64, |sum, tensor| sum.checked_add(bits(tensor)? / 8))
            .unwrap_or(0);
        reserve_entry(metadata.get_or_insert_default(), data_len);
        align = align.max(DATA_ALIGN);
    }
    let mut builder = HeaderBuilder::new()
        .order(options.order)
        .align(align)
        .metadata(metadata);
    for tensor in tensors {
        builder.tensor(&tensor.name, tensor.dtype, tensor.shape.clone());
    }
    builder.encode()
}

fn side_key(key: &Key) -> Result<Key> {
    Key::parse(&format!("{key}{SIDE_SUFFIX}"))
}

async fn forget_side(store: &dyn Store, key: &Key) -> Result<()> {
    match side_key(key) {
        Ok(side) => store.delete(&side).await,
        Err(_) => Ok(()),
    }
}

/// Checksum of a run of a chunk: which chunk, where it begins, how long it is.
#[derive(Debug, Clone, Copy)]
struct RunCrc {
    start: u64,
    len: u64,
    crc: u32,
}

/// A file being written.
struct Writing<'a> {
    encoded: Encoded,
    content: &'a dyn Content,
    upload: &'a dyn Upload,
    context: &'a Context,
    hashes: KeepHashes,
}

impl Writing<'_> {
    /// Send all parts; gives the ledger, the checksums of chunks, and the length of the file.
    async fn send(mut self) -> Result<(Ledger, Vec<u32>, u64)> {
        let file_len = self.encoded.header.file_len();
        let parts: Vec<(u32, Span)> = (0..)
            .zip(Span::first(file_len).pieces(self.upload.part_bytes()))
            .collect();
        let header_len = self.encoded.bytes.len() as u64;
        let (late, early) = parts.split_at(parts.partition_point(|(_, part)| part.start() < header_len));
        let (mut ledger, mut runs) = self.send_parts(early).await?;
        let crcs = self.seal(late, &mut runs)?;
        let (late_ledger, late_runs) = self.send_parts(late).await?;
        ledger.merge(&late_ledger);
        let crcs = match self.hashes {
            KeepHashes::Beside => {
                runs.extend(late_runs);
                joined(runs, 0, file_len)
            }
            KeepHashes::No | KeepHashes::InHeader => crcs,
        };
        Ok((ledger, crcs, file_len))
    }

    /// Send parts, several at once.
    async fn send_parts(&self, parts: &[(u32, Span)]) -> Result<(Ledger, Vec<RunCrc>)> {
        let (mut ledger, mut runs) = (Ledger::default(), Vec::new());
        let mut sends = FuturesUnordered::new();
        let mut rest = parts.iter().copied().peekable();
        loop {
            while sends.len() < PARTS_AT_ONCE
                && let Some((index, part)) = rest.peek().copied()
                && let Some(buf) = self.part_buf(part.len(), sends.is_empty())?
            {
                rest.next();
                sends.push(self.send_part(part, index, buf));
            }
            let Some(sent) = sends.next().await else {
                return Ok((ledger, runs));
            };
            let (part_ledger, part_runs) = sent?;
            ledger.merge(&part_ledger);
            runs.extend(part_runs);
        }
    }

    /// Put checksums into the header, where they are kept there. Of the parts that wait for it, the one with data is hashed before it is sent.
    fn seal(&mut self, late: &[(u32, Span)], runs: &mut Vec<RunCrc>) -> Result<Vec<u32>> {
        if self.hashes != KeepHashes::InHeader {
            return Ok(Vec::new());
        }
        let data = self.encoded.header.data_span();
        if let Some((_, part)) = late.last().filter(|(_, part)| part.end() > data.start()) {
            let mut buf = vec![0; part.len() as usize];
            runs.extend(self.fill(*part, &mut buf)?);
        }
        let crcs = joined(std::mem::take(runs), data.start(), data.end());
        own_value(&mut self.encoded.bytes, &metadata_entry(&crcs))?;
        seal_header(&mut self.encoded.bytes)?;
        Ok(crcs)
    }

    /// Memory for one part: from the pool while it has some. When the caller holds all of it, waiting would never end, so the first one has
    /// memory of its own and the others wait for that one.
    fn part_buf(&self, len: u64, is_first: bool) -> Result<Option<AlignedBuf>> {
        match self.context.pool().try_lease(len as usize) {
            None if is_first => AlignedBuf::alloc(len as usize, Pages::default()).map(Some),
            lease => Ok(lease),
        }
    }

    async fn send_part(&self, part: Span, index: u32, mut buf: AlignedBuf) -> Result<(Ledger, Vec<RunCrc>)> {
        let len = part.len() as usize;
        let runs = self.fill(part, buf.get_mut(..len).unwrap_or_default())?;
        let ledger = self
            .upload
            .put_part(index, buf.freeze().slice(..len).into())
            .await?;
        Ok((ledger, runs))
    }

    /// Fill a part from header and tensors, and hash it.
    fn fill(&self, part: Span, into: &mut [u8]) -> Result<Vec<RunCrc>> {
        let Encoded {
            bytes,
            header,
            sources,
        } = &self.encoded;
        if let Some(span) = part.intersect(Span::first(bytes.len() as u64)) {
            into[span.relative_to(part.start())].copy_from_slice(&bytes[span.relative_to(0)]);
        }
        let first = header
            .tensors()
            .partition_point(|tensor| tensor.span.end() <= part.start());
        for (tensor, source) in header.tensors().iter().zip(sources).skip(first) {
            if tensor.span.start() >= part.end() {
                break;
            }
            if let Some(span) = part.intersect(tensor.span) {
                let offset = span.start() - tensor.span.start();
                let into = &mut into[span.relative_to(part.start())];
                self.content.copy_out(*source, offset, into).map_err(|error| {
                    let message = format!("tensor '{}'", tensor.name.escape_debug());
                    Error::new(error.kind(), "save", message).with_source(error)
                })?;
            }
        }
        let (from, origin) = match self.hashes {
            KeepHashes::No => return Ok(Vec::new()),
            KeepHashes::Beside => (part, 0),
            KeepHashes::InHeader => match part.intersect(header.data_span()) {
                Some(span) => (span, header.data_start()),
                None => return Ok(Vec::new()),
            },
        };
        let shifted = Span::new(from.start() - origin, from.end() - origin)?;
        let runs = shifted.pieces(CHUNK_BYTES).map(|run| {
            let start = run.start() + origin;
            let at = (start - part.start()) as usize;
            RunCrc {
                start,
                len: run.len(),
                crc: crc32c(&into[at..at + run.len() as usize]),
            }
        });
        Ok(runs.collect())
    }
}

/// Checksums of chunks from those of their runs.
fn joined(mut runs: Vec<RunCrc>, origin: u64, end: u64) -> Vec<u32> {
    runs.sort_unstable_by_key(|run| run.start);
    let mut crcs = vec![crc32c(b""); (end - origin).div_ceil(CHUNK_BYTES) as usize];
    for run in runs {
        if let Some(crc) = crcs.get_mut(((run.start - origin) / CHUNK_BYTES) as usize) {
            *crc = Crc32c::combine(*crc, run.crc, run.len);
        }
    }
    crcs
}

/// Tensors to the bytes of a file in memory.
pub fn serialize(tensors: &[TensorSpec], content: &dyn Content, options: &SaveOptions) -> Result<Arc<[u8]>> {
    let encoded = encode(tensors, options)?;
    let mut bytes = vec![0; encoded.header.file_len() as usize];
    bytes[..encoded.bytes.len()].copy_from_slice(&encoded.bytes);
    for (tensor, source) in encoded.header.tensors().iter().zip(&encoded.sources) {
        content.copy_out(*source, 0, &mut bytes[tensor.span.relative_to(0)])?;
    }
    Ok(bytes.into())
}
