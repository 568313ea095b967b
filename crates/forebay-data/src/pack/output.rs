//! What is written: one of the formats, with everything about it that packing must know.
//!
//! Costs are counted before compression, so that where shards end does not depend on how well they compress.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_io::{Buf, BufPool};
use serde::{Deserialize, Serialize};

use crate::codec::Codec;
use crate::format::mds::{self, Compression, HashName, Mds, MdsWriter, Settings, ShardEntry, ShardHashes};
use crate::format::parquet::{File, Parquet, ParquetOptions, ParquetWriter};
use crate::format::tfrecord::{Records, TfRecord, TfRecordWriter};
use crate::format::tokens::{Cut, MegatronWriter, Tokens, TokensWriter};
use crate::format::wds::{self, Wds, WdsScan, WdsWriter};
use crate::format::{Format, SampleRef, Scan, ShardWriter};
use crate::manifest::FormatSpec;
use crate::schema::{Dtype, Field, Kind};
use crate::table::Table;

/// Level of gzip where none is named: what everybody else takes.
const GZIP_LEVEL: &str = "gz:6";

/// Level of zstd where none is named.
const ZSTD_LEVEL: i32 = 3;

/// A format that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PackFormat {
    /// WebDataset.
    Wds,
    /// MosaicML Streaming.
    Mds,
    /// TFRecord of Examples.
    TfRecord,
    /// Parquet.
    Parquet,
    /// Tokens, as Megatron has them.
    Tokens,
    /// Tokens and nothing else: samples of one length, one after the other.
    Raw,
    /// Plain files.
    Files,
}

impl PackFormat {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Wds,
        Self::Mds,
        Self::TfRecord,
        Self::Parquet,
        Self::Tokens,
        Self::Raw,
        Self::Files,
    ];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wds => "wds",
            Self::Mds => "mds",
            Self::TfRecord => "tfrecord",
            Self::Parquet => "parquet",
            Self::Tokens => "tokens",
            Self::Raw => "raw",
            Self::Files => "files",
        }
    }

    /// The format of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// Encodings of TFRecord that are messages of lists.
const LISTS: [&str; 3] = ["tf:bytes_list", "tf:float_list", "tf:int64_list"];

/// How shards are written.
#[derive(Debug)]
pub(super) struct Output {
    format: PackFormat,
    fields: Vec<Field>,
    has_key_field: bool,
    compression: Option<Compression>,
    zstd_level: Option<i32>,
    shard_bytes: u64,
    /// Settings, and a writer without samples to ask for sizes.
    mds: Option<(Settings, MdsWriter)>,
    dtype: Dtype,
    /// Tokens of every sample, of raw ones.
    window: u64,
    /// Fields of TFRecord that are messages of lists.
    lists: Vec<String>,
}

/// Files beside a shard, by their endings.
type Sides = Vec<(&'static str, Vec<u8>)>;

/// A shard in memory.
#[derive(Debug)]
pub(super) struct Sealed {
    /// As it is stored; what is left of it, where parts were taken.
    pub(super) stored: Buf,
    /// Files that must be there before it.
    pub(super) sides: Vec<(Key, Vec<u8>)>,
    /// Its table, its bytes before compression, and how it is compressed, where it was put together at its end.
    pub(super) whole: Option<(Table, u64, Codec)>,
    /// What its list of shards says of it, where checksums are asked for.
    pub(super) hashes: ShardHashes,
}

impl Output {
    /// For samples of these fields, of which the first is the key where `has_key_field` says so.
    pub(super) fn new(
        format: PackFormat,
        fields: Vec<Field>,
        has_key_field: bool,
        compression: Option<&str>,
        shard_bytes: u64,
        dtype: Option<Dtype>,
    ) -> Result<Self> {
        let compression = compression.map(|name| compression_of(format, name)).transpose()?;
        let zstd_level = match (format, compression) {
            (PackFormat::Parquet, Some(compression)) => Some(zstd_level(compression)),
            _ => None,
        };
        let mds = match format {
            PackFormat::Mds => Some(mds_of(&fields, compression, shard_bytes)?),
            _ => None,
        };
        let dtype = match format {
            PackFormat::Tokens | PackFormat::Raw => tokens_of(&fields, dtype, format)?,
            _ => Dtype::Uint8,
        };
        let window = match format {
            PackFormat::Raw => window_of(&fields)?,
            _ => 1,
        };
        if format == PackFormat::Parquet {
            // Fields that it cannot hold are known now.
            ParquetWriter::new(&fields, ParquetOptions::default())?;
        }
        // Messages of lists, which some shards could hold as plain values: all shards are to be read alike. What is no message is written as a plain value.
        let is_message = |field: &&Field| matches!(&field.kind, Kind::Encoded { encoding } if LISTS.contains(&encoding.as_str()));
        let lists = match format {
            PackFormat::TfRecord => fields
                .iter()
                .filter(is_message)
                .map(|field| field.name.clone())
                .collect(),
            _ => Vec::new(),
        };
        Ok(Self {
            format,
            fields,
            has_key_field,
            compression,
            zstd_level,
            shard_bytes,
            mds,
            dtype,
            window,
            lists,
        })
    }

    /// Put these checksums of every shard into its list of shards.
    pub(super) fn with_hashes(mut self, hashes: &[HashName]) -> Result<Self> {
        if hashes.is_empty() {
            return Ok(self);
        }
        let Some((settings, _)) = self.mds else {
            let message = format!("format {} has no place for hashes", self.format.name());
            return Err(refused(message).with_field("hashes").with_hint(
                "they are for mds; every packed data set has the SHA-256 of its shards in its manifest and in _SHA256SUMS",
            ));
        };
        let settings = settings.with_hashes(hashes.iter().copied());
        let empty = settings.writer()?;
        self.mds = Some((settings, empty));
        Ok(self)
    }

    pub(super) fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Bytes that a shard has at most, before compression, unless a sample is longer.
    pub(super) fn shard_bytes(&self) -> u64 {
        self.shard_bytes
    }

    pub(super) fn has_key_field(&self) -> bool {
        self.has_key_field
    }

    /// True when a sample can be found by its key, so that each must have one of its own.
    pub(super) fn has_keys(&self) -> bool {
        self.has_key_field || matches!(self.format, PackFormat::Wds | PackFormat::Files)
    }

    /// What the manifest says.
    pub(super) fn spec(&self) -> FormatSpec {
        if self.format == PackFormat::Raw {
            return FormatSpec::new(PackFormat::Tokens.name())
                .with("tokens", self.window)
                .with("dtype", self.dtype.name());
        }
        let spec = FormatSpec::new(self.format.name());
        if self.lists.is_empty() {
            spec
        } else {
            spec.with("lists", self.lists.clone())
        }
    }

    /// The format to read shards with.
    pub(super) fn format(&self) -> Result<Arc<dyn Format>> {
        Ok(match self.format {
            PackFormat::Wds => Arc::new(Wds),
            PackFormat::Mds => Arc::new(Mds::new()),
            PackFormat::TfRecord => Arc::new(self.tfrecord()),
            PackFormat::Parquet => Arc::new(Parquet::default()),
            PackFormat::Tokens => Arc::new(Tokens::new(None, Cut::Documents)?),
            PackFormat::Raw => Arc::new(self.raw()?),
            PackFormat::Files => return Err(refused("plain files are no shards".to_owned())),
        })
    }

    fn raw(&self) -> Result<Tokens> {
        Tokens::new(Some(self.dtype), Cut::Windows(self.window))
    }

    fn tfrecord(&self) -> TfRecord {
        let format = TfRecord::new(Records::Auto);
        if self.lists.is_empty() {
            format
        } else {
            format.with_lists_of(self.lists.clone())
        }
    }

    /// Bytes that a sample adds to a shard.
    pub(super) fn cost(&self, sample: SampleRef<'_>) -> u64 {
        match (self.format, &self.mds) {
            (PackFormat::Wds, _) => wds::sample_bytes(sample),
            (PackFormat::Mds, Some((_, empty))) => {
                empty.bytes_with(sample).saturating_sub(empty.shard_bytes())
            }
            (PackFormat::TfRecord, _) => TfRecordWriter::new().bytes_with(sample),
            (PackFormat::Tokens | PackFormat::Raw, _) => TokensWriter::new(self.dtype).bytes_with(sample),
            (PackFormat::Parquet | PackFormat::Mds | PackFormat::Files, _) => sample
                .fields
                .iter()
                .map(|(_, value)| value.len() as u64 + 4)
                .sum(),
        }
    }

    /// Bytes of a shard whose samples cost that much.
    pub(super) fn bytes(&self, cost: u64) -> u64 {
        match (self.format, &self.mds) {
            (PackFormat::Wds, _) => wds::archive_bytes(cost),
            (_, Some((_, empty))) => empty.shard_bytes().saturating_add(cost),
            _ => cost,
        }
    }

    /// True when samples that cost that much go into one shard.
    pub(super) fn fits(&self, cost: u64) -> bool {
        self.bytes(cost) <= self.shard_bytes
    }

    /// A shard to be filled, in parts of that many bytes where it can be stored while it grows.
    pub(super) fn writer(&self, part_bytes: usize, memory: &BufPool) -> Result<Box<dyn ShardWriter>> {
        Ok(match (self.format, &self.mds) {
            (PackFormat::Wds, _) if self.scan_parts().is_some() => {
                Box::new(WdsWriter::in_parts(part_bytes, memory))
            }
            (PackFormat::Wds, _) => Box::new(WdsWriter::default()),
            (PackFormat::Mds, Some((settings, _))) => Box::new(settings.writer()?),
            (PackFormat::TfRecord, _) => Box::new(TfRecordWriter::new()),
            (PackFormat::Tokens, _) => Box::new(MegatronWriter::new(self.dtype)?),
            (PackFormat::Raw, _) => Box::new(TokensWriter::new(self.dtype)),
            (PackFormat::Files, _) => return Err(refused("plain files are no shards".to_owned())),
            (PackFormat::Parquet | PackFormat::Mds, _) => {
                let options = ParquetOptions {
                    zstd_level: self.zstd_level,
                    has_keys: false,
                    ..ParquetOptions::default()
                };
                Box::new(ParquetWriter::new(&self.fields, options)?)
            }
        })
    }

    /// What shard `number` is called.
    pub(super) fn key(&self, number: u64) -> Result<Key> {
        let name = self.raw_name(number);
        match (self.compression, self.format) {
            (None, _) | (_, PackFormat::Parquet) => Key::parse(&name),
            (Some(compression), PackFormat::Mds) => {
                Key::parse(&format!("{name}.{}", compression.extension()))
            }
            (Some(compression), _) => {
                let extension = match compression.codec() {
                    Codec::Zstd => "zst",
                    _ => compression.extension(),
                };
                Key::parse(&format!("{name}.{extension}"))
            }
        }
    }

    fn raw_name(&self, number: u64) -> String {
        match self.format {
            PackFormat::Wds => format!("shard-{number:06}.tar"),
            PackFormat::Mds => mds::shard_name(number),
            PackFormat::TfRecord => format!("shard-{number:06}.tfrecord"),
            PackFormat::Parquet => format!("shard-{number:06}.parquet"),
            PackFormat::Tokens | PackFormat::Raw => format!("shard-{number:06}.bin"),
            PackFormat::Files => format!("files-{number:06}"),
        }
    }

    /// Makes the table of a shard whose parts are stored while it grows; `None` where it is put together at its end.
    pub(super) fn scan_parts(&self) -> Option<Box<dyn Scan>> {
        match (self.format, self.compression) {
            (PackFormat::Wds, None) => Some(Box::new(WdsScan::default())),
            _ => None,
        }
    }

    /// Close a shard: what is left of it as it is stored, and its table where nobody else makes it.
    pub(super) fn seal(&self, number: u64, rest: Buf, sides: Sides) -> Result<Sealed> {
        if self.scan_parts().is_some() {
            return Ok(Sealed {
                stored: rest,
                sides: Vec::new(),
                whole: None,
                hashes: ShardHashes::default(),
            });
        }
        let raw = rest.clone().into_bytes();
        let mut scan = self.scan(number, &raw, &sides)?;
        scan.feed(&raw)?;
        let table = scan.finish()?;
        let (stored, codec) = match self.compression.filter(|_| self.zstd_level.is_none()) {
            Some(compression) => (Buf::copy_of(&compression.compress(&raw)?)?, compression.codec()),
            None => (rest, Codec::None),
        };
        let hashes = self
            .mds
            .as_ref()
            .map_or_else(ShardHashes::default, |(settings, _)| {
                settings.hashes_of(&raw, (codec != Codec::None).then_some(&stored))
            });
        let key = self.key(number)?;
        let stem = key.as_str().rsplit_once('.').map_or("", |(stem, _)| stem);
        let sides = sides
            .into_iter()
            .map(|(ending, bytes)| Ok((Key::parse(&format!("{stem}.{ending}"))?, bytes)));
        Ok(Sealed {
            sides: sides.collect::<Result<_>>()?,
            stored,
            whole: Some((table, raw.len() as u64, codec)),
            hashes,
        })
    }

    fn scan(&self, number: u64, raw: &Bytes, sides: &[(&'static str, Vec<u8>)]) -> Result<Box<dyn Scan>> {
        Ok(match self.format {
            PackFormat::Wds => Box::new(WdsScan::default()),
            PackFormat::Mds => {
                let key = Key::parse(&self.raw_name(number))?;
                Box::new(Mds::new().scan_file(&key, raw.len() as u64)?)
            }
            PackFormat::TfRecord => self.tfrecord().start(),
            PackFormat::Parquet => File::from_bytes(raw, None)?.scan(),
            PackFormat::Tokens => {
                let idx = sides.first().map_or(&[][..], |(_, idx)| idx);
                Tokens::new(None, Cut::Documents)?.start_megatron(idx, raw.len() as u64)?
            }
            PackFormat::Raw => self.raw()?.start_raw()?,
            PackFormat::Files => return Err(refused("plain files are no shards".to_owned())),
        })
    }

    /// What index.json says of a shard, where the format has one.
    pub(super) fn entry(
        &self,
        number: u64,
        samples: u64,
        raw: u64,
        stored: u64,
        hashes: ShardHashes,
    ) -> Result<Option<ShardEntry>> {
        match &self.mds {
            Some((settings, _)) => settings.entry(number, samples, raw, stored, hashes).map(Some),
            None => Ok(None),
        }
    }
}

fn compression_of(format: PackFormat, name: &str) -> Result<Compression> {
    let asked = Compression::find(if name == "gz" && format != PackFormat::Mds {
        GZIP_LEVEL
    } else {
        name
    });
    let (possible, hint): (&[Codec], _) = match format {
        PackFormat::Mds => (
            &[
                Codec::Brotli,
                Codec::Bzip2,
                Codec::Gzip,
                Codec::Snappy,
                Codec::Zstd,
            ],
            "there are br:0-11, bz2:1-9, gz:0-9, snappy and zstd:1-22 for it",
        ),
        PackFormat::Wds => (
            &[Codec::Gzip, Codec::Zstd],
            "there are gz:0-9 and zstd:1-22 for it",
        ),
        PackFormat::TfRecord => (
            &[Codec::Gzip, Codec::Zlib],
            "there are gz:0-9 and zlib:0-9 for it",
        ),
        PackFormat::Parquet => (&[Codec::Zstd], "there is zstd:1-22 for it"),
        PackFormat::Tokens | PackFormat::Raw => (&[], "tokens are mapped into memory as they are"),
        PackFormat::Files => (&[], "plain files are written as they are"),
    };
    if let Some(asked) = asked.filter(|asked| possible.contains(&asked.codec())) {
        return Ok(asked);
    }
    let message = format!(
        "format {} cannot be compressed with '{}'",
        format.name(),
        name.escape_debug()
    );
    Err(refused(message).with_field("compression").with_hint(hint))
}

fn zstd_level(compression: Compression) -> i32 {
    let name = compression.to_string();
    let level = name.split_once(':').and_then(|(_, level)| level.parse().ok());
    level.unwrap_or(ZSTD_LEVEL)
}

fn mds_of(
    fields: &[Field],
    compression: Option<Compression>,
    shard_bytes: u64,
) -> Result<(Settings, MdsWriter)> {
    let settings = Settings::for_fields(fields)?
        .with_compression(compression)
        .with_size_limit(Some(shard_bytes))?;
    let empty = settings.writer()?;
    Ok((settings, empty))
}

/// Tokens of every sample, where the only field says how many.
fn window_of(fields: &[Field]) -> Result<u64> {
    let count = fields.first().and_then(|field| match &field.kind {
        Kind::Array { shape, .. } => shape.iter().try_fold(1u64, |count, dim| count.checked_mul(*dim)),
        _ => None,
    });
    count.filter(|count| *count > 0).ok_or_else(|| {
        let name = fields.first().map_or("", |field| &field.name);
        let message = format!(
            "samples of field '{}' have no fixed number of tokens, and raw tokens do not tell where one ends",
            name.escape_debug()
        );
        refused(message)
            .with_field("to")
            .with_hint("--to tokens keeps an index beside them")
    })
}

/// The type of the tokens in the only field.
fn tokens_of(fields: &[Field], asked: Option<Dtype>, format: PackFormat) -> Result<Dtype> {
    let [field] = fields else {
        let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        let message = format!(
            "format {} holds one field, and there are {}",
            format.name(),
            names.len()
        );
        return Err(refused(message).with_field("fields").with_hint(format!(
            "choose one with --fields; there are: {}",
            names.join(", ")
        )));
    };
    let own = match &field.kind {
        Kind::Array { dtype, .. } | Kind::List { dtype } => *dtype,
        Kind::Varints => Dtype::Int32,
        kind => {
            let message = format!(
                "field '{}' is {kind:?}, no list of numbers",
                field.name.escape_debug()
            );
            return Err(refused(message).with_field("fields"));
        }
    };
    let dtype = asked.unwrap_or(own);
    if format == PackFormat::Raw {
        return Ok(dtype);
    }
    // What Megatron has no code for is known now.
    MegatronWriter::new(dtype)
        .map(|_| dtype)
        .map_err(|error| error.with_field("dtype"))
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::InvalidInput, "pack", message)
}
