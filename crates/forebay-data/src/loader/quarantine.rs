//! Quarantine: bad samples are kept in a directory, so that somebody can look at them.
//!
//! Each field of a sample is a file there, and a line of `bad-RANK.jsonl` says where the sample came from and what is wrong with it. The same
//! sample is kept once, however many epochs meet it; a line is written after the files it speaks of.

use std::collections::HashSet;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use forebay_core::{Error, Result};
use serde::Serialize;

use super::StreamSpec;
use super::collate::BadSample;
use super::totals::BadPolicy;

/// Bytes of a shard's name that the names of its samples begin with.
const SHARD_NAME_BYTES_MAX: usize = 100;

/// Where bad samples are kept.
#[derive(Debug)]
pub(super) struct Quarantine {
    folder: PathBuf,
    rank: u32,
    /// At most so many are kept.
    max: u64,
    kept: Mutex<HashSet<(u32, u64)>>,
}

/// One line of the list.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    bad: &'a BadSample,
    files: Vec<String>,
}

impl Quarantine {
    /// Where the policy asks for one.
    pub(super) fn of(spec: &StreamSpec) -> Result<Option<Self>> {
        let BadPolicy::Quarantine { max, folder } = &spec.bad else {
            return Ok(None);
        };
        fs::create_dir_all(folder).map_err(|error| failed(error, folder))?;
        Ok(Some(Self {
            folder: folder.clone(),
            rank: spec.order.rank,
            max: *max,
            kept: Mutex::default(),
        }))
    }

    /// Keep a sample with the bytes of its fields.
    pub(super) fn keep(&self, bad: &BadSample, fields: &[(&str, &[u8])]) -> Result<()> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() as u64 >= self.max || kept.contains(&(bad.shard_number, bad.index)) {
            return Ok(());
        }
        let stem = format!("{}-{:08}", plain(&bad.shard), bad.index);
        let mut files = Vec::with_capacity(fields.len());
        for (name, bytes) in fields {
            let file = format!("{stem}.{}", plain(name));
            let path = self.folder.join(&file);
            fs::write(&path, bytes).map_err(|error| failed(error, &path))?;
            files.push(file);
        }
        let line = Line { bad, files };
        let mut text = serde_json::to_string(&line)
            .map_err(|error| Error::from_io("quarantine a sample", error.into()))?;
        text.push('\n');
        let path = self.folder.join(format!("bad-{:05}.jsonl", self.rank));
        let list = OpenOptions::new().create(true).append(true).open(&path);
        list.and_then(|mut list| list.write_all(text.as_bytes()))
            .map_err(|error| failed(error, &path))?;
        kept.insert((bad.shard_number, bad.index));
        Ok(())
    }
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
