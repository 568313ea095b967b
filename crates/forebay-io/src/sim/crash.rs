//! What is left after a power loss.
//!
//! A new file system is made from the durable views of the old one and a draw from everything that was not synced: the
//! [`Journal`](super::journal::Journal) says which names survive, the [`Content`](super::content::Content) of each file that still has a
//! name says which bytes. Things that were synced are never drawn for. The old file system stays as it is, so one run can be
//! crashed with many seeds.

use std::collections::BTreeMap;

use forebay_core::Seed;

use super::content::Content;
use super::fs::{Body, Entries, Node, ROOT, SimFs, State};
use super::journal::Journal;
use super::tree::apply;

impl SimFs {
    /// The file system after losing power now. Files opened before are not open in it.
    pub fn crash(&self, seed: Seed) -> Self {
        let old = self.lock();
        let mut names = surviving_names(&old, seed);
        let mut nodes = BTreeMap::new();
        let mut reached = vec![ROOT];
        while let Some(id) = reached.pop() {
            let Some(node) = old.nodes.get(&id).filter(|_| !nodes.contains_key(&id)) else {
                continue;
            };
            let body = match &node.body {
                Body::File(content) => {
                    Body::File(Content::durable(content.crashed(&mut seed.derive(id).rng())))
                }
                Body::Dir { .. } => {
                    let entries = names.remove(&id).unwrap_or_default();
                    reached.extend(entries.values());
                    Body::Dir {
                        durable: entries.clone(),
                        volatile: entries,
                    }
                }
            };
            let survivor = Node {
                body,
                modified_ns: node.modified_ns,
                accessed_ns: node.accessed_ns,
            };
            nodes.insert(id, survivor);
        }
        Self::of(State {
            nodes,
            journal: Journal::default(),
            opened: BTreeMap::new(),
            next_number: old.next_number,
            now_ns: old.now_ns,
        })
    }
}

fn surviving_names(old: &State, seed: Seed) -> BTreeMap<u64, Entries> {
    let mut dirs: BTreeMap<u64, Entries> = old
        .nodes
        .iter()
        .filter_map(|(id, node)| match &node.body {
            Body::Dir { durable, .. } => Some((*id, durable.clone())),
            Body::File(_) => None,
        })
        .collect();
    // Inode numbers start at 1, so this stream is no file's.
    for edit in old.journal.crashed(&mut seed.derive(0).rng()) {
        if let Some(entries) = dirs.get_mut(&edit.dir) {
            apply(&edit, entries);
        }
    }
    dirs
}
