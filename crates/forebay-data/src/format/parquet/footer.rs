//! The footer of a file: found, bounded, looked through, and turned into fields and row groups.
//!
//! ```text
//! last 64 KiB --> length and magic --> (more, where the footer is longer) --> types, schema checked --> library --> File
//! place and checksum that a manifest has --> compared ---------------------------------^
//! ```

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ByteSize, Error, ErrorKind, Key, Ledger, Result, Span, crc32c};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};

use super::known;
use super::partitions::Constant;
use super::thrift::{BINARY, I32, LIST, Reader, STRUCT};
use super::{OP, Parquet};
use crate::format::arrow::{Leaf, contained, decoded_schema, leaves};
use crate::format::petastorm::Packing;
use crate::schema::{Dtype, Field, Kind};
use crate::source::ShardSource;
use crate::table::{self, Footer};

/// Longest footer: 64 MiB describe a million column chunks; the whole of it is held and parsed in memory.
pub const FOOTER_BYTES_MAX: u64 = 64 << 20;

/// Read at once from the end: most footers fit, and one request is saved.
const TAIL_BYTES: u64 = 64 << 10;

/// Deepest nesting of a schema: the library recurses.
const SCHEMA_DEPTH_MAX: usize = 64;

/// Most rows of a row group: pages count in 32 bits, and so do those who index rows.
const ROWS_MAX: u64 = i32::MAX as u64;

/// Length and magic at the end.
const END_BYTES: u64 = 8;

/// Where Forebay's writer leaves the fields.
pub(super) const FIELDS_KEY: &str = "forebay.fields";

/// An open file: its footer, its fields, its row groups.
#[derive(Debug, Clone)]
pub struct File {
    pub(super) metadata: Arc<ParquetMetaData>,
    /// How to decode with 64-bit offsets, and as views.
    pub(super) plain: ArrowReaderMetadata,
    pub(super) views: ArrowReaderMetadata,
    pub(super) leaves: Vec<Leaf>,
    /// Fields behind those of the leaves, which have one value in all rows.
    pub(super) constants: Vec<Constant>,
    /// Of leaves, then of constants.
    fields: Vec<Field>,
    pub(super) groups: Vec<RowGroup>,
    pub(super) footer: Footer,
}

/// A row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowGroup {
    /// All its column chunks.
    pub extent: Span,
    /// Rows.
    pub rows: u64,
    /// Number in the file of its first row.
    pub first: u64,
}

impl File {
    /// Read the footer of a shard.
    pub async fn open(source: &ShardSource, format: &Parquet) -> Result<(Self, Ledger)> {
        let opened = async {
            let (footer, span, ledger) = read_footer(source).await?;
            let file = Self::from_footer(&footer, span, format)?;
            Ok((file.with_partitions(&source.meta().key, format)?, ledger))
        };
        let opened: Result<_> = opened.await;
        opened.map_err(|error| source.name_in(error))
    }

    /// Read a footer that is known from a manifest: it must be the same.
    pub async fn open_known(
        source: &ShardSource,
        format: &Parquet,
        known: &Footer,
    ) -> Result<(Self, Ledger)> {
        let opened = async {
            let (footer, ledger) = read_known(source, known).await?;
            let file = Self::from_footer(&footer, known.extent, format)?;
            Ok((file.with_partitions(&source.meta().key, format)?, ledger))
        };
        let opened: Result<_> = opened.await;
        opened.map_err(|error| source.name_in(error))
    }

    /// From a whole file in memory, which lies in no folder.
    pub fn from_bytes(bytes: &Bytes, columns: Option<&[String]>) -> Result<Self> {
        let footer = footer_span(bytes, bytes.len() as u64)?;
        let body = slice(bytes, footer.relative_to(0))?;
        let format = Parquet {
            columns: columns.map(<[String]>::to_vec),
            ..Parquet::default()
        };
        Self::from_footer(&body, footer, &format)
    }

    fn from_footer(footer: &[u8], span: Span, format: &Parquet) -> Result<Self> {
        known::check(&mut Reader::new(footer), known::FOOTER)?;
        check_schema(footer)?;
        let metadata = contained(OP, "the footer", || {
            Ok(ParquetMetaDataReader::decode_metadata(footer)?)
        })?;
        let metadata = Arc::new(metadata);
        let with_schema = |options| {
            let metadata = Arc::clone(&metadata);
            contained(OP, "the schema", || {
                Ok(ArrowReaderMetadata::try_new(metadata, options)?)
            })
        };
        let inferred = with_schema(ArrowReaderOptions::new())?;
        let schema = inferred.schema();
        let is_partition = |name: &str| format.partitions.have(name);
        let (leaves, found) = leaves(schema, format.columns.as_deref(), &is_partition)?;
        let count = metadata.file_metadata().schema_descr().num_columns();
        if found != count {
            let message = format!("the Arrow schema of the file has {found} columns, the file {count}");
            return Err(corrupt(&message));
        }
        let decoded = |as_views| {
            let schema = Arc::new(decoded_schema(schema, as_views));
            with_schema(ArrowReaderOptions::new().with_schema(schema))
        };
        let (plain, views) = (decoded(false)?, decoded(true)?);
        let groups = groups(&metadata, span.start())?;
        check_together(&metadata, &leaves)?;
        let mut file = Self {
            fields: leaves.iter().map(|leaf| leaf.field.clone()).collect(),
            metadata,
            plain,
            views,
            leaves,
            constants: Vec::new(),
            groups,
            footer: Footer {
                extent: span,
                crc: crc32c(footer),
            },
        };
        file.apply_kept_fields();
        Ok(file)
    }

    /// With the columns that the folders of the shard say. One that the file has itself is the file's.
    fn with_partitions(mut self, key: &Key, format: &Parquet) -> Result<Self> {
        for constant in format.partitions.constants(key)? {
            let name = &constant.field.name;
            let is_wanted = format
                .columns
                .as_ref()
                .is_none_or(|columns| columns.contains(name));
            if is_wanted && !self.fields.iter().any(|field| field.name == *name) {
                self.fields.push(constant.field.clone());
                self.constants.push(constant);
            }
        }
        table::chunks(self.groups.len(), self.fields.len())?;
        Ok(self)
    }

    /// Take kinds that Forebay's writer noted down, where they agree with the bytes.
    fn apply_kept_fields(&mut self) {
        let Some(kept) = self.key_value(FIELDS_KEY) else {
            return;
        };
        let Ok(kept) = serde_json::from_str::<Vec<Field>>(kept) else {
            return;
        };
        for field in &mut self.fields {
            if let Some(known) = kept.iter().find(|known| known.name == field.name)
                && agrees(&known.kind, &field.kind)
            {
                field.kind = known.kind.clone();
                // What Parquet has no type for, such as seconds.
                field.unit = field.unit.or(known.unit);
            }
        }
    }

    /// The value of that key in the key-value metadata.
    pub fn key_value(&self, key: &str) -> Option<&str> {
        let pairs = self.metadata.file_metadata().key_value_metadata()?;
        pairs.iter().find(|pair| pair.key == key)?.value.as_deref()
    }

    /// The fields of its samples.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Give a field another kind than the file does, and say how its values are packed: what Petastorm's schema knows of them.
    pub(crate) fn set_kind(&mut self, index: usize, kind: Kind, packing: Option<Packing>) {
        if let (Some(field), Some(leaf)) = (self.fields.get_mut(index), self.leaves.get_mut(index)) {
            if field.kind != kind {
                field.unit = None;
            }
            field.kind = kind;
            leaf.packing = packing;
        }
    }

    /// Its row groups.
    pub fn groups(&self) -> &[RowGroup] {
        &self.groups
    }

    /// The chunk of leaf column `leaf` in row group `group`, with its place in the file.
    pub(super) fn chunk(&self, group: usize, leaf: usize) -> Result<(&ColumnChunkMetaData, Span)> {
        let chunk = self
            .metadata
            .row_groups()
            .get(group)
            .and_then(|group| group.columns().get(leaf));
        let chunk = chunk.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                OP,
                format!("there is no row group {group}"),
            )
        })?;
        Ok((chunk, chunk_span(chunk)?))
    }

    /// From the first to the last byte of the chunks of a field in a row group.
    pub(super) fn span_of(&self, group: usize, leaf: &Leaf) -> Result<Span> {
        let mut span = self.chunk(group, leaf.index)?.1;
        for index in leaf.index + 1..leaf.index + leaf.count {
            let other = self.chunk(group, index)?.1;
            span = Span::new(span.start().min(other.start()), span.end().max(other.end()))?;
        }
        Ok(span)
    }
}

/// Fields of several chunks are read and summed up as one stretch of bytes: refuse those whose chunks have others between them, which no writer is known to do.
fn check_together(metadata: &ParquetMetaData, leaves: &[Leaf]) -> Result<()> {
    let several: Vec<&Leaf> = leaves.iter().filter(|leaf| leaf.count > 1).collect();
    if several.is_empty() {
        return Ok(());
    }
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let mut order = (0..group.columns().len())
            .map(|column| Ok((chunk_span(group.column(column))?.start(), column)))
            .collect::<Result<Vec<_>>>()?;
        order.sort_unstable();
        let mut places = vec![0; order.len()];
        for (place, (_, column)) in order.iter().enumerate() {
            places[*column] = place;
        }
        for leaf in &several {
            let own = places
                .get(leaf.index..leaf.index + leaf.count)
                .unwrap_or_default();
            let (first, last) = (own.iter().min(), own.iter().max());
            if last
                .zip(first)
                .is_none_or(|(last, first)| last - first + 1 != leaf.count)
            {
                let name = leaf.field.name.escape_debug();
                let message = format!("the parts of column '{name}' have others between them");
                return Err(in_group(Error::new(ErrorKind::Unsupported, OP, message), number));
            }
        }
    }
    Ok(())
}

/// The footer of a shard and where it lies.
async fn read_footer(source: &ShardSource) -> Result<(Bytes, Span, Ledger)> {
    let size = source.size();
    let tail = Span::new(size.saturating_sub(TAIL_BYTES), size)?;
    let (bytes, mut ledger) = source.read(tail).await?;
    let span = footer_span(&bytes, size)?;
    if span.start() >= tail.start() {
        return Ok((slice(&bytes, span.relative_to(tail.start()))?, span, ledger));
    }
    let (bytes, read) = source.read(span).await?;
    ledger.merge(&read);
    Ok((bytes, span, ledger))
}

/// The footer of a shard that a manifest knows: the end of the file, which has no checksum, is not asked where it is.
async fn read_known(source: &ShardSource, known: &Footer) -> Result<(Bytes, Ledger)> {
    let extent = known.extent;
    if extent.len() > FOOTER_BYTES_MAX {
        return Err(too_long(extent.len()));
    }
    let changed = |what: &str| {
        let message = format!("its footer at byte {} {what}", extent.start());
        corrupt(&message).with_hint(
            "forebay verify names every damage; a file that was written anew is to be indexed again",
        )
    };
    if extent.end() > source.size() {
        return Err(changed("ends beyond the file"));
    }
    let (bytes, ledger) = source.read(extent).await?;
    if bytes.len() as u64 != extent.len() || crc32c(&bytes) != known.crc {
        return Err(changed("does not have the checksum of the manifest"));
    }
    Ok((bytes, ledger))
}

/// The value of a key in the key-value metadata of a shard, which need not be text. The library insists on text, and refuses files
/// where it is none.
pub(crate) async fn footer_key_value(source: &ShardSource, key: &str) -> Result<(Option<Vec<u8>>, Ledger)> {
    let found = async {
        let (footer, _, ledger) = read_footer(source).await?;
        Ok((find_key_value(&footer, key)?, ledger))
    };
    let found: Result<_> = found.await;
    found.map_err(|error| source.name_in(error))
}

/// FileMetaData { 5: [KeyValue { 1: key, 2: value }, ...] }
pub(super) fn find_key_value(footer: &[u8], key: &str) -> Result<Option<Vec<u8>>> {
    let mut reader = Reader::new(footer);
    let mut before = 0;
    while let Some(tag) = reader.field(before)? {
        before = tag.id;
        if (tag.id, tag.kind) != (5, LIST) {
            reader.skip(tag.kind)?;
            continue;
        }
        let (count, _) = reader.list()?;
        for _ in 0..count {
            let (mut name, mut value) = (None, None);
            let mut before = 0;
            while let Some(tag) = reader.field(before)? {
                match (tag.id, tag.kind) {
                    (1, BINARY) => name = Some(reader.binary()?),
                    (2, BINARY) => value = Some(reader.binary()?),
                    (_, kind) => reader.skip(kind)?,
                }
                before = tag.id;
            }
            if name == Some(key.as_bytes()) {
                return Ok(value.map(<[u8]>::to_vec));
            }
        }
    }
    Ok(None)
}

/// A footer that nothing else has looked at.
#[cfg(fuzzing)]
pub(crate) fn fuzz(footer: &[u8]) {
    if let Ok(Some(value)) = find_key_value(footer, "k") {
        assert!(value.len() < footer.len());
    }
}

/// Whether bytes of kind `plain` (from the file alone) can be of kind `known` (from the writer's note).
fn agrees(known: &Kind, plain: &Kind) -> bool {
    match (known, plain) {
        // What only a schema of Arrow can say.
        (known, _) if known.is_no_items() => false,
        (Kind::Text | Kind::Json | Kind::Decimal, Kind::Text)
        | (Kind::Bytes | Kind::Image | Kind::Varints | Kind::Encoded { .. }, Kind::Bytes) => true,
        (Kind::List { dtype }, Kind::Bytes) => *dtype == Dtype::Bfloat16,
        (
            Kind::Array { .. },
            Kind::Array {
                dtype: Dtype::Uint8,
                shape,
            },
        ) if !shape.is_empty() => known.fixed_bytes() == plain.fixed_bytes(),
        (known, plain) => known == plain,
    }
}

fn slice(bytes: &Bytes, range: Range<usize>) -> Result<Bytes> {
    match bytes.get(range.clone()) {
        Some(_) => Ok(bytes.slice(range)),
        None => Err(corrupt("the footer lies outside of the file")),
    }
}

/// Where the footer is, from the last bytes of a file.
fn footer_span(tail: &[u8], size: u64) -> Result<Span> {
    let end = tail.last_chunk::<8>().filter(|_| size >= 4 + END_BYTES);
    let Some([a, b, c, d, magic @ ..]) = end else {
        return Err(corrupt("it is too short to be a Parquet file"));
    };
    match magic {
        b"PAR1" => {}
        b"PARE" => {
            let message = "its footer is encrypted (PARE)";
            return Err(Error::new(ErrorKind::Unsupported, OP, message)
                .with_hint("write the file without modular encryption"));
        }
        _ => {
            return Err(corrupt("it does not end with PAR1")
                .with_hint("the file is cut off, or it is not a Parquet file"));
        }
    }
    let len = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if len > FOOTER_BYTES_MAX {
        return Err(too_long(len));
    }
    let end = size - END_BYTES;
    match end.checked_sub(len) {
        Some(start) if start >= 4 => Span::new(start, end),
        _ => Err(corrupt("its footer is longer than the file")),
    }
}

/// Refuse schemas that would make the library allocate or recurse without end: more children than elements, nesting without bound.
fn check_schema(footer: &[u8]) -> Result<()> {
    let mut reader = Reader::new(footer);
    let mut before = 0;
    while let Some(tag) = reader.field(before)? {
        if (tag.id, tag.kind) == (2, LIST) {
            return check_elements(&mut reader);
        }
        reader.skip(tag.kind)?;
        before = tag.id;
    }
    Err(corrupt("its footer has no schema"))
}

fn check_elements(reader: &mut Reader<'_>) -> Result<()> {
    let (count, kind) = reader.list()?;
    if kind != STRUCT {
        return Err(corrupt("its schema is not a list of elements"));
    }
    // How many children each group still waits for, from the outside in.
    let mut open: Vec<u64> = Vec::new();
    for index in 0..count {
        let mut children = 0;
        let mut before = 0;
        while let Some(tag) = reader.field(before)? {
            match (tag.id, tag.kind) {
                (5, I32) => children = u64::try_from(reader.i32()?).unwrap_or(u64::MAX),
                (_, kind) => reader.skip(kind)?,
            }
            before = tag.id;
        }
        if children > (count - index) as u64 {
            return Err(corrupt(
                "a group of its schema has more children than the schema has elements",
            ));
        }
        if let Some(waiting) = open.last_mut() {
            *waiting = waiting.saturating_sub(1);
        }
        if children > 0 {
            open.push(children);
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if open.len() > SCHEMA_DEPTH_MAX {
            let message = format!("its schema is nested deeper than {SCHEMA_DEPTH_MAX} levels");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message));
        }
    }
    Ok(())
}

fn groups(metadata: &ParquetMetaData, data_bytes: u64) -> Result<Vec<RowGroup>> {
    let columns = metadata.file_metadata().schema_descr().num_columns();
    table::chunks(metadata.num_row_groups(), columns)?;
    let mut groups = Vec::new();
    let (mut first, mut end) = (0u64, 4);
    for (index, group) in metadata.row_groups().iter().enumerate() {
        let named = |error: Error| in_group(error, index);
        if group.columns().len() != columns {
            return Err(named(corrupt("it has another number of columns than the schema")));
        }
        let (extent, rows) = extent_of(group, end).map_err(named)?;
        if extent.start() < end || extent.end() > data_bytes {
            return Err(named(corrupt(
                "its bytes lie outside of the data of the file, or over those of the row group before",
            )));
        }
        groups.push(RowGroup { extent, rows, first });
        end = extent.end();
        first = first
            .checked_add(rows)
            .ok_or_else(|| named(corrupt("more rows than can be counted")))?;
    }
    Ok(groups)
}

fn extent_of(group: &RowGroupMetaData, empty_at: u64) -> Result<(Span, u64)> {
    let rows = u64::try_from(group.num_rows())
        .ok()
        .filter(|rows| *rows <= ROWS_MAX);
    let rows = rows.ok_or_else(|| corrupt("it has an impossible number of rows"))?;
    let mut spans = Vec::with_capacity(group.columns().len());
    for chunk in group.columns() {
        if chunk.file_path().is_some_and(|path| !path.is_empty()) {
            let message = "its columns lie in another file";
            return Err(Error::new(ErrorKind::Unsupported, OP, message));
        }
        spans.push(chunk_span(chunk)?);
    }
    let extent = extent_of_disjoint(spans)?;
    Ok((extent.map_or_else(|| Span::at(empty_at, 0), Ok)?, rows))
}

/// From the first byte of some chunks to the last. None may lie over another: a byte would be summed up, and decoded, as often as a footer likes.
fn extent_of_disjoint(mut spans: Vec<Span>) -> Result<Option<Span>> {
    spans.sort_unstable_by_key(|span| (span.start(), span.end()));
    let mut extent: Option<Span> = None;
    for span in spans {
        extent = Some(match extent {
            None => span,
            Some(extent) if span.is_empty() || span.start() >= extent.end() => {
                Span::new(extent.start(), extent.end().max(span.end()))?
            }
            Some(_) => {
                let message = format!("its column chunks lie over each other at byte {}", span.start());
                return Err(corrupt(&message));
            }
        });
    }
    Ok(extent)
}

fn chunk_span(chunk: &ColumnChunkMetaData) -> Result<Span> {
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let (start, len) = (u64::try_from(start), u64::try_from(chunk.compressed_size()));
    match (start, len) {
        (Ok(start), Ok(len)) => Span::at(start, len),
        _ => Err(corrupt("a column chunk at an impossible place")),
    }
}

fn too_long(len: u64) -> Error {
    let message = format!(
        "a footer of {}; {} are allowed",
        ByteSize(len),
        ByteSize(FOOTER_BYTES_MAX)
    );
    Error::new(ErrorKind::LimitExceeded, OP, message)
}

/// Say of which row group an error speaks.
pub(super) fn in_group(error: Error, group: usize) -> Error {
    error.within(format_args!("row group {group}"))
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, OP, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fuzzer found: the library counts to two thousand million in a list of ten bytes.
    #[test]
    fn footers_that_lie_about_types_are_refused_at_once() {
        let huge = [0xf1, 0xff, 0xff, 0xff, 0xff, 0x07];
        // A field that nobody knows: in the footer, in an element of the schema, behind a version that says it is a struct, where the library reads a number.
        // At last an order of columns that is a number, where the library takes two bytes of it for empty structs and goes on with the rest.
        let footers = [
            ("longer than", [&[0x09, 0x50][..], &huge, &[0]].concat()),
            (
                "longer than",
                [&[0x29, 0x1c, 0x09, 0x50][..], &huge, &[0, 0]].concat(),
            ),
            (
                "another type",
                [&[0x1c, 0x00, 0x09, 0x50][..], &huge, &[0]].concat(),
            ),
            (
                "another type",
                [&[0x79, 0x1c, 0x27, 0, 0, 0x09, 0x50][..], &huge, &[0, 0]].concat(),
            ),
        ];
        for (why, footer) in footers {
            let end = [&(footer.len() as u32).to_le_bytes()[..], b"PAR1"].concat();
            let bytes = Bytes::from([b"PAR1", &footer[..], &end].concat());
            let error = File::from_bytes(&bytes, None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.message().contains(why), "{error}");
        }
    }

    #[test]
    fn parts_of_one_column_must_lie_together() {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../fixtures/parquet/nested.parquet"
        );
        let file = File::from_bytes(&std::fs::read(path).unwrap().into(), None).unwrap();
        let metadata = (*file.metadata).clone();
        check_together(&metadata, &file.leaves).unwrap();
        let mut group = metadata.row_group(1).clone().into_builder();
        let mut columns = metadata.row_group(1).columns().to_vec();
        // The keys of the map go where the first column is.
        let map = file.leaves.iter().find(|leaf| leaf.count == 2).unwrap();
        let (first, keys) = (columns[0].clone(), columns[map.index].clone());
        let at = |chunk: &ColumnChunkMetaData, offset: i64| {
            let chunk = chunk.clone().into_builder().set_dictionary_page_offset(None);
            chunk.set_data_page_offset(offset).build().unwrap()
        };
        columns[0] = at(&first, chunk_span(&keys).unwrap().start() as i64);
        columns[map.index] = at(&keys, chunk_span(&first).unwrap().start() as i64);
        group = group.set_column_metadata(columns);
        let groups = vec![metadata.row_group(0).clone(), group.build().unwrap()];
        let moved = metadata.into_builder().set_row_groups(groups).build();
        let error = check_together(&moved, &file.leaves).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(
            error.message().contains("row group 1: the parts of column 'map'"),
            "{error}"
        );
    }

    #[test]
    fn chunks_must_not_lie_over_each_other() {
        let span = |start, len| Span::at(start, len).unwrap();
        let extent = |spans: &[Span]| extent_of_disjoint(spans.to_vec());
        assert_eq!(extent(&[]).unwrap(), None);
        let apart = [span(30, 5), span(4, 10), span(14, 10), span(20, 0), span(14, 0)];
        assert_eq!(extent(&apart).unwrap(), Some(span(4, 31)));
        for over in [
            [span(4, 10), span(13, 1)],
            [span(4, 10), span(4, 10)],
            [span(4, 10), span(4, 3)],
        ] {
            let error = extent(&over).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains("over each other at byte"), "{error}");
        }
    }
}
