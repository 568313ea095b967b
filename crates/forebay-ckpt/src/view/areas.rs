//! Bytes in a row of a tensor as boxes of it. Pure.
//!
//! Of rows of rows, a range has the end of one, some whole ones, and the beginning of one; and so on within those two. So it is at most twice as many boxes
//! as there are dimensions, less one.

use forebay_core::Span;

use crate::dtype::Dtype;
use crate::load::Area;

/// The least bytes at whose multiples a row can be cut: those of an element, or of the fewest elements that fill whole bytes.
pub(super) fn grain_bytes(dtype: Dtype) -> u64 {
    match dtype.bits() {
        bits if bits.is_multiple_of(8) => bits / 8,
        bits if bits.is_multiple_of(4) => bits / 4,
        bits => bits / 2,
    }
}

/// The smallest range around `range` that can be cut out of a tensor of so many bytes.
pub(super) fn widen(dtype: Dtype, range: Span, bytes: u64) -> Span {
    let grain = grain_bytes(dtype).max(1);
    let start = range.start() - range.start() % grain;
    let end = range.end().next_multiple_of(grain).min(bytes);
    Span::new(start, end.max(start)).unwrap_or(range)
}

/// The boxes of a range that [`widen`] has made, in their order.
pub(super) fn boxes(dtype: Dtype, shape: &[u64], range: Span) -> Vec<Area> {
    let grain = grain_bytes(dtype).max(1);
    let elements = (grain * 8 / dtype.bits()).max(1);
    let (mut sizes, mut found) = (shape.to_vec(), Vec::new());
    // Rows have whole grains: a tensor whose rows end within a byte is refused when it is saved.
    if let Some(last) = sizes.last_mut() {
        *last /= elements;
    }
    cut(
        &sizes,
        range.start() / grain,
        range.end() / grain,
        &mut Vec::new(),
        &mut found,
    );
    for (offsets, lengths) in &mut found {
        for side in [offsets.last_mut(), lengths.last_mut()].into_iter().flatten() {
            *side *= elements;
        }
    }
    found
}

/// Boxes of units `start..end` of a box of these sizes, which is at `at` in the dimensions before it.
fn cut(sizes: &[u64], start: u64, end: u64, at: &mut Vec<u64>, found: &mut Vec<Area>) {
    if start >= end {
        return;
    }
    let whole = |rows: std::ops::Range<u64>, rest: &[u64]| {
        let mut offsets = at.clone();
        let mut lengths = vec![1; at.len()];
        offsets.push(rows.start);
        lengths.push(rows.end - rows.start);
        offsets.extend(rest.iter().map(|_| 0));
        lengths.extend(rest);
        (offsets, lengths)
    };
    let Some((_, rest)) = sizes.split_first() else {
        // A scalar, or one element of the last dimension.
        found.push((at.clone(), vec![1; at.len()]));
        return;
    };
    let row = rest.iter().product::<u64>().max(1);
    let (first, head) = (start / row, start % row);
    let (last, tail) = (end / row, end % row);
    if first == last {
        at.push(first);
        cut(rest, head, tail, at, found);
        at.pop();
        return;
    }
    let full = if head > 0 { first + 1 } else { first };
    let middle = (full < last).then(|| whole(full..last, rest));
    if head > 0 {
        at.push(first);
        cut(rest, head, row, at, found);
        at.pop();
    }
    found.extend(middle);
    at.push(last);
    cut(rest, 0, tail, at, found);
    at.pop();
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every element of a range once, in its order, in few boxes.
        #[test]
        fn boxes_are_the_elements_in_order(shape in prop::collection::vec(1u64..6, 0..5), from: prop::sample::Index, len: prop::sample::Index) {
            let count: u64 = shape.iter().product();
            let start = from.index(count as usize) as u64;
            let end = start + len.index((count - start + 1) as usize) as u64;
            let range = Span::new(start * 2, end * 2).unwrap();
            let found = boxes(Dtype::Bf16, &shape, range);
            prop_assert!(found.len() <= (2 * shape.len()).saturating_sub(1).max(1));
            let mut elements = Vec::new();
            for (offsets, lengths) in &found {
                prop_assert_eq!(lengths.len(), shape.len());
                for number in 0..lengths.iter().product::<u64>() {
                    let (mut rest, mut element, mut stride) = (number, 0, 1);
                    for dim in (0..shape.len()).rev() {
                        element += (offsets[dim] + rest % lengths[dim]) * stride;
                        rest /= lengths[dim];
                        stride *= shape[dim];
                    }
                    elements.push(element);
                }
            }
            prop_assert_eq!(elements, (start..end).collect::<Vec<_>>());
        }
    }

    #[test]
    fn elements_of_less_than_a_byte_are_cut_where_a_byte_ends() {
        assert_eq!(grain_bytes(Dtype::F4), 1);
        assert_eq!(grain_bytes(Dtype::F6_E2M3), 3);
        assert_eq!(grain_bytes(Dtype::C64), 8);
        let range = widen(Dtype::F6_E3M2, Span::new(4, 8).unwrap(), 12);
        assert_eq!((range.start(), range.end()), (3, 9));
        // Two rows of 8 elements, 6 bytes each: the second half of the first, the first half of the second.
        let found = boxes(Dtype::F6_E3M2, &[2, 8], range);
        assert_eq!(found, [(vec![0, 4], vec![1, 4]), (vec![1, 0], vec![1, 4])]);
        let found = boxes(Dtype::F4, &[2, 8], Span::new(1, 4).unwrap());
        assert_eq!(found, [(vec![0, 2], vec![1, 6])]);
    }
}
