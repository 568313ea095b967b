//! The class `Store`.
//!
//! An instance knows its location and its options; the store behind it is opened at once, and once more in a forked child. Arguments are
//! checked and converted here, then [`Opened`] does the work with words of the crates below.

mod choices;
mod opened;
mod steps;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Location, PathPolicy, Scheme, env};
use forebay_io::{AlignedBuf, Buf, Class};
use forebay_store::cache::{CacheConfig, Freshness};
use forebay_store::{ListOptions, PutMode};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyType};

use crate::buffer;
use crate::errors;
use crate::fork::ForkGuard;
use crate::ledger::PyLedger;
use crate::listing::PyListing;
use crate::process::{Inside, Process};
use crate::rows::{PyObjectMeta, PyProof, PyWriteResult};
use crate::settings;
use crate::upload::PyUpload;
use crate::view::View;
use crate::wait::wait;
pub(crate) use choices::Choices;
pub(crate) use opened::{Opened, Request, cached};

/// A place with objects in it: a directory, a bucket, memory.
///
/// Args:
///     url: ``/path``, ``file:///path``, ``s3://bucket/prefix``, ``gs://``, ``az://``, ``http(s)://``, ``mem://name``
///     cache: keep what is read on local NVMe, as ``"/nvme/cache:200GiB"``; by default ``FOREBAY_CACHE`` says it for remote stores, and ``""`` is
///         no cache at all
///     immutable: objects never change once written, so what is cached is used without asking the store again
///     endpoint, region, addressing: of an S3 store; arguments count before variables and profiles
///     require: the data path bytes must take, such as ``"direct_uring"``; an error where it is not available
///     service: class of service for local I/O: ``"latency"``, ``"data"``, ``"checkpoint"`` or ``"background"``
#[pyclass(name = "Store", module = "forebay", frozen)]
#[derive(Debug)]
pub(crate) struct PyStore {
    location: Location,
    choices: Choices,
    /// Locked only while the interpreter lock is held; see `process`.
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Open(ForkGuard<Inside<Arc<Opened>>>),
    Closed,
}

impl State {
    fn open(opened: Arc<Opened>) -> Self {
        Self::Open(ForkGuard::new(Inside::new(opened.process(), opened)))
    }
}

/// One read of `read_many`.
#[derive(FromPyObject)]
enum RequestArgument {
    Whole(String),
    Part(String, u64, Option<u64>),
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (
        url, *, cache=None, immutable=false, require=None, service="data", endpoint=None, region=None, addressing=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
    fn new(
        py: Python<'_>,
        url: PathBuf,
        cache: Option<&str>,
        immutable: bool,
        require: Option<&str>,
        service: &str,
        endpoint: Option<String>,
        region: Option<String>,
        addressing: Option<String>,
    ) -> PyResult<Self> {
        let raise = |error: Error| errors::raise(py, &error);
        let base = std::env::current_dir().map_err(|error| raise(Error::from_io("open", error)))?;
        let location = Location::parse_os(&url.into_os_string(), &base).map_err(raise)?;
        let policy = match require {
            Some(path) => PathPolicy::Require(DataPath::parse(path).map_err(raise)?),
            None => PathPolicy::Fastest,
        };
        let choices = Choices {
            cache: cache_of(cache, immutable, &location, &base).map_err(raise)?,
            policy,
            class: class_of(service).map_err(raise)?,
            endpoint,
            region,
            addressing,
        };
        let opened = open(py, &location, &choices)?;
        Ok(Self {
            location,
            choices,
            state: Mutex::new(State::open(opened)),
        })
    }

    /// Where it is.
    #[getter]
    fn url(&self) -> String {
        self.location.to_string()
    }

    /// Read bytes of an object: all from ``offset`` on, or exactly ``length`` of them. Large reads go in parallel ranges.
    ///
    /// With ``version`` (of ``head``), an object that is another one by now is an error.
    #[pyo3(signature = (key="", offset=0, length=None, *, version=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        offset: u64,
        length: Option<u64>,
        version: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let request = Request {
            key: parse_key(py, key)?,
            offset,
            length,
            version,
        };
        let opened = self.opened(py)?;
        let (buf, ledger) = wait(py, opened.process(), opened.read(request))?;
        buffer::new_buffer(py, buf, ledger)
    }

    /// Fill ``buffer`` with bytes of an object from ``offset`` on: all of it, or its first ``length`` bytes.
    ///
    /// A buffer of ``forebay.alloc`` is read into directly; any other costs one copy, made in steps, which the ledger shows. After an
    /// error, nothing is known of the buffer's content.
    #[pyo3(signature = (key, buffer, offset=0, length=None, *, version=None))]
    fn read_into(
        &self,
        py: Python<'_>,
        key: &str,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
        length: Option<usize>,
        version: Option<String>,
    ) -> PyResult<PyLedger> {
        let key = parse_key(py, key)?;
        let opened = self.opened(py)?;
        let request = |len: usize| Request {
            key,
            offset,
            length: Some(len as u64),
            version,
        };
        if let Some(buf) = buffer::take(buffer, "read")? {
            let len = length.unwrap_or(buf.len());
            let address = buf.as_ptr().addr();
            let mut done = wait(py, opened.process(), opened.read_into(request(len), buf))?;
            // A read that was tried again may come back in other memory.
            if done.buf.as_ptr().addr() != address {
                View::writable(buffer)?.fill(py, &done.buf[..len])?;
                record_copy(&mut done.ledger, len as u64);
            }
            return Ok(done.ledger.into());
        }
        let view = View::writable(buffer)?;
        let len = length.unwrap_or(view.len());
        if len > view.len() {
            let message = format!("buffer of {} bytes for {len} bytes", view.len());
            return Err(errors::raise(
                py,
                &Error::new(ErrorKind::InvalidInput, "read", message),
            ));
        }
        if len == 0 {
            return Ok(Ledger::default().into());
        }
        let into = view.pinned().front(len);
        Ok(wait(py, opened.process(), opened.fill(request(len), into))?.into())
    }

    /// Read several objects or parts side by side: keys, or ``(key, offset, length)`` with ``None`` for "to the end".
    ///
    /// The results come in the order of the requests. The first error ends all.
    fn read_many<'py>(&self, py: Python<'py>, requests: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let opened = self.opened(py)?;
        let mut wanted = Vec::new();
        for request in requests.try_iter()? {
            let (key, offset, length) = match request?.extract()? {
                RequestArgument::Whole(key) => (key, 0, None),
                RequestArgument::Part(key, offset, length) => (key, offset, length),
            };
            let key = parse_key(py, &key)?;
            wanted.push(Request {
                key,
                offset,
                length,
                version: None,
            });
        }
        let results = PyList::empty(py);
        for (buf, ledger) in wait(py, opened.process(), opened.read_many(wanted))? {
            results.append(buffer::new_buffer(py, buf, ledger)?)?;
        }
        Ok(results)
    }

    /// Write an object, whole: readers see the old content or the new. With ``if_absent``, one that exists is an error.
    ///
    /// A ``Buffer`` or ``MutableBuffer`` is written from where it is; other bytes-like objects cost one copy, made in steps, which
    /// the ledger shows.
    #[pyo3(signature = (key, data, if_absent=false))]
    fn write(
        &self,
        py: Python<'_>,
        key: &str,
        data: &Bound<'_, PyAny>,
        if_absent: bool,
    ) -> PyResult<PyWriteResult> {
        let key = parse_key(py, key)?;
        let opened = self.opened(py)?;
        let mode = put_mode(if_absent);
        let done = match own_bytes(data)? {
            Some(buf) => wait(py, opened.process(), opened.write(key, buf, mode))?,
            None => {
                let view = View::readable(data)?;
                wait(py, opened.process(), opened.write_from(key, view.pinned(), mode))?
            }
        };
        Ok(done.into())
    }

    /// Begin to write an object in parts; nothing is visible before ``complete``.
    #[pyo3(signature = (key, if_absent=false, size_hint=None))]
    fn upload(
        &self,
        py: Python<'_>,
        key: &str,
        if_absent: bool,
        size_hint: Option<u64>,
    ) -> PyResult<PyUpload> {
        let key = parse_key(py, key)?;
        let opened = self.opened(py)?;
        let begun = opened.upload(key, put_mode(if_absent), size_hint);
        let upload = wait(py, opened.process(), begun)?;
        Ok(PyUpload::new(opened, upload))
    }

    /// What is known of an object without reading it.
    #[pyo3(signature = (key=""))]
    fn head(&self, py: Python<'_>, key: &str) -> PyResult<PyObjectMeta> {
        let key = parse_key(py, key)?;
        let opened = self.opened(py)?;
        Ok(wait(py, opened.process(), opened.head(key))?.into())
    }

    /// List objects below a prefix, sorted; without ``recursive`` only the next level, with common prefixes.
    #[pyo3(signature = (prefix="", recursive=true))]
    fn list(&self, py: Python<'_>, prefix: &str, recursive: bool) -> PyResult<PyListing> {
        let prefix = parse_key(py, prefix)?;
        let opened = self.opened(py)?;
        let rows = {
            let _inside = opened.process().runtime().enter();
            opened.list(&prefix, ListOptions { recursive })
        };
        Ok(PyListing::new(opened, rows))
    }

    /// Remove an object; one that is not there is no error.
    fn delete(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        let key = parse_key(py, key)?;
        let opened = self.opened(py)?;
        wait(py, opened.process(), opened.delete(key))
    }

    /// What the store can be relied on for, by trying it. May write and remove small objects the first time.
    fn capabilities<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let opened = self.opened(py)?;
        let found = wait(py, opened.process(), opened.capabilities())?;
        let dict = PyDict::new(py);
        for (name, proof) in found.rows() {
            dict.set_item(name, Bound::new(py, PyProof::from(proof))?)?;
        }
        Ok(dict)
    }

    /// Let go of the store; buffers read from it stay valid.
    fn close(&self, py: Python<'_>) {
        let was = std::mem::replace(&mut *self.lock(), State::Closed);
        // Going away may take a while (connections, files), and somebody may want to fork meanwhile.
        py.detach(|| drop(was));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Option<&Bound<'_, PyType>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) {
        self.close(py);
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((String,), Bound<'py, PyDict>)> {
        let options = PyDict::new(py);
        if let Some(cache) = &self.choices.cache {
            options.set_item("cache", cache.to_string())?;
            options.set_item("immutable", cache.freshness == Freshness::Immutable)?;
        } else {
            options.set_item("cache", "")?;
        }
        options.set_item("endpoint", &self.choices.endpoint)?;
        options.set_item("region", &self.choices.region)?;
        options.set_item("addressing", &self.choices.addressing)?;
        options.set_item("service", self.choices.class.name())?;
        if let PathPolicy::Require(path) = self.choices.policy {
            options.set_item("require", path.name())?;
        }
        Ok(((self.location.to_string(),), options))
    }

    fn __repr__(&self) -> String {
        format!("<forebay.Store {}>", self.location)
    }
}

impl PyStore {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store, opened again when this is a forked child.
    pub(crate) fn opened(&self, py: Python<'_>) -> PyResult<Arc<Opened>> {
        match &*self.lock() {
            State::Open(guard) => {
                if let Some(opened) = guard.get() {
                    return Ok(Arc::clone(opened));
                }
            }
            State::Closed => {
                let error =
                    Error::new(ErrorKind::InvalidInput, "open", "the store is closed").at(&self.location);
                return Err(errors::raise(py, &error));
            }
        }
        let opened = open(py, &self.location, &self.choices)?;
        *self.lock() = State::open(Arc::clone(&opened));
        Ok(opened)
    }
}

fn open(py: Python<'_>, location: &Location, choices: &Choices) -> PyResult<Arc<Opened>> {
    let process = Process::get(py)?;
    let opened = wait(py, process, Opened::open(process, location, choices))?;
    Ok(Arc::new(opened))
}

fn parse_key(py: Python<'_>, key: &str) -> PyResult<Key> {
    Key::parse(key).map_err(|error| errors::raise(py, &error))
}

fn put_mode(if_absent: bool) -> PutMode {
    if if_absent {
        PutMode::IfAbsent
    } else {
        PutMode::Replace
    }
}

/// The cache an argument asks for, or the environment for stores that are not on this machine.
pub(crate) fn cache_of(
    text: Option<&str>,
    immutable: bool,
    location: &Location,
    base: &Path,
) -> forebay_core::Result<Option<CacheConfig>> {
    let is_remote = !matches!(location.scheme(), Scheme::File | Scheme::Mem);
    let text = match text {
        Some(text) => Some(text.to_owned()).filter(|text| !text.is_empty()),
        None => env::CACHE.get().filter(|_| is_remote),
    };
    let Some(text) = text else { return Ok(None) };
    let mut config = CacheConfig::parse(&text, base)?;
    if immutable || settings::switch(env::CACHE_IMMUTABLE)?.unwrap_or(false) {
        config.freshness = Freshness::Immutable;
    }
    Ok(Some(config))
}

fn class_of(name: &str) -> Result<Class, Error> {
    Class::ALL
        .into_iter()
        .find(|class| class.name() == name)
        .ok_or_else(|| {
            let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
            let message = format!("unknown class of service '{}'", name.escape_debug());
            Error::new(ErrorKind::InvalidInput, "open", message)
                .with_hint(format!("one of: {}", names.join(", ")))
        })
}

/// The bytes of an argument, shared where they are ours, and whether they had to be copied.
pub(crate) fn bytes_of(data: &Bound<'_, PyAny>, process: &Process) -> PyResult<(Buf, bool)> {
    if let Some(own) = own_bytes(data)? {
        return Ok((own, false));
    }
    let copy = View::readable(data)?.copy(data.py(), process)?;
    Ok((copy.freeze(), true))
}

/// The bytes of an argument, where they are in memory of ours.
fn own_bytes(data: &Bound<'_, PyAny>) -> PyResult<Option<Buf>> {
    if let Some(shared) = buffer::shared_bytes(data) {
        return Ok(Some(shared));
    }
    Ok(buffer::take(data, "write")?.map(AlignedBuf::freeze))
}

/// Account for a copy made at the border to Python, on the path the bytes took.
pub(crate) fn record_copy(ledger: &mut Ledger, bytes: u64) {
    let path = ledger.paths.keys().next().copied().unwrap_or(DataPath::Memory);
    ledger.record_copy(path, bytes);
}
