//! Objects in the memory of this process: for tests, staging and as a tier.
//!
//! A sorted map under a lock. Content is copied in on `put` and out on `read_into`, so a store never holds on to leased
//! buffers: an object that stays must not take memory out of the pool. Versions count up over the store's life.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use forebay_core::{
    Clock, DataPath, Error, ErrorKind, Key, Ledger, Location, Result, Span, SystemClock, crc64nvme,
};
use forebay_io::AlignedBuf;
use futures::stream::{self, StreamExt};

use crate::store::{
    Body, Capabilities, Checksum, Entry, ListOptions, Listing, ObjectMeta, PartBody, Proof, PutDone, PutMode,
    PutOptions, ReadDone, ReadOptions, Store, Upload, WriteCheck, identity_below,
};

/// Size of one uploaded part. Memory has no round trip to hide, so small parts do as well as large ones.
const PART_BYTES: u64 = 1 << 20;

/// Objects in memory; clones share them.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    location: Location,
    /// Put before every key: the part of the location below its authority.
    prefix: Key,
    objects: Arc<Objects>,
}

#[derive(Debug)]
struct Objects {
    map: Mutex<BTreeMap<String, Object>>,
    version: AtomicU64,
    /// Differs from that of any other store of this process.
    number: u64,
}

impl Default for Objects {
    fn default() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self {
            map: Mutex::default(),
            version: AtomicU64::new(0),
            number: COUNT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[derive(Debug, Clone)]
struct Object {
    bytes: Bytes,
    version: u64,
    modified: Duration,
    crc64nvme: u64,
    write_id: Option<String>,
}

impl MemoryStore {
    /// An empty store that nobody else can reach.
    pub fn new() -> Self {
        Self::around(Location::private_memory(), Arc::default())
    }

    /// The store of that name, shared by the whole process: `mem://name/prefix`.
    pub fn named(location: &Location) -> Arc<dyn Store> {
        static NAMED: LazyLock<Mutex<HashMap<String, Arc<Objects>>>> = LazyLock::new(Mutex::default);
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        let objects = named.entry(location.authority().to_owned()).or_default();
        Arc::new(Self::around(location.clone(), Arc::clone(objects)))
    }

    fn around(location: Location, objects: Arc<Objects>) -> Self {
        Self {
            prefix: location.key().clone(),
            location,
            objects,
        }
    }

    /// The name in the map; an object must have one.
    fn name_of(&self, op: &'static str, key: &Key) -> Result<String> {
        if key.is_root() {
            let message = "an object is needed, but this names the whole store";
            return Err(Error::new(ErrorKind::InvalidInput, op, message).at(&self.location));
        }
        Ok(self.prefix.join(key).into())
    }

    fn get(&self, op: &'static str, key: &Key) -> Result<Object> {
        let name = self.name_of(op, key)?;
        self.objects
            .lock()
            .get(&name)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::NotFound, op, "no such object").at(self.location.join(key)))
    }

    fn insert(&self, op: &'static str, key: &Key, bytes: Bytes, options: &PutOptions) -> Result<PutDone> {
        let name = self.name_of(op, key)?;
        options
            .policy
            .admit(DataPath::Memory, op, "the store is memory")
            .map_err(|error| error.at(self.location.join(key)))?;
        let crc64nvme = crc64nvme(&bytes);
        let mut map = self.objects.lock();
        let there = map.get(&name).filter(|_| options.mode == PutMode::IfAbsent);
        if let Some(there) = there {
            // An earlier try of the same write, whose reply was lost.
            if options.write_id.is_some() && there.write_id == options.write_id {
                return Ok(there.done());
            }
            return Err(Error::new(ErrorKind::AlreadyExists, op, "").at(self.location.join(key)));
        }
        let version = self.objects.version.fetch_add(1, Ordering::Relaxed) + 1;
        let object = Object {
            bytes,
            version,
            modified: SystemClock.unix(),
            crc64nvme,
            write_id: options.write_id.clone(),
        };
        let done = object.done();
        map.insert(name, object);
        Ok(done)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl Objects {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Object>> {
        // Every change of the map is one call, so a panic elsewhere leaves it whole.
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Object {
    fn done(&self) -> PutDone {
        let size = self.bytes.len() as u64;
        PutDone {
            version: Some(self.version.to_string()),
            size,
            crc64nvme: self.crc64nvme,
            check: WriteCheck::Unchecked,
            ledger: Ledger::of(DataPath::Memory, size, 1),
        }
    }

    fn meta(&self, key: Key) -> ObjectMeta {
        ObjectMeta {
            key,
            size: self.bytes.len() as u64,
            version: Some(self.version.to_string()),
            modified: Some(self.modified),
            checksum: Some(Checksum::Crc64Nvme(self.crc64nvme)),
            permissions: None,
        }
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn location(&self) -> &Location {
        &self.location
    }

    /// All private stores have the same location; this tells them apart.
    fn identity(&self) -> String {
        identity_below(&format!("mem:{}", self.objects.number), &self.prefix)
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        Ok(self.get("head", key)?.meta(key.clone()))
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        mut buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let refuse = |kind, message: String| Error::new(kind, "read", message).at(self.location.join(key));
        options
            .policy
            .admit(DataPath::Memory, "read", "the store is memory")
            .map_err(|error| error.at(self.location.join(key)))?;
        let object = self.get("read", key)?;
        if let Some(version) = &options.version
            && *version != object.version.to_string()
        {
            let message = format!("version {version} was asked for, but it is {}", object.version);
            return Err(refuse(ErrorKind::Precondition, message));
        }
        check_span(span, object.bytes.len() as u64, buf.len())
            .map_err(|error| error.at(self.location.join(key)))?;
        buf[..span.len() as usize].copy_from_slice(&object.bytes[span.relative_to(0)]);
        Ok(ReadDone {
            buf,
            ledger: Ledger::of(DataPath::Memory, span.len(), 1),
        })
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        let mut bytes = Vec::with_capacity(body.len() as usize);
        for piece in body.pieces() {
            bytes.extend_from_slice(piece);
        }
        self.insert("put", key, bytes.into(), options)
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.name_of("upload", key)?;
        Ok(Box::new(MemoryUpload {
            store: self.clone(),
            key: key.clone(),
            options: options.clone(),
            parts: Mutex::new(Some(BTreeMap::new())),
        }))
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        let start = self.prefix.join(prefix);
        let map = self.objects.lock();
        let from = (Bound::Included(start.as_str().to_owned()), Bound::Unbounded);
        let mut rows: Vec<Result<Entry>> = Vec::new();
        let mut last_prefix = None;
        for (name, object) in map
            .range(from)
            .take_while(|(name, _)| name.starts_with(start.as_str()))
        {
            let below = Key::parse(name)
                .ok()
                .and_then(|key| Some((key.below(&self.prefix)?, key.below(&start)?)));
            let Some((key, below)) = below.filter(|(key, _)| !key.is_root()) else {
                continue;
            };
            match below.as_str().split_once('/') {
                Some((dir, _)) if !options.recursive => {
                    let dir = Key::parse(dir).map(|dir| prefix.join(&dir));
                    if last_prefix.as_ref() != dir.as_ref().ok() {
                        last_prefix = dir.as_ref().ok().cloned();
                        rows.push(dir.map(Entry::Prefix));
                    }
                }
                _ => rows.push(Ok(Entry::Object(object.meta(key)))),
            }
        }
        drop(map);
        stream::iter(rows).boxed()
    }

    async fn delete(&self, key: &Key) -> Result<()> {
        let name = self.name_of("delete", key)?;
        self.objects.lock().remove(&name);
        Ok(())
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        // One lock around one map: these hold by construction, and the conformance suite tries them in every run.
        Ok(Capabilities {
            range: Proof::Shown,
            version_match: Proof::Shown,
            put_if_absent: Proof::Shown,
            upload_if_absent: Proof::Shown,
            multipart: Proof::Shown,
            ..Capabilities::untried("a caller hands over no checksum that memory could refuse")
        })
    }
}

/// Refuse a span beyond the object or longer than the buffer.
pub(crate) fn check_span(span: Span, size: u64, buf_len: usize) -> Result<()> {
    let refuse = |message| Err(Error::new(ErrorKind::InvalidInput, "read", message));
    if span.end() > size {
        return refuse(format!("range {span} ends beyond the object of {size} bytes"));
    }
    if (buf_len as u64) < span.len() {
        return refuse(format!("buffer of {buf_len} bytes for {} bytes", span.len()));
    }
    Ok(())
}

/// Parts in memory; `None` once it was completed or given up.
#[derive(Debug)]
struct MemoryUpload {
    store: MemoryStore,
    key: Key,
    options: PutOptions,
    parts: Mutex<Option<BTreeMap<u32, Bytes>>>,
}

impl MemoryUpload {
    fn refuse(&self, op: &'static str, message: &str) -> Error {
        Error::new(ErrorKind::InvalidInput, op, message).at(self.store.location.join(&self.key))
    }

    fn parts(&self) -> MutexGuard<'_, Option<BTreeMap<u32, Bytes>>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Upload for MemoryUpload {
    fn part_bytes(&self) -> u64 {
        PART_BYTES
    }

    async fn put_part(&self, index: u32, body: PartBody) -> Result<Ledger> {
        if body.size() > PART_BYTES {
            return Err(self.refuse("upload", "part is longer than the part size"));
        }
        let ledger = Ledger::of(DataPath::Memory, body.size(), 1);
        match &mut *self.parts() {
            None => return Err(self.refuse("upload", "the upload is over")),
            Some(parts) => parts.insert(index, Bytes::copy_from_slice(body.bytes())),
        };
        Ok(ledger)
    }

    async fn complete(&self) -> Result<PutDone> {
        let mut slot = self.parts();
        let Some(parts) = slot.as_ref() else {
            // Completed by an earlier try, whose reply was lost?
            let there = self.store.get("complete", &self.key).ok();
            let ours =
                there.filter(|there| there.write_id.is_some() && there.write_id == self.options.write_id);
            return match ours {
                Some(there) => Ok(done_in_parts(there.done())),
                None => Err(self.refuse("complete", "the upload is over")),
            };
        };
        let sizes = parts.iter().map(|(index, bytes)| (*index, bytes.len() as u64));
        check_parts(sizes, PART_BYTES).map_err(|error| error.at(self.store.location.join(&self.key)))?;
        let whole: Vec<u8> = parts.values().flatten().copied().collect();
        let done = self
            .store
            .insert("complete", &self.key, whole.into(), &self.options)?;
        *slot = None;
        Ok(done_in_parts(done))
    }

    async fn abort(&self) -> Result<()> {
        *self.parts() = None;
        Ok(())
    }
}

/// The parts were accounted for as they came.
fn done_in_parts(done: PutDone) -> PutDone {
    PutDone {
        ledger: Ledger::default(),
        ..done
    }
}

/// Refuse a gap between parts, and a part other than the last that is not full.
pub(crate) fn check_parts(sizes: impl Iterator<Item = (u32, u64)>, part_bytes: u64) -> Result<u64> {
    let refuse = |message| Err(Error::new(ErrorKind::InvalidInput, "complete", message));
    let mut size = 0;
    let mut last_is_short = false;
    for (expected, (index, len)) in (0u32..).zip(sizes) {
        if index != expected {
            return refuse(format!("part {expected} is missing"));
        }
        if last_is_short {
            return refuse(format!(
                "part {} is shorter than the part size, but not the last",
                index - 1
            ));
        }
        last_is_short = len != part_bytes;
        size += len;
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use forebay_io::Buf;

    use super::*;

    #[test]
    fn gaps_and_short_parts_are_refused() {
        assert_eq!(
            check_parts([(0, 10), (1, 10), (2, 3)].into_iter(), 10).unwrap(),
            23
        );
        assert_eq!(check_parts([].into_iter(), 10).unwrap(), 0);
        for bad in [vec![(1, 10)], vec![(0, 10), (2, 10)], vec![(0, 9), (1, 10)]] {
            assert!(check_parts(bad.clone().into_iter(), 10).is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn one_name_is_one_store_and_prefixes_stay_apart() {
        let at = |text: &str| MemoryStore::named(&Location::parse(text, std::path::Path::new("/")).unwrap());
        let key = |name: &str| Key::parse(name).unwrap();
        let body = || Body::from(Buf::copy_of(b"x").unwrap());
        let (whole, part) = (at("mem://memory-test"), at("mem://memory-test/a"));
        part.put(&key("k"), body(), &PutOptions::default()).await.unwrap();
        whole
            .put(&key("a"), body(), &PutOptions::default())
            .await
            .unwrap();
        assert_eq!(whole.head(&key("a/k")).await.unwrap().size, 1);
        let rows: Vec<_> = part
            .list(&Key::ROOT, ListOptions { recursive: true })
            .collect()
            .await;
        assert_eq!(
            rows.len(),
            1,
            "the object that has the prefix as its name is not below it: {rows:?}"
        );
        assert_eq!(
            MemoryStore::new().head(&key("a")).await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
    }
}
