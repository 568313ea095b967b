//! What a location names: a file, an index, or a folder.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result, Span};
use forebay_io::{AlignedBuf, FileKind, Pages};
use forebay_store::cache::Cache;
use forebay_store::{Context, Entry, ListOptions, ReadOptions, Store, open, open_object};
use futures::stream::TryStreamExt;

use super::{Found, OpenOptions, is_remote};
use crate::index::{INDEX_BYTES_MAX, INDEX_SUFFIX, Index};

/// How the names of files with tensors end.
const FILE_SUFFIX: &str = ".safetensors";

/// The index that goes first where a folder has several.
const INDEX_USUAL: &str = "model.safetensors.index.json";

/// Most names of a folder that are looked at: a folder of weights has few, and a listing of a bucket's root must end.
const NAMES_MAX: usize = 1_000_000;

pub(super) async fn find(
    location: &Location,
    options: &OpenOptions,
    context: &Context,
) -> Result<Vec<Found>> {
    if is_object(location, context).await? {
        let (store, key) = open_object(location, context).await?;
        let store = cached(store, options, context).await?;
        if key.as_str().rsplit('.').next() == Some("json") {
            return from_index(&store, &key).await;
        }
        return Ok(vec![found(&store, key, None)]);
    }
    let store = cached(open(location, context).await?, options, context).await?;
    folder(&store).await
}

async fn is_object(location: &Location, context: &Context) -> Result<bool> {
    if let Some(path) = location.to_path() {
        return Ok(context.disk().stat(&path).await?.kind != FileKind::Dir);
    }
    if location.split_last().is_none() {
        return Ok(false);
    }
    let (store, key) = open_object(location, context).await?;
    match store.head(&key).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Local files need no cache: they are where it would put them.
async fn cached(store: Arc<dyn Store>, options: &OpenOptions, context: &Context) -> Result<Arc<dyn Store>> {
    match &options.cache {
        Some(config) if is_remote(store.location()) => {
            Ok(Arc::new(Cache::open(store, config.clone(), context).await?))
        }
        _ => Ok(store),
    }
}

fn found(store: &Arc<dyn Store>, key: Key, index: Option<(Arc<Index>, usize)>) -> Found {
    Found {
        location: store.location().join(&key),
        store: Arc::clone(store),
        key,
        index,
        edges: None,
    }
}

async fn folder(store: &Arc<dyn Store>) -> Result<Vec<Found>> {
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: false });
    let (mut files, mut indices, mut names) = (Vec::new(), Vec::new(), 0);
    while let Some(row) = rows.try_next().await? {
        names += 1;
        if names > NAMES_MAX {
            let message = format!("more than {NAMES_MAX} names, too many for a folder of weights");
            return Err(Error::new(ErrorKind::LimitExceeded, "open", message).at(store.location()));
        }
        let Entry::Object(meta) = row else { continue };
        if meta.key.as_str().ends_with(INDEX_SUFFIX) {
            indices.push(meta.key);
        } else if meta.key.as_str().ends_with(FILE_SUFFIX) {
            files.push(meta.key);
        }
    }
    let usual = indices.iter().position(|key| key.as_str() == INDEX_USUAL);
    match (usual, indices.len()) {
        (Some(usual), _) => from_index(store, &indices[usual]).await,
        (None, 1) => from_index(store, &indices[0]).await,
        (None, 0) if files.is_empty() => Err(nothing(store, names)),
        (None, 0) => Ok(files.into_iter().map(|key| found(store, key, None)).collect()),
        (None, _) => {
            let message = format!(
                "there are {} indices, and none is called {INDEX_USUAL}",
                indices.len()
            );
            Err(Error::new(ErrorKind::InvalidInput, "open", message)
                .at(store.location())
                .with_hint("name the index that is meant"))
        }
    }
}

fn nothing(store: &Arc<dyn Store>, names: usize) -> Error {
    let message = format!("no *.safetensors file among {names} names");
    Error::new(ErrorKind::NotFound, "open", message)
        .at(store.location())
        .with_hint("pickled weights (.bin, .pt) are not read: they can run code; convert them to safetensors")
}

async fn from_index(store: &Arc<dyn Store>, key: &Key) -> Result<Vec<Found>> {
    let location = store.location().join(key);
    let meta = store.head(key).await?;
    if meta.size > INDEX_BYTES_MAX {
        let message = format!(
            "an index of {} bytes, and at most {INDEX_BYTES_MAX} are read",
            meta.size
        );
        return Err(Error::new(ErrorKind::LimitExceeded, "read index", message).at(location));
    }
    let mut buf = AlignedBuf::alloc(meta.size as usize, Pages::Small)?;
    if meta.size > 0 {
        let options = ReadOptions {
            version: meta.version.clone(),
            ..ReadOptions::default()
        };
        let done = store
            .read_into(key, Span::first(meta.size), buf, &options)
            .await?;
        buf = done.buf;
    }
    let bytes = buf.get(..meta.size as usize).unwrap_or_default();
    let index = Arc::new(Index::parse(bytes).map_err(|error| error.at(&location))?);
    let folder = key.parent();
    let files = index.files().iter().enumerate();
    Ok(files
        .map(|(number, file)| found(store, folder.join(file), Some((Arc::clone(&index), number))))
        .collect())
}
