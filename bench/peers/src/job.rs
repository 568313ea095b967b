//! What to move, and how it is measured.

use std::io::Read as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// The job all contenders get.
pub(crate) struct Job {
    pub(crate) keys: Vec<String>,
    pub(crate) object_bytes: u64,
    pub(crate) range_bytes: u64,
    pub(crate) in_flight: usize,
    pub(crate) source: String,
    pub(crate) endpoint: String,
    pub(crate) bucket: String,
    next: AtomicUsize,
}

impl Job {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let job: Value = serde_json::from_str(text).context("the job is not JSON")?;
        let number = |name: &str, default| job[name].as_u64().unwrap_or(default);
        let keys = job["keys"].as_array().context("no keys")?;
        Ok(Self {
            keys: keys
                .iter()
                .filter_map(|key| Some(key.as_str()?.to_owned()))
                .collect(),
            object_bytes: number("object_bytes", 0),
            range_bytes: number("range_bytes", 8 << 20),
            in_flight: number("in_flight", 16) as usize,
            source: job["source"].as_str().unwrap_or_default().to_owned(),
            endpoint: std::env::var("BENCH_ENDPOINT").context("BENCH_ENDPOINT is not set")?,
            bucket: std::env::var("BENCH_BUCKET").context("BENCH_BUCKET is not set")?,
            next: AtomicUsize::new(0),
        })
    }

    /// Start over with the first range.
    pub(crate) fn rewind(&self) {
        self.next.store(0, Ordering::Relaxed);
    }

    /// The next range nobody has taken yet: key, start, end.
    pub(crate) fn take(&self) -> Option<(&str, u64, u64)> {
        let per_object = self.object_bytes.div_ceil(self.range_bytes) as usize;
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let key = self.keys.get(index / per_object)?;
        let start = (index % per_object) as u64 * self.range_bytes;
        Some((key, start, (start + self.range_bytes).min(self.object_bytes)))
    }
}

/// Page-aligned memory for one range.
pub(crate) type Buffer = memmap2::MmapMut;

/// One buffer per request in flight, used again in every round.
pub(crate) fn buffers(job: &Job) -> Result<Vec<Buffer>> {
    let buffer = |_| Ok(Buffer::map_anon(job.range_bytes as usize)?);
    (0..job.in_flight).map(buffer).collect()
}

/// A file on tmpfs as page-aligned memory.
pub(crate) fn mapped(path: &str) -> Result<Bytes> {
    let mut file = std::fs::File::open(path).with_context(|| format!("cannot open {path}"))?;
    let mut memory = memmap2::MmapMut::map_anon(file.metadata()?.len() as usize)?;
    file.read_exact(&mut memory)?;
    Ok(Bytes::from_owner(memory))
}

/// Clocks around one round.
pub(crate) struct Meter {
    cpu_s: f64,
    wall: Instant,
}

impl Meter {
    pub(crate) fn start() -> Self {
        Self {
            cpu_s: cpu_s(),
            wall: Instant::now(),
        }
    }

    /// Print the answer of one round.
    pub(crate) fn report(self, bytes: u64) {
        let (wall_s, cpu_s) = (self.wall.elapsed().as_secs_f64(), cpu_s() - self.cpu_s);
        let rss_bytes = rss_bytes_max();
        println!(
            "{}",
            json!({"bytes": bytes, "wall_s": wall_s, "cpu_s": cpu_s, "rss_bytes": rss_bytes})
        );
    }
}

/// CPU time of all threads, user and system.
fn cpu_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn rss_bytes_max() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}
