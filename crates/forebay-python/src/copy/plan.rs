//! What goes where, as `forebay cp` has it.
//!
//! A destination with a slash at its end, a whole store or a local directory that exists is copied *into*, under the source's own last name;
//! anything else is the new name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_io::FileKind;
use forebay_store::copy::is_tree_unfinished;
use forebay_store::{Context, ObjectMeta, Store, open, open_object};

/// One end of a copy, as it was given.
#[derive(Debug, Clone)]
pub(super) struct Target {
    location: Location,
    /// It was written with a slash at its end, so it can only be a directory or prefix.
    has_slash: bool,
}

/// What is to be done.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) source: Arc<dyn Store>,
    pub(super) destination: Arc<dyn Store>,
    pub(super) what: What,
}

/// One object with its new name, or everything in the source with the prefix it gets.
#[derive(Debug)]
pub(super) enum What {
    Object(ObjectMeta, Key),
    Tree(Key),
}

impl Target {
    /// Parse an argument; relative paths are taken from `base`.
    pub(super) fn parse(path: PathBuf, base: &Path) -> Result<Self> {
        let text = path.into_os_string();
        Ok(Self {
            location: Location::parse_os(&text, base)?,
            has_slash: text.as_encoded_bytes().ends_with(b"/"),
        })
    }

    fn is_whole_store(&self) -> bool {
        self.location.split_last().is_none()
    }

    /// What kind of file is there; `None` for what is not local or not there.
    async fn file_kind(&self, context: &Context) -> Result<Option<FileKind>> {
        let Some(path) = self.location.to_path() else {
            return Ok(None);
        };
        match context.disk().stat(&path).await {
            Ok(stat) => Ok(Some(stat.kind)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn is_container(&self, context: &Context) -> Result<bool> {
        if self.has_slash || self.is_whole_store() {
            return Ok(true);
        }
        Ok(self.file_kind(context).await? == Some(FileKind::Dir))
    }

    /// The object here with its store; `None` when it can only be a directory or prefix.
    async fn object(&self, context: &Context) -> Result<Option<(Arc<dyn Store>, ObjectMeta)>> {
        if self.is_whole_store() {
            return Ok(None);
        }
        match self.file_kind(context).await? {
            Some(FileKind::Dir) => return Ok(None),
            Some(_) if self.has_slash => {
                let message = "this is a file, not a directory";
                return Err(Error::new(ErrorKind::InvalidInput, "copy", message)
                    .at(&self.location)
                    .with_hint("leave the slash at the end away"));
            }
            None if self.has_slash => return Ok(None),
            _ => {}
        }
        let (store, key) = open_object(&self.location, context).await?;
        let meta = store.head(&key).await?;
        Ok(Some((store, meta)))
    }
}

/// Find out what `source` is and where it goes.
pub(super) async fn plan(
    source: &Target,
    destination: &Target,
    recursive: bool,
    context: &Context,
) -> Result<Plan> {
    let is_container = destination.is_container(context).await?
        && !(recursive && is_going_on(source, destination, context).await);
    let name = source.location.split_last().map(|(_, name)| name);
    let object = match source.object(context).await {
        // Nothing of this name, but perhaps below it.
        Err(error) if recursive && error.kind() == ErrorKind::NotFound => None,
        found => found?,
    };
    let Some((store, meta)) = object else {
        return tree(
            source,
            destination,
            is_container.then_some(name).flatten(),
            recursive,
            context,
        )
        .await;
    };
    let (parent, new_name) = match destination.location.split_last() {
        Some((parent, new_name)) if !is_container => (parent, new_name),
        _ => (
            destination.location.clone(),
            name.ok_or_else(|| nameless(source))?,
        ),
    };
    Ok(Plan {
        source: store,
        destination: open(&parent, context).await?,
        what: What::Object(meta, new_name),
    })
}

async fn tree(
    source: &Target,
    destination: &Target,
    below: Option<Key>,
    recursive: bool,
    context: &Context,
) -> Result<Plan> {
    if !recursive {
        let message = "this is a directory or prefix, not an object";
        return Err(Error::new(ErrorKind::InvalidInput, "copy", message)
            .at(&source.location)
            .with_hint("recursive=True copies everything below it"));
    }
    Ok(Plan {
        source: open(&source.location, context).await?,
        destination: open(&destination.location, context).await?,
        what: What::Tree(below.unwrap_or(Key::ROOT)),
    })
}

/// The first copy of a tree to `to` makes the directory. When it was interrupted, the second one goes on with it instead of copying into it.
async fn is_going_on(source: &Target, destination: &Target, context: &Context) -> bool {
    !destination.has_slash && is_tree_unfinished(&source.location, &destination.location, context).await
}

fn nameless(source: &Target) -> Error {
    Error::new(ErrorKind::InvalidInput, "copy", "this has no name of its own").at(&source.location)
}
