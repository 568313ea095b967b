//! The one place that knows every format by name.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_store::{Context, ObjectMeta, Store};
use serde_json::Value;

use super::discover::list;
use super::folder::{Files, Folder};
use super::listed::{self, LITDATA, MDS};
use crate::format::Format;
use crate::format::files::LeftOut;
use crate::format::parquet::{Parquet, Partitions};
use crate::format::petastorm::{COMMON_METADATA, Petastorm};
use crate::format::tfrecord::{Records, TfRecord};
use crate::format::tokens::{Cut, Tokens};
use crate::format::wds::Wds;
use crate::manifest::FormatSpec;
use crate::schema::Dtype;
use crate::source::ShardSource;

/// Name of the format of plain folders, which is taken where no other fits.
pub const FILES: &str = "files";

/// Name of Parquet with a schema of Petastorm's.
pub(super) const PETASTORM: &str = "petastorm";

/// Parameter of Parquet: the columns that names of folders say.
pub(super) const PARTITIONS: &str = "partitions";

/// Every format that can be asked for by name.
pub const FORMAT_NAMES: &[&str] = &[
    "wds", MDS, LITDATA, "tfrecord", "parquet", PETASTORM, "tokens", FILES,
];

/// The store that shards are read from: that of the data set, but for formats whose shards are made of other objects.
#[derive(Debug, Clone)]
pub(super) struct ShardStore {
    pub(super) store: Arc<dyn Store>,
    folder: Option<Arc<Folder>>,
}

impl ShardStore {
    /// For shards that are objects.
    pub(super) fn plain(store: Arc<dyn Store>) -> Self {
        Self { store, folder: None }
    }

    /// For shards that are lists of the files given.
    pub(super) fn of_files(
        store: &Arc<dyn Store>,
        spec: &FormatSpec,
        objects: &[ObjectMeta],
    ) -> Result<Self> {
        let folder = Arc::new(Folder::new(Arc::clone(store), spec, objects)?);
        Ok(Self {
            store: Arc::clone(&folder) as Arc<dyn Store>,
            folder: Some(folder),
        })
    }

    /// For the shards of a manifest. A folder is listed again.
    pub(super) async fn open(store: Arc<dyn Store>, spec: &FormatSpec) -> Result<Self> {
        if spec.name != FILES {
            return Ok(Self::plain(store));
        }
        let listed = list(&store).await?;
        Self::of_files(&store, spec, &listed.objects)
    }

    /// The folder, where shards are lists of its files.
    pub(super) fn folder(&self) -> Option<&Arc<Folder>> {
        self.folder.as_ref()
    }

    /// Virtual shards, where shards are virtual.
    pub(super) fn virtual_shards(&self) -> Option<Vec<ObjectMeta>> {
        self.folder.as_ref().map(|folder| folder.shards())
    }

    /// What whoever reads a folder should know of it.
    pub(super) fn note(&self) -> Option<String> {
        self.folder.as_ref().and_then(|folder| folder.note())
    }

    /// Files of a folder that are part of no sample.
    pub(super) fn left_out(&self) -> Option<&LeftOut> {
        self.folder.as_ref().map(|folder| folder.left_out())
    }

    /// The format that a manifest, or a user, names. Formats that describe their shards in a file of their own read it again.
    pub(super) async fn format(&self, spec: &FormatSpec, context: &Context) -> Result<Arc<dyn Format>> {
        match (spec.name.as_str(), &self.folder) {
            ("wds", _) => Ok(Arc::new(Wds)),
            (MDS | LITDATA, _) => listed::format(spec, &self.store, context).await,
            ("tfrecord", _) => Ok(Arc::new(tfrecord(spec)?)),
            ("parquet", _) => Ok(Arc::new(parquet(spec)?)),
            (PETASTORM, _) => {
                let key = Key::parse(COMMON_METADATA)?;
                let source = ShardSource::open(Arc::clone(&self.store), &key, context).await?;
                Ok(Arc::new(Petastorm::open(&source, parquet(spec)?).await?.0))
            }
            ("tokens", _) => Ok(Arc::new(tokens(spec)?)),
            (FILES, Some(folder)) => Ok(Arc::new(Files(Arc::clone(folder)))),
            #[cfg(test)]
            ("lines", _) => Ok(Arc::new(super::tests::lines::Lines)),
            (name, _) => Err(unknown(name)),
        }
    }
}

fn parquet(spec: &FormatSpec) -> Result<Parquet> {
    Ok(Parquet {
        columns: columns(spec)?,
        partitions: partitions(spec)?,
    })
}

/// Parameter: `columns`, the names of those that become fields.
fn columns(spec: &FormatSpec) -> Result<Option<Vec<String>>> {
    let Some(value) = spec.params.get("columns") else {
        return Ok(None);
    };
    let names = value.as_array().and_then(|names| {
        let names = names.iter().map(|name| name.as_str().map(str::to_owned));
        names.collect::<Option<Vec<String>>>()
    });
    match names {
        Some(names) => Ok(Some(names)),
        None => Err(bad_param(spec, "columns", &value.to_string())),
    }
}

/// Parameter: `partitions`, pairs of the name of a column and what it has, `int64` or `text`; none in manifests of versions that did not know such columns.
pub(super) fn partitions(spec: &FormatSpec) -> Result<Partitions> {
    match spec.params.get(PARTITIONS) {
        None => Ok(Partitions::default()),
        Some(param) => {
            Partitions::from_param(param).ok_or_else(|| bad_param(spec, PARTITIONS, &param.to_string()))
        }
    }
}

/// Parameters: `records` (`auto`, `examples` or `raw`), and `lists` where every feature, or some of them by name, are to be given as lists.
fn tfrecord(spec: &FormatSpec) -> Result<TfRecord> {
    let records = match text_param(spec, "records")? {
        None | Some("auto") => Records::Auto,
        Some("examples") => Records::Examples,
        Some("raw") => Records::Raw,
        Some(other) => return Err(bad_param(spec, "records", other)),
    };
    let format = TfRecord::new(records);
    match spec.params.get("lists") {
        None | Some(Value::Bool(false)) => Ok(format),
        Some(Value::Bool(true)) => Ok(format.with_lists()),
        Some(Value::Array(names)) if names.iter().all(Value::is_string) => {
            let names = names.iter().filter_map(|name| Some(name.as_str()?.to_owned()));
            Ok(format.with_lists_of(names.collect()))
        }
        Some(other) => Err(bad_param(spec, "lists", &other.to_string())),
    }
}

/// Parameters: `tokens` of one sample, without which samples are the documents of an index, and `dtype`, where the files do not say it.
fn tokens(spec: &FormatSpec) -> Result<Tokens> {
    let cut = count_param(spec, "tokens")?.map_or(Cut::Documents, Cut::Windows);
    let dtype = match text_param(spec, "dtype")? {
        None => None,
        Some(name) => Some(Dtype::parse(name).ok_or_else(|| bad_param(spec, "dtype", name))?),
    };
    Tokens::new(dtype, cut)
}

/// Parameters of each format. What they mean stands where they are read.
fn params_of(format: &str) -> &'static [&'static str] {
    match format {
        MDS => &["pickle"],
        LITDATA => &["pickle", "tokens"],
        "tfrecord" => &["lists", "records"],
        "parquet" | PETASTORM => &["columns", PARTITIONS],
        "tokens" => &["dtype", "tokens"],
        FILES => &["layout"],
        _ => &[],
    }
}

/// A parameter that the format does not have, if there is one.
fn strange_param(spec: &FormatSpec) -> Option<&str> {
    let known = params_of(&spec.name);
    let names = spec.params.keys().map(String::as_str);
    names.into_iter().find(|name| !known.contains(name))
}

/// Refuse what a user asks for under a name that means nothing.
pub(super) fn check_choice(spec: &FormatSpec) -> Result<()> {
    let Some(name) = strange_param(spec) else {
        return Ok(());
    };
    if !FORMAT_NAMES.contains(&spec.name.as_str()) {
        return Err(unknown(&spec.name));
    }
    let message = format!("format {} has no parameter '{}'", spec.name, name.escape_debug());
    let hint = match params_of(&spec.name) {
        [] => "it has none".to_owned(),
        known => format!("parameters are: {}", known.join(", ")),
    };
    Err(Error::new(ErrorKind::InvalidInput, "open data set", message)
        .with_field("format")
        .with_hint(hint))
}

/// Refuse a manifest that was made with parameters of a later version: they say how shards are read. `anew` is the command that writes it anew.
pub(super) fn check_made(spec: &FormatSpec, anew: &str) -> Result<()> {
    let Some(name) = strange_param(spec) else {
        return Ok(());
    };
    let message = format!(
        "the manifest has a parameter of format {} that this version does not know: '{}'",
        spec.name.escape_debug(),
        name.escape_debug()
    );
    Err(
        Error::new(ErrorKind::Unsupported, "open data set", message).with_hint(format!(
            "read it with the version of forebay that wrote it, or a later one; {anew} writes it anew"
        )),
    )
}

/// A parameter that is on or off.
pub(super) fn bool_param(spec: &FormatSpec, name: &str) -> Result<bool> {
    match spec.params.get(name) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(other) => Err(bad_param(spec, name, &other.to_string())),
    }
}

/// A parameter that counts.
pub(super) fn count_param(spec: &FormatSpec, name: &str) -> Result<Option<u64>> {
    let Some(value) = spec.params.get(name) else {
        return Ok(None);
    };
    let count = value.as_u64();
    count
        .map(Some)
        .ok_or_else(|| bad_param(spec, name, &value.to_string()))
}

fn text_param<'a>(spec: &'a FormatSpec, name: &str) -> Result<Option<&'a str>> {
    match spec.params.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(bad_param(spec, name, &other.to_string())),
    }
}

fn bad_param(spec: &FormatSpec, name: &str, value: &str) -> Error {
    let message = format!(
        "format {} cannot have {name} '{}'",
        spec.name,
        value.escape_debug()
    );
    Error::new(ErrorKind::InvalidInput, "open data set", message)
}

fn unknown(name: &str) -> Error {
    let message = format!("there is no format '{}'", name.escape_debug());
    let known = FORMAT_NAMES.join(", ");
    Error::new(ErrorKind::Unsupported, "open data set", message).with_hint(format!("formats are: {known}"))
}
