//! One shard: its samples go through the writer, its bytes through the scan that makes its table and through SHA-256, and then to the store.
//!
//! Everything is made of the bytes in memory, so nothing is read back. The note that the shard is done is written behind it.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_store::{Body, ObjectMeta, PutOptions, StoreExt};
use futures::stream::{self, StreamExt};
use ring::digest;

use super::cut::Job;
use super::output::{Output, Sealed};
use super::target::{Note, Target, hex};
use crate::format::{Tabulated, sha256_of};

/// A shard that is stored.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) meta: ObjectMeta,
    pub(super) tabulated: Tabulated,
    /// Which way its bytes went.
    pub(super) ledger: Ledger,
}

/// Builds shards.
#[derive(Debug, Clone)]
pub(super) struct Builder {
    pub(super) output: Arc<Output>,
    pub(super) target: Target,
}

impl Builder {
    pub(super) async fn build(&self, job: Job) -> Result<Built> {
        let (number, positions) = (job.number, job.positions.clone());
        let output = Arc::clone(&self.output);
        let made = tokio::task::spawn_blocking(move || make(&output, job)).await;
        let (sealed, sha256) = made.map_err(|error| {
            Error::new(ErrorKind::Internal, "pack", "a thread that built a shard ended").with_source(error)
        })??;
        for (key, bytes) in &sealed.sides {
            self.target
                .store()
                .put_bytes(key, bytes, &PutOptions::default())
                .await?;
        }
        let (meta, ledger) = self.put(&sealed).await?;
        let note = Note {
            number,
            key: sealed.key.clone(),
            size: meta.size,
            sha256: hex(&sha256),
            samples: sealed.table.samples(),
            start: positions.start,
            end: positions.end,
        };
        self.target.note(&note).await?;
        Ok(Built {
            meta,
            tabulated: Tabulated {
                has_sums: false,
                table: sealed.table,
                sha256,
                raw_bytes: sealed.raw_bytes,
                codec: sealed.codec,
                ledger: Ledger::default(),
            },
            ledger,
        })
    }

    /// Store a shard, in parts where it is long.
    async fn put(&self, sealed: &Sealed) -> Result<(ObjectMeta, Ledger)> {
        let (store, context) = (self.target.store(), self.target.context());
        let size = sealed.stored.len() as u64;
        let options = PutOptions {
            size_hint: Some(size),
            ..PutOptions::default()
        };
        let done = if size <= context.limits().part_bytes {
            let body = Body::from(sealed.stored.clone());
            store.put(&sealed.key, body, &options).await?
        } else {
            let begin = |part_bytes: u64| {
                let step = part_bytes.max(1) as usize;
                let starts = (0..sealed.stored.len()).step_by(step);
                let parts =
                    starts.map(move |start| Ok(sealed.stored.slice(start..start.saturating_add(step))));
                stream::iter(parts).boxed()
            };
            store
                .upload_all(&sealed.key, &options, context, Box::new(begin))
                .await?
        };
        let meta = ObjectMeta {
            key: sealed.key.clone(),
            size,
            version: done.version,
            modified: None,
            checksum: None,
            permissions: None,
        };
        Ok((meta, done.ledger))
    }
}

/// Make a shard in memory. Takes a while.
fn make(output: &Output, job: Job) -> Result<(Sealed, [u8; 32])> {
    if output.has_keys() {
        check_keys(&job)?;
    }
    let mut writer = output.writer(job.bytes)?;
    for (chunk, range) in job.parts {
        for index in range {
            let added = chunk.with(index, output.fields(), output.has_key_field(), |sample| {
                writer.add(sample)
            });
            added.map_err(|error| name_sample(error, chunk.key(index)))?;
        }
    }
    let sealed = output.seal(job.number, writer)?;
    let mut sha256 = digest::Context::new(&digest::SHA256);
    sha256.update(&sealed.stored);
    Ok((sealed, sha256_of(sha256)?))
}

/// Refuse two samples of one key in a shard: a reader would take them for one, or find the wrong one.
fn check_keys(job: &Job) -> Result<()> {
    let mut seen = HashSet::with_capacity(job.samples as usize);
    for (chunk, range) in &job.parts {
        for index in range.clone() {
            if !seen.insert(chunk.key(index)) {
                let key = chunk.key(index).escape_debug();
                let message = format!("two samples have the key '{key}'");
                return Err(Error::new(ErrorKind::InvalidInput, "pack", message)
                    .with_field("key")
                    .with_hint("give each sample a key of its own, or number them anew: --drop-keys"));
            }
        }
    }
    Ok(())
}

/// Say which sample an error is about, where it does not.
fn name_sample(error: Error, key: &str) -> Error {
    let shown = key.escape_debug().to_string();
    if error.to_string().contains(&shown) {
        return error;
    }
    let message = format!("sample '{shown}' cannot be written");
    let named = Error::new(error.kind(), "pack", message);
    let named = match error.hint() {
        Some(hint) => named.with_hint(hint.to_owned()),
        None => named,
    };
    named.with_source(error)
}
