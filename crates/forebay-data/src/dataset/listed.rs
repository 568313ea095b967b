//! Formats that list their shards in `index.json`: MDS and LitData.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::{ByteSize, Error, ErrorKind, Key, Result, Span};
use forebay_store::{Context, ObjectMeta, ReadOptions, Store, StoreExt};
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::discover::{Family, family_of};
use super::registry::{ShardStore, bool_param, count_param};
use super::{Discovered, is_absent};
use crate::format::litdata::{self, LitData};
use crate::format::mds::{self, Mds};
use crate::manifest::FormatSpec;

/// Name of the list.
const INDEX_NAME: &str = "index.json";

/// Longest `index.json` that is read: that of a hundred thousand shards has some 50 MB.
const INDEX_BYTES_MAX: u64 = 256 << 20;

/// Names of the formats.
pub(super) const MDS: &str = "mds";
pub(super) const LITDATA: &str = "litdata";

/// Which kind of list it is.
#[derive(Deserialize)]
struct Probe {
    shards: Option<IgnoredAny>,
    chunks: Option<IgnoredAny>,
}

/// A list of shards: for each, the names its object may have, the best first.
struct Shards(Vec<Vec<Key>>);

/// What `index.json` lists, where there is one of a known kind and no other format was asked for.
pub(super) async fn by_index(
    store: &Arc<dyn Store>,
    context: &Context,
    choice: Option<&FormatSpec>,
    objects: &[ObjectMeta],
    are_named: bool,
) -> Result<Option<Discovered>> {
    if choice.is_some_and(|spec| spec.name != MDS && spec.name != LITDATA) {
        return Ok(None);
    }
    let Some(text) = read_index(store, context).await? else {
        return Ok(None);
    };
    let place = store.location().join(&Key::parse(INDEX_NAME)?);
    let probe = match serde_json::from_slice::<Probe>(&text) {
        Ok(probe) => probe,
        Err(error) if choice.is_some() || objects.iter().any(|meta| is_listed(&meta.key)) => {
            return Err(damaged(error).at(&place));
        }
        // A file of that name that has nothing to do with shards.
        Err(_) => return Ok(None),
    };
    let (name, shards) = match (probe.shards, probe.chunks) {
        (Some(_), _) => (MDS, mds_shards(&text)),
        (None, Some(_)) => (LITDATA, litdata_shards(&text)),
        (None, None) => return Ok(None),
    };
    let shards = shards.map_err(|error| error.at(&place))?;
    let spec = choice.cloned().unwrap_or_else(|| FormatSpec::new(name));
    let shards = if are_named {
        // Objects that were named are taken as they are, where the list knows them all.
        let known = |meta: &ObjectMeta| shards.0.iter().any(|names| names.contains(&meta.key));
        if !objects.iter().all(known) {
            return Ok(None);
        }
        objects.to_vec()
    } else {
        find(&shards, objects).map_err(|error| error.at(&place))?
    };
    Ok(Some(Discovered {
        spec,
        shards,
        notes: Vec::new(),
        is_unfinished: false,
        from: ShardStore::plain(Arc::clone(store)),
    }))
}

/// True when an object has the name of what such a list is for: a shard of MDS, or a chunk of LitData, `chunk-0-0.bin` or `chunk-0-0.zstd.bin`.
fn is_listed(key: &Key) -> bool {
    match family_of(key) {
        Some(Family::Mds) => true,
        Some(Family::Tokens) => key.file_name().starts_with("chunk-"),
        _ => false,
    }
}

fn damaged(error: serde_json::Error) -> Error {
    let message = "the list of shards is damaged: it is no JSON";
    Error::new(ErrorKind::Corrupt, "open data set", message)
        .with_source(error)
        .with_hint("fetch index.json again from where the data set was written; shards of MDS can be read without: move it away")
}

fn mds_shards(text: &[u8]) -> Result<Shards> {
    let index = mds::Index::parse(text)?;
    let names = index.shards.into_iter().map(|entry| {
        let zip = entry.zip.map(|zip| zip.key);
        zip.into_iter().chain([entry.raw.key]).collect()
    });
    Ok(Shards(names.collect()))
}

fn litdata_shards(text: &[u8]) -> Result<Shards> {
    let index = litdata::Index::parse(text)?;
    Ok(Shards(
        index.chunks.into_iter().map(|chunk| vec![chunk.key]).collect(),
    ))
}

/// The objects of a list, in its order.
fn find(shards: &Shards, objects: &[ObjectMeta]) -> Result<Vec<ObjectMeta>> {
    let objects: HashMap<&Key, &ObjectMeta> = objects.iter().map(|meta| (&meta.key, meta)).collect();
    let found = shards.0.iter().map(|names| {
        let meta = names.iter().find_map(|name| objects.get(name));
        meta.map(|meta| ObjectMeta::clone(meta)).ok_or_else(|| {
            let name = names.first().map_or("", |name| name.as_str());
            let message = format!("it lists shard '{}', which is not there", name.escape_debug());
            Error::new(ErrorKind::NotFound, "open data set", message)
        })
    });
    found.collect()
}

/// The format of shards that `index.json` describes. MDS says enough in each shard to do without.
pub(super) async fn format(
    spec: &FormatSpec,
    store: &Arc<dyn Store>,
    context: &Context,
) -> Result<Arc<dyn crate::format::Format>> {
    let text = read_index(store, context).await?;
    let place = store.location().join(&Key::parse(INDEX_NAME)?);
    let allows_pickle = bool_param(spec, "pickle")?;
    if spec.name == LITDATA {
        let text = text.ok_or_else(|| {
            let message = "chunks of LitData do not say what they hold, and index.json is not there";
            Error::new(ErrorKind::NotFound, "open data set", message).at(store.location())
        })?;
        let index = litdata::Index::parse(&text).map_err(|error| error.at(&place))?;
        let mut format = LitData::new(&Key::ROOT, index);
        if let Some(tokens) = count_param(spec, "tokens")? {
            format = format.with_block(tokens).map_err(|error| error.at(&place))?;
        }
        let format = if allows_pickle {
            format.allow_pickle()
        } else {
            format
        };
        return Ok(Arc::new(format));
    }
    let mut format = Mds::new();
    if let Some(text) = text {
        let index = mds::Index::parse(&text).map_err(|error| error.at(&place))?;
        format = format.with_index(&Key::ROOT, index);
    }
    let format = if allows_pickle {
        format.allow_pickle()
    } else {
        format
    };
    Ok(Arc::new(format))
}

async fn read_index(store: &Arc<dyn Store>, context: &Context) -> Result<Option<Vec<u8>>> {
    let key = Key::parse(INDEX_NAME)?;
    let meta = match store.head(&key).await {
        Ok(meta) => meta,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    if meta.size > INDEX_BYTES_MAX {
        let message = format!("{} for a list of shards", ByteSize(meta.size));
        return Err(
            Error::new(ErrorKind::LimitExceeded, "open data set", message).at(store.location().join(&key))
        );
    }
    let options = ReadOptions {
        version: meta.version.clone(),
        ..ReadOptions::default()
    };
    let (bytes, _) = store
        .read(&key, Span::first(meta.size), &options, context)
        .await?;
    Ok(Some(bytes.to_vec()))
}
