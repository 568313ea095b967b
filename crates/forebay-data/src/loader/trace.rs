//! A trace of the pipeline in the format of Chrome and Perfetto: what every block and every batch did, and when.
//!
//! One event for each stage, in rows of its own: reading and checking of blocks, queueing and collating of batches, waiting of the consumer. The file is
//! an array of events that is written as they happen; viewers read it also when its end is missing, so a run that was killed leaves a trace too.

use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_core::{Error, Result};
use serde_json::{Value, json};

use super::stalls::Stations;

/// Events of one trace: about 200 MB of text, more than viewers like to open.
const EVENTS_MAX: u64 = 1_000_000;

/// What stands behind the last event.
const CLOSING: &[u8] = b"\n]\n";

/// The rows, each with its name in the viewer.
const ROWS: [&str; 5] = ["read", "check", "queue", "collate", "consumer waits"];

/// Writes events.
#[derive(Debug)]
pub(super) struct Tracer {
    path: PathBuf,
    rank: u32,
    out: Mutex<Out>,
}

#[derive(Debug)]
struct Out {
    file: BufWriter<File>,
    events: u64,
    /// The list ends here, unless more comes: a stream that was at its end can begin elsewhere.
    is_closed: bool,
    failure: Option<std::io::Error>,
}

impl Out {
    fn put(&mut self, event: &Value) -> std::io::Result<()> {
        if self.is_closed {
            self.file.seek(SeekFrom::Current(-(CLOSING.len() as i64)))?;
            self.is_closed = false;
        }
        let before = if self.events == 0 { "[\n" } else { ",\n" };
        self.events += 1;
        write!(self.file, "{before}{event}")
    }

    fn close(&mut self) -> std::io::Result<()> {
        if !self.is_closed {
            self.file.write_all(CLOSING)?;
            self.is_closed = true;
        }
        self.file.flush()
    }
}

/// A stage of a block or a batch.
struct Event {
    row: usize,
    name: String,
    from: Duration,
    to: Duration,
    about: Value,
}

impl Tracer {
    pub(super) fn create(path: &Path, rank: u32) -> Result<Self> {
        let file = File::create(path).map_err(|error| failed(error, path))?;
        let tracer = Self {
            path: path.to_owned(),
            rank,
            out: Mutex::new(Out {
                file: BufWriter::new(file),
                events: 0,
                is_closed: false,
                failure: None,
            }),
        };
        tracer.write(&json!({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": format!("rank {rank}")}}));
        for (row, name) in ROWS.iter().enumerate() {
            tracer.write(
                &json!({"ph": "M", "name": "thread_name", "pid": rank, "tid": row, "args": {"name": name}}),
            );
        }
        Ok(tracer)
    }

    /// A block was read and checked.
    pub(super) fn block(&self, shard: u32, first: u64, bytes: u64, stations: &super::read::Times) {
        let about =
            json!({"shard": shard, "first sample": first, "bytes": bytes, "from": stations.origin.name()});
        let name = format!("shard {shard}");
        self.event(&Event {
            row: 0,
            name: name.clone(),
            from: stations.asked,
            to: stations.arrived,
            about,
        });
        self.event(&Event {
            row: 1,
            name,
            from: stations.arrived,
            to: stations.checked,
            about: Value::Null,
        });
    }

    /// A batch was handed over, after the consumer had waited for it.
    pub(super) fn batch(&self, epoch: u64, index: u64, wait: (Duration, Duration), stations: &Stations) {
        let name = format!("batch {epoch}/{index}");
        let spans = [
            (2, (stations.assembled, stations.begun)),
            (3, (stations.begun, stations.done)),
            (4, wait),
        ];
        for (row, (from, to)) in spans {
            self.event(&Event {
                row,
                name: name.clone(),
                from,
                to,
                about: Value::Null,
            });
        }
    }

    fn event(&self, event: &Event) {
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        let mut text = json!({
            "ph": "X", "name": event.name, "cat": ROWS.get(event.row), "pid": self.rank, "tid": event.row,
            "ts": micros(event.from), "dur": micros(event.to.saturating_sub(event.from)),
        });
        if let (Some(fields), false) = (text.as_object_mut(), event.about.is_null()) {
            fields.insert("args".to_owned(), event.about.clone());
        }
        self.write(&text);
    }

    fn write(&self, event: &Value) {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        if out.events >= EVENTS_MAX || out.failure.is_some() {
            return;
        }
        out.failure = out.put(event).err();
    }

    /// Close the list, and tell whether all of it could be written.
    pub(super) fn finish(&self) -> Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = out.close();
        match out.failure.take().or(closed.err()) {
            Some(error) => Err(failed(error, &self.path)),
            None => Ok(()),
        }
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::warn!("{error}");
        }
    }
}

fn failed(error: std::io::Error, path: &Path) -> Error {
    Error::from_io("write trace", error).at(path.display().to_string())
}
