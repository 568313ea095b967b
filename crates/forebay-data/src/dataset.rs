//! A data set: a store, its shards, and the manifest that says what is in them.
//!
//! ```text
//! Place (a URL, a file, a pattern of names) --> store + names
//!     |                                   _forebay.fbi is there: open it --> fit.rs: does it fit what is there?
//!     +--> Dataset::open ---------------<
//!                                         it is not: discover.rs: which format, which shards --> index.rs: one pass over all of them
//! ```
//!
//! A manifest that does not fit is an error that names the shards, and never a reason to go on silently without it. Without a manifest, one is built
//! in memory, or saved where that is asked for. Dropping the future of [`Dataset::open`] stops everything it began and leaves nothing half-made.

mod advice;
mod aside;
mod discover;
mod fit;
mod folder;
#[cfg(fuzzing)]
mod fuzz;
mod group;
mod index;
mod layout;
mod listed;
mod logged;
mod notes;
mod peek;
mod place;
mod read;
mod registry;
mod select;
mod splits;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use forebay_store::{Context, ObjectMeta, Store};
use tokio::sync::OnceCell;

use advice::{Advice, how_to_have_one, other_format};
pub(crate) use aside::FORMER_MANIFEST_NAME;
pub use discover::{Discovered, discover};
pub(crate) use discover::{family_of, look_for};
pub use fit::{Misfit, Mismatch};
#[cfg(fuzzing)]
pub(crate) use fuzz::listing as fuzz_listing;
use group::decoders;
pub(crate) use group::{ALIGN, GroupRead};
pub use index::Save;
pub(crate) use index::{Task, at_once};
pub use notes::{note_filtered, note_unindexed};
pub use place::{Place, expand, manifest_for_each};
pub use registry::FILES;
pub use registry::FORMAT_NAMES;
use registry::ShardStore;
use select::Selected;

use crate::format::files::LeftOut;
use crate::format::{Format, GroupDecoder};
use crate::kept::Kept;
use crate::manifest::{FormatSpec, MANIFEST_NAME, Manifest, Shard};
use crate::schema::Schema;
use crate::source::ShardSource;
use crate::table::Table;

/// Whether a manifest that is there is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UseManifest {
    /// When there is one.
    #[default]
    IfThere,
    /// There must be one.
    Always,
    /// Look at the shards themselves.
    Never,
}

/// When shards are compared with the manifest. Each of them is, before its first byte is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// All of them when the data set is opened, by a listing.
    #[default]
    AtOpen,
    /// Each when it is first needed: opening takes no request beside those for the manifest.
    WhenRead,
}

/// What is done about a shard that was written again or touched since it was indexed, but has the same size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Touched {
    /// It is used: whatever is read of it is compared with the checksums of the manifest. [`Dataset::touched`] names it.
    #[default]
    Accept,
    /// It is refused.
    Refuse,
}

/// How to open a data set.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The format, where it is not to be found out.
    pub format: Option<FormatSpec>,
    /// Only these shards, in this order.
    pub shards: Option<Vec<Key>>,
    /// Whether a manifest that is there is used.
    pub manifest: UseManifest,
    /// Where the manifest is, or will be; `_forebay.fbi` beside the shards otherwise. See [`Self::with_manifest_at`].
    pub manifest_at: Option<(Arc<dyn Store>, Key)>,
    /// Whether a manifest that had to be built is saved.
    pub save: Save,
    /// When shards are compared with the manifest.
    pub check: Check,
    /// What is done about shards of another version.
    pub touched: Touched,
    /// Whether what a pack has not come to the end of is opened all the same, as the pack itself does.
    pub take_unfinished: bool,
    /// Is told how building a manifest goes on.
    pub progress: Arc<dyn Progress>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            format: None,
            shards: None,
            manifest: UseManifest::default(),
            manifest_at: None,
            save: Save::default(),
            check: Check::default(),
            touched: Touched::default(),
            take_unfinished: false,
            progress: Arc::new(Silent),
        }
    }
}

impl OpenOptions {
    /// With the manifest at a place of its own, where one is given. There must be one then, unless the one that is made is saved there: nobody who names
    /// a manifest wants all shards read instead.
    #[must_use]
    pub fn with_manifest_at(mut self, place: Option<(Arc<dyn Store>, Key)>) -> Self {
        if place.is_some() && self.save == Save::No {
            self.manifest = UseManifest::Always;
        }
        self.manifest_at = place;
        self
    }
}

/// Is told how a pass over shards goes on; called from several tasks.
pub trait Progress: fmt::Debug + Send + Sync {
    /// Something about the data set that whoever opens it should know, such as files that are not read.
    fn noted(&self, note: &str) {
        let _ = note;
    }

    /// So much is to be read.
    fn planned(&self, shards: u64, bytes: u64) {
        let _ = (shards, bytes);
    }

    /// So many more bytes were read.
    fn moved(&self, bytes: u64) {
        let _ = bytes;
    }

    /// A shard is done.
    fn shard_done(&self, key: &Key, samples: u64) {
        let _ = (key, samples);
    }
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}

/// An open data set, or the part of one that a filter keeps; cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset(Arc<Inner>, Option<Arc<Selected>>);

#[derive(Debug)]
struct Inner {
    from: ShardStore,
    context: Context,
    manifest: Manifest,
    is_indexed: bool,
    /// Where this opening made the manifest: whether each shard had checksums of its own, made when it was written.
    made_here: Option<Vec<bool>>,
    /// Only some shards were asked for.
    is_part: bool,
    /// What is known of each shard's object, once it was compared with the manifest.
    metas: Vec<OnceCell<ObjectMeta>>,
    touched: Touched,
    advice: Advice,
    format: OnceCell<Arc<dyn Format>>,
    /// What decodes the groups of each shard, for formats that have groups.
    decoders: Kept<dyn GroupDecoder>,
    /// Which way the bytes came that building the manifest read.
    ledger: Ledger,
}

impl Dataset {
    /// Open the data set at the root of a store.
    pub async fn open(store: Arc<dyn Store>, context: &Context, options: &OpenOptions) -> Result<Self> {
        let (manifest_store, key) = manifest_place(&store, options)?;
        let mut denied = None;
        let source = match options.manifest {
            UseManifest::Never => None,
            _ => match ShardSource::open(manifest_store, &key, context).await {
                Ok(source) => Some(source),
                Err(error) if is_absent(&error) => {
                    let is_denied = error.kind() == ErrorKind::PermissionDenied;
                    match options.manifest {
                        UseManifest::Always if is_denied => return Err(or_missing(error)),
                        UseManifest::Always => {
                            return Err(error.with_hint(how_to_have_one(&store, options).await?));
                        }
                        _ => denied = is_denied.then_some(error),
                    }
                    None
                }
                Err(error) => return Err(error),
            },
        };
        match source {
            Some(source) => {
                Self::open_indexed(store, context, Manifest::open_source(source).await?, options).await
            }
            None => Self::build(store, context, options, denied).await,
        }
    }

    /// Around a manifest that is open already.
    pub async fn open_indexed(
        store: Arc<dyn Store>,
        context: &Context,
        manifest: Manifest,
        options: &OpenOptions,
    ) -> Result<Self> {
        let advice = Advice::new(&store, options)?;
        registry::check_made(manifest.spec(), &advice.anew).map_err(|error| error.at(&advice.manifest))?;
        options.format.as_ref().map_or(Ok(()), registry::check_choice)?;
        if let Some(format) = options
            .format
            .as_ref()
            .filter(|format| !format.asks_for(manifest.spec()))
        {
            return Err(other_format(format, manifest.spec(), &advice));
        }
        let advice = advice.of(manifest.spec());
        let manifest = match &options.shards {
            Some(keys) => manifest.select(&fit::numbers_of(&store, &manifest, keys, &advice).await?)?,
            None => manifest,
        };
        let from = ShardStore::open(store, manifest.spec()).await?;
        let metas = match options.check {
            Check::AtOpen => fit::look(&from.store, &manifest, options, &advice).await?,
            Check::WhenRead => vec![None; manifest.shards().len()],
        };
        let metas = metas.into_iter().map(OnceCell::new_with).collect();
        let inner = Arc::new(Inner {
            from,
            context: context.clone(),
            manifest,
            is_indexed: true,
            made_here: None,
            is_part: options.shards.is_some(),
            metas,
            touched: options.touched,
            advice,
            format: OnceCell::new(),
            decoders: decoders(),
            ledger: Ledger::default(),
        });
        Ok(Self(inner, None))
    }

    /// Read all shards, since there is no manifest, or since `denied` was said of it.
    async fn build(
        store: Arc<dyn Store>,
        context: &Context,
        options: &OpenOptions,
        denied: Option<Error>,
    ) -> Result<Self> {
        let found = discover(
            &store,
            context,
            options.format.as_ref(),
            options.shards.as_deref(),
        )
        .await?;
        if !options.take_unfinished {
            found.refuse_unfinished()?;
        }
        if let Some(denied) = denied {
            // Whoever may list is told of what is missing that it is missing.
            if options.shards.is_none() && options.manifest_at.is_none() {
                return Err(denied.with_hint("the manifest is there, but these credentials may not read it"));
            }
            options.progress.noted(
                "whether there is a manifest is not told to who may not list: the shards are read instead",
            );
        }
        if options.save != Save::No && options.shards.is_some() && options.manifest_at.is_none() {
            index::refuse_part(&store, &found).await?;
        }
        let Some(sink) = index::sink(&store, &found, context, options).await? else {
            // Somebody saved it since the first look.
            let (place, key) = manifest_place(&store, options)?;
            let manifest = Manifest::open(place, &key, context).await?;
            return Self::open_indexed(store, context, manifest, options).await;
        };
        if options.shards.is_some() && has_former(&store, options).await? {
            // No listing has told of it.
            options.progress.noted(&aside::note_former());
        }
        found.notes.iter().for_each(|note| options.progress.noted(note));
        let advice = Advice::new(&store, options)?;
        let built = index::build(context, &found, sink, &options.progress).await?;
        let metas = found
            .shards
            .into_iter()
            .map(|meta| OnceCell::new_with(Some(meta)))
            .collect();
        let inner = Arc::new(Inner {
            from: found.from,
            context: context.clone(),
            manifest: built.manifest,
            is_indexed: options.save != Save::No,
            made_here: Some(built.has_sums),
            is_part: options.shards.is_some(),
            metas,
            touched: options.touched,
            advice,
            format: OnceCell::new(),
            decoders: decoders(),
            ledger: built.ledger,
        });
        Ok(Self(inner, None))
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// The shards, in order.
    pub fn shards(&self) -> &[Shard] {
        self.0.manifest.shards()
    }

    /// The fields over all shards.
    pub fn schema(&self) -> &Schema {
        self.0.manifest.schema()
    }

    /// Samples over all shards.
    pub fn samples(&self) -> u64 {
        self.0.manifest.samples()
    }

    /// True when its manifest is in a file, so that opening it again is quick.
    pub fn is_indexed(&self) -> bool {
        self.0.is_indexed
    }

    /// True when bytes of a shard that fit the manifest are what was written, and not only what was read a moment ago, when this opening made the manifest.
    pub(crate) fn is_proven(&self, shard: usize) -> bool {
        let made_here = self.0.made_here.as_ref();
        made_here.is_none_or(|has_sums| has_sums.get(shard) == Some(&true))
    }

    /// Why bytes that fit the manifest do not count as verified, where that is so.
    pub fn why_unproven(&self) -> Option<&'static str> {
        if (0..self.shards().len()).all(|shard| self.is_proven(shard)) {
            return None;
        }
        Some(if self.is_indexed() {
            "the manifest was made by this run, of the same bytes: from the next run on they are compared with it"
        } else {
            "no manifest: checksums were made of the same bytes a moment ago; forebay index keeps them"
        })
    }

    /// The store that holds the shards.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.from.store
    }

    /// Surroundings.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The format of the shards. Made when it is first asked for: some formats read a file of their own for it.
    pub async fn format(&self) -> Result<Arc<dyn Format>> {
        let make = || self.0.from.format(self.0.manifest.spec(), &self.0.context);
        self.0.format.get_or_try_init(make).await.map(Arc::clone)
    }

    /// Which way the bytes came that were read to build the manifest.
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The bytes of a shard, after it was compared with the manifest: `Precondition` names one that does not fit.
    pub async fn source(&self, shard: usize) -> Result<ShardSource> {
        let (Some(row), Some(cell)) = (self.shards().get(shard), self.0.metas.get(shard)) else {
            let message = format!("there is no shard number {shard}");
            return Err(Error::new(ErrorKind::InvalidInput, "open shard", message));
        };
        let meta = cell.get_or_try_init(|| self.look(row)).await?;
        Ok(ShardSource::new(
            Arc::clone(&self.0.from.store),
            meta.clone(),
            &self.0.context,
        ))
    }

    async fn look(&self, shard: &Shard) -> Result<ObjectMeta> {
        let found = match self.0.from.store.head(&shard.key).await {
            Ok(meta) => Some(meta),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(or_missing(error)),
        };
        let misfit = fit::compare(&self.0.manifest, &*self.0.from.store, shard, found.as_ref());
        match (misfit, found) {
            (Some(misfit), _) if misfit.is_refused(self.0.touched) => {
                Err(fit::refuse(&[misfit], 1, &self.0.advice).at(self.0.from.store.location()))
            }
            (_, Some(meta)) => Ok(meta),
            (_, None) => Err(Error::new(ErrorKind::NotFound, "open shard", "it is not there")),
        }
    }

    /// Shards that were looked at and have another version than the one that was indexed. Their content is checked as it is read.
    pub fn touched(&self) -> Vec<Key> {
        let shards = self.shards().iter().enumerate();
        let touched = shards.filter(|(number, _)| self.is_touched(*number));
        touched.map(|(_, shard)| shard.key.clone()).collect()
    }

    /// The same of one shard.
    pub(crate) fn is_touched(&self, shard: usize) -> bool {
        let found = self.0.metas.get(shard).and_then(OnceCell::get);
        let known = found.zip(self.shards().get(shard));
        known.is_some_and(|(meta, shard)| {
            fit::compare(&self.0.manifest, &*self.0.from.store, shard, Some(meta)).is_some()
        })
    }

    /// The command that writes the manifest anew, where it is kept.
    pub(crate) fn how_to_index_anew(&self) -> &str {
        &self.0.advice.anew
    }

    /// Objects that look like shards of this data set and are not in its manifest; opening with [`Check::AtOpen`] refuses them; `None` where nothing can be listed. Of a part of a data set,
    /// nobody expects the rest to be listed.
    pub async fn unlisted(&self) -> Result<Option<Vec<Key>>> {
        if self.0.is_part {
            return Ok(Some(Vec::new()));
        }
        fit::unlisted(&self.0.from.store, &self.0.manifest).await
    }

    /// True where only some of the shards were asked for.
    pub(crate) fn is_part(&self) -> bool {
        self.0.is_part
    }

    /// Files of a plain folder that are part of no sample.
    pub fn files_left_out(&self) -> u64 {
        self.0.from.left_out().map_or(0, LeftOut::files)
    }

    /// What is to be said of them.
    pub(crate) fn note(&self) -> Option<String> {
        self.0.from.note()
    }

    /// Where the samples of a shard lie.
    pub async fn table(&self, shard: usize) -> Result<Arc<Table>> {
        self.0.manifest.table(shard).await
    }
}

/// Where the manifest is, or will be.
fn manifest_place(store: &Arc<dyn Store>, options: &OpenOptions) -> Result<(Arc<dyn Store>, Key)> {
    match &options.manifest_at {
        Some((store, key)) => Ok((Arc::clone(store), key.clone())),
        None => Ok((Arc::clone(store), Key::parse(MANIFEST_NAME)?)),
    }
}

/// True where the manifest that is not there is under its former name.
async fn has_former(store: &Arc<dyn Store>, options: &OpenOptions) -> Result<bool> {
    let is_looked_for = options.manifest != UseManifest::Never && options.manifest_at.is_none();
    Ok(is_looked_for && aside::has_former(&**store).await?)
}

/// Say of what is refused that it may be missing, where nothing more is said.
fn or_missing(error: Error) -> Error {
    if error.kind() != ErrorKind::PermissionDenied || error.hint().is_some() {
        return error;
    }
    error.with_hint(
        "these credentials may not read it, or it is missing and they may not list, without which a store does not tell the one from the other",
    )
}

/// True for what is not there, or may not be: who may not list a bucket is refused to be told that an object is missing.
fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied)
}
