//! The classes that `forebay.Checkpointer` is made of: `NativeCheckpoints`, `NativeCheckpoint`, `NativeSave`;
//! and `NativeAttempt`, which `forebay.dcp` is made of.
//!
//! ```text
//! save:  Python flattens the state -> [stage]: bytes copied to reused memory, the caller goes on -> [save]: a task of the runtime saves them
//! load:  [open]: what there is -> Python makes a list of boxes -> [load]: memory that was verified, as buffers or in memory of the caller
//! ```
//!
//! - `stage`: where slices lie in the staging area, and copies by several threads;
//! - `feed`: the staging area in rounds, for states that are larger;
//! - `save`: one attempt in the background, and what it is asked;
//! - `attempt`: one attempt step by step, for callers that coordinate ranks by themselves;
//! - `open`, `load`: a checkpoint, its entries and its bytes;
//! - `value`: typed values from and to Python objects.

mod attempt;
mod feed;
mod load;
mod open;
mod save;
mod stage;
mod value;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_ckpt::{
    AccessLog, Attempt, Checkpoint, Compress, Drainer, DrainerOptions, GcOptions, KeyWrap, Keys, Listed,
    Manifest, Placed, PublicKey, Reading, Retention, SigningKey, Tier, Tiers, gc, list, newest, note_failure,
};
use forebay_core::{Error, ErrorKind, Location, Result, Scheme};
use forebay_store::{Context, Store};
use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::Serialize;

pub(crate) use self::attempt::PyNativeAttempt;
pub(crate) use self::open::PyNativeCheckpoint;
pub(crate) use self::save::PyNativeSave;
pub(crate) use self::stage::{ckpt_copy, ckpt_layout};
pub(crate) use self::value::{PyEntryName, PyTyped, ckpt_encode};
use crate::errors;
use crate::fork::ForkGuard;
use crate::process::{self, Inside, Process};
use crate::store::Choices;
use crate::wait::wait;

/// A place with checkpoints; see ``forebay.Checkpointer``.
#[pyclass(name = "NativeCheckpoints", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyNativeCheckpoints {
    opened: ForkGuard<Inside<Place>>,
}

/// A store that checkpoints are in, with the process it belongs to.
#[derive(Debug, Clone)]
struct Place {
    process: &'static Process,
    context: Context,
    store: Arc<dyn Store>,
    /// The store, and the places that checkpoints are copied to.
    tiers: Tiers,
    drainer: Arc<OnceLock<Drainer>>,
    /// Held while old checkpoints are removed: one gc at a time, and the next save's comes after that of the one before.
    collecting: Arc<tokio::sync::Mutex<()>>,
    slots: load::Slots,
    secrets: Arc<Secrets>,
    /// Which rank of how many reads.
    reader: (u32, u32),
    /// Who saved, loaded and removed what is noted there first.
    access_log: Option<AccessLog>,
}

/// Who may read what is saved, and whose checkpoints are taken for good.
#[derive(Debug, Default)]
struct Secrets {
    keys: Keys,
    sign: Option<SigningKey>,
    /// Any checkpoint will do, without them.
    trusted: Vec<PublicKey>,
}

impl Secrets {
    fn of(py: Python<'_>, given: &Bound<'_, PyDict>, context: &Context) -> PyResult<Self> {
        let raise = |error: Error| errors::raise(py, &error);
        let keys: Vec<String> = get(given, "keys")?.unwrap_or_default();
        let keys = keys.iter().map(|key| KeyWrap::parse(key, context));
        let keys = keys.collect::<Result<Vec<_>>>().map_err(raise)?;
        let sign: Option<PathBuf> = get(given, "sign")?;
        let sign = sign.map(|path| SigningKey::file(&path));
        let trusted: Vec<PathBuf> = get(given, "trust")?.unwrap_or_default();
        let trusted = trusted.iter().map(|path| PublicKey::file(path));
        Ok(Self {
            keys: Keys::new(keys),
            sign: sign.transpose().map_err(raise)?,
            trusted: trusted.collect::<Result<_>>().map_err(raise)?,
        })
    }
}

impl Place {
    async fn open(
        process: &'static Process,
        context: Context,
        locations: Vec<Location>,
        [near, far]: [Retention; 2],
        compress: Compress,
    ) -> Result<Self> {
        let mut tiers = Vec::new();
        for location in &locations {
            let store = forebay_store::open(location, &context).await?;
            let tier = Tier::new(store);
            tiers.push(if tiers.is_empty() {
                tier.keeping(near)
            } else {
                tier.keeping(far).compressing(compress)
            });
        }
        let tiers = Tiers::new(tiers, &context)?;
        let store = tiers.nearest().cloned();
        let store = store.ok_or_else(|| refused("there is no place to save to"))?;
        Ok(Self {
            process,
            context,
            store,
            tiers,
            drainer: Arc::default(),
            collecting: Arc::default(),
            slots: load::Slots::default(),
            secrets: Arc::default(),
            reader: (0, 1),
            access_log: None,
        })
    }

    /// How checkpoints are read here, from whichever place.
    fn reading(&self) -> Reading {
        Reading {
            keys: self.secrets.keys.clone(),
            trusted: self.secrets.trusted.clone(),
            access_log: self.access_log.clone(),
            rank: Some(self.reader),
        }
    }

    /// A checkpoint with the keys to read it; refuses one that nobody trusted has signed, where that is asked for.
    fn prepared(&self, checkpoint: &Checkpoint) -> Result<Checkpoint> {
        self.reading().prepare(checkpoint)
    }

    /// Steps with a manifest of the nearest place that can be read, and the names of all places that have them.
    async fn list(&self) -> Result<Vec<(u64, Result<Manifest>, Vec<String>)>> {
        if !self.has_mirror() {
            let name = self.store.location().to_string();
            let listed = list(Arc::clone(&self.store), &self.context).await?;
            let rows = listed.into_iter();
            return Ok(rows
                .map(|Listed { step, manifest }| (step, manifest, vec![name.clone()]))
                .collect());
        }
        let (placed, _) = self.tiers.list().await?;
        let rows = placed.into_iter().filter_map(|Placed { step, tiers }| {
            let places = self.tiers.tiers();
            let name = |number: usize| places.get(number).map(|tier| tier.name.clone());
            let names = tiers.keys().filter_map(|number| name(*number)).collect();
            let mut found: Option<Result<Manifest>> = None;
            for manifest in tiers.into_values() {
                if found.as_ref().is_none_or(Result::is_err) {
                    found = Some(manifest);
                }
            }
            Some((step, found?, names))
        });
        Ok(rows.collect())
    }

    fn has_mirror(&self) -> bool {
        self.tiers.tiers().len() > 1
    }

    /// Copy what was saved to the other places, and remove what the rules do not keep.
    async fn settle(&self) -> Result<()> {
        if self.has_mirror() {
            let start = || Drainer::start(self.tiers.clone(), DrainerOptions::default());
            let settled = self.drainer.get_or_init(start).settled().await?;
            return match settled.report.passed.iter().find(|passed| passed.is_trouble) {
                Some(passed) => {
                    let message = format!("step {} is not copied: {}", passed.step, passed.why);
                    Err(Error::new(ErrorKind::Precondition, "drain", message))
                }
                None => Ok(()),
            };
        }
        let has_rules = |tier: &Tier| !tier.retention.keeps_all();
        if self.tiers.tiers().iter().any(has_rules) {
            let _alone = self.collecting.lock().await;
            self.tiers.collect(false).await?;
        }
        Ok(())
    }
}

/// Steps that cannot be read (of a whole place, where there is none), and why.
type Damaged = Vec<(Option<u64>, String)>;

impl PyNativeCheckpoints {
    fn place(&self, py: Python<'_>) -> PyResult<&Place> {
        let place = self.opened.get().map(|place| &**place);
        place.ok_or_else(|| errors::raise(py, &process::other_process("checkpoint", "checkpointer")))
    }
}

#[pymethods]
impl PyNativeCheckpoints {
    #[new]
    fn new(py: Python<'_>, url: &str, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let raise = |error: Error| errors::raise(py, &error);
        let base = std::env::current_dir().map_err(|error| raise(Error::from_io("open", error)))?;
        let mirrors: Vec<String> = get(options, "mirrors")?.unwrap_or_default();
        let urls = std::iter::once(url).chain(mirrors.iter().map(String::as_str));
        let locations = urls.map(|url| Location::parse(url, &base));
        let locations = locations.collect::<Result<Vec<_>>>().map_err(raise)?;
        let choices = Choices::of_store(
            get(options, "endpoint")?,
            get(options, "region")?,
            get(options, "addressing")?,
        );
        let process = Process::get(py)?;
        let is_memory = |location: &&Location| location.scheme() == Scheme::Mem;
        if let Some(location) = locations.iter().find(is_memory).filter(|_| process.is_forked()) {
            let message = "objects in memory cannot be used after a fork";
            return Err(raise(
                Error::new(ErrorKind::Unsupported, "open", message).at(location),
            ));
        }
        let retentions = [
            retention_of(options, "keep_last", "keep_every")?,
            retention_of(options, "mirror_keep_last", "mirror_keep_every")?,
        ];
        let compress: Option<String> = get(options, "mirror_compress")?;
        let compress = compress.as_deref().unwrap_or("off").parse().map_err(raise)?;
        let context = choices.context(process.context());
        let secrets = Arc::new(Secrets::of(py, options, &context)?);
        let place = wait(
            py,
            process,
            Place::open(process, context, locations, retentions, compress),
        )?;
        let reader = (
            get(options, "rank")?.unwrap_or(0),
            get(options, "world")?.unwrap_or(1),
        );
        let access_log: Option<PathBuf> = get(options, "access_log")?;
        let mut place = Place {
            secrets,
            reader,
            access_log: access_log.map(AccessLog::new),
            ..place
        };
        place.tiers = place.tiers.clone().reading(place.reading());
        Ok(Self {
            opened: ForkGuard::new(Inside::new(process, place)),
        })
    }

    /// Where it is.
    #[getter]
    fn url(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.place(py)?.store.location().to_string())
    }

    /// The name of a new attempt, for one rank to tell the others.
    fn draw(&self, py: Python<'_>) -> PyResult<String> {
        Ok(Attempt::draw(&self.place(py)?.context).to_string())
    }

    /// The name of an attempt that all ranks derive from what they share.
    #[staticmethod]
    fn derive(run_id: &str, step: u64, number: u64) -> String {
        Attempt::derive(run_id, step, number).to_string()
    }

    /// Begin to save in the background, from staged memory.
    fn save(
        &self,
        py: Python<'_>,
        staging: Option<&Bound<'_, PyAny>>,
        slices: Vec<save::SliceRow>,
        others: Vec<save::OtherRow<'_>>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<PyNativeSave> {
        save::begin(py, self.place(py)?, staging, (slices, others), options)
    }

    /// Tell the other ranks of an attempt that this one cannot save, and why; `kind` is the name of an exception's class.
    fn fail(&self, py: Python<'_>, which: (u64, String, u32), kind: &str, message: &str) -> PyResult<()> {
        let (step, attempt, rank) = which;
        let place = self.place(py)?;
        let attempt = save::attempt_of(&attempt).map_err(|error| errors::raise(py, &error))?;
        let error = error_of(kind, message);
        wait(py, place.process, async {
            note_failure(&*place.store, step, attempt, rank, &error).await;
            Ok(())
        })
    }

    /// What checkpoints there are in any of the places, by step: dicts, with ``error`` where a manifest cannot be read.
    fn list<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let place = self.place(py)?;
        let listed = wait(py, place.process, place.list())?;
        let rows = PyList::empty(py);
        for (step, manifest, names) in listed {
            let row = match manifest {
                Ok(manifest) => open::described(py, &manifest)?,
                Err(error) => {
                    let row = PyDict::new(py);
                    row.set_item("step", step)?;
                    row.set_item("error", error.to_string())?;
                    row
                }
            };
            row.set_item("places", names)?;
            rows.append(row)?;
        }
        Ok(rows)
    }

    /// The checkpoint of a step, or the newest whose manifest can be read (with the steps above it that cannot); None where there is none.
    fn open(&self, py: Python<'_>, step: Option<u64>) -> PyResult<(Option<PyNativeCheckpoint>, Damaged)> {
        let place = self.place(py)?;
        if place.has_mirror() {
            return PyNativeCheckpoint::open_tiered(py, place, step);
        }
        let (store, context) = (Arc::clone(&place.store), &place.context);
        let (checkpoint, damaged) = match step {
            Some(step) => {
                let open = Checkpoint::open(store, context, step);
                (Some(wait(py, place.process, open)?), Vec::new())
            }
            None => wait(py, place.process, newest(store, context))?,
        };
        let damaged = damaged
            .into_iter()
            .map(|(step, error)| (Some(step), error.to_string()));
        let prepared = checkpoint
            .map(|checkpoint| place.prepared(&checkpoint))
            .transpose();
        let prepared = prepared.map_err(|error| errors::raise(py, &error))?;
        let opened = prepared.map(|checkpoint| PyNativeCheckpoint::new(place, checkpoint, None));
        Ok((opened, damaged.collect()))
    }

    /// Wait until everything is copied to the other places, and what the rules do not keep is removed.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let place = self.place(py)?;
        wait(py, place.process, place.settle())
    }

    /// Remove steps, and what nobody needs: what went, as JSON.
    fn gc(&self, py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<String> {
        let place = self.place(py)?;
        let options = GcOptions {
            remove: get(options, "remove")?.unwrap_or_default(),
            access_log: place.access_log.clone(),
            ..GcOptions::default()
        };
        let collected = wait(py, place.process, async {
            let _alone = place.collecting.lock().await;
            gc(Arc::clone(&place.store), &place.context, &options).await
        })?;
        to_json(py, &collected)
    }
}

fn retention_of(given: &Bound<'_, PyDict>, last: &str, every: &str) -> PyResult<Retention> {
    Ok(Retention {
        keep_last: get(given, last)?,
        keep_every: get(given, every)?,
        age_max: None,
    })
}

/// An argument; None counts as not given.
fn get<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyDict>, name: &str) -> PyResult<Option<T>> {
    match given.get_item(name)?.filter(|value| !value.is_none()) {
        Some(value) => value.extract().map(Some).map_err(Into::into),
        None => Ok(None),
    }
}

/// An argument that must be there.
fn need<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyDict>, name: &str) -> PyResult<T> {
    let missing = || errors::raise(given.py(), &refused(format!("{name} is not given")));
    get(given, name)?.ok_or_else(missing)
}

fn to_json(py: Python<'_>, value: &impl Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| {
        let message = "value cannot be JSON";
        errors::raise(
            py,
            &Error::new(ErrorKind::Internal, "checkpoint", message).with_source(error),
        )
    })
}

fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, "checkpoint", message)
}

/// An error of the interpreter, for other ranks.
fn error_of(kind: &str, message: &str) -> Error {
    let mut kinds = ErrorKind::ALL.iter().copied();
    let kind = kinds.find(|one| one.python_class() == kind);
    Error::new(kind.unwrap_or(ErrorKind::Precondition), "save", message)
}

/// A dtype by its name.
fn dtype_of(name: &str) -> Result<forebay_ckpt::Dtype> {
    forebay_ckpt::Dtype::from_name(name)
        .ok_or_else(|| refused(format!("there is no dtype '{}'", name.escape_debug())))
}
