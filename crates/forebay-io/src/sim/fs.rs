//! The simulated file system: inodes, directories and open files, each in a volatile and a durable view.
//!
//! Operations work on the volatile view and answer with the error numbers a kernel would. What they leave for a sync lies in the
//! [`Content`] of each file and in the [`Journal`] of names; [`crash`](super::crash) makes a new file system from the durable
//! views and a draw from the rest. There are no symbolic links, no permissions and no clock: times count operations.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, Result};

use crate::file::Purpose;
use crate::names::FileKind;

use super::content::{Content, SECTOR_BYTES};
use super::journal::Journal;
use super::tree::set;

/// Longest simulated file: it lives in memory, twice.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Inode number of `/`.
pub(super) const ROOT: u64 = 1;

/// Time that passes with every change.
const TICK_NS: i64 = 1_000_000;

/// A simulated file system; clones share it.
#[derive(Clone)]
pub struct SimFs(Arc<Mutex<State>>);

#[derive(Debug)]
pub(super) struct State {
    pub(super) nodes: BTreeMap<u64, Node>,
    pub(super) journal: Journal,
    /// Open files. Numbers are never used again, not even after a crash: a file from before it is not found.
    pub(super) opened: BTreeMap<u64, Opened>,
    pub(super) next_number: u64,
    pub(super) now_ns: i64,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) body: Body,
    pub(super) modified_ns: i64,
    pub(super) accessed_ns: i64,
}

pub(super) type Entries = BTreeMap<OsString, u64>;

#[derive(Debug)]
pub(super) enum Body {
    File(Content),
    Dir { durable: Entries, volatile: Entries },
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Opened {
    node: u64,
    writable: bool,
}

/// Names the changes of one request until its caller was told that they are done.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ticket {
    node: u64,
    number: u64,
}

impl SimFs {
    /// An empty file system: just `/`.
    pub fn new() -> Self {
        let mut nodes = BTreeMap::new();
        nodes.insert(ROOT, Node::new(Body::dir(), 0));
        Self::of(State {
            nodes,
            journal: Journal::default(),
            opened: BTreeMap::new(),
            next_number: ROOT + 1,
            now_ns: 0,
        })
    }

    pub(super) fn of(state: State) -> Self {
        Self(Arc::new(Mutex::new(state)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a reader of that file sees now; `None` when there is no such file.
    pub fn content(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let state = self.lock();
        let node = state.find(path.as_ref()).ok()?;
        match &state.nodes.get(&node)?.body {
            Body::File(content) => Some(content.bytes().to_vec()),
            Body::Dir { .. } => None,
        }
    }

    /// The paths of all files, sorted.
    pub fn files(&self) -> Vec<PathBuf> {
        let state = self.lock();
        let mut files = Vec::new();
        let mut dirs = vec![(ROOT, PathBuf::from("/"))];
        while let Some((node, path)) = dirs.pop() {
            match state.nodes.get(&node).map(|node| &node.body) {
                Some(Body::Dir { volatile, .. }) => {
                    dirs.extend(volatile.iter().map(|(name, node)| (*node, path.join(name))));
                }
                Some(Body::File(_)) => files.push(path),
                None => {}
            }
        }
        files.sort_unstable();
        files
    }

    /// Make everything durable, as an orderly shutdown does.
    pub fn settle(&self) {
        let mut state = self.lock();
        state.journal = Journal::default();
        for node in state.nodes.values_mut() {
            match &mut node.body {
                Body::File(content) => *content = Content::durable(content.bytes().to_vec()),
                Body::Dir { durable, volatile } => durable.clone_from(volatile),
            }
        }
    }
}

impl Default for SimFs {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SimFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFs({} inodes)", self.lock().nodes.len())
    }
}

impl Body {
    pub(super) fn dir() -> Self {
        Self::Dir {
            durable: Entries::new(),
            volatile: Entries::new(),
        }
    }

    fn file() -> Self {
        Self::File(Content::default())
    }
}

impl Node {
    fn new(body: Body, now_ns: i64) -> Self {
        Self {
            body,
            modified_ns: now_ns,
            accessed_ns: now_ns,
        }
    }

    pub(super) fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.bytes().len() as u64,
            Body::Dir { .. } => 0,
        }
    }

    pub(super) fn stored_bytes(&self) -> u64 {
        self.size().next_multiple_of(SECTOR_BYTES)
    }

    pub(super) fn kind(&self) -> FileKind {
        match self.body {
            Body::File(_) => FileKind::File,
            Body::Dir { .. } => FileKind::Dir,
        }
    }
}

/// Open files and their bytes.
impl State {
    /// Open, or create; gives the number of the open file and its size.
    pub(super) fn open(&mut self, path: &Path, purpose: Purpose) -> Result<(u64, u64)> {
        let node = match self.find(path) {
            Ok(_) if purpose == Purpose::Create => return Err(Errno::EXIST),
            Ok(node) => node,
            Err(Errno::NOENT) if purpose != Purpose::Read => {
                let (dir, name) = self.place(path)?;
                let node = self.add_node(Body::file());
                self.change(vec![set(dir, name, Some(node))], BTreeSet::new())?;
                node
            }
            Err(errno) => return Err(errno),
        };
        let size = match self.node(node)?.body {
            Body::File(_) => self.node(node)?.size(),
            Body::Dir { .. } => return Err(Errno::ISDIR),
        };
        let number = self.number();
        let writable = purpose != Purpose::Read;
        self.opened.insert(number, Opened { node, writable });
        Ok((number, size))
    }

    pub(super) fn close(&mut self, number: u64) {
        self.opened.remove(&number);
    }

    pub(super) fn read(&mut self, file: u64, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let node = self.opened.get(&file).ok_or(Errno::BADF)?.node;
        let bytes = self.content(node)?.bytes();
        let start = bytes.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
        let count = buf.len().min(bytes.len() - start);
        buf[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    /// Change the bytes of an open file, when `end` bytes of it fit into `capacity`.
    pub(super) fn edit(
        &mut self,
        file: u64,
        end: u64,
        capacity: Option<u64>,
        edit: impl FnOnce(&mut Content, u64),
    ) -> Result<Ticket> {
        let opened = *self.opened.get(&file).ok_or(Errno::BADF)?;
        if !opened.writable {
            return Err(Errno::BADF);
        }
        if end > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        if end > self.room_end(opened.node, capacity)? {
            return Err(Errno::NOSPC);
        }
        let ticket = Ticket {
            node: opened.node,
            number: self.number(),
        };
        edit(self.content(opened.node)?, ticket.number);
        let now_ns = self.tick();
        self.node_mut(opened.node)?.modified_ns = now_ns;
        Ok(ticket)
    }

    /// How far an open file can grow.
    pub(super) fn write_end_max(&self, file: u64, capacity: Option<u64>) -> Result<u64> {
        self.room_end(self.opened.get(&file).ok_or(Errno::BADF)?.node, capacity)
    }

    pub(super) fn land(&mut self, ticket: Ticket) {
        if let Ok(content) = self.content(ticket.node) {
            content.land(ticket.number);
        }
    }

    pub(super) fn sync(&mut self, file: u64, fails: bool) -> Result<()> {
        let node = self.opened.get(&file).ok_or(Errno::BADF)?.node;
        let content = self.content(node)?;
        if fails {
            content.sync_failed();
            return Err(Errno::IO);
        }
        content.sync();
        Ok(())
    }

    /// The size a file can have beside all the others.
    fn room_end(&self, node: u64, capacity: Option<u64>) -> Result<u64> {
        let Some(capacity) = capacity else {
            return Ok(u64::MAX);
        };
        let mut linked: BTreeSet<u64> = BTreeSet::new();
        for other in self.nodes.values() {
            if let Body::Dir { volatile, .. } = &other.body {
                linked.extend(volatile.values());
            }
        }
        linked.remove(&node);
        let others = linked
            .iter()
            .filter_map(|node| self.nodes.get(node))
            .map(Node::stored_bytes);
        // What it has already it keeps, even when the disk shrank.
        Ok(capacity
            .saturating_sub(others.sum())
            .max(self.node(node)?.stored_bytes()))
    }
}

/// Inodes and the way to them.
impl State {
    /// The inode of a path.
    pub(super) fn find(&self, path: &Path) -> Result<u64> {
        let mut way = vec![ROOT];
        for component in path.components() {
            let here = way.last().copied().unwrap_or(ROOT);
            let entries = self.entries(here)?;
            match component {
                Component::RootDir | Component::Prefix(_) | Component::CurDir => {}
                Component::ParentDir => drop((way.len() > 1).then(|| way.pop())),
                Component::Normal(name) => way.push(*entries.get(name).ok_or(Errno::NOENT)?),
            }
        }
        Ok(way.last().copied().unwrap_or(ROOT))
    }

    /// The directory that holds a path, and the name in it.
    pub(super) fn place(&self, path: &Path) -> Result<(u64, OsString)> {
        let name = path.file_name().ok_or(Errno::INVAL)?;
        let dir = self.find(path.parent().unwrap_or(Path::new("/")))?;
        self.entries(dir)?;
        Ok((dir, name.to_owned()))
    }

    pub(super) fn entries(&self, node: u64) -> Result<&Entries> {
        match &self.node(node)?.body {
            Body::Dir { volatile, .. } => Ok(volatile),
            Body::File(_) => Err(Errno::NOTDIR),
        }
    }

    fn content(&mut self, node: u64) -> Result<&mut Content> {
        match &mut self.node_mut(node)?.body {
            Body::File(content) => Ok(content),
            Body::Dir { .. } => Err(Errno::ISDIR),
        }
    }

    pub(super) fn node(&self, node: u64) -> Result<&Node> {
        self.nodes.get(&node).ok_or(Errno::STALE)
    }

    pub(super) fn node_mut(&mut self, node: u64) -> Result<&mut Node> {
        self.nodes.get_mut(&node).ok_or(Errno::STALE)
    }

    pub(super) fn add_node(&mut self, body: Body) -> u64 {
        let (id, now_ns) = (self.number(), self.tick());
        self.nodes.insert(id, Node::new(body, now_ns));
        id
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    pub(super) fn tick(&mut self) -> i64 {
        self.now_ns += TICK_NS;
        self.now_ns
    }
}
