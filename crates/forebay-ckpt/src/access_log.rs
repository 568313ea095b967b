//! The access log: who saved, loaded, rewrapped or removed which step, when. Lines of JSON, each of which has the hash of the line before.
//!
//! ```text
//! note:   lock the file -> hash of its last line -> one line behind it -> on the disk -> only then the work
//! verify: line by line: number, hash of the line before, as they must be
//! ```
//!
//! A line that is changed, removed or put in breaks the chain at that place. Lines cut off the end do not: keep the last hash ([`LogVerified::last`]) elsewhere, or a copy of the log. A
//! line that a crash tore was never acknowledged; the next one takes its place.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use forebay_core::{Error, ErrorKind, Result};
use forebay_store::{Context, Store};
use serde::{Deserialize, Serialize};

use crate::hash::sha256;
use crate::hex;
use crate::names::Attempt;
use crate::pin::host_name;

/// Longest line: a location and a host name are the long things in it.
const LINE_BYTES_MAX: u64 = 16 << 10;

/// Permissions of a new log: its owner writes, its group may read.
const LOG_MODE: u32 = 0o640;

/// The hash before the first line.
const FIRST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessOp {
    /// A checkpoint is about to be published.
    Save,
    /// Tensors are about to be read.
    Load,
    /// Who may read is about to change.
    Rewrap,
    /// A checkpoint is about to be removed.
    Gc,
    /// A checkpoint is about to be copied to another place.
    Copy,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLine {
    /// From 1, without gaps.
    pub number: u64,
    /// Nanoseconds since 1970, by the clock of the host.
    pub time_ns: u64,
    /// User id of the process.
    pub uid: u32,
    /// Its host.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// What.
    pub op: AccessOp,
    /// Where the checkpoints are.
    pub place: String,
    /// Which step.
    pub step: u64,
    /// Which attempt at it, where that is known.
    pub attempt: Option<Attempt>,
    /// SHA-256 of the line before, without its end.
    pub previous: String,
}

/// A log that is whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LogVerified {
    /// Lines.
    pub lines: u64,
    /// Hash of the last line: kept elsewhere, it shows whether lines were cut off.
    pub last: String,
    /// The end is a line that a crash tore, and that nobody was told of.
    pub torn: bool,
}

/// An append-only file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessLog {
    path: PathBuf,
}

impl AccessLog {
    /// The log in a file, which is made when something is noted.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Note what is about to be done. When that fails, it must not be done.
    pub async fn note(
        &self,
        context: &Context,
        store: &dyn Store,
        op: AccessOp,
        (step, attempt): (u64, Option<Attempt>),
    ) -> Result<()> {
        let line = AccessLine {
            number: 0,
            time_ns: u64::try_from(context.clock().unix().as_nanos()).unwrap_or(u64::MAX),
            uid: std::fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid()),
            host: host_name(),
            pid: std::process::id(),
            op,
            place: store.location().to_string(),
            step,
            attempt,
            previous: String::new(),
        };
        let path = self.path.clone();
        let noting = tokio::task::spawn_blocking(move || append(&path, line));
        noting.await.map_err(|error| {
            Error::new(ErrorKind::Internal, "access log", "noting was broken off").with_source(error)
        })?
    }

    /// Go through the chain; `Corrupt` names the first line that is not as it was written.
    pub fn verify(&self) -> Result<LogVerified> {
        let file = File::open(&self.path).map_err(|error| failed(&self.path, error))?;
        let mut reader = BufReader::new(file);
        let mut verified = LogVerified {
            lines: 0,
            last: FIRST.to_owned(),
            torn: false,
        };
        loop {
            let mut line = Vec::new();
            let mut limited = Read::by_ref(&mut reader).take(LINE_BYTES_MAX);
            let read = limited.read_until(b'\n', &mut line);
            read.map_err(|error| failed(&self.path, error))?;
            if line.is_empty() {
                return Ok(verified);
            }
            if line.pop_if(|byte| *byte == b'\n').is_none() {
                verified.torn = true;
                return Ok(verified);
            }
            let number = verified.lines + 1;
            let parsed: Option<AccessLine> = serde_json::from_slice(&line).ok();
            let follows =
                parsed.is_some_and(|parsed| parsed.number == number && parsed.previous == verified.last);
            if !follows {
                let message = format!(
                    "line {number} does not follow the one before: lines were changed, removed or put in"
                );
                return Err(Error::new(ErrorKind::Corrupt, "access log", message).at(self.path.display()));
            }
            verified.lines = number;
            verified.last = hex::encode(&sha256(&[&line]));
        }
    }
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::from_io("access log", error).at(path.display())
}

fn append(path: &Path, mut line: AccessLine) -> Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(LOG_MODE);
    let write = |line: &mut AccessLine| {
        let mut file = options.open(path)?;
        // Released when the file is closed.
        file.lock()?;
        let end = follow(&mut file, line)?;
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if text.len() as u64 > LINE_BYTES_MAX {
            return Err(std::io::Error::other("the line would be too long"));
        }
        file.set_len(end)?;
        file.seek(SeekFrom::Start(end))?;
        file.write_all(&text)?;
        file.sync_data()
    };
    write(&mut line).map_err(|error| failed(path, error))
}

/// Number and hash that the next line has, and where it goes: behind the last whole line.
fn follow(file: &mut File, line: &mut AccessLine) -> std::io::Result<u64> {
    let size = file.metadata()?.len();
    // The last whole line, a torn one behind it, and the end of the line before.
    let start = size.saturating_sub(2 * LINE_BYTES_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut tail = Vec::new();
    file.take(2 * LINE_BYTES_MAX).read_to_end(&mut tail)?;
    let Some(last_end) = tail.iter().rposition(|byte| *byte == b'\n') else {
        if start == 0 {
            (line.number, line.previous) = (1, FIRST.to_owned());
            return Ok(0);
        }
        return Err(std::io::Error::other("this is no access log: it has no lines"));
    };
    let whole = tail.get(..last_end).unwrap_or_default();
    let last = whole.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
    let before: AccessLine = serde_json::from_slice(last)
        .map_err(|_| std::io::Error::other("this is no access log, or its last line was changed"))?;
    line.number = before.number.saturating_add(1);
    line.previous = hex::encode(&sha256(&[last]));
    Ok(start + last_end as u64 + 1)
}
