//! Writes an MDS data set for `tests/peers/mds.py`, which lets mosaicml-streaming read it.
//!
//! `mds_peer DIRECTORY COMPRESSION|none HASHES|none < samples.json`, where the input has the columns as `[name, encoding]` and the samples as
//! lists of hex values in that order.

use std::error::Error;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use forebay_data::Field;
use forebay_data::format::mds::{Compression, Encoding, HashName, Index, MdsWriter, Settings};
use forebay_data::format::{SampleRef, ShardWriter};

/// Small, so that there are several shards.
const SHARD_BYTES: u64 = 20_000;

/// Columns and samples.
type Input = (Vec<(String, String)>, Vec<Vec<String>>);

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [directory, compression, hashes] = args.as_slice() else {
        return Err("directory, compression, hashes".into());
    };
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let (columns, samples): Input = serde_json::from_str(&text)?;
    let fields = columns.iter().map(|(name, encoding)| {
        let encoding = Encoding::parse(encoding)?;
        Ok((Field::new(name.clone(), encoding.kind()), encoding))
    });
    let fields = fields.collect::<Result<Vec<_>, forebay_core::Error>>()?;
    let compression = match compression.as_str() {
        "none" => None,
        name => Some(Compression::parse(name)?),
    };
    let hashes = hashes
        .split(',')
        .filter(|name| *name != "none")
        .map(HashName::parse);
    let settings = Settings::new(
        fields
            .iter()
            .map(|(field, encoding)| (field.name.clone(), encoding.clone())),
    )?
    .with_compression(compression)
    .with_hashes(hashes.collect::<Result<Vec<_>, _>>()?)
    .with_size_limit(Some(SHARD_BYTES))?;
    let directory = Path::new(directory);
    let mut index = Index::default();
    let mut writer = settings.writer()?;
    for (number, sample) in samples.iter().enumerate() {
        let values: Vec<Vec<u8>> = sample.iter().map(|hex| unhex(hex)).collect();
        let pairs: Vec<(&Field, &[u8])> = fields
            .iter()
            .zip(&values)
            .map(|((field, _), value)| (field, value.as_slice()))
            .collect();
        let sample = SampleRef {
            key: "",
            fields: &pairs,
        };
        if number > 0 && writer.bytes_with(sample) > SHARD_BYTES {
            store(
                &settings,
                std::mem::replace(&mut writer, settings.writer()?),
                &mut index,
                directory,
            )?;
        }
        writer.add(sample)?;
    }
    store(&settings, writer, &mut index, directory)?;
    fs::write(directory.join("index.json"), index.to_json()?)?;
    Ok(())
}

fn store(
    settings: &Settings,
    writer: MdsWriter,
    index: &mut Index,
    directory: &Path,
) -> Result<(), Box<dyn Error>> {
    let raw = Box::new(writer).finish()?;
    let sealed = settings.seal(index.shards.len() as u64, raw.to_vec())?;
    fs::write(directory.join(sealed.entry.stored().key.as_str()), &sealed.bytes)?;
    index.shards.push(sealed.entry);
    Ok(())
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair)
            .ok()
            .and_then(|pair| u8::from_str_radix(pair, 16).ok())
    };
    digits.map(|pair| byte(pair).unwrap_or_default()).collect()
}
