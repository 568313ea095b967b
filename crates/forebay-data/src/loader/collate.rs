//! Collating: the fields of the samples of a batch, copied into one buffer.
//!
//! Two passes: sizes first, so that one buffer of the right size can be leased, then the copies. A sample that is bad (its checksum or the size of a
//! field does not hold, a field of fixed size has no value) is not copied; with a policy that goes on, the next good sample of the batch takes its place, so that batches never get
//! shorter.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use forebay_io::{AlignedBuf, BufPool, Pages};
use serde::Serialize;

use super::batch::{Batch, BatchField, PART_ALIGN, Part, SampleKey};
use super::read::Loaded;
use crate::schema::Field;

/// A sample of a batch.
#[derive(Debug, Clone)]
pub(super) struct Pick {
    pub(super) block: Arc<Loaded>,
    pub(super) sample: u32,
}

/// A sample that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadSample {
    /// Number of its shard.
    pub shard: u32,
    /// Its number there.
    pub index: u64,
    /// Its key, where it has one.
    pub key: Option<String>,
    /// What is wrong with it.
    pub reason: String,
}

/// What to collate.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) epoch: u64,
    pub(super) index: u64,
    pub(super) picks: Vec<Pick>,
    pub(super) fields: Arc<[(usize, Field)]>,
    pub(super) pool: BufPool,
}

/// A collated batch and the samples it had to do without.
#[derive(Debug)]
pub(super) struct Collated {
    pub(super) batch: Batch,
    pub(super) bad: Vec<BadSample>,
}

impl Job {
    /// Collate.
    pub(super) fn run(mut self) -> Result<Collated> {
        let bad = self.replace_bad()?;
        let (parts, len) = self.lay_out();
        let mut buf = match self.pool.try_lease(len) {
            Some(buf) => buf,
            None => AlignedBuf::alloc(len, Pages::default())?,
        };
        for ((field, _), part) in self.fields.iter().zip(&parts) {
            self.copy(*field, part, &mut buf)?;
        }
        let keys = self.picks.iter().map(key_of).collect();
        let fields = self.fields.iter().zip(parts);
        let fields = fields.map(|((_, field), part)| BatchField {
            field: field.clone(),
            part,
        });
        buf.set_len(len);
        Ok(Collated {
            batch: Batch {
                epoch: self.epoch,
                index: self.index,
                samples: self.picks.len(),
                fields: fields.collect(),
                keys,
                data: buf.freeze(),
            },
            bad,
        })
    }

    /// Put a good sample into the place of each bad one.
    fn replace_bad(&mut self) -> Result<Vec<BadSample>> {
        let mut bad = Vec::new();
        let mut places = Vec::new();
        for (place, pick) in self.picks.iter().enumerate() {
            if let Some(reason) = self.reason(pick) {
                places.push(place);
                bad.push(BadSample {
                    shard: pick.block.shard,
                    index: pick.block.index(pick.sample),
                    key: pick.block.key(pick.sample).map(str::to_owned),
                    reason,
                });
            }
        }
        if places.len() == self.picks.len() && !places.is_empty() {
            let message = "no sample of a batch is whole";
            return Err(Error::new(ErrorKind::Corrupt, "collate", message)
                .with_hint("forebay verify tells what is damaged"));
        }
        for place in places.iter().rev() {
            let count = self.picks.len();
            let next = (1..count).map(|step| (place + step) % count);
            let good = next.into_iter().find(|next| places.binary_search(next).is_err());
            if let Some(good) = good {
                self.picks[*place] = self.picks[good].clone();
            }
        }
        Ok(bad)
    }

    /// Why a sample cannot be used.
    fn reason(&self, pick: &Pick) -> Option<String> {
        if let Some(reason) = pick.block.why_bad(pick.sample) {
            return Some(reason.to_owned());
        }
        self.fields.iter().find_map(|(index, field)| {
            let width = field.kind.fixed_bytes()?;
            match pick.block.field(pick.sample, *index) {
                Some(bytes) if bytes.len() as u64 == width => None,
                Some(bytes) => Some(format!(
                    "field '{}' has {} bytes instead of {width}",
                    field.name.escape_debug(),
                    bytes.len()
                )),
                None => Some(format!("field '{}' is missing", field.name.escape_debug())),
            }
        })
    }

    /// Where each field lies, and how long the buffer is.
    fn lay_out(&self) -> (Vec<Part>, usize) {
        let mut end = 0;
        let mut place = |len: usize| {
            let start = end;
            end = (start + len).next_multiple_of(PART_ALIGN);
            start..start + len
        };
        let parts = self
            .fields
            .iter()
            .map(|(index, field)| match field.kind.fixed_bytes() {
                Some(width) => Part::Fixed(place(width as usize * self.picks.len())),
                None => {
                    let lens = self
                        .picks
                        .iter()
                        .map(|pick| pick.block.field(pick.sample, *index).map_or(0, <[u8]>::len));
                    let bytes = lens.sum();
                    Part::Ragged {
                        offsets: place(8 * (self.picks.len() + 1)),
                        bytes: place(bytes),
                    }
                }
            });
        let parts = parts.collect();
        (parts, end)
    }

    fn copy(&self, index: usize, part: &Part, buf: &mut AlignedBuf) -> Result<()> {
        let values = self
            .picks
            .iter()
            .map(|pick| pick.block.field(pick.sample, index).unwrap_or_default());
        match part {
            Part::Fixed(range) => {
                let mut at = range.start;
                for value in values {
                    put(buf, at, value)?;
                    at += value.len();
                }
            }
            Part::Ragged { offsets, bytes } => {
                let mut at = 0;
                put(buf, offsets.start, &0i64.to_le_bytes())?;
                for (row, value) in values.enumerate() {
                    put(buf, bytes.start + at, value)?;
                    at += value.len();
                    put(buf, offsets.start + 8 * (row + 1), &(at as i64).to_le_bytes())?;
                }
            }
        }
        Ok(())
    }
}

fn put(buf: &mut AlignedBuf, at: usize, bytes: &[u8]) -> Result<()> {
    match buf.get_mut(at..at + bytes.len()) {
        Some(place) => {
            place.copy_from_slice(bytes);
            Ok(())
        }
        None => Err(Error::new(
            ErrorKind::Internal,
            "collate",
            "a field does not fit its place",
        )),
    }
}

fn key_of(pick: &Pick) -> SampleKey {
    match pick.block.key(pick.sample) {
        Some(key) => SampleKey::Named(key.into()),
        None => SampleKey::Numbered {
            shard: pick.block.shard,
            index: pick.block.index(pick.sample),
        },
    }
}
