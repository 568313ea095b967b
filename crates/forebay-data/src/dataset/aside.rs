//! What a listing leaves out, and what is said of it.
//!
//! Hidden files and our own are no part of a data set. Parquet files whose names, or whose folders' names, begin with `_` are passed over as Spark, Hive and pyarrow do:
//! there lie logs, side files and what a job that was killed had begun. People also give such names to data, so how many there are is told, and where there is nothing
//! else, the data set is refused. Whatever is named is never left out.

use forebay_core::{Error, ErrorKind, Key, Location, Result};
use forebay_store::{ObjectMeta, Store};

use super::discover::{Family, named_family_of};
use crate::manifest::MANIFEST_NAME;

/// What a manifest was called before; renamed, it is one.
pub(crate) const FORMER_MANIFEST_NAME: &str = "forebay.fbi";

/// True when a part of a key begins with a dot.
pub(super) fn is_hidden(key: &Key) -> bool {
    key.as_str().starts_with('.') || key.as_str().contains("/.")
}

/// True for what Spark, Hive and pyarrow leave out of a directory of Parquet: `_metadata`, and what lies in `_delta_log` or `_temporary`. `_day=1` is a partition.
pub(super) fn is_aside(key: &Key) -> bool {
    key.as_str()
        .split('/')
        .any(|part| part.starts_with('_') && !part.contains('='))
}

/// What is to be said where there is a manifest under its former name.
pub(super) fn note_former() -> String {
    format!(
        "'{FORMER_MANIFEST_NAME}' is an index under its former name, and is not used: rename it to '{MANIFEST_NAME}'"
    )
}

/// True where there is a manifest under its former name. Asked where there is none under its own, and nothing was listed that would tell.
pub(super) async fn has_former(store: &dyn Store) -> Result<bool> {
    match store.head(&Key::parse(FORMER_MANIFEST_NAME)?).await {
        Ok(_) => Ok(true),
        Err(error) if super::is_absent(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The error where another manifest would be saved beside it: who makes one of what is there now declares it whole, whatever happened to it since.
pub(super) fn refuse_former(location: &Location) -> Error {
    let message = format!("'{FORMER_MANIFEST_NAME}' is an index under its former name");
    Error::new(ErrorKind::AlreadyExists, "index", message)
        .at(location)
        .with_hint(format!(
            "rename it to '{MANIFEST_NAME}'; forebay index --force makes a new one instead"
        ))
}

/// Parquet files that a listing leaves out.
#[derive(Debug)]
pub(super) struct Aside {
    count: usize,
    first: Key,
}

impl Aside {
    /// Those among the objects of a listing, where there are any.
    pub(super) fn of(objects: &[ObjectMeta]) -> Option<Self> {
        let keys = objects.iter().map(|meta| &meta.key);
        let mut aside = keys.filter(|key| is_aside(key) && named_family_of(key) == Some(Family::Parquet));
        let first = aside.next()?.clone();
        let count = 1 + aside.count();
        Some(Self { count, first })
    }

    /// Whether they are at least half of so many objects: then they are what somebody meant.
    pub(super) fn is_most_of(&self, objects: usize) -> bool {
        self.count.saturating_mul(2) >= objects
    }

    /// What is to be said of them where something else is read.
    pub(super) fn note(&self) -> String {
        format!(
            "the rows of {} are left out: a listing passes over names that begin with '_', as Spark and pyarrow do; name the files, or their folder, to have them read",
            self.what()
        )
    }

    /// The error where there is no other Parquet file among so many objects that could be read instead.
    pub(super) fn refuse(&self, objects: usize, is_parquet: bool, location: &Location) -> Error {
        let (kind, rest) = match (objects == self.count, is_parquet) {
            (true, _) => (ErrorKind::NotFound, "there is nothing else".to_owned()),
            (false, true) => (ErrorKind::NotFound, "there is no other Parquet file".to_owned()),
            // Which of the two is the data, and which lies beside it, nothing tells.
            (false, false) => {
                let rest = format!("they are at least half of the {objects} objects here");
                (ErrorKind::InvalidInput, rest)
            }
        };
        let message = format!(
            "{} passed over by a listing, as Spark and pyarrow do it with names that begin with '_', and {rest}",
            match self.count {
                1 => format!("{} is", self.what()),
                _ => format!("{} are", self.what()),
            }
        );
        let error = Error::new(kind, "open data set", message);
        let hint = match self.folder() {
            Some(folder) => format!(
                "to read their rows, name their folder, {}, or the files",
                location.join(&folder)
            ),
            None => "to read their rows, name the files".to_owned(),
        };
        error.with_hint(format!(
            "{hint}; --format files takes all that lies here for plain files"
        ))
    }

    fn what(&self) -> String {
        let first = self.first.as_str().escape_debug();
        match self.count {
            1 => format!("1 Parquet file, '{first}',"),
            count => format!("{count} Parquet files such as '{first}'"),
        }
    }

    /// The outermost folder of the first that is passed over.
    fn folder(&self) -> Option<Key> {
        let parts: Vec<&str> = self.first.as_str().split('/').collect();
        let at = parts
            .iter()
            .position(|part| part.starts_with('_') && !part.contains('='))?;
        let folder = parts.get(..=at).filter(|folder| folder.len() < parts.len())?;
        Key::parse(&folder.join("/")).ok()
    }
}
