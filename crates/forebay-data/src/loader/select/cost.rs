//! What judging samples will read, told before it does.

use forebay_core::{Error, Result};
use futures::stream::{self, StreamExt, TryStreamExt};

use super::{Judge, SHARDS_AHEAD};
use crate::table::Layout;

/// Shards of rows that are looked at, evenly over the data set, to tell what the others take: each look reads a footer, which is kept for the judging. Few enough
/// that nobody waits for them, and enough to tell a filter that statistics answer from one that reads everything.
const SHARDS_LOOKED_AT_MAX: usize = 16;

impl Judge {
    /// About how many bytes are read to judge all samples: none where keys are enough; all of the shards where samples are checked whole; of rows the columns
    /// that the filter looks at, in those groups that statistics do not rule out.
    pub(super) async fn bytes_about(&self) -> Result<u64> {
        let shards = self.dataset.shards().iter().enumerate();
        let held: Vec<(usize, u64)> = shards
            .filter(|(_, shard)| shard.samples > 0)
            .map(|(number, shard)| (number, shard.stored_bytes))
            .collect();
        let stored: u64 = held.iter().map(|(_, bytes)| bytes).sum();
        let Some((first, _)) = held.first().filter(|_| !self.reader.fields.is_empty()) else {
            return Ok(0);
        };
        if matches!(self.dataset.table(*first).await?.layout, Layout::Samples(_)) {
            return Ok(stored);
        }
        let step = held.len().div_ceil(SHARDS_LOOKED_AT_MAX);
        let looks = held.into_iter().step_by(step).map(|(shard, bytes)| async move {
            let columns = self.columns_bytes(shard).await?;
            Ok::<_, Error>((columns, bytes))
        });
        let looks = stream::iter(looks).buffered(SHARDS_AHEAD);
        let (columns, of) = looks
            .try_fold((0u64, 0u64), |sum, look| async move {
                Ok((sum.0.saturating_add(look.0), sum.1.saturating_add(look.1)))
            })
            .await?;
        let about = u128::from(stored) * u128::from(columns) / u128::from(of.max(1));
        Ok(u64::try_from(about).unwrap_or(u64::MAX))
    }

    /// Of a shard of rows, the bytes of the columns that the filter looks at, in groups that may hold a row that is kept.
    async fn columns_bytes(&self, shard: usize) -> Result<u64> {
        let table = self.dataset.table(shard).await?;
        let Layout::Groups(groups) = &table.layout else {
            return Ok(0);
        };
        let decoder = self.dataset.decoder(shard).await?;
        let columns = self.reader.own_columns(&table);
        let mut bytes = 0u64;
        for (group, _) in self.groups(&table, groups, &*decoder) {
            for span in decoder.spans(group, &columns)? {
                bytes = bytes.saturating_add(span.len());
            }
        }
        Ok(bytes)
    }
}
