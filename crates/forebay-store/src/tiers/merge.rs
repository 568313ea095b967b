//! Several listings in key order as one, every name once; the nearest tier's row is the one that counts.

use std::sync::Arc;

use forebay_core::{ErrorKind, Key, Result};
use futures::stream::{self, StreamExt};

use crate::store::{Entry, ListOptions, Listing, Store};

/// List `stores` as one.
pub(super) fn list(stores: &[Arc<dyn Store>], prefix: &Key, options: ListOptions) -> Listing {
    let sources = stores.iter().map(|store| Source {
        place: store.location().join(prefix).to_string(),
        rows: store.list(prefix, options),
        next: None,
        begun: false,
    });
    let merge = Merge(sources.collect());
    stream::unfold(
        merge,
        |mut merge| async move { Some((merge.next().await?, merge)) },
    )
    .boxed()
}

struct Merge(Vec<Source>);

struct Source {
    place: String,
    rows: Listing,
    next: Option<Result<Entry>>,
    begun: bool,
}

impl Source {
    async fn fill(&mut self) {
        if self.next.is_some() {
            return;
        }
        self.next = self.rows.next().await;
        let first = !std::mem::replace(&mut self.begun, true);
        // A tier that does not exist yet is an empty one.
        if let Some(Err(error)) = &self.next
            && first
            && error.kind() == ErrorKind::NotFound
            && error.location() == Some(self.place.as_str())
        {
            self.next = None;
        }
    }
}

impl Merge {
    async fn next(&mut self) -> Option<Result<Entry>> {
        for source in &mut self.0 {
            source.fill().await;
            // Errors have no place in the order; they come as soon as they are met.
            if let Some(Err(_)) = &source.next {
                return source.next.take();
            }
        }
        let least = self.0.iter().filter_map(Source::sort_key).min()?;
        let mut chosen = None;
        for source in &mut self.0 {
            if source.sort_key().as_ref() == Some(&least) {
                let row = source.next.take();
                chosen = chosen.or(row);
            }
        }
        chosen
    }
}

impl Source {
    fn sort_key(&self) -> Option<String> {
        match self.next.as_ref()?.as_ref().ok()? {
            Entry::Object(meta) => Some(meta.key.to_string()),
            Entry::Prefix(key) => Some(format!("{key}/")),
        }
    }
}
