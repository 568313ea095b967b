//! Which tensors a checkpoint has, over all ranks, and how each is read piece by piece in the order of its bytes.

use std::collections::BTreeMap;

use forebay_core::{Error, ErrorKind, Result};

use crate::dtype::Dtype;
use crate::entry::{Alias, Content};
use crate::open::Checkpoint;

/// Most bytes of a tensor whose elements must be put in another order, which takes all of it in memory.
const GATHER_BYTES_MAX: u64 = 4 << 30;

/// A tensor under the name that it is to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<u64>,
    pub(super) bytes: u64,
    /// The tensor in the checkpoint that has its bytes, and that one's shape.
    pub(super) target: String,
    pub(super) target_shape: Vec<u64>,
    /// For aliases: first element and strides in the target.
    pub(super) view: Option<(u64, Vec<u64>)>,
}

/// All that is to be exported, by name.
#[derive(Debug, Default)]
pub(super) struct Tensors {
    pub(super) list: Vec<Tensor>,
    /// Names of values, in the checkpoint and to be.
    pub(super) values: Vec<(String, String)>,
    /// Names of what no format holds.
    pub(super) opaque: Vec<String>,
}

impl Tensors {
    pub(super) async fn of(checkpoint: &Checkpoint, prefix: Option<&str>) -> Result<Self> {
        let mut slices: BTreeMap<String, (Dtype, Vec<u64>)> = BTreeMap::new();
        let mut aliases: BTreeMap<String, Alias> = BTreeMap::new();
        let (mut values, mut opaque) = (Vec::new(), Vec::new());
        for found in checkpoint.entries().await? {
            let name = found.entry.name;
            match found.entry.content {
                Content::Slice { spec, .. } => drop(slices.insert(name, (spec.dtype, spec.shape))),
                Content::Alias(alias) => drop(aliases.insert(name, alias)),
                Content::Value(_) => values.push(name),
                Content::Opaque(_) => opaque.push(name),
            }
        }
        let renamed = |name: &str| match prefix {
            None => Some(name.to_owned()),
            Some(prefix) => name
                .strip_prefix(prefix)
                .filter(|rest| !rest.is_empty())
                .map(str::to_owned),
        };
        let mut all = Self::default();
        for (name, (dtype, shape)) in &slices {
            let Some(new) = renamed(name) else { continue };
            all.list.push(Tensor {
                name: new,
                dtype: *dtype,
                shape: shape.clone(),
                bytes: dtype.bytes_of(shape).unwrap_or(0),
                target: name.clone(),
                target_shape: shape.clone(),
                view: None,
            });
        }
        for (name, alias) in aliases {
            let Some(new) = renamed(&name) else { continue };
            let target = slices
                .get(&alias.target)
                .filter(|(dtype, _)| *dtype == alias.dtype);
            let Some((dtype, target_shape)) = target else {
                let message = format!("{name:?} stands for {:?}, which is not there", alias.target);
                return Err(Error::new(ErrorKind::Corrupt, "export", message));
            };
            all.list.push(Tensor {
                name: new,
                dtype: *dtype,
                bytes: dtype.bytes_of(&alias.shape).unwrap_or(0),
                target_shape: target_shape.clone(),
                target: alias.target,
                shape: alias.shape,
                view: Some((alias.first_element, alias.strides)),
            });
        }
        all.list.sort_by(|a, b| a.name.cmp(&b.name));
        values.dedup();
        let values = values.into_iter();
        all.values = values
            .filter_map(|name| Some((name.clone(), renamed(&name)?)))
            .collect();
        all.opaque = opaque.iter().filter_map(|name| renamed(name)).collect();
        Ok(all)
    }
}

/// A box of the target whose bytes come next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offsets: Vec<u64>,
    pub(super) lengths: Vec<u64>,
    /// For views that are not in a row: what is taken of it, and how.
    pub(super) gather: Option<Gather>,
}

/// Elements of a whole target in another order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gather {
    pub(super) first: u64,
    pub(super) shape: Vec<u64>,
    pub(super) strides: Vec<u64>,
    pub(super) element_bytes: usize,
}

impl Tensor {
    /// What its bytes are made of, in their order, in pieces of at most about `piece_bytes`.
    pub(super) fn pieces(&self, piece_bytes: u64) -> Result<Vec<Piece>> {
        let Some((first, strides)) = &self.view else {
            return Ok(boxes(self.dtype, &self.target_shape, 0..u64::MAX, piece_bytes));
        };
        let count: u64 = self.shape.iter().product();
        if count == 0 {
            return Ok(Vec::new());
        }
        let row = self.target_shape.iter().skip(1).product::<u64>().max(1);
        let is_rows = first.is_multiple_of(row) && count.is_multiple_of(row) && !self.target_shape.is_empty();
        if is_in_a_row(&self.shape, strides) && is_rows {
            let rows = first / row..(first / row).saturating_add(count / row);
            return Ok(boxes(self.dtype, &self.target_shape, rows, piece_bytes));
        }
        let target_bytes = self.dtype.bytes_of(&self.target_shape).unwrap_or(u64::MAX);
        if target_bytes > GATHER_BYTES_MAX || !self.dtype.bits().is_multiple_of(8) {
            let message = format!(
                "{:?} shares {:?} in another order, and that is too large to turn, or has elements of less than a byte",
                self.name, self.target
            );
            return Err(Error::new(ErrorKind::Unsupported, "export", message));
        }
        Ok(vec![Piece {
            offsets: vec![0; self.target_shape.len()],
            lengths: self.target_shape.clone(),
            gather: Some(Gather {
                first: *first,
                shape: self.shape.clone(),
                strides: strides.clone(),
                element_bytes: (self.dtype.bits() / 8) as usize,
            }),
        }])
    }

    /// Strides of a tensor of that shape whose elements lie in a row.
    pub(super) fn strides(&self) -> Vec<u64> {
        row_strides(&self.shape)
    }
}

fn row_strides(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    let mut stride: u64 = 1;
    for (place, size) in strides.iter_mut().zip(shape).rev() {
        *place = stride;
        stride = stride.saturating_mul(*size);
    }
    strides
}

fn is_in_a_row(shape: &[u64], strides: &[u64]) -> bool {
    let expected = row_strides(shape);
    let dims = shape.iter().zip(strides.iter().zip(expected));
    dims.into_iter()
        .all(|(size, (stride, expected))| *size == 1 || *stride == expected)
}

/// Boxes whose bytes, one after the other, are those of the given rows (of the first dimension).
fn boxes(dtype: Dtype, shape: &[u64], rows: std::ops::Range<u64>, piece_bytes: u64) -> Vec<Piece> {
    let Some((height, rest)) = shape.split_first() else {
        return vec![Piece {
            offsets: Vec::new(),
            lengths: Vec::new(),
            gather: None,
        }];
    };
    let rows = rows.start.min(*height)..rows.end.min(*height);
    if rows.is_empty() || rest.contains(&0) {
        return Vec::new();
    }
    let row_bits = rest.iter().product::<u64>().saturating_mul(dtype.bits());
    let row_bytes = row_bits.div_ceil(8);
    if row_bytes > piece_bytes && !rest.is_empty() {
        let inner = boxes(dtype, rest, 0..u64::MAX, piece_bytes);
        let with_row = |row: u64| {
            inner.iter().map(move |piece| Piece {
                offsets: [&[row], &piece.offsets[..]].concat(),
                lengths: [&[1], &piece.lengths[..]].concat(),
                gather: None,
            })
        };
        return rows.flat_map(with_row).collect();
    }
    let mut step = (piece_bytes.saturating_mul(8) / row_bits.max(1)).max(1);
    if !row_bits.is_multiple_of(8) {
        // Elements of less than a byte are cut between bytes.
        step = step.next_multiple_of(8);
    }
    let starts = (rows.start..rows.end).step_by(usize::try_from(step).unwrap_or(usize::MAX));
    let piece = |start: u64| {
        let mut offsets = vec![0; shape.len()];
        let mut lengths = shape.to_vec();
        if let (Some(offset), Some(length)) = (offsets.first_mut(), lengths.first_mut()) {
            (*offset, *length) = (start, step.min(rows.end - start));
        }
        Piece {
            offsets,
            lengths,
            gather: None,
        }
    };
    starts.map(piece).collect()
}

impl Gather {
    /// The elements of a view, out of all bytes of its target.
    pub(super) fn take(&self, target: &[u8]) -> Result<Vec<u8>> {
        let count: u64 = self.shape.iter().product();
        let width = self.element_bytes;
        let mut out = Vec::with_capacity(usize::try_from(count).unwrap_or(0).saturating_mul(width));
        for number in 0..count {
            let (mut rest, mut element) = (number, self.first);
            for (size, stride) in self.shape.iter().zip(&self.strides).rev() {
                element = element.saturating_add((rest % size).saturating_mul(*stride));
                rest /= size;
            }
            let start = usize::try_from(element)
                .unwrap_or(usize::MAX)
                .saturating_mul(width);
            let bytes = target.get(start..start.saturating_add(width)).ok_or_else(|| {
                Error::new(
                    ErrorKind::Corrupt,
                    "export",
                    "a view reaches beyond what it is a view of",
                )
            })?;
            out.extend_from_slice(bytes);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the shape and the size of pieces: every element once, in its order.
        #[test]
        fn pieces_are_all_bytes_in_order(shape in prop::collection::vec(0u64..7, 0..4), piece_bytes in 1u64..200) {
            let strides = row_strides(&shape);
            let mut elements = Vec::new();
            for piece in boxes(Dtype::F32, &shape, 0..u64::MAX, piece_bytes) {
                let count: u64 = piece.lengths.iter().product();
                prop_assert!(count * 4 <= piece_bytes.max(4));
                for number in 0..count {
                    let (mut rest, mut element) = (number, 0);
                    for dim in (0..shape.len()).rev() {
                        element += (piece.offsets[dim] + rest % piece.lengths[dim]) * strides[dim];
                        rest /= piece.lengths[dim];
                    }
                    elements.push(element);
                }
            }
            let all: Vec<u64> = (0..shape.iter().product()).collect();
            prop_assert_eq!(elements, all);
        }
    }

    #[test]
    fn views_are_read_in_rows_or_gathered() {
        let tensor = |shape: &[u64], first, strides: &[u64]| Tensor {
            name: "v".to_owned(),
            dtype: Dtype::U8,
            shape: shape.to_vec(),
            bytes: shape.iter().product(),
            target: "t".to_owned(),
            target_shape: vec![4, 6],
            view: Some((first, strides.to_vec())),
        };
        let rows = tensor(&[2, 6], 6, &[6, 1]).pieces(1000).unwrap();
        assert_eq!(rows[0].offsets, [1, 0]);
        assert_eq!(rows[0].lengths, [2, 6]);
        let turned = tensor(&[6, 4], 0, &[1, 6]).pieces(1000).unwrap();
        let gather = turned[0].gather.as_ref().unwrap();
        let target: Vec<u8> = (0..24).collect();
        assert_eq!(gather.take(&target).unwrap()[..5], [0, 6, 12, 18, 1]);
        let beyond = tensor(&[6, 5], 0, &[1, 6]).pieces(1000).unwrap();
        assert!(beyond[0].gather.as_ref().unwrap().take(&target).is_err());
    }
}
