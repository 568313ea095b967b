//! What the file that a checkpoint is shown as holds: its header, where the bytes of each tensor come from, and where it is best cut.
//!
//! Tensors lie in the order of a payload of one rank ([`file_order`]): those of whole pages first, then the widest elements. So the file is read as payloads
//! are, from front to back, and a tensor is as far from a page boundary as it is in the payload of a checkpoint of one rank, which direct reads need.

use std::collections::BTreeMap;

use forebay_core::safetensors::{Dtype as FileDtype, Encoded, HeaderBuilder, METADATA_KEY, Order};
use forebay_core::{Error, ErrorKind, Result, Span};

use crate::entry::{Alias, Content, SliceSpec};
use crate::layout::{ALIGN, file_order};
use crate::load::Area;
use crate::open::Checkpoint;

/// A tensor of the file.
#[derive(Debug)]
pub(super) struct Shown {
    /// Where it is in the file.
    pub(super) span: Span,
    pub(super) origin: Origin,
}

/// Where its bytes come from.
#[derive(Debug)]
pub(super) enum Origin {
    /// From a tensor that is stored, in its order, from a byte on.
    Run {
        name: String,
        spec: SliceSpec,
        first: u64,
    },
    /// From elements of another tensor, in another order.
    Turned { name: String, spec: SliceSpec },
}

/// All of the file.
#[derive(Debug)]
pub(super) struct Contents {
    /// Everything before the data.
    pub(super) header: Vec<u8>,
    /// Bytes of the file.
    pub(super) bytes: u64,
    /// In the order of the file.
    pub(super) shown: Vec<Shown>,
    /// Spans of the file, one behind the other, and the bytes from one good place for a cut to the next, counted from the start of the span.
    pub(super) cuts: Vec<(Span, u64)>,
    /// Names of tensors that such a file cannot hold.
    pub(super) left_out: Vec<String>,
}

/// A tensor that is stored, by all of its slices.
#[derive(Debug)]
struct Tensor {
    spec: SliceSpec,
    slices: Vec<Area>,
}

/// A tensor on its way into the file.
struct Draft {
    name: String,
    spec: SliceSpec,
    origin: Origin,
    cuts: Vec<(Span, u64)>,
    is_alias: bool,
}

impl Contents {
    pub(super) async fn of(checkpoint: &Checkpoint) -> Result<Self> {
        let mut tensors: BTreeMap<String, Tensor> = BTreeMap::new();
        let mut aliases: BTreeMap<String, Alias> = BTreeMap::new();
        for found in checkpoint.entries().await? {
            let name = found.entry.name;
            match found.entry.content {
                Content::Slice { spec, .. } => {
                    let whole = SliceSpec::whole(spec.dtype, &spec.shape);
                    let tensor = tensors.entry(name).or_insert_with(|| Tensor {
                        spec: whole,
                        slices: Vec::new(),
                    });
                    tensor.slices.push((spec.offsets, spec.lengths));
                }
                Content::Alias(alias) => drop(aliases.insert(name, alias)),
                Content::Value(_) | Content::Opaque(_) => {}
            }
        }
        let chunk_bytes = u64::from(checkpoint.manifest().chunk_bytes);
        let mut drafts = aliases_of(&tensors, aliases, chunk_bytes)?;
        drafts.extend(tensors.into_iter().map(|(name, tensor)| Draft {
            cuts: cuts_of(&tensor.spec, &tensor.slices, chunk_bytes),
            origin: Origin::Run {
                name: name.clone(),
                spec: tensor.spec.clone(),
                first: 0,
            },
            spec: tensor.spec,
            name,
            is_alias: false,
        }));
        Self::lay_out(drafts, checkpoint.step())
    }

    fn lay_out(drafts: Vec<Draft>, step: u64) -> Result<Self> {
        let (drafts, others): (Vec<_>, Vec<_>) = drafts.into_iter().partition(has_place);
        let left_out = others.into_iter().map(|draft| draft.name).collect();
        let drafts = in_order(drafts);
        let metadata = BTreeMap::from([
            // What loaders of model hubs ask for.
            ("format".to_owned(), "pt".to_owned()),
            ("forebay.step".to_owned(), step.to_string()),
        ]);
        let mut builder = HeaderBuilder::new()
            .order(Order::Given)
            .align(ALIGN)
            .metadata(Some(metadata));
        for draft in &drafts {
            let dtype = FileDtype::parse(draft.spec.dtype.name())?;
            builder.tensor(draft.name.clone(), dtype, draft.spec.shape.clone());
        }
        let Encoded { bytes, header, .. } = builder.encode()?;
        let mut contents = Self {
            bytes: header.file_len(),
            header: bytes,
            shown: Vec::with_capacity(drafts.len()),
            cuts: Vec::new(),
            left_out,
        };
        for (draft, info) in drafts.into_iter().zip(header.tensors()) {
            let span = info.span;
            for (within, step) in draft.cuts {
                let place = Span::at(span.start() + within.start(), within.len())?;
                add_cuts(&mut contents.cuts, place, step);
            }
            let origin = draft.origin;
            contents.shown.push(Shown { span, origin });
        }
        Ok(contents)
    }
}

/// Names that stand for a tensor, or for some of its elements.
fn aliases_of(
    tensors: &BTreeMap<String, Tensor>,
    aliases: BTreeMap<String, Alias>,
    chunk_bytes: u64,
) -> Result<Vec<Draft>> {
    let corrupt = |message: String| Error::new(ErrorKind::Corrupt, "open checkpoint", message);
    let mut drafts = Vec::with_capacity(aliases.len());
    for (name, alias) in aliases {
        if tensors.contains_key(&name) {
            return Err(corrupt(format!("{name:?} is a tensor, and another name of one")));
        }
        let target = tensors
            .get(&alias.target)
            .filter(|tensor| tensor.spec.dtype == alias.dtype);
        let Some(target) = target else {
            let message = format!("{name:?} stands for {:?}, which is not there", alias.target);
            return Err(corrupt(message));
        };
        let spec = SliceSpec::whole(alias.dtype, &alias.shape);
        let (bytes, target_bytes) = (spec.bytes(), target.spec.bytes());
        let first = alias.dtype.bytes_of(&[alias.first_element]);
        let run = first.filter(|_| is_in_a_row(&alias)).unwrap_or(u64::MAX);
        let is_run = run.checked_add(bytes).is_some_and(|end| end <= target_bytes);
        let (origin, cuts) = if is_run {
            let cuts = if bytes == target_bytes {
                cuts_of(&target.spec, &target.slices, chunk_bytes)
            } else {
                uncut(bytes)
            };
            let name = alias.target;
            let (spec, first) = (target.spec.clone(), run);
            (Origin::Run { name, spec, first }, cuts)
        } else {
            let (name, spec) = (name.clone(), spec.clone());
            (Origin::Turned { name, spec }, uncut(bytes))
        };
        drafts.push(Draft {
            name,
            spec,
            origin,
            cuts,
            is_alias: true,
        });
    }
    Ok(drafts)
}

/// True when the elements of an alias lie one after the other.
fn is_in_a_row(alias: &Alias) -> bool {
    let mut expected: u64 = 1;
    let sides = alias.shape.iter().zip(&alias.strides).rev();
    let mut is_row = true;
    for (size, stride) in sides {
        is_row &= *size == 1 || *stride == expected;
        expected = expected.saturating_mul(*size);
    }
    is_row
}

/// Whether a safetensors file can hold it.
fn has_place(draft: &Draft) -> bool {
    draft.name != METADATA_KEY && FileDtype::parse(draft.spec.dtype.name()).is_ok()
}

/// As a payload has them; other names where they leave the others at their places.
fn in_order(drafts: Vec<Draft>) -> Vec<Draft> {
    let rows: Vec<(&str, &SliceSpec)> = drafts
        .iter()
        .map(|draft| (draft.name.as_str(), &draft.spec))
        .collect();
    let order = file_order(&rows);
    let mut ranks = vec![0; drafts.len()];
    for (rank, index) in order.into_iter().enumerate() {
        if let Some(place) = ranks.get_mut(index) {
            *place = rank;
        }
    }
    let mut ranked: Vec<(usize, Draft)> = ranks.into_iter().zip(drafts).collect();
    ranked.sort_by_key(|(rank, draft)| {
        let is_odd = !draft.spec.bytes().is_multiple_of(ALIGN);
        (is_odd, draft.is_alias, *rank)
    });
    ranked.into_iter().map(|(_, draft)| draft).collect()
}

/// One span without a place for a cut within it.
fn uncut(bytes: u64) -> Vec<(Span, u64)> {
    if bytes == 0 {
        return Vec::new();
    }
    vec![(Span::first(bytes), bytes)]
}

/// Where a tensor of these slices is cut without any of their chunks: spans of its bytes, each with the distance of such places.
pub(super) fn cuts_of(tensor: &SliceSpec, slices: &[Area], chunk_bytes: u64) -> Vec<(Span, u64)> {
    let bytes = tensor.bytes();
    let runs: Option<Vec<Span>> = slices
        .iter()
        .map(|(offsets, lengths)| run_of(tensor, offsets, lengths))
        .collect();
    if let Some(mut runs) = runs {
        // Replicated ones come again.
        runs.sort_by_key(|run| (run.start(), std::cmp::Reverse(run.end())));
        let mut cuts = Vec::new();
        let mut end = 0;
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            if run.start() == end {
                add_cuts(&mut cuts, run, chunk_bytes);
                end = run.end();
            }
        }
        return if end == bytes { cuts } else { uncut(bytes) };
    }
    match band_bytes(tensor, slices, chunk_bytes) {
        Some(band) if band < bytes => vec![(Span::first(bytes), band)],
        _ => uncut(bytes),
    }
}

/// Append a span, to the one before where both are cut alike.
fn add_cuts(cuts: &mut Vec<(Span, u64)>, span: Span, step: u64) {
    if let Some((last, before)) = cuts.last_mut()
        && last.end() == span.start()
        && *before == step
        && last.len().is_multiple_of(step.max(1))
        && let Ok(joined) = Span::new(last.start(), span.end())
    {
        *last = joined;
        return;
    }
    cuts.push((span, step));
}

/// The bytes of a slice, where they lie in a row in the tensor: whole dimensions from the right, one part, and single indices before it.
fn run_of(tensor: &SliceSpec, offsets: &[u64], lengths: &[u64]) -> Option<Span> {
    let bits = tensor.dtype.bits();
    let (mut inner, mut first, mut is_whole) = (bits, 0u64, true);
    let sides = tensor.shape.iter().zip(offsets.iter().zip(lengths)).rev();
    for (size, (offset, length)) in sides {
        if !is_whole && *length != 1 {
            return None;
        }
        is_whole &= length == size;
        first = first.checked_add(offset.checked_mul(inner)?)?;
        inner = inner.checked_mul(*size)?;
    }
    let bytes = tensor.dtype.bytes_of(lengths)?;
    first.is_multiple_of(8).then(|| Span::at(first / 8, bytes).ok())?
}

/// Bytes of the least rows at whose multiples no slice has a chunk cut, where each has part of all rows. Chunks are a power of two long.
fn band_bytes(tensor: &SliceSpec, slices: &[Area], chunk_bytes: u64) -> Option<u64> {
    let (rows, row_shape) = tensor.shape.split_first()?;
    let mut band: u64 = 1;
    for (offsets, lengths) in slices {
        let (own_rows, own_shape) = lengths.split_first()?;
        if offsets.first() != Some(&0) || own_rows != rows {
            return None;
        }
        let row_bytes = tensor.dtype.bytes_of(own_shape).filter(|bytes| *bytes > 0)?;
        let shared = chunk_bytes.trailing_zeros().min(row_bytes.trailing_zeros());
        band = band.max(chunk_bytes >> shared);
    }
    tensor.dtype.bytes_of(row_shape)?.checked_mul(band)
}
