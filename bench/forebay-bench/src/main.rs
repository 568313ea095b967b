//! Forebay's libraries in the loops the peers are measured in.
//!
//! `forebay bench` tells users about their disks and stores; this program does exactly what `bench/peers` and fio do, so that rows can be
//! compared. `forebay-bench MODE JOB`: JOB is a JSON object; each line on stdin asks for one round, answered by one JSON line (the protocol of
//! `bench/harness/contender.py`).
//!
//! - `disk-read`, `disk-write`, `disk-random`: the disk ([`disk`]);
//! - `get`, `get-ranges`, `put`: a remote store ([`remote`]);
//! - `files-disk`, `files-local`, `files-cache`: the same shards plainly and as cache hits ([`files`]);
//! - `stream`: an epoch of a data set ([`stream`]);
//! - `memory`: bytes in flight with a slow consumer ([`memory`]);
//! - `images`: JPEGs to batches ([`images`]);
//! - `pinned`: pinned memory to a device ([`pinned`]).

mod disk;
mod files;
mod images;
mod job;
mod memory;
mod pinned;
mod remote;
mod stream;

use std::future::Future;
use std::io::BufRead as _;
use std::pin::Pin;

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value};

use crate::job::{Job, Meter};

/// What one round found.
pub(crate) struct Done {
    /// Bytes moved.
    pub(crate) bytes: u64,
    /// Clocks that were started when the untimed part was over.
    pub(crate) meter: Meter,
    /// Anything more to tell.
    pub(crate) extra: Map<String, Value>,
}

/// A contender: prepared once, asked for a round at a time.
pub(crate) trait Contender {
    /// One round. Whatever happens before the meter is started is not counted.
    fn round(&mut self) -> Pin<Box<dyn Future<Output = Result<Done>> + '_>>;
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let mode = args.next().context("which mode?")?;
    let job = Job::parse(&args.next().context("which job?")?)?;
    let mut contender: Box<dyn Contender> = match mode.as_str() {
        "disk-read" => Box::new(disk::Read::new(&job)?),
        "disk-write" => Box::new(disk::Write::new(&job).await?),
        "disk-random" => Box::new(disk::Random::new(&job)?),
        "get" => Box::new(remote::Get::new(job, remote::Way::Objects).await?),
        "get-ranges" => Box::new(remote::Get::new(job, remote::Way::Ranges).await?),
        "put" => Box::new(remote::Put::new(job).await?),
        "files-disk" => Box::new(files::Files::disk(&job).await?),
        "files-local" => Box::new(files::Files::local(&job).await?),
        "files-cache" => Box::new(files::Files::cache(&job).await?),
        "stream" => Box::new(stream::Stream::new(&job).await?),
        "images" => Box::new(images::Images::new(&job)?),
        "pinned" => Box::new(pinned::Pinned::new(&job)?),
        "memory" => Box::new(memory::Slow::new(job).await?),
        _ => bail!("unknown mode {mode}"),
    };
    for line in std::io::stdin().lock().lines() {
        line?;
        let done = contender.round().await?;
        done.meter.report(done.bytes, done.extra);
    }
    Ok(())
}
