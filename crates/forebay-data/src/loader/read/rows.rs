//! Groups of rows in memory. Lanes end where they end, not where groups do, so several may need rows of one group at the same time: they share it, and it is read
//! and decoded once.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use forebay_core::{ErrorKind, Ledger, Result};

use super::Reader;
use super::loaded::{Bad, Contents, Times};
use crate::block::Block;
use crate::dataset::GroupRead;
use crate::filter::key_field;
use crate::source::ShardSource;
use crate::table::{Group, Table};

/// Entries of groups that nobody holds any more are swept out when there are more than these.
const ENTRIES_MIN: usize = 256;

/// Where a group is, while somebody holds it. Locked while it is read, so that others wait instead of reading it again.
type Entry = Arc<tokio::sync::Mutex<Weak<Block>>>;

/// Groups in memory, by shard and number.
#[derive(Debug, Default)]
pub(crate) struct Groups(Mutex<HashMap<(usize, usize), Entry>>);

impl Groups {
    fn entry(&self, shard: usize, group: usize) -> Entry {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= ENTRIES_MIN && !entries.contains_key(&(shard, group)) {
            let is_held = |entry: &Entry| entry.try_lock().is_ok_and(|group| group.strong_count() > 0);
            entries.retain(|_, entry| Arc::strong_count(entry) > 1 || is_held(entry));
        }
        Arc::clone(entries.entry((shard, group)).or_default())
    }
}

/// The groups that have a part in samples `range` of a shard: number, group, and its rows.
pub(super) fn groups_in(
    groups: &[Group],
    range: &Range<u64>,
) -> impl Iterator<Item = (usize, Group, Range<u64>)> {
    let (mut end, range) = (0, range.clone());
    groups.iter().enumerate().filter_map(move |(number, group)| {
        let rows = end..end + group.samples;
        end = rows.end;
        let is_wanted = rows.start.max(range.start) < rows.end.min(range.end);
        is_wanted.then_some((number, *group, rows))
    })
}

impl Reader {
    /// The groups that samples `range` of a shard are rows of, but for those of which `is_wanted` does not want a row.
    pub(super) async fn rows(
        &self,
        source: &ShardSource,
        (shard, table): (usize, &Arc<Table>),
        groups: &[Group],
        range: &Range<u64>,
        is_wanted: &(dyn Fn(&Range<u64>) -> bool + Sync),
        times: &mut Times,
    ) -> Result<(Contents, Ledger)> {
        let (mut contents, mut ledger) = (Contents::default(), Ledger::default());
        for (number, _, rows) in groups_in(groups, range).filter(|(_, _, rows)| is_wanted(rows)) {
            let entry = self.groups.entry(shard, number);
            let mut held = entry.lock().await;
            if let Some(block) = held.upgrade() {
                times.arrived = self.dataset.context().clock().now();
                contents.blocks.push(block);
                continue;
            }
            let decoder = self.dataset.decoder(shard).await?;
            let (schema, columns) = (self.dataset.schema(), self.own_columns(table));
            let read = GroupRead::plan(schema, decoder, Arc::clone(table), number, columns)?;
            let (chunks, moved) = read.fetch(source, &|len| self.memory(len)).await?;
            ledger.merge(&moved);
            times.arrived = self.dataset.context().clock().now();
            let is_proof = self.dataset.is_proven(shard);
            let verified_bytes = if is_proof { read.verified_bytes() } else { 0 };
            match self.cpu.run(move || read.decode(&chunks)).await? {
                Ok(block) => {
                    let block = Arc::new(block);
                    *held = Arc::downgrade(&block);
                    ledger.verified_bytes += verified_bytes;
                    contents.blocks.push(block);
                }
                // Damage is for the policy to judge; everything else would be the same for any other sample.
                Err(error) if error.kind() == ErrorKind::Corrupt => contents.bad.push(Bad {
                    samples: rows,
                    reason: error.message().into(),
                }),
                Err(error) => return Err(error),
            }
        }
        Ok((contents, ledger))
    }

    /// Columns of a shard that are wanted.
    pub(in crate::loader) fn own_columns(&self, table: &Table) -> Arc<[usize]> {
        let columns = self.columns(table);
        let wanted = self.fields.iter().filter_map(|field| *columns.get(*field)?);
        let mut wanted: Vec<usize> = wanted.collect();
        let key = key_field(&table.fields).filter(|key| self.has_keys && !wanted.contains(key));
        wanted.extend(key);
        wanted.into()
    }
}
