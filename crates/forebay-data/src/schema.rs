//! What fields a sample has, and what their bytes mean.
//!
//! A format knows some of it (the encodings of MDS, the columns of Parquet) or nothing (a tar knows names only). What it knows is kept as a
//! [`Kind`]; it decides whether a field of a batch is one array `[B, ...]` or a ragged one, and what decoding on demand can do with it.

mod unit;

use std::fmt;

use forebay_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

pub use unit::{Tick, Unit};

/// Type of the elements of an array, little-endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are numpy's")]
pub enum Dtype {
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Float16,
    Bfloat16,
    Float32,
    Float64,
}

impl Dtype {
    /// Every type.
    pub const ALL: &'static [Self] = &[
        Self::Bool,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Float16,
        Self::Bfloat16,
        Self::Float32,
        Self::Float64,
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::Int8 | Self::Uint8 => 1,
            Self::Int16 | Self::Uint16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
        }
    }

    /// Its name in numpy (`bfloat16`: in ml_dtypes).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int8 => "int8",
            Self::Int16 => "int16",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Uint8 => "uint8",
            Self::Uint16 => "uint16",
            Self::Uint32 => "uint32",
            Self::Uint64 => "uint64",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Float32 => "float32",
            Self::Float64 => "float64",
        }
    }

    /// The type of that numpy name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.name() == name)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the bytes of a field mean.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Kind {
    /// Anything; the format does not say.
    Bytes,
    /// UTF-8.
    Text,
    /// UTF-8 JSON.
    Json,
    /// A number as ASCII text (labels in tars, `str_int` and its like in MDS).
    Decimal,
    /// Values of one shape in every sample, C order, little-endian; the empty shape is a single number. Becomes one array `[B, ...]`.
    Array {
        /// Type of the values.
        dtype: Dtype,
        /// Shape of one sample.
        shape: Vec<u64>,
    },
    /// Any number of values in one dimension, little-endian.
    List {
        /// Type of the values.
        dtype: Dtype,
    },
    /// Any number of 64-bit integers as protobuf varints, packed.
    Varints,
    /// An encoded image (JPEG, PNG, ...), as in a file.
    Image,
    /// Bytes that say themselves what they are, in an encoding of that name (`npy`, `mds:ndarray`, `mds:pil`, ...).
    Encoded {
        /// Name of the encoding.
        encoding: String,
    },
}

/// Encoding of lists that are empty in all rows of a shard, `[]`: of what they would be lists, other shards say.
const NO_ITEMS: &str = "json:no-items";

impl Dtype {
    /// True for numbers with a fraction.
    pub(crate) fn is_float(self) -> bool {
        matches!(
            self,
            Self::Float16 | Self::Bfloat16 | Self::Float32 | Self::Float64
        )
    }

    /// The bytes of what is no number, where there is such a value.
    pub(crate) fn nan(self) -> Option<Vec<u8>> {
        match self {
            Self::Float16 => Some(0x7e00u16.to_le_bytes().to_vec()),
            Self::Bfloat16 => Some(0x7fc0u16.to_le_bytes().to_vec()),
            Self::Float32 => Some(f32::NAN.to_le_bytes().to_vec()),
            Self::Float64 => Some(f64::NAN.to_le_bytes().to_vec()),
            _ => None,
        }
    }
}

impl Kind {
    /// Lists that are empty in all rows of a shard.
    pub(crate) fn no_items() -> Self {
        let encoding = NO_ITEMS.to_owned();
        Self::Encoded { encoding }
    }

    pub(crate) fn is_no_items(&self) -> bool {
        matches!(self, Self::Encoded { encoding } if encoding == NO_ITEMS)
    }

    /// Bytes of the field in every sample, where they are the same in all.
    pub fn fixed_bytes(&self) -> Option<u64> {
        match self {
            Self::Array { dtype, shape } => shape
                .iter()
                .try_fold(dtype.bytes(), |bytes, dim| bytes.checked_mul(*dim)),
            _ => None,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("bytes"),
            Self::Text => f.write_str("text"),
            Self::Json => f.write_str("JSON"),
            Self::Decimal => f.write_str("a number as text"),
            Self::Array { dtype, shape } if shape.is_empty() => write!(f, "one {dtype}"),
            Self::Array { dtype, shape } => write!(f, "an array of {dtype} of shape {shape:?}"),
            Self::List { dtype } => write!(f, "a list of {dtype}"),
            Self::Varints => f.write_str("a list of integers"),
            Self::Image => f.write_str("an image"),
            Self::Encoded { .. } if self.is_no_items() => write!(f, "lists without items"),
            Self::Encoded { encoding } => write!(f, "encoded as {}", encoding.escape_debug()),
        }
    }
}

/// One field.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// What its bytes mean.
    #[serde(flatten)]
    pub kind: Kind,
    /// What its numbers count, where they are more than numbers.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "unit::known"
    )]
    pub unit: Option<Unit>,
}

impl Field {
    /// A field of that name and kind.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        let name = name.into();
        Self {
            name,
            kind,
            unit: None,
        }
    }

    /// The same, of numbers that count something.
    #[must_use]
    pub fn counting(self, unit: Option<Unit>) -> Self {
        Self { unit, ..self }
    }

    /// True when values of both mean the same.
    pub fn is_like(&self, other: &Self) -> bool {
        let counts = match (self.unit, other.unit) {
            (Some(own), Some(other)) => own.common(other).is_some(),
            (own, other) => own == other,
        };
        counts && self.kind == other.kind
    }

    /// True when a field of a data set can be this field in one of its shards.
    pub(crate) fn covers(&self, own: &Self) -> bool {
        let is_listed = matches!(self.kind, Kind::Json | Kind::List { .. });
        self.is_like(own) || (own.kind.is_no_items() && is_listed)
    }

    /// The type of the numbers, where this is a list of some, and the values of a shard are lists without items, kept as JSON.
    pub(crate) fn list_in_place_of(&self, own: &Self) -> Option<Dtype> {
        match self.kind {
            Kind::List { dtype } if own.kind.is_no_items() => Some(dtype),
            _ => None,
        }
    }

    /// True when this is of floats, and the same field of a shard is of integers.
    pub(crate) fn widens(&self, own: &Self) -> bool {
        self.unit.is_none() && own.as_floats().is_some_and(|kind| kind == self.kind)
    }

    /// The same of `float64`, where its values are `int64` that count nothing.
    fn as_floats(&self) -> Option<Kind> {
        let dtype = Dtype::Float64;
        match &self.kind {
            _ if self.unit.is_some() => None,
            Kind::Array {
                dtype: Dtype::Int64,
                shape,
            } if shape.is_empty() => {
                let shape = Vec::new();
                Some(Kind::Array { dtype, shape })
            }
            Kind::List { dtype: Dtype::Int64 } => Some(Kind::List { dtype }),
            _ => None,
        }
    }

    /// What its values are, in words.
    pub(crate) fn what(&self) -> String {
        match self.unit {
            Some(unit) => format!("{} ({unit})", self.kind),
            None => self.kind.to_string(),
        }
    }
}

/// The fields of a data set, in the order they are first met.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Schema {
    fields: Vec<Field>,
}

impl Schema {
    /// The fields.
    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// Index of the field of that name.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        self.fields.iter().position(|field| field.name == name)
    }

    /// The field of the data set that values of a shard's field become, where that is another kind; it is likely to have that number.
    pub(crate) fn cast_of(&self, own: &Field, likely: usize) -> Option<&Field> {
        if !own.kind.is_no_items() && own.as_floats().is_none() {
            return None;
        }
        let is_it = |field: &&Field| field.name == own.name;
        let at_once = self.fields.get(likely).filter(is_it);
        let field = at_once.or_else(|| self.fields.iter().find(is_it))?;
        (own.kind.is_no_items() || field.widens(own)).then_some(field)
    }

    /// Take in the fields of another shard. A field that means one thing here and another there is an error: no batch could hold both.
    pub fn merge(&mut self, fields: &[Field]) -> Result<()> {
        self.merge_fields(fields, false)
    }

    /// The same where the types of numbers were inferred from the values of each shard, in all of them so far: integers are floats there that happened to be whole.
    pub(crate) fn merge_inferred(&mut self, fields: &[Field]) -> Result<()> {
        self.merge_fields(fields, true)
    }

    fn merge_fields(&mut self, fields: &[Field], are_inferred: bool) -> Result<()> {
        for field in fields {
            match self.fields.iter_mut().find(|known| known.name == field.name) {
                None => self.fields.push(field.clone()),
                Some(known) if known.is_like(field) => {
                    let common = known.unit.zip(field.unit);
                    known.unit = common.and_then(|(known, unit)| known.common(unit));
                }
                Some(known) if known.covers(field) => {}
                Some(known) if field.covers(known) => *known = field.clone(),
                Some(known) if are_inferred && known.widens(field) => {}
                Some(known) if are_inferred && field.widens(known) => *known = field.clone(),
                Some(known) => return Err(mixed(known, field)),
            }
        }
        Ok(())
    }

    /// No more shards come: lists that were empty in all of them are what their bytes are, JSON.
    pub(crate) fn settle(&mut self) {
        for field in self.fields.iter_mut().filter(|field| field.kind.is_no_items()) {
            field.kind = Kind::Json;
        }
    }
}

impl From<Vec<Field>> for Schema {
    fn from(fields: Vec<Field>) -> Self {
        Self { fields }
    }
}

fn mixed(known: &Field, field: &Field) -> Error {
    let message = format!(
        "field '{}' is {} in this shard, but {} in the ones before",
        field.name.escape_debug(),
        field.what(),
        known.what()
    );
    let is_message =
        |field: &Field| matches!(&field.kind, Kind::Encoded { encoding } if encoding.starts_with("tf:"));
    let hint = if is_message(known) || is_message(field) {
        let list = format!("[\"{}\"]", field.name.escape_debug());
        format!(
            "records have several values of it in some shards only; give it as a list in all of them: --format tfrecord --param 'lists={list}' (in Python: format={{\"name\": \"tfrecord\", \"lists\": {list}}})"
        )
    } else {
        "stream shards of one schema together: name those, or put each kind into a folder of its own"
            .to_owned()
    };
    Error::new(ErrorKind::Unsupported, "read schema", message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_sizes_of_types_agree_with_their_bits() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::parse(dtype.name()), Some(*dtype));
            let bits: String = dtype.name().chars().filter(char::is_ascii_digit).collect();
            let bytes = bits.parse::<u64>().map_or(1, |bits| bits / 8);
            assert_eq!(dtype.bytes(), bytes, "{dtype}");
        }
        assert_eq!(Dtype::parse("complex64"), None);
    }

    #[test]
    fn a_field_cannot_mean_two_things() {
        let mut schema = Schema::from(vec![Field::new("x", Kind::Text)]);
        schema
            .merge(&[Field::new("y", Kind::Bytes), Field::new("x", Kind::Text)])
            .unwrap();
        assert_eq!(schema.fields().len(), 2);
        let error = schema.merge(&[Field::new("y", Kind::Json)]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("'y'"), "{error}");
    }

    #[test]
    fn integers_become_floats_only_where_types_were_inferred() {
        let one = |dtype| Kind::Array {
            dtype,
            shape: Vec::new(),
        };
        let list = |dtype| Kind::List { dtype };
        let field = |kind: &Kind| Field::new("x", kind.clone());
        let merged = |kinds: &[Kind], are_inferred| {
            let mut schema = Schema::default();
            for kind in kinds {
                schema.merge_fields(&[field(kind)], are_inferred)?;
            }
            Ok::<_, Error>(schema)
        };
        let (int, float) = (Dtype::Int64, Dtype::Float64);
        for (ints, floats) in [(one(int), one(float)), (list(int), list(float))] {
            for kinds in [[ints.clone(), floats.clone()], [floats.clone(), ints.clone()]] {
                let schema = merged(&kinds, true).unwrap();
                assert_eq!(schema.fields(), [field(&floats)]);
                assert_eq!(schema.cast_of(&field(&ints), 0), Some(&field(&floats)));
                assert_eq!(schema.cast_of(&field(&floats), 0), None);
                merged(&kinds, false).unwrap_err();
            }
            let schema = merged(&[ints.clone(), ints.clone()], true).unwrap();
            assert_eq!(schema.cast_of(&field(&ints), 7), None);
        }
        let unlike = [list(float), one(Dtype::Bool), one(Dtype::Float32)];
        for kind in unlike {
            merged(&[one(int), kind], true).unwrap_err();
        }
        let dates = field(&one(int)).counting(Some(Unit::Date));
        assert!(!field(&one(float)).widens(&dates));
    }

    #[test]
    fn lists_without_items_are_what_other_shards_say() {
        let field = |kind| Field::new("x", kind);
        let list = Kind::List { dtype: Dtype::Int64 };
        for kind in [list.clone(), Kind::Json] {
            for kinds in [[Kind::no_items(), kind.clone()], [kind.clone(), Kind::no_items()]] {
                let mut schema = Schema::default();
                for own in &kinds {
                    schema.merge(&[field(own.clone())]).unwrap();
                }
                schema.settle();
                assert_eq!(schema.fields(), [field(kind.clone())]);
                assert!(
                    kinds
                        .into_iter()
                        .all(|own| schema.fields()[0].covers(&field(own)))
                );
            }
        }
        let mut schema = Schema::from(vec![field(Kind::no_items())]);
        schema.merge(&[field(Kind::no_items())]).unwrap();
        schema.settle();
        assert_eq!(schema.fields(), [field(Kind::Json)]);
        let mut schema = Schema::from(vec![field(Kind::no_items())]);
        schema.merge(&[field(Kind::Text)]).unwrap_err();
    }

    #[test]
    fn numbers_that_count_different_things_do_not_mix() {
        let int = Kind::Array {
            dtype: Dtype::Int64,
            shape: Vec::new(),
        };
        let price =
            |scale| Field::new("price", int.clone()).counting(Some(Unit::Decimal { digits: 9, scale }));
        let mut schema = Schema::from(vec![price(2)]);
        schema.merge(&[price(2)]).unwrap();
        let error = schema.merge(&[price(3)]).unwrap_err().to_string();
        assert!(
            error.contains("decimal:9,3") && error.contains("decimal:9,2"),
            "{error}"
        );
        schema.merge(&[Field::new("price", int.clone())]).unwrap_err();
    }

    #[test]
    fn units_of_later_versions_leave_numbers_what_they_are() {
        let text =
            r#"[{"name":"x","kind":"text","unit":"fortnights"},{"name":"y","kind":"text","unit":"date"}]"#;
        let fields: Vec<Field> = serde_json::from_str(text).unwrap();
        let units: Vec<Option<Unit>> = fields.iter().map(|field| field.unit).collect();
        assert_eq!(units, [None, Some(Unit::Date)]);
    }

    #[test]
    fn only_arrays_have_a_fixed_size() {
        let array = |shape: &[u64]| Kind::Array {
            dtype: Dtype::Float32,
            shape: shape.to_vec(),
        };
        assert_eq!(array(&[]).fixed_bytes(), Some(4));
        assert_eq!(array(&[3, 2]).fixed_bytes(), Some(24));
        assert_eq!(array(&[u64::MAX, 2]).fixed_bytes(), None);
        assert_eq!(Kind::Text.fixed_bytes(), None);
    }
}
