//! Lists a directory tree in the byte order of whole keys.
//!
//! Depth first with one frame per directory of the current path; its next neighbours are read ahead. Within a directory, a subdirectory sorts as its name with a `/`
//! behind it: `a-b`, `a.txt`, `a/x`, `ab` is the order an object store gives. Links are followed; a directory that is already on
//! the current path is a loop and gives an error row. Whatever cannot be listed gives an error row with its name, and the
//! walk goes on; so do sockets, FIFOs and devices when all of a tree is listed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use forebay_io::{Disk, FileKind, FileStat};
use futures::future::BoxFuture;
use futures::stream::{self, FuturesOrdered, StreamExt};

use super::explain::{explain, is_not_a_directory};
use super::{Shared, TEMP_PREFIX, meta_of, sweep};
use crate::store::{Entry, LEAVE_OUT, ListOptions, Listing};

/// Names whose size is asked for in one turn of a thread: a turn costs more than a look.
const STAT_BATCH: usize = 64;

/// Such turns in flight at once: more than the engine has threads gains nothing.
const STATS_IN_FLIGHT: usize = 16;

/// Directories that are read at once, the current one and its next neighbours: a disk, and a file server even more, is slow to answer but answers many at once.
const DIRS_AT_ONCE: usize = 8;

/// List below `prefix`.
pub(super) fn list(shared: &Arc<Shared>, prefix: &Key, options: ListOptions) -> Listing {
    let walk = Walk {
        shared: Arc::clone(shared),
        options,
        prefix: Some(prefix.clone()),
        frames: Vec::new(),
    };
    stream::unfold(walk, |mut walk| async move {
        let row = walk.next().await?;
        Some((row, walk))
    })
    .boxed()
}

struct Walk {
    shared: Arc<Shared>,
    options: ListOptions,
    /// Where to begin; taken by the first step.
    prefix: Option<Key>,
    frames: Vec<Frame>,
}

/// A directory of the current path.
struct Frame {
    identity: (u64, u64),
    key: Key,
    path: PathBuf,
    names: VecDeque<Unseen>,
    found: VecDeque<Result<Found>>,
    /// Names in the directories that come first in `found`, in that order.
    ahead: FuturesOrdered<BoxFuture<'static, Result<VecDeque<Unseen>>>>,
}

/// A name that is not looked at yet.
struct Unseen {
    name: OsString,
    is_dir: bool,
    is_link: bool,
    /// Known already for links, which had to be followed to sort them.
    stat: Option<Result<FileStat>>,
}

enum Found {
    Object(Entry),
    Dir(Key, PathBuf, FileStat),
}

impl Walk {
    async fn next(&mut self) -> Option<Result<Entry>> {
        if let Some(prefix) = self.prefix.take()
            && let Some(row) = self.begin(prefix).await
        {
            return Some(row);
        }
        loop {
            let frame = self.frames.last_mut()?;
            if frame.found.is_empty() {
                frame.look(&self.shared, self.options.recursive).await;
            }
            match frame.found.pop_front() {
                None => drop(self.frames.pop()),
                Some(Err(error)) => return Some(Err(error)),
                Some(Ok(Found::Object(entry))) => return Some(Ok(entry)),
                Some(Ok(Found::Dir(key, _, _))) if !self.options.recursive => {
                    return Some(Ok(Entry::Prefix(key)));
                }
                Some(Ok(Found::Dir(key, path, stat))) => {
                    let names = frame.names_of(&path, &self.shared).await;
                    if let Err(error) = self.enter(key, path, &stat, names) {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// The first step: the prefix may be a directory, an object or nothing.
    async fn begin(&mut self, prefix: Key) -> Option<Result<Entry>> {
        if prefix
            .as_str()
            .split('/')
            .any(|part| part.starts_with(TEMP_PREFIX))
        {
            return None;
        }
        // Joining nothing would add a slash, which asks for a directory.
        let path = if prefix.is_root() {
            self.shared.root.clone()
        } else {
            self.shared.root.join(prefix.as_str())
        };
        match self.shared.disk().stat(&path).await {
            Ok(stat) if stat.kind == FileKind::Dir => {
                let names = names_in(&self.shared, &path).await;
                self.enter(prefix, path, &stat, names).err().map(Err)
            }
            Ok(_) if prefix.is_root() => {
                let error = Error::new(ErrorKind::InvalidInput, "list", "this is not a directory");
                Some(Err(error
                    .at(path.display())
                    .with_hint("name the directory it is in")))
            }
            Ok(stat) if stat.kind == FileKind::File => Some(Ok(Entry::Object(meta_of(prefix, &stat)))),
            Ok(_) => self.options.recursive.then(|| Err(special(&path))),
            Err(error) if error.kind() == ErrorKind::NotFound || is_not_a_directory(&error) => {
                let error = self.shared.not_found("list", &path, error).await;
                // Nothing below a prefix is an empty listing; a store that is not there is an error.
                (prefix.is_root() || !error.message().is_empty()).then_some(Err(error))
            }
            Err(error) => Some(Err(explain("list", &path, error))),
        }
    }

    fn enter(
        &mut self,
        key: Key,
        path: PathBuf,
        stat: &FileStat,
        names: Result<VecDeque<Unseen>>,
    ) -> Result<()> {
        if let Some(above) = self.frames.iter().find(|frame| frame.identity == stat.identity) {
            let message = format!("this leads back to {}", above.path.display());
            return Err(Error::new(ErrorKind::InvalidInput, "list", message)
                .at(path.display())
                .with_hint("remove the symbolic link that makes the loop"));
        }
        self.frames.push(Frame {
            identity: stat.identity,
            key,
            path,
            names: names?,
            found: VecDeque::new(),
            ahead: FuturesOrdered::new(),
        });
        Ok(())
    }
}

/// The names in a directory that may be listed, in key order.
async fn names_in(shared: &Shared, path: &Path) -> Result<VecDeque<Unseen>> {
    let mut entries = shared
        .disk()
        .list(path)
        .await
        .map_err(|error| explain("list", path, error))?;
    if entries.iter().any(sweep::is_temp) {
        sweep::sweep(
            shared.disk(),
            path,
            entries.iter().filter(|entry| sweep::is_temp(entry)),
        )
        .await;
        entries.retain(|entry| !sweep::is_temp(entry));
    }
    let names = entries.into_iter().map(|entry| {
        let disk = shared.disk().clone();
        let link = (entry.kind == FileKind::Other).then(|| path.join(&entry.name));
        async move {
            let stat = match link {
                Some(path) => Some(disk.stat(&path).await),
                None => None,
            };
            let linked_dir = matches!(&stat, Some(Ok(stat)) if stat.kind == FileKind::Dir);
            Unseen {
                is_dir: entry.kind == FileKind::Dir || linked_dir,
                name: entry.name,
                is_link: stat.is_some(),
                stat,
            }
        }
    });
    let mut names: Vec<Unseen> = stream::iter(names).buffered(STATS_IN_FLIGHT).collect().await;
    names.sort_by(|a, b| a.sort_bytes().cmp(b.sort_bytes()));
    Ok(names.into())
}

impl Unseen {
    fn sort_bytes(&self) -> impl Iterator<Item = u8> {
        let slash = self.is_dir.then_some(b'/');
        self.name.as_encoded_bytes().iter().copied().chain(slash)
    }
}

impl Frame {
    /// Look at the next names.
    async fn look(&mut self, shared: &Shared, recursive: bool) {
        while self.found.is_empty() && !self.names.is_empty() {
            let count = self.names.len().min(STAT_BATCH * STATS_IN_FLIGHT);
            let mut names: Vec<Unseen> = self.names.drain(..count).collect();
            stat_missing(shared, &self.path, &mut names).await;
            for mut name in names {
                let path = self.path.join(&name.name);
                let (is_link, stat) = (name.is_link, name.stat.take());
                let row = match (self.key_of(&name, &path), stat) {
                    (Ok(key), Some(stat)) => found(key, path, stat, is_link, recursive),
                    (Ok(_), None) => None,
                    (Err(error), _) => Some(Err(error)),
                };
                // Nothing is told of what vanished since the directory was read.
                self.found.extend(row);
            }
        }
    }

    /// The names in the directory that was found last, while those behind it are being read.
    async fn names_of(&mut self, path: &Path, shared: &Arc<Shared>) -> Result<VecDeque<Unseen>> {
        if self.ahead.is_empty() {
            self.ahead.push_back(looked_at(shared, path));
        }
        let behind = self.found.iter().filter_map(|found| match found {
            Ok(Found::Dir(_, path, _)) => Some(path),
            _ => None,
        });
        let begun = self.ahead.len();
        for path in behind.skip(begun - 1).take(DIRS_AT_ONCE.saturating_sub(begun)) {
            self.ahead.push_back(looked_at(shared, path));
        }
        let names = self.ahead.next().await;
        names.unwrap_or_else(|| Ok(VecDeque::new()))
    }

    fn key_of(&self, name: &Unseen, path: &Path) -> Result<Key> {
        let Some(name) = name.name.to_str() else {
            let escaped = name.name.as_encoded_bytes().escape_ascii();
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "list",
                format!("name is not valid UTF-8: '{escaped}'"),
            )
            .at(self.path.display())
            .with_hint("rename the file"));
        };
        let whole = if self.key.is_root() {
            name.to_owned()
        } else {
            format!("{}/{name}", self.key)
        };
        Key::parse(&whole).map_err(|error| explain("list", path, error))
    }
}

/// Read a directory, and look at the first names in it.
fn looked_at(shared: &Arc<Shared>, path: &Path) -> BoxFuture<'static, Result<VecDeque<Unseen>>> {
    let (shared, path) = (Arc::clone(shared), path.to_owned());
    Box::pin(async move {
        let mut names = names_in(&shared, &path).await?;
        let count = names.len().min(STAT_BATCH * STATS_IN_FLIGHT);
        if let Some(first) = names.make_contiguous().get_mut(..count) {
            stat_missing(&shared, &path, first).await;
        }
        Ok(names)
    })
}

/// Ask for the size and kind of every name of which they are not known yet.
async fn stat_missing(shared: &Shared, dir: &Path, names: &mut [Unseen]) {
    let mut turns: Vec<BoxFuture<'static, Vec<Result<FileStat>>>> = Vec::new();
    for turn in names.chunks(STAT_BATCH) {
        let asked = turn.iter().filter(|name| name.stat.is_none());
        let asked = asked.map(|name| name.name.clone()).collect();
        turns.push(Box::pin(stat_turn(shared.disk().clone(), dir.to_owned(), asked)));
    }
    let stats: Vec<_> = stream::iter(turns).buffered(STATS_IN_FLIGHT).collect().await;
    for (turn, stats) in names.chunks_mut(STAT_BATCH).zip(stats) {
        let unknown = turn.iter_mut().filter(|name| name.stat.is_none());
        for (name, stat) in unknown.zip(stats) {
            name.stat = Some(stat);
        }
    }
}

/// One turn of looks; where the engine is gone, one row says so.
async fn stat_turn(disk: Disk, dir: PathBuf, names: Vec<OsString>) -> Vec<Result<FileStat>> {
    if names.is_empty() {
        return Vec::new();
    }
    match disk.stat_many(&dir, names).await {
        Ok(stats) => stats,
        Err(error) => vec![Err(error)],
    }
}

/// What a name turned out to be; `None` when there is nothing to tell.
fn found(
    key: Key,
    path: PathBuf,
    stat: Result<FileStat>,
    is_link: bool,
    recursive: bool,
) -> Option<Result<Found>> {
    match stat {
        Ok(stat) => match stat.kind {
            FileKind::File => Some(Ok(Found::Object(Entry::Object(meta_of(key, &stat))))),
            FileKind::Dir => Some(Ok(Found::Dir(key, path, stat))),
            // Whoever goes through all of a tree is told that this is not all of it; a look into one directory need not be.
            FileKind::Other => recursive.then(|| Err(special(&path))),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && is_link => {
            let message = "this symbolic link points nowhere";
            Some(Err(
                Error::new(ErrorKind::NotFound, "list", message).at(path.display())
            ))
        }
        // Removed since the directory was read.
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(Err(explain("list", &path, error))),
    }
}

/// Sockets, FIFOs and devices hold no bytes to list.
fn special(path: &Path) -> Error {
    let message = "this is a socket, a FIFO or a device, not a file";
    Error::new(ErrorKind::InvalidInput, LEAVE_OUT, message).at(path.display())
}
