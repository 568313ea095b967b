//! The `object_store` crate and plain sockets, measured like Forebay is.
//!
//! `forebay-bench-peers MODE JOB`: JOB is the JSON object all contenders get. Each line on stdin asks for one round, answered by one JSON
//! line (the protocol of `bench/harness/contender.py`). Modes:
//!
//! - `get-stream`: bodies streamed by object_store, each chunk copied into a page-aligned buffer that is used again;
//! - `get-stream-drop`: the same, chunks dropped unread: what object_store costs before anybody wants the bytes;
//! - `get-range`: object_store's `get_range`, which joins the chunks;
//! - `get-raw`: blocking sockets without any client, unsigned: the limit of the loopback and the server;
//! - `put`: multipart upload of one object from page-aligned memory.

mod job;
mod raw;
mod s3;

use std::io::BufRead;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use crate::job::Job;

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().context("which mode?")?;
    let job = Arc::new(Job::parse(&args.next().context("which job?")?)?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let store = s3::open(&job)?;
    let source = if mode == "put" {
        Some(job::mapped(&job.source)?)
    } else {
        None
    };
    let mut buffers = job::buffers(&job)?;
    for line in std::io::stdin().lock().lines() {
        line?;
        let meter = job::Meter::start();
        let moved = match (mode.as_str(), &source) {
            ("get-stream", _) => runtime.block_on(s3::get(&store, &job, &mut buffers, s3::Take::Copy))?,
            ("get-stream-drop", _) => {
                runtime.block_on(s3::get(&store, &job, &mut buffers, s3::Take::Drop))?
            }
            ("get-range", _) => runtime.block_on(s3::get(&store, &job, &mut buffers, s3::Take::Join))?,
            ("get-raw", _) => raw::get(&job, &mut buffers)?,
            ("put", Some(source)) => runtime.block_on(s3::put(&store, &job, source))?,
            _ => bail!("unknown mode {mode}"),
        };
        meter.report(moved);
    }
    Ok(())
}
