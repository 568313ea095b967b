//! From what was typed to a place: parsing URLs, and finding out whether they name an object, a prefix or nothing.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result, Scheme};
use forebay_io::FileKind;
use forebay_store::{Context, ListOptions, ObjectMeta, Store, open, open_object};
use futures::StreamExt;

/// A URL of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    /// Where it points.
    pub(crate) location: Location,
    /// It was written with a slash at its end, so it can only be a directory or prefix.
    pub(crate) has_slash: bool,
}

/// What is at a target.
#[derive(Debug)]
pub(crate) enum Found {
    /// An object, and the store that holds it.
    Object {
        /// Opened at the parent.
        store: Arc<dyn Store>,
        /// Its name there.
        key: Key,
        /// What is known of it.
        meta: ObjectMeta,
    },
    /// A directory, a prefix with something below it, or a whole store.
    Prefix {
        /// Opened at the prefix.
        store: Arc<dyn Store>,
    },
}

impl Target {
    /// Parse an argument; relative paths are taken from the current directory.
    pub(crate) fn parse(text: &OsStr) -> Result<Self> {
        let base = std::env::current_dir()
            .map_err(|error| Error::from_io("start", error).at("current directory"))?;
        Ok(Self {
            location: Location::parse_os(text, &base)?,
            has_slash: text.as_encoded_bytes().ends_with(b"/"),
        })
    }

    /// True for a bucket, a host or the root of the file system.
    pub(crate) fn is_whole_store(&self) -> bool {
        self.location.split_last().is_none()
    }

    /// Look what is there; `NotFound` when nothing is.
    pub(crate) async fn look(&self, context: &Context) -> Result<Found> {
        match self.location.to_path() {
            Some(path) => {
                let stat = context.disk().stat(&path).await?;
                match stat.kind {
                    FileKind::Dir => self.prefix(context).await,
                    _ if self.has_slash => Err(self.not_a_directory()),
                    _ => self.object(context).await,
                }
            }
            None => self.look_remote(context).await,
        }
    }

    async fn look_remote(&self, context: &Context) -> Result<Found> {
        let mut missing = None;
        if !self.has_slash && !self.is_whole_store() {
            match self.object(context).await {
                Err(error) if error.kind() == ErrorKind::NotFound => missing = Some(error),
                result => return result,
            }
        }
        let found = self.prefix(context).await?;
        if let Found::Prefix { store } = &found
            && !self.is_whole_store()
        {
            let mut rows = store.list(&Key::ROOT, ListOptions { recursive: false });
            match rows.next().await {
                // Where nothing can be listed, only objects are found.
                Some(Err(error)) if error.kind() == ErrorKind::Unsupported => {
                    return Err(missing.unwrap_or(error));
                }
                Some(Err(error)) => return Err(error),
                Some(Ok(_)) => {}
                None => return Err(self.missing()),
            }
        }
        Ok(found)
    }

    /// Take it for an object.
    pub(crate) async fn object(&self, context: &Context) -> Result<Found> {
        let (store, key) = open_object(&self.location, context).await?;
        let meta = store.head(&key).await?;
        Ok(Found::Object { store, key, meta })
    }

    async fn prefix(&self, context: &Context) -> Result<Found> {
        Ok(Found::Prefix {
            store: open(&self.location, context).await?,
        })
    }

    fn missing(&self) -> Error {
        Error::new(
            ErrorKind::NotFound,
            "find",
            "there is neither an object of this name nor anything below it",
        )
        .at(&self.location)
    }

    fn not_a_directory(&self) -> Error {
        Error::new(ErrorKind::InvalidInput, "find", "this is a file, not a directory")
            .at(&self.location)
            .with_hint("leave the slash at the end away")
    }

    /// True when a copy to this target goes into it: a trailing slash, a whole store, or a local directory that exists.
    pub(crate) async fn is_container(&self, context: &Context) -> Result<bool> {
        if self.has_slash || self.is_whole_store() {
            return Ok(true);
        }
        let Some(path) = self.location.to_path() else {
            return Ok(false);
        };
        match context.disk().stat(&path).await {
            Ok(stat) => Ok(stat.kind == FileKind::Dir),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// True for local paths.
    pub(crate) fn is_local(&self) -> bool {
        self.location.scheme() == Scheme::File
    }
}
