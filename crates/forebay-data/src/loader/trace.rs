//! A trace of the pipeline in the format of Chrome and Perfetto: what every block and every batch did, and when.
//!
//! One event for each stage, in rows of its own: reading and checking of blocks, queueing and collating of batches, waiting of the consumer. The file is
//! an array of events that is written as they happen; viewers read it also when its end is missing, so a run that was killed leaves a trace too.
//!
//! Each stream has a file of its own: `NAME.json`; of one rank among several `NAME-00003.json`, by its number; and `NAME.2.json` or `NAME-00003.2.json` of the second
//! one that this process opens under that name. What earlier processes left is written over. A trace that is full says so in its last event.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use forebay_core::{Error, Result};
use serde_json::{Value, json};

use super::stalls::Stations;
use crate::order::OrderSpec;

/// Events of one trace: about 200 MB of text, more than viewers like to open.
const EVENTS_MAX: u64 = if cfg!(test) { 64 } else { 1_000_000 };

/// What stands behind the last event.
const CLOSING: &[u8] = b"\n]\n";

/// The rows, each with its name in the viewer.
const ROWS: [&str; 5] = ["read", "check", "queue", "collate", "consumer waits"];

/// How many traces this process has begun under each name.
static BEGUN: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());

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
    /// The list ends here, unless more comes.
    is_closed: bool,
    /// Nothing more is to come: the stream is at its end, and whoever asked was told that all of the trace is there. What is still being read ahead is no part of it.
    is_over: bool,
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
    /// Begin a trace in a file of its own; `path` is the name that all ranks and all streams were given.
    pub(super) fn create(path: &Path, order: &OrderSpec) -> Result<Self> {
        let (path, file) = begin(path, order)?;
        let rank = order.rank;
        let tracer = Self {
            path,
            rank,
            out: Mutex::new(Out {
                file: BufWriter::new(file),
                events: 0,
                is_closed: false,
                is_over: false,
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
        if out.is_over || out.events > EVENTS_MAX || out.failure.is_some() {
            return;
        }
        let put = if out.events == EVENTS_MAX {
            let name = format!("the trace is full: {EVENTS_MAX} events");
            out.put(
                &json!({"ph": "i", "s": "g", "name": name, "pid": self.rank, "tid": 0, "ts": event["ts"]}),
            )
        } else {
            out.put(event)
        };
        out.failure = put.err();
    }

    /// The stream begins elsewhere: more comes, also where it was at its end.
    pub(super) fn go_on(&self) {
        self.out.lock().unwrap_or_else(PoisonError::into_inner).is_over = false;
    }

    /// Close the list, and tell whether all of it could be written. Nothing comes after that, unless the stream goes on.
    pub(super) fn finish(&self) -> Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.is_over = true;
        let closed = out.close();
        match out.failure.take().or(closed.err()) {
            Some(error) => {
                // Behind a torn event, nothing is an event.
                out.events = EVENTS_MAX + 1;
                Err(failed(error, &self.path))
            }
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

/// The file of the next stream of this rank.
fn begin(path: &Path, order: &OrderSpec) -> Result<(PathBuf, File)> {
    let path = match order.world {
        0 | 1 => path.to_owned(),
        _ => with_suffix(path, &format!("-{:05}", order.rank)),
    };
    // The same file by whatever path it was named.
    let name = std::path::absolute(&path).map_err(|error| failed(error, &path))?;
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    let number = begun.get(&name).map_or(1, |count| count.saturating_add(1));
    let path = match number {
        1 => path,
        _ => with_suffix(&path, &format!(".{number}")),
    };
    let file = File::create(&path).map_err(|error| failed(error, &path))?;
    begun.insert(name, number);
    Ok((path, file))
}

/// `trace.json` with `-00003` is `trace-00003.json`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_stem().map(OsString::from).unwrap_or_default();
    name.push(suffix);
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

fn failed(error: std::io::Error, path: &Path) -> Error {
    Error::from_io("write trace", error).at(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(rank: u32, world: u32) -> OrderSpec {
        OrderSpec {
            rank,
            world,
            ..OrderSpec::default()
        }
    }

    fn events(path: &Path) -> usize {
        let text = std::fs::read_to_string(path).unwrap();
        serde_json::from_str::<Vec<Value>>(&text).unwrap().len()
    }

    #[test]
    fn every_stream_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        for (rank, world) in [(0, 1), (0, 2), (1, 2), (0, 1), (1, 2), (1, 2)] {
            let tracer = Tracer::create(&path, &order(rank, world)).unwrap();
            tracer.write(&Value::Null);
        }
        let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
        names.sort_by_key(|entry| entry.as_ref().unwrap().file_name());
        let names = names.iter().map(|entry| entry.as_ref().unwrap().path());
        let told: Vec<(String, usize)> = names
            .map(|path| {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                (name, events(&path))
            })
            .collect();
        let whole = ROWS.len() + 2;
        let expected = [
            "trace-00000.json",
            "trace-00001.2.json",
            "trace-00001.3.json",
            "trace-00001.json",
            "trace.2.json",
            "trace.json",
        ];
        assert_eq!(told, expected.map(|name| (name.to_owned(), whole)));
    }

    #[test]
    fn nothing_comes_after_the_end_unless_the_stream_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let tracer = Tracer::create(&path, &order(0, 1)).unwrap();
        let begun = ROWS.len() + 1;
        let block = || tracer.block(0, 0, 1, &super::super::read::Times::default());
        block();
        tracer.finish().unwrap();
        assert_eq!(events(&path), begun + 2);
        // A block that was still on its way.
        block();
        tracer.finish().unwrap();
        assert_eq!(events(&path), begun + 2);
        tracer.go_on();
        assert_eq!(events(&path), begun + 2, "whole until there is more");
        block();
        tracer.finish().unwrap();
        assert_eq!(events(&path), begun + 4);
    }

    #[test]
    fn a_trace_that_is_full_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.json");
        let tracer = Tracer::create(&path, &order(0, 1)).unwrap();
        for _ in 0..EVENTS_MAX {
            tracer.block(0, 0, 1, &super::super::read::Times::default());
        }
        tracer.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let events: Vec<Value> = serde_json::from_str(&text).unwrap();
        assert_eq!(events.len() as u64, EVENTS_MAX + 1);
        let last = &events[events.len() - 1];
        assert_eq!(
            (&last["ph"], last["name"].as_str()),
            (&"i".into(), Some("the trace is full: 64 events"))
        );
        assert!(last["ts"].is_number());
    }

    #[test]
    fn a_trace_that_could_not_be_begun_takes_no_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("later/trace");
        assert!(Tracer::create(&path, &order(3, 8)).is_err());
        std::fs::create_dir(dir.path().join("later")).unwrap();
        drop(Tracer::create(&path, &order(3, 8)).unwrap());
        assert!(events(&dir.path().join("later/trace-00003")) > 0);
    }
}
