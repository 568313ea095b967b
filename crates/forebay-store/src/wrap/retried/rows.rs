//! Listings that break off and are taken up again.
//!
//! A store lists from the beginning or not at all, so a listing that broke off begins again and leaves out what was given already. That
//! needs the order the contract promises: what is not behind the last row given is taken for given. A store that does not keep the order is
//! listed all the same, but once it broke off, nobody can tell what is missing: that is an error, never a listing with rows lost or
//! given twice.
//!
//! A listing takes no place among the requests in flight, since its reader may take its time between two rows; its beginning and its failures
//! count like any other request.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Result, Retry};
use futures::stream::{self, StreamExt};

use super::{Shared, Tries};
use crate::store::{Entry, ListOptions, Listing};

/// A listing and how far it got.
pub(super) struct Rows {
    shared: Arc<Shared>,
    prefix: Key,
    options: ListOptions,
    inner: Listing,
    /// When `inner` began.
    began: Duration,
    /// The first row of `inner` has come.
    begun: bool,
    /// The furthest row that was given.
    last: Option<String>,
    /// The last row of `inner`, given or left out.
    seen: Option<String>,
    /// A row came before one that should follow it.
    unordered: bool,
    /// `inner` is not the first.
    resumed: bool,
    tries: Tries,
}

impl Rows {
    pub(super) fn new(shared: &Arc<Shared>, prefix: &Key, options: ListOptions) -> Self {
        Self {
            inner: shared.inner.list(prefix, options),
            began: shared.context.clock().now(),
            shared: Arc::clone(shared),
            prefix: prefix.clone(),
            options,
            begun: false,
            last: None,
            seen: None,
            unordered: false,
            resumed: false,
            tries: Tries::default(),
        }
    }

    pub(super) fn into_listing(self) -> Listing {
        stream::unfold(self, |mut rows| async move { Some((rows.next().await?, rows)) }).boxed()
    }

    async fn next(&mut self) -> Option<Result<Entry>> {
        loop {
            match self.inner.next().await? {
                Ok(entry) => {
                    if !std::mem::replace(&mut self.begun, true) {
                        self.shared.learn(self.began, None);
                    }
                    let place = place_of(&entry);
                    self.unordered |= self.seen.as_ref().is_some_and(|seen| place < *seen);
                    if self.resumed && self.unordered {
                        return Some(Err(self.give_up()));
                    }
                    let given = self.resumed && self.last.as_ref().is_some_and(|last| place <= *last);
                    self.seen = Some(place.clone());
                    if !given {
                        self.last = self.last.take().max(Some(place));
                        self.tries = Tries::default();
                        return Some(Ok(entry));
                    }
                }
                Err(error) => {
                    if let Err(error) = self.restart(error).await {
                        return Some(Err(error));
                    }
                }
            }
        }
    }

    /// Begin again after `error`, or give back why not.
    async fn restart(&mut self, error: Error) -> Result<()> {
        if error.retry() == Retry::Never {
            // About one name, or for good: no request of its own.
            return Err(error);
        }
        self.shared.learn(self.began, Some(&error));
        if self.unordered {
            return Err(self.give_up().with_source(error));
        }
        self.shared.pause_after(&mut self.tries, error).await?;
        self.inner = self.shared.inner.list(&self.prefix, self.options);
        self.began = self.shared.context.clock().now();
        self.begun = false;
        self.seen = None;
        self.resumed = true;
        Ok(())
    }

    /// End the listing: what is missing cannot be told from what was given.
    fn give_up(&mut self) -> Error {
        self.inner = stream::empty().boxed();
        let message = "the listing broke off and cannot be taken up again: this store does not list in the order of names";
        let place = self.shared.inner.location().join(&self.prefix);
        Error::new(ErrorKind::Unavailable, "list", message)
            .at(place)
            .with_hint("list again, or a smaller part of the store")
    }
}

/// Where a row stands in the order of a listing.
fn place_of(entry: &Entry) -> String {
    match entry {
        Entry::Object(meta) => meta.key.to_string(),
        Entry::Prefix(key) => format!("{key}/"),
    }
}
