//! Names in the simulated file system: what a kernel does to directories, in the volatile view, noted for a sync.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use rustix::io::{Errno, Result};

use crate::file::PERMISSIONS_DEFAULT;
use crate::names::{DirEntry, FileKind, FileStat};

use super::fs::{Body, Entries, Node, State};
use super::journal::Edit;

/// Device number that simulated files say they are on.
const DEVICE: u64 = 0x51;

impl State {
    pub(super) fn stat(&self, path: &Path) -> Result<FileStat> {
        let id = self.find(path)?;
        let node = self.node(id)?;
        Ok(FileStat {
            kind: node.kind(),
            size: node.size(),
            stored_bytes: node.stored_bytes(),
            modified_ns: node.modified_ns,
            // Names do not count as changes here, and nobody sets times.
            changed_ns: node.modified_ns,
            accessed_ns: node.accessed_ns,
            permissions: PERMISSIONS_DEFAULT,
            identity: (DEVICE, id),
        })
    }

    pub(super) fn list(&self, path: &Path) -> Result<Vec<DirEntry>> {
        let entries = self.entries(self.find(path)?)?;
        entries
            .iter()
            .map(|(name, node)| {
                Ok(DirEntry {
                    name: name.clone(),
                    kind: self.node(*node)?.kind(),
                })
            })
            .collect()
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path, replace: bool) -> Result<()> {
        let node = self.find(from)?;
        if self.node(node)?.kind() == FileKind::Dir {
            // Moving directories would need rules against cycles, and nothing in the project does it.
            return Err(Errno::OPNOTSUPP);
        }
        let (from_dir, from_name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        match self.entries(to_dir)?.get(&to_name) {
            Some(_) if !replace => return Err(Errno::EXIST),
            Some(there) if self.node(*there)?.kind() == FileKind::Dir => return Err(Errno::ISDIR),
            // Two names of one file: POSIX says that nothing happens.
            Some(there) if *there == node => return Ok(()),
            _ => {}
        }
        let arrive = set(to_dir, to_name, Some(node));
        let leave = set(from_dir, from_name, None);
        if from_dir == to_dir {
            return self.change(vec![arrive, leave], BTreeSet::new()).map(drop);
        }
        let arrived = self.change(vec![arrive], BTreeSet::new())?;
        self.change(vec![leave], BTreeSet::from([arrived])).map(drop)
    }

    pub(super) fn unlink(&mut self, path: &Path) -> Result<()> {
        if self.node(self.find(path)?)?.kind() == FileKind::Dir {
            return Err(Errno::ISDIR);
        }
        let (dir, name) = self.place(path)?;
        self.change(vec![set(dir, name, None)], BTreeSet::new()).map(drop)
    }

    pub(super) fn make_dir(&mut self, path: &Path) -> Result<()> {
        if self.find(path).is_ok() {
            return Err(Errno::EXIST);
        }
        let (dir, name) = self.place(path)?;
        let node = self.add_node(Body::dir());
        self.change(vec![set(dir, name, Some(node))], BTreeSet::new())
            .map(drop)
    }

    pub(super) fn remove_dir(&mut self, path: &Path) -> Result<()> {
        let node = self.find(path)?;
        if !self.entries(node)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        let (dir, name) = self.place(path)?;
        // What emptied the directory is durable before its removal is.
        let emptied = self.journal.touching(node);
        self.change(vec![set(dir, name, None)], emptied).map(drop)
    }

    pub(super) fn sync_dir(&mut self, path: &Path, fails: bool) -> Result<()> {
        let dir = self.find(path)?;
        self.entries(dir)?;
        if fails {
            self.journal.sync_failed(dir);
            return Err(Errno::IO);
        }
        for edit in self.journal.sync(dir) {
            if let Ok(Node {
                body: Body::Dir { durable, .. },
                ..
            }) = self.node_mut(edit.dir)
            {
                apply(&edit, durable);
            }
        }
        Ok(())
    }

    pub(super) fn touch(&mut self, path: &Path) -> Result<()> {
        let node = self.find(path)?;
        let now_ns = self.tick();
        self.node_mut(node)?.accessed_ns = now_ns;
        Ok(())
    }

    /// Edit entries in the volatile view, and note that for a sync.
    pub(super) fn change(&mut self, edits: Vec<Edit>, after: BTreeSet<u64>) -> Result<u64> {
        self.tick();
        for edit in &edits {
            match &mut self.node_mut(edit.dir)?.body {
                Body::Dir { volatile, .. } => apply(edit, volatile),
                Body::File(_) => return Err(Errno::NOTDIR),
            }
        }
        Ok(self.journal.push(edits, after))
    }
}

pub(super) fn set(dir: u64, name: OsString, target: Option<u64>) -> Edit {
    Edit { dir, name, target }
}

/// Carry an edit out.
pub(super) fn apply(edit: &Edit, entries: &mut Entries) {
    match edit.target {
        Some(node) => drop(entries.insert(edit.name.clone(), node)),
        None => drop(entries.remove(&edit.name)),
    }
}
