//! From what a user names to files with checked headers: one file, a folder with or without an index, an index, or several of these.
//!
//! ```text
//! location --what is it?--> keys in a store --head, first bytes--> Header, version, checksums: a SourceFile each
//! ```
//!
//! The version of each file is kept and every read is pinned to it: a file that changes during a load is noticed.
//!
//! A store may also show something else as a file, and check by itself all that it gives ([`CheckedFile`]): a checkpoint is loaded so.

mod find;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::safetensors::{Header, LENGTH_BYTES, TensorInfo};
use forebay_core::{Error, ErrorKind, Key, Ledger, Location, Result, Scheme, Span};
use forebay_io::{AlignedBuf, Class, Pages};
use forebay_store::cache::CacheConfig;
use forebay_store::{Context, ObjectMeta, ReadOptions, Store, StoreExt};
use futures::FutureExt;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::hashes::{Hashes, SIDE_SUFFIX, Verify};
use crate::index::Index;
use crate::load_plan::{Cuts, Edges};
use crate::select::{Selection, Wanted};

/// Bytes read from the start of a file before anything of it is known: holds the whole header of most.
const FIRST_BYTES: u64 = 256 << 10;

/// Files opened side by side.
const OPEN_AT_ONCE: usize = 16;

/// A file with its header.
#[derive(Debug)]
pub struct SourceFile {
    /// Where it is, for messages.
    pub location: Location,
    /// The store that holds it.
    pub store: Arc<dyn Store>,
    /// Its name there.
    pub key: Key,
    /// Size and version when it was opened.
    pub meta: ObjectMeta,
    /// What it holds.
    pub header: Header,
    /// Its checksums, where there are any and they are wanted.
    pub hashes: Option<Hashes>,
    /// Where it is best cut, where it is a [`CheckedFile`].
    pub edges: Option<Edges>,
}

/// What a store shows as a file, and compares by itself with hashes made at writing time, all of it, before it gives it.
#[derive(Debug)]
pub struct CheckedFile {
    /// What there is instead of the file, for messages.
    pub location: Location,
    /// The store that shows it.
    pub store: Arc<dyn Store>,
    /// Its name there.
    pub key: Key,
    /// Where it is best cut.
    pub edges: Edges,
}

impl SourceFile {
    /// Its path, where it is a local file.
    pub fn path(&self) -> Option<PathBuf> {
        match self.edges {
            Some(_) => None,
            None => self.location.to_path(),
        }
    }

    /// True when all that is read of it is compared with what was made at writing time.
    pub fn is_checked(&self) -> bool {
        self.hashes.is_some() || self.edges.is_some()
    }

    /// Why its bytes must pass through host memory, where it is no local file.
    pub(crate) fn way_through_host(&self) -> String {
        match self.edges {
            Some(_) => format!("what is read from {} is verified in host memory", self.location),
            None => format!("{} is not a local file", self.location),
        }
    }

    /// Where it is cut; with edges of its own, into pieces of at most so many bytes.
    pub(crate) fn cuts(&self, piece_bytes_max: u64) -> Cuts<'_> {
        match (&self.edges, &self.hashes) {
            (Some(edges), _) => Cuts::Edges {
                edges,
                piece_bytes_max,
            },
            (None, Some(hashes)) => Cuts::Chunks(hashes.grid()),
            (None, None) => Cuts::Pages,
        }
    }

    /// How ranges of it are read: only of the version that was opened.
    pub fn read_options(&self) -> ReadOptions {
        ReadOptions {
            version: self.meta.version.clone(),
            class: Class::Latency,
            ..ReadOptions::default()
        }
    }
}

/// How a source is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Which checksums to look for.
    pub verify: Verify,
    /// Keep what comes from remote stores on local disks.
    pub cache: Option<CacheConfig>,
}

/// Everything that was named, opened.
#[derive(Debug, Clone, Default)]
pub struct Source {
    files: Vec<Arc<SourceFile>>,
    /// For each file, the index that says which of its tensors count, and its number there.
    indexed: Vec<Option<(Arc<Index>, usize)>>,
    /// What opening read.
    ledger: Ledger,
}

impl Source {
    /// Find and open everything at `locations`.
    pub async fn open(locations: &[Location], options: &OpenOptions, context: &Context) -> Result<Self> {
        let mut found = Vec::new();
        for location in locations {
            found.extend(find::find(location, options, context).await?);
        }
        Self::of_found(found, options.verify).await
    }

    /// Open a file that its store checks.
    pub async fn of_checked(file: CheckedFile) -> Result<Self> {
        let found = Found {
            location: file.location,
            store: file.store,
            key: file.key,
            index: None,
            edges: Some(file.edges),
        };
        Self::of_found(vec![found], Verify::Off).await
    }

    /// All of several sources, in their order.
    pub fn joined(sources: Vec<Self>) -> Result<Self> {
        let mut all = Self::default();
        for source in sources {
            all.files.extend(source.files);
            all.indexed.extend(source.indexed);
            all.ledger.merge(&source.ledger);
        }
        all.check_twins()?;
        Ok(all)
    }

    async fn of_found(found: Vec<Found>, verify: Verify) -> Result<Self> {
        let mut source = Self {
            files: Vec::new(),
            indexed: found.iter().map(|file| file.index.clone()).collect(),
            ledger: Ledger::default(),
        };
        let opened: Vec<(SourceFile, Ledger, Option<Error>)> = stream::iter(found)
            .map(|file| async move { open_file(&file, verify).await }.boxed())
            .buffered(OPEN_AT_ONCE)
            .try_collect()
            .await?;
        let mut denied = Vec::new();
        for (file, ledger, refusal) in opened {
            source.ledger.merge(&ledger);
            source.files.push(Arc::new(file));
            denied.extend(refusal);
        }
        if let Some(first) = denied.first() {
            tracing::warn!(
                "whether there are checksums beside {} of {} files is not known, and none are looked for: {first}",
                denied.len(),
                source.files.len()
            );
        }
        source.check_indices()?;
        source.check_twins()?;
        Ok(source)
    }

    /// The files.
    pub fn files(&self) -> &[Arc<SourceFile>] {
        &self.files
    }

    /// What opening read.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Every tensor that counts, with its file, in file order.
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        self.files.iter().enumerate().flat_map(move |(number, file)| {
            let tensors = file.header.tensors().iter();
            tensors
                .filter(move |info| self.counts(number, info))
                .map(move |info| (number, info))
        })
    }

    /// What a selection wants of it.
    pub fn wanted(&self, selection: &Selection) -> Result<Vec<Wanted>> {
        let headers = self.files.iter().map(|file| &file.header);
        selection.wanted(headers, |file, info| self.counts(file, info))
    }

    /// False for a tensor that the index has elsewhere, or not at all.
    fn counts(&self, file: usize, info: &TensorInfo) -> bool {
        match self.indexed.get(file) {
            Some(Some((index, number))) => index.weights().get(&info.name) == Some(number),
            _ => true,
        }
    }

    /// Every tensor of an index is in the file it names.
    fn check_indices(&self) -> Result<()> {
        let mut checked: Vec<&Arc<Index>> = Vec::new();
        for (index, _) in self.indexed.iter().flatten() {
            if checked.iter().any(|other| Arc::ptr_eq(other, index)) {
                continue;
            }
            checked.push(index);
            let files: BTreeMap<usize, &Arc<SourceFile>> = self
                .indexed
                .iter()
                .zip(&self.files)
                .filter_map(|(indexed, file)| {
                    let (own, number) = indexed.as_ref()?;
                    Arc::ptr_eq(own, index).then_some((*number, file))
                })
                .collect();
            for (name, number) in index.weights() {
                let Some(file) = files.get(number) else { continue };
                if file.header.get(name).is_none() {
                    let message = format!(
                        "the index says that tensor '{}' is here, but it is not",
                        name.escape_debug()
                    );
                    return Err(Error::new(ErrorKind::Corrupt, "open", message)
                        .at(&file.location)
                        .with_hint("index and files belong to different versions; fetch both again"));
                }
            }
        }
        Ok(())
    }

    /// No name counts twice.
    fn check_twins(&self) -> Result<()> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for (file, info) in self.tensors() {
            if let Some(other) = seen.insert(&info.name, file) {
                let message = format!(
                    "tensor '{}' is in {}, too",
                    info.name.escape_debug(),
                    self.files[other].location
                );
                return Err(Error::new(ErrorKind::InvalidInput, "open", message)
                    .at(&self.files[file].location)
                    .with_hint("name the files to load one by one, or write an index"));
            }
        }
        Ok(())
    }
}

/// A file that is to be opened.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) location: Location,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) key: Key,
    pub(crate) index: Option<(Arc<Index>, usize)>,
    /// Where it is best cut, where its store checks it.
    pub(crate) edges: Option<Edges>,
}

/// Gives the refusal, too, where it was not allowed to look for checksums and none are required.
async fn open_file(found: &Found, verify: Verify) -> Result<(SourceFile, Ledger, Option<Error>)> {
    let at = |error: Error| error.at(&found.location);
    let meta = found
        .store
        .head(&found.key)
        .await
        .map_err(|error| missing(found, error))?;
    let options = ReadOptions {
        version: meta.version.clone(),
        class: Class::Latency,
        ..ReadOptions::default()
    };
    let first = match found.edges {
        None => FIRST_BYTES.min(meta.size),
        // Of what its store checks, a byte behind the header would cost a chunk.
        Some(_) => LENGTH_BYTES.min(meta.size),
    };
    let (mut prefix, mut ledger) = read(found, &found.key, first, &options).await?;
    let needed = Header::prefix_bytes(&prefix, meta.size).map_err(at)?;
    if needed > first {
        let (whole, more) = read(found, &found.key, needed, &options).await?;
        ledger.merge(&more);
        prefix = whole;
    }
    let header = Header::parse(&prefix, meta.size).map_err(at)?;
    let (hashes, denied) = match verify {
        Verify::Off => (None, None),
        Verify::Prefer | Verify::Require => {
            let (hashes, more, denied) = hashes(found, &header, &prefix).await?;
            ledger.merge(&more);
            (hashes, denied)
        }
    };
    if verify == Verify::Require && hashes.is_none() {
        if let Some(denied) = denied {
            return Err(denied);
        }
        let message = "verification is required, but there are no checksums of this file";
        return Err(at(Error::new(ErrorKind::Unsupported, "verify", message)
            .with_hint(
                "make them with `forebay load FILE --write-hashes`, or do not require them",
            )));
    }
    let file = SourceFile {
        location: found.location.clone(),
        store: Arc::clone(&found.store),
        key: found.key.clone(),
        meta,
        header,
        hashes,
        edges: found.edges.clone(),
    };
    Ok((file, ledger, denied))
}

/// A file that an index names and that is not there deserves better words.
fn missing(found: &Found, error: Error) -> Error {
    if error.kind() != ErrorKind::NotFound || found.index.is_none() {
        return error.at(&found.location);
    }
    let message = "the index names this file, but it is not there";
    Error::new(ErrorKind::NotFound, "open", message)
        .at(&found.location)
        .with_source(error)
        .with_hint("the download is not complete; fetch the missing file")
}

/// Checksums beside the file, else in its header. Object stores refuse whoever may not list to say that an object is missing, so a refusal counts as
/// missing, and is told.
async fn hashes(
    found: &Found,
    header: &Header,
    prefix: &[u8],
) -> Result<(Option<Hashes>, Ledger, Option<Error>)> {
    let name = format!("{}{SIDE_SUFFIX}", found.key);
    let Ok(key) = Key::parse(&name) else {
        return Ok((None, Ledger::default(), None));
    };
    let at = |error: Error| error.at(found.store.location().join(&key));
    let meta = match found.store.head(&key).await {
        Ok(meta) => meta,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            let hashes = Hashes::parse_header(header, prefix).map_err(|error| error.at(&found.location))?;
            let is_denied = hashes.is_none() && error.kind() == ErrorKind::PermissionDenied;
            return Ok((hashes, Ledger::default(), is_denied.then_some(error)));
        }
        Err(error) => return Err(error),
    };
    if meta.size > Hashes::side_bytes_max(header.file_len()) {
        let message = format!("{} bytes are too many for the checksums of this file", meta.size);
        return Err(at(Error::new(ErrorKind::Corrupt, "read checksums", message)));
    }
    let options = ReadOptions {
        version: meta.version.clone(),
        ..ReadOptions::default()
    };
    let (bytes, ledger) = read(found, &key, meta.size, &options).await?;
    let hashes = Hashes::parse_side(&bytes, header.file_len()).map_err(at)?;
    let more = check_header(found, header, prefix, &hashes).await?;
    let mut ledger = ledger;
    ledger.merge(&more);
    Ok((Some(hashes), ledger, None))
}

/// Compare the header that was parsed: all chunks that it has bytes in.
async fn check_header(found: &Found, header: &Header, prefix: &[u8], hashes: &Hashes) -> Result<Ledger> {
    let start = header.data_start();
    let wide = start
        .next_multiple_of(hashes.grid().chunk_bytes)
        .min(header.file_len());
    let (bytes, ledger) = read(found, &found.key, wide, &ReadOptions::default()).await?;
    hashes
        .check_prefix(&bytes)
        .map_err(|bad| bad.error(header).at(&found.location))?;
    if bytes.get(..start as usize) == prefix.get(..start as usize) {
        return Ok(ledger);
    }
    let message = "the header changed while it was read";
    Err(Error::new(ErrorKind::Precondition, "open", message).at(&found.location))
}

/// The first `len` bytes of an object.
async fn read(found: &Found, key: &Key, len: u64, options: &ReadOptions) -> Result<(AlignedBuf, Ledger)> {
    let mut buf = AlignedBuf::alloc(len as usize, Pages::Small)?;
    if len == 0 {
        return Ok((buf, Ledger::default()));
    }
    let done = found.store.read_into(key, Span::first(len), buf, options).await?;
    buf = done.buf;
    buf.set_len(len as usize);
    Ok((buf, done.ledger))
}

/// Whether reading it costs round trips.
pub(crate) fn is_remote(location: &Location) -> bool {
    !matches!(location.scheme(), Scheme::File | Scheme::Mem)
}

/// Write the checksums of a file beside it, by reading all of it.
pub async fn write_hashes(file: &SourceFile, context: &Context) -> Result<Key> {
    if file.edges.is_some() {
        let message = "this has hashes of its own already, and all that is loaded is compared with them";
        return Err(Error::new(ErrorKind::Unsupported, "write checksums", message).at(&file.location));
    }
    let mut hasher = crate::hashes::ChunkHasher::default();
    let options = file.read_options();
    let mut at = 0;
    while at < file.meta.size {
        let span = Span::at(at, HASH_READ_BYTES.min(file.meta.size - at))?;
        let (bytes, _) = file.store.read(&file.key, span, &options, context).await?;
        hasher.update(&bytes);
        at = span.end();
    }
    let hashes = Hashes::of_file(file.meta.size, hasher.finish());
    let key = Key::parse(&format!("{}{SIDE_SUFFIX}", file.key))?;
    file.store
        .put_bytes(&key, &hashes.encode_side(), &forebay_store::PutOptions::default())
        .await?;
    Ok(key)
}

/// Bytes read at a time while checksums are made: enough for the disk, small beside the pool.
const HASH_READ_BYTES: u64 = 32 << 20;
