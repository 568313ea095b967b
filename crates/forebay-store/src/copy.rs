//! Copies between any two stores: in parallel, in bounded memory, resumable, verified.
//!
//! A [`Copier`] moves one object, a list of them or everything below a prefix. The listing gives size and version, so a small object costs one
//! read and one write and nothing else; a large one is read in ranges that become the parts of an upload in the order in which they
//! arrive. Both kinds share one bound of requests in flight, and every byte waits for memory from the context's pool.
//!
//! ```text
//! listing --bounded--> [join with what is there] --> small: read -> crc -> put ------------> [read back] -> report
//!                                                \-> large: ranges -> crc -> parts -> complete -> [read back] -> report
//! ```
//!
//! **Verified** means: CRC-64/NVME is computed over the bytes as they were read, compared with the checksum the source keeps (where it
//! keeps one) before anything becomes visible, and the destination either compared the same checksum itself, as its probe showed, or
//! is read back. Each object's result says which. Listings of buckets leave checksums out, and a request per object to ask for one would
//! double the requests of small objects: in trees, it is made from 1 MiB on, and smaller objects say [`SourceCheck::NotAsked`]. **Resumable** means: [`journal`]s in the state folder remember the parts of large
//! objects and the finished objects of a tree; they are dropped on success and ignored when the source changed.
//!
//! **Not copied** are times, owners, extended attributes and empty directories; links are followed. A file made from a file gets its
//! permissions as far as the umask allows, and its owner may always read and write it. Sockets, FIFOs and devices are counted and left out.
//!
//! - [`run`]: a copy under way, its tasks and its account;
//! - [`object`]: one object, small or in parts; [`verify`]: reading back;
//! - [`tree`]: listings, joined with what the destination already has;
//! - [`journal`]: what survives the process; [`report`]: what is told.

mod journal;
mod object;
mod report;
mod run;
mod tree;
mod verify;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use forebay_core::{Error, ErrorKind, Key, Location, PathPolicy, Result};
use forebay_io::Class;
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use report::{
    Copied, CopyReport, DestinationCheck, FAILURES_KEPT_MAX, Failure, ObjectCopied, Progress, Silent,
    SourceCheck,
};

use crate::context::Context;
use crate::open::open;
use crate::store::{ObjectMeta, PutMode, PutOptions, ReadOptions, Store, identity_below};
use journal::TreeJournal;
use run::Run;

/// How the destination is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// By the store where its probe showed that it refuses wrong checksums, by reading back otherwise.
    #[default]
    Auto,
    /// Always by reading back.
    ReadBack,
    /// Not at all. The bytes read are still compared with the source's checksum.
    None,
}

/// How to copy.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// How the destination is checked.
    pub verify: Verify,
    /// Go on where an interrupted copy stopped, and remember what is needed for that.
    pub resume: bool,
    /// When an object exists at the destination.
    pub mode: PutMode,
    /// Class of service for local I/O.
    pub class: Class,
    /// Which data paths are acceptable on the reading side.
    pub policy: PathPolicy,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            verify: Verify::Auto,
            resume: true,
            mode: PutMode::Replace,
            class: Class::Data,
            policy: PathPolicy::Fastest,
        }
    }
}

/// Copies objects from one store to another.
#[derive(Debug, Clone)]
pub struct Copier(Arc<Shared>);

/// What all tasks of a copy share.
#[derive(Debug, Clone)]
struct Shared {
    source: Arc<dyn Store>,
    destination: Arc<dyn Store>,
    context: Context,
    options: CopyOptions,
    progress: Arc<dyn Progress>,
    cancel: CancellationToken,
    /// One permit per small object or part on its way, over the whole copy.
    requests: Arc<Semaphore>,
    /// The destination was found not to offer direct reads, so reading back goes through the page cache.
    readback_buffered: Arc<AtomicBool>,
}

/// One object to be copied.
#[derive(Debug)]
struct Job {
    from: ObjectMeta,
    to: Key,
    /// The metadata comes from `head`, so it has the checksum if the store keeps one; listings often do not.
    from_head: bool,
}

/// What the source of jobs gives.
#[derive(Debug)]
enum Next {
    Copy(Job),
    /// Complete at the destination already.
    Skip(ObjectMeta),
    /// No object: a socket, a FIFO, a device.
    Special(Error),
    Failed(Failure),
}

impl Copier {
    /// From `source` to `destination`, with default options.
    pub fn new(source: Arc<dyn Store>, destination: Arc<dyn Store>, context: &Context) -> Self {
        let requests_max = context.limits().store_requests_max.max(1) as usize;
        Self(Arc::new(Shared {
            source,
            destination,
            context: context.clone(),
            options: CopyOptions::default(),
            progress: Arc::new(Silent),
            cancel: CancellationToken::new(),
            requests: Arc::new(Semaphore::new(requests_max)),
            readback_buffered: Arc::default(),
        }))
    }

    /// With other options.
    pub fn with_options(mut self, options: CopyOptions) -> Self {
        Arc::make_mut(&mut self.0).options = options;
        self
    }

    /// With somebody to tell how far it is.
    pub fn with_progress(mut self, progress: Arc<dyn Progress>) -> Self {
        Arc::make_mut(&mut self.0).progress = progress;
        self
    }

    /// Stopped cleanly by `cancel`: nothing half-made is visible, and what can be resumed is kept. Dropping the future stops as well, but
    /// keeps only what the last journal entry knew.
    pub fn with_cancel(mut self, cancel: CancellationToken) -> Self {
        Arc::make_mut(&mut self.0).cancel = cancel;
        self
    }

    /// Copy the objects named first in each pair to the names given second.
    pub async fn objects(&self, pairs: Vec<(Key, Key)>) -> Result<CopyReport> {
        let shared = &self.0;
        shared.refuse_same(pairs.iter().map(|(from, to)| (from, to)))?;
        let heads_max = shared.requests.available_permits().max(1);
        let looker = Arc::clone(shared);
        let jobs = stream::iter(pairs)
            .map(move |(from, to)| Arc::clone(&looker).look(from, to))
            .buffered(heads_max);
        self.run(jobs.boxed(), None).await
    }

    /// Like [`objects`](Self::objects), for objects whose metadata `head` gave already.
    pub async fn known(&self, pairs: Vec<(ObjectMeta, Key)>) -> Result<CopyReport> {
        let shared = &self.0;
        shared.refuse_same(pairs.iter().map(|(from, to)| (&from.key, to)))?;
        let bytes = pairs.iter().map(|(from, _)| from.size).sum();
        shared.progress.planned(pairs.len() as u64, bytes);
        shared.progress.planned_all();
        let jobs = pairs.into_iter().map(|(from, to)| {
            Next::Copy(Job {
                from,
                to,
                from_head: true,
            })
        });
        self.run(stream::iter(jobs).boxed(), None).await
    }

    /// Copy everything below `from` to the same names below `to`.
    pub async fn tree(&self, from: &Key, to: &Key) -> Result<CopyReport> {
        tree::refuse_overlap(&self.0, from, to)?;
        let journal = TreeJournal::open(&self.0, from, to).await;
        let jobs = tree::jobs(Arc::clone(&self.0), from, to, &journal);
        self.run(jobs, Some(journal)).await
    }

    async fn run(
        &self,
        mut jobs: BoxStream<'static, Next>,
        journal: Option<TreeJournal>,
    ) -> Result<CopyReport> {
        verify::prepare(&self.0).await;
        let mut run = Run::new(Arc::clone(&self.0), journal);
        loop {
            let next = tokio::select! {
                biased;
                () = self.0.cancel.cancelled() => break,
                next = jobs.next() => next,
            };
            match next {
                None => {
                    self.0.progress.planned_all();
                    break;
                }
                Some(Next::Copy(job)) => run.start(job).await,
                Some(Next::Skip(meta)) => run.skipped(&meta),
                Some(Next::Special(error)) => run.special(&error),
                Some(Next::Failed(failure)) => run.failed(failure),
            }
            run.collect_finished();
            if run.is_hopeless {
                break;
            }
        }
        drop(jobs);
        run.finish().await
    }
}

impl Shared {
    async fn look(self: Arc<Self>, from: Key, to: Key) -> Next {
        let result = match self.requests.acquire().await {
            Ok(_permit) => self.source.head(&from).await,
            Err(_) => Err(stopped()),
        };
        match result {
            Ok(meta) => {
                self.progress.planned(1, meta.size);
                Next::Copy(Job {
                    from: meta,
                    to,
                    from_head: true,
                })
            }
            Err(error) => Next::Failed(Failure {
                key: Some(from),
                error,
            }),
        }
    }

    fn refuse_same<'a>(&self, pairs: impl Iterator<Item = (&'a Key, &'a Key)>) -> Result<()> {
        let (source, destination) = (self.source.identity(), self.destination.identity());
        for (from, to) in pairs {
            if identity_below(&source, from) == identity_below(&destination, to) {
                let message = "source and destination are the same object";
                let place = self.source.location().join(from);
                return Err(Error::new(ErrorKind::InvalidInput, "copy", message).at(place));
            }
        }
        Ok(())
    }

    fn read_options(&self, version: Option<&String>) -> ReadOptions {
        ReadOptions {
            version: version.cloned(),
            class: self.options.class,
            policy: self.options.policy,
            ..ReadOptions::default()
        }
    }

    fn put_options(&self, from: &ObjectMeta) -> PutOptions {
        PutOptions {
            mode: self.options.mode,
            class: self.options.class,
            policy: PathPolicy::Fastest,
            size_hint: Some(from.size),
            // Never open to others what was closed to them.
            permissions: from.permissions,
            ..PutOptions::default()
        }
    }

    /// Objects up to this size go in one piece.
    fn small_bytes_max(&self) -> u64 {
        let lease_max = self.context.pool().lease_bytes_max() as u64;
        self.context.limits().part_bytes.min(lease_max)
    }
}

/// True when a copy of everything at `source` to `destination` was begun and interrupted, so that the same copy goes on with it.
pub async fn is_tree_unfinished(source: &Location, destination: &Location, context: &Context) -> bool {
    let (Ok(source), Ok(destination)) = (open(source, context).await, open(destination, context).await)
    else {
        return false;
    };
    let root_of = |store: &dyn Store| identity_below(&store.identity(), &Key::ROOT);
    journal::is_unfinished(context, root_of(&*source), root_of(&*destination)).await
}

/// The error of work that was stopped by the caller.
fn stopped() -> Error {
    Error::new(ErrorKind::Cancelled, "copy", "stopped")
}

/// For the fuzz target.
#[cfg(fuzzing)]
pub(crate) fn fuzz(bytes: &[u8]) {
    journal::fuzz(bytes);
}
