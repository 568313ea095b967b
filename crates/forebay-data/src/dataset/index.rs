//! One pass over every shard, several at once, into a manifest.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use forebay_store::{Context, PutMode, Store};
use futures::stream::{self, StreamExt};
use tokio::task::JoinHandle;

use super::discover::{Siblings, list};
use super::fit::is_listable;
use super::{Discovered, OpenOptions, Progress, UseManifest, is_absent, manifest_place};
use crate::format::{Format, Tabulated, tabulate};
use crate::manifest::{MANIFEST_NAME, Manifest, ManifestWriter};
use crate::source::ShardSource;

/// Most shards read at once: more would not make the disk faster, and each holds its table in memory.
const SHARDS_AT_ONCE_MAX: usize = 16;

/// Whether a manifest that had to be built is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Save {
    /// It is kept in memory.
    #[default]
    No,
    /// It is saved; one that exists is an error. One that somebody else saves meanwhile is taken, where it says the same.
    IfAbsent,
    /// It is saved in place of one that exists.
    Replace,
}

/// Where the manifest goes. That nothing is in its way is known before everything is read: where one came since the first look, there is nothing to make.
pub(super) async fn sink(
    store: &Arc<dyn Store>,
    found: &Discovered,
    context: &Context,
    options: &OpenOptions,
) -> Result<Option<ManifestWriter>> {
    let (spec, identity) = (found.spec.clone(), store.identity());
    if options.save == Save::No {
        return Ok(Some(ManifestWriter::in_memory(spec, &identity)));
    }
    let (place, key) = manifest_place(store, options)?;
    if options.save == Save::IfAbsent {
        match place.head(&key).await {
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(error),
            Ok(_) if options.manifest != UseManifest::Never => return Ok(None),
            Ok(_) => {
                let message = "there is a manifest already";
                return Err(Error::new(ErrorKind::AlreadyExists, "index", message)
                    .at(place.location().join(&key))
                    .with_hint("add --force to write it anew"));
            }
        }
        if options.manifest_at.is_none() && super::aside::has_former(&**store).await? {
            return Err(super::aside::refuse_former(store.location()));
        }
    }
    // Of two who index one data set at once, the first one's stays: readers hold to the version they opened.
    let mode = match options.save {
        Save::IfAbsent => PutMode::IfAbsent,
        Save::No | Save::Replace => PutMode::Replace,
    };
    Ok(Some(ManifestWriter::to_object(
        spec, &identity, place, key, mode, context,
    )))
}

/// Refuse to save an index of some shards where one of all of them is looked for: whoever opens the directory then would be told that the others do not fit.
pub(super) async fn refuse_part(store: &Arc<dyn Store>, found: &Discovered) -> Result<()> {
    let listed = match list(store).await {
        Ok(listed) => listed.objects,
        Err(error) if !is_listable(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let named: HashSet<&Key> = found.shards.iter().map(|meta| &meta.key).collect();
    let siblings = Siblings::of(&found.spec.name, named.iter().copied());
    let other = listed
        .iter()
        .find(|meta| siblings.has(&meta.key) && !named.contains(&meta.key));
    let Some(other) = other else {
        return Ok(());
    };
    let message = format!(
        "{MANIFEST_NAME} is of all shards beside it, and shard {:?} is not among those that are named",
        other.key
    );
    Err(Error::new(ErrorKind::InvalidInput, "index", message)
        .at(store.location())
        .with_hint("name the directory; or keep an index of some of them elsewhere: forebay index -o URL, and --manifest URL to use it"))
}

/// A manifest that was made just now.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) manifest: Manifest,
    pub(super) ledger: Ledger,
    /// Whether each shard has checksums of its own.
    pub(super) has_sums: Vec<bool>,
}

/// Read every shard and make the manifest.
pub(super) async fn build(
    context: &Context,
    found: &Discovered,
    mut writer: ManifestWriter,
    progress: &Arc<dyn Progress>,
) -> Result<Built> {
    let store = &found.from.store;
    let format = found.from.format(&found.spec, context).await?;
    let bytes = found.shards.iter().map(|meta| meta.size).sum();
    progress.planned(found.shards.len() as u64, bytes);
    // Owned: a closure over references would not be general enough for a future that moves between threads.
    let passes = found.shards.clone().into_iter().map(|meta| {
        let source = ShardSource::new(Arc::clone(store), meta, context);
        pass(&format, source, progress)
    });
    // In order, whoever is done first: the same shards give the same manifest.
    let mut passes = stream::iter(passes).buffered(at_once());
    let (mut ledger, mut has_sums) = (Ledger::default(), Vec::with_capacity(found.shards.len()));
    for meta in &found.shards {
        let Some(tabulated) = passes.next().await else {
            break;
        };
        let tabulated = tabulated?;
        ledger.merge(&tabulated.ledger);
        has_sums.push(tabulated.has_sums);
        let added = writer.add(meta, &tabulated).await;
        added.map_err(|error| error.at(store.location().join(&meta.key)))?;
        progress.shard_done(&meta.key, tabulated.table.samples());
    }
    drop(passes);
    Ok(Built {
        manifest: writer.finish().await?,
        ledger,
        has_sums,
    })
}

/// Shards read at once on this machine.
pub(crate) fn at_once() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    cores.clamp(2, SHARDS_AT_ONCE_MAX)
}

/// A pass over one shard, in a task of its own.
fn pass(
    format: &Arc<dyn Format>,
    source: ShardSource,
    progress: &Arc<dyn Progress>,
) -> impl Future<Output = Result<Tabulated>> + use<> {
    let (format, progress) = (Arc::clone(format), Arc::clone(progress));
    let source = source.watched(move |bytes, _| progress.moved(bytes));
    async move { Task::spawn(async move { tabulate(&*format, &source).await }).await }
}

/// A task that ends with whoever waits for it.
pub(crate) struct Task<T>(JoinHandle<Result<T>>);

impl<T: Send + 'static> Task<T> {
    pub(crate) fn spawn(work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|joined| {
            joined.unwrap_or_else(|error| {
                Err(Error::new(ErrorKind::Internal, "read shard", "a task ended early").with_source(error))
            })
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
