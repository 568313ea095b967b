//! Whether a place has checkpoints, and which of them is shown.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result, Scheme};
use forebay_io::FileKind;
use forebay_store::cache::{Cache, CacheConfig};
use forebay_store::{Context, Entry as Row, ListOptions, Store, open};
use futures::stream::TryStreamExt;

use super::CheckpointView;
use crate::list::newest;
use crate::names::{MANIFESTS, ManifestName, parse_manifest_name};
use crate::open::Checkpoint;
use crate::seal::Keys;
use crate::sign::PublicKey;

/// How names of files of weights end: a folder that has some is meant as such.
const WEIGHTS_SUFFIXES: [&str; 2] = [".safetensors", ".safetensors.index.json"];

/// Most names that are looked at: a place with checkpoints has three folders, and the listing of a bucket's root must end.
const NAMES_MAX: usize = 1_000_000;

/// Which checkpoint is shown, and to whom.
#[derive(Debug, Clone, Default)]
pub struct ViewOptions {
    /// Its step; the newest that can be read unless told otherwise.
    pub step: Option<u64>,
    /// Keys to read what is sealed.
    pub keys: Keys,
    /// Refuse what none of these has signed.
    pub trusted: Option<Vec<PublicKey>>,
    /// Keep what comes from remote stores on local disks.
    pub cache: Option<CacheConfig>,
}

impl ViewOptions {
    /// True when only a checkpoint can be meant.
    fn are_of_checkpoints(&self) -> bool {
        self.step.is_some() || !self.keys.is_empty() || self.trusted.is_some()
    }
}

/// A checkpoint that is shown.
#[derive(Debug)]
pub struct Viewed {
    /// It.
    pub view: CheckpointView,
    /// Steps above it that cannot be read.
    pub damaged: Vec<(u64, Error)>,
}

impl CheckpointView {
    /// Show the checkpoint that a location stands for; `None` where it stands for something else. A folder of weights that has checkpoints, too, stands for
    /// the weights, unless a step, a key or a signature is asked for.
    pub async fn find(
        location: &Location,
        options: &ViewOptions,
        context: &Context,
    ) -> Result<Option<Viewed>> {
        let must = options.are_of_checkpoints();
        if !must && !may_have_checkpoints(location, context).await {
            return Ok(None);
        }
        let store = open(location, context).await?;
        if !must && !has_checkpoints(&store).await {
            return Ok(None);
        }
        let store: Arc<dyn Store> = match &options.cache {
            Some(config) if !matches!(location.scheme(), Scheme::File | Scheme::Mem) => {
                Arc::new(Cache::open(store, config.clone(), context).await?)
            }
            _ => store,
        };
        let (checkpoint, damaged) = match options.step {
            Some(step) => (Checkpoint::open(store, context, step).await?, Vec::new()),
            None => {
                let (found, mut damaged) = newest(store, context).await?;
                match found {
                    Some(checkpoint) => (checkpoint, damaged),
                    None if damaged.is_empty() => {
                        let message = "there is no checkpoint here";
                        return Err(Error::new(ErrorKind::NotFound, "open", message).at(location));
                    }
                    // The newest one says why.
                    None => return Err(damaged.swap_remove(0).1),
                }
            }
        };
        let mut checkpoint = checkpoint.with_keys(options.keys.clone());
        if let Some(trusted) = &options.trusted {
            checkpoint = checkpoint.require_signature(trusted)?;
        }
        let view = Self::open(&checkpoint).await?;
        Ok(Some(Viewed { view, damaged }))
    }
}

/// False for what is no folder, as far as that is known without asking a server.
async fn may_have_checkpoints(location: &Location, context: &Context) -> bool {
    if let Some(path) = location.to_path() {
        let stat = context.disk().stat(&path).await;
        return stat.is_ok_and(|stat| stat.kind == FileKind::Dir);
    }
    let name = location.key().file_name();
    !WEIGHTS_SUFFIXES.iter().any(|suffix| name.ends_with(suffix))
}

/// True where there is a manifest and no file of weights. Where nothing can be listed, what is there must be named.
async fn has_checkpoints(store: &Arc<dyn Store>) -> bool {
    let is_manifest = |key: &Key| {
        let name = parse_manifest_name(key.file_name());
        matches!(name, Some(ManifestName::Manifest(_)))
    };
    let is_weights = |key: &Key| {
        let mut suffixes = WEIGHTS_SUFFIXES.iter();
        suffixes.any(|suffix| key.as_str().ends_with(suffix))
    };
    let Ok(manifests) = Key::parse(MANIFESTS) else {
        return false;
    };
    let found = async {
        Ok::<_, Error>(
            any_object(store, &manifests, is_manifest).await?
                && !any_object(store, &Key::ROOT, is_weights).await?,
        )
    };
    found.await.unwrap_or_else(|error| {
        tracing::debug!(%error, "cannot tell whether there are checkpoints");
        false
    })
}

async fn any_object(store: &Arc<dyn Store>, prefix: &Key, is_one: impl Fn(&Key) -> bool) -> Result<bool> {
    let mut rows = store.list(prefix, ListOptions { recursive: false });
    for _ in 0..NAMES_MAX {
        match rows.try_next().await? {
            Some(Row::Object(meta)) if is_one(&meta.key) => return Ok(true),
            Some(_) => {}
            None => return Ok(false),
        }
    }
    Ok(false)
}
