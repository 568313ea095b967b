//! Which version of an object a read is of, and whether that version can be cached.
//!
//! A read that names a version gets that one. Any other read gets the version the origin has now, or, as far as [`Freshness`] allows, the one it
//! had when it was last asked. What a header in the cache says about version and size is as good as the origin's word for a version
//! that is named, and for objects that never change.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{ByteSize, Error, ErrorKind, Key, PathPolicy, Result, Span};
use forebay_io::{Direct, OpenHow};

use super::config::{Freshness, Mode};
use super::entry::Entry;
use super::files;
use super::format::{HEADER_BYTES_MAX, Identity, Name, Part};
use super::known::Told;
use super::shared::Shared;
use crate::store::ObjectMeta;

impl Shared {
    /// What an entry of this object must be of.
    fn identity(&self, meta: &ObjectMeta) -> Identity {
        Identity {
            location: self.location.clone(),
            key: meta.key.as_str().to_owned(),
            version: meta.version.clone(),
            size: meta.size,
            block_bytes: self.config.block_bytes,
        }
    }

    /// The open entry of this object. A full device is answered once by removing others.
    pub(super) async fn entry(&self, meta: &ObjectMeta) -> Result<Arc<Entry>> {
        let identity = self.identity(meta);
        let open = || self.table.get(&self.disk, &self.room, &identity);
        match open().await {
            Err(error) if error.kind() == ErrorKind::OutOfSpace => {
                let bytes = self.config.block_bytes.min(meta.size);
                self.room.shrink(&self.table, identity.name(), bytes).await?;
                open().await
            }
            opened => opened,
        }
    }

    /// Why this object cannot be cached, if so.
    pub(super) fn why_not(&self, meta: &ObjectMeta) -> Option<String> {
        if meta.version.is_none() && self.config.freshness != Freshness::Immutable {
            return Some("the origin gives no version to tell a changed object by".to_owned());
        }
        if self.config.mode == Mode::Whole && meta.size > self.config.bytes_max {
            let (size, cap) = (ByteSize(meta.size), ByteSize(self.config.bytes_max));
            return Some(format!("the object of {size} is larger than the cache of {cap}"));
        }
        None
    }

    /// The origin's answer, or what it answered while that is fresh.
    pub(super) async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        match self.known.get(key) {
            Some((meta, Told::ByOrigin(at))) if self.is_fresh(at) => Ok(meta),
            _ => self.ask(key).await,
        }
    }

    /// Version and size that a read is of.
    pub(super) async fn resolve(&self, key: &Key, version: Option<&str>) -> Result<ObjectMeta> {
        match version {
            Some(version) => self.resolve_pinned(key, version).await,
            None => self.resolve_newest(key).await,
        }
    }

    async fn resolve_pinned(&self, key: &Key, version: &str) -> Result<ObjectMeta> {
        let is_it = |meta: &ObjectMeta| meta.version.as_deref() == Some(version);
        if let Some((meta, _)) = self.known.get(key).filter(|(meta, _)| is_it(meta)) {
            return Ok(meta);
        }
        let name = Name::of(
            &self.location,
            key.as_str(),
            Some(version),
            self.config.block_bytes,
        );
        if let Some(meta) = self.stored(key, name).await.filter(is_it) {
            return Ok(meta);
        }
        let meta = self.ask(key).await?;
        if is_it(&meta) {
            return Ok(meta);
        }
        let message = "the object is not of the version asked for any more";
        Err(Error::new(ErrorKind::Precondition, "read", message).at(self.origin.location().join(key)))
    }

    async fn resolve_newest(&self, key: &Key) -> Result<ObjectMeta> {
        match self.known.get(key) {
            Some((meta, Told::ByOrigin(at))) if self.is_fresh(at) => return Ok(meta),
            Some((meta, Told::ByHeader)) if self.config.freshness == Freshness::Immutable => return Ok(meta),
            _ => {}
        }
        if self.config.freshness == Freshness::Immutable {
            let range = Name::range_of(&self.location, key.as_str());
            for name in self.table.between(range) {
                let epoch = self.known.epoch();
                if let Some(meta) = self.stored(key, name).await {
                    self.known.remember(&meta, Told::ByHeader, epoch);
                    return Ok(meta);
                }
            }
        }
        self.ask(key).await
    }

    fn is_fresh(&self, at: Duration) -> bool {
        match self.config.freshness {
            Freshness::Ask => false,
            Freshness::For(period) => self.clock.now().saturating_sub(at) < period,
            Freshness::Immutable => true,
        }
    }

    async fn ask(&self, key: &Key) -> Result<ObjectMeta> {
        let (epoch, at) = (self.known.epoch(), self.clock.now());
        let meta = self.origin.head(key).await?;
        self.known.remember(&meta, Told::ByOrigin(at), epoch);
        Ok(meta)
    }

    /// What the header of an entry says, if it is one of this object.
    async fn stored(&self, key: &Key, name: Name) -> Option<ObjectMeta> {
        let path = name.path(&self.config.root, Part::Index);
        let how = OpenHow::READ.with_direct(Direct::Never);
        let index = self.disk.open_file(path, how, PathPolicy::Fastest).await.ok()?;
        let front = Span::first(index.size().min(HEADER_BYTES_MAX as u64));
        let bytes = files::read_bytes(&self.disk, &index, front).await.ok()?;
        let (identity, _) = Identity::parse(&bytes)?;
        let is_ours = identity.location == self.location
            && identity.key == key.as_str()
            && identity.block_bytes == self.config.block_bytes;
        is_ours.then(|| ObjectMeta {
            key: key.clone(),
            size: identity.size,
            version: identity.version,
            modified: None,
            checksum: None,
            permissions: None,
        })
    }

    /// An object may have changed: nothing that this process knows of it counts any more. Its files stay.
    pub(super) fn disbelieve(&self, key: &Key) {
        self.known.forget(key);
        let range = Name::range_of(&self.location, key.as_str());
        for name in self.table.between(range) {
            self.table.forget(&name);
        }
    }

    /// An object has changed, or may have: forget its version and remove what is cached of it.
    pub(super) async fn forget(&self, key: &Key) {
        self.known.forget(key);
        let (first, last) = Name::range_of(&self.location, key.as_str());
        let dir = self.config.root.join(first.dir());
        let mut names = self.table.between((first, last));
        // Entries that other processes have made meanwhile are only in the directory.
        for entry in self.disk.list(&dir).await.unwrap_or_default() {
            let parsed = entry
                .name
                .to_str()
                .and_then(|file| Name::parse(&first.dir(), file));
            names.extend(
                parsed
                    .map(|(name, _)| name)
                    .filter(|name| name.same_object(&first)),
            );
        }
        names.sort_unstable();
        names.dedup();
        if names.is_empty() {
            return;
        }
        if let Err(error) = self.room.remove_all(&self.table, &names).await {
            // Their version is not the object's any more, so they are never read without being asked for by that version.
            tracing::warn!(%error, %key, "cannot remove an old version from the cache");
        }
    }
}
