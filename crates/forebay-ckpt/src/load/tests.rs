//! Plans of copies against a model that goes element by element.

use proptest::prelude::*;

use super::plan::copies;
use crate::entry::SliceSpec;
use crate::tests::support::Tensor;
use crate::{Dtype, SliceSpec as Spec};
use forebay_core::Seed;

/// A box within a shape.
fn any_box(shape: Vec<u64>) -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
    let dims = shape
        .into_iter()
        .map(|size| (0..=size, 0..=size).prop_map(move |(a, b)| (a.min(b), a.max(b) - a.min(b))));
    dims.collect::<Vec<_>>().prop_map(|dims| dims.into_iter().unzip())
}

fn any_case() -> impl Strategy<Value = (Spec, Spec)> {
    prop::collection::vec(1u64..7, 0..4).prop_flat_map(|shape| {
        let whole = SliceSpec::whole(Dtype::F16, &shape);
        (any_box(shape.clone()), any_box(shape))
            .prop_map(move |(a, b)| (whole.cut(&a.0, &a.1), whole.cut(&b.0, &b.1)))
    })
}

proptest! {
    #[test]
    fn copies_are_what_the_model_says((slice, wanted) in any_case()) {
        let tensor = Tensor::new(slice.dtype, &slice.shape, &mut Seed(1).rng());
        let stored = tensor.cut(&slice.offsets, &slice.lengths);
        let mut memory = vec![0xee; wanted.bytes() as usize];
        let Some((offsets, lengths)) = slice.intersect(&wanted.offsets, &wanted.lengths) else {
            return Ok(());
        };
        let copies = copies(&slice, &wanted, &offsets, &lengths).unwrap();
        for pair in copies.windows(2) {
            prop_assert!(pair[0].from.end() <= pair[1].from.start());
        }
        let mut copied = 0;
        for copy in &copies {
            let len = copy.from.len() as usize;
            memory[copy.to as usize..][..len].copy_from_slice(&stored[copy.from.relative_to(0)]);
            copied += len;
        }
        prop_assert_eq!(copied as u64, wanted.cut(&offsets, &lengths).bytes());
        // Each element of the box is where it belongs: cut it out of the memory again.
        let model = Tensor { dtype: wanted.dtype, shape: wanted.lengths.clone(), bytes: memory };
        let relative: Vec<u64> = offsets.iter().zip(&wanted.offsets).map(|(at, of)| at - of).collect();
        prop_assert_eq!(model.cut(&relative, &lengths), tensor.cut(&offsets, &lengths));
    }
}

#[test]
fn rows_are_one_copy_and_columns_are_many() {
    let slice = SliceSpec::whole(Dtype::F32, &[100, 8]);
    let rows = slice.cut(&[10, 0], &[50, 8]);
    assert_eq!(copies(&slice, &rows, &[10, 0], &[50, 8]).unwrap().len(), 1);
    let column = slice.cut(&[0, 3], &[100, 2]);
    assert_eq!(copies(&slice, &column, &[0, 3], &[100, 2]).unwrap().len(), 100);
    // Half a byte cannot be cut.
    let nibbles = SliceSpec::whole(Dtype::F4, &[4, 4]);
    let odd = nibbles.cut(&[0, 1], &[4, 2]);
    assert!(copies(&nibbles, &odd, &[0, 1], &[4, 2]).is_none());
}
