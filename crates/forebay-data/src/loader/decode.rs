//! Decoding while batches are made: images to tensors, numbers in text to numbers.
//!
//! A decoded field is one array `[B, ...]` of the batch. Its values are written straight into their places; large batches of images are cut into
//! pieces of some rows, so that several threads work on one batch. What cannot be decoded is a bad sample like any other.

use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Error, ErrorKind, Result, Seed};
use forebay_io::AlignedBuf;

use super::collate::Pick;
use crate::image::{Decoder, ImagePlan};
use crate::schema::{Dtype, Field, Kind};

/// Values of a piece, at least: below that, handing over costs more than it brings.
const PIECE_ROWS_MIN: usize = 4;

/// What becomes of the bytes of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum Decode {
    /// An encoded image becomes `[3, H, W]`.
    Image(Arc<ImagePlan>),
    /// A whole number as text becomes an `int64`.
    Int,
    /// A number as text becomes a `float64`.
    Float,
}

impl FromStr for Decode {
    type Err = Error;

    /// `int`, `float`, or `image:` and a plan.
    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "int" => Ok(Self::Int),
            None if text == "float" => Ok(Self::Float),
            Some(("image", plan)) => Ok(Self::Image(Arc::new(ImagePlan::parse(plan)?))),
            _ => {
                let message = format!("'{}' is no way to decode", text.escape_debug());
                Err(Error::new(ErrorKind::InvalidInput, "stream", message)
                    .with_field("decode")
                    .with_hint("ways are int, float, and image:PLAN such as image:rrc:224,flip; in Python also json, text, bytes, or a function"))
            }
        }
    }
}

impl Decode {
    fn kind(&self) -> Kind {
        let (dtype, shape) = match self {
            Self::Int => (Dtype::Int64, Vec::new()),
            Self::Float => (Dtype::Float64, Vec::new()),
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
}

impl Wanted {
    pub(super) fn new(source: usize, stored: &Field, decode: Option<&Decode>, seed: Seed) -> Self {
        let (field, tool) = match decode {
            None => (stored.clone(), None),
            Some(decode) => {
                let field = Field {
                    kind: decode.kind(),
                    ..stored.clone()
                };
                (field, Some(Tool::new(decode, seed)))
            }
        };
        Self { source, field, tool }
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
    Int,
    Float,
}

impl Tool {
    fn new(decode: &Decode, seed: Seed) -> Self {
        match decode {
            Decode::Int => Self::Int,
            Decode::Float => Self::Float,
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
            Self::Int | Self::Float => rows.max(1),
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
            Self::Int | Self::Float => None,
        };
        let mut bad = Vec::new();
        for (row, place) in job.rows.clone().zip(out.chunks_exact_mut(job.width.max(1))) {
            let Some(pick) = job.picks.get(row) else { break };
            let done = match pick.block.field(pick.sample, job.source) {
                None => Err("it is missing".to_owned()),
                Some(bytes) => match (self, &mut decoder) {
                    (Self::Image { .. }, Some(decoder)) => decoder
                        .decode_into(bytes, identity(pick), place)
                        .map_err(|error| error.message().to_owned()),
                    (Self::Float, _) => {
                        number::<f64>(bytes).map(|number| place.copy_from_slice(&number.to_le_bytes()))
                    }
                    _ => number::<i64>(bytes).map(|number| place.copy_from_slice(&number.to_le_bytes())),
                },
            };
            if let Err(reason) = done {
                bad.push((row, format!("field '{}': {reason}", job.name.escape_debug())));
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
    pub(super) source: usize,
    pub(super) width: usize,
    pub(super) name: &'a str,
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
