//! What to do, and how it is measured.

use std::time::Duration;

use anyhow::{Context as _, Result};
use forebay_core::{Clock as _, Limits, SystemClock};
use forebay_io::{cpu_time, memory_peak_bytes};
use serde_json::{Map, Value};

use crate::Done;

/// The job, as the harness wrote it.
#[derive(Clone)]
pub(crate) struct Job(Value);

impl Job {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        Ok(Self(serde_json::from_str(text).context("the job is not JSON")?))
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        self.0[name]
            .as_u64()
            .with_context(|| format!("the job has no number {name}"))
    }

    /// Whether something is asked for that most jobs do not ask for.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        match &self.0[name] {
            Value::Null => Ok(false),
            value => value
                .as_bool()
                .with_context(|| format!("{name} of the job is not true or false")),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<&str> {
        self.0[name]
            .as_str()
            .with_context(|| format!("the job has no text {name}"))
    }

    pub(crate) fn keys(&self) -> Result<Vec<String>> {
        let keys = self.0["keys"].as_array().context("the job has no keys")?;
        Ok(keys
            .iter()
            .filter_map(|key| Some(key.as_str()?.to_owned()))
            .collect())
    }

    /// Forebay's defaults, with the part size, concurrency and memory ceiling of the job where it names them.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        if let Some(bytes) = self.0["range_bytes"].as_u64() {
            limits.part_bytes = bytes;
        }
        if let Some(count) = self.0["in_flight"].as_u64() {
            limits.store_requests_max = count as u32;
        }
        if let Some(bytes) = self.0["buffer_bytes_max"].as_u64() {
            limits.buffer_bytes_max = bytes;
        }
        if let Some(bytes) = self.0["disk_request_bytes"].as_u64() {
            limits.disk_request_bytes = bytes;
        }
        if let Some(count) = self.0["disk_depth"].as_u64() {
            limits.disk_depth = count as u32;
        }
        limits
    }
}

/// Clocks around one round.
pub(crate) struct Meter {
    began: Duration,
    cpu_began: Duration,
    spent: Option<(Duration, Duration)>,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self {
            began: SystemClock.now(),
            cpu_began: cpu_time(),
            spent: None,
        }
    }

    /// Seconds since the start.
    pub(crate) fn elapsed_s(&self) -> f64 {
        (SystemClock.now() - self.began).as_secs_f64()
    }

    /// Stop the clocks.
    pub(crate) fn done(mut self, bytes: u64) -> Done {
        self.spent = Some((SystemClock.now() - self.began, cpu_time() - self.cpu_began));
        Done {
            bytes,
            meter: self,
            extra: Map::new(),
        }
    }

    /// Print the answer of one round.
    pub(crate) fn report(self, bytes: u64, extra: Map<String, Value>) {
        let (wall, cpu) = self.spent.unwrap_or_default();
        let mut answer = extra;
        answer.insert("bytes".to_owned(), bytes.into());
        answer.insert("wall_s".to_owned(), wall.as_secs_f64().into());
        answer.insert("cpu_s".to_owned(), cpu.as_secs_f64().into());
        answer.insert("rss_bytes".to_owned(), memory_peak_bytes().into());
        println!("{}", Value::Object(answer));
    }
}
