//! Whether a manifest fits what is in the store.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Entry, ListOptions, ObjectMeta, Store};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::advice::Advice;
use super::discover::Siblings;
use super::{OpenOptions, Touched, or_missing};
use crate::manifest::{MANIFEST_NAME, Manifest, Shard, digest_u64};

/// Up to so many shards are looked at one by one: a directory may hold a million other objects.
const HEADS_MAX: usize = 16;

/// The same where nothing can be listed: more are looked at when they are read, as [`super::Check::WhenRead`] does, since a look each would take minutes.
const HEADS_UNLISTED_MAX: usize = 4096;

/// Looks side by side.
const LOOKS_AT_ONCE_MAX: usize = 32;

/// Shards named in one message.
const NAMED_MAX: usize = 5;

/// A shard that is not what the manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The shard.
    pub key: Key,
    /// In which way.
    pub mismatch: Mismatch,
}

/// In which way a shard is not what the manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mismatch {
    /// It is not there.
    Missing,
    /// It has another size.
    Size {
        /// By the manifest.
        expected: u64,
        /// In the store.
        found: u64,
    },
    /// It was written again or touched since.
    Version,
    /// The manifest does not know it.
    Unlisted,
}

impl Misfit {
    /// True when the shard cannot be used.
    pub(super) fn is_refused(&self, touched: Touched) -> bool {
        self.mismatch != Mismatch::Version || touched == Touched::Refuse
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {:?} ", self.key)?;
        match self.mismatch {
            Mismatch::Missing => f.write_str("is missing"),
            Mismatch::Size { expected, found } => write!(f, "has {found} bytes instead of {expected}"),
            Mismatch::Version => f.write_str("was written again or touched"),
            Mismatch::Unlisted => f.write_str("is not in the manifest"),
        }
    }
}

/// Numbers of the shards of those names; all of them must be there. Of those that are not, it is told whether they exist at all.
pub(super) async fn numbers_of(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    keys: &[Key],
    advice: &Advice,
) -> Result<Vec<usize>> {
    let numbers: HashMap<&Key, usize> = manifest
        .shards()
        .iter()
        .enumerate()
        .map(|(number, shard)| (&shard.key, number))
        .collect();
    let (mut found, mut unlisted) = (Vec::with_capacity(keys.len()), Vec::new());
    for key in keys {
        match numbers.get(key) {
            Some(number) => found.push(*number),
            None => unlisted.push(Misfit {
                key: key.clone(),
                mismatch: Mismatch::Unlisted,
            }),
        }
    }
    if unlisted.is_empty() {
        return Ok(found);
    }
    for (number, misfit) in unlisted.iter().take(NAMED_MAX).enumerate() {
        match store.head(&misfit.key).await {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let count = unlisted.len() - number;
                return Err(nowhere(&misfit.key, count, manifest).at(store.location()));
            }
            Err(error) => return Err(or_missing(error)),
        }
    }
    Err(refuse(&unlisted, unlisted.len(), advice).at(store.location()))
}

/// The error for names of `count` shards of which there is nothing, the first of them `key`.
fn nowhere(key: &Key, count: usize, manifest: &Manifest) -> Error {
    let more = match count {
        1 => String::new(),
        count => format!(
            ", and the manifest does not know {} more of those named",
            count - 1
        ),
    };
    let message = format!("shard {key:?} does not exist{more}");
    let error = Error::new(ErrorKind::NotFound, "open data set", message);
    match manifest.shards() {
        [] => error,
        [first, .., last] => error.with_hint(format!(
            "the data set has {} shards, from {:?} to {:?}",
            manifest.shards().len(),
            first.key,
            last.key
        )),
        [only] => error.with_hint(format!("the data set has one shard, {:?}", only.key)),
    }
}

/// Compare a shard with its object. The version counts only in the store that was indexed: elsewhere every object has another one.
pub(super) fn compare(
    manifest: &Manifest,
    store: &dyn Store,
    shard: &Shard,
    found: Option<&ObjectMeta>,
) -> Option<Misfit> {
    let mismatch = match found {
        None => Mismatch::Missing,
        Some(meta) if meta.size != shard.stored_bytes => Mismatch::Size {
            expected: shard.stored_bytes,
            found: meta.size,
        },
        Some(meta) => {
            let version = meta.version.as_deref().map_or(0, digest_u64);
            let is_comparable =
                shard.version != 0 && version != 0 && manifest.origin() == digest_u64(&store.identity());
            if !is_comparable || version == shard.version {
                return None;
            }
            Mismatch::Version
        }
    };
    Some(Misfit {
        key: shard.key.clone(),
        mismatch,
    })
}

/// Look at every shard and compare it with the manifest; what does not fit is an error. Of a part of a data set, nobody expects the rest to be listed.
pub(super) async fn look(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
    options: &OpenOptions,
    advice: &Advice,
) -> Result<Vec<Option<ObjectMeta>>> {
    let is_part = options.shards.is_some();
    let (metas, unlisted) = if manifest.shards().len() <= HEADS_MAX && is_part {
        (heads(store, manifest).await?, Vec::new())
    } else {
        match listing(store, manifest).await {
            Ok((metas, unlisted)) => (metas, if is_part { Vec::new() } else { unlisted }),
            Err(error) if !is_listable(&error) => {
                // That servers of files cannot list is nothing that anybody could change.
                if error.kind() != ErrorKind::Unsupported && !is_part {
                    options.progress.noted(
                        "nothing may be listed here, so shards that the manifest does not know are not looked for",
                    );
                }
                if manifest.shards().len() > HEADS_UNLISTED_MAX {
                    return Ok(vec![None; manifest.shards().len()]);
                }
                (heads(store, manifest).await?, Vec::new())
            }
            Err(error) => return Err(error),
        }
    };
    let shards = manifest.shards().iter().zip(&metas);
    let misfits = shards.filter_map(|(shard, meta)| compare(manifest, &**store, shard, meta.as_ref()));
    let misfits: Vec<Misfit> = misfits
        .chain(unlisted)
        .filter(|misfit| misfit.is_refused(options.touched))
        .collect();
    if misfits.is_empty() {
        return Ok(metas);
    }
    Err(refuse(&misfits, misfits.len(), advice).at(store.location()))
}

async fn heads(store: &Arc<dyn Store>, manifest: &Manifest) -> Result<Vec<Option<ObjectMeta>>> {
    // Owned keys: a closure over references would not be general enough for a future that moves between threads.
    let keys: Vec<Key> = manifest.shards().iter().map(|shard| shard.key.clone()).collect();
    let heads = keys.into_iter().map(|key| {
        let store = Arc::clone(store);
        async move {
            match store.head(&key).await {
                Ok(meta) => Ok(Some(meta)),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) => Err(or_missing(error)),
            }
        }
    });
    stream::iter(heads)
        .buffered(LOOKS_AT_ONCE_MAX)
        .try_collect()
        .await
}

/// What a listing says of each shard, and which objects look like shards that the manifest does not know.
async fn listing(
    store: &Arc<dyn Store>,
    manifest: &Manifest,
) -> Result<(Vec<Option<ObjectMeta>>, Vec<Misfit>)> {
    let numbers: HashMap<&Key, usize> = manifest
        .shards()
        .iter()
        .enumerate()
        .map(|(number, shard)| (&shard.key, number))
        .collect();
    let siblings = Siblings::of(&manifest.spec().name, numbers.keys().copied());
    let mut metas = vec![None; numbers.len()];
    let mut unlisted = Vec::new();
    let mut rows = store.list(&Key::ROOT, ListOptions { recursive: true });
    while let Some(row) = rows.next().await {
        let meta = match row {
            Ok(Entry::Object(meta)) => meta,
            Ok(Entry::Prefix(_)) => continue,
            // A name that cannot be a key is no shard of this manifest.
            Err(error)
                if error.kind() == ErrorKind::InvalidInput || forebay_store::is_special_file(&error) =>
            {
                continue;
            }
            Err(error) => return Err(error),
        };
        match numbers.get(&meta.key) {
            Some(number) => metas[*number] = Some(meta),
            None if meta.key.file_name() != MANIFEST_NAME && siblings.has(&meta.key) => {
                unlisted.push(Misfit {
                    key: meta.key,
                    mismatch: Mismatch::Unlisted,
                });
            }
            None => {}
        }
    }
    Ok((metas, unlisted))
}

/// False for the errors of stores that cannot list, or not for those who ask: servers of HTTP answer with any of them.
pub(super) fn is_listable(error: &Error) -> bool {
    let kind = error.kind();
    !(kind == ErrorKind::Unsupported || super::is_absent(error))
}

/// Objects beside the shards that look like shards, but are not in the manifest; `None` where nothing can be listed.
pub(super) async fn unlisted(store: &Arc<dyn Store>, manifest: &Manifest) -> Result<Option<Vec<Key>>> {
    match listing(store, manifest).await {
        Ok((_, unlisted)) => Ok(Some(unlisted.into_iter().map(|misfit| misfit.key).collect())),
        Err(error) if !is_listable(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The error for what does not fit; `count` may be more than are given.
pub(super) fn refuse(misfits: &[Misfit], count: usize, advice: &Advice) -> Error {
    let mut words: Vec<String> = misfits.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    if count > words.len() {
        words.push(format!("and {} more", count - words.len()));
    }
    let message = format!("the data set does not fit its manifest: {}", words.join("; "));
    Error::new(ErrorKind::Precondition, "open data set", message).with_hint(what_to_do(misfits, advice))
}

/// What to do about what does not fit; what is worst counts.
fn what_to_do(misfits: &[Misfit], Advice { anew, verify, .. }: &Advice) -> String {
    let is = |wanted: fn(&Mismatch) -> bool| misfits.iter().any(|misfit| wanted(&misfit.mismatch));
    if is(|mismatch| matches!(mismatch, Mismatch::Size { expected, found } if found < expected)) {
        format!(
            "a shard that is shorter was cut off, or written anew: fetch it again, or index what was written anew with {anew}; {verify} tells what is damaged"
        )
    } else if is(|mismatch| *mismatch == Mismatch::Missing) {
        format!(
            "bring the shard back, or have the data set without it by {anew}; {verify} tells what is damaged"
        )
    } else {
        format!("{verify} tells what is damaged; {anew} takes the shards as they are now")
    }
}
