//! One attempt to save, as a task of the runtime: the caller trains on, and asks the `NativeSave` how it stands.
//!
//! The task owns the staging area until it is over, whatever becomes of the object that asks. A process that ends without waiting leaves an
//! attempt without a commit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use forebay_ckpt::{
    Alias, Attempt, HashKind, Item, ItemData, Publish, Save, SaveOptions, Value, note_failure,
};
use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_io::{AlignedBuf, Buf};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use serde::Serialize;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};

use super::feed::{Feed, PieceRow, Rounds, feed};
use super::stage::{lent, spec_of};
use super::value::{to_metadata, to_value};
use super::{Place, dtype_of, get, need, refused, to_json};
use crate::buffer;
use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::process::{self, Process};
use crate::wait::wait;

/// Name, dtype, shape of the tensor, offsets and lengths of the slice, and where it lies: an offset in the staging area (`staged`), an address (`lent`), or
/// the number by which rounds name it (`later`).
pub(crate) type SliceRow = (String, String, Vec<u64>, Vec<u64>, Vec<u64>, usize, String);

/// Name, kind and content of what is no slice.
pub(crate) type OtherRow<'py> = (String, String, Bound<'py, PyAny>);

/// Other name of a tensor: target, dtype, first element, shape, strides.
type AliasRow = (String, String, u64, Vec<u64>, Vec<u64>);

/// A save in the background.
#[pyclass(name = "NativeSave", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyNativeSave {
    process: ForkGuard<&'static Process>,
    state: Arc<State>,
    /// Told when it is to be broken off.
    stop: Arc<Notify>,
    /// What the caller is to copy meanwhile, where the state is larger than the staging area.
    rounds: ForkGuard<AsyncMutex<Option<Rounds>>>,
}

#[derive(Debug)]
struct State {
    /// How far it is.
    stage: watch::Sender<Stage>,
    outcome: Mutex<Option<Result<Done>>>,
    /// What went wrong after it was done.
    trouble: Mutex<Option<Error>>,
}

impl State {
    fn outcome(&self) -> MutexGuard<'_, Option<Result<Done>>> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trouble(&self) -> MutexGuard<'_, Option<Error>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How far a save is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Running,
    /// The state was written, and memory of the caller is not looked at any more.
    Written,
    /// It is known how it went.
    Done,
    /// What is done afterwards is done, too: old checkpoints are removed, new ones copied to other places.
    Settled,
}

/// What was saved.
#[derive(Debug, Serialize)]
struct Done {
    step: u64,
    attempt: Attempt,
    world: u32,
    /// Of this rank.
    bytes_raw: u64,
    bytes_written: u64,
    bytes_referenced: u64,
    chunks: u64,
    chunks_referenced: u64,
    /// Of all ranks.
    bytes_total: u64,
    bytes_written_total: u64,
    /// Incremental saves since the last full one, this one included.
    chain: u32,
    /// Why a full save was made although an incremental one was asked for.
    full_because: Option<String>,
    /// A step above this one that was there before, which loading the newest gives.
    later_step: Option<u64>,
    publish: &'static str,
    /// Rounds in which the state was copied while the caller waited; 0 where it was copied, or lent, as a whole.
    rounds: u64,
    seconds: f64,
    #[serde(skip)]
    ledger: Ledger,
}

/// What a save is told.
struct Order {
    place: Place,
    options: SaveOptions,
    rank: u32,
    items: Vec<Item>,
    feed: Option<Feed>,
    metadata: Value,
    timeout: Duration,
}

pub(super) fn begin(
    py: Python<'_>,
    place: &Place,
    staging: Option<&Bound<'_, PyAny>>,
    (slices, others): (Vec<SliceRow>, Vec<OtherRow<'_>>),
    given: &Bound<'_, PyDict>,
) -> PyResult<PyNativeSave> {
    let raise = |error: Error| errors::raise(py, &error);
    let rank: u32 = need(given, "rank")?;
    let timeout = timeout_of(given, "timeout")?;
    let options = options_of(py, place, given)?;
    let metadata: Bound<'_, PyAny> = need(given, "metadata")?;
    let metadata = to_metadata(&metadata)?;
    let mut items = others
        .into_iter()
        .map(|(name, kind, object)| other_item(name, &kind, &object))
        .collect::<PyResult<Vec<_>>>()?;
    let area = match staging {
        Some(staging) => buffer::take(staging, "save")?.map(AlignedBuf::freeze),
        None => None,
    };
    // What keeps memory that is named by addresses; dropped without the interpreter lock, which is taken for it.
    let keep: Option<Py<PyAny>> = get(given, "keep")?;
    items.extend(slice_items(area.as_ref(), slices, &Arc::new(keep)).map_err(raise)?);
    let (feed, rounds) = feed_of(area, &items, options.chunk_bytes).map_err(raise)?;
    let order = Order {
        place: place.clone(),
        options,
        rank,
        items,
        feed,
        metadata,
        timeout,
    };
    let state = Arc::new(State {
        stage: watch::Sender::new(Stage::Running),
        outcome: Mutex::new(None),
        trouble: Mutex::new(None),
    });
    let stop = Arc::new(Notify::new());
    let running = order.run_until(Arc::clone(&stop), Guarded(Arc::clone(&state)));
    place.process.runtime().spawn(running);
    Ok(PyNativeSave {
        process: ForkGuard::new(place.process),
        state,
        stop,
        rounds: ForkGuard::new(AsyncMutex::new(rounds)),
    })
}

/// Both ends of the rounds, where slices are to be copied in some.
fn feed_of(area: Option<Buf>, items: &[Item], chunk_bytes: u32) -> Result<(Option<Feed>, Option<Rounds>)> {
    let longest = |item: &Item| match &item.data {
        ItemData::Later(spec, _) => Some(spec.bytes().min(u64::from(chunk_bytes))),
        _ => None,
    };
    let (Some(longest), Some(area)) = (items.iter().filter_map(longest).max(), area) else {
        return Ok((None, None));
    };
    let (feed, rounds) = feed(area, longest as usize)?;
    Ok((Some(feed), Some(rounds)))
}

/// Says that a save is over when it goes, which it also does when the task is broken off.
struct Guarded(Arc<State>);

impl Drop for Guarded {
    fn drop(&mut self) {
        let broken = || Err(Error::new(ErrorKind::Internal, "save", "the save was broken off"));
        self.0.outcome().get_or_insert_with(broken);
        self.0.stage.send_replace(Stage::Settled);
    }
}

impl Order {
    /// Save until it is done or stopped, tell so, and tidy up behind it.
    async fn run_until(self, stop: Arc<Notify>, guard: Guarded) {
        let (after, rank) = (self.place.clone(), self.rank);
        let staging = self.feed.as_ref().map(Feed::area);
        let withdrawn = self.withdrawn();
        let done = tokio::select! {
            done = self.run(&guard.0) => done,
            () = stop.notified() => {
                // What was written is nobody's then, and gc may have it.
                withdrawn.await;
                Err(Error::new(ErrorKind::Cancelled, "save", "the save was broken off"))
            }
        };
        if let Some(staging) = staging {
            // Threads of a save that was broken off may be reading what the next one fills.
            staging.idle().await;
        }
        let is_first_and_good = rank == 0 && done.is_ok();
        guard.0.outcome().replace(done);
        guard.0.stage.send_replace(Stage::Done);
        if is_first_and_good && let Err(error) = after.settle().await {
            // The next save tries again.
            tracing::warn!(%error, "old checkpoints were not removed, or new ones not copied");
            guard.0.trouble().replace(error);
        }
    }

    /// Take back the note that the attempt is being saved, where this is who has put it.
    fn withdrawn(&self) -> impl Future<Output = ()> + Send + use<> {
        let (store, attempt) = (Arc::clone(&self.place.store), self.options.attempt);
        let is_first = self.rank == 0;
        async move {
            if is_first {
                Save::withdraw(&*store, attempt).await;
            }
        }
    }

    async fn run(self, state: &State) -> Result<Done> {
        let clock = Arc::clone(self.place.context.clock());
        let begun = clock.now();
        let Self {
            place,
            options,
            rank,
            items,
            feed,
            metadata,
            timeout,
        } = self;
        let (store, context) = (Arc::clone(&place.store), &place.context);
        let (step, attempt, world) = (options.step, options.attempt, options.world);
        let is_first = rank == 0;
        let save = if is_first {
            Save::begin(store, context, options).await?
        } else {
            let joined = Save::join(Arc::clone(&store), context, options, timeout).await;
            if let Err(error) = &joined {
                note_failure(&*store, step, attempt, rank, error).await;
            }
            joined?
        };
        let full_because = save.full_because().map(str::to_owned);
        let later_step = save.later_step();
        let saved = match feed {
            Some(feed) => save.rank_filled(rank, items, Arc::new(feed)).await,
            None => save.rank(rank, items).await,
        };
        let saved = match saved {
            Ok(saved) => saved,
            Err(error) => {
                // Told so, the others need not wait for what never comes.
                save.fail(rank, &error).await;
                if is_first {
                    save.abandon().await;
                }
                return Err(error);
            }
        };
        state.stage.send_replace(Stage::Written);
        let mut ledger = saved.ledger;
        let manifest = if is_first {
            let committed = save.commit(metadata, timeout).await?;
            ledger.merge(&committed.ledger);
            committed.manifest
        } else {
            save.published(timeout).await?
        };
        Ok(Done {
            step,
            attempt,
            world,
            bytes_raw: saved.raw_bytes,
            bytes_written: saved.written_bytes,
            bytes_referenced: saved.referenced_bytes,
            chunks: saved.chunks,
            chunks_referenced: saved.chunks_referenced,
            bytes_total: manifest.raw_bytes,
            bytes_written_total: manifest.written_bytes,
            chain: manifest.base.map_or(0, |base| base.chain),
            full_because: full_because.or(saved.base_trouble),
            later_step,
            publish: manifest.publish.name(),
            rounds: saved.rounds,
            seconds: clock.now().saturating_sub(begun).as_secs_f64(),
            ledger,
        })
    }
}

/// How long ranks wait for each other.
pub(super) fn timeout_of(given: &Bound<'_, PyDict>, name: &str) -> PyResult<Duration> {
    let timeout: f64 = need(given, name)?;
    Duration::try_from_secs_f64(timeout).map_err(|error| {
        let error = refused("a time to wait is a number of seconds from 0 on").with_source(error);
        errors::raise(given.py(), &error)
    })
}

/// How to save at a place: with its keys.
pub(super) fn options_of(py: Python<'_>, place: &Place, given: &Bound<'_, PyDict>) -> PyResult<SaveOptions> {
    let raise = |error: Error| errors::raise(py, &error);
    let attempt: String = need(given, "attempt")?;
    let attempt = attempt_of(&attempt).map_err(raise)?;
    let mut options = SaveOptions::new(need(given, "step")?, attempt, need(given, "world")?);
    let hash: String = need(given, "hash")?;
    options.hash = hash_of(&hash).map_err(raise)?;
    if let Some(bytes) = get(given, "chunk_bytes")? {
        options.chunk_bytes = bytes;
    }
    options.base_step = get(given, "base_step")?;
    options.seal = place.secrets.keys.clone();
    options.sign.clone_from(&place.secrets.sign);
    options.access_log.clone_from(&place.access_log);
    if let Some(text) = get::<String>(given, "compress")? {
        options.compress = text.parse().map_err(raise)?;
    }
    let publish: String = need(given, "publish")?;
    options.publish = match publish.as_str() {
        "if_absent" => Publish::IfAbsent,
        "replace" => Publish::Replace,
        "single_writer" => Publish::SingleWriter,
        _ => {
            let message = format!("there is no way to publish '{}'", publish.escape_debug());
            return Err(raise(
                refused(message).with_hint("one of: if_absent, replace, single_writer"),
            ));
        }
    };
    Ok(options)
}

/// An attempt by its name.
pub(super) fn attempt_of(name: &str) -> Result<Attempt> {
    Attempt::parse(name).ok_or_else(|| refused("an attempt is 32 hex digits"))
}

/// A hash by its name, or by the first word of it.
fn hash_of(name: &str) -> Result<HashKind> {
    let words = name.replace(['-', '_'], "").to_ascii_lowercase();
    let mut kinds = HashKind::ALL.into_iter();
    let found = kinds.find(|(_, _, own)| {
        let own = own.replace('-', "");
        own == words || own == format!("{words}128")
    });
    found.map(|(_, kind, _)| kind).ok_or_else(|| {
        let message = format!("there is no hash '{}'", name.escape_debug());
        refused(message).with_hint("one of: crc32c, xxh3, blake3, sha256")
    })
}

pub(super) fn slice_items(
    area: Option<&Buf>,
    slices: Vec<SliceRow>,
    keep: &Arc<Option<Py<PyAny>>>,
) -> Result<Vec<Item>> {
    let mut items = Vec::with_capacity(slices.len());
    let nothing = Buf::copy_of(&[])?;
    for (name, dtype, shape, offsets, lengths, at, whence) in slices {
        let spec = spec_of(&name, &dtype, shape, offsets, lengths)?;
        let len = spec.bytes() as usize;
        let data = match whence.as_str() {
            "later" => ItemData::Later(spec, at),
            "lent" if len > 0 => ItemData::Slice(spec, lent(at, len, Arc::clone(keep))?.freeze()),
            "staged" | "lent" => {
                let staged = area.unwrap_or(&nothing).slice(at..at.saturating_add(len));
                ItemData::Slice(spec, staged)
            }
            _ => return Err(refused(format!("{name:?}: a slice is staged, lent or later"))),
        };
        items.push(Item { name, data });
    }
    Ok(items)
}

pub(super) fn other_item(name: String, kind: &str, object: &Bound<'_, PyAny>) -> PyResult<Item> {
    let data = match kind {
        "value" => ItemData::Value(to_value(object)?),
        "opaque" => ItemData::Opaque(object.cast::<PyBytes>()?.as_bytes().to_vec()),
        "alias" => {
            let (target, dtype, first_element, shape, strides): AliasRow = object.extract()?;
            let dtype = dtype_of(&dtype).map_err(|error| errors::raise(object.py(), &error))?;
            ItemData::Alias(Alias {
                target,
                dtype,
                first_element,
                shape,
                strides,
            })
        }
        _ => {
            let error = refused(format!("there is no entry of kind '{}'", kind.escape_debug()));
            return Err(errors::raise(object.py(), &error));
        }
    };
    Ok(Item { name, data })
}

#[pymethods]
impl PyNativeSave {
    /// True when it is over, well or not.
    #[getter]
    fn done(&self) -> bool {
        *self.state.stage.borrow() >= Stage::Done
    }

    /// Wait until it is ``written``, ``done`` or ``settled``, at most so many seconds; gives whether it is. Says nothing of how it went.
    #[pyo3(signature = (timeout=None, until="done"))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>, until: &str) -> PyResult<bool> {
        let raise = |error: Error| errors::raise(py, &error);
        let Some(process) = self.process.get() else {
            return Err(raise(process::other_process("save", "save")));
        };
        let timeout = timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)));
        let timeout = timeout
            .transpose()
            .map_err(|error| raise(refused("a time to wait is a number of seconds").with_source(error)))?;
        let wanted = match until {
            "written" => Stage::Written,
            "settled" => Stage::Settled,
            _ => Stage::Done,
        };
        let mut stage = self.state.stage.subscribe();
        wait(py, process, async move {
            let ended = stage.wait_for(|stage| *stage >= wanted);
            Ok(match timeout {
                Some(timeout) => tokio::time::timeout(timeout, ended).await.is_ok(),
                None => ended.await.is_ok(),
            })
        })
    }

    /// Say that the round before is copied, and wait for the next: slices, which of their bytes, and where they go in the staging area. None when nothing is to
    /// be copied any more, or when it is over. What raises meanwhile must be followed by ``cancel``.
    fn next_round(&self, py: Python<'_>) -> PyResult<Option<Vec<PieceRow>>> {
        let (Some(process), Some(rounds)) = (self.process.get(), self.rounds.get()) else {
            return Err(errors::raise(py, &process::other_process("save", "save")));
        };
        wait(py, process, async {
            match &mut *rounds.lock().await {
                Some(rounds) => Ok(rounds.next().await),
                None => Ok(None),
            }
        })
    }

    /// Break it off, unless the state was written already.
    fn cancel(&self) {
        if *self.state.stage.borrow() < Stage::Written {
            self.stop.notify_one();
        }
    }

    /// What went wrong after it was done, if something did: with the removal of old checkpoints, or copies to other places.
    fn trouble(&self) -> Option<String> {
        self.state.trouble().as_ref().map(Error::to_string)
    }

    /// What was saved, as JSON, with the ledger; raises what went wrong. None before it is over.
    fn result(&self, py: Python<'_>) -> PyResult<Option<(String, PyLedger)>> {
        let outcome = self.state.outcome();
        match &*outcome {
            None => Ok(None),
            Some(Ok(done)) => Ok(Some((to_json(py, done)?, PyLedger::from(done.ledger.clone())))),
            Some(Err(error)) => Err(errors::raise(py, error)),
        }
    }
}
