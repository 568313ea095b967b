//! What a remote store can be relied on for, found out by trying.
//!
//! Stores claim much: one ignores conditional writes, another lets racing writers both win, a third takes bytes with a wrong checksum. So the first
//! time something depends on it, a few small objects are written under `.forebay-probe/` beside the data, the claims are tried on them ([`checks`]),
//! and they are removed again. The result is kept for a week per endpoint and bucket ([`cache`]). Whoever may not write gets `Untried` with
//! the reason, and conditional writes refuse to work.

mod cache;
mod checks;

use forebay_core::Result;

use crate::remote::RemoteStore;
use crate::store::Capabilities;

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
    let capabilities = Box::pin(checks::run(store)).await?;
    // What could not be tried with these credentials may be tried with others.
    if capabilities.probed.is_some() {
        cache::save(context, identity, &capabilities).await;
    }
    Ok(capabilities)
}
