//! Plain folders as data sets: a store whose objects are the virtual shards of a folder, and the format that reads them.
//!
//! Which files make which shard follows from the listing ([`FileSet`]). [`Folder`] gives each virtual shard a name and a size and reads ranges of it out of the files
//! they fall on, each straight into its piece of the caller's buffer; so everything that reads shards reads folders too. Nothing can be
//! written through it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Location, Result, Span};
use forebay_io::AlignedBuf;
use forebay_store::{
    Body, Capabilities, Entry, ListOptions, Listing, ObjectMeta, OpenUpload, PutDone, PutOptions, ReadDone,
    ReadOptions, Store, Upload,
};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::Dataset;
use crate::format::files::{FileLayout, FileSet, FileSetBuilder, FileShard, ImageFields, LeftOut, Member};
use crate::format::{Format, Scan, Tabulated, tabulate};
use crate::manifest::FormatSpec;
use crate::source::ShardSource;
use crate::table::{Table, TableBuilder};

/// Bytes of one virtual shard: large enough to be read in a row, small enough for shuffling among many.
const SHARD_BYTES: u64 = 64 << 20;

/// Virtual shards written out at the same time: as many as are read side by side.
const SHARDS_KEPT_MAX: usize = 32;

/// Most bytes of a sample that are read at once where only its checksum is wanted.
const PIECE_BYTES: u64 = 8 << 20;

/// Files read at once for one range.
const FILES_AT_ONCE_MAX: usize = 32;

/// A folder of files as a store of shards.
pub(super) struct Folder {
    inner: Arc<dyn Store>,
    set: FileSet,
    metas: BTreeMap<Key, (usize, ObjectMeta)>,
    kept: Mutex<VecDeque<(usize, Arc<Laid>)>>,
}

impl fmt::Debug for Folder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Folder")
            .field("inner", &self.inner)
            .field("shards", &self.metas.len())
            .finish_non_exhaustive()
    }
}

/// A virtual shard written out, with where everything begins.
#[derive(Debug)]
struct Laid {
    shard: FileShard,
    /// Start and content of each file and label, in order.
    segments: Vec<(u64, Segment)>,
    bytes: u64,
}

#[derive(Debug, Clone)]
enum Segment {
    File(Key, u64),
    Label(Vec<u8>),
}

impl Segment {
    fn bytes(&self) -> u64 {
        match self {
            Self::File(_, size) => *size,
            Self::Label(label) => label.len() as u64,
        }
    }
}

impl Laid {
    fn new(shard: FileShard) -> Self {
        let (mut segments, mut bytes) = (Vec::new(), 0);
        for sample in &shard.samples {
            let files = sample
                .members
                .iter()
                .map(|member| Segment::File(member.key.clone(), member.size));
            let label = shard.label_bytes(sample).map(Segment::Label);
            for segment in files.chain(label) {
                let len = segment.bytes();
                segments.push((bytes, segment));
                bytes += len;
            }
        }
        Self {
            shard,
            segments,
            bytes,
        }
    }
}

impl Folder {
    /// Around the files listed.
    pub(super) fn new(inner: Arc<dyn Store>, spec: &FormatSpec, objects: &[ObjectMeta]) -> Result<Self> {
        let mut builder = FileSetBuilder::new(&Key::ROOT, FileLayout::of(spec, ImageFields::arrays)?);
        for meta in objects {
            builder.push(&meta.key, meta.size)?;
        }
        let set = builder.finish(SHARD_BYTES)?;
        let mut metas = BTreeMap::new();
        for number in 0..set.shards() {
            let size = set.shard(number).map_or(0, |shard| shard.bytes());
            let key = Key::parse(&format!("files-{number:08}"))?;
            metas.insert(key.clone(), (number, meta_of(key, size)));
        }
        Ok(Self {
            inner,
            set,
            metas,
            kept: Mutex::default(),
        })
    }

    /// Around one virtual shard, whatever is listed.
    fn of_one(inner: Arc<dyn Store>, meta: ObjectMeta, shard: FileShard) -> Result<Self> {
        let laid = Arc::new(Laid::new(shard));
        Ok(Self {
            inner,
            set: FileSetBuilder::new(&Key::ROOT, FileLayout::Tree).finish(SHARD_BYTES)?,
            metas: BTreeMap::from([(meta.key.clone(), (0, meta))]),
            // The only one: there is none that it could make room for.
            kept: Mutex::new(VecDeque::from([(0, laid)])),
        })
    }

    /// The virtual shards, in order.
    pub(super) fn shards(&self) -> Vec<ObjectMeta> {
        self.metas.values().map(|(_, meta)| meta.clone()).collect()
    }

    /// The listing behind it.
    pub(super) fn set(&self) -> &FileSet {
        &self.set
    }

    /// The table of some samples in a row of a virtual shard, which is read in pieces.
    pub(super) async fn peek(&self, source: &ShardSource, samples: Range<usize>) -> Result<Table> {
        let laid = self.laid(&source.meta().key)?;
        let start = laid.shard.extent(samples.start).map_or(0, Span::start);
        let last = samples.end.checked_sub(1).filter(|last| samples.contains(last));
        let end = last
            .and_then(|last| laid.shard.extent(last))
            .map_or(start, Span::end);
        let mut scan = FolderScan::new(laid, samples, start);
        let mut at = start;
        while at < end {
            let piece = Span::at(at, (end - at).min(PIECE_BYTES))?;
            scan.feed(&source.read(piece).await?.0)?;
            at = piece.end();
        }
        Box::new(scan).finish()
    }

    /// What whoever reads the folder should know: which files are not read.
    pub(super) fn note(&self) -> Option<String> {
        self.set.note()
    }

    /// Files that are part of no sample.
    pub(super) fn left_out(&self) -> &LeftOut {
        self.set.left_out()
    }

    fn laid(&self, key: &Key) -> Result<Arc<Laid>> {
        let (number, _) = self.metas.get(key).ok_or_else(|| self.missing(key))?;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, laid)) = kept.iter().find(|(other, _)| other == number) {
            return Ok(Arc::clone(laid));
        }
        let shard = self.set.shard(*number).ok_or_else(|| self.missing(key))?;
        let laid = Arc::new(Laid::new(shard));
        kept.push_back((*number, Arc::clone(&laid)));
        if kept.len() > SHARDS_KEPT_MAX {
            kept.pop_front();
        }
        Ok(laid)
    }

    fn missing(&self, key: &Key) -> Error {
        Error::new(
            ErrorKind::NotFound,
            "read",
            "the folder has no such virtual shard",
        )
        .at(self.location().join(key))
    }

    fn read_only(&self, key: &Key) -> Error {
        Error::new(ErrorKind::ReadOnly, "write", "virtual shards cannot be written")
            .at(self.location().join(key))
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Folder {
    fn location(&self) -> &Location {
        self.inner.location()
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        match self.metas.get(key) {
            Some((_, meta)) => Ok(meta.clone()),
            // What lies beside the shards.
            None => self.inner.head(key).await,
        }
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        mut buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        if !self.metas.contains_key(key) {
            return self.inner.read_into(key, span, buf, options).await;
        }
        let laid = self.laid(key)?;
        if span.end() > laid.bytes || (buf.len() as u64) < span.len() {
            let message = "the range ends beyond the virtual shard or the buffer";
            return Err(Error::new(ErrorKind::InvalidInput, "read", message).at(self.location().join(key)));
        }
        let first = laid
            .segments
            .partition_point(|(start, segment)| start + segment.bytes() <= span.start());
        let mut reads = Vec::new();
        for (start, segment) in laid.segments.iter().skip(first) {
            if *start >= span.end() {
                break;
            }
            let here = Span::at(*start, segment.bytes())?;
            let Some(part) = here.intersect(span) else {
                continue;
            };
            let rest = buf.split_off(part.len() as usize);
            let piece = std::mem::replace(&mut buf, rest);
            let within = Span::at(part.start() - start, part.len())?;
            reads.push(read_segment(
                &*self.inner,
                segment.clone(),
                within,
                piece,
                options,
            ));
        }
        let mut reads = stream::iter(reads).buffered(FILES_AT_ONCE_MAX);
        let mut joined: Option<AlignedBuf> = None;
        let mut ledger = Ledger::default();
        while let Some(done) = reads.try_next().await? {
            ledger.merge(&done.ledger);
            joined = Some(join(joined, done.buf)?);
        }
        let buf = join(joined, buf)?;
        Ok(ReadDone { buf, ledger })
    }

    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        self.inner.read_small(objects, buf, options).await
    }

    async fn put(&self, key: &Key, _body: Body, _options: &PutOptions) -> Result<PutDone> {
        Err(self.read_only(key))
    }

    async fn upload(&self, key: &Key, _options: &PutOptions) -> Result<Box<dyn Upload>> {
        Err(self.read_only(key))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        _state: serde_json::Value,
        _options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        Err(self.read_only(key))
    }

    fn list(&self, _prefix: &Key, _options: ListOptions) -> Listing {
        let rows: Vec<Result<Entry>> = self
            .shards()
            .into_iter()
            .map(|meta| Ok(Entry::Object(meta)))
            .collect();
        stream::iter(rows).boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        Err(self.read_only(key))
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        let _ = prefix;
        Ok(Vec::new())
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        Err(self.read_only(&upload.key))
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        Ok(Capabilities::untried("virtual shards are only read"))
    }
}

fn meta_of(key: Key, size: u64) -> ObjectMeta {
    ObjectMeta {
        key,
        size,
        version: None,
        modified: None,
        checksum: None,
        permissions: None,
    }
}

impl Dataset {
    /// The files of a plain folder, as they were listed when it was opened.
    pub(crate) fn files(&self) -> Option<&FileSet> {
        self.0.from.folder().map(|folder| folder.set())
    }

    /// One pass over these files of the folder, as a virtual shard of that name. `moved` is told of bytes as they come, and which way.
    pub(crate) async fn tabulate_files(
        &self,
        name: &Key,
        shard: FileShard,
        moved: impl Fn(u64, &Ledger) + Send + Sync + 'static,
    ) -> Result<Tabulated> {
        let meta = meta_of(name.clone(), shard.bytes());
        let folder = Folder::of_one(Arc::clone(self.store()), meta.clone(), shard)?;
        let folder = Arc::new(folder);
        let store = Arc::clone(&folder) as Arc<dyn Store>;
        let source = ShardSource::new(store, meta, self.context()).watched(moved);
        tabulate(&Files(folder), &source).await
    }
}

async fn read_segment(
    store: &dyn Store,
    segment: Segment,
    within: Span,
    mut buf: AlignedBuf,
    options: &ReadOptions,
) -> Result<ReadDone> {
    match segment {
        Segment::File(key, _) => {
            let options = ReadOptions {
                version: None,
                ..options.clone()
            };
            store.read_into(&key, within, buf, &options).await
        }
        Segment::Label(label) => {
            let part = label.get(within.relative_to(0)).unwrap_or_default();
            buf[..part.len()].copy_from_slice(part);
            Ok(ReadDone {
                buf,
                ledger: Ledger::of(DataPath::Memory, part.len() as u64, 0),
            })
        }
    }
}

/// Put a buffer that was cut together again; where a store gave other memory back, by copying.
fn join(before: Option<AlignedBuf>, next: AlignedBuf) -> Result<AlignedBuf> {
    let Some(mut before) = before else {
        return Ok(next);
    };
    match before.unsplit(next) {
        Ok(()) => Ok(before),
        Err(next) => AlignedBuf::copy_of(&[&before[..], &next[..]].concat()),
    }
}

/// The format of virtual shards.
#[derive(Debug)]
pub(super) struct Files(pub(super) Arc<Folder>);

#[async_trait]
impl Format for Files {
    fn name(&self) -> &'static str {
        super::registry::FILES
    }

    async fn scan(&self, source: &ShardSource) -> Result<Box<dyn Scan>> {
        let laid = self.0.laid(&source.meta().key)?;
        let all = 0..laid.shard.samples.len();
        Ok(Box::new(FolderScan::new(laid, all, 0)))
    }

    /// Files are as they are, whatever the first of them begins with.
    fn codec(&self, _key: &Key, _first: &[u8]) -> crate::codec::Codec {
        crate::codec::Codec::None
    }
}

/// A pass over a virtual shard, or over some samples in a row, of which everything but the checksums is known.
struct FolderScan {
    laid: Arc<Laid>,
    builder: TableBuilder,
    /// Samples that are still to come, the first of which may be open.
    samples: Range<usize>,
    /// Bytes that the open sample still wants.
    left: u64,
    at: u64,
}

impl FolderScan {
    /// Over samples whose bytes begin `at`.
    fn new(laid: Arc<Laid>, samples: Range<usize>, at: u64) -> Self {
        Self {
            builder: TableBuilder::new(laid.shard.fields.clone()),
            laid,
            samples,
            left: 0,
            at,
        }
    }

    /// Begin samples, and end those without bytes, until one wants some.
    fn begin(&mut self) -> Result<()> {
        let laid = Arc::clone(&self.laid);
        while self.left == 0 {
            if self.builder.is_open() {
                self.builder.end()?;
                self.samples.start += 1;
            }
            let next = laid.shard.samples.get(self.samples.clone());
            let Some(sample) = next.and_then(<[_]>::first) else {
                return Ok(());
            };
            self.builder.begin(self.at, Some(&sample.key))?;
            let mut at = self.at;
            for Member { size, field, .. } in &sample.members {
                self.builder.field(*field, at, *size)?;
                at += size;
            }
            if let (Some((column, _)), Some(label)) = (laid.shard.label, laid.shard.label_bytes(sample)) {
                self.builder.field(column, at, label.len() as u64)?;
                at += label.len() as u64;
            }
            self.left = at - self.at;
        }
        Ok(())
    }
}

impl Scan for FolderScan {
    fn feed(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            self.begin()?;
            let take = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            if take == 0 {
                let message = "a virtual shard of more bytes than its files";
                return Err(Error::new(ErrorKind::Internal, "read files", message));
            }
            let (own, rest) = bytes.split_at(take);
            self.builder.absorb(own);
            self.at += take as u64;
            self.left -= take as u64;
            bytes = rest;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Table> {
        self.begin()?;
        self.builder.finish()
    }
}
