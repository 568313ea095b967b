//! A checkpoint shown as a store with one object in it: a safetensors file of all its tensors, which is nowhere written.
//!
//! ```text
//! open:  entries -> [contents]: a header, where each tensor is in the file, where it is best cut
//! read:  span of the file -> header: copied
//!                        `-> tensors: bytes in a row -> [areas]: boxes of the tensor -> load: read, verified, unpacked into the caller's memory
//! ```
//!
//! Whoever reads files reads checkpoints so, whatever their ranks, compressed and sealed ones, too. No byte is given that did not hold its hash. Of a chunk all is read,
//! since its hash is of all of it; who reads from one of [`cuts`](CheckpointView::cuts) to another reads none twice. Values are not shown.

mod areas;
mod contents;
mod find;
#[cfg(test)]
mod tests;

use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Location, PathPolicy, Result, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use forebay_store::{
    Body, Capabilities, Entry as Row, ListOptions, Listing, ObjectMeta, Proof, PutDone, PutOptions, ReadDone,
    ReadOptions, Store, Upload,
};
use futures::stream::{self, StreamExt};
use tokio::sync::OnceCell;

use self::contents::{Contents, Origin, Shown};
pub use self::find::{ViewOptions, Viewed};
use crate::entry::SliceSpec;
use crate::load::{Areas, Want, join};
use crate::names::manifest_key;
use crate::open::Checkpoint;

/// Most bytes of a tensor whose elements must be put in another order, which takes all of it in memory.
const TURNED_BYTES_MAX: u64 = 4 << 30;

/// A checkpoint as a read-only store; see the module.
#[derive(Debug)]
pub struct CheckpointView {
    checkpoint: Checkpoint,
    key: Key,
    version: String,
    contents: Contents,
    /// What of the account of manifest, parts and index is told already.
    told: Mutex<Ledger>,
    /// The tensor whose elements were put in order last, until all of it was read.
    turned: tokio::sync::Mutex<Option<Turned>>,
    noted: OnceCell<()>,
}

/// A tensor in the order of its elements.
#[derive(Debug)]
struct Turned {
    name: String,
    bytes: Buf,
    unread_bytes: u64,
}

/// What a part of a read becomes of.
#[derive(Debug)]
enum Slot<'a> {
    /// Filled.
    Done(AlignedBuf),
    /// By the next of what is loaded, as it is.
    Loaded,
    /// By the next of what is loaded, from that byte on.
    Within(AlignedBuf, u64),
    /// By that tensor in another order, from that byte on.
    Turned(AlignedBuf, &'a str, &'a SliceSpec, u64),
}

impl CheckpointView {
    /// Show a checkpoint: reads all its entries. Its keys and its log are used as in loads; a log gets one note for all that is read.
    pub async fn open(checkpoint: &Checkpoint) -> Result<Self> {
        let place = checkpoint.source().store.location().clone();
        let contents = Contents::of(checkpoint).await;
        let manifest = checkpoint.manifest();
        Ok(Self {
            key: Key::parse(&format!("step-{}.safetensors", manifest.step))?,
            version: format!("{}-{}", manifest.step, manifest.attempt),
            contents: contents.map_err(|error| error.at(place))?,
            checkpoint: checkpoint.clone(),
            told: Mutex::default(),
            turned: tokio::sync::Mutex::default(),
            noted: OnceCell::new(),
        })
    }

    /// The checkpoint.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// The name of the one object.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What there is instead of the object: the manifest.
    pub fn origin(&self) -> Location {
        let key = manifest_key(self.checkpoint.step());
        self.location().join(&key)
    }

    /// Where the file is best cut: spans one behind the other, each with the distance of such places from its start on. Its end is one, too.
    pub fn cuts(&self) -> &[(Span, u64)] {
        &self.contents.cuts
    }

    /// Names of tensors that a safetensors file cannot hold: of dtype C128, or called `__metadata__`.
    pub fn left_out(&self) -> &[String] {
        &self.contents.left_out
    }

    fn size(&self) -> u64 {
        self.contents.bytes
    }

    fn meta(&self) -> ObjectMeta {
        ObjectMeta {
            key: self.key.clone(),
            size: self.size(),
            version: Some(self.version.clone()),
            modified: Some(self.checkpoint.manifest().committed),
            checksum: None,
            permissions: None,
        }
    }

    fn check_key(&self, op: &'static str, key: &Key) -> Result<()> {
        let (kind, message) = if *key == self.key {
            return Ok(());
        } else if key.is_root() {
            let message = "an object is needed, but this names the whole store";
            (ErrorKind::InvalidInput, message)
        } else {
            (ErrorKind::NotFound, "no such object")
        };
        Err(Error::new(kind, op, message).at(self.location().join(key)))
    }

    fn check_read(&self, key: &Key, span: Span, buf_len: usize, options: &ReadOptions) -> Result<()> {
        self.check_key("read", key)?;
        let refuse = |kind, message: String| {
            let error = Error::new(kind, "read", message);
            Err(error.at(self.location().join(key)))
        };
        if let Some(version) = options.version.as_ref().filter(|it| **it != self.version) {
            let message = format!("version {version} was asked for, but it is {}", self.version);
            return refuse(ErrorKind::Precondition, message);
        }
        if span.end() > self.size() {
            let message = format!("range {span} ends beyond the object of {} bytes", self.size());
            return refuse(ErrorKind::InvalidInput, message);
        }
        if (buf_len as u64) < span.len() {
            let message = format!("buffer of {buf_len} bytes for {} bytes", span.len());
            return refuse(ErrorKind::InvalidInput, message);
        }
        Ok(())
    }

    fn refuse_write<T>(&self, op: &'static str, key: &Key) -> Result<T> {
        if key.is_root() {
            self.check_key(op, key)?;
        }
        let message = "a checkpoint is shown to be read, and cannot be changed so";
        Err(Error::new(ErrorKind::Unsupported, op, message).at(self.location().join(key)))
    }

    /// Cut a buffer into what the parts of a span fill, and say what of it is to be loaded.
    fn slots<'a>(
        &'a self,
        span: Span,
        rest: &mut AlignedBuf,
        ledger: &mut Ledger,
    ) -> Result<(Vec<Slot<'a>>, Vec<Areas>)> {
        let (mut slots, mut wants) = (Vec::new(), Vec::new());
        let header = &self.contents.header;
        if let Some(part) = span.intersect(Span::first(header.len() as u64)) {
            let mut memory = front(rest, part.len());
            memory.copy_from_slice(header.get(part.relative_to(0)).unwrap_or_default());
            ledger.record(DataPath::Memory, part.len(), 1);
            slots.push(Slot::Done(memory));
        }
        let shown = &self.contents.shown;
        let first = shown.partition_point(|shown| shown.span.end() <= span.start());
        for Shown { span: place, origin } in shown.iter().skip(first) {
            if place.start() >= span.end() {
                break;
            }
            let Some(part) = place.intersect(span) else {
                continue;
            };
            let memory = front(rest, part.len());
            let from = part.start() - place.start();
            match origin {
                Origin::Turned { name, spec } => slots.push(Slot::Turned(memory, name, spec, from)),
                Origin::Run { name, spec, first } => {
                    let range = Span::at(first + from, part.len())?;
                    let wide = areas::widen(spec.dtype, range, spec.bytes());
                    let memory = if wide == range {
                        slots.push(Slot::Loaded);
                        memory
                    } else {
                        slots.push(Slot::Within(memory, range.start() - wide.start()));
                        AlignedBuf::alloc(wide.len() as usize, Pages::Small)?
                    };
                    wants.push(Areas {
                        name: name.clone(),
                        boxes: areas::boxes(spec.dtype, &spec.shape, wide),
                        memory,
                    });
                }
            }
        }
        Ok((slots, wants))
    }

    /// Fill slots, and give their memory in order.
    async fn fill(
        &self,
        slots: Vec<Slot<'_>>,
        loaded: Vec<AlignedBuf>,
        options: &ReadOptions,
        ledger: &mut Ledger,
    ) -> Result<Vec<AlignedBuf>> {
        let mut loaded = loaded.into_iter();
        let lost = || Error::new(ErrorKind::Internal, "read", "a part of a read was not loaded");
        let mut filled = Vec::with_capacity(slots.len());
        for slot in slots {
            filled.push(match slot {
                Slot::Done(memory) => memory,
                Slot::Loaded => loaded.next().ok_or_else(lost)?,
                Slot::Within(mut memory, from) => {
                    let wide = loaded.next().ok_or_else(lost)?;
                    copy(&wide, from, &mut memory).ok_or_else(lost)?;
                    ledger.record_copy(DataPath::Memory, memory.len() as u64);
                    memory
                }
                Slot::Turned(mut memory, name, spec, from) => {
                    let bytes = self
                        .turn(name, spec, memory.len() as u64, options, ledger)
                        .await?;
                    copy(&bytes, from, &mut memory).ok_or_else(lost)?;
                    ledger.record_copy(DataPath::Memory, memory.len() as u64);
                    memory
                }
            });
        }
        Ok(filled)
    }

    /// All bytes of a tensor whose elements lie in another order; one such tensor is kept until as many bytes of it were asked for as it has.
    async fn turn(
        &self,
        name: &str,
        spec: &SliceSpec,
        asked_bytes: u64,
        options: &ReadOptions,
        ledger: &mut Ledger,
    ) -> Result<Buf> {
        let mut kept = self.turned.lock().await;
        if kept.as_ref().is_none_or(|turned| turned.name != name) {
            // What is kept goes before there is memory for the next.
            *kept = None;
            if spec.bytes() > TURNED_BYTES_MAX {
                let message = format!(
                    "{name:?} shares the elements of another tensor in another order, and is too large to be turned"
                );
                return Err(Error::new(ErrorKind::Unsupported, "read", message));
            }
            let want = Want {
                name: name.to_owned(),
                offsets: spec.offsets.clone(),
                lengths: spec.lengths.clone(),
                memory: AlignedBuf::alloc(spec.bytes() as usize, Pages::default())?,
            };
            let mut loaded = self.checkpoint.load_boxes(vec![want], options).await?;
            ledger.merge(&loaded.ledger);
            let lost = || Error::new(ErrorKind::Internal, "read", "a tensor was not loaded");
            *kept = Some(Turned {
                name: name.to_owned(),
                bytes: loaded.memory.pop().ok_or_else(lost)?.freeze(),
                unread_bytes: spec.bytes(),
            });
        }
        let Some(turned) = kept.as_mut() else {
            return Err(Error::new(ErrorKind::Internal, "read", "a tensor was not kept"));
        };
        let bytes = turned.bytes.clone();
        turned.unread_bytes = turned.unread_bytes.saturating_sub(asked_bytes);
        if turned.unread_bytes == 0 {
            *kept = None;
        }
        Ok(bytes)
    }

    /// What was read of manifest, parts and index since this was asked last.
    fn pages_read(&self) -> Ledger {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.checkpoint.ledger();
        let since = now.since(&told);
        *told = now;
        since
    }
}

/// Take bytes off the front of a buffer.
fn front(rest: &mut AlignedBuf, len: u64) -> AlignedBuf {
    let behind = rest.split_off(len as usize);
    std::mem::replace(rest, behind)
}

/// Fill memory from a byte on.
fn copy(bytes: &[u8], from: u64, memory: &mut [u8]) -> Option<()> {
    let from = usize::try_from(from).ok()?;
    let bytes = bytes.get(from..from.checked_add(memory.len())?)?;
    memory.copy_from_slice(bytes);
    Some(())
}

#[async_trait]
impl Store for CheckpointView {
    fn location(&self) -> &Location {
        self.checkpoint.source().store.location()
    }

    fn identity(&self) -> String {
        let inner = self.checkpoint.source().store.identity();
        format!("{inner} as of {}", self.version)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.check_key("head", key)?;
        Ok(self.meta())
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.check_read(key, span, buf.len(), options)?;
        self.noted.get_or_try_init(|| self.checkpoint.note_load()).await?;
        if span.start() < self.contents.header.len() as u64 && !span.is_empty() {
            let reason = "the header of a checkpoint is made in memory";
            let admitted = options.policy.admit(DataPath::Memory, "read", reason);
            admitted.map_err(|error| error.at(self.location().join(key)))?;
        }
        let mut ledger = Ledger::default();
        let mut rest = buf;
        let (slots, wants) = self.slots(span, &mut rest, &mut ledger)?;
        let stored = ReadOptions {
            version: None,
            from_page_cache: options.policy == PathPolicy::Fastest,
            ..options.clone()
        };
        let loaded = self.checkpoint.load_areas(wants, &stored).await?;
        ledger.merge(&loaded.ledger);
        let filled = self.fill(slots, loaded.memory, &stored, &mut ledger).await?;
        let mut pieces: Vec<AlignedBuf> = Vec::new();
        for piece in filled.into_iter().chain([rest]) {
            let alone = match pieces.last_mut() {
                Some(last) => last.unsplit(piece).err(),
                None => Some(piece),
            };
            pieces.extend(alone);
        }
        let buf = join(pieces, &mut ledger)?;
        ledger.merge(&self.pages_read());
        Ok(ReadDone { buf, ledger })
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        let _ = (body, options);
        self.refuse_write("put", key)
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let _ = options;
        self.refuse_write("upload", key)
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let _ = options;
        let is_below = prefix.is_root() || *prefix == self.key;
        let row = is_below.then(|| Ok(Row::Object(self.meta())));
        stream::iter(row).boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        self.refuse_write("delete", key)
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities {
            range: Proof::Shown,
            version_match: Proof::Shown,
            ..Capabilities::untried("a checkpoint is shown to be read")
        })
    }
}
