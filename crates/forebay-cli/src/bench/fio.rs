//! The disk's limit by fio, where it is installed: io_uring, `O_DIRECT`, the same block size and depth.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::meter::Sample;
use super::raw::{Order, Shape};

/// Reading, writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// An existing file.
    Read,
    /// A new one, synced at the end.
    Write,
}

/// The version, when fio can be run.
pub(crate) fn version() -> Option<String> {
    let output = Command::new("fio")
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Run fio once.
pub(crate) fn run(path: &Path, shape: &Shape, direction: Direction, is_direct: bool) -> Result<Sample> {
    let name = match (direction, shape.order) {
        (Direction::Read, Order::Sequential) => "read",
        (Direction::Read, Order::Random { .. }) => "randread",
        (Direction::Write, Order::Sequential) => "write",
        (Direction::Write, Order::Random { .. }) => "randwrite",
    };
    let mut command = Command::new("fio");
    command
        .arg("--name=forebay")
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--rw={name}"))
        .arg(format!("--bs={}", shape.block_bytes))
        .arg(format!("--iodepth={}", shape.depth))
        .arg(format!("--size={}", shape.file_bytes))
        .arg(format!("--io_size={}", shape.bytes()))
        .arg(format!("--direct={}", u8::from(is_direct)))
        .args(["--ioengine=io_uring", "--output-format=json", "--numjobs=1"])
        .args((direction == Direction::Write).then_some("--end_fsync=1"))
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| Error::from_io("run fio", error))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let first = text.lines().next().unwrap_or("it gave no reason").to_owned();
        return Err(Error::new(ErrorKind::Io, "run fio", first));
    }
    parse(&output.stdout, direction)
}

#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    read: Totals,
    write: Totals,
    #[serde(rename = "job_runtime")]
    runtime_ms: u64,
    /// Percent of the job's run time.
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Debug, Deserialize)]
struct Totals {
    io_bytes: u64,
}

fn parse(json: &[u8], direction: Direction) -> Result<Sample> {
    let refuse = |why: String| Error::new(ErrorKind::Internal, "run fio", why);
    // Warnings may stand before the JSON.
    let start = json.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let output: Output = serde_json::from_slice(&json[start..])
        .map_err(|error| refuse(format!("cannot read its report: {error}")))?;
    let job = output
        .jobs
        .first()
        .ok_or_else(|| refuse("its report is empty".to_owned()))?;
    let totals = match direction {
        Direction::Read => &job.read,
        Direction::Write => &job.write,
    };
    let time = Duration::from_millis(job.runtime_ms);
    Ok(Sample {
        bytes: totals.io_bytes,
        time,
        cpu: time.mul_f64((job.usr_cpu + job.sys_cpu).max(0.0) / 100.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_report_is_understood() {
        let json = br#"fio: a warning
            {"jobs":[{"read":{"io_bytes":2000000000},"write":{"io_bytes":0},"job_runtime":1000,"usr_cpu":5.0,"sys_cpu":15.0}]}"#;
        let sample = parse(json, Direction::Read).unwrap();
        assert!((sample.rate().0 - 2e9).abs() < 1.0);
        assert!((sample.cpu_s_per_gb() - 0.1).abs() < 1e-9);
        assert!(parse(b"nonsense", Direction::Read).is_err());
        assert!(parse(b"{\"jobs\":[]}", Direction::Read).is_err());
    }
}
