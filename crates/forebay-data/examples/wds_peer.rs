//! WebDataset shards from and to JSON, for tests with other people's libraries (`tests/peers/wds.py`).
//!
//! `wds_peer write SHARD` makes a shard of the samples on standard input; `wds_peer read SHARD` gives them on standard output. Both are
//! lists of `[key, {field: data in hexadecimal}]`.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::{env, fs, io};

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Result};
use forebay_data::format::wds::{WdsScan, WdsWriter};
use forebay_data::format::{SampleRef, ShardWriter, scan_bytes};
use forebay_data::{Field, Kind, Layout};

/// Bytes that go through the scan at once: few, so that members are cut in odd places.
const STEP_BYTES: usize = 777;

type Sample = (String, BTreeMap<String, String>);

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", shard] => write(shard),
        ["read", shard] => read(shard),
        _ => Err(invalid("usage: wds_peer write SHARD | wds_peer read SHARD")),
    }
}

fn write(shard: &str) -> Result<()> {
    let mut text = String::new();
    let taken = io::stdin().read_to_string(&mut text);
    taken.map_err(|error| Error::from_io("read samples", error))?;
    let samples: Vec<Sample> = serde_json::from_str(&text).map_err(|error| invalid(&error.to_string()))?;
    let mut writer = Box::<WdsWriter>::default();
    for (key, fields) in samples {
        let mut named = Vec::new();
        for (name, data) in &fields {
            named.push((Field::new(name, Kind::Bytes), from_hex(data)?));
        }
        let fields: Vec<_> = named.iter().map(|(field, data)| (field, &data[..])).collect();
        writer.add(SampleRef {
            key: &key,
            fields: &fields,
        })?;
    }
    let bytes = writer.finish()?;
    fs::write(shard, bytes).map_err(|error| Error::from_io("write", error).at(shard))
}

fn read(shard: &str) -> Result<()> {
    let bytes = fs::read(shard).map_err(|error| Error::from_io("read", error).at(shard))?;
    let bytes = Bytes::from(bytes);
    let table = scan_bytes(Box::<WdsScan>::default(), &bytes, STEP_BYTES)?;
    table.check(bytes.len() as u64)?;
    let mut samples: Vec<Sample> = Vec::new();
    if let Layout::Samples(rows) = &table.layout {
        for index in 0..rows.len() {
            let start = rows.starts.get(index).copied().unwrap_or_default() as usize;
            let columns = table.fields.iter().zip(&rows.columns);
            let fields = columns.filter_map(|(field, column)| {
                let span = column.get(index)?;
                let data = bytes.get(start + span.start..start + span.end)?;
                Some((field.name.clone(), to_hex(data)))
            });
            let key = rows.keys.get(index).unwrap_or_default().to_owned();
            samples.push((key, fields.collect()));
        }
    }
    let text = serde_json::to_string(&samples).map_err(|error| invalid(&error.to_string()))?;
    let given = io::stdout().write_all(text.as_bytes());
    given.map_err(|error| Error::from_io("write samples", error))
}

fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect()
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let byte = |at: usize| {
        text.get(at..at + 2)
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    let bytes: Option<Vec<u8>> = (0..text.len()).step_by(2).map(byte).collect();
    bytes.ok_or_else(|| invalid("data that are not hexadecimal"))
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "convert shard", message)
}
