//! The `object_store` crate, used the way its documentation shows.

use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{GetOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _};
use tokio::task::JoinSet;

use crate::job::{Buffer, Job};

/// What becomes of the chunks of a body.
#[derive(Clone, Copy)]
pub(crate) enum Take {
    /// Copied into a page-aligned buffer that is used again for the next range.
    Copy,
    /// Dropped unread.
    Drop,
    /// Joined by object_store into memory of its own.
    Join,
}

/// A client with credentials from the environment.
pub(crate) fn open(job: &Job) -> Result<Arc<AmazonS3>> {
    let builder = AmazonS3Builder::from_env()
        .with_bucket_name(&job.bucket)
        .with_endpoint(&job.endpoint)
        .with_virtual_hosted_style_request(false)
        .with_allow_http(true);
    Ok(Arc::new(builder.build()?))
}

/// One round of ranged reads: tasks that take one range after the other until none is left.
pub(crate) async fn get(
    store: &Arc<AmazonS3>,
    job: &Arc<Job>,
    buffers: &mut Vec<Buffer>,
    take: Take,
) -> Result<u64> {
    job.rewind();
    let mut tasks = JoinSet::new();
    for mut buffer in buffers.drain(..) {
        let (store, job) = (Arc::clone(store), Arc::clone(job));
        tasks.spawn(async move {
            let moved = get_ranges(&store, &job, &mut buffer, take).await;
            (buffer, moved)
        });
    }
    let mut total = 0;
    while let Some(done) = tasks.join_next().await {
        let (buffer, moved) = done?;
        buffers.push(buffer);
        total += moved?;
    }
    Ok(total)
}

async fn get_ranges(store: &AmazonS3, job: &Job, buffer: &mut Buffer, take: Take) -> Result<u64> {
    let mut moved = 0;
    while let Some((key, start, end)) = job.take() {
        let path = Path::from(key);
        let mut at = 0;
        if let Take::Join = take {
            at = store.get_range(&path, start..end).await?.len();
        } else {
            let options = GetOptions {
                range: Some((start..end).into()),
                ..GetOptions::default()
            };
            let mut chunks = store.get_opts(&path, options).await?.into_stream();
            while let Some(chunk) = chunks.try_next().await? {
                if let Take::Copy = take {
                    buffer[at..at + chunk.len()].copy_from_slice(&chunk);
                }
                at += chunk.len();
            }
        }
        ensure!(at as u64 == end - start, "{at} bytes for {start}..{end} of {key}");
        moved += at as u64;
    }
    Ok(moved)
}

/// One round of a multipart upload, `in_flight` parts at a time.
pub(crate) async fn put(store: &Arc<AmazonS3>, job: &Job, source: &Bytes) -> Result<u64> {
    let mut upload = store.put_multipart(&Path::from(job.keys[0].as_str())).await?;
    let mut tasks = JoinSet::new();
    let step = job.range_bytes as usize;
    for start in (0..source.len()).step_by(step) {
        if tasks.len() == job.in_flight
            && let Some(done) = tasks.join_next().await
        {
            done??;
        }
        let part = source.slice(start..(start + step).min(source.len()));
        tasks.spawn(upload.put_part(part.into()));
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    upload.complete().await?;
    Ok(source.len() as u64)
}
