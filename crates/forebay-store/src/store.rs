//! The seam: what every store can do, and the contract each of them is held to.
//!
//! The contract is written on [`Store`] and checked by [`conformance`](crate::conformance), which every store and every wrapper
//! passes. Buffers belong to the caller: a read takes one, fills it and gives it back; a write takes shared frozen ones. Every result carries a
//! [`Ledger`].

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use forebay_core::{Error, ErrorKind, Key, Ledger, Location, PathPolicy, Result, Span, crc64nvme};
use forebay_io::{AlignedBuf, Buf, Class};
use futures::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::ext::read_each;

/// What is known of an object without reading it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMeta {
    /// Its name in the store.
    pub key: Key,
    /// Size in bytes.
    pub size: u64,
    /// Changes whenever the content does (ETag; for files: inode, size and times of change). Opaque.
    pub version: Option<String>,
    /// Last change, time since 1970.
    pub modified: Option<Duration>,
    /// A checksum of the whole object that the store keeps.
    pub checksum: Option<Checksum>,
    /// Permission bits, where objects are files: for copies, which must not open to others what was closed to them.
    #[serde(skip)]
    pub permissions: Option<u32>,
}

/// A checksum of a whole object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Checksum {
    /// CRC-32C.
    Crc32c(u32),
    /// CRC-64/NVME, the one S3 keeps for whole multipart objects.
    Crc64Nvme(u64),
}

/// How to read.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// Only this version: `Precondition` when the object is another one by now. Ranges of one object read side by side must name it.
    pub version: Option<String>,
    /// Class of service for local I/O.
    pub class: Class,
    /// Which data paths are acceptable.
    pub policy: PathPolicy,
    /// The caller compares what it reads with checksums of its own, and reads again without this where they do not hold: a cache gives what it
    /// holds without reading the rest of its blocks only to check them.
    pub caller_checks: bool,
    /// The caller has many ranges of one version to read, looks at the object once more after the last of them ([`Store::head`]), and uses nothing if it is another
    /// version by then: a store need not look after each range. Not for stores whose `head` may remember, or answer from another place than was read.
    pub caller_looks: bool,
    /// What is in the page cache already is copied from there. Without this, files are read around it: whoever checks what is on a disk has to.
    pub from_page_cache: bool,
}

/// A finished read.
#[derive(Debug)]
pub struct ReadDone {
    /// The caller's buffer; its first `span.len()` bytes are the object's. A wrapper that had to try again may give another one of the
    /// same length, since a failed read keeps its buffer.
    pub buf: AlignedBuf,
    /// Which way they came.
    pub ledger: Ledger,
}

/// The content of an object to be written, in order, without joining it.
#[derive(Debug, Clone, Default)]
pub struct Body(Vec<Buf>);

impl Body {
    /// The pieces.
    pub fn pieces(&self) -> &[Buf] {
        &self.0
    }

    /// Bytes over all pieces.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|piece| piece.len() as u64).sum()
    }

    /// True when there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Buf> for Body {
    fn from(buf: Buf) -> Self {
        Self(vec![buf])
    }
}

impl From<Vec<Buf>> for Body {
    fn from(pieces: Vec<Buf>) -> Self {
        Self(pieces)
    }
}

/// What to do when the object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PutMode {
    /// Replace it, atomically: readers see the old or the new content.
    #[default]
    Replace,
    /// Fail with `AlreadyExists` and leave it alone. Of several writers racing, exactly one wins; a store whose probe does not
    /// show that refuses with `Unsupported`.
    IfAbsent,
}

/// How to write.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// When the object exists.
    pub mode: PutMode,
    /// Class of service for local I/O.
    pub class: Class,
    /// Which data paths are acceptable.
    pub policy: PathPolicy,
    /// Size of the whole object, where the caller of `upload` knows it.
    pub size_hint: Option<u64>,
    /// Permission bits of a new file before the umask, where objects are files; `None` for what files there usually have.
    pub permissions: Option<u32>,
    /// A name of this write that no other write has, the same for all tries of it. A store that can keep it with the object knows its own
    /// write again when a reply was lost; `None` leaves it to the store. [`Retried`](crate::wrap::Retried) sets it.
    pub write_id: Option<String>,
}

/// How far a write was checked by the time it returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteCheck {
    /// The store compared the bytes with our checksum, and its probe showed that it does.
    ByStore,
    /// The operating system reported the bytes durable.
    Durable,
    /// Nobody compared anything; read it back to be sure.
    Unchecked,
}

/// A finished write.
#[derive(Debug, Clone)]
pub struct PutDone {
    /// Version of what was written, where the store tells.
    pub version: Option<String>,
    /// Size written.
    pub size: u64,
    /// CRC-64/NVME of what was written, computed from the caller's buffers.
    pub crc64nvme: u64,
    /// How far it was checked.
    pub check: WriteCheck,
    /// Which way the bytes went.
    pub ledger: Ledger,
}

/// How to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ListOptions {
    /// Everything below the prefix (true), or only the next level with common prefixes (false).
    pub recursive: bool,
}

/// One row of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// An object.
    Object(ObjectMeta),
    /// A common prefix (a directory), only in listings that are not recursive.
    Prefix(Key),
}

impl Entry {
    /// Name of the object or prefix.
    pub fn key(&self) -> &Key {
        match self {
            Self::Object(meta) => &meta.key,
            Self::Prefix(key) => key,
        }
    }
}

/// An upload in parts that was begun and neither completed nor given up: nobody sees it, and what it holds is paid for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenUpload {
    /// The object that it would have become.
    pub key: Key,
    /// What the store calls it.
    pub id: String,
    /// When it was begun, time since 1970, by the clock of the store.
    pub begun: Option<Duration>,
}

/// Most uploads that [`Store::open_uploads`] gives: who has more of them asks again when these are gone.
pub const OPEN_UPLOADS_MAX: usize = 10_000;

/// A stream of rows. An error row about one name (such as one that is not UTF-8) does not end the stream; the consumer must report it. What is
/// there but is no object gives a row, in recursive listings, that [`is_special_file`] knows; it may be passed over, but a copy is less
/// than the whole without it.
pub type Listing = BoxStream<'static, Result<Entry>>;

/// What listings say they do with what is no object.
pub(crate) const LEAVE_OUT: &str = "leave out";

/// True for the row of a listing that is about a socket, a FIFO or a device.
pub fn is_special_file(row: &Error) -> bool {
    row.op() == LEAVE_OUT
}

/// What a probe found out about one ability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proof {
    /// Tried, and it held.
    Shown,
    /// Tried, and it did not hold; in words.
    Refuted(String),
    /// Not tried, and why.
    Untried(String),
}

impl Proof {
    /// True only when it was tried and held.
    pub fn is_shown(&self) -> bool {
        *self == Self::Shown
    }
}

/// What a store can be relied on for, from a probe and not from its claims.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// A range of an object can be read, and is the right one.
    pub range: Proof,
    /// Reading under a stale version is refused.
    pub version_match: Proof,
    /// Of racing `put`s with [`PutMode::IfAbsent`], one wins.
    pub put_if_absent: Proof,
    /// The same at the completion of an upload in parts.
    pub upload_if_absent: Proof,
    /// A wrong checksum of a whole object is refused.
    pub checksum: Proof,
    /// A wrong checksum of a part is refused.
    pub upload_checksum: Proof,
    /// Uploads in parts work, and become visible only when complete.
    pub multipart: Proof,
    /// Time of the probe, since 1970.
    pub probed: Option<Duration>,
}

impl Capabilities {
    /// Nothing was tried, for that reason.
    pub fn untried(why: &str) -> Self {
        let untried = || Proof::Untried(why.to_owned());
        Self {
            range: untried(),
            version_match: untried(),
            put_if_absent: untried(),
            upload_if_absent: untried(),
            checksum: untried(),
            upload_checksum: untried(),
            multipart: untried(),
            probed: None,
        }
    }

    /// The abilities with their names, in the order tables show them.
    pub fn rows(&self) -> [(&'static str, &Proof); 7] {
        [
            ("range", &self.range),
            ("version_match", &self.version_match),
            ("put_if_absent", &self.put_if_absent),
            ("upload_if_absent", &self.upload_if_absent),
            ("checksum", &self.checksum),
            ("upload_checksum", &self.upload_checksum),
            ("multipart", &self.multipart),
        ]
    }
}

/// A place with objects in it.
///
/// Contract, held by [`conformance`](crate::conformance):
/// - an object that was put is there for every reader at once, whole; a failed or abandoned write leaves the old content or nothing;
/// - `read_into` fills exactly `span` or fails: `NotFound`, `Precondition` when the version changed, `InvalidInput` when the span
///   ends beyond the object or the buffer is too short; it never returns other bytes than the object's;
/// - `delete` of what is not there is fine (object stores cannot tell);
/// - `list` gives every object below the prefix once, sorted by key within one store (a common prefix sorts with a `/` behind its
///   name, which is where its objects would be); the prefix counts in whole parts (`a` lists `a/b` and the object `a` itself, not
///   `ab`);
/// - errors carry kind, operation and place, and never a credential;
/// - dropping a future at any time leaks nothing and leaves nothing half-made visible.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync {
    /// Where it is, for messages and for naming objects.
    fn location(&self) -> &Location;

    /// Which store this is: what is kept on disk about its objects is kept under this name, and two stores of one name hold the same
    /// objects. Not the same as the location, since the same bucket name means another bucket behind another endpoint or account. Holds no
    /// secret; for comparing, not for parsing.
    fn identity(&self) -> String {
        self.location().to_string()
    }

    /// What is known of an object.
    async fn head(&self, key: &Key) -> Result<ObjectMeta>;

    /// Read `span` of an object into the front of `buf`, whose length must be at least the span's.
    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone>;

    /// Read small objects whole, one after the other into the front of `buf`, whose length must be at least that of all of them. Each is named with the
    /// size it was listed with: `Precondition` where it is shorter by now; one that is longer is refused, too, where the store tells. Stores to which
    /// many small reads cost more than their bytes have a better way than one by one, which is what this does unless they say otherwise.
    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        read_each(self, objects, buf, options).await
    }

    /// Write a whole object; when it returns, it is as durable as the store makes things.
    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone>;

    /// Begin to write an object in parts.
    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>>;

    /// Go on with an upload that another process began, from the state its [`Upload::checkpoint`] gave. `Unsupported` where uploads
    /// do not outlive the process, `NotFound` when the store has forgotten the upload.
    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let _ = (state, options);
        let message = "uploads to this store cannot be resumed";
        Err(Error::new(ErrorKind::Unsupported, "upload", message).at(self.location().join(key)))
    }

    /// Uploads below a prefix that are open, whoever began them, [`OPEN_UPLOADS_MAX`] of them at most. None where uploads do not outlive
    /// the process, and where the store cannot tell or removes them by itself.
    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        let _ = prefix;
        Ok(Vec::new())
    }

    /// Give up an upload that [`open_uploads`](Self::open_uploads) has named; one that is not there any more is fine. Whoever is still writing it
    /// cannot complete it.
    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        let message = "this store has no uploads that outlive a process";
        Err(Error::new(ErrorKind::Unsupported, "abort", message).at(self.location().join(&upload.key)))
    }

    /// List below a prefix; the root lists everything.
    fn list(&self, prefix: &Key, options: ListOptions) -> Listing;

    /// Remove an object.
    async fn delete(&self, key: &Key) -> Result<()>;

    /// What the store can be relied on for. May write and remove small probe objects the first time.
    async fn capabilities(&self) -> Result<Capabilities>;
}

/// Between the places of a store that is made of several; no key and no location has it.
pub(crate) const PLACES_SEPARATOR: char = '\0';

/// The identity of what is at `key` in a store of that identity.
pub(crate) fn identity_below(identity: &str, key: &Key) -> String {
    let mut below = String::with_capacity(identity.len() + key.as_str().len() + 1);
    for (index, place) in identity.split(PLACES_SEPARATOR).enumerate() {
        if index > 0 {
            below.push(PLACES_SEPARATOR);
        }
        below.push_str(place.trim_end_matches('/'));
        if !key.is_root() {
            below.push('/');
            below.push_str(key.as_str());
        }
    }
    below
}

/// The bytes of a part, and their CRC-64/NVME where whoever made them knows it: nobody has to read them again for it.
#[derive(Debug, Clone)]
pub struct PartBody {
    bytes: Buf,
    crc64nvme: Option<u64>,
}

impl PartBody {
    /// Bytes whose checksum was made while they were.
    pub fn summed(bytes: Buf, crc64nvme: u64) -> Self {
        Self {
            bytes,
            crc64nvme: Some(crc64nvme),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &Buf {
        &self.bytes
    }

    /// How many.
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Their checksum, made now if it is not known yet.
    pub fn crc64nvme(&mut self) -> u64 {
        let bytes = &self.bytes;
        *self.crc64nvme.get_or_insert_with(|| crc64nvme(bytes))
    }
}

impl From<Buf> for PartBody {
    fn from(bytes: Buf) -> Self {
        Self {
            bytes,
            crc64nvme: None,
        }
    }
}

/// An object being written in parts. Nothing is visible before `complete` returns; dropping it without `complete` gives up.
#[async_trait]
pub trait Upload: fmt::Debug + Send + Sync {
    /// Size that every part but the last must have.
    fn part_bytes(&self) -> u64;

    /// Write part `index` (from 0). Parts may go in any order and side by side; a failed one may be tried again.
    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger>;

    /// What [`Store::resume_upload`] needs to go on with this upload in another process: the parts written so far, never a
    /// credential. `None` where uploads do not outlive the process.
    fn checkpoint(&self) -> Option<serde_json::Value> {
        None
    }

    /// Make the object visible, from all parts up to the last without a gap. The bytes are in the parts' ledgers, not in this one.
    async fn complete(&self) -> Result<PutDone>;

    /// Give up and remove what was written.
    async fn abort(&self) -> Result<()>;
}
