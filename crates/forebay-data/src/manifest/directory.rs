//! What a manifest says of a whole data set: format, schema, shards, and where their sections lie. The bytes are described in
//! `docs/formats/manifest.md`.

use std::collections::{BTreeMap, HashSet};

use forebay_core::{ByteSize, Error, ErrorKind, Key, Result, Span, crc32c};
use ring::digest;
use serde::{Deserialize, Serialize};

use super::cursor::{Cursor, cursor};
use super::section::Section;
use crate::codec::Codec;
use crate::schema::Schema;

/// The format this version writes, and the only one there is so far.
pub const MANIFEST_FORMAT: u32 = 2;

/// Largest directory: some three million shards.
pub(super) const DIRECTORY_BYTES_MAX: u64 = 512 << 20;

/// Longest description: a schema of thousands of fields, and a format's own parameters.
const DESCRIPTION_BYTES_MAX: usize = 16 << 20;

/// Most compressions of one data set: an index of one byte names them.
const CODECS_MAX: usize = 255;

pub(super) const PRELUDE_BYTES: u64 = 16;
pub(super) const TRAILER_BYTES: u64 = 96;

/// Bytes of the mark behind the prelude, where there is one.
pub(super) const MARK_BYTES: u64 = 16;

const PRELUDE_MAGIC: &[u8; 8] = b"FBAYMANI";
const TRAILER_MAGIC: &[u8; 8] = b"FBAYMEND";
const PACKED_MAGIC: &[u8; 8] = b"FBAYPACK";

/// Version of the mark.
const PACKED_VERSION: u32 = 1;

/// Smallest row: a key of one byte and no groups.
const ROW_BYTES_MIN: u64 = 2 + 1 + 8 + 8 + 1 + 32 + 8 + 4;
/// Bytes of one place.
const PLACE_BYTES: u64 = 32;

/// Parameters that are found out where nobody names them.
const FOUND_OUT: [&str; 2] = ["layout", "partitions"];

/// A format with its parameters: what is needed to read the shards of a data set again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormatSpec {
    /// Name, as on the command line.
    pub name: String,
    /// What the format needs to know, by names it defines.
    #[serde(default)]
    pub params: BTreeMap<String, serde_json::Value>,
}

impl FormatSpec {
    /// A format without parameters.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let params = BTreeMap::new();
        Self { name, params }
    }

    /// True when a user who asks for this format means `found`, in which parameters stand that were found out.
    pub(crate) fn asks_for(&self, found: &Self) -> bool {
        let is_asked = |name: &String| self.param(name) == found.param(name);
        let is_found_out =
            |name: &String| FOUND_OUT.contains(&name.as_str()) && !self.params.contains_key(name);
        self.name == found.name
            && self.params.keys().all(is_asked)
            && found
                .params
                .keys()
                .all(|name| is_asked(name) || is_found_out(name))
    }

    /// A parameter; one that is found out and says that there is nothing is as good as none.
    fn param(&self, name: &String) -> Option<&serde_json::Value> {
        let is_nothing = |value: &serde_json::Value| value.as_array().is_some_and(Vec::is_empty);
        let value = self.params.get(name)?;
        (!FOUND_OUT.contains(&name.as_str()) || !is_nothing(value)).then_some(value)
    }

    /// With one more parameter.
    pub fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.params.insert(name.to_owned(), value.into());
        self
    }
}

/// A shard, as the manifest knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Its name, relative to the data set's directory.
    pub key: Key,
    /// Bytes of the object.
    pub stored_bytes: u64,
    /// Bytes after decompression.
    pub raw_bytes: u64,
    /// Compression of the whole object.
    pub codec: Codec,
    /// SHA-256 of the object.
    pub sha256: [u8; 32],
    /// Samples in it.
    pub samples: u64,
    /// Samples of each group, for formats whose samples are rows of groups; empty for those whose samples are ranges.
    pub groups: Vec<u64>,
    /// Digest of the version that was indexed; 0 when there is none.
    pub(crate) version: u64,
    pub(super) section: Section,
}

/// All that is known without reading a section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Directory {
    pub(super) spec: FormatSpec,
    pub(super) schema: Schema,
    pub(super) shards: Vec<Shard>,
    /// Digest of the store that was indexed; 0 when unknown.
    pub(super) origin: u64,
}

/// The JSON at the beginning.
#[derive(Serialize, Deserialize)]
struct Description {
    format: FormatSpec,
    schema: Schema,
    codecs: Vec<Codec>,
}

impl Directory {
    /// Samples over all shards.
    pub(super) fn samples(&self) -> u64 {
        self.shards.iter().map(|shard| shard.samples).sum()
    }

    /// The part the fingerprint is made of.
    fn encode_identity(&self) -> Result<Vec<u8>> {
        let mut codecs: Vec<Codec> = Vec::new();
        for shard in &self.shards {
            if !codecs.contains(&shard.codec) {
                codecs.push(shard.codec);
            }
        }
        if codecs.len() > CODECS_MAX {
            return Err(limit("more compressions than a manifest can name"));
        }
        let description = Description {
            format: self.spec.clone(),
            schema: self.schema.clone(),
            codecs,
        };
        let json = serde_json::to_vec(&description).map_err(|error| {
            Error::new(ErrorKind::Internal, "write manifest", "the schema is no JSON").with_source(error)
        })?;
        if json.len() > DESCRIPTION_BYTES_MAX {
            return Err(limit("the schema takes more room than it may"));
        }
        let mut bytes = Vec::new();
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(json);
        for shard in &self.shards {
            // Keys have at most 1024 bytes, and the codec is in the list that was made of all of them.
            let codec = description.codecs.iter().position(|codec| *codec == shard.codec);
            bytes.extend((shard.key.as_str().len() as u16).to_le_bytes());
            bytes.extend(shard.key.as_str().as_bytes());
            bytes.extend(shard.stored_bytes.to_le_bytes());
            bytes.extend(shard.raw_bytes.to_le_bytes());
            bytes.push(codec.unwrap_or_default() as u8);
            bytes.extend(shard.sha256);
            bytes.extend(shard.samples.to_le_bytes());
            bytes.extend((shard.groups.len() as u32).to_le_bytes());
            for samples in &shard.groups {
                bytes.extend(samples.to_le_bytes());
            }
        }
        Ok(bytes)
    }

    /// The name of the data set.
    pub(super) fn fingerprint(&self) -> Result<[u8; 32]> {
        Ok(sha256(&self.encode_identity()?))
    }

    /// Directory and trailer of a file whose sections end at `at`.
    pub(super) fn encode(&self, at: u64) -> Result<Vec<u8>> {
        let mut bytes = self.encode_identity()?;
        let fingerprint = sha256(&bytes);
        bytes.extend(self.origin.to_le_bytes());
        for shard in &self.shards {
            bytes.extend(shard.version.to_le_bytes());
            bytes.extend(shard.section.span.start().to_le_bytes());
            bytes.extend(shard.section.span.len().to_le_bytes());
            bytes.extend(shard.section.raw_bytes.to_le_bytes());
            bytes.extend(shard.section.crc.to_le_bytes());
        }
        let len = bytes.len() as u64;
        if len > DIRECTORY_BYTES_MAX {
            return Err(limit("the list of shards takes more room than it may"));
        }
        let trailer = Trailer {
            file_bytes: at + len + TRAILER_BYTES,
            directory: Span::at(at, len)?,
            shards: self.shards.len() as u64,
            samples: self.samples(),
            fingerprint,
            crc: crc32c(&bytes),
        };
        bytes.extend(trailer.encode());
        Ok(bytes)
    }

    /// From the bytes the trailer points at.
    pub(super) fn parse(bytes: &[u8], trailer: &Trailer) -> Result<Self> {
        if bytes.len() as u64 != trailer.directory.len() || crc32c(bytes) != trailer.crc {
            return Err(corrupt("the list of shards does not have its checksum"));
        }
        let mut cursor = cursor(bytes, "directory");
        let len = cursor.u32()? as usize;
        if len > DESCRIPTION_BYTES_MAX {
            return Err(limit("a description longer than any that was written"));
        }
        let description: Description = serde_json::from_slice(cursor.take(len)?)
            .map_err(|error| corrupt("the description of the data set cannot be read").with_source(error))?;
        let room = cursor.left() as u64 / (ROW_BYTES_MIN + PLACE_BYTES);
        if trailer.shards > room {
            return Err(corrupt("more shards than there are rows"));
        }
        let mut shards = Vec::with_capacity(trailer.shards as usize);
        for _ in 0..trailer.shards {
            shards.push(read_row(&mut cursor, &description.codecs)?);
        }
        if sha256(&bytes[..cursor.at()]) != trailer.fingerprint {
            return Err(corrupt("the list of shards does not have its fingerprint"));
        }
        let origin = cursor.u64()?;
        for shard in &mut shards {
            read_place(&mut cursor, shard, trailer)?;
        }
        cursor.finish()?;
        check_shards(&shards, trailer.samples)?;
        Ok(Self {
            spec: description.format,
            schema: description.schema,
            shards,
            origin,
        })
    }
}

fn read_row(cursor: &mut Cursor<'_>, codecs: &[Codec]) -> Result<Shard> {
    let key_len = usize::from(cursor.u16()?);
    let key = Key::parse(cursor.text_of(key_len)?)?;
    if key.is_root() {
        return Err(cursor.corrupt("a shard without a name"));
    }
    let (stored_bytes, raw_bytes) = (cursor.u64()?, cursor.u64()?);
    let codec = usize::from(cursor.u8()?);
    let Some(codec) = codecs.get(codec).copied() else {
        return Err(cursor.corrupt("a compression that is not in the list"));
    };
    codec.check_sizes(stored_bytes, raw_bytes).map_err(|error| {
        cursor
            .corrupt(&format!("shard {key:?} cannot have such sizes"))
            .with_source(error)
    })?;
    let sha256 = cursor.array()?;
    let samples = cursor.u64()?;
    let group_count = cursor.u32()? as usize;
    if group_count > cursor.left() / 8 {
        return Err(cursor.corrupt("more groups than there is room for"));
    }
    let mut groups = Vec::with_capacity(group_count);
    let mut sum = Some(0u64);
    for _ in 0..group_count {
        let rows = cursor.u64()?;
        sum = sum.and_then(|sum| sum.checked_add(rows));
        groups.push(rows);
    }
    if group_count > 0 && sum != Some(samples) {
        return Err(cursor.corrupt("the groups of a shard have another number of samples than the shard"));
    }
    Ok(Shard {
        key,
        stored_bytes,
        raw_bytes,
        codec,
        sha256,
        samples,
        groups,
        version: 0,
        section: Section {
            span: Span::first(0),
            raw_bytes: 0,
            crc: 0,
        },
    })
}

fn read_place(cursor: &mut Cursor<'_>, shard: &mut Shard, trailer: &Trailer) -> Result<()> {
    shard.version = cursor.u64()?;
    let span = Span::at(cursor.u64()?, cursor.u64()?)?;
    if span.start() < PRELUDE_BYTES || span.end() > trailer.directory.start() {
        return Err(cursor.corrupt("a section lies outside the sections"));
    }
    shard.section = Section {
        span,
        raw_bytes: cursor.u32()?,
        crc: cursor.u32()?,
    };
    shard.section.check()
}

fn check_shards(shards: &[Shard], samples: u64) -> Result<()> {
    let mut keys = HashSet::with_capacity(shards.len());
    if let Some(twice) = shards.iter().find(|shard| !keys.insert(&shard.key)) {
        return Err(corrupt(&format!("shard {:?} is listed twice", twice.key)));
    }
    let mut counts = shards.iter().map(|shard| shard.samples);
    if counts.try_fold(0u64, u64::checked_add) != Some(samples) {
        return Err(corrupt(
            "the shards have another number of samples than the trailer says",
        ));
    }
    Ok(())
}

/// The end of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Trailer {
    file_bytes: u64,
    pub(super) directory: Span,
    shards: u64,
    samples: u64,
    pub(super) fingerprint: [u8; 32],
    crc: u32,
}

impl Trailer {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = TRAILER_MAGIC.to_vec();
        bytes.extend(MANIFEST_FORMAT.to_le_bytes());
        bytes.extend([0; 4]);
        for number in [
            self.file_bytes,
            self.directory.start(),
            self.directory.len(),
            self.shards,
            self.samples,
        ] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.fingerprint);
        bytes.extend(self.crc.to_le_bytes());
        let crc = crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// From the last bytes of a file of `file_bytes`.
    pub(super) fn parse(bytes: &[u8], file_bytes: u64) -> Result<Self> {
        let mut cursor = cursor(bytes, "trailer");
        if cursor.array()? != *TRAILER_MAGIC {
            return Err(corrupt("this is no manifest, or one that was cut off"));
        }
        check_format(cursor.u32()?)?;
        let zero = cursor.u32()?;
        let numbers = [
            cursor.u64()?,
            cursor.u64()?,
            cursor.u64()?,
            cursor.u64()?,
            cursor.u64()?,
        ];
        let [length, directory_start, directory_bytes, shards, samples] = numbers;
        let fingerprint = cursor.array()?;
        let crc = cursor.u32()?;
        let covered = cursor.at();
        let own = cursor.u32()?;
        cursor.finish()?;
        if crc32c(&bytes[..covered]) != own || zero != 0 {
            return Err(corrupt("the end of the manifest does not have its checksum"));
        }
        if length != file_bytes {
            let message = format!("it has {file_bytes} bytes, but was written with {length}");
            return Err(corrupt(&message));
        }
        let directory = Span::at(directory_start, directory_bytes)?;
        if directory.start() < PRELUDE_BYTES || directory.end().checked_add(TRAILER_BYTES) != Some(file_bytes)
        {
            return Err(corrupt("the list of shards lies outside the file"));
        }
        if directory.len() > DIRECTORY_BYTES_MAX {
            let message = format!("a list of shards of {}", ByteSize(directory.len()));
            return Err(limit(&message));
        }
        Ok(Self {
            file_bytes: length,
            directory,
            shards,
            samples,
            fingerprint,
            crc,
        })
    }
}

/// The first bytes of a file.
pub(super) fn prelude() -> Vec<u8> {
    let mut bytes = PRELUDE_MAGIC.to_vec();
    bytes.extend(MANIFEST_FORMAT.to_le_bytes());
    let crc = crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// What lies between the prelude and the sections of a data set that was packed. It is no part of what the data set is, so the same shards have the same
/// fingerprint whoever made their manifest; and whoever does not know it never reads it.
pub(super) fn packed_mark() -> Vec<u8> {
    let mut bytes = PACKED_MAGIC.to_vec();
    bytes.extend(PACKED_VERSION.to_le_bytes());
    let crc = crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// Refuse a file that does not begin like a manifest.
pub(super) fn check_prelude(bytes: &[u8]) -> Result<()> {
    let mut cursor = cursor(bytes, "prelude");
    if cursor.array()? != *PRELUDE_MAGIC {
        return Err(corrupt("this does not begin like a manifest"));
    }
    check_format(cursor.u32()?)?;
    if crc32c(&bytes[..cursor.at()]) == cursor.u32()? {
        return Ok(());
    }
    Err(corrupt(
        "the beginning of the manifest does not have its checksum",
    ))
}

fn check_format(format: u32) -> Result<()> {
    if format == MANIFEST_FORMAT {
        return Ok(());
    }
    let message = format!(
        "this manifest has format {format}, and this version of Forebay knows format {MANIFEST_FORMAT}"
    );
    let hint = if format > MANIFEST_FORMAT {
        "use the version of Forebay that wrote it, or a later one, or write the manifest anew: forebay index --force, with -o where it is not beside its shards"
    } else {
        "no release has written such a format; write the manifest anew: forebay index --force, with -o where it is not beside its shards"
    };
    Err(Error::new(ErrorKind::Unsupported, "read manifest", message).with_hint(hint))
}

/// The first 8 bytes of the SHA-256 of a text; never 0, which means "none".
pub(crate) fn digest_u64(text: &str) -> u64 {
    let hash = sha256(text.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first).max(1)
}

fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

pub(super) fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read manifest", message)
}

fn limit(message: &str) -> Error {
    Error::new(ErrorKind::LimitExceeded, "manifest", message)
}

/// A directory in hostile bytes, with the checksums and lengths that a trailer would have to have; the trailer; the prelude.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    let _ = check_prelude(bytes);
    if let Some(at) = bytes.len().checked_sub(TRAILER_BYTES as usize) {
        let _ = Trailer::parse(&bytes[at..], bytes.len() as u64);
    }
    // The first bytes choose what the checksums hide: the number of shards, of samples, and what the fingerprint covers.
    let Some((head, bytes)) = bytes.split_first_chunk::<12>() else {
        return;
    };
    let [a, b, c, d, samples @ ..] = *head;
    let covered = usize::from(u16::from_le_bytes([c, d])).min(bytes.len());
    let trailer = Trailer {
        file_bytes: 0,
        directory: Span::at(1 << 20, bytes.len() as u64).unwrap_or(Span::first(0)),
        shards: u64::from(u16::from_le_bytes([a, b])),
        samples: u64::from_le_bytes(samples),
        fingerprint: sha256(&bytes[..covered]),
        crc: crc32c(bytes),
    };
    if let Ok(directory) = Directory::parse(bytes, &trailer) {
        // Whoever reads a shard makes room for it by these numbers.
        let mut sizes = directory.shards.iter();
        assert!(sizes.all(|row| row.codec.check_sizes(row.stored_bytes, row.raw_bytes).is_ok()));
        let encoded = directory
            .encode(1 << 20)
            .expect("a directory that was read can be written");
        let at = encoded.len() - TRAILER_BYTES as usize;
        let size = (1 << 20) + encoded.len() as u64;
        let trailer = Trailer::parse(&encoded[at..], size).expect("a trailer that was written can be read");
        // Not the parameters: numbers with many digits do not come back from JSON to the last bit.
        let again =
            Directory::parse(&encoded[..at], &trailer).expect("a directory that was written can be read");
        assert_eq!(
            (again.shards, again.schema, again.origin),
            (directory.shards, directory.schema, directory.origin)
        );
    }
}
