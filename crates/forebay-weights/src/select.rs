//! Which tensors of a source are wanted, and which slices of them.
//!
//! A [`Selection`] names tensors by patterns, or exactly, and, for tensor parallelism, the dimension along which each of them is divided among ranks.
//! The division is that of `torch.chunk`: parts of `ceil(n / world)`, so that the last ranks may have less, or nothing.

use std::collections::{BTreeMap, BTreeSet};

use forebay_core::safetensors::{Header, TensorInfo};
use forebay_core::{Error, ErrorKind, Result};

use crate::glob::Glob;

/// Most ranks one tensor is divided among: more is a slip of the pen.
const WORLD_MAX: u64 = 1 << 20;

/// What is wanted; everything by default.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    select: Vec<Glob>,
    shard: Option<Shard>,
    /// Exactly these, in these parts; then nothing else counts.
    exact: Option<BTreeMap<String, Option<Slice>>>,
}

/// The part of each tensor that one rank of a group needs.
#[derive(Debug, Clone)]
pub struct Shard {
    rank: u64,
    world: u64,
    /// The first pattern that matches decides.
    dims: Vec<(Glob, i64)>,
}

/// A run of one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Which dimension.
    pub dim: usize,
    /// First index.
    pub start: u64,
    /// Number of indices.
    pub len: u64,
}

impl Slice {
    fn check(&self, info: &TensorInfo) -> Result<()> {
        let end = self.start.checked_add(self.len);
        let len = info.shape.get(self.dim);
        if end.zip(len).is_some_and(|(end, len)| end <= *len) {
            return Ok(());
        }
        let message = format!(
            "tensor '{}' of shape {:?} has no indices {}..{} in dimension {}",
            info.name.escape_debug(),
            info.shape,
            self.start,
            self.start.saturating_add(self.len),
            self.dim
        );
        Err(Error::new(ErrorKind::InvalidInput, "select", message))
    }
}

/// One tensor that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Which file.
    pub file: usize,
    /// Which tensor of it, in file order.
    pub tensor: usize,
    /// Which part of it; all of it without.
    pub slice: Option<Slice>,
}

impl Shard {
    /// Rank `rank` of `world`; tensors matched by no pattern are loaded whole. Dimensions below zero count from the last.
    pub fn new(rank: u64, world: u64, dims: &[(String, i64)]) -> Result<Self> {
        if world == 0 || world > WORLD_MAX || rank >= world {
            let message = format!("there is no rank {rank} of {world}");
            return Err(Error::new(ErrorKind::InvalidInput, "shard", message));
        }
        let dims = dims
            .iter()
            .map(|(pattern, dim)| Ok((Glob::parse(pattern)?, *dim)))
            .collect::<Result<_>>()?;
        Ok(Self { rank, world, dims })
    }

    fn slice_of(&self, info: &TensorInfo) -> Result<Option<Slice>> {
        let Some((_, dim)) = self.dims.iter().find(|(glob, _)| glob.matches(&info.name)) else {
            return Ok(None);
        };
        let rank_of_tensor = info.shape.len();
        let index = if *dim < 0 {
            rank_of_tensor.checked_sub(dim.unsigned_abs() as usize)
        } else {
            usize::try_from(*dim).ok()
        };
        let Some((index, len)) = index.and_then(|index| Some((index, *info.shape.get(index)?))) else {
            let message = format!(
                "tensor '{}' has shape {:?} and no dimension {dim}",
                info.name, info.shape
            );
            return Err(Error::new(ErrorKind::InvalidInput, "shard", message));
        };
        let part = len.div_ceil(self.world);
        let start = part.saturating_mul(self.rank).min(len);
        let end = start.saturating_add(part).min(len);
        Ok(Some(Slice {
            dim: index,
            start,
            len: end - start,
        }))
    }
}

impl Selection {
    /// Tensors matched by any of the patterns (all when there is none), in the parts that the shard says.
    pub fn new(select: &[String], shard: Option<Shard>) -> Result<Self> {
        let select = select
            .iter()
            .map(|pattern| Glob::parse(pattern))
            .collect::<Result<_>>()?;
        Ok(Self {
            select,
            shard,
            exact: None,
        })
    }

    /// Exactly these tensors, whole or in part.
    pub fn exact(tensors: impl IntoIterator<Item = (String, Option<Slice>)>) -> Self {
        Self {
            exact: Some(tensors.into_iter().collect()),
            ..Self::default()
        }
    }

    /// What was named exactly. A slice that is not within its tensor is an error.
    fn wanted_exactly<'a>(
        exact: &BTreeMap<String, Option<Slice>>,
        headers: impl Iterator<Item = &'a Header>,
        counts: impl Fn(usize, &TensorInfo) -> bool,
    ) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        let mut found = BTreeSet::new();
        for (file, header) in headers.enumerate() {
            let mut here = Vec::new();
            for (name, slice) in exact {
                let Some(tensor) = header.index_of(name) else {
                    continue;
                };
                let info = &header.tensors()[tensor];
                if !counts(file, info) {
                    continue;
                }
                if let Some(slice) = slice {
                    slice.check(info)?;
                }
                found.insert(name.as_str());
                here.push(Wanted {
                    file,
                    tensor,
                    slice: *slice,
                });
            }
            here.sort_by_key(|wanted| wanted.tensor);
            wanted.extend(here);
        }
        match exact.keys().find(|name| !found.contains(name.as_str())) {
            Some(name) => {
                let message = format!("there is no tensor '{}'", name.escape_debug());
                Err(Error::new(ErrorKind::NotFound, "select", message))
            }
            None => Ok(wanted),
        }
    }

    /// The tensors that are wanted, in file order. A pattern that matches nothing is an error: it was meant to.
    /// `counts` leaves out what is not to be seen at all.
    pub fn wanted<'a>(
        &self,
        headers: impl Iterator<Item = &'a Header>,
        counts: impl Fn(usize, &TensorInfo) -> bool,
    ) -> Result<Vec<Wanted>> {
        if let Some(exact) = &self.exact {
            return Self::wanted_exactly(exact, headers, counts);
        }
        let mut used = vec![false; self.select.len()];
        let shard_globs = self.shard.as_ref().map_or(&[][..], |shard| &shard.dims);
        let mut shard_used = vec![false; shard_globs.len()];
        let mut wanted = Vec::new();
        for (file, header) in headers.enumerate() {
            let tensors = header.tensors().iter().enumerate();
            for (tensor, info) in tensors.filter(|(_, info)| counts(file, info)) {
                mark(
                    &mut shard_used,
                    shard_globs.iter().map(|(glob, _)| glob),
                    &info.name,
                );
                let is_wanted = mark(&mut used, self.select.iter(), &info.name) || self.select.is_empty();
                if !is_wanted {
                    continue;
                }
                let slice = match &self.shard {
                    Some(shard) => shard.slice_of(info)?,
                    None => None,
                };
                wanted.push(Wanted { file, tensor, slice });
            }
        }
        let select = self
            .select
            .iter()
            .zip(&used)
            .map(|(glob, used)| ("select", glob, used));
        let shard = shard_globs
            .iter()
            .zip(&shard_used)
            .map(|((glob, _), used)| ("shard", glob, used));
        for (op, glob, used) in select.chain(shard) {
            if !used {
                let message = format!("no tensor matches '{}'", glob.as_str().escape_debug());
                return Err(Error::new(ErrorKind::NotFound, op, message)
                    .with_hint("`forebay load --list` names the tensors"));
            }
        }
        Ok(wanted)
    }
}

/// Note which patterns match; true when one does.
fn mark<'a>(used: &mut [bool], globs: impl Iterator<Item = &'a Glob>, name: &str) -> bool {
    let mut any = false;
    for (used, glob) in used.iter_mut().zip(globs) {
        let matches = glob.matches(name);
        *used |= matches;
        any |= matches;
    }
    any
}

#[cfg(test)]
mod tests {
    use forebay_core::safetensors::{Dtype, HeaderBuilder};

    use super::*;

    fn header(tensors: &[(&str, &[u64])]) -> Header {
        let mut builder = HeaderBuilder::new();
        for (name, shape) in tensors {
            builder.tensor(*name, Dtype::F32, shape.to_vec());
        }
        builder.encode().unwrap().header
    }

    fn slices(world: u64, len: u64) -> Vec<(u64, u64)> {
        (0..world)
            .map(|rank| {
                let shard = Shard::new(rank, world, &[("*".to_owned(), -1)]).unwrap();
                let selection = Selection::new(&[], Some(shard)).unwrap();
                let header = header(&[("t", &[3, len])]);
                let wanted = selection.wanted([&header].into_iter(), |_, _| true).unwrap();
                let slice = wanted[0].slice.unwrap();
                assert_eq!(slice.dim, 1);
                (slice.start, slice.len)
            })
            .collect()
    }

    #[test]
    fn parts_are_those_of_torch_chunk() {
        assert_eq!(slices(2, 8), [(0, 4), (4, 4)]);
        assert_eq!(slices(4, 10), [(0, 3), (3, 3), (6, 3), (9, 1)]);
        assert_eq!(slices(4, 5), [(0, 2), (2, 2), (4, 1), (5, 0)]);
        assert_eq!(slices(3, 0), [(0, 0), (0, 0), (0, 0)]);
    }

    #[test]
    fn patterns_choose_and_those_that_choose_nothing_are_refused() {
        let header = header(&[("a.x", &[4]), ("a.y", &[4]), ("b.x", &[4])]);
        let names = |select: &[&str]| {
            let select: Vec<String> = select.iter().map(|&text| text.to_owned()).collect();
            let wanted = Selection::new(&select, None)?.wanted([&header].into_iter(), |_, _| true)?;
            Ok::<_, Error>(
                wanted
                    .iter()
                    .map(|wanted| header.tensors()[wanted.tensor].name.clone())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(names(&[]).unwrap().len(), 3);
        assert_eq!(names(&["a.*"]).unwrap(), ["a.x", "a.y"]);
        assert_eq!(names(&["*.x", "a.*"]).unwrap().len(), 3);
        let error = names(&["a.*", "c.*"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains("'c.*'"), "{error}");
    }

    #[test]
    fn exact_names_are_no_patterns() {
        let header = header(&[("a*", &[4]), ("ab", &[4, 2])]);
        let slice = |dim, start, len| Some(Slice { dim, start, len });
        let wanted = |tensors: &[(&str, Option<Slice>)]| {
            let tensors = tensors.iter().map(|(name, slice)| ((*name).to_owned(), *slice));
            Selection::exact(tensors).wanted([&header].into_iter(), |_, _| true)
        };
        assert_eq!(wanted(&[("a*", None)]).unwrap().len(), 1);
        let part = wanted(&[("ab", slice(1, 1, 1))]).unwrap();
        assert_eq!(part[0].slice, slice(1, 1, 1));
        assert_eq!(wanted(&[("b", None)]).unwrap_err().kind(), ErrorKind::NotFound);
        for slice in [slice(2, 0, 1), slice(0, 4, 1), slice(0, u64::MAX, 2)] {
            assert_eq!(
                wanted(&[("ab", slice)]).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
        }
        assert!(wanted(&[]).unwrap().is_empty());
    }

    #[test]
    fn ranks_and_dimensions_that_are_not_there_are_refused() {
        assert!(Shard::new(2, 2, &[]).is_err());
        assert!(Shard::new(0, 0, &[]).is_err());
        let header = header(&[("t", &[4])]);
        for dim in [1, -2, i64::MIN, i64::MAX] {
            let shard = Shard::new(0, 2, &[("t".to_owned(), dim)]).unwrap();
            let selection = Selection::new(&[], Some(shard)).unwrap();
            let error = selection.wanted([&header].into_iter(), |_, _| true).unwrap_err();
            assert!(error.to_string().contains("'t' has shape [4]"), "{error}");
        }
        let shard = Shard::new(0, 2, &[("u".to_owned(), 0)]).unwrap();
        let selection = Selection::new(&[], Some(shard)).unwrap();
        assert_eq!(
            selection
                .wanted([&header].into_iter(), |_, _| true)
                .unwrap_err()
                .kind(),
            ErrorKind::NotFound
        );
    }
}
