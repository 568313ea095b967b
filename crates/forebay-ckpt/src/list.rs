//! Which checkpoints there are.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use forebay_store::{Context, Entry as Row, ListOptions, Store};
use futures::stream::{self, StreamExt};

use crate::manifest::Manifest;
use crate::names::{
    Attempt, MANIFESTS, ManifestName, Piece, attempt_key, gone_key, parse_manifest_name, parse_piece_key,
};
use crate::open::{Checkpoint, read_manifest};
use crate::pages::Source;

/// Manifests read at once.
const MANIFESTS_AT_ONCE: usize = 32;

/// A step with a manifest.
#[derive(Debug)]
pub struct Listed {
    /// The step.
    pub step: u64,
    /// What makes it a checkpoint, or why that cannot be read.
    pub manifest: Result<Manifest>,
}

/// Names in `manifests/`.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Steps with a manifest.
    pub(crate) steps: Vec<u64>,
    /// Attempts that are no longer checkpoints.
    pub(crate) gone: HashSet<(u64, Attempt)>,
}

impl Names {
    /// An attempt at a step that is declared gone and not yet removed.
    pub(crate) fn gone_of(&self, step: u64) -> Option<Attempt> {
        let of_step = self.gone.iter().find(|(of, _)| *of == step);
        of_step.map(|(_, attempt)| *attempt)
    }
}

pub(crate) async fn names(source: &Source) -> Result<Names> {
    let mut rows = source
        .store
        .list(&Key::parse(MANIFESTS)?, ListOptions { recursive: false });
    let mut names = Names::default();
    while let Some(row) = rows.next().await {
        let key = match row {
            Ok(Row::Object(meta)) => meta.key,
            Ok(Row::Prefix(_)) => continue,
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        match parse_manifest_name(key.file_name()) {
            Some(ManifestName::Manifest(step)) => names.steps.push(step),
            Some(ManifestName::Gone(step, attempt)) => drop(names.gone.insert((step, attempt))),
            None => {}
        }
    }
    names.steps.sort_unstable();
    Ok(names)
}

/// Whether an attempt is declared gone.
pub(crate) async fn find_gone(source: &Source, step: u64, attempt: Attempt) -> Result<bool> {
    match source.store.head(&gone_key(step, attempt)).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// An attempt at a step that is declared gone and not yet removed.
pub(crate) async fn gone_of_step(source: &Source, step: u64) -> Result<Option<Attempt>> {
    Ok(names(source).await?.gone_of(step))
}

/// Manifests of all steps, those that are gone left out; ascending.
pub(crate) async fn manifests(
    source: &Source,
    names: &Names,
) -> Result<BTreeMap<u64, Result<(Manifest, Ledger)>>> {
    let reads = stream::iter(names.steps.iter().copied()).map(|step| async move {
        let read = read_manifest(source, step).await;
        (step, read)
    });
    let mut reads = reads.buffered(MANIFESTS_AT_ONCE);
    let mut all = BTreeMap::new();
    while let Some((step, read)) = reads.next().await {
        match read {
            Ok(Some(found)) => drop(all.insert(step, Ok(found))),
            // Removed since it was listed.
            Ok(None) => {}
            // Damage is a state of a checkpoint; anything else is a failure of the listing.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                all.insert(step, Err(error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

/// All checkpoints below a store's root, by step.
pub async fn list(store: Arc<dyn Store>, context: &Context) -> Result<Vec<Listed>> {
    let checks = true;
    let context = context.clone();
    list_with(&Source {
        store,
        context,
        checks,
    })
    .await
}

pub(crate) async fn list_with(source: &Source) -> Result<Vec<Listed>> {
    let first = names(source).await?;
    let manifests = manifests(source, &first).await?;
    // Manifests that were read may have been declared gone since.
    let gone = names(source).await?.gone;
    let mut listed = Vec::new();
    for (step, manifest) in manifests {
        let is_gone = |manifest: &Manifest| {
            gone.contains(&(step, manifest.attempt)) || first.gone.contains(&(step, manifest.attempt))
        };
        match manifest {
            Ok((manifest, _)) if is_gone(&manifest) => {}
            Ok((manifest, _)) => listed.push(Listed {
                step,
                manifest: Ok(manifest),
            }),
            Err(error) => listed.push(Listed {
                step,
                manifest: Err(error),
            }),
        }
    }
    Ok(listed)
}

/// The newest checkpoint whose manifest can be read, if there is one; and those above it that cannot.
pub async fn newest(
    store: Arc<dyn Store>,
    context: &Context,
) -> Result<(Option<Checkpoint>, Vec<(u64, Error)>)> {
    let checks = true;
    let context = context.clone();
    newest_with(Source {
        store,
        context,
        checks,
    })
    .await
}

pub(crate) async fn newest_with(source: Source) -> Result<(Option<Checkpoint>, Vec<(u64, Error)>)> {
    let mut damaged = Vec::new();
    let names = names(&source).await?;
    for step in names.steps.into_iter().rev() {
        match Checkpoint::open_with(source.clone(), step).await {
            Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                damaged.push((step, error));
            }
            Err(error) => return Err(error),
        }
    }
    Ok((None, damaged))
}

/// What lies in the folder of an attempt, with sizes.
pub(crate) type Pieces = HashMap<Piece, u64>;

/// The objects of an attempt.
pub(crate) async fn pieces(source: &Source, step: u64, attempt: Attempt) -> Result<Pieces> {
    let folder = attempt_key(step, attempt);
    let mut rows = source.store.list(&folder, ListOptions { recursive: false });
    let mut there = Pieces::new();
    while let Some(row) = rows.next().await {
        match row {
            Ok(Row::Object(meta)) => {
                if let Some((_, _, piece)) = parse_piece_key(&meta.key) {
                    there.insert(piece, meta.size);
                }
            }
            Ok(Row::Prefix(_)) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}
