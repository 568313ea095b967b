//! Objects as files below a directory.
//!
//! A key is a path below the root, so the store holds ordinary files that any tool can read. Reads go through the disk engine into the
//! caller's buffer. Writes are durable and atomic: a hidden temporary file in the same directory is written, synced, renamed over
//! the name, and the directory is synced ([`draft`], [`dir_sync`]). A write that fails, is dropped or is killed leaves the old
//! content; temporary files of dead processes are removed by whoever meets them ([`sweep`]).
//!
//! ```text
//! put:  Body -> [runs] -> draft file -> sync -> rename -> sync of the directory (shared by all writers into it)
//! read: key -> stat -> open file (or one of [open_files]) -> caller's buffer -> stat again
//!                        `-> what is in the page cache, where the caller takes it from there: copied by threads of its own
//! list: directories, depth first, in the byte order of whole keys ([walk])
//! ```

mod dir_sync;
mod draft;
mod explain;
mod open_files;
mod probe;
mod runs;
mod sweep;
mod upload;
mod walk;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Location, PathPolicy, Result, Span};
use forebay_io::{Access, AlignedBuf, Disk, File, FileKind, FileStat, NameOp, OpenHow, is_resident};

use self::dir_sync::DirSyncs;
use self::draft::{Draft, Wanted};
pub use self::draft::{ForkHold, hold_for_fork, remove_drafts};
use self::explain::{because, explain, is_not_a_directory};
use self::open_files::OpenFiles;
use self::probe::Probed;
use self::sweep::Swept;
use crate::context::Context;
use crate::ext::read_each;
use crate::memory::check_span;
use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, PutDone, PutMode, PutOptions, ReadDone,
    ReadOptions, Store, Upload, WriteCheck,
};

/// How the names of files in the making begin. They are hidden from listings, and no key may have such a part.
const TEMP_PREFIX: &str = ".forebay-tmp-";

/// Times a file is opened again because its name was given to another file in between. Each needs a rename within microseconds.
const OPEN_TRIES_MAX: usize = 16;

/// Times a write is begun again because its draft was swept away: each needs a sweeper within the microseconds before it is locked.
const PUT_TRIES_MAX: usize = 3;

/// Bodies of at least this size are written only after a look at the target: a small one is refused as fast by trying.
const CHECK_BYTES_MIN: u64 = 1 << 20;

/// Why bytes came through the page cache although the file offers direct I/O.
const COPIED_BECAUSE: &str = "they were in the page cache already, from where they come faster";

/// Objects as files below a directory; clones share its open files.
#[derive(Debug, Clone)]
pub struct LocalStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    location: Location,
    root: PathBuf,
    context: Context,
    files: OpenFiles,
    dir_syncs: DirSyncs,
    swept: Swept,
    probed: Probed,
}

impl LocalStore {
    /// The store rooted at a directory, which need not exist yet: writing makes it.
    pub fn open(location: &Location, context: &Context) -> Result<Self> {
        let root = location.to_path().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "open", "this is not a local path").at(location)
        })?;
        Ok(Self(Arc::new(Shared {
            location: location.clone(),
            root,
            context: context.clone(),
            files: OpenFiles::default(),
            dir_syncs: DirSyncs::default(),
            swept: Swept::default(),
            probed: Probed::default(),
        })))
    }
}

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    identity: (u64, u64),
    size: u64,
    modified_ns: i64,
    /// Tools that write in place may set the time of modification back; this one nobody can.
    changed_ns: i64,
}

impl Stamp {
    fn of(stat: &FileStat) -> Self {
        Self {
            identity: stat.identity,
            size: stat.size,
            modified_ns: stat.modified_ns,
            changed_ns: stat.changed_ns,
        }
    }

    /// The version callers see.
    fn version(&self) -> String {
        let Self {
            identity: (_, inode),
            size,
            modified_ns,
            changed_ns,
        } = self;
        format!("{inode}-{size}-{modified_ns}-{changed_ns}")
    }

    /// The same content as far as it shows: another name or other permissions count as changes, too.
    fn is_like(&self, other: &Self) -> bool {
        let changed_ns = other.changed_ns;
        Self { changed_ns, ..*self } == *other
    }
}

fn meta_of(key: Key, stat: &FileStat) -> ObjectMeta {
    ObjectMeta {
        key,
        size: stat.size,
        version: Some(Stamp::of(stat).version()),
        modified: Some(Duration::from_nanos(stat.modified_ns.max(0) as u64)),
        checksum: None,
        permissions: Some(stat.permissions),
    }
}

/// A file to read from.
struct Opened {
    file: Arc<File>,
    /// It was opened before its name was looked at: it is what the name meant then.
    is_kept: bool,
}

impl Shared {
    fn disk(&self) -> &Disk {
        self.context.disk()
    }

    /// Where the object of that key is; refuses what is no object's name.
    fn path_of(&self, op: &'static str, key: &Key) -> Result<PathBuf> {
        let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidInput, op, message));
        if key.is_root() {
            return refuse("an object is needed, but this names the whole store")
                .map_err(|error: Error| error.at(&self.location));
        }
        if key.as_str().split('/').any(|part| part.starts_with(TEMP_PREFIX)) {
            return refuse("names that begin with .forebay-tmp- are kept for files in the making")
                .map_err(|error: Error| error.at(self.location.join(key)));
        }
        Ok(self.root.join(key.as_str()))
    }

    /// Stat a file that is to be read: everything but a file is refused by name.
    async fn stat_object(&self, op: &'static str, path: &Path) -> Result<FileStat> {
        match self.disk().stat(path).await {
            Ok(stat) if stat.kind == FileKind::File => Ok(stat),
            Ok(stat) if stat.kind == FileKind::Dir => {
                Err(
                    Error::new(ErrorKind::NotFound, op, "this is a directory, not an object")
                        .at(path.display())
                        .with_hint("list it, or name a file in it"),
                )
            }
            Ok(_) => {
                Err(Error::new(ErrorKind::InvalidInput, op, "this is not a regular file").at(path.display()))
            }
            Err(error) if error.kind() == ErrorKind::NotFound || is_not_a_directory(&error) => {
                self.files.forget(path);
                Err(self.not_found(op, path, error).await)
            }
            Err(error) => Err(explain(op, path, error)),
        }
    }

    /// Say whether the object or the whole store is missing.
    async fn not_found(&self, op: &'static str, path: &Path, error: Error) -> Error {
        let root_is_missing =
            matches!(self.disk().stat(&self.root).await, Err(error) if error.kind() == ErrorKind::NotFound);
        let message = if root_is_missing {
            format!("the directory {} does not exist", self.root.display())
        } else {
            String::new()
        };
        because(
            Error::new(ErrorKind::NotFound, op, message).at(path.display()),
            error,
        )
    }

    /// Read from a file that is open already and was of the version asked for when it was opened. It is looked at once, after the read (by the caller,
    /// who may have more to read): a file that is what it was has been so all the time. The buffer comes back where no such file is open, or its name means something else by now.
    async fn read_kept(
        &self,
        path: &Path,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<Result<ReadDone, AlignedBuf>> {
        // Whether bytes are in the page cache is for the usual way to find out.
        let is_for_us = !span.is_empty() && !options.from_page_cache;
        let version = options.version.as_deref().filter(|_| is_for_us);
        let kept = version.and_then(|version| self.files.of_version(path, options.policy, version));
        let Some((stamp, file)) = kept else {
            return Ok(Err(buf));
        };
        check_span(span, stamp.size, buf.len()).map_err(|error| error.at(path.display()))?;
        let read = self.disk().try_read_into(&file, span, buf, options.class).await;
        let (buf, read) = read.map_err(|error| explain("read", path, error))?;
        let Ok(ledger) = read else {
            // Perhaps because it is not the file any more, which the usual way tells.
            return Ok(Err(buf));
        };
        if options.caller_looks {
            return Ok(Ok(ReadDone { buf, ledger }));
        }
        match self.disk().stat(path).await {
            Ok(stat) if Stamp::of(&stat) == stamp => Ok(Ok(ReadDone { buf, ledger })),
            _ => Ok(Err(buf)),
        }
    }

    /// Read from whatever file `path` names now. The stamps before opening and after reading tell which file that was, so that a read
    /// costs two stats and not three; only where they differ and a version was asked for is it done again.
    async fn read_at(
        &self,
        path: &Path,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let mut buf = match self.read_kept(path, span, buf, options).await? {
            Ok(done) => return Ok(done),
            Err(buf) => buf,
        };
        for _ in 0..OPEN_TRIES_MAX {
            let stamp = Stamp::of(&self.stat_object("read", path).await?);
            check_version(path, &stamp, options)?;
            let (mut disk, mut policy) = (self.disk(), options.policy);
            let Some(mut opened) = self.opened(disk, path, policy, &stamp).await? else {
                continue;
            };
            let mut probed = None;
            if is_copied(&opened.file, span, options) {
                probed = (!opened.is_kept).then(|| Arc::clone(&opened.file));
                (disk, policy) = (
                    self.context.copying_disk()?,
                    PathPolicy::Require(DataPath::Buffered),
                );
                match self.opened(disk, path, policy, &stamp).await? {
                    Some(copied) => opened = copied,
                    None => continue,
                }
            }
            let Opened { file, is_kept } = opened;
            check_span(span, file.size(), buf.len()).map_err(|error| error.at(path.display()))?;
            let mut ledger = Ledger::default();
            if !span.is_empty() {
                let read = disk.read_into(&file, span, buf, options.class).await;
                (buf, ledger) = read.map_err(|error| explain("read", path, error))?;
            }
            if policy != options.policy {
                // The disk only knows that the page cache was asked for.
                ledger.downgrades.clear();
                ledger.record_downgrade(DataPath::DirectUring, DataPath::Buffered, COPIED_BECAUSE);
            }
            match self.disk().stat(path).await {
                Ok(stat) if Stamp::of(&stat) == stamp => {
                    let opened = (!is_kept).then_some((policy, file));
                    let probed = probed.map(|file| (options.policy, file));
                    for (policy, file) in opened.into_iter().chain(probed) {
                        self.files.keep(path, policy, stamp, &file);
                    }
                }
                // Somebody linked it or changed its mode, or has written to it and set the time back: read again to be sure.
                Ok(stat) if Stamp::of(&stat).is_like(&stamp) => continue,
                Ok(stat) if stat.identity == stamp.identity => return Err(changed(path)),
                // The name means another file by now. A kept file is known to be the one that was asked for; any other is whole too, but
                // of which version is anybody's guess.
                _ if is_kept || options.version.is_none() => {}
                _ => continue,
            }
            return Ok(ReadDone { buf, ledger });
        }
        let message = "the file is being replaced faster than it can be opened";
        Err(Error::new(ErrorKind::Precondition, "read", message).at(path.display()))
    }

    /// The file that `path` names, kept open or opened now; `None` when it is gone since it was looked at.
    async fn opened(
        &self,
        disk: &Disk,
        path: &Path,
        policy: PathPolicy,
        stamp: &Stamp,
    ) -> Result<Option<Opened>> {
        if let Some(file) = self.files.get(path, policy, stamp) {
            return Ok(Some(Opened { file, is_kept: true }));
        }
        match disk.open_file(path, OpenHow::READ, policy).await {
            Ok(file) => Ok(Some(Opened { file, is_kept: false })),
            // Looking again says so better.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(explain("read", path, error)),
        }
    }

    /// An early answer for writers: what is at `path` now does not allow the write.
    async fn check_target(&self, op: &'static str, path: &Path, mode: PutMode) -> Result<()> {
        match self.disk().stat(path).await {
            Ok(stat) if stat.kind == FileKind::Dir => Err(Error::new(
                ErrorKind::InvalidInput,
                op,
                "a directory stands where the object should be",
            )
            .at(path.display())
            .with_hint("choose another name, or remove the directory")),
            Ok(_) if mode == PutMode::IfAbsent => {
                Err(Error::new(ErrorKind::AlreadyExists, op, "").at(path.display()))
            }
            // Whatever else is wrong is told better by the write itself.
            _ => Ok(()),
        }
    }

    async fn put_at(&self, path: &Path, body: &Body, options: &PutOptions) -> Result<PutDone> {
        let size = body.len();
        // Otherwise the rename refuses soon enough.
        if options.mode == PutMode::IfAbsent || size >= CHECK_BYTES_MIN {
            self.check_target("put", path, options.mode).await?;
        }
        let mut result = self.put_once(path, body, options).await;
        for _ in 1..PUT_TRIES_MAX {
            match result {
                // A sweeper took the draft for a dead writer's before it was locked, or somebody removed the directory.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    result = self.put_once(path, body, options).await;
                }
                _ => break,
            }
        }
        match result {
            Ok(done) => {
                self.files.forget(path);
                Ok(done)
            }
            Err(error) => {
                if error.kind() == ErrorKind::InvalidInput {
                    self.check_target("put", path, PutMode::Replace).await?;
                }
                Err(explain("put", path, error))
            }
        }
    }

    async fn put_once(&self, path: &Path, body: &Body, options: &PutOptions) -> Result<PutDone> {
        let size = body.len();
        let wanted = Wanted {
            size: Some(size),
            size_min: size,
            policy: options.policy,
            permissions: options.permissions,
            can_repeat: true,
        };
        let draft = Draft::create(self, path, wanted).await?;
        let (version, crc64nvme, ledger) = self.fill(draft, body, options).await?;
        Ok(PutDone {
            version: Some(version),
            size,
            crc64nvme,
            check: WriteCheck::Durable,
            ledger,
        })
    }

    /// Write a body into a draft and commit it.
    async fn fill(&self, draft: Draft, body: &Body, options: &PutOptions) -> Result<(String, u64, Ledger)> {
        let size = body.len();
        let (crc64nvme, ledger) = runs::write(self.disk(), draft.file(), body, options.class).await?;
        if is_padded(draft.file(), size) {
            draft.trim(size).await?;
        }
        let version = draft.commit(self, size, options.mode).await?;
        Ok((version, crc64nvme, ledger))
    }
}

/// Whether a read takes what is in the page cache from there.
fn is_copied(file: &File, span: Span, options: &ReadOptions) -> bool {
    options.from_page_cache
        && options.policy == PathPolicy::Fastest
        && matches!(file.access(), Access::Direct { .. })
        && is_resident(file, span)
}

/// Whether writing `size` bytes leaves padding behind the last of them.
fn is_padded(file: &File, size: u64) -> bool {
    matches!(*file.access(), Access::Direct { align } if !size.is_multiple_of(align.into()))
}

fn check_version(path: &Path, stamp: &Stamp, options: &ReadOptions) -> Result<()> {
    match &options.version {
        Some(version) if *version != stamp.version() => {
            let message = format!("version {version} was asked for, but it is {}", stamp.version());
            Err(Error::new(ErrorKind::Precondition, "read", message)
                .at(path.display())
                .with_hint(
                    "the file was written, moved or given other rights since it was opened: open it again",
                ))
        }
        _ => Ok(()),
    }
}

fn changed(path: &Path) -> Error {
    Error::new(
        ErrorKind::Precondition,
        "read",
        "the file changed while it was read",
    )
    .at(path.display())
    .with_hint("something writes to it in place; replace files by renaming, as this store does")
}

#[async_trait]
impl Store for LocalStore {
    fn location(&self) -> &Location {
        &self.0.location
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let path = self.0.path_of("head", key)?;
        let stat = self.0.stat_object("head", &path).await?;
        Ok(meta_of(key.clone(), &stat))
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let path = self.0.path_of("read", key)?;
        self.0.read_at(&path, span, buf, options).await
    }

    /// Many in one turn of a thread. What would not be worth a turn of its own goes through the page cache; direct reads that are required are done one by one.
    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        if matches!(options.policy, PathPolicy::Require(_)) {
            return read_each(self, objects, buf, options).await;
        }
        let files = objects
            .iter()
            .map(|(key, size)| Ok((self.0.path_of("read", key)?, *size)));
        let files = files.collect::<Result<_>>()?;
        let read = self.0.disk().read_files(files, buf, options.class).await;
        let (buf, ledger) = read?;
        Ok(ReadDone { buf, ledger })
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        let path = self.0.path_of("put", key)?;
        self.0.put_at(&path, &body, options).await
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        let path = self.0.path_of("upload", key)?;
        let upload = upload::LocalUpload::begin(&self.0, path, options).await?;
        Ok(Box::new(upload))
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        walk::list(&self.0, prefix, options)
    }

    /// The name is gone when this returns; that it stays gone after a power failure is not promised, as with `rm`.
    async fn delete(&self, key: &Key) -> Result<()> {
        let path = self.0.path_of("delete", key)?;
        self.0.files.forget(&path);
        match self.0.disk().name(NameOp::Unlink { path: path.clone() }).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound || is_not_a_directory(&error) => Ok(()),
            Err(error) => match self.0.check_target("delete", &path, PutMode::Replace).await {
                Ok(()) => Err(explain("delete", &path, error)),
                Err(_) => Err(Error::new(
                    ErrorKind::InvalidInput,
                    "delete",
                    "this is a directory, not an object",
                )
                .at(path.display())
                .with_hint("delete the objects below it")),
            },
        }
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        probe::capabilities(&self.0).await
    }
}
