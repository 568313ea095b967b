//! Quarantine: bad samples are kept in a directory, so that somebody can look at them.
//!
//! Each field of a sample is a file there, and a line of `bad-RANK.jsonl` says where the sample came from and what is wrong with it. The same
//! sample is kept once, however many epochs meet it; a line is written after the files it speaks of.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, Result};
use serde::Serialize;

use super::StreamSpec;
use super::collate::BadSample;
use super::sources::Sources;
use super::totals::BadPolicy;

/// Bytes of a shard's name that the names of its samples begin with.
const SHARD_NAME_BYTES_MAX: usize = 100;

/// Where bad samples are kept.
#[derive(Debug)]
pub(super) struct Quarantine {
    folder: PathBuf,
    rank: u32,
    shards: Vec<String>,
    /// At most so many are kept.
    max: u64,
    kept: Mutex<HashSet<(u32, u64)>>,
}

/// One line of the list.
#[derive(Serialize)]
struct Line<'a> {
    shard: &'a str,
    index: u64,
    key: Option<&'a str>,
    reason: &'a str,
    files: Vec<String>,
}

impl Quarantine {
    /// Where the policy asks for one.
    pub(super) fn of(spec: &StreamSpec, sources: &Sources) -> Result<Option<Arc<Self>>> {
        let BadPolicy::Quarantine { max, folder } = &spec.bad else {
            return Ok(None);
        };
        fs::create_dir_all(folder).map_err(|error| failed(error, folder))?;
        Ok(Some(Arc::new(Self {
            folder: folder.clone(),
            rank: spec.order.rank,
            shards: names(sources),
            max: *max,
            kept: Mutex::default(),
        })))
    }

    /// Keep a sample with the bytes of its fields.
    pub(super) fn keep(&self, bad: &BadSample, fields: &[(&str, &[u8])]) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() as u64 >= self.max || kept.contains(&(bad.shard, bad.index)) {
            return Ok(());
        }
        let shard = self.shards.get(bad.shard as usize).map_or("", String::as_str);
        let stem = format!("{}-{:08}", plain(shard), bad.index);
        let mut files = Vec::with_capacity(fields.len());
        for (name, bytes) in fields {
            let file = format!("{stem}.{}", plain(name));
            let path = self.folder.join(&file);
            fs::write(&path, bytes).map_err(|error| failed(error, &path))?;
            files.push(file);
        }
        let line = Line {
            shard,
            index: bad.index,
            key: bad.key.as_deref(),
            reason: &bad.reason,
            files,
        };
        let mut text = serde_json::to_string(&line)
            .map_err(|error| Error::from_io("quarantine a sample", error.into()))?;
        text.push('\n');
        let path = self.folder.join(format!("bad-{:05}.jsonl", self.rank));
        let list = OpenOptions::new().create(true).append(true).open(&path);
        list.and_then(|mut list| list.write_all(text.as_bytes()))
            .map_err(|error| failed(error, &path))?;
        kept.insert((bad.shard, bad.index));
        Ok(())
    }
}

/// What shards are called: by their keys, behind the number of their data set where there are several.
fn names(sources: &Sources) -> Vec<String> {
    let datasets = sources.datasets();
    let names = datasets.iter().enumerate().flat_map(|(number, dataset)| {
        let shards = dataset.shards().iter();
        shards.map(move |shard| match datasets.len() {
            1 => shard.key.to_string(),
            _ => format!("{number}/{}", shard.key),
        })
    });
    names.collect()
}

fn failed(error: std::io::Error, path: &Path) -> Error {
    Error::from_io("quarantine a sample", error).at(path.display().to_string())
}

/// A name without anything that means something in a path.
fn plain(name: &str) -> String {
    let plain = name.chars().map(|c| {
        if c.is_ascii_alphanumeric() || "-_.".contains(c) {
            c
        } else {
            '_'
        }
    });
    let plain: String = plain.collect();
    let plain = plain.trim_start_matches('.');
    plain
        .get(plain.len().saturating_sub(SHARD_NAME_BYTES_MAX)..)
        .unwrap_or(plain)
        .to_owned()
}
