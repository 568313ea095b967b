//! What a remote store can be relied on for, found out by trying.
//!
//! Stores claim much: one ignores conditional writes, another lets racing writers both win, a third takes bytes with a wrong checksum. So the first
//! time something depends on it, a few small objects are written under `.forebay-probe/` beside the data, the claims are tried on them ([`checks`]),
//! and they are removed again; listings leave them out. The result is kept for a week per endpoint and bucket ([`cache`]). Whoever may not write gets `Untried` with
//! the reason, and conditional writes refuse to work. A probe goes to its end even when its caller goes away, so that it cleans up.

mod cache;
mod checks;
mod races;

use forebay_core::{Error, ErrorKind, Result};

use crate::remote::RemoteStore;
use crate::store::Capabilities;

/// Where probe objects are, below the store's location.
pub(crate) const DIR: &str = ".forebay-probe";

/// From the cache when it is fresh, by trying otherwise.
pub(crate) async fn capabilities(store: &RemoteStore) -> Result<Capabilities> {
    if store.is_plain_http() {
        return Ok(Capabilities::untried(
            "plain HTTP servers are read, not written to in order to find out",
        ));
    }
    let context = store.context();
    let identity = &store.backend().identity;
    if let Some(capabilities) = cache::load(context, identity).await {
        return Ok(capabilities);
    }
    let probing = tokio::spawn(probe(store.clone()));
    probing.await.unwrap_or_else(|error| {
        let kind = if error.is_cancelled() {
            ErrorKind::Cancelled
        } else {
            ErrorKind::Internal
        };
        Err(Error::new(kind, "probe", "the probe was broken off"))
    })
}

async fn probe(store: RemoteStore) -> Result<Capabilities> {
    let found = checks::run(&store).await?;
    if found.lasts {
        cache::save(store.context(), &store.backend().identity, &found.capabilities).await;
    }
    Ok(found.capabilities)
}
