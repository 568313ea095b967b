//! From a location to a store with the wrappers it should have.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Key, Location, Result, Scheme};

use crate::context::Context;
use crate::local::LocalStore;
use crate::memory::MemoryStore;
use crate::remote;
use crate::store::Store;

/// Open the store at `location`; keys are relative to it. Remote stores come with retries.
pub async fn open(location: &Location, context: &Context) -> Result<Arc<dyn Store>> {
    match location.scheme() {
        Scheme::File => Ok(Arc::new(LocalStore::open(location, context)?)),
        Scheme::Mem => Ok(MemoryStore::named(location)),
        Scheme::S3 | Scheme::Gs | Scheme::Az | Scheme::Http | Scheme::Https => {
            remote::open(location, context).await
        }
        Scheme::NvmeTcp => Err(Error::new(
            ErrorKind::Unsupported,
            "open",
            "NVMe over TCP is not built into this version",
        )
        .at(location)),
    }
}

/// Open the store that holds the object at `location`, and give its key there.
pub async fn open_object(location: &Location, context: &Context) -> Result<(Arc<dyn Store>, Key)> {
    let (parent, key) = location.split_last().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            "open",
            "an object is needed, but this names a whole store",
        )
        .at(location)
        .with_hint("add the name of the object")
    })?;
    Ok((open(&parent, context).await?, key))
}
