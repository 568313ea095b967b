//! Plain files: every field of every sample becomes a file again, `KEY.FIELD`, as unpacking a tar of WebDataset would make them.
//!
//! ```text
//! chunks, in order --> names, checked --> files, many at once, never over others --> listing and pass over all of them --> manifest
//! ```
//!
//! There are no shards to note. A run that ended early is gone through again: files that are there are read and compared, which finds two samples of one key as well. The
//! manifest, which is the commit, is made of what is in the target, and must have as many samples as were written.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Ledger, Result};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::chunk::Chunk;
use super::target::Target;
use super::{PackReport, Run, told};
use crate::dataset::{Dataset, FILES, OpenOptions, Save, UseManifest};
use crate::format::wds;
use crate::manifest::{FormatSpec, MANIFEST_NAME, put_if_absent, read_small};

/// Files written side by side: each waits for the disk to have it.
const FILES_AT_ONCE_MAX: usize = 64;

/// A file to be written.
struct Unpacked {
    key: Key,
    sample: String,
    bytes: Bytes,
}

impl Run {
    /// Write all samples as files, and make their manifest.
    pub(super) async fn unpack(&self) -> Result<PackReport> {
        let mut left = self.spec.limit.unwrap_or(u64::MAX);
        let (mut samples, mut ledger) = (0, Ledger::default());
        let mut chunks = self.input.chunks(0..self.input.samples(), &self.reading);
        while left > 0
            && let Some(next) = chunks.next().await
        {
            let (chunk, _room) = next?;
            let count = left.min(chunk.len() as u64);
            ledger.merge(&self.write_files(&chunk, count as usize).await?);
            (left, samples) = (left - count, samples + count);
        }
        drop(chunks);
        if samples == 0 {
            return Err(self.nothing_left().await);
        }
        self.note_unmet();
        let dataset = self.target.index_files(samples).await?;
        let sums = told(dataset.manifest().sums())?;
        self.target.forget().await?;
        Ok(PackReport {
            sums,
            shards_kept: 0,
            read: self.reading.tally.ledger(),
            written: ledger,
            ..PackReport::new(dataset.manifest(), &self.input, &self.shares)
        })
    }

    /// Write the first samples of a chunk.
    async fn write_files(&self, chunk: &Chunk, count: usize) -> Result<Ledger> {
        let fields = self.reading.shaper.output().fields();
        let mut files = Vec::new();
        for index in 0..count {
            let sample = chunk.key(index);
            for (field, bytes) in chunk.slices(index) {
                let field = fields.get(field).map_or("", |field| &field.name);
                files.push(Unpacked {
                    key: Key::parse(&wds::file_name(sample, field)?)?,
                    sample: sample.to_owned(),
                    bytes,
                });
            }
        }
        let puts = files.into_iter().map(|file| {
            let target = self.target.clone();
            async move { target.put_file(file).await }
        });
        let puts = stream::iter(puts).buffer_unordered(FILES_AT_ONCE_MAX);
        puts.try_fold(Ledger::default(), |mut all, one| async move {
            all.merge(&one);
            Ok(all)
        })
        .await
    }
}

impl Target {
    /// Write a file where there is none, and compare it where there is one.
    async fn put_file(&self, file: Unpacked) -> Result<Ledger> {
        let store = self.store();
        if let Some(done) = put_if_absent(&**store, &file.key, &file.bytes).await? {
            return Ok(done.ledger);
        }
        let bytes_max = file.bytes.len() as u64;
        match read_small(store, &file.key, bytes_max, self.context()).await? {
            Some(found) if found == file.bytes => Ok(Ledger::default()),
            _ => Err(self.other_content(&file)),
        }
    }

    /// Make the manifest of the files that are there.
    async fn index_files(&self, samples: u64) -> Result<Dataset> {
        let options = OpenOptions {
            format: Some(FormatSpec::new(FILES).with("layout", "tree")),
            take_unfinished: true,
            manifest: UseManifest::IfThere,
            save: Save::IfAbsent,
            ..OpenOptions::default()
        };
        let store = Arc::clone(self.store());
        let dataset = Dataset::open(store, self.context(), &options).await?;
        if dataset.samples() == samples {
            return Ok(dataset);
        }
        self.store().delete(&Key::parse(MANIFEST_NAME)?).await?;
        let message = format!(
            "{samples} samples were written as files, and {} are found there",
            dataset.samples()
        );
        Err(Error::new(ErrorKind::InvalidInput, "pack", message)
            .at(self.store().location())
            .with_hint(
                "samples of one key and one content are one file, and a sample without fields is none; number them anew with --drop-keys",
            ))
    }

    fn other_content(&self, file: &Unpacked) -> Error {
        let message = format!(
            "a file of sample '{}' is there with another content",
            file.sample.escape_debug()
        );
        Error::new(ErrorKind::AlreadyExists, "pack", message)
            .at(self.store().location().join(&file.key))
            .with_hint("two samples have that key (--drop-keys numbers them anew), or the file is of another run: choose another target")
    }
}
