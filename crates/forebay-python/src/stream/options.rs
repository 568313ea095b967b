//! The keyword arguments of `forebay.stream`, and opening what they name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::env::{self, EnvVar};
use forebay_core::{ByteSize, Error, ErrorKind, Key, Location, Result, Seed};
use forebay_data::Dataset;
use forebay_data::dataset::{
    OpenOptions, Place, Progress, Save, manifest_for_each, note_filtered, note_unindexed,
};
use forebay_data::filter::Filter;
use forebay_data::loader::{Decode, Sieve, Sources, StreamSpec};
use forebay_data::manifest::FormatSpec;
use forebay_data::order::{Last, OrderSpec};
use forebay_io::PinHook;
use forebay_store::cache::Mode;
use forebay_store::{Context, Store, open_object};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::pin::PythonPin;
use crate::errors;
use crate::process::Process;
use crate::settings::SizeArgument;
use crate::store::{Choices, cached};

/// Everything that a stream is opened with.
#[derive(Debug)]
pub(super) struct Options {
    urls: Vec<String>,
    weights: Option<Vec<f64>>,
    base: PathBuf,
    spec: StreamSpec,
    format: Option<FormatSpec>,
    save_index: bool,
    /// Manifests that are not beside their shards, one for each data set; empty where nobody named any.
    manifests: Vec<Option<String>>,
    filter: Option<Filter>,
    cache: Option<String>,
    choices: Choices,
    notes: Notes,
}

/// What opening has to say before it is done, for whoever waits for it; cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    /// What was not taken yet.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, note: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(note);
    }
}

/// Notes what is to be known of a data set, and that one without a manifest is about to be read.
#[derive(Debug)]
struct Unindexed {
    notes: Notes,
    location: Location,
    world: u32,
    is_saved: bool,
}

impl Progress for Unindexed {
    fn noted(&self, note: &str) {
        self.notes.add(note.to_owned());
    }

    fn planned(&self, shards: u64, bytes: u64) {
        let note = note_unindexed(&self.location, (shards, bytes), self.world, self.is_saved);
        self.notes.add(note);
    }
}

/// Notes what a filter has to say.
#[derive(Debug)]
struct Filtering(Notes);

impl Progress for Filtering {
    fn noted(&self, note: &str) {
        self.0.add(note.to_owned());
    }
}

impl Options {
    pub(super) fn new(urls: Vec<String>, given: &Bound<'_, PyDict>) -> PyResult<Self> {
        let py = given.py();
        let raise = |error: Error| errors::raise(py, &error);
        let base = std::env::current_dir().map_err(|error| raise(Error::from_io("open", error)))?;
        Ok(Self {
            urls,
            weights: get(given, "weights")?,
            base,
            spec: spec_of(given)?,
            format: format_of(given)?,
            save_index: get(given, "save_index")?.unwrap_or(false),
            manifests: get(given, "manifest")?.unwrap_or_default(),
            filter: get::<String>(given, "filter")?
                .map(|text| Filter::parse(&text))
                .transpose()
                .map_err(raise)?,
            cache: get(given, "cache")?,
            choices: Choices::of_store(
                get(given, "endpoint")?,
                get(given, "region")?,
                get(given, "addressing")?,
            ),
            notes: Notes::default(),
        })
    }

    /// Refuse what fits no data set.
    pub(super) fn check(&self) -> Result<()> {
        self.spec.order.check()
    }

    /// What opening will say.
    pub(super) fn notes(&self) -> Notes {
        self.notes.clone()
    }

    pub(super) async fn open(self, process: &'static Process) -> Result<(Sources, StreamSpec)> {
        let mut named = self.urls.iter().chain(self.manifests.iter().flatten());
        if process.is_forked()
            && let Some(url) = named.find(|url| url.starts_with("mem:"))
        {
            let message = "objects in memory cannot be used after a fork";
            return Err(Error::new(ErrorKind::Unsupported, "open", message).at(url));
        }
        let context = self.choices.context(process.context());
        let places = Place::find_all(&self.urls, self.weights.is_some(), &self.base, &context).await?;
        let mut datasets = self.open_all(places, &context).await?;
        let sources = match (datasets.pop(), self.weights) {
            (Some(alone), None) if datasets.is_empty() => alone.into(),
            (last, weights) => {
                let said = match self.spec.order.last {
                    Last::Drop => None,
                    Last::Short => Some("last='short'"),
                    Last::Wrap => Some("last='wrap'"),
                };
                if let Some(said) = said {
                    let note = "changes nothing in a mixture: a data set that is used up begins again, so no batch is short";
                    self.notes.add(format!("{said} {note}"));
                }
                Sources::mixed(datasets.into_iter().chain(last).collect(), weights)?
            }
        };
        Ok((sources, self.spec))
    }

    /// All data sets, filtered; notes first what that takes.
    async fn open_all(&self, places: Vec<Place>, context: &Context) -> Result<Vec<Dataset>> {
        let manifests = manifest_for_each(&self.manifests, places.len())?;
        let mut datasets = Vec::with_capacity(places.len());
        let mut sieves = Vec::with_capacity(places.len());
        for (place, manifest) in places.into_iter().zip(&manifests) {
            let dataset = self.open_one(place, manifest.as_deref(), context).await?;
            if let Some(filter) = &self.filter {
                let (threads, memory_bytes_max) = (self.spec.threads, self.spec.memory_bytes_max);
                sieves.push(dataset.sieve(filter, threads, memory_bytes_max).await?);
            }
            datasets.push(dataset);
        }
        if self.filter.is_none() {
            return Ok(datasets);
        }
        let bytes = sieves.iter().map(Sieve::bytes_about).fold(0, u64::saturating_add);
        if let Some(note) = note_filtered(bytes, self.spec.order.world) {
            self.notes.add(note);
        }
        let progress: Arc<dyn Progress> = Arc::new(Filtering(self.notes.clone()));
        let mut kept = Vec::with_capacity(sieves.len());
        for sieve in sieves {
            kept.push(sieve.keep(&progress).await?);
        }
        Ok(kept)
    }

    async fn open_one(&self, place: Place, manifest: Option<&str>, context: &Context) -> Result<Dataset> {
        let location = place.store.location().clone();
        let store = self.cached(place.store, context).await?;
        let options = OpenOptions {
            format: self.format.clone(),
            shards: place.shards,
            save: if self.save_index { Save::IfAbsent } else { Save::No },
            progress: Arc::new(Unindexed {
                notes: self.notes.clone(),
                location,
                world: self.spec.order.world,
                is_saved: self.save_index,
            }),
            ..OpenOptions::default()
        };
        let options = options.with_manifest_at(self.manifest_at(manifest, context).await?);
        Dataset::open(store, context, &options).await
    }

    /// A manifest that is not beside its shards, behind the cache as it would be there.
    async fn manifest_at(
        &self,
        url: Option<&str>,
        context: &Context,
    ) -> Result<Option<(Arc<dyn Store>, Key)>> {
        let Some(url) = url else {
            return Ok(None);
        };
        let (store, key) = open_object(&Location::parse(url, &self.base)?, context).await?;
        Ok(Some((self.cached(store, context).await?, key)))
    }

    /// The cache before a store, where one is set.
    async fn cached(&self, store: Arc<dyn Store>, context: &Context) -> Result<Arc<dyn Store>> {
        let location = store.location().clone();
        let choices =
            self.choices
                .clone()
                .with_cache(self.cache.as_deref(), Mode::Blocks, &location, &self.base)?;
        cached(store, &choices, context).await
    }
}

fn spec_of(given: &Bound<'_, PyDict>) -> PyResult<StreamSpec> {
    let raise = |error: Error| errors::raise(given.py(), &error);
    let defaults = StreamSpec::default();
    let (rank, world) = ranks(get(given, "rank")?, get(given, "world")?).map_err(raise)?;
    let order = OrderSpec {
        seed: Seed(get(given, "seed")?.unwrap_or(0)),
        shuffle: get(given, "shuffle")?.unwrap_or(false),
        lanes: get(given, "lanes")?.unwrap_or(defaults.order.lanes),
        batch_size: get(given, "batch_size")?.unwrap_or(defaults.order.batch_size),
        rank,
        world,
        block_bytes: size(given, "block_size")?.unwrap_or(defaults.order.block_bytes),
        window_bytes: size(given, "window")?.unwrap_or(defaults.order.window_bytes),
        last: last_of(given)?,
        limit: get(given, "limit")?,
        ..defaults.order.clone()
    };
    let bad: Option<String> = get(given, "bad")?;
    Ok(StreamSpec {
        order,
        epochs: get(given, "epochs")?,
        fields: get(given, "fields")?,
        memory_bytes_max: size(given, "memory")?.unwrap_or(defaults.memory_bytes_max),
        threads: get(given, "threads")?.unwrap_or(defaults.threads),
        decode: decode_of(given)?,
        trace: get(given, "trace")?,
        pin: get::<(Py<PyAny>, Py<PyAny>)>(given, "pin")?
            .map(|(pin, unpin)| Arc::new(PythonPin::new(pin, unpin)) as Arc<dyn PinHook>),
        bad: bad.map_or(Ok(defaults.bad), |bad| bad.parse()).map_err(raise)?,
        ..defaults
    })
}

/// What becomes of samples that do not fill a batch.
fn last_of(given: &Bound<'_, PyDict>) -> PyResult<Last> {
    match get::<String>(given, "last")?.as_deref() {
        None | Some("drop") => Ok(Last::Drop),
        Some("short") => Ok(Last::Short),
        Some("wrap") => Ok(Last::Wrap),
        Some(other) => {
            let message = format!("last cannot be '{}'", other.escape_debug());
            let error = Error::new(ErrorKind::InvalidInput, "stream", message).with_field("last");
            Err(errors::raise(given.py(), &error))
        }
    }
}

/// Which fields the loader decodes, and how.
fn decode_of(given: &Bound<'_, PyDict>) -> PyResult<Vec<(String, Decode)>> {
    let fields: Vec<(String, String)> = get(given, "decode")?.unwrap_or_default();
    let fields = fields.into_iter().map(|(field, how)| {
        let how = how
            .parse::<Decode>()
            .map_err(|error| errors::raise(given.py(), &error))?;
        Ok((field, how))
    });
    fields.collect()
}

/// A format by its name, or as the JSON of a name and parameters.
fn format_of(given: &Bound<'_, PyDict>) -> PyResult<Option<FormatSpec>> {
    let Some(text) = get::<String>(given, "format")? else {
        return Ok(None);
    };
    if !text.starts_with('{') {
        return Ok(Some(FormatSpec::new(text)));
    }
    let parsed: serde_json::Result<BTreeMap<String, serde_json::Value>> = serde_json::from_str(&text);
    let mut params = parsed.unwrap_or_default();
    let name = params.remove("name");
    let Some(name) = name.as_ref().and_then(|name| name.as_str()) else {
        let message = "a format with parameters has a name among them";
        let error = Error::new(ErrorKind::InvalidInput, "stream", message).with_field("format");
        return Err(errors::raise(given.py(), &error));
    };
    let spec = FormatSpec::new(name);
    Ok(Some(
        params
            .into_iter()
            .fold(spec, |spec, (name, value)| spec.with(&name, value)),
    ))
}

/// An argument; None counts as not given.
fn get<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>> {
    match given.get_item(name)?.filter(|value| !value.is_none()) {
        Some(value) => value
            .extract()
            .map(Some)
            .map_err(|error| named(given.py(), name, error)),
        None => Ok(None),
    }
}

/// What PyO3 says of an argument of the wrong type, which does not say of which one.
fn named(py: Python<'_>, name: &str, error: impl Into<PyErr>) -> PyErr {
    let error = error.into();
    if error.is_instance_of::<PyTypeError>(py) {
        return PyTypeError::new_err(format!("{name}: {}", error.value(py)));
    }
    error
}

fn size(given: &Bound<'_, PyDict>, name: &str) -> PyResult<Option<u64>> {
    let Some(argument) = get::<SizeArgument>(given, name)? else {
        return Ok(None);
    };
    let ByteSize(bytes) = argument
        .parse()
        .map_err(|error| errors::raise(given.py(), &error.at(name)))?;
    Ok(Some(bytes))
}

/// Rank and world size: both as arguments, or as the launcher says, or alone.
fn ranks(rank: Option<u32>, world: Option<u32>) -> Result<(u32, u32)> {
    match (rank, world) {
        (Some(rank), Some(world)) => Ok((rank, world)),
        (None, None) => match (number(env::RANK)?, number(env::WORLD_SIZE)?) {
            (Some(rank), Some(world)) => Ok((rank, world)),
            (None, None) => Ok((0, 1)),
            _ => Err(half(env::RANK.name, env::WORLD_SIZE.name)),
        },
        _ => Err(half("rank", "world")),
    }
}

fn half(rank: &str, world: &str) -> Error {
    let message = format!("{rank} and {world} go together, and only one of them is given");
    Error::new(ErrorKind::InvalidInput, "stream", message).with_field("rank")
}

fn number(variable: EnvVar) -> Result<Option<u32>> {
    let Some(text) = variable.get() else {
        return Ok(None);
    };
    u32::from_str(&text).map(Some).map_err(|_| {
        let message = format!("{} cannot be '{}'", variable.name, text.escape_debug());
        Error::new(ErrorKind::InvalidInput, "stream", message)
    })
}
