//! The class `NativeAttempt`: one attempt to save, step by step, for callers that coordinate ranks by themselves.
//!
//! ```text
//! coordinator: new (the attempt is noted) -> told to the others -> write -> all have written, says the caller -> commit
//! other ranks:                               new -> write                                                     -> (published)
//! ```
//!
//! Writes block; their future runs on the runtime. An attempt that is dropped without a commit is given up: nobody sees anything of it.

use std::sync::Arc;
use std::time::Duration;

use forebay_ckpt::{Attempt, Manifest, RankSaved, Save};
use forebay_core::{Error, ErrorKind, Result};
use forebay_io::AlignedBuf;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::save::{OtherRow, SliceRow, options_of, other_item, slice_items, timeout_of};
use super::value::to_metadata;
use super::{Place, PyNativeCheckpoints, error_of, get, need, to_json};
use crate::buffer;
use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::process::{self, Inside};
use crate::wait::wait;

/// An attempt to save, in steps.
#[pyclass(name = "NativeAttempt", module = "forebay._forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyNativeAttempt {
    begun: ForkGuard<Inside<Begun>>,
}

#[derive(Debug)]
struct Begun {
    place: Place,
    rank: u32,
    is_coordinator: bool,
    timeout: Duration,
    full_because: Option<String>,
    /// None once it is committed or given up.
    save: Arc<Mutex<Option<Save>>>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if self.is_coordinator {
            self.place
                .process
                .runtime()
                .spawn(abandon(Arc::clone(&self.save)));
        }
    }
}

async fn abandon(save: Arc<Mutex<Option<Save>>>) {
    if let Some(save) = save.lock().await.take() {
        save.abandon().await;
    }
}

/// What a rank has written.
#[derive(Debug, Serialize)]
struct PartReport<'a> {
    bytes_raw: u64,
    bytes_written: u64,
    bytes_referenced: u64,
    chunks: u64,
    chunks_referenced: u64,
    /// Why a full save was made although an incremental one was asked for.
    full_because: Option<&'a str>,
}

/// What all ranks have.
#[derive(Debug, Serialize)]
struct Published {
    step: u64,
    attempt: Attempt,
    world: u32,
    bytes_total: u64,
    bytes_written_total: u64,
    publish: &'static str,
}

impl Published {
    fn of(manifest: &Manifest) -> Self {
        Self {
            step: manifest.step,
            attempt: manifest.attempt,
            world: manifest.world(),
            bytes_total: manifest.raw_bytes,
            bytes_written_total: manifest.written_bytes,
            publish: manifest.publish.name(),
        }
    }
}

/// A task that ends when nobody waits for it any more.
struct Attended<T>(JoinHandle<Result<T>>);

impl<T> Drop for Attended<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<T> Attended<T> {
    async fn join(mut self) -> Result<T> {
        (&mut self.0).await.map_err(|error| {
            Error::new(ErrorKind::Internal, "save", "a save was broken off").with_source(error)
        })?
    }
}

impl PyNativeAttempt {
    fn begun(&self, py: Python<'_>) -> PyResult<&Begun> {
        let begun = self.begun.get().map(|begun| &**begun);
        begun.ok_or_else(|| errors::raise(py, &process::other_process("save", "attempt")))
    }
}

fn over() -> Error {
    let message = "this attempt is over: it was committed or given up";
    Error::new(ErrorKind::Precondition, "save", message)
}

#[pymethods]
impl PyNativeAttempt {
    #[new]
    fn new(py: Python<'_>, place: &PyNativeCheckpoints, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let place = place.place(py)?.clone();
        let timeout = timeout_of(options, "timeout")?;
        let join_timeout = timeout_of(options, "join_timeout")?;
        let rank = need(options, "rank")?;
        let is_coordinator = get(options, "is_coordinator")?.unwrap_or(false);
        let options = options_of(py, &place, options)?;
        let (store, context) = (Arc::clone(&place.store), place.context.clone());
        let save = wait(py, place.process, async move {
            if is_coordinator {
                Save::begin(store, &context, options).await
            } else {
                Save::join(store, &context, options, join_timeout).await
            }
        })?;
        let process = place.process;
        let begun = Begun {
            place,
            rank,
            is_coordinator,
            timeout,
            full_because: save.full_because().map(str::to_owned),
            save: Arc::new(Mutex::new(Some(save))),
        };
        Ok(Self {
            begun: ForkGuard::new(Inside::new(process, begun)),
        })
    }

    /// Write what this rank has: durable when it returns, visible to nobody. What was written as JSON, with the ledger.
    /// Memory that slices name by addresses is kept by `keep`.
    fn write(
        &self,
        py: Python<'_>,
        staging: Option<&Bound<'_, PyAny>>,
        slices: Vec<SliceRow>,
        others: Vec<OtherRow<'_>>,
        keep: Option<Py<PyAny>>,
    ) -> PyResult<(String, PyLedger)> {
        let begun = self.begun(py)?;
        let mut items = others
            .into_iter()
            .map(|(name, kind, object)| other_item(name, &kind, &object))
            .collect::<PyResult<Vec<_>>>()?;
        let area = match staging {
            Some(staging) => buffer::take(staging, "save")?.map(AlignedBuf::freeze),
            None => None,
        };
        let slices = slice_items(area.as_ref(), slices, &Arc::new(keep));
        items.extend(slices.map_err(|error| errors::raise(py, &error))?);
        drop(area);
        let (save, rank) = (Arc::clone(&begun.save), begun.rank);
        let writing = Attended(begun.place.process.runtime().spawn(async move {
            let save = save.lock().await;
            save.as_ref().ok_or_else(over)?.rank(rank, items).await
        }));
        let saved: RankSaved = wait(py, begun.place.process, writing.join())?;
        let written = PartReport {
            bytes_raw: saved.raw_bytes,
            bytes_written: saved.written_bytes,
            bytes_referenced: saved.referenced_bytes,
            chunks: saved.chunks,
            chunks_referenced: saved.chunks_referenced,
            full_because: begun.full_because.as_deref(),
        };
        Ok((to_json(py, &written)?, PyLedger::from(saved.ledger)))
    }

    /// Make it a checkpoint, as the coordinator, once all ranks have written: what all of them have as JSON, with the ledger.
    fn commit(&self, py: Python<'_>, metadata: &Bound<'_, PyAny>) -> PyResult<(String, PyLedger)> {
        let begun = self.begun(py)?;
        let metadata = to_metadata(metadata)?;
        let (save, timeout) = (Arc::clone(&begun.save), begun.timeout);
        let committed = wait(py, begun.place.process, async move {
            let save = save.lock().await.take().ok_or_else(over)?;
            save.commit(metadata, timeout).await
        })?;
        let published = to_json(py, &Published::of(&committed.manifest))?;
        Ok((published, PyLedger::from(committed.ledger)))
    }

    /// Wait, as another rank, until the coordinator has committed: what all have as JSON.
    fn published(&self, py: Python<'_>) -> PyResult<String> {
        let begun = self.begun(py)?;
        let (save, timeout) = (Arc::clone(&begun.save), begun.timeout);
        let manifest = wait(py, begun.place.process, async move {
            let save = save.lock().await;
            save.as_ref().ok_or_else(over)?.published(timeout).await
        })?;
        to_json(py, &Published::of(&manifest))
    }

    /// Give it up, as the coordinator: others need not wait for it, and gc may remove what was written.
    fn abandon(&self, py: Python<'_>) -> PyResult<()> {
        let begun = self.begun(py)?;
        let save = Arc::clone(&begun.save);
        wait(py, begun.place.process, async move {
            abandon(save).await;
            Ok(())
        })
    }

    /// Give it up as any rank because of an exception, whose class is `kind`; those who wait at the store are told why.
    fn fail(&self, py: Python<'_>, kind: &str, message: &str) -> PyResult<()> {
        let begun = self.begun(py)?;
        let (save, rank, is_coordinator) = (Arc::clone(&begun.save), begun.rank, begun.is_coordinator);
        let error = error_of(kind, message);
        wait(py, begun.place.process, async move {
            if let Some(save) = save.lock().await.take() {
                save.fail(rank, &error).await;
                if is_coordinator {
                    save.abandon().await;
                }
            }
            Ok(())
        })
    }
}
