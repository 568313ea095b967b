//! The account of what bytes did: which path they took, with how many requests, copies and retries, and why a faster path
//! was not taken.
//!
//! Every result carries a [`Ledger`]. Ledgers merge, so a job's account is the sum of its operations' accounts; merging is
//! commutative apart from the order of the kept downgrades. They print as a table and serialise to JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ByteSize, DataPath};

/// Distinct downgrades a ledger keeps: enough for every reason a node can have, small enough to travel with each result.
pub const DOWNGRADES_KEPT_MAX: usize = 16;

/// What moved over one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTotals {
    /// Bytes delivered to the caller or written for it.
    pub bytes: u64,
    /// Requests to the kernel or the server.
    pub requests: u64,
    /// Bytes copied by us on the way (bounce buffers, joins); zero when the data landed where it was wanted.
    pub copied_bytes: u64,
    /// Requests that were tried again.
    pub retries: u64,
}

impl PathTotals {
    fn add(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.requests = self.requests.saturating_add(other.requests);
        self.copied_bytes = self.copied_bytes.saturating_add(other.copied_bytes);
        self.retries = self.retries.saturating_add(other.retries);
    }

    fn since(&self, earlier: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(earlier.bytes),
            requests: self.requests.saturating_sub(earlier.requests),
            copied_bytes: self.copied_bytes.saturating_sub(earlier.copied_bytes),
            retries: self.retries.saturating_sub(earlier.retries),
        }
    }
}

/// A step down from a faster path, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Downgrade {
    /// The path that was wanted.
    pub wanted: DataPath,
    /// The path that was taken.
    pub taken: DataPath,
    /// Why, in words.
    pub reason: String,
}

/// Bytes by path, with the reasons for every downgrade.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    /// Totals by path.
    pub paths: BTreeMap<DataPath, PathTotals>,
    /// Bytes whose checksum was compared with one made when they were written (or sent).
    pub verified_bytes: u64,
    /// CPU time of this process spent on the operation, where it was measured.
    pub cpu_ns: u64,
    /// Distinct downgrades, at most [`DOWNGRADES_KEPT_MAX`].
    pub downgrades: Vec<Downgrade>,
    /// Downgrades beyond those kept, repeats included.
    pub downgrades_dropped: u64,
}

impl Ledger {
    /// An account of one movement of bytes.
    pub fn of(path: DataPath, bytes: u64, requests: u64) -> Self {
        let mut ledger = Self::default();
        ledger.record(path, bytes, requests);
        ledger
    }

    /// Add a movement of bytes.
    pub fn record(&mut self, path: DataPath, bytes: u64, requests: u64) {
        self.totals_mut(path).add(&PathTotals {
            bytes,
            requests,
            ..PathTotals::default()
        });
    }

    /// Add bytes that we copied ourselves on `path`.
    pub fn record_copy(&mut self, path: DataPath, bytes: u64) {
        self.totals_mut(path).copied_bytes += bytes;
    }

    /// Add retries on `path`.
    pub fn record_retries(&mut self, path: DataPath, count: u64) {
        self.totals_mut(path).retries += count;
    }

    /// Add a step down, once per distinct reason.
    pub fn record_downgrade(&mut self, wanted: DataPath, taken: DataPath, reason: impl Into<String>) {
        self.keep(Downgrade {
            wanted,
            taken,
            reason: reason.into(),
        });
    }

    /// Add another account to this one.
    pub fn merge(&mut self, other: &Self) {
        for (path, totals) in &other.paths {
            self.totals_mut(*path).add(totals);
        }
        self.verified_bytes = self.verified_bytes.saturating_add(other.verified_bytes);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.downgrades_dropped += other.downgrades_dropped;
        for downgrade in &other.downgrades {
            self.keep(downgrade.clone());
        }
    }

    /// What was added since an earlier state of the same account.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut added = Self {
            verified_bytes: self.verified_bytes.saturating_sub(earlier.verified_bytes),
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            downgrades_dropped: self.downgrades_dropped.saturating_sub(earlier.downgrades_dropped),
            ..Self::default()
        };
        for (path, totals) in &self.paths {
            let more = totals.since(&earlier.path(*path));
            if more != PathTotals::default() {
                added.totals_mut(*path).add(&more);
            }
        }
        let is_new = |downgrade: &&Downgrade| !earlier.downgrades.contains(downgrade);
        added.downgrades = self.downgrades.iter().filter(is_new).cloned().collect();
        added
    }

    /// Bytes over all paths.
    pub fn bytes(&self) -> u64 {
        self.paths.values().map(|totals| totals.bytes).sum()
    }

    /// Totals of one path.
    pub fn path(&self, path: DataPath) -> PathTotals {
        self.paths.get(&path).copied().unwrap_or_default()
    }

    fn totals_mut(&mut self, path: DataPath) -> &mut PathTotals {
        self.paths.entry(path).or_default()
    }

    fn keep(&mut self, downgrade: Downgrade) {
        if self.downgrades.contains(&downgrade) {
            return;
        }
        if self.downgrades.len() < DOWNGRADES_KEPT_MAX {
            self.downgrades.push(downgrade);
        } else {
            self.downgrades_dropped += 1;
        }
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<14}{:>12}{:>10}{:>12}{:>9}",
            "path", "bytes", "requests", "copied", "retries"
        )?;
        for (path, totals) in &self.paths {
            writeln!(
                f,
                "{path:<14}{:>12}{:>10}{:>12}{:>9}",
                ByteSize(totals.bytes).to_string(),
                totals.requests,
                ByteSize(totals.copied_bytes).to_string(),
                totals.retries
            )?;
        }
        write!(
            f,
            "verified {} of {}",
            ByteSize(self.verified_bytes),
            ByteSize(self.bytes())
        )?;
        for downgrade in &self.downgrades {
            write!(
                f,
                "\nnot {} but {}: {}",
                downgrade.wanted, downgrade.taken, downgrade.reason
            )?;
        }
        if self.downgrades_dropped > 0 {
            write!(f, "\nand {} more downgrades", self.downgrades_dropped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_ledger() -> impl Strategy<Value = Ledger> {
        let event = (0usize..8, 0u64..1 << 40, 0u64..100, 0usize..4);
        prop::collection::vec(event, 0..20).prop_map(|events| {
            let mut ledger = Ledger::default();
            for (path, bytes, requests, reason) in events {
                let path = DataPath::ALL[path];
                ledger.record(path, bytes, requests);
                ledger.verified_bytes += bytes / 2;
                ledger.record_downgrade(DataPath::DirectUring, path, ["a", "b", "c", "d"][reason]);
            }
            ledger
        })
    }

    proptest! {
        #[test]
        fn merging_adds_up_in_any_order(a in any_ledger(), b in any_ledger()) {
            let (mut ab, mut ba) = (a.clone(), b.clone());
            ab.merge(&b);
            ba.merge(&a);
            prop_assert_eq!(ab.bytes(), a.bytes() + b.bytes());
            prop_assert_eq!(&ab.paths, &ba.paths);
            prop_assert!(ab.downgrades.len() <= DOWNGRADES_KEPT_MAX);
        }

        #[test]
        fn what_was_added_is_found_again(a in any_ledger(), b in any_ledger()) {
            let mut both = a.clone();
            both.merge(&b);
            let added = both.since(&a);
            prop_assert_eq!(added.bytes(), b.bytes());
            prop_assert_eq!(added.verified_bytes, b.verified_bytes);
            prop_assert!(added.downgrades.iter().all(|downgrade| b.downgrades.contains(downgrade)));
            prop_assert_eq!(both.since(&both), Ledger::default());
        }

        #[test]
        fn json_round_trips(ledger in any_ledger()) {
            let text = serde_json::to_string(&ledger).unwrap();
            prop_assert_eq!(serde_json::from_str::<Ledger>(&text).unwrap(), ledger);
        }
    }

    #[test]
    fn the_table_names_path_and_reason() {
        let mut ledger = Ledger::of(DataPath::Buffered, 3 << 20, 3);
        ledger.record_downgrade(
            DataPath::DirectUring,
            DataPath::Buffered,
            "tmpfs has no direct I/O",
        );
        let table = ledger.to_string();
        assert!(
            table.contains("buffered")
                && table.contains("3.0 MiB")
                && table.contains("tmpfs has no direct I/O"),
            "{table}"
        );
    }
}
