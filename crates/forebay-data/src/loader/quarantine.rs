//! Quarantine: bad samples are kept in a directory, so that somebody can look at them.
//!
//! Each field of a sample is a file there, and a line of `bad-RANK.jsonl` says where the sample came from and what is wrong with it. The same
//! sample is kept once, however many epochs meet it; a line is written after the files it speaks of.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use forebay_core::{Error, Result, crc32c};
use serde::Serialize;

use super::StreamSpec;
use super::collate::BadSample;
use super::totals::BadPolicy;

/// Bytes that a shard's name, and one of a field, take in the names of files: both and a number make less than the 255 that a file may have.
const NAME_BYTES_MAX: usize = 100;

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

/// A name without anything that means something in a path, and another one for every other name: what is replaced is told as in a URL, and what is cut off by
/// its checksum.
fn plain(name: &str) -> String {
    let mut plain = String::with_capacity(name.len());
    for byte in name.bytes() {
        let is_leading_dot = byte == b'.' && plain.is_empty();
        if (byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) && !is_leading_dot {
            plain.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _: std::fmt::Result = write!(plain, "%{byte:02X}");
        }
    }
    if plain.len() <= NAME_BYTES_MAX {
        return plain;
    }
    let sum = format!("~{:08x}", crc32c(name.as_bytes()));
    let kept = plain.get(plain.len() - (NAME_BYTES_MAX - sum.len())..);
    format!("{}{sum}", kept.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(shard: &str, shard_number: u32) -> BadSample {
        BadSample {
            shard: shard.to_owned(),
            shard_number,
            index: 7,
            offset: Some(512),
            key: Some("a key".to_owned()),
            reason: "a reason".to_owned(),
            is_damaged: true,
            lacks_number: false,
        }
    }

    #[test]
    fn every_field_of_every_sample_has_a_file_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine {
            folder: dir.path().to_owned(),
            rank: 3,
            max: 10,
            kept: Mutex::default(),
        };
        let long = "d".repeat(150);
        let shards = [
            "x/y.tar",
            "x_y.tar",
            "../z.tar",
            &format!("1{long}"),
            &format!("2{long}"),
        ];
        for (number, shard) in (0..).zip(shards) {
            let bytes = number.to_string();
            let of_first = format!("{number} a/b");
            let fields = [("a/b", of_first.as_bytes()), ("a_b", bytes.as_bytes()), ("", b"")];
            quarantine.keep(&sample(shard, number), &fields).unwrap();
            // Met again in a later epoch.
            quarantine
                .keep(&sample(shard, number), &[("a_b", b"again")])
                .unwrap();
        }
        let text = fs::read_to_string(dir.path().join("bad-00003.jsonl")).unwrap();
        let lines = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), shards.len());
        for (number, (line, shard)) in lines.iter().zip(shards).enumerate() {
            assert_eq!(
                (&line["shard"], &line["index"], &line["offset"]),
                (&shard.into(), &7.into(), &512.into())
            );
            assert_eq!(
                (&line["key"], &line["reason"]),
                (&"a key".into(), &"a reason".into())
            );
            let names = line["files"]
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap());
            let found: Vec<String> = names
                .map(|name| fs::read_to_string(dir.path().join(name)).unwrap())
                .collect();
            assert_eq!(
                found,
                [format!("{number} a/b"), number.to_string(), String::new()]
            );
        }
        let files = fs::read_dir(dir.path()).unwrap().count();
        assert_eq!(files, 3 * shards.len() + 1);
    }

    #[test]
    fn names_mean_nothing_in_a_path() {
        assert_eq!(plain("train/a b.tar"), "train%2Fa%20b.tar");
        assert_eq!(plain("../.hidden"), "%2E.%2F.hidden");
        assert_eq!(plain(""), "");
        let long = plain(&"\u{fc}".repeat(100));
        assert!(long.len() <= NAME_BYTES_MAX && long.contains('~'), "{long}");
    }
}
