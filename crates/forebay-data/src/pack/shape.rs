//! From a sample of the input to a sample of the output: which fields, in which form, and whether at all.
//!
//! Most fields are written as they are. WebDataset tells kinds by the ends of names, so a field that would be read as something else gets one there: a
//! label becomes `label.cls` in digits, numbers become `.npy`. Tokens are taken out of arrays that carry their shape. The table is in docs/guides/pack.md.

use std::borrow::Cow;

use forebay_core::{Error, ErrorKind, Result};

use super::PackSpec;
use super::chunk::{ChunkBuilder, refs};
use super::npy;
use super::output::{Output, PackFormat};
use crate::filter::{Bound, Filter, KEY_COLUMN, key_field};
use crate::format::SampleRef;
use crate::format::files::ImageFields;
use crate::format::tfrecord::decode;
use crate::format::value::{Value, is_array};
use crate::format::wds::names;
use crate::schema::{Dtype, Field, Kind, Schema};

/// The field that keys are in where a format has no place for them.
pub(super) const KEY_FIELD: &str = KEY_COLUMN;

/// Digits of a key that is a number.
const NUMBER_DIGITS: usize = 9;

/// Makes samples as they are written.
#[derive(Debug)]
pub(super) struct Shaper {
    /// For each field of the input: its number in the output, and how it is written.
    moves: Vec<Option<(usize, How)>>,
    /// Fields of the input, for their kinds.
    kinds: Vec<Kind>,
    /// The field of the input that is the key.
    key_field: Option<usize>,
    keeps_keys: bool,
    /// Which samples are wanted, and the number that stands for the key there.
    keep: Option<(Bound, Option<usize>)>,
    output: std::sync::Arc<Output>,
}

/// How a field is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// As it is.
    AsIs,
    /// A number, in digits.
    Digits(Dtype),
    /// An array, as numpy writes it.
    Npy,
    /// The numbers of an array that carries its shape.
    Numbers,
    /// The numbers of a list of TensorFlow's.
    List,
}

/// What is known of the samples of an input beside their schema.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Source {
    /// They have keys.
    pub(super) is_named: bool,
    /// They are images with labels, by the names that streams give them.
    pub(super) is_image_folder: bool,
}

/// A sample of the input.
pub(super) struct Taken<'a> {
    /// Its place in the order of the input.
    pub(super) position: u64,
    /// Its number in the input.
    pub(super) number: u64,
    /// Its key, where it has one.
    pub(super) key: Option<&'a str>,
    /// The bytes of a field; `None` where it does not have it.
    pub(super) value: &'a dyn Fn(usize) -> Option<&'a [u8]>,
}

impl Shaper {
    /// For an input of that schema, whose samples have keys or not.
    pub(super) fn new(schema: &Schema, source: Source, spec: &PackSpec) -> Result<Self> {
        let key_field = key_field(schema.fields());
        let keeps_keys = !spec.drop_keys && (source.is_named || key_field.is_some());
        let has_key_field = keeps_keys
            && !matches!(
                spec.to,
                PackFormat::Wds | PackFormat::Tokens | PackFormat::Raw | PackFormat::Files
            );
        let chosen = chosen(schema, key_field, spec.fields.as_deref())?;
        let mut fields: Vec<Field> = Vec::new();
        fields.extend(has_key_field.then(|| Field::new(KEY_FIELD, Kind::Text)));
        let mut moves = vec![None; schema.fields().len()];
        for index in chosen {
            let (Some(field), Some(slot)) = (schema.fields().get(index), moves.get_mut(index)) else {
                continue;
            };
            let (written, how) = written(field, source, spec.to);
            if fields.iter().any(|before| before.name == written.name) {
                return Err(twice(field, &written));
            }
            *slot = Some((fields.len(), how));
            fields.push(written);
        }
        let output = Output::new(
            spec.to,
            fields,
            has_key_field,
            spec.compression.as_deref(),
            spec.shard_bytes,
            spec.dtype,
        )?
        .with_hashes(&spec.hashes)?;
        Ok(Self {
            moves,
            kinds: schema.fields().iter().map(|field| field.kind.clone()).collect(),
            key_field,
            keeps_keys,
            keep: match &spec.filter {
                // Samples that have none are called by their number.
                Some(text) => Some(Filter::parse(text)?.bind_keyed(schema.fields(), true)?),
                None => None,
            },
            output: std::sync::Arc::new(output),
        })
    }

    pub(super) fn output(&self) -> &std::sync::Arc<Output> {
        &self.output
    }

    /// Fields of the input that are looked at.
    pub(super) fn sources(&self) -> Vec<usize> {
        let is_source = |index: &usize| {
            self.key_field == Some(*index)
                || self.moves.get(*index).is_some_and(Option::is_some)
                || self
                    .keep
                    .as_ref()
                    .is_some_and(|(keep, _)| keep.columns().contains(index))
        };
        (0..self.moves.len()).filter(is_source).collect()
    }

    /// Number in the output of a field of the input, where it is written as it is.
    pub(super) fn plain(&self, field: usize) -> Option<usize> {
        match self.moves.get(field) {
            Some(Some((to, How::AsIs))) => Some(*to),
            _ => None,
        }
    }

    /// True when every field that is written is written as it is.
    pub(super) fn is_plain(&self) -> bool {
        let mut moves = self.moves.iter().flatten();
        moves.all(|(_, how)| *how == How::AsIs)
    }

    /// The key of a sample.
    pub(super) fn key<'a>(&self, taken: &Taken<'a>) -> Result<Cow<'a, str>> {
        let number = || Cow::Owned(format!("{:0NUMBER_DIGITS$}", taken.number));
        if !self.keeps_keys {
            return Ok(number());
        }
        let Some(field) = self.key_field else {
            return Ok(taken.key.map_or_else(number, Cow::Borrowed));
        };
        match (taken.value)(field).map(std::str::from_utf8) {
            Some(Ok(key)) => Ok(Cow::Borrowed(key)),
            Some(Err(error)) => {
                let message = format!("the key of sample {} is no text", taken.number);
                Err(Error::new(ErrorKind::InvalidInput, "pack", message).with_source(error))
            }
            None => Ok(number()),
        }
    }

    /// True when a sample is wanted.
    pub(super) fn keeps(&self, taken: &Taken<'_>, key: &str) -> bool {
        self.keep.as_ref().is_none_or(|(keep, key_column)| {
            keep.keeps(&|column| match *key_column {
                Some(of_key) if of_key == column => Some(key.as_bytes()),
                _ => (taken.value)(column),
            })
        })
    }

    /// What the filter asked for and no sample had.
    pub(super) fn note_unmet(&self) -> Option<String> {
        self.keep.as_ref().and_then(|(keep, _)| keep.note_unmet())
    }

    /// Bytes that a sample adds to a shard.
    pub(super) fn cost(&self, sample: SampleRef<'_>) -> u64 {
        self.output.cost(sample)
    }

    /// Add a sample to a chunk, with copies of its values, where it is wanted.
    pub(super) fn add(&self, taken: &Taken<'_>, chunk: &mut ChunkBuilder) -> Result<()> {
        let key = self.key(taken)?;
        if !self.keeps(taken, &key) {
            return Ok(());
        }
        for (index, (to, how)) in self
            .moves
            .iter()
            .enumerate()
            .filter_map(|(index, to)| Some((index, (*to)?)))
        {
            let (Some(value), Some(kind)) = ((taken.value)(index), self.kinds.get(index)) else {
                continue;
            };
            match convert(how, kind, value) {
                Ok(value) => chunk.copy(to, &value),
                Err(error) => {
                    chunk.cancel();
                    let field = self.output.fields().get(to).map_or("", |field| &field.name);
                    let message = format!(
                        "field '{}' of sample '{}' cannot be written",
                        field.escape_debug(),
                        key.escape_debug()
                    );
                    return Err(Error::new(error.kind(), "pack", message).with_source(error));
                }
            }
        }
        let (values, data) = chunk.open();
        let fields = refs(
            values,
            data,
            self.output.fields(),
            self.output.has_key_field(),
            &key,
        );
        let cost = self.cost(SampleRef {
            key: &key,
            fields: &fields,
        });
        chunk.end(taken.position, &key, cost);
        Ok(())
    }
}

/// Two fields that would be written under one name.
fn twice(field: &Field, written: &Field) -> Error {
    let (name, written) = (field.name.escape_debug(), written.name.escape_debug());
    let message = format!("field '{name}' would be written as '{written}', and so would another one");
    Error::new(ErrorKind::InvalidInput, "pack", message)
        .with_field("fields")
        .with_hint("choose one of them with --fields, or another format")
}

/// Numbers of the fields that are wanted.
fn chosen(schema: &Schema, key_field: Option<usize>, wanted: Option<&[String]>) -> Result<Vec<usize>> {
    let Some(wanted) = wanted else {
        return Ok((0..schema.fields().len())
            .filter(|index| Some(*index) != key_field)
            .collect());
    };
    let find = |name: &String| {
        schema
            .index_of(name)
            .filter(|index| Some(*index) != key_field)
            .ok_or_else(|| {
                let known: Vec<&str> = schema.fields().iter().map(|field| field.name.as_str()).collect();
                let message = format!("there is no field '{}'", name.escape_debug());
                Error::new(ErrorKind::InvalidInput, "pack", message)
                    .with_field("fields")
                    .with_hint(format!("there are: {}", known.join(", ").escape_debug()))
            })
    };
    if let Some(name) =
        (1..wanted.len()).find_map(|end| wanted.get(..end)?.contains(&wanted[end]).then(|| &wanted[end]))
    {
        let message = format!("field '{}' is named twice", name.escape_debug());
        return Err(Error::new(ErrorKind::InvalidInput, "pack", message).with_field("fields"));
    }
    wanted.iter().map(find).collect()
}

/// A field as it is written.
fn written(field: &Field, source: Source, to: PackFormat) -> (Field, How) {
    match to {
        PackFormat::Wds | PackFormat::Files if source.is_image_folder => written_image_folder(field),
        PackFormat::Wds | PackFormat::Files => written_wds(field),
        PackFormat::Parquet => match tf_list(&field.kind) {
            Some(dtype) => (Field::new(&field.name, Kind::List { dtype }), How::List),
            None => (field.clone(), How::AsIs),
        },
        PackFormat::Tokens => match array_dtype(&field.kind) {
            Some(dtype) => (Field::new(&field.name, Kind::List { dtype }), How::Numbers),
            None => (field.clone(), How::AsIs),
        },
        _ => (field.clone(), How::AsIs),
    }
}

/// Image folders are called in tars as they are where they come from a listing, also where they come from a manifest.
fn written_image_folder(field: &Field) -> (Field, How) {
    let (streamed, packed) = (ImageFields::arrays(), ImageFields::webdataset());
    match &field.kind {
        Kind::Image if field.name == streamed.image => (Field::new(packed.image, Kind::Image), How::AsIs),
        Kind::Array { dtype, .. } if field.name == streamed.label => {
            (Field::new(packed.label, Kind::Decimal), How::Digits(*dtype))
        }
        _ => written_wds(field),
    }
}

/// What is named so that WebDataset reads it as what it is stays as it is.
fn written_wds(field: &Field) -> (Field, How) {
    // `image/encoded`, as TensorFlow's data sets have it, would be a file in a folder.
    let name = field.name.to_lowercase().replace('/', ".");
    if names::kind_of(&name) == field.kind {
        return (Field::new(name, field.kind.clone()), How::AsIs);
    }
    let named = |ending: &str, how| {
        let name = format!("{name}.{ending}");
        let kind = names::kind_of(&name);
        (Field::new(name, kind), how)
    };
    match &field.kind {
        Kind::Text => named("txt", How::AsIs),
        Kind::Json => named("json", How::AsIs),
        Kind::Decimal => named("cls", How::AsIs),
        Kind::Image => named("jpg", How::AsIs),
        Kind::Array { dtype, shape } if shape.is_empty() && integer(*dtype, &[0; 8]).is_some() => {
            named("cls", How::Digits(*dtype))
        }
        Kind::Array { .. } | Kind::List { .. } | Kind::Varints => named("npy", How::Npy),
        Kind::Encoded { encoding } if is_array(encoding) => named("npy", How::Npy),
        Kind::Bytes | Kind::Encoded { .. } => (Field::new(name, field.kind.clone()), How::AsIs),
    }
}

/// The type of arrays that carry their shape, where the encoding says it.
fn array_dtype(kind: &Kind) -> Option<Dtype> {
    let Kind::Encoded { encoding } = kind else {
        return None;
    };
    Dtype::parse(encoding.strip_prefix("mds:ndarray:")?)
}

/// The type of lists that TensorFlow keeps in a way of its own, which others would not read.
fn tf_list(kind: &Kind) -> Option<Dtype> {
    match kind {
        Kind::Varints => Some(Dtype::Int64),
        Kind::Encoded { encoding } if encoding == "tf:int64_list" => Some(Dtype::Int64),
        Kind::Encoded { encoding } if encoding == "tf:float_list" => Some(Dtype::Float32),
        _ => None,
    }
}

fn numbers_of(kind: &Kind, value: &[u8]) -> Result<Vec<u8>> {
    if tf_list(kind) == Some(Dtype::Float32) {
        let mut floats = Vec::new();
        decode::float_list(value, &mut floats)?;
        return Ok(floats.into_iter().flat_map(f32::to_le_bytes).collect());
    }
    let mut numbers = Vec::new();
    match kind {
        Kind::Varints => decode::varints(value, &mut numbers)?,
        _ => decode::int64_list(value, &mut numbers)?,
    }
    Ok(numbers.into_iter().flat_map(i64::to_le_bytes).collect())
}

fn convert<'a>(how: How, kind: &Kind, value: &'a [u8]) -> Result<Cow<'a, [u8]>> {
    match how {
        How::AsIs => Ok(Cow::Borrowed(value)),
        How::Digits(dtype) => match integer(dtype, value) {
            Some(number) => Ok(Cow::Owned(number.to_string().into_bytes())),
            None => Err(wrong("is no number")),
        },
        How::Numbers => match open(kind, value)? {
            Value::Array(array) => Ok(Cow::Borrowed(array.values)),
            _ => Err(wrong("is no array")),
        },
        How::Npy => npy_of(kind, value).map(Cow::Owned),
        How::List => numbers_of(kind, value).map(Cow::Owned),
    }
}

fn npy_of(kind: &Kind, value: &[u8]) -> Result<Vec<u8>> {
    match kind {
        Kind::Array { dtype, shape } => npy::write(*dtype, shape, value),
        Kind::List { dtype } => {
            let len = value.len() as u64;
            if !len.is_multiple_of(dtype.bytes()) {
                return Err(wrong("does not end with a whole number"));
            }
            npy::write(*dtype, &[len / dtype.bytes()], value)
        }
        Kind::Varints => {
            let numbers = numbers_of(kind, value)?;
            npy::write(Dtype::Int64, &[numbers.len() as u64 / 8], &numbers)
        }
        kind => match open(kind, value)? {
            Value::Array(array) => npy::write(array.dtype, &array.shape, array.values),
            _ => Err(wrong("is no array")),
        },
    }
}

fn open<'a>(kind: &Kind, value: &'a [u8]) -> Result<Value<'a>> {
    match kind {
        Kind::Encoded { encoding } => Value::open(encoding, value),
        _ => Err(wrong("is no array")),
    }
}

/// A number of an integer type.
fn integer(dtype: Dtype, value: &[u8]) -> Option<i128> {
    let word: &[u8] = value.get(..dtype.bytes() as usize)?;
    let mut wide = [0; 8];
    wide.iter_mut().zip(word).for_each(|(to, from)| *to = *from);
    let (wide, shift) = (u64::from_le_bytes(wide), 64 - 8 * dtype.bytes());
    match dtype {
        Dtype::Bool | Dtype::Uint8 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => Some(wide.into()),
        Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64 => {
            Some(((wide << shift).cast_signed() >> shift).into())
        }
        Dtype::Float16 | Dtype::Bfloat16 | Dtype::Float32 | Dtype::Float64 => None,
    }
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "pack", format!("it {message}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_get_the_ends_that_webdataset_reads() {
        let scalar = |dtype| Kind::Array {
            dtype,
            shape: Vec::new(),
        };
        let encoded = |name: &str| Kind::Encoded {
            encoding: name.to_owned(),
        };
        for (name, kind, expected, how) in [
            ("jpg", Kind::Image, "jpg", How::AsIs),
            ("image", Kind::Image, "image.jpg", How::AsIs),
            ("Caption", Kind::Text, "caption.txt", How::AsIs),
            ("meta", Kind::Json, "meta.json", How::AsIs),
            ("label", Kind::Decimal, "label.cls", How::AsIs),
            (
                "label",
                scalar(Dtype::Int64),
                "label.cls",
                How::Digits(Dtype::Int64),
            ),
            ("score", scalar(Dtype::Float32), "score.npy", How::Npy),
            ("ids", Kind::Varints, "ids.npy", How::Npy),
            ("x", encoded("mds:ndarray:uint16"), "x.npy", How::Npy),
            ("x", encoded("mds:pil"), "x", How::AsIs),
            ("bin", Kind::Bytes, "bin", How::AsIs),
        ] {
            let (field, found) = written_wds(&Field::new(name, kind.clone()));
            assert_eq!((field.name.as_str(), found), (expected, how), "{name} {kind:?}");
        }
    }

    #[test]
    fn filters_see_fields_keys_and_json() {
        let fields = [
            Field::new("cls", Kind::Decimal),
            Field::new("json", Kind::Json),
            Field::new("txt", Kind::Text),
        ];
        let values: [Option<&[u8]>; 3] = [
            Some(b"7"),
            Some(br#"{"w": 640, "ok": true, "tag": "a", "in": {"depth": 2.5}, "none": null}"#),
            None,
        ];
        let keeps = |text: &str| {
            let spec = PackSpec {
                filter: Some(text.to_owned()),
                ..PackSpec::new(PackFormat::Wds)
            };
            let named = Source {
                is_named: true,
                ..Source::default()
            };
            let shaper = Shaper::new(&Schema::from(fields.to_vec()), named, &spec)?;
            let taken = Taken {
                position: 0,
                number: 0,
                key: Some("train/0001"),
                value: &|index| values.get(index).copied().flatten(),
            };
            Ok::<_, Error>(shaper.keeps(&taken, "train/0001"))
        };
        for (text, expected) in [
            ("cls = 7", true),
            ("cls > 7", false),
            ("txt is null", true),
            ("__key__ = 'train/0001'", true),
            ("json.w >= 640 and json.ok = true", true),
            ("json.tag = 'b'", false),
            ("json.in.depth < 3", true),
            ("json.none is null and json.missing is null", true),
            ("json.w is not null", true),
            ("json.tag = 3", false),
            // A member may be of another type in every sample.
            ("json.tag = 3 or json.tag = 'a'", true),
        ] {
            assert_eq!(keeps(text).unwrap(), expected, "{text}");
        }
        for text in ["other = 3", "txt.a = 3", "cls = 'x'"] {
            assert!(keeps(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_written_in_digits() {
        for (dtype, bytes, text) in [
            (Dtype::Int64, &(-7i64).to_le_bytes()[..], "-7"),
            (Dtype::Uint8, &[200], "200"),
            (Dtype::Int8, &[200], "-56"),
            (Dtype::Uint64, &u64::MAX.to_le_bytes()[..], "18446744073709551615"),
        ] {
            let value = convert(How::Digits(dtype), &Kind::Bytes, bytes).unwrap();
            assert_eq!(&*value, text.as_bytes());
        }
        assert!(convert(How::Digits(Dtype::Int64), &Kind::Bytes, &[1]).is_err());
    }
}
