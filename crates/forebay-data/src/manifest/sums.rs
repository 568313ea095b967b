//! `_SHA256SUMS`: the hashes of all shards, for `sha256sum -c`. Beside a manifest of another name it is called as that is, for several may lie in one folder.
//!
//! Data sets are published with a file of that name, and it is what tells whether they arrived whole. So it is written behind the manifest, where there is none;
//! one that is there is replaced only if the manifest that is replaced wrote it.

use std::fmt::Write;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result, Span};
use forebay_store::{Context, PutDone, PutMode, PutOptions, Store, StoreExt};

use super::{MANIFEST_NAME, SUMS_NAME, Shard, read_object};
use crate::source::ShardSource;

/// Ends the name of a manifest, and that of the sums beside one that has a name of its own.
const ENDINGS: (&str, &str) = (".fbi", ".sha256");

/// The key of the sums that belong to a manifest: `_SHA256SUMS` beside `_forebay.fbi`, and `web.sha256` beside `web.fbi`.
pub fn sums_key(manifest: &Key) -> Result<Key> {
    let name = manifest.file_name();
    let name = match name {
        MANIFEST_NAME => SUMS_NAME.to_owned(),
        name => format!("{}{}", name.strip_suffix(ENDINGS.0).unwrap_or(name), ENDINGS.1),
    };
    Ok(manifest.parent().join(&Key::parse(&name)?))
}

/// What became of `_SHA256SUMS`.
#[derive(Debug, Clone, Default)]
pub enum Sums {
    /// Nobody asked for it: the manifest was opened or is in memory, or its shards are no files of their own.
    #[default]
    Unasked,
    /// It lists the shards of the manifest.
    Written,
    /// There is one that somebody else wrote, or for other shards. It was left alone.
    Theirs,
    /// It could not be written; the manifest is there.
    Missing(Arc<Error>),
}

impl Sums {
    /// In one word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unasked => "unasked",
            Self::Written => "written",
            Self::Theirs => "theirs",
            Self::Missing(_) => "missing",
        }
    }
}

/// Write the hashes beside the manifest `manifest`, which is there. `earlier` is what the manifest before it had beside it.
pub(crate) async fn save(
    store: &Arc<dyn Store>,
    manifest: &Key,
    shards: &[Shard],
    earlier: Option<&str>,
    context: &Context,
) -> Sums {
    match put(store, manifest, &sha256sums(shards), earlier, context).await {
        Ok(sums) => sums,
        Err(error) => {
            tracing::warn!(%error, %manifest, "its SHA-256 sums were not written");
            Sums::Missing(Arc::new(error))
        }
    }
}

async fn put(
    store: &Arc<dyn Store>,
    manifest: &Key,
    text: &str,
    earlier: Option<&str>,
    context: &Context,
) -> Result<Sums> {
    let key = sums_key(manifest)?;
    if put_if_absent(&**store, &key, text.as_bytes()).await?.is_some() {
        return Ok(Sums::Written);
    }
    let longest = text.len().max(earlier.map_or(0, str::len));
    match read(store, &key, longest as u64, context).await? {
        Some(found) if found == text.as_bytes() => Ok(Sums::Written),
        Some(found) if earlier.is_some_and(|earlier| found == earlier.as_bytes()) => {
            let options = PutOptions::default();
            store.put_bytes(&key, text.as_bytes(), &options).await?;
            Ok(Sums::Written)
        }
        _ => {
            tracing::warn!(location = %store.location().join(&key), "left alone: it does not list these shards");
            Ok(Sums::Theirs)
        }
    }
}

/// Write an object that must not be there; false where it is. A store that cannot tell is asked before.
pub(crate) async fn put_if_absent(store: &dyn Store, key: &Key, bytes: &[u8]) -> Result<Option<PutDone>> {
    let options = PutOptions {
        mode: PutMode::IfAbsent,
        ..PutOptions::default()
    };
    let error = match store.put_bytes(key, bytes, &options).await {
        Ok(done) => return Ok(Some(done)),
        Err(error) => error,
    };
    match error.kind() {
        ErrorKind::AlreadyExists => Ok(None),
        ErrorKind::Unsupported => match store.head(key).await {
            Ok(_) => Ok(None),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let done = store.put_bytes(key, bytes, &PutOptions::default()).await?;
                Ok(Some(done))
            }
            Err(error) => Err(error),
        },
        _ => Err(error),
    }
}

/// The bytes of an object; `None` where it has more than that.
pub(crate) async fn read(
    store: &Arc<dyn Store>,
    key: &Key,
    bytes_max: u64,
    context: &Context,
) -> Result<Option<Vec<u8>>> {
    let source = ShardSource::open(Arc::clone(store), key, context).await?;
    match source.size() {
        0 => Ok(Some(Vec::new())),
        size if size > bytes_max => Ok(None),
        size => {
            let (bytes, _) = read_object(&source, Span::first(size)).await?;
            Ok(Some(bytes.to_vec()))
        }
    }
}

/// The text, a line for each shard. Names are escaped as coreutils escape them.
pub fn sha256sums(shards: &[Shard]) -> String {
    let mut text = String::new();
    for shard in shards {
        let name = shard.key.as_str();
        if name.contains(['\\', '\n', '\r']) {
            text.push('\\');
        }
        for byte in shard.sha256 {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str("  ");
        for character in name.chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                other => text.push(other),
            }
        }
        text.push('\n');
    }
    text
}
