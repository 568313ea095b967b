//! From the Arrow schema of a file to fields: which leaf column becomes which field.
//!
//! The schema of a Parquet file is the one the library infers, types of an embedded Arrow schema included. Two variants of it are asked for when
//! decoding: in both, dictionaries are undone; bytes and text have 64-bit offsets (copied once into one
//! buffer) in the one, and are views (a dictionary entry that stands in many rows is not repeated in memory) in the other.
//!
//! What has no kind of its own (maps, lists of text, of lists, of structs) becomes JSON, of all leaf columns it is made of.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_schema::{DataType, Field as ArrowField, Fields, Schema as ArrowSchema, TimeUnit};
use forebay_core::{Error, ErrorKind, Result};

use super::OP;
use crate::format::petastorm::Packing;
use crate::schema::{Dtype, Field, Kind, Tick, Unit};
use crate::table::FIELDS_MAX;

/// Most digits of a decimal that fits 64 bits whatever they are.
pub(in crate::format) const DECIMAL_DIGITS_MAX: u8 = 18;

/// Longest name of a field, the names of the structs around it included: a name stands in front of all members, however many there are.
const NAME_BYTES_MAX: usize = 4 << 10;

/// What intervals are called. Nothing reads them: the library gives a part of each only.
const INTERVAL: &str = "parquet:interval";

/// A leaf column of the file that is a field, or several that are one together.
#[derive(Debug, Clone)]
pub(in crate::format) struct Leaf {
    /// The field.
    pub(in crate::format) field: Field,
    /// Number among the leaf columns of the file; the first, where there are several.
    pub(in crate::format) index: usize,
    /// How many leaf columns it is made of.
    pub(in crate::format) count: usize,
    /// Its values are written as JSON.
    pub(in crate::format) is_json: bool,
    /// Its Arrow type, as it is decoded (without the structs around it).
    pub(in crate::format) data_type: DataType,
    /// Whether there are lists around or in it: then values and rows are not the same number.
    pub(in crate::format) is_repeated: bool,
    /// Arrays that its bytes hold, where something else than the file says so.
    pub(in crate::format) packing: Option<Packing>,
}

/// The fields of a file: all of them, or those of that name (a name of a struct means all its members), of which the file may lack those that `is_elsewhere`.
/// Also how many leaf columns there are, with those that are no field.
pub(in crate::format) fn leaves(
    schema: &ArrowSchema,
    wanted: Option<&[String]>,
    is_elsewhere: &dyn Fn(&str) -> bool,
) -> Result<(Vec<Leaf>, usize)> {
    let mut walk = Walk {
        wanted,
        found: HashSet::new(),
        leaves: Vec::new(),
        next: 0,
    };
    for field in schema.fields() {
        walk.visit(field, "")?;
    }
    for name in wanted.unwrap_or_default() {
        if !walk.found.contains(name.as_str()) && !is_elsewhere(name) {
            return Err(no_such_column(name, schema));
        }
    }
    let mut names = HashSet::new();
    for leaf in &walk.leaves {
        if !names.insert(leaf.field.name.as_str()) {
            let message = format!("two columns are called '{}'", leaf.field.name.escape_debug());
            return Err(Error::new(ErrorKind::Unsupported, OP, message));
        }
    }
    Ok((walk.leaves, walk.next))
}

struct Walk<'a> {
    wanted: Option<&'a [String]>,
    found: HashSet<&'a str>,
    leaves: Vec<Leaf>,
    next: usize,
}

impl Walk<'_> {
    fn visit(&mut self, field: &ArrowField, prefix: &str) -> Result<()> {
        let name = match prefix {
            "" => field.name().clone(),
            _ => format!("{prefix}.{}", field.name()),
        };
        let name = self.within(name)?;
        if let DataType::Struct(members) = field.data_type() {
            for member in members {
                self.visit(member, &name)?;
            }
            return Ok(());
        }
        let (index, count) = (self.next, leaf_count(field.data_type()));
        self.next += count;
        // A column of nulls alone has no values that could be of any kind; where other shards have some, theirs counts.
        if !self.is_wanted(&name) || *field.data_type() == DataType::Null {
            return Ok(());
        }
        if self.leaves.len() == FIELDS_MAX {
            let message = format!("more columns than {FIELDS_MAX}, which a shard may have");
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message)
                .with_hint("name the columns that are needed"));
        }
        let data_type = decoded(field.data_type(), false);
        let kind = kind_of(&data_type);
        // Lists of one size have items, if only nulls.
        let json = match field.data_type() {
            DataType::List(item) | DataType::LargeList(item) if *item.data_type() == DataType::Null => {
                Kind::no_items()
            }
            _ => Kind::Json,
        };
        self.leaves.push(Leaf {
            is_json: kind.is_none(),
            field: Field::new(name, kind.unwrap_or(json)).counting(unit_of(&data_type)),
            index,
            count,
            is_repeated: matches!(
                data_type,
                DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) | DataType::Map(..)
            ),
            data_type,
            packing: None,
        });
        Ok(())
    }

    /// A name that is not too long. One that is and that nobody asks for becomes the beginning of it: nobody asks for what is within it either.
    fn within(&mut self, mut name: String) -> Result<String> {
        if name.len() <= NAME_BYTES_MAX {
            return Ok(name);
        }
        if self.is_wanted(&name) {
            let message = format!(
                "the name of a column has {} bytes; {NAME_BYTES_MAX} are allowed",
                name.len()
            );
            return Err(Error::new(ErrorKind::LimitExceeded, OP, message)
                .with_hint("give the columns shorter names, or name those that are needed"));
        }
        let end = (0..=NAME_BYTES_MAX).rfind(|end| name.is_char_boundary(*end));
        name.truncate(end.unwrap_or(0));
        Ok(name)
    }

    fn is_wanted(&mut self, name: &str) -> bool {
        let Some(wanted) = self.wanted else {
            return true;
        };
        let mut is_wanted = false;
        for asked in wanted {
            let within = name
                .strip_prefix(asked.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            if within {
                self.found.insert(asked);
                is_wanted = true;
            }
        }
        is_wanted
    }
}

/// Leaf columns of a type.
fn leaf_count(data_type: &DataType) -> usize {
    match data_type {
        DataType::Struct(members) => members.iter().map(|member| leaf_count(member.data_type())).sum(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => leaf_count(item.data_type()),
        _ => 1,
    }
}

/// What values of a type become; `None` where there is no word for them but JSON.
fn kind_of(data_type: &DataType) -> Option<Kind> {
    let array = |dtype, shape| Kind::Array { dtype, shape };
    Some(match data_type {
        DataType::LargeUtf8 => Kind::Text,
        DataType::LargeBinary => Kind::Bytes,
        DataType::FixedSizeBinary(len) => array(Dtype::Uint8, vec![u64::try_from(*len).ok()?]),
        DataType::FixedSizeList(item, len) => {
            array(dtype_of(item.data_type())?, vec![u64::try_from(*len).ok()?])
        }
        DataType::List(item) | DataType::LargeList(item) => Kind::List {
            dtype: dtype_of(item.data_type())?,
        },
        DataType::Decimal128(digits, scale) if *digits > DECIMAL_DIGITS_MAX => Kind::Encoded {
            encoding: format!("decimal128:{digits},{scale}"),
        },
        DataType::Decimal256(digits, scale) => Kind::Encoded {
            encoding: format!("decimal256:{digits},{scale}"),
        },
        DataType::Decimal128(..) => array(Dtype::Int64, Vec::new()),
        DataType::Interval(_) => Kind::Encoded {
            encoding: INTERVAL.to_owned(),
        },
        other => array(dtype_of(other)?, Vec::new()),
    })
}

/// What the integers that values become count.
fn unit_of(data_type: &DataType) -> Option<Unit> {
    let tick = |unit: &TimeUnit| match unit {
        TimeUnit::Second => Tick::Second,
        TimeUnit::Millisecond => Tick::Milli,
        TimeUnit::Microsecond => Tick::Micro,
        TimeUnit::Nanosecond => Tick::Nano,
    };
    Some(match data_type {
        DataType::Date32 => Unit::Date,
        DataType::Date64 => Unit::Timestamp {
            tick: Tick::Milli,
            is_utc: false,
        },
        DataType::Time32(unit) | DataType::Time64(unit) => Unit::Time(tick(unit)),
        DataType::Timestamp(unit, zone) => Unit::Timestamp {
            tick: tick(unit),
            is_utc: zone.is_some(),
        },
        DataType::Duration(unit) => Unit::Duration(tick(unit)),
        DataType::Decimal128(digits, scale) if *digits <= DECIMAL_DIGITS_MAX => Unit::Decimal {
            digits: *digits,
            scale: u8::try_from(*scale).ok()?,
        },
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            dtype_of(item.data_type())?;
            return unit_of(item.data_type());
        }
        _ => return None,
    })
}

/// The type of numbers that values of a fixed width are.
pub(in crate::format) fn dtype_of(data_type: &DataType) -> Option<Dtype> {
    Some(match data_type {
        DataType::Boolean => Dtype::Bool,
        DataType::Int8 => Dtype::Int8,
        DataType::Int16 => Dtype::Int16,
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => Dtype::Int32,
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_) => Dtype::Int64,
        DataType::UInt8 => Dtype::Uint8,
        DataType::UInt16 => Dtype::Uint16,
        DataType::UInt32 => Dtype::Uint32,
        DataType::UInt64 => Dtype::Uint64,
        DataType::Float16 => Dtype::Float16,
        DataType::Float32 => Dtype::Float32,
        DataType::Float64 => Dtype::Float64,
        _ => return None,
    })
}

/// The schema to decode with; bytes and text as views or with 64-bit offsets.
pub(in crate::format) fn decoded_schema(schema: &ArrowSchema, as_views: bool) -> ArrowSchema {
    ArrowSchema::new_with_metadata(
        decoded_fields(schema.fields(), as_views),
        schema.metadata().clone(),
    )
}

fn decoded_fields(fields: &Fields, as_views: bool) -> Fields {
    fields
        .iter()
        .map(|field| decoded_field(field, as_views))
        .collect()
}

fn decoded_field(field: &ArrowField, as_views: bool) -> Arc<ArrowField> {
    let data_type = decoded(field.data_type(), as_views);
    Arc::new(field.clone().with_data_type(data_type))
}

fn decoded(data_type: &DataType, as_views: bool) -> DataType {
    match data_type {
        DataType::Struct(members) => DataType::Struct(decoded_fields(members, as_views)),
        DataType::FixedSizeList(item, len) => match item_field(item, as_views) {
            item if dtype_of(item.data_type()).is_some() => DataType::FixedSizeList(item, *len),
            item => DataType::List(item),
        },
        other => decoded_item(other, as_views),
    }
}

/// The same within a list or map. Lists of one size are lists of any there: the library would give a null among them all the values that it does not have, as many as
/// the file likes.
fn decoded_item(data_type: &DataType, as_views: bool) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => decoded_item(values, as_views),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View if as_views => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView if as_views => DataType::BinaryView,
        DataType::Utf8 | DataType::Utf8View => DataType::LargeUtf8,
        DataType::Binary | DataType::BinaryView => DataType::LargeBinary,
        DataType::Decimal32(digits, scale) | DataType::Decimal64(digits, scale) => {
            DataType::Decimal128(*digits, *scale)
        }
        DataType::Decimal256(digits, scale) if *digits <= 38 => DataType::Decimal128(*digits, *scale),
        DataType::Struct(members) => {
            let members = members.iter().map(|member| item_field(member, as_views));
            DataType::Struct(members.collect())
        }
        DataType::List(item) | DataType::FixedSizeList(item, _) => DataType::List(item_field(item, as_views)),
        DataType::LargeList(item) | DataType::ListView(item) | DataType::LargeListView(item) => {
            DataType::LargeList(item_field(item, as_views))
        }
        DataType::Map(entries, is_sorted) => DataType::Map(item_field(entries, as_views), *is_sorted),
        other => other.clone(),
    }
}

fn item_field(field: &ArrowField, as_views: bool) -> Arc<ArrowField> {
    let data_type = decoded_item(field.data_type(), as_views);
    Arc::new(field.clone().with_data_type(data_type))
}

fn no_such_column(name: &str, schema: &ArrowSchema) -> Error {
    let known: Vec<&str> = schema
        .fields()
        .iter()
        .take(20)
        .map(|field| field.name().as_str())
        .collect();
    let message = format!("there is no column '{}'", name.escape_debug());
    Error::new(ErrorKind::InvalidInput, OP, message)
        .with_field(name)
        .with_hint(format!("there are: {}", known.join(", ").escape_debug()))
}
