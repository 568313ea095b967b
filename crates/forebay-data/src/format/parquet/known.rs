//! The types of what footers and page headers are known to hold.
//!
//! The Parquet library goes by the numbers of fields and believes their types, and steps over lists of truth values without a byte for each: a footer that lies
//! about a type leads it to a list of two thousand million elements that is ten bytes long. A header that passes here is read by the library as it was read
//! here, every step of which takes a byte. So the tables have all that the library knows (version 60); with a later one they are to be compared again.

use forebay_core::{Error, ErrorKind, Result};

use super::OP;
use super::thrift::{BINARY, BYTE, DOUBLE, FALSE, I16, I32, I64, LIST, Reader, STRUCT, TRUE};

/// What a field or an element must be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Known {
    /// In the tag of its field.
    Bool,
    /// Of one type.
    Value(u8),
    Struct(&'static Fields),
    List(&'static Known),
}

/// Fields of a struct by their numbers; others may be there, and are stepped over.
pub(super) type Fields = [(i16, Known)];

use Known::{Bool, List, Struct, Value};

/// `FileMetaData`.
pub(super) const FOOTER: &Fields = &[
    (1, Value(I32)),
    (2, List(&Struct(ELEMENT))),
    (3, Value(I64)),
    (4, List(&Struct(GROUP))),
    (5, List(&Struct(PAIR))),
    (6, Value(BINARY)),
    (7, List(&Struct(ORDER))),
    (8, Struct(&[])),
    (9, Value(BINARY)),
];

/// `PageHeader`.
pub(super) const PAGE: &Fields = &[
    (1, Value(I32)),
    (2, Value(I32)),
    (3, Value(I32)),
    (4, Value(I32)),
    (5, Struct(DATA_PAGE)),
    (6, Struct(&[])),
    (7, Struct(DICTIONARY_PAGE)),
    (8, Struct(DATA_PAGE_V2)),
];

const DATA_PAGE: &Fields = &[
    (1, Value(I32)),
    (2, Value(I32)),
    (3, Value(I32)),
    (4, Value(I32)),
    (5, Struct(STATISTICS)),
];

const DICTIONARY_PAGE: &Fields = &[(1, Value(I32)), (2, Value(I32)), (3, Bool)];

const DATA_PAGE_V2: &Fields = &[
    (1, Value(I32)),
    (2, Value(I32)),
    (3, Value(I32)),
    (4, Value(I32)),
    (5, Value(I32)),
    (6, Value(I32)),
    (7, Bool),
    (8, Struct(STATISTICS)),
];

/// `SchemaElement`.
const ELEMENT: &Fields = &[
    (1, Value(I32)),
    (2, Value(I32)),
    (3, Value(I32)),
    (4, Value(BINARY)),
    (5, Value(I32)),
    (6, Value(I32)),
    (7, Value(I32)),
    (8, Value(I32)),
    (9, Value(I32)),
    (10, Struct(LOGICAL)),
];

/// `LogicalType`: one of these.
const LOGICAL: &Fields = &[
    (1, Struct(&[])),
    (2, Struct(&[])),
    (3, Struct(&[])),
    (4, Struct(&[])),
    (5, Struct(&[(1, Value(I32)), (2, Value(I32))])),
    (6, Struct(&[])),
    (7, Struct(TIME)),
    (8, Struct(TIME)),
    (10, Struct(&[(1, Value(BYTE)), (2, Bool)])),
    (11, Struct(&[])),
    (12, Struct(&[])),
    (13, Struct(&[])),
    (14, Struct(&[])),
    (15, Struct(&[])),
    (16, Struct(&[(1, Value(BYTE))])),
    (17, Struct(&[(1, Value(BINARY))])),
    (18, Struct(&[(1, Value(BINARY)), (2, Value(I32))])),
    (19, Struct(&[])),
];

/// `TimeType` and `TimestampType`: whether it is in UTC, and the unit, one of three empty structs.
const TIME: &Fields = &[
    (1, Bool),
    (2, Struct(&[(1, Struct(&[])), (2, Struct(&[])), (3, Struct(&[]))])),
];

/// `RowGroup`.
const GROUP: &Fields = &[
    (1, List(&Struct(CHUNK))),
    (2, Value(I64)),
    (3, Value(I64)),
    (4, List(&Struct(&[(1, Value(I32)), (2, Bool), (3, Bool)]))),
    (5, Value(I64)),
    (6, Value(I64)),
    (7, Value(I16)),
];

/// `ColumnChunk`.
const CHUNK: &Fields = &[
    (1, Value(BINARY)),
    (2, Value(I64)),
    (3, Struct(COLUMN)),
    (4, Value(I64)),
    (5, Value(I32)),
    (6, Value(I64)),
    (7, Value(I32)),
    (8, Struct(&[])),
    (9, Value(BINARY)),
];

/// `ColumnMetaData`.
const COLUMN: &Fields = &[
    (1, Value(I32)),
    (2, List(&Value(I32))),
    (3, List(&Value(BINARY))),
    (4, Value(I32)),
    (5, Value(I64)),
    (6, Value(I64)),
    (7, Value(I64)),
    (8, List(&Struct(PAIR))),
    (9, Value(I64)),
    (10, Value(I64)),
    (11, Value(I64)),
    (12, Struct(STATISTICS)),
    (
        13,
        List(&Struct(&[(1, Value(I32)), (2, Value(I32)), (3, Value(I32))])),
    ),
    (14, Value(I64)),
    (15, Value(I32)),
    (16, Struct(SIZES)),
    (17, Struct(&[(1, Struct(BOX)), (2, List(&Value(I32)))])),
];

const STATISTICS: &Fields = &[
    (1, Value(BINARY)),
    (2, Value(BINARY)),
    (3, Value(I64)),
    (4, Value(I64)),
    (5, Value(BINARY)),
    (6, Value(BINARY)),
    (7, Bool),
    (8, Bool),
    (9, Value(I64)),
];

/// `SizeStatistics`.
const SIZES: &Fields = &[(1, Value(I64)), (2, List(&Value(I64))), (3, List(&Value(I64)))];

/// `BoundingBox`.
const BOX: &Fields = &[
    (1, Value(DOUBLE)),
    (2, Value(DOUBLE)),
    (3, Value(DOUBLE)),
    (4, Value(DOUBLE)),
    (5, Value(DOUBLE)),
    (6, Value(DOUBLE)),
    (7, Value(DOUBLE)),
    (8, Value(DOUBLE)),
];

/// `KeyValue`.
const PAIR: &Fields = &[(1, Value(BINARY)), (2, Value(BINARY))];

/// `ColumnOrder`: one of these.
const ORDER: &Fields = &[(1, Struct(&[])), (2, Struct(&[])), (3, Struct(&[]))];

/// Go through a struct: what is known must have its type, and everything must end.
pub(super) fn check(reader: &mut Reader<'_>, fields: &Fields) -> Result<()> {
    let mut before = 0;
    while let Some(tag) = reader.field(before)? {
        match fields.iter().find(|(id, _)| *id == tag.id) {
            Some((_, known)) if known.is(tag.kind) => known.check(reader)?,
            Some(_) => return Err(other_type()),
            None => reader.skip(tag.kind)?,
        }
        before = tag.id;
    }
    Ok(())
}

impl Known {
    fn is(self, kind: u8) -> bool {
        match self {
            Bool => matches!(kind, TRUE | FALSE),
            Value(own) => kind == own,
            Struct(_) => kind == STRUCT,
            List(_) => kind == LIST,
        }
    }

    fn check(self, reader: &mut Reader<'_>) -> Result<()> {
        match self {
            Bool => Ok(()),
            Value(kind) => reader.skip(kind),
            Struct(fields) => check(reader, fields),
            List(element) => {
                let (len, kind) = reader.list()?;
                // An empty list may be of any type, and is, in files of some writers.
                if len > 0 && !element.is(kind) {
                    return Err(other_type());
                }
                (0..len).try_for_each(|_| element.check(reader))
            }
        }
    }
}

fn other_type() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        OP,
        "a field of a header has another type than it must have",
    )
}
