//! The same reads and writes through Forebay's disk: its engine, gate and pool.

use std::path::Path;
use std::sync::Arc;

use forebay_core::{Ledger, PathPolicy, Result, Seed, Span};
use forebay_io::{Class, Disk, File, NameOp, OpenHow};
use futures::{StreamExt, TryStreamExt};

use super::meter::{Meter, Sample};
use super::raw::{Order, Shape};

/// Bytes handed to the disk at once in sequential runs; it cuts them into requests of its own size.
const CHUNK_BYTES: u64 = 8 << 20;

/// Chunks in flight in sequential runs: enough that the disk never waits for us.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Write a new file, synced; gives what it cost and which way the bytes went.
pub(crate) async fn write(disk: &Disk, path: &Path, bytes: u64) -> Result<(Sample, Ledger)> {
    let how = OpenHow::CREATE.with_size_hint(bytes);
    let file = disk.open_file(path, how, PathPolicy::Fastest).await?;
    disk.name(NameOp::Reserve {
        file: Arc::clone(&file),
        len: bytes,
    })
    .await?;
    let mut content = disk.pool().lease(CHUNK_BYTES as usize).await??;
    Seed(2).rng().fill(&mut content);
    let content = content.freeze();
    let meter = Meter::start();
    let mut writes = futures::stream::iter(Span::first(bytes).pieces(CHUNK_BYTES))
        .map(|span| {
            disk.write_at(
                &file,
                span.start(),
                content.slice(..span.len() as usize),
                Class::Data,
            )
        })
        .buffer_unordered(CHUNKS_IN_FLIGHT);
    let mut ledger = Ledger::default();
    while let Some(part) = writes.try_next().await? {
        ledger.merge(&part);
    }
    drop(writes);
    disk.sync(&file).await?;
    Ok((meter.stop(bytes), ledger))
}

/// Read a file in that shape; what is read is thrown away.
pub(crate) async fn read(disk: &Disk, path: &Path, shape: &Shape) -> Result<(Sample, Ledger)> {
    let file = disk.open_file(path, OpenHow::READ, PathPolicy::Fastest).await?;
    let meter = Meter::start();
    let ledger = match shape.order {
        Order::Sequential => {
            let spans = Span::first(shape.file_bytes).pieces(CHUNK_BYTES);
            read_spans(disk, &file, spans, CHUNKS_IN_FLIGHT).await?
        }
        Order::Random { blocks, .. } => {
            let spans =
                (0..blocks).filter_map(|number| Span::at(shape.offset(number), shape.block_bytes).ok());
            read_spans(disk, &file, spans, shape.depth as usize).await?
        }
    };
    Ok((meter.stop(shape.bytes()), ledger))
}

async fn read_spans(
    disk: &Disk,
    file: &Arc<File>,
    spans: impl Iterator<Item = Span>,
    in_flight: usize,
) -> Result<Ledger> {
    let mut reads = futures::stream::iter(spans)
        .map(|span| async move {
            let buf = disk.pool().lease(span.len() as usize).await??;
            disk.read_into(file, span, buf, Class::Data).await
        })
        .buffer_unordered(in_flight);
    let mut ledger = Ledger::default();
    while let Some((_, part)) = reads.try_next().await? {
        ledger.merge(&part);
    }
    Ok(ledger)
}
