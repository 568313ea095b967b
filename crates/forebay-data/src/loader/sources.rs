//! What is streamed: one data set, or several by weight.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Ledger, Result};
use forebay_store::Context;

use super::StreamSpec;
use super::decode::{Decode, Wanted};
use crate::codec::Codec;
use crate::dataset::Dataset;
use crate::filter::{KEY_COLUMN, key_field};
use crate::manifest::Shard;
use crate::order::{Cut, Last, Mixture, Order, OrderSpec, ShardSize, Shards, Source};
use crate::schema::{Field, Kind, Unit};

/// What varints take in a batch for each byte that is stored, on average: numbers below 128 take more, and are few.
const VARINTS_GROW: u64 = 4;

/// One data set, or several that are drawn from by weight.
///
/// Several have their fields in common: the ones that are streamed must be in each of them, and be the same there. Their shards are numbered one data set
/// after the other.
#[derive(Debug, Clone)]
pub struct Sources {
    pub(super) datasets: Vec<Dataset>,
    /// One for each, where there are several.
    pub(super) weights: Option<Vec<f64>>,
}

impl From<Dataset> for Sources {
    fn from(dataset: Dataset) -> Self {
        Self {
            datasets: vec![dataset],
            weights: None,
        }
    }
}

impl Sources {
    /// Data sets with their weights: shares in proportion to the others'. Without weights, each has as much as it has samples.
    pub fn mixed(datasets: Vec<Dataset>, weights: Option<Vec<f64>>) -> Result<Self> {
        let weights =
            weights.unwrap_or_else(|| datasets.iter().map(|data| data.samples_kept() as f64).collect());
        if datasets.is_empty() || weights.len() != datasets.len() {
            let message = format!("{} weights for {} data sets", weights.len(), datasets.len());
            return Err(Error::new(ErrorKind::InvalidInput, "mix", message).with_field("weights"));
        }
        Ok(Self {
            datasets,
            weights: Some(weights),
        })
    }

    /// The data sets.
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// The share of each, together 1; none where there is one data set.
    pub fn shares(&self) -> Vec<f64> {
        let weights = self.weights.as_deref().unwrap_or_default();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// Samples of all of them, where they are kept.
    pub fn samples_kept(&self) -> u64 {
        self.datasets.iter().map(Dataset::samples_kept).sum()
    }

    pub(super) fn context(&self) -> Result<&Context> {
        let first = self.datasets.first();
        Ok(first
            .ok_or_else(|| internal("a stream without a data set"))?
            .context())
    }

    /// Which way the bytes came that were read before streaming, and of the indexes since.
    pub(super) fn opening_ledger(&self) -> Ledger {
        let mut opening = Ledger::default();
        for dataset in &self.datasets {
            opening.merge(dataset.ledger());
            opening.merge(&dataset.manifest().ledger());
            if let Some(filter) = dataset.filter_ledger() {
                opening.merge(filter);
            }
        }
        opening
    }

    /// Where a shard is by its number over all data sets: the number of its data set, and its own there.
    fn locate(&self, number: u32) -> Option<(usize, usize)> {
        let mut number = number as usize;
        for (place, dataset) in self.datasets.iter().enumerate() {
            match number.checked_sub(dataset.shards().len()) {
                None => return Some((place, number)),
                Some(behind) => number = behind,
            }
        }
        None
    }

    /// A shard by its number over all data sets, with the data set it belongs to.
    pub fn shard(&self, number: u32) -> Option<(&Dataset, &Shard)> {
        let (place, number) = self.locate(number)?;
        let dataset = self.datasets.get(place)?;
        Some((dataset, dataset.shards().get(number)?))
    }

    /// Whether a shard has another version than the one that was indexed.
    pub(super) fn is_touched(&self, number: u32) -> bool {
        let found = self.locate(number);
        let dataset = found.and_then(|(place, number)| Some((self.datasets.get(place)?, number)));
        dataset.is_some_and(|(dataset, number)| dataset.is_touched(number))
    }

    /// What a shard is called: its key, in a mixture behind the number of its data set.
    pub fn shard_name(&self, number: u32) -> String {
        match (self.locate(number), self.shard(number)) {
            (Some(_), Some((_, shard))) if self.datasets.len() == 1 => shard.key.to_string(),
            (Some((place, _)), Some((_, shard))) => format!("{place}/{}", shard.key),
            _ => number.to_string(),
        }
    }

    /// The mixture, where there are weights. Each data set has a seed of its own, lest two of one size be read in step; epochs of its own, of
    /// which no sample is left out; and no limit, which is one of the whole.
    pub(super) fn mixture(&self, spec: &OrderSpec) -> Result<Option<Mixture>> {
        let Some(weights) = &self.weights else {
            return Ok(None);
        };
        let pairs = self.datasets.iter().zip(weights).enumerate();
        let sources = pairs.map(|(number, (dataset, weight))| {
            let seed = match number {
                0 => spec.seed,
                number => spec.seed.derive(number as u64),
            };
            let spec = OrderSpec {
                seed,
                last: Last::Wrap,
                limit: None,
                ..spec.clone()
            };
            let order = order_of(dataset, spec).map_err(|error| error.at(dataset.store().location()))?;
            Ok(Source {
                order,
                weight: *weight,
            })
        });
        Mixture::new(sources.collect::<Result<_>>()?, spec.seed).map(Some)
    }

    /// The fields that are wanted, and what becomes of them; numbers are those of the first data set's schema.
    pub(super) fn wanted(&self, spec: &StreamSpec) -> Result<Arc<[Wanted]>> {
        let Some((first, others)) = self.datasets.split_first() else {
            return Err(internal("a stream without a data set"));
        };
        let mut wanted = wanted(first, spec)?;
        // Keys are keys in every format, and a field only in some.
        let has_key = |other: &Dataset| other.schema().index_of(KEY_COLUMN).is_some();
        if spec.fields.is_none() && !others.iter().all(has_key) {
            wanted.retain(|wanted| !is_key(&wanted.field));
        }
        for other in others {
            let fields = wanted
                .iter()
                .filter_map(|wanted| first.schema().fields().get(wanted.source));
            for field in fields {
                let index = other.schema().index_of(&field.name);
                let is = index.and_then(|index| other.schema().fields().get(index));
                let is_alike = |is: &Field| is.is_like(field) || (is_key(is) && is_key(field));
                if !is.is_some_and(is_alike) {
                    return Err(uncommon(field, is, first, other));
                }
            }
            // What only a later one has would be left out without a word. Keys are no loss: they are not fields in every format.
            let mut own = other.schema().fields().iter();
            let is_lost =
                |field: &&Field| field.name != KEY_COLUMN && first.schema().index_of(&field.name).is_none();
            if let Some(field) = own.find(is_lost).filter(|_| spec.fields.is_none()) {
                return Err(uncommon(field, None, first, other));
            }
        }
        Ok(wanted.into())
    }

    /// Bytes that a batch has on average.
    pub(super) fn batch_bytes(&self, fields: &[Wanted], batch_size: u64) -> u64 {
        let shards = || self.datasets.iter().flat_map(Dataset::shards);
        let stored: u64 = shards().map(|shard| shard.raw_bytes).sum();
        let samples: u64 = shards().map(|shard| shard.samples).sum();
        let decoded = fields.iter().filter(|wanted| wanted.tool.is_some());
        let decoded: u64 = decoded.filter_map(|wanted| wanted.field.kind.fixed_bytes()).sum();
        // Integers that are stored as varints take eight bytes each in a batch; tokens two or three before. Beside other fields, they are few.
        let mut stored_as_is = fields.iter().filter(|wanted| wanted.tool.is_none()).peekable();
        let is_wider = stored_as_is.peek().is_some() && stored_as_is.all(Wanted::grows);
        let stored = stored.saturating_mul(if is_wider { VARINTS_GROW } else { 1 });
        let mean = u128::from(stored) * u128::from(batch_size) / u128::from(samples.max(1));
        u64::try_from(mean)
            .unwrap_or(u64::MAX)
            .saturating_add(decoded.saturating_mul(batch_size))
            .clamp(4096, 1 << 40)
    }
}

/// The order of a data set's samples.
pub fn order_of(dataset: &Dataset, spec: OrderSpec) -> Result<Order> {
    let sizes = dataset.shards().iter().map(size_of).collect();
    let identity = dataset.manifest().fingerprint();
    let identity = identity.first_chunk().copied().map_or(0, u64::from_le_bytes);
    let shards = Shards::new(sizes)?.with_identity(identity);
    let selections: Option<Vec<_>> = (0..dataset.shards().len())
        .map(|shard| dataset.selection(shard))
        .collect();
    match selections.filter(|selections| !selections.is_empty()) {
        Some(selections) => Order::new(shards.select(&selections)?, spec),
        None => Order::new(shards, spec),
    }
}

fn size_of(shard: &Shard) -> ShardSize {
    let cut = if shard.codec != Codec::None {
        Cut::Whole
    } else if shard.groups.is_empty() {
        Cut::Anywhere
    } else {
        Cut::Groups(shard.groups.clone())
    };
    ShardSize {
        samples: shard.samples,
        bytes: shard.raw_bytes,
        cut,
    }
}

/// The fields that are wanted, and what becomes of them.
fn wanted(dataset: &Dataset, spec: &StreamSpec) -> Result<Vec<Wanted>> {
    let schema = dataset.schema();
    let unknown = |argument: &'static str, name: &str, known: Vec<&str>| {
        let message = format!("there is no field '{}'", name.escape_debug());
        Error::new(ErrorKind::InvalidInput, "stream", message)
            .with_field(argument)
            .with_hint(format!("there are: {}", known.join(", ")))
    };
    let names = || schema.fields().iter().map(|field| field.name.as_str());
    let indices = match &spec.fields {
        None => (0..schema.fields().len()).collect(),
        Some(wanted) => {
            let indices = wanted.iter().map(|name| {
                let index = schema.index_of(name);
                index.ok_or_else(|| unknown("fields", name, names().collect()))
            });
            indices.collect::<Result<Vec<usize>>>()?
        }
    };
    let fields: Vec<(usize, &Field)> = indices
        .into_iter()
        .filter_map(|index| Some((index, schema.fields().get(index)?)))
        .collect();
    if let Some((name, _)) = spec
        .decode
        .iter()
        .find(|(name, _)| !fields.iter().any(|(_, field)| field.name == *name))
    {
        let known = fields.iter().map(|(_, field)| field.name.as_str());
        return Err(unknown("decode", name, known.collect()));
    }
    for (name, decode) in &spec.decode {
        let stored = fields.iter().find(|(_, field)| field.name == *name);
        if let Some((_, field)) = stored.filter(|(_, field)| !decode.fits(field)) {
            return Err(misfit(field, decode));
        }
    }
    let wanted = fields.into_iter().map(|(index, field)| {
        let decode = spec.decode.iter().find(|(name, _)| field.name == *name);
        Wanted::new(index, field, decode.map(|(_, decode)| decode), spec.order.seed)
    });
    Ok(wanted.collect())
}

/// A field that cannot be decoded in that way.
fn misfit(field: &Field, decode: &Decode) -> Error {
    let (name, kind) = (field.name.escape_debug(), &field.kind);
    let (message, hint) = match (decode, kind) {
        (Decode::Array { dtype, .. }, _) => (
            format!("field '{name}' is {kind}, which is no array of {dtype} of that shape"),
            "arrays are made of bytes, and of lists and arrays of the same type".to_owned(),
        ),
        (Decode::Image(_), _) => (
            format!("field '{name}' is {kind}, and no image file"),
            "JPEG and PNG are decoded; what else there is, a function in Python can decode".to_owned(),
        ),
        (_, Kind::List { dtype }) => (
            format!("field '{name}' is no text but {kind}"),
            format!("leave it as it is stored, or write array:{dtype} where each sample has one number"),
        ),
        (Decode::Int { .. }, Kind::Array { .. }) if matches!(field.unit, Some(Unit::Decimal { .. })) => (
            format!("field '{name}' has digits behind the point"),
            "leave it as it is stored, or write float".to_owned(),
        ),
        (_, Kind::Array { .. }) => (
            format!("field '{name}' is no text but numbers already"),
            "leave it as it is stored".to_owned(),
        ),
        _ => (
            format!("field '{name}' is {kind}, and no number as text"),
            "see how it is stored: forebay inspect".to_owned(),
        ),
    };
    Error::new(ErrorKind::InvalidInput, "stream", message)
        .with_field("decode")
        .with_hint(hint)
}

/// True for the field that is the key of samples: of text in some formats, of bytes in others.
fn is_key(field: &Field) -> bool {
    key_field(std::slice::from_ref(field)).is_some()
}

/// A field that not all data sets have in common.
fn uncommon(field: &Field, is: Option<&Field>, first: &Dataset, other: &Dataset) -> Error {
    let name = field.name.escape_debug();
    let message = match is {
        None => format!("not all data sets have a field '{name}'"),
        Some(is) => format!(
            "field '{name}' is {} here, and {} in the first data set",
            is.what(),
            field.what()
        ),
    };
    let fields = first.schema().fields().iter();
    let others = other.schema().fields();
    let common: Vec<&str> = fields
        .filter(|field| others.contains(field) || is_key(field) && others.iter().any(is_key))
        .map(|field| field.name.as_str())
        .collect();
    let hint = if common.is_empty() {
        "they have no field in common".to_owned()
    } else {
        format!("choose fields they have in common: {}", common.join(","))
    };
    Error::new(ErrorKind::InvalidInput, "mix", message)
        .at(other.store().location())
        .with_field("fields")
        .with_hint(hint)
}

pub(super) fn internal(message: &str) -> Error {
    Error::new(ErrorKind::Internal, "stream", message)
}
