//! The index says what the parts say: both are gone through once, and neither is kept.

use std::ops::Add;

use forebay_core::Result;

use super::{Verified, damage_or_fail, verify_size};
use crate::entry::Entry;
use crate::hash::sha256;
use crate::index::Found;
use crate::names::{Piece, piece_key};
use crate::open::Checkpoint;
use crate::wire::Wire;

/// Entries without their order: how many, and the sum of their hashes. Two lists with the same sum have the same entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    entries: u64,
    sums: [u64; 4],
}

impl Tally {
    pub(super) fn count(&mut self, rank: u32, entry: &Entry) {
        let mut record = Vec::new();
        record.put_varint(u64::from(rank));
        entry.put(&mut record);
        let hash = sha256(&[&record]);
        let (words, _) = hash.as_chunks::<8>();
        let mut sums = [0; 4];
        for (sum, word) in sums.iter_mut().zip(words) {
            *sum = u64::from_le_bytes(*word);
        }
        *self = *self + Self { entries: 1, sums };
    }
}

impl Add for Tally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self.entries += other.entries;
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum = sum.wrapping_add(more);
        }
        self
    }
}

/// Go through the index, and compare it with what the parts had, where all of them could be read.
pub(super) async fn verify(
    checkpoint: &Checkpoint,
    of_parts: Option<Tally>,
    report: &mut Verified,
) -> Result<()> {
    let manifest = checkpoint.manifest();
    let key = piece_key(manifest.step, manifest.attempt, Piece::Index);
    let message = match tally(checkpoint).await {
        Ok(None) => return Ok(()),
        Ok(of_index) if of_parts.is_none() || of_index == of_parts => {
            let Some(row) = &manifest.index else { return Ok(()) };
            return verify_size(checkpoint, &key, row.bytes, report).await;
        }
        Ok(_) => "the index has other entries than the parts".to_owned(),
        Err(error) => damage_or_fail(error)?,
    };
    report.damaged(key, None, message);
    Ok(())
}

async fn tally(checkpoint: &Checkpoint) -> Result<Option<Tally>> {
    let Some((file, head)) = checkpoint.index_file().await? else {
        return Ok(None);
    };
    let mut tally = Tally::default();
    let mut count = |found: Found| {
        tally.count(found.rank, &found.entry);
        Ok(())
    };
    file.scan(&head.entries, &mut count).await?;
    Ok(Some(tally))
}
