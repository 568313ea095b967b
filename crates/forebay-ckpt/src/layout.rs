//! Where things lie in a raw payload: a safetensors file whose order does what padding would.
//!
//! Readers refuse gaps between tensors and show padding tensors to everybody, so alignment comes from the order: first what is a multiple of 4,096
//! bytes long, all of which then begins at such a multiple; then the rest with the widest elements first, so that every element is aligned to its size. Pure.

use std::collections::{BTreeMap, HashSet};

use forebay_core::safetensors::{Dtype as FileDtype, HeaderBuilder, METADATA_KEY, Order};
use forebay_core::{Result, Span};

use crate::dtype::Dtype;
use crate::entry::SliceSpec;

/// What data begin at a multiple of, and large tensors with them: the page, which direct I/O and devices like.
pub(crate) const ALIGN: u64 = 4096;

/// A run of bytes of a slice that is to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored<'a> {
    pub(crate) name: &'a str,
    pub(crate) spec: &'a SliceSpec,
    /// Which of the slice's bytes.
    pub(crate) span: Span,
}

impl Stored<'_> {
    fn is_whole(&self) -> bool {
        self.span.len() == self.spec.bytes()
    }

    /// dtype and shape in the file.
    fn described(&self) -> Result<(FileDtype, Vec<u64>)> {
        let dtype = self.spec.dtype;
        if self.is_whole() {
            let (name, shape) = dtype.in_safetensors(&self.spec.lengths);
            return Ok((FileDtype::parse(name)?, shape));
        }
        // Chunks cut between bytes, and where an element is no whole bytes, that may be within one.
        if !dtype.bits().is_multiple_of(8) {
            return Ok((FileDtype::parse(Dtype::U8.name())?, vec![self.span.len()]));
        }
        let (name, shape) = dtype.in_safetensors(&[self.span.len() * 8 / dtype.bits()]);
        Ok((FileDtype::parse(name)?, shape))
    }
}

/// A payload to be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Everything before the data.
    pub(crate) header: Vec<u8>,
    /// In the order of the file: which of the given runs, and where.
    pub(crate) placed: Vec<(usize, Span)>,
    /// Bytes of the file.
    pub(crate) bytes: u64,
}

/// The order in which a full save lays slices out, as indices of them. Memory that has them one after the other in this order, from a page boundary on, is
/// written from where it is.
pub fn file_order(slices: &[(&str, &SliceSpec)]) -> Vec<usize> {
    let runs: Vec<Stored<'_>> = slices
        .iter()
        .map(|(name, spec)| Stored {
            name,
            spec,
            span: Span::first(spec.bytes()),
        })
        .collect();
    order_of(&runs)
}

fn order_of(runs: &[Stored<'_>]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by_key(|index| {
        runs.get(*index).map(|run| {
            let is_odd = !run.span.len().is_multiple_of(ALIGN);
            let width = if is_odd { run.spec.dtype.align_bytes() } else { 0 };
            (
                is_odd,
                std::cmp::Reverse(width),
                run.name,
                &run.spec.offsets,
                run.span,
            )
        })
    });
    order
}

/// Lay out runs. `metadata` is for people.
pub(crate) fn lay_out(runs: &[Stored<'_>], metadata: BTreeMap<String, String>) -> Result<Layout> {
    let order = order_of(runs);
    let names = names_in_file(runs);
    let mut builder = HeaderBuilder::new()
        .order(Order::Given)
        .align(ALIGN)
        .metadata(Some(metadata));
    for index in &order {
        if let (Some(run), Some(name)) = (runs.get(*index), names.get(*index)) {
            let (dtype, shape) = run.described()?;
            builder.tensor(name.clone(), dtype, shape);
        }
    }
    let encoded = builder.encode()?;
    let spans = encoded.header.tensors().iter().map(|tensor| tensor.span);
    Ok(Layout {
        placed: order.into_iter().zip(spans).collect(),
        bytes: encoded.header.file_len(),
        header: encoded.bytes,
    })
}

/// A name for each run that no other has: the tensor's where it can be.
fn names_in_file(runs: &[Stored<'_>]) -> Vec<String> {
    let mut taken: HashSet<String> = HashSet::from([METADATA_KEY.to_owned()]);
    let mut slices: HashSet<(&str, &[u64])> = HashSet::new();
    let mut tensors: BTreeMap<&str, &[u64]> = BTreeMap::new();
    let mut names = Vec::with_capacity(runs.len());
    for run in runs {
        slices.insert((run.name, &run.spec.offsets));
        let first = *tensors.entry(run.name).or_insert(&run.spec.offsets);
        let mut name = run.name.to_owned();
        if first != run.spec.offsets {
            let offsets: Vec<String> = run.spec.offsets.iter().map(u64::to_string).collect();
            name = format!("{name}@{}", offsets.join(","));
        }
        if !run.is_whole() {
            name = format!("{name}#{}", run.span.start());
        }
        while !taken.insert(name.clone()) {
            name.push('\'');
        }
        names.push(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use forebay_core::safetensors::Header;
    use proptest::prelude::*;

    use super::*;

    fn lay(slices: &[(&str, SliceSpec, Span)]) -> (Layout, Header) {
        let runs: Vec<_> = slices
            .iter()
            .map(|(name, spec, span)| Stored {
                name,
                spec,
                span: *span,
            })
            .collect();
        let layout = lay_out(&runs, BTreeMap::new()).unwrap();
        let header = Header::parse(&layout.header, layout.bytes).unwrap();
        (layout, header)
    }

    #[test]
    fn slices_and_runs_have_names_of_their_own() {
        let spec = SliceSpec::whole(Dtype::F32, &[4, 1024]);
        let upper = spec.cut(&[2, 0], &[2, 1024]);
        let whole = Span::first(spec.bytes());
        let (_, header) = lay(&[
            ("w", spec.clone(), whole),
            ("w", upper.clone(), Span::first(upper.bytes())),
            ("v", spec.clone(), Span::new(4096, 8192).unwrap()),
            ("v#4096", SliceSpec::whole(Dtype::C128, &[3]), Span::first(48)),
            (
                "__metadata__",
                SliceSpec::whole(Dtype::F4, &[2, 2]),
                Span::first(2),
            ),
        ]);
        let names: Vec<_> = header.names_sorted().collect();
        assert_eq!(names, ["__metadata__'", "v#4096", "v#4096'", "w", "w@2,0"]);
        assert_eq!(header.get("v#4096").unwrap().shape, [1024]);
        assert_eq!(header.get("v#4096'").unwrap().shape, [3, 2]);
        assert_eq!(header.get("w@2,0").unwrap().shape, [2, 1024]);
    }

    proptest! {
        #[test]
        fn pages_come_first_and_elements_are_aligned(sizes in prop::collection::vec((0usize..Dtype::ALL.len(), 0u64..5, 0u64..3000), 0..30)) {
            let specs: Vec<_> = sizes
                .iter()
                .enumerate()
                .map(|(index, (dtype, pages, more))| {
                    let spec = SliceSpec::whole(Dtype::ALL[*dtype], &[(pages * 4096 + more) * 4]);
                    (format!("t{index}"), spec)
                })
                .collect();
            let slices: Vec<_> = specs
                .iter()
                .map(|(name, spec)| (name.as_str(), spec.clone(), Span::first(spec.bytes())))
                .collect();
            let (layout, header) = lay(&slices);
            prop_assert!(header.data_start().is_multiple_of(ALIGN));
            prop_assert_eq!(layout.placed.len(), slices.len());
            for (index, span) in &layout.placed {
                let (_, spec, _) = &slices[*index];
                prop_assert_eq!(span.len(), spec.bytes());
                prop_assert!(span.start().is_multiple_of(spec.dtype.align_bytes()));
                if spec.bytes().is_multiple_of(ALIGN) {
                    prop_assert!(span.start().is_multiple_of(ALIGN));
                }
            }
        }
    }
}
