//! Other names of a tensor: what is wanted of an alias becomes a want of the tensor that is stored.
//!
//! An alias that has all elements of its tensor in their order is that tensor. Any other is a view with strides: its tensor is loaded whole beside, and the
//! elements are gathered.

use forebay_core::{DataPath, Error, ErrorKind, Ledger, Result};
use forebay_io::{AlignedBuf, Pages};

use super::plan::{Plan, is_enough, plan};
use super::{Want, about};
use crate::entry::{Alias, Content, SliceSpec};
use crate::index::Found;
use crate::open::Checkpoint;

/// A want of a tensor that is stored.
#[derive(Debug)]
pub(super) struct Resolved {
    pub(super) want: Want,
    pub(super) plan: Plan,
    /// What becomes of its memory, where it was wanted as a view.
    pub(super) view: Option<View>,
}

/// Elements of a tensor that are wanted by an alias of it.
#[derive(Debug)]
pub(super) struct View {
    name: String,
    alias: Alias,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
    memory: AlignedBuf,
}

/// Entries of the name of a want: those nearby where they are enough, else all.
pub(super) async fn find(checkpoint: &Checkpoint, want: &Want) -> Result<Vec<Found>> {
    let nearby = checkpoint.find_nearby(&want.name).await?;
    if is_enough(&nearby, want) {
        return Ok(nearby);
    }
    checkpoint.find(&want.name).await
}

/// Find what a want is about, and plan it.
pub(super) async fn resolve(checkpoint: &Checkpoint, want: Want) -> Result<Resolved> {
    let found = find(checkpoint, &want).await?;
    let alias = found.iter().find_map(|found| match &found.entry.content {
        Content::Alias(alias) => Some(alias.clone()),
        _ => None,
    });
    let Some(alias) = alias else {
        let plan = planned(checkpoint, &want, found).await?;
        let view = None;
        return Ok(Resolved { want, plan, view });
    };
    let found = checkpoint.find(&alias.target).await?;
    let target = found.iter().find_map(|found| match &found.entry.content {
        Content::Slice { spec, .. } => Some(SliceSpec::whole(spec.dtype, &spec.shape)),
        _ => None,
    });
    let Some(target) = target else {
        let message = format!("it is another name of {:?}, which is no tensor", alias.target);
        return Err(about(ErrorKind::Corrupt, &want.name, &message));
    };
    if is_same(&alias, &target) {
        let want = Want {
            name: alias.target,
            ..want
        };
        let plan = planned(checkpoint, &want, found).await?;
        let view = None;
        return Ok(Resolved { want, plan, view });
    }
    let view = View::new(want, alias, &target)?;
    let want = Want {
        name: view.alias.target.clone(),
        memory: AlignedBuf::alloc(target.bytes() as usize, Pages::default())?,
        offsets: target.offsets,
        lengths: target.lengths,
    };
    let plan = planned(checkpoint, &want, found).await?;
    let view = Some(view);
    Ok(Resolved { want, plan, view })
}

/// Plan a want of a tensor that is stored.
pub(super) async fn planned(checkpoint: &Checkpoint, want: &Want, found: Vec<Found>) -> Result<Plan> {
    let area = (want.offsets.clone(), want.lengths.clone());
    let what = (want.name.as_str(), want.memory.len() as u64);
    plan(checkpoint, what, &[area], found).await
}

/// True when an alias has all elements of the tensor in their order.
fn is_same(alias: &Alias, target: &SliceSpec) -> bool {
    let mut stride: u64 = 1;
    let mut is_dense = true;
    for (size, own) in alias.shape.iter().zip(&alias.strides).rev() {
        is_dense &= *size == 1 || *own == stride;
        stride = stride.saturating_mul(*size);
    }
    is_dense && alias.first_element == 0 && (alias.dtype, &alias.shape) == (target.dtype, &target.shape)
}

impl View {
    /// Refuses an alias that names elements which its tensor has not, and a box that the alias has not.
    fn new(want: Want, alias: Alias, target: &SliceSpec) -> Result<Self> {
        let wanted = SliceSpec::whole(alias.dtype, &alias.shape).cut(&want.offsets, &want.lengths);
        let refuse = |kind, why: &str| Err(about(kind, &want.name, why));
        if let Err(why) = wanted.check() {
            return refuse(ErrorKind::InvalidInput, why);
        }
        if wanted.bytes() != want.memory.len() as u64 {
            return refuse(ErrorKind::InvalidInput, "its memory has another length");
        }
        let bits = alias.dtype.bits();
        if !bits.is_multiple_of(8) {
            return refuse(
                ErrorKind::Unsupported,
                "a view of elements of less than a byte cannot be loaded",
            );
        }
        let mut sides = alias.shape.iter().zip(&alias.strides);
        let last = sides.try_fold(alias.first_element, |last, (size, stride)| {
            last.checked_add(size.saturating_sub(1).checked_mul(*stride)?)
        });
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(bits / 8));
        let is_empty = alias.shape.contains(&0);
        if alias.strides.len() != alias.shape.len() || !is_empty && end.is_none_or(|end| end > target.bytes())
        {
            let message = "it names elements that the tensor it shares has not";
            return refuse(ErrorKind::Corrupt, message);
        }
        Ok(Self {
            name: want.name,
            alias,
            offsets: want.offsets,
            lengths: want.lengths,
            memory: want.memory,
        })
    }

    /// Bring the elements together, in row-major order.
    pub(super) fn gather(mut self, tensor: &[u8], ledger: &mut Ledger) -> Result<AlignedBuf> {
        let width = (self.alias.dtype.bits() / 8) as usize;
        let lost = || Error::new(ErrorKind::Internal, "load", "an element of a view lies nowhere");
        // Elements of the last dimension that lie in a row are one copy.
        let dense = match (self.alias.strides.last(), self.lengths.last()) {
            (Some(1), Some(length)) => *length,
            _ => 1,
        };
        let run = width.saturating_mul(dense as usize);
        let outer = if dense > 1 {
            self.lengths.len().saturating_sub(1)
        } else {
            self.lengths.len()
        };
        let mut index = vec![0u64; outer];
        let runs = self.memory.len().checked_div(run).unwrap_or(0);
        for number in 0..runs {
            let mut element = self.alias.first_element;
            for (dim, (stride, offset)) in self.alias.strides.iter().zip(&self.offsets).enumerate() {
                let at = index.get(dim).copied().unwrap_or(0);
                element += (offset + at) * stride;
            }
            let from = tensor
                .get(element as usize * width..)
                .and_then(|rest| rest.get(..run));
            let to = self.memory.get_mut(number * run..(number + 1) * run);
            to.ok_or_else(lost)?.copy_from_slice(from.ok_or_else(lost)?);
            for (at, length) in index.iter_mut().zip(&self.lengths).rev() {
                *at += 1;
                if *at < *length {
                    break;
                }
                *at = 0;
            }
        }
        tracing::debug!(name = self.name, "gathered a view");
        ledger.record_copy(DataPath::Memory, self.memory.len() as u64);
        Ok(self.memory)
    }
}
