//! Ordered stores, nearest first, read as one.
//!
//! A read asks the tiers in order and takes the first that has the object; a tier that fails is passed over when a later one has it, and the
//! ledger says so. Writes go to the first tier, or to all of them from the farthest to the nearest, so that what readers see
//! changes last. Objects that were read from farther tiers can be copied into the first one behind the reader's back ([`promote`]).
//! Listings are merged in key order ([`merge`]).
//!
//! ```text
//! read: tier 0 --not found--> tier 1 --error, noted--> tier 2 --bytes--> caller
//!          ^---------------- promotion (once per object) ----'
//! ```
//!
//! Versions belong to the tier that told them: a read that names a version is answered by a tier that has that version.

mod merge;
mod promote;
mod upload;

use std::sync::Arc;

use async_trait::async_trait;
use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Location, Result, Scheme, Span};
use forebay_io::{AlignedBuf, Pages};

use self::promote::Promotions;
use crate::context::Context;
use crate::store::{
    Body, Capabilities, ListOptions, Listing, ObjectMeta, OpenUpload, PLACES_SEPARATOR, Proof, PutDone,
    PutMode, PutOptions, ReadDone, ReadOptions, Store, Upload,
};

/// Where writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WritePolicy {
    /// To the first tier; somebody else moves objects outward.
    #[default]
    First,
    /// To all tiers, farthest first. Done when all have it.
    All,
}

/// How tiers behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TiersConfig {
    /// Where writes go.
    pub write: WritePolicy,
    /// Copy objects up to this size into the first tier when they are read from another; `None` copies none.
    pub promote_bytes_max: Option<u64>,
}

/// Ordered stores, nearest first, as one store; clones share it.
#[derive(Debug, Clone)]
pub struct Tiers(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    stores: Vec<Arc<dyn Store>>,
    config: TiersConfig,
    context: Context,
    promotions: Promotions,
}

impl Tiers {
    /// Read `stores` as one, nearest first. `InvalidInput` when there is none.
    pub fn new(stores: Vec<Arc<dyn Store>>, config: TiersConfig, context: &Context) -> Result<Self> {
        if stores.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "open",
                "tiers need at least one store",
            ));
        }
        Ok(Self(Arc::new(Shared {
            stores,
            config,
            context: context.clone(),
            promotions: Promotions::default(),
        })))
    }

    /// Wait until no object is being copied into the first tier.
    pub async fn settled(&self) {
        self.0.promotions.settled().await;
    }
}

/// Where an object is.
#[derive(Debug)]
enum Found {
    In(usize, ObjectMeta),
    OtherVersion,
    Nowhere,
}

/// Tiers that failed on the way to one that did not.
#[derive(Debug, Default)]
struct PassedOver(Vec<(DataPath, Error)>);

impl PassedOver {
    fn add(&mut self, store: &dyn Store, error: Error) {
        tracing::warn!(%error, tier = %store.location(), "passing over a tier that fails");
        self.0.push((usual_path(store.location().scheme()), error));
    }

    /// The error to report when no later tier has it either.
    fn into_error(self, otherwise: Error) -> Error {
        self.0.into_iter().next().map_or(otherwise, |(_, error)| error)
    }

    fn note(&self, ledger: &mut Ledger) {
        let taken = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
        for (wanted, error) in &self.0 {
            ledger.record_downgrade(*wanted, taken, format!("a nearer tier failed: {error}"));
        }
    }
}

/// The path bytes would have taken from a tier that failed.
fn usual_path(scheme: Scheme) -> DataPath {
    match scheme {
        Scheme::File => DataPath::DirectUring,
        Scheme::Mem => DataPath::Memory,
        Scheme::NvmeTcp => DataPath::NvmeTcp,
        Scheme::S3 | Scheme::Gs | Scheme::Az | Scheme::Http | Scheme::Https => DataPath::Http,
    }
}

impl Shared {
    fn first(&self) -> &Arc<dyn Store> {
        &self.stores[0]
    }

    /// The tier that decides about a write: the one it goes to first.
    fn decider(&self) -> &Arc<dyn Store> {
        match self.config.write {
            WritePolicy::First => self.first(),
            WritePolicy::All => &self.stores[self.stores.len() - 1],
        }
    }

    fn no_object(&self, op: &'static str, key: &Key) -> Error {
        Error::new(ErrorKind::NotFound, op, "no tier has it").at(self.first().location().join(key))
    }

    /// Ask `tiers` in order for the object in that version. A tier that does not tell versions has any.
    async fn find(
        &self,
        key: &Key,
        version: Option<&str>,
        tiers: std::ops::Range<usize>,
        passed: &mut PassedOver,
    ) -> Result<Found> {
        let mut found = Found::Nowhere;
        for index in tiers {
            let store = &self.stores[index];
            match store.head(key).await {
                Ok(meta) => {
                    if version.is_none() || meta.version.is_none() || meta.version.as_deref() == version {
                        return Ok(Found::In(index, meta));
                    }
                    found = Found::OtherVersion;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::InvalidInput => return Err(error),
                Err(error) => passed.add(&**store, error),
            }
        }
        Ok(found)
    }

    /// The error of a read that no tier could answer.
    fn unanswered(&self, key: &Key, passed: PassedOver, other_version: bool) -> Error {
        let place = self.first().location().join(key);
        let otherwise = if other_version {
            let message = "no tier has the version that was asked for";
            Error::new(ErrorKind::Precondition, "read", message).at(place)
        } else {
            self.no_object("read", key)
        };
        passed.into_error(otherwise)
    }

    /// Refuse a put-if-absent when any tier but the deciding one has the object; that one refuses by itself.
    async fn check_absent(&self, op: &'static str, key: &Key, mode: PutMode) -> Result<()> {
        if mode == PutMode::Replace {
            return Ok(());
        }
        let mut passed = PassedOver::default();
        let found = self.find(key, None, 0..self.stores.len(), &mut passed).await?;
        if let Found::In(index, _) = found {
            let place = self.stores[index].location().join(key);
            return Err(Error::new(ErrorKind::AlreadyExists, op, "").at(place));
        }
        // A tier that cannot answer may have it.
        passed
            .0
            .into_iter()
            .next()
            .map_or(Ok(()), |(_, error)| Err(error))
    }

    /// After the deciding tier: bring the rest along, farthest to nearest. Gives the nearest tier's answer.
    async fn put_rest(
        &self,
        key: &Key,
        body: &Body,
        options: &PutOptions,
        first: PutDone,
    ) -> Result<PutDone> {
        let options = PutOptions {
            mode: PutMode::Replace,
            ..options.clone()
        };
        let mut done = first;
        for store in self.stores.iter().rev().skip(1) {
            let next = store.put(key, body.clone(), &options).await?;
            done = PutDone {
                ledger: with_copies(next.ledger, &done.ledger),
                ..next
            };
        }
        Ok(done)
    }

    fn spare(&self, len: usize) -> Result<AlignedBuf> {
        match self.context.pool().try_lease(len) {
            Some(buf) => Ok(buf),
            None => AlignedBuf::alloc(len, Pages::Small),
        }
    }
}

/// The account of the last of several writes of the same bytes; the others are copies.
fn with_copies(mut last: Ledger, before: &Ledger) -> Ledger {
    for (path, totals) in &before.paths {
        last.record_copy(*path, totals.bytes + totals.copied_bytes);
        last.record(*path, 0, totals.requests);
        last.record_retries(*path, totals.retries);
    }
    last
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Tiers {
    /// Of the nearest tier.
    fn location(&self) -> &Location {
        self.0.first().location()
    }

    /// Of all tiers: the same nearest one before another farther one holds other objects.
    fn identity(&self) -> String {
        let places: Vec<String> = self.0.stores.iter().map(|store| store.identity()).collect();
        places.join(&PLACES_SEPARATOR.to_string())
    }

    async fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let mut passed = PassedOver::default();
        let tiers = 0..self.0.stores.len();
        match self.0.find(key, None, tiers, &mut passed).await? {
            Found::In(_, meta) => Ok(meta),
            _ => Err(passed.into_error(self.0.no_object("head", key))),
        }
    }

    async fn read_into(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        let shared = &self.0;
        let (len, mut buf) = (buf.len(), Some(buf));
        let mut passed = PassedOver::default();
        let (mut from, last) = (0, shared.stores.len() - 1);
        let mut other_version = false;
        while from <= last {
            // The farthest tier is read without asking first: asking it is the dearest, and there is nobody after it.
            let tiers = from..last;
            let version = options.version.as_deref();
            let (index, meta) = match shared.find(key, version, tiers, &mut passed).await? {
                Found::In(index, meta) => (index, Some(meta)),
                found => {
                    other_version |= matches!(found, Found::OtherVersion);
                    (last, None)
                }
            };
            // A tier that failed has kept the buffer.
            let into = match buf.take() {
                Some(buf) => buf,
                None => shared.spare(len)?,
            };
            let store = &shared.stores[index];
            match store.read_into(key, span, into, options).await {
                Ok(mut done) => {
                    passed.note(&mut done.ledger);
                    promote::begin(shared, index, key, meta);
                    return Ok(done);
                }
                Err(error) if is_final(error.kind()) => return Err(error),
                // Not there, or deleted since it was asked for.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => passed.add(&**store, error),
            }
            from = index + 1;
        }
        Err(shared.unanswered(key, passed, other_version))
    }

    async fn read_small(
        &self,
        objects: &[(Key, u64)],
        buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        crate::ext::read_each(self, objects, buf, options).await
    }

    async fn put(&self, key: &Key, body: Body, options: &PutOptions) -> Result<PutDone> {
        self.0.check_absent("put", key, options.mode).await?;
        let done = self.0.decider().put(key, body.clone(), options).await?;
        match self.0.config.write {
            WritePolicy::First => Ok(done),
            WritePolicy::All => self.0.put_rest(key, &body, options, done).await,
        }
    }

    async fn upload(&self, key: &Key, options: &PutOptions) -> Result<Box<dyn Upload>> {
        self.0.check_absent("upload", key, options.mode).await?;
        let inner = self.0.decider().upload(key, options).await?;
        Ok(upload::wrap(&self.0, inner, key, options))
    }

    async fn resume_upload(
        &self,
        key: &Key,
        state: serde_json::Value,
        options: &PutOptions,
    ) -> Result<Box<dyn Upload>> {
        let inner = self.0.decider().resume_upload(key, state, options).await?;
        Ok(upload::wrap(&self.0, inner, key, options))
    }

    fn list(&self, prefix: &Key, options: ListOptions) -> Listing {
        merge::list(&self.0.stores, prefix, options)
    }

    /// Everywhere, farthest first; every tier is tried even when one fails.
    async fn delete(&self, key: &Key) -> Result<()> {
        let deleting = self.0.promotions.deleting(key);
        let mut result = Ok(());
        for store in self.0.stores.iter().rev() {
            let deleted = store.delete(key).await;
            result = result.and(deleted);
        }
        if deleting.settled().await {
            // A promotion that was under way may have landed in between.
            result = result.and(self.0.first().delete(key).await);
        }
        result
    }

    async fn open_uploads(&self, prefix: &Key) -> Result<Vec<OpenUpload>> {
        // Uploads go to the tiers by themselves, where each has its own: nobody could tell whose one is.
        let _ = prefix;
        Ok(Vec::new())
    }

    async fn abort_upload(&self, upload: &OpenUpload) -> Result<()> {
        let message = "uploads are given up in the tier that has them";
        Err(Error::new(ErrorKind::Unsupported, "abort", message).at(self.location().join(&upload.key)))
    }

    async fn capabilities(&self) -> Result<Capabilities> {
        let mut whole = self.0.decider().capabilities().await?;
        for store in &self.0.stores {
            let tier = store.capabilities().await?;
            whole.range = weaker(whole.range, tier.range);
            whole.version_match = weaker(whole.version_match, tier.version_match);
        }
        Ok(whole)
    }
}

/// Errors that another tier cannot make good: the question was wrong, or the object has changed.
fn is_final(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidInput | ErrorKind::Precondition | ErrorKind::Cancelled
    )
}

fn weaker(a: Proof, b: Proof) -> Proof {
    if a.is_shown() { b } else { a }
}
