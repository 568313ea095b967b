//! Saving: one [`Save`] is one attempt at one step.
//!
//! ```text
//! coordinator: Save::begin (pin) ------+------------------------------------------+--> commit.rs
//! other ranks: Save::join (see the pin)-+                                          |
//! every rank:  Save::rank: items -> [hash] -> what the base has is referenced -> [write] payload -> part
//!                                                                            `-> [pack] payload of chunks -> part, where they are compressed
//! ```
//!
//! Where bytes are not in memory yet ([`Save::rank_filled`]), they come in rounds, and a raw payload is written as it is filled, by `pack`, too.
//!
//! - `again`: what another place has is saved once more, in another way;
//! - `base`: the checkpoint that is compared with; `seal`: the data key that all ranks share;
//! - `prepare`: what cannot be saved is refused before anything is written;
//! - `hash`: chunks are hashed by several threads, where what is written depends on it;
//! - `known`: what the base has already;
//! - `supply`: chunks get their bytes, which are there or are filled in rounds, and threads to work on them;
//! - `payload`: where the chunks of a raw payload lie;
//! - `pack`, `stream`: chunks are compressed by several threads, and written as they are done, in their order;
//! - `write`: a raw payload goes out in large aligned pieces, from the caller's memory where that is aligned.

mod again;
mod base;
mod hash;
mod known;
mod pack;
mod payload;
mod prepare;
mod rank;
mod seal;
mod stream;
mod supply;
mod write;

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::{Buf, Class};
use forebay_store::{Context, PutMode, PutOptions, Store};

use crate::access_log::AccessLog;
use crate::codec::Compress;
use crate::entry::{Alias, SliceSpec};
use crate::failed::{self, note_failure};
use crate::hash::HashKind;
use crate::list;
use crate::manifest::Publish;
use crate::names::{Attempt, Piece, check_rank, pin_key};
use crate::pages::Source;
use crate::part::check_chunk_bytes;
use crate::pin::{self, Pin};
use crate::seal::Keys;
use crate::sign::{SigningKey, check_hash};
use crate::value::Value;

pub(crate) use again::Again;
pub(crate) use base::Base;
pub use rank::RankSaved;
pub use supply::{Fill, Round, RoundPiece};

use base::{open_base, wanted_base};
use seal::Seal;

/// Bytes of a chunk unless told otherwise: a hash every 4 MiB costs nothing, and a damaged byte makes little more to read again.
pub const CHUNK_BYTES_DEFAULT: u32 = 4 << 20;

/// First and longest pause between two looks at the store, while other ranks are waited for.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_millis(20);
/// See [`LOOK_PAUSE`].
pub(crate) const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How to save.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Which step.
    pub step: u64,
    /// The name of this try, the same on all ranks.
    pub attempt: Attempt,
    /// Ranks that save.
    pub world: u32,
    /// Hash of chunks.
    pub hash: HashKind,
    /// Bytes of a chunk: a power of two.
    pub chunk_bytes: u32,
    /// Reference chunks that the checkpoint of this step has. Where it cannot be used, a full save is made and says why.
    pub base_step: Option<u64>,
    /// How to publish.
    pub publish: Publish,
    /// Make an index over all parts; one rank needs none.
    pub with_index: bool,
    /// Class of service for local writes.
    pub class: Class,
    /// How chunks are compressed.
    pub compress: Compress,
    /// Seal chunks, so that only those with one of these keys can read them; none leaves them open.
    pub seal: Keys,
    /// Sign the checkpoint; takes BLAKE3 or SHA-256 for hashes.
    pub sign: Option<SigningKey>,
    /// Note the save there before it is published.
    pub access_log: Option<AccessLog>,
}

impl SaveOptions {
    /// A full save with defaults.
    pub fn new(step: u64, attempt: Attempt, world: u32) -> Self {
        Self {
            step,
            attempt,
            world,
            hash: HashKind::default(),
            chunk_bytes: CHUNK_BYTES_DEFAULT,
            base_step: None,
            publish: Publish::default(),
            with_index: world > 1,
            class: Class::Checkpoint,
            compress: Compress::default(),
            seal: Keys::default(),
            sign: None,
            access_log: None,
        }
    }

    fn check(&self) -> Result<()> {
        check_rank(0, self.world)?;
        self.compress.check()?;
        if self.sign.is_some() {
            check_hash(self.hash)?;
        }
        check_chunk_bytes(self.chunk_bytes).map_err(|why| Error::new(ErrorKind::InvalidInput, "save", why))
    }
}

/// Something to be saved under a name.
#[derive(Debug, Clone)]
pub struct Item {
    /// The name.
    pub name: String,
    /// What it is.
    pub data: ItemData,
}

/// What is saved under a name.
#[derive(Debug, Clone)]
pub enum ItemData {
    /// A slice of a tensor, its elements in row-major order.
    Slice(SliceSpec, Buf),
    /// A slice whose bytes are not in memory yet: a [`Fill`] has them under this number.
    Later(SliceSpec, usize),
    /// A typed value.
    Value(Value),
    /// Bytes that only their writer understands.
    Opaque(Vec<u8>),
    /// Another name for a tensor.
    Alias(Alias),
}

/// An attempt in progress.
#[derive(Debug)]
pub struct Save {
    pub(crate) source: Source,
    pub(crate) options: SaveOptions,
    pub(crate) base: Option<Base>,
    full_because: Option<String>,
    later_step: Option<u64>,
    seal: Option<Seal>,
    /// Mode for objects that are named by the attempt.
    pub(crate) file_mode: PutMode,
}

impl Save {
    /// Begin as the coordinator: note the attempt, so that gc leaves it alone and other ranks may write. Refuses early what the commit would refuse.
    ///
    /// Other ranks that wait for the attempt are told of a refusal, too.
    pub async fn begin(store: Arc<dyn Store>, context: &Context, options: SaveOptions) -> Result<Self> {
        let checks = true;
        let context = context.clone();
        let source = Source {
            store,
            context,
            checks,
        };
        let pinned = Self::pin(&source, &options).await;
        let (wanted, seal) = match pinned {
            Ok(pinned) => pinned,
            Err(error) => {
                tell(&source, &options, 0, &error).await;
                return Err(error);
            }
        };
        let begun = Self::begin_pinned(source.clone(), options.clone(), wanted, seal).await;
        if let Err(error) = &begun {
            // First the note: whoever has seen the pin finds out why it is gone.
            tell(&source, &options, 0, error).await;
            remove_pin(&source, options.attempt).await;
        }
        begun
    }

    /// Put the pin; gives the checkpoint that is compared with, and the key.
    async fn pin(source: &Source, options: &SaveOptions) -> Result<(Option<(u64, Attempt)>, Option<Seal>)> {
        options.check()?;
        let wanted = match options.base_step {
            Some(step) => wanted_base(source, step).await?,
            None => None,
        };
        let seal = Seal::draw(options).await?;
        let mode = check_unused(source, options).await?;
        let mut pin = Pin::new(&source.context, options.world);
        pin.keys = seal.as_ref().map(Seal::in_pin);
        pin.save = Some((options.step, options.attempt));
        pin.base = wanted;
        pin::put_save(&*source.store, &pin, mode)
            .await
            .map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => used(source, options),
                _ => error,
            })?;
        Ok((wanted, seal))
    }

    async fn begin_pinned(
        source: Source,
        options: SaveOptions,
        wanted: Option<(u64, Attempt)>,
        seal: Option<Seal>,
    ) -> Result<Self> {
        let refuse = |kind, message: String| Error::new(kind, "save", message).at(source.store.location());
        let names = list::names(&source).await?;
        if let Some(gone) = names.gone_of(options.step) {
            let message = format!("step {} is being removed (attempt {gone})", options.step);
            return Err(
                refuse(ErrorKind::Precondition, message).with_hint("run gc to its end, or save another step")
            );
        }
        let later_step = names.steps.last().copied().filter(|last| *last > options.step);
        if let Some(later) = later_step {
            let step = options.step;
            tracing::warn!(
                step,
                later,
                "there is a later step, which is what loading the newest gives"
            );
        }
        let there = source.store.head(&crate::names::manifest_key(options.step)).await;
        match there {
            Ok(_) if options.publish != Publish::Replace => {
                let message = format!("step {} has a checkpoint already", options.step);
                return Err(refuse(ErrorKind::AlreadyExists, message)
                    .with_hint("replace it explicitly, or save another step"));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let abilities = source.store.capabilities().await?;
        if options.publish == Publish::IfAbsent && !abilities.put_if_absent.is_shown() {
            let message = format!(
                "this store does not show put-if-absent: {:?}",
                abilities.put_if_absent
            );
            return Err(refuse(ErrorKind::Unsupported, message)
                .with_hint("if nobody else saves here, ask for the single-writer way of publishing"));
        }
        let can = abilities.put_if_absent.is_shown() && abilities.upload_if_absent.is_shown();
        let file_mode = if can { PutMode::IfAbsent } else { PutMode::Replace };
        let (base, full_because) = open_base(&source, &options, wanted).await?;
        Ok(Self {
            source,
            options,
            base,
            full_because,
            later_step,
            seal,
            file_mode,
        })
    }

    /// Join as another rank: wait until the coordinator has noted the attempt; the error of a rank that has noted that it cannot save.
    pub async fn join(
        store: Arc<dyn Store>,
        context: &Context,
        options: SaveOptions,
        wait: Duration,
    ) -> Result<Self> {
        options.check()?;
        let checks = true;
        let context = context.clone();
        let source = Source {
            store,
            context,
            checks,
        };
        let which = (options.step, options.attempt);
        let look = || async {
            let pin = pin::of_attempt(&source.store, &source.context, options.attempt).await?;
            if pin.is_some() {
                return Ok(pin);
            }
            // Of any rank: where another one has failed, the coordinator may have been here and gone.
            let there = list::pieces(&source, options.step, options.attempt).await?;
            match failed::first(&source.store, &source.context, which, there.keys()).await? {
                Some(error) => Err(error),
                None => Ok(None),
            }
        };
        let pin = wait_for(wait, look).await?;
        let fits =
            |pin: &Pin| pin.save == Some((options.step, options.attempt)) && pin.world == options.world;
        let Some(pin) = pin else {
            let message = format!(
                "rank 0 did not begin attempt {} at step {}",
                options.attempt, options.step
            );
            return Err(Error::new(ErrorKind::Timeout, "save", message).at(source.store.location()));
        };
        if !fits(&pin) {
            let message = "rank 0 saves another step, or with other ranks, under the same attempt";
            return Err(Error::new(ErrorKind::InvalidInput, "save", message).at(source.store.location()));
        }
        let seal = Seal::from_pin(&options, pin.keys.as_deref()).await?;
        let abilities = source.store.capabilities().await?;
        let can = abilities.put_if_absent.is_shown() && abilities.upload_if_absent.is_shown();
        let file_mode = if can { PutMode::IfAbsent } else { PutMode::Replace };
        let (base, full_because) = open_base(&source, &options, pin.base).await?;
        Ok(Self {
            source,
            options,
            base,
            full_because,
            later_step: None,
            seal,
            file_mode,
        })
    }

    /// What this attempt is called, and how it saves.
    pub fn options(&self) -> &SaveOptions {
        &self.options
    }

    /// Why a full save is made although an incremental one was asked for.
    pub fn full_because(&self) -> Option<&str> {
        self.full_because.as_deref()
    }

    /// For the coordinator: a step above this one that has a manifest. Who went back to an earlier step and saves from there should know: loading the newest
    /// gives that one.
    pub fn later_step(&self) -> Option<u64> {
        self.later_step
    }

    /// Save what one rank has: its payload, then its part. Durable when this returns, visible to nobody before the commit.
    pub async fn rank(&self, rank: u32, items: Vec<Item>) -> Result<RankSaved> {
        check_rank(rank, self.options.world)?;
        rank::save(self, rank, items, None).await
    }

    /// The same where there is not enough memory for all: the bytes of [`ItemData::Later`] are asked of `fill` in rounds, and written before its memory is used
    /// again. With a base, they are asked for twice: to be compared, and what has changed to be written.
    pub async fn rank_filled(&self, rank: u32, items: Vec<Item>, fill: Arc<dyn Fill>) -> Result<RankSaved> {
        check_rank(rank, self.options.world)?;
        rank::save(self, rank, items, Some(fill)).await
    }

    /// Give up: the pin goes, and gc may remove what was written.
    pub async fn abandon(self) {
        remove_pin(&self.source, self.options.attempt).await;
    }

    /// Note that a rank cannot save: the others are told why, and need not wait for it.
    pub async fn fail(&self, rank: u32, error: &Error) {
        tell(&self.source, &self.options, rank, error).await;
    }

    /// Give up an attempt whose save was dropped half-way: the pin that it put goes.
    pub async fn withdraw(store: &dyn Store, attempt: Attempt) {
        if let Err(error) = store.delete(&pin_key(attempt)).await {
            tracing::warn!(%error, "a pin stays until it expires");
        }
    }

    /// True when the payload is one of chunks that are not stored as they are.
    fn packs(&self) -> bool {
        self.options.compress != Compress::Off || self.is_sealed()
    }

    pub(crate) fn put_options(&self) -> PutOptions {
        PutOptions {
            mode: self.file_mode,
            class: self.options.class,
            ..PutOptions::default()
        }
    }

    /// Which way the bytes of the base came.
    pub(crate) fn base_ledger(&self) -> Ledger {
        let base = self.base.as_ref().map(|base| base.checkpoint.ledger());
        base.unwrap_or_default()
    }
}

/// Note that a rank cannot save, where there are others.
pub(crate) async fn tell(source: &Source, options: &SaveOptions, rank: u32, error: &Error) {
    if options.world > 1 {
        note_failure(&*source.store, options.step, options.attempt, rank, error).await;
    }
}

/// Refuse an attempt that somebody has begun before: parts of that try would be taken for parts of this one. Gives how to put the pin.
async fn check_unused(source: &Source, options: &SaveOptions) -> Result<PutMode> {
    let SaveOptions { step, attempt, .. } = options;
    let there = list::pieces(source, *step, *attempt).await?;
    // A rank that is ahead may have noted that it cannot save: the commit tells of it.
    if there.keys().any(|piece| !matches!(piece, Piece::Failed(_))) {
        return Err(used(source, options));
    }
    if source.store.capabilities().await?.put_if_absent.is_shown() {
        return Ok(PutMode::IfAbsent);
    }
    match pin::of_attempt(&source.store, &source.context, *attempt).await? {
        Some(_) => Err(used(source, options)),
        None => Ok(PutMode::Replace),
    }
}

fn used(source: &Source, options: &SaveOptions) -> Error {
    let SaveOptions { step, attempt, .. } = options;
    let message = format!("attempt {attempt} at step {step} was begun before");
    Error::new(ErrorKind::Precondition, "save", message)
        .at(source.store.location())
        .with_hint("a run id must be new for each start of a job; gc removes what the one before left")
}

pub(crate) async fn remove_pin(source: &Source, attempt: Attempt) {
    Save::withdraw(&*source.store, attempt).await;
}

/// Look again and again until there is something, or the time is over.
pub(crate) async fn wait_for<T, F, Fut>(wait: Duration, look: F) -> Result<Option<T>>
where
    F: Fn() -> Fut,
    Fut: Future<Output = Result<Option<T>>>,
{
    let deadline = tokio::time::Instant::now() + wait;
    let mut pause = LOOK_PAUSE;
    loop {
        if let Some(found) = look().await? {
            return Ok(Some(found));
        }
        if tokio::time::Instant::now() >= deadline {
            return Ok(None);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOOK_PAUSE_MAX);
    }
}
