//! Changes of names that are not durable yet.
//!
//! Every operation on names becomes a group of edits of directory entries that is kept or lost as one. Groups are durable once a directory
//! they touch is synced. A power loss keeps a random set of the others, with two rules that every file system keeps: edits of one entry stay
//! in order, and a name is not removed for a move whose other end is lost.

use std::collections::BTreeSet;
use std::ffi::OsString;

use forebay_core::Rng;

/// One directory entry set to an inode, or removed.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    pub(crate) dir: u64,
    pub(crate) name: OsString,
    pub(crate) target: Option<u64>,
}

#[derive(Debug)]
struct Group {
    id: u64,
    edits: Vec<Edit>,
    /// Groups that must be durable before this one is.
    after: BTreeSet<u64>,
    /// A sync failed on it: no later sync makes it durable for its own sake.
    doubtful: bool,
}

/// The groups that are not durable yet, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Journal {
    groups: Vec<Group>,
    next_id: u64,
}

impl Journal {
    /// Add edits that are kept or lost as one. They come after all earlier edits of the same entries and after `after`.
    pub(crate) fn push(&mut self, edits: Vec<Edit>, mut after: BTreeSet<u64>) -> u64 {
        let same_entry = |a: &Edit, b: &Edit| a.dir == b.dir && a.name == b.name;
        after.extend(
            self.groups
                .iter()
                .filter(|group| group.edits.iter().any(|a| edits.iter().any(|b| same_entry(a, b))))
                .map(|group| group.id),
        );
        let id = self.next_id;
        self.next_id += 1;
        self.groups.push(Group {
            id,
            edits,
            after,
            doubtful: false,
        });
        id
    }

    /// Groups that touch entries of a directory.
    pub(crate) fn touching(&self, dir: u64) -> BTreeSet<u64> {
        self.groups
            .iter()
            .filter(|group| group.touches(dir))
            .map(|group| group.id)
            .collect()
    }

    /// Make the names in a directory durable: takes its groups, and those they depend on, and gives their edits in order.
    pub(crate) fn sync(&mut self, dir: u64) -> Vec<Edit> {
        let mut wanted: BTreeSet<u64> = self
            .groups
            .iter()
            .filter(|group| group.touches(dir) && !group.doubtful)
            .map(|group| group.id)
            .collect();
        // Groups depend on older ones only, so one pass from the newest finds everything.
        for group in self.groups.iter().rev() {
            if wanted.contains(&group.id) {
                wanted.extend(&group.after);
            }
        }
        let (durable, pending) = std::mem::take(&mut self.groups)
            .into_iter()
            .partition(|group| wanted.contains(&group.id));
        self.groups = pending;
        flatten(durable)
    }

    /// A sync of a directory that failed: later ones pass over what it should have made durable.
    pub(crate) fn sync_failed(&mut self, dir: u64) {
        for group in &mut self.groups {
            group.doubtful |= group.touches(dir);
        }
    }

    /// The edits that a power loss keeps, in order.
    pub(crate) fn crashed(&self, rng: &mut Rng) -> Vec<Edit> {
        // Now and then nearly everything or nearly nothing is kept: long chains would hardly ever survive an even draw.
        let kept_in_8 = [0, 1, 4, 4, 7, 8][rng.below(6) as usize];
        let pending: BTreeSet<u64> = self.groups.iter().map(|group| group.id).collect();
        let mut kept = BTreeSet::new();
        let mut edits = Vec::new();
        for group in &self.groups {
            let possible = group
                .after
                .iter()
                .all(|id| kept.contains(id) || !pending.contains(id));
            if rng.below(8) < kept_in_8 && possible {
                kept.insert(group.id);
                edits.extend(group.edits.iter().cloned());
            }
        }
        edits
    }
}

impl Group {
    fn touches(&self, dir: u64) -> bool {
        self.edits.iter().any(|edit| edit.dir == dir)
    }
}

fn flatten(groups: Vec<Group>) -> Vec<Edit> {
    groups.into_iter().flat_map(|group| group.edits).collect()
}
