//! Settings of the process: arguments of `configure` before environment variables before defaults.
//!
//! The configuration file is the command line's and is not read here. Bounds are those of [`Limits::BOUNDS`], as on the command line; arguments are
//! held to them at once, variables when the process begins to work.

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
    pub(crate) fn parse(self) -> Result<ByteSize> {
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
///     huge_pages: take buffers from the machine's reserved 2 MiB pages, where it has some
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
        buffer_memory: checked_size(buffer_memory, "buffer_bytes_max", "buffer_memory").map_err(raise)?,
        engine: engine.map(EngineChoice::from_str).transpose().map_err(raise)?,
        huge_pages,
        concurrency: concurrency
            .map(|count| checked(count, "store_requests_max", "concurrency"))
            .transpose()
            .map_err(raise)?,
        part_size: checked_size(part_size, "part_bytes", "part_size").map_err(raise)?,
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
        limits.buffer_bytes_max = checked(size.0, "buffer_bytes_max", env::BUFFER_MEMORY.name)?;
    }
    if let Some(count) = wishes.concurrency.or(variable(env::CONCURRENCY)?) {
        limits.store_requests_max = checked(count, "store_requests_max", env::CONCURRENCY.name)?;
    }
    if let Some(size) = wishes.part_size.or(variable(env::PART_SIZE)?) {
        limits.part_bytes = checked(size.0, "part_bytes", env::PART_SIZE.name)?;
    }
    let engine = wishes.engine.or(variable(env::ENGINE)?).unwrap_or_default();
    let huge_pages = match wishes.huge_pages {
        Some(wanted) => wanted,
        None => switch(env::HUGE_PAGES)?.unwrap_or(false),
    };
    let pages = if huge_pages { Pages::Huge } else { Pages::default() };
    let config = DiskConfig {
        limits,
        engine,
        pages,
        ..DiskConfig::default()
    };
    Ok((config, pages))
}

/// The value, when it is within the bounds of a field; errors name the argument or variable it came by.
fn checked<T: Into<u64> + Copy>(value: T, field: &str, name: &str) -> Result<T> {
    if let Some(bounds) = Limits::bounds_of(field) {
        bounds.check(value.into()).map_err(|error| error.at(name))?;
    }
    Ok(value)
}

fn checked_size(size: Option<SizeArgument>, field: &str, name: &str) -> Result<Option<ByteSize>> {
    let Some(size) = size else { return Ok(None) };
    let size = size.parse().map_err(|error| error.at(name))?;
    checked(size.0, field, name).map(|bytes| Some(ByteSize(bytes)))
}

/// A variable that is true or false, in the words of the command line.
pub(crate) fn switch(variable: EnvVar) -> Result<Option<bool>> {
    let Some(text) = variable.get() else {
        return Ok(None);
    };
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Ok(Some(true)),
        "0" | "false" | "no" | "off" => Ok(Some(false)),
        _ => Err(refused(variable, &text).with_hint("it must be true or false")),
    }
}

fn variable<T: FromStr>(variable: EnvVar) -> Result<Option<T>> {
    let Some(text) = variable.get() else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|_| refused(variable, &text).with_hint(variable.doc.trim()))
}

fn refused(variable: EnvVar, text: &str) -> Error {
    let message = format!("{} cannot be '{}'", variable.name, text.escape_debug());
    Error::new(ErrorKind::InvalidInput, "configure", message)
}
