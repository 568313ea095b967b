//! Settings of the process: arguments of `configure` before environment variables before defaults.

use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use forebay_core::env::{self, EnvVar};
use forebay_core::{ByteSize, Error, ErrorKind, Limits, Result};
use forebay_io::{DiskConfig, EngineChoice, Pages};
use pyo3::prelude::*;

use crate::errors;
use crate::process::Process;

/// What `configure` was given.
#[derive(Debug, Clone, Default)]
struct Wishes {
    buffer_memory: Option<ByteSize>,
    engine: Option<EngineChoice>,
    huge_pages: Option<bool>,
    concurrency: Option<u32>,
    part_size: Option<ByteSize>,
}

/// Locked only while the interpreter lock is held; see `process`.
static WISHES: Mutex<Wishes> = Mutex::new(Wishes {
    buffer_memory: None,
    engine: None,
    huge_pages: None,
    concurrency: None,
    part_size: None,
});

/// A size as a number of bytes or as people write it.
#[derive(FromPyObject)]
pub(crate) enum SizeArgument {
    Bytes(u64),
    Text(String),
}

impl SizeArgument {
    fn parse(self) -> Result<ByteSize> {
        match self {
            Self::Bytes(bytes) => Ok(ByteSize(bytes)),
            Self::Text(text) => text.parse(),
        }
    }
}

/// Set the bounds of this process. Only before the first store is opened; what is not given keeps its value.
///
/// Args:
///     buffer_memory: ceiling of the buffer pool, such as ``"512MiB"``
///     engine: ``"auto"``, ``"uring"`` (an error where it does not run) or ``"psync"``
///     huge_pages: try 2 MiB pages for buffers
///     concurrency: requests to one store in flight
///     part_size: size of one ranged GET or uploaded part
#[pyfunction]
#[pyo3(signature = (*, buffer_memory=None, engine=None, huge_pages=None, concurrency=None, part_size=None))]
pub(crate) fn configure(
    py: Python<'_>,
    buffer_memory: Option<SizeArgument>,
    engine: Option<&str>,
    huge_pages: Option<bool>,
    concurrency: Option<u32>,
    part_size: Option<SizeArgument>,
) -> PyResult<()> {
    let raise = |error: Error| errors::raise(py, &error);
    if Process::is_started(py) {
        let error = Error::new(ErrorKind::InvalidInput, "configure", "stores are open already")
            .with_hint("call configure before the first use, or set the FOREBAY_* variables");
        return Err(raise(error));
    }
    let given = Wishes {
        buffer_memory: buffer_memory
            .map(SizeArgument::parse)
            .transpose()
            .map_err(raise)?,
        engine: engine.map(EngineChoice::from_str).transpose().map_err(raise)?,
        huge_pages,
        concurrency,
        part_size: part_size.map(SizeArgument::parse).transpose().map_err(raise)?,
    };
    let mut wishes = WISHES.lock().unwrap_or_else(PoisonError::into_inner);
    *wishes = Wishes {
        buffer_memory: given.buffer_memory.or(wishes.buffer_memory),
        engine: given.engine.or(wishes.engine),
        huge_pages: given.huge_pages.or(wishes.huge_pages),
        concurrency: given.concurrency.or(wishes.concurrency),
        part_size: given.part_size.or(wishes.part_size),
    };
    Ok(())
}

/// The configuration that follows from arguments, environment and defaults.
pub(crate) fn resolve() -> Result<(DiskConfig, Pages)> {
    let wishes = WISHES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut limits = Limits::default();
    if let Some(size) = wishes.buffer_memory.or(variable(env::BUFFER_MEMORY)?) {
        limits.buffer_bytes_max = at_least_one(size.0, "buffer memory")?;
    }
    if let Some(count) = wishes.concurrency.or(variable(env::CONCURRENCY)?) {
        limits.store_requests_max = at_least_one(count, "concurrency")?;
    }
    if let Some(size) = wishes.part_size.or(variable(env::PART_SIZE)?) {
        limits.part_bytes = at_least_one(size.0, "part size")?;
    }
    let engine = wishes.engine.or(variable(env::ENGINE)?).unwrap_or_default();
    let pages = if wishes.huge_pages.unwrap_or_else(|| env::HUGE_PAGES.is_on()) {
        Pages::Huge
    } else {
        Pages::Small
    };
    let config = DiskConfig {
        limits,
        engine,
        pages,
        ..DiskConfig::default()
    };
    Ok((config, pages))
}

fn at_least_one<T: PartialEq + From<u8>>(value: T, what: &str) -> Result<T> {
    if value == T::from(0) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            "configure",
            format!("{what} is zero"),
        ));
    }
    Ok(value)
}

fn variable<T: FromStr>(variable: EnvVar) -> Result<Option<T>> {
    let Some(text) = variable.get() else {
        return Ok(None);
    };
    text.parse().map(Some).map_err(|_| {
        let message = format!("{} cannot be '{}'", variable.name, text.escape_debug());
        Error::new(ErrorKind::InvalidInput, "configure", message).with_hint(variable.doc.trim())
    })
}
