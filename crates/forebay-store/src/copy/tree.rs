//! From two listings to jobs: what is there at the source, minus what is complete at the destination.
//!
//! Both listings are sorted by key, so they are joined as they stream, in constant memory. A task lists ahead of the copy, as far as a
//! bounded queue allows, so that totals are known early. An object that the join misses (a store that does not sort) is copied again,
//! which is slower but never wrong.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Result};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::mpsc;

use super::journal::{Known, TreeJournal};
use super::{Failure, Job, Next, Shared};
use crate::store::{
    Entry, ListOptions, Listing, ObjectMeta, PLACES_SEPARATOR, identity_below, is_special_file,
};

/// Rows listed ahead of the copy: some 20 MB of names, enough to know the totals of most trees early.
const LIST_AHEAD_MAX: usize = 64 << 10;

/// Refuse a destination inside its own source: the listing would find what is being written.
pub(super) fn refuse_overlap(shared: &Shared, from: &Key, to: &Key) -> Result<()> {
    let source = identity_below(&shared.source.identity(), from);
    let destination = identity_below(&shared.destination.identity(), to);
    let is_below = |inner: &str| {
        let mut places = source.split(PLACES_SEPARATOR);
        places.any(|outer| format!("{inner}/").starts_with(&format!("{outer}/")))
    };
    if !destination.split(PLACES_SEPARATOR).any(is_below) {
        return Ok(());
    }
    let source = shared.source.location().join(from);
    let destination = shared.destination.location().join(to);
    let message = format!("the destination {destination} lies inside the source");
    Err(Error::new(ErrorKind::InvalidInput, "copy", message)
        .at(source)
        .with_hint("choose a destination outside of it"))
}

/// The jobs of a tree, listed by a task of their own.
pub(super) fn jobs(
    shared: Arc<Shared>,
    from: &Key,
    to: &Key,
    journal: &TreeJournal,
) -> BoxStream<'static, Next> {
    let (sender, receiver) = mpsc::channel(LIST_AHEAD_MAX);
    let (from, to, known) = (from.clone(), to.clone(), journal.known());
    let lister = tokio::spawn(async move {
        let mut join = Join::new(&shared, &from, &to, known);
        while let Some(next) = join.next().await {
            if let Next::Copy(job) = &next {
                shared.progress.planned(1, job.from.size);
            }
            if sender.send(next).await.is_err() {
                return;
            }
        }
        shared.progress.planned_all();
    });
    let abort = AbortOnDrop(lister);
    stream::unfold((receiver, abort), |(mut receiver, abort)| async move {
        receiver.recv().await.map(|next| (next, (receiver, abort)))
    })
    .boxed()
}

#[derive(Debug)]
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The source's listing beside the destination's.
struct Join {
    source: Listing,
    from: Key,
    to: Key,
    there: Option<There>,
    known: Arc<Known>,
}

/// What is at the destination, in order.
struct There {
    rows: Listing,
    next: Option<(Key, ObjectMeta)>,
}

impl Join {
    fn new(shared: &Shared, from: &Key, to: &Key, known: Arc<Known>) -> Self {
        let everything = ListOptions { recursive: true };
        Self {
            source: shared.source.list(from, everything),
            there: shared.options.resume.then(|| There {
                rows: shared.destination.list(to, everything),
                next: None,
            }),
            from: from.clone(),
            to: to.clone(),
            known,
        }
    }

    async fn next(&mut self) -> Option<Next> {
        loop {
            let meta = match self.source.next().await? {
                Ok(Entry::Object(meta)) => meta,
                Ok(Entry::Prefix(_)) => continue,
                Err(error) if is_special_file(&error) => return Some(Next::Special(error)),
                Err(error) => return Some(Next::Failed(Failure { key: None, error })),
            };
            // The object that has the prefix itself as its name is not below it.
            let Some(name) = meta.key.below(&self.from).filter(|name| !name.is_root()) else {
                continue;
            };
            let known = Arc::clone(&self.known);
            let is_complete = match self.there(&name).await {
                Some(there) => known.is_complete(&name, &meta, there),
                None => false,
            };
            return Some(if is_complete {
                Next::Skip(meta)
            } else {
                Next::Copy(Job {
                    to: self.to.join(&name),
                    from: meta,
                    from_head: false,
                })
            });
        }
    }

    /// The destination's object of that name, if its listing has it.
    async fn there(&mut self, name: &Key) -> Option<&ObjectMeta> {
        let there = self.there.as_mut()?;
        loop {
            let is_behind = there.next.as_ref().is_none_or(|(key, _)| key < name);
            if !is_behind {
                break;
            }
            match there.rows.next().await {
                Some(Ok(Entry::Object(meta))) => {
                    there.next = meta.key.below(&self.to).map(|key| (key, meta));
                }
                Some(Ok(Entry::Prefix(_))) => {}
                // A name that cannot be listed cannot be ours; a destination that cannot be listed has nothing to skip.
                Some(Err(error)) => tracing::debug!(%error, "a row of the destination's listing is left out"),
                None => {
                    self.there = None;
                    return None;
                }
            }
        }
        let (key, meta) = self.there.as_ref()?.next.as_ref()?;
        (key == name).then_some(meta)
    }
}
