//! The fields of one sample as files.
//!
//! Keys and names of fields come from the shard, so nothing they say leaves the directory: separators and control characters become `_`, a name that begins with a dot gets
//! one in front. Files are put like objects of a store, whole or not at all, and what exists is left alone unless told otherwise.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result, crc32c};
use forebay_data::{Block, Dataset, Layout};
use forebay_store::{Context, PutMode, PutOptions, StoreExt, open};
use serde::Serialize;

use super::find_row;
use crate::app::App;
use crate::printer::{Printed, visible};
use crate::target::Target;

/// Longest name of a file: file systems take 255 bytes.
const NAME_BYTES_MAX: usize = 200;

/// One line of `--json`.
#[derive(Debug, Serialize)]
struct Extracted<'a> {
    kind: &'static str,
    field: &'a str,
    path: String,
    bytes: usize,
}

/// Write the fields of a sample, which is a row of a block and has that number in its shard, below `dir`.
pub(super) async fn run(
    block: &Block,
    row: usize,
    number: u64,
    dir: &OsStr,
    force: bool,
    app: &App,
    context: &Context,
) -> Printed {
    let target = Target::parse(dir)?;
    if !target.is_local() {
        let message = "samples are extracted into local directories only";
        return Err(Error::new(ErrorKind::InvalidInput, "extract", message)
            .at(&target.location)
            .into());
    }
    let store = open(&target.location, context).await?;
    let options = PutOptions {
        mode: if force {
            PutMode::Replace
        } else {
            PutMode::IfAbsent
        },
        ..PutOptions::default()
    };
    let sample = block.key(row).map_or_else(|| number.to_string(), str::to_owned);
    let mut taken = HashSet::new();
    for (column, field) in block.fields().iter().enumerate() {
        let Some(bytes) = block.field(row, column) else {
            continue;
        };
        let name = free_name(&sample, &field.name, &mut taken);
        let key = Key::parse(&name)?;
        let put = store.put_bytes(&key, bytes, &options).await;
        put.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => error.with_hint("add --force to replace files"),
            _ => error,
        })?;
        let path = store.location().join(&key).to_string();
        if app.printer().is_json() {
            app.printer().json(&Extracted {
                kind: "file",
                field: &field.name,
                path,
                bytes: bytes.len(),
            })?;
        } else {
            app.printer()
                .say(format_args!("{}: {} bytes", visible(&path), bytes.len()));
        }
    }
    Ok(())
}

/// The sample, compared with its checksum: a block, and where it is in there.
pub(super) async fn read(dataset: &Dataset, shard: usize, number: u64) -> Result<(Block, usize)> {
    let table = dataset.table(shard).await?;
    let samples = match &table.layout {
        Layout::Samples(samples) => samples,
        Layout::Groups(groups) => {
            let (group, row) = find_row(&groups.list, number).ok_or_else(missing)?;
            return Ok((dataset.group(shard, group, None).await?, row));
        }
    };
    let extent = usize::try_from(number)
        .ok()
        .and_then(|index| samples.extent(index))
        .ok_or_else(missing)?;
    let bytes = dataset.read(shard, extent).await?;
    let block = Block::from_bytes(Arc::clone(&table), number..number + 1, bytes, extent.start())?;
    check(&block, number, dataset.store().location())?;
    Ok((block, 0))
}

/// Refuse a sample that is not what its table says.
pub(super) fn check(block: &Block, number: u64, location: &Location) -> Result<()> {
    if block.is_whole(0) {
        return Ok(());
    }
    let message = format!("sample {number} does not have its checksum");
    Err(Error::new(ErrorKind::Corrupt, "extract", message).at(location))
}

pub(super) fn missing() -> Error {
    Error::new(ErrorKind::Internal, "extract", "the sample is not in its table")
}

/// `key.field` as a name that stays where it is put and that no other field has.
fn free_name(key: &str, field: &str, taken: &mut HashSet<String>) -> String {
    let wanted = harmless(&format!("{key}.{field}"));
    let mut name = wanted.clone();
    let mut again = 1;
    while !taken.insert(name.clone()) {
        again += 1;
        name = format!("{wanted}-{again}");
    }
    name
}

fn harmless(name: &str) -> String {
    let mut safe: String = name
        .chars()
        .map(|character| match character {
            '/' | '\\' | ':' => '_',
            character if character.is_control() => '_',
            character => character,
        })
        .collect();
    if safe.starts_with('.') {
        safe.insert(0, '_');
    }
    if safe.len() > NAME_BYTES_MAX {
        let end = (0..=NAME_BYTES_MAX)
            .rev()
            .find(|end| safe.is_char_boundary(*end))
            .unwrap_or(0);
        safe.truncate(end);
        safe = format!("{safe}-{:08x}", crc32c(name.as_bytes()));
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leaves_the_directory() {
        for (key, field, name) in [
            ("a/b", "jpg", "a_b.jpg"),
            ("../../etc/passwd", "txt", "_.._.._etc_passwd.txt"),
            ("/abs", "x", "_abs.x"),
            ("..", "..", "_....."),
            ("", "", "_."),
            ("c:\\x", "\n", "c__x._"),
            ("a", "../up", "a..._up"),
        ] {
            let made = free_name(key, field, &mut HashSet::new());
            assert_eq!(made, name, "{key:?} {field:?}");
            let parsed = Key::parse(&made).unwrap();
            assert_eq!(parsed.parent(), Key::ROOT);
        }
        let long = free_name(&"x".repeat(5000), "jpg", &mut HashSet::new());
        assert!(long.len() < 255, "{}", long.len());
    }

    #[test]
    fn two_fields_do_not_meet() {
        let mut taken = HashSet::new();
        let names: Vec<String> = ["a/b", "a_b", "a\\b"]
            .map(|field| free_name("k", field, &mut taken))
            .to_vec();
        assert_eq!(names, ["k.a_b", "k.a_b-2", "k.a_b-3"]);
    }
}
