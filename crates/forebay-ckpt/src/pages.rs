//! Fetches pages of parts and indexes from a store, and checks each against the pointer it was found by.
//!
//! ```text
//! open: the last 64 KiB: trailer, head, and with it the upper levels of most trees
//! find: top page -> inner page -> leaf          one range of at most 16 KiB each
//! scan: leaves in order                         by windows of some megabytes, which each walk has for itself
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use forebay_core::{Error, ErrorKind, Key, Ledger, Result, Span};
use forebay_io::{AlignedBuf, Pages};
use forebay_store::{Context, ReadOptions, Store, StoreExt};

use crate::entry::{ChunkRecord, Entry};
use crate::hash::{Digest, sha256};
use crate::index::Found;
use crate::part::{NAME_BYTES_MAX, split_tail};
use crate::tree::{
    Kind, PAGE_BYTES, Pointer, Root, check_page, children_of, children_with, first_child, leaf_records,
    named_children, numbered_children, open_page, page_above, pages_by_level,
};
use crate::wire::{Cursor, cursor};

/// Bytes at the end that are read first: head and upper pages of most parts.
const TAIL_BYTES: u64 = 64 << 10;

/// Bytes that a scan reads at once: few requests, and little memory beside many open parts.
const WINDOW_BYTES: u64 = 4 << 20;

/// Pages kept of one object, some megabytes: more than the upper levels of any tree.
const PAGES_KEPT_MAX: usize = 256;

/// An object made of pages.
#[derive(Debug)]
pub(crate) struct PageFile {
    store: Arc<dyn Store>,
    context: Context,
    key: Key,
    size: u64,
    tail: Bytes,
    /// Pages that were checked, by the hash they held: neighbours in a tree have most of their way in common.
    pages: Mutex<HashMap<Digest, Bytes>>,
    ledger: Mutex<Ledger>,
    /// Off only in tests, which show that damage would go unnoticed without.
    checks: bool,
}

/// What was read along with a page: those of one walk mostly lie one after the other.
#[derive(Debug)]
struct Window {
    start: u64,
    bytes: Bytes,
    /// Where the last page ends that the walk wants.
    end: u64,
}

impl Window {
    /// For these pages; `None` where they are few, which are rather kept for the next walk.
    fn over(pages: impl ExactSizeIterator<Item = Pointer>) -> Option<Self> {
        let are_many = pages.len() > 2;
        let ends = pages.map(|pointer| pointer.offset.saturating_add(pointer.len.into()));
        let end = ends.max().filter(|_| are_many)?;
        Some(Self {
            start: 0,
            bytes: Bytes::new(),
            end,
        })
    }

    fn page(&self, span: Span) -> Option<Bytes> {
        let is_in = span.start() >= self.start && span.end() <= self.start + self.bytes.len() as u64;
        is_in.then(|| self.bytes.slice(span.relative_to(self.start)))
    }
}

/// Where pages are and whether they are checked.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) context: Context,
    pub(crate) checks: bool,
}

impl Source {
    /// Memory for `len` bytes: of the pool where it has as much, else of its own.
    pub(crate) async fn memory(&self, len: usize) -> Result<AlignedBuf> {
        let pool = self.context.pool();
        let mut memory = if len <= pool.lease_bytes_max() {
            pool.lease(len).await??
        } else {
            AlignedBuf::alloc(len, Pages::default())?
        };
        memory.set_len(len);
        Ok(memory)
    }
}

impl PageFile {
    /// Read the end of an object of `size` bytes; gives its head, whose hash is compared with `hash` where that is known.
    pub(crate) async fn open(
        source: &Source,
        key: Key,
        size: u64,
        hash: Option<&Digest>,
    ) -> Result<(Self, Bytes)> {
        let Source {
            store,
            context,
            checks,
        } = source;
        let mut file = Self {
            store: Arc::clone(store),
            context: context.clone(),
            key,
            size,
            tail: Bytes::new(),
            pages: Mutex::default(),
            ledger: Mutex::default(),
            checks: *checks,
        };
        let head = file.read_head(hash).await;
        let head = head.map_err(|error| file.name_in(error))?;
        Ok((file, head))
    }

    async fn read_head(&mut self, hash: Option<&Digest>) -> Result<Bytes> {
        let size = self.size;
        self.tail = self
            .read(Span::new(size.saturating_sub(TAIL_BYTES), size)?)
            .await?;
        let head_bytes = match split_tail(&self.tail, size)? {
            Ok(head) => head.len(),
            Err(head_bytes) => {
                let needed = u64::from(head_bytes) + TAIL_BYTES;
                self.tail = self.read(Span::new(size.saturating_sub(needed), size)?).await?;
                split_tail(&self.tail, size)?.map_err(|_| cut_off())?.len()
            }
        };
        let end = self.tail.len() - crate::part::TRAILER_BYTES;
        let head = self.tail.slice(end - head_bytes..end);
        if self.checks && hash.is_some_and(|hash| sha256(&[&head]) != *hash) {
            let message = "the head is not the one that the manifest names: its hash does not hold";
            return Err(Error::new(ErrorKind::Corrupt, "read checkpoint", message));
        }
        Ok(head)
    }

    async fn read(&self, span: Span) -> Result<Bytes> {
        if span.end() > self.size {
            return Err(cut_off());
        }
        let options = ReadOptions::default();
        let read = self.store.read(&self.key, span, &options, &self.context).await;
        let (buf, ledger) = read.map_err(|error| match error.kind() {
            // The store's word for a range beyond the end.
            ErrorKind::InvalidInput => cut_off().with_source(error),
            // Who asks for a tensor that is not there is told the same word, and goes nowhere else for it.
            ErrorKind::NotFound => corrupt("the checkpoint names it, and it is not there").with_source(error),
            _ => error,
        })?;
        self.ledger
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .merge(&ledger);
        // Kept longer than memory of the pool may be.
        Ok(Bytes::copy_from_slice(&buf))
    }

    /// Say in an error which object it is about.
    pub(crate) fn name_in(&self, error: Error) -> Error {
        error.at(self.store.location().join(&self.key))
    }

    /// Which way its bytes came so far.
    pub(crate) fn ledger(&self) -> Ledger {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn kept(&self, span: Span) -> Option<Bytes> {
        let tail_start = self.size - self.tail.len() as u64;
        if span.start() >= tail_start && span.end() <= self.size {
            return Some(self.tail.slice(span.relative_to(tail_start)));
        }
        None
    }

    /// The page of a pointer, checked; with a window, the pages that are wanted after it are read along.
    async fn page(&self, pointer: &Pointer, window: Option<&mut Window>) -> Result<Bytes> {
        let span = Span::at(pointer.offset, pointer.len.into())?;
        if let Some(page) = self.pages().get(&pointer.hash) {
            return Ok(page.clone());
        }
        let is_kept = window.is_none();
        let page = match (self.kept(span), window) {
            (Some(page), _) => page,
            (None, Some(window)) => self.page_of_window(span, window).await?,
            (None, None) => self.read(span).await?,
        };
        if self.checks {
            check_page(&page, pointer)?;
        }
        if is_kept {
            let mut pages = self.pages();
            if pages.len() == PAGES_KEPT_MAX {
                pages.clear();
            }
            pages.insert(pointer.hash, page.clone());
        }
        Ok(page)
    }

    async fn page_of_window(&self, span: Span, window: &mut Window) -> Result<Bytes> {
        if let Some(page) = window.page(span) {
            return Ok(page);
        }
        let end = window.end.min(span.start().saturating_add(WINDOW_BYTES));
        let end = end.clamp(span.end(), self.size.max(span.end()));
        window.bytes = self.read(Span::new(span.start(), end)?).await?;
        window.start = span.start();
        window.page(span).ok_or_else(cut_off)
    }

    fn pages(&self) -> MutexGuard<'_, HashMap<Digest, Bytes>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of `count` records of a numbered tree.
    pub(crate) async fn numbered(&self, kind: Kind, root: &Root, first: u64, count: u64) -> Result<Vec<u8>> {
        let read = self.read_numbered(kind, root, first, count).await;
        read.map_err(|error| self.name_in(error))
    }

    async fn read_numbered(&self, kind: Kind, root: &Root, first: u64, count: u64) -> Result<Vec<u8>> {
        let record_bytes = kind.record_bytes().unwrap_or(1);
        let end = first.checked_add(count).filter(|end| *end <= root.records);
        let (Some(end), Some(top)) = (end, root.top) else {
            if count == 0 {
                return Ok(Vec::new());
            }
            return Err(corrupt("an entry points at records that are not there"));
        };
        if count == 0 {
            return Ok(Vec::new());
        }
        let per_leaf = leaf_records(record_bytes);
        let levels = pages_by_level(root.records, record_bytes);
        let (first_leaf, last_leaf) = (first / per_leaf, (end - 1) / per_leaf);
        let mut pages = vec![(0, top)];
        for level in (1..root.levels).rev() {
            let below = levels.get(usize::from(level) - 1).copied().unwrap_or(0);
            let needed = page_above(first_leaf, level - 1)..=page_above(last_leaf, level - 1);
            let mut next = Vec::new();
            for (number, pointer) in pages {
                let page = self.page(&pointer, None).await?;
                let children = numbered_children(&page, kind, level, children_of(number, below))?;
                let numbers = first_child(number)..;
                next.extend(
                    numbers
                        .zip(children)
                        .filter(|(number, _)| needed.contains(number)),
                );
            }
            pages = next;
        }
        let mut records =
            Vec::with_capacity((count as usize).saturating_mul(record_bytes).min(PAGE_BYTES * 64));
        let mut window = Window::over(pages.iter().map(|(_, pointer)| *pointer));
        for (number, pointer) in pages {
            let page = self.page(&pointer, window.as_mut()).await?;
            let (mut cursor, there) = open_page(&page, kind, 0)?;
            let leaf = number * per_leaf;
            if u64::from(there) != per_leaf.min(root.records - leaf) {
                return Err(cursor.corrupt("a leaf has other records than its place needs"));
            }
            let content = cursor.take(there as usize * record_bytes)?;
            cursor.finish()?;
            let from = first.saturating_sub(leaf) as usize * record_bytes;
            let until = (end - leaf).min(there.into()) as usize * record_bytes;
            records.extend_from_slice(content.get(from..until).unwrap_or_default());
        }
        Ok(records)
    }

    /// Pointers of all pages of a tree, from the top down.
    pub(crate) async fn pointers(&self, kind: Kind, root: &Root) -> Result<Vec<Pointer>> {
        let read = self.read_pointers(kind, root).await;
        read.map_err(|error| self.name_in(error))
    }

    async fn read_pointers(&self, kind: Kind, root: &Root) -> Result<Vec<Pointer>> {
        let counts = kind
            .record_bytes()
            .map(|bytes| pages_by_level(root.records, bytes));
        let mut level_pages: Vec<Pointer> = root.top.into_iter().collect();
        let mut all = level_pages.clone();
        for level in (1..root.levels).rev() {
            let mut below = Vec::new();
            let mut window = Window::over(level_pages.iter().copied());
            for (number, pointer) in (0..).zip(&level_pages) {
                let page = self.page(pointer, window.as_mut()).await?;
                match &counts {
                    Some(counts) => {
                        let there = counts.get(usize::from(level) - 1).copied().unwrap_or(0);
                        let expected = children_of(number, there);
                        below.extend(numbered_children(&page, kind, level, expected)?);
                    }
                    None => {
                        let children = named_children(&page, kind, level, NAME_BYTES_MAX)?;
                        below.extend(children.into_iter().map(|child| child.pointer));
                    }
                }
            }
            all.extend_from_slice(&below);
            level_pages = below;
        }
        Ok(all)
    }

    /// Chunk records `first..first + count`.
    pub(crate) async fn chunks(&self, root: &Root, first: u64, count: u64) -> Result<Vec<ChunkRecord>> {
        let bytes = self.numbered(Kind::Chunks, root, first, count).await?;
        let mut cursor = cursor(&bytes, "chunks");
        let chunks = (0..count).map(|_| ChunkRecord::take(&mut cursor));
        chunks.collect::<Result<_>>().map_err(|error| self.name_in(error))
    }

    /// All records of a name.
    pub(crate) async fn find<R: Record>(&self, root: &Root, name: &str) -> Result<Vec<R>> {
        let mut found = Vec::new();
        let mut keep = |record: R| {
            if record.name() == name {
                found.push(record);
            }
            Ok(())
        };
        let walked = self.walk(root, Some(name), &mut keep).await;
        walked.map_err(|error| self.name_in(error))?;
        Ok(found)
    }

    /// Every record, in order.
    pub(crate) async fn scan<R: Record>(
        &self,
        root: &Root,
        each: &mut (dyn FnMut(R) -> Result<()> + Send),
    ) -> Result<()> {
        let walked = self.walk(root, None, each).await;
        walked.map_err(|error| self.name_in(error))
    }

    async fn walk<R: Record>(
        &self,
        root: &Root,
        name: Option<&str>,
        each: &mut (dyn FnMut(R) -> Result<()> + Send),
    ) -> Result<()> {
        let mut pages: Vec<Pointer> = root.top.into_iter().collect();
        for level in (1..root.levels).rev() {
            let mut next = Vec::new();
            let mut window = Window::over(pages.iter().copied());
            for pointer in pages {
                let page = self.page(&pointer, window.as_mut()).await?;
                let children = named_children(&page, R::KIND, level, NAME_BYTES_MAX)?;
                let needed = match name {
                    Some(name) => children_with(&children, name),
                    None => 0..children.len(),
                };
                let needed = children.get(needed).unwrap_or_default();
                next.extend(needed.iter().map(|child| child.pointer));
            }
            pages = next;
        }
        let mut window = Window::over(pages.iter().copied());
        let mut last: Option<R> = None;
        let mut records = 0;
        for pointer in pages {
            let page = self.page(&pointer, window.as_mut()).await?;
            let (mut cursor, count) = open_page(&page, R::KIND, 0)?;
            for _ in 0..count {
                let record = R::take(&mut cursor)?;
                if last.as_ref().is_some_and(|last| !last.is_before(&record)) {
                    return Err(cursor.corrupt("entries do not ascend"));
                }
                if let Some(last) = last.replace(record) {
                    each(last)?;
                }
                records += 1;
            }
            cursor.finish()?;
        }
        if let Some(last) = last {
            each(last)?;
        }
        if name.is_none() && records != root.records {
            return Err(corrupt("there are other entries than the head says"));
        }
        Ok(())
    }
}

/// A record of a named tree.
pub(crate) trait Record: Sized + Send {
    /// The tree it is of.
    const KIND: Kind;

    fn take(cursor: &mut Cursor<'_>) -> Result<Self>;
    fn name(&self) -> &str;
    fn is_before(&self, other: &Self) -> bool;
}

impl Record for Entry {
    const KIND: Kind = Kind::Entries;

    fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        Entry::take(cursor)
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn is_before(&self, other: &Self) -> bool {
        self.order() < other.order()
    }
}

impl Record for Found {
    const KIND: Kind = Kind::Index;

    fn take(cursor: &mut Cursor<'_>) -> Result<Self> {
        Found::take(cursor)
    }

    fn name(&self) -> &str {
        &self.entry.name
    }

    fn is_before(&self, other: &Self) -> bool {
        self.order() < other.order()
    }
}

fn corrupt(message: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "read checkpoint", message)
}

fn cut_off() -> Error {
    corrupt("it is shorter than the checkpoint says")
}
