//! Decoding while batches are made: images to tensors, numbers in text to numbers, bytes and lists to arrays of one shape.
//!
//! A decoded field is one array `[B, ...]` of the batch. Its values are written straight into their places; large batches of images are cut into
//! pieces of some rows, so that several threads work on one batch. What cannot be decoded is a bad sample like any other.

use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Result, Seed};
use forebay_io::AlignedBuf;

use super::collate::Pick;
use super::numbers::{List, Numbers};
use crate::block::exact_float;
use crate::filter::Value;
use crate::format::value::DIMS_MAX;
use crate::image::{Decoder, ImagePlan};
use crate::schema::{Dtype, Field, Kind, Unit};

/// Values of a piece, at least: below that, handing over costs more than it brings.
const PIECE_ROWS_MIN: usize = 4;

/// What becomes of the bytes of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Decode {
    /// An encoded image becomes `[3, H, W]`.
    Image(Arc<ImagePlan>),
    /// A whole number, as text or of any type, becomes an `int64`.
    Int {
        /// What samples without a value have; they are bad where this is not said.
        missing: Option<i64>,
    },
    /// A number, as text or of any type, becomes a `float64`.
    Float {
        /// The same; NaN for a null of floats where this is not said.
        missing: Option<f64>,
    },
    /// Numbers of one type, as bytes, as a list, or as an array that carries its shape, become an array of one shape.
    Array {
        /// Type of the numbers.
        dtype: Dtype,
        /// Shape of one sample; empty for one number.
        shape: Vec<u64>,
    },
}

impl FromStr for Decode {
    type Err = Error;

    /// `int`, `float`, both with a colon and what a missing value is; `image:` and a plan; or `array:`, a type and a shape.
    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "int" => Ok(Self::Int { missing: None }),
            None if text == "float" => Ok(Self::Float { missing: None }),
            Some(("int", missing)) => missing
                .parse()
                .map(|missing| Self::Int {
                    missing: Some(missing),
                })
                .map_err(|_| no_way(text)),
            Some(("float", missing)) => missing
                .parse()
                .map(|missing| Self::Float {
                    missing: Some(missing),
                })
                .map_err(|_| no_way(text)),
            Some(("image", plan)) => Ok(Self::Image(Arc::new(ImagePlan::parse(plan)?))),
            Some(("array", array)) => parse_array(array),
            _ => Err(no_way(text)),
        }
    }
}

fn no_way(text: &str) -> Error {
    let message = format!("'{}' is no way to decode", text.escape_debug());
    Error::new(ErrorKind::InvalidInput, "stream", message)
        .with_field("decode")
        .with_hint("ways are int, float, array:DTYPE:SHAPE such as array:uint16:2048, and image:PLAN such as image:rrc:224,flip; int:-1 and float:-1 say what stands for a missing number; in Python also json, text, bytes, or a function")
}

impl Decode {
    fn kind(&self) -> Kind {
        let (dtype, shape) = match self {
            Self::Int { .. } => (Dtype::Int64, Vec::new()),
            Self::Float { .. } => (Dtype::Float64, Vec::new()),
            Self::Array { dtype, shape } => (*dtype, shape.clone()),
            Self::Image(plan) => {
                let dtype = if plan.is_float() {
                    Dtype::Float32
                } else {
                    Dtype::Uint8
                };
                let size = plan.size();
                (dtype, vec![3, u64::from(size.height), u64::from(size.width)])
            }
        };
        Kind::Array { dtype, shape }
    }

    /// What stands for a missing value of what is stored so.
    fn fill(&self, stored: &Kind) -> Option<Fill> {
        let asked = |bytes: [u8; 8]| Fill {
            bytes: bytes.to_vec(),
            is_asked: true,
        };
        match self {
            Self::Int { missing } => missing.map(|missing| asked(missing.to_le_bytes())),
            Self::Float {
                missing: Some(missing),
            } => Some(asked(missing.to_le_bytes())),
            Self::Float { missing: None } => Fill::of_null(stored).map(|fill| Fill {
                bytes: f64::NAN.to_le_bytes().to_vec(),
                ..fill
            }),
            Self::Array { .. } => Fill::of_null(stored),
            Self::Image(_) => None,
        }
    }

    /// Whether a field can be decoded like this. What counts hundredths is no whole number.
    pub(super) fn fits(&self, stored: &Field) -> bool {
        match (self, &stored.kind) {
            (Self::Int { .. }, _) if scale_of(stored) > 0 => false,
            (Self::Array { .. }, Kind::Bytes) => true,
            (Self::Int { .. }, kind) if List::of(kind).is_some_and(|list| list.dtype() == Dtype::Int64) => {
                true
            }
            (Self::Array { dtype, .. }, kind)
                if List::of(kind).is_some_and(|list| list.dtype() == *dtype) =>
            {
                true
            }
            (Self::Array { .. }, Kind::Encoded { .. }) => Numbers::of(&stored.kind).has_shape(),
            (Self::Array { dtype, .. }, Kind::List { dtype: of }) => dtype == of,
            (Self::Array { dtype, .. }, Kind::Array { dtype: of, .. }) => {
                dtype == of && self.kind().fixed_bytes() == stored.kind.fixed_bytes()
            }
            (Self::Array { .. }, _) => false,
            (Self::Int { .. }, Kind::Array { dtype, shape }) => shape.is_empty() && !dtype.is_float(),
            (Self::Float { .. }, Kind::Array { shape, .. }) => shape.is_empty(),
            (Self::Int { .. } | Self::Float { .. }, kind) => {
                matches!(kind, Kind::Bytes | Kind::Text | Kind::Json | Kind::Decimal)
            }
            (Self::Image(_), kind) => matches!(kind, Kind::Bytes | Kind::Image),
        }
    }
}

/// Most bytes of an array that a sample is decoded to: a batch of them has to be in memory.
const ARRAY_BYTES_MAX: u64 = 1 << 30;

/// A type, and behind a colon the lengths of the dimensions with commas between them.
fn parse_array(text: &str) -> Result<Decode> {
    let (name, dims) = text.split_once(':').unwrap_or((text, ""));
    let dims = dims.split(',').filter(|_| !dims.is_empty());
    let shape: Option<Vec<u64>> = dims.map(|dim| dim.trim().parse().ok()).collect();
    let array = Dtype::parse(name).zip(shape).filter(|(dtype, shape)| {
        let dims = shape.iter().copied();
        let bytes = dims.fold(dtype.bytes(), u64::saturating_mul);
        shape.len() <= DIMS_MAX && !shape.contains(&0) && bytes <= ARRAY_BYTES_MAX
    });
    let Some((dtype, shape)) = array else {
        let message = format!("'{}' is no array", text.escape_debug());
        return Err(Error::new(ErrorKind::InvalidInput, "stream", message)
            .with_field("decode")
            .with_hint("write array:DTYPE for one number of each sample, or array:DTYPE:SHAPE, such as array:float32:3,224,224"));
    };
    Ok(Decode::Array { dtype, shape })
}

/// A field of the batches.
#[derive(Debug)]
pub(super) struct Wanted {
    /// Its number in the schema of the data set.
    pub(super) source: usize,
    /// What it is in a batch.
    pub(super) field: Field,
    /// What makes it that, where it is not as it is stored.
    pub(super) tool: Option<Tool>,
    /// How its numbers are stored, where a batch has them one after the other all the same.
    pub(super) list: Option<List>,
    /// What a value that is missing has in a batch, where all have one size; samples without one are bad where there is nothing.
    pub(super) fill: Option<Fill>,
}

/// What stands for a value that a sample does not have.
#[derive(Debug)]
pub(super) struct Fill {
    bytes: Vec<u8>,
    /// Somebody said so: then it also stands where a shard does not have the field at all. Nulls are what somebody wrote; a column that some shards lack is more
    /// likely a mistake, and batches that are all NaN would hide it.
    is_asked: bool,
}

impl Fill {
    /// For a float, as in arrays of numpy's: no number. Nothing stands for integers, nor for arrays of several numbers.
    fn of_null(stored: &Kind) -> Option<Self> {
        let Kind::Array { dtype, shape } = stored else {
            return None;
        };
        let nan = dtype.nan().filter(|_| shape.is_empty());
        nan.map(|bytes| Self {
            bytes,
            is_asked: false,
        })
    }
}

impl Wanted {
    pub(super) fn new(source: usize, stored: &Field, decode: Option<&Decode>, seed: Seed) -> Self {
        let list = List::of(&stored.kind);
        let (field, tool) = match decode {
            None => {
                let kind = list.map(|list| Kind::List { dtype: list.dtype() });
                let kind = kind.unwrap_or_else(|| stored.kind.clone());
                (
                    Field {
                        kind,
                        ..stored.clone()
                    },
                    None,
                )
            }
            Some(decode) => {
                let is_scaled = matches!(decode, Decode::Float { .. }) && scale_of(stored) > 0;
                let field = Field {
                    kind: decode.kind(),
                    unit: stored.unit.filter(|_| !is_scaled),
                    ..stored.clone()
                };
                (field, Some(Tool::new(decode, stored, seed)))
            }
        };
        let fill = match decode {
            Some(decode) => decode.fill(&stored.kind),
            None => Fill::of_null(&stored.kind),
        };
        Self {
            source,
            field,
            tool,
            list,
            fill,
        }
    }

    /// What stands for the value that a sample does not have; else why it is bad.
    pub(super) fn fill_for(&self, pick: &Pick) -> Result<&[u8], &'static str> {
        let has_field = pick.block.has_field(self.source);
        match &self.fill {
            Some(fill) if has_field || fill.is_asked => Ok(&fill.bytes),
            _ if has_field => Err("is missing"),
            _ => Err("is missing: its shard does not have it, or only nulls of no type"),
        }
    }

    /// True where values take more bytes in a batch than stored.
    pub(super) fn grows(&self) -> bool {
        matches!(self.list, Some(List::Varints | List::Ints))
    }

    /// Bytes that a stored value takes in a batch, where no tool makes it something else.
    pub(super) fn len_of(&self, stored: &[u8]) -> usize {
        match self.list {
            // What is damaged was left out before.
            Some(list) => list.len_of(stored),
            None => stored.len(),
        }
    }

    /// Put a stored value to the front of `place`, as batches have it; gives how many bytes it takes.
    pub(super) fn put(&self, stored: &[u8], place: &mut [u8]) -> Result<usize> {
        if let Some(list) = self.list {
            return list.put(stored, place);
        }
        let Some(place) = place.get_mut(..stored.len()) else {
            let message = "a field does not fit its place";
            return Err(Error::new(ErrorKind::Internal, "collate", message));
        };
        place.copy_from_slice(stored);
        Ok(stored.len())
    }

    /// Bytes of one value, where all have the same.
    pub(super) fn width(&self) -> Option<usize> {
        self.field
            .kind
            .fixed_bytes()
            .and_then(|bytes| usize::try_from(bytes).ok())
    }
}

/// What decodes a field, for any number of threads.
#[derive(Debug)]
pub(super) enum Tool {
    Image {
        plan: Arc<ImagePlan>,
        seed: Seed,
        /// Decoders that nobody uses at the moment: their buffers have grown to the size of the images.
        free: Mutex<Vec<Decoder>>,
    },
    /// One integer: text, or of that type.
    Int(Option<Dtype>),
    /// One number: text, or of that type, with so many digits behind the point.
    Float(Option<Dtype>, u8),
    /// Numbers that become an array of that type and shape.
    Array {
        numbers: Numbers,
        dtype: Dtype,
        shape: Vec<u64>,
    },
}

impl Tool {
    fn new(decode: &Decode, stored: &Field, seed: Seed) -> Self {
        let of = match &stored.kind {
            Kind::Array { dtype, .. } => Some(*dtype),
            _ => None,
        };
        match decode {
            Decode::Int { .. } => match List::of(&stored.kind) {
                Some(list) => Self::Array {
                    numbers: Numbers::List(list),
                    dtype: Dtype::Int64,
                    shape: Vec::new(),
                },
                None => Self::Int(of),
            },
            Decode::Float { .. } => Self::Float(of, scale_of(stored)),
            Decode::Array { dtype, shape } => Self::Array {
                numbers: Numbers::of(&stored.kind),
                dtype: *dtype,
                shape: shape.clone(),
            },
            Decode::Image(plan) => Self::Image {
                plan: Arc::clone(plan),
                seed,
                free: Mutex::default(),
            },
        }
    }

    /// Values of a piece of a batch of `rows`, for so many threads.
    pub(super) fn piece_rows(&self, rows: usize, threads: usize) -> usize {
        match self {
            Self::Image { .. } => rows.div_ceil(threads.max(1)).max(PIECE_ROWS_MIN),
            Self::Int(_) | Self::Float(..) | Self::Array { .. } => rows.max(1),
        }
    }

    /// True where decoding is much work.
    pub(super) fn is_heavy(&self) -> bool {
        matches!(self, Self::Image { .. })
    }

    /// Decode the values of some rows into `out`; gives the rows that could not be, with the reason.
    pub(super) fn decode(&self, job: &Values<'_>, out: &mut [u8]) -> Vec<(usize, String)> {
        let mut decoder = match self {
            Self::Image { plan, seed, free } => {
                let kept = free.lock().unwrap_or_else(PoisonError::into_inner).pop();
                let mut decoder = kept.unwrap_or_else(|| Decoder::new(Arc::clone(plan), *seed, job.epoch));
                decoder.set_epoch(job.epoch);
                Some(decoder)
            }
            Self::Int(_) | Self::Float(..) | Self::Array { .. } => None,
        };
        let mut bad = Vec::new();
        let wanted = job.wanted;
        let width = wanted.width().unwrap_or_default();
        for (row, place) in job.rows.clone().zip(out.chunks_exact_mut(width.max(1))) {
            let Some(pick) = job.picks.get(row) else { break };
            let done = match pick.block.field(pick.sample, wanted.source) {
                None => wanted
                    .fill_for(pick)
                    .map(|fill| place.copy_from_slice(fill))
                    .map_err(|reason| format!(" {reason}")),
                Some(bytes) => match (self, &mut decoder) {
                    (Self::Image { .. }, Some(decoder)) => decoder
                        .decode_into(bytes, identity(pick), place)
                        .map_err(|error| error.message().to_owned()),
                    (
                        Self::Array {
                            numbers,
                            dtype,
                            shape,
                        },
                        _,
                    ) => numbers.put(bytes, *dtype, shape, place),
                    (Self::Float(of, scale), _) => {
                        float(*of, *scale, bytes).map(|number| place.copy_from_slice(&number.to_le_bytes()))
                    }
                    (Self::Int(of), _) => {
                        integer(*of, bytes).map(|number| place.copy_from_slice(&number.to_le_bytes()))
                    }
                    (Self::Image { .. }, None) => Err("there is no decoder".to_owned()),
                }
                .map_err(|reason| format!(": {reason}")),
            };
            if let Err(reason) = done {
                let name = wanted.field.name.escape_debug();
                bad.push((row, format!("field '{name}'{reason}")));
            }
        }
        if let (Self::Image { free, .. }, Some(decoder)) = (self, decoder) {
            free.lock().unwrap_or_else(PoisonError::into_inner).push(decoder);
        }
        bad
    }
}

/// Which values to decode.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub(super) epoch: u64,
    pub(super) picks: &'a [Pick],
    pub(super) rows: Range<usize>,
    pub(super) wanted: &'a Wanted,
}

/// Some rows of a decoded field, with the place they go to.
#[derive(Debug)]
pub(super) struct Piece {
    /// Number of the field among those wanted.
    pub(super) wanted: usize,
    pub(super) rows: Range<usize>,
    pub(super) out: AlignedBuf,
    /// Values that could not be decoded, with the reason.
    pub(super) bad: Vec<(usize, String)>,
}

/// What random choices for a sample follow from: where it lies, whoever reads it and when.
fn identity(pick: &Pick) -> u64 {
    u64::from(pick.block.shard) << 40 | (pick.block.index(pick.sample) & ((1 << 40) - 1))
}

/// A number of that type, or of text, as an `int64`.
fn integer(of: Option<Dtype>, bytes: &[u8]) -> Result<i64, String> {
    let Some(dtype) = of else {
        return number(bytes);
    };
    match Value::read(dtype, bytes) {
        Some(Value::Int(number)) => {
            i64::try_from(number).map_err(|_| format!("{number} does not fit into an int64"))
        }
        Some(Value::Bool(value)) => Ok(value.into()),
        _ => Err(format!("its {} bytes are no {dtype}", bytes.len())),
    }
}

/// A number of that type and scale, or of text, as a `float64`. Integers are what they are or bad; of what has digits behind the point, the nearest is meant.
fn float(of: Option<Dtype>, scale: u8, bytes: &[u8]) -> Result<f64, String> {
    let exact =
        |number: i128| exact_float(number).ok_or_else(|| format!("{number} has no float64 of its own"));
    let Some(dtype) = of else {
        return match number::<i128>(bytes) {
            Ok(number) if number != 0 => exact(number),
            // What is so long is no float of its own; a zero may have a sign.
            Err(_) if is_whole(bytes) => number::<i64>(bytes).map(|number| number as f64),
            _ => number(bytes),
        };
    };
    match Value::read(dtype, bytes) {
        Some(Value::Int(number)) if scale > 0 => self::number(format!("{number}e-{scale}").as_bytes()),
        Some(Value::Int(number)) => exact(number),
        Some(Value::Float(number)) => Ok(number),
        Some(Value::Bool(value)) => Ok(f64::from(value)),
        _ => Err(format!("its {} bytes are no {dtype}", bytes.len())),
    }
}

/// True for text of digits alone, behind a sign or none.
fn is_whole(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let digits = text
        .strip_prefix(b"-")
        .or(text.strip_prefix(b"+"))
        .unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Digits behind the point of the numbers that a field's integers stand for.
fn scale_of(stored: &Field) -> u8 {
    match stored.unit {
        Some(Unit::Decimal { scale, .. }) => scale,
        _ => 0,
    }
}

fn number<T: FromStr>(bytes: &[u8]) -> Result<T, String> {
    let text = std::str::from_utf8(bytes).map(str::trim);
    let number = text.ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let shown = String::from_utf8_lossy(bytes.get(..NUMBER_SHOWN_MAX).unwrap_or(bytes)).into_owned();
        format!("'{}' is no such number", shown.escape_debug())
    })
}

/// Bytes of a wrong number that an error shows.
const NUMBER_SHOWN_MAX: usize = 40;
